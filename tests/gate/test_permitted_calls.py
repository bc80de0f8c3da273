"""What a gate asks permits, and what it never asks them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from grampus_uq import Session, UncertaintyMonitor
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.errors import ApprovalError, StoreError
from grampus_uq.gate.call import FRAMEWORK, CallPhase, CallRecord, Doubt, Terms, asked, cleared, decided, granted
from grampus_uq.gate.gate import Gate, Held, Released
from grampus_uq.gate.grants import Grant, within_limits
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind, ApprovalPolicy
from grampus_uq.records.events import CallAsked, DecisionEvent, InForce
from grampus_uq.records.values import ModelResponse, TokenLogprob, ToolCall
from grampus_uq.records.vocabulary import Effect, UncertaintyAction, UncertaintyLevel
from tests.scripted_runs import Captured

pytestmark = pytest.mark.anyio
PAY = ToolCall(id="c1", name="pay", arguments={"amount": 5})
RELEASED = Released(by="permit abc", principal="ann", why="goes ahead: the promise")
POLICY = UncertaintyPolicy(irreversible_tool_names=["pay"])


class Permits:
    """Lets ahead as it is told, and keeps what it was asked."""

    def __init__(self, released: Released | str | None = RELEASED, stands: str | None = None) -> None:
        self.released, self.stands = released, stands
        self.asked: list[tuple[str, bool]] = []
        self.told: list[tuple[CallRecord, Terms]] = []
        self.first: list[tuple[CallRecord, Terms, ApprovalDecision | None]] = []
        self.down, self.why = False, "no answer"
        self.in_force: tuple[InForce, ...] | None = ()
        self.of: list[tuple[Session, Terms]] = []

    async def release(self, record: CallRecord, session: Session, terms: Terms, *, alike: bool) -> Released | Held:
        self.asked.append((record.proposed.id, alike))
        self.of.append((session, terms))
        return (
            self.released
            if isinstance(self.released, Released)
            else Held(trouble=self.released, in_force=self.in_force)
        )

    async def standing(self, released: Iterable[str]) -> dict[str, str]:
        found = {by: self.stands if by == "permit abc" else "another permit" for by in released}
        return {by: why for by, why in found.items() if why is not None}

    async def answered(self, record: CallRecord, terms: Terms) -> None:
        self.told.append((record, terms))

    async def tell_first(self, said: Sequence[tuple[CallRecord, ApprovalDecision | None]], terms: Terms) -> list[str]:
        self.first += [(record, terms, decision) for record, decision in said]
        return [self.why if self.down else "" for _ in said]


class Scene:
    def __init__(self, permits: Permits | None = None, confidence: float = 0.8, **policy: Any) -> None:
        self.captured = Captured()
        chosen = UncertaintyPolicy(irreversible_tool_names=["pay"], **policy) if policy else POLICY
        monitor = UncertaintyMonitor(policy=chosen, processors=[self.captured])
        self.session = monitor.session("s", "clerk")
        self.permits = permits or Permits()
        self.gate = Gate(permits=self.permits)
        self.terms = self.gate.terms("clerk", "s", self.session.profile.policy)
        self.confidence = confidence
        self.says, self.proposes = "", PAY
        self.logprob: float | None = None

    async def judge(self, **given: Any) -> tuple[CallRecord, UncertaintyAction]:
        text = self.says or f'I pay. {{"confidence": {self.confidence}}}'
        response: Any = text
        if self.logprob is not None:
            call = '{"name": "pay", "arguments": {"amount": 5}}'
            tokens = (TokenLogprob(token=f"{text}\n", logprob=-0.01), TokenLogprob(token=call, logprob=self.logprob))
            response = ModelResponse(content=f"{text}\n{call}", tool_calls=(self.proposes,), logprobs=tokens)
        await self.session.observe_llm_response(response, "llm_0", tool_calls=[self.proposes])
        terms = given.pop("terms", self.terms)
        return await self.gate.judge(CallRecord(proposed=PAY, step_id="llm_0"), self.session, terms, **given)

    def asked(self) -> list[tuple[bool, Any]]:
        events = [event for event in self.captured.events if isinstance(event, CallAsked)]
        assert all((e.session_id, e.agent_id, e.step_id, e.call_id) == ("s", "clerk", "llm_0", "c1") for e in events)
        assert all(event.call_digest == PAY.digest() and event.time_s > 1e9 for event in events)
        return [(event.tool_alone, event.in_force) for event in events]

    def decisions(self) -> list[DecisionEvent]:
        return [event for event in self.captured.events if isinstance(event, DecisionEvent)]


async def test_a_call_that_waits_because_of_its_tool_goes_ahead_and_the_recording_has_the_promise() -> None:
    scene = Scene()
    record, action = await scene.judge()
    assert (record.phase, record.cleared_by, record.effect) == (CallPhase.CLEARED, "permit abc", Effect.IRREVERSIBLE)
    assert record.cleared_here
    assert action is UncertaintyAction.PROCEED
    (event,) = scene.decisions()
    assert (event.decision, event.principal, event.message) == ("permit", "ann", "goes ahead: the promise")
    assert (event.step_id, event.call_id, event.call_digest) == ("llm_0", "c1", PAY.digest())
    assert event.acknowledged is None
    assert scene.permits.asked == [("c1", False)]
    assert scene.permits.of == [(scene.session, scene.terms)]
    started = await scene.gate.start(record, PAY, scene.terms, None, POLICY, lambda new: None)
    assert started.phase is CallPhase.STARTED


async def test_a_permit_that_says_nothing_leaves_the_request_as_it_was() -> None:
    alone, beside = Scene(), Scene(Permits(None))
    alone.gate.permits = None
    (mine, first), (theirs, second) = await alone.judge(), await beside.judge()
    assert first is second is UncertaintyAction.PAUSE_FOR_HUMAN
    drop = {"requests": {0: {"id", "created_s"}}}
    assert mine.model_dump(exclude=drop) == theirs.model_dump(exclude=drop)
    assert beside.decisions() == []


async def test_what_is_wrong_with_a_permit_stands_in_the_request_and_changes_nothing_else() -> None:
    plain, broken = Scene(Permits(None)), Scene(Permits("permit abc lets nothing ahead: its state is broken"))
    (mine, _), (theirs, action) = await plain.judge(), await broken.judge()
    (without,), (request,) = mine.requests, theirs.requests
    assert request.reason == f"{without.reason}; permit abc lets nothing ahead: its state is broken"
    assert (theirs.phase, action) == (CallPhase.WAITING, UncertaintyAction.PAUSE_FOR_HUMAN)
    drop = {"id", "created_s", "reason"}
    assert request.model_dump(exclude=drop) == without.model_dump(exclude=drop)
    assert broken.decisions() == []


STANDS = (InForce(rule="permit", id="abc", audit=0.05), InForce(rule="grant", id="g"))


@pytest.mark.parametrize(
    "case", ["permits", "down", "nobody", "grants alone", "framework", "alarmed", "ahead", "granted"]
)
async def test_a_call_that_is_asked_about_is_recorded_with_what_was_in_force(case: str) -> None:
    scene = Scene(Permits(RELEASED if case in ("ahead", "granted") else None))
    scene.permits.in_force = None if case == "down" else STANDS
    given: dict[str, Any] = {"framework_asks": True} if case == "framework" else {}
    if case in ("nobody", "grants alone"):
        scene.gate.permits = None

    async def lifted(record: CallRecord) -> CallRecord:
        return cleared(record, "grant g") if case == "granted" else record

    if case in ("grants alone", "granted"):
        given["grants"] = lifted
    if case == "alarmed":
        scene.session._state = replace(scene.session._state, alarmed=True)
    await scene.judge(**given)
    expected = {
        "permits": [(True, STANDS)],
        "down": [(True, None)],
        "nobody": [(True, ())],
        "grants alone": [(True, None)],
        "framework": [(False, None)],
        "alarmed": [(False, None)],
    }
    assert scene.asked() == expected.get(case, [])


@pytest.mark.parametrize(
    "case",
    [
        "always",
        "framework",
        "doubt",
        "repeated",
        "unvouched",
        "high",
        "nothing read",
        "unread turn",
        "unproposed",
        "worst",
        "call floor",
        "alarmed",
        "advisory",
    ],
)
async def test_permits_are_not_even_asked_about_what_they_never_cover(case: str) -> None:
    policy: dict[str, Any] = {"always_ask_tool_names": ["pay"]} if case == "always" else {}
    scene = Scene(confidence=0.35 if case == "high" else 0.8, **policy)
    given: dict[str, Any] = {}
    if case == "framework":
        scene.confidence, given["framework_asks"] = 0.99, True
    elif case == "doubt":
        scene.confidence = 0.99
        given["doubt"] = Doubt(level=UncertaintyLevel.LOW, rule=FRAMEWORK, reason="its step pauses")
    elif case == "repeated":
        given["repeated"] = True
    elif case == "unvouched":
        given["terms"] = Terms(agent_id="clerk", session_id="s", vouched=False)
    elif case == "alarmed":
        scene.session._state = replace(scene.session._state, alarmed=True)
    elif case == "unread turn":  # what was read of the turn before says nothing of this one
        await scene.session.observe_llm_response('Hm. {"confidence": 0.8}', "llm_x")
        scene.says = "I pay."
    elif case == "unproposed":
        scene.proposes = PAY.model_copy(update={"arguments": {"amount": 6}})
    elif case == "worst":
        scene = Scene(worst_so_far_floor=0.5)
        await scene.session.observe_llm_response('Hm. {"confidence": 0.2}', "llm_x")
        for number in range(4):
            await scene.session.observe_llm_response('Yes. {"confidence": 0.95}', f"llm_y{number}")
    elif case == "call floor":
        scene = Scene(call_floor=0.5)
        scene.logprob = -3.0
    elif case == "nothing read":
        record = CallRecord(proposed=PAY, step_id="llm_0")
        waits, _ = await scene.gate.judge(record, scene.session, scene.terms)
        assert (waits.waiting, scene.permits.asked) == (True, [])
        return
    elif case == "advisory":
        scene.session = UncertaintyMonitor(policy=POLICY, advisory=True).session("s", "clerk")
        record, _ = await scene.judge()
        assert (record.cleared_by, scene.permits.asked) == ("monitor", [])
        return
    record, action = await scene.judge(**given)
    assert record.waiting
    assert action is UncertaintyAction.PAUSE_FOR_HUMAN
    assert scene.permits.asked == []


HOSTS = Doubt(level=UncertaintyLevel.LOW, rule=FRAMEWORK, reason="its step pauses")
GRAVE = Doubt(level=UncertaintyLevel.HIGH, rule="tier", reason="its step is grave")
TIER = Doubt(level=UncertaintyLevel.MEDIUM, rule="tier", reason="its step is doubtful")


@pytest.mark.parametrize("confidence", [0.99, 0.8])
@pytest.mark.parametrize("framework_asks", [False, True])
@pytest.mark.parametrize("doubt", [None, HOSTS, GRAVE, TIER])
async def test_a_reason_of_the_host_never_turns_a_wait_into_leave(
    confidence: float, framework_asks: bool, doubt: Doubt | None
) -> None:
    """Less belief is never asked about less: what the framework or the step asks for stands beside it."""
    scene = Scene(confidence=confidence)
    record, _ = await scene.judge(framework_asks=framework_asks, doubt=doubt)
    if not framework_asks and doubt in (None, TIER):
        assert record.phase is CallPhase.CLEARED
        return
    (request,) = record.requests
    assert record.waiting
    assert scene.permits.asked == []
    if doubt is not None:
        assert request.level.severity >= doubt.level.severity
    if framework_asks and doubt is None:
        assert "the framework's own rule" in request.reason
    if doubt is HOSTS:
        assert "its step pauses" in request.reason
    if confidence == 0.8:
        assert request.level.severity >= UncertaintyLevel.MEDIUM.severity
        assert "irreversible call" in request.reason
        assert request.confidence is not None


@pytest.mark.parametrize(
    ("confidence", "doubt", "said"),
    [
        (0.8, TIER, "{monitor}"),
        (0.8, GRAVE, "its step is grave; {monitor}"),
        (0.8, HOSTS, "its step pauses; {monitor}"),
        (0.35, TIER, "{monitor}"),
        (0.35, GRAVE, "its step is grave; {monitor}"),
        (0.35, HOSTS, "its step pauses; {monitor}"),
    ],
)
async def test_of_two_reasons_to_wait_both_are_said_unless_the_other_is_no_more_than_the_tools(
    confidence: float, doubt: Doubt, said: str
) -> None:
    """And the request is as grave as either, with the monitor's confidence."""
    alone, both = Scene(Permits(None), confidence), Scene(Permits(None), confidence)
    ((without,), (request,)) = [
        (await scene.judge(**given))[0].requests for scene, given in ((alone, {}), (both, {"doubt": doubt}))
    ]
    assert request.reason == said.format(monitor=without.reason)
    assert request.level is max(without.level, doubt.level, key=lambda level: level.severity)
    assert request.confidence == without.confidence is not None
    grave = without.level is UncertaintyLevel.HIGH
    assert request.rule == (without.rule if grave or doubt is TIER else doubt.rule)


async def test_what_only_its_definition_calls_irreversible_needs_evidence_as_well() -> None:
    scene = Scene()
    monitor = UncertaintyMonitor(policy=UncertaintyPolicy())
    scene.session, scene.says = monitor.session("s", "clerk"), "I pay."
    await scene.session.observe_llm_response('Hm. {"confidence": 0.8}', "llm_x")
    record, _ = await scene.judge(declared=Effect.IRREVERSIBLE)
    assert record.waiting
    assert scene.permits.asked == []


async def test_the_evidence_is_that_of_the_step_that_proposes_the_call() -> None:
    scene, call = Scene(), PAY.model_copy(update={"id": ""})
    await scene.session.observe_llm_response('I pay. {"confidence": 0.8}', "llm_0", tool_calls=[call])
    await scene.session.observe_llm_response("I pay.", "llm_1", tool_calls=[call])
    for step, ahead in (("llm_1", False), ("llm_0", True)):
        record, _ = await scene.gate.judge(CallRecord(proposed=call, step_id=step), scene.session, scene.terms)
        assert record.waiting is not ahead


async def test_grants_come_first_and_only_for_calls_that_one_may_lift() -> None:
    scene = Scene()
    grant = Grant(tool="pay", principal="ann", expires_s=1e12)

    async def grants(record: CallRecord) -> CallRecord:
        return granted(record, grant)

    async def none(record: CallRecord) -> CallRecord:
        return record

    record, action = await scene.judge(grants=grants)
    assert record.grant == grant
    assert action is UncertaintyAction.PROCEED
    assert scene.permits.asked == []
    record, _ = await Scene().judge(grants=none)
    assert record.cleared_by == "permit abc"
    high, _ = await Scene(confidence=0.35).judge(grants=grants)
    assert high.waiting


async def test_an_equal_call_that_waits_is_told_to_permits_and_only_such_a_one() -> None:
    scene = Scene()
    equal = PAY.model_copy(update={"id": "c0"})
    doubt = Doubt(level=UncertaintyLevel.LOW, rule=FRAMEWORK, reason="")
    waits = asked(CallRecord(proposed=equal, step_id="llm_0"), scene.terms, ApprovalPolicy(), doubt, 0.0)
    other = PAY.model_copy(update={"arguments": {"amount": 6}})
    unlike = asked(CallRecord(proposed=other, step_id="llm_0"), scene.terms, ApprovalPolicy(), doubt, 0.0)
    over = CallRecord(proposed=equal, step_id="llm_0", phase=CallPhase.SETTLED)
    await scene.judge(waiting=[unlike, over])
    await scene.judge(waiting=[unlike, waits])
    assert scene.permits.asked == [("c1", False), ("c1", True)]


async def test_beside_a_standing_approval_of_the_framework_permits_are_not_asked_and_the_recording_names_it() -> None:
    scene = Scene()
    record, action = await scene.judge(standing="ann")
    assert (record.waiting, action) == (True, UncertaintyAction.PAUSE_FOR_HUMAN)
    assert scene.asked() == [(True, (InForce(rule="grant", id="ann"),))]
    assert scene.permits.asked == []


async def test_a_call_that_a_permit_let_ahead_runs_once_in_its_run_and_once_in_any_other() -> None:
    """As hosts that cannot store a record as started ask: two runs may have calls, steps and ids alike."""
    scene = Scene()
    record, _ = await scene.judge()
    for given in ((), ("r",), ("q",)):
        assert not scene.gate.starts.spent(record, *given)
        with scene.gate.starts.once(record, *given) as runs:
            assert runs
        assert scene.gate.starts.spent(record, *given)
        with scene.gate.starts.once(record, *given) as again:
            assert not again
    assert scene.gate.starts.spent(record, "")
    with pytest.raises(KeyboardInterrupt), scene.gate.starts.once(record, "cut"):
        raise KeyboardInterrupt
    assert scene.gate.starts.cut_off(record, "cut")
    assert not scene.gate.starts.cut_off(record, "r")
    assert not scene.gate.starts.cut_off(record, "")
    monitored = record.change(cleared_by="monitor")
    assert not scene.gate.starts.spent(monitored, "r")


async def test_what_was_let_ahead_is_looked_at_again_when_it_runs() -> None:
    scene = Scene(Permits(stands="it is closed"))
    record, _ = await scene.judge()
    kept: list[CallRecord] = []
    again = await scene.gate.start(record, PAY, scene.terms, None, POLICY, kept.append)
    assert again.waiting
    (request,) = again.requests
    assert (request.rule, request.level) == ("permit", UncertaintyLevel.MEDIUM)
    assert request.reason == "a permit let it through, but it is closed"
    assert [one.phase for one in kept] == [CallPhase.STARTED, CallPhase.WAITING]
    scene.gate.permits = None
    assert "none is known here" in str(await scene.gate.hindrance(record))
    scene.gate.permits = Permits()
    assert await scene.gate.hindrance(record) is None
    scene.gate.precondition = lambda call: f"{call.name}: the shop is shut"
    assert await scene.gate.hindrance(record) == "pay: the shop is shut"
    assert await scene.gate.hindrance(record.change(cleared_by="monitor")) is None
    assert await scene.gate.hindrance(record.change(cleared_by=None)) is None


async def test_an_approval_that_is_void_asks_again_as_before_even_where_a_permit_let_it_ahead_once() -> None:
    scene = Scene(Permits(None))
    record, _ = await scene.judge()
    request = record.requests[0]
    yes = decided(record, [request.decide("approve", principal="ann")])
    again = scene.gate.void(yes.change(cleared_by="permit abc"), scene.terms, "late")
    assert again.requests[0].rule == request.rule
    assert "asked again, because the approval is void: late" in again.requests[0].reason


async def test_permits_learn_every_answer_and_a_gate_without_any_tells_nobody() -> None:
    scene = Scene()
    record = CallRecord(proposed=PAY, step_id="llm_0")
    await scene.gate.answered(record, scene.terms)
    assert scene.permits.told == [(record, scene.terms)]
    scene.gate.permits = None
    await scene.gate.answered(record, scene.terms)


# -- never ------------------------------------------------------------------------------------------------------------


async def test_never_is_signed_and_only_the_rejection_of_a_call_can_say_it() -> None:
    record, _ = await Scene(Permits(None)).judge()
    request, policy = record.requests[0], ApprovalPolicy()
    never = request.decide("reject", principal="ann", never=True)
    policy.check(request, never)
    plain = request.decide("reject", principal="ann").model_copy(update={"decided_s": never.decided_s})
    assert b"never" in never.signed_text()
    assert b"never" not in plain.signed_text()  # as it was signed before there was the word
    assert never.model_dump()["never"] is True
    assert "never" not in plain.model_dump()
    for kind in (ApprovalKind.APPROVE, ApprovalKind.RESPOND):
        with pytest.raises(ApprovalError, match="Only the rejection of a call"):
            policy.check(request, request.decide(kind, principal="ann", never=True))
    about_the_run = request.model_copy(update={"call": None})
    with pytest.raises(ApprovalError, match="Only the rejection of a call"):
        policy.check(about_the_run, about_the_run.decide("reject", principal="ann", never=True))
    old = never.model_dump(exclude={"never"})
    assert ApprovalDecision.model_validate(old).never is False


@pytest.mark.parametrize("case", ["never", "rejected", "approved", "forged", "down", "no permits"])
async def test_permits_are_told_first_of_a_decision_that_holds_and_it_is_refused_unless_they_stored_it(
    case: str,
) -> None:
    scene = Scene(Permits(None))
    record, _ = await scene.judge()
    request = record.requests[0]
    decision = request.decide("approve" if case == "approved" else "reject", principal="ann")
    if case not in ("rejected", "approved"):
        decision = request.decide("reject", principal="ann", never=True)
    if case == "forged":
        decision = decision.model_copy(update={"digest": "0" * 64})
    if case == "no permits":
        scene.gate.permits = None
    scene.permits.down = case in ("down", "no permits")
    failed = await scene.gate.tell_first([(record, decision)], scene.terms, request.created_s + 1.0)
    if case == "down":
        assert list(failed) == [request.id]
        assert re.search(r"not taken: it says never, .* 'pay' could not be closed \(no answer\)", failed[request.id])
    else:
        assert failed == {}
    told = [(one, terms, given.kind) for one, terms, given in scene.permits.first if given is not None]
    after = decided(record, [decision]).change(requests=record.requests)
    assert told == ([(after, scene.terms, decision.kind)] if case not in ("forged", "no permits") else [])


async def test_a_decision_that_permits_could_not_learn_of_says_so_and_what_to_do() -> None:
    scene = Scene(Permits(None))
    record, _ = await scene.judge()
    request = record.requests[0]
    scene.permits.down = True
    plain, never = (request.decide("reject", principal="ann", never=never) for never in (False, True))
    now_s = request.created_s + 1.0
    for why, shown in (("no answer", "no answer"), ("x" * 500, "x" * 200)):
        scene.permits.why = why
        said = [await scene.gate.tell_first([(record, one)], scene.terms, now_s) for one in (plain, never)]
        assert [one[request.id] for one in said] == [
            f"The decision is not taken: the permits on 'pay' could not learn of it ({shown}). Say it again.",
            f"The rejection is not taken: it says never, and the permits on 'pay' could not be closed ({shown}). "
            "Say it again, or close them: grampus-uq permits revoke",
        ]


async def test_a_host_with_a_ledger_carries_nothing_out_that_permits_could_not_learn_of() -> None:
    scene = Scene(Permits(None))
    record, _ = await scene.judge()
    after = decided(record, [record.requests[0].decide("reject", principal="ann")])
    await scene.gate.tell_or_raise([after], scene.terms)
    assert scene.permits.first == [(after, scene.terms, None)]
    scene.permits.down = True
    with pytest.raises(StoreError, match=r"^Nothing is carried out, because permits could not .*: no answer$"):
        await scene.gate.tell_or_raise([after], scene.terms)
    scene.gate.permits = None
    await scene.gate.tell_or_raise([after], scene.terms)


async def test_permits_that_answer_for_fewer_decisions_than_they_were_told_are_an_error_and_lose_none() -> None:
    scene = Scene(Permits(None))
    record, _ = await scene.judge()

    async def forgets(said: Sequence[tuple[CallRecord, ApprovalDecision | None]], terms: Terms) -> list[str]:
        return []

    scene.permits.tell_first = forgets  # type: ignore[method-assign]
    decision = record.requests[0].decide("reject", principal="ann")
    with pytest.raises(ValueError, match="shorter"):
        await scene.gate.tell_first([(record, decision)], scene.terms, record.requests[0].created_s + 1.0)


async def test_a_decision_that_came_too_late_closes_nothing() -> None:
    scene = Scene(Permits(None))
    scene.gate.approvals = ApprovalPolicy(expires_s=60.0)
    scene.terms = scene.gate.terms("clerk", "s", scene.session.profile.policy)
    record, _ = await scene.judge()
    request = record.requests[0]
    never = request.decide("reject", principal="ann", never=True)
    assert request.expires_s is not None
    assert await scene.gate.tell_first([(record, never)], scene.terms, request.expires_s + 1.0) == {}
    assert scene.permits.first == []
    assert await scene.gate.tell_first([(record, never)], scene.terms, request.expires_s - 1.0) == {}
    assert [given for _, _, given in scene.permits.first] == [never]


def test_a_permit_of_one_person_is_refused_where_several_must_approve_and_named_as_what_it_is() -> None:
    grant = Grant(tool="pay", principal="ann", expires_s=1e12)
    with pytest.raises(ApprovalError, match="A permit is one principal's"):
        ApprovalPolicy(required=2).check_grant(grant, "permit")
    with pytest.raises(ApprovalError, match="A grant is one principal's"):
        ApprovalPolicy(required=2).check_grant(grant)


def test_an_argument_with_a_rule_must_be_there_and_one_without_is_free() -> None:
    assert within_limits(PAY, {})
    assert within_limits(PAY, {"amount": {"max": 5}})
    assert not within_limits(PAY, {"amount": {"max": 4}})
    assert not within_limits(PAY, {"to": {"equals": None}})
    assert not within_limits(PAY, {"amount": {"max": 5}, "to": {"in": ["bob"]}})


async def test_a_permit_that_is_closed_while_the_precondition_is_asked_asks_again() -> None:
    scene = Scene()
    record, _ = await scene.judge()

    async def closes(call: ToolCall) -> None:
        scene.permits.stands = "permit abc is closed: a complaint"

    scene.gate.precondition = closes
    after = await scene.gate.start(record, PAY, scene.terms, None, POLICY, lambda _: None)
    assert after.waiting
    assert "a complaint" in after.requests[0].reason
