"""Our gate inside DBOS workflows: a run that waits for somebody is rows of a store, not a workflow in memory.

pip install dbos
python examples/dbos_agent.py --folder shop                       # a workflow runs to the pause and ends
python examples/dbos_agent.py --folder shop --decision approve    # later, any process: decide, and run on
python examples/dbos_agent.py --folder shop --database postgresql://…

A workflow of DBOS that waits in `recv` is loaded again into every process that starts. Here each part of a run between
two pauses is a workflow of one step, which DBOS starts again where its process dies; the store says what was decided,
and that no call runs twice. Its id is that of the request, so deciding twice enqueues it once.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from dbos import DBOS, SetWorkflowID

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    AgentStatus,
    FunctionTools,
    ToolCall,
    UncertaintyMonitor,
    open_store,
    tool,
)
from grampus_uq.runtime import Ledger, SessionStore
from grampus_uq.testing import ScriptedModel, answer

AGENT = AgentDefinition(name="shop", model="scripted", system_prompt="You look after orders.")
SESSION = "refund-1"
QUEUE = "agents"
STORES: list[SessionStore] = []


@tool(effect="irreversible")
def refund(order_id: str, amount_eur: float) -> str:
    """Pay money back."""
    print(f"  * refunding {amount_eur} EUR for {order_id}")
    return f"refunded {amount_eur} EUR"


def make_runner(store: SessionStore) -> AgentRunner:
    """The agent as every process builds it; its model is scripted, and moderately sure."""
    call = ToolCall(id="1", name="refund", arguments={"order_id": "A-17", "amount_eur": 40.0})

    def reply(messages, options):
        if "Reply with" in (messages[-1].content or ""):
            return '{"p_true": 0.62}'
        done = any(message.role == "tool" for message in messages)
        return answer("Your 40 EUR are on their way.") if done else answer("I refund it.", tool_calls=[call])

    return AgentRunner(
        ScriptedModel(reply), FunctionTools(refund), uncertainty_monitor=UncertaintyMonitor(), store=store
    )


@DBOS.step()
async def advance(session_id: str, prompt: str | None) -> str:
    """Run to the next pause or to the end; started again after a death, it goes on where the store says."""
    store = STORES[0]
    runner = make_runner(store)
    known = await Ledger(store).load(AGENT.name, session_id)
    if known is None and prompt is not None:
        return str((await runner.run(AGENT, prompt, session_id=session_id)).status)
    state, _ = await Ledger(store).known(AGENT.name, session_id)
    if state.status in (AgentStatus.COMPLETED, AgentStatus.FAILED):
        return str(state.status)
    return str((await runner.resume(AGENT.name, session_id)).status)


@DBOS.workflow()
async def part(session_id: str, prompt: str | None = None) -> str:
    """A part of a run between two pauses."""
    return await advance(session_id, prompt)


async def begin() -> None:
    """Begin the run; the workflow ends where the run waits."""
    handle = await DBOS.enqueue_workflow_async(QUEUE, part, SESSION, "Order A-17 never came.")
    print(f"the run: {await handle.get_result()}")
    for waiting in await Ledger(STORES[0]).pending(AGENT.name):
        for request in waiting.requests:
            print(f"  waits: {request.call.canonical() if request.call else 'the answer'}")


async def decide(kind: str) -> None:
    """Decide what waits, as a page or a bot would, and enqueue the next part of its run."""
    ledger = Ledger(STORES[0])
    for waiting in await ledger.pending(AGENT.name):
        for request in waiting.requests:
            await ledger.decide(request.decide(kind, principal="ann"))
            with SetWorkflowID(request.id):
                handle = await DBOS.enqueue_workflow_async(QUEUE, part, waiting.session_id)
            print(f"the run: {await handle.get_result()}")


async def main(folder: Path, database: str | None, decision: str | None) -> None:
    """Start DBOS on the same database as the store, and do one of both."""
    STORES.append(open_store(database or f"sqlite:///{folder}/sessions.db"))
    system = database or f"sqlite:///{folder}/dbos.db"
    DBOS(config={"name": "shop", "system_database_url": system, "log_level": "ERROR"})
    DBOS.launch()
    await DBOS.register_queue_async(QUEUE, concurrency=8, polling_interval_sec=0.1)
    try:
        await (begin() if decision is None else decide(decision))
    finally:
        DBOS.destroy()
        await STORES[0].aclose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--database")
    parser.add_argument("--decision", choices=["approve", "reject"])
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    asyncio.run(main(options.folder, options.database, options.decision))
