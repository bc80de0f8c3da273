"""Fuse the available readings of one step into one calibrated probability of success.

`p = sigma(intercept + sum over present i of (offset_i + slope_i (logit(v_i) - mean_i) / sd_i))`, slopes not negative
except those of counts, whose direction is learned. A missing reading drops out with its offset, so that the absence of
a reading can be informative. Plain numbers and plain arithmetic: it is computed at every step of a live run. Fitted by
`grampus_uq.learn.fit.fit_calibration`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final, Self

from pydantic import BaseModel, Field, model_validator

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.stored_values import FROZEN

COUNT: Final = "count_"
"""Prefix of the names of streams that are counts, given as 1/(2 + count)."""


def is_count(name: str) -> bool:
    """Return True for a count, which has no direction of its own."""
    return name.startswith(COUNT)


_Coefficient = Annotated[float, Field(ge=-1e9, le=1e9)]  # beyond any fit: sums and products of these stay finite


class FusedReading(BaseModel):
    """The contribution of one reading: standardised log-odds times `slope`, plus `offset` for its presence."""

    model_config = FROZEN

    mean: _Coefficient
    sd: float = Field(ge=1e-9)
    slope: _Coefficient
    offset: _Coefficient = 0.0


class LogisticFusion(BaseModel):
    """A fitted fusion: frozen and JSON-able.

    With one reading and no offset it is Platt scaling. The result does not decrease in any
    reading but a count, and lies in [epsilon, 1 - epsilon].
    """

    model_config = FROZEN

    readings: dict[str, FusedReading] = Field(min_length=1)
    """By name of the stream: a reading's source, or `fused`, `propagated`, `semantic_entropy`."""
    intercept: _Coefficient
    epsilon: float = Field(default=1e-6, ge=1e-12, lt=0.5)
    """Readings are clipped to [epsilon, 1 - epsilon] before their log-odds, and so is the result."""

    @model_validator(mode="after")
    def _confidences_are_not_turned_around(self) -> Self:
        for name, reading in self.readings.items():
            if reading.slope < 0.0 and not is_count(name):
                raise ValueError(f"The slope of {name!r:.60} must be at least 0. Got {reading.slope!r}.")
        return self

    @property
    def moved_by(self) -> tuple[str, ...]:
        """The names of the readings that move the result."""
        return tuple(name for name, reading in self.readings.items() if reading.slope != 0.0)

    def worst_of(self, name: str) -> float:
        """The value of a reading that gives the lowest result: 0, or 1 for a count with a negative slope."""
        return 0.0 if self.readings[name].slope >= 0.0 else 1.0

    @property
    def flat(self) -> bool:
        """True when no reading moves the result: nothing usable was found."""
        return all(reading.slope == 0.0 for reading in self.readings.values())

    @property
    def without_gaps(self) -> tuple[str, ...]:
        """The readings with a slope that were present at every fitted step: their absence has no learned offset."""
        return tuple(name for name, one in self.readings.items() if one.slope != 0.0 and one.offset == 0.0)

    def __call__(self, values: Mapping[str, float | None]) -> float | None:
        """Fuse the readings of one step.

        `values`: by name, each in [0, 1], higher = more likely to succeed; None or absent is missing, and names that
        the fusion does not know are left alone. Returns the probability that the run will succeed, in [epsilon, 1 -
        epsilon]; None without any of its readings.

        >>> fusion = LogisticFusion(readings={"p_true": FusedReading(mean=0.0, sd=1.0, slope=1.0)}, intercept=0.0)
        >>> fusion({"p_true": 0.8}), fusion({"p_true": None})
        (0.8, None)
        """
        z, seen = self.intercept, False
        low, high = self.epsilon, 1.0 - self.epsilon
        for name, reading in self.readings.items():
            value = values.get(name)
            if value is None:
                continue
            if not 0.0 <= value <= 1.0:
                raise ConfigurationError.of("values", "LogisticFusion", f"in [0, 1] ({name!r:.60})", value)
            seen = True
            clipped = low if value < low else high if value > high else value
            log_odds = math.log(clipped) - math.log1p(-clipped)
            z += reading.offset + reading.slope * ((log_odds - reading.mean) / reading.sd)
        if not seen:
            return None
        small = math.exp(-abs(z))
        p = (1.0 if z >= 0.0 else small) / (1.0 + small)
        return low if p < low else high if p > high else p
