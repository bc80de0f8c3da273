"""From recordings to the score streams that a detector is fitted on: the same numbers that the live monitor feeds it.

One row a step of the model (tool steps are none), by name: "fused", "propagated", "trajectory_risk" (as
1/(1 + risk)), or a reading's own name. A run that a human or the monitor touched has a selected outcome: it is excluded
and counted, never a plain negative.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from grampus_uq.core.engine import advance
from grampus_uq.core.risk import confidence_of_risk
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.importers.verifier_scores import read_scores
from grampus_uq.learn.fit.detector_runs import DetectorRuns, whole_runs
from grampus_uq.recording.eligibility import NO_OUTCOME, SUPERSEDED, standing
from grampus_uq.recording.packed import is_packed
from grampus_uq.recording.parallel import Backend
from grampus_uq.recording.parts import over_parts
from grampus_uq.recording.runs import Refused, Run
from grampus_uq.recording.trajectories import TASK, task_of
from grampus_uq.records.events import StepEvent

__all__ = ["is_table", "read_detector_runs", "runs_of_recordings", "step_scores"]

TABLES = (".csv", ".csv.gz", ".parquet")


def step_scores(
    events: Iterable[StepEvent], streams: Sequence[str], profile: Profile | None = None
) -> list[list[float]]:
    """The scores of a recorded run, one row a step of the model, NaN where one is missing.

    With a `profile` the steps are fused and propagated anew, as that profile would; else as they were recorded.
    """
    rows: list[list[float]] = []
    state = SessionState(session_id="scores")
    for event in events:
        assessment = event.assessment
        if profile is not None:
            state, assessment = advance(profile, state, event.step, event.readings, event.trajectory)
        if event.step.kind == "tool_call":
            continue
        scores: dict[str, float | None] = {reading.source: reading.value for reading in event.readings}
        read = "no reading on this step" not in (assessment.missing_reason or "")
        scores["fused"] = assessment.fused_confidence if read else None
        scores["propagated"] = assessment.propagated_confidence if read else None
        scores["p_success"] = assessment.p_success
        scores["trajectory_risk"] = confidence_of_risk(assessment.trajectory_risk)
        values = [scores.get(name) for name in streams]
        rows.append([math.nan if value is None else value for value in values])
    return rows


def runs_of_recordings(
    recorded: Iterable[Run],
    streams: Sequence[str],
    *,
    labelled: bool = True,
    profile: Profile | None = None,
    task_key: str = TASK,
) -> DetectorRuns:
    """Gather recorded runs for a detector; a run without any step of the model is left out.

    With `labelled` every run needs an outcome or a stop reason, and untouched ones count only; without (for an
    interruption budget) every run counts, whatever became of it. `task_key` names the metadata that says which task a
    run is a trial of; a run without it is a task of its own.
    """
    return _gathered([_scored(recorded, streams, profile, task_key)], streams, labelled)


def read_detector_runs(
    paths: Sequence[str],
    streams: Sequence[str],
    *,
    labelled: bool = True,
    profile: Profile | None = None,
    task_key: str = TASK,
    workers: int = 1,
    backend: Backend = "local",
    on_runs: Callable[[int], None] | None = None,
    on_refused: Refused | None = None,
) -> DetectorRuns:
    """Read recordings (files or folders, packed ones too) or one table of verifier scores (CSV, gz, Parquet).

    Recordings are read part by part, by `workers` processes (`parallel.in_order`); the result does not depend on how
    many. `on_runs` is called with the number of runs of each part, `on_refused` with what is wrong with a file, whose
    rest is then left out. Holds eight bytes a score, and the ids.
    """
    tables = [path for path in paths if is_table(path)]
    if not tables:
        work = partial(_scored_part, tuple(streams), profile, task_key)
        parts = over_parts(work, paths, workers=workers, backend=backend, on_refused=on_refused)
        return _gathered(_told(parts, on_runs), streams, labelled)
    if len(paths) != 1:
        raise DataError("one table of scores at a time, and no recordings beside it", path=tables[0])
    table = read_scores(tables[0], allow_missing=True)
    return whole_runs(
        ids=table.ids,
        lengths=table.lengths,
        scores=table.scores,
        outcomes=table.solved.tolist() if labelled else None,
        streams=streams,
    )


def is_table(path: str) -> bool:
    """Say whether a path names a table of scores, and not recordings."""
    return path.endswith(TABLES) and not Path(path).is_dir() and not is_packed(Path(path))


@dataclass(slots=True)
class _Scored:
    """The scores of some runs: `numbers` say which of all `read` they are, since those without a step are left out."""

    read: int = 0
    numbers: array[int] = field(default_factory=lambda: array("q"))
    ids: list[str] = field(default_factory=list)
    lengths: array[int] = field(default_factory=lambda: array("q"))
    scores: array[float] = field(default_factory=lambda: array("d"))
    tasks: list[str | None] = field(default_factory=list)
    outcomes: list[bool | None] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    weights: array[float] = field(default_factory=lambda: array("d"))


def _scored_part(
    streams: tuple[str, ...], profile: Profile | None, task_key: str, runs: Iterator[Run], refuse: Refused | None
) -> _Scored:
    return _scored(runs, streams, profile, task_key)


def _scored(recorded: Iterable[Run], streams: Sequence[str], profile: Profile | None, task_key: str) -> _Scored:
    found = _Scored()
    for run in recorded:
        rows = step_scores(run.steps, streams, profile)
        if rows:
            outcome, stands = run.outcome, standing(run)
            found.numbers.append(found.read)
            found.ids.append(run.session_id)
            found.lengths.append(len(rows))
            found.outcomes.append(None if outcome is None else outcome.success)
            found.reasons.append(stands.reason)
            found.tasks.append(task_of(run, task_key))
            found.weights.append(stands.weight)
            for row in rows:
                found.scores.extend(row)
        found.read += 1
    return found


def _told(parts: Iterable[_Scored], on_runs: Callable[[int], None] | None) -> Iterator[_Scored]:
    for part in parts:
        if on_runs is not None:
            on_runs(part.read)
        yield part


def _gathered(parts: Iterable[_Scored], streams: Sequence[str], labelled: bool) -> DetectorRuns:
    all_runs = _Scored()
    for part in parts:
        names = zip(part.ids, part.numbers, strict=True)
        all_runs.ids += [f"{name}#{all_runs.read + number}" for name, number in names]
        all_runs.lengths += part.lengths
        all_runs.scores += part.scores
        all_runs.outcomes += part.outcomes
        all_runs.reasons += part.reasons
        all_runs.tasks += part.tasks
        all_runs.weights += part.weights
        all_runs.read += part.read
    if not all_runs.ids:
        raise ConfigurationError.of("runs", "fit", "recordings with at least one step of the model", 0)
    found = whole_runs(
        ids=all_runs.ids,
        lengths=np.array(all_runs.lengths),
        scores=np.frombuffer(all_runs.scores).reshape(-1, len(streams)),
        streams=streams,
        tasks=[task or f"run {name}" for task, name in zip(all_runs.tasks, all_runs.ids, strict=True)],
    )
    return _labelled(found, all_runs) if labelled else found


def _labelled(runs: DetectorRuns, scored: _Scored) -> DetectorRuns:
    """The runs whose outcome may be learned from, with their weights; the others are counted."""
    place = {name: number for number, name in enumerate(scored.ids)}
    order = [place[name] for name in runs.ids]
    reasons = [scored.reasons[number] for number in order]
    usable = np.array([not reason for reason in reasons], dtype=np.bool_)
    weights = np.array(scored.weights)[order][usable]
    ended = zip(scored.tasks, scored.reasons, strict=True)
    return replace(
        runs.take(usable),
        success=np.array([scored.outcomes[number] is True for number in order], dtype=np.bool_)[usable],
        excluded=dict(sorted(Counter(reason for reason in reasons if reason).items())),
        weights=None if (weights == 1.0).all() else weights,
        others=Counter(task for task, reason in ended if task and reason not in ("", NO_OUTCOME, SUPERSEDED)),
    )
