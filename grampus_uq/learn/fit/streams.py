"""From recordings to the score streams that a detector is fitted on: the same numbers that the live monitor feeds it.

One row a step of the model, by name: "fused", "propagated", "trajectory_risk" (as 1/(1 + risk)), or a reading's source.
And recorded runs as the watch on a calibration takes them: evidence under a detector, touched or not, outcome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import compress

import numpy as np

from grampus_uq.core.state import Profile
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.columns import (
    Columns,
    columns_of,
    looks_at_calls,
    other_trials,
    read_columns,
    recorded_rows,
    task_of,
)
from grampus_uq.learn.eligibility import SELECTED
from grampus_uq.learn.fit.detector_runs import DetectorRuns, detector_runs
from grampus_uq.recording.runs import Paths, Refused, run_digest, runs
from grampus_uq.records.vocabulary import TASK, StopReason
from grampus_uq.stats.calibration_watch import FinishedRun
from grampus_uq.stats.eprocess import log_peaks
from grampus_uq.stats.step_blocks import step_blocks


def read_detector_runs(
    paths: Sequence[str],
    streams: Sequence[str],
    *,
    labelled: bool = True,
    profile: Profile | None = None,
    task_key: str = TASK,
    at_calls: bool | None = None,
    workers: int = 1,
    on_runs: Callable[[int], None] | None = None,
    on_refused: Refused | None = None,
) -> DetectorRuns:
    """Read recordings: files or folders, packed ones too.

    `workers`, `on_runs` and `on_refused` as in `read_columns`. Holds eight bytes a score, and the ids.

    A run without any step of the model is left out. With `labelled` every run needs an outcome or a stop reason, and
    untouched ones count only; without (for an interruption budget) every run counts, whatever became of it. `task_key`
    names the metadata that says which task a run is a trial of; a run without it is a task of its own. `at_calls`: take
    irreversible calls for the steps; None: as `looks_at_calls` says.
    """
    read = partial(recorded_rows, profile=profile, streams=tuple(streams))
    found = read_columns(paths, read, task_key=task_key, workers=workers, on_runs=on_runs, on_refused=on_refused)
    return _detector_runs(found, streams, labelled, at_calls)


def _detector_runs(columns: Columns, streams: Sequence[str], labelled: bool, at_calls: bool | None) -> DetectorRuns:
    """The runs that have a row; with `labelled` those that may be learned from, and the others counted."""
    if not columns.rows:
        raise DataError("no run with a step of the model was found.")
    kept = [bool(run.length) and (run.eligibility.usable or not labelled) for run in columns.runs]
    if at_calls is None:
        at_calls = looks_at_calls([run.calls for run in compress(columns.runs, kept)])
    chosen = [there and (bool(run.calls) or not at_calls) for run, there in zip(columns.runs, kept, strict=True)]
    named = {f"{run.session_id}#{n}": run for n, run in enumerate(columns.runs) if chosen[n]}
    runs = list(named.values())
    values = np.column_stack([columns.at_calls(name) if at_calls else columns.stream(name) for name in streams])
    lengths = [len(run.calls) if at_calls else run.length for run in columns.runs]
    found = detector_runs(
        ids=list(named),
        lengths=list(compress(lengths, chosen)),
        scores=values[np.repeat(chosen, lengths)],
        outcomes=[run.success for run in runs] if labelled else None,
        streams=streams,
        weights=[run.eligibility.weight for run in runs] if labelled else None,
        most=max((run.eligibility.most for run in runs), default=1.0) if labelled else 1.0,
        tasks=[run.task or f"run {name}" for name, run in named.items()],
    )
    every = [run for run in columns.runs if run.length]
    others = other_trials(every) if labelled else Counter[str]()
    left = [run.task for run, there, taken in zip(columns.runs, kept, chosen, strict=True) if there and not taken]
    others.update(task for task in left if task is not None)
    excluded = Counter(run.eligibility.reason for run in every if labelled and not run.eligibility.usable)
    cut = sum(run.eligibility.reason in SELECTED for run in runs)
    found = replace(found, sensed=frozenset(run.sensed for run in runs))
    return replace(found, excluded=dict(sorted(excluded.items())), others=others, cut=cut, at_calls=at_calls)


def finished_in_recordings(
    paths: Paths,
    profile: Profile,
    *,
    task_key: str = TASK,
    served: Set[str] = frozenset(),
    on_refused: Refused | None = None,
) -> Iterator[FinishedRun]:
    """Yield every recorded run that has ended and has a step of the model, judged by the profile's detector.

    A run that a human or the monitor touched, or that did not end by itself, has no outcome of its own. A run whose
    session id was used again later is left out: two runs of one id cannot be told apart. So is one that the detector
    was fitted on (`served`: digests of `run_digest`): it has learned on it, or counts it already.

    Raises ConfigurationError for a profile without a detector, DataError for a damaged recording, unless `on_refused`
    takes it.
    """
    detector = profile.detector
    if detector is None:
        raise ConfigurationError.of("profile", "finished_in_recordings", "with a detector", None)
    for run in runs(paths, on_refused=on_refused):
        outcome = run.outcome
        if outcome is None or run.superseded or (run.start is not None and run_digest(run.start) in served):
            continue
        columns = columns_of([run], partial(recorded_rows, profile=profile))
        at = columns.at_calls if detector.at_calls else columns.stream
        values = np.column_stack([at(name) for name in detector.streams])
        if not columns.rows or not len(values):
            continue
        clean = outcome.stop_reason is StopReason.CLEAN
        yield FinishedRun(
            run_id=run.session_id,
            log_peak=float(log_peaks(detector, step_blocks(values, np.array([len(values)])))[0]),
            touched=run.touched or not clean,
            success=outcome.success if clean else None,
            task=task_of(run, task_key),
        )
