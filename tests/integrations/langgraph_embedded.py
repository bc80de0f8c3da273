"""One life of a LangGraph agent on the embedded model: run to the pause and die, or approve what waits and end.

python -m tests.integrations.langgraph_embedded FOLDER run|approve
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.langchain_messages import as_ai_message, read_message
from grampus_uq.integrations.langgraph import resume, uncertainty_guard, waiting
from grampus_uq.models import LocalModel
from grampus_uq.recording import RecordingProcessor

QUESTION = "What is the capital of France? Answer with one word."
CONFIG: Any = {"configurable": {"thread_id": "france"}}


def graph(model: LocalModel, monitor: UncertaintyMonitor, published: Path) -> StateGraph[Any, Any, Any, Any]:
    async def agent(state: MessagesState) -> dict[str, Any]:
        transcript = [read_message(message) for message in state["messages"] if message.type == "human"]
        said = as_ai_message(await model.complete(messages=transcript, top_logprobs=5, max_tokens=12, temperature=0.0))
        if any(message.type == "tool" for message in state["messages"]):
            return {"messages": [said]}
        call = {"name": "publish", "args": {"answer": str(said.text)}, "id": "publish-1"}
        return {"messages": [AIMessage(**{**said.model_dump(exclude={"type"}), "tool_calls": [call]})]}

    def publish(answer: str) -> str:
        """Publish an answer."""
        with published.open("a") as file:
            file.write(f"{answer}\n")
        return "published"

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    uncertainty_guard(monitor, model_client=model, advisory=False).attach(builder, tools=[publish])
    return builder


async def life(folder: Path, *, decide: bool) -> list[Any]:
    """One process: run or resume, with its own model server; what waits afterwards."""
    # Whatever the little model says of itself, this policy asks before it publishes.
    policy = UncertaintyPolicy(
        irreversible_tool_names=["publish"], low_threshold=1.0, medium_threshold=0.0, high_threshold=0.0
    )
    with RecordingProcessor(folder / "runs") as recorder:
        monitor = UncertaintyMonitor(policy=policy, processors=[recorder])
        async with (
            LocalModel() as model,
            AsyncSqliteSaver.from_conn_string(str(folder / "threads.db")) as checkpointer,
        ):
            app = graph(model, monitor, folder / "published.txt").compile(checkpointer=checkpointer)
            given: Any = {"messages": [("user", QUESTION)]}
            if decide:
                state = await app.aget_state(CONFIG)
                (request,) = waiting(state)
                given = resume(state, [request.decide("approve", principal="ann")])
            await app.ainvoke(given, CONFIG)
            return waiting(await app.aget_state(CONFIG))


if __name__ == "__main__":
    where, what = Path(sys.argv[1]), sys.argv[2]
    requests = asyncio.run(life(where, decide=what == "approve"))
    print(len(requests), flush=True)
    if what == "run":
        os.kill(os.getpid(), signal.SIGKILL)
