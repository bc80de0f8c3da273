"""A chain in the profile only adds to what holds an irreversible call, and says where a look may lift it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.core.chain_rule import Chain, ChainTier, Expected
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.release import ReleaseRule
from grampus_uq.core.turn_evidence import TurnEvidence
from grampus_uq.records.call_parts import UNREAD_CALL, CallDoubt
from grampus_uq.records.vocabulary import UncertaintyAction, UncertaintyLevel
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from tests.core.test_decision import Case

PROCEED, _, PAUSE, ABORT = UncertaintyAction
LOW, MEDIUM, HIGH, CRITICAL = UncertaintyLevel
OWN = LogisticFusion(readings={"score": FusedReading(mean=0.0, sd=1.0, slope=1.0)}, intercept=0.0)
CHAIN = Chain(
    tiers=(ChainTier(name="agent", chance=OWN, below=0.9), ChainTier(name="big", chance=OWN)),
    release=ReleaseRule(at_least=0.9),
    expected=Expected(looks={}, questions=0.0, wrong=0.0, cost=0.0, tokens=0.0, seconds=0.0),
)
SURE = CallDoubt(call="c", probability=0.95, part="amount", least=0.95)
MIDDLING, DOUBTFUL = replace(SURE, probability=0.85), replace(SURE, probability=0.5)
UNREAD = CallDoubt(call="c", probability=0.0, part=UNREAD_CALL, least=0.0)
NO_FLOOR = UncertaintyPolicy(call_floor=None)


@pytest.mark.parametrize(
    ("case", "action", "rule"),
    [
        (Case(doubt=SURE), PROCEED, "tier"),
        (Case(doubt=MIDDLING), PAUSE, "chain"),  # above the floor, and too little for the chain
        (Case(doubt=DOUBTFUL), PAUSE, "chain"),
        (Case(doubt=DOUBTFUL, policy=NO_FLOOR), PAUSE, "chain"),
        (Case(doubt=None), PAUSE, "chain"),
        (Case(doubt=SURE, policy=UncertaintyPolicy(call_floor=0.99)), PAUSE, "chain"),
        (Case(doubt=UNREAD), PAUSE, "call_evidence"),
        (Case(doubt=UNREAD, policy=NO_FLOOR), PAUSE, "call_evidence"),
        (Case(doubt=SURE, level=MEDIUM, confidence=0.7), PAUSE, "irreversible_override"),
        (Case(doubt=DOUBTFUL, level=MEDIUM, confidence=0.7), PAUSE, "chain"),
        (Case(doubt=DOUBTFUL, level=HIGH, confidence=0.5), PAUSE, "call_evidence"),
        (Case(doubt=SURE, level=HIGH, confidence=0.5), PAUSE, "tier"),
        (Case(doubt=DOUBTFUL, level=CRITICAL, confidence=0.1), ABORT, "tier"),
        (Case(doubt=DOUBTFUL, turn=TurnEvidence(read=False)), PAUSE, "call_evidence"),
        (Case(doubt=SURE, turn=TurnEvidence(read=False)), PAUSE, "missing_evidence"),
        (Case(doubt=SURE, proposed=False), PAUSE, "missing_evidence"),
        (Case(doubt=None, proposed=False), PAUSE, "missing_evidence"),
        (Case(doubt=DOUBTFUL, irreversible=False), PROCEED, "tier"),
        (Case(doubt=None, irreversible=False, tool_name=None), PROCEED, "tier"),
    ],
)
def test_a_call_is_held_by_the_chain_where_a_look_may_lift_all_that_holds_it(
    case: Case, action: UncertaintyAction, rule: str
) -> None:
    assert replace(case, chain=CHAIN).decided()[:2] == (action, rule)


def test_the_agents_own_call_is_judged_as_the_first_tier_is() -> None:
    generous = OWN.model_copy(update={"intercept": 9.0})
    chain = CHAIN.model_copy(update={"tiers": (CHAIN.tiers[0], ChainTier(name="big", chance=generous))})
    assert Case(doubt=DOUBTFUL, chain=chain).decided()[1] == "chain"
    assert "chance of 0.50 that" in Case(doubt=DOUBTFUL, chain=chain).decided()[2]


def test_the_reason_says_the_chance_and_what_the_model_was_least_sure_of() -> None:
    _, _, reason = Case(doubt=DOUBTFUL, chain=CHAIN).decided()
    assert reason == (
        "irreversible call: chance of 0.50 that it is right, too low to run without review, "
        "least sure of `amount` (0.95); confidence 0.90"
    )
    _, _, reason = Case(doubt=None, chain=CHAIN).decided()
    assert reason == "irreversible call: no estimate of the chance that it is right, review needed; confidence 0.90"
    floor = Case(doubt=SURE, policy=UncertaintyPolicy(call_floor=0.99))
    assert replace(floor, chain=CHAIN).decided()[2] == floor.decided()[2], "the floor's own reason, where it holds"
    unread = Case(doubt=UNREAD, policy=NO_FLOOR, chain=CHAIN).decided()[2]
    assert unread == "irreversible call: the log-probabilities of its own tokens are missing"


@given(
    st.sampled_from([None, SURE, MIDDLING, DOUBTFUL, UNREAD]),
    st.sampled_from([(LOW, 0.9), (MEDIUM, 0.7), (HIGH, 0.5), (CRITICAL, 0.1)]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 0.5, 0.8, 0.99]),
    st.sampled_from([None, 0.2, 0.9]),
)
def test_for_every_situation_a_chain_only_adds_and_names_itself_only_for_what_a_look_may_lift(
    doubt: CallDoubt | None,
    level: tuple[UncertaintyLevel, float],
    read: bool,
    has_reading: bool,
    proposed: bool,
    irreversible: bool,
    floor: float | None,
    worst: float | None,
) -> None:
    policy = UncertaintyPolicy(call_floor=floor, worst_so_far_floor=0.4)
    without = Case(
        doubt=doubt, level=level[0], confidence=level[1], turn=TurnEvidence(read=read), has_reading=has_reading,
        proposed=proposed, irreversible=irreversible, policy=policy, worst=worst,
    )  # fmt: skip
    before, after = without.decided(), replace(without, chain=CHAIN).decided()
    assert after[0] is before[0] or (not before[0].stops and after[0] is PAUSE)
    if after[1] == "chain":
        assert not replace(without, doubt=None, level=LOW, confidence=0.9).decided()[0].stops
        assert level[0] in (LOW, MEDIUM)
