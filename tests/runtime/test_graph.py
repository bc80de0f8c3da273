"""Graphs wait where they say, checkpoint after each node, join branches once, and never run a finished node twice."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import (
    AgentState,
    AgentStatus,
    ConfigurationError,
    Graph,
    Message,
    Role,
    SessionError,
    human_node,
    open_store,
)
from grampus_uq.runtime.graph import NodeHandler
from grampus_uq.runtime.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio


def say(name: str, visited: list[str], delay_s: float = 0.0) -> NodeHandler:
    async def handler(state: AgentState) -> AgentState:
        await anyio.sleep(delay_s)
        visited.append(name)
        state.messages.append(Message(role=Role.ASSISTANT, content=name))
        state.metadata[name] = True
        return state

    return handler


def fresh() -> AgentState:
    return AgentState(agent_id="a", session_id="s")


async def test_parallel_branches_run_side_by_side_and_join_once_in_the_order_of_their_edges() -> None:
    visited: list[str] = []
    graph = Graph(graph_id="g").add_node("start", say("start", visited), entry=True)
    graph.add_node("slow", say("slow", visited, 0.05)).add_node("fast", say("fast", visited))
    graph.add_node("end", say("end", visited))
    graph.add_edge("start", "slow").add_edge("start", "fast").add_edge("slow", "end").add_edge("fast", "end")
    graph.add_edge("end", None)
    state = await graph.execute(fresh())
    assert visited == ["start", "fast", "slow", "end"]
    assert [m.content for m in state.messages] == ["start", "slow", "fast", "end"]
    assert state.metadata == {"start": True, "slow": True, "fast": True, "end": True}
    assert state.status is AgentStatus.COMPLETED


async def test_branches_of_unequal_length_join_once() -> None:
    visited: list[str] = []
    graph = Graph(graph_id="g")
    for name in ("start", "a", "b1", "b2", "end"):
        graph.add_node(name, say(name, visited))
    graph.add_edge("start", "a").add_edge("start", "b1").add_edge("b1", "b2").add_edge("b2", "end").add_edge("a", "end")
    await graph.execute(fresh())
    assert visited.count("end") == 1
    assert visited.index("end") > visited.index("b2")


async def test_a_node_that_dies_runs_again_on_restore_and_finished_ones_do_not(tmp_path: Path) -> None:
    url = str(tmp_path / "g.db")
    visited: list[str] = []
    broken = True

    async def fails(state: AgentState) -> AgentState:
        if broken:
            raise RuntimeError("the process died here")
        visited.append("second")
        return state

    def build() -> Graph:
        graph = Graph(graph_id="g", store=open_store(url)).add_node("first", say("first", visited), entry=True)
        return graph.add_node("second", fails).add_edge("first", "second")

    with pytest.raises(RuntimeError):
        await build().execute(fresh())
    broken = False
    state = await build().restore_and_execute("g")
    assert visited == ["first", "second"]
    assert state.status is AgentStatus.COMPLETED


async def test_of_two_parallel_nodes_the_finished_one_is_kept_when_the_other_dies(tmp_path: Path) -> None:
    url = str(tmp_path / "g.db")
    visited: list[str] = []
    broken = True

    async def fails(state: AgentState) -> AgentState:
        await anyio.sleep(0.1)
        if broken:
            raise RuntimeError("dies after its sibling has finished")
        visited.append("bad")
        return state

    def build() -> Graph:
        graph = Graph(graph_id="g", store=open_store(url)).add_node("start", say("start", visited), entry=True)
        graph.add_node("good", say("good", visited)).add_node("bad", fails).add_node("end", say("end", visited))
        return graph.add_edge("start", "good").add_edge("start", "bad").add_edge("good", "end").add_edge("bad", "end")

    with pytest.raises(RuntimeError, match="dies"):
        await build().execute(fresh())
    broken = False
    await build().restore_and_execute("g")
    assert visited == ["start", "good", "bad", "end"]


async def test_a_human_in_one_branch_lets_the_other_finish_and_the_join_waits() -> None:
    visited: list[str] = []
    store = MemoryStore()

    def build() -> Graph:
        graph = Graph(graph_id="g", store=store).add_node("start", say("start", visited), entry=True)
        graph.add_node("human", human_node("Look.")).add_node("work", say("work", visited))
        graph.add_node("end", say("end", visited))
        return (
            graph.add_edge("start", "human").add_edge("start", "work").add_edge("human", "end").add_edge("work", "end")
        )

    state = await build().execute(fresh())
    assert state.status is AgentStatus.WAITING_FOR_HUMAN
    assert visited == ["start", "work"]
    state = await build().restore_and_execute("g", "fine")
    assert visited == ["start", "work", "end"]
    assert state.status is AgentStatus.COMPLETED
    assert [m.content for m in state.messages if m.role is Role.USER] == ["fine"]


async def test_a_loop_by_a_conditional_edge_ends_when_its_route_says_so() -> None:
    visited: list[str] = []

    async def again(state: AgentState) -> str:
        return "again" if len(visited) < 3 else "done"

    graph = Graph(graph_id="g").add_node("work", say("work", visited), entry=True)
    graph.add_conditional_edge("work", again, {"again": "work", "done": None})
    state = await graph.execute(fresh())
    assert visited == ["work"] * 3
    assert state.status is AgentStatus.COMPLETED


async def test_a_wrong_graph_is_refused_with_the_name_of_what_is_wrong() -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        await Graph(graph_id="g").add_node("a", say("a", [])).add_edge("a", "nowhere").execute(fresh())
    with pytest.raises(ConfigurationError, match="new in this graph"):
        Graph(graph_id="g").add_node("a", say("a", [])).add_node("a", say("a", []))

    async def elsewhere(state: AgentState) -> str:
        return "elsewhere"

    graph = Graph(graph_id="g").add_node("a", say("a", []))
    graph.add_conditional_edge("a", elsewhere, {"here": None})
    with pytest.raises(ConfigurationError, match="elsewhere"):
        await graph.execute(fresh())
    with pytest.raises(SessionError, match="no checkpoint"):
        await Graph(graph_id="new").add_node("a", say("a", [])).restore_and_execute()


@given(edges=st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda e: e[0] < e[1]), max_size=14))
@settings(max_examples=60)
def test_in_any_acyclic_graph_every_reachable_node_runs_exactly_once_after_its_predecessors(
    edges: set[tuple[int, int]],
) -> None:
    visited: list[str] = []
    graph = Graph(graph_id="g")
    for number in range(7):
        graph.add_node(str(number), say(str(number), visited), entry=number == 0)
    for source, target in sorted(edges):
        graph.add_edge(str(source), str(target))
    anyio.run(graph.execute, fresh())
    reachable = {0}
    for source, target in sorted(edges):
        if source in reachable:
            reachable.add(target)
    assert sorted(visited) == sorted(map(str, reachable))
    for source, target in edges:
        if source in reachable:
            assert visited.index(str(source)) < visited.index(str(target))
