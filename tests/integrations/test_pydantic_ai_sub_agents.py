"""pydantic-ai: agents inside one another, and the framework's own approvals beside the guard's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent, ModelRetry, RunContext, ToolOutput
from pydantic_ai.capabilities import CombinedCapability, WrapperCapability
from pydantic_ai.exceptions import ApprovalRequired, UserError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai.toolsets import FunctionToolset

from grampus_uq import (
    ApprovalPolicy,
    ConfigurationError,
    HmacSigner,
    ToolEffects,
    UncertaintyEstimator,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.gate.signatures import Ed25519Signer, PublicKeys
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability, resume, run_sub_agent, waiting

pytestmark = pytest.mark.anyio
KEY_A, KEY_B = b"a" * 16, b"b" * 16
ASKS = UncertaintyPolicy(always_ask_tool_names=["pay"])


@pytest.fixture
def anyio_backend() -> str:
    """The framework's agents need asyncio."""
    return "asyncio"


def guard(*irreversible: str, **given: Any) -> UncertaintyCapability:
    return UncertaintyCapability(
        UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=list(irreversible or ("pay",)))), **given
    )


def agent(*parts: ToolCallPart, guards: Sequence[UncertaintyCapability], **given: Any) -> Agent[None, Any]:
    """An agent that makes these calls in one answer, and then is done."""

    def answer(messages: Any, info: Any) -> ModelResponse:
        done = any(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(parts=[TextPart('Done. {"confidence": 0.9}')] if done else [TextPart("Now."), *parts])

    output = [str, DeferredToolRequests]
    return Agent(FunctionModel(answer), output_type=output, capabilities=guards, **given)


def around(
    inner: Agent[None, Any], *, guards: Sequence[UncertaintyCapability], call_id: str = "d1"
) -> Agent[None, Any]:
    """An agent whose tool runs another one."""
    outer = agent(ToolCallPart("delegate", {}, tool_call_id=call_id), guards=guards)

    @outer.tool
    async def delegate(ctx: RunContext[None]) -> str:
        return str(await run_sub_agent(ctx, inner, "Go."))

    return outer


@pytest.mark.parametrize("advisory", [False, True])
async def test_a_sub_agent_without_a_guard_is_refused_and_advice_names_it(
    caplog: pytest.LogCaptureFixture, advisory: bool
) -> None:
    def given(ctx: RunContext[None]) -> UncertaintyCapability:
        return guard(advisory=advisory)

    paid: list[str] = []
    outer = around(payer(paid, guards=[], name="payer"), guards=[guard(advisory=advisory)])
    if advisory:
        await outer.run("Go.")
        assert "the sub-agent 'payer' of tool 'delegate' has no UncertaintyCapability" in caplog.text
    else:
        with pytest.raises(ConfigurationError, match="payer"):
            await outer.run("Go.")
    assert paid == ["bob"] * advisory
    ways: list[Any] = [
        given,  # for each run
        CombinedCapability([guard(advisory=advisory)]),
        WrapperCapability(CombinedCapability([WrapperCapability(guard(advisory=advisory))])),
    ]
    for guarded in ways:
        caplog.clear()
        paid.clear()
        result = await around(payer(paid, guards=[guarded]), guards=[guard(advisory=advisory)]).run("Go.")
        assert (len(waiting(result)), paid, "sub-agent" in caplog.text) == (1 - advisory, ["bob"] * advisory, False)


@pytest.mark.parametrize("advisory", [(False, False), (True, False), (False, True), (True, True)])
async def test_of_two_guards_of_one_agent_one_that_acts_refuses_the_other(advisory: tuple[bool, bool]) -> None:
    paid: list[str] = []
    one = payer(paid, guards=[guard(advisory=one) for one in advisory])
    if all(advisory):
        await one.run("Go.")
    else:
        with pytest.raises(ConfigurationError, match="one UncertaintyCapability"):
            await one.run("Go.")
    assert paid == ["bob"] * all(advisory)


def payer(
    paid: list[str], *, guards: Sequence[UncertaintyCapability], call_id: str = "p1", **given: Any
) -> Agent[None, Any]:
    one = agent(ToolCallPart("pay", {"to": "bob"}, tool_call_id=call_id), guards=guards, **given)

    @one.tool_plain
    def pay(to: str) -> str:
        paid.append(to)
        return "paid"

    return one


@given(kinds=st.lists(st.sampled_from(["pay", "wipe", "send"]), min_size=1, max_size=4), said=st.integers(0, 255))
@settings(max_examples=6, deadline=None)
@example(kinds=["pay", "wipe"], said=1)
async def test_each_call_runs_on_the_approval_of_whoever_holds_it(kinds: list[str], said: int) -> None:
    """The guard holds payments; the framework what a toolset, or a tool, says must be approved."""
    ran: list[int] = []

    def work(number: int) -> str:
        ran.append(number)
        return "done"

    tools = FunctionToolset[None]()
    tools.add_function(work, name="wipe")
    calls = [ToolCallPart(kind, {"number": n}, tool_call_id=f"c{n}") for n, kind in enumerate(kinds)]
    one = agent(*calls, guards=[guard()], toolsets=[tools.approval_required()])
    one.tool_plain(name="pay")(work)
    one.tool_plain(name="send", requires_approval=True)(work)
    result = await one.run("Go.")
    yes = {n for n in range(len(kinds)) if said >> n & 1}
    requests = waiting(result)
    assert [request.call.arguments["number"] for request in requests if request.call] == [
        n for n, kind in enumerate(kinds) if kind == "pay"
    ]
    decisions = [
        r.decide("approve" if r.call and r.call.arguments["number"] in yes else "reject", principal="ann")
        for r in requests
    ]
    own: Any = {f"c{n}": n in yes for n, kind in enumerate(kinds) if kind != "pay"}
    if own:
        with pytest.raises(Exception, match="Tool call results need to be provided"):
            await one.run(**resume(result.all_messages(), decisions))
        assert ran == []
    also = DeferredToolResults(approvals=own)
    result = await one.run(**resume(result.all_messages_json(), decisions, also=also))
    assert (sorted(ran), isinstance(result.output, str)) == (sorted(yes), True)


async def test_what_the_framework_holds_runs_on_no_request_that_once_had_its_id() -> None:
    """The framework denies a payment, which closes its request; then the model repeats its ids."""
    ran: list[str] = []
    turns = iter([ToolCallPart("pay", {}, tool_call_id="c1"), ToolCallPart("wipe", {}, tool_call_id="c1")])
    one: Agent[None, Any] = Agent(
        FunctionModel(lambda messages, info: ModelResponse(parts=[next(turns, TextPart("Done."))])),
        output_type=[str, DeferredToolRequests],
        capabilities=[
            UncertaintyCapability(
                UncertaintyMonitor(policy=ASKS),
                effects=ToolEffects({"wipe": "reversible"}),
                approvals=ApprovalPolicy(signer=HmacSigner(KEY_A)),
            )
        ],
    )

    @one.tool_plain
    def pay() -> None:
        ran.append("pay")

    @one.tool_plain(requires_approval=True)
    def wipe() -> None:
        ran.append("wipe")

    first = await one.run("Go.")
    denied = DeferredToolResults(approvals={"c1": False})
    second = await one.run(message_history=first.all_messages(), deferred_tool_results=denied)
    assert [part.tool_name for part in second.output.approvals] == ["wipe"]
    assert waiting(second.all_messages_json()) == ()
    with pytest.raises(UserError, match="deferred"):
        await one.run(**resume(second.all_messages_json()))
    assert ran == []
    yes = DeferredToolResults(approvals={"c1": True})
    await one.run(message_history=second.all_messages(), deferred_tool_results=yes)
    assert ran == ["wipe"]


@given(ids=st.lists(st.sampled_from(["c1", "c2"]), min_size=2, max_size=4))
@settings(max_examples=3, deadline=None)
@example(ids=["c1", "c1", "c1"])
async def test_an_agent_within_agents_goes_on_where_it_stopped_whatever_their_calls_are_named(ids: list[str]) -> None:
    paid: list[str] = []
    guards = [guard()]
    one = payer(paid, guards=guards, call_id=ids[0])
    for call_id in ids[1:]:
        one = around(one, guards=guards, call_id=call_id)
    first = await one.run("Pay.")
    (request,) = waiting(first)
    result = await one.run(**resume(first.all_messages_json(), [request.decide("approve", principal="ann")]))
    assert (paid, result.output) == (["bob"], 'Done. {"confidence": 0.9}')


@given(
    ids=st.lists(st.sampled_from(["c1", "c2"]), min_size=1, max_size=3),
    said=st.lists(st.sampled_from(["approve", "edit", "reject", None]), min_size=3, max_size=3),
)
@settings(max_examples=6, deadline=None)
@example(ids=["c1", "c1"], said=["edit", None, None])
@example(ids=["c1", "c1"], said=[None, "approve", None])
async def test_a_decision_is_on_the_call_of_one_sub_agent_where_others_propose_an_equal_one(
    ids: list[str], said: list[str | None]
) -> None:
    """Law: sub-agents beside each other, and the agent around them, may give equal ids to their calls."""
    paid: list[list[str]] = [[] for _ in ids]
    wiped: list[str] = []
    effects = ToolEffects({"wipe": "reversible", "delegate": "reversible"})
    guards = [UncertaintyCapability(UncertaintyMonitor(policy=ASKS), effects=effects)]
    inner = [payer(paid[n], guards=guards, call_id=call_id) for n, call_id in enumerate(ids)]
    calls = [ToolCallPart("delegate", {"n": n}, tool_call_id=f"d{n}") for n in range(len(ids))]
    outer = agent(*calls, ToolCallPart("wipe", {}, tool_call_id="c1"), guards=guards)

    @outer.tool_plain(requires_approval=True)
    def wipe() -> None:
        wiped.append("wiped")

    @outer.tool
    async def delegate(ctx: RunContext[None], n: int) -> str:
        return str(await run_sub_agent(ctx, inner[n], "Pay."))

    first = await outer.run("Go.")
    requests = waiting(first)
    assert len(requests) == len(ids)
    with pytest.raises(UserError, match="Tool call results need to be provided"):
        await outer.run(**resume(first.all_messages_json()))
    decisions = [
        request.decide(kind, principal="ann", arguments={"to": "eve"} if kind == "edit" else None)
        for request, kind in zip(requests, said, strict=False)
        if kind is not None
    ]
    also = DeferredToolResults(approvals={"c1": False})
    result = await outer.run(**resume(first.all_messages_json(), decisions, also=also))
    ran: dict[str | None, list[str]] = {"approve": ["bob"], "edit": ["eve"], "reject": [], None: []}
    assert (paid, wiped) == ([ran[kind] for kind in said[: len(ids)]], [])
    left = [request for request, kind in zip(requests, said, strict=False) if kind is None]
    assert [request.id for request in waiting(result)] == [request.id for request in left]
    if left:
        yes = [request.decide("approve", principal="ann") for request in left]
        result = await outer.run(**resume(result.all_messages_json(), yes))
    ran[None] = ["bob"]
    assert (paid, isinstance(result.output, str)) == ([ran[kind] for kind in said[: len(ids)]], True)


async def test_a_history_does_not_grow_while_a_sub_agent_waits() -> None:
    guards = [guard()]
    outer = around(payer([], guards=guards), guards=guards)
    result = await outer.run("Pay.")
    sizes = []
    for _ in range(3):
        result = await outer.run(**resume(result.all_messages_json()))
        sizes.append(len(result.all_messages_json()))
    assert max(sizes) - min(sizes) < 100


async def test_resuming_for_a_sub_agents_calls_is_no_approval_of_the_tool_around_it() -> None:
    paid: list[str] = []
    guards = [guard()]
    inner = payer(paid, guards=guards)
    outer = agent(ToolCallPart("delegate", {}, tool_call_id="d1"), guards=guards)
    done: list[str] = []

    @outer.tool
    async def delegate(ctx: RunContext[None]) -> str:
        said = str(await run_sub_agent(ctx, inner, "Pay."))
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        done.append(said)
        return said

    first = await outer.run("Pay.")
    decisions = [request.decide("approve", principal="ann") for request in waiting(first)]
    second = await outer.run(**resume(first.all_messages_json(), decisions))
    assert (paid, done, [part.tool_name for part in second.output.approvals]) == (["bob"], [], ["delegate"])


async def test_a_sub_agent_runs_nothing_that_only_the_framework_holds() -> None:
    ran: list[str] = []
    guards = [guard()]
    inner = agent(ToolCallPart("wipe", {}, tool_call_id="w1"), guards=guards)

    @inner.tool_plain(requires_approval=True)
    def wipe() -> None:
        ran.append("wipe")

    with pytest.raises(ConfigurationError, match="wipe"):
        await around(inner, guards=guards).run("Wipe.")
    assert ran == []


async def test_where_the_guard_only_advises_the_tool_is_given_what_its_sub_agent_waits_for() -> None:
    guards, given = [guard(advisory=True)], list[Any]()
    inner = agent(ToolCallPart("wipe", {}, tool_call_id="w1"), guards=guards)

    @inner.tool_plain(requires_approval=True)
    def wipe() -> None:
        raise AssertionError("nobody approved it")

    outer = agent(ToolCallPart("delegate", {}, tool_call_id="d1"), guards=guards)

    @outer.tool
    async def delegate(ctx: RunContext[None]) -> str:
        given.append(await run_sub_agent(ctx, inner, "Wipe."))
        return "Later."

    assert (await outer.run("Wipe.")).output == 'Done. {"confidence": 0.9}'
    assert [[part.tool_call_id for part in output.approvals] for output in given] == [["w1"]]


async def test_a_tool_starts_one_sub_agent_in_a_call() -> None:
    paid: list[str] = []
    guards = [guard()]
    inner, calm, outer = (
        payer(paid, guards=guards),
        agent(guards=guards),
        agent(ToolCallPart("delegate", {}, tool_call_id="d1"), guards=guards),
    )

    @outer.tool
    async def delegate(ctx: RunContext[None]) -> str:
        return f"{await run_sub_agent(ctx, calm, 'Look.')} {await run_sub_agent(ctx, inner, 'Pay.')}"

    with pytest.raises(ConfigurationError, match="one sub-agent"):
        await outer.run("Pay.")
    assert paid == []


@pytest.mark.parametrize(
    "others",
    [
        {"irreversible": ["wipe"]},
        {"advisory": True},
        {"effects": ToolEffects({"pay": "irreversible"})},
        {"precondition": lambda call: "no"},
    ],
)
async def test_a_sub_agent_whose_guard_has_other_rules_is_refused(others: dict[str, Any]) -> None:
    """The guard of the agent around it judges its calls: one with other rules would not be asked."""
    paid: list[str] = []
    outer = around(payer(paid, guards=[guard()]), guards=[guard(*others.pop("irreversible", ["pay"]), **others)])
    with pytest.raises(ConfigurationError, match="a guard with others"):
        await outer.run("Pay.")
    assert paid == []


ANN, OTHER_ANN = (PublicKeys({"ann": Ed25519Signer.generate().public_key}) for _ in range(2))


@pytest.mark.parametrize(
    ("outside", "inside", "alike"),
    [
        ({"signer": HmacSigner(KEY_A)}, {"signer": HmacSigner(KEY_B)}, False),
        ({"signer": HmacSigner(KEY_A)}, {"signer": HmacSigner(KEY_A)}, True),
        ({"signer": ANN}, {"signer": OTHER_ANN}, False),
        ({"signer": ANN}, {"signer": ANN}, True),
        ({}, {"expires_s": 60.0}, False),
    ],
)
async def test_a_sub_agents_calls_are_decided_by_those_whom_its_own_guard_names(
    outside: dict[str, Any], inside: dict[str, Any], alike: bool
) -> None:
    paid: list[str] = []
    inner = payer(paid, guards=[guard(approvals=ApprovalPolicy(**inside))])
    outer = around(inner, guards=[guard(approvals=ApprovalPolicy(**outside))])
    if alike:
        assert len(waiting(await outer.run("Pay."))) == 1
    else:
        with pytest.raises(ConfigurationError, match="a guard with others"):
            await outer.run("Pay.")
    assert paid == []


async def test_a_sub_agents_calls_are_judged_by_the_profile_of_its_own_guard() -> None:
    paid: list[str] = []
    policy = UncertaintyPolicy(irreversible_tool_names=["pay"])
    other = UncertaintyMonitor(policy=policy, estimator=UncertaintyEstimator(verbalized_calibration_bias=0.0))
    outer = around(payer(paid, guards=[guard()]), guards=[UncertaintyCapability(other)])
    with pytest.raises(ConfigurationError, match="a guard with others"):
        await outer.run("Pay.")
    assert paid == []


async def test_advice_on_a_sub_agent_stops_nothing_where_the_agent_around_it_is_guarded() -> None:
    paid: list[str] = []
    outer = around(payer(paid, guards=[guard(advisory=True)]), guards=[guard()])
    assert ((await outer.run("Pay.")).output, paid) == ('Done. {"confidence": 0.9}', ["bob"])


@given(
    names=st.lists(st.sampled_from(["refund", "pay", "delegate", "broken"]), min_size=1, max_size=4, unique=True),
    strategy=st.sampled_from(["graceful", "exhaustive", "early"]),
    said=st.integers(0, 255),
)
@settings(max_examples=12, deadline=None)
@example(names=["refund", "broken"], strategy="graceful", said=0)
@example(names=["refund", "delegate", "broken"], strategy="graceful", said=0)
@example(names=["refund", "delegate"], strategy="graceful", said=1)
async def test_results_and_histories_show_the_same_requests_and_what_is_approved_runs(
    names: list[str], strategy: Any, said: int
) -> None:
    """Also where the framework drops an output function's call because another call of the answer must be repaired."""
    ran: list[str] = []
    shared = guard("pay", "refund", advisory=False)
    inner = payer(ran, guards=[shared])
    answers = [
        [ToolCallPart(name, {}, tool_call_id=name) for name in names],
        [ToolCallPart("pay", {}, tool_call_id="2")],
    ]

    def answer(messages: Any, info: Any) -> ModelResponse:
        done = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(parts=answers[done] if done < len(answers) else [TextPart("Done.")])

    def refund() -> str:
        ran.append("refund")
        return "refunded"

    outputs = [ToolOutput(refund, name="refund"), str, DeferredToolRequests]
    outer = Agent(FunctionModel(answer), output_type=outputs, capabilities=[shared], end_strategy=strategy)

    @outer.tool_plain
    def pay() -> str:
        ran.append("pay")
        return "paid"

    @outer.tool_plain
    def broken() -> str:
        raise ModelRetry("Again.")

    @outer.tool
    async def delegate(ctx: RunContext[None]) -> str:
        return str(await run_sub_agent(ctx, inner, "Go."))

    result = await outer.run("Go.")
    while isinstance(result.output, DeferredToolRequests):
        history, before = result.all_messages_json(), list(ran)
        shown = {request.id: request for request in waiting(result)}
        assert shown.keys() == {request.id for request in waiting(history)} != set()
        kinds = ["reject" if said >> number & 1 else "approve" for number in range(len(shown))]
        decisions = [one.decide(kind, principal="me") for one, kind in zip(shown.values(), kinds, strict=True)]
        allowed = [one.call for one, kind in zip(shown.values(), kinds, strict=True) if kind == "approve"]
        result = await outer.run(**resume(history, decisions))
        names_ran = ["pay" if name == "bob" else name for name in ran[len(before) :]]
        assert sorted(names_ran) == sorted(call.name for call in allowed if call is not None)
