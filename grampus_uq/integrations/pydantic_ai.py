"""Watches pydantic-ai agents as a capability, and defers tool calls that a human should see first.

    guard = UncertaintyCapability(UncertaintyMonitor(policy=...), advisory=False)
    agent = Agent(model, output_type=[str, DeferredToolRequests], capabilities=[guard])

    result = await agent.run("Pay invoice 7")
    if isinstance(result.output, DeferredToolRequests):
        request, = pending(result.output)
        history = result.all_messages_json()            # all that another process needs
        result = await agent.run(**resumption(history, [request.decide("approve", principal="ann")]))

The belief, and which calls wait for what, travel in the metadata of the last answer of the model in the history, which
is not sent to the model. A conversation is one session of the monitor.
"""

from __future__ import annotations

import contextvars
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grampus_uq import (
    ApprovalDecision,
    ApprovalKind,
    ApprovalPolicy,
    ApprovalRequest,
    ConfigurationError,
    MissingDependencyError,
    ToolCall,
    ToolEffects,
    UncertaintyAction,
    UncertaintyMonitor,
)
from grampus_uq.integrations.held_calls import HeldCalls, Precondition, aborted, waiting_in
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
    written_arguments,
)
from grampus_uq.protocols import ModelClient
from grampus_uq.wire import read_messages

try:
    from pydantic_ai import Agent, RunContext
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import ApprovalRequired
    from pydantic_ai.messages import (
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelResponse,
        ToolCallPart,
    )
    from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDefinition, ToolDenied
except ImportError as error:
    raise MissingDependencyError.of("pydantic-ai-slim", "pydantic-ai", "watching pydantic-ai agents") from error

__all__ = ["UncertaintyCapability", "WatchedRun", "pending", "resumption", "run_sub_agent", "waiting"]

_MAX_PROPOSED = 256

_running: contextvars.ContextVar[WatchedRun | None] = contextvars.ContextVar("grampus_uq_pydantic_ai", default=None)


class WatchedRun:
    """One run: its belief, its calls, and the histories of sub-agents that wait, by the call that started them."""

    def __init__(self, calls: HeldCalls, children: Mapping[str, Any] | None = None) -> None:
        self.calls = calls
        self.children: dict[str, Any] = dict(children or {})
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
        return {**self.calls.snapshot(), "children": self.children}


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

    async def for_run(self, ctx: RunContext[Any]) -> UncertaintyCapability:
        """One instance a run: it continues what the history carries, or the run of the agent that started this one."""
        parent = _running.get()
        if parent is not None:
            return replace(self, watched=parent)
        carried = carried_in(ctx.messages)
        belief = None if carried is None else carried.get("belief")
        session = self.monitor.session(
            self._named(ctx, belief),
            getattr(ctx.agent, "name", None) or "",
            model=str(getattr(ctx.model, "model_name", "")),
            snapshot=belief,
            advisory=self.advisory,
        )
        calls = HeldCalls(session, effects=self.effects, approvals=self.approvals, precondition=self.precondition)
        if carried is None:
            return replace(self, watched=WatchedRun(calls))
        calls.restore(carried)
        for decision in carried.get("decisions", ()):
            calls.decide(ApprovalDecision.model_validate(decision))
        return replace(self, watched=WatchedRun(calls, carried.get("children")))

    def _named(self, ctx: RunContext[Any], belief: Mapping[str, Any] | None) -> str:
        if belief is not None:
            return str(belief["state"]["session_id"])
        if self.session_id is not None:
            return self.session_id(ctx)
        return str(getattr(ctx, "conversation_id", None) or ctx.run_id)

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
        self.ungated.update(str(getattr(tool, "kind", type(tool).__name__)) for tool in native)
        response: ModelResponse = await handler(request_context)
        calls = self._run().calls
        step_id = calls.next_step_id("llm")
        asks = self.model_client is not None
        _, action = await calls.session.observe_llm_response(
            response,
            step_id,
            prompt_messages=read_messages(request_context.messages).messages if asks else (),
            model_client=self.model_client,
            model_id=self.model_id,
            tool_calls=[self._run().proposed(part) for part in response.parts if isinstance(part, ToolCallPart)],
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
        proposed = run.proposed(find_part(ctx.messages, call))
        if call.tool_call_id in run.children:  # its sub-agent waited: the call itself was let through before
            return await self._execute(ctx, proposed, args, handler)
        held = await run.calls.judge(proposed)
        if held.waiting and ctx.tool_call_approved and KEY not in (ctx.tool_call_metadata or {}):
            given = written_arguments(call)
            changed = None if given == proposed.arguments else given
            run.calls.accept_foreign(proposed, principal="pydantic-ai", arguments=changed)
        release = await run.calls.release(proposed)
        if release.run or (release.answer is None and run.calls.session.profile.advisory):
            output = await self._execute(ctx, proposed, args, handler)
            return output if release.edit is None else release.edit.told(str(output))
        if release.answer is not None:
            return release.answer
        carry(ctx.messages, run.snapshot())
        raise ApprovalRequired(metadata={KEY: [] if release.request is None else [_dump(release.request)]})

    async def _execute(self, ctx: RunContext[Any], call: ToolCall, args: dict[str, Any], handler: Any) -> Any:
        run = self._run()
        try:
            result = await handler(args)
        except ApprovalRequired:
            carry(ctx.messages, run.snapshot())
            raise
        except Exception as failure:
            run.calls.session.observe_tool_result(call.id, f"{type(failure).__name__}: {failure}", is_error=True)
            raise
        run.calls.session.observe_tool_result(call.id, result if isinstance(result, str) else str(result))
        return result


# -- pausing and going on ---------------------------------------------------------------------------------------------


def pending(output: Any) -> tuple[ApprovalRequest, ...]:
    """What a run waits for, its sub-agents' calls too; nothing for an output that is not `DeferredToolRequests`."""
    if not isinstance(output, DeferredToolRequests):
        return ()
    found = [data for call in output.approvals for data in output.metadata.get(call.tool_call_id, {}).get(KEY, ())]
    return tuple(ApprovalRequest.model_validate(data) for data in found)


def waiting(history: bytes | str | Sequence[ModelMessage]) -> tuple[ApprovalRequest, ...]:
    """What a run waits for, read from its history alone; raises DataError when no watched run is in it."""
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
    judged = {held["call"]["id"]: (held.get("request") or {}).get("id", "") for held in carried["calls"]}
    results = _results({i: said.get(judged[i]) for i in open_calls(messages) if i in judged})
    if also is not None:
        results.update(also)
    return {"message_history": messages, "deferred_tool_results": results}


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
    return ToolDenied(HeldCalls.told(decision))


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


def _dump(value: ApprovalRequest | ApprovalDecision) -> dict[str, Any]:
    return value.model_dump(mode="json")
