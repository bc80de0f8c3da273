"""A deputy's decision rests on an approver's signed delegation, or counts for nothing; and both are one voice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import ApprovalPolicy, Delegation, Grant, PublicKeys
from grampus_uq.errors import ApprovalError, ConfigurationError
from grampus_uq.gate import call as calls
from grampus_uq.gate.delegations import LONGEST_S, Stands
from grampus_uq.gate.gate import FRAMEWORK_ASKS, Gate
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind
from grampus_uq.gate.signatures import Ed25519Signer
from tests.gate.test_requests import ASKED, PAY, request
from tests.sampling import examples

APPROVERS, DEPUTIES = ("ann", "bob", "cleo"), ("dan", "eve")
SIGNERS = {name: Ed25519Signer.generate() for name in (*APPROVERS, *DEPUTIES, "stranger")}
KEYS = PublicKeys({name: SIGNERS[name].public_key for name in (*APPROVERS, *DEPUTIES)})
POLICY = ApprovalPolicy(signer=KEYS, deputies=DEPUTIES)


def stands(delegation: Delegation, at_s: float) -> str | None:
    """What a store says of a delegation that nobody revoked."""
    return delegation.over(at_s)


def delegated(principal: str = "ann", deputy: str = "dan", by: str | None = None, **other: Any) -> Delegation:
    fields: dict[str, Any] = {"principal": principal, "deputy": deputy, "from_s": 100.0, "until_s": 160.0, **other}
    return SIGNERS[by or principal].sign(Delegation(**fields))


def decided(principal: str = "dan", by: str | None = None, **other: Any) -> ApprovalDecision:
    return SIGNERS[by or principal].sign(ASKED.decide(other.pop("kind", "approve"), principal=principal, **other))


def mostly(right: Sequence[Any], *others: Any) -> st.SearchStrategy[Any]:
    """Nearly always one that is right, so that what is wrong is wrong in one thing."""
    return st.integers(0, 7).flatmap(lambda n: st.sampled_from(others or sorted(SIGNERS)) if n == 7 else pick(right))


def pick(several: Sequence[Any]) -> st.SearchStrategy[Any]:
    return st.sampled_from(list(several))


@st.composite
def delegations(draw: st.DrawFn, deputy: str) -> Delegation | None:
    principal, deputy = draw(mostly(APPROVERS)), draw(mostly([deputy]))
    if principal == deputy:
        return None
    tools = draw(mostly([None, ("pay",), ("refund", "pay")], ("refund",)))
    from_s, until_s = draw(mostly([(90.0, 180.0)], (120.0, 180.0), (90.0, 120.0)))
    return delegated(principal, deputy, by=draw(mostly([principal])), tools=tools, from_s=from_s, until_s=until_s)


@st.composite
def decisions(draw: st.DrawFn) -> tuple[ApprovalDecision, float]:
    principal = draw(mostly([*APPROVERS, *DEPUTIES]))
    of_deputy = draw(mostly([principal in DEPUTIES], True, False))
    delegation = draw(delegations(principal)) if of_deputy else None
    one = decided(principal, draw(mostly([principal])), kind=draw(mostly(["approve"], "reject")), delegation=delegation)
    return one, draw(pick([110.0, 140.0, 170.0]))


def authority(decision: ApprovalDecision, arrived_s: float) -> str | None:
    """By the books: whose word lets this count; None where nobody's does."""
    key = {name: SIGNERS[name].public_key for name in SIGNERS}
    only = {name: PublicKeys({name: key[name]}) for name in key}
    own = only[decision.principal].verifies(decision.principal, decision.signed_text(), decision.signature or "")
    d = decision.delegation
    if not own or d is None:
        return decision.principal if own and decision.principal in APPROVERS else None
    signed = only[d.principal].verifies(d.principal, d.signed_text(), d.signature or "")
    right = d.deputy == decision.principal in DEPUTIES and d.principal in APPROVERS
    covers = d.tools is None or "pay" in d.tools
    return d.principal if signed and right and covers and d.from_s <= arrived_s < d.until_s else None


@settings(max_examples=examples(300))
@given(arrived=st.lists(decisions(), max_size=6), required=st.integers(1, 3))
def test_what_settles_rests_on_as_many_approvers_and_as_many_people_as_are_required(
    arrived: list[tuple[ApprovalDecision, float]], required: int
) -> None:
    policy = ApprovalPolicy(signer=KEYS, deputies=DEPUTIES, required=required)
    deciding, refused = policy.holding(ASKED, arrived, standing=stands)
    at = {id(decision): at_s for decision, at_s in arrived}
    whose = [authority(decision, at[id(decision)]) for decision in deciding]
    assert None not in whose
    assert all(authority(decision, at[id(decision)]) is None for decision, _ in refused)
    if deciding and deciding[0].kind is ApprovalKind.APPROVE:
        people = [decision.principal for decision in deciding]
        assert len(deciding) == required == len({*whose}) == len({*people})
        assert not {*people} & {*whose} - {p for p, w in zip(people, whose, strict=True) if p == w}
    elif not deciding and required == 1:
        assert all(authority(decision, at_s) is None for decision, at_s in arrived)


@given(st.permutations(["ann", "dan for ann", "eve for ann", "dan for bob"]))
def test_an_approver_and_their_deputies_are_one_and_so_is_a_deputy_of_two(order: list[str]) -> None:
    given = {
        "ann": decided("ann"),
        "dan for ann": decided("dan", delegation=delegated()),
        "eve for ann": decided("eve", delegation=delegated(deputy="eve")),
        "dan for bob": decided("dan", delegation=delegated("bob")),
    }
    two = ApprovalPolicy(signer=KEYS, deputies=DEPUTIES, required=2)
    for pair in ({"ann", "dan for ann"}, {"dan for ann", "eve for ann"}, {"dan for ann", "dan for bob"}):
        arrived = [(given[name], 110.0 + n) for n, name in enumerate(order) if name in pair]
        assert two.holding(ASKED, arrived, standing=stands) == ((), []), pair
    for pair in ({"ann", "dan for bob"}, {"eve for ann", "dan for bob"}):
        arrived = [(given[name], 110.0 + n) for n, name in enumerate(order) if name in pair]
        assert len(two.holding(ASKED, arrived, standing=stands)[0]) == 2, pair
    several = [(given[name], 110.0 + n) for n, name in enumerate(order) if name != "eve for ann"]
    assert {one.by for one in two.holding(ASKED, several, standing=stands)[0]} == {"ann", "dan for bob"}


GOOD = delegated()
ATTACKS: dict[str, ApprovalDecision] = {
    "without a delegation": decided(),
    "forged by the deputy": decided(delegation=delegated(by="dan")),
    "forged by another approver": decided(delegation=delegated(by="bob")),
    "unsigned": decided(delegation=GOOD.model_copy(update={"signature": None})),
    "a longer time": decided(delegation=GOOD.model_copy(update={"until_s": 190.0})),
    "an earlier begin": decided(delegation=GOOD.model_copy(update={"from_s": 90.0})),
    "more tools": decided(delegation=delegated(tools=("refund",)).model_copy(update={"tools": None})),
    "another id": decided(delegation=GOOD.model_copy(update={"id": "0" * 32})),
    "another's delegation": decided("eve", delegation=GOOD),
    "another's, renamed": decided("eve", delegation=GOOD.model_copy(update={"deputy": "eve"})),
    "in another's place": decided(delegation=GOOD.model_copy(update={"principal": "bob"})),
    "delegated on by a deputy": decided("eve", delegation=delegated("dan", "eve")),
    "in a circle": decided("ann", delegation=delegated("dan", "ann")),
    "to an approver": decided("bob", delegation=delegated("ann", "bob")),
    "to a stranger": decided("stranger", delegation=delegated("ann", "stranger")),
    "by a stranger": decided(delegation=delegated("stranger", "dan")),
    "about other tools": decided(delegation=delegated(tools=("refund",))),
    "not yet": decided(delegation=delegated(from_s=130.0)),
    "over": decided(delegation=delegated(until_s=120.0)),
    "signed by the delegator": decided("dan", by="ann", delegation=GOOD),
    "put under a decision afterwards": decided().model_copy(update={"delegation": GOOD}),
    "taken off a decision afterwards": decided(delegation=GOOD).model_copy(update={"delegation": None}),
    "its signature as a decision's": decided().model_copy(update={"delegation": GOOD, "signature": GOOD.signature}),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_forged_ended_circular_or_of_others_counts_for_nothing(attack: str) -> None:
    for kind in ApprovalKind:
        again = ATTACKS[attack].model_copy(update={"kind": kind})
        deciding, refused = POLICY.holding(ASKED, [(again, 120.0)], standing=stands)
        assert (deciding, len(refused)) == ((), 1)
    assert POLICY.holding(ASKED, [(ATTACKS[attack], 120.0)], standing=stands)[0] == ()
    honest = decided(delegation=GOOD)
    assert POLICY.holding(ASKED, [(ATTACKS[attack], 120.0), (honest, 121.0)], standing=stands)[0] == (honest,)


def test_of_two_signatures_the_reason_says_which_does_not_hold() -> None:
    for attack, what in (("forged by the deputy", "delegation"), ("signed by the delegator", "decision")):
        with pytest.raises(ApprovalError, match=f"^The {what} is not signed"):
            POLICY.check(ASKED, ATTACKS[attack], now_s=120.0, standing=stands)


def test_a_delegation_counts_from_its_begin_to_before_its_end() -> None:
    one = decided(delegation=GOOD)
    counts = [
        POLICY.holding(ASKED, [(one, at_s)], standing=stands)[0] == (one,) for at_s in (99.9, 100.0, 159.9, 160.0)
    ]
    assert counts == [False, True, True, False]


def test_a_delegation_about_the_calls_tool_counts_and_one_without_a_time_is_judged_by_this_machines_clock() -> None:
    for tools, counts in ((("pay",), True), (("refund", "pay"), True), (("Pay",), False), (None, True)):
        about = decided(delegation=delegated(tools=tools))
        assert bool(POLICY.holding(ASKED, [(about, 120.0)], standing=stands)[0]) is counts, tools
    now_s, asked = time.time(), request(expires_s=None)
    for from_s, counts in ((now_s - 60.0, True), (now_s + 60.0, False)):
        given = delegated(from_s=from_s, until_s=from_s + 600.0)
        one = SIGNERS["dan"].sign(asked.decide("approve", principal="dan", delegation=given))
        with nullcontext() if counts else pytest.raises(ApprovalError, match="begins later"):
            POLICY.check(asked, one, standing=stands)


def test_where_no_deputy_is_named_or_no_store_is_read_no_delegation_counts() -> None:
    one = decided(delegation=GOOD)
    assert ApprovalPolicy(signer=KEYS).holding(ASKED, [(one, 120.0)], standing=stands)[0] == ()
    assert POLICY.holding(ASKED, [(one, 120.0)])[0] == ()
    with pytest.raises(ApprovalError, match="session store"):
        POLICY.check(ASKED, one, now_s=120.0)


def test_who_started_the_run_has_no_say_in_it_through_a_deputy_either() -> None:
    others = ApprovalPolicy(signer=KEYS, deputies=DEPUTIES, others_decide=True)
    for starter, counts in (("ann", False), ("ANN ", False), ("dan", False), ("bob", True), (None, False)):
        asked = request(started_by=starter)
        one = SIGNERS["dan"].sign(asked.decide("approve", principal="dan", delegation=GOOD))
        assert bool(others.holding(asked, [(one, 120.0)], standing=stands)[0]) is counts, starter


TWO = ApprovalPolicy(signer=KEYS, deputies=DEPUTIES, required=2)


def approved_at(gate: Gate, *deciding: tuple[str, Delegation | None]) -> calls.CallRecord:
    """A call that these let run at 100: each an approver, or a deputy with a delegation."""
    terms = gate.terms("clerk", "s", None)
    record = calls.asked(calls.CallRecord.new(PAY, "llm_1"), terms, gate.approvals, FRAMEWORK_ASKS, 100.0)
    (asked,) = record.requests
    given = [SIGNERS[by].sign(asked.decide("approve", principal=by, delegation=one)) for by, one in deciding]
    return calls.decided(record, given)


def started_at(gate: Gate, record: calls.CallRecord) -> calls.CallRecord:
    terms = gate.terms("clerk", "s", None)

    async def start() -> calls.CallRecord:
        return await gate.start(record, PAY, terms, None, None, lambda _: None)

    return anyio.run(start)


def test_a_delegation_that_is_revoked_or_over_when_the_call_would_run_lets_it_run_no_more() -> None:
    """Whichever of several it is; and nobody is looked up for a call that no deputy decided on."""
    looked_up: list[Sequence[ApprovalDecision]] = []
    revoked: set[str] = set()

    async def read(decisions: Sequence[ApprovalDecision]) -> Stands:
        looked_up.append(decisions)
        return lambda given, at_s: "is revoked" if given.id in revoked else given.over(at_s)

    def gate(now_s: float) -> Gate:
        return Gate(approvals=TWO, delegations=read, clock=lambda: now_s)

    both = ("dan", delegated(id="of-ann")), ("eve", delegated("bob", "eve", id="of-bob", until_s=150.0))
    for now_s, gone, why in (
        (149.9, set(), None),
        (149.9, {"of-ann"}, "the approval is void: a delegation is revoked"),
        (149.9, {"of-bob"}, "the approval is void: a delegation is revoked"),
        (150.0, set(), "the approval is void: The delegation by 'bob' has ended"),
    ):
        revoked, at = gone, gate(now_s)
        after = started_at(at, approved_at(at, *both))
        assert (after.phase is calls.CallPhase.STARTED) is (why is None)
        assert (why or "") in "".join(one.reason for one in after.requests if why)
    looked_up.clear()
    mixed = approved_at(gate(110.0), ("bob", None), both[0])
    assert started_at(gate(110.0), mixed).phase is calls.CallPhase.STARTED
    assert looked_up == [[*mixed.decisions]]
    revoked = {"of-ann"}
    assert started_at(gate(110.0), mixed).waiting
    looked_up.clear()
    plain = approved_at(gate(110.0), ("ann", None), ("bob", None))
    assert started_at(gate(110.0), plain).phase is calls.CallPhase.STARTED
    assert looked_up == []


def test_a_delegation_is_over_by_the_clock_of_the_moment_in_which_the_call_would_run() -> None:
    now_s = 110.0

    async def slow(decisions: Sequence[ApprovalDecision]) -> Stands:
        nonlocal now_s
        now_s = 170.0
        return stands

    gate = Gate(approvals=POLICY, delegations=slow, clock=lambda: now_s)
    after = started_at(gate, approved_at(gate, ("dan", GOOD)))
    assert after.waiting
    assert "a delegation has ended" in after.requests[0].reason


def test_a_host_that_reads_no_delegations_runs_nothing_that_a_deputy_decided_on() -> None:
    gate = Gate(approvals=POLICY, clock=lambda: 110.0)
    after = started_at(gate, approved_at(gate, ("dan", GOOD)))
    assert after.waiting
    assert "only a runner with a session store" in after.requests[0].reason
    assert started_at(gate, approved_at(gate, ("ann", None))).phase is calls.CallPhase.STARTED
    two = Gate(approvals=TWO, clock=lambda: 110.0)
    assert started_at(two, approved_at(two, ("bob", None), ("dan", GOOD))).waiting
    assert anyio.run(gate.lapsed, [approved_at(gate, ("dan", GOOD))]) == {}, "the check has refused it"


def test_a_deputy_grants_nothing_and_a_request_about_a_run_is_no_tools() -> None:
    grant = SIGNERS["dan"].sign(Grant(tool="pay", principal="dan", expires_s=9e9))
    with pytest.raises(ApprovalError, match="in the place"):
        POLICY.check_grant(grant)
    of_run = request(call=None)
    for tools, counts in ((None, True), (("pay",), False)):
        one = SIGNERS["dan"].sign(of_run.decide("approve", principal="dan", delegation=delegated(tools=tools)))
        assert bool(POLICY.holding(of_run, [(one, 120.0)], standing=stands)[0]) is counts


@pytest.mark.parametrize(
    "wrong",
    [
        {"deputy": "ann"},
        {"deputy": " ANN\u200b"},
        {"until_s": 100.0},
        {"until_s": 100.0 + LONGEST_S + 2.0},
        {"until_s": float("inf")},
        {"from_s": float("nan")},
        {"until_s": 1e300, "from_s": 1e300 - 1.0},
        {"tools": ()},
        {"tools": ("",)},
        {"deputy": ""},
        {"more": 1},
    ],
)
def test_no_delegation_is_to_oneself_without_end_or_about_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        delegated(**wrong)


def test_deputies_are_no_approvers_and_part_of_the_rules_a_decision_is_bound_to() -> None:
    assert POLICY.approvers == {*APPROVERS}
    with pytest.raises(ConfigurationError, match="deputies"):
        ApprovalPolicy(signer=KEYS, approvers=["ann", "dan"], deputies=["dan"])
    with pytest.raises(ConfigurationError, match="required"):
        ApprovalPolicy(signer=KEYS, deputies=DEPUTIES, required=4)
    assert POLICY.rules()["deputies"] == ["dan", "eve"]
    assert "deputies" not in ApprovalPolicy(signer=KEYS).rules()


@given(
    marked=st.sets(st.sampled_from(["dan", "eve", "Ann ", "DAN"]), min_size=1),
    deputies=st.sets(st.sampled_from(["dan", "eve", "DAN", "zoe"])),
    approvers=st.none() | st.sets(st.sampled_from([*APPROVERS, *DEPUTIES, "DAN"]), min_size=1),
)
def test_a_key_marked_as_a_deputys_makes_an_approver_nowhere(
    marked: set[str], deputies: set[str], approvers: set[str] | None
) -> None:
    """Whatever a policy names or leaves out, it takes no decision in a deputy's own name."""
    signers = {name: Ed25519Signer.generate() for name in ("bob", *sorted(marked))}
    keys = PublicKeys({n: f"{'deputy:' if n in marked else ''}{s.public_key}" for n, s in signers.items()})
    assert keys.deputies == marked
    try:
        policy = ApprovalPolicy(signer=keys, approvers=approvers, deputies=deputies)
    except ConfigurationError:
        return
    for name in sorted(marked):
        own = signers[name].sign(ASKED.decide("approve", principal=name))
        assert policy.holding(ASKED, [(own, 110.0)], standing=stands)[0] == ()
        to = signers["bob"].sign(Delegation(principal="bob", deputy=name, from_s=100.0, until_s=160.0))
        one = signers[name].sign(ASKED.decide("approve", principal=name, delegation=to))
        taken = name in deputies and (approvers is None or "bob" in approvers)
        assert bool(policy.holding(ASKED, [(one, 110.0)], standing=stands)[0]) is taken


def test_a_person_is_a_deputy_with_all_keys_or_with_none_and_under_every_spelling() -> None:
    one, two = (Ed25519Signer.generate().public_key for _ in range(2))
    for keys in ([f"deputy:{one}", two], [one, f" deputy:{two}"], [f"deputy:{one}", KEYS._keys["ann"][0]]):
        with pytest.raises(ConfigurationError, match="deputy"):
            PublicKeys({"ann": keys})
    for wrong in (f"Deputy:{one}", f"deputy:deputy:{one}", f"deputy: :{one}", "deputy:"):
        with pytest.raises(ConfigurationError):
            PublicKeys({"ann": wrong})
    for deputies, approvers in ((["Ann"], ["ann"]), ([" dan\u200b"], ["bob", "dan"])):
        with pytest.raises(ConfigurationError, match="spelling"):
            ApprovalPolicy(deputies=deputies, approvers=approvers)
        with pytest.raises(ConfigurationError, match="spelling"):
            ApprovalPolicy(deputies=deputies, signer=PublicKeys({deputies[0]: one, approvers[-1]: two}))
    anybody = ApprovalPolicy(deputies=["dan"])
    with pytest.raises(ApprovalError, match="in the place"):
        anybody.check(ASKED, ASKED.decide("approve", principal="DAN"), now_s=110.0)


def test_a_decision_without_a_delegation_is_written_as_before() -> None:
    assert "delegation" not in decided("ann").model_dump()
    assert b"delegation" not in decided("ann").signed_text()
    again = ApprovalDecision.model_validate_json(decided(delegation=GOOD).model_dump_json())
    assert POLICY.holding(ASKED, [(again, 120.0)], standing=stands)[0] == (again,)
