"""Runs of one session, in any process: a call that was rejected in one of them runs unasked in none."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Runner
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults

from grampus_uq import StoreError, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations import AdapterSettings, ModelTurn, take_up
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability, resume, waiting
from grampus_uq.runtime import MemoryStore, StoredStarts
from grampus_uq.testing import ScriptedModel
from tests.integrations.test_openai_agents_carried import Bank, pay

pytestmark = pytest.mark.anyio
RULE = "rejected_in_thread"
POLICY = UncertaintyPolicy(irreversible_tool_names=["pay"])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the frameworks' own


class Down(MemoryStore):
    """A store that can be down."""

    down = False

    async def get(self, kind: str, key: str) -> Any:
        if self.down:
            raise StoreError("down")
        return await super().get(kind, key)

    async def write(self, *changes: Any) -> Any:
        if self.down:
            raise StoreError("down")
        return await super().write(*changes)


class Process:
    """A host of sessions, whose model is as sure as `sure` says."""

    def __init__(self, store: MemoryStore | None) -> None:
        self.sure, starts = 0.99, None if store is None else StoredStarts(store)
        judge = ScriptedModel(lambda messages, options: f'{{"p_true": {self.sure}}}')
        monitor = UncertaintyMonitor(policy=POLICY)
        self.settings = AdapterSettings(monitor=monitor, model_client=judge, advisory=False, starts=starts)
        self.gate = self.settings.gate(lambda name: None)

    async def begins(self, to: Any, *, sure: bool = True, session: str = "s") -> tuple[HeldCalls, ToolCall]:
        """A new run, which proposes a payment."""
        self.sure = 0.99 if sure else 0.7
        held, call = take_up(self.settings, self.gate, session, "clerk"), ToolCall(id="c", name="pay", arguments=to)
        await held.observe(self.settings, ModelTurn(content="I pay.", calls=[call]), [call])
        await held.judge(call)
        return held, call


BOB = {"to": "b\u00e9", "n": 1}
PEOPLE = [BOB, {"n": 1.0, "to": "be\u0301"}, {"to": "eve", "n": 1}]
RUN = st.tuples(
    st.integers(0, 1), st.sampled_from(PEOPLE), st.booleans(), st.sampled_from(["approve", "edit", "reject", "respond"])
)


@given(st.lists(RUN, min_size=2, max_size=5), st.booleans())
@settings(max_examples=60, deadline=None)
async def test_what_was_rejected_or_changed_in_a_run_is_asked_about_in_every_later_one_and_nothing_else_is(
    runs: list[tuple[int, Any, bool, str]], shared: bool
) -> None:
    """Law."""
    store = MemoryStore() if shared else None
    processes, rejected = [Process(store), Process(store)], set[tuple[int, bool]]()
    for number, to, sure, said in runs:
        held, call = await processes[number].begins(to, sure=sure)
        known = number if not shared else 0, to["to"] == "eve"
        rules = [one.rule for one in held.requests()]
        assert (rules == [RULE], bool(rules)) == (known in rejected, known in rejected or not sure)
        for one in held.requests():
            more = {"arguments": {"to": "ann", "n": 2}} if said == "edit" else {"message": "So."}
            held.decide(one.decide(said, principal="ann", **more))  # type: ignore[arg-type]
            await held.tell()
        assert (await held.release(call)).run is (not rules or said in ("approve", "edit"))
        rejected |= {known} if rules and said in ("reject", "edit") else set()
        other, _ = await processes[number].begins(to, session="another")
        assert other.requests() == ()


async def test_a_rejection_that_cannot_be_stored_is_told_again_and_calls_wait_while_nobody_can_read_of_it() -> None:
    store = Down()
    here, there = Process(store), Process(store)
    held, call = await here.begins(BOB, sure=False)
    store.down = True
    held.decide(held.requests()[0].decide("reject", principal="ann"))
    await held.tell()
    with pytest.raises(StoreError):
        await held.tell(stored=True)
    (request,) = (await there.begins({"to": "eve"}))[0].requests()
    assert (request.rule, request.reason[-20:]) == (RULE, "cannot be read: down")
    assert not (await held.release(call)).run
    store.down = False
    await held.release(call)
    assert [one.rule for one in (await there.begins(BOB))[0].requests()] == [RULE]
    assert (await there.begins({"to": "eve"}))[0].requests() == ()


async def test_the_agents_sdk_asks_in_the_next_run_of_a_session_about_what_was_rejected_in_one() -> None:
    sure = [0.7]
    judge = ScriptedModel(lambda messages, options: f'{{"p_true": {sure[0]}}}')
    bank = Bank((0.7, [pay()]), (0.9, []), (0.9, [pay()]), (0.9, []), signed=False, model_client=judge)
    paused = await bank.go()
    await bank.resume(paused.text, [paused.requests[0].decide("reject", principal="ann")])
    sure[0] = 0.99
    bank.agent = bank.agent.clone(name="another")  # as a chat goes on with `result.last_agent`
    again = await bank.go()
    assert ([one.rule for one in again.requests], bank.paid) == ([RULE], [])
    other = await bank.guard.run(bank.agent, "Pay.", session_id="another")
    assert (other.interruptions, len(bank.paid)) == ([], 1)


@pytest.mark.parametrize("shown", [False, True])
async def test_a_standing_approval_of_the_agents_sdk_lets_nothing_run_that_was_rejected_unless_a_human_saw_it(
    shown: bool,
) -> None:
    other = pay(*(("bob", 5) if shown else ("eve", 1)), call_id="c2")
    turns = [(0.7, [pay()]), (0.9, []), (0.7, [other]), (0.7, [pay(call_id="c3")]), (0.9, [])]
    bank = Bank(*turns, signed=False, model_client=ScriptedModel('{"p_true": 0.7}'))
    paused = await bank.go()
    result = await bank.resume(paused.text, [paused.requests[0].decide("reject", principal="ann")])
    again = [*result.to_input_list(), {"role": "user", "content": "Pay."}]
    result = await bank.guard.run(bank.agent, again, session_id="s")
    state = result.to_state()
    state.approve(state.get_interruptions()[0], always_approve=True)
    with bank.guard.session("s", "clerk", snapshot=bank.guard.watched(result).snapshot()):
        result = await Runner.run(bank.agent, state)
    assert (result.interruptions, bank.paid) == ([], [["bob", 5] if shown else ["eve", 1]])
    assert "rejected exactly this call" in str(result.to_input_list()[-2])


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_agents_sdks_own_rejection_counts_where_the_run_ends_without_asking_its_model(streamed: bool) -> None:
    sure = [0.7]
    judge = ScriptedModel(lambda messages, options: f'{{"p_true": {sure[0]}}}')
    bank = Bank((0.7, [pay()]), (0.7, []), signed=False, model_client=judge)
    bank.agent.tool_use_behavior = "stop_on_first_tool"  # 0.20 of the SDK asks its model all the same
    result = await bank.guard.run(bank.agent, "Pay.", session_id="s")
    state = result.to_state()
    state.reject(state.get_interruptions()[0])
    with bank.guard.session("s", "clerk", snapshot=bank.guard.watched(result).snapshot()):
        if streamed:
            async for _ in Runner.run_streamed(bank.agent, state).stream_events():
                pass
        else:
            assert not (await Runner.run(bank.agent, state)).interruptions
    sure[0] = 0.99
    assert ([one.rule for one in (await bank.go()).requests], bank.paid) == ([RULE], [])


@pytest.mark.parametrize("handled", [False, True])
async def test_pydantic_ai_asks_about_what_was_rejected_in_a_session_whose_history_was_cut(handled: bool) -> None:
    """Also where a program approves what waits (`handled`)."""
    sure, paid = [0.7], list[str]()

    def scripted(messages: Any, _: Any) -> ModelResponse:
        if messages[-1].parts[-1].part_kind == "tool-return":
            return ModelResponse(parts=[TextPart("Well.")])
        return ModelResponse(parts=[TextPart("I pay."), ToolCallPart("pay", {"to": "bob"}, tool_call_id="c")])

    judge = ScriptedModel(lambda messages, options: f'{{"p_true": {sure[0]}}}')
    guard = UncertaintyCapability(UncertaintyMonitor(policy=POLICY), session_id=lambda ctx: "s", model_client=judge)

    def pay(to: str) -> str:
        paid.append(to)
        return "paid"

    def yes(_: Any, requests: Any) -> DeferredToolResults:
        return DeferredToolResults(approvals={call.tool_call_id: True for call in requests.approvals})

    given: Any = {"output_type": [str, DeferredToolRequests], "tools": [pay]}
    agent = Agent(FunctionModel(scripted), capabilities=[guard], **given)
    result: Any = await agent.run("Pay.")
    (request,) = waiting(result)
    await agent.run(**resume(result.all_messages_json(), [request.decide("reject", principal="ann")]))
    sure[0] = 0.99
    if handled:
        agent = Agent(FunctionModel(scripted), capabilities=[HandleDeferredToolCalls(yes), guard], **given)
    (request,) = waiting(await agent.run("Pay, as I said before."))
    assert (request.rule, paid) == (RULE, [])


@pytest.mark.parametrize("kind", ["rejected", "began"])
async def test_no_program_answers_a_question_of_pydantic_ai_that_is_for_humans_also_in_a_run_that_goes_on(
    kind: str,
) -> None:
    """What was rejected, undecided while another call is decided on, and what may have run, as it is given again."""
    calls, paid = ["c", "d"] if kind == "rejected" else ["c"], list[str]()

    def scripted(messages: Any, _: Any) -> ModelResponse:
        if messages[-1].parts[-1].part_kind == "tool-return":
            return ModelResponse(parts=[TextPart("Well.")])
        proposed = [ToolCallPart("pay", {"to": "bob"}, tool_call_id=one) for one in calls]
        return ModelResponse(parts=[TextPart("I pay."), *proposed])

    def pay(to: str) -> str:
        paid.append(to)
        return "paid"

    def yes(_: Any, requests: Any) -> DeferredToolResults:
        return DeferredToolResults(approvals={call.tool_call_id: True for call in requests.approvals})

    judge = ScriptedModel('{"p_true": 0.7}')
    guard = UncertaintyCapability(UncertaintyMonitor(policy=POLICY), session_id=lambda ctx: "s", model_client=judge)
    given: Any = {"output_type": [str, DeferredToolRequests], "tools": [pay]}
    plain: Any = Agent(FunctionModel(scripted), capabilities=[guard], **given)
    handled: Any = Agent(FunctionModel(scripted), capabilities=[HandleDeferredToolCalls(yes), guard], **given)
    result = await plain.run("Pay.")
    said = "reject" if kind == "rejected" else "approve"
    before, decisions = result.all_messages_json(), [one.decide(said, principal="ann") for one in waiting(result)]
    await plain.run(**resume(before, decisions))
    if kind == "rejected":
        result = await handled.run("Pay, as I said before.")
        before, decisions = result.all_messages_json(), [waiting(result)[1].decide("reject", principal="ann")]
    result = await handled.run(**resume(before, decisions))
    rule = RULE if kind == "rejected" else "unknown_outcome"
    assert [(one.rule, one.call and one.call.id) for one in waiting(result)] == [(rule, "c")]
    assert paid == ([] if kind == "rejected" else ["bob"])
