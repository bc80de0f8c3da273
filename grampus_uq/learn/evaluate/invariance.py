"""The calibration-invariance panel: ranks cannot see what a proper score sees.

One scalar a run is held fixed while the stream is transformed in five increasing ways. AUROC, AUPRC and AURC are the
same in every row, to the last bit; the log score is not. What it spans is what a table of ranks leaves unsaid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.learn.evaluate.transparency import ScoredStream, tps_of
from grampus_uq.stats.ranking import auprc, aurc, auroc
from grampus_uq.stats.scoring import LOG
from grampus_uq.stats.trajectory_scores import weighted_forecast
from grampus_uq.stats.weight_schedules import LINEAR_FRONT, WeightSchedule

__all__ = ["InvarianceRow", "invariance_rows"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvarianceRow:
    """One transform of one stream: its log score, and the ranks of the scalar, which every row of the stream shares."""

    stream: str
    transform: str
    tps_log: float
    auroc: float | None
    auprc: float | None
    aurc: float | None


_TRANSFORMS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "as it is": lambda p: p,
    "0.1 + 0.8 p": lambda p: 0.1 + 0.8 * p,
    "square root": np.sqrt,
    "square": np.square,
}


def invariance_rows(streams: list[ScoredStream], schedule: WeightSchedule = LINEAR_FRONT) -> Iterator[InvarianceRow]:
    """Yield the rows of every stream that has runs; the recalibrated stream is the fifth transform.

    Source: Trajectory Proper Score paper, App. E; the constants of the affine transform are ours.
    """
    for stream in streams:
        if not len(stream.raw):
            continue
        scalar = weighted_forecast(stream.raw, schedule)[stream.complete]
        outcomes = stream.chance[stream.complete]
        ranks = {
            "auroc": auroc(1.0 - scalar, 1.0 - outcomes),
            "auprc": auprc(1.0 - scalar, 1.0 - outcomes) if (outcomes == 0.0).any() else None,
            "aurc": aurc(scalar, outcomes),
        }
        variants = {name: stream.raw.with_forecasts(f(stream.raw.forecasts)) for name, f in _TRANSFORMS.items()}
        if stream.platt is not None:
            variants["recalibrated"] = stream.platt
        for name, traces in variants.items():
            score = float(tps_of(traces, stream.chance, LOG, schedule).mean())
            yield InvarianceRow(stream=stream.name, transform=name, tps_log=score, **ranks)
