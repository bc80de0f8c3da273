"""Puts a watch into an OpenAI Agents SDK agent and everything that it reaches: models, tools, MCP servers, handoffs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from grampus_uq import ConfigurationError, MissingDependencyError
from grampus_uq.integrations.openai_agents_tools import GUARDRAIL, Gate, gate_tools

try:
    from agents import Agent, Handoff, Model
except ImportError as error:
    raise MissingDependencyError.of("openai-agents", "openai-agents", "watching the OpenAI Agents SDK") from error

__all__ = ["AgentWatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWatch:
    """What is put into agents: a model around each model, and gates that ask the run of the current context."""

    model: Callable[[Model], Model]
    current: Gate
    allow_ungated: Collection[str] = ()
    ungated: set[str] = field(default_factory=set)
    """Names of the tools and servers, among those reached so far, whose calls nothing can stop."""

    def put_into(self, agent: Agent[Any]) -> Agent[Any]:
        """Watch the agent and all that it reaches (handoffs, agents as tools), in place; returns it.

        In place, because `agent.as_tool()` holds on to its agent. Raises ConfigurationError, naming the tool or server,
        when one can act on the world and the SDK has no way to stop it.
        """
        todo, seen = [agent], set()
        while todo:
            one = todo.pop()
            if id(one) in seen:
                continue
            seen.add(id(one))
            if isinstance(one.model, Model):
                one.model = self.model(one.model)
            self._check_mcp(one)
            todo += [inner for tool in one.tools if (inner := getattr(tool, "_agent_instance", None)) is not None]
            tools, without = gate_tools(one.tools, self.current, allow_ungated=self.allow_ungated)
            if any(gated is not tool for gated, tool in zip(tools, one.tools, strict=True)):
                one.tools = tools  # and never again: the SDK refuses an agent whose tools change during a run
            self.ungated.update(without)
            for handoff in one.handoffs:
                todo += self._targets(handoff)
        return agent

    def _targets(self, handoff: Any) -> Iterator[Agent[Any]]:
        """The agent that a handoff leads to, as far as it is known; one that it makes is watched when it is made."""
        if not isinstance(handoff, Handoff):
            yield handoff
            return
        target = getattr(handoff, "_agent_ref", None)
        if target is not None and target() is not None:
            yield target()
        invoke = handoff.on_invoke_handoff
        if getattr(invoke, "gate", None) == GUARDRAIL:
            return

        async def invoke_and_watch(context: Any, arguments: str) -> Any:
            return self.put_into(await invoke(context, arguments))

        invoke_and_watch.gate = GUARDRAIL  # type: ignore[attr-defined]  # how a gate knows itself again
        handoff.on_invoke_handoff = invoke_and_watch

    def _check_mcp(self, agent: Agent[Any]) -> None:
        for server in agent.mcp_servers:
            policy = getattr(server, "_needs_approval_policy", None)
            if policy is True or getattr(policy, "gate", None) == GUARDRAIL:
                continue
            if server.name not in self.allow_ungated:
                way_out = (
                    "Build it with require_approval=guard.mcp_approval (or 'always'), or name it in allow_ungated."
                )
                raise ConfigurationError.of(
                    "mcp_servers", "UncertaintyGuard.watch", "servers whose calls can pause", server.name, way_out
                )
            self.ungated.add(server.name)
