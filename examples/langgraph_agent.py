"""A LangGraph agent that pays invoices: it looks one up, pauses before money moves, goes on when you approved.

python examples/langgraph_agent.py                               # a scripted model, no network
python examples/langgraph_agent.py --model gpt-4o-mini           # any litellm model that can call tools
python examples/langgraph_agent.py --model NAME --api-base URL   # any OpenAI-compatible server
python examples/langgraph_agent.py --database paid.db            # stop at the pause; say --resume approve later

Its checkpoints are in SQLite: pip install langgraph-checkpoint-sqlite
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from grampus_uq import ModelClient, Role, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langgraph import as_ai_message, read_message, resume, uncertainty_guard, waiting
from grampus_uq.models import open_model
from grampus_uq.testing import ScriptedModel, answer

TASK = "Invoice 2041 is due. Check it, and pay it."


@tool
def get_invoice(number: int) -> str:
    """Look an invoice up."""
    return f"Invoice {number}: 120 EUR, to Bob's Bikes."


@tool
def pay(to: str, amount_eur: int) -> str:
    """Pay an invoice. This cannot be undone."""
    print(f"  * paying {amount_eur} EUR to {to}")
    return f"Paid {amount_eur} EUR to {to}."


TOOLS = [get_invoice, pay]


def scripted() -> ModelClient:
    """A model that does the right thing and is moderately sure of it; it is its own judge as well."""
    turns = [
        answer("I look it up.", tool_calls=[ToolCall(id="1", name="get_invoice", arguments={"number": 2041})]),
        answer(
            "It is right, I pay.",
            tool_calls=[ToolCall(id="2", name="pay", arguments={"to": "Bob's Bikes", "amount_eur": 120})],
        ),
        answer("Invoice 2041 is paid."),
    ]

    def reply(messages: Any, options: Any) -> Any:
        if "Reply with" in (messages[-1].content or ""):
            return '{"p_true": 0.72}'
        return turns[min(sum(m.role is Role.ASSISTANT for m in messages), len(turns) - 1)]

    return ScriptedModel(reply)


def graph(client: Any) -> StateGraph[Any, Any, Any, Any]:
    """The agent's node, and the guard behind it."""
    schemas = [convert_to_openai_tool(one) for one in TOOLS]

    async def agent(state: MessagesState) -> dict[str, Any]:
        transcript = [read_message(message) for message in state["messages"]]
        return {"messages": [as_ai_message(await client.complete(messages=transcript, model="", tools=schemas))]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
    guard = uncertainty_guard(monitor, model_client=client)
    guard.attach(builder, after="agent", tools=TOOLS)
    return builder


async def main(options: argparse.Namespace) -> None:
    """Run to the pause, or take it up again; decide, and run on."""
    client = scripted() if options.model is None else open_model(options.model, api_base=options.api_base)
    config: Any = {"configurable": {"thread_id": "invoice-2041"}}
    async with AsyncSqliteSaver.from_conn_string(options.database or ":memory:") as checkpointer:
        app = graph(client).compile(checkpointer=checkpointer)
        if options.resume is None:
            start: Any = {"messages": [("user", TASK)]}
            await app.ainvoke(start, config)
        requests = waiting(await app.aget_state(config))
        for request in requests:
            print(f"waits: {request.call.canonical() if request.call else 'the answer'} ({request.reason})")
        decision = options.resume or (None if options.database else options.decision)
        while requests and decision is not None:
            said = [request.decide(decision, principal="you") for request in requests]
            command: Any = resume(await app.aget_state(config), said)
            await app.ainvoke(command, config)
            requests = waiting(await app.aget_state(config))
        if not requests:
            print("answer:", (await app.aget_state(config)).values["messages"][-1].text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--api-base")
    parser.add_argument("--database", help="keep the thread in this file, and stop at the pause")
    parser.add_argument("--resume", choices=["approve", "reject"], help="take the waiting thread of --database up")
    parser.add_argument("--decision", default="approve", choices=["approve", "reject"])
    asyncio.run(main(parser.parse_args()))
