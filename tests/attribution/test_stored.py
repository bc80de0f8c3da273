"""A stored calibration finds the same sets, and a broken one is refused by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.attribution import (
    AttributionMethod,
    ConstantScorer,
    Envelope,
    LeftFiltration,
    Plan,
    SuffixEnvelope,
    TwoWayFiltration,
    calibrate,
    calibration_from_json,
    calibration_to_json,
    fit_and_calibrate,
    locate,
)
from tests.attribution.runs import failures


@pytest.mark.parametrize("method", [Envelope(), SuffixEnvelope(), LeftFiltration()], ids=lambda m: m.name)
@pytest.mark.parametrize("level", [0.8, 0.999])
def test_what_was_stored_finds_the_same_sets(method: AttributionMethod, level: float) -> None:
    calibrated = fit_and_calibrate(failures(40, 1), Plan(method=method, level=level, seed=3))
    again = calibration_from_json(json.loads(json.dumps(calibration_to_json(calibrated), allow_nan=False)))
    assert again == calibrated
    for item in failures(20, 2):
        assert locate(item.trajectory, again) == locate(item.trajectory, calibrated)
    with pytest.raises(ConfigurationError, match="helped to set"):
        locate(next(f.trajectory for f in failures(40, 1) if f.trajectory.trajectory_id in again.calibrated_on), again)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("format", "other", "format"),
        ("plan", {"method": "magic"}, "plan.method"),
        ("plan", {"method": "envelope", "level": 80}, "plan"),
        ("plan", {"method": "envelope", "surprise": 1}, "plan"),
        ("threshold", {"value": None, "draw": None, "rank": 3, "n": 5}, "threshold"),
        ("threshold", {"value": "high", "draw": None, "rank": None, "n": 5}, "threshold.value"),
        ("scorer", None, "scorer"),
        ("positions", {"counts": [1]}, "positions.thirds"),
        ("calibrated_on", 5, "calibrated_on"),
    ],
)
def test_what_is_broken_is_named(field: str, value: Any, said: str) -> None:
    stored = calibration_to_json(fit_and_calibrate(failures(20, 1)))
    with pytest.raises(DataError) as refused:
        calibration_from_json({**stored, field: value})
    assert refused.value.field == said


def test_what_is_no_plain_numbers_is_not_stored() -> None:
    with pytest.raises(ConfigurationError, match="conditional logit"):
        calibration_to_json(calibrate(failures(10, 1), ConstantScorer()))
    other = Plan(method=TwoWayFiltration(when_empty="best"))
    with pytest.raises(ConfigurationError, match="as it comes"):
        calibration_to_json(fit_and_calibrate(failures(20, 1), other))
