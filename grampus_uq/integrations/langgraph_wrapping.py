"""How a node of a graph is wrapped: the guard's checks run around it, and its result leads where the guard says."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.graph import StateGraph
from langgraph.types import Command

from grampus_uq.integrations.langchain_asked import Asked
from grampus_uq.integrations.langgraph_steps import AWAITING, BLOCKING, Way, to_its_end
from grampus_uq.integrations.langgraph_threads import KEY, before_node

_PUSHED = ("__pregel_push",)
"""What LangGraph's metadata give as the trigger of a task that a `Send` started."""
Fence = Callable[[Any, RunnableConfig, Way], AbstractAsyncContextManager[list[Any]]]


class GuardedNode(RunnableLambda[Any, Any]):
    """A node for both ways of running a graph, and nothing of LangChain's between it and its coroutine.

    `inner`, a node of the user's, runs first, for `work`; `deps` shows it to whoever looks for sub-graphs.
    """

    def __init__(
        self,
        name: str,
        work: Callable[..., Coroutine[Any, Any, Any]],
        inner: Any = None,
        read: Callable[[Any, RunnableConfig], Any] = lambda state, config: state,
        fence: Fence | None = None,
    ) -> None:
        self.name = name
        self._work, self._inner, self._read, self._fence = work, inner, read, fence
        self.func, self.afunc = self.invoke, self.ainvoke

    @property
    def deps(self) -> list[Runnable[Any, Any]]:
        return [] if self._inner is None else [self._inner]

    def invoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> Any:  # noqa: A002 (its name)
        return to_its_end(self._run(input, config or {}, BLOCKING, more))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> Any:  # noqa: A002 (its name)
        return await self._run(input, config or {}, AWAITING, more)

    async def _run(self, given: Any, config: RunnableConfig, way: Way, more: dict[str, Any]) -> Any:
        if self._inner is None:
            return await way.do(lambda: self._work(given, config))
        if way.awaits:
            await before_node.get()()  # before a decision is taken up: what is cancelled here has not run
        fence = nullcontext(list[Any]()) if self._fence is None else self._fence(given, config, way)
        with Asked() if self._fence is None else nullcontext():
            async with fence as held:
                if not held:
                    run = self._inner.ainvoke if way.awaits else self._inner.invoke
                    held.append(await way.call(run, self._read(given, config), config, **more))
            return await way.do(lambda: self._work(given, held[0], config))


def wrap_node(
    builder: StateGraph[Any, Any, Any, Any],
    name: str,
    schema: Any,
    work: Callable[..., Coroutine[Any, Any, Any]],
    ways: tuple[str, ...],
    fence: Fence | None = None,
) -> bool:
    """Let a node of the graph go on to `work` with its result; False for one that is not there, cached, or a graph.

    The node sees what it saw before; where `fence` has something for it to return it is not run.
    """
    spec = builder.nodes.get(name)
    if spec is None or spec.cache_policy or (fence is None and hasattr(spec.runnable, "get_subgraphs")):
        return False
    own, keys = spec.input_schema, tuple(builder.schemas[spec.input_schema])
    plain = isinstance(own, type) and issubclass(own, dict)

    def read(state: Any, config: RunnableConfig) -> Any:
        if not isinstance(state, dict) or (KEY not in state and is_pushed(config)):  # sent: handed over as it is
            return state
        values = {key: state[key] for key in keys if key in state}
        return values if plain else own(**values)

    runnable: Any = GuardedNode(name, work, spec.runnable, read, fence)
    ends = tuple(dict.fromkeys([*(spec.ends or ()), *ways]))
    builder.nodes[name] = replace(spec, runnable=runnable, input_schema=schema, ends=ends)
    return True


class Onward(Command[Any]):
    """The next node, as a node of the guard's returned it."""

    __slots__ = ()


def lead_updates(builder: StateGraph[Any, Any, Any, Any], name: str, path: Callable[..., Any]) -> None:
    """Let `path` say what follows on a write of `update_state` as this node: that runs its edges, and not the node."""
    builder.add_conditional_edges(name, path)
    builder.branches[name] = {key: cast(Any, _UpdateEdge(edge)) for key, edge in builder.branches[name].items()}


class _UpdateEdge:
    """A conditional edge that is not taken after the node's own `Command`."""

    def __init__(self, edge: Any) -> None:
        self._edge = edge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._edge, name)

    def run(self, *given: Any) -> Any:
        writes = self._edge.run(*given)
        route, aroute = writes.func, writes.afunc

        async def to(result: Any, *more: Any, **how: Any) -> Any:
            return result if _has_led(result) else await aroute(result, *more, **how)

        writes.func = lambda result, *more, **how: result if _has_led(result) else route(result, *more, **how)
        writes.afunc = to
        return writes


def _has_led(result: Any) -> bool:
    return isinstance(result[-1] if isinstance(result, list) and result else result, Onward)


def conditional_edge(schema: Any, route: Callable[[Any, RunnableConfig], Any]) -> Callable[..., Any]:
    """The route as a function whose annotation tells LangGraph what it reads of the state."""

    def path(state: Any, config: RunnableConfig) -> Any:
        return route(state, config)

    path.__name__ = route.__name__
    path.__annotations__["state"] = schema
    return path


def leading(result: Any, goto: Any) -> Any:
    """A node's result, and where it leads beside."""
    if result is None or isinstance(result, dict):
        return Onward(update=result, goto=goto)
    return [*(result if isinstance(result, list | tuple) else [result]), Onward(goto=goto)]


def is_pushed(config: RunnableConfig) -> bool:
    """Return True in a task that a `Send` started."""
    return tuple(config.get("metadata", {}).get("langgraph_triggers", ())) == _PUSHED
