"""What LangGraph's users do without the adapter: `interrupt()` in the tool, or in one node with the monitor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Send, interrupt

from grampus_uq.integrations.langchain_messages import read_turn
from grampus_uq.testing import AgentSetup, AgentUnderTest, Decision, Ended, Paused, Pending, Watch
from tests.integrations.langgraph_agent import GraphAgent

NO_MONITOR = "no monitor"
STOPPED = "stopped"


class StockAgent(GraphAgent):
    """The documented pattern: the tool that needs approval interrupts."""

    offers: Sequence[str] = ()
    lacks: Mapping[str, str] = {
        "abort": NO_MONITOR,
        "advisory": NO_MONITOR,
        "belief": NO_MONITOR,
        "precondition": "no preconditions",
    }

    def guard(self, builder: StateGraph[Any, Any, Any, Any], tools: list[BaseTool]) -> None:
        setup = self.setup

        @tool
        def pay(to: str, amount: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
            """Pay money."""
            said = interrupt({"id": tool_call_id, "name": "pay", "arguments": {"to": to, "amount": amount}})
            match said["type"]:
                case "approve":
                    return setup.pay(to, amount)
                case "edit":
                    return setup.pay(**said["arguments"])
                case "reject":
                    return "A human rejected this."
                case _:
                    return str(said["message"])

        builder.add_node("tools", ToolNode([pay if t.name == "pay" else t for t in tools]))
        builder.add_conditional_edges("agent", tools_condition)
        builder.add_edge("tools", "agent")

    async def stream(self, session: str, prompt: str, pieces: list[str]) -> Ended | Paused:
        given: Any = {"messages": [("user", prompt)]}
        event: Any
        async for event in self.app.astream(given, self.config(session), stream_mode="messages"):
            pieces += [str(event[0].text)] if event[0].type == "AIMessageChunk" else []
        return await self.shown(session)

    async def resume(self, session: str, decisions: Sequence[Decision]) -> Ended | Paused:
        state = await self.state(session)
        said = {d.on.call_id: {"type": d.said, "arguments": d.arguments, "message": d.message} for d in decisions}
        resume: Any = {i.id: said[i.value["id"]] for i in state.interrupts if i.value["id"] in said}
        if resume:
            await self.invoke(Command(resume=resume), session)
        return await self.shown(session)

    async def shown(self, session: str) -> Ended | Paused:
        state = await self.state(session)
        if state.interrupts:
            return Paused(
                pending=tuple(
                    Pending(call_id=i.value["id"], name=i.value["name"], arguments=i.value["arguments"], token=i.id)
                    for i in state.interrupts
                )
            )
        text = str(state.values["messages"][-1].text)
        return Ended(output=text, stopped=text if text == STOPPED else None)


class NaiveState(MessagesState):
    belief: dict[str, Any]


class NaiveGuardAgent(StockAgent):
    """Monitor and interrupt in one node: what the first example of a guard that one writes looks like."""

    offers: Sequence[str] = ()
    lacks: Mapping[str, str] = {"precondition": "no preconditions"}

    def guard(self, builder: StateGraph[Any, Any, Any, Any], tools: list[BaseTool]) -> None:
        monitor, judge = self.setup.monitor(advisory=self.setup.watch is Watch.ADVISORY), self.setup.judge()
        assert monitor is not None

        async def guard(state: NaiveState, config: RunnableConfig) -> Command[Any]:
            message: Any = state["messages"][-1]
            session = monitor.session(config["configurable"]["thread_id"], snapshot=state.get("belief"))
            said = read_turn(state["messages"][-1], state["messages"][:-1])
            _, action = await session.observe_llm_response(
                said.content, message.id, prompt_messages=said.prompt, model_client=judge, tool_calls=said.calls
            )
            if not said.calls or action.value == "abort":
                stopped = [] if not said.calls else [ToolMessage(STOPPED, tool_call_id=c.id) for c in said.calls]
                return Command(update={"belief": session.snapshot(), "messages": stopped})
            goto, told = [], []
            for call, raw in zip(said.calls, message.tool_calls, strict=True):
                _, verdict = await session.observe_tool_call(call, message.id)
                answer = {"type": "approve"}
                if verdict.stops:
                    answer = interrupt({"id": call.id, "name": call.name, "arguments": call.arguments})
                    session.record_decision(answer["type"], principal="ann", call=call)
                if answer["type"] in ("approve", "edit"):
                    raw = {**raw, "args": answer.get("arguments") or raw["args"]}
                    alone = message.model_copy(update={"tool_calls": [raw]})
                    goto.append(Send("tools", {**state, "messages": [*state["messages"][:-1], alone]}))
                else:
                    told.append(ToolMessage(answer.get("message") or "rejected", tool_call_id=call.id))
            update = {"belief": session.snapshot(), "messages": told}
            return Command(update=update, goto=goto or "agent")

        builder.add_node("guard", guard, input_schema=NaiveState, destinations=("tools", "agent"))
        builder.add_node("tools", ToolNode(tools))
        builder.add_edge("agent", "guard")
        builder.add_edge("tools", "agent")


@asynccontextmanager
async def build(setup: AgentSetup) -> AsyncIterator[AgentUnderTest]:
    async with AsyncSqliteSaver.from_conn_string(str(setup.folder / "checkpoints.db")) as checkpointer:
        yield StockAgent(setup, checkpointer)


@asynccontextmanager
async def build_naive(setup: AgentSetup) -> AsyncIterator[AgentUnderTest]:
    async with AsyncSqliteSaver.from_conn_string(str(setup.folder / "checkpoints.db")) as checkpointer:
        yield NaiveGuardAgent(setup, checkpointer)
