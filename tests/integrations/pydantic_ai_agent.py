"""The conformance harnesses of pydantic-ai: with the capability, and with the framework's own approval alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.server import MCPServer
from pydantic_ai import Agent, RunContext, ToolOutput
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator

from grampus_uq import ApprovalError, ApprovalRequest, UncertaintyError
from grampus_uq.integrations.pydantic_ai import UncertaintyCapability, resume, run_sub_agent, waiting
from grampus_uq.integrations.pydantic_ai_messages import KEY
from grampus_uq.testing import AgentSetup, AgentUnderTest, Decision, Ended, Paused, Pending, ScriptedTurn, Watch
from tests.integrations.forging import EFFECTS, EVIL, forge_calls


def model(setup: AgentSetup) -> FunctionModel:
    """Plays the turns of a script: the one after those that the transcript already holds."""

    def turn(messages: list[ModelMessage]) -> ScriptedTurn:
        parts = [part for m in messages if isinstance(m, ModelRequest) for part in m.parts]
        prompt = next(part.content for part in parts if isinstance(part, UserPromptPart))
        assert isinstance(prompt, str)
        return setup.turn(prompt, sum(isinstance(m, ModelResponse) for m in messages))

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = turn(messages)
        calls = [ToolCallPart(tool_name=c.name, args=dict(c.arguments), tool_call_id=c.id) for c in said.calls]
        return ModelResponse(parts=[TextPart(said.text), *calls])

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        said = turn(messages)
        for number, piece in enumerate(said.text.split(" ")):
            yield piece if number == 0 else " " + piece
        for number, c in enumerate(said.calls):
            yield {number: DeltaToolCall(name=c.name, json_args=json.dumps(c.arguments), tool_call_id=c.id)}

    return FunctionModel(respond, stream_function=stream, model_name="fake")


def clerk(setup: AgentSetup, name: str = "clerk", *, stock: bool = False, **given: Any) -> Agent[None, Any]:
    """An agent with `look_up` and `pay`; with `stock` the framework asks before each payment."""

    def final_pay(to: str, amount: int) -> str:
        return setup.pay(to, amount)

    outputs: Any = [str, ToolOutput(final_pay, name="final_pay"), DeferredToolRequests]
    agent: Agent[None, Any] = Agent(model(setup), name=name, output_type=outputs[::2] if stock else outputs, **given)

    @agent.tool_plain
    def look_up(query: str) -> str:
        return setup.look_up(query)

    @agent.tool_plain(requires_approval=stock)
    def pay(to: str, amount: int) -> str:
        return setup.pay(to, amount)

    return agent


async def streamed(agent: Agent[None, Any], pieces: list[str], **given: Any) -> Any:
    """Run with events, keep the pieces of text, and return the result."""
    async with agent.iter(**given) as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    async for event in events:
                        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                            pieces.append(event.part.content)
                        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                            pieces.append(event.delta.content_delta)
    return run.result


class Till(AbstractToolset[None]):
    """The tools of an MCP server in this process, by a client of the protocol."""

    id = "till"

    def __init__(self, setup: AgentSetup) -> None:
        self._server = MCPServer("till")
        self._server.add_tool(setup.pay, name="mcp_pay", description="Pay.")

    async def get_tools(self, ctx: RunContext[None]) -> dict[str, ToolsetTool[None]]:
        async with Client(self._server) as client:
            listed = (await client.list_tools()).tools
        made = [ToolDefinition(name=t.name, parameters_json_schema=t.input_schema) for t in listed]
        validator = SchemaValidator({"type": "dict", "keys_schema": {"type": "str"}})
        return {
            one.name: ToolsetTool(toolset=self, tool_def=one, max_retries=1, args_validator=validator) for one in made
        }

    async def call_tool(self, name: str, tool_args: Any, ctx: RunContext[None], tool: Any) -> Any:
        async with Client(self._server) as client:
            result = await client.call_tool(name, tool_args)
        return "".join(getattr(part, "text", "") for part in result.content)


class Guarded:
    """The agent with an `UncertaintyCapability`; a paused run is its history, in a file."""

    lacks: Mapping[str, str] = {}
    offers = ("signing", "forge", "schema", "odd_calls", "permits", "starts", "mcp", "output_tool")

    def __init__(self, setup: AgentSetup) -> None:
        self._setup = setup
        monitor = setup.monitor(advisory=False)
        guards = [] if monitor is None else [
            UncertaintyCapability(
                monitor,
                advisory=setup.watch is Watch.ADVISORY,
                model_client=setup.judge(),
                effects=EFFECTS,
                approvals=setup.approvals(),
                started_by=setup.started_by,
                permits=setup.permits(),
                starts=setup.starts(),
                precondition=setup.precondition,
            )
        ]  # fmt: skip
        sub_agent = clerk(setup, "delegate", capabilities=guards)
        self._agent = clerk(setup, capabilities=guards, toolsets=[Till(setup)])

        @self._agent.tool
        async def delegate(ctx: RunContext[None], task: str) -> str:
            return str(await run_sub_agent(ctx, sub_agent, task))

    async def run(self, session: str, prompt: str) -> Ended | Paused:
        try:
            return self._shown(session, await self._agent.run(prompt))
        except UncertaintyError as aborted:
            return Ended(output="", stopped=str(aborted))

    async def stream(self, session: str, prompt: str, pieces: list[str]) -> Ended | Paused:
        return self._shown(session, await streamed(self._agent, pieces, user_prompt=prompt))

    async def resume(self, session: str, decisions: Sequence[Decision]) -> Ended | Paused:
        history = self._file(session).read_bytes()
        said = [self._setup.decide(ApprovalRequest.model_validate(d.on.token), d) for d in decisions]
        try:
            result = await self._agent.run(**resume(history, said))
        except ApprovalError:
            result = await self._agent.run(**resume(history))
        return self._shown(session, result)

    async def forge(self, session: str, what: str) -> None:
        """Write into the history what a browser might that it was sent to."""
        history = json.loads(self._file(session).read_bytes())
        answer = next(m for m in reversed(history) if KEY in (m.get("metadata") or {}))
        forge_calls(answer["metadata"][KEY], what)
        if what == "call":
            next(part for part in answer["parts"] if part["part_kind"] == "tool-call")["args"] = EVIL
        self._file(session).write_text(json.dumps(history))

    def _file(self, session: str) -> Path:
        return self._setup.folder / f"{session}.json"

    def _shown(self, session: str, result: Any) -> Ended | Paused:
        if not isinstance(result.output, DeferredToolRequests):
            self._file(session).unlink(missing_ok=True)
            return Ended(output=result.output)
        self._file(session).write_bytes(result.all_messages_json())
        return Paused(pending=tuple(map(_pending, waiting(result))))


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
    """The agent with `requires_approval=True` on `pay`, and a `delegate` that does by hand what has to be done."""

    lacks: Mapping[str, str] = {
        "abort": "no monitor",
        "advisory": "no monitor",
        "belief": "no monitor",
        "precondition": "no preconditions",
        "respond": "approve and deny only",
    }

    def __init__(self, setup: AgentSetup) -> None:
        self._setup = setup
        stock = setup.watch is not Watch.NONE
        sub_agent = clerk(setup, "delegate", stock=stock)
        self._agent = clerk(setup, stock=stock)

        @self._agent.tool
        async def delegate(ctx: RunContext[None], task: str) -> str:
            if ctx.tool_call_approved:
                waiting = ctx.tool_call_metadata["waiting"]
                history = ModelMessagesTypeAdapter.validate_python(waiting["history"])
                approvals: dict[str, Any] = {call["id"]: ToolApproved() for call in waiting["calls"]}
                result = await sub_agent.run(
                    message_history=history, deferred_tool_results=DeferredToolResults(approvals=approvals)
                )
            else:
                result = await sub_agent.run(task)
            if isinstance(result.output, DeferredToolRequests):
                calls = [
                    {"id": c.tool_call_id, "name": c.tool_name, "arguments": c.args_as_dict()}
                    for c in result.output.approvals
                ]
                raise ApprovalRequired({"waiting": {"history": json.loads(result.all_messages_json()), "calls": calls}})
            return str(result.output)

    async def run(self, session: str, prompt: str) -> Ended | Paused:
        return self._shown(session, await self._agent.run(prompt))

    async def stream(self, session: str, prompt: str, pieces: list[str]) -> Ended | Paused:
        return self._shown(session, await streamed(self._agent, pieces, user_prompt=prompt))

    async def resume(self, session: str, decisions: Sequence[Decision]) -> Ended | Paused:
        saved = json.loads((self._setup.folder / f"{session}.json").read_text())
        history = ModelMessagesTypeAdapter.validate_python(saved["history"])
        results = DeferredToolResults(metadata=saved["metadata"])
        for decision in decisions:
            call_id = saved["calls"].get(decision.on.call_id, decision.on.call_id)
            denied = ToolDenied(decision.message or "denied")
            approved = ToolApproved(override_args=decision.arguments)
            results.approvals[call_id] = approved if decision.said in ("approve", "edit") else denied
        return self._shown(session, await self._agent.run(message_history=history, deferred_tool_results=results))

    def _shown(self, session: str, result: Any) -> Ended | Paused:
        file = self._setup.folder / f"{session}.json"
        if not isinstance(result.output, DeferredToolRequests):
            file.unlink(missing_ok=True)
            return Ended(output=result.output)
        found: list[Pending] = []
        parents: dict[str, str] = {}
        for call in result.output.approvals:
            inner = result.output.metadata.get(call.tool_call_id, {}).get("waiting", {}).get("calls")
            for one in inner or [{"id": call.tool_call_id, "name": call.tool_name, "arguments": call.args_as_dict()}]:
                found.append(Pending(call_id=one["id"], name=one["name"], arguments=one["arguments"]))
                parents[one["id"]] = call.tool_call_id
        saved = {
            "history": json.loads(result.all_messages_json()),
            "metadata": result.output.metadata,
            "calls": parents,
        }
        file.write_text(json.dumps(saved))
        return Paused(pending=tuple(found))


@asynccontextmanager
async def build(setup: AgentSetup) -> AsyncIterator[AgentUnderTest]:
    yield Guarded(setup)


@asynccontextmanager
async def build_stock(setup: AgentSetup) -> AsyncIterator[AgentUnderTest]:
    yield Stock(setup)
