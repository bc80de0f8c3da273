"""One recorded run as a page: its confidence against the thresholds, what was held and why, every event on click."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.pages.page import printable, render_page
from grampus_uq.recording.replay import would_stop
from grampus_uq.recording.run_rows import (
    EventRow,
    doubts_in_words,
    event_row,
    lowest_reading,
    outcome_in_words,
    thresholds_in_words,
    thresholds_of,
)
from grampus_uq.recording.runs import Run, RunSummary, summarise
from grampus_uq.records.events import ObservationEvent, StepEvent, Thresholds
from grampus_uq.records.values import utc
from grampus_uq.records.vocabulary import in_words

_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 630.0, 10.0, 210.0
_MOST_EVENTS: Final = 5000
_MOST_LOG: Final = 700.0  # e to this power is the largest number that a float holds
_AXIS_NUMBERS: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One step in a drawing; `held`: it was stopped, or would have been; `call`: it is a tool call."""

    x: float
    y: float
    step: int
    title: str
    held: bool
    call: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Points joined by a line, and limits: each a label and the points of its line; `ticks` label the y axis."""

    label: str
    points: Sequence[Point]
    limits: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    ticks: Sequence[tuple[float, str]]

    @property
    def every(self) -> int:
        """Every so many points one has its number on the x axis."""
        return max(1, -(-len(self.points) // _AXIS_NUMBERS))


def run_html(run: Run) -> str:
    """Draw a run as a self-contained page, which can be encoded as UTF-8, loads nothing and runs no script."""
    summary = summarise(run)
    thresholds, lowest = thresholds_of(run), lowest_reading(run)
    return render_page(
        "run.html",
        summary=summary,
        headline=_headline(summary, read=lowest is not None),
        ending=outcome_in_words(summary.success, summary.stop_reason, summary.labelled_by),
        started=_time(summary.started_s),
        thresholds="" if thresholds is None else thresholds_in_words(thresholds),
        lowest="" if lowest is None else f"{in_words(lowest[1])} {lowest[2]:.2f} at step {lowest[0]}",
        held=list(_held(run)),
        chance=min((chance for _, chance in _read(run, "p_success")), default=None),
        drawings=[drawing for drawing in _drawings(run) if drawing.points],
        events=[_shown(event_row(event), event) for event in islice(run.events, _MOST_EVENTS)],
        left_out=max(0, len(run.events) - _MOST_EVENTS),
    )


def _headline(summary: RunSummary, *, read: bool) -> str:
    if not summary.steps:
        return "No step was recorded"
    steps = f"{summary.steps} step{'' if summary.steps == 1 else 's'}"
    if not summary.pauses:
        return f"Nothing was held in {steps}" if read else f"Nothing was read in {steps}, and nothing held"
    return f"{'Would have held' if summary.advisory else 'Held'} {summary.pauses} of {steps}"


def _time(time_s: float | None) -> str:
    try:
        return "" if time_s is None else f"{utc(time_s):%Y-%m-%d %H:%M:%S} UTC"
    except ConfigurationError:  # of no calendar
        return ""


def _held(run: Run) -> Iterator[dict[str, Any]]:
    """The stopped steps, each call with its least likely part."""
    doubts: dict[tuple[str, str], str] = {}
    for event in run.steps:
        assessment, calls = event.assessment, event.step.tool_calls
        for call, doubt in zip(calls, doubts_in_words(event), strict=True):
            if doubt is not None:
                doubts[call.id, call.digest()] = doubt
        if would_stop(event.assessment):
            yield {
                "row": event_row(event),
                "doubts": [known for call in calls if (known := doubts.get((call.id, call.digest()))) is not None],
                "fitted": assessment.rule in ("release", "detector"),
                "rule": assessment.rule.replace("_", " "),
                "guarantee": assessment.guarantee or "no guarantee",
                "arguments": [call.canonical() for call in calls],
            }


def _shown(row: EventRow, event: object) -> dict[str, Any]:
    held = isinstance(event, StepEvent) and would_stop(event.assessment)
    failed = isinstance(event, ObservationEvent) and event.is_error
    kept = not row.text.startswith("hmac:")
    text = row.text if kept else "Only a hash of this text was recorded."
    return {"row": row, "held": held, "failed": failed, "text": text}


# -- drawings ---------------------------------------------------------------------------------------------------------


def _drawings(run: Run) -> tuple[Drawing, ...]:
    chances = _points(run, "p_success", "chance of success")  # what a fitted profile holds calls by
    chance = Drawing(label="Chance of success", points=chances, limits=[], ticks=_SHARES)
    shown = (chance,) if len(chances) > 1 else ()  # one value is in the summary
    return *shown, _confidence(run), _evidence(run)


def _confidence(run: Run) -> Drawing:
    """The belief after every step, between 0 and 1, against the thresholds that were in force at it."""
    points = _points(run, "believed", "confidence")
    at_step = _thresholds_by_step(run)
    limits = []
    for place, level in enumerate(("low", "medium", "high")):
        line = [(point.x, known[place]) for point in points if (known := at_step[point.step]) is not None]
        if line:
            drawn = [(x, _y(limit, 0.0, 1.0)) for x, limit in line]
            to_the_edges = [(_LEFT, drawn[0][1]), *drawn, (_RIGHT, drawn[-1][1])]
            limits.append((f"{level} from {line[-1][1]:.2f}", to_the_edges))
    return Drawing(label="Confidence", points=points, limits=limits, ticks=_SHARES)


def _evidence(run: Run) -> Drawing:
    """The detector's log evidence of failure after every step, against its threshold."""
    read = _read(run, "log_e_value")
    limits = [event.assessment.log_threshold for event, _ in read]
    known = [max(-_MOST_LOG, min(_MOST_LOG, limit)) for limit in limits if limit is not None]
    values = [max(-_MOST_LOG, min(_MOST_LOG, value)) for _, value in read]
    low, high = min([0.0, *values, *known]), max([1.0, *values, *known])
    points = _points(run, "log_e_value", "log evidence", low, high)
    line = [(_LEFT, _y(known[-1], low, high)), (_RIGHT, _y(known[-1], low, high))] if known else []
    ticks = [(_y(value, low, high), f"{value:.1f}") for value in dict.fromkeys((low, 0.0, high))]
    return Drawing(
        label="Evidence of failure (log)",
        points=points,
        limits=[(f"alarm above {known[-1]:.2f}", line)] if line else [],
        ticks=ticks,
    )


def _read(run: Run, name: str) -> list[tuple[StepEvent, float]]:
    """The steps of which the assessment has this number, with it."""
    found = ((event, getattr(event.assessment, name)) for event in run.steps)
    return [(event, value) for event, value in found if value is not None]


def _points(run: Run, name: str, words: str, low: float = 0.0, high: float = 1.0) -> list[Point]:
    """A number after every step that has it, from `low` to `high`."""
    points, read = [], _read(run, name)
    for place, (event, given) in enumerate(read):
        row, value = event_row(event), min(high, max(low, given))
        share = place / (len(read) - 1) if len(read) > 1 else 0.5
        point = Point(
            x=round(_LEFT + 8 + (_RIGHT - _LEFT - 16) * share, 1),
            y=_y(value, low, high),
            step=event.assessment.index,
            title=f"Step {event.assessment.index}, {printable(row.event, 80)}: {words} {value:.2f}, {row.action}",
            held=would_stop(event.assessment),
            call=event.step.kind == "tool_call",
        )
        points.append(point)
    return points


def _thresholds_by_step(run: Run) -> dict[int, Thresholds | None]:
    """The thresholds in force at each step, as the beginning and changes of profile say."""
    now: Thresholds | None = None
    found: dict[int, Thresholds | None] = {}
    for event in run.events:
        if isinstance(event, StepEvent):
            found[event.assessment.index] = now
        else:
            now = getattr(event, "thresholds", None) or now
    return found


def _y(value: float, low: float, high: float) -> float:
    return round(_BOTTOM - (_BOTTOM - _TOP) * (value - low) / (high - low), 1)


_SHARES: Final = [(_y(value, 0.0, 1.0), f"{value:g}") for value in (0.0, 0.25, 0.5, 0.75, 1.0)]
