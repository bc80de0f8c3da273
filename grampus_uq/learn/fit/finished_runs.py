"""Recorded runs as the watch on a calibration takes them: evidence under a detector, touched or not, outcome."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from grampus_uq.core.state import Profile
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.columns import columns_of, recorded_rows
from grampus_uq.recording.runs import Paths, Run, runs
from grampus_uq.records.vocabulary import StopReason
from grampus_uq.stats.eprocess import log_peaks
from grampus_uq.stats.step_blocks import step_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run that ended: its id, its largest log M_t (-inf without a score), whether it was touched, its outcome."""

    run_id: str
    log_peak: float
    touched: bool
    success: bool | None


def finished_in_recordings(paths: Paths, profile: Profile) -> Iterator[RecordedRun]:
    """Yield every recorded run that has ended and has a step of the model, judged by the profile's detector.

    A run that a human or the monitor touched, or that did not end by itself, has no outcome of its own. A run whose
    session id was used again later is left out: two runs of one id cannot be told apart.

    Raises:
        ConfigurationError: the profile has no detector.
        DataError: a damaged recording.
    """
    if profile.detector is None:
        raise ConfigurationError.of("profile", "finished_in_recordings", "with a detector", None)
    for run in runs(paths):
        if run.outcome is not None and not run.superseded:
            found = _finished(run, profile)
            if found is not None:
                yield found


def _finished(run: Run, profile: Profile) -> RecordedRun | None:
    detector, outcome = profile.detector, run.outcome
    assert detector is not None  # noqa: S101 (for the type checker; the caller looked)
    assert outcome is not None  # noqa: S101 (as above)
    columns = columns_of([run], partial(recorded_rows, profile=profile))
    at = columns.at_calls if detector.at_calls else columns.stream
    values = np.column_stack([at(name) for name in detector.streams])
    if not columns.rows or not len(values):
        return None
    peak = float(log_peaks(detector, step_blocks(values, np.array([len(values)])))[0])
    clean = outcome.stop_reason is StopReason.CLEAN
    return RecordedRun(
        run_id=run.session_id,
        log_peak=-math.inf if math.isnan(peak) else peak,
        touched=run.touched or not clean,
        success=outcome.success if clean else None,
    )
