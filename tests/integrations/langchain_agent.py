"""The conformance harnesses of LangChain: guarded by the middleware (async, sync, beside the stock one), and stock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from grampus_uq import ApprovalError
from grampus_uq.integrations.langchain import UncertaintyMiddleware, resume, waiting
from grampus_uq.integrations.langgraph import KEY
from grampus_uq.testing import AgentSetup, AgentUnderTest, Decision, Ended, Paused, Pending, Watch
from tests.integrations.langgraph_agent import (
    EFFECTS,
    NO_OUTPUT_TOOLS,
    ScriptedChatModel,
    decided,
    rewrite,
    tools_of,
)


class ChainAgent:
    """An agent of `create_agent` with the middleware."""

    lacks: Mapping[str, str] = {"output_tool": NO_OUTPUT_TOOLS}
    offers: Sequence[str] = ("signing", "forge", "schema", "odd_calls", "permits", "starts", "mcp")

    def __init__(self, setup: AgentSetup, checkpointer: Any) -> None:
        self.setup = setup
        self.app = self.agent(self.delegate(), checkpointer)

    def agent(self, delegate: BaseTool | None, checkpointer: Any = None) -> Any:
        watched = self.setup.watch is not Watch.NONE
        return create_agent(
            ScriptedChatModel(setup=self.setup),
            tools_of(self.setup, delegate),
            middleware=self.middleware() if watched else [],
            checkpointer=checkpointer,
        )

    def middleware(self) -> Sequence[AgentMiddleware[Any, Any, Any]]:
        monitor = self.setup.monitor(advisory=False)
        assert monitor is not None
        return [
            UncertaintyMiddleware(
                monitor,
                model_client=self.setup.judge(),
                effects=EFFECTS,
                approvals=self.setup.approvals(),
                started_by=self.setup.started_by,
                permits=self.setup.permits(),
                starts=self.setup.starts(),
                precondition=self.setup.precondition,
                advisory=self.setup.watch is Watch.ADVISORY,
            )
        ]

    def delegate(self) -> BaseTool:
        child = self.agent(None)

        @tool
        async def delegate(task: str) -> str:
            """Hand a task to a sub-agent."""
            result = await child.ainvoke({"messages": [("user", task)]})
            return str(result["messages"][-1].text)

        return delegate

    def config(self, session: str) -> Any:
        return {"configurable": {"thread_id": session}}

    async def invoke(self, given: Any, session: str) -> None:
        await self.app.ainvoke(given, self.config(session))

    async def state(self, session: str) -> Any:
        return await self.app.aget_state(self.config(session))

    async def forge(self, session: str, what: str) -> None:
        await anyio.to_thread.run_sync(rewrite, self.app.checkpointer, self.config(session), what)

    async def run(self, session: str, prompt: str) -> Ended | Paused:
        await self.invoke({"messages": [("user", prompt)]}, session)
        return await self.shown(session)

    async def stream(self, session: str, prompt: str, pieces: list[str]) -> Ended | Paused:
        given = {"messages": [("user", prompt)]}
        judged = 0
        async for mode, event in self.app.astream(given, self.config(session), stream_mode=["messages", "custom"]):
            if mode == "messages" and event[0].type == "AIMessageChunk":
                pieces.append(str(event[0].text))
            judged += mode == "custom" and KEY in event
        assert judged > 0, "what the monitor concluded was to be streamed"
        return await self.shown(session)

    async def resume(self, session: str, decisions: Sequence[Decision]) -> Ended | Paused:
        said = [decided(self.setup, decision) for decision in decisions]
        try:
            command = resume(await self.state(session), said)
        except ApprovalError:
            return await self.shown(session)
        await self.invoke(command, session)
        return await self.shown(session)

    async def shown(self, session: str) -> Ended | Paused:
        state = await self.state(session)
        requests = waiting(state)
        if requests:
            return Paused(
                pending=tuple(
                    Pending(
                        call_id=request.call.id,
                        name=request.call.name,
                        arguments=dict(request.call.arguments),
                        token={"request": request.model_dump(mode="json")},
                        reason=request.reason,
                    )
                    for request in requests
                    if request.call is not None
                )
            )
        turn = (state.values.get(KEY) or {}).get("turn")
        return Ended(output=str(state.values["messages"][-1].text), stopped=turn["stopped"] if turn else None)


class SyncChainAgent(ChainAgent):
    """Runs without `await`, in threads, as a synchronous application does."""

    def delegate(self) -> BaseTool:
        child = self.agent(None)

        @tool
        def delegate(task: str) -> str:
            """Hand a task to a sub-agent."""
            return str(child.invoke({"messages": [("user", task)]})["messages"][-1].text)

        return delegate

    async def invoke(self, given: Any, session: str) -> None:
        await anyio.to_thread.run_sync(lambda: self.app.invoke(given, self.config(session)))

    async def state(self, session: str) -> Any:
        return await anyio.to_thread.run_sync(lambda: self.app.get_state(self.config(session)))

    async def stream(self, session: str, prompt: str, pieces: list[str]) -> Ended | Paused:
        def stream() -> None:
            given = {"messages": [("user", prompt)]}
            for mode, event in self.app.stream(given, self.config(session), stream_mode=["messages", "custom"]):
                if mode == "messages" and event[0].type == "AIMessageChunk":
                    pieces.append(str(event[0].text))

        await anyio.to_thread.run_sync(stream)
        return await self.shown(session)


class StockChainAgent(ChainAgent):
    """`HumanInTheLoopMiddleware` alone, as its documentation shows it."""

    NO_MONITOR = "no monitor"
    offers: Sequence[str] = ()
    lacks: Mapping[str, str] = {
        "abort": NO_MONITOR,
        "advisory": NO_MONITOR,
        "belief": NO_MONITOR,
        "precondition": "no preconditions",
    }

    def middleware(self) -> Sequence[AgentMiddleware[Any, Any, Any]]:
        return [HumanInTheLoopMiddleware(interrupt_on={"pay": True})]

    async def stream(self, session: str, prompt: str, pieces: list[str]) -> Ended | Paused:
        given = {"messages": [("user", prompt)]}
        async for event in self.app.astream(given, self.config(session), stream_mode="messages"):
            pieces += [str(event[0].text)] if event[0].type == "AIMessageChunk" else []
        return await self.shown(session)

    async def resume(self, session: str, decisions: Sequence[Decision]) -> Ended | Paused:
        if (await self.state(session)).interrupts:
            said = [self._said(decision) for decision in decisions]
            await self.invoke(Command(resume={"decisions": said}), session)
        return await self.shown(session)

    @staticmethod
    def _said(decision: Decision) -> dict[str, Any]:
        said: dict[str, Any] = {"type": decision.said}
        if decision.said == "edit":
            said["edited_action"] = {"name": decision.on.name, "args": decision.arguments}
        elif decision.said != "approve":
            said["message"] = decision.message
        return said

    async def shown(self, session: str) -> Ended | Paused:
        state = await self.state(session)
        if not state.interrupts:
            return Ended(output=str(state.values["messages"][-1].text))
        asked = [action for one in state.interrupts for action in one.value["action_requests"]]
        ids = [call["id"] for m in state.values["messages"] if m.type == "ai" for call in m.tool_calls]
        waits = [call_id for call_id in ids if call_id.startswith("pay")]  # the request itself names no call
        return Paused(
            pending=tuple(
                Pending(call_id=waits[n] if n < len(waits) else "", name=action["name"], arguments=action["args"])
                for n, action in enumerate(asked)
            )
        )


def _async(agent: type[ChainAgent]) -> Any:
    @asynccontextmanager
    async def build(setup: AgentSetup) -> AsyncIterator[AgentUnderTest]:
        async with AsyncSqliteSaver.from_conn_string(str(setup.folder / "checkpoints.db")) as checkpointer:
            yield agent(setup, checkpointer)

    return build


build = _async(ChainAgent)
build_stock = _async(StockChainAgent)


@asynccontextmanager
async def build_sync(setup: AgentSetup) -> AsyncIterator[AgentUnderTest]:
    with SqliteSaver.from_conn_string(str(setup.folder / "checkpoints.db")) as checkpointer:
        yield SyncChainAgent(setup, checkpointer)
