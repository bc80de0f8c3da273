"""The effect of a profile on recorded runs: pauses, their rules, and the share of them in runs that failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import numpy as np
from pydantic import JsonValue

from grampus_uq.core.state import Profile
from grampus_uq.learn.alarm_figures import alarm_shares, share
from grampus_uq.recording.replay import replay_run, would_stop
from grampus_uq.recording.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """The effect of a profile on one recorded run: whether it would have paused it, and the first rule to do so.

    p_success: its value at each step of the model, NaN where there is none. weight: how many runs of the traffic it
    stands for. known: whether its outcome is known and its own.
    """

    success: bool
    paused: bool
    paused_by: str
    p_success: tuple[float, ...] = field(default=())
    weight: float = 1.0
    known: bool = True


def counterfactual(run: Run, profile: Profile, *, keep_p_success: bool = True) -> Counterfactual:
    """Take a run's recorded readings through a profile, as `replay` does; nothing is asked anew.

    Without `keep_p_success` its values are left out: of a million steps they take much memory. Raises DataError when
    the run's steps do not follow each other.
    """
    kept = {id(event) for event in run.steps}
    rule, paused = "", False
    p_success: list[float] = []
    for replayed in replay_run(run, profile):
        event, seen = replayed.event, replayed.assessment
        if keep_p_success and event.step.kind != "tool_call" and id(event) in kept:
            p_success.append(float("nan") if seen.p_success is None else seen.p_success)
        if not paused and would_stop(seen):
            rule, paused = seen.rule, True
    outcome = run.outcome
    return Counterfactual(
        success=outcome is not None and outcome.success is True,
        paused=paused,
        paused_by=rule,
        p_success=tuple(p_success),
    )


def rates(replayed: Iterable[Counterfactual], *, runs_per_day: float | None = None) -> dict[str, JsonValue]:
    """Shares with 95 % intervals: pauses of all runs, and what became of those whose outcome is known.

    These are precision, false alarms, failures caught, and what is right of the rest, without pauses and with. Runs
    count by their weight. The intervals are exact (binomial); where weights differ they are approximate, by the
    effective number of runs. `pauses_per_day` is None when nobody knows how many runs a day there are.
    """
    every = list(replayed)
    paused = np.array([one.paused for one in every], dtype=np.bool_)
    good = np.array([one.success for one in every], dtype=np.bool_)
    known = np.array([one.known for one in every], dtype=np.bool_)
    weights = np.array([one.weight for one in every], dtype=np.float64)
    rules = Counter(one.paused_by for one in every if one.paused)
    shares = {
        name: share(what, among if name == "paused" else known & among, weights)
        for name, (what, among) in alarm_shares(paused, good).items()
    }
    rate = shares["paused"].estimate
    return {
        "runs": len(every),
        "with_outcome": int(known.sum()),
        "failure_rate": share(~good, known, weights).estimate,
        "pauses_by_rule": dict(rules),
        "pauses_per_day": None if runs_per_day is None or rate is None else runs_per_day * rate,
        "right_before": asdict(share(good, known, weights)),
        **{name: asdict(figure) for name, figure in shares.items()},
    }
