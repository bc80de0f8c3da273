"""One watched run of a pydantic-ai agent, what it waits for, and how it goes on from its history."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ToolCallPart
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults

from grampus_uq import ApprovalDecision, ApprovalRequest, ConfigurationError, ToolCall
from grampus_uq.gate.call import CallRecord
from grampus_uq.integrations.call_records import OVER, calls_in, waiting_in
from grampus_uq.integrations.carried_calls import write_snapshot
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.pydantic_ai_messages import (
    KEY,
    OTHER,
    answered_parts,
    as_messages,
    carried_by,
    carry,
    denied_parts,
    open_calls,
    plain,
    proposed_call,
    with_arguments,
    without_result,
)
from grampus_uq.integrations.settings import decisions_in
from grampus_uq.wire import read_arguments

_MAX_PROPOSED = 256


class WatchedRun:
    """One run: its belief, its calls, and the histories of sub-agents that wait, by the call that started them."""

    def __init__(
        self,
        calls: HeldCalls,
        schemas: dict[str, Any],
        rules: Callable[[], object],
        children: Mapping[str, Any] | None = None,
    ) -> None:
        self.calls = calls
        self.rules = rules
        self.within: str | None = None
        """The key of the call whose tool runs this agent; None for the outermost one."""
        self.children: dict[str, Any] = dict(children or {})
        self._schemas = schemas
        self._proposed: dict[str, tuple[Any, ToolCall]] = {}
        self.decided = False
        """True while the history holds decisions that this run took."""
        self.proposed_here: set[str] = set()
        """Ids of calls that were proposed in this run: a human answers in a later one."""

    def inside(self, key: str) -> WatchedRun:
        """The same run as an agent sees it that a tool of it starts: its calls have ids of their own."""
        one = copy.copy(self)
        one.within, one._proposed = key, {}
        return one

    def proposed(self, part: ToolCallPart) -> ToolCall:
        """A part of the model's answer as a call; of one and the same part it is one and the same call."""
        written, call = self._proposed.get(part.tool_call_id, (None, None))
        if call is None or written is not part.args or call.name != part.tool_name:
            if len(self._proposed) > _MAX_PROPOSED:
                self._proposed.clear()
            call = proposed_call(part)
            if self.within is not None:
                call = call.model_copy(update={"id": call_key(call.id, self.within)})
            self._proposed[part.tool_call_id] = part.args, call
        return call

    def running(self, proposed: ToolCall, meant: Callable[[Mapping[str, Any]], Any], args: Any) -> tuple[ToolCall, Any]:
        """The call that is about to run: the model's, or as a human edited it, unless `args` are others; and with what.

        `meant` is `pydantic_ai_messages.meant` of these `args`, which may validate once more: advice does without.
        """
        if not self.calls.acts:
            return proposed, args
        record = self.calls.records.find(proposed)
        for call in (record.call, proposed) if record is not None and record.edited else (proposed,):
            if (values := meant(call.arguments)) is not OTHER:
                return call, values
        values = plain(args)
        read = read_arguments(values if isinstance(values, dict) else {"output": values})
        return proposed.model_copy(update={"arguments": read.values}), args

    def write_edits(self, messages: list[ModelMessage]) -> None:
        """Write a human's arguments into the open calls: a result belongs to the call that the transcript shows."""
        edited = self.calls.records.edited()
        for part in answered_parts(messages) if edited else ():
            call = self.proposed(part)
            for record in edited:
                if record.proposed == call:
                    with_arguments(messages, proposed_call(part), record.call.arguments)

    def write_into(self, messages: list[ModelMessage]) -> None:
        """Leave the belief, the calls and the waiting sub-agents in the history; in a sub-agent's, only their names."""
        tools = self.calls.records.waiting_tools()
        schemas = {name: schema for name, schema in self._schemas.items() if name in tools}
        children = self.children if self.within is None else dict.fromkeys(self.children)
        carry(messages, write_snapshot(self.calls, children=children, schemas=schemas))

    async def hear_denials(self, messages: Sequence[ModelMessage]) -> None:
        """Take what the framework denied of the latest answer's calls, and tell the permits."""
        for part in denied_parts(messages):
            self.calls.reject_foreign(self.proposed(part), principal="pydantic-ai")
        await self.calls.tell()

    def list_waiting(
        self,
        messages: list[ModelMessage],
        output: DeferredToolRequests,
        deferred: Mapping[str, ApprovalRequired | CallDeferred],
        external: Collection[str],
    ) -> None:
        """Put all calls of the last answer that wait into the output; none of them keeps a result in the history.

        Where an output function's call waits, the framework leaves out what it holds by its own rules, and takes no
        answers without it: `deferred` is what tools raised, by call, `external` the names of tools that run elsewhere.
        """
        listed = {part.tool_call_id for part in (*output.calls, *output.approvals)}
        for part in answered_parts(messages):
            records, raised = self.waiting_in(part), deferred.get(part.tool_call_id)
            if records:
                without_result(messages, part.tool_call_id)
            elif not self.calls.acts or part.tool_call_id not in open_calls(messages):
                continue
            if part.tool_call_id in listed:
                continue
            elsewhere = not records and (part.tool_name in external or isinstance(raised, CallDeferred))
            (output.calls if elsewhere else output.approvals).append(part)
            if metadata := metadata_of(*records) if records else getattr(raised, "metadata", None):
                output.metadata[part.tool_call_id] = metadata

    def give_up(self, messages: Sequence[ModelMessage]) -> None:
        """Close what waits of the latest answer's calls: the model is asked again, and no resumption brings them back.

        So the framework does where an output function's call waits and another call of the answer must be repaired.
        """
        for part in answered_parts(messages):
            for record in self.waiting_in(part):
                self.calls.give_up(record.proposed)
            if self.calls.acts:
                self.children.pop(call_key(part.tool_call_id, self.within), None)

    def waiting_in(self, part: ToolCallPart) -> list[CallRecord]:
        """The record of a call that waits, and those of the sub-agent that waits inside it."""
        record = self.calls.records.find(self.proposed(part))
        key = call_key(part.tool_call_id, self.within)
        history = self.children.get(key) if self.calls.acts else None
        inner = answered_parts(ModelMessagesTypeAdapter.validate_python(history or []))
        below = [found for one in inner for found in self.inside(key).waiting_in(one)]
        return below if record is None or not record.waiting else [record, *below]


@dataclass(slots=True)
class Execution:
    """A tool of a watched run while it runs. `key` names its call, and the calls of the agents around it."""

    run: WatchedRun
    key: str
    delegates: bool = False


RUNNING: ContextVar[Execution | None] = ContextVar("grampus_uq_pydantic_ai", default=None)
"""The tool that runs in the current context, for the agents that it starts."""


def call_key(call_id: str, within: str | None) -> str:
    """The name of a call: agents inside one another may give their calls the same ids."""
    return call_id if within is None else json.dumps([within, call_id])


def waiting(
    source: AgentRunResult[Any] | DeferredToolRequests | bytes | str | Sequence[ModelMessage],
) -> tuple[ApprovalRequest, ...]:
    """The pending approvals of a run, its sub-agents' too: of its result, its output, or its history.

    Raises DataError without a watched run, ConfigurationError where the output must be awaited.
    """
    if isinstance(source, bytes | str | Sequence):
        return waiting_in(carried_by(as_messages(source)))
    if hasattr(source, "all_messages") and not hasattr(source, "output"):
        way_out = "Give it `await result.get_output()` of a streamed result, or `run.result` of `agent.iter`."
        raise ConfigurationError.of("source", "waiting", "a result that has its output", type(source), way_out)
    output = getattr(source, "output", source)
    if not isinstance(output, DeferredToolRequests):
        return ()
    found = [data for call in output.approvals for data in output.metadata.get(call.tool_call_id, {}).get(KEY, ())]
    return tuple(ApprovalRequest.model_validate(data) for data in found)


def resume(
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
    carry(
        messages, {**carried, "decisions": [decision.model_dump(mode="json") for decision in decisions_in(decisions)]}
    )
    results = back_to_gate(messages)
    if also is not None:
        results.update(also)
    return {"message_history": messages, "deferred_tool_results": results}


def back_to_gate(messages: Sequence[ModelMessage], within: str | None = None) -> DeferredToolResults:
    """The calls of a history, and of its sub-agents, that wait at the gate go back to it: no approval by itself.

    `within` is the call that runs this agent. Not what the framework's own rules hold: a tool would take it for one.
    """
    carried = carried_by(messages)
    held = {record.proposed.id for record in calls_in(carried) if record.phase not in OVER}
    children = carried.get("children")
    held |= set(children) if isinstance(children, Mapping) else set()
    ids = sorted(one for one in open_calls(messages) if call_key(one, within) in held)
    return DeferredToolResults(approvals=dict.fromkeys(ids, True), metadata={one: {KEY: True} for one in ids})


def metadata_of(*records: CallRecord) -> dict[str, Any]:
    """The metadata of a waiting call in the framework's deferred request: what it, or what is inside it, waits for."""
    return {KEY: [one.model_dump(mode="json") for record in records if record.waiting for one in record.requests]}
