"""Rows of scores, in any order, as runs for a detector: how tests and benchmarks write them down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit import detector_runs as package
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.stats.eprocess import Detector
from grampus_uq.stats.eprocess_thresholds import Threshold


def detector_runs(
    *,
    run_ids: Sequence[Any] | npt.NDArray[Any],
    steps: npt.ArrayLike,
    scores: npt.ArrayLike,
    outcomes: Mapping[Any, bool | None] | None = None,
    stop_reasons: Mapping[Any, str] | None = None,
    streams: Sequence[str] = ("score",),
    weights: Mapping[Any, float] | None = None,
    tasks: Mapping[Any, str] | None = None,
) -> DetectorRuns:
    """Gather rows (one a step, counted from 1) and outcomes (one a run); a run that did not end cleanly is excluded."""
    names = [str(name) for name in run_ids]
    step = np.asarray(steps)
    ids, run_of_row = np.unique(np.array(names, dtype=object), return_inverse=True)
    order = np.lexsort((step, run_of_row))
    values = np.asarray(scores, dtype=np.float64)
    values = (values.reshape(-1, 1) if values.ndim == 1 else values)[order]
    lengths = np.bincount(run_of_row, minlength=len(ids))
    if step[order].tolist() != [s for length in lengths for s in range(1, length + 1)]:
        raise ConfigurationError.of("steps", "detector_runs", "1, 2, 3, ... within each run; needs its row too", steps)
    known = {str(name): outcome for name, outcome in (outcomes or {}).items()}
    ended = {str(name): reason for name, reason in (stop_reasons or {}).items()}
    weight = {str(name): w for name, w in (weights or {}).items()}
    task = {str(name): t for name, t in (tasks or {}).items()}
    runs = package.detector_runs(
        ids=ids.tolist(),
        lengths=lengths,
        scores=values,
        outcomes=None if outcomes is None else [bool(known[name]) for name in ids.tolist()],
        streams=streams,
        tasks=None if tasks is None else [task.get(name) or f"run {name}" for name in ids.tolist()],
    )
    if weights is not None:
        runs = replace(runs, weights=np.array([weight.get(name, 1.0) for name in runs.ids]))
    if outcomes is None:
        return runs
    reasons = [ended.get(name, "clean") if known[name] is not None else "no_outcome" for name in runs.ids]
    kept = runs.take(np.array([reason == "clean" for reason in reasons], dtype=np.bool_))
    return replace(kept, excluded=dict(sorted(Counter(reason for reason in reasons if reason != "clean").items())))


def threshold_for(detector: Detector, alpha: float, delta: float | None = None) -> Threshold:
    """The listed threshold of a level: PAC with delta, conformal (or budget) without. It takes runs that set it."""
    for one in detector.thresholds:
        if (one.alpha, one.delta) == (alpha, delta) and one.runs:
            return one
    raise ConfigurationError.of("alpha", "threshold_for", "a level whose threshold was set by runs", alpha)
