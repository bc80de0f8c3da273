"""Assumptions on runs that reached their step budget, and the success probability that they are scored with.

Three ways: leave them out; score them as failures (the pseudo-label); or with q, the probability that the stopped run
would have succeeded, which is proper only as far as q is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.evaluate.forecast_runs import ForecastRuns
from grampus_uq.stats.arrays import FloatArray

_CensoringMode = Literal["none", "simple", "exact"]

ASSUMPTIONS: Mapping[_CensoringMode, tuple[str, ...]] = {
    "none": (
        "Runs that reached their step budget are left out. What is scored are runs that ended by themselves: "
        "if runs that take long fail more often, the scores are those of an easier population.",
    ),
    "simple": (
        "Runs that reached their step budget are scored as failures.",
        "This is proper for the pseudo-label 'was seen to succeed within the budget', not for success itself: "
        "a forecaster of success is paid for lowering its forecasts (proposition C.3).",
        "It is no lower bound of the complete score: where a forecast is below 1/2 the failure branch pays more.",
    ),
    "exact": (
        "A run that reached its step budget is scored with q, the probability that it would have succeeded from its "
        "last step on: q s(p, 1) + (1 - q) s(p, 0) at every step (eq. 4).",
        "Strictly proper (theorem 4.3) if reaching the budget says nothing about the outcome given the task and given "
        "the stopped prefix, and if q is the true probability. A budget is such a stop; a parser's or a monitor's is "
        "not, and those runs are left out.",
        "A wrong q moves every score that uses it; a q learned from the forecasts that are judged favours them.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Censoring:
    """Scoring of censored runs. q, by run id, is read for `exact` only; a censored run without one is left out.

    notes: sentences on where q comes from, printed beside the assumptions.
    """

    mode: _CensoringMode = "none"
    q: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in ASSUMPTIONS:
            raise ConfigurationError.of("mode", "Censoring", "'none', 'simple' or 'exact'", self.mode)
        for name, q in self.q.items():
            if not 0.0 <= q <= 1.0:
                raise ConfigurationError.of("q", "Censoring", f"in [0, 1] (run {name!r:.80})", q)

    def targets(self, runs: ForecastRuns) -> FloatArray:
        """Return the outcome of each run, or what stands for it; NaN for a run that is to be left out."""
        if self.mode == "none":
            return runs.outcomes
        if self.mode == "simple":
            return np.nan_to_num(runs.outcomes, nan=0.0)
        q = np.array([self.q.get(name, np.nan) for name in runs.ids], dtype=np.float64).reshape(len(runs))
        return np.where(runs.censored, q, runs.outcomes)
