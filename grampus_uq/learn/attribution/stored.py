"""A calibration as plain JSON, so that failures are attributed later and elsewhere without the labelled ones.

Only what is numbers can be stored: the conditional logit over `cheap_features`, and methods as they come (with another
aggregation, feature extractor or scorer, calibrate where you attribute).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.attribution.conditional_logit import ConditionalLogit, ConditionalLogitScorer
from grampus_uq.learn.attribution.features import cheap_features
from grampus_uq.learn.attribution.method_choice import ErrorPositions
from grampus_uq.learn.attribution.methods import METHODS
from grampus_uq.learn.attribution.set_calibration import CalibratedAttribution, Plan
from grampus_uq.records.values import TokenUsage
from grampus_uq.stats.conformal import TieBrokenThreshold

__all__ = ["calibration_from_json", "calibration_to_json"]

Part = TypeVar("Part")
FORMAT = "grampus-uq/attribution-calibration"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """A threshold as it is stored: None stands for infinity, which JSON does not have."""

    value: float | None
    draw: float | None
    rank: int | None
    n: int


def calibration_to_json(calibrated: CalibratedAttribution) -> dict[str, Any]:
    """Give a calibration as JSON values; `calibration_from_json` reads them back to one that finds the same sets.

    Raises:
        ConfigurationError: a scorer other than the conditional logit over `cheap_features`, or a method whose options
            are not the usual ones.
    """
    scorer, plan = calibrated.scorer, calibrated.plan
    if not isinstance(scorer, ConditionalLogitScorer) or scorer.extract is not cheap_features:
        rule = "calibrated with the conditional logit over cheap_features to be stored"
        raise ConfigurationError.of("calibrated", "calibration_to_json", rule, scorer.name)
    if METHODS.get(plan.method.name) != plan.method:
        raise ConfigurationError.of("calibrated", "calibration_to_json", "of a method as it comes", plan.method)
    threshold = {
        name: value if name in ("rank", "n") or math.isfinite(value) else None
        for name, value in asdict(calibrated.threshold).items()
    }
    return {
        "format": FORMAT,
        "version": 1,
        "plan": {
            "method": plan.method.name,
            "level": plan.level,
            "recall": plan.recall,
            "seed": plan.seed,
            "lazy": plan.lazy,
        },
        "scorer": scorer.model.to_json(),
        "threshold": threshold,
        "positions": TypeAdapter(ErrorPositions).dump_python(calibrated.positions, mode="json"),
        "calibrated_on": list(calibrated.calibrated_on),
        "several": calibrated.several,
        "evaluations": calibrated.evaluations,
        "calls": calibrated.calls,
        "usage": calibrated.usage.model_dump(mode="json"),
    }


def calibration_from_json(value: Mapping[str, Any]) -> CalibratedAttribution:
    """Read what `calibration_to_json` wrote; raises DataError naming the field that is not what it should be."""
    if value.get("format") != FORMAT or value.get("version") != 1:
        raise DataError(f"not a {FORMAT} of version 1", field="format")
    plan = _part(value, "plan", dict[str, Any])
    method = METHODS.get(str(plan.pop("method", None)))
    if method is None:
        raise DataError(f"must be one of {', '.join(METHODS)}", field="plan.method")
    try:
        read = Plan(method=method, **plan)
    except (TypeError, ConfigurationError) as error:
        raise DataError(str(error), field="plan") from error
    limits = _part(value, "threshold", _Limits)
    if (limits.rank is None) != (limits.value is None) or (limits.rank is not None and limits.draw is None):
        raise DataError("a rank comes with a value and a draw, and none without", field="threshold")
    model = ConditionalLogit.from_json(_part(value, "scorer", dict[str, Any]))
    return CalibratedAttribution(
        plan=read,
        scorer=ConditionalLogitScorer(model=model),
        threshold=TieBrokenThreshold(
            value=math.inf if limits.value is None else limits.value,
            draw=math.inf if limits.draw is None else limits.draw,
            rank=limits.rank,
            n=limits.n,
        ),
        positions=_part(value, "positions", ErrorPositions),
        calibrated_on=_part(value, "calibrated_on", tuple[str, ...]),
        several=_part(value, "several", bool),
        evaluations=_part(value, "evaluations", int),
        calls=_part(value, "calls", int),
        usage=_part(value, "usage", TokenUsage),
    )


def _part(value: Mapping[str, Any], name: str, kind: type[Part]) -> Part:
    try:
        return TypeAdapter(kind).validate_python(value.get(name))
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(str(first["msg"]), field=".".join([name, *map(str, first["loc"])])) from error
