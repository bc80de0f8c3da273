"""A stored calibration finds the same sets, and a broken one is refused by field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.attribution import (
    METHODS,
    Plan,
    calibrate,
    calibration_from_json,
    calibration_to_json,
    fit_and_calibrate,
    locate,
)
from tests.learn.attribution.runs import CONSTANT, failures


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("level", [0.8, 0.999])
def test_what_was_stored_finds_the_same_sets(method: str, level: float) -> None:
    calibrated = fit_and_calibrate(failures(40, 1), Plan(method=METHODS[method], level=level, seed=3))
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
        ("plan", {"method": "magic", "level": 0.8}, "plan.method"),
        ("plan", {"method": "envelope", "level": 80}, "plan"),
        ("plan", {"method": "envelope", "level": 0.8, "surprise": 1}, "plan.surprise"),
        ("threshold", {"value": None, "draw": None, "rank": 3, "n": 5}, "threshold"),
        ("threshold", {"value": "high", "draw": None, "rank": None, "n": 5}, "threshold.value"),
        ("threshold", {"value": float("nan"), "draw": 0.5, "rank": 3, "n": 5}, "threshold.value"),
        ("threshold", {"value": 1.0, "draw": float("nan"), "rank": 3, "n": 5}, "threshold.draw"),
        ("threshold", {"value": 1.0, "draw": 0.5, "rank": 6, "n": 5}, "threshold.rank"),
        ("threshold", {"value": 1.0, "draw": 0.5, "rank": 0, "n": 5}, "threshold.rank"),
        ("threshold", {"value": None, "draw": None, "rank": None, "n": -1}, "threshold.n"),
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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "scorer.format"),
        ({"weights": [1.0]}, "scorer"),
        ({"weights": "many"}, "scorer.weights"),
        ({"mean": [float("nan")] * 21}, "scorer"),
        ({"scale": [0.0] * 21}, "scorer"),
        ({"scale": [1e-320] * 21}, "scorer"),
        ({"mean": [1e308] * 21}, "scorer"),
        ({"weights": [-1e308] * 21}, "scorer"),
        ({"features": [1] * 21}, "scorer.features.0"),
        ({"ridge": None}, "scorer.ridge"),
        ({"fitted_on": None}, "scorer.fitted_on"),
    ],
)
def test_a_stored_fit_that_was_changed_is_refused_by_field(change: dict[str, object], said: str) -> None:
    stored = calibration_to_json(fit_and_calibrate(failures(20, 1)))
    with pytest.raises(DataError) as refused:
        calibration_from_json({**stored, "scorer": stored["scorer"] | change})
    assert refused.value.field == said


def test_fields_of_earlier_versions_are_read_over() -> None:
    calibrated = fit_and_calibrate(failures(20, 1))
    stored = calibration_to_json(calibrated)
    usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "cost_usd": None, "model": ""}
    earlier = {"evaluations": 61, "calls": 0, "usage": usage, "plan": {**stored["plan"], "lazy": None}}
    assert calibration_from_json({**stored, **earlier}) == calibrated


def test_what_is_no_plain_numbers_is_not_stored() -> None:
    with pytest.raises(ConfigurationError, match="conditional logit"):
        calibration_to_json(calibrate(failures(10, 1), CONSTANT))
    other = Plan(method=replace(METHODS["lf"], shape="mine"))
    with pytest.raises(ConfigurationError, match="in METHODS"):
        calibration_to_json(fit_and_calibrate(failures(20, 1), other))
