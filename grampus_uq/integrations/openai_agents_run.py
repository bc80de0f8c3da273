"""One watched run of an OpenAI Agents SDK agent, and the same run while it waits: one text for another process."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from agents import AgentsException, RunState

from grampus_uq import AgentBeliefState, ApprovalRequest, DataError, ToolCall, UncertaintyError
from grampus_uq.gate.call import CallPhase, CallRecord
from grampus_uq.integrations.call_records import READABLE, VERSION
from grampus_uq.integrations.carried_calls import write_snapshot
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.model_turn import ModelTurn
from grampus_uq.integrations.openai_agents_model import Written, answered_calls, form_of, item_call, plain
from grampus_uq.integrations.openai_agents_tools import HELD_BEGINS, PRINCIPAL
from grampus_uq.integrations.settings import AdapterSettings
from grampus_uq.wire import field, read_call, text_field

_MAX_PROPOSED = 256


class AbortedRunError(UncertaintyError, AgentsException):
    """The policy aborted the run; the SDK lets it through as one of its own."""

    def __init__(self, error: UncertaintyError) -> None:
        super().__init__(str(error), code=error.code, details=error.details)


class WatchedRun:
    """One run of one session: its belief, and its calls."""

    def __init__(self, calls: HeldCalls, *, model: str) -> None:
        self.calls = calls
        self.model = model
        self._latest: list[ToolCall] = []
        self.aborted: AbortedRunError | None = None
        self.free: set[str] = set()
        """Ids of requests, in the model's answers, for calls of hosted servers that the user lets run ungated."""
        self._proposed: dict[tuple[str, str, str], ToolCall] = {}

    async def observe(self, settings: AdapterSettings, turn: ModelTurn, written: Written) -> None:
        """Observe the model's latest answer; raises AbortedRunError when the policy aborts the run."""
        if len(self._proposed) > _MAX_PROPOSED:
            self._proposed.clear()
        self._proposed.update(written)
        ungated = [id(call) for call, _ in turn.ungated]
        self._latest = [call for call in turn.calls if id(call) not in ungated]
        try:
            await self.calls.observe(settings, turn, self._latest)
        except UncertaintyError as error:
            self.aborted = AbortedRunError(error)
            raise self.aborted from error

    def hear_rejections(self, items: Any, still_open: Collection[ToolCall] = ()) -> None:
        """Take the SDK's own rejections (`state.reject`) in a model's input: a call that waits has an answer there.

        What the SDK lists as open is not refused: a sub-agent's call may equal one of its parent that has its result.
        """
        proposed = [record.proposed for record in self.calls.records.values() if record.waiting]
        waiting = [call for call in proposed if call not in still_open]
        if not waiting:
            return
        for call_id, written, item in answered_calls(items):
            if not str(field(item, "output")).startswith(HELD_BEGINS):
                for call in waiting:
                    if call.id == call_id and written in (None, call):
                        self.calls.reject_foreign(call, principal=PRINCIPAL)

    def hear_state(self, state: RunState[Any, Any]) -> None:
        """Take the SDK's own rejections in a state that is resumed: its run may end without asking its model."""
        if (context := state._context) is not None and self.calls.acts:
            for call in map(interrupted_call, state.get_interruptions()):
                if context.is_tool_approved(call.name, call.id) is False:
                    self.calls.reject_foreign(call, principal=PRINCIPAL)

    async def ready(self, waiting: Collection[tuple[Any, ToolCall]], current: Any) -> list[CallRecord]:
        """The approved calls that may run now, among those that the SDK holds.

        Sub-agents go on once all of their calls are decided. Until then nothing is approved to the SDK and no start is
        taken: another process may be the one that runs them.
        """
        held = [(await self.calls.judge(call), item.agent is not current) for item, call in waiting]
        undecided = self.calls.acts and any(record.waiting for record, inside in held if inside)
        ready = [record for record, inside in held if not (inside and undecided)]
        return [record for record in ready if record.phase is CallPhase.CLEARED and record.decisions]

    async def ask(self, waiting: Collection[tuple[Any, ToolCall]], current: Any) -> None:
        """Ask a human about all that the SDK holds, but for what was approved and is not to run yet."""
        ready = await self.ready(waiting, current)
        for _, call in waiting:
            held = await self.calls.judge(call)
            if not held.decisions or held in ready:
                await self.calls.judge(call, framework_asks=True)

    def proposed(self, call_id: str, name: str, arguments: Any) -> ToolCall:
        """The call with this id, name and arguments: the model's own object where its answer held just these.

        What the SDK parsed of the text is compared as Python compares it; what runs is the text.
        """
        if isinstance(arguments, str):
            known = self._proposed.get((call_id, name, arguments))
        else:
            known = next((c for c in self._latest if (c.id, c.name) == (call_id, name)), None)
            known = known if known is not None and known.arguments == arguments else None
        return known or read_call({"id": call_id, "name": name, "arguments": arguments}).call

    def meant(self, call_id: str, name: str, given: Any) -> ToolCall:
        """The call that a shell, apply-patch or custom tool is given; without an id, the one that has not run yet."""
        form = form_of(given)
        for call in (*self.calls.records.known(name), *self._latest):
            if call.name == name and call_id in ("", call.id) and form_of(call.arguments) == form:
                return call
        return read_call({"id": call_id, "name": name, "arguments": form}).call

    def vouched_items(self, items: Any) -> Any:
        """A model's input without the approvals of provider-run calls that no human signed here: a provider acts on it.

        Any stored text or input may hold one. It stays where a decision stands behind it, and its request, if there, is
        of the approved call; else it goes with that request.
        """
        calls = self.calls
        if isinstance(items, str) or not calls.acts or calls.gate.approvals.signer is None:
            return items
        kinds = [(text_field(item, "type"), item) for item in items]
        asked = [call for kind, item in kinds if kind == "mcp_approval_request" and (call := item_call(item))]

        def stands(call_id: str) -> bool:
            approved = calls.records.approved(call_id)
            return call_id in self.free or (bool(approved) and all(c in approved for c in asked if c.id == call_id))

        approvals = {
            id(item): text_field(item, "approval_request_id")
            for kind, item in kinds
            if kind == "mcp_approval_response" and field(item, "approve") is not False
        }
        requests = {id(item): text_field(item, "id") for kind, item in kinds if kind == "mcp_approval_request"}
        gone = {call_id for call_id in approvals.values() if not stands(call_id)}
        request_of = requests | approvals
        return [item for _, item in kinds if request_of.get(id(item)) not in gone]

    def snapshot(self) -> dict[str, Any]:
        """The belief and the calls as JSON values, for `UncertaintyGuard.session(snapshot=...)` in another process."""
        return write_snapshot(self.calls)

    @property
    def belief(self) -> AgentBeliefState:
        """The belief now."""
        return self.calls.session.belief()


# -- a run that waits --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedRun:
    """A run that waits: what for, and everything that another process needs to go on, as one JSON text."""

    session_id: str
    requests: tuple[ApprovalRequest, ...]
    text: str


def interrupted_call(item: Any) -> ToolCall:
    """The call of one interruption."""
    call = item_call(item.raw_item)
    if call is not None and item.tool_name:
        return call.model_copy(update={"name": item.tool_name})
    return call or ToolCall(name=item.tool_name or "", arguments={"input": plain(item.raw_item)})


_FIELDS = {"session_id": str, "agent_id": str, "model": str, "calls": dict, "run_state": dict}


def read_paused(text: str) -> dict[str, Any]:
    """The content that `pause` wrote; raises DataError, naming the field."""
    try:
        envelope = json.loads(text)
    except ValueError as failure:
        raise DataError(f"not a paused run: {failure}") from failure
    if not isinstance(envelope, dict) or envelope.get("v") not in READABLE:
        raise DataError(f"not a paused run of version {VERSION}", field="v")
    for name, kind in _FIELDS.items():
        if not isinstance(envelope.get(name), kind):
            raise DataError("missing or of another type", field=name)
    return envelope
