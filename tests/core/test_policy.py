"""The three tiers, the irreversible override, and configurations that are refused or warned about."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import KeysView

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grampus_uq import UncertaintyAction as Action
from grampus_uq import UncertaintyLevel as Level
from grampus_uq import UncertaintyPolicy
from grampus_uq.core.policy import _LATER
from grampus_uq.errors import ConfigurationError
from grampus_uq.records.tool_names import normal_form, refusal_of

unit = st.floats(0.0, 1.0)
DEFAULT = UncertaintyPolicy()


@pytest.mark.parametrize(
    ("confidence", "level"),
    [
        (1.0, Level.LOW),
        (0.80, Level.LOW),
        (math.nextafter(0.80, 0.0), Level.MEDIUM),
        (0.60, Level.MEDIUM),
        (math.nextafter(0.60, 0.0), Level.HIGH),
        (0.40, Level.HIGH),
        (math.nextafter(0.40, 0.0), Level.CRITICAL),
        (0.0, Level.CRITICAL),
    ],
)
def test_a_value_on_a_threshold_belongs_to_the_better_level(confidence, level):
    assert DEFAULT.classify(confidence) is level


def test_what_is_no_number_is_critical():
    assert DEFAULT.classify(math.nan) is Level.CRITICAL


@given(unit, unit, st.lists(unit, min_size=3, max_size=3))
def test_more_confidence_is_never_a_graver_level(first, second, thresholds):
    low, medium, high = sorted(thresholds, reverse=True)
    policy = UncertaintyPolicy(low_threshold=low, medium_threshold=medium, high_threshold=high)
    worse, better = sorted((first, second))
    assert policy.classify(better).severity <= policy.classify(worse).severity


@pytest.mark.parametrize(
    ("level", "plain", "irreversible"),
    [
        (Level.LOW, Action.PROCEED, Action.PROCEED),
        (Level.MEDIUM, Action.PROCEED_WITH_LOG, Action.PAUSE_FOR_HUMAN),
        (Level.HIGH, Action.PAUSE_FOR_HUMAN, Action.PAUSE_FOR_HUMAN),
        (Level.CRITICAL, Action.ABORT, Action.ABORT),
    ],
)
def test_each_level_has_the_guides_action_and_medium_pauses_an_irreversible_tool(level, plain, irreversible):
    policy = UncertaintyPolicy(irreversible_tool_names=["send_email"])
    assert policy.decide(level, "tool_call", "search") is plain
    assert policy.decide(level, "llm_call") is plain
    assert policy.decide(level, "tool_call", "SEND_EMAIL_to_client") is irreversible
    assert policy.decide(level, "tool_call", "search", irreversible=True) is irreversible
    assert policy.decide(level, "tool_call", "send_email", irreversible=False) is plain


patterns = st.text(min_size=1).filter(lambda text: refusal_of(text) is None)


@given(patterns, st.text(), st.text())
def test_a_name_that_contains_a_pattern_is_irreversible(pattern, before, after):
    policy = UncertaintyPolicy(irreversible_tool_names=[pattern])
    assert policy.is_irreversible(before + pattern + after)


@given(st.text("abcDEF_ΑΣσ", min_size=1).filter(normal_form), st.text("xΥ"))
def test_case_does_not_hide_an_irreversible_tool(pattern, after):
    """A capital sigma is another small letter at the end of a word than within one."""
    policy = UncertaintyPolicy(irreversible_tool_names=[pattern.upper()])
    assert policy.is_irreversible(pattern.lower() + after)


def test_the_thresholds_are_named_from_the_best_level_down():
    assert DEFAULT.thresholds == (DEFAULT.low_threshold, DEFAULT.medium_threshold, DEFAULT.high_threshold)


def test_without_names_no_tool_is_irreversible():
    assert not DEFAULT.is_irreversible("delete_everything")


@pytest.mark.parametrize("names", ["send_email", [""], ["  "], [3], ["ok", ""], 3, None])
def test_patterns_that_would_match_everything_or_nothing_are_refused(names):
    with pytest.raises(ValueError, match="irreversible_tool_names"):
        UncertaintyPolicy(irreversible_tool_names=names)


@pytest.mark.parametrize("field", ["irreversible_tool_names", "always_ask_tool_names"])
@pytest.mark.parametrize("collection", [tuple, set, frozenset, deque, iter, KeysView])
def test_the_patterns_of_every_collection_are_looked_at(collection, field):
    assert getattr(UncertaintyPolicy(**{field: collection({"pay": 1})}), field) == ["pay"]
    for refused in ("*", "pay_*", 3):
        with pytest.raises(ConfigurationError, match=field):
            UncertaintyPolicy(**{field: collection({refused: 1})})


def test_a_string_or_a_mapping_is_no_list_of_names():
    with pytest.raises(ConfigurationError, match="Put it into a list"):
        UncertaintyPolicy(irreversible_tool_names="pay")
    for names in (b"pay", {"pay": True}):
        with pytest.raises(ConfigurationError, match="irreversible_tool_names"):
            UncertaintyPolicy(irreversible_tool_names=names)


def test_a_pattern_with_marks_that_a_file_brings_is_kept_with_a_warning_and_protects_what_its_letters_say():
    with pytest.warns(UserWarning, match=r"irreversible_tool_names.*'pay_\*'.*by its letters"):
        policy = UncertaintyPolicy.model_validate_json('{"irreversible_tool_names": ["pay_*", "wire"]}')
    assert policy.irreversible_tool_names == ["pay_*", "wire"]
    assert [policy.is_irreversible(name) for name in ("bank.payNow", "wire", "look")] == [True, True, False]
    for names in ('["wire", " "]', "[3]", '"wire"'):
        with pytest.raises(ValidationError, match="irreversible_tool_names"):
            UncertaintyPolicy.model_validate_json(f'{{"irreversible_tool_names": {names}}}')
    with pytest.raises(ValidationError, match="irreversible_tool_names"):
        UncertaintyPolicy.model_validate({"irreversible_tool_names": ["pay_*"]})


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, "much"])
@pytest.mark.parametrize(
    "field", ["low_threshold", "medium_threshold", "high_threshold", "worst_so_far_floor", "call_floor"]
)
def test_a_threshold_outside_the_unit_interval_is_refused(field, value):
    with pytest.raises(ConfigurationError, match=field):
        UncertaintyPolicy(**{field: value})


def test_thresholds_out_of_order_warn_and_the_first_tier_that_fits_wins():
    with pytest.warns(UserWarning, match=r"out of order.*0\.5, 0\.6, 0\.4"):
        policy = UncertaintyPolicy(low_threshold=0.5)
    assert policy.classify(0.55) is Level.LOW


def test_the_warning_points_at_whoever_wrote_the_policy():
    with pytest.warns(UserWarning, match="out of order") as heard:
        UncertaintyPolicy(low_threshold=0.5)
    assert [warning.filename for warning in heard] == [__file__]


def test_equal_thresholds_are_in_order():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        UncertaintyPolicy(low_threshold=0.5, medium_threshold=0.5, high_threshold=0.5)


def test_an_unknown_field_is_refused_so_that_a_typing_error_is_no_silent_default():
    with pytest.raises(ConfigurationError, match="lo_threshold"):
        UncertaintyPolicy(lo_threshold=0.5)


def test_it_is_immutable():
    with pytest.raises(ValidationError, match="frozen"):
        DEFAULT.low_threshold = 0.1


def test_names_that_are_always_asked_for_are_matched_as_the_irreversible_ones_are_and_apart_from_them():
    policy = UncertaintyPolicy(irreversible_tool_names=["send"], always_ask_tool_names=["wire"])
    assert [policy.asks_always(name) for name in ("bank.WIRE_money", "send", "look")] == [True, False, False]
    assert [policy.is_irreversible(name) for name in ("bank.WIRE_money", "send", "look")] == [False, True, False]
    assert DEFAULT.asks_always("wire") is False
    assert DEFAULT.is_irreversible("wire") is False


def test_patterns_that_match_none_of_an_agents_tools_are_named():
    policy = UncertaintyPolicy(irreversible_tool_names=["send", "drop"], always_ask_tool_names=["wire", "pay"])
    assert policy.unmatched(iter(["look", "SendMail", "prepay"])) == ["drop", "wire"]
    assert policy.unmatched([]) == ["send", "drop", "wire", "pay"]


def test_the_tools_name_is_asked_only_where_nobody_says_whether_the_call_is_irreversible():
    policy = UncertaintyPolicy(irreversible_tool_names=["send"])
    assert policy.decide(Level.MEDIUM, "tool_call") is Action.PROCEED_WITH_LOG
    assert policy.decide(Level.MEDIUM, "tool_call", None, irreversible=True) is Action.PAUSE_FOR_HUMAN
    assert policy.decide(Level.MEDIUM, "tool_call", "send", irreversible=None) is Action.PAUSE_FOR_HUMAN


@pytest.mark.parametrize("thresholds", [(0.5, 0.6, 0.4), (0.8, 0.3, 0.4)])
def test_either_pair_of_thresholds_out_of_order_warns(thresholds):
    with pytest.warns(UserWarning, match="out of order"):
        UncertaintyPolicy(**dict(zip(("low_threshold", "medium_threshold", "high_threshold"), thresholds, strict=True)))


# The fields of the first stored profiles. This list does not grow: a later field belongs into `_LATER` of the policy.
FIRST_FIELDS = [
    *("low_threshold", "medium_threshold", "high_threshold"),
    *("enable_p_true", "enable_semantic_sampling", "enable_prefix_verifier"),
    *("irreversible_tool_names", "inject_reflection_on_high", "on_missing_evidence", "worst_so_far_floor", "on_alarm"),
]


OTHER = {list: ["wire"], float: None, bool: True}
"""A value that is no default, by the type of the default."""


def test_a_field_that_came_later_is_stored_only_where_it_says_something_so_that_fingerprints_stay():
    assert list(UncertaintyPolicy().model_dump()) == FIRST_FIELDS
    told = UncertaintyPolicy.model_validate({name: OTHER[type(value)] for name, value in _LATER.items()})
    assert {*told.model_dump()} == {*UncertaintyPolicy.model_fields}
    assert UncertaintyPolicy.model_validate_json(told.model_dump_json()) == told
    assert UncertaintyPolicy.model_validate_json(UncertaintyPolicy().model_dump_json()) == UncertaintyPolicy()


@pytest.mark.parametrize("name", ["low_threshold", "call_floor", "worst_so_far_floor"])
@pytest.mark.parametrize("value", [True, False])
def test_a_switch_is_no_probability(name: str, value: bool) -> None:
    with pytest.raises(ValueError, match="not true or false"):
        UncertaintyPolicy(**{name: value})
