"""The runner keeps the guide's promises: pauses, resumes elsewhere, and what was approved runs once, exactly that."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from grampus_uq import (
    UNWATCHED,
    AgentDefinition,
    AgentRunner,
    ApprovalError,
    ApprovalKind,
    ApprovalPolicy,
    Ed25519Signer,
    FunctionTools,
    Grant,
    HmacSigner,
    PublicKeys,
    SessionConflictError,
    SessionError,
    SubAgent,
    UncertaintyError,
    UncertaintyMonitor,
    UncertaintyPolicy,
    Unwatched,
    open_store,
    tool,
)
from grampus_uq.core.state import Profile
from grampus_uq.errors import ModelError, StoreError
from grampus_uq.gate.call import CallPhase
from grampus_uq.recording.artifacts import ANY, FittedFor, ProfileArtifact
from grampus_uq.records.values import Message, ModelResponse, ToolCall
from grampus_uq.records.vocabulary import AgentStatus, Effect, Role
from grampus_uq.runtime.audit import AuditLog, verify_audit
from grampus_uq.runtime.run_state import AgentState, ExecutionResult
from grampus_uq.runtime.store import Change
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.signals.verbalized import ELICITATION
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from grampus_uq.testing import HANG, ScriptedModel, answer
from tests.runtime.agents import AGENT, SEND_ONE, World, look, mail, results_by_call, runner, scripted, unknown_calls
from tests.sampling import sampled

pytestmark = pytest.mark.anyio


async def paused(world: World, store: MemoryStore, **given: Any) -> ExecutionResult:
    result = await runner(world, store=store, **given).run(AGENT, "mail bob", session_id="s1")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    return result


async def test_an_irreversible_call_waits_and_its_harmless_sibling_runs() -> None:
    world = World()
    result = await paused(world, MemoryStore())
    assert world.sent == []
    assert world.searched == ["bob"]
    assert [r.call.name for r in result.pending if r.call] == ["send_email"]
    said = [m.content or "" for m in result.messages if m.role is Role.SYSTEM]
    assert any("send_email" in text and "bob" in text for text in said)
    assert set(results_by_call(result.messages).values()) == {1}


async def test_the_metadata_says_what_the_pause_was_decided_on_and_is_there_after_every_run() -> None:
    world = World()
    result = await paused(world, MemoryStore())
    decision = result.metadata["uncertainty"]["decision"]
    assert decision["tool_name"] == "send_email"
    assert decision["rule"] == "irreversible_override"
    assert decision["guarantee"] is None
    fine = await runner(World(), [answer('All good. {"confidence": 0.99}')], p_true=0.99).run(AGENT, "hello")
    assert fine.status is AgentStatus.COMPLETED
    assert fine.metadata["uncertainty"]["total_steps"] == 1
    assert fine.metadata["uncertainty"]["monitor_usage"]["calls"] == 1


@pytest.mark.parametrize("asks", [False, True])
async def test_the_model_is_asked_for_a_confidence_where_that_is_wanted_and_the_transcript_does_not_show_it(
    asks: bool,
) -> None:
    told: list[Sequence[Message]] = []

    def says(messages: Sequence[Message], options: Any) -> ModelResponse:
        told.append(messages)
        return answer("Bob has his mail.")

    one = AgentRunner(
        ScriptedModel(says), FunctionTools(), uncertainty_monitor=UncertaintyMonitor(), elicit_confidence=asks
    )
    result = await one.run(AgentDefinition(name="clerk", model="m", system_prompt="Be brief."), "Go.", session_id="s")
    assert [(ELICITATION in (message.content or ""), message.role) for message in told[0]] == [
        (asks, Role.SYSTEM),
        (False, Role.USER),
    ]
    assert [message.content for message in result.messages] == ["Be brief.", "Go.", "Bob has his mail."]


async def test_the_approved_call_and_only_it_runs_once_in_another_runner() -> None:
    world, store = World(), MemoryStore()
    request = (await paused(world, store)).pending[0]
    result = await runner(world, store=store).resume("mailer", "s1", request.decide("approve", principal="ann"))
    assert result.status is AgentStatus.COMPLETED
    assert world.sent == [("bob", "hi")]
    assert len(world.keys[0]) == 64
    with pytest.raises(SessionError, match="has ended"):
        await runner(world, store=store).resume("mailer", "s1", request.decide("approve", principal="ann"))
    assert world.sent == [("bob", "hi")]


async def test_belief_goes_on_over_a_pause_as_if_there_had_been_none() -> None:
    world, store = World(), MemoryStore()
    result = await paused(world, store)
    before = result.metadata["uncertainty"]["cumulative_confidence"]
    resumed = await runner(world, store=store).resume(
        "mailer", "s1", result.pending[0].decide("approve", principal="ann")
    )
    after = resumed.metadata["uncertainty"]
    assert after["total_steps"] == 4  # answer, two calls, answer
    assert after["cumulative_confidence"] == pytest.approx(0.55 * 0.62 * 0.9 + 0.45 * before)


async def test_a_text_is_guidance_and_never_approval() -> None:
    world, store = World(), MemoryStore()
    await paused(world, store)
    result = await runner(world, store=store).resume("mailer", "s1", "yes, approved, go ahead")
    assert world.sent == []
    assert result.status is AgentStatus.COMPLETED
    (text,) = [m.content for m in result.messages if m.tool_call_id == "b"]
    assert text is not None
    assert text.startswith("Not executed")
    assert any(m.role is Role.USER and m.content == "yes, approved, go ahead" for m in result.messages)


async def test_a_rejection_reaches_the_model_and_does_not_loop() -> None:
    world, store = World(), MemoryStore()
    stubborn = [answer("Mail.", tool_calls=[mail(f"m{i}", "bob")]) for i in range(20)]
    result = await runner(world, stubborn, store=store).run(AGENT, "mail bob", session_id="s1")
    rejection = result.pending[0].decide("reject", principal="ann", message="wrong Bob")
    result = await runner(world, stubborn, store=store).resume("mailer", "s1", rejection)
    assert result.status is AgentStatus.FAILED
    assert result.metadata["stop_reason"] == "human_rejected"
    assert world.sent == []
    assert "wrong Bob" in next(m.content or "" for m in result.messages if m.tool_call_id == "m0")
    assert result.steps_taken < 6


async def test_edited_arguments_run_in_place_of_the_proposed_ones() -> None:
    world, store = World(), MemoryStore()
    request = (await paused(world, store)).pending[0]
    edit = request.decide("edit", principal="ann", arguments={"to": "robert", "body": "hello"})
    result = await runner(world, store=store).resume("mailer", "s1", edit)
    assert world.sent == [("robert", "hello")]
    assert next(m.content for m in result.messages if m.tool_call_id == "b") == "sent to robert"
    assert any("changed the arguments" in (m.content or "") and "robert" in (m.content or "") for m in result.messages)


async def test_a_response_stands_in_for_the_tool() -> None:
    world, store = World(), MemoryStore()
    request = (await paused(world, store)).pending[0]
    result = await runner(world, store=store).resume(
        "mailer", "s1", request.decide("respond", principal="ann", message="I mailed him myself")
    )
    assert world.sent == []
    assert next(m.content for m in result.messages if m.tool_call_id == "b") == "I mailed him myself"


async def test_parallel_calls_can_be_approved_in_part() -> None:
    world, store = World(), MemoryStore()
    turns = [answer("Mail both.", tool_calls=[mail("x", "ann"), mail("y", "bob")]), answer("Done.")]
    result = await runner(world, turns, store=store).run(AGENT, "mail both", session_id="s1")
    by_call = {r.call.id: r for r in result.pending if r.call}
    result = await runner(world, turns, store=store).resume(
        "mailer", "s1", by_call["y"].decide("approve", principal="ann")
    )
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert world.sent == [("bob", "hi")]
    assert [r.id for r in result.pending] == [by_call["x"].id]
    result = await runner(world, turns, store=store).resume(
        "mailer", "s1", by_call["x"].decide("reject", principal="ann")
    )
    assert result.status is AgentStatus.COMPLETED
    assert world.sent == [("bob", "hi")]
    assert set(results_by_call(result.messages).values()) == {1}


async def test_an_approval_for_one_call_does_not_run_another() -> None:
    world, store = World(), MemoryStore()
    request = (await paused(world, store)).pending[0]
    assert request.call is not None
    other = request.model_copy(
        update={"call": ToolCall(id="b", name="send_email", arguments={"to": "eve", "body": "x"})}
    )
    for bad in (
        other.decide("approve", principal="ann"),
        request.decide("approve", principal="ann").model_copy(update={"request_id": "0" * 32}),
        request.decide("approve", principal="ann").model_copy(update={"arguments": {"to": "eve"}}),
    ):
        with pytest.raises(ApprovalError):
            await runner(world, store=store).resume("mailer", "s1", bad)
        assert world.sent == []
    (again,) = await runner(world, store=store).list_pending_sessions("mailer")
    assert again.requests[0].id == request.id


async def test_decisions_need_a_signature_and_an_approver_where_the_runner_asks_for_them() -> None:
    world, store = World(), MemoryStore()
    signer = HmacSigner("a key of thirty-two bytes, really")
    policy = ApprovalPolicy(signer=signer, approvers={"ann"})
    request = (await paused(world, store, approvals=policy)).pending[0]
    good = request.decide("approve", principal="ann")
    for bad in (
        good,
        HmacSigner("another key of thirty-two bytes!").sign(good),
        signer.sign(good).model_copy(update={"kind": ApprovalKind.EDIT, "arguments": {"to": "eve", "body": "x"}}),
        signer.sign(good).model_copy(update={"principal": "bob"}),
        signer.sign(request.decide("approve", principal="mallory")),
    ):
        with pytest.raises(ApprovalError):
            await runner(world, store=store, approvals=policy).resume("mailer", "s1", bad)
    assert world.sent == []
    result = await runner(world, store=store, approvals=policy).resume("mailer", "s1", signer.sign(good))
    assert result.status is AgentStatus.COMPLETED
    assert world.sent == [("bob", "hi")]
    assert "thirty-two" not in repr(signer)


async def test_a_tampered_decision_in_the_store_runs_nothing_and_the_true_one_counts_beside_it() -> None:
    world, store = World(), MemoryStore()
    signer = HmacSigner("a key of thirty-two bytes, really")
    policy = ApprovalPolicy(signer=signer)
    request = (await paused(world, store, approvals=policy)).pending[0]
    forged = signer.sign(request.decide("reject", principal="ann")).model_copy(update={"kind": ApprovalKind.APPROVE})
    one = runner(world, store=store, approvals=policy)
    await one.ledger.decide(forged)
    result = await runner(world, store=store, approvals=policy).resume("mailer", "s1")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert world.sent == []
    assert result.pending[0].id == request.id
    entries = await AuditLog(store, "mailer", "s1").entries()
    assert "decision_refused" in [entry["what"] for entry in entries]
    await one.ledger.decide(signer.sign(request.decide("approve", principal="ann")))
    assert (await one.resume("mailer", "s1")).status is AgentStatus.COMPLETED
    assert world.sent == [("bob", "hi")]


@pytest.mark.jumping_clocks
async def test_an_expired_request_is_told_as_expiry_and_a_late_decision_is_refused_and_asked_again() -> None:
    world, store = World(), MemoryStore()
    policy = ApprovalPolicy(expires_s=0.05)
    request = (await paused(world, store, approvals=policy)).pending[0]
    await anyio.sleep(0.1)
    with pytest.raises(ApprovalError, match="expired"):
        await runner(world, store=store, approvals=policy).resume(
            "mailer", "s1", request.decide("approve", principal="ann")
        )
    (waiting,) = await runner(world, store=store).list_pending_sessions("mailer")
    assert waiting.requests[0].id != request.id
    await anyio.sleep(0.1)
    result = await runner(world, store=store, approvals=policy).resume("mailer", "s1")
    assert world.sent == []
    text = next(m.content or "" for m in result.messages if m.tool_call_id == "b")
    assert "expired" in text
    assert result.status is AgentStatus.COMPLETED


@pytest.mark.parametrize("p_true", [0.1, 0.5, 0.62, 0.8, 0.95, 1.0])
async def test_no_grant_lifts_the_pause_of_a_tool_that_is_always_asked_for(p_true: float) -> None:
    world, store = World(), MemoryStore()
    monitor = UncertaintyMonitor(policy=UncertaintyPolicy(always_ask_tool_names=["send"]))
    one = runner(world, store=store, monitor=monitor, p_true=p_true)
    await one.ledger.grant(Grant(tool="send_email", principal="ann", expires_s=time.time() + 60))
    result = await one.run(AGENT, "mail bob", session_id="s1")
    assert (world.sent, result.status) == ([], AgentStatus.WAITING_FOR_HUMAN)


async def test_a_grant_lets_its_tool_run_within_its_limits_and_its_time() -> None:
    signer = HmacSigner("a key of thirty-two bytes, really")
    policy = ApprovalPolicy(signer=signer, approvers={"ann"})

    async def sent(grant: Grant) -> int:
        world, store = World(), MemoryStore()
        one = runner(world, store=store, approvals=policy)
        await one.ledger.grant(grant)
        await one.run(AGENT, "mail bob", session_id="s1")
        return len(world.sent)

    good = {"tool": "send_email", "limits": {"to": {"in": ["bob"]}}, "principal": "ann", "expires_s": time.time() + 60}
    assert await sent(signer.sign(Grant(**good))) == 1
    assert await sent(Grant(**good)) == 0
    assert await sent(signer.sign(Grant(**good | {"principal": "eve"}))) == 0
    assert await sent(signer.sign(Grant(**good | {"expires_s": time.time() - 1}))) == 0
    assert await sent(signer.sign(Grant(**good | {"limits": {"to": {"in": ["ann"]}}}))) == 0
    assert await sent(signer.sign(Grant(**good | {"limits": {"amount": {"max": 50}}}))) == 0
    assert await sent(signer.sign(Grant(**good)).model_copy(update={"limits": {}})) == 0


async def test_a_grant_is_used_no_more_often_than_it_says() -> None:
    world, store = World(), MemoryStore()
    await runner(world, store=store).ledger.grant(
        Grant(tool="send_email", principal="ann", expires_s=time.time() + 60, max_uses=2)
    )
    results = [await runner(world, store=store).run(AGENT, "x", session_id=f"s{i}") for i in range(4)]
    assert len(world.sent) == 2
    assert [r.status for r in results] == [AgentStatus.COMPLETED] * 2 + [AgentStatus.WAITING_FOR_HUMAN] * 2


async def test_an_abort_raises_with_details_and_leaves_a_valid_stored_state() -> None:
    world, store = World(), MemoryStore()
    policy = UncertaintyPolicy(low_threshold=0.99, medium_threshold=0.8, high_threshold=0.6)
    one = runner(world, store=store, p_true=0.01, monitor=UncertaintyMonitor(policy=policy))
    with pytest.raises(UncertaintyError) as caught:
        await one.run(AGENT, "mail bob", session_id="s1")
    assert caught.value.code == "UNCERTAINTY_CRITICAL"
    assert caught.value.details["step_id"] == "llm_0"
    assert caught.value.details["session_id"] == "s1"
    loaded = await one.ledger.load("mailer", "s1")
    assert loaded is not None
    assert loaded[0].status is AgentStatus.FAILED
    assert set(results_by_call(loaded[0].messages).values()) == {1}
    assert world.sent == []
    assert world.searched == []


async def test_an_uncertain_answer_waits_for_review_and_the_reflection_is_in_the_transcript() -> None:
    world, store = World(), MemoryStore()
    turns = [answer("Perhaps Rome."), answer("Paris.")]
    result = await runner(world, turns, p_true=0.2, store=store).run(AGENT, "capital?", session_id="s1")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert result.pending[0].call is None
    assert any("what you don't know" in (m.content or "") for m in result.messages if m.role is Role.SYSTEM)
    other = await runner(world, turns, p_true=0.95, store=store).resume("mailer", "s1", "It is not Rome.")
    assert other.status is AgentStatus.COMPLETED
    assert other.output == "Paris."
    loaded = await runner(world, store=store).ledger.load("mailer", "s1")
    assert loaded is not None
    assert loaded[0].touched


async def test_an_answer_that_somebody_wrote_to_be_approved_waits_for_review() -> None:
    """In another process, to which no seal vouches for the state; nobody signed anything."""
    world, store, keys = World(), MemoryStore(), PublicKeys({"ann": Ed25519Signer.generate().public_key})

    def process() -> AgentRunner:
        return runner(world, [answer("Rome.")], p_true=0.3, store=store, approvals=ApprovalPolicy(signer=keys))

    assert (await process().run(AGENT, "capital?", session_id="s1")).pending
    found = await store.get("session", "mailer/s1")
    assert found is not None
    values = json.loads(found.body) | {"review": [], "answer_approved_by": "ann"}
    values.pop("seal")
    await store.put("session", "mailer/s1", json.dumps(values), expected=found.version, label=found.label)
    result = await process().resume("mailer", "s1")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert "answer_approved_by" not in result.metadata


async def test_an_approved_answer_is_released_as_it_is() -> None:
    world, store = World(), MemoryStore()
    turns = [answer("Perhaps Rome.")]
    result = await runner(world, turns, p_true=0.2, store=store).run(AGENT, "capital?", session_id="s1")
    result = await runner(world, turns, p_true=0.2, store=store).resume(
        "mailer", "s1", result.pending[0].decide("approve", principal="ann")
    )
    assert result.status is AgentStatus.COMPLETED
    assert result.output == "Perhaps Rome."


async def test_two_workers_cannot_resume_one_session() -> None:
    world, store = World(), MemoryStore()
    request = (await paused(world, store)).pending[0]
    outcomes: list[str] = []

    async def resume() -> None:
        try:
            await runner(world, store=store).resume("mailer", "s1", request.decide("approve", principal="ann"))
            outcomes.append("won")
        except (SessionConflictError, SessionError, ApprovalError) as error:
            outcomes.append(type(error).__name__)

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(resume)
    assert outcomes.count("won") == 1
    assert world.sent == [("bob", "hi")]


async def test_a_live_or_waiting_session_is_not_overwritten_by_a_new_run() -> None:
    world, store = World(), MemoryStore()
    await paused(world, store)
    with pytest.raises(SessionError, match="resume it"):
        await runner(world, store=store).run(AGENT, "again", session_id="s1")


async def test_stream_shows_the_decisions_of_run_and_nothing_of_what_waits() -> None:
    world = World()
    events = [event async for event in runner(world).stream(AGENT, "mail bob", session_id="s1")]
    assert [event.kind for event in events] == ["step", "tool_result", "paused"]
    assert [event.calls[0].name for event in events if event.kind == "tool_result"] == ["search"]
    plain = await paused(World(), MemoryStore())
    assert events[-1].result is not None
    assert events[-1].result.pending[0].call == plain.pending[0].call
    assert events[0].step is not None
    uncertain = [e async for e in runner(World(), [answer("Secret guess.")], p_true=0.2).stream(AGENT, "x")]
    assert "Secret" not in "".join(event.text for event in uncertain)


@pytest.mark.jumping_clocks
async def test_a_stop_order_ends_a_hanging_run_within_a_second() -> None:
    store = MemoryStore()
    one = AgentRunner(ScriptedModel([HANG] * 3), FunctionTools(), uncertainty_monitor=UncertaintyMonitor(), store=store)
    results: list[ExecutionResult] = []

    async def run(session_id: str) -> None:
        results.append(await one.run(AGENT, "x", session_id=session_id))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(run, "s1")
            group.start_soon(run, "s2")
            await anyio.sleep(0.3)
            started = time.monotonic()
            await one.stop_all(principal="ops")
        assert time.monotonic() - started < 1.0
    assert [r.status for r in results] == [AgentStatus.FAILED] * 2
    assert results[0].metadata["stop_reason"] == "cancelled"


async def test_a_failing_model_leaves_a_session_that_can_be_resumed() -> None:
    world, store = World(), MemoryStore()
    broken = AgentRunner(
        ScriptedModel([ModelError("down")]), world.tools(), uncertainty_monitor=UncertaintyMonitor(), store=store
    )
    with pytest.raises(ModelError):
        await broken.run(AGENT, "mail bob", session_id="s1")
    result = await runner(world, store=store).resume("mailer", "s1")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert world.searched == ["bob"]


async def test_a_call_that_was_running_when_its_worker_died_is_not_run_again_but_asked_about() -> None:
    world, store = World(), MemoryStore()
    await paused(world, store)
    loaded = await runner(world, store=store).ledger.load("mailer", "s1")
    assert loaded is not None
    state, version = loaded
    record = next(r for r in state.turn if r.call.id == "b")
    state.keep(record.change(phase=CallPhase.STARTED, requests=(), cleared_by="approve of ann"))
    state.status = AgentStatus.RUNNING
    await runner(world, store=store).ledger.save(state, version)  # as a worker left it that was killed in the tool
    result = await runner(world, store=store).resume("mailer", "s1")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert result.pending[0].unknown_outcome
    assert world.sent == []
    told = result.pending[0].decide("respond", principal="ann", message="it was sent")
    result = await runner(world, store=store).resume("mailer", "s1", told)
    assert result.status is AgentStatus.COMPLETED
    assert world.sent == []


async def test_a_call_of_unknown_outcome_that_an_earlier_release_let_expire_is_asked_about_again() -> None:
    world, store = World(), MemoryStore()
    await paused(world, store)
    state, version = await runner(world, store=store).ledger.known("mailer", "s1")
    record = next(r for r in state.turn if r.call.id == "b")
    over = record.requests[0].model_copy(
        update={"unknown_outcome": True, "rule": "unknown_outcome", "expires_s": record.requests[0].created_s + 1e-6}
    )
    state.keep(record.change(requests=(over,)))
    await runner(world, store=store).ledger.save(state, version)
    result = await runner(world, store=store).resume("mailer", "s1")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    (request,) = result.pending
    assert (request.unknown_outcome, request.expires_s) == (True, None)
    assert request.id != over.id
    told = request.decide("respond", principal="ann", message="it was sent")
    assert (await runner(world, store=store).resume("mailer", "s1", told)).status is AgentStatus.COMPLETED
    assert world.sent == []


async def test_the_audit_is_a_chain_that_shows_tampering() -> None:
    world, store = World(), MemoryStore()
    request = (await paused(world, store)).pending[0]
    await runner(world, store=store).resume("mailer", "s1", request.decide("approve", principal="ann"))
    entries = await AuditLog(store, "mailer", "s1").entries()
    assert [e["what"] for e in entries] == ["begun", "paused", "decision", "execution_started", "execution_finished"]
    assert unknown_calls(entries) == []
    assert len(unknown_calls(entries[:-1])) == 1
    for index in range(len(entries)):
        forged = [dict(entry) for entry in entries]
        forged[index]["data"] = {**forged[index]["data"], "principal": "eve"}
        with pytest.raises(ValueError, match="changed"):
            verify_audit(forged)
    with pytest.raises(ValueError, match="number"):
        verify_audit(entries[1:])


class _FailingStore(MemoryStore):
    """A store that can be switched off."""

    down = False

    async def write(self, *changes: Change) -> float:
        if self.down:
            raise StoreError("down")
        return await super().write(*changes)


async def test_with_the_store_down_irreversible_calls_stop_and_harmless_ones_go_on() -> None:
    world, store = World(), _FailingStore()
    turns = [answer("Both.", tool_calls=[look("a", "bob"), mail("b", "bob")]), answer('Done. {"confidence": 1.0}')]

    inner = scripted(turns, 1.0)

    class Cutting:
        async def complete(self, *, messages: Sequence[Message], model: str = "", **options: Any) -> ModelResponse:
            store.down = True
            return await inner.complete(messages=messages, model=model, **options)

    one = AgentRunner(Cutting(), world.tools(), uncertainty_monitor=UncertaintyMonitor(), store=store)
    result = await one.run(AGENT, "mail bob", session_id="s1")
    assert world.sent == []
    assert world.searched == ["bob"]
    assert "session store" in next(m.content or "" for m in result.messages if m.tool_call_id == "b")
    assert result.metadata["store_failures"] >= 1


async def test_tools_that_nobody_classified_are_reported() -> None:
    def mystery() -> str:
        return "?"

    turns = [answer("Try.", tool_calls=[ToolCall(id="a", name="mystery")]), answer("Done.")]
    one = AgentRunner(scripted(turns, 0.99), FunctionTools(mystery), uncertainty_monitor=UncertaintyMonitor())
    result = await one.run(AGENT, "x")
    assert result.metadata["unclassified_tools"] == ["mystery"]


async def test_a_sub_agents_approval_and_belief_reach_its_parent() -> None:
    world, store = World(), MemoryStore()
    child = runner(world, store=store)
    parent_turns = [
        answer("Delegate.", tool_calls=[ToolCall(id="d", name="mailer", arguments={"task": "mail bob"})]),
        answer("The mailer did it."),
    ]

    def parent() -> AgentRunner:
        return AgentRunner(
            scripted(parent_turns, 0.95),
            FunctionTools(),
            uncertainty_monitor=UncertaintyMonitor(),
            store=store,
            sub_agents=[SubAgent(child, AGENT)],
        )

    boss = AgentDefinition(name="boss", model="scripted", system_prompt="You lead.")
    result = await parent().run(boss, "have bob mailed", session_id="p1")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    (request,) = result.pending
    assert request.call is not None
    assert request.call.name == "send_email"
    assert request.child_session is not None
    before = result.metadata["uncertainty"]["total_steps"]
    result = await parent().resume("boss", "p1", request.decide("approve", principal="ann"))
    assert result.status is AgentStatus.COMPLETED
    assert world.sent == [("bob", "hi")]
    assert result.metadata["uncertainty"]["total_steps"] == before + 2  # the child's belief, and the parent's answer
    assert result.metadata["uncertainty"]["cumulative_confidence"] < 0.95


async def test_many_sessions_on_one_runner_and_monitor_do_not_see_each_other() -> None:
    world, monitor, store = World(), UncertaintyMonitor(), MemoryStore()
    good = [answer('Fine. {"confidence": 0.99}')]
    solo = await runner(World(), good, p_true=0.99).run(AGENT, "x", session_id="solo")
    results: dict[str, ExecutionResult] = {}

    async def run(session_id: str, p_true: float) -> None:
        turns = good if p_true > 0.5 else [answer("Perhaps.")]
        one = runner(world, turns, p_true=p_true, monitor=monitor, store=store)
        results[session_id] = await one.run(AGENT, "x", session_id=session_id)

    async with anyio.create_task_group() as group:
        group.start_soon(run, "bad", 0.05)
        for index in range(9):
            group.start_soon(run, f"good-{index}", 0.99)
    assert results["bad"].status is not AgentStatus.COMPLETED
    for index in range(9):
        mine = results[f"good-{index}"]
        assert mine.status is AgentStatus.COMPLETED
        assert mine.metadata["uncertainty"] == solo.metadata["uncertainty"]


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
@sampled("many", [250], full=[1_000])
async def test_a_thousand_concurrent_sessions_in_one_process_all_complete(many: int) -> None:
    monitor, store = UncertaintyMonitor(), MemoryStore()
    good = [answer('Fine. {"confidence": 0.99}')]
    done: list[AgentStatus] = []
    one = runner(World(), good, p_true=0.99, monitor=monitor, store=store)

    async def run(index: int) -> None:
        done.append((await one.run(AGENT, "x", session_id=str(index))).status)

    async with anyio.create_task_group() as group:
        for index in range(many):
            group.start_soon(run, index)
    assert done == [AgentStatus.COMPLETED] * many


async def test_pausing_in_a_file_resuming_from_another_handle(tmp_path: Path) -> None:
    world = World()
    url = f"sqlite:///{tmp_path / 's.db'}"
    result = await runner(world, store=open_store(url)).run(AGENT, "mail bob", session_id="s/1 ö")
    decision = result.pending[0].decide("approve", principal="ann")
    other = open_store(url)
    await runner(world, store=other).ledger.decide(decision)
    result = await runner(world, store=open_store(url)).resume("mailer", "s/1 ö")
    assert result.status is AgentStatus.COMPLETED
    assert world.sent == [("bob", "hi")]


async def test_the_state_goes_through_json_unchanged() -> None:
    world, store = World(), MemoryStore()
    await paused(world, store)
    loaded = await runner(world, store=store).ledger.load("mailer", "s1")
    assert loaded is not None
    again = AgentState.model_validate_json(loaded[0].model_dump_json())
    assert again.model_dump() == loaded[0].model_dump()
    assert Effect.IRREVERSIBLE in {record.effect for record in loaded[0].turn}
    assert SEND_ONE[0].tool_calls[1] == loaded[0].turn[1].call


# -- without a monitor --


def paying(ran: list[str], *names: str) -> FunctionTools:
    def tool_named(name: str) -> Any:
        def act() -> str:
            """Act."""
            ran.append(name)
            return "done"

        return tool(effect="irreversible", name=name)(act)

    return FunctionTools(*[tool_named(name) for name in names])


async def test_a_runner_that_is_given_no_monitor_watches_all_the_same() -> None:
    ran: list[str] = []
    model = ScriptedModel([answer("", tool_calls=[ToolCall(id="1", name="pay")]), answer("paid")])
    runner = AgentRunner(model, paying(ran, "pay"))
    result = await runner.run(AgentDefinition(name="a"), "pay")
    assert (result.status, ran) == (AgentStatus.WAITING_FOR_HUMAN, [])
    assert "uncertainty" in result.metadata
    assert len(model.calls) == 1  # the default monitor asks no model
    (request,) = result.pending
    done = await runner.resume("a", result.session_id, request.decide("approve", principal="ann"))
    assert (done.status, ran) == (AgentStatus.COMPLETED, ["pay"])


@pytest.mark.parametrize("spelt", ["pay", "Pay", "ｐａｙ", "рay"])
async def test_running_unwatched_is_asked_for_by_name_and_still_asks_for_what_is_always_asked(spelt: str) -> None:
    ran: list[str] = []
    turn = [ToolCall(id="1", name=spelt), ToolCall(id="2", name="post")]
    model = ScriptedModel([answer("", tool_calls=turn), answer("done")])
    unwatched = Unwatched(policy=UncertaintyPolicy(always_ask_tool_names=["pay"]))
    runner = AgentRunner(model, paying(ran, spelt, "post"), uncertainty_monitor=unwatched)
    result = await runner.run(AgentDefinition(name="a"), "pay")
    assert [(request.call.name, request.rule) for request in result.pending] == [(spelt, "always_ask")]
    assert ran == ["post"]
    free = AgentRunner(ScriptedModel([answer("", tool_calls=turn), answer("done")]), paying(ran, spelt, "post"),
                       uncertainty_monitor=UNWATCHED)  # fmt: skip
    assert (await free.run(AgentDefinition(name="a"), "pay")).status is AgentStatus.COMPLETED
    assert "uncertainty" not in result.metadata


async def test_a_result_keeps_its_type_when_a_human_changed_the_arguments_and_the_note_stands_beside_it() -> None:
    store, ran = MemoryStore(), []

    @tool(effect=Effect.IRREVERSIBLE)
    def refund(amount: int) -> dict[str, Any]:
        ran.append(amount)
        return {"refunded": amount}

    call = ToolCall(id="r", name="refund", arguments={"amount": 50})
    turns = [answer("I refund.", tool_calls=[call]), answer("Done.")]

    def one() -> AgentRunner:
        tools = FunctionTools(refund)
        return AgentRunner(scripted(turns, 0.62), tools, uncertainty_monitor=UncertaintyMonitor(), store=store)

    (request,) = (await one().run(AGENT, "x", session_id="s")).pending
    edit = request.decide("edit", principal="ann", arguments={"amount": 5})
    messages = (await one().resume("mailer", "s", edit)).messages
    assert ran == [5]
    result = next(m.content for m in messages if m.tool_call_id == "r")
    assert json.loads(result or "") == {"refunded": 5}
    notes = [m.content for m in messages if m.role is Role.SYSTEM and "changed" in (m.content or "")]
    assert notes == ['A human changed the arguments of refund to {"amount":5}.']


async def test_an_executor_that_changes_its_call_changes_neither_the_audit_nor_the_transcript() -> None:
    world, store = World(), MemoryStore()
    inner = world.tools()

    class Careless:
        def schemas(self) -> Any:
            return inner.schemas()

        def effect_of(self, name: str) -> Any:
            return inner.effect_of(name)

        async def execute(self, call: ToolCall) -> Any:
            result = await inner.execute(call)
            call.arguments["to"] = "nobody"
            return result

    def one() -> AgentRunner:
        monitor = UncertaintyMonitor()
        return AgentRunner(scripted(SEND_ONE), Careless(), uncertainty_monitor=monitor, store=store)

    (request,) = (await one().run(AGENT, "mail bob", session_id="s")).pending
    result = await one().resume("mailer", "s", request.decide("approve", principal="ann"))
    assert result.status is AgentStatus.COMPLETED
    entries = await AuditLog(store, "mailer", "s").entries()
    keys = {entry["data"]["idempotency_key"] for entry in entries if entry["what"].startswith("execution_")}
    digests = {entry["data"]["digest"] for entry in entries if entry["what"].startswith("execution_")}
    assert (len(keys), digests) == (1, {mail("b", "bob").digest()})
    assert unknown_calls(entries) == []
    assert [c.arguments["to"] for m in result.messages for c in m.tool_calls if c.id == "b"] == ["bob"]


async def test_what_the_audit_says_let_a_call_through_is_who_signed_and_not_what_the_state_says() -> None:
    world, store, signer = World(), MemoryStore(), HmacSigner("k" * 32)
    one = runner(world, store=store, approvals=ApprovalPolicy(signer=signer))
    (request,) = (await one.run(AGENT, "mail bob", session_id="s")).pending
    await one.resume("mailer", "s", signer.sign(request.decide("approve", principal="ann")))
    entries = await AuditLog(store, "mailer", "s").entries()
    (started,) = [entry["data"] for entry in entries if entry["what"] == "execution_started"]
    assert (started["cleared_by"], started["decisions"]) == ("approve of ann", [request.id])


async def test_a_precondition_that_fails_voids_an_approval_and_the_call_is_asked_again() -> None:
    world, store, closed = World(), MemoryStore(), True

    def precondition(call: ToolCall) -> str | None:
        return "the account is closed" if closed else None

    def one() -> AgentRunner:
        return runner(world, store=store, precondition=precondition)

    (request,) = (await one().run(AGENT, "mail bob", session_id="s")).pending
    result = await one().resume("mailer", "s", request.decide("approve", principal="ann"))
    assert (result.status, world.sent) == (AgentStatus.WAITING_FOR_HUMAN, [])
    (again,) = result.pending
    assert "the account is closed" in again.reason
    closed = False
    with pytest.raises(ApprovalError, match="No pending request"):
        await one().resume("mailer", "s", request.decide("approve", principal="ann"))
    assert (await one().resume("mailer", "s", again.decide("approve", principal="ann"))).status == "completed"
    assert world.sent == [("bob", "hi")]


async def test_a_grant_lifts_no_high_level() -> None:
    world, store = World(), MemoryStore()
    one = runner(world, store=store, p_true=0.3)
    await one.ledger.grant(Grant(tool="send_email", principal="ann", expires_s=time.time() + 60))
    assert (await one.run(AGENT, "mail bob", session_id="s")).status is AgentStatus.WAITING_FOR_HUMAN
    assert world.sent == []


async def test_a_policy_that_changed_while_a_call_waited_is_asked_anew() -> None:
    world, store = World(), MemoryStore()
    (request,) = (await runner(world, store=store).run(AGENT, "mail bob", session_id="s")).pending
    strict = UncertaintyMonitor(policy=UncertaintyPolicy(low_threshold=0.95))
    one = runner(world, store=store, monitor=strict)
    with pytest.raises(ApprovalError, match="No pending request"):
        await one.resume("mailer", "s", request.decide("approve", principal="ann"))
    (asked,) = (await one.list_pending_sessions("mailer"))[0].requests
    assert asked.id != request.id
    assert world.sent == []


@pytest.mark.parametrize("file", ["a.gguf@1", "b.gguf@2"])
async def test_one_name_for_whatever_file_runs_is_told_apart_so_that_a_profile_of_one_acts_on_no_other(
    file: str,
) -> None:
    client = scripted([answer("Done.")])
    client.recorded_as = lambda model: f"{model}:{file}"  # type: ignore[attr-defined]
    fitted = Profile(calibration=LogisticFusion(readings={"p_true": FusedReading(mean=0, sd=1, slope=1)}, intercept=0))
    mine = FittedFor(model=f"{AGENT.model}:a.gguf@1", prompt_hash=ANY, tools_hash=ANY)
    monitor = UncertaintyMonitor(profile=ProfileArtifact(profile=fitted, fitted_for=mine))
    done = await AgentRunner(client, World().tools(), uncertainty_monitor=monitor).run(AGENT, "hello")
    assert ("profile_does_not_apply" in done.metadata["uncertainty"]) is (file != "a.gguf@1")


@pytest.mark.parametrize("said", ['{"name": "pay", "arguments": {"amount": 5}}', "I could not pay (sorry)."])
async def test_a_call_that_the_model_wrote_as_text_is_named_and_not_made(said: str) -> None:
    ran: list[str] = []
    runner = AgentRunner(ScriptedModel([answer(said)]), paying(ran, "pay"))
    result = await runner.run(AgentDefinition(name="a"), "pay")
    assert (result.status, ran) == (AgentStatus.COMPLETED, [])
    assert result.metadata.get("call_written_as_text") == ("pay" if said.startswith("{") else None)
