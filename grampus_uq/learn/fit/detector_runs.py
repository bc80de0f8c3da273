"""Runs for fitting a detector: plain arrays, a row a step, checked once and brought into one canonical order.

The rules, the same for fitting, calibration and backtests: steps count from 1 without gaps or repeats, in any order of
rows; a NaN score is missing; runs stand in order of their ids, so that no result depends on the order of rows. Runs
whose outcome was selected (a human or the monitor stopped them) or never came (max_steps) are left out and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.one_a_task import one_a_task
from grampus_uq.records.vocabulary import StopReason
from grampus_uq.stats.prefix_features import LARGEST
from grampus_uq.stats.step_blocks import StepBlocks, step_blocks

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

NO_OUTCOME = "no_outcome"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorRuns:
    """Checked runs in order of their ids.

    Attributes:
        streams: names of the score streams.
        bounded: True for each stream whose scores are probabilities.
        ids: one a run, ascending.
        values: shape (rows, streams), the runs one after the other, each in order of its steps; NaN is missing.
        lengths: shape (runs,).
        success: shape (runs,), True for success; None when no outcomes were given.
        excluded: how many runs were left out, by reason (a stop reason, or "no_outcome").
        weights: shape (runs,), one over the chance that a run's outcome was seen; None: 1 for all.
        tasks: one a run: trials of one task share a name, and set a threshold together with one run; None: every run is
            a task of its own.
        others: by task, runs that were left out and take part in the draw of that one run.
    """

    streams: tuple[str, ...]
    bounded: tuple[bool, ...]
    ids: tuple[str, ...]
    values: FloatArray
    lengths: IntArray
    success: BoolArray | None
    excluded: Mapping[str, int] = field(default_factory=dict)
    weights: FloatArray | None = None
    tasks: tuple[str, ...] | None = None
    others: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def blocks(self) -> StepBlocks:
        """The runs in the layout that the statistics read; runs are numbered as here."""
        return step_blocks(self.values, self.lengths)

    @property
    def without_gaps(self) -> tuple[str, ...]:
        """The streams that no step lacks."""
        return tuple(
            name for name, column in zip(self.streams, self.values.T, strict=True) if not np.isnan(column).any()
        )

    def take(self, chosen: npt.ArrayLike) -> DetectorRuns:
        """The runs of these indices (or this mask), in ascending order, each once."""
        mask = np.zeros(len(self.ids), dtype=np.bool_)
        mask[np.asarray(chosen)] = True
        return DetectorRuns(
            streams=self.streams,
            bounded=self.bounded,
            ids=tuple(compress(self.ids, mask)),
            values=self.values[np.repeat(mask, self.lengths)],
            lengths=self.lengths[mask],
            success=None if self.success is None else self.success[mask],
            excluded=self.excluded,
            weights=None if self.weights is None else self.weights[mask],
            tasks=None if self.tasks is None else tuple(compress(self.tasks, mask)),
            others=self.others,
        )

    def drawn(self, rng: np.random.Generator) -> BoolArray:
        """One run of each task (`one_a_task`): True for those drawn."""
        return one_a_task(self.ids if self.tasks is None else self.tasks, rng, self.others)


def detector_runs(
    *,
    run_ids: Sequence[Any] | npt.NDArray[Any],
    steps: npt.ArrayLike,
    scores: npt.ArrayLike,
    outcomes: Mapping[Any, bool | None] | None = None,
    stop_reasons: Mapping[Any, str] | None = None,
    streams: Sequence[str] = ("score",),
    bounded: bool | Sequence[bool] = True,
    max_steps_is_failure: bool = False,
    weights: Mapping[Any, float] | None = None,
    tasks: Mapping[Any, str] | None = None,
) -> DetectorRuns:
    """Check rows (one a step) and outcomes (one a run), and gather them into runs.

    Args:
        run_ids: length rows; texts or whole numbers.
        steps: length rows; whole numbers, 1, 2, 3, ... within each run, in any order of rows.
        scores: shape (rows,) or (rows, streams); higher means success is likelier; NaN is missing, infinity refused.
        outcomes: True for success, False for failure, None for not known, by run id; every run needs an entry. Leave
            it out altogether for an interruption budget, which needs no label.
        stop_reasons: by run id, words of `StopReason`; a run without an entry ended cleanly. A run that stopped at
            max_steps has no outcome; the informative stops have a selected one: both are excluded and counted. Ignored
            without outcomes: a budget covers whatever happens.
        streams: a name for each column of `scores`.
        bounded: whether a stream's scores are probabilities, for all streams or one by one; others may be any number.
        max_steps_is_failure: take runs that hit max_steps as failures, as the e-valuator paper does.
        weights: by run id, one over the chance that the run's outcome was seen, >= 1; a run without an entry has 1. For
            runs that were let through at random where they would have been stopped.
        tasks: by run id, the task that a run is a trial of; a run without an entry is a task of its own.

    Raises:
        ConfigurationError: what breaks a rule above, naming the run, the value and the way out.

    >>> runs = detector_runs(run_ids=["b", "a", "a"], steps=[1, 2, 1], scores=[0.5, 0.2, 0.9],
    ...                      outcomes={"a": True, "b": False})
    >>> runs.ids, runs.values[:, 0].tolist(), runs.success.tolist()
    (('a', 'b'), [0.9, 0.2, 0.5], [True, False])
    """
    names = _ids(run_ids)
    values = _scores(scores, len(names), tuple(streams))
    inside = _check_bounded(bounded, values)
    step = _whole_steps(steps, len(names))
    ids, run_of_row = np.unique(np.array(names, dtype=object), return_inverse=True)
    order = np.lexsort((step, run_of_row))
    lengths = np.bincount(run_of_row, minlength=len(ids)).astype(np.intp)
    _check_contiguous(ids, step[order], lengths)
    runs = DetectorRuns(
        streams=tuple(streams),
        bounded=inside,
        ids=tuple(str(name) for name in ids),
        values=values[order],
        lengths=lengths,
        success=None,
        weights=None if weights is None else _weights(weights, ids),
        tasks=None if tasks is None else _tasks(tasks, ids),
    )
    if outcomes is None:
        return runs
    return _with_outcomes(runs, outcomes, stop_reasons or {}, max_steps_is_failure)


def whole_runs(
    *,
    ids: Sequence[str],
    lengths: npt.ArrayLike,
    scores: npt.ArrayLike,
    outcomes: Sequence[bool | None] | None = None,
    stop_reasons: Sequence[str] | None = None,
    streams: Sequence[str] = ("score",),
    bounded: bool | Sequence[bool] = True,
    tasks: Sequence[str] | None = None,
) -> DetectorRuns:
    """Like `detector_runs`, for runs whose rows are gathered already: without a name and a number for each row.

    Args:
        ids: one a run, different, none empty.
        lengths: shape (runs,), rows of each run, at least 1.
        scores: shape (rows, streams), the runs one after the other, each in order of its steps.
        outcomes, stop_reasons, tasks: one a run; the others as `detector_runs`.
    """
    names = _ids(ids)
    counts = np.asarray(lengths, dtype=np.intp)
    if len(set(names)) < len(names) or counts.shape != (len(names),) or (counts < 1).any():
        raise ConfigurationError.of("ids", "whole_runs", "different, each with at least one row", names[:3])
    values = _scores(scores, int(counts.sum()), tuple(streams))
    inside = _check_bounded(bounded, values)
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.intp)
    starts = np.cumsum(counts) - counts
    sorted_counts = counts[order]
    ends = np.cumsum(sorted_counts)
    rows = np.arange(len(values)) + np.repeat(starts[order] - (ends - sorted_counts), sorted_counts)
    runs = DetectorRuns(
        streams=tuple(streams),
        bounded=inside,
        ids=tuple(names[place] for place in order.tolist()),
        values=values[rows],
        lengths=sorted_counts,
        success=None,
        tasks=None if tasks is None else tuple(tasks[place] for place in order.tolist()),
    )
    if outcomes is None:
        return runs
    stops = dict(zip(names, stop_reasons, strict=True)) if stop_reasons is not None else {}
    return _with_outcomes(runs, dict(zip(names, outcomes, strict=True)), stops, max_steps_is_failure=False)


def _weights(weights: Mapping[Any, float], ids: npt.NDArray[np.object_]) -> FloatArray | None:
    known = {str(key): value for key, value in weights.items()}
    found = np.array([known.get(run, 1.0) for run in ids.tolist()], dtype=np.float64)
    if not (np.isfinite(found) & (found >= 1.0)).all():
        raise ConfigurationError.of("weights", "detector_runs", "finite and at least 1", found.min())
    return None if (found == 1.0).all() else found


def _tasks(tasks: Mapping[Any, str], ids: npt.NDArray[np.object_]) -> tuple[str, ...]:
    known = {str(key): value for key, value in tasks.items()}
    return tuple(known.get(run) or f"run {run}" for run in ids.tolist())


def _ids(run_ids: Sequence[Any] | npt.NDArray[Any]) -> list[str]:
    items = run_ids.tolist() if isinstance(run_ids, np.ndarray) else list(run_ids)
    for item in items:
        if isinstance(item, bool) or not isinstance(item, (str, int)) or item == "":
            raise ConfigurationError.of("run_ids", "detector_runs", "texts or whole numbers, none empty", item)
    return [str(item) for item in items]


def _scores(scores: npt.ArrayLike, rows: int, streams: tuple[str, ...]) -> FloatArray:
    if not streams or len(set(streams)) != len(streams):
        raise ConfigurationError.of("streams", "detector_runs", "different names, at least one", streams)
    try:
        values = np.array(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError.of("scores", "detector_runs", "numbers, NaN for missing", scores) from error
    values = values.reshape(-1, 1) if values.ndim == 1 else values
    if values.shape != (rows, len(streams)):
        raise ConfigurationError.of("scores", "detector_runs", f"of shape ({rows}, {len(streams)})", values.shape)
    if (np.abs(values) > LARGEST).any():
        way_out = "clip it to the largest score that can occur, or pass NaN if it is missing"
        rule = f"NaN or finite, within +-{LARGEST:g}"
        raise ConfigurationError.of("scores", "detector_runs", rule, float(np.nanmax(np.abs(values))), way_out)
    return values


def _check_bounded(bounded: bool | Sequence[bool], values: FloatArray) -> tuple[bool, ...]:
    streams = values.shape[1]
    inside = (bounded,) * streams if isinstance(bounded, bool) else tuple(bounded)
    if len(inside) != streams:
        raise ConfigurationError.of("bounded", "detector_runs", f"one for each of {streams} streams", bounded)
    for column in values[:, list(inside)].T:
        outside = column[(column < 0.0) | (column > 1.0)]
        if len(outside):
            way_out = "no probability? pass bounded=False for this stream; a percentage? divide by 100"
            raise ConfigurationError.of("scores", "detector_runs", "in [0, 1]", float(outside[0]), way_out)
    return inside


def _whole_steps(steps: npt.ArrayLike, rows: int) -> IntArray:
    step = np.asarray(steps)
    if step.shape != (rows,):
        raise ConfigurationError.of("steps", "detector_runs", f"of shape ({rows},)", step.shape)
    if rows and step.dtype.kind not in "iu":
        way_out = "a column with missing or fractional steps? drop those rows or number the steps again, then use int"
        raise ConfigurationError.of("steps", "detector_runs", "whole numbers of an integer type", steps, way_out)
    return step.astype(np.intp)


def _check_contiguous(ids: npt.NDArray[np.object_], step: IntArray, lengths: IntArray) -> None:
    ends = np.cumsum(lengths)
    due = np.arange(len(step)) - np.repeat(ends - lengths, lengths) + 1
    wrong = np.flatnonzero(step != due)
    if not len(wrong):
        return
    run = int(np.searchsorted(ends, wrong[0], side="right"))
    found = step[ends[run] - lengths[run] : ends[run]]
    if found[0] == 0:
        way_out = "steps count from 1: add 1"
    elif len(set(found.tolist())) < len(found):
        way_out = "a step appears twice: keep one row a step"
    else:
        way_out = "a step without a score needs its row too, with NaN"
    rule = f"1, 2, 3, ... within each run (run {ids[run]!r:.80})"
    raise ConfigurationError.of("steps", "detector_runs", rule, found.tolist(), way_out)


def _with_outcomes(
    runs: DetectorRuns,
    outcomes: Mapping[Any, bool | None],
    stop_reasons: Mapping[Any, str],
    max_steps_is_failure: bool,
) -> DetectorRuns:
    known = {str(key): value for key, value in outcomes.items()}
    stops = {str(key): _stop_reason(value) for key, value in stop_reasons.items()}
    lacking = [run for run in runs.ids if run not in known]
    if lacking:
        way_out = "use None where the outcome is not known"
        raise ConfigurationError.of("outcomes", "detector_runs", "given for every run", lacking[:3], way_out)
    success = np.zeros(len(runs), dtype=np.bool_)
    kept: list[int] = []
    excluded: dict[str, int] = {}
    for place, run in enumerate(runs.ids):
        outcome, stop = _outcome(run, known[run]), stops.get(run, StopReason.CLEAN)
        if stop is StopReason.MAX_STEPS and max_steps_is_failure:
            outcome, stop = False, StopReason.CLEAN
        reason = stop.value if stop is not StopReason.CLEAN else NO_OUTCOME if outcome is None else ""
        if reason:
            excluded[reason] = excluded.get(reason, 0) + 1
            continue
        success[place] = bool(outcome)
        kept.append(place)
    chosen = runs.take(np.array(kept, dtype=np.intp))
    return replace(chosen, success=success[kept], excluded=dict(sorted(excluded.items())))


def _outcome(run: str, value: Any) -> bool | None:
    if value is None or isinstance(value, (bool, np.bool_)):
        return None if value is None else bool(value)
    if isinstance(value, (int, float, np.number)) and value in (0, 1):
        return bool(value)
    rule = f"True, False or None (run {run!r:.80})"
    raise ConfigurationError.of("outcomes", "detector_runs", rule, value, "decide what counts as success first")


def _stop_reason(value: Any) -> StopReason:
    try:
        return StopReason(value)
    except ValueError as error:
        words = ", ".join(reason.value for reason in StopReason)
        raise ConfigurationError.of("stop_reasons", "detector_runs", f"one of {words}", value) from error
