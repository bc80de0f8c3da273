"""A pytest plugin for the frameworks' own tests: an advisory guard, or a middleware that does nothing, in every run.

Loaded by name into the framework's test process (`pytest -p every_run`). The environment variable VARIANT says what is
put in: "empty" hooks that do nothing, "guard" the product as a user writes it. OUTCOMES is the
file for {"outcomes": {test id: outcome}, "runs": how many runs it was put into, "events": what the monitor committed}.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy

VARIANT = os.environ["VARIANT"]
outcomes: dict[str, str] = {}
seen = {"runs": 0, "events": 0}


class Counting:
    """Counts what the monitor commits, so that a guard that watched nothing shows."""

    def on_event(self, event: object) -> None:
        seen["events"] += 1


def monitor() -> UncertaintyMonitor:
    return UncertaintyMonitor(policy=UncertaintyPolicy(), processors=[Counting()], advisory=True)


def put_into_langchain() -> None:
    """The guard as the outermost middleware of every `create_agent`."""
    import langchain.agents
    import langchain.agents.factory
    from langchain.agents.middleware import AgentMiddleware

    from grampus_uq.integrations.langchain import UncertaintyMiddleware

    class Empty(AgentMiddleware):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(request)

        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return await handler(request)

        def after_agent(self, state: Any, runtime: Any) -> None:
            return None

    watching, create = monitor(), langchain.agents.factory.create_agent

    @functools.wraps(create)
    def create_agent(*given: Any, middleware: Any = (), **more: Any) -> Any:
        seen["runs"] += 1
        ours = Empty() if VARIANT == "empty" else UncertaintyMiddleware(watching)
        return create(*given, middleware=[ours, *middleware], **more)

    langchain.agents.create_agent = langchain.agents.factory.create_agent = create_agent


def put_into_langgraph() -> None:
    """The guard's fence in every ToolNode, and its nodes in every `create_react_agent` with the usual edges."""
    from langgraph.graph import StateGraph
    from langgraph.prebuilt import chat_agent_executor, tool_node

    from grampus_uq.integrations.langgraph import uncertainty_guard

    guard = uncertainty_guard(monitor(), advisory=True)

    async def awaited(request: Any, handler: Any) -> Any:
        return await handler(request)

    fences = {"wrap_tool_call": lambda request, handler: handler(request), "awrap_tool_call": awaited}
    if VARIANT == "guard":
        fences = {"wrap_tool_call": guard.wrap_tool_call, "awrap_tool_call": guard.awrap_tool_call}
    build = tool_node.ToolNode.__init__

    @functools.wraps(build)
    def with_fence(self: Any, *given: Any, **more: Any) -> None:
        if not {"wrap_tool_call", "awrap_tool_call"} & set(more):
            seen["runs"] += 1
            more |= fences
        build(self, *given, **more)

    class Guarded(StateGraph):  # type: ignore[type-arg]
        def compile(self, *given: Any, **more: Any) -> Any:
            usual = set(self.nodes) == {"agent", "tools"} and "tools" not in self.branches  # none that ends the run
            if VARIANT == "guard" and usual:
                seen["runs"] += 1
                self.branches.clear()
                self.edges = {(start, to) for start, to in self.edges if start not in ("agent", "tools")}
                guard.attach(self, after="agent", tools="tools")
            return super().compile(*given, **more)

    tool_node.ToolNode.__init__ = with_fence  # type: ignore[method-assign]
    chat_agent_executor.StateGraph = Guarded  # type: ignore[misc]


def put_into_openai_agents() -> None:
    """Every run of `Runner` through the guard's `run` and `run_streamed`; `run_sync` in a session of its own."""
    from agents import Runner

    from grampus_uq.integrations.openai_agents import UncertaintyGuard

    guard, synchronous = UncertaintyGuard(monitor()), UncertaintyGuard(monitor())
    inside: contextvars.ContextVar[bool] = contextvars.ContextVar("inside", default=False)

    def run_sync(agent: Any, given: Any, *, session_id: str, **more: Any) -> Any:
        synchronous.watch(agent)
        try:
            with synchronous.session(session_id, agent.name):
                return Runner.run_sync(agent, given, **more)
        finally:
            synchronous.unwatch(agent)

    for name, watched in (("run", guard.run), ("run_streamed", guard.run_streamed), ("run_sync", run_sync)):
        plain = getattr(Runner, name).__func__
        setattr(Runner, name, classmethod(_through(inside, plain, watched)))


def _through(inside: contextvars.ContextVar[bool], plain: Any, watched: Any) -> Any:
    """A method of Runner that goes through the guard, except where the guard or a watched run's own tool calls it."""

    def outermost(cls: Any, agent: Any, given: Any, more: dict[str, Any]) -> Any:
        seen["runs"] += 1
        if VARIANT == "empty":
            return plain(cls, agent, given, **more)
        return watched(agent, given, session_id=uuid.uuid4().hex, **more)

    @functools.wraps(plain)
    def method(cls: Any, starting_agent: Any, input: Any, **more: Any) -> Any:
        if inside.get():
            return plain(cls, starting_agent, input, **more)
        token = inside.set(True)
        try:
            return outermost(cls, starting_agent, input, more)
        finally:
            inside.reset(token)

    @functools.wraps(plain)
    async def awaited(cls: Any, starting_agent: Any, input: Any, **more: Any) -> Any:
        if inside.get():
            return await plain(cls, starting_agent, input, **more)
        token = inside.set(True)
        try:
            return await outermost(cls, starting_agent, input, more)
        finally:
            inside.reset(token)

    return awaited if inspect.iscoroutinefunction(plain) else method


PUT_INTO = {"langchain": put_into_langchain, "langgraph": put_into_langgraph, "openai-agents": put_into_openai_agents}
PUT_INTO[os.environ["FRAMEWORK"]]()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test's outcome is that of its call, unless its set-up or tear-down went wrong."""
    if report.when == "call" or report.outcome != "passed":
        outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    Path(os.environ["OUTCOMES"]).write_text(json.dumps({"outcomes": outcomes, **seen}))
