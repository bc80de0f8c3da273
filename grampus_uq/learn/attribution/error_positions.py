"""Positions of the errors in the calibration set, and what they say about the choice of a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution.failed_trajectory import LabelledTrajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPositions:
    """Counts of errors over ten equal bins of the relative position (j + 1/2)/L in (0, 1).

    thirds: share of the errors in the first, middle and last third. mean: mean relative position.
    """

    counts: tuple[int, ...]
    thirds: tuple[float, float, float]
    mean: float
    trajectories: int

    @property
    def advice(self) -> str:
        """A sentence on the default method and on where the errors lie."""
        early, middle, late = self.thirds
        return (
            f"To read, the most suspect steps alone, in any places. {early:.0%} of the errors lie in the first third "
            f"of the run, {middle:.0%} in the middle, {late:.0%} last."
        )


def error_positions(labelled: Sequence[LabelledTrajectory]) -> ErrorPositions:
    """Count the errors of a labelled set, of at least one trajectory, by relative position (the paper's figure 6)."""
    if not labelled:
        raise ConfigurationError.of("labelled", "error_positions", "at least one trajectory", len(labelled))
    places = np.array([(j + 0.5) / len(item.trajectory) for item in labelled for j in item.error_steps])
    early, middle, late = np.histogram(places, 3, (0, 1))[0] / len(places)
    return ErrorPositions(
        counts=tuple(np.histogram(places, 10, (0, 1))[0].tolist()),
        thirds=(float(early), float(middle), float(late)),
        mean=float(places.mean()),
        trajectories=len(labelled),
    )
