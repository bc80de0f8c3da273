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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grampus_uq import (
    ApprovalDecision,
    ApprovalError,
    ApprovalKind,
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
from grampus_uq.gate.call import told
from grampus_uq.gate.clearance import HARMLESS
from grampus_uq.gate.gate import Gate
from grampus_uq.integrations.held_calls import (
    HeldCalls,
    Precondition,
    Release,
    aborted,
    note_schema,
    take_up,
    waiting_in,
)
from grampus_uq.integrations.pydantic_ai_messages import (
    KEY,
    as_messages,
    carried_by,
    carried_in,
    carry,
    find_part,
    open_calls,
    proposed_call,
    tool_schema,
    with_arguments,
    written_arguments,
)
from grampus_uq.protocols import ModelClient
from grampus_uq.wire import read_messages

try:
    from pydantic_ai import Agent, RunContext
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import ApprovalRequired, ModelRetry
    from pydantic_ai.messages import (
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelResponse,
        ToolCallPart,
    )
    from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDefinition, ToolDenied
except ImportError as error:
    raise MissingDependencyError.of("pydantic-ai-slim", "pydantic-ai", "watching pydantic-ai agents") from error

__all__ = ["UncertaintyCapability", "WatchedRun", "pending", "resume", "resumption", "run_sub_agent", "waiting"]

_MAX_PROPOSED = 256
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

    def snapshot(self) -> dict[str, Any]:
        """What travels in the history."""
        waiting = self.calls.waiting_tools()
        schemas = {name: schema for name, schema in self._schemas.items() if name in waiting}
        return self.calls.snapshot(children=self.children, schemas=schemas)


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
        parent = _running.get()
        if parent is not None:
            return replace(self, watched=parent)
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
        return replace(self, watched=run)

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
        carry(result.all_messages(), run.snapshot())
        return result

    async def wrap_model_request(self, ctx: RunContext[Any], *, request_context: Any, handler: Any) -> ModelResponse:
        """Score the answer; raises UncertaintyError when the policy aborts the run."""
        parameters = request_context.model_request_parameters
        native = getattr(parameters, "native_tools", None) or getattr(parameters, "builtin_tools", None) or ()
        self._report(native)
        response: ModelResponse = await handler(request_context)
        run = self._run()
        calls = run.calls
        for tool in (*parameters.function_tools, *parameters.output_tools):
            note_schema(self.schemas, tool.name, tool.parameters_json_schema)
        if self.schemas and not calls.session.tools_declared:
            calls.session.declare_tools(self.schemas)
        step_id = calls.next_step_id()
        proposed = [run.proposed(part) for part in response.parts if isinstance(part, ToolCallPart)]
        calls.propose(proposed, step_id)
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
        return response

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: dict[str, Any], handler: Any
    ) -> Any:
        """Run the call, answer for it, or defer it: raises ApprovalRequired with its request in the metadata."""
        run = self._run()
        part = find_part(ctx.messages, call)
        proposed, given = run.proposed(part), written_arguments(call)
        held = await run.calls.judge(proposed)
        if held.waiting and ctx.tool_call_approved and KEY not in (ctx.tool_call_metadata or {}):
            changed = None if given == proposed.arguments else given
            run.calls.accept_foreign(proposed, principal="pydantic-ai", arguments=changed)
        release = await run.calls.release(proposed, running=proposed.model_copy(update={"arguments": given}))
        if release.answer is not None:
            return release.answer
        if not release.run:
            carry(ctx.messages, run.snapshot())
            raise ApprovalRequired(metadata={KEY: [] if release.request is None else [_dump(release.request)]})
        result = await self._execute(ctx, release, args, handler)
        if release.record.edited:  # the call in the transcript is the one that ran: its result belongs to it
            with_arguments(ctx.messages, part, release.record.call.arguments)
        return result

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
        """Gate an output function as a tool: what would wait raises UncertaintyError, since an output cannot wait.

        On parts of an answer that is still streaming, only what may be undone runs. An answer that `run_stream` streams
        is judged once it is over, and its output function before that.
        """
        if not output_context.has_function:
            return await handler(output)
        run = self._run()
        part = output_context.tool_call
        if part is None:
            name = output_context.function_name or "output"
            call = ToolCall(id="", name=name, arguments={"output": str(output)})
        else:
            call = run.proposed(find_part(ctx.messages, part))
        if getattr(ctx, "partial_output", False):
            effect = run.calls.gate.effect(call, None, run.calls.session.profile.policy)
            if run.calls.acts and effect not in HARMLESS:
                raise ModelRetry("Not executed: the answer is not complete yet.")
            return await handler(output)
        await run.calls.judge(call, from_model=True)
        release = await run.calls.release(call)
        if release.run:
            return await self._execute(ctx, release, output, handler)
        request = None if release.request is None else _dump(release.request)
        raise UncertaintyError(
            f"The output function {call.name!r:.80} was not executed: a human has to see its call first, and an output "
            f"cannot wait. Make it a tool of the agent. {release.answer or ''}".strip(),
            details={"session_id": run.calls.session.session_id, "request": request},
        )

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
    said = {decision.request_id: decision for decision in decisions}
    results = _results(_said_of(carried, open_calls(messages), said))
    if also is not None:
        results.update(also)
    return {"message_history": messages, "deferred_tool_results": results}


resume = resumption
"""The name that the other adapters have for going on; what it gives goes to `agent.run`."""


def _said_of(
    carried: Mapping[str, Any], call_ids: set[str], said: Mapping[str, ApprovalDecision]
) -> dict[str, ApprovalDecision | None]:
    """What was said of each open call that was judged; None for one that waits on, also for a second approval."""
    asked = {request.id: request.call.id for request in waiting_in(carried) if request.call is not None}
    decided = {asked[i]: decision for i, decision in said.items() if i in asked}
    judged = {_mapping(entry, "call").get("id") for entry in carried.get("calls") or ()}
    return {call_id: decided.get(call_id) for call_id in call_ids if call_id in judged}


def _results(decided: Mapping[str, ApprovalDecision | None]) -> DeferredToolResults:
    """What the framework is told of each call; one without a decision comes back to the capability, and is deferred."""
    return DeferredToolResults(
        approvals={call_id: _result(decision) for call_id, decision in decided.items()},
        metadata={call_id: {KEY: True} for call_id in decided},  # this is no approval of the framework's own
    )


def _result(decision: ApprovalDecision | None) -> ToolApproved | ToolDenied:
    if decision is None or decision.kind is ApprovalKind.APPROVE:
        return ToolApproved()
    if decision.kind is ApprovalKind.EDIT:
        return ToolApproved(override_args=decision.arguments)
    return ToolDenied(told(decision))


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
        results = _results({i: run.calls.decision(i) for i in open_calls(messages)})
        result = await agent.run(message_history=messages, deferred_tool_results=results, **given)
    if not isinstance(result.output, DeferredToolRequests):
        run.children.pop(call_id, None)
        return result.output
    run.children[call_id] = json.loads(result.all_messages_json())
    raise ApprovalRequired(metadata={KEY: [_dump(request) for request in pending(result.output)]})


def _mapping(values: Any, name: str) -> dict[str, Any]:
    """An object in carried values; an empty one where there is none."""
    found = values.get(name) if isinstance(values, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def _dump(value: ApprovalRequest | ApprovalDecision) -> dict[str, Any]:
    return value.model_dump(mode="json")
