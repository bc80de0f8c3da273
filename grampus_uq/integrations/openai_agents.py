"""Watches agents of the OpenAI Agents SDK, and pauses their runs before a call that a human should see first.

guard = UncertaintyGuard(UncertaintyMonitor(policy=...))
result = await guard.run(agent, "Pay invoice 7", session_id="invoice-7")      # in place of Runner.run

paused = await guard.pause(result)         # None, or what waits; `paused.text` is all that another process needs
result = await guard.resume(agent, paused.text, [paused.requests[0].decide("approve", principal="ann")])
"""

from __future__ import annotations

import contextvars
import json
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, Unpack

from grampus_uq import (
    ApprovalDecision,
    ApprovalRequest,
    ConfigurationError,
    DataError,
    Effect,
    MissingDependencyError,
    SessionError,
    ToolCall,
    UncertaintyMonitor,
)
from grampus_uq.gate.call import CallPhase
from grampus_uq.gate.seal import session_place
from grampus_uq.integrations.call_records import VERSION, waiting_in
from grampus_uq.integrations.carried_calls import take_up
from grampus_uq.integrations.model_turn import hear_users
from grampus_uq.integrations.settings import AdapterSettings, Settings, decisions_in

with MissingDependencyError.unless("openai-agents", "openai-agents", "watching the OpenAI Agents SDK"):
    from agents import Agent, Model, Runner, RunResult, RunResultStreaming, RunState

from grampus_uq.integrations.openai_agents_model import (
    WatchedModel,
    answered_calls,
    hosted_requests,
    read_messages,
    read_output,
)
from grampus_uq.integrations.openai_agents_reach import AgentWatch, watch_runs
from grampus_uq.integrations.openai_agents_run import (
    AbortedRunError,
    PausedRun,
    WatchedRun,
    interrupted_call,
    read_paused,
)
from grampus_uq.integrations.openai_agents_tools import mcp_policy, without_gate

__all__ = ["AbortedRunError", "PausedRun", "UncertaintyGuard", "WatchedRun"]

Result = TypeVar("Result", RunResult, RunResultStreaming)


class UncertaintyGuard:
    """Watches any number of runs, each as a session of the monitor.

    Args:
        monitor: judges; an advisory one stops nothing.
        allow_ungated: names of hosted tools that may run although nothing can stop them.
        settings: see `Settings`. Without a fitted profile a pause carries no guarantee.
    """

    def __init__(
        self, monitor: UncertaintyMonitor, *, allow_ungated: Collection[str] = (), **settings: Unpack[Settings]
    ) -> None:
        self.settings = AdapterSettings(monitor=monitor, **settings)
        self.mcp_approval = mcp_policy(self._here)
        """Give this to an MCP server as its `require_approval`."""
        self._reach = AgentWatch(
            model=self._watched,
            current=self._here,
            acts=lambda: self.settings.acts,
            protects=self._protects,
            allow_ungated=frozenset(allow_ungated),
        )
        self._gate = self.settings.gate(self._reach.schemas.get)
        self._only_in_sessions = self._gate.approvals.signer is not None
        self._running: contextvars.ContextVar[WatchedRun | None] = contextvars.ContextVar("watched_run", default=None)
        self._of_result: dict[int, tuple[weakref.ref[Any], WatchedRun]] = {}

    # -- agents ---------------------------------------------------------------------------------------------------

    def watch(self, agent: Agent[Any]) -> Agent[Any]:
        """Put this guard into the agent and all that it reaches (handoffs, agents as tools), in place; returns it.

        In place, because `agent.as_tool()` holds on to its agent. Raises ConfigurationError, naming the tool or server,
        when one can act on the world and the SDK has no way to stop it. From now on what this guard watches runs in its
        sessions only; agents that only `run` watched go on running anywhere, unless decisions must be signed. A guard
        that only advises raises nothing: it names such tools in `ungated`, and leaves another guard's agents alone.
        """
        self._only_in_sessions = True
        return self._reach.put_into(agent)

    def unwatch(self, agent: Agent[Any]) -> Agent[Any]:
        """Take this guard out of the agent and all that it reaches, in place; returns it."""
        return self._reach.take_from(agent)

    @property
    def ungated(self) -> set[str]:
        """Names of the watched agents' tools and MCP servers whose calls nothing here can stop."""
        return self._reach.ungated

    def _protects(self, name: str) -> bool:
        return self._gate.effect(ToolCall(name=name), None, self.settings.monitor.profile.policy) is Effect.IRREVERSIBLE

    def _watched(self, model: Model, name: str) -> WatchedModel:
        if not isinstance(model, WatchedModel):
            return WatchedModel(model, self._observe, self._before, self, self._reach.has, name)
        if model.owner is not self and self.settings.acts:
            raise ConfigurationError.of(
                "agent", "UncertaintyGuard.watch", "watched by one guard", "another guard's agent"
            )
        return model

    # -- sessions -------------------------------------------------------------------------------------------------

    def session(
        self, session_id: str, agent_id: str = "", *, model: str = "", snapshot: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[WatchedRun]:
        """The session that `Runner.run` belongs to inside this block, for those who call it themselves.

        `model` names the model where neither it nor the provider that it was looked up in has a name for it.
        """
        watch_runs(self._reach)
        return self._inside(self._start(session_id, agent_id, model, snapshot))

    @contextmanager
    def _inside(self, run: WatchedRun) -> Iterator[WatchedRun]:
        token = self._running.set(run)
        try:
            yield run
        finally:
            self._running.reset(token)

    def _start(
        self, session_id: str, agent_id: str, model: str, snapshot: Mapping[str, Any] | None, *, vouched: bool = True
    ) -> WatchedRun:
        agent_id = self.settings.agent_id or agent_id
        calls = take_up(self.settings, self._gate, session_id, agent_id, snapshot, vouched=vouched)
        return WatchedRun(calls, model=model)

    def _here(self) -> WatchedRun | None:
        """The run of the current context; None where agents may run outside of one, else raises SessionError."""
        run = self._running.get()
        if run is None and self._only_in_sessions and self.settings.acts:
            raise SessionError(
                "A watched agent ran outside of a session: run it with `guard.run(agent, ..., session_id=...)`, or "
                "call Runner.run inside `with guard.session(session_id):`."
            )
        return run

    def _before(self, system: str | None, items: Any, tools: list[Any]) -> tuple[str | None, Any, list[Any]]:
        """The model's input without gates, without unsigned hosted approvals, and with what humans changed."""
        given, tools = tools, [without_gate(tool) for tool in tools]
        run = self._here()
        if run is None:
            return system, items, tools
        self._reach.check(given)
        if run.aborted is not None:  # an agent as a tool was aborted, and the SDK made a tool error of it
            raise run.aborted
        notes = run.calls.records.notes(call_id for call_id, _, _ in answered_calls(items))
        told = "\n\n".join([*([system] if system else []), *notes]) if notes else system
        return told, run.vouched_items(items), tools

    async def _observe(
        self,
        output: Sequence[Any],
        usage: Any,
        system: str | None,
        items: Any,
        tools: Sequence[Any],
        sent: Mapping[str, Any],
    ) -> None:
        run = self._here()
        if run is None:
            return
        run.hear_rejections(items)
        run.free.update(hosted_requests(output, self._reach.allow_ungated))
        turn, written = read_output(output, usage, tools)
        heard = partial(hear_users, messages=items)
        turn = replace(turn, **{**sent, "requested": sent["requested"] or run.model}, heard=heard)
        if not run.calls.session.tools_declared:
            turn = replace(turn, tools=[*self._reach.schemas, *(tool.name for tool in tools if hasattr(tool, "name"))])
        if self.settings.model_client is not None:
            turn = replace(turn, prompt=read_messages(system, items), schemas=sent["offered"])
        await run.observe(self.settings, turn, written)

    # -- running --------------------------------------------------------------------------------------------------

    async def run(self, agent: Agent[Any], input: Any, *, session_id: str, **given: Any) -> RunResult:
        """`Runner.run`, watched; takes whatever that takes. Raises AbortedRunError when the policy aborts the run."""
        self._reach.put_into(agent)
        with self.session(session_id, agent.name) as run:
            return self._remember(await Runner.run(agent, input, **given), run)

    def run_streamed(self, agent: Agent[Any], input: Any, *, session_id: str, **given: Any) -> RunResultStreaming:
        """`Runner.run_streamed`, watched."""
        self._reach.put_into(agent)
        with self.session(session_id, agent.name) as run:
            return self._remember(Runner.run_streamed(agent, input, **given), run)

    def _remember(self, result: Result, run: WatchedRun) -> Result:
        key = id(result)
        self._of_result[key] = (weakref.ref(result, lambda _: self._of_result.pop(key, None)), run)
        return result

    def watched(self, result: RunResult | RunResultStreaming) -> WatchedRun:
        """The run that a result of `run`, `run_streamed`, `resume` or `resume_streamed` came from."""
        found = self._of_result.get(id(result))
        if found is None or found[0]() is not result:
            raise ConfigurationError.of("result", "UncertaintyGuard", "a result of this guard's own runs", type(result))
        return found[1]

    # -- pausing and going on -------------------------------------------------------------------------------------

    async def pause(
        self, result: RunResult | RunResultStreaming, *, run: WatchedRun | None = None, **serializing: Any
    ) -> PausedRun | None:
        """The pause of a run, None when it waits for nothing. `serializing` goes to `RunState.to_json`.

        `run` is what `session` gave, for results that did not come from this guard's own `run`.
        """
        if not result.interruptions:
            return None
        run = run or self.watched(result)
        waiting = [(item, interrupted_call(item)) for item in result.interruptions]
        open_calls = [call for _, call in waiting]
        run.hear_rejections(result.to_input_list(), open_calls)  # no model was asked since, and what is refused is over
        await run.calls.tell()
        await run.ask(waiting, result.last_agent)
        requests = run.calls.requests()  # before the calls are written: one that expired is replaced
        envelope: dict[str, Any] = {
            "v": VERSION,
            "session_id": run.calls.session.session_id,
            "agent_id": run.calls.session.agent_id,
            "model": run.model,
            "calls": run.snapshot(),
            "run_state": result.to_state().to_json(**serializing),
        }
        text = json.dumps(self._gate.sealed(run.calls.place, envelope))
        return PausedRun(session_id=run.calls.session.session_id, requests=requests, text=text)

    @staticmethod
    def waiting(text: str) -> tuple[ApprovalRequest, ...]:
        """The requests of a paused run, read from its text alone; raises DataError for another text."""
        return waiting_in(read_paused(text)["calls"])

    async def resume(
        self,
        agent: Agent[Any],
        text: str,
        decisions: Sequence[ApprovalDecision] = (),
        *,
        session_id: str | None = None,
        **given: Any,
    ) -> RunResult:
        """Take decisions on what waits, and run on; what is undecided waits on. Each text is for one resumption.

        With `session_id` a text of another session raises DataError. `given` goes to `Runner.run`;
        `context_deserializer`, if there, to `RunState.from_json`. Raises ApprovalError when a decision is refused,
        before anything ran: the text is good for another attempt.
        """
        state, run = await self._load(agent, text, decisions, session_id, given)
        with self._inside(run):
            return self._remember(await Runner.run(agent, state, **given), run)

    async def resume_streamed(
        self,
        agent: Agent[Any],
        text: str,
        decisions: Sequence[ApprovalDecision] = (),
        *,
        session_id: str | None = None,
        **given: Any,
    ) -> RunResultStreaming:
        """`resume`, streamed."""
        state, run = await self._load(agent, text, decisions, session_id, given)
        with self._inside(run):
            return self._remember(Runner.run_streamed(agent, state, **given), run)

    async def _load(
        self,
        agent: Agent[Any],
        text: str,
        decisions: Sequence[ApprovalDecision],
        session_id: str | None,
        given: dict[str, Any],
    ) -> tuple[RunState[Any, Any], WatchedRun]:
        decisions = decisions_in(decisions)
        self._reach.put_into(agent)
        envelope = read_paused(text)
        if session_id is not None and session_id != envelope["session_id"]:
            raise DataError(f"of session {envelope['session_id']!r:.80}, not {session_id!r:.80}", field="session_id")
        vouched = self._gate.authentic(session_place(envelope["agent_id"], envelope["session_id"]), envelope)
        run = self._start(
            envelope["session_id"], envelope["agent_id"], envelope["model"], envelope["calls"], vouched=vouched
        )
        restoring: dict[str, Any] = {
            name: given.pop(name) for name in ("context_deserializer", "strict_context") if name in given
        }
        if "context" in given:
            restoring["context_override"] = given.pop("context")
        with self._inside(run):
            state = await RunState.from_json(agent, envelope["run_state"], **restoring)
            await self._decide(state, run, decisions)
        return state, run

    async def _decide(self, state: RunState[Any, Any], run: WatchedRun, decisions: Sequence[ApprovalDecision]) -> None:
        """Take decisions, and tell the SDK of each call that it holds what became of it."""
        if self._gate.approvals.signer is not None and state._context is not None:
            state._context._approvals.clear()  # the SDK's own approvals are signed by nobody
        waiting = [(item, interrupted_call(item)) for item in state.get_interruptions()]
        for item, _ in waiting:
            if isinstance(item.agent, Agent):
                self._reach.put_into(item.agent)
        # A call whose arguments are no longer those that were shown is another call: it is asked anew.
        await run.ask(waiting, state._current_agent)
        await run.calls.tell_first(decisions)
        for decision in decisions:
            run.calls.decide(decision)
        await run.calls.tell(stored=True)
        for starts in (False, True):  # what holds one call may hold others with it, which then do not start
            for held in await run.ready(waiting, state._current_agent):
                if not starts or held in await run.ready(waiting, state._current_agent):
                    await run.calls.void(held, starts=starts)
        ready = await run.ready(waiting, state._current_agent)
        for item, call in waiting:
            held = await run.calls.judge(call)
            if held.phase is CallPhase.SETTLED and held.text is not None:
                state.reject(item, rejection_message=held.text)
            elif held in ready or held.phase is CallPhase.SETTLED:  # one that ran is answered for where it would run
                state.approve(item)
            elif run.calls.acts:
                _take_back(state, item, call.id)


def _take_back(state: RunState[Any, Any], item: Any, call_id: str) -> None:
    """Take the SDK's approval of a call back: of a sub-agent that failed to go on it remembers one that is over."""
    owner, _ = state._find_nested_approval_state(item) or (state, item)
    for record in () if owner._context is None else owner._context._approvals.values():
        if isinstance(record.approved, list) and call_id in record.approved:
            record.approved.remove(call_id)
