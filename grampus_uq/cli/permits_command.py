"""`grampus-uq permits`: how many questions a promise earned from answers would save."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from grampus_uq.cli.argument_types import FiniteRange, SummarisedGroup
from grampus_uq.cli.printing import as_json_option, naming_refused, print_json, print_table, progress, say_beside
from grampus_uq.cli.spreading import spread_over, spreading
from grampus_uq.errors import DataError

if TYPE_CHECKING:
    from grampus_uq.learn.permit_simulation import LabelledCalls, Simulated
    from grampus_uq.stats.earned_threshold import Target


@click.group(name="permits", cls=SummarisedGroup)
def command() -> None:
    """Fewer questions with a proof: what calls could go ahead unasked, and with which promise."""


@command.command()
@click.argument("paths", nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--at-most",
    type=FiniteRange(0.001, 0.5),
    default=0.05,
    show_default=True,
    metavar="SHARE",
    help="Largest share of all calls that go out wrong.",
)
@click.option("--of-released", is_flag=True, help="The share is of the calls that may go out, not of all calls.")
@click.option("--assurance", type=FiniteRange(0.5, 0.999), default=0.95, show_default=True, help="Of the promise.")
@click.option(
    "--audits", type=FiniteRange(0.01, 0.9), default=0.05, show_default=True, help="Least share asked anyway."
)
@click.option("--stream", default="p_success", show_default=True, help="Score, in [0, 1]; higher: likelier right.")
@click.option("--profile", metavar="FILE", help="Compute the stream anew with this profile.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the audits.")
@spreading
@as_json_option
def simulate(
    paths: tuple[str, ...],
    at_most: float,
    of_released: bool,
    assurance: float,
    audits: float,
    stream: str,
    profile: str | None,
    seed: int,
    workers: int | None,
    backend: str,
    as_json: bool,
) -> None:
    """Play labelled RUNS through a threshold that answers earn: asked, gone out, gone out wrong.

    The case of a run is its first irreversible call, wrong where the run failed. It starts by asking about everything.
    The promise needs runs that were labelled whatever became of them, and a profile that was not fitted on them.
    """
    import numpy as np

    from grampus_uq.learn.permit_simulation import CANDIDATES, read_labelled_calls, simulate_permit
    from grampus_uq.recording.artifacts import load
    from grampus_uq.stats.earned_threshold import Target

    target = Target(
        thresholds=CANDIDATES, epsilon=at_most, delta=1.0 - assurance, audit_rate=audits, of_released=of_released
    )
    judge = None if profile is None else load(profile).profile
    with naming_refused() as refuse:
        with progress("Reading runs") as advance:
            spread = spread_over(paths, workers, backend)
            calls = read_labelled_calls(paths, stream, profile=judge, on_refused=refuse, on_runs=advance, **spread)
        if not len(calls.scores):
            left_out = ", ".join(f"{n} {why}" for why, n in calls.left_out.items()) or "there is no run"
            raise DataError(f"no labelled run with an irreversible call ({left_out}).", path=", ".join(paths))
        found = simulate_permit(target, calls.scores, calls.wrong, np.random.default_rng(seed))
        if as_json:
            print_json(_as_json(target, stream, calls, found))
        else:
            _print(target, stream, calls, found)


def _as_json(target: Target, stream: str, calls: LabelledCalls, found: Simulated) -> dict[str, Any]:
    scored = sum(not math.isnan(score) for score in calls.scores.tolist())
    promise = {"at_most": target.epsilon, "assurance": 1.0 - target.delta, "stream": stream, "scored": scored}
    return {**promise, **asdict(found), "left_out": dict(calls.left_out), "sentence": _sentence(target, stream, found)}


def _print(target: Target, stream: str, calls: LabelledCalls, found: Simulated) -> None:
    at_random = found.wrong * found.out / found.calls
    rows = [
        ("ask always", str(found.calls), "0", "0"),
        ("as many at random", str(found.asked), str(found.out), f"{at_random:.1f}"),
        ("earned", str(found.asked), str(found.out), str(found.wrong_out)),
    ]
    print_table(("rule", "asked", "went out", "wrong and out"), rows)
    say_beside(_sentence(target, stream, found))
    if calls.left_out:
        say_beside("Runs left out: " + ", ".join(f"{n} {why}" for why, n in calls.left_out.items()) + ".")


def _sentence(target: Target, stream: str, found: Simulated) -> str:
    """The promise at the end, or what is missing for one."""
    share = f"{100.0 * target.epsilon:g} % of {'the calls that may go out' if target.of_released else 'all calls'}"
    sure = f"{100.0 * (1.0 - target.delta):g} %"
    again = f" It was withdrawn {found.withdrawn} times before." if found.withdrawn else ""
    if found.threshold is None:
        least = math.ceil(math.log(target.delta) / math.log1p(-target.epsilon))
        return (
            f"Nothing is earned after {found.calls} calls, {found.wrong} of them wrong: every call is asked about. "
            f"At most {share} at {sure} takes {least} right answers at the least.{again}"
        )
    return (
        f"Goes ahead from {stream} {found.threshold:g} on: at most {share} go out wrong, at {sure}, as judged by the "
        f"labels; from {found.asked} answers, {found.audits} of them audits.{again}"
    )
