"""Runs for fitting a detector: plain arrays, a row a step, sorted by id so that the input order changes no result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.task_draws import one_a_task
from grampus_uq.learn.sensed import Sensed
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.step_blocks import StepBlocks, step_blocks

IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorRuns:
    """Checked runs in order of their ids.

    Attributes:
        streams: names of the score streams.
        ids: one a run, ascending.
        values: shape (rows, streams), the runs one after the other, each in order of its steps; NaN is missing.
        lengths: shape (runs,).
        success: shape (runs,), True for success; None when no outcomes were given.
        excluded: how many runs were left out, by reason.
        weights: shape (runs,), one over the chance that a run's outcome was seen; None: 1 for all.
        most: the largest weight that a run of their kind can have, whether or not one of these has it.
        tasks: one a run: trials of one task share a name, and set a threshold together with one run; None: every run is
            a task of its own.
        others: by task, runs that were left out and take part in the draw of that one run.
        cut: how many of these runs were stopped, so that their steps end too soon.
        at_calls: the rows of a run are its irreversible calls, and runs without one are left out.
        sensed: what was read of these runs.
    """

    streams: tuple[str, ...]
    ids: tuple[str, ...]
    values: FloatArray
    lengths: IntArray
    success: BoolArray | None
    excluded: Mapping[str, int] = field(default_factory=dict)
    weights: FloatArray | None = None
    most: float = 1.0
    tasks: tuple[str, ...] | None = None
    others: Mapping[str, int] = field(default_factory=dict)
    cut: int = 0
    at_calls: bool = False
    sensed: frozenset[Sensed] = frozenset()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labels(self) -> BoolArray:
        """The outcomes; raises ConfigurationError where none were given."""
        if self.success is None:
            way_out = "pass outcomes to detector_runs, or use fit_budget, which needs none"
            raise ConfigurationError.of("runs", "fit_detector", "labelled", None, way_out)
        return self.success

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

    def share_read(self, stream: str) -> float:
        """The share of steps that have this stream."""
        column = self.values[:, self.streams.index(stream)]
        return float(np.count_nonzero(~np.isnan(column))) / max(len(column), 1)

    def only(self, stream: str) -> DetectorRuns:
        """The runs with this stream alone."""
        return replace(self, streams=(stream,), values=self.values[:, [self.streams.index(stream)]])

    def take(self, chosen: npt.ArrayLike) -> DetectorRuns:
        """The runs of these indices (or this mask), in ascending order, each once."""
        mask = np.zeros(len(self.ids), dtype=np.bool_)
        mask[np.asarray(chosen)] = True
        return DetectorRuns(
            streams=self.streams,
            ids=tuple(compress(self.ids, mask)),
            values=self.values[np.repeat(mask, self.lengths)],
            lengths=self.lengths[mask],
            success=None if self.success is None else self.success[mask],
            excluded=self.excluded,
            weights=None if self.weights is None else self.weights[mask],
            most=self.most,
            tasks=None if self.tasks is None else tuple(compress(self.tasks, mask)),
            others=self.others,
            at_calls=self.at_calls,
        )

    def drawn(self, rng: np.random.Generator) -> BoolArray:
        """One run of each task (`one_a_task`): True for those drawn."""
        return one_a_task(self.ids if self.tasks is None else self.tasks, rng, self.others)


def detector_runs(
    *,
    ids: Sequence[str],
    lengths: npt.ArrayLike,
    scores: npt.ArrayLike,
    outcomes: npt.ArrayLike | None = None,
    streams: Sequence[str] = ("score",),
    weights: npt.ArrayLike | None = None,
    most: float = 1.0,
    tasks: Sequence[str] | None = None,
) -> DetectorRuns:
    """Check runs and bring them into order.

    `ids`: one a run, different; `lengths`: rows of each run, at least 1; `outcomes`: True for success, left out for an
    interruption budget, which needs no label; `weights`: one over the chance that a run's outcome was seen, >= 1;
    `tasks`: one a run; all of shape (runs,). `most`: the largest weight that a run could have had, if it exceeds all of
    these. `scores`: shape (rows, streams), the runs one after the other, each in
    order of its steps; higher means success is likelier; NaN is missing. `streams`: a name for each column of it.

    Raises ConfigurationError for names that repeat, none at all, and a score outside [0, 1].

    >>> runs = detector_runs(ids=["b", "a"], lengths=[1, 2], scores=[0.5, 0.9, 0.2], outcomes=[False, True])
    >>> runs.ids, runs.values[:, 0].tolist(), runs.success.tolist()
    (('a', 'b'), [0.9, 0.2, 0.5], [True, False])
    """
    names, counts = list(ids), np.asarray(lengths, dtype=np.intp)
    if len(set(names)) < len(names) or counts.shape != (len(names),) or (counts < 1).any():
        raise ConfigurationError.of("ids", "detector_runs", "different, each with at least one row", names[:3])
    values = _scores(scores, int(counts.sum()), tuple(streams))
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.intp)
    places = order.tolist()
    starts = np.cumsum(counts) - counts
    sorted_counts = counts[order]
    rows = np.arange(len(values)) + np.repeat(starts[order] - (np.cumsum(sorted_counts) - sorted_counts), sorted_counts)
    weight = np.ones(len(names)) if weights is None else np.asarray(weights, dtype=np.float64)[order]
    most = max(float(weight.max(initial=1.0)), most)
    return DetectorRuns(
        streams=tuple(streams),
        ids=tuple(names[place] for place in places),
        weights=None if most == 1.0 else weight,
        most=most,
        values=values[rows],
        lengths=sorted_counts,
        success=None if outcomes is None else np.asarray(outcomes, dtype=np.bool_)[order],
        tasks=None if tasks is None else tuple(tasks[place] for place in places),
    )


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
    outside = values[(values < 0.0) | (values > 1.0)]
    if len(outside):
        raise ConfigurationError.of("scores", "detector_runs", "in [0, 1], or NaN for missing", float(outside[0]))
    return values
