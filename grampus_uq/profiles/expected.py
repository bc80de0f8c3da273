"""What a profile would have done on recorded runs: pauses, by which rule, how many of them in runs that failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from grampus_uq.engine import advance
from grampus_uq.recording.runs import Run
from grampus_uq.state import Profile, SessionState
from grampus_uq.stats.ranks import binomial_interval

__all__ = ["Judged", "judge_run", "rates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One run under a profile: whether it would have been held at all, by which rule first, and its chances.

    chances: p_success at each step of the model, NaN where there is none.
    """

    session_id: str
    success: bool
    held_by: str = ""
    step: int | None = None
    chances: tuple[float, ...] = field(default=())

    @property
    def held(self) -> bool:
        """True when some step would have been stopped."""
        return self.step is not None


def judge_run(run: Run, profile: Profile, *, keep_chances: bool = True) -> Judged:
    """Take a run's recorded readings through a profile, as if it only advised; nothing is asked anew.

    Without `keep_chances` they are left out: of a million steps they take much memory.
    """
    silent = profile if profile.advisory else profile.model_copy(update={"advisory": True})
    state = SessionState(session_id=run.session_id)
    rule, at = "", None
    chances: list[float] = []
    for number, event in enumerate(run.steps):
        state, seen = advance(silent, state, event.step, event.readings, event.trajectory)
        if keep_chances and event.step.kind != "tool_call":
            chances.append(float("nan") if seen.p_success is None else seen.p_success)
        wanted = seen.advisory_action
        if at is None and wanted is not None and wanted.stops:
            rule, at = seen.rule, number
    outcome = run.outcome
    return Judged(
        session_id=run.session_id,
        success=outcome is not None and outcome.success is True,
        held_by=rule,
        step=at,
        chances=tuple(chances),
    )


def rates(judged: Iterable[Judged], *, runs_per_day: float | None = None) -> dict[str, JsonValue]:
    """Shares with exact 95 % intervals: pauses, precision, false alarms, failures caught, what is right of the rest.

    `pauses_per_day` is None when nobody knows how many runs a day there are.
    """
    every = list(judged)
    held = np.array([one.held for one in every], dtype=np.bool_)
    good = np.array([one.success for one in every], dtype=np.bool_)
    rules: dict[str, JsonValue] = {}
    for one in every:
        if one.held:
            rules[one.held_by] = int(str(rules.get(one.held_by, 0))) + 1
    paused = _share(held, np.ones(len(every), dtype=np.bool_))
    rate = paused["estimate"]
    per_day = None if runs_per_day is None or not isinstance(rate, float) else runs_per_day * rate
    return {
        "runs": len(every),
        "failure_rate": None if not every else float(1.0 - good.mean()),
        "paused": paused,
        "pauses_by_rule": rules,
        "pauses_per_day": per_day,
        "precision": _share(~good, held),
        "false_alarms": _share(held, good),
        "failures_caught": _share(held, ~good),
        "right_before": _share(good, np.ones(len(every), dtype=np.bool_)),
        "right_among_released": _share(good, ~held),
    }


def _share(what: npt.NDArray[np.bool_], among: npt.NDArray[np.bool_]) -> dict[str, JsonValue]:
    """The share of `what` in `among`, with its exact interval; None where there is nothing to share."""
    n, k = int(among.sum()), int((what & among).sum())
    if n == 0:
        return {"estimate": None, "low": None, "high": None, "of": 0}
    low, high = binomial_interval(k, n)
    return {"estimate": k / n, "low": low, "high": high, "of": n}
