"""Fitted calibration maps: from a raw forecast to a calibrated probability of success, frozen, and plain JSON.

A map cannot exist without its fitted numbers, so there is no unfitted state to check for. Every map is not decreasing
and keeps its result inside [epsilon, 1 - epsilon]; a map that found no usable signal is *flat*, and says so. How they
are fitted: `calibration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, overload

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.stats.logistic_fit import logistic
from grampus_uq.stats.scoring import EPSILON, log_odds

__all__ = [
    "BetaMap",
    "CalibrationMap",
    "FittedMap",
    "IsotonicMap",
    "PlattMap",
    "TemperatureMap",
    "calibration_from_json",
]

FloatArray = npt.NDArray[np.float64]


class FittedMap(BaseModel):
    """What all maps share: calling and writing down. Not a map itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epsilon: float = Field(default=EPSILON, gt=0.0, lt=0.5)
    """Forecasts are clipped to [epsilon, 1 - epsilon] before their log-odds, and results before they go out."""

    @property
    def flat(self) -> bool:
        """True when the map returns one value whatever the forecast: it found no usable signal."""
        raise NotImplementedError

    def _apply(self, p: FloatArray) -> FloatArray:
        raise NotImplementedError

    @overload
    def __call__(self, value: float) -> float: ...

    @overload
    def __call__(self, value: FloatArray) -> FloatArray: ...

    def __call__(self, value: float | FloatArray) -> float | FloatArray:
        """Calibrate one forecast, or an array of them element by element.

        Args:
            value: in [0, 1]; in an array NaN is a missing forecast and stays NaN.

        Returns:
            Probability of success in [epsilon, 1 - epsilon], not decreasing in the forecast.

        Raises:
            ConfigurationError: a forecast outside [0, 1], or a single NaN (a missing reading is None and is not
            mapped).
        """
        p = np.asarray(value, dtype=np.float64)
        if (p < 0.0).any() or (p > 1.0).any() or (not isinstance(value, np.ndarray) and bool(np.isnan(p).any())):
            raise ConfigurationError.of("value", type(self).__name__, "in [0, 1]", value)
        mapped = np.clip(self._apply(p), self.epsilon, 1.0 - self.epsilon)
        return mapped if isinstance(value, np.ndarray) else float(mapped)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; `calibration_from_json` gives the same map back, to the last bit."""
        return self.model_dump(mode="json")


class PlattMap(FittedMap):
    """`sigma(intercept + slope (logit(p) - mean) / sd)`: App. D of the Trajectory Proper Score paper.

    slope 0 is its monotone fallback: the map then returns the base rate of its training half.
    """

    kind: Literal["platt"] = "platt"
    mean: float
    sd: float = Field(gt=0.0)
    intercept: float
    slope: float = Field(ge=0.0)

    @property
    def flat(self) -> bool:
        """True when the slope is 0."""
        return self.slope == 0.0

    def _apply(self, p: FloatArray) -> FloatArray:
        return logistic(self.intercept + self.slope * ((log_odds(p, self.epsilon) - self.mean) / self.sd))


class TemperatureMap(FittedMap):
    """`sigma(logit(p) / T)`, kept as 1/T; 0 (infinite temperature) answers 1/2 to everything."""

    kind: Literal["temperature"] = "temperature"
    inverse_temperature: float = Field(ge=0.0)

    @property
    def flat(self) -> bool:
        """True at infinite temperature."""
        return self.inverse_temperature == 0.0

    def _apply(self, p: FloatArray) -> FloatArray:
        return logistic(self.inverse_temperature * log_odds(p, self.epsilon))


class BetaMap(FittedMap):
    """`sigma(intercept + a ln p - b ln(1 - p))`, a, b >= 0: beta calibration, which can bend the two ends differently.

    a = b = 1/T and intercept 0 is temperature scaling; a = b is Platt scaling. Source: Kull, Silva Filho and Flach
    (2017).
    """

    kind: Literal["beta"] = "beta"
    intercept: float
    a: float = Field(ge=0.0)
    b: float = Field(ge=0.0)

    @property
    def flat(self) -> bool:
        """True when both exponents are 0."""
        return self.a == 0.0 and self.b == 0.0

    def _apply(self, p: FloatArray) -> FloatArray:
        clipped = np.clip(p, self.epsilon, 1.0 - self.epsilon)
        return logistic(self.intercept + self.a * np.log(clipped) - self.b * np.log1p(-clipped))


class IsotonicMap(FittedMap):
    """Linear interpolation between fitted knots, constant beyond the first and the last."""

    kind: Literal["isotonic"] = "isotonic"
    forecasts: tuple[float, ...] = Field(min_length=1)
    """Raw forecasts, strictly increasing."""
    probabilities: tuple[float, ...] = Field(min_length=1)
    """Fitted success rates at them, not decreasing."""

    @model_validator(mode="after")
    def _monotone(self) -> IsotonicMap:
        x, y = np.array(self.forecasts), np.array(self.probabilities)
        if len(x) != len(y) or (np.diff(x) <= 0.0).any() or (np.diff(y) < 0.0).any():
            raise ValueError("forecasts must increase, probabilities must not decrease, and be as many")
        if x[0] < 0.0 or x[-1] > 1.0 or y[0] < 0.0 or y[-1] > 1.0:
            raise ValueError("forecasts and probabilities must lie in [0, 1]")
        return self

    @property
    def flat(self) -> bool:
        """True when all knots have one height."""
        return self.probabilities[0] == self.probabilities[-1]

    def _apply(self, p: FloatArray) -> FloatArray:
        return np.asarray(np.interp(p, self.forecasts, self.probabilities), dtype=np.float64)


CalibrationMap = Annotated[PlattMap | TemperatureMap | BetaMap | IsotonicMap, Field(discriminator="kind")]
"""Any fitted map; as a pydantic field it is read back by its `kind`."""

_ADAPTER: TypeAdapter[CalibrationMap] = TypeAdapter(CalibrationMap)


def calibration_from_json(data: Mapping[str, Any]) -> CalibrationMap:
    """Read a map that `to_json` wrote.

    Args:
        data: the JSON object, with its `kind`.

    Returns:
        The same frozen map.

    Raises:
        DataError: an unknown kind, a missing, unknown or unusable number; `field` says which.
    """
    try:
        return _ADAPTER.validate_python(dict(data))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise DataError(f"not a fitted calibration map: {first['msg']}", field=field) from error
