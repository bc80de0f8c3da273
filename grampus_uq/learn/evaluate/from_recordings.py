"""Recordings as forecast streams: each reading, fused and propagated confidence, p_success, 1/(1 + trajectory risk).

A step is a step of the model: a tool call is the consequence of one and has no forecast of its own. What was stated
after several readings of one source is the last of them.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from grampus_uq.core.risk import confidence_of_risk
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.learn.evaluate.forecast_runs import ForecastRuns, Use, stop_rows
from grampus_uq.recording.copies import distinct_ids
from grampus_uq.recording.parallel import Backend
from grampus_uq.recording.parts import over_parts
from grampus_uq.recording.replay import ReplayedStep, replay
from grampus_uq.recording.runs import Paths, Refused, Run
from grampus_uq.records.events import ObservationEvent, StepEvent
from grampus_uq.records.values import StepUncertainty
from grampus_uq.records.vocabulary import StopReason
from grampus_uq.stats.trajectory_scores import ForecastTraces

__all__ = ["FEATURES", "read_recordings"]

FEATURES = ("log steps so far", "share of tool calls", "share of failed results", "log agent tokens a step")
"""Facts of a prefix that no confidence stream enters: what `continuation.plug_in` predicts from."""

NO_READING = "no reading on this step"  # what the engine says where the guide's 0.5 stands for nothing
_DERIVED = frozenset({"fused", "propagated", "p_success", "trajectory_risk"})
_Trace = dict[str, list[float]]
_NAN = float("nan")


@dataclass(slots=True)
class _Found:
    """What was read so far, eight bytes a number; `streams` are as long as the sum of `lengths`."""

    runs: int = 0
    ids: list[str] = field(default_factory=list)
    outcomes: array[float] = field(default_factory=lambda: array("d"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    streams: dict[str, array[float]] = field(default_factory=dict)
    features: array[float] = field(default_factory=lambda: array("d"))
    audit: Counter[tuple[str, Use, str, bool | None]] = field(default_factory=Counter)
    steps: int = 0

    def add_streams(self, new: dict[str, array[float]], length: int) -> None:
        """Append these; a stream that lacks here or there is missing on all of those steps."""
        for name, values in new.items():
            if name not in self.streams:
                self.streams[name] = array("d", [_NAN]) * self.steps
            self.streams[name].extend(values)
        self.steps += length
        for values in self.streams.values():
            if len(values) < self.steps:
                values.extend(array("d", [_NAN]) * length)


def read_recordings(
    paths: Paths,
    *,
    profile: Profile | None = None,
    workers: int = 1,
    backend: Backend = "local",
    on_runs: Callable[[int], None] | None = None,
    on_refused: Refused | None = None,
) -> ForecastRuns:
    """Read every run under files and folders.

    Holds eight bytes for every forecast and every fact of a step, and the ids. The result is the same with any number
    of workers.

    Args:
        paths: recordings, packed ones too, or folders of them.
        profile: what the runs are to be judged by; the recorded readings go through it again (`replay`), so that
            `fused`, `propagated` and `p_success` are what it would have concluded. None: as they were recorded.
        workers, backend: as `parallel.in_order`.
        on_runs: called with the number of runs of each part that was read, for a progress line.
        on_refused: takes what is wrong with a file, whose rest is left out, or with a run, which is.

    Returns:
        The runs that may be scored, and the audit of all.

    Raises:
        DataError: without `on_refused`, a damaged recording, a run that lies in two files, and steps that do not
            follow each other.
    """
    found = _Found()
    work = partial(_read_part, profile)
    for part in over_parts(work, paths, workers=workers, backend=backend, on_refused=on_refused):
        found.ids += part.ids
        found.outcomes += part.outcomes
        found.lengths += part.lengths
        found.features += part.features
        found.audit += part.audit
        found.add_streams(part.streams, part.steps)
        if on_runs is not None:
            on_runs(part.runs)
    return _assembled(found)


def _read_part(profile: Profile | None, runs: Iterator[Run], refuse: Refused | None) -> _Found:
    found = _Found()
    for run in runs:
        use, why, stop, success = _judge(run)
        again: list[StepUncertainty] | None = None
        if profile is not None and use != "left out":
            try:
                again = _concluded(run, profile)
            except DataError as error:
                if refuse is None:
                    raise
                refuse(error)
                continue
        found.runs += 1
        found.audit[stop, use, why, success] += 1
        if use != "left out":
            found.ids.append(run.session_id)
            found.outcomes.append(_NAN if use == "censored" or success is None else float(success))
            _take(found, run, again)
    return found


def _judge(run: Run) -> tuple[Use, str, str, bool | None]:
    """Use, why, stop reason, and outcome of one run."""
    outcome = run.outcome
    stop = outcome.stop_reason.value if outcome else "unfinished"
    success = outcome.success if outcome else None
    if run.superseded:
        return "left out", "its session id was used again", stop, success
    if not any(_is_forecast(event) for event in run.steps):
        return "left out", "no step of the model", stop, success
    if outcome is None:
        return "left out", "no outcome recorded", stop, success
    if outcome.stop_reason.informative:
        return "left out", "informative stop", stop, success
    if run.touched:
        return "left out", "a human decided or the monitor stopped a step", stop, success
    if outcome.stop_reason is StopReason.MAX_STEPS:
        if success is not None and outcome.labelled_by is not None:
            return "scored", "reached its budget; labelled by hand", stop, success
        return "censored", "reached its budget: administrative censoring", stop, None
    if success is None:
        return "left out", "not labelled", stop, success
    return "scored", "outcome observed", stop, success


def _is_forecast(event: StepEvent) -> bool:
    return event.step.kind != "tool_call"


def _take(found: _Found, run: Run, concluded: list[StepUncertainty] | None) -> None:
    """Add the streams and the prefix facts of one run, as recorded or as `concluded` again."""
    again = None if concluded is None else iter(concluded)
    trace: _Trace = {}
    facts = _PrefixFacts()
    length, read = 0, False
    kept = {id(event) for event in run.steps}
    for event in run.events:
        if isinstance(event, StepEvent) and id(event) not in kept:
            continue
        facts.see(event)
        if isinstance(event, StepEvent):
            assessment = event.assessment if again is None else next(again)
            read = read or any(reading.value is not None for reading in event.readings)
            if _is_forecast(event):
                for name, value in _forecasts(event, assessment, read=read).items():
                    trace.setdefault(name, [_NAN] * length).append(value)
                length += 1
                for values in trace.values():
                    if len(values) < length:
                        values.append(_NAN)
                found.features.extend(facts.row())
    found.lengths.append(length)
    found.add_streams({name: array("d", values) for name, values in trace.items()}, length)


def _concluded(run: Run, profile: Profile) -> list[StepUncertainty]:
    """What a profile concludes from each step that counts (`Run.steps`)."""
    by_event = {id(step.event): step.assessment for step in _replayed(run, profile)}
    return [by_event[id(event)] for event in run.steps]


def _replayed(run: Run, profile: Profile) -> Iterator[ReplayedStep]:
    try:
        yield from replay(run.events, profile)
    except DataError as error:
        raise DataError(error.reason, path=os.fspath(run.path), line=run.line, field=error.field) from error


def _forecasts(event: StepEvent, assessment: StepUncertainty, *, read: bool) -> dict[str, float]:
    """What each stream says at this step; `read` is False while the run had no reading at all."""
    found: dict[str, float] = {}
    for reading in event.readings:
        if reading.value is not None:
            found[f"reading {reading.source}" if reading.source in _DERIVED else str(reading.source)] = reading.value
    if not (assessment.missing_reason or "").endswith(NO_READING):
        found["fused"] = assessment.fused_confidence
    if read:  # before, it is where every run begins, and no forecast
        found["propagated"] = assessment.propagated_confidence
    if assessment.p_success is not None:
        found["p_success"] = assessment.p_success
    safety = confidence_of_risk(assessment.trajectory_risk)
    if safety is not None:
        found["trajectory_risk"] = safety
    return found


class _PrefixFacts:
    """Counts over a prefix."""

    __slots__ = ("calls", "failed", "results", "steps", "tokens")

    def __init__(self) -> None:
        self.steps = self.calls = self.results = self.failed = self.tokens = 0

    def see(self, event: object) -> None:
        """Take one event in."""
        if isinstance(event, StepEvent):
            self.steps += 1
            self.calls += len(event.step.tool_calls) if _is_forecast(event) else 0
            self.tokens += event.step.input_tokens + event.step.output_tokens
        elif isinstance(event, ObservationEvent) and event.kind == "tool_result":
            self.results += 1
            self.failed += event.is_error

    def row(self) -> list[float]:
        """The facts, in the order of `FEATURES`."""
        steps = max(self.steps, 1)
        failed = self.failed / self.results if self.results else 0.0
        return [float(np.log(steps)), self.calls / steps, failed, float(np.log1p(self.tokens / steps))]


def _assembled(found: _Found) -> ForecastRuns:
    lengths = np.array(found.lengths, dtype=np.int64)
    streams = {}
    for name in sorted(found.streams):
        streams[name] = ForecastTraces(forecasts=_floats(found.streams.pop(name)), lengths=lengths)
    return ForecastRuns(
        ids=distinct_ids(found.ids),
        outcomes=_floats(found.outcomes),
        streams=streams,
        features=_floats(found.features).reshape(-1, len(FEATURES)),
        audit=stop_rows(found.audit.elements()),
    )


def _floats(values: array[float]) -> npt.NDArray[np.float64]:
    """The same memory as an array of numpy."""
    return np.frombuffer(values, dtype=np.float64) if len(values) else np.empty(0)
