"""The guide's estimator and propagator: its snippet, its ten fields, its methods and their float contracts."""

from __future__ import annotations

import pytest

from grampus_uq import (
    Message,
    Role,
    UncertaintyEstimator,
    UncertaintyMonitor,
    UncertaintyPolicy,
    UncertaintyPropagator,
)
from grampus_uq.testing import ScriptedModel, answer

MESSAGES = [Message(role=Role.USER, content="What is the capital of France?")]


def test_the_semantic_entropy_snippet():
    policy = UncertaintyPolicy(
        enable_p_true=True,
        enable_semantic_sampling=True,  # opt-in slow path
    )

    estimator = UncertaintyEstimator(
        min_samples=2,  # adaptive: start here
        max_samples=5,  # extend to this if first pair disagrees
        early_stop_jaccard=0.60,  # first-pair agreement threshold
        semantic_trigger_low=0.50,  # only sample when fused is in this zone
        semantic_trigger_high=0.72,
    )

    monitor = UncertaintyMonitor(estimator=estimator, policy=policy)

    assert monitor.plan.slow is not None


def test_the_defaults_are_those_of_the_configuration_reference():
    estimator = UncertaintyEstimator()
    assert estimator.enable_p_true is True
    assert estimator.verbalized_weight == 0.4
    assert estimator.p_true_weight == 0.6
    assert estimator.verbalized_calibration_bias == 0.25
    assert estimator.p_true_calibration_bias == 0.10
    assert estimator.min_samples == 2
    assert estimator.max_samples == 5
    assert estimator.semantic_trigger_low == 0.50
    assert estimator.semantic_trigger_high == 0.72
    assert estimator.early_stop_jaccard == 0.60
    assert estimator.enable_semantic_sampling is False


@pytest.mark.anyio
async def test_the_adaptive_algorithm_step_by_step():
    estimator = UncertaintyEstimator()
    # "Sample 2 responses at temperature 0.8. If first-pair Jaccard similarity >= 0.60, stop early"
    model = ScriptedModel(["the capital is Paris now", "the capital is Paris"])
    assert await estimator.semantic_entropy(MESSAGES, model, "m") == (1.0, 2)
    assert [call.options["temperature"] for call in model.calls] == [0.8, 0.8]
    assert [call.model for call in model.calls] == ["m", "m"]
    # "Otherwise extend to max_samples"; "cluster two responses together if Jaccard >= 0.40"
    pair = ["alpha beta gamma delta", "alpha beta gamma epsilon zeta"]  # Jaccard 3/6: not the same at once, one cluster
    assert await estimator.semantic_entropy(MESSAGES, ScriptedModel([*pair, pair[0], pair[1], pair[0]]), "m") == (
        1.0,
        5,
    )


def test_extract_verbalized_is_one_half_when_the_text_states_none():
    estimator = UncertaintyEstimator()
    assert estimator.extract_verbalized('{"answer": "Paris", "confidence": 0.9}') == 0.9
    assert estimator.extract_verbalized("Paris.") == 0.5


@pytest.mark.anyio
async def test_p_true_is_one_half_on_any_failure():
    estimator = UncertaintyEstimator()
    assert await estimator.p_true(MESSAGES, "Paris", ScriptedModel('{"p_true": 0.9}'), "m") == 0.9
    assert await estimator.p_true(MESSAGES, "Paris", ScriptedModel(RuntimeError("down")), "m") == 0.5


def test_fuse_takes_weights_and_biases_of_the_guide():
    fused = UncertaintyEstimator().fuse(verbalized_raw=0.9, p_true_raw=0.8, p_true_ran=True)
    assert fused == pytest.approx(0.4 * 0.9 * 0.75 + 0.6 * 0.8 * 0.90)
    assert UncertaintyEstimator().fuse(0.9, 0.8, p_true_ran=False) == pytest.approx(0.9 * 0.75)


def test_should_sample_within_the_trigger_zone():
    estimator = UncertaintyEstimator()
    assert [estimator.should_sample(fused) for fused in (0.49, 0.50, 0.60, 0.72, 0.73)] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_without_a_profile_a_raw_value_is_calibrated_by_its_bias_and_clipped():
    calibrate = UncertaintyEstimator()._calibrate
    assert calibrate(0.8, 0.25) == pytest.approx(0.6)
    assert (calibrate(1.7, 0.0), calibrate(-0.3, 0.5)) == (1.0, 0.0)


@pytest.mark.anyio
async def test_a_client_that_takes_no_temperature_is_accepted():
    class Plain:
        async def complete(self, *, messages, model):
            return answer("0.7")

    assert await UncertaintyEstimator().p_true(MESSAGES, "Paris", Plain(), "m") == 0.7


@pytest.mark.anyio
async def test_a_reply_needs_only_content_calls_and_usage():
    class Reply:
        content = "0.7"
        tool_calls = None
        token_usage = None

    assert await UncertaintyEstimator().p_true(MESSAGES, "Paris", ScriptedModel(Reply()), "m") == 0.7


@pytest.mark.parametrize(
    ("kind", "weight"),
    [("decision", 0.70), ("llm_call", 0.55), ("tool_call", 0.45), ("memory_read", 0.35), ("anything", 0.50)],
)
def test_the_propagator_has_the_guides_weights_and_formula(kind, weight):
    propagator = UncertaintyPropagator()
    propagated = propagator.propagate(0.5, kind, 0.9)
    assert propagated == pytest.approx(weight * 0.5 + (1 - weight) * 0.9)
    assert propagator.propagate(fused_confidence=0.5, step_type=kind, cumulative_confidence=0.9) == propagated
    assert propagator.update_cumulative(propagated, 0.9, kind) == propagated
