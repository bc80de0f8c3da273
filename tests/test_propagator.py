"""The guide's weights, and the rule that they weigh."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grampus_uq import UncertaintyPropagator
from grampus_uq.propagator import DEFAULT_WEIGHTS

unit = st.floats(0.0, 1.0)


@pytest.mark.parametrize(
    ("kind", "weight"),
    [("decision", 0.70), ("llm_call", 0.55), ("tool_call", 0.45), ("memory_read", 0.35), ("handoff", 0.50), ("", 0.50)],
)
def test_the_weights_are_the_guides_and_any_other_step_type_has_a_half(kind, weight):
    propagator = UncertaintyPropagator()
    assert propagator.weight(kind) == weight
    assert propagator.propagate(0.2, kind, 0.8) == pytest.approx(weight * 0.2 + (1 - weight) * 0.8, abs=1e-15)


@given(unit, unit, st.sampled_from([*DEFAULT_WEIGHTS, "other"]))
def test_the_cumulative_confidence_is_the_propagated_one_and_not_averaged_again(fused, cumulative, kind):
    propagator = UncertaintyPropagator()
    propagated = propagator.propagate(fused, kind, cumulative)
    assert propagator.update_cumulative(propagated, cumulative, kind) == propagated


def test_weights_of_ones_own_replace_the_guides():
    propagator = UncertaintyPropagator(weights={"plan": 1.0}, default_weight=0.0)
    assert propagator.propagate(0.3, "plan", 0.9) == 0.3
    assert propagator.propagate(0.3, "llm_call", 0.9) == 0.9
    assert UncertaintyPropagator(weights={"plan": 0.0}).propagate(0.3, "plan", 0.9) == 0.9


@pytest.mark.parametrize("given", [{"weights": {"plan": 1.1}}, {"weights": {"plan": -0.1}}, {"default_weight": 2.0}])
def test_a_weight_outside_the_unit_interval_is_refused(given):
    with pytest.raises(ValidationError):
        UncertaintyPropagator(**given)


def test_it_is_immutable():
    with pytest.raises(ValidationError, match="frozen"):
        UncertaintyPropagator().default_weight = 0.1


def test_the_defaults_are_shared_by_nobody():
    UncertaintyPropagator().weights["llm_call"] = 0.0
    assert UncertaintyPropagator().weight("llm_call") == 0.55
    with pytest.raises(TypeError):
        DEFAULT_WEIGHTS["llm_call"] = 0.0
