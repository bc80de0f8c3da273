"""The conformance harnesses of the OpenAI Agents SDK: with the guard, and with the SDK's own approval alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelResponse,
    Runner,
    RunState,
    StopAtTools,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.mcp import MCPServer
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as MCPTool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from grampus_uq import ApprovalError, ApprovalRequest, UncertaintyError
from grampus_uq.integrations.openai_agents import UncertaintyGuard
from grampus_uq.testing import AgentSetup, AgentUnderTest, Decision, Ended, Paused, Pending, ScriptedTurn, Watch
from tests.integrations.forging import EFFECTS, EVIL, PAID, forge_calls

set_tracing_disabled(True)


class FakeModel(Model):
    """Plays the turns of a script: the one after those that the transcript already holds."""

    def __init__(self, setup: AgentSetup) -> None:
        self._setup = setup

    def _turn(self, items: Any) -> ScriptedTurn:
        if isinstance(items, str):
            return self._setup.turn(items, 0)
        prompt = next(item["content"] for item in items if item.get("role") == "user")
        return self._setup.turn(prompt, sum(item.get("role") == "assistant" for item in items))

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        return ModelResponse(output=output(self._turn(input)), usage=Usage(), response_id=None)

    async def stream_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        turn = self._turn(input)
        place = {"item_id": "m", "output_index": 0, "content_index": 0, "logprobs": []}
        for number, piece in enumerate(turn.text.split(" ")):
            delta = piece if number == 0 else " " + piece
            yield ResponseTextDeltaEvent(
                type="response.output_text.delta", delta=delta, sequence_number=number, **place
            )
        yield completed(output(turn))


def completed(items: list[Any]) -> ResponseCompletedEvent:
    """The last event of a stream: the whole answer."""
    answer = Response(
        id="r",
        created_at=0.0,
        model="fake",
        object="response",
        output=items,
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )
    return ResponseCompletedEvent(type="response.completed", response=answer, sequence_number=99)


def output(turn: ScriptedTurn) -> list[Any]:
    """A message, then the calls."""
    text = ResponseOutputText(text=turn.text, type="output_text", annotations=[], logprobs=[])
    message = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
    calls = [
        ResponseFunctionToolCall(call_id=c.id, name=c.name, arguments=json.dumps(c.arguments), type="function_call")
        for c in turn.calls
    ]
    return [message, *calls]


def tools(setup: AgentSetup, **approval: Any) -> list[FunctionTool]:
    """`look_up`, and `pay` with what the SDK's own approval says of it."""

    @function_tool
    def look_up(query: str) -> str:
        """Look something up."""
        return setup.look_up(query)

    @function_tool(**approval)
    def pay(to: str, amount: int) -> str:
        """Pay money. This cannot be undone."""
        return setup.pay(to, amount)

    return [look_up, pay]


@dataclass
class Task:
    """What `delegate` takes."""

    task: str


def clerk(setup: AgentSetup, servers: Sequence[Any] = (), **approval: Any) -> Agent[Any]:
    """The agent, its sub-agent as a tool, and a tool that ends its run."""
    model = FakeModel(setup)
    delegate = Agent[Any](name="delegate", model=model, tools=[*tools(setup, **approval)])
    as_tool = delegate.as_tool(
        "delegate", "Hand a task over.", parameters=Task, input_builder=lambda given: given["params"]["task"]
    )

    @function_tool(**approval)
    def final_pay(to: str, amount: int) -> str:
        """Pay money, and be done."""
        return setup.pay(to, amount)

    return Agent(
        name="clerk",
        model=model,
        tools=[*tools(setup, **approval), as_tool, final_pay],
        mcp_servers=[*servers],
        tool_use_behavior=StopAtTools(stop_at_tool_names=["final_pay"]),
    )


class Till(MCPServer):
    """An MCP server in this process, with one tool."""

    name = "till"

    def __init__(self, setup: AgentSetup, **given: Any) -> None:
        super().__init__(**given)
        self._setup = setup

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[MCPTool]:
        return [MCPTool(name="mcp_pay", description="Pay.", inputSchema={"type": "object"})]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=self._setup.pay(**arguments))])

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...


async def pieces_of(result: Any, pieces: list[str]) -> None:
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            pieces.append(event.data.delta)  # noqa: PERF401 (pieces have to be there when the stream breaks off)


class Guarded:
    """The agent behind an `UncertaintyGuard`; a paused run is the text of `guard.pause`, in a file."""

    lacks: Mapping[str, str] = {"no_ids": "the SDK ends such a run"}
    offers = ("signing", "forge", "schema", "odd_calls", "permits", "starts", "mcp", "output_tool")

    def __init__(self, setup: AgentSetup) -> None:
        self._setup = setup
        monitor = setup.monitor(advisory=False)
        self._guard = None if monitor is None else UncertaintyGuard(
            monitor,
            advisory=setup.watch is Watch.ADVISORY,
            model_client=setup.judge(),
            effects=EFFECTS,
            approvals=setup.approvals(),
            started_by=setup.started_by,
            permits=setup.permits(),
            starts=setup.starts(),
            precondition=setup.precondition,
        )  # fmt: skip
        asks = "never" if self._guard is None else self._guard.mcp_approval
        self._agent = clerk(setup, [Till(setup, require_approval=asks)])

    async def run(self, session: str, prompt: str) -> Ended | Paused:
        if self._guard is None:
            return Ended(output=(await Runner.run(self._agent, prompt)).final_output)
        try:
            return await self._shown(session, await self._guard.run(self._agent, prompt, session_id=session))
        except UncertaintyError as aborted:
            return Ended(output="", stopped=str(aborted))

    async def stream(self, session: str, prompt: str, pieces: list[str]) -> Ended | Paused:
        assert self._guard is not None
        result = self._guard.run_streamed(self._agent, prompt, session_id=session)
        await pieces_of(result, pieces)
        return await self._shown(session, result)

    async def resume(self, session: str, decisions: Sequence[Decision]) -> Ended | Paused:
        assert self._guard is not None
        text = self._file(session).read_text()
        said = [self._setup.decide(ApprovalRequest.model_validate(d.on.token), d) for d in decisions]
        try:
            result = await self._guard.resume(self._agent, text, said)
        except ApprovalError:
            result = await self._guard.resume(self._agent, text)
        return await self._shown(session, result)

    async def forge(self, session: str, what: str) -> None:
        """Write into the paused run what somebody would who stands between its two processes."""
        values = json.loads(self._file(session).read_text())
        forge_calls(values["calls"], what)
        text = json.dumps(values)
        if what == "call":
            text = text.replace(json.dumps(json.dumps(PAID))[1:-1], json.dumps(json.dumps(EVIL))[1:-1])
        self._file(session).write_text(text)

    def _file(self, session: str) -> Path:
        return self._setup.folder / f"{session}.json"

    async def _shown(self, session: str, result: Any) -> Ended | Paused:
        assert self._guard is not None
        paused = await self._guard.pause(result)
        if paused is None:
            self._file(session).unlink(missing_ok=True)
            return Ended(output=result.final_output)
        self._file(session).write_text(paused.text)
        return Paused(pending=tuple(map(_pending, paused.requests)))


def _pending(request: ApprovalRequest) -> Pending:
    assert request.call is not None
    return Pending(
        call_id=request.call.id,
        name=request.call.name,
        arguments=dict(request.call.arguments),
        token=request.model_dump(mode="json"),
        reason=request.reason,
    )


class Stock:
    """The agent with `needs_approval=True` on `pay`: what the SDK does by itself."""

    lacks: Mapping[str, str] = {
        "abort": "no monitor",
        "advisory": "no monitor",
        "belief": "no monitor",
        "edit": "approve and reject only",
        "precondition": "no preconditions",
        "respond": "approve and reject only",
    }

    def __init__(self, setup: AgentSetup) -> None:
        self._setup = setup
        self._agent = clerk(setup, needs_approval=setup.watch is not Watch.NONE)

    async def run(self, session: str, prompt: str) -> Ended | Paused:
        return self._shown(session, await Runner.run(self._agent, prompt))

    async def stream(self, session: str, prompt: str, pieces: list[str]) -> Ended | Paused:
        result = Runner.run_streamed(self._agent, prompt)
        await pieces_of(result, pieces)
        return self._shown(session, result)

    async def resume(self, session: str, decisions: Sequence[Decision]) -> Ended | Paused:
        state = await RunState.from_string(self._agent, (self._setup.folder / f"{session}.json").read_text())
        said = {d.on.call_id: d for d in decisions}
        for item in state.get_interruptions():
            decision = said.get(item.raw_item.call_id)  # type: ignore[union-attr]  # function calls only
            if decision is not None and decision.said == "approve":
                state.approve(item)
            elif decision is not None:
                state.reject(item, rejection_message=decision.message)
        return self._shown(session, await Runner.run(self._agent, state))

    def _shown(self, session: str, result: Any) -> Ended | Paused:
        file = self._setup.folder / f"{session}.json"
        if not result.interruptions:
            file.unlink(missing_ok=True)
            return Ended(output=result.final_output)
        file.write_text(result.to_state().to_string())
        return Paused(
            pending=tuple(
                Pending(call_id=i.raw_item.call_id, name=i.name or "", arguments=json.loads(i.arguments or "{}"))
                for i in result.interruptions
            )
        )


@asynccontextmanager
async def build(setup: AgentSetup) -> AsyncIterator[AgentUnderTest]:
    yield Guarded(setup)


@asynccontextmanager
async def build_stock(setup: AgentSetup) -> AsyncIterator[AgentUnderTest]:
    yield Stock(setup)
