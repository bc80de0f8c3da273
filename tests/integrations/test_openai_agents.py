"""What the guard for the OpenAI Agents SDK does beyond the conformance sentences."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    ComputerTool,
    GuardrailFunctionOutput,
    HostedMCPTool,
    LocalShellTool,
    ModelProvider,
    ModelResponse,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    Usage,
    UserError,
    WebSearchTool,
    function_tool,
    handoff,
    output_guardrail,
)
from agents.mcp import MCPServer
from agents.realtime import RealtimeAgent
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as MCPTool
from openai import AsyncOpenAI

from grampus_uq import (
    ApprovalError,
    ApprovalPolicy,
    ConfigurationError,
    DataError,
    HmacSigner,
    SessionError,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.integrations.openai_agents import AbortedRunError, UncertaintyGuard
from grampus_uq.integrations.openai_agents_model import read_messages, read_output
from grampus_uq.testing import SENTENCES, AgentLaboratory, AgentSetup, ScriptedTurn, Sentence, check_agent
from grampus_uq.testing.agent_script import read_ledger
from grampus_uq.wire import read_call
from tests.integrations.agents_sdk import FakeModel, Guarded, Till, clerk, output, tools
from tests.integrations.sentences import parameters

PAY = ToolCall(id="pay-1", name="pay", arguments={"to": "bob", "amount": 10})
OTHER = ToolCall(id="pay-2", name="pay", arguments={"to": "ann", "amount": 3})
UNSURE = ScriptedTurn(text="I pay Bob.", calls=(PAY,), confidence=0.7)
DONE = ScriptedTurn(text="Done.")


@pytest.fixture
def anyio_backend() -> str:
    """The SDK runs on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLaboratory]:
    with AgentLaboratory("tests.integrations.agents_sdk:build", tmp_path_factory.mktemp("sdk")) as laboratory:
        yield laboratory


@pytest.mark.parametrize("sentence", parameters("OpenAI Agents SDK", Guarded.offers, Guarded.lacks))
def test_the_guard_keeps_every_sentence(laboratory: AgentLaboratory, sentence: Sentence) -> None:
    finding = check_agent(laboratory, sentence)
    assert finding.holds is True, finding.detail


@pytest.mark.slow
def test_the_sdk_alone_keeps_what_the_page_says_of_it(tmp_path: Path) -> None:
    with AgentLaboratory("tests.integrations.agents_sdk:build_stock", tmp_path) as laboratory:
        found = {s.name: check_agent(laboratory, s).holds for s in SENTENCES}
    assert {name for name, holds in found.items() if holds} == {
        "approved_elsewhere",
        "decision_given_twice",
        "five_at_once",
        "nested_again",
        "nested_same_call",
        "parallel_calls",
        "rejected_elsewhere",
        "same_arguments",
        "streaming",
        "sub_agent",
        "ten_sessions",
        "uncertain_run_paused",
    }
    assert found["other_arguments_refused"] is False  # an approval is found by the call's id


class Desk:
    """An agent with a script, and a guard that asks its judge."""

    def __init__(self, folder: Path, *turns: ScriptedTurn, **given: Any) -> None:
        self.setup = AgentSetup(folder=folder, script={"Pay.": turns})
        self.guard = self.another(**given)

    def another(self, **given: Any) -> UncertaintyGuard:
        monitor = self.setup.monitor()
        assert monitor is not None
        return UncertaintyGuard(monitor, **{"advisory": False, "model_client": self.setup.judge()} | given)

    def agent(self, **approval: Any) -> Agent[Any]:
        return clerk(self.setup, **approval)

    @property
    def paid(self) -> list[Any]:
        return [line["arguments"]["to"] for line in self._lines("tool") if line["name"] == "pay"]

    @property
    def model_calls(self) -> int:
        return len(self._lines("agent_model"))

    def _lines(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in read_ledger(self.setup.folder) if line["kind"] == kind]


@pytest.mark.anyio
@pytest.mark.parametrize("by", ["guard", "monitor"])
async def test_a_guard_only_advises_when_it_or_its_monitor_is_told_to(by: str, tmp_path: Path) -> None:
    desk = Desk(tmp_path, UNSURE, DONE)
    policy = UncertaintyPolicy(irreversible_tool_names=["pay"])
    monitor = UncertaintyMonitor(policy=policy, advisory=by == "monitor")
    guard = UncertaintyGuard(monitor, advisory=True if by == "guard" else None)
    result = await guard.run(desk.agent(), "Pay.", session_id="s")
    assert (result.final_output, desk.paid) == ("Done.", ["bob"])
    advised = [step.advisory_action for step in guard.watched(result).belief.step_uncertainties]
    assert "pause_for_human" in [None if action is None else action.value for action in advised]


@pytest.mark.anyio
async def test_what_is_undecided_waits_on(tmp_path: Path) -> None:
    desk = Desk(tmp_path, ScriptedTurn(text="I pay both.", calls=(PAY, OTHER), confidence=0.7), DONE)
    agent = desk.agent()
    paused = await desk.guard.pause(await desk.guard.run(agent, "Pay.", session_id="s"))
    assert paused is not None
    assert [request.call for request in paused.requests] == [PAY, OTHER]
    again = await desk.guard.pause(
        await desk.guard.resume(agent, paused.text, [paused.requests[1].decide("approve", principal="ann")])
    )
    assert again is not None
    assert ([request.call for request in again.requests], desk.paid) == ([PAY], ["ann"])
    result = await desk.guard.resume(agent, again.text, [again.requests[0].decide("approve", principal="ann")])
    assert (result.final_output, desk.paid, desk.model_calls) == ("Done.", ["ann", "bob"], 2)


@pytest.mark.anyio
async def test_a_rejected_call_that_is_proposed_again_is_neither_run_nor_asked(tmp_path: Path) -> None:
    again = PAY.model_copy(update={"id": "pay-9"})
    desk = Desk(tmp_path, UNSURE, ScriptedTurn(text="I try again.", calls=(again,), confidence=0.7), DONE)
    agent = desk.agent()
    paused = await desk.guard.pause(await desk.guard.run(agent, "Pay.", session_id="s"))
    assert paused is not None
    result = await desk.guard.resume(agent, paused.text, [paused.requests[0].decide("reject", principal="ann")])
    assert (result.final_output, desk.paid) == ("Done.", [])
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert outputs[-1] == "Not executed: a human already rejected exactly this call. Do something else."


@pytest.mark.anyio
async def test_the_sdks_own_approval_counts_unless_decisions_must_be_signed(tmp_path: Path) -> None:
    for name, approvals, paid in [("open", None, ["bob"]), ("signed", HmacSigner(b"k" * 16), [])]:
        (tmp_path / name).mkdir()
        desk = Desk(tmp_path / name, UNSURE, DONE, approvals=ApprovalPolicy(signer=approvals))
        agent = desk.agent()
        result = await desk.guard.run(agent, "Pay.", session_id="s")
        state = result.to_state()
        state.approve(state.get_interruptions()[0])
        snapshot = desk.guard.watched(result).snapshot()
        with desk.guard.session("s", "clerk", snapshot=snapshot):
            result = await Runner.run(agent, state)
        assert (result.final_output, desk.paid) == ("Done.", paid)


@pytest.mark.anyio
async def test_a_decision_that_must_be_signed_is_refused_unsigned_and_taken_signed(tmp_path: Path) -> None:
    signer = HmacSigner(b"k" * 16)
    desk = Desk(tmp_path, UNSURE, DONE, approvals=ApprovalPolicy(signer=signer))
    agent = desk.agent()
    paused = await desk.guard.pause(await desk.guard.run(agent, "Pay.", session_id="s"))
    assert paused is not None
    unsigned = paused.requests[0].decide("approve", principal="ann")
    with pytest.raises(ApprovalError, match="not signed"):
        await desk.guard.resume(agent, paused.text, [unsigned])
    assert desk.paid == []
    result = await desk.guard.resume(agent, paused.text, [signer.sign(unsigned)])
    assert (result.final_output, desk.paid) == ("Done.", ["bob"])


@pytest.mark.anyio
async def test_what_was_asked_of_another_run_does_not_count_for_this_one(tmp_path: Path) -> None:
    """The same session, call id, tool and place in the run; only the arguments differ."""
    dear = PAY.model_copy(update={"arguments": {"to": "mallory", "amount": 10}})
    saved: dict[str, Any] = {}
    decision = None
    for name, call in [("bob", PAY), ("mallory", dear)]:
        (tmp_path / name).mkdir()
        desk = Desk(tmp_path / name, ScriptedTurn(text="I pay.", calls=(call,), confidence=0.7), DONE)
        agent = desk.agent()
        paused = await desk.guard.pause(await desk.guard.run(agent, "Pay.", session_id="s"))
        assert paused is not None
        decision = decision or paused.requests[0].decide("approve", principal="ann")
        saved[name] = json.loads(paused.text)
    mixed = json.dumps(saved["mallory"] | {"calls": saved["bob"]["calls"]})
    assert decision is not None
    with pytest.raises(ApprovalError, match="No pending request"):
        await desk.guard.resume(agent, mixed, [decision])
    again = await desk.guard.pause(await desk.guard.resume(agent, mixed))
    assert again is not None
    assert ([request.call for request in again.requests], desk.paid) == ([dear], [])


@pytest.mark.anyio
async def test_a_request_that_expired_is_refused_and_replaced(tmp_path: Path) -> None:
    desk = Desk(tmp_path, UNSURE, DONE, approvals=ApprovalPolicy(expires_s=1e-6))
    agent = desk.agent()
    result = await desk.guard.run(agent, "Pay.", session_id="s")
    late = desk.guard.watched(result).calls
    (first,) = late.requests()
    (second,) = late.requests()
    assert first.id != second.id
    with pytest.raises(ApprovalError):
        late.decide(first.decide("approve", principal="ann"))


@pytest.mark.anyio
async def test_an_aborted_sub_agent_ends_the_parent_without_another_model_call(tmp_path: Path) -> None:
    delegate = ToolCall(id="d", name="delegate", arguments={"task": "Doubt."})
    doubt = ScriptedTurn(text="I doubt it all.", confidence=0.0, calls=(PAY,))
    desk = Desk(tmp_path, ScriptedTurn(text="Over to you.", calls=(delegate,), confidence=0.4), DONE)
    desk.setup.script["Doubt."] = [doubt]  # type: ignore[index]  # a dict in this test
    desk.guard = desk.another(model_client=desk.setup.judge())
    with pytest.raises(AbortedRunError) as aborted:
        await desk.guard.run(desk.agent(), "Pay.", session_id="s")
    assert (aborted.value.code, desk.model_calls, desk.paid) == ("UNCERTAINTY_CRITICAL", 2, [])


@pytest.mark.parametrize("kind", ["approve", "edit", "respond"])
@pytest.mark.anyio
async def test_an_agent_that_its_own_sub_agent_hands_over_to_runs_an_approved_call_once_and_ends(
    tmp_path: Path, kind: str
) -> None:
    """The SDK brings the call once more, as one of the agent around: by itself it runs the call twice."""
    desk = Desk(tmp_path)
    ask = ToolCall(id="ask", name="ask", arguments={"input": "Pay."})
    over = ToolCall(id="over", name="transfer_to_a", arguments={})
    turns = {
        "Go.": (ScriptedTurn(text="Ask.", calls=(ask,)), DONE),
        "Pay.": (ScriptedTurn(text="Over.", calls=(over,)), UNSURE, DONE),
    }
    desk.setup = replace(desk.setup, script=turns)
    agent = Agent[Any](name="a", model=FakeModel(desk.setup), tools=[*tools(desk.setup)])
    other = Agent[Any](name="other", model=FakeModel(desk.setup), handoffs=[agent])
    agent.tools.append(other.as_tool("ask", "x"))
    guard = desk.another()
    result = await guard.run(agent, "Go.", session_id="s")
    given = {"edit": {"arguments": {"to": "ann", "amount": 1}}, "respond": {"message": "Not now."}}.get(kind, {})
    asked = 0
    while (paused := await guard.pause(result)) is not None and asked < 3:
        asked += 1
        decisions = [request.decide(kind, principal="ann", **given) for request in paused.requests]
        result = await guard.resume(agent, paused.text, decisions)
    assert (result.final_output, desk.paid) == ("Done.", {"approve": ["bob"], "edit": ["ann"], "respond": []}[kind])


@pytest.mark.anyio
async def test_an_agent_that_is_handed_to_is_watched_and_resumed_elsewhere(tmp_path: Path) -> None:
    def office(setup: AgentSetup) -> Agent[Any]:
        payer = Agent(name="payer", model=FakeModel(setup), tools=[*tools(setup)])
        return Agent(name="front", model=FakeModel(setup), handoffs=[handoff(payer)])

    over = ScriptedTurn(text="Over.", calls=(ToolCall(id="h", name="transfer_to_payer"),))
    desk = Desk(tmp_path, over, UNSURE, DONE)
    paused = await desk.guard.pause(await desk.guard.run(office(desk.setup), "Pay.", session_id="s"))
    assert paused is not None
    assert desk.paid == []
    result = await desk.another().resume(
        office(desk.setup), paused.text, [paused.requests[0].decide("approve", principal="ann")]
    )
    assert (result.final_output, result.last_agent.name, desk.paid) == ("Done.", "payer", ["bob"])


class Provider(ModelProvider):
    """Gives models by their names."""

    def __init__(self, **models: FakeModel) -> None:
        self.models = models

    def get_model(self, model_name: str | None) -> FakeModel:
        return self.models[str(model_name)]


@pytest.mark.anyio
async def test_models_that_are_looked_up_by_name_are_watched_too(tmp_path: Path) -> None:
    desk = Desk(tmp_path, UNSURE, DONE)
    agent = Agent(name="clerk", model="fake", tools=[*tools(desk.setup)])
    config = RunConfig(model_provider=Provider(fake=FakeModel(desk.setup)))
    result = await desk.guard.run(agent, "Pay.", session_id="s", run_config=config)
    assert result.interruptions
    assert desk.guard.watched(result).belief.total_steps == 2


@pytest.mark.anyio
async def test_a_watched_agent_does_not_run_outside_of_a_session(tmp_path: Path) -> None:
    desk = Desk(tmp_path, UNSURE, DONE)
    with pytest.raises(SessionError, match=r"guard\.run"):
        await Runner.run(desk.guard.watch(desk.agent()), "Pay.")
    assert (desk.model_calls, desk.paid) == (0, [])


@pytest.mark.anyio
async def test_the_tools_own_rule_still_asks(tmp_path: Path) -> None:
    desk = Desk(tmp_path, ScriptedTurn(text="I pay Bob.", calls=(PAY,)), DONE)
    paused = await desk.guard.pause(await desk.guard.run(desk.agent(needs_approval=True), "Pay.", session_id="s"))
    assert paused is not None
    assert paused.requests[0].rule == "framework"


@pytest.mark.anyio
async def test_watching_twice_gates_once_and_two_guards_are_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path, ScriptedTurn(text="I pay Bob.", calls=(PAY,)), DONE)
    agent = desk.agent()
    before = desk.guard.watch(agent).tools
    assert desk.guard.watch(agent).tools == before
    with pytest.raises(ConfigurationError, match="another guard"):
        desk.another().watch(agent)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v": 1}', '{"v": 2}', '{"v": 1, "session_id": 3}'])
@pytest.mark.anyio
async def test_a_text_that_is_no_paused_run_is_refused(tmp_path: Path, text: str) -> None:
    desk = Desk(tmp_path, DONE)
    with pytest.raises(DataError):
        await desk.guard.resume(desk.agent(), text)


# -- tools that the SDK does not run ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        (LocalShellTool(executor=lambda request: ""), "local_shell"),
        (ComputerTool(computer=object()), "computer_use_preview"),  # type: ignore[arg-type]  # never used
        (HostedMCPTool({"type": "mcp", "server_label": "mail", "require_approval": "never"}), "mail"),
    ],
)
def test_a_tool_that_nothing_can_stop_is_refused_by_name_unless_it_is_let_through_by_name(
    tmp_path: Path, tool: Any, name: str
) -> None:
    desk = Desk(tmp_path, DONE)
    with pytest.raises(ConfigurationError, match=name):
        desk.guard.watch(Agent(name="a", model=FakeModel(desk.setup), tools=[tool]))
    lenient = desk.another(allow_ungated=[name])
    lenient.watch(Agent(name="a", model=FakeModel(desk.setup), tools=[tool]))
    assert lenient.ungated == {name}


class Growing(Agent[Any]):
    """An agent whose class brings tools of its own to each turn, as that of a sandbox does."""

    async def get_all_tools(self, run_context: Any) -> list[Any]:
        return [*await super().get_all_tools(run_context), *self.brought]

    brought: list[Any]


@pytest.mark.parametrize("way", ["class", "clone"])
@pytest.mark.anyio
async def test_tools_that_an_agent_gets_while_it_runs_are_refused_by_name_unless_they_are_let_through_by_name(
    tmp_path: Path, way: str
) -> None:
    desk = Desk(tmp_path, UNSURE, DONE)

    async def run(guard: UncertaintyGuard) -> Any:
        agent: Any = Growing(name="a", model=FakeModel(desk.setup))
        agent.brought = []
        guard.watch(agent)
        brought = [tool for tool in desk.agent().tools if tool.name == "pay"]
        if way == "class":
            agent.brought = brought
        else:
            agent = Agent(name="a", model=agent.model, tools=brought)
        with guard.session("s"):
            return await Runner.run(agent, "Pay.")

    with pytest.raises(ConfigurationError, match="pay"):
        await run(desk.guard)
    assert (desk.paid, desk.model_calls) == ([], 0)
    for guard in (desk.another(allow_ungated=["pay"]), desk.another(advisory=True)):
        assert ((await run(guard)).final_output, guard.ungated) == ("Done.", {"pay"})
    assert desk.paid == ["bob", "bob"]


@pytest.mark.parametrize("started", ["as_tool", "as_streamed_tool", "run", "run_streamed"])
@pytest.mark.parametrize("model", ["by_name", "named_in_config", "in_config"])
@pytest.mark.anyio
async def test_every_run_of_a_watched_agent_has_watched_models_whoever_starts_it_and_configures_it(
    tmp_path: Path, started: str, model: str
) -> None:
    """So what the agent gets while it runs is refused, or listed by a guard that only advises."""
    desk = Desk(tmp_path, UNSURE, DONE)
    delegate = ScriptedTurn(text="I delegate.", calls=(ToolCall(id="d", name="sub", arguments={"input": "Pay."}),))
    desk.setup = replace(desk.setup, script={**desk.setup.script, "Delegate.": (delegate, DONE)})
    desk.guard = desk.another()
    script = FakeModel(desk.setup)
    config = RunConfig(
        model={"by_name": None, "named_in_config": "fake", "in_config": script}[model],
        model_provider=Provider(**({} if model == "in_config" else {"fake": script})),
    )

    async def run(guard: UncertaintyGuard) -> None:
        agent: Any = Growing(name="sub", model="fake" if model == "by_name" else None)
        agent.brought = []
        if started.startswith("as_"):
            heard = (lambda event: None) if "streamed" in started else None
            tool = agent.as_tool("sub", "x", run_config=config, failure_error_function=None, on_stream=heard)
            clerk: Agent[Any] = Agent(name="clerk", model=FakeModel(desk.setup), tools=[tool])
            guard.watch(clerk)
        else:
            guard.watch(agent)
        agent.brought = [tool for tool in desk.agent().tools if tool.name == "pay"]
        with guard.session("s") as watched:
            if started == "run_streamed":
                result = Runner.run_streamed(agent, "Pay.", run_config=config)
                async for _ in result.stream_events():
                    pass
            elif started == "run":
                await Runner.run(agent, "Pay.", run_config=config)
            else:
                await Runner.run(clerk, "Delegate.")
        assert guard.ungated == {"pay"}
        assert watched.belief.total_steps == 2 + 3 * started.startswith("as_")

    with pytest.raises((ConfigurationError, UserError), match="pay"):  # the SDK makes its own of a tool's
        await run(desk.guard)
    assert desk.paid == []
    await run(desk.another(advisory=True))
    assert desk.paid == ["bob"]


def add_tool(agent: Agent[Any], other: Agent[Any]) -> None:
    agent.tools.append(next(tool for tool in other.tools if tool.name == "pay"))


def add_agent_as_tool(agent: Agent[Any], other: Agent[Any]) -> None:
    agent.tools.append(other.as_tool("hand_over", "x"))


def add_handoff(agent: Agent[Any], other: Agent[Any]) -> None:
    agent.handoffs.append(other)


def change_model(agent: Agent[Any], other: Agent[Any]) -> None:
    add_tool(agent, other)
    agent.model = other.model


@pytest.mark.parametrize("change", [add_tool, add_agent_as_tool, add_handoff, change_model])
@pytest.mark.parametrize("advisory", [False, True])
@pytest.mark.anyio
async def test_what_a_watched_agent_got_since_is_watched_from_its_next_run_on(
    tmp_path: Path, change: Callable[[Agent[Any], Agent[Any]], None], advisory: bool
) -> None:
    over = {add_agent_as_tool: ("hand_over", {"input": "Pay."}), add_handoff: ("transfer_to_clerk", {})}.get(change)
    first = (
        []
        if over is None
        else [ScriptedTurn(text="Over.", calls=(ToolCall(id=tmp_path.name, name=over[0], arguments=over[1]),))]
    )
    later = [] if change is add_agent_as_tool else [UNSURE]
    desk = Desk(tmp_path, UNSURE, DONE)
    desk.setup = replace(desk.setup, script={**desk.setup.script, "Go.": (*first, *later, DONE)})
    guard = desk.another(advisory=advisory)
    agent = guard.watch(Agent[Any](name="a", model=FakeModel(desk.setup)))
    change(agent, Agent[Any](name="clerk", model=FakeModel(desk.setup), tools=[*tools(desk.setup)]))
    with guard.session("s") as watched:
        result = await Runner.run(agent, "Go.")
    assert (bool(result.interruptions), desk.paid[:1]) == ((False, ["bob"]) if advisory else (True, []))
    assert watched.calls.turns == desk.model_calls  # all answers were seen
    assert guard.ungated == set()


@pytest.mark.parametrize("advisory", [False, True])
@pytest.mark.anyio
async def test_the_servers_that_a_watched_agent_got_since_are_watched_as_well(tmp_path: Path, advisory: bool) -> None:
    call = PAY.model_copy(update={"name": "mcp_pay"})
    desk = Desk(tmp_path, ScriptedTurn(text="I pay Bob.", calls=(call,), confidence=0.7), DONE)
    guard = desk.another(advisory=advisory)
    agent = guard.watch(Agent[Any](name="a", model=FakeModel(desk.setup)))
    agent.mcp_servers.append(Till(desk.setup, require_approval=guard.mcp_approval))
    result = await guard.run(agent, "Pay.", session_id="s")
    assert (len(result.interruptions), guard.ungated) == (1 - advisory, set())


@pytest.mark.anyio
async def test_an_agent_that_can_do_nothing_runs_in_a_session_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that a guardrail asks."""
    desk = Desk(tmp_path, DONE)
    with desk.guard.session("s"):
        await Runner.run(Agent[Any](name="guardrail", model=FakeModel(desk.setup)), "Pay.")
    assert caplog.text == ""


@pytest.mark.parametrize("advisory", [False, True])
@pytest.mark.parametrize("started", ["by_the_user", "by_a_tool"])
@pytest.mark.anyio
async def test_an_agent_that_runs_in_a_session_unwatched_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, advisory: bool, started: str
) -> None:
    desk = Desk(tmp_path, UNSURE, DONE)
    call = ToolCall(id="c", name="start", arguments={})
    begin = ScriptedTurn(text="Now.", calls=(call,))
    desk.setup = replace(desk.setup, script={**desk.setup.script, "Go.": (begin, DONE)})
    guard = desk.another(advisory=advisory)

    @function_tool
    async def start() -> str:
        return str((await Runner.run(desk.agent(), "Pay.")).final_output)

    outer = Agent[Any](name="outer", model=FakeModel(desk.setup), tools=[start])
    for session_id in ("s-1", "s-2"):
        with guard.session(session_id):
            given = (desk.agent(), "Pay.") if started == "by_the_user" else (guard.watch(outer), "Go.")
            result = await Runner.run(*given)
        assert (result.final_output, len(result.interruptions)) == ("Done.", 0)
    await Runner.run(desk.agent(), "Pay.")  # outside of a session: nobody asked for a watch
    named = [record.getMessage() for record in caplog.records if "unwatched" in record.getMessage()]
    assert named == ["agent 'clerk' runs in a session unwatched: give it to UncertaintyGuard.watch first"]


@pytest.mark.anyio
async def test_a_watched_agent_whose_model_is_looked_up_does_not_run_outside_of_a_session(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DONE)
    agent: Agent[Any] = Agent(name="a", model="fake")
    config = RunConfig(model_provider=Provider(fake=FakeModel(desk.setup)))
    desk.guard.watch(agent)
    with pytest.raises(SessionError):
        await Runner.run(agent, "Pay.", run_config=config)
    desk.guard.unwatch(agent)
    assert (await Runner.run(agent, "Pay.", run_config=config)).final_output == "Done."


@pytest.mark.anyio
async def test_a_guard_that_only_advises_refuses_nothing_and_says_what_it_could_not_stop(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DONE)
    advising = UncertaintyGuard(desk.guard.settings.monitor, advisory=True)
    tools: list[Any] = [
        LocalShellTool(executor=lambda request: ""),
        HostedMCPTool({"type": "mcp", "server_label": "hosted", "require_approval": "never"}),
    ]
    agent: Agent[Any] = Agent(name="a", model=FakeModel(desk.setup), tools=tools, mcp_servers=[MailServer([])])
    result = await advising.run(advising.watch(agent), "Pay.", session_id="s")
    assert (result.final_output, advising.ungated) == ("Done.", {"local_shell", "hosted", "mail"})
    assert (await Runner.run(agent, "Pay.")).final_output == "Done."  # outside of a session


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.anyio
async def test_a_guard_that_only_advises_leaves_another_guards_agent_to_it(tmp_path: Path, by_name: bool) -> None:
    desk = Desk(tmp_path, UNSURE, DONE)
    agent = desk.agent()
    config = RunConfig(model_provider=Provider(fake=FakeModel(desk.setup)))
    if by_name:
        agent.model = "fake"
    desk.guard.watch(agent)
    gated = agent.tools
    UncertaintyGuard(UncertaintyMonitor(policy=UncertaintyPolicy()), advisory=True).watch(agent)
    assert agent.tools is gated
    result = await desk.guard.run(agent, "Pay.", session_id="s", run_config=config)
    assert (len(result.interruptions), desk.paid) == (1, [])


@pytest.mark.anyio
async def test_guards_that_only_advise_and_run_one_agent_at_once_end_no_run(tmp_path: Path) -> None:
    """As where each request has a guard of its own; the SDK refuses an agent whose tools change during a run."""
    desk = Desk(tmp_path, UNSURE, DONE)
    agent = desk.agent()
    config = RunConfig(model_provider=Provider(fake=FakeModel(desk.setup)))
    agent.model = "fake"

    async def serve(number: int) -> str:
        guard = UncertaintyGuard(UncertaintyMonitor(), advisory=True)
        result = await guard.run(agent, "Pay.", session_id=f"s-{number}", run_config=config)
        return str(result.final_output)

    assert await asyncio.gather(*map(serve, range(3))) == ["Done."] * 3


@pytest.mark.parametrize("outer", ["acting", "advising"])
@pytest.mark.anyio
async def test_a_guard_is_told_of_an_agent_in_its_session_that_only_another_guard_watches(
    tmp_path: Path, outer: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(tmp_path, UNSURE, DONE)
    adviser = UncertaintyGuard(UncertaintyMonitor(), advisory=True)
    agent = adviser.watch(desk.agent())
    first, second = (desk.guard, adviser) if outer == "acting" else (adviser, desk.guard)
    with first.session("outer"), second.session("inner"):
        await Runner.run(agent, "Pay.")
    assert "agent 'clerk' runs in a session unwatched" in caplog.text


@pytest.mark.anyio
async def test_a_guard_that_refuses_an_agent_leaves_it_as_it_was(tmp_path: Path) -> None:
    """Its sub-agent is another guard's, found after its own tools."""
    desk = Desk(tmp_path, UNSURE, DONE)
    config = RunConfig(model_provider=Provider(fake=FakeModel(desk.setup)))
    agent, adviser = desk.agent(), UncertaintyGuard(UncertaintyMonitor(), advisory=True)
    agent.model = "fake"
    adviser.watch(agent)
    gated = agent.tools
    with pytest.raises(ConfigurationError, match="watched by one guard"):
        desk.guard.watch(agent)
    assert agent.tools is gated
    assert (await adviser.run(agent, "Pay.", session_id="s", run_config=config)).final_output == "Done."


@pytest.mark.parametrize("advisory", [True, False])
def test_a_handoff_whose_name_the_policy_protects_is_reported_because_its_function_runs_at_once(
    tmp_path: Path, advisory: bool
) -> None:
    guard = Desk(tmp_path).another(advisory=advisory)
    payer: Agent[Any] = Agent(name="payer")
    named = [handoff(payer, tool_name_override=name, on_handoff=lambda context: None) for name in ("pay", "ask")]
    guard.watch(Agent(name="front", handoffs=[*named, payer]))
    assert guard.ungated == {"pay"}


class NamedOnly(FakeModel):
    """Takes what it is asked with by name, which is how the SDK gives it."""

    async def get_response(self, *, system_instructions: Any, input: Any, **given: Any) -> ModelResponse:
        return await super().get_response(system_instructions, input)


@pytest.mark.anyio
async def test_a_watched_model_is_asked_as_the_sdk_asks_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DONE)
    for model in (NamedOnly(desk.setup), FakeModel(desk.setup)):
        result = await desk.guard.run(Agent(name="a", model=model), "Pay.", session_id="s")
        assert result.final_output == "Done."


class ChatModel(OpenAIChatCompletionsModel):
    """Takes a provider's conversation beside a guardrail, which the SDK refuses for models of another kind."""

    def __init__(self) -> None:
        super().__init__("fake", AsyncOpenAI(api_key="none"))

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        return ModelResponse(output=output(DONE), usage=Usage(), response_id=None)


@pytest.mark.anyio
@pytest.mark.parametrize("advisory", [True, False])
async def test_a_watched_model_is_of_its_own_kind_for_the_sdk(tmp_path: Path, advisory: bool) -> None:
    @output_guardrail
    async def fine(*_: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    agent: Agent[Any] = Agent(name="a", model=ChatModel(), output_guardrails=[fine])
    guard = Desk(tmp_path).another(advisory=advisory)
    result = await guard.run(agent, "Go.", session_id="s", auto_previous_response_id=True)
    assert result.final_output == "Done."


def test_hosted_tools_that_only_read_are_reported_and_hosted_mcp_that_always_asks_is_neither(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DONE)
    mcp = HostedMCPTool({"type": "mcp", "server_label": "mail", "require_approval": "always"})
    desk.guard.watch(Agent(name="a", model=FakeModel(desk.setup), tools=[WebSearchTool(), mcp]))
    assert desk.guard.ungated == {"web_search"}


def test_an_agent_of_another_kind_is_refused_and_advice_says_that_it_is_not_watched(tmp_path: Path) -> None:
    desk = Desk(tmp_path, DONE)
    agent: Any = RealtimeAgent(name="on the phone", tools=[*desk.agent().tools])
    with pytest.raises(ConfigurationError, match="RealtimeAgent"):
        desk.guard.watch(agent)
    advising = desk.another(advisory=True)
    assert advising.unwatch(advising.watch(agent)) is agent
    assert advising.ungated == {"on the phone"}


class MailServer(MCPServer):
    """An MCP server in this process with one tool, `pay`."""

    def __init__(self, sent: list[Any], **given: Any) -> None:
        super().__init__(**given)
        self.sent = sent

    @property
    def name(self) -> str:
        return "mail"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[MCPTool]:
        return [MCPTool(name="pay", description="Pay.", inputSchema={"type": "object"})]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        self.sent.append(arguments["to"])
        return CallToolResult(content=[TextContent(type="text", text="paid")])

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...


@pytest.mark.anyio
async def test_an_mcp_servers_calls_pause_with_the_guards_rule_and_a_server_without_one_is_refused(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, UNSURE, DONE)
    sent: list[Any] = []

    def agent(guard: UncertaintyGuard, **given: Any) -> Agent[Any]:
        return Agent(name="clerk", model=FakeModel(desk.setup), mcp_servers=[MailServer(sent, **given)])

    with pytest.raises(ConfigurationError, match="mail"):
        desk.guard.watch(agent(desk.guard))
    first = agent(desk.guard, require_approval=desk.guard.mcp_approval)
    paused = await desk.guard.pause(await desk.guard.run(first, "Pay.", session_id="s"))
    assert paused is not None
    assert ([request.call for request in paused.requests], sent) == ([PAY], [])
    elsewhere = desk.another()
    second = agent(elsewhere, require_approval=elsewhere.mcp_approval)
    result = await elsewhere.resume(second, paused.text, [paused.requests[0].decide("approve", principal="ann")])
    assert (result.final_output, sent) == ("Done.", ["bob"])


# -- reading answers --------------------------------------------------------------------------------------------------


def test_token_probabilities_and_usage_are_read_from_the_answer() -> None:
    top = [{"token": "yes", "logprob": math.log(0.5)}]
    part = {"type": "output_text", "text": "yes", "logprobs": [{"token": "yes", "logprob": -1.0, "top_logprobs": top}]}
    answer, _ = read_output([{"type": "message", "content": [part]}], None)
    (token,) = (answer.logprobs and answer.logprobs.tokens) or ()
    assert (answer.content, token.logprob, token.top) == ("yes", -1.0, (("yes", math.log(0.5)),))
    empty = read_output([], None)[0].logprobs
    assert empty is not None
    assert empty.tokens is None


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": NaN}', "null", "7"])
def test_arguments_that_are_no_object_are_kept_as_a_value(text: str) -> None:
    assert read_call({"id": "c", "name": "pay", "arguments": text}).call.digest()


def test_a_transcript_of_the_sdk_is_read_as_messages() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "c", "name": "pay", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "paid"},
        {"type": "reasoning", "summary": []},
    ]
    seen = [(m.role.value, m.content) for m in read_messages("Be brief.", items)]
    assert seen == [("system", "Be brief."), ("user", "Hi"), ("assistant", None), ("tool", "paid")]
