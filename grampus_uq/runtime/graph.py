"""A graph of nodes over one state: waits where it says it waits, and never runs a finished node twice.

After every node the state is checkpointed with what finished. A node that was running when the process died runs again
from its start; effects that must not happen twice belong into an `AgentRunner`, which keeps its own ledger.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from grampus_uq.errors import ConfigurationError, SessionError
from grampus_uq.records import Message
from grampus_uq.runtime.state import AgentState
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.vocabulary import AgentStatus, Role, UncertaintyAction

__all__ = ["Graph", "human_node", "uncertainty_guard_node"]

NodeHandler = Callable[[AgentState], Awaitable[AgentState]]
Route = Callable[[AgentState], Awaitable[str] | str]
MAX_VISITS = 1_000


class _Checkpoint(BaseModel):
    """Where an execution stands: the nodes to run next, those that wait for a human, joins and how often each ran."""

    model_config = ConfigDict(extra="forbid")

    v: int = 1
    state: AgentState
    ready: list[str] = Field(default_factory=list)
    waiting: list[str] = Field(default_factory=list)
    arrived: dict[str, list[str]] = Field(default_factory=dict)
    finished: list[str] = Field(default_factory=list)
    done: dict[str, AgentState] = Field(default_factory=dict)
    _key: str = PrivateAttr("")
    _version: int = PrivateAttr(0)  # of this execution, not of the graph: one graph may serve several at once


@dataclass(slots=True, kw_only=True)
class _Node:
    handler: NodeHandler
    edges: list[str] = field(default_factory=list)
    route: Route | None = None
    routes: dict[str, str | None] = field(default_factory=dict)


class Graph:
    """Nodes are async functions from AgentState to AgentState; edges say what follows.

    Several plain edges from one node run side by side, each on a copy of the state; a node that several of them lead to
    runs once, when all have arrived: messages that the branches added follow each other in the order of the edges, and
    metadata is merged in that order. A conditional edge follows one route. `store` keeps checkpoints; without one they
    live in this process only.
    """

    def __init__(self, *, graph_id: str, store: SessionStore | None = None, **compat: Any) -> None:
        store = compat.pop("state_store", store)
        if compat:
            raise ConfigurationError.of("arguments", "Graph", "graph_id and store", sorted(compat))
        if not graph_id:
            raise ConfigurationError.of("graph_id", "Graph", "a non-empty text", graph_id)
        self.graph_id = graph_id
        self._store: SessionStore = store if store is not None else MemoryStore()
        self._nodes: dict[str, _Node] = {}
        self._entry: str | None = None

    # -- building -------------------------------------------------------------------------------------------------

    def add_node(self, name: str, handler: NodeHandler, entry: bool = False) -> Graph:
        """Add a node; exactly one is the entry (the first, when none says so)."""
        if name in self._nodes:
            raise ConfigurationError.of("name", "Graph.add_node", "new in this graph", name)
        if entry and self._entry is not None and getattr(self, "_entry_said", False):
            raise ConfigurationError.of("entry", "Graph.add_node", "given for one node only", name)
        self._nodes[name] = _Node(handler=handler)
        if entry or self._entry is None:
            self._entry = name
            self._entry_said = entry
        return self

    def add_edge(self, source: str, target: str | None) -> Graph:
        """`target` follows `source`; None ends the branch."""
        node = self._node(source)
        if node.route is not None:
            raise ConfigurationError.of("source", "Graph.add_edge", "without a conditional edge", source)
        if target is not None:
            node.edges.append(target)
        return self

    def add_conditional_edge(self, source: str, route: Route, routes: Mapping[str, str | None]) -> Graph:
        """After `source`, `route(state)` names one of `routes`."""
        node = self._node(source)
        if node.edges or node.route is not None:
            raise ConfigurationError.of("source", "Graph.add_conditional_edge", "without another edge", source)
        node.route, node.routes = route, dict(routes)
        return self

    def _node(self, name: str) -> _Node:
        if name not in self._nodes:
            raise ConfigurationError.of("node", "Graph", f"one of {sorted(self._nodes)}", name)
        return self._nodes[name]

    def _check(self) -> str:
        if self._entry is None:
            raise ConfigurationError.of("nodes", "Graph", "at least one node", "none")
        for name, node in self._nodes.items():
            for target in (*node.edges, *node.routes.values()):
                if target is not None and target not in self._nodes:
                    raise ConfigurationError.of("edge", "Graph", f"an edge of {name!r} to an existing node", target)
        return self._entry

    # -- executing ------------------------------------------------------------------------------------------------

    async def execute(self, state: AgentState) -> AgentState:
        """Run from the entry until the graph ends or a node waits for a human; returns the state.

        There is one checkpoint a graph id, and the latest execution owns it: an older one that still runs ends with
        SessionConflictError at its next checkpoint. Give executions that run side by side graphs with ids of their own.
        """
        entry = self._check()
        stored = await self._store.get("graph", self.graph_id)
        checkpoint = _Checkpoint(state=state.model_copy(deep=True), ready=[entry])
        checkpoint._key, checkpoint._version = self.graph_id, 0 if stored is None else stored.version
        return await self._advance(checkpoint)

    async def restore_and_execute(self, graph_id: str | None = None, human_response: str | None = None) -> AgentState:
        """Go on from the last checkpoint, in this process or another; `human_response` is appended as a user's message.

        Nodes that finished do not run again. What waits is passed only when the graph had come to stand there, or with
        a `human_response`: after a crash in another branch the human is still waited for. Raises SessionError when
        there is no checkpoint.
        """
        self._check()
        stored = await self._store.get("graph", graph_id or self.graph_id)
        if stored is None:
            raise SessionError(f"There is no checkpoint of graph {graph_id or self.graph_id!r:.80}.")
        checkpoint = _Checkpoint.model_validate_json(stored.body)
        checkpoint._key, checkpoint._version = stored.key, stored.version
        stands = checkpoint.state.status is AgentStatus.WAITING_FOR_HUMAN
        if checkpoint.waiting and (stands or human_response is not None):
            if human_response is not None:
                checkpoint.state.messages.append(Message(role=Role.USER, content=human_response))
            checkpoint.state.status = AgentStatus.RUNNING
            checkpoint.state.metadata.pop("uncertainty_escalate", None)
            waiting, checkpoint.waiting = checkpoint.waiting, []
            for name in waiting:
                await self._follow(name, checkpoint, [])
            self._release_joins(checkpoint)
        return await self._advance(checkpoint)

    async def _advance(self, checkpoint: _Checkpoint) -> AgentState:
        state = checkpoint.state
        if checkpoint.ready:
            state.status = AgentStatus.RUNNING
        while checkpoint.ready:
            await self._save(checkpoint)
            await self._round(checkpoint)
            if len(checkpoint.finished) > MAX_VISITS:
                raise SessionError(f"Graph {self.graph_id!r:.80} ran {MAX_VISITS} nodes without ending.")
            if checkpoint.waiting and not checkpoint.ready:
                checkpoint.state.status = AgentStatus.WAITING_FOR_HUMAN
        if not checkpoint.waiting and checkpoint.state.status is AgentStatus.RUNNING:
            checkpoint.state.status = AgentStatus.COMPLETED
        await self._save(checkpoint)
        return checkpoint.state.model_copy(deep=True)

    async def _round(self, checkpoint: _Checkpoint) -> None:
        """Run every ready node, side by side, each on a copy; then merge what they return, in order."""
        names = list(checkpoint.ready)
        before = checkpoint.state
        lock = anyio.Lock()

        async def run(name: str) -> None:
            if name in checkpoint.done:
                return  # finished before the process died
            result = await self._nodes[name].handler(before.model_copy(deep=True))
            async with lock:
                checkpoint.done[name] = result
                if len(names) > 1:
                    await self._save(checkpoint)

        if len(names) == 1:
            await run(names[0])
        else:
            await _side_by_side(run, names)
        results, checkpoint.done, checkpoint.ready = checkpoint.done, {}, []
        checkpoint.state = _merge(before, [results[name] for name in names])
        remaining = list(names)
        for name in names:
            remaining.remove(name)
            checkpoint.finished.append(name)
            if results[name].status is AgentStatus.WAITING_FOR_HUMAN and not self._escalates(name, results[name]):
                checkpoint.waiting.append(name)
            elif results[name].status is not AgentStatus.FAILED:
                await self._follow(name, checkpoint, remaining)
        if any(result.status is AgentStatus.FAILED for result in results.values()):
            checkpoint.state.status = AgentStatus.FAILED
            checkpoint.ready = []
        else:
            self._release_joins(checkpoint)
        await self._save(checkpoint)

    def _escalates(self, name: str, state: AgentState) -> bool:
        """A guard that routes to a node of its own does not wait itself: the node it routes to does."""
        return self._nodes[name].route is not None and state.metadata.get("uncertainty_escalate") is True

    async def _follow(self, name: str, checkpoint: _Checkpoint, running: list[str]) -> None:
        node = self._nodes[name]
        targets: list[str] = list(node.edges)
        if node.route is not None:
            chosen = node.route(checkpoint.state)
            label = await chosen if inspect.isawaitable(chosen) else chosen
            if label not in node.routes:
                raise ConfigurationError.of("route", f"Graph node {name!r}", f"one of {sorted(node.routes)}", label)
            target = node.routes[label]
            targets = [] if target is None else [target]
        for target in targets:
            arrived = checkpoint.arrived.setdefault(target, [])
            arrived.append(name)
            expected = self._live_sources(target, checkpoint, running)
            if not expected - set(arrived) and target not in checkpoint.ready:
                checkpoint.ready.append(target)
                checkpoint.arrived[target] = []

    def _release_joins(self, checkpoint: _Checkpoint) -> None:
        """Run the joins whose missing branches have turned elsewhere or ended: nobody is left to wait for."""
        for target, arrived in checkpoint.arrived.items():
            if (
                arrived
                and target not in checkpoint.ready
                and not self._live_sources(target, checkpoint, []) - set(arrived)
            ):
                checkpoint.ready.append(target)
                checkpoint.arrived[target] = []

    def _live_sources(self, target: str, checkpoint: _Checkpoint, running: list[str]) -> set[str]:
        """The nodes that will still lead to `target` by a plain edge in this execution: a join waits for them."""
        sources = {name for name, node in self._nodes.items() if target in node.edges}
        live = set(running) | set(checkpoint.ready) | set(checkpoint.waiting)
        reachable = set(live)
        frontier = list(live)
        while frontier:
            node = self._nodes[frontier.pop()]
            for follower in (*node.edges, *(t for t in node.routes.values() if t is not None)):
                if follower not in reachable and follower != target:
                    reachable.add(follower)
                    frontier.append(follower)
        return sources & reachable

    async def _save(self, checkpoint: _Checkpoint) -> None:
        checkpoint._version = await self._store.put(
            "graph",
            checkpoint._key,
            checkpoint.model_dump_json(),
            expected=checkpoint._version,
            label=checkpoint.state.status.value,
        )


async def _side_by_side(run: Callable[[str], Awaitable[None]], names: list[str]) -> None:
    """Run for every name at once; the first failure cancels the others and is raised as it is, not in a group."""
    failures: list[Exception] = []

    async def guarded(name: str, scope: anyio.CancelScope) -> None:
        try:
            await run(name)
        except Exception as error:  # noqa: BLE001 (carried out of the task group and raised below)
            failures.append(error)
            scope.cancel()

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(guarded, name, group.cancel_scope)
    if failures:
        raise failures[0]


def _merge(before: AgentState, results: list[AgentState]) -> AgentState:
    """One state from the branches: what each added, in the order of the branches; a single branch is taken as it is."""
    if len(results) == 1:
        return results[0]
    merged = before.model_copy(deep=True)
    for result in results:
        merged.messages += result.messages[len(before.messages) :]
        merged.metadata.update(
            {k: v for k, v in result.metadata.items() if k not in before.metadata or before.metadata[k] != v}
        )
        merged.current_step = max(merged.current_step, result.current_step)
        if result.output:
            merged.output = result.output
    return merged


def human_node(prompt: str = "Waiting for a human.") -> NodeHandler:
    """A node that waits: the graph stops there, and goes on behind it when it is restored."""

    async def handler(state: AgentState) -> AgentState:
        waiting = state.model_copy(deep=True)
        waiting.messages.append(Message(role=Role.SYSTEM, content=prompt))
        waiting.status = AgentStatus.WAITING_FOR_HUMAN
        return waiting

    return handler


def uncertainty_guard_node(
    monitor: Any, *, step_type: str = "decision", escalate_node: str | None = None
) -> NodeHandler:
    """A node that judges the last answer of the model: `metadata["uncertainty"]` says what it found.

    On a pause or an abort it waits; with `escalate_node` it sets `metadata["uncertainty_escalate"]`, for a conditional
    edge to route to that node, which waits instead. Asks of its monitor only `observe_llm_response` and
    `summary_metadata`.
    """

    async def handler(state: AgentState) -> AgentState:
        answers = [m for m in state.messages if m.role is Role.ASSISTANT]
        text = (answers[-1].content or "") if answers else ""
        _, action = await monitor.observe_llm_response(text, f"guard_{state.current_step}", step_type=step_type)
        judged = state.model_copy(deep=True)
        judged.metadata["uncertainty"] = monitor.summary_metadata()
        judged.metadata.pop("uncertainty_escalate", None)
        if action in (UncertaintyAction.PAUSE_FOR_HUMAN, UncertaintyAction.ABORT):
            judged.status = AgentStatus.WAITING_FOR_HUMAN
            if escalate_node is not None:
                judged.metadata["uncertainty_escalate"] = True
        return judged

    return handler
