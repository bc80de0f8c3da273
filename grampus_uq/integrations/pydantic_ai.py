"""Watches pydantic-ai agents as a capability, and defers tool calls that a human should see first.

    guard = UncertaintyCapability(UncertaintyMonitor(policy=...), advisory=False)
    agent = Agent(model, output_type=[str, DeferredToolRequests], capabilities=[guard])

    result = await agent.run("Pay invoice 7")
    if isinstance(result.output, DeferredToolRequests):
        request, = pending(result.output)
        history = result.all_messages_json()            # all that another process needs
        result = await agent.run(**resumption(history, [request.decide("approve", principal="ann")]))

The belief, and which calls wait for what, travel in the metadata of the last answer of the model in the history, which
is not sent to the model. With a signer they carry a seal: a history comes back from browsers. A conversation is one
session of the monitor.
"""

from __future__ import annotations

import contextvars
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grampus_uq import (
    ApprovalDecision,
    ApprovalError,
    ApprovalPolicy,
    ApprovalRequest,
    ConfigurationError,
    DataError,
    MissingDependencyError,
    ToolCall,
    ToolEffects,
    UncertaintyAction,
    UncertaintyError,
    UncertaintyMonitor,
)
from grampus_uq.gate.clearance import HARMLESS
from grampus_uq.gate.gate import Gate
from grampus_uq.integrations.held_calls import (
    HeldCalls,
    Precondition,
    Release,
    aborted,
    calls_in,
    note_schema,
    take_up,
    waiting_in,
)
from grampus_uq.integrations.pydantic_ai_messages import (
    KEY,
    answered_parts,
    as_messages,
    carried_by,
    carried_in,
    carry,
    find_part,
    means,
    native_calls,
    open_calls,
    plain,
    proposed_call,
    tool_schema,
    with_arguments,
    without_result,
)
from grampus_uq.records.protocols import ModelClient
from grampus_uq.wire import read_arguments, read_messages

try:
    from pydantic_ai import Agent, RunContext
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.exceptions import ApprovalRequired, ModelRetry
    from pydantic_ai.messages import (
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelResponse,
        ToolCallPart,
    )
    from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDefinition, ToolDenied
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
except ImportError as error:
    raise MissingDependencyError.of("pydantic-ai-slim", "pydantic-ai", "watching pydantic-ai agents") from error

__all__ = ["UncertaintyCapability", "WatchedRun", "pending", "resume", "resumption", "run_sub_agent", "waiting"]

_MAX_PROPOSED = 256
_NOTHING = object()
log = logging.getLogger("grampus_uq.integrations.pydantic_ai")

_running: contextvars.ContextVar[WatchedRun | None] = contextvars.ContextVar("grampus_uq_pydantic_ai", default=None)


class WatchedRun:
    """One run: its belief, its calls, and the histories of sub-agents that wait, by the call that started them."""

    def __init__(self, calls: HeldCalls, schemas: dict[str, Any], children: Mapping[str, Any] | None = None) -> None:
        self.calls = calls
        self.children: dict[str, Any] = dict(children or {})
        self._schemas = schemas
        self._proposed: dict[str, tuple[Any, ToolCall]] = {}

    def proposed(self, part: ToolCallPart) -> ToolCall:
        """A part of the model's answer as a call; of one and the same part it is one and the same call."""
        written, call = self._proposed.get(part.tool_call_id, (None, None))
        if call is None or written is not part.args or call.name != part.tool_name:
            if len(self._proposed) > _MAX_PROPOSED:
                self._proposed.clear()
            call = proposed_call(part)
            self._proposed[part.tool_call_id] = part.args, call
        return call

    def running(self, proposed: ToolCall, means: Callable[[Mapping[str, Any]], bool], args: Any) -> ToolCall:
        """The call that is about to run: the model's, or as a human edited it, unless its arguments mean others."""
        held = self.calls.find(proposed)
        for call in (held.call, proposed) if held is not None and held.edited else (proposed,):
            if means(call.arguments):
                return call
        values = plain(args)
        read = read_arguments(values if isinstance(values, dict) else {"output": values})
        return proposed.model_copy(update={"arguments": read.values})

    def snapshot(self) -> dict[str, Any]:
        """What travels in the history."""
        waiting = self.calls.waiting_tools()
        schemas = {name: schema for name, schema in self._schemas.items() if name in waiting}
        return self.calls.snapshot(children=self.children, schemas=schemas)


@dataclass
class _Gated(WrapperToolset[Any]):
    """All tools of the agent, behind the gate: here the arguments are those that no other capability changes."""

    capability: UncertaintyCapability

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        tools = await super().get_tools(ctx)
        self.capability.inside.update(tools)
        return tools

    async def call_tool(self, name: str, tool_args: Any, ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
        part = find_part(ctx.messages, ctx.tool_call_id or "", name)

        async def run(args: Any) -> Any:
            return await self.wrapped.call_tool(name, args, ctx, tool)

        return await self.capability.gate(ctx, part, name, tool_args, tool.args_validator, run)


@dataclass
class UncertaintyCapability(AbstractCapability[Any]):
    """Scores each answer of the model, and gates each tool call; only advises unless `advisory` is False.

    Parameters
    ----------
    monitor
        What judges; one that is not advisory itself pauses and aborts only when `advisory` is False as well.
    model_client, model_id
        The model that the signals ask (P(True), semantic entropy), and its name there. Without one, only what is in the
        agent's own answers is read: stated confidences and token probabilities.
    effects, approvals, precondition
        What tools do; who may decide, and how decisions are signed; what must still hold when an approved call runs.
    session_id
        Names the session of a run; by default the id of its conversation.
    """

    monitor: UncertaintyMonitor
    advisory: bool = True
    model_client: ModelClient | None = None
    model_id: str = ""
    effects: ToolEffects | None = None
    approvals: ApprovalPolicy | None = None
    precondition: Precondition | None = None
    session_id: Callable[[RunContext[Any]], str] | None = None
    ungated: set[str] = field(default_factory=set)
    """Names of native tools that models were given: the provider runs them, and nothing here can stop them."""
    watched: WatchedRun | None = None
    """The run that this instance belongs to; None on the one that the agent was built with."""

    inside: set[str] = field(default_factory=set, repr=False)
    """Names of the tools of this run that are called through the gate before the tools themselves."""
    judged: dict[str, Any] = field(default_factory=dict, repr=False)
    """What the output functions that are about to run were let through with."""
    unread: dict[str, ToolCall] | None = field(default=None, repr=False)
    """The calls that were brought here out of the answer that is being streamed; None while none is."""
    schemas: dict[str, Any] = field(default_factory=dict, repr=False)
    """The JSON schemas of the tools that models were given: a human's edit is held against them."""
    gates: list[Gate] = field(default_factory=list, repr=False)
    """The one that all runs share; made of `effects`, `approvals` and `precondition`."""

    def __post_init__(self) -> None:
        if not self.gates:
            gate = Gate(
                approvals=self.approvals,
                effects=self.effects,
                precondition=self.precondition,
                schema_of=self.schemas.get,
            )
            self.gates.append(gate)

    async def for_run(self, ctx: RunContext[Any]) -> UncertaintyCapability:
        """One instance a run: it continues what the history carries, or the run of the agent that started this one."""
        run = _running.get() or self._taken_up(ctx)
        for record in run.calls.edited():  # the call in the transcript is the one that runs: its result belongs to it
            with_arguments(ctx.messages, record.proposed, record.call.arguments)
        return replace(self, watched=run, inside=set(), judged={})

    def _taken_up(self, ctx: RunContext[Any]) -> WatchedRun:
        (gate,) = self.gates
        carried, decisions, vouched = self._carried(ctx, gate)
        calls = take_up(
            self.monitor,
            gate,
            self._named(ctx, carried),
            getattr(ctx.agent, "name", None) or "",
            carried,
            model=str(getattr(ctx.model, "model_name", "")),
            advisory=self.advisory,
            vouched=vouched,
        )
        # Histories of sub-agents count only in a state that does: what runs in them was let through there.
        run = WatchedRun(calls, self.schemas, _mapping(carried, "children") if calls.terms.vouched else None)
        if calls.terms.vouched:
            for name, schema in _mapping(carried, "schemas").items():
                self.schemas.setdefault(name, schema)
        for decision in decisions:
            try:
                calls.decide(ApprovalDecision.model_validate(decision))
            except (ApprovalError, ValueError) as error:
                if calls.acts:
                    raise error if isinstance(error, ApprovalError) else ApprovalError("no decision") from error
        return run

    def _carried(self, ctx: RunContext[Any], gate: Gate) -> tuple[dict[str, Any] | None, Sequence[Any], bool]:
        """What the history carries, the decisions beside it, and False where answers of a model carry nothing."""
        try:
            found = carried_in(ctx.messages)
        except DataError:
            if not (self.advisory or self.monitor.profile.advisory):
                raise
            found = None
        if found is None:
            answered = any(isinstance(message, ModelResponse) for message in ctx.messages)
            return None, (), gate.approvals.signer is None or not answered
        decisions = found.get("decisions")
        carried = {name: value for name, value in found.items() if name != "decisions"}
        return carried, decisions if isinstance(decisions, list) else (), True

    def _named(self, ctx: RunContext[Any], carried: Mapping[str, Any] | None) -> str:
        if self.session_id is not None:
            return self.session_id(ctx)
        state = _mapping(_mapping(carried, "belief"), "state")
        known = state.get("session_id") if carried is not None else None
        return str(known or getattr(ctx, "conversation_id", None) or ctx.run_id)

    def _run(self) -> WatchedRun:
        if self.watched is None:
            raise ConfigurationError.of("capability", "UncertaintyCapability", "made for a run by `for_run`", self)
        return self.watched

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> Any:
        """Let sub-agents find this run, and leave the belief in the history at the end."""
        run = self._run()
        token = _running.set(run)
        try:
            result = await handler()
        finally:
            _running.reset(token)
        messages = result.all_messages()
        if isinstance(result.output, DeferredToolRequests):
            self._reopen(messages, result.output)
        carry(messages, run.snapshot())
        return result

    def _reopen(self, messages: list[ModelMessage], output: DeferredToolRequests) -> None:
        """All calls of the last answer that wait are in the output, and none of them has a result: not an output's."""
        listed = {part.tool_call_id for part in output.approvals}
        for part in answered_parts(messages):
            held = self._run().calls.find(self._run().proposed(part))
            if held is None or not held.waiting:
                continue
            without_result(messages, part.tool_call_id)
            if part.tool_call_id not in listed:
                output.approvals.append(part)
                output.metadata[part.tool_call_id] = {KEY: [_dump(request) for request in held.requests]}

    async def wrap_model_request(self, ctx: RunContext[Any], *, request_context: Any, handler: Any) -> ModelResponse:
        """Score the answer; raises UncertaintyError when the policy aborts the run."""
        parameters = request_context.model_request_parameters
        native = getattr(parameters, "native_tools", None) or getattr(parameters, "builtin_tools", None) or ()
        self._report(native)
        run = self._run()
        calls = run.calls
        if calls.acts and not calls.session.tools_declared:
            self._check_order(ctx)
        self.unread = {}
        try:
            response: ModelResponse = await handler(request_context)
        finally:
            brought, self.unread = self.unread or {}, None
        for tool in (*parameters.function_tools, *parameters.output_tools):
            note_schema(self.schemas, tool.name, tool.parameters_json_schema)
        if self.schemas and not calls.session.tools_declared:
            calls.session.declare_tools(self.schemas)
        step_id = calls.next_step_id()
        proposed = [run.proposed(part) for part in response.parts if isinstance(part, ToolCallPart)]
        calls.propose([call for call in proposed if brought.get(call.id) != call], step_id)
        asks = self.model_client is not None
        _, action = await calls.session.observe_llm_response(
            response,
            step_id,
            prompt_messages=read_messages(request_context.messages).messages if asks else (),
            model_client=self.model_client,
            model_id=self.model_id,
            tool_calls=proposed,
            tools=[tool_schema(tool) for tool in parameters.function_tools] or None if asks else None,
        )
        if action is UncertaintyAction.ABORT:
            raise aborted(calls.session, step_id)
        for call, output in native_calls(response):
            await calls.observe_ungated(call, step_id, output)
        return response

    def _check_order(self, ctx: RunContext[Any]) -> None:
        """Refuse a capability that would change a call, or an output, after this one let it through."""
        chain: list[AbstractCapability[Any]] = []
        if ctx.root_capability is not None:
            ctx.root_capability.apply(chain.append)
        place = next((i for i, one in enumerate(chain) if one is self), len(chain))
        inner = {type(one) for one in chain[place + 1 :] if not isinstance(one, UncertaintyCapability)}
        hooks = ("get_wrapper_toolset", "before_output_process", "wrap_output_process")
        wrong = [one for one in inner if any(getattr(one, h) is not getattr(AbstractCapability, h) for h in hooks)]
        if wrong:
            names = ", ".join(sorted(one.__name__ for one in wrong))
            raise ConfigurationError.of("capabilities", "Agent", "with UncertaintyCapability as the last", names)

    def get_ordering(self) -> CapabilityOrdering:
        """Inside all others: what they make of a call is what is judged."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        """Put the gate before the tools themselves."""
        return None if self.watched is None else _Gated(toolset, self)

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: dict[str, Any], handler: Any
    ) -> Any:
        """Gate the tools that a capability around this one brings (a sandbox's, a search's)."""
        if call.tool_name in self.inside:
            return await handler(args)
        return await self.gate(ctx, call, call.tool_name, args, _validator(ctx, call.tool_name), handler)

    async def gate(
        self, ctx: RunContext[Any], part: ToolCallPart | None, name: str, args: Any, validator: Any, handler: Any
    ) -> Any:
        """Run the call, answer for it, or defer it: raises ApprovalRequired with its request in the metadata."""
        run = self._run()
        proposed = ToolCall(id=ctx.tool_call_id or "", name=name) if part is None else run.proposed(part)
        call = run.running(proposed, lambda arguments: means(args, arguments, validator, ctx), args)
        ours = KEY in (ctx.tool_call_metadata or {})
        if ctx.tool_call_approved and not ours and (held := await run.calls.judge(proposed)).waiting:
            changed = None if call is held.proposed else call.arguments
            run.calls.accept_foreign(proposed, principal="pydantic-ai", arguments=changed)
        release = await run.calls.release(run.calls.proposed_as(call), running=call)
        if release.answer is not None:
            return ToolDenied(release.answer) if release.record.is_error else release.answer
        if not release.run:
            carry(ctx.messages, run.snapshot())
            raise ApprovalRequired(metadata={KEY: [] if release.request is None else [_dump(release.request)]})
        return await self._execute(ctx, release, args, handler)

    async def _execute(self, ctx: RunContext[Any], release: Release, args: Any, handler: Any) -> Any:
        run = self._run()
        try:
            result = await handler(args)
        except ApprovalRequired:
            run.calls.suspend(release)
            carry(ctx.messages, run.snapshot())
            raise
        except Exception as failure:
            run.calls.settle(release, f"{type(failure).__name__}: {failure}", is_error=True)
            raise
        run.calls.settle(release, result)
        return result

    async def wrap_output_process(self, ctx: RunContext[Any], *, output_context: Any, output: Any, handler: Any) -> Any:
        """Gate an output function as a tool: a call that waits makes the run end with it in `DeferredToolRequests`.

        Raises UncertaintyError where the agent has no such output, or the output is no call. On parts of an answer that
        is still streaming, only what may be undone runs. `run_stream` brings the output function of an answer before
        the answer itself can be judged: then it waits, unless it may be undone.
        """
        if not output_context.has_function:
            return await handler(output)
        run = self._run()
        part = output_context.tool_call
        if part is None:
            proposed = ToolCall(id="", name=output_context.function_name or "output")
        else:
            proposed = run.proposed(part)
        validator = None if part is None else _validator(ctx, part.tool_name)
        call = run.running(proposed, lambda arguments: means(output, arguments, validator, ctx, of_output=True), output)
        if getattr(ctx, "partial_output", False):
            if run.calls.acts and run.calls.effect(call) not in HARMLESS:
                raise ModelRetry("Not executed: the answer is not complete yet.")
            return await handler(output)
        if self.unread is not None:
            self.unread[proposed.id] = proposed
        await run.calls.judge(run.calls.proposed_as(call), from_model=True, unread=self.unread is not None)
        release = await run.calls.release(run.calls.proposed_as(call), running=call)
        if release.run:
            self.judged[ctx.tool_call_id or ""] = plain(output)
            return await self._execute(ctx, release, output, handler)
        if release.answer is not None:
            raise ModelRetry(release.answer)
        requests = [] if release.request is None else [_dump(release.request)]
        if part is not None and output_context.allows_deferred_tools:
            return DeferredToolRequests(approvals=[part], metadata={part.tool_call_id: {KEY: requests}})
        raise UncertaintyError(
            f"The output function {call.name!r:.80} was not executed: a human has to see its call first, and this "
            "output cannot wait. Add DeferredToolRequests to the agent's output types, or make it a tool.",
            details={"session_id": run.calls.session.session_id, "request": next(iter(requests), None)},
        )

    async def before_output_process(self, ctx: RunContext[Any], *, output_context: Any, output: Any) -> Any:
        """The last look at what an output function is given, after all other capabilities' hooks."""
        judged = self.judged.pop(ctx.tool_call_id or "", _NOTHING)
        if judged is not _NOTHING and plain(output) != judged and self._run().calls.acts:
            raise UncertaintyError("Not executed: another capability changed the output after it had been judged.")
        return output

    def _report(self, native: Sequence[Any]) -> None:
        """Say once of each native tool that nothing here can stop it."""
        names = {str(getattr(tool, "kind", type(tool).__name__)) for tool in native} - self.ungated
        if names:
            self.ungated.update(names)
            log.warning("the provider runs these tools, and nothing here can stop them: %s", ", ".join(sorted(names)))


# -- pausing and going on ---------------------------------------------------------------------------------------------


def pending(output: Any) -> tuple[ApprovalRequest, ...]:
    """What a run waits for, its sub-agents' calls too; nothing for an output that is not `DeferredToolRequests`."""
    if not isinstance(output, DeferredToolRequests):
        return ()
    found = [data for call in output.approvals for data in output.metadata.get(call.tool_call_id, {}).get(KEY, ())]
    return tuple(ApprovalRequest.model_validate(data) for data in found)


def waiting(history: bytes | str | Sequence[ModelMessage] | DeferredToolRequests) -> tuple[ApprovalRequest, ...]:
    """What a run waits for, read from its history or its output; DataError when no watched run is in the history."""
    if isinstance(history, DeferredToolRequests):
        return pending(history)
    return waiting_in(carried_by(as_messages(history)))


def resumption(
    history: bytes | str | Sequence[ModelMessage],
    decisions: Sequence[ApprovalDecision] = (),
    *,
    also: DeferredToolResults | None = None,
) -> dict[str, Any]:
    """The arguments with which `agent.run` takes these decisions and runs on; what is undecided waits on.

    `history` is `result.all_messages()` or `all_messages_json()` of the run that waits. Decisions are checked when the
    run starts: one that is refused raises ApprovalError, before anything ran. A call may wait on because its
    precondition fails. `also` answers the calls that this package did not defer (`requires_approval`, external tools).
    Raises DataError when nothing of an `UncertaintyCapability` is in the history.
    """
    messages = as_messages(history)
    carried = carried_by(messages)
    carry(messages, {**carried, "decisions": [_dump(decision) for decision in decisions]})
    judged = {record.proposed.id for record in calls_in(carried)}
    results = _results(open_calls(messages) & judged)
    if also is not None:
        results.update(also)
    return {"message_history": messages, "deferred_tool_results": results}


resume = resumption
"""The name that the other adapters have for going on; what it gives goes to `agent.run`."""


def _results(call_ids: Iterable[str]) -> DeferredToolResults:
    """All of these calls go back to the gate, which knows what was decided; this is no approval of the framework's."""
    ids = sorted(call_ids)
    return DeferredToolResults(approvals=dict.fromkeys(ids, True), metadata={one: {KEY: True} for one in ids})


async def run_sub_agent(ctx: RunContext[Any], agent: Agent[Any, Any], prompt: str, **given: Any) -> Any:
    """Run an agent inside a tool of another, and return its output: when its calls wait, the tool's own call waits.

    Both agents have an `UncertaintyCapability` and may return `DeferredToolRequests`. `given` goes to `agent.run`.
    """
    run, call_id = _running.get(), ctx.tool_call_id or ""
    if run is None:
        return (await agent.run(prompt, **given)).output
    history = run.children.get(call_id)
    if history is None:
        result = await agent.run(prompt, **given)
    else:
        messages = ModelMessagesTypeAdapter.validate_python(history)
        results = _results(open_calls(messages))
        result = await agent.run(message_history=messages, deferred_tool_results=results, **given)
    if not isinstance(result.output, DeferredToolRequests):
        run.children.pop(call_id, None)
        return result.output
    run.children[call_id] = json.loads(result.all_messages_json())
    raise ApprovalRequired(metadata={KEY: [_dump(request) for request in pending(result.output)]})


def _validator(ctx: RunContext[Any], name: str) -> Any:
    """What validates the arguments of a tool; None where that is not known."""
    tools = (None if ctx.tool_manager is None else ctx.tool_manager.tools) or {}
    return tools[name].args_validator if name in tools else None


def _mapping(values: Any, name: str) -> dict[str, Any]:
    """An object in carried values; an empty one where there is none."""
    found = values.get(name) if isinstance(values, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def _dump(value: ApprovalRequest | ApprovalDecision) -> dict[str, Any]:
    return value.model_dump(mode="json")
