"""pydantic-ai: histories that others may write or that are old, output functions, two people's approvals."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent, RunContext, ToolOutput
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved

from grampus_uq import (
    ApprovalError,
    ApprovalPolicy,
    ConfigurationError,
    DataError,
    ToolEffects,
    UncertaintyError,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.gate.seal import Seal
from grampus_uq.gate.signatures import Ed25519Signer, PublicKeys
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability, resume, run_sub_agent, waiting
from grampus_uq.integrations.pydantic_ai_messages import KEY
from tests.sampling import examples

pytestmark = pytest.mark.anyio
ANN, BEN, EVE = Ed25519Signer.generate(), Ed25519Signer.generate(), Ed25519Signer.generate()
KEYS = PublicKeys({"ann": ANN.public_key, "ben": BEN.public_key})


@pytest.fixture
def anyio_backend() -> str:
    """The framework's agents need asyncio."""
    return "asyncio"


def pay(to: str = "bob", amount: int = 5, call_id: str = "c1") -> ToolCallPart:
    return ToolCallPart("pay", {"to": to, "amount": amount}, tool_call_id=call_id)


def says(*parts: Any, sure: float = 0.7) -> list[Any]:
    return [TextPart(f'I go on. {{"confidence": {sure}}}'), *parts]


class Bank:
    """An agent whose model plays a script, and what it paid."""

    def __init__(self, *turns: list[Any], output: Any = None, signed: bool = True, **given: Any) -> None:
        self.paid: list[Any] = []
        self.turns = turns or (says(pay()), says())
        approvals = ApprovalPolicy(signer=KEYS, seal=Seal(b"s" * 16)) if signed else ApprovalPolicy()
        policy = given.pop("policy", UncertaintyPolicy(irreversible_tool_names=["pay", "refund"]))
        options: dict[str, Any] = {"advisory": False, "approvals": approvals, **given}
        self.guard = UncertaintyCapability(UncertaintyMonitor(policy=policy), **options)
        self.agent: Agent[None, Any] = Agent(
            FunctionModel(self.respond, stream_function=self.stream),
            name="clerk",
            output_type=output or [str, DeferredToolRequests],
            capabilities=[self.guard],
        )
        self.agent.tool_plain(self.pay)

    def respond(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=self.turns[sum(isinstance(m, ModelResponse) for m in messages)])

    async def stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield str(self.respond(messages, info).text)

    def pay(self, to: str, amount: int) -> dict[str, Any]:
        self.paid.append([to, amount])
        return {"paid": amount}

    async def go(self) -> Any:
        return await self.agent.run("Pay.")


def sign(request: Any, kind: str = "approve", by: str = "ann", key: Ed25519Signer = ANN, **more: Any) -> Any:
    return key.sign(request.decide(kind, principal=by, **more))


def carried(history: Any) -> dict[str, Any]:
    """What a history in JSON carries."""
    return next(m["metadata"][KEY] for m in reversed(history) if KEY in (m.get("metadata") or {}))


def results(approved: Any = True) -> DeferredToolResults:
    return DeferredToolResults(approvals={"c1": approved})


async def test_an_edited_phase_in_the_history_runs_nothing() -> None:
    bank = Bank()
    history = json.loads((await bank.go()).all_messages_json())
    carried(history)["calls"][0] |= {"phase": "cleared", "cleared_by": "monitor", "requests": []}
    result = await bank.agent.run(**resume(json.dumps(history)))
    assert (bank.paid, len(waiting(result))) == ([], 1)


async def test_other_arguments_in_the_history_run_nothing_with_an_approval_of_the_first() -> None:
    bank = Bank()
    first = await bank.go()
    yes = sign(waiting(first)[0])
    for in_call, in_record in ((True, False), (False, True), (True, True)):
        history = json.loads(first.all_messages_json())
        if in_call:
            next(p for p in history[-1]["parts"] if p["part_kind"] == "tool-call")["args"] = {"to": "eve", "amount": 9}
        if in_record:
            record = carried(history)["calls"][0]
            record["proposed"]["arguments"] = {"to": "eve", "amount": 9}
            record["call"] = record["proposed"]
        try:
            await bank.agent.run(**resume(json.dumps(history), [yes]))
        except ApprovalError:
            await bank.agent.run(**resume(json.dumps(history)))
        assert ["eve", 9] not in bank.paid


async def test_a_call_that_no_model_proposed_waits_also_where_the_belief_is_confident() -> None:
    bank = Bank(says(sure=0.99), says(), policy=UncertaintyPolicy())
    first = await bank.go()
    history = json.loads(first.all_messages_json())
    history[-1]["parts"].append({**carried_call("eve"), "part_kind": "tool-call"})
    result = await bank.agent.run(message_history=resume(json.dumps(history))["message_history"])
    assert bank.paid == []
    assert [request.rule for request in waiting(result)] == ["unvouched_state"]


def carried_call(to: str) -> dict[str, Any]:
    return {"tool_name": "pay", "args": {"to": to, "amount": 9}, "tool_call_id": "x"}


@pytest.mark.parametrize("forged", [False, True])
async def test_a_forged_belief_releases_nothing_for_the_rest_of_the_run(forged: bool) -> None:
    """Re-sealing must not launder it: a later history of the same conversation is no better."""
    bank = Bank(says(sure=0.99), says(sure=0.99), says(pay(), sure=0.99), says(), policy=UncertaintyPolicy())
    history = json.loads((await bank.go()).all_messages_json())
    carried(history)["belief"]["state"]["n_steps"] += forged
    messages = resume(json.dumps(history))["message_history"]
    second = await bank.agent.run("And?", message_history=messages)
    third = await bank.agent.run("Pay.", message_history=second.all_messages())
    assert bank.paid == ([] if forged else [["bob", 5]])
    assert [request.rule for request in waiting(third)] == (["unvouched_state"] if forged else [])


async def test_a_history_without_its_state_is_not_believed() -> None:
    bank = Bank(says(sure=0.2), says(pay(), sure=0.99), says(), policy=UncertaintyPolicy())
    history = json.loads((await bank.go()).all_messages_json())
    for message in history:
        message.pop("metadata", None)
    result = await bank.agent.run("Pay.", message_history=ModelMessagesTypeAdapter.validate_python(history))
    assert (bank.paid, [request.rule for request in waiting(result)]) == ([], ["unvouched_state"])


async def test_the_state_and_the_decisions_of_another_session_do_not_count_in_this_one() -> None:
    names = iter(["one", "two", "two", "two"])
    bank = Bank(session_id=lambda ctx: next(names))
    one, two = await bank.go(), await bank.go()
    mixed = json.loads(two.all_messages_json())
    mixed[-1]["metadata"][KEY] = carried(json.loads(one.all_messages_json()))
    yes = sign(waiting(one)[0])
    with pytest.raises((ApprovalError, DataError)):
        await bank.agent.run(**resume(json.dumps(mixed), [yes]))
    with pytest.raises(ApprovalError, match="No pending request"):
        await bank.agent.run(**resume(two.all_messages(), [yes]))
    assert bank.paid == []


@pytest.mark.parametrize("forged", ["unsigned", "wrong key", "not an approver"])
async def test_a_decision_of_nobody_who_may_decide_runs_nothing(forged: str) -> None:
    bank = Bank()
    first = await bank.go()
    (request,) = waiting(first.all_messages())
    decision = {
        "unsigned": request.decide("approve", principal="ann"),
        "wrong key": sign(request, key=EVE),
        "not an approver": sign(request, by="eve", key=EVE),
    }[forged]
    with pytest.raises(ApprovalError):
        await bank.agent.run(**resume(first.all_messages(), [decision]))
    assert bank.paid == []
    result = await bank.agent.run(**resume(first.all_messages(), [sign(request)]))
    assert (bank.paid, isinstance(result.output, str)) == ([["bob", 5]], True)


@settings(
    max_examples=examples(40),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
async def test_no_change_of_the_carried_state_runs_an_undecided_call(data: st.DataObject) -> None:
    """Law: whatever is written into the state, nothing is paid without a signature."""
    bank = Bank()
    history = json.loads((await bank.go()).all_messages_json())
    values: Any = carried(history)
    for _ in range(data.draw(st.integers(1, 3))):
        spot = values
        while isinstance(spot, dict | list) and spot:
            key = data.draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot))))
            if not isinstance(spot[key], dict | list) or not spot[key] or data.draw(st.booleans()):
                junk = (
                    st.none()
                    | st.booleans()
                    | st.integers()
                    | st.sampled_from(
                        ["cleared", "started", "settled", "monitor", "pay", "read", "approve", "edit", "", [], {}]
                    )
                )
                spot[key] = data.draw(junk)
                break
            spot = spot[key]
    with contextlib.suppress(DataError, ApprovalError, UncertaintyError, UserError):  # the framework's own refusal too
        await bank.agent.run(**resume(json.dumps(history)))
    assert bank.paid == []


async def test_two_people_approve_over_two_resumptions_and_one_alone_does_not() -> None:
    bank = Bank(approvals=ApprovalPolicy(signer=KEYS, required=2, seal=Seal(b"s" * 16)))
    first = await bank.go()
    (request,) = waiting(first)
    second = await bank.agent.run(**resume(first.all_messages_json(), [sign(request)]))
    again = await bank.agent.run(**resume(second.all_messages_json(), [sign(request)]))
    assert (bank.paid, waiting(again)) == ([], (request,))
    third = await bank.agent.run(**resume(again.all_messages_json(), [sign(request, by="ben", key=BEN)]))
    assert (bank.paid, isinstance(third.output, str)) == ([["bob", 5]], True)


async def test_an_edit_that_does_not_fit_the_tools_schema_is_refused_and_the_request_stands() -> None:
    bank = Bank()
    first = await bank.go()
    (request,) = waiting(first)
    for arguments in ({"to": "bob", "amount": "much"}, {"to": "bob"}, {"to": "bob", "amount": 1, "note": ""}):
        with pytest.raises(ApprovalError, match="cannot run"):
            await Bank().agent.run(**resume(first.all_messages_json(), [sign(request, "edit", arguments=arguments)]))
    fits = sign(request, "edit", arguments={"to": "bob", "amount": 1})
    await bank.agent.run(**resume(first.all_messages_json(), [fits]))
    assert bank.paid == [["bob", 1]]


async def test_an_edits_result_keeps_its_type_and_the_transcript_holds_the_call_that_ran() -> None:
    bank = Bank()
    first = await bank.go()
    edit = sign(waiting(first)[0], "edit", arguments={"to": "bob", "amount": 1})
    messages = (await bank.agent.run(**resume(first.all_messages_json(), [edit]))).all_messages()
    parts = [part for message in messages for part in message.parts]
    (call,) = [part for part in parts if isinstance(part, ToolCallPart)]
    (result,) = [part for part in parts if part.part_kind == "tool-return"]
    assert (call.args_as_dict(), result.content) == ({"to": "bob", "amount": 1}, {"paid": 1})


async def test_the_frameworks_edit_beside_a_signed_approval_does_not_run() -> None:
    bank = Bank()
    first = await bank.go()
    given = resume(first.all_messages_json(), [sign(waiting(first)[0])])
    given["deferred_tool_results"].approvals["c1"] = ToolApproved(override_args={"to": "eve", "amount": 9})
    result = await bank.agent.run(**given)
    assert (bank.paid, len(waiting(result))) == ([], 1)


async def test_an_approval_runs_once_also_from_the_same_history_again() -> None:
    bank = Bank()
    first = await bank.go()
    yes = sign(waiting(first)[0])
    for _ in range(3):
        await bank.agent.run(**resume(first.all_messages_json(), [yes]))
    assert bank.paid == [["bob", 5]]


async def test_a_call_of_a_later_turn_with_an_approved_ones_id_and_arguments_is_asked_for() -> None:
    bank = Bank(says(pay()), says(pay()), says())
    first = await bank.go()
    second = await bank.agent.run(**resume(first.all_messages_json(), [sign(waiting(first)[0])]))
    assert (bank.paid, len(waiting(second))) == ([["bob", 5]], 1)


@pytest.mark.parametrize("kind", [None, "reject"])
@pytest.mark.parametrize("stricter", [False, True])
@pytest.mark.parametrize("old", [False, True])
async def test_what_a_streamed_run_was_told_is_over_when_its_conversation_goes_on(
    old: bool, stricter: bool, kind: str | None
) -> None:
    """Its history lacks the state of its end; earlier releases left the decisions in it."""
    turns = [says(pay()), says(sure=0.9), says(pay()), says(sure=0.9)]
    bank = Bank(*turns)
    first = await bank.go()
    given = resume(first.all_messages_json(), [sign(waiting(first)[0])])
    told = list(given["message_history"])
    async with bank.agent.run_stream(**given) as streamed:
        await streamed.get_output()
    history = streamed.all_messages()
    if old:
        history = [*told, *history[len(told) :]]
    names = ["pay", "refund"]
    other: dict[str, Any] = (
        {"policy": UncertaintyPolicy(irreversible_tool_names=names, low_threshold=0.95)} if stricter else {}
    )
    later = Bank(*turns, **other)
    again = await later.agent.run("Pay again.", message_history=history)
    (request,) = waiting(again)
    await later.agent.run(**resume(again.all_messages_json(), [sign(request, kind)] if kind else []))
    assert (bank.paid, later.paid) == ([["bob", 5]], [])


async def test_an_expired_request_is_asked_anew() -> None:
    bank = Bank(approvals=ApprovalPolicy(signer=KEYS, expires_s=1e-6))
    first = await bank.go()
    (request,) = waiting(first)
    with pytest.raises(ApprovalError, match="expired"):
        await bank.agent.run(**resume(first.all_messages(), [sign(request)]))
    again = await bank.agent.run(**resume(first.all_messages()))
    assert (waiting(again)[0].id != request.id, bank.paid) == (True, [])


def of_version_1(values: dict[str, Any]) -> dict[str, Any]:
    """The state as it was written before calls had records."""
    calls = [
        {
            "call": record["proposed"],
            "digest": "0" * 64,
            "effect": "irreversible",
            "step_id": "tool-2",
            "phase": "waiting",
            "request": {k: v for k, v in record["requests"][0].items() if k not in ("run_id", "rules")},
            "decision": None,
        }
        for record in values["calls"]
    ]
    return {"v": 1, "belief": values["belief"], "calls": calls, "rejected": [], "steps": 2, "children": {}}


@pytest.mark.parametrize("signed", [False, True])
async def test_a_history_of_the_first_version_is_read_and_its_call_asked_anew(signed: bool) -> None:
    bank = Bank(signed=signed)
    first = await bank.go()
    history = json.loads(first.all_messages_json())
    history[-1]["metadata"][KEY] = of_version_1(carried(history))
    (old,) = waiting(json.dumps(history))
    second = await bank.agent.run(**resume(json.dumps(history)))
    (new,) = waiting(second)
    assert (new.id != old.id, new.call, bank.paid) == (True, old.call, [])
    await bank.agent.run(**resume(second.all_messages(), [sign(new)]))
    assert bank.paid == [["bob", 5]]


@pytest.mark.parametrize("junk", [3, {"v": 9}, {"v": 2, "belief": 7}, {"v": 2, "belief": None, "calls": [3]}])
async def test_advisory_mode_never_raises_and_never_changes_a_run(junk: Any) -> None:
    bank = Bank(says(TextPart("Hm.")), says(pay()), says(), advisory=True)
    first = await bank.go()
    messages = copy.deepcopy(first.all_messages())
    messages[-1].metadata = {KEY: junk}
    result = await bank.agent.run("Pay.", message_history=messages)
    assert (isinstance(result.output, str), bank.paid) == (True, [["bob", 5]])


# -- output functions -------------------------------------------------------------------------------------------------


def refunding(refunded: list[int], **given: Any) -> Bank:
    def refund(amount: int) -> str:
        refunded.append(amount)
        return f"refunded {amount}"

    turns = says(ToolCallPart("refund", {"amount": 7}, tool_call_id="r"), sure=given.pop("sure", 0.7))
    return Bank(turns, output=ToolOutput(refund, name="refund"), **given)


async def test_an_output_function_that_a_human_should_see_first_does_not_run() -> None:
    refunded: list[int] = []
    with pytest.raises(UncertaintyError, match="refund"):
        await refunding(refunded).go()
    assert refunded == []


HEEDLESS = UncertaintyPolicy(irreversible_tool_names=["refund"], on_missing_evidence="proceed")


@pytest.mark.parametrize("given", [{"sure": 0.99, "policy": HEEDLESS}, {"advisory": True}])
async def test_an_output_function_that_may_run_is_a_step_like_any_tool(given: dict[str, Any]) -> None:
    refunded: list[int] = []
    bank = refunding(refunded, **given)
    result = await bank.go()
    assert (result.output, refunded) == ("refunded 7", [7])
    steps = carried(json.loads(result.all_messages_json()))["belief"]["state"]["n_steps"]
    assert steps == 2


async def test_an_output_function_does_not_run_on_an_answer_that_still_streams() -> None:
    refunded: list[int] = []

    def refund(amount: int) -> str:
        refunded.append(amount)
        return "done"

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        yield 'I am sure. {"confidence": 0.99}'
        for piece in ('{"amo', 'unt": 7', "7", "}"):
            yield {0: DeltaToolCall(name="refund" if piece == '{"amo' else None, json_args=piece, tool_call_id="r")}

    guard = UncertaintyCapability(
        UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["refund"])), advisory=False
    )
    agent: Agent[None, Any] = Agent(
        FunctionModel(stream_function=stream), output_type=ToolOutput(refund, name="refund"), capabilities=[guard]
    )

    async def streamed() -> None:
        async with agent.run_stream("Refund.") as result:
            async for _ in result.stream_output(debounce_by=None):
                pass

    with pytest.raises(UncertaintyError, match="refund"):  # judged before its answer is complete: nothing speaks for it
        await streamed()
    assert refunded == []


@pytest.mark.parametrize("effect", ["unknown", "irreversible", "reversible"])
async def test_an_output_function_of_a_streamed_answer_waits_however_sure_the_turns_before_were(effect: str) -> None:
    refunded: list[str] = []

    def refund(to: str) -> str:
        refunded.append(to)
        return "done"

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        yield f'I go on. {{"confidence": {1.0 if turn < 3 else 0.4}}}'
        name, given = ("look", "{}") if turn < 3 else ("refund", '{"to": "bob"}')
        yield {0: DeltaToolCall(name=name, json_args=given, tool_call_id=f"c{turn}")}

    guard = UncertaintyCapability(
        UncertaintyMonitor(policy=UncertaintyPolicy()),
        advisory=False,
        effects=ToolEffects({"look": "read"} if effect == "unknown" else {"look": "read", "refund": effect}),
    )
    agent: Agent[None, Any] = Agent(
        FunctionModel(stream_function=stream),
        output_type=[ToolOutput(refund, name="refund"), DeferredToolRequests],
        capabilities=[guard],
    )
    agent.tool_plain(lambda: "seen", name="look")
    async with agent.run_stream("Refund.") as result:
        output = await result.get_output()
    streamed: Any = result
    with pytest.raises(ConfigurationError, match="get_output"):  # its output is not there to look at
        waiting(streamed)
    if effect == "reversible":
        assert (output, refunded) == ("done", ["bob"])
    else:
        assert ([request.call.name for request in waiting(output)], refunded) == (["refund"], [])


# -- sub-agents -------------------------------------------------------------------------------------------------------


async def test_a_forged_history_of_a_sub_agent_runs_nothing() -> None:
    inner = Bank()
    outer = Bank(says(ToolCallPart("delegate", {"task": "Pay."}, tool_call_id="d")), says())

    @outer.agent.tool
    async def delegate(ctx: RunContext[None], task: str) -> str:
        return str(await run_sub_agent(ctx, inner.agent, task))

    first = await outer.go()
    history = json.loads(first.all_messages_json())
    child = carried(history)["children"]["d"]
    next(p for p in child[-1]["parts"] if p["part_kind"] == "tool-call")["args"] = {"to": "eve", "amount": 9}
    for decisions in ([], [sign(waiting(first)[0])]):
        with contextlib.suppress(ApprovalError):
            await outer.agent.run(**resume(json.dumps(history), decisions))
    assert (inner.paid, outer.paid) == ([], [])
    moved = json.loads(first.all_messages_json())
    carried(moved)["children"]["c1"] = carried(moved)["children"]["d"]
    await outer.agent.run(**resume(json.dumps(moved)))
    assert (inner.paid, outer.paid) == ([], [])
    await outer.agent.run(**resume(first.all_messages_json(), [sign(waiting(first)[0])]))
    assert inner.paid == [["bob", 5]]


def test_native_tools_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class WebSearch:
        kind = "web_search"

    guard = UncertaintyCapability(UncertaintyMonitor(policy=UncertaintyPolicy()), effects=ToolEffects())
    for _ in range(2):
        guard._report([WebSearch()])
    assert [record.getMessage() for record in caplog.records if "web_search" in record.getMessage()] == [
        "the provider runs these tools, and nothing here can stop them: web_search"
    ]


async def test_an_edit_that_lapsed_leaves_the_call_that_is_asked_about_in_the_history_and_it_is_what_runs() -> None:
    """Otherwise the human is asked about one call, and the next run brings the other one."""
    bank = Bank(precondition=lambda call: "not now" if call.arguments["amount"] == 7 else None)
    (request,) = waiting(result := await bank.go())
    edit = sign(request, "edit", arguments={"to": "bob", "amount": 7})
    result = await bank.agent.run(**resume(result.all_messages_json(), [edit]))
    (request,) = waiting(result)
    parts = [part for m in result.all_messages() for part in m.parts if isinstance(part, ToolCallPart)]
    assert ([part.args for part in parts], bank.paid) == ([request.call.arguments], [])
    result = await bank.agent.run(**resume(result.all_messages_json(), [sign(request)]))
    assert (waiting(result), bank.paid) == ((), [["bob", 5]])
