"""Recalibration of one stream: each half of the trajectories by a fusion of that stream fitted on the other half.

A map looks better than it is on the runs that it was fitted on. With one stream the fusion is Platt scaling on
standardised log-odds, and its loss is minus the Trajectory Proper Score: it is fitted to what will judge it.

Source: "Proper Scoring Rules for Agentic Uncertainty Quantification", App. D and J.4; it prefers two halves to k folds,
because maps from many small folds may contradict each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.fit_calibration import apply_fusion, fit_fusion
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.fusion import LogisticFusion
from grampus_uq.stats.halves import split_halves
from grampus_uq.stats.trajectory_scores import ForecastTraces

_STREAM = "forecast"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossFit:
    """Trajectories calibrated by fusions that never saw them.

    traces: the calibrated forecasts, missing ones still missing. second_half: shape (n,), True for the half that the
    first fusion calibrated. fusions: fitted on the first and on the second half.
    """

    traces: ForecastTraces
    second_half: BoolArray
    fusions: tuple[LogisticFusion, LogisticFusion]

    @property
    def flat(self) -> bool:
        """True when neither half found a usable signal."""
        return all(fusion.flat for fusion in self.fusions)

    def mean(self, forecasts: FloatArray) -> FloatArray:
        """Calibrate forecasts of trajectories that neither fusion saw, by the mean of the two."""
        return np.asarray(np.mean([_calibrated(fusion, forecasts) for fusion in self.fusions], axis=0))


def cross_fit(traces: ForecastTraces, outcomes: npt.ArrayLike, ids: Sequence[str]) -> CrossFit:
    """Calibrate every trajectory by a fusion fitted on the other half (`split_halves`); its steps share the half.

    Args:
        traces: n trajectories; those that miss a forecast are left out of the fits.
        outcomes: shape (n,), 0 or 1; censored trajectories have no place here.
        ids: n distinct, stable names.

    Returns:
        `CrossFit`. Deterministic, and independent of row order.

    Raises:
        ConfigurationError: as `split_halves`, or a half without a single complete trajectory.
    """
    y = np.asarray(outcomes, dtype=np.float64)
    second = split_halves(y, ids)
    fusions = []
    for half in (~second, second):
        usable = half & ~traces.missing
        if not usable.any():
            hint = "at least two trajectories with complete forecasts are needed"
            raise ConfigurationError.of("traces", "cross_fit", "usable in both halves", len(traces), hint)
        fusions.append(fit_fusion({_STREAM: traces.select(usable)}, y[usable]))
    first, other = (_calibrated(fusion, traces.forecasts) for fusion in fusions)
    calibrated = np.where(np.repeat(second, traces.lengths), first, other)
    return CrossFit(traces=traces.with_forecasts(calibrated), second_half=second, fusions=(fusions[0], fusions[1]))


def _calibrated(fusion: LogisticFusion, forecasts: FloatArray) -> FloatArray:
    return apply_fusion(fusion, {_STREAM: forecasts})
