"""From recordings to the score streams that a detector is fitted on: the same numbers that the live monitor feeds it.

One row a step of the model (tool steps are none), by name: "fused", "propagated", "trajectory_risk" (as
1/(1 + risk)), or a reading's own name. A run that a human or the monitor touched has a selected outcome: it is excluded
and counted, never a plain negative.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grampus_uq.engine import Profile, SessionState, advance
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.events import StepEvent
from grampus_uq.fit.detector_runs import DetectorRuns, detector_runs
from grampus_uq.importers.verifier_scores import read_scores
from grampus_uq.recording.runs import Run
from grampus_uq.recording.runs import runs as read_runs
from grampus_uq.risk import confidence_of_risk
from grampus_uq.vocabulary import StopReason

__all__ = ["read_detector_runs", "runs_of_recordings", "step_scores"]

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
        scores["trajectory_risk"] = confidence_of_risk(assessment.trajectory_risk)
        values = [scores.get(name) for name in streams]
        rows.append([math.nan if value is None else value for value in values])
    return rows


def runs_of_recordings(
    recorded: Iterable[Run], streams: Sequence[str], *, labelled: bool = True, profile: Profile | None = None
) -> DetectorRuns:
    """Gather recorded runs for a detector; a run without any step of the model is left out.

    With `labelled` every run needs an outcome or a stop reason, and untouched ones count only; without (for an
    interruption budget) every run counts, whatever became of it.
    """
    ids: list[str] = []
    steps: list[int] = []
    scores: list[list[float]] = []
    outcomes: dict[Any, bool | None] = {}
    reasons: dict[Any, str] = {}
    for number, run in enumerate(recorded):
        rows = step_scores(run.steps, streams, profile)
        if not rows:
            continue
        name = f"{run.session_id}#{number}"
        ids += [name] * len(rows)
        steps += range(1, len(rows) + 1)
        scores += rows
        outcome = run.outcome
        outcomes[name] = None if outcome is None else outcome.success
        reason = StopReason.MAX_STEPS if outcome is None else outcome.stop_reason
        reasons[name] = StopReason.INTERVENED if run.touched else reason
    if not ids:
        raise ConfigurationError.of("runs", "fit", "recordings with at least one step of the model", 0)
    return detector_runs(
        run_ids=ids,
        steps=steps,
        scores=scores,
        outcomes=outcomes if labelled else None,
        stop_reasons=reasons if labelled else None,
        streams=streams,
    )


def read_detector_runs(
    paths: Sequence[str], streams: Sequence[str], *, labelled: bool = True, profile: Profile | None = None
) -> DetectorRuns:
    """Read recordings (files or folders) or one table of verifier scores (CSV, gz, Parquet)."""
    tables = [path for path in paths if path.endswith(TABLES)]
    if not tables:
        return runs_of_recordings(read_runs([Path(p) for p in paths]), streams, labelled=labelled, profile=profile)
    if len(paths) != 1:
        raise DataError("one table of scores at a time, and no recordings beside it", path=tables[0])
    table = read_scores(tables[0], allow_missing=True)
    return detector_runs(
        run_ids=np.repeat(np.array(table.ids, dtype=object), table.lengths),
        steps=np.concatenate([np.arange(1, length + 1) for length in table.lengths]),
        scores=table.scores,
        outcomes={name: bool(solved) for name, solved in zip(table.ids, table.solved, strict=True)}
        if labelled
        else None,
        streams=streams,
    )
