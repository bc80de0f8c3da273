"""Which method suits the data: where errors lie in the calibration set, what that advises, and a choice made apart.

A method chosen by looking at the calibration trajectories voids the guarantee. Looking at the positions and deciding
once, before seeing results, is harmless in practice; an automatic choice gets trajectories of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution.failed_trajectory import LabelledTrajectory, uniform_draws
from grampus_uq.learn.attribution.methods import (
    AttributionMethod,
    LeftFiltration,
    RightFiltration,
    SuffixEnvelope,
    TwoWayFiltration,
    Vanilla,
)
from grampus_uq.stats.arrays import ragged
from grampus_uq.stats.conformal import conformal_threshold, prediction_sets, recall_conformity

__all__ = [
    "Advice",
    "ErrorPositions",
    "MethodChoice",
    "advise",
    "choose_method",
    "error_mask",
    "error_positions",
]

DENSE = 0.5
"""A third of the run that holds at least this share of the errors is called dense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPositions:
    """Where errors lie: counts over equal bins of the relative position (j + 1/2)/L in (0, 1).

    thirds: share of the errors in the first, middle and last third. mean: mean relative position.
    """

    counts: tuple[int, ...]
    thirds: tuple[float, float, float]
    mean: float
    trajectories: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A method to start with, and the sentence that says why."""

    method: AttributionMethod
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodChoice:
    """A method chosen on trajectories of its own, the removal rate of every candidate there, and their ids."""

    method: AttributionMethod
    removal_rates: tuple[tuple[str, float], ...]
    chosen_on: tuple[str, ...]


def error_positions(labelled: Sequence[LabelledTrajectory], bins: int = 10) -> ErrorPositions:
    """Count the errors of a labelled set by relative position (the paper's figure 6).

    Args:
        labelled: at least one trajectory; each of its errors counts.
        bins: number of equal bins, at least 1.

    Returns:
        The histogram.

    Raises:
        ConfigurationError: no trajectory or no bin.
    """
    if not labelled or bins < 1:
        raise ConfigurationError.of("labelled", "error_positions", "at least one trajectory", len(labelled))
    places = np.array([(j + 0.5) / len(item.trajectory) for item in labelled for j in item.error_steps])
    thirds = np.bincount(np.minimum((places * 3).astype(int), 2), minlength=3) / len(places)
    return ErrorPositions(
        counts=tuple(np.bincount(np.minimum((places * bins).astype(int), bins - 1), minlength=bins).tolist()),
        thirds=(float(thirds[0]), float(thirds[1]), float(thirds[2])),
        mean=float(places.mean()),
        trajectories=len(labelled),
    )


def advise(positions: ErrorPositions, *, for_rollback: bool = False, lazy: bool = False) -> Advice:
    """Advise a method from the histogram alone.

    Args:
        positions: of the calibration set.
        for_rollback: the set's first step is where the run will restart, so only a suffix helps.
        lazy: score steps only as far as needed (a scorer that costs money).

    Returns:
        A method and why. VCP to read, LF envelope to roll back; where laziness is asked for, the filtration on whose
        side the errors lie.
    """
    early, middle, late = positions.thirds
    where = f"{early:.0%} of the errors lie in the first third of the run, {middle:.0%} in the middle, {late:.0%} last"
    if for_rollback:
        if lazy:
            return Advice(
                method=LeftFiltration(), why=f"A rollback restarts at the set's first step: suffixes. {where}."
            )
        return Advice(
            method=SuffixEnvelope(),
            why=f"A rollback restarts at the set's first step: suffixes that start where scores rise. {where}.",
        )
    if not lazy:
        return Advice(method=Vanilla(), why=f"To read, the most suspect steps alone, in any places. {where}.")
    if early >= late and early >= DENSE:
        return Advice(method=RightFiltration(), why=f"Errors come early: a prefix is short and lazy. {where}.")
    if late > early and late >= DENSE:
        return Advice(method=LeftFiltration(), why=f"Errors come late: a suffix is short and lazy. {where}.")
    why = f"Errors lie in the middle or anywhere: both ends have to be filtered, which needs every score. {where}."
    return Advice(method=TwoWayFiltration(), why=why)


def choose_method(
    labelled: Sequence[LabelledTrajectory],
    scores: Sequence[Sequence[float]],
    candidates: Sequence[AttributionMethod],
    level: float,
    *,
    recall: float = 1.0,
    seed: int = 0,
) -> MethodChoice:
    """Choose the candidate with the highest removal rate, each trajectory predicted from all the others.

    Args:
        labelled: trajectories that serve nothing else: neither the fit of the scorer nor calibration.
        scores: their step scores.
        candidates: at least one method; of equals the first wins.
        level: wanted coverage.
        recall: share of a trajectory's errors that the set shall hold.
        seed: of the tie draws.

    Returns:
        The choice. With too few trajectories for the level every removal rate is 0 and the first candidate is chosen.

    Raises:
        ConfigurationError: no candidate, fewer than two trajectories, or scores that do not fit.
    """
    if not candidates:
        raise ConfigurationError.of("candidates", "choose_method", "at least one method", "none")
    if len(labelled) < 2 or len(scores) != len(labelled):
        rule = "at least two trajectories, each with its scores"
        raise ConfigurationError.of("labelled", "choose_method", rule, (len(labelled), len(scores)))
    batch = ragged([np.asarray(row, dtype=np.float64) for row in scores], owner="choose_method")
    errors = error_mask(labelled, batch.values.shape[1])
    ids = [item.trajectory.trajectory_id for item in labelled]
    ties, nodes = uniform_draws(ids, seed, "ties"), uniform_draws(ids, seed, "nodes")
    rates = []
    for method in candidates:
        entry = method.entry(batch, nodes)
        conformity = recall_conformity(entry, errors, recall)
        removed = []
        for i in range(len(ids)):
            others = np.arange(len(ids)) != i
            threshold = conformal_threshold(conformity[others], level, ties[others])
            removed.append(1.0 - prediction_sets(entry, threshold, ties)[i].sum() / batch.lengths[i])
        rates.append((method.name, float(np.mean(removed))))
    best = max(range(len(candidates)), key=lambda i: rates[i][1])
    return MethodChoice(method=candidates[best], removal_rates=tuple(rates), chosen_on=tuple(ids))


def error_mask(labelled: Sequence[LabelledTrajectory], width: int) -> npt.NDArray[np.bool_]:
    """Give the errors as booleans of shape (n, width)."""
    mask = np.zeros((len(labelled), width), dtype=np.bool_)
    for i, item in enumerate(labelled):
        mask[i, list(item.error_steps)] = True
    return mask
