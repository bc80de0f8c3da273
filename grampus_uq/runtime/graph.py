"""A graph of nodes over one state, checkpointed after every node: finished nodes never run twice.

One process at a time executes a checkpoint, under a lease that it renews while nodes run. A node that was running when
the process died runs again from its start; effects that must not happen twice belong into an `AgentRunner`.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from grampus_uq.errors import ConfigurationError, SessionConflictError, SessionError, StoreError
from grampus_uq.records.values import Message, TokenUsage
from grampus_uq.records.vocabulary import AgentStatus, Role
from grampus_uq.runtime.concurrent_tasks import run_together, run_with_watch
from grampus_uq.runtime.graph_nodes import ESCALATES, PASSED, NodeHandler
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.session_lease import half_gone, put_own
from grampus_uq.runtime.store import Document, SessionStore, parsed
from grampus_uq.runtime.stores.memory import MemoryStore


class GraphCheckpoint(BaseModel):
    """An execution: the nodes to run next, those that wait for a human, joins, and the nodes that have run."""

    model_config = ConfigDict(extra="ignore")  # earlier versions wrote more

    v: int = 1
    state: AgentState
    ready: list[str] = Field(default_factory=list)
    waiting: list[str] = Field(default_factory=list)
    arrived: dict[str, list[str]] = Field(default_factory=dict)
    finished: list[str] = Field(default_factory=list)
    done: dict[str, AgentState] = Field(default_factory=dict)
    holder: str | None = None
    lease_s: float = 0.0
    saves: int = 0
    _store: SessionStore = PrivateAttr()
    _key: str = PrivateAttr("")
    _version: int = PrivateAttr(0)  # of this execution, not of the graph: one graph may serve several at once
    _lock: anyio.Lock = PrivateAttr(default_factory=anyio.Lock)
    _saved_at: float = PrivateAttr(-math.inf)

    def waits_at(self) -> list[str]:
        return list(dict.fromkeys(self.waiting))

    async def save(self) -> None:
        """Compare and set as `put_own` does; a checkpoint is of the execution that holds it, its `saves`-th."""
        async with self._lock:
            self.saves += 1
            began, body, label = time.monotonic(), self.model_dump_json(), self.state.status.value

            async def write() -> None:
                self._version = await self._store.put("graph", self._key, body, expected=self._version, label=label)

            async def was_made() -> bool:
                found = await self._store.get("graph", self._key)
                if found is None or (made := parsed(GraphCheckpoint, found.body, "A checkpoint")).holder != self.holder:
                    raise SessionConflictError(f"Graph {self._key!r:.80} was taken over by another worker.")
                self._version = found.version
                return made.saves >= self.saves

            await put_own(write, was_made, "The checkpoint")
            self._saved_at = began


def merged(before: AgentState, results: list[AgentState]) -> AgentState:
    """One state from the branches: what each added, in the order of the branches; a single branch is taken as it is."""
    if len(results) == 1:
        return results[0]
    state = before.model_copy(deep=True)
    for result in results:
        _add(state, before, result)
    return state


def _add(onto: AgentState, before: AgentState, after: AgentState) -> None:
    """Add to a state what came between two others: messages, metadata, output, steps, tokens and calls."""
    onto.messages += after.messages[len(before.messages) :]
    changed = {k: v for k, v in after.metadata.items() if k not in before.metadata or before.metadata[k] != v}
    onto.metadata.update(changed)
    onto.current_step = max(onto.current_step, after.current_step)
    if after.output and after.output != before.output:
        onto.output = after.output
    onto.tool_calls_made += after.tool_calls_made - before.tool_calls_made
    onto.active_s += after.active_s - before.active_s
    used = _used(before.total_token_usage or TokenUsage(), after.total_token_usage)
    if used is not None:
        onto.total_token_usage = used if onto.total_token_usage is None else onto.total_token_usage + used


def _used(before: TokenUsage, after: TokenUsage | None) -> TokenUsage | None:
    """Return the usage between two counts; None if nothing was counted."""
    if after is None or after == before:
        return None
    counts = ("input_tokens", "output_tokens", "total_tokens")
    used: dict[str, Any] = {name: max(0, getattr(after, name) - getattr(before, name)) for name in counts}
    cost = None if after.cost_usd is None else after.cost_usd - (before.cost_usd or 0.0)
    return after.model_copy(update={**used, "cost_usd": cost})


Route = Callable[[AgentState], Awaitable[str] | str]
_MAX_VISITS = 1_000


@dataclass(slots=True, kw_only=True)
class _Node:
    handler: NodeHandler
    edges: list[str] = field(default_factory=list)
    route: Route | None = None
    routes: dict[str, str | None] = field(default_factory=dict)


class Graph:
    """Async functions from AgentState to AgentState as nodes; edges give their order.

    Several plain edges from one node run concurrently, each on a copy of the state; a node that several of them lead to
    runs once, when all have arrived: their messages and metadata are merged in the order of the edges. A conditional
    edge follows one route. `store` keeps checkpoints; by default they live in this process only. An execution that died
    can be restored once its lease of `lease_s` has expired. One that has run `max_visits` nodes stops with an error;
    with a larger value it can be restored.

    A paused node, except `human_node` and the guard, runs again when it is answered. A graph cannot be a node of
    another: its finished nodes would run twice.
    """

    def __init__(
        self,
        *,
        graph_id: str,
        store: SessionStore | None = None,
        lease_s: float = 30.0,
        max_visits: int = _MAX_VISITS,
        **compat: Any,
    ) -> None:
        store = compat.pop("state_store", store)
        if compat:
            raise ConfigurationError.of("arguments", "Graph", "graph_id and store", sorted(compat))
        if not graph_id:
            raise ConfigurationError.of("graph_id", "Graph", "a non-empty text", graph_id)
        if not lease_s > 0.0:
            raise ConfigurationError.of("lease_s", "Graph", "above 0 seconds", lease_s)
        if max_visits < 1:
            raise ConfigurationError.of("max_visits", "Graph", "at least 1", max_visits)
        self.graph_id = graph_id
        self._lease_s, self._max_visits = lease_s, max_visits
        self._store: SessionStore = store if store is not None else MemoryStore()
        self._nodes: dict[str, _Node] = {}
        self._entry: str | None = None
        self._entry_said = False

    # -- building -------------------------------------------------------------------------------------------------

    def add_node(self, name: str, handler: NodeHandler, entry: bool = False) -> Graph:
        """Add a node; exactly one is the entry (the first, when none says so)."""
        if name in self._nodes:
            raise ConfigurationError.of("name", "Graph.add_node", "new in this graph", name)
        if entry and self._entry_said:
            raise ConfigurationError.of("entry", "Graph.add_node", "given for one node only", name)
        if isinstance(getattr(handler, "__self__", handler), Graph):
            raise ConfigurationError.of("handler", "Graph.add_node", "no graph: add its nodes to this one", name)
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
        checkpoint = GraphCheckpoint(state=state.model_copy(deep=True), ready=[entry])
        checkpoint._store, checkpoint._key = self._store, self.graph_id
        checkpoint._version = 0 if stored is None else stored.version
        return await self._advance(checkpoint)

    async def restore_and_execute(
        self, graph_id: str | None = None, human_response: str | None = None, *, node: str | None = None
    ) -> AgentState:
        """Continue from the last checkpoint, in any process; `human_response` is appended as a user's message.

        Finished nodes do not run again. A waiting node waits until there is a `human_response`; an empty one only lets
        it continue. Where several nodes wait, each has an answer of its own, and `node` says whose it is.

        Raises SessionError when there is no checkpoint, when an answer is for no waiting node, or for one of several
        without its name, and when a node of the checkpoint is not in this graph; SessionConflictError while another
        process executes it.
        """
        self._check()
        if node is not None and human_response is None:
            raise ConfigurationError.of("node", "Graph.restore_and_execute", "given with a human_response", node)
        checkpoint = await self._stored(graph_id or self.graph_id)
        if human_response is not None:
            name = self._answered(checkpoint, node)
            if human_response:  # also to what ran beside a node that died: it is merged as what came after the state
                said, at = Message(role=Role.USER, content=human_response), len(checkpoint.state.messages)
                for state in (checkpoint.state, *checkpoint.done.values()):
                    state.messages.insert(at, said)
            checkpoint.state.status = AgentStatus.RUNNING
            checkpoint.state.metadata.pop("uncertainty_escalate", None)
            checkpoint.waiting = [one for one in checkpoint.waiting if one != name]
            if getattr(self._nodes[name].handler, PASSED, False):
                self._follow(await self._targets(name, checkpoint.state), name, checkpoint, [])
            elif name not in checkpoint.ready:
                checkpoint.ready.append(name)
            self._release_joins(checkpoint, checkpoint.arrived, [])
        return await self._advance(checkpoint)

    def _answered(self, checkpoint: GraphCheckpoint, node: str | None) -> str:
        """The waiting node that an answer is for."""
        waiting = checkpoint.waits_at()
        meant = waiting if node is None else [name for name in waiting if name == node]
        if len(meant) == 1:
            return meant[0]
        graph = f"Graph {checkpoint._key!r:.80}"
        if not waiting:
            raise SessionError(f"{graph} waits for no answer (it is {checkpoint.state.status}): nothing was taken.")
        if node is None:
            raise SessionError(f"{graph} waits for several answers: say in `node` for which of {waiting} this one is.")
        raise SessionError(f"{graph} waits for an answer to one of {waiting}, and not to {node!r:.80}.")

    async def waiting(self, graph_id: str | None = None) -> list[str]:
        """The nodes of the last checkpoint that wait for an answer. Raises SessionError when there is no checkpoint."""
        return (await self._read(graph_id or self.graph_id))[1].waits_at()

    async def _read(self, key: str) -> tuple[Document, GraphCheckpoint]:
        stored = await self._store.get("graph", key)
        if stored is None:
            raise SessionError(f"There is no checkpoint of graph {key!r:.80}.")
        return stored, parsed(GraphCheckpoint, stored.body, f"The checkpoint of graph {key!r:.80}")

    async def _stored(self, key: str) -> GraphCheckpoint:
        stored, checkpoint = await self._read(key)
        left = checkpoint.lease_s - stored.age_s
        if checkpoint.holder is not None and left > 0.0:
            raise SessionConflictError(
                f"Graph {key!r:.80} is executed by another worker; its lease ends in {left:.1f} s unless it is renewed."
            )
        open_nodes = {*checkpoint.ready, *checkpoint.waiting, *checkpoint.done}
        open_nodes |= {target for target, arrived in checkpoint.arrived.items() if arrived}
        gone = sorted(open_nodes - self._nodes.keys())
        if gone:
            raise SessionError(
                f"Graph {key!r:.80} has no node {gone[0]!r:.80} any more, and its checkpoint goes on there: restore it "
                "with the nodes that it was executed with."
            )
        checkpoint._store, checkpoint._key, checkpoint._version = self._store, stored.key, stored.version
        return checkpoint

    async def _advance(self, checkpoint: GraphCheckpoint) -> AgentState:
        """Run the ready nodes under a lease, and release it whatever happens."""
        checkpoint.holder, checkpoint.lease_s = uuid.uuid4().hex, self._lease_s
        if checkpoint.ready:
            checkpoint.state.status = AgentStatus.RUNNING
        await checkpoint.save()

        async def renew() -> None:
            while True:
                await anyio.sleep(self._lease_s / 3)
                with contextlib.suppress(StoreError):  # the next node's own checkpoint says so
                    await checkpoint.save()

        try:
            await run_with_watch(lambda: self._run_ready(checkpoint), renew)
            if checkpoint.waiting:
                checkpoint.state.status = AgentStatus.WAITING_FOR_HUMAN
            elif checkpoint.state.status is AgentStatus.RUNNING:
                checkpoint.state.status = AgentStatus.COMPLETED
        except (Exception, anyio.get_cancelled_exc_class()):
            checkpoint.lease_s = 0.0
            with anyio.move_on_after(2.0, shield=True), contextlib.suppress(StoreError, SessionConflictError):
                await checkpoint.save()  # else the lease runs out by itself, or another execution has the checkpoint
            raise
        checkpoint.lease_s = 0.0
        await checkpoint.save()
        return checkpoint.state.model_copy(deep=True)

    async def _run_ready(self, checkpoint: GraphCheckpoint) -> None:
        while checkpoint.ready:
            if len(checkpoint.finished) >= self._max_visits:
                raise SessionError(
                    f"Graph {checkpoint._key!r:.80} ran {len(checkpoint.finished)} nodes without ending. If it is not "
                    "an endless loop, restore it with a larger `max_visits`; it continues where it stopped."
                )
            await self._round(checkpoint)

    async def _round(self, checkpoint: GraphCheckpoint) -> None:
        """Run all ready nodes concurrently, each on a copy, and merge their results in order."""
        names = list(checkpoint.ready)
        before = checkpoint.state

        async def run(name: str) -> None:
            if name in checkpoint.done:
                return  # finished before the process died
            while half_gone(checkpoint._saved_at, self._lease_s):
                await checkpoint.save()  # the node beside it may have held this process up
            result = await self._nodes[name].handler(before.model_copy(deep=True))
            if not isinstance(result, AgentState):  # no store could give it back
                raise ConfigurationError.of("handler", f"Graph node {name!r}", "one that returns an AgentState", result)
            checkpoint.done[name] = result
            if len(names) > 1:
                await checkpoint.save()

        await run_together([partial(run, name) for name in names])
        results = checkpoint.done
        state = merged(before, [results[name] for name in names])
        waiting = {name for name in names if self._waits(name, results[name])}
        going_on = [name for name in names if name not in waiting and results[name].status is not AgentStatus.FAILED]
        # A route may fail, or be cancelled: the checkpoint is changed behind the last one, and not in between.
        targets = {name: await self._targets(name, state) for name in going_on}
        checkpoint.done, checkpoint.ready, checkpoint.state = {}, [], state
        remaining = list(names)
        for name in names:
            remaining.remove(name)
            checkpoint.finished.append(name)
            if name in waiting:
                checkpoint.waiting.append(name)
            elif name in targets:
                self._follow(targets[name], name, checkpoint, remaining)
        if any(result.status is AgentStatus.FAILED for result in results.values()):
            checkpoint.state.status = AgentStatus.FAILED
            checkpoint.ready, checkpoint.waiting = [], []
        else:
            self._release_joins(checkpoint, checkpoint.arrived, [])
        await checkpoint.save()

    def _waits(self, name: str, state: AgentState) -> bool:
        """Return True for a node that waits for a human; not for a guard whose escalation node waits in its place."""
        node = self._nodes[name]
        leads_on = getattr(node.handler, ESCALATES, False) and node.route is not None
        escalates = leads_on and state.metadata.get("uncertainty_escalate") is True
        return state.status is AgentStatus.WAITING_FOR_HUMAN and not escalates

    async def _targets(self, name: str, state: AgentState) -> list[str]:
        """The nodes that follow a node."""
        node = self._nodes[name]
        if node.route is None:
            return list(node.edges)
        chosen = node.route(state)
        label = await chosen if inspect.isawaitable(chosen) else chosen
        if label not in node.routes:
            raise ConfigurationError.of("route", f"Graph node {name!r}", f"one of {sorted(node.routes)}", label)
        target = node.routes[label]
        return [] if target is None else [target]

    def _follow(self, targets: list[str], name: str, checkpoint: GraphCheckpoint, running: list[str]) -> None:
        for target in targets:
            checkpoint.arrived.setdefault(target, []).append(name)
            self._release_joins(checkpoint, [target], running)

    def _release_joins(self, checkpoint: GraphCheckpoint, targets: Iterable[str], running: list[str]) -> None:
        """Run those of these nodes whose missing branches have ended or turned elsewhere."""
        for target in targets:
            arrived = {*checkpoint.arrived[target]}
            if not arrived or target in checkpoint.done:
                continue
            if target in checkpoint.ready:  # it has not begun: who leads to it now is among those that it follows
                checkpoint.arrived[target] = []
            elif not self._live_sources(target, checkpoint, running) - arrived:
                checkpoint.ready.append(target)
                checkpoint.arrived[target] = []

    def _live_sources(self, target: str, checkpoint: GraphCheckpoint, running: list[str]) -> set[str]:
        """The nodes that may still lead to `target` by a plain edge in this execution; a join waits for them."""
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
