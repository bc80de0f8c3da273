"""The guide's situational weights: how strongly a step of each type moves the belief in the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from grampus_uq.stats.propagation import propagate

__all__ = ["DEFAULT_WEIGHTS", "UncertaintyPropagator"]

DEFAULT_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {"decision": 0.70, "llm_call": 0.55, "tool_call": 0.45, "memory_read": 0.35}
)


class UncertaintyPropagator(BaseModel):
    """propagated_t = w fused_t + (1 - w) cumulative_(t-1), cumulative_t = propagated_t, cumulative_0 = 1.

    `weights` maps a step type to w in [0, 1]; any other type has `default_weight`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    weights: dict[str, Annotated[float, Field(ge=0.0, le=1.0)]] = Field(default_factory=lambda: dict(DEFAULT_WEIGHTS))
    default_weight: float = Field(default=0.50, ge=0.0, le=1.0)

    def weight(self, step_type: str) -> float:
        """Situational weight of a step type."""
        return self.weights.get(step_type, self.default_weight)

    def propagate(self, fused: float, step_type: str, cumulative: float) -> float:
        """Propagated confidence after a step; all in [0, 1], higher is better."""
        return propagate(fused, cumulative, self.weights.get(step_type, self.default_weight))

    def update_cumulative(self, propagated: float, current: float, step_type: str) -> float:
        """The new cumulative confidence: the propagated one. Averaging it once more would count the past twice."""
        return propagated
