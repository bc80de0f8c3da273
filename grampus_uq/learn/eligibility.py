"""May a run's outcome be learned from, and how much does it count: an outcome that somebody influenced is selected.

A run that a human or the monitor stopped, changed or decided on ended as it did because of that. Kept as an ordinary
run it would teach a monitor that whatever it cleared was fine, so it is left out and counted. A run that would have
been stopped and was let through at random stands for all those that were not: it counts one over the probability of its
draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from grampus_uq.recording.runs import Run
from grampus_uq.records.events import StepEvent
from grampus_uq.records.vocabulary import Effect, StopReason

NO_OUTCOME: Final = "no_outcome"
NO_STEP: Final = "no_step_of_the_model"
SUPERSEDED: Final = "superseded"
SELECTED: Final = ("human_decided", "stopped_at_call", "stopped_by_monitor")
"""Reasons by which the remaining runs are selected: somebody chose the excluded ones by how they looked."""

_RULES_FOR_IRREVERSIBLE_CALLS: Final = frozenset(
    {"irreversible_override", "release", "missing_evidence", "worst_so_far", "call_evidence", "chain"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """`reason` says why a run is left out ("": it may be used); `weight` is one over the chance that it was seen.

    `most`: the largest weight that a run under its monitor can have, whether or not this one has it.
    """

    reason: str
    weight: float = 1.0
    most: float = 1.0

    @property
    def usable(self) -> bool:
        """True when the run may be learned from."""
        return not self.reason


def eligibility(run: Run) -> Eligibility:
    """Decide whether a run may be learned from.

    Reasons against: `superseded` (its session id was used again), `human_decided` (or the run was rolled back or
    forked), `stopped_at_call` (at a call that is not known to be reversible: the random exploration never clears such a
    call, so no run shows how it would have ended), `stopped_by_monitor`, `no_outcome`, `max_steps` (unless a label says
    how it ended), `no_beginning` (it would have been stopped, and the missing start would say why it was not), and the
    informative stop reasons under their own names.
    """
    outcome = run.outcome
    if run.superseded:
        return Eligibility(reason=SUPERSEDED)
    if run.decisions or run.went_back:
        return Eligibility(reason="human_decided")
    if run.touched:
        stops = (e for e in run.events if isinstance(e, StepEvent) and e.assessment.action.stops)
        return Eligibility(reason="stopped_at_call" if any(map(_at_guarded_call, stops)) else "stopped_by_monitor")
    if outcome is None:
        return Eligibility(reason=NO_OUTCOME)
    if outcome.stop_reason.informative:
        return Eligibility(reason=outcome.stop_reason.value)
    if outcome.stop_reason is StopReason.MAX_STEPS and (outcome.success is None or outcome.labelled_by is None):
        return Eligibility(reason=StopReason.MAX_STEPS.value)
    if outcome.success is None:
        return Eligibility(reason=NO_OUTCOME)
    start = run.start
    explored = start is not None and not start.advisory and start.release_probability
    most = 1.0 / explored if explored else 1.0
    if (start is not None and start.advisory) or not _would_have_stopped(run):
        return Eligibility(reason="", most=most)
    if start is None or not start.let_through or not explored:
        return Eligibility(reason="no_beginning")
    return Eligibility(reason="", weight=most, most=most)


def about_the_others(left_out: Mapping[str, int]) -> str:
    """The sentence of a promise on runs that are left out for how they ended, by reason; nothing where there are none.

    Their labels do not bring them back, and they may have failed more often than the rest.
    """
    ends = {name: n for name, n in sorted(left_out.items()) if n and name not in ("", NO_OUTCOME, NO_STEP, SUPERSEDED)}
    if not ends:
        return ""
    reasons = ", ".join(f"{name} {n}" for name, n in ends.items())
    return (
        f" Runs that were stopped or decided on, or did not end by themselves, are left out ({reasons}): the promise "
        "is about the others."
    )


def traffic_weight(run: Run) -> float:
    """The number of runs of the traffic that a recorded run stands for, whatever its outcome: its weight in a forecast.

    With random exploration, a run that was let through stands for the runs that were stopped in its place, and a
    stopped one, whose own end is unknown, for none. All other runs stand for themselves.
    """
    start = run.start
    probability = None if start is None or start.advisory else start.release_probability
    if start is None or not probability:
        return 1.0
    if start.let_through:
        return 1.0 / probability if _would_have_stopped(run) else 1.0
    first = next((event for event in run.steps if event.assessment.action.stops), None)
    return 1.0 if first is None or _at_guarded_call(first) else 0.0


def _would_have_stopped(run: Run) -> bool:
    return any((action := event.assessment.advisory_action) is not None and action.stops for event in run.steps)


def _at_guarded_call(event: StepEvent) -> bool:
    """Return True if the call is not known to be reversible, or was stopped by a rule for irreversible calls."""
    reversible = event.assessment.effect in (Effect.READ, Effect.REVERSIBLE)
    guarded = not reversible or event.assessment.rule in _RULES_FOR_IRREVERSIBLE_CALLS
    return event.step.kind == "tool_call" and guarded
