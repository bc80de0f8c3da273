"""Puts a watch into an OpenAI Agents SDK agent and everything that it reaches: models, tools, MCP servers, handoffs."""

from __future__ import annotations

import logging
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from agents import Agent, AgentBase, ApplyPatchTool, CustomTool, Handoff, Model, RunConfig, RunState, ShellTool
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner

from grampus_uq import ConfigurationError, SessionError
from grampus_uq.integrations.openai_agents_model import WatchedModel, WatchedProvider
from grampus_uq.integrations.openai_agents_tools import GATE, Gate, gate_tools, gated_by, without_gate
from grampus_uq.integrations.settings import note_schema

if TYPE_CHECKING:
    from grampus_uq.integrations.openai_agents_run import WatchedRun

AnyAgent = TypeVar("AnyAgent", bound=AgentBase[Any])

log = logging.getLogger("grampus_uq.integrations.openai_agents")
_TEXT, _NUMBER = {"type": "string"}, {"type": ["integer", "null"]}
_MAX_PASSED = 256
_LIMITS = dict.fromkeys(("timeout_ms", "timeoutMs", "timeout", "max_output_length", "maxOutputLength"), _NUMBER)
_FORMS: tuple[tuple[type, dict[str, Any]], ...] = (
    (ShellTool, {"properties": {"commands": {"type": "array", "items": _TEXT}, **_LIMITS}, "required": ["commands"]}),
    (
        ApplyPatchTool,
        {
            "properties": {
                "type": {"enum": ["create_file", "update_file", "delete_file"]},
                "path": _TEXT,
                "diff": {"type": ["string", "null"]},
                "move_to": {"type": ["string", "null"]},
            },
            "required": ["type", "path"],
        },
    ),
    (CustomTool, {"properties": {"input": _TEXT}, "required": ["input"]}),
)
"""JSON schemas of the arguments of tools that declare none: a human's edit must fit them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class AgentWatch:
    """A wrapper around each model of agents, and gates before tools; models that a run brings are wrapped there."""

    model: Callable[[Model, str], WatchedModel]
    """Watches a model; the name is that by which a provider was asked for it, "" where none was."""
    current: Gate
    acts: Callable[[], bool]
    """False while the guard only advises: then nothing is refused."""
    protects: Callable[[str], bool] = lambda name: False
    """True for a tool's name that the policy or the declared effects call irreversible."""
    allow_ungated: Collection[str] = ()
    ungated: set[str] = field(default_factory=set)
    """Names of the tools and servers, among those reached so far, whose calls nothing can stop."""
    schemas: dict[str, Any] = field(default_factory=dict)
    """The JSON schemas of the tools reached so far: a human's edit is held against them."""
    watched: weakref.WeakValueDictionary[int, Agent[Any]] = field(default_factory=weakref.WeakValueDictionary)
    passed: set[str] = field(default_factory=set)
    """Names of agents that ran in a session and were not watched; each is reported once."""

    def has(self, agent: Agent[Any]) -> bool:
        """Return True if the agent has this watch."""
        return self.watched.get(id(agent)) is agent

    def put_into(self, agent: AnyAgent) -> AnyAgent:
        """Watch the agent and all that it reaches, in place, as `agent.as_tool()` holds on to its agent; returns it.

        Raises ConfigurationError for a tool or server that acts and cannot be stopped, and for another kind of agent;
        an advising guard reports it. Nothing is changed where it raises.
        """
        if not isinstance(agent, Agent):
            if self.acts():
                way_out = "Nothing here sees or stops what any other kind does, a RealtimeAgent among them."
                raise ConfigurationError.of("agent", "UncertaintyGuard", "an Agent of the SDK", agent, way_out)
            self._report([agent.name])
            return agent
        watch_runs(self)
        others = [] if self.acts() else [watch for watch in _known_watches() if watch is not self]
        planned = []
        for one in self._reached(agent):
            if any(other.has(one) for other in others):
                log.warning("agent %.80r is watched by another guard, and not by this one", one.name)
                continue
            model = one.model
            if isinstance(model, Model):
                while isinstance(model, WatchedModel) and not model.has(one):  # it came with a copy of a guarded agent
                    model = model.inner
                model = self.model(model, "")
            self._check_mcp(one)
            planned.append((one, model, self._gated(one.tools)))
        for one, model, tools in planned:
            one.model = model
            self._gate_mcp(one)
            if any(gated is not tool for gated, tool in zip(tools, one.tools, strict=True)):
                one.tools = tools  # and never again: the SDK refuses an agent whose tools change during a run
            for handoff in one.handoffs:
                self._watch_handoff(handoff)
            self.watched[id(one)] = one
        return agent

    def take_from(self, agent: Agent[Any]) -> Agent[Any]:
        """Undo `put_into`, in the agent and all that it reaches; what another guard put there stays."""
        for one in self._reached(agent):
            if not self.has(one):
                continue
            if isinstance(one.model, WatchedModel):
                one.model = one.model.inner
            if any(gated_by(tool, self.current) for tool in one.tools):
                one.tools = [without_gate(tool) if gated_by(tool, self.current) else tool for tool in one.tools]
            if getattr(vars(one).get("get_mcp_tools"), GATE, False):
                del one.get_mcp_tools  # the instance's own: the class's shows again
            for handoff in one.handoffs:
                undone = getattr(getattr(handoff, "on_invoke_handoff", None), GATE, None)
                if isinstance(handoff, Handoff) and undone is not None:
                    handoff.on_invoke_handoff = undone
            self.watched.pop(id(one), None)
        return agent

    def pass_by(self, agent: Agent[Any]) -> None:
        """Report an agent that can act and runs in a session with neither this watch nor, as a clone, its model's."""
        if type(agent) is Agent and not (agent.tools or agent.mcp_servers or agent.handoffs or agent.prompt):
            return  # a guardrail's, for example
        try:
            if self.current() is None or agent.name in self.passed or len(self.passed) == _MAX_PASSED:
                return
        except SessionError:  # not in a session of this watch
            return
        if getattr(agent.model, "has", None) != self.has:
            self.passed.add(agent.name)
            log.warning("agent %.80r runs in a session unwatched: give it to UncertaintyGuard.watch first", agent.name)

    def configured(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of `Runner.run`, whose models are all watched, those that are looked up by name too."""
        config = given.get("run_config")
        lent = config is None or (isinstance(config, dict) and "model_provider" not in config)
        if config is None or isinstance(config, dict):
            config = RunConfig(**(config or {}))
        provider = config.model_provider
        if not isinstance(provider, WatchedProvider):
            provider = WatchedProvider(provider, self.model)
        model = self.model(config.model, "") if isinstance(config.model, Model) else config.model
        config = replace(config, model=model, model_provider=provider)
        return {**given, "run_config": _Lent(vars(config)) if lent else config}

    def check(self, tools: Collection[Any]) -> None:
        """Look at one model call's tools: those that an agent got while it ran (a sandbox, a clone) have no gate.

        Raises ConfigurationError for those that the user did not name; a guard that only advises reports them.
        """
        acts = self.acts()
        gated, _ = gate_tools(tools, self.current, self.allow_ungated if acts else None)
        late = [tool for tool, known in zip(tools, gated, strict=True) if tool is not known]
        names = [_server(tool) or tool.name for tool in late]
        refused = [name for name in names if name not in self.allow_ungated] if acts else []
        if refused:
            way_out = "Give them to the agent before it runs, or name them in allow_ungated."
            raise ConfigurationError.of("tools", "UncertaintyGuard", "tools that were watched", refused, way_out)
        self._report(names)

    def _reached(self, agent: Agent[Any]) -> Iterator[Agent[Any]]:
        todo, seen = [agent], set()
        while todo:
            one = todo.pop()
            if id(one) in seen:
                continue
            seen.add(id(one))
            todo += [inner for tool in one.tools if (inner := getattr(tool, "_agent_instance", None)) is not None]
            for handoff in one.handoffs:
                known = getattr(handoff, "_agent_ref", None)  # the agent that it leads to, as far as it is known
                target = (known and known()) if isinstance(handoff, Handoff) else handoff
                todo += [] if target is None else [target]
            yield one

    def _gated(self, tools: Collection[Any]) -> list[Any]:
        """The tools with gates; names those that have none, once."""
        gated, without = gate_tools(tools, self.current, self.allow_ungated if self.acts() else None)
        for tool in gated:
            if hasattr(tool, "name"):
                form = next((form for kind, form in _FORMS if isinstance(tool, kind)), None)
                note_schema(self.schemas, tool.name, getattr(tool, "params_json_schema", form))
        self._report(without)
        return gated

    def _report(self, names: Collection[str]) -> None:
        new = set(names) - self.ungated
        if new:
            self.ungated.update(new)
            log.warning("nothing here can stop these tools' calls: %s", ", ".join(sorted(new)))

    def _watch_handoff(self, handoff: Any) -> None:
        """An agent that a handoff makes is watched when it is made; one whose name the policy protects is reported."""
        if not isinstance(handoff, Handoff) or getattr(handoff.on_invoke_handoff, GATE, None) is not None:
            return
        self._report([handoff.tool_name] if self.protects(handoff.tool_name) else [])
        invoke = handoff.on_invoke_handoff

        async def invoke_and_watch(context: Any, arguments: str) -> Any:
            return self.put_into(await invoke(context, arguments))

        setattr(invoke_and_watch, GATE, invoke)
        handoff.on_invoke_handoff = invoke_and_watch

    def _check_mcp(self, agent: Agent[Any]) -> None:
        """Refuse MCP servers that do not say that they may pause; an advising guard reports them."""
        for server in agent.mcp_servers:
            policy = getattr(server, "_needs_approval_policy", None)
            if policy is True or getattr(policy, GATE, False):
                continue
            if self.acts() and server.name not in self.allow_ungated:
                way_out = (
                    "Build it with require_approval=guard.mcp_approval (or 'always'), or name it in allow_ungated."
                )
                raise ConfigurationError.of(
                    "mcp_servers", "UncertaintyGuard.watch", "servers whose calls can pause", server.name, way_out
                )
            self._report([server.name])

    def _gate_mcp(self, agent: Agent[Any]) -> None:
        """Gate the tools of MCP servers, which the SDK makes anew for each turn."""
        watch = self
        if not agent.mcp_servers or getattr(vars(agent).get("get_mcp_tools"), GATE, None) is watch:
            return

        async def get_mcp_tools(agent: Agent[Any], context: Any) -> list[Any]:
            tools = await type(agent).get_mcp_tools(agent, context)
            held = [tool for tool in tools if _server(tool) not in watch.allow_ungated]
            gates = dict(zip(map(id, held), watch._gated(held), strict=True))
            return [gates.get(id(tool), tool) for tool in tools]

        setattr(get_mcp_tools, GATE, watch)
        agent.get_mcp_tools = types.MethodType(get_mcp_tools, agent)  # type: ignore[method-assign]  # of a deep copy too


class _Lent(dict[str, Any]):
    """A configuration whose provider the user did not bring: the SDK closes it with the run, as one of its own."""

    def __contains__(self, key: object) -> bool:
        return key != "model_provider" and super().__contains__(key)


_watches: weakref.WeakSet[AgentWatch] = weakref.WeakSet()
_lock = threading.Lock()


def _known_watches() -> list[AgentWatch]:
    with _lock:
        return [*_watches]


def watch_runs(watch: AgentWatch) -> None:
    """Have every run of an agent with this watch configured, also one that the user or an agent as a tool starts."""
    with _lock:
        _watches.add(watch)
        runner = get_default_agent_runner()
        if not isinstance(runner, _WatchedRunner):
            set_default_agent_runner(_WatchedRunner(runner))


class _WatchedRunner(AgentRunner):
    """The SDK's default runner around the one before: `Runner.run` has no other place that all runs pass."""

    def __init__(self, inner: AgentRunner) -> None:
        self._inner = inner

    def _given(
        self, agent: Agent[Any], input: Any, given: Mapping[str, Any]
    ) -> tuple[WatchedRun | None, Mapping[str, Any]]:
        """The watched run that a run belongs to, which hears of rejections in its `input`, and the run's arguments.

        Raises SessionError for a run outside of the sessions that its agent may run in.
        """
        everywhere = _known_watches()
        watches = [watch for watch in everywhere if watch.has(agent)]
        run = outside = None
        for watch in watches:
            try:
                if (run := watch.current()) is not None:
                    watch.put_into(agent)  # since then it may have got other tools, handoffs, a model
                    given = watch.configured(given)
                    break
            except SessionError as error:
                outside = error
        else:
            if outside is not None:
                raise outside
        for watch in everywhere:
            if not watch.has(agent):
                watch.pass_by(agent)
        if run is not None and isinstance(input, RunState):
            run.hear_state(input)
        if type(self._inner) is not AgentRunner and isinstance(config := given.get("run_config"), _Lent):
            return run, {**given, "run_config": RunConfig(**config)}  # another runner may take no dictionary
        return run, given

    async def run(self, starting_agent: Agent[Any], input: Any, **given: Any) -> Any:
        run, more = self._given(starting_agent, input, given)
        if run is not None:
            await run.calls.tell()
        return await self._inner.run(starting_agent, input, **more)

    def run_sync(self, starting_agent: Agent[Any], input: Any, **given: Any) -> Any:
        return self._inner.run_sync(starting_agent, input, **self._given(starting_agent, input, given)[1])

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **given: Any) -> Any:
        return self._inner.run_streamed(starting_agent, input, **self._given(starting_agent, input, given)[1])


def _server(tool: Any) -> str | None:
    """The name of the MCP server that a tool is of."""
    return getattr(getattr(tool, "_tool_origin", None), "mcp_server_name", None)
