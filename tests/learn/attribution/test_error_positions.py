"""The histogram of the errors by position, and the sentence on it."""

from __future__ import annotations

import pytest

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.attribution import LabelledTrajectory
from grampus_uq.learn.attribution.error_positions import error_positions
from tests.learn.attribution.runs import failures, trajectory


def runs_with_errors_at(places: list[float], length: int = 10) -> list[LabelledTrajectory]:
    return [
        LabelledTrajectory(
            trajectory=trajectory(f"r{i}-{place}", [f"t{k}" for k in range(length)]),
            error_steps=(min(length - 1, int(place * length)),),
        )
        for i, place in enumerate(places)
    ]


def test_the_histogram_counts_every_error_once_in_its_bin() -> None:
    positions = error_positions(runs_with_errors_at([0.0, 0.05, 0.5, 0.99]))
    assert positions.counts == (2, 0, 0, 0, 0, 1, 0, 0, 0, 1)
    assert positions.thirds == (0.5, 0.25, 0.25)
    assert positions.mean == pytest.approx((0.05 + 0.05 + 0.55 + 0.95) / 4)
    assert error_positions(failures(40, 1, several=True)).trajectories == 40


def test_the_advice_says_where_the_errors_lie() -> None:
    advice = error_positions(runs_with_errors_at([0.1] * 8 + [0.9] * 2)).advice
    assert "80% of the errors lie in the first third of the run, 0% in the middle, 20% last." in advice
    with pytest.raises(ConfigurationError, match="at least one trajectory"):
        error_positions([])
