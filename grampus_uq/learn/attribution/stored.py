"""A calibration as plain JSON, so that failures are attributed later and elsewhere without the labelled ones.

Only the conditional logit over `cheap_features` and the methods in `METHODS` can be stored; with another scorer or
method, calibrate where you attribute.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.attribution.conditional_logit import ConditionalLogit, ConditionalLogitScorer
from grampus_uq.learn.attribution.error_positions import ErrorPositions
from grampus_uq.learn.attribution.methods import METHODS
from grampus_uq.learn.attribution.set_calibration import CalibratedAttribution, Plan
from grampus_uq.stats.arrays import finite
from grampus_uq.stats.conformal import TieBrokenThreshold

_FORMAT = "grampus-uq/attribution-calibration"
_SCORER_FORMAT = "grampus-uq/conditional-logit"


class _Plan(BaseModel):
    model_config = ConfigDict(extra="forbid")

    method: str
    level: float
    recall: float = 1.0
    seed: int = 0
    lazy: bool | None = None  # written by earlier versions; every step is scored


class _Threshold(BaseModel):
    """None stands for infinity, which JSON does not have."""

    model_config = ConfigDict(allow_inf_nan=False)

    value: float | None
    draw: float | None
    rank: int | None
    n: NonNegativeInt


class _Calibration(BaseModel):
    """The stored form; fields that earlier versions wrote besides (costs of a judge) are ignored."""

    format: Literal["grampus-uq/attribution-calibration"]
    version: Literal[1]
    plan: _Plan
    scorer: ConditionalLogit
    threshold: _Threshold
    positions: ErrorPositions
    calibrated_on: tuple[str, ...]
    several: bool


def calibration_to_json(calibrated: CalibratedAttribution) -> dict[str, Any]:
    """Return a calibration as JSON values; `calibration_from_json` reads them back to one that finds the same sets.

    Raises ConfigurationError for a scorer other than the conditional logit, or a method that is not in `METHODS`.
    """
    scorer, plan = calibrated.scorer, calibrated.plan
    if not isinstance(scorer, ConditionalLogitScorer):
        rule = "calibrated with the conditional logit over cheap_features to be stored"
        raise ConfigurationError.of("calibrated", "calibration_to_json", rule, scorer.name)
    if METHODS.get(plan.method.name) != plan.method:
        raise ConfigurationError.of("calibrated", "calibration_to_json", "of a method in METHODS", plan.method)
    threshold = calibrated.threshold
    stored = {
        "format": _FORMAT,
        "version": 1,
        "plan": {"method": plan.method.name, "level": plan.level, "recall": plan.recall, "seed": plan.seed},
        "scorer": {"format": _SCORER_FORMAT, "version": 1, **asdict(scorer.model)},
        "threshold": asdict(threshold) | {"value": finite(threshold.value), "draw": finite(threshold.draw)},
        "positions": asdict(calibrated.positions),
        "calibrated_on": calibrated.calibrated_on,
        "several": calibrated.several,
    }
    plain: dict[str, Any] = json.loads(json.dumps(stored, allow_nan=False))  # tuples become lists
    return plain


def calibration_from_json(value: Mapping[str, Any]) -> CalibratedAttribution:
    """Read the values of `calibration_to_json`; raises DataError naming the field that breaks a rule."""
    try:
        stored = _Calibration.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(str(first["msg"]), field=".".join(map(str, first["loc"]))) from error
    except TypeError as error:
        raise DataError(f"must be JSON values: {error}") from error
    scorer = value["scorer"]
    if scorer.get("format") != _SCORER_FORMAT or scorer.get("version") != 1:
        raise DataError(f"must be a {_SCORER_FORMAT} of version 1.", field="scorer.format")
    plan, threshold = stored.plan, stored.threshold
    if plan.method not in METHODS:
        raise DataError(f"must be one of {', '.join(METHODS)}.", field="plan.method")
    rank = threshold.rank
    if (rank is None) != (threshold.value is None) or (rank is not None and threshold.draw is None):
        raise DataError("a rank comes with a value and a draw, and none without", field="threshold")
    if rank is not None and not 1 <= rank <= threshold.n:
        raise DataError(f"must be in 1..{threshold.n}, the failures that set the threshold", field="threshold.rank")
    try:
        read = Plan(method=METHODS[plan.method], level=plan.level, recall=plan.recall, seed=plan.seed)
    except ConfigurationError as error:
        raise DataError(str(error), field="plan") from error
    return CalibratedAttribution(
        plan=read,
        scorer=ConditionalLogitScorer(model=stored.scorer),
        threshold=TieBrokenThreshold(
            value=math.inf if threshold.value is None else threshold.value,
            draw=math.inf if threshold.draw is None else threshold.draw,
            rank=rank,
            n=threshold.n,
        ),
        positions=stored.positions,
        calibrated_on=stored.calibrated_on,
        several=stored.several,
    )
