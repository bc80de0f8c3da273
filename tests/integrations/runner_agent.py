"""The conformance harness of this package's own `AgentRunner`: the checks' reference, and an example of a harness."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from grampus_uq import (
    UNWATCHED,
    AgentDefinition,
    AgentRunner,
    ApprovalError,
    FunctionTools,
    SubAgent,
    Tool,
    UncertaintyError,
    open_store,
)
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ModelResponse
from grampus_uq.records.vocabulary import AgentStatus, Role
from grampus_uq.runtime.run_state import ExecutionResult
from grampus_uq.testing import AgentSetup, AgentUnderTest, Decision, Ended, Paused, Pending, ScriptedModel, answer
from tests.integrations.forging import forge_session

AGENT = AgentDefinition(name="clerk", model="scripted", system_prompt="You settle accounts.")
SUB_AGENT = AgentDefinition(name="delegate", model="scripted", system_prompt="You pay.")


def scripted(setup: AgentSetup) -> ModelClient:
    """Plays the agent's turns, and is its judge as well, as the runner asks one model for both."""
    judge = setup.judge()

    async def reply(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        if messages[0].role is not Role.SYSTEM:
            judged: ModelResponse = await judge.complete(messages=list(messages), model="")
            return judged
        prompt = next(m.content or "" for m in messages if m.role is Role.USER)
        turn = setup.turn(prompt, sum(m.role is Role.ASSISTANT for m in messages))
        return answer(turn.text, tool_calls=turn.calls)

    return ScriptedModel(reply)


class RunnerAgent:
    lacks: Mapping[str, str] = {
        "mcp": "an MCP tool is wrapped in an ordinary tool",
        "output_tool": "its final answer is text",
    }
    offers = ("signing", "forge", "schema", "odd_calls", "permits", "starts")

    def __init__(self, setup: AgentSetup) -> None:
        self._setup = setup
        self._store = store = open_store(f"sqlite:///{setup.folder / 'sessions.db'}")

        def runner(*sub_agents: SubAgent) -> AgentRunner:
            one = AgentRunner(
                scripted(setup),
                FunctionTools(Tool(setup.look_up, effect="read"), Tool(setup.pay, effect="irreversible")),
                uncertainty_monitor=setup.monitor() or UNWATCHED,
                store=store,
                approvals=setup.approvals(),
                precondition=setup.precondition,
                sub_agents=sub_agents,
                lease_s=0.5,
                starts=setup.starts(),
            )
            one.gate.permits = setup.permits() or one.gate.permits
            return one

        self._runner = runner(SubAgent(runner(), SUB_AGENT))

    async def run(self, session: str, prompt: str) -> Ended | Paused:
        try:
            who = self._setup.started_by(session)
            return _shown(await self._runner.run(AGENT, prompt, session_id=session, started_by=who))
        except UncertaintyError as aborted:
            return Ended(output="", stopped=str(aborted))

    async def stream(self, session: str, prompt: str, pieces: list[str]) -> Ended | Paused:
        result = None
        async with aclosing(self._runner.stream(AGENT, prompt, session_id=session)) as events:
            async for event in events:
                result = event.result or result
                if event.kind == "step":
                    pieces.append(event.text)
        assert result is not None
        return _shown(result)

    async def resume(self, session: str, decisions: Sequence[Decision]) -> Ended | Paused:
        said = [self._setup.decide(ApprovalRequest.model_validate(d.on.token), d) for d in decisions]
        try:
            return _shown(await self._runner.resume(AGENT.name, session, said))
        except ApprovalError:
            for waits in await self._runner.list_pending_sessions(AGENT.name):
                if waits.session_id == session:
                    return Paused(pending=tuple(map(_pending, waits.requests)))
            raise

    async def forge(self, session: str, what: str) -> None:
        """Write into the session's document what somebody would who reaches the store."""
        await forge_session(self._store, AGENT.name, session, what)


def _pending(request: ApprovalRequest) -> Pending:
    assert request.call is not None
    return Pending(
        call_id=request.call.id,
        name=request.call.name,
        arguments=dict(request.call.arguments),
        token=request.model_dump(mode="json"),
        reason=request.reason,
    )


def _shown(result: ExecutionResult) -> Ended | Paused:
    if result.status is AgentStatus.WAITING_FOR_HUMAN:
        return Paused(pending=tuple(map(_pending, result.pending)))
    return Ended(output=result.output, stopped=None if result.status is AgentStatus.COMPLETED else result.status)


@asynccontextmanager
async def build(setup: AgentSetup) -> AsyncIterator[AgentUnderTest]:
    yield RunnerAgent(setup)
