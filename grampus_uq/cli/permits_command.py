"""`grampus-uq permits`: calls that go ahead unasked as far as answers have earned it; granted, shown, taken back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click
import numpy as np

from grampus_uq.cli.argument_types import FiniteRange, SummarisedGroup, options
from grampus_uq.cli.many_runs import workers_option
from grampus_uq.cli.printing import (
    as_json_option,
    naming_refused,
    one_line,
    print_json,
    print_list,
    print_result,
    print_table,
    progress,
    say_beside,
)
from grampus_uq.cli.store_options import as_option, on_store, signing
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.gate.permit_conditions import limits_of
from grampus_uq.gate.permits import Permit, PermitState, promise_of, sentence
from grampus_uq.gate.seal import Seal
from grampus_uq.gate.signatures import HmacSigner
from grampus_uq.learn.permit_simulation import LabelledCalls, Simulated, read_labelled_calls, simulate_permit
from grampus_uq.learn.recorded_answers import RecordedAnswers, recorded_answers
from grampus_uq.recording.artifacts import load
from grampus_uq.runtime.permit_words import (
    least_missing,
    narrowed,
    permit_facts,
    replaced,
    same_as_logged,
    stands,
    until,
)
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_permits import (
    Standing,
    close_permit,
    find_permit,
    grant_permit,
    replace_permit,
    replayed_permit,
    stored_permits,
)
from grampus_uq.stats.earned_threshold import CANDIDATES, Target, earned_to_json, nothing_earned

_DAY_S, _HOUR_S = 86_400.0, 3_600.0
_DEFAULT = {name: field.default for name, field in Permit.model_fields.items()}
_RUN = _DEFAULT["stream"]


@click.group(name="permits", cls=SummarisedGroup)
def command() -> None:
    """Manage permits: calls that proceed without asking, with a stated promise.

    A permit is signed like a decision: with the key in --key or GRAMPUS_UQ_APPROVAL_KEY_FILE, or with the
    shared key in GRAMPUS_UQ_APPROVAL_KEY. A runner with keys accepts no unsigned permits.
    """


# -- in a store -------------------------------------------------------------------------------------------------------


_granting = options(
    on_store,
    click.option(
        "--where",
        "conditions",
        multiple=True,
        metavar="NAME=RULE:VALUE",
        help='A condition on an argument: amount=max:50, to=in:["ann"]; also min, equals (JSON values); repeatable.',
    ),
    click.option(
        "--at-most",
        type=FiniteRange(0.001, 0.5),
        help=f"Largest share of wrong calls; {_DEFAULT['epsilon']} for a new permit.",
    ),
    click.option("--days", type=FiniteRange(0.01, 3_650.0), help="Duration in days; 90 for a new permit."),
    signing("Who grants"),
    as_json_option,
    click.option(
        "--miss-rate",
        type=FiniteRange(0.0, 0.9),
        help="Upper bound on the share of wrong calls that reviewers approve, from drills.",
    ),
    click.option(
        "--miss-assurance",
        type=FiniteRange(0.5, 0.999),
        help="Confidence of the miss rate.  [default: 0.95, that of the number from `drills report`]",
    ),
)
"""The options of commands that write a permit."""
_promise_options = options(
    click.option("--of-released", is_flag=True, help="The share is of the calls that may proceed, not of all calls."),
    click.option(
        "--assurance",
        type=FiniteRange(0.5, 0.999),
        default=1.0 - _DEFAULT["delta"],
        help="Probability that the promise holds.",
    ),
    click.option(
        "--audits",
        type=FiniteRange(0.01, 0.9),
        default=_DEFAULT["audit_rate"],
        help="Smallest share of calls audited at random.",
    ),
)


@command.command()
@click.option("--tool", required=True, help="Name of the tool.")
@_granting
@click.option("--agent", help="Only this agent's calls.")
@click.option(
    "--stream",
    type=click.Choice(["confidence", "p_success", "call_probability"]),
    default=_DEFAULT["stream"],
    help="Score of a call, in [0, 1]; higher: likelier right.",
)
@_promise_options
@click.option(
    "--answer-hours",
    type=FiniteRange(0.01, 8_760.0),
    default=72.0,
    help="Hours after which an unanswered question counts as wrong.",
)
@click.option(
    "--from",
    "recorded",
    multiple=True,
    metavar="RUNS",
    help="Start with the answers in these recordings: all runs of a period in which every call was asked about.",
)
@click.option(
    "--nothing-in-force",
    is_flag=True,
    help="For recordings without this information: declare that no permit or grant for the tool was in force.",
)
@click.option("--profile", metavar="FILE", help="The profile that judged those runs, if any.")
@click.option("--agent-version", default="", show_default=False, help="The `agent_version` of `StoredPermits`, if any.")
async def grant(
    store: SessionStore, tool: str, conditions: tuple[str, ...], days: float | None, as_json: bool, **given: Any
) -> None:
    """Let calls of one tool proceed without asking once answers support it; at most a small share is wrong.

    With --from, the permit starts with recorded answers. If runners seal their state, run this with their
    GRAMPUS_UQ_SEAL_KEY (or shared approval key): they trust no other start.
    """
    at_most, miss_delta = given["at_most"], _miss_delta(given)
    for name in ("nothing-in-force", "profile", "agent-version"):
        if given[name.replace("-", "_")] and not given["recorded"]:
            raise click.UsageError(f"--{name} belongs to --from.")
    permit = Permit(
        tool=tool,
        limits=limits_of(conditions),
        agent_id=given["agent"],
        stream=given["stream"],
        epsilon=_DEFAULT["epsilon"] if at_most is None else at_most,
        delta=round(1.0 - given["assurance"], 12),
        audit_rate=given["audits"],
        of_released=given["of_released"],
        miss_rate=given["miss_rate"],
        miss_delta=miss_delta,
        answer_within_s=given["answer_hours"] * _HOUR_S,
        principal=given["principal"],
        expires_s=time.time() + (90.0 if days is None else days) * _DAY_S,
    )
    answers = _recorded(permit, given)
    if answers is not None:
        permit = permit.model_copy(update={"judge": answers.calls[0].judge})
    permit = permit if given["signer"] is None else given["signer"].sign(permit)
    entries = [] if answers is None else answers.entries()
    shared = HmacSigner.from_environment()  # the seal is that of the hosts, where the environment has its key
    seal = Seal.from_environment() or (None if shared is None else shared.seal())
    state = await grant_permit(store, permit, entries, seal=seal)
    others = [
        f"{one.permit.id[:8]} ({stands(one)})"
        for one in await stored_permits(store)
        if one.permit.tool == tool and one.permit.id != permit.id and one.is_open
    ]
    words = f"{', '.join(others)}: what several permits cover goes ahead only where all of them let it"
    _granted(permit, as_json, state, **({"beside": words} if others else {}))
    if answers is not None and answers.left_out:
        say_beside(f"Left out: {_counted(dict(sorted(answers.left_out.items())))}.")


def _recorded(permit: Permit, given: dict[str, Any]) -> RecordedAnswers | None:
    paths, profile = given["recorded"], given["profile"]
    if not paths:
        return None
    judge = Profile() if profile is None else load(profile).profile
    said = {name: given[name] for name in ("agent_version", "nothing_in_force")}
    found = recorded_answers(paths, permit, judge, **said)  # ends at a file that cannot be read
    if not found.calls:
        left_out = _counted(found.left_out) or "no call of the scope waited"
        raise DataError(f"no answer to start with ({left_out}).", path=", ".join(paths))
    return found


def _counted(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {why}" for why, n in left_out.items())


@command.command()
@click.argument("permit_id")
@_granting
async def narrow(store: SessionStore, permit_id: str, conditions: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Replace a permit by one with further conditions, a smaller share or a measured miss rate.

    The new permit starts without answers: a small share of wrong calls overall implies nothing about each part.
    """
    found = await find_permit(store, permit_id)
    permit = narrowed(
        found.permit,
        principal=given["principal"],
        now_s=time.time(),
        conditions=limits_of(conditions),
        at_most=given["at_most"],
        days=given["days"],
        miss_rate=given["miss_rate"],
        miss_delta=_miss_delta(given),
    )
    permit = permit if given["signer"] is None else given["signer"].sign(permit)
    state = await replace_permit(store, found.permit.id, permit)
    _granted(permit, as_json, state, replaces=replaced(found))


@command.command()
@click.argument("permit_id")
@on_store
@as_json_option
@as_option("Who revokes it")
@click.option("--message", "-m", default="", show_default=False, help="Reason.")
async def revoke(store: SessionStore, permit_id: str, principal: str, message: str, as_json: bool) -> None:
    """Close a permit for good: every call needs approval again. Needs no key: anybody with access to the store may
    stop it.
    """
    found, why = (await find_permit(store, permit_id)).permit.id, f"{principal} revoked it"
    why += f": {message}" if message else ""
    await close_permit(store, found, why)
    closed = (await find_permit(store, found)).state.closed  # closed stays closed, for the first reason
    print_result(as_json, {"permit": found, "closed": closed}, [f"{one_line(found)} is closed: {one_line(closed)}."])


@command.command(name="list")
@on_store
@as_json_option
async def list_(store: SessionStore, as_json: bool) -> None:
    """List permits: scope, threshold in force, answers, cleared calls and promise."""
    found = await stored_permits(store)
    columns = ("permit", "scope", "status", "answers", "wrong", "cleared")
    print_list(as_json, map(_standing_json, found), columns, map(_list_row, found), "No permits.")


def _list_row(standing: Standing) -> list[str]:
    permit, state = standing.permit, standing.state
    counts = [str(n) for n in (state.answers, state.wrong, state.released)]
    return [permit.id[:8], permit.scope(), stands(standing), *counts]


@command.command()
@click.argument("permit_id")
@on_store
@as_json_option
async def show(store: SessionStore, permit_id: str, as_json: bool) -> None:
    """Show one permit: promise, evidence, pending calls, and whether its log reproduces its state.

    Signatures and seals are not checked here: only a host has the keys.
    """
    standing = await find_permit(store, permit_id)
    agrees = same_as_logged(standing, await replayed_permit(store, standing.permit))
    log = "reproduces this state" if agrees else "DOES NOT REPRODUCE THIS STATE: one of the two was changed"
    lines = (f"{name:<10} {text}" for name, text in (permit_facts(standing) | {"log": log}).items())
    print_result(as_json, _standing_json(standing) | {"log_agrees": agrees}, lines)


def _standing_json(standing: Standing) -> dict[str, Any]:
    permit, state = standing.permit, standing.state
    counts = state.model_dump(mode="json", exclude={"earned", "open", "v", "permit"})
    return {
        "permit": permit.model_dump(mode="json"),
        "state": counts | {"threshold": state.threshold(permit), "open": len(state.open)},
        "stands": stands(standing),
        "sentence": sentence(permit, state),
    }


def _miss_delta(given: Mapping[str, Any]) -> float:
    if given["miss_assurance"] is None:
        return float(_DEFAULT["miss_delta"])
    if given["miss_rate"] is None:
        raise click.UsageError("--miss-assurance belongs to --miss-rate.")
    return float(round(1.0 - given["miss_assurance"], 12))


def _granted(permit: Permit, as_json: bool, state: PermitState, **beside: str) -> None:
    signed = permit.signature is not None
    known = {"permit": permit.model_dump(mode="json"), "signed": signed, "answers": state.answers}
    how = "signed" if signed else "unsigned (no key is set)"
    least = least_missing(permit.target, state.earned)
    lines = [
        f"permit     {permit.id}",
        f"promise    {promise_of(permit)}",
        f"granted    by {permit.principal}, {how}; until {until(permit.expires_s)}",
        *(f"{name:<10} {words}" for name, words in beside.items()),
    ]
    if state.counted:
        lines.append(f"starts     with {state.answers} answers, {state.wrong} of them wrong")
    asks = f"Each call that it covers is asked about until answers support more: at least {least} right ones."
    lines.append(asks if least else f"status     {sentence(permit, state)}")
    print_result(as_json, known | {"promise": promise_of(permit)} | beside, lines)


# -- beforehand -------------------------------------------------------------------------------------------------------


@command.command()
@click.argument("paths", nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--at-most",
    type=FiniteRange(0.001, 0.5),
    default=_DEFAULT["epsilon"],
    metavar="SHARE",
    help="Largest share of all calls that are executed wrongly.",
)
@_promise_options
@click.option(
    "--stream",
    default=_RUN,
    help=f"Score, in [0, 1]; higher: likelier right. {_RUN}: the run's, as a permit goes by it.",
)
@click.option("--tool", metavar="NAME", help="Only calls of this tool; by default all irreversible ones.")
@click.option("--profile", metavar="FILE", help="Recompute the stream with this profile.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the audits.")
@workers_option
@as_json_option
def simulate(
    paths: tuple[str, ...],
    at_most: float,
    of_released: bool,
    assurance: float,
    audits: float,
    stream: str,
    tool: str | None,
    profile: str | None,
    seed: int,
    workers: int,
    as_json: bool,
) -> None:
    """Simulate a permit on labelled RUNS: calls asked about, executed, and executed wrongly.

    Each run counts by its first irreversible call, or call of --tool, which is wrong if the run failed. The
    simulation starts by asking about every call. The promise needs runs labelled regardless of their outcome, and a
    profile that was not fitted on them.
    """
    target = Target(
        thresholds=CANDIDATES, epsilon=at_most, delta=1.0 - assurance, audit_rate=audits, of_released=of_released
    )
    judge = None if profile is None else load(profile).profile
    with naming_refused() as refuse:
        with progress("Reading runs") as advance:
            calls = read_labelled_calls(
                paths, stream, profile=judge, tool=tool, on_refused=refuse, on_runs=advance, workers=workers
            )
        if not len(calls.scores):
            left_out = _counted(calls.left_out) or "there is no run"
            which = "an irreversible call" if tool is None else f"a call of {tool!r:.80}"
            raise DataError(f"no labelled run with {which} ({left_out}).", path=", ".join(paths))
        found = simulate_permit(target, calls.scores, calls.wrong, np.random.default_rng(seed))
        if as_json:
            print_json(_as_json(target, stream, calls, found))
        else:
            _print(target, stream, calls, found)


def _as_json(target: Target, stream: str, calls: LabelledCalls, found: Simulated) -> dict[str, Any]:
    scored = int((~np.isnan(calls.scores)).sum())
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
    if unscored := int(np.isnan(calls.scores).sum()):
        say_beside(f"{unscored} of {found.calls} calls have no {stream}, and are asked about: another --stream?")
    if calls.left_out:
        say_beside(f"Runs left out: {_counted(calls.left_out)}.")


def _sentence(target: Target, stream: str, found: Simulated) -> str:
    """The promise at the end, or what is missing for one."""
    share = f"{100.0 * target.epsilon:g} % of {'the calls that may go out' if target.of_released else 'all calls'}"
    sure = f"{100.0 * (1.0 - target.delta):g} %"
    again = (
        f" It was withdrawn {'once' if found.withdrawn == 1 else f'{found.withdrawn} times'} before."
        if found.withdrawn
        else ""
    )
    if found.threshold is None:
        least = least_missing(target, earned_to_json(nothing_earned(target)))
        return (
            f"No calls are cleared after {found.calls} calls, {found.wrong} of them wrong: every call is asked about. "
            f"At most {share} at {sure} takes {least} right answers at the least.{again}"
        )
    return (
        f"Goes ahead from {stream} {found.threshold:g} on: at most {share} go out wrong, at {sure}, as judged by the "
        f"labels; from {found.asked} answers, {found.audits} of them audits.{again}"
    )
