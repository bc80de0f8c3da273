"""The estimator: the guide's fusion and float contracts, the trigger of the slow path, and configurations refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grampus_uq import (
    Message,
    MissingReason,
    ModelError,
    Reading,
    Role,
    SaupPropagator,
    UncertaintyEstimator,
    UncertaintyPropagator,
)
from grampus_uq.core.estimator import fuse_step, worst_values
from grampus_uq.errors import ConfigurationError
from grampus_uq.records.vocabulary import NOT_DUE
from grampus_uq.testing import ScriptedModel, answer, top_logprobs

unit = st.floats(0.0, 1.0)
weight = st.floats(0.0, 1e6) | st.sampled_from([0.0, 1.0])
MESSAGES = (Message(role=Role.USER, content="What is the capital of France?"),)
names = st.sampled_from(["verbalized", "p_true", "token_probability", "token_entropy", "mine", "other"])


# -- fusion --


def test_the_guides_example_of_a_fusion():
    """.4 * .9 * .75 + .6 * .8 * .9 = .702."""
    assert UncertaintyEstimator().fuse(0.9, 0.8, p_true_ran=True) == pytest.approx(0.702)
    assert UncertaintyEstimator().fuse(0.9, 0.5, p_true_ran=False) == 0.9 * 0.75


@given(unit, unit, weight, weight, unit, unit)
def test_the_fusion_is_the_weighted_mean_of_the_corrected_values(verbalized, p_true, w_v, w_p, b_v, b_p):
    if w_v + w_p == 0.0:
        return
    estimator = UncertaintyEstimator(
        verbalized_weight=w_v,
        p_true_weight=w_p,
        verbalized_calibration_bias=b_v,
        p_true_calibration_bias=b_p,
    )
    mean = (w_v * verbalized * (1 - b_v) + w_p * p_true * (1 - b_p)) / (w_v + w_p)
    fused = estimator.fuse(verbalized, p_true, p_true_ran=True)
    assert fused == pytest.approx(mean, abs=1e-9)
    if w_p and w_v:
        assert estimator.fuse_readings({"verbalized": verbalized, "p_true": p_true}) == fused
    assert estimator.fuse(verbalized, p_true, p_true_ran=False) == verbalized * (1 - b_v)


@given(unit, weight.filter(lambda w: w > 0.0), st.dictionaries(st.just("other"), unit))
@example(0.9, 0.3, {"other": 1.0})
@example(0.1, 0.7, {"other": 0.0})
def test_one_reading_alone_is_its_corrected_value_exactly_whatever_is_read_that_has_no_weight(value, w, beside):
    estimator = UncertaintyEstimator(verbalized_weight=w, verbalized_calibration_bias=0.0)
    assert estimator.fuse_readings({"verbalized": value, **beside}) == value


@given(st.dictionaries(names, unit), st.dictionaries(st.sampled_from(["mine", "other"]), weight))
def test_any_readings_fuse_to_a_value_between_the_least_and_the_greatest_of_them(values, extra):
    estimator = UncertaintyEstimator(
        extra_weights=extra, verbalized_calibration_bias=0.0, p_true_calibration_bias=0.0, token_calibration_bias=0.0
    )
    weighted = [v for name, v in values.items() if name not in {"mine", "other"} or extra.get(name, 0.0) > 0.0]
    fused = estimator.fuse_readings(values)
    if weighted:
        assert min(weighted) <= fused <= max(weighted)
    else:
        assert fused is None


@given(unit, unit)
def test_the_token_streams_take_part_with_their_own_weights(probability, entropy):
    fused = UncertaintyEstimator().fuse_readings({"token_probability": probability, "token_entropy": entropy})
    assert fused == pytest.approx(0.9 * (probability + entropy) / 2, abs=1e-12)


@given(st.none() | unit, st.none() | unit)
def test_pessimism_takes_the_smaller_and_whatever_is_there(fast, semantic):
    known = [value for value in (fast, semantic) if value is not None]
    assert UncertaintyEstimator.pessimistic(fast, semantic) == (min(known) if known else None)


@given(unit)
def test_the_slow_path_is_triggered_within_its_zone_both_ends_included(fused):
    assert UncertaintyEstimator().should_sample(fused) is (0.50 <= fused <= 0.72)


@given(
    st.dictionaries(names, unit | st.sampled_from([0.5, 0.72]) | st.sampled_from(MissingReason)),
    st.none() | st.floats(0.0, 0.72),
)
@example({"mine": 0.72}, None)
@example({"mine": 0.73}, None)
def test_the_slow_path_is_due_where_nothing_is_known_and_up_to_the_end_of_its_zone(found, low):
    given_low = {} if low is None else {"semantic_trigger_low": low}
    estimator = UncertaintyEstimator(extra_weights={"mine": 1.0}, **given_low)
    known = {source: one for source, one in found.items() if isinstance(one, float)}
    lacking = {source: 0.0 for source, one in found.items() if one in set(MissingReason) - NOT_DUE}
    readings = [
        Reading(source=source, value=known.get(source), reason=None if source in known else one)
        for source, one in found.items()
    ]
    fused, least = estimator.fuse_readings(known), estimator.fuse_readings(known | lacking)
    due = fused is None or (least <= 0.72 if low is None else low <= fused <= 0.72)
    assert estimator.needs_sampling(readings) is due


class Own(UncertaintyEstimator):
    """An estimator of one's own: what its fusion makes of a statement is not known, and of nothing it makes nothing."""

    def fuse_readings(self, values):
        assert values
        return super().fuse_readings(values)


@example(UncertaintyEstimator(p_true_weight=0.0), UncertaintyPropagator(), {"verbalized": 0.9, "p_true": 0.5}, None)
@given(
    st.sampled_from([UncertaintyEstimator(), UncertaintyEstimator(p_true_weight=0.0), Own()]),
    st.sampled_from([UncertaintyPropagator(), SaupPropagator()]),
    st.dictionaries(names, unit)
    | st.fixed_dictionaries({"verbalized": unit}, optional={"p_true": unit, "other": unit}),
    st.none() | unit,
)
def test_without_the_models_word_a_step_is_fused_as_if_nothing_were_stated_unless_the_word_lowers_it(
    estimator, propagator, values, semantic
):
    def fusion_of(known):
        return estimator.pessimistic(estimator.fuse_readings(known) if known else None, semantic)

    fast, stated = estimator.fuse_readings(values) if values else None, 0.75 * values.get("verbalized", 1.0)
    usual = type(estimator) is UncertaintyEstimator and type(propagator) is UncertaintyPropagator
    lowers = usual and "verbalized" in values and fast is not None and stated < fast
    others = {source: value for source, value in values.items() if source != "verbalized"}
    expected = fusion_of(values), fusion_of(values if lowers else others)
    assert fuse_step(estimator, propagator, values, semantic) == expected


@given(st.lists(unit, min_size=1))
def test_of_several_readings_of_a_source_the_lowest_counts(values):
    assert worst_values([Reading(source="mine", value=value) for value in values]) == ({"mine": min(values)}, [])


# -- switches --


@pytest.mark.parametrize(
    ("given", "allowed"),
    [({}, True), ({"enable_semantic_sampling": True}, True), ({"enable_semantic_sampling": False}, False)],
)
def test_a_switch_left_alone_lets_the_policy_decide_and_stays_left_alone_through_json(given, allowed):
    estimator = UncertaintyEstimator(**given)
    assert estimator.enable_semantic_sampling is given.get("enable_semantic_sampling", False)
    for same in (
        estimator,
        UncertaintyEstimator.model_validate_json(estimator.model_dump_json()),
        UncertaintyEstimator.model_validate(estimator.model_dump()),
        estimator.model_copy(update={"min_samples": 2}),
    ):
        assert same == estimator
        assert same.allows_semantic_sampling() is allowed


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"max_samples": 1}, "max_samples"),
        ({"min_samples": 1}, "min_samples"),
        ({"min_samples": 6}, "max_samples"),
        ({"semantic_trigger_low": 0.9}, "semantic_trigger_low"),
        ({"verbalized_weight": 0.0, "p_true_weight": 0.0}, "verbalized_weight"),
        ({"verbalized_weight": -0.1}, "verbalized_weight"),
        ({"p_true_weight": math.inf}, "p_true_weight"),
        ({"verbalized_calibration_bias": 1.1}, "verbalized_calibration_bias"),
        ({"early_stop_jaccard": 0.0}, "early_stop_jaccard"),
        ({"extra_weights": {"mine": -1.0}}, "extra_weights"),
        ({"jaccard": 0.6}, "jaccard"),
    ],
)
def test_a_configuration_that_breaks_a_rule_is_refused_naming_the_field(given, named):
    with pytest.raises(ConfigurationError, match=named):
        UncertaintyEstimator(**given)


def test_its_numbers_reach_the_slow_path():
    signal = UncertaintyEstimator(min_samples=3, max_samples=4, early_stop_jaccard=0.7).semantic_signal()
    assert (signal.min_samples, signal.max_samples, signal.equivalence.strict_threshold) == (3, 4, 0.7)
    assert signal.equivalence.threshold == 0.40


# -- the guide's methods keep their float contracts --


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"confidence": 0.9}', 0.9),
        ('{"confidence": 0}', 0.0),
        ("Paris.", 0.5),
        ("", 0.5),
        ('{"confidence": 95}', 0.5),
        ('{"confidence": NaN}', 0.5),
    ],
)
def test_extracting_gives_one_half_when_none_is_stated(text, value):
    assert UncertaintyEstimator().extract_verbalized(text) == value


@pytest.mark.parametrize("beside", ["", ' {"confidence": 95}', ' {"confidence": NaN}'])
def test_extracting_never_rises_above_one_half_for_hedging_nor_for_a_number_that_is_none(beside):
    assert 0.0 < UncertaintyEstimator().extract_verbalized(f"I'm not sure, maybe Paris.{beside}") < 0.5


@pytest.mark.anyio
async def test_p_true_is_the_mass_or_the_number():
    estimator = UncertaintyEstimator()
    mass = ScriptedModel(answer("True", logprobs=[top_logprobs({"True": 0.6, "False": 0.2})]))
    assert await estimator.p_true(MESSAGES, "Paris", mass, "m") == pytest.approx(0.75)
    assert await estimator.p_true(MESSAGES, "Paris", ScriptedModel('{"p_true": 0.3}'), "m") == 0.3
    asked = ScriptedModel("0.4")
    for messages in (MESSAGES, [MESSAGES[0].content]):
        assert await estimator.p_true(messages, "Paris", asked, "m") == 0.4
    first, second = asked.calls
    assert first == second
    assert (first.model, first.messages[0]) == ("m", MESSAGES[0])


@pytest.mark.anyio
@pytest.mark.parametrize("reply", [ModelError("no"), ValueError("x"), None, 42, "perhaps", "95"])
async def test_p_true_is_one_half_on_any_failure(reply):
    assert await UncertaintyEstimator().p_true(MESSAGES, "Paris", ScriptedModel(reply), "m") == 0.5
    assert await UncertaintyEstimator().p_true(MESSAGES, "", ScriptedModel("0.9"), "m") == 0.5


@pytest.mark.anyio
async def test_semantic_entropy_returns_a_confidence_and_the_number_of_samples():
    estimator = UncertaintyEstimator()
    assert await estimator.semantic_entropy(MESSAGES, ScriptedModel("Paris"), "m") == (1.0, 2)
    model = ScriptedModel(["Paris", "Rome", "Oslo", "Bern", "Lima"])
    confidence, samples = await estimator.semantic_entropy(MESSAGES, model, "m")
    assert (confidence, samples) == (pytest.approx(0.0, abs=1e-12), 5)
    assert await estimator.semantic_entropy(MESSAGES, ScriptedModel(ModelError("no")), "m") == (0.5, 0)


@pytest.mark.anyio
async def test_more_samples_than_the_usual_budget_of_calls_are_drawn():
    estimator = UncertaintyEstimator(min_samples=2, max_samples=12)
    model = ScriptedModel([f"city {n}" for n in "abcdefghijkl"])
    assert (await estimator.semantic_entropy(MESSAGES, model, "m"))[1] == 12
