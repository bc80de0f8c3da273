"""May a run's outcome be learned from, and how much does it count: what a monitor or a human touched is selected.

A run that was stopped, changed or decided on by somebody ended as it did because of that; left in as an ordinary run it
teaches a monitor that what it let through was fine. It is left out and counted. A run that would have been stopped and
was let through at random stands for all those that were not: it counts one over the probability of its draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grampus_uq.recording.runs import Run
from grampus_uq.records.values import StepUncertainty
from grampus_uq.records.vocabulary import Effect, StopReason

__all__ = ["NO_OUTCOME", "SELECTED", "SUPERSEDED", "Standing", "standing", "stands_for"]

NO_OUTCOME: Final = "no_outcome"
SUPERSEDED: Final = "superseded"
SELECTED: Final = ("human_decided", "stopped_at_call", "stopped_by_monitor")
"""Reasons by which what is left is selected: somebody chose these runs by how they looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """`reason` says why the run is left out, "" when it is not; `weight` is one over the chance that it was seen."""

    reason: str
    weight: float = 1.0

    @property
    def usable(self) -> bool:
        """True when the run may be fitted on."""
        return not self.reason


def standing(run: Run) -> Standing:
    """Say what a run may be used for.

    Reasons: `superseded` (its session id was used again), `human_decided`, `stopped_at_call` (a call that is not known
    to be reversible: no random release lets it through, so none can show how such a run would have ended),
    `stopped_by_monitor`, `no_outcome`, `max_steps` (unless a label says how it ended), `no_beginning` (something would
    have been stopped, and nobody can tell why it was not), and the informative stop reasons under their own names.
    """
    outcome = run.outcome
    if run.superseded:
        return Standing(reason=SUPERSEDED)
    if run.decisions:
        return Standing(reason="human_decided")
    stopped = [event for event in run.steps if event.assessment.action.stops]
    if stopped:
        at_call = any(event.step.kind == "tool_call" and _never_let_through(event.assessment) for event in stopped)
        return Standing(reason="stopped_at_call" if at_call else "stopped_by_monitor")
    if outcome is None:
        return Standing(reason=NO_OUTCOME)
    if outcome.stop_reason.informative:
        return Standing(reason=outcome.stop_reason.value)
    if outcome.stop_reason is StopReason.MAX_STEPS and (outcome.success is None or outcome.labelled_by is None):
        return Standing(reason=StopReason.MAX_STEPS.value)
    if outcome.success is None:
        return Standing(reason=NO_OUTCOME)
    return _weighed(run)


def stands_for(run: Run) -> float:
    """How many runs of the traffic a recorded one stands for, whatever became of it: what a forecast counts it as.

    Where runs were let through at random, one that went on stands for those that were stopped in its place, and such a
    run, whose own end nobody knows, for none. Everything else stands for itself.
    """
    start = run.start
    chance = None if start is None or start.advisory else start.release_probability
    if not chance:
        return 1.0
    assert start is not None  # noqa: S101 (for the type checker: without it there is no chance)
    if start.let_through:
        return 1.0 / chance if any(_wanted_to_stop(event.assessment) for event in run.steps) else 1.0
    first = next((event for event in run.steps if event.assessment.action.stops), None)
    if first is None or (first.step.kind == "tool_call" and _never_let_through(first.assessment)):
        return 1.0
    return 0.0


def _wanted_to_stop(assessment: StepUncertainty) -> bool:
    return assessment.advisory_action is not None and assessment.advisory_action.stops


def _weighed(run: Run) -> Standing:
    wanted = any(_wanted_to_stop(event.assessment) for event in run.steps)
    start = run.start
    if not wanted or (start is not None and start.advisory):
        return Standing(reason="")
    if start is None or not start.let_through or not start.release_probability:
        return Standing(reason="no_beginning")
    return Standing(reason="", weight=1.0 / start.release_probability)


_FOR_IRREVERSIBLE_CALLS = frozenset({"irreversible_override", "release", "missing_evidence", "worst_so_far"})


def _never_let_through(assessment: StepUncertainty) -> bool:
    """A call that is not known to be reversible, or that a rule for irreversible calls stopped."""
    harmless = assessment.effect is Effect.READ or assessment.effect is Effect.REVERSIBLE
    return not harmless or assessment.rule in _FOR_IRREVERSIBLE_CALLS
