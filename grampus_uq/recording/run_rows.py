"""A run's events as rows for a human: what was read, what was believed, what was done about it, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grampus_uq.recording.runs import Run
from grampus_uq.records.call_parts import doubt_of, doubt_with_values
from grampus_uq.records.events import (
    CallAsked,
    DecisionEvent,
    Event,
    LookEvent,
    ObservationEvent,
    OutcomeEvent,
    ProfileChanged,
    StepEvent,
    Thresholds,
)
from grampus_uq.records.values import Reading
from grampus_uq.records.vocabulary import NOT_DUE, UncertaintySource, in_words
from grampus_uq.stats.fusion import is_count


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event. `confidence` is the run's belief after a step, in [0, 1]; everything else is text, "" for nothing.

    The texts come from models, tools and strangers: who prints them escapes them.
    """

    step: int | None = None
    event: str
    confidence: float | None = None
    level: str = ""
    action: str = ""
    readings: str = ""
    why: str = ""
    text: str = ""


def event_row(event: Event, *, most: int | None = None) -> EventRow:
    """Say what one event was; of a step's readings the `most` lowest, None: all."""
    if isinstance(event, StepEvent):
        return _step_row(event, most)
    if isinstance(event, ObservationEvent):
        what = event.kind.replace("_", " ") + (" (error)" if event.is_error else "")
        return EventRow(event=what, why=event.call_id or "", text=event.text)
    if isinstance(event, OutcomeEvent):
        outcome = event.outcome
        ending = outcome_in_words(outcome.success, outcome.stop_reason.value, outcome.labelled_by)
        return EventRow(event="outcome", action=ending, text=outcome.note or "")
    if isinstance(event, CallAsked):
        in_force = "not known" if event.in_force is None else ", ".join(f"{x.rule} {x.id[:8]}" for x in event.in_force)
        return EventRow(event="asked", why=f"in force: {in_force}" if in_force else "")
    if isinstance(event, LookEvent):
        found = "the same call" if event.agrees else event.missing or "another call"
        read = "" if event.probability is None else f"call probability {event.probability:.2f}"
        text = "" if event.call is None or event.agrees else event.call.canonical()
        return EventRow(event=f"look of {event.tier}", readings=read, why=found, text=text)
    if isinstance(event, DecisionEvent):
        level = event.acknowledged or ""
        who = f"by {event.principal}"
        return EventRow(event="decision", level=level, action=event.decision, why=who, text=event.message or "")
    advisory = "advisory" if event.advisory else ""
    if isinstance(event, ProfileChanged):
        why = event.profile_fingerprint[:12] + (f"; {event.fallback}" if event.fallback else "")
        return EventRow(event="other profile", action=advisory, why=why)
    return EventRow(event="resumed" if event.resumed else "began", action=advisory, text=event.model)


def _step_row(event: StepEvent, most: int | None) -> EventRow:
    assessment = event.assessment
    calls = ", ".join(call.name for call in event.step.tool_calls)
    action = assessment.action.value
    if assessment.advisory_action is not None and assessment.advisory_action is not assessment.action:
        action += f" (advised: {assessment.advisory_action.value})"
    return EventRow(
        step=assessment.index,
        event=event.step.kind + (f" {calls}" if calls else ""),
        confidence=assessment.believed,
        level=assessment.level.value,
        action=action,
        readings=readings_in_words(event.readings, most=most),
        why=assessment.reasoning or ("" if event.readings else assessment.missing_reason or ""),
        text=event.step.judged_text(),
    )


def doubts_in_words(event: StepEvent) -> list[str | None]:
    """The least sure part of each call of a turn, None where that is unknown; content, made visible."""
    parts = next((r.parts for r in event.readings if r.source == UncertaintySource.CALL_PROBABILITY), ())
    found = [doubt_of(parts, number) if parts else None for number in range(len(event.step.tool_calls))]
    return [None if doubt is None else doubt_with_values(doubt) for doubt in found]


def readings_in_words(readings: Sequence[Reading], *, most: int | None = None) -> str:
    """Every reading with its value, the lowest first and marked where there are several; then those that failed.

    With `most` so many of the lowest, and how many more there are. Counts of what the agent did (`count_...`) are left
    out, and readings that were not due.

    >>> readings_in_words([Reading(source="verbalized", value=0.9), Reading(source="p_true", value=0.4)])
    'P(True) 0.40 (lowest), stated confidence 0.90'
    """
    known = sorted(_values(readings), key=lambda read: read[1])
    said = [f"{in_words(source)} {value:.2f}" for source, value in known]
    if len(said) > 1:
        said[0] += " (lowest)"
    if most is not None and len(said) > most:
        said[most:] = [f"{len(said) - most} higher"]
    failed = [f"no {in_words(r.source)}: {r.reason}" for r in readings if r.value is None and r.reason not in NOT_DUE]
    return ", ".join([*said, *failed])


def _values(readings: Sequence[Reading]) -> list[tuple[str, float]]:
    return [(r.source, r.value) for r in readings if r.value is not None and not is_count(r.source)]


def lowest_reading(run: Run) -> tuple[int, str, float] | None:
    """The lowest reading of a run: its step, source and value; None where nothing was read."""
    found = [(event.assessment.index, *read) for event in run.steps for read in _values(event.readings)]
    return min(found, key=lambda read: read[2], default=None)


def thresholds_of(run: Run) -> Thresholds | None:
    """The thresholds in force at the end of a run; None in a recording from before they were kept."""
    for event in reversed(run.events):
        found = getattr(event, "thresholds", None)
        if found is not None:
            return found  # type: ignore[no-any-return]  # of a beginning, or a change of profile
    return None


def thresholds_in_words(thresholds: Thresholds) -> str:
    """Say from which confidence on a level of uncertainty begins.

    >>> thresholds_in_words((0.8, 0.6, 0.4))
    'uncertainty is low from 0.80, medium from 0.60, high from 0.40, critical below'
    """
    levels = zip(("low", "medium", "high"), thresholds, strict=True)
    return "uncertainty is " + ", ".join([*(f"{level} from {value:.2f}" for level, value in levels), "critical below"])


def outcome_in_words(success: bool | None, stop_reason: str | None, labelled_by: str | None) -> str:
    """The end of a run in words, and who says so.

    >>> outcome_in_words(False, "max_steps", "ana")
    'failure, max_steps (by ana)'
    """
    word = "unknown" if success is None else "success" if success else "failure"
    stop = "" if stop_reason in (None, "clean") else f", {stop_reason}"
    return f"{word}{stop}" + (f" (by {labelled_by})" if labelled_by else "")
