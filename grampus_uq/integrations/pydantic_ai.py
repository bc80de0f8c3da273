"""Watches pydantic-ai agents as a capability, and defers tool calls that a human should see first.

    guard = UncertaintyCapability(UncertaintyMonitor(policy=...))
    agent = Agent(model, output_type=[str, DeferredToolRequests], capabilities=[guard])

    result = await agent.run("Pay invoice 7")
    for request in waiting(result):
        history = result.all_messages_json()            # all that another process needs
        result = await agent.run(**resume(history, [request.decide("approve", principal="ann")]))

The belief, and which calls wait for what, travel in the metadata of the last answer of the model in the history, which
is not sent to the model. With a signer they carry a seal: a history comes back from browsers. A conversation is one
session of the monitor.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

from grampus_uq import (
    ApprovalError,
    ConfigurationError,
    DataError,
    MissingDependencyError,
    ToolCall,
    UncertaintyError,
    UncertaintyMonitor,
)
from grampus_uq.gate.carried import read_decisions
from grampus_uq.gate.clearance import HARMLESS
from grampus_uq.integrations.carried_calls import take_up
from grampus_uq.integrations.held_calls import Release
from grampus_uq.integrations.model_turn import ModelTurn, hear_users
from grampus_uq.integrations.settings import AdapterSettings, Settings, note_schema
from grampus_uq.wire import read_messages

with MissingDependencyError.unless("pydantic-ai-slim", "pydantic-ai", "watching pydantic-ai agents"):
    from pydantic_ai import Agent, RunContext
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering, DynamicCapability, WrapperCapability
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, ToolCallPart
    from pydantic_ai.tools import DeferredToolRequests, ToolDefinition, ToolDenied
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from grampus_uq.integrations.pydantic_ai_messages import (
    KEY,
    carried_in,
    carries_latest,
    find_part,
    meant,
    name_of,
    native_calls,
    plain,
    proposed_call,
    standing_instructions,
    tool_schema,
    with_arguments,
)
from grampus_uq.integrations.pydantic_ai_runs import (
    RUNNING,
    Execution,
    WatchedRun,
    back_to_gate,
    call_key,
    metadata_of,
    resume,
    waiting,
)

__all__ = ["UncertaintyCapability", "resume", "run_sub_agent", "waiting"]

_NOTHING = object()
log = logging.getLogger("grampus_uq.integrations.pydantic_ai")


@dataclass
class _Gated(WrapperToolset[Any]):
    """All tools of the agent, behind the gate: here the arguments are those that no other capability changes."""

    capability: UncertaintyCapability

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        tools = await super().get_tools(ctx)
        # an earlier step's may be another's by now
        self.capability.gated_tools = {name: tool.tool_def.kind for name, tool in tools.items()}
        return tools

    async def call_tool(self, name: str, tool_args: Any, ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
        part = find_part(ctx.messages, ctx.tool_call_id or "", name)

        async def run(args: Any, own: RunContext[Any]) -> Any:
            return await self.wrapped.call_tool(name, args, own, tool)

        return await self.capability.gate(ctx, part, name, tool_args, tool.args_validator, run)


class UncertaintyCapability(AbstractCapability[Any]):
    """Scores each answer of the model, and gates each tool call.

    Args:
        monitor: judges; an advisory one stops nothing.
        session_id: names the session of a run; by default the id of its conversation.
        settings: see `Settings`. Without a fitted profile a pause carries no guarantee.
    """

    def __init__(
        self,
        monitor: UncertaintyMonitor,
        *,
        session_id: Callable[[RunContext[Any]], str] | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        self.settings = AdapterSettings(monitor=monitor, **settings)
        self._session_id = session_id
        self._schemas: dict[str, Any] = {}
        self._gate = self.settings.gate(self._schemas.get)
        self.ungated: set[str] = set()
        """Names of native tools that models were given: the provider runs them, and nothing here can stop them."""
        self.run: WatchedRun | None = None
        """The run that this instance belongs to; None on the one that the agent was built with."""
        self.gated_tools: dict[str, str] = {}
        """The kinds of the tools of this step that are called through the gate before the tools themselves, by name."""
        self._deferred: dict[str, ApprovalRequired | CallDeferred] = {}
        self._judged_outputs: dict[str, Any] = {}
        self._unread: dict[str, ToolCall] | None = None  # calls out of the answer that is being streamed, if one is

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    async def for_run(self, ctx: RunContext[Any]) -> UncertaintyCapability:
        """One instance a run: it continues what the history carries, or the run of the agent that started this one."""
        run = self._around() or await self._taken_up(ctx)
        await run.calls.tell(stored=True)
        run.write_edits(ctx.messages)
        one = copy.copy(self)
        one.run, one.gated_tools, one._judged_outputs, one._deferred = run, {}, {}, {}
        return one

    def _around(self) -> WatchedRun | None:
        """The run of the agent whose tool starts this one, if there is one: its guard judges the calls of both."""
        around = RUNNING.get()
        if around is None:
            return None
        if around.run.rules() == self._rules():
            return around.run.inside(around.key)
        if self.settings.acts:
            rule = "with the policy and settings of the guard of the agent whose tool runs this one"
            raise ConfigurationError.of("capability", "UncertaintyCapability", rule, "a guard with others")
        return None

    def _rules(self) -> tuple[Any, ...]:
        """All that decides what becomes of a call."""
        one, profile, approvals = self.settings, self.settings.monitor.profile, self._gate.approvals
        signer = getattr(approvals.signer, "__dict__", approvals.signer)  # by value: of one key, there may be two
        rules = self._gate.terms("", "", profile.policy).rules, profile, signer, approvals.expires_s
        starter = one.started_by if approvals.others_decide else None
        return *rules, starter, one.acts, one.effects, one.precondition, one.permits

    async def _taken_up(self, ctx: RunContext[Any]) -> WatchedRun:
        carried, decisions, vouched = self._carried(ctx)
        calls = take_up(
            self.settings,
            self._gate,
            self._named(ctx, carried),
            self.settings.agent_id or getattr(ctx.agent, "name", None) or "",
            carried,
            vouched=vouched,
        )
        # Histories of sub-agents count only in a state that does: what runs in them was cleared there.
        children = _mapping(carried, "children") if calls.terms.vouched else None
        run = WatchedRun(calls, self._schemas, self._rules, children)
        if calls.terms.vouched:
            for name, schema in _mapping(carried, "schemas").items():
                self._schemas.setdefault(name, schema)
        over = carried is not None and not carries_latest(ctx.messages)  # a run took the decisions, and went on
        strict = calls.acts and not over
        given, wrong = read_decisions(list(decisions))
        if wrong and strict:
            raise ApprovalError(wrong[0])
        lenient = contextlib.suppress(*(() if strict else (ApprovalError,)))
        with lenient:
            await calls.tell_first(given)
        for decision in given:
            with lenient:
                calls.decide(decision)
        if over:
            calls.close()
        run.decided = bool(decisions)
        return run

    def _carried(self, ctx: RunContext[Any]) -> tuple[dict[str, Any] | None, Sequence[Any], bool]:
        """Return the carried state and decisions of a history, and False if model answers carry none."""
        try:
            found = carried_in(ctx.messages)
        except DataError:
            if self.settings.acts:
                raise
            found = None
        if found is None:
            answered = any(isinstance(message, ModelResponse) for message in ctx.messages)
            return None, (), self._gate.approvals.signer is None or not answered
        decisions = found.get("decisions")
        carried = {name: value for name, value in found.items() if name != "decisions"}
        return carried, decisions if isinstance(decisions, list) else (), True

    def _named(self, ctx: RunContext[Any], carried: Mapping[str, Any] | None) -> str:
        if self._session_id is not None:
            return self._session_id(ctx)
        known = _mapping(_mapping(carried, "belief"), "state").get("session_id")
        return str(known or getattr(ctx, "conversation_id", None) or ctx.run_id)

    def _current(self) -> WatchedRun:
        if self.run is None:
            raise ConfigurationError.of("capability", "UncertaintyCapability", "made for a run by `for_run`", self)
        return self.run

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> Any:
        """Leave the belief in the history at the end."""
        run, result = self._current(), await handler()
        messages = result.all_messages()
        if isinstance(result.output, DeferredToolRequests):
            await run.hear_denials(messages)  # no model was asked since, and what is listed loses its result
            external = {name for name, kind in self.gated_tools.items() if kind == "external"}
            run.list_waiting(messages, result.output, self._deferred, external)
        run.write_into(messages)
        return result

    # -- the model's answer ---------------------------------------------------------------------------------------

    async def wrap_model_request(self, ctx: RunContext[Any], *, request_context: Any, handler: Any) -> ModelResponse:
        """Score the answer; raises UncertaintyError when the policy aborts the run."""
        parameters, run = request_context.model_request_parameters, self._current()
        native = getattr(parameters, "native_tools", None) or getattr(parameters, "builtin_tools", None) or ()
        self._report(native)
        calls = run.calls
        await run.hear_denials(request_context.messages)
        run.give_up(request_context.messages)
        if run.decided:  # `run_stream` copies the history before its end: decisions in it would be taken once more
            run.write_into(ctx.messages)
            run.decided = False
        if calls.acts and not calls.session.tools_declared:
            self._check_order(ctx)
        self._unread = {}
        try:
            response: ModelResponse = await handler(request_context)
        finally:
            brought, self._unread = self._unread or {}, None
        if getattr(response, "state", None) == "suspended":  # no answer yet: the provider is at work on it
            return response
        shown = (*parameters.function_tools, *parameters.output_tools)
        for tool in shown:
            note_schema(self._schemas, tool.name, tool.parameters_json_schema)
        proposed = [run.proposed(part) for part in response.parts if isinstance(part, ToolCallPart)]
        run.proposed_here.update(call.id for call in proposed)
        asks = self.settings.model_client is not None
        turn = ModelTurn(
            content=response,
            calls=proposed,
            ungated=native_calls(response),
            prompt=read_messages(request_context.messages).messages if asks else (),
            tools=self._schemas,
            schemas=[*map(tool_schema, shown), *({"type": "native"} for _ in native)] if asks else (),
            heard=partial(hear_users, messages=request_context.messages),
            requested=name_of(request_context.model, response),
            system=standing_instructions(request_context.messages, parameters),
            offered=[*map(tool_schema, shown), *map(plain, native)],
            shape=None
            if parameters.output_object is None
            else [parameters.output_mode, plain(parameters.output_object)],
        )
        await calls.observe(self.settings, turn, [call for call in proposed if brought.get(call.id) != call])
        return response

    def _check_order(self, ctx: RunContext[Any]) -> None:
        """Refuse a second guard, and a capability that would change a call or an output that this one let through."""
        chain = [] if ctx.root_capability is None else _parts([ctx.root_capability])
        if (guards := sum(isinstance(one, UncertaintyCapability) for one in chain)) > 1:
            rule = "with one UncertaintyCapability: a history holds the calls of one"
            raise ConfigurationError.of("capabilities", "Agent", rule, guards)
        place = next((i for i, one in enumerate(chain) if one is self), len(chain))
        inner = {type(one) for one in chain[place + 1 :]}
        hooks = ("get_wrapper_toolset", "before_output_process", "wrap_output_process")
        wrong = [one for one in inner if any(getattr(one, h) is not getattr(AbstractCapability, h) for h in hooks)]
        if wrong:
            names = ", ".join(sorted(one.__name__ for one in wrong))
            raise ConfigurationError.of("capabilities", "Agent", "with UncertaintyCapability as the last", names)

    def _report(self, native: Sequence[Any]) -> None:
        """Say once of each native tool that nothing here can stop it."""
        names = {str(getattr(tool, "kind", type(tool).__name__)) for tool in native} - self.ungated
        if names:
            self.ungated.update(names)
            log.warning("the provider runs these tools, and nothing here can stop them: %s", ", ".join(sorted(names)))

    # -- calls ----------------------------------------------------------------------------------------------------

    def get_ordering(self) -> CapabilityOrdering:
        """Inside all others: what they make of a call is what is judged."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        """Put the gate before the tools themselves."""
        return None if self.run is None else _Gated(toolset, self)

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: dict[str, Any], handler: Any
    ) -> Any:
        """Gate the tools that a capability around this one brings (a sandbox's, a search's)."""
        if call.tool_name in self.gated_tools:
            return await handler(args)
        validator = _validator(ctx, call.tool_name)
        return await self.gate(ctx, call, call.tool_name, args, validator, lambda given, own: handler(given))

    async def gate(
        self, ctx: RunContext[Any], part: ToolCallPart | None, name: str, args: Any, validator: Any, handler: Any
    ) -> Any:
        """Run the call, answer for it, or defer it: raises ApprovalRequired with its request in the metadata."""
        run = self._current()
        proposed = run.proposed(part or ToolCallPart(name, {}, tool_call_id=ctx.tool_call_id or ""))
        call, values = run.running(proposed, lambda arguments: meant(args, arguments, validator, ctx), args)
        ours = KEY in (ctx.tool_call_metadata or {})
        if ctx.tool_call_approved and not ours and (record := await run.calls.judge(proposed)).waiting:
            changed = None if call is record.proposed else call.arguments
            inline = proposed.id in run.proposed_here  # a handler in this run said so: no human's answer on this call
            run.calls.accept_foreign(proposed, principal="pydantic-ai", arguments=changed, standing=inline)
        release = await run.calls.release(run.calls.records.proposed_as(call), running=call)
        if release.answer is not None:
            return ToolDenied(release.answer) if release.record.is_error else release.answer
        if not release.run:
            run.proposed_here.add(proposed.id)
            run.calls.from_outside.discard(release.slot)  # a program may be asked now, and no human was since
            if part is not None and proposed != release.record.proposed:  # an edit is void: it shows what is asked
                with_arguments(ctx.messages, proposed_call(part), release.record.proposed.arguments)
            run.write_into(ctx.messages)
            raise ApprovalRequired(metadata=metadata_of(release.record))
        unapproved = ours and not release.record.decisions  # `resume` brought it here: that is nobody's approval
        own = replace(ctx, tool_call_approved=False) if unapproved else ctx

        async def work() -> Any:
            if unapproved and call_key(ctx.tool_call_id or "", run.within) not in run.children:
                raise ApprovalRequired  # the framework's own rule holds it
            return await handler(values, own)

        return await self._execute(ctx, release, work)

    async def _execute(self, ctx: RunContext[Any], release: Release, work: Callable[[], Any]) -> Any:
        """Run a released call: sub-agents find this run inside it, and only there: `iter` lends callers its context."""
        run = self._current()
        token = RUNNING.set(Execution(run, call_key(ctx.tool_call_id or "", run.within)))
        try:
            return await run.calls.execute(release, work, suspends=lambda result: isinstance(result, ApprovalRequired))
        except (ApprovalRequired, CallDeferred) as deferred:
            self._deferred[ctx.tool_call_id or ""] = deferred
            run.write_into(ctx.messages)
            raise
        finally:
            RUNNING.reset(token)

    # -- output functions -----------------------------------------------------------------------------------------

    async def wrap_output_process(self, ctx: RunContext[Any], *, output_context: Any, output: Any, handler: Any) -> Any:
        """Gate an output function as a tool: a call that waits makes the run end with it in `DeferredToolRequests`.

        Raises UncertaintyError where the agent has no such output, or the output is not a call. On parts of an answer
        that is still streaming, only what may be undone runs. `run_stream` brings the output function of an answer
        before the answer itself can be judged: then it waits, unless it may be undone.
        """
        if not output_context.has_function:
            return await handler(output)
        run, part, unread = self._current(), output_context.tool_call, self._unread is not None
        if part is None:
            proposed = ToolCall(id="", name=output_context.function_name or "output")
        else:
            proposed = run.proposed(part)
        validator = None if part is None else _validator(ctx, part.tool_name)
        call, _ = run.running(
            proposed, lambda arguments: meant(output, arguments, validator, ctx, of_output=True), output
        )
        if getattr(ctx, "partial_output", False):
            if run.calls.acts and run.calls.effect(call) not in HARMLESS:
                raise ModelRetry("Not executed: the answer is not complete yet.")
            return await handler(output)
        if self._unread is not None:
            self._unread[proposed.id] = proposed
        known_as = run.calls.records.proposed_as(call)
        await run.calls.judge(known_as, from_model=True, unread=unread)
        release = await run.calls.release(known_as, running=call)
        if release.run:
            if run.calls.acts:
                self._judged_outputs[ctx.tool_call_id or ""] = plain(output)
            return await self._execute(ctx, release, lambda: handler(output))
        if release.answer is not None:
            raise ModelRetry(release.answer)
        metadata = metadata_of(release.record)
        if part is not None and output_context.allows_deferred_tools:
            return DeferredToolRequests(approvals=[part], metadata={part.tool_call_id: metadata})
        raise UncertaintyError(
            f"The output function {call.name!r:.80} was not executed: a human has to see its call first, and this "
            "output cannot wait. Add DeferredToolRequests to the agent's output types, or make it a tool.",
            details={"session_id": run.calls.session.session_id, "request": next(iter(metadata[KEY]), None)},
        )

    async def before_output_process(self, ctx: RunContext[Any], *, output_context: Any, output: Any) -> Any:
        """The last look at what an output function is given, after all other capabilities' hooks."""
        judged = self._judged_outputs.pop(ctx.tool_call_id or "", _NOTHING)
        if judged is not _NOTHING and plain(output) != judged:
            raise UncertaintyError("Not executed: another capability changed the output after it had been judged.")
        return output


async def run_sub_agent(ctx: RunContext[Any], agent: Agent[Any, Any], prompt: str, **given: Any) -> Any:
    """Run an agent inside a tool of another, and return its output: when its calls wait, the tool's own call waits.

    Both agents have an `UncertaintyCapability` and may return `DeferredToolRequests`; where it only advises, so may
    this. `given` goes to `agent.run`.
    """
    execution = RUNNING.get()
    if execution is None:
        return (await agent.run(prompt, **given)).output
    run, key = execution.run, execution.key
    _check_watched(agent, given.get("capabilities") or (), ctx.tool_name, acts=run.calls.acts)
    if execution.delegates and run.calls.acts:  # when the tool runs again, it could not tell which of them waited
        raise ConfigurationError.of("run_sub_agent", ctx.tool_name or "a tool", "one sub-agent in each call", "two")
    execution.delegates = True
    history = run.children.get(key)
    if history is None:
        result = await agent.run(prompt, **given)
    else:
        messages = ModelMessagesTypeAdapter.validate_python(history)
        result = await agent.run(
            message_history=messages, deferred_tool_results=back_to_gate(messages, within=key), **given
        )
    output = result.output
    if not isinstance(output, DeferredToolRequests) or not run.calls.acts:
        run.children.pop(key, None)
        return output
    answered = back_to_gate(result.all_messages(), within=key).approvals
    others = [part.tool_name for part in (*output.calls, *output.approvals) if part.tool_call_id not in answered]
    if others:
        rule = "with tools that this package alone defers: nobody can answer others through the parent"
        raise ConfigurationError.of("agent", "run_sub_agent", rule, others)
    run.children[key] = json.loads(result.all_messages_json())
    raise ApprovalRequired(metadata={KEY: [request.model_dump(mode="json") for request in waiting(result)]})


def _parts(capabilities: Sequence[Any]) -> list[Any]:
    """Capabilities and all that they hold, each once, the outermost first; `apply` alone looks into no wrapper."""
    found: dict[int, Any] = {}
    left = [*reversed(capabilities)]
    while left:
        one = left.pop()
        if id(one) in found:
            continue
        found[id(one)] = one
        inner: list[Any] = []
        if isinstance(one, WrapperCapability):
            inner.append(one.wrapped)
        elif isinstance(one, AbstractCapability):
            one.apply(inner.append)
        left += reversed(inner)
    return [*found.values()]


def _check_watched(agent: Agent[Any, Any], given: Sequence[Any], tool: str | None, *, acts: bool) -> None:
    """Refuse a sub-agent without a guard, whose calls would run unasked; advice warns of it."""
    known = UncertaintyCapability, DynamicCapability
    chain = _parts([agent.root_capability, *given])
    if any(isinstance(one, known) or not isinstance(one, AbstractCapability) for one in chain):
        return  # a function may give one to each run
    if acts:
        rule = "an agent with an UncertaintyCapability: nothing would stop its calls"
        raise ConfigurationError.of("agent", "run_sub_agent", rule, agent.name or "one without")
    log.warning(
        "the sub-agent %.80r of tool %.80r has no UncertaintyCapability: nothing sees its calls", agent.name, tool
    )


def _validator(ctx: RunContext[Any], name: str) -> Any:
    """Return the validator of a tool's arguments; None if unknown."""
    tools = (None if ctx.tool_manager is None else ctx.tool_manager.tools) or {}
    return tools[name].args_validator if name in tools else None


def _mapping(values: Any, name: str) -> dict[str, Any]:
    """An object in carried values; an empty one where there is none."""
    found = values.get(name) if isinstance(values, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}
