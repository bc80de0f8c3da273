"""Threads of a LangGraph graph as the runs of a `HostedRunner`: a worker wakes those that wait at the guard."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from grampus_uq import AgentState, AgentStatus, ApprovalDecision, ApprovalRequest, MissingDependencyError, SessionError
from grampus_uq.integrations.carried_states import HOST_AGENT
from grampus_uq.integrations.langgraph_threads import KEY, asking, before_node, may_repeat
from grampus_uq.integrations.langgraph_wrapping import GuardedNode
from grampus_uq.runtime import HostedRunner, SessionStore, still_held
from grampus_uq.wire import read_messages

with MissingDependencyError.unless("langgraph", "langgraph", "Resuming a graph"):
    from langgraph.graph import START
    from langgraph.types import Command


class ThreadRunner(HostedRunner):
    """Runs threads of a compiled graph that has a guard and a checkpointer; their state stays with the checkpointer.

    A thread whose process died goes on by itself only if all nodes that would run again, tools included, are
    `repeatable` (the guard's own are). Otherwise `resume` raises SessionError, and a worker sets it aside for a human.
    `messages_key` is as in `uncertainty_guard`.
    """

    def __init__(
        self,
        app: Any,
        store: SessionStore,
        *,
        agent_id: str,
        repeatable: Collection[str] = (),
        lease_s: float = 30.0,
        messages_key: str = "messages",
    ) -> None:
        super().__init__(_Threads(app, agent_id, frozenset(repeatable)), store, agent_id=agent_id, lease_s=lease_s)
        self._app, self._messages_key = app, messages_key

    async def invoke(self, given: Any, thread_id: str) -> AgentStatus:
        """Run a thread until it ends or waits; raises SessionError for one that is alive."""
        return await self.begin(thread_id, lambda: _run(self._app, self.agent_id, given, thread_id))

    async def describe(self, state: AgentState) -> list[tuple[list[ApprovalRequest], list[str]]]:
        """The end of the thread's transcript, and the belief of its own session; why decisions were refused."""
        snapshot = await self._app.aget_state(_config(state.session_id))
        values, asked = snapshot.values, asking(snapshot)
        said, carried = values.get(self._messages_key), values.get(KEY)
        state.messages = list(read_messages(said).messages) if isinstance(said, list) else []
        own = {request.session_id for request in state.review} == {state.session_id}
        state.belief = carried["belief"]["session"] if own and carried else None
        return [(asked[one.id], one.value.get("refused") or []) for one in snapshot.interrupts if one.id in asked]


class _Threads:
    def __init__(self, app: Any, agent_id: str, repeatable: frozenset[str]) -> None:
        self._app, self._agent_id = app, agent_id
        own = {name for name, node in app.nodes.items() if isinstance(node.bound, GuardedNode) and not node.bound.deps}
        self._repeatable = {*repeatable, *own, START}

    async def pending(self, session_id: str) -> list[ApprovalRequest] | None:
        """The requests of the guard's interrupts, in the graph and its sub-graphs.

        With all writes of a step stored but not the step, nothing is named as next, but the thread goes on.
        """
        snapshot = await self._app.aget_state(_config(session_id))
        if not snapshot.tasks:
            return None
        return [request for requests in asking(snapshot).values() for request in requests]

    async def mark(self, session_id: str) -> str:
        """The latest checkpoint."""
        snapshot = await self._app.aget_state(_config(session_id))
        return str(snapshot.config["configurable"].get("checkpoint_id"))

    async def go_on(self, session_id: str, decisions: Sequence[ApprovalDecision], now_s: float) -> None:
        """Hand the decisions to the interrupts that asked; without any interrupt run what stands next again."""
        snapshot = await self._app.aget_state(_config(session_id))
        asked = asking(snapshot)
        lost = [] if asked else sorted({*snapshot.next} - self._repeatable)
        if lost:
            raise SessionError(f"The thread's process died in {', '.join(lost)}, which may have acted already.")
        may_repeat.set(self._repeatable)
        answers: dict[str, Any] = {}
        for interrupt, requests in asked.items():
            ids = {request.id for request in requests}
            given = [decision.model_dump(mode="json") for decision in decisions if decision.request_id in ids]
            if given or any(request.expired(now_s) for request in requests):
                answers[interrupt] = {"decisions": given}
        if answers or not asked:
            await _run(self._app, self._agent_id, Command(resume=answers) if answers else None, session_id)


async def _run(app: Any, agent_id: str, given: Any, thread_id: str) -> None:
    """Run the graph, each step only once the one before is stored, and tools only while the thread's lease is held."""
    before_node.set(still_held)
    HOST_AGENT.set(agent_id)
    await app.ainvoke(given, _config(thread_id), durability="sync")


def _config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}
