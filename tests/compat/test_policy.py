"""The guide's policy: its snippets, its table of tiers, its seven fields and their defaults."""

from __future__ import annotations

import pytest

from grampus_uq import UncertaintyAction, UncertaintyLevel, UncertaintyMonitor, UncertaintyPolicy


def test_the_vocabulary_is_the_guides():
    assert [level.value for level in UncertaintyLevel] == ["low", "medium", "high", "critical"]
    assert [action.value for action in UncertaintyAction] == ["proceed", "proceed_with_log", "pause_for_human", "abort"]
    assert UncertaintyLevel("medium") is UncertaintyLevel.MEDIUM
    assert f"{UncertaintyLevel.HIGH}" == "high" == UncertaintyLevel.HIGH


def test_the_quick_starts_policy():
    policy = UncertaintyPolicy(
        low_threshold=0.80,  # PROCEED below this
        medium_threshold=0.60,  # warn below this
        high_threshold=0.40,  # pause for human below this
        enable_p_true=True,  # run P(True) follow-up call
        irreversible_tool_names=["send_email", "delete_records", "deploy"],
    )

    monitor = UncertaintyMonitor(policy=policy)

    assert monitor.profile.policy is policy


def test_the_defaults_are_those_of_the_configuration_reference():
    policy = UncertaintyPolicy()
    assert policy.low_threshold == 0.80
    assert policy.medium_threshold == 0.60
    assert policy.high_threshold == 0.40
    assert policy.enable_p_true is True
    assert policy.enable_semantic_sampling is False
    assert policy.irreversible_tool_names == []
    assert policy.inject_reflection_on_high is True


@pytest.mark.parametrize(
    ("confidence", "level", "action"),
    [
        (0.80, UncertaintyLevel.LOW, UncertaintyAction.PROCEED),
        (0.60, UncertaintyLevel.MEDIUM, UncertaintyAction.PROCEED_WITH_LOG),
        (0.40, UncertaintyLevel.HIGH, UncertaintyAction.PAUSE_FOR_HUMAN),
        (0.39, UncertaintyLevel.CRITICAL, UncertaintyAction.ABORT),
    ],
)
def test_the_escalation_tiers(confidence, level, action):
    policy = UncertaintyPolicy()
    assert policy.classify(confidence) is level
    assert policy.decide(level, "llm_call") is action
    assert policy.decide(level, "tool_call", tool_name="search") is action


def test_the_irreversible_tool_override():
    policy = UncertaintyPolicy(
        irreversible_tool_names=["send_email", "delete", "deploy", "transfer"],
    )

    # "about to call send_email_to_client and cumulative confidence is 0.72 (MEDIUM), execution pauses"
    assert policy.classify(0.72) is UncertaintyLevel.MEDIUM
    decided = policy.decide(UncertaintyLevel.MEDIUM, "tool_call", "send_email_to_client")
    assert decided is UncertaintyAction.PAUSE_FOR_HUMAN
    # "case-insensitive substring match"
    assert policy.is_irreversible("Bank.TRANSFER_funds")
    assert not policy.is_irreversible("search")
    # "LOW is always safe, even for irreversible tools"
    assert policy.decide(UncertaintyLevel.LOW, "tool_call", "deploy") is UncertaintyAction.PROCEED


def test_thresholds_out_of_order_warn_and_do_not_raise():
    with pytest.warns(UserWarning, match="order"):
        UncertaintyPolicy(low_threshold=0.4, medium_threshold=0.6, high_threshold=0.8)


def test_a_policy_goes_through_json():
    policy = UncertaintyPolicy(irreversible_tool_names=["send"], high_threshold=0.3)
    assert UncertaintyPolicy.model_validate_json(policy.model_dump_json()) == policy
