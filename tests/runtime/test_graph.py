"""Graphs wait where they say, checkpoint after each node, join branches once, and never run a finished node twice."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grampus_uq import (
    AgentState,
    AgentStatus,
    ConfigurationError,
    Graph,
    Message,
    Role,
    SessionError,
    TokenUsage,
    human_node,
    open_store,
)
from grampus_uq.errors import SessionConflictError, StoreError
from grampus_uq.records.vocabulary import UncertaintyAction
from grampus_uq.runtime.graph import NodeHandler
from grampus_uq.runtime.graph_nodes import ESCALATES, PASSED, uncertainty_guard_node
from grampus_uq.runtime.store import Change, Document, SessionStore
from grampus_uq.runtime.stores.memory import MemoryStore
from tests.sampling import examples

pytestmark = [pytest.mark.anyio, pytest.mark.jumping_clocks]


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
@settings(max_examples=examples(60))
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


LEVELS = ("0", "123", "456", "789")


@given(
    edges=st.sets(st.sampled_from([a + b for one, two in itertools.pairwise(LEVELS) for a in one for b in two])),
    order=st.randoms(use_true_random=False),
)
@example(edges={"01", "02", "14", "24"}, order=random.Random(0))
@settings(max_examples=examples(100), deadline=None)
def test_a_node_that_several_lead_to_at_once_runs_once_whether_by_plain_edges_or_by_routes(
    edges: set[str], order: random.Random
) -> None:
    visited: list[str] = []
    graph, shuffled = Graph(graph_id="g"), order.sample(sorted(edges), len(edges))
    for name in "".join(LEVELS):
        graph.add_node(name, say(name, visited), entry=name == "0")
    sources = Counter(source for source, _ in edges)
    for source, target in shuffled:
        if sources[source] == 1 and order.random() < 0.7:
            graph.add_conditional_edge(source, lambda state: "on", {"on": target, "back": "0"})
        else:
            graph.add_edge(source, target)
    state = anyio.run(graph.execute, fresh())
    reachable = {"0"}
    for source, target in sorted(edges):
        reachable |= {target} if source in reachable else set()
    assert sorted(visited) == sorted(reachable)
    assert sorted(str(message.content) for message in state.messages) == sorted(reachable)


@given(failures=st.lists(st.sampled_from(["raises", "is cancelled", "is unknown"]) | st.none(), max_size=6))
@settings(max_examples=examples(60), deadline=None)
def test_a_route_that_fails_loses_no_node_and_repeats_none(failures: list[str | None]) -> None:
    async def run() -> None:
        store, visited, left, scopes = MemoryStore(), list[str](), list(failures), list[anyio.CancelScope]()

        async def route(state: AgentState) -> str:
            failure = left.pop() if left else None
            if failure == "raises":
                raise StoreError("down")
            if failure == "is cancelled":
                scopes[-1].cancel()
                await anyio.lowlevel.checkpoint()
            return "unheard of" if failure == "is unknown" else "on"

        def build() -> Graph:
            graph = Graph(graph_id="g", store=store)
            for name in "abc":
                graph.add_node(name, say(name, visited))
            graph.add_conditional_edge("a", route, {"on": "b"})
            return graph.add_conditional_edge("b", route, {"on": "c"})

        status = None
        while status is not AgentStatus.COMPLETED:
            with anyio.CancelScope() as scope, contextlib.suppress(StoreError, ConfigurationError):
                scopes.append(scope)
                one = build().execute(fresh()) if status is None else build().restore_and_execute()
                status = AgentStatus.RUNNING
                status = (await one).status
        assert visited == ["a", "b", "c"]

    anyio.run(run)


# -- leases, answers, merges, loops -----------------------------------------------------------------


async def test_a_second_restore_while_one_runs_is_refused_and_no_node_runs_twice_at_once() -> None:
    store, ran, started, go_on = MemoryStore(), list[str](), anyio.Event(), anyio.Event()

    async def slow(state: AgentState) -> AgentState:
        ran.append("slow")
        started.set()
        await go_on.wait()
        return state

    def build() -> Graph:
        graph = Graph(graph_id="g", store=store, lease_s=0.3)
        return graph.add_node("human", human_node()).add_node("slow", slow).add_edge("human", "slow")

    await build().execute(fresh())
    async with anyio.create_task_group() as group:
        group.start_soon(build().restore_and_execute, "g", "yes")
        await started.wait()
        await anyio.sleep(0.5)  # longer than a lease: it is renewed
        with pytest.raises(SessionConflictError, match="its lease ends in"):
            await build().restore_and_execute("g")
        go_on.set()
    assert ran == ["slow"]


async def test_an_execution_that_died_is_taken_up_once_its_lease_has_run_out() -> None:
    store, ran = MemoryStore(), list[str]()

    async def dies(state: AgentState) -> AgentState:
        ran.append("node")
        if len(ran) == 1:
            found = await store.get("graph", "g")  # as it would stand if the process were killed here
            assert found is not None
            left.append(found.body)
        return state

    left: list[str] = []

    def build() -> Graph:
        return Graph(graph_id="g", store=store, lease_s=0.2).add_node("node", dies)

    await build().execute(fresh())
    found = await store.get("graph", "g")
    assert found is not None
    await store.put("graph", "g", left[0], expected=found.version)
    with pytest.raises(SessionConflictError):
        await build().restore_and_execute()
    await anyio.sleep(0.25)
    assert (await build().restore_and_execute()).status is AgentStatus.COMPLETED
    assert ran == ["node", "node"]


def test_a_graph_is_no_node_of_another() -> None:
    inner = Graph(graph_id="inner")
    for handler in (inner.execute, inner):
        with pytest.raises(ConfigurationError, match="add its nodes to this one"):
            Graph(graph_id="outer").add_node("inner", handler)  # type: ignore[arg-type]


async def test_a_checkpoint_of_an_earlier_version_is_read() -> None:
    store, visited = MemoryStore(), list[str]()

    def build() -> Graph:
        graph = Graph(graph_id="g", store=store).add_node("human", human_node())
        return graph.add_node("end", say("end", visited)).add_edge("human", "end")

    await build().execute(fresh())
    found = await store.get("graph", "g")
    assert found is not None
    more = {"run": "r", "visits": {}, "answer": None, "answer_id": None, "answered": None, "base": None}
    await store.put("graph", "g", json.dumps(json.loads(found.body) | more), expected=found.version)
    assert (await build().restore_and_execute(human_response="yes")).status is AgentStatus.COMPLETED
    assert visited == ["end"]


def branched(store: SessionStore, visited: list[str]) -> Graph:
    graph = Graph(graph_id="outer", store=store).add_node("start", say("start", visited), entry=True)
    for name in ("before", "after", "beside", "end"):
        graph.add_node(name, say(name, visited))
    graph.add_node("human", human_node("May I?"))
    graph.add_edge("start", "before").add_edge("before", "human").add_edge("human", "after").add_edge("after", "end")
    return graph.add_edge("start", "beside").add_edge("beside", "end")


@pytest.mark.parametrize("writes", range(1, 26))
async def test_wherever_it_dies_a_graph_loses_no_message_and_repeats_no_finished_node(writes: int) -> None:
    class Dies(MemoryStore):
        left = writes

        async def write(self, *changes: Change) -> float:
            self.left -= 1
            if self.left < 0:
                raise StoreError("died")
            return await super().write(*changes)

    store, visited = Dies(), list[str]()
    with contextlib.suppress(StoreError):
        await branched(store, visited).execute(fresh())
        await branched(store, visited).restore_and_execute(human_response="yes")
    store.left = 1_000
    with anyio.fail_after(5):
        store._documents = {  # every lease has run out
            place: Document(**{n: getattr(d, n) for n in Document.__slots__} | {"written_s": 1.0})
            for place, d in store._documents.items()
        }
        try:
            state = await branched(store, visited).restore_and_execute()
        except SessionError:
            state = await branched(store, visited).execute(fresh())
        if state.status is AgentStatus.WAITING_FOR_HUMAN:
            state = await branched(store, visited).restore_and_execute(human_response="yes")
    assert state.status is AgentStatus.COMPLETED
    said = [message.content for message in state.messages]
    assert sorted(map(str, said)) == sorted(["start", "before", "May I?", "beside", "yes", "after", "end"])
    assert all(visited.count(name) <= 2 for name in visited)  # one that was running when it died, at most


@pytest.mark.parametrize("lost", range(1, 13))
async def test_whichever_answer_of_the_store_is_lost_no_finished_node_runs_again(lost: int) -> None:
    class Forgets(MemoryStore):
        left = lost

        async def write(self, *changes: Change) -> float:
            written = await super().write(*changes)
            self.left -= 1
            if self.left == 0:
                raise StoreError("made, but its answer was lost")
            return written

    store, visited = Forgets(), list[str]()

    def build() -> Graph:
        graph = Graph(graph_id="g", store=store, lease_s=0.3)
        for name in "abc":  # each is renewed for once, at least
            graph.add_node(name, say(name, visited, 0.25))
        return graph.add_edge("a", "b").add_edge("b", "c")

    with contextlib.suppress(StoreError):
        await build().execute(fresh())
    await anyio.sleep(0.4)
    state = await build().restore_and_execute()
    assert state.status is AgentStatus.COMPLETED
    assert visited == ["a", "b", "c"] == [message.content for message in state.messages]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("lost", range(1, 6))
async def test_a_graph_does_not_end_for_one_error_of_the_store_nor_runs_a_node_twice(lost: int, after: bool) -> None:
    class Fails(MemoryStore):
        left = lost

        async def write(self, *changes: Change) -> float:
            self.left -= 1
            if self.left == 0 and not after:
                raise StoreError("not made")
            written = await super().write(*changes)
            if self.left == 0:
                raise StoreError("made, but its answer was lost")
            return written

    visited = list[str]()
    graph = Graph(graph_id="g", store=Fails())
    for name in "abc":
        graph.add_node(name, say(name, visited))
    state = await graph.add_edge("a", "b").add_edge("b", "c").execute(fresh())
    assert (state.status, visited) == (AgentStatus.COMPLETED, ["a", "b", "c"])


async def test_a_graph_ends_where_every_write_is_delivered_twice_and_the_second_is_answered() -> None:
    """Its own write is in the store each time it looks: writing once more would go on for ever."""

    class Twice(MemoryStore):
        writes = 0

        async def write(self, *changes: Change) -> float:
            self.writes += 1
            assert self.writes < 20
            await super().write(*changes)
            return await super().write(*changes)

    visited, store = list[str](), Twice()
    graph = Graph(graph_id="g", store=store).add_node("a", say("a", visited)).add_node("b", say("b", visited))
    state = await graph.add_edge("a", "b").execute(fresh())
    assert (state.status, visited, store.writes) == (AgentStatus.COMPLETED, ["a", "b"], 4)


@pytest.mark.parametrize("wrong", [None, {"messages": []}, "done"])
async def test_a_node_that_returns_no_state_is_refused_and_costs_no_checkpoint(wrong: Any) -> None:
    store, visited = MemoryStore(), list[str]()

    async def returns(state: AgentState) -> Any:
        return wrong

    def build(handler: NodeHandler) -> Graph:
        graph = Graph(graph_id="g", store=store).add_node("start", say("start", visited), entry=True)
        graph.add_node("next", handler).add_node("beside", say("beside", visited))
        return graph.add_edge("start", "next").add_edge("start", "beside")

    with pytest.raises(ConfigurationError, match=r"'next'. must be one that returns an AgentState"):
        await build(returns).execute(fresh())
    state = await build(say("next", visited)).restore_and_execute()
    assert state.status is AgentStatus.COMPLETED
    assert visited.count("start") == 1


@pytest.mark.parametrize("parallel", [True, False])
async def test_an_answer_that_comes_after_a_node_died_is_kept_and_costs_no_message_of_what_ran_beside_it(
    parallel: bool,
) -> None:
    """A human is asked in one round, in the next a node ends and then its process; then comes the answer."""
    store, visited, dies = MemoryStore(), list[str](), True

    async def fails(state: AgentState) -> AgentState:
        await anyio.sleep(0.01)
        if dies:
            raise RuntimeError("the process died here")
        return await say("fails", visited)(state)

    def route(state: AgentState) -> str:
        if dies and not parallel:
            raise RuntimeError("the process died here")
        return "on"

    def build() -> Graph:
        graph = Graph(graph_id="g", store=store).add_node("start", say("start", visited), entry=True)
        for name in ("first", "beside", "end"):
            graph.add_node(name, say(name, visited))
        graph.add_node("human", human_node("May I?")).add_node("fails", fails)
        graph.add_edge("start", "human").add_edge("start", "first").add_edge("first", "beside")
        graph.add_conditional_edge("beside", route, {"on": "end"})
        return graph.add_edge("first", "fails") if parallel else graph

    with pytest.raises(RuntimeError, match="died"):
        await build().execute(fresh())
    dies = False
    state = await build().restore_and_execute(human_response="yes")
    assert state.status is AgentStatus.COMPLETED
    fails_too = ["fails"] if parallel else []
    said = sorted(str(message.content) for message in state.messages)
    assert said == sorted(["start", "May I?", "first", "beside", "yes", "end", *fails_too])
    assert visited.count("beside") == 1


async def test_a_human_node_is_passed_only_with_an_answer_also_an_empty_one() -> None:
    visited: list[str] = []
    graph = Graph(graph_id="g").add_node("human", human_node("Look.")).add_node("end", say("end", visited))
    graph.add_edge("human", "end")
    assert (await graph.execute(fresh())).status is AgentStatus.WAITING_FOR_HUMAN
    for _ in range(2):
        assert (await graph.restore_and_execute()).status is AgentStatus.WAITING_FOR_HUMAN
    assert visited == []
    assert (await graph.restore_and_execute(human_response="")).status is AgentStatus.COMPLETED
    assert visited == ["end"]


KINDS = st.lists(st.sampled_from(["works", "works", "asks", "waits", "judges", "fails"]), min_size=6, max_size=6)


class Doubts:
    """A monitor that would have every answer pause."""

    async def observe_llm_response(self, *given: Any, **more: Any) -> tuple[None, UncertaintyAction]:
        return None, UncertaintyAction.PAUSE_FOR_HUMAN

    def summary_metadata(self) -> dict[str, Any]:
        return {}


def led_by_routes(edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """The edges that may be conditional ones as well: the only one of their source, and of their target."""
    sources, targets = Counter(source for source, _ in edges), Counter(target for _, target in edges)
    return {(source, target) for source, target in edges if sources[source] == targets[target] == 1}


@given(
    edges=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda e: e[0] < e[1]), max_size=10),
    kinds=KINDS,
    order=st.randoms(use_true_random=False),
)
@example(edges={(0, 1), (1, 2)}, kinds=["judges", "asks", "works", "works", "works", "works"], order=random.Random(0))
@example(edges={(0, 1), (1, 2)}, kinds=["judges", "works", "works", "works", "works", "works"], order=random.Random(0))
@settings(max_examples=examples(200), deadline=None)
def test_no_node_is_passed_without_an_answer_of_its_own_and_no_failure_is_forgotten(
    edges: set[tuple[int, int]], kinds: list[str], order: Any
) -> None:
    graph, answered, asked, failing = Graph(graph_id="g"), set[str](), set[str](), set[str]()
    routed = {str(source) for source, _ in led_by_routes(edges)}

    def node(name: str, kind: str) -> NodeHandler:
        async def handler(state: AgentState) -> AgentState:
            for source in (str(source) for source, target in edges if str(target) == name):
                assert source not in asked - answered, "what it follows waits for its answer"
            if kind == "asks":
                asked.add(name)
                return await human_node("May I?")(state)
            if kind == "judges":
                judged = await uncertainty_guard_node(Doubts(), escalate_node="asks")(state)
                if name not in routed:
                    asked.add(name)
                return judged
            if state.status is AgentStatus.WAITING_FOR_HUMAN:  # where a guard leads on to, is waited for
                asked.add(name)
            if kind == "waits" and name not in answered:
                asked.add(name)
                state.status = AgentStatus.WAITING_FOR_HUMAN
            if kind == "fails":
                failing.add(name)
                state.status = AgentStatus.FAILED
            return state

        setattr(handler, PASSED, kind in ("asks", "judges"))
        setattr(handler, ESCALATES, kind == "judges")
        return handler

    for number, kind in enumerate(kinds):
        graph.add_node(str(number), node(str(number), kind), entry=number == 0)
    for source, target in sorted(edges):
        if str(source) in routed:
            graph.add_conditional_edge(str(source), lambda state: "on", {"on": str(target)})
        else:
            graph.add_edge(str(source), str(target))

    async def run() -> None:
        state = await graph.execute(fresh())
        while state.status is AgentStatus.WAITING_FOR_HUMAN:
            waiting = await graph.waiting()
            assert set(waiting) == asked - answered
            if len(waiting) > 1:
                with pytest.raises(SessionError, match="say in `node`"):
                    await graph.restore_and_execute(human_response="yes")
            with pytest.raises(SessionError, match="and not to"):
                await graph.restore_and_execute(human_response="yes", node="elsewhere")
            name = order.choice(waiting)
            answered.add(name)
            state = await graph.restore_and_execute(
                human_response=f"yes {name}", node=name if len(waiting) > 1 else None
            )
        assert state.status is (AgentStatus.FAILED if failing else AgentStatus.COMPLETED)
        assert failing or asked == answered
        assert {m.content for m in state.messages if m.role is Role.USER} == {f"yes {name}" for name in answered}
        with pytest.raises(SessionError, match="waits for no answer"):
            await graph.restore_and_execute(human_response="yes")
        assert (await graph.restore_and_execute()).status is state.status

    anyio.run(run)


async def test_a_checkpoint_that_does_not_fit_the_graph_or_is_damaged_is_refused_in_words() -> None:
    store = MemoryStore()
    first = Graph(graph_id="g", store=store).add_node("start", say("start", []), entry=True)
    await first.add_node("human", human_node()).add_edge("start", "human").execute(fresh())
    later = Graph(graph_id="g", store=store).add_node("start", say("start", []), entry=True)
    for answer in (None, "yes"):
        with pytest.raises(SessionError, match="has no node 'human' any more"):
            await later.restore_and_execute(human_response=answer)
    with pytest.raises(ConfigurationError, match="given with a human_response"):
        await first.restore_and_execute(node="human")
    await store.put("graph", "damaged", "{nonsense", expected=0)
    with pytest.raises(StoreError, match="The checkpoint of graph 'damaged' cannot be read"):
        await first.restore_and_execute("damaged")


async def test_a_node_that_waits_by_itself_runs_again_when_it_is_answered() -> None:
    asked: list[str] = []

    async def agent(state: AgentState) -> AgentState:
        said = [m.content for m in state.messages if m.role is Role.USER]
        asked.append(str(said))
        state.status = AgentStatus.RUNNING if said else AgentStatus.WAITING_FOR_HUMAN
        return state

    graph = Graph(graph_id="g").add_node("agent", agent)
    assert (await graph.execute(fresh())).status is AgentStatus.WAITING_FOR_HUMAN
    assert (await graph.restore_and_execute(human_response="yes")).status is AgentStatus.COMPLETED
    assert asked == ["[]", "['yes']"]


async def test_branches_that_meet_again_add_up_their_tokens_and_their_tool_calls() -> None:
    def spends(tokens: int, calls: int) -> NodeHandler:
        async def handler(state: AgentState) -> AgentState:
            used = TokenUsage(input_tokens=tokens, total_tokens=tokens, cost_usd=tokens / 100)
            state.total_token_usage = (state.total_token_usage or TokenUsage()) + used
            state.tool_calls_made += calls
            return state

        return handler

    graph = (
        Graph(graph_id="g").add_node("start", spends(1, 1)).add_node("a", spends(10, 2)).add_node("b", spends(100, 3))
    )
    graph.add_node("end", spends(1_000, 4)).add_edge("start", "a").add_edge("start", "b")
    state = await graph.add_edge("a", "end").add_edge("b", "end").execute(fresh())
    assert state.total_token_usage is not None
    assert (state.total_token_usage.total_tokens, state.tool_calls_made) == (1_111, 10)
    assert state.total_token_usage.cost_usd == pytest.approx(11.11)


async def test_a_graph_that_ran_into_its_limit_of_visits_goes_on_with_a_larger_one() -> None:
    store, visited = MemoryStore(), list[str]()

    def build(max_visits: int) -> Graph:
        graph = Graph(graph_id="g", store=store, max_visits=max_visits).add_node("work", say("work", visited))
        return graph.add_conditional_edge(
            "work", lambda state: "again" if len(visited) < 30 else "done", {"again": "work", "done": None}
        )

    with pytest.raises(SessionError, match=r"ran 10 nodes without ending.*`max_visits`"):
        await build(10).execute(fresh())
    with pytest.raises(SessionError, match="ran 10 nodes"):
        await build(10).restore_and_execute()
    assert len(visited) == 10
    assert (await build(100).restore_and_execute()).status is AgentStatus.COMPLETED
    assert len(visited) == 30
    with pytest.raises(ConfigurationError, match="max_visits"):
        Graph(graph_id="g", max_visits=0)
