"""From entry thresholds to prediction sets with a coverage guarantee.

The step from calibration to prediction is the same for every method: rank `k = ceil((n+1) level)` of the conformity
scores (entry thresholds at the true steps) gives the threshold, and a step is in the set when its entry threshold does
not exceed it. Ties are broken by one uniform draw for each trajectory, compared after the value, on calibration
and new trajectories alike: coverage is then exactly k/(n+1); without it every tie at the threshold enters.

Guarantee (theorem 1 and its siblings in the source): if calibration trajectories and the new one are exchangeable and
the scorer was fitted on none of them, `level <= P(true step in set) < level + 1/(n+1)`. It is marginal: over the draw
of calibration and new trajectory together, not for this trajectory. What breaks it: another agent, another mix of
tasks, labels made differently, or calibration trajectories that also served to fit the scorer or choose the method.

Source: Feng et al., "Conformal Agent Error Attribution" (2026), section 3 and appendix A; recall: its section 6, after
Kuwahara et al. (2025).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import BoolArray, FloatArray, numbers
from grampus_uq.stats.entry_thresholds import EntryThresholds
from grampus_uq.stats.ranks import check_level, conformal_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class TieBrokenThreshold:
    """A threshold with its tie draw: the set holds the steps with `(E_j, u) <= (value, draw)`, in lexicographic order.

    value: +inf when calibration is too small for the level (`rank` is None): the set is then the whole trajectory.
    draw: +inf when ties are not broken (every tie enters). n: number of calibration trajectories.
    """

    value: float
    draw: float
    rank: int | None
    n: int

    @property
    def expected_coverage(self) -> float:
        """k/(n+1), the exact coverage without ties or with broken ones; 1 when the set is the whole trajectory."""
        return 1.0 if self.rank is None else self.rank / (self.n + 1)


def recall_conformity(entry: EntryThresholds, is_error: npt.ArrayLike, recall: float = 1.0) -> FloatArray:
    """Conformity score for several errors: the smallest q whose set holds at least the share `recall` of them.

    With m errors in a trajectory it is the ceil(recall m)-th smallest of their entry thresholds. Guarantee, given
    exchangeability: with probability at least `level` the set holds at least the share `recall` of the trajectory's
    errors. The sets stay those of the same nested family: an interval method keeps giving intervals.

    `is_error`: shape (n, longest), booleans; True at every labelled error, at least one a trajectory, False in the
    padding. `recall` in (0, 1]; 1 asks for all errors. Returns shape (n,): with one error a trajectory E at that step,
    whatever the recall.

    Source: Kuwahara et al., "Document summarization with conformal importance guarantees" (2025), the recall form.
    """
    if not 0.0 < recall <= 1.0:
        raise ConfigurationError.of("recall", "recall_conformity", "in (0, 1]", recall)
    errors = np.asarray(is_error)
    if errors.shape != entry.values.shape or errors.dtype != np.bool_ or (errors & ~entry.valid).any():
        rule = "booleans of the shape of the entry thresholds, False in the padding"
        raise ConfigurationError.of("is_error", "recall_conformity", rule, errors.shape)
    count = errors.sum(axis=1)
    if (count == 0).any():
        place = int(np.flatnonzero(count == 0)[0])
        raise ConfigurationError.of("is_error", "recall_conformity", "true somewhere in every row", f"row {place}")
    # Steps that are not errors go behind every error, even behind one that enters at +inf.
    order = np.lexsort((entry.values, ~errors), axis=1)
    wanted = np.ceil(recall * count - 1e-9).astype(np.int64) - 1
    row = np.arange(len(count))
    return np.asarray(entry.values[row, order[row, wanted]])


def conformal_threshold(
    conformity: npt.ArrayLike, level: float, draws: npt.ArrayLike | None = None
) -> TieBrokenThreshold:
    """Calibrate: the conformity score (with its tie draw) at rank `k = ceil((n+1) level)`.

    `conformity`: shape (n,), n >= 0; +inf allowed, no NaN. `level`: wanted coverage 1 - alpha, in (0, 1). `draws`:
    shape (n,), independent uniforms in [0, 1); None leaves ties unbroken: coverage is then at least k/(n+1) and, with
    rounded scores, far above it. Returns the threshold; +inf when k > n.
    >>> conformal_threshold([0.3, 0.1, 0.2], 0.5).value, conformal_threshold([0.3, 0.1, 0.2], 0.8).value
    (0.2, inf)
    """
    values = numbers("conformity", "conformal_threshold", conformity)
    if values.ndim != 1 or np.isnan(values).any():
        raise ConfigurationError.of("conformity", "conformal_threshold", "one-dimensional and free of NaN", values)
    rank = coverage_rank(len(values), level)
    if rank is None:
        return TieBrokenThreshold(value=math.inf, draw=math.inf, rank=None, n=len(values))
    if draws is None:
        return TieBrokenThreshold(value=float(np.sort(values)[rank - 1]), draw=math.inf, rank=rank, n=len(values))
    u = numbers("draws", "conformal_threshold", draws)
    if u.shape != values.shape or np.isnan(u).any():
        raise ConfigurationError.of("draws", "conformal_threshold", f"of shape ({len(values)},), without NaN", u.shape)
    place = np.lexsort((u, values))[rank - 1]
    return TieBrokenThreshold(value=float(values[place]), draw=float(u[place]), rank=rank, n=len(values))


def prediction_sets(
    entry: EntryThresholds, threshold: TieBrokenThreshold, draws: npt.ArrayLike | None = None
) -> BoolArray:
    """Predict the set `{j : (E_j, u) <= (value, draw)}` of each trajectory; the fallback when it is empty.

    `entry`: of m new trajectories; `threshold`: from `conformal_threshold`, on other trajectories; `draws`: shape (m,),
    tie draws of these; None lets every tie enter. Returns shape (m, longest), always False in the padding.
    """
    u = np.full(len(entry.lengths), -np.inf) if draws is None else np.asarray(draws, dtype=np.float64)
    if u.shape != entry.lengths.shape or np.isnan(u).any():
        raise ConfigurationError.of("draws", "prediction_sets", "one number a trajectory", u.shape)
    tie = (entry.values == threshold.value) & (u <= threshold.draw)[:, None]
    inside = ((entry.values < threshold.value) | tie) & entry.valid
    if entry.fallback is not None:
        empty = np.flatnonzero(~inside.any(axis=1))
        inside[empty, entry.fallback[empty]] = True
    return np.asarray(inside)


def whole_rank_size(n: int, level: float) -> int:
    """Largest calibration size m <= n for which (m+1) level is whole, so that the rank rounds nothing up.

    Rounding up costs removal rate: 41 calibration trajectories at level .8 cover 34/42 = .8095, 39 of them cover
    exactly .8 with smaller sets, and leave two more to fit the scorer with.

    Returns m for n >= 0 trajectories at hand and a level in (0, 1), or n itself when no m of at least n/2 qualifies (a
    level such as .777 has none in reach).

    >>> whole_rank_size(41, 0.8), whole_rank_size(41, 0.777)
    (39, 41)
    """
    for m in range(n, n // 2 - 1, -1):
        exact = (m + 1) * level
        if m >= 1 and abs(exact - round(exact)) < 1e-9 and round(exact) <= m:
            return m
    return n


def coverage_rank(n: int, level: float) -> int | None:
    """Return `conformal_rank` by wanted coverage: ceil((n+1) level), None beyond n; refuses a level outside (0, 1)."""
    check_level("level", "conformal prediction", level)
    return conformal_rank(n, 1.0 - level)
