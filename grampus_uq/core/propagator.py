"""Propagators: update the belief in a run from a step's confidence (weighted mean, SAUP root mean square, AUQ).

A propagator is configuration: frozen, JSON-able, chosen by `Profile.propagator`. What one has to remember of a run is a
value of a few numbers in the session's state, never in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from grampus_uq.records.configuration import Configuration
from grampus_uq.stats.propagation import AuqState, SaupState, auq_update, propagate, saup_uncertainty, saup_update
from grampus_uq.stats.stored_values import FROZEN

DEFAULT_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {"decision": 0.70, "llm_call": 0.55, "tool_call": 0.45, "memory_read": 0.35}
)
Weight = Annotated[float, Field(ge=0.0, le=1.0)]

PropagatorMemory = SaupState | AuqState
"""State of a propagator besides the cumulative confidence; its size is constant."""


class UncertaintyPropagator(Configuration):
    """propagated_t = w fused_t + (1 - w) cumulative_(t-1), cumulative_t = propagated_t, cumulative_0 = 1.

    `weights` maps a step type to w in [0, 1]; any other type has `default_weight`.
    """

    model_config = FROZEN

    weights: dict[str, Weight] = Field(default_factory=lambda: dict(DEFAULT_WEIGHTS))
    default_weight: float = Field(default=0.50, ge=0.0, le=1.0)

    def weight(self, step_type: str) -> float:
        """Situational weight of a step type."""
        return self.weights.get(step_type, self.default_weight)

    def propagate(self, fused_confidence: float, step_type: str, cumulative_confidence: float) -> float:
        """Propagated confidence after a step; all in [0, 1], higher is better."""
        return propagate(fused_confidence, cumulative_confidence, self.weights.get(step_type, self.default_weight))

    def update_cumulative(self, propagated: float, current: float, step_type: str) -> float:
        """The new cumulative confidence: the propagated one. Averaging it once more would count the past twice."""
        return propagated


class SaupPropagator(Configuration):
    """propagated_t = 1 - sqrt((1/t) sum_(i<=t) (W_i (1 - fused_i))^2): SAUP's root mean square, as a confidence.

    `weights` maps a step type to its situational weight W in [0, 1]; any other type has `default_weight`. All are 1
    unless given: the plain root mean square. Weights below 1 keep the confidence above 1 - max W, so tiers that were
    set for the weighted mean do not fit them. The sum is over the steps with a reading. No start at 1 is averaged in:
    the first reading is the first belief. A low step fades as 1/sqrt(t), not geometrically as in the weighted mean.

    Source: Zhao et al., arXiv 2412.01033, the root-mean-square propagation; U_i = 1 - fused_i. The paper learns W.
    """

    model_config = FROZEN

    kind: Literal["saup"] = "saup"
    weights: dict[str, Weight] = Field(default_factory=dict)
    default_weight: float = Field(default=1.0, ge=0.0, le=1.0)

    def weight(self, step_type: str) -> float:
        """Situational weight of a step type."""
        return self.weights.get(step_type, self.default_weight)

    def carry(
        self, fused: float, step_type: str, cumulative: float, memory: PropagatorMemory | None
    ) -> tuple[float, SaupState]:
        """Take a step that has a reading: the propagated confidence in [0, 1], higher is better, and what to remember.

        Without a memory of its own (the run began under another propagator) the belief so far counts as one step.
        Rounding never carries the result past the belief before it and what this step alone would give.
        """
        if isinstance(memory, SaupState):
            state = memory
        else:
            state = SaupState() if cumulative == 1.0 else saup_update(SaupState(), 1.0 - cumulative, 1.0)
        weight = self.weight(step_type)
        alone = fused if weight == 1.0 else 1.0 - weight * (1.0 - fused)
        new = saup_update(state, 1.0 - fused, weight)
        if state.n == 0:
            return alone, new
        low, high = (alone, cumulative) if alone < cumulative else (cumulative, alone)
        return min(max(1.0 - (saup_uncertainty(new) or 0.0), low), high), new


class AuqPropagator(Configuration):
    """propagated_t = the last, mean, least or product of fused_1..fused_t: the trajectory aggregates of AUQ.

    Over the steps with a reading; the first reading is the first belief. `min` never recovers from a low step. The
    `product` falls with the length of a run however good its steps are: twenty steps at .97 give .54, so tiers that
    were set for the weighted mean do not fit it.

    Source: AUQ, arXiv 2601.15703.
    """

    model_config = FROZEN

    kind: Literal["auq"] = "auq"
    aggregate: Literal["last", "mean", "min", "product"]

    def carry(
        self, fused: float, step_type: str, cumulative: float, memory: PropagatorMemory | None
    ) -> tuple[float, AuqState]:
        """Take a step that has a reading: the propagated confidence in [0, 1], higher is better, and what to remember.

        Without a memory of its own (the run began under another propagator) the belief so far counts as one step.
        """
        if isinstance(memory, AuqState):
            state = memory
        else:
            state = AuqState() if cumulative == 1.0 else auq_update(AuqState(), cumulative)
        new = auq_update(state, fused)
        if new.n == 1 or self.aggregate == "last":
            return fused, new
        found = {"mean": new.mean, "min": new.minimum, "product": new.product}[self.aggregate]
        return fused if found is None else found, new


def _kind(value: Any) -> str:
    """The default propagator has no `kind`: it came first, and its artifacts and fingerprints stay as they are."""
    found = value.get("kind", "guide") if isinstance(value, dict) else getattr(value, "kind", "guide")
    return str(found)


Propagator = Annotated[
    Annotated[UncertaintyPropagator, Tag("guide")]
    | Annotated[SaupPropagator, Tag("saup")]
    | Annotated[AuqPropagator, Tag("auq")],
    Discriminator(_kind),
]
"""A propagator as a field of a pydantic model, told apart by `kind`; the default one has none."""


def propagated_by(
    propagator: Propagator, fused: float | None, kind: str, cumulative: float, memory: PropagatorMemory | None
) -> tuple[float, float, PropagatorMemory | None]:
    """Take a step by any of them: propagated confidence, cumulative confidence, and what it remembers.

    A step without a reading (`fused` None) leaves all three where they were.
    """
    if type(propagator) is UncertaintyPropagator and fused is not None:  # the usual case, without calls
        weight = propagator.weights.get(kind)
        propagated = propagate(fused, cumulative, propagator.default_weight if weight is None else weight)
        return propagated, propagated, None
    if isinstance(propagator, UncertaintyPropagator):
        propagated = cumulative if fused is None else propagator.propagate(fused, kind, cumulative)
        return propagated, propagator.update_cumulative(propagated, cumulative, kind), None
    if fused is None:
        return cumulative, cumulative, memory
    propagated, memory = propagator.carry(fused, kind, cumulative, memory)
    return propagated, propagated, memory
