"""The stored state of one run: transcript, the calls of the current turn, and the belief."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PrivateAttr, TypeAdapter, ValidationError

from grampus_uq.gate.call import MAX_REJECTED, UNREADABLE, CallPhase, CallRecord, remembered, settled
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.records.values import Message, TokenUsage, ToolCall, sha256_of
from grampus_uq.records.vocabulary import AgentStatus, Effect, Role
from grampus_uq.runtime.transcript import Transcript
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

if TYPE_CHECKING:
    from grampus_uq.runtime.session_heads import PendingCall, SessionHead

STATE_VERSION = 2
ATTENDED = "attended"
"""In the metadata of a session: its worker takes up decisions while it runs."""
DEATHS = "worker_deaths"
STARTED_BY = "started_by"
"""In the metadata of a session: the principal whose run it is."""
REPLACED = "looks_replaced"
"""In the metadata of a session: calls that were replaced or left behind, until decisions about them were heard."""
REJECTED_BEFORE = "rejected_before"
"""In the metadata of a session: what humans answered against calls in its earlier runs (`call.against`)."""
_LONGEST_CHILD = 1_500
_RECORDS = TypeAdapter(list[CallRecord])
_MAY_HAVE_RUN = "The run ended while this call was under way: it may have taken effect. Find out before you repeat it."
_PLACEHOLDER = "This call has not been executed: it waits for a human's decision."


class Segment(BaseModel):
    """The steps of a session from `from_step` on: their branch, and the run id of their calls."""

    model_config = ConfigDict(extra="forbid")

    branch: int
    run_id: str
    from_step: int


class ExecutedCall(BaseModel):
    """A call of a discarded part of a run that took effect, or may have where it did not finish.

    `irreversible`: not classified as reversible, or named by the policy. `arguments_known` is False when the transcript
    no longer holds them. `compensation` made up for it, `compensation_started`: this was tried; `settled`: no decision
    is needed any more.
    """

    model_config = ConfigDict(extra="forbid")

    call: ToolCall
    step_id: str
    effect: Effect
    irreversible: bool
    digest: str
    idempotency_key: str
    finished: bool
    is_error: bool = False
    arguments_known: bool = True
    compensation_started: bool = False
    compensation: str | None = None
    settled: bool = False


class AgentState(BaseModel):
    """One run as stored and as passed between graph nodes; mutable, owned by its runner.

    After a rollback `lineage` has the branches of the steps, and `discarded` the calls that other branches executed.
    `vouched` is False once the state was loaded without a valid seal where one was required: the belief then clears
    nothing that may be irreversible, for the rest of the run. `worker` wrote it for the `saves`-th time, and has it
    leased for `lease_s` seconds by the store's clock from then on (`lease_until_s`: by a worker's clock, in version 1).
    `stops_seen` counts the stop orders, to all and to this session, from before the lease. `transcript` says where the
    messages are.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=False)

    v: int = Field(default=STATE_VERSION, le=STATE_VERSION)
    agent_id: str
    session_id: str
    run_id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    messages: list[Message] = Field(default_factory=list)
    status: AgentStatus = AgentStatus.IDLE
    metadata: dict[str, Any] = Field(default_factory=dict)
    current_step: int = 0
    total_token_usage: TokenUsage | None = None
    definition: dict[str, JsonValue] = Field(default_factory=dict)
    turn: list[CallRecord] = Field(default_factory=list)
    review: list[ApprovalRequest] = Field(default_factory=list)
    rejected: list[str] = Field(default_factory=list)
    rejected_turns: int = 0
    tool_calls_made: int = 0
    touched: bool = False
    output: str = ""
    answer_approved_by: str | None = None
    rollback_refused_by: str | None = None
    store_failures: int = 0
    belief: dict[str, JsonValue] | None = None
    worker: str | None = None
    saves: int = 0
    lease_s: float = 0.0
    lease_until_s: float = 0.0
    claimed_s: float = 0.0
    stops_seen: tuple[int, int] | None = None
    created_s: float = Field(default_factory=time.time)
    active_s: float = 0.0
    branch: int = 0
    lineage: list[Segment] = Field(default_factory=list)
    discarded: list[ExecutedCall] = Field(default_factory=list)
    vouched: bool = True
    transcript: Transcript | None = None
    _sealed: bool = PrivateAttr(default=True)
    _kept: tuple[Transcript, list[Message]] | None = PrivateAttr(default=None)
    _leased_until: float = PrivateAttr(default=0.0)
    _replaces: str | None = PrivateAttr(default=None)
    _asked: list[ApprovalRequest] = PrivateAttr(default_factory=list)
    _unfinished: bool = PrivateAttr(default=False)

    @property
    def sealed(self) -> bool:
        """Return True for a state of this process or a loaded state with a valid seal."""
        return self._sealed

    @property
    def alarmed(self) -> bool:
        """True where a branch that was rolled back raised an alarm."""
        rollback = self.metadata.get("rollback")
        return self.branch > 0 and isinstance(rollback, dict) and bool(rollback.get("alarmed"))

    def leased_for_s(self) -> float:
        """Seconds left of the lease of the worker that wrote this state; 0 without one."""
        left = self._leased_until - time.monotonic()
        return left if self.status is AgentStatus.RUNNING and left > 0.0 else 0.0

    def forget_lease(self) -> None:
        """Treat the worker that wrote this state as dead, whatever the store's clock says about its lease."""
        self._leased_until = 0.0

    def taken_over(self) -> None:
        """Count the death of the worker that ran it until now, if one did; a state that is at rest forgets them."""
        if self.status is AgentStatus.RUNNING:
            self.metadata[DEATHS] = count(self.metadata.get(DEATHS)) + 1

    @property
    def started_by(self) -> str | None:
        """The starter of the run; None for a state that lacks a required seal."""
        name = self.metadata.get(STARTED_BY)
        return name if self.vouched and isinstance(name, str) and name else None

    def replaces(self, old: AgentState) -> AgentState:
        """This state, replacing `old` in the store: its first save removes the old transcript."""
        self._replaces = None if old.transcript is None else old.transcript.log
        self._asked = old._asked
        self.know_rejected([*old.rejected_before(), *old.rejected])
        self.keep_replaced(old.unheard())
        return self

    def rejected_before(self) -> list[str]:
        """The answers of humans against calls in earlier runs of the session, or of its parent's."""
        return texts(self.metadata.get(REJECTED_BEFORE))

    def know_rejected(self, before: Sequence[str]) -> None:
        """Take over what humans answered against calls before this run."""
        if before:
            self.metadata[REJECTED_BEFORE] = remembered(before)

    def inherit(self, *others: AgentState | SessionHead) -> None:
        """Take over what humans answered against calls in other sessions of the run, and before it."""
        self.rejected = remembered([*(one for other in others for one in other.rejected), *self.rejected])
        before = (one for other in others for one in other.rejected_before())
        self.know_rejected([*before, *self.rejected_before()])

    def pending(self) -> list[ApprovalRequest]:
        """The pending approval requests."""
        return pending(self.review, self.turn)

    def replaced(self) -> list[CallRecord]:
        """The calls that looks, a rollback or an end replaced, as far as anybody can read them."""
        return readable(self.metadata.get(REPLACED))

    def unheard(self) -> list[CallRecord]:
        """The calls that a rejection which nobody took up yet still counts on: those replaced, its own that wait, and
        those that sub-agents serve."""
        return [*self.replaced(), *self.undecided()]

    def undecided(self) -> list[CallRecord]:
        """The calls of the turn, or of an engine's run, that wait for a decision, and those that sub-agents serve."""
        asked = ((CallRecord.new(one.call, one.step_id), one) for one in self.review if one.call is not None)
        hosted = (record.change(phase=CallPhase.WAITING, requests=(one,)) for record, one in asked)
        own = (one.change(child_session=None) for one in self.turn if one.asks_itself)
        below = (
            one.change(requests=()) for one in self.turn if one.child_session and one.phase is not CallPhase.SETTLED
        )
        return [*hosted, *own, *below]

    def is_of_this_run(self, held: CallRecord) -> bool:
        """True for a replaced call of this run, or of a branch of it that stands; not for one of an earlier run."""
        runs = {self.run_id, *(segment.run_id for segment in self.lineage)}
        if held.child_session is None:
            return held.requests[0].run_id in runs
        return held.child_session in [self.model_copy(update={"run_id": run}).child_session(held) for run in runs]

    def keep_replaced(self, held: list[CallRecord]) -> None:
        """Keep these as the calls that were replaced; of too many the latest, and all that acts is asked about."""
        self.metadata.pop(REPLACED, None)
        if len(held) > MAX_REJECTED:
            held = held[-MAX_REJECTED:]
            self.know_rejected([*self.rejected_before(), UNREADABLE])
        if held:
            self.metadata[REPLACED] = [one.model_dump(mode="json") for one in held]

    def already_executed(self, call: ToolCall) -> bool:
        """Return True if a discarded branch executed this irreversible call or an equivalent one."""
        done = [one for one in self.discarded if one.irreversible]
        likely = {one.call.likeness() for one in done if one.arguments_known} | {one.digest for one in done}
        return call.is_among(likely)

    def child_session(self, record: CallRecord) -> str:
        """The session of the sub-agent that serves this call; the same for every caller, also after a crash."""
        name = f"{self.session_id}/{self.run_id[:12]}/{record.step_id}/{record.call.id}"
        if len(quote(name, safe="", errors="replace")) <= _LONGEST_CHILD:
            return name
        return f"{self.run_id}/{sha256_of(name)}"  # ids are a model's

    def record(self, record: CallRecord) -> CallRecord:
        """The current record of this call of the turn."""
        return next(now for now in self.turn if now.proposed.id == record.proposed.id)

    def keep(self, record: CallRecord) -> CallRecord:
        """Replace the record of a call of the turn."""
        self.turn = [record if now.proposed.id == record.proposed.id else now for now in self.turn]
        return record

    def settle(self, record: CallRecord, text: str, *, is_error: bool = False) -> None:
        """Give a call its one result in the transcript, in place of its placeholder."""
        self.keep(settled(record, None, is_error=is_error))
        metadata: dict[str, JsonValue] = {"is_error": True} if is_error else {}
        if record.edited:
            metadata["ran"] = record.call.arguments
        result = Message(
            role=Role.TOOL,
            content=replace_lone_surrogates(text),
            name=record.proposed.name,
            tool_call_id=record.proposed.id,
            metadata=metadata,
        )
        for index in range(len(self.messages) - 1, -1, -1):
            message = self.messages[index]
            if message.tool_call_id == record.proposed.id and message.metadata.get("placeholder"):
                self.messages[index] = result
                return
        self.messages.append(result)

    def give_up(self, unrun: str) -> list[CallRecord]:
        """Settle every remaining call with `unrun` as the run ends; returns those that may have taken effect."""
        began = []
        for record in [record for record in self.turn if record.phase is not CallPhase.SETTLED]:
            running = record.phase is CallPhase.STARTED and record.effect is not Effect.READ
            begun = record.began_before or running
            self.settle(record, _MAY_HAVE_RUN if begun else unrun, is_error=True)
            if begun:
                began.append(record)
        return began

    def result(self, metadata: dict[str, Any]) -> ExecutionResult:
        """The result of the run so far."""
        return ExecutionResult(
            status=self.status,
            output=self.output,
            messages=list(self.messages),
            tool_calls_made=self.tool_calls_made,
            token_usage=self.total_token_usage or TokenUsage(),
            duration_seconds=self.active_s,
            steps_taken=self.current_step,
            metadata=metadata,
            pending=self.pending(),
            session_id=self.session_id,
        )

    def propose(self, content: str, calls: list[ToolCall], step_id: str) -> None:
        """Append the model's message and a placeholder result for each call, so that the transcript is always valid."""
        self.messages.append(Message(role=Role.ASSISTANT, content=content, tool_calls=tuple(calls)))
        self.turn = []
        for call in calls:
            self.turn.append(CallRecord.new(call, step_id))
            self.messages.append(placeholder(call, _PLACEHOLDER))


def placeholder(call: ToolCall, text: str) -> Message:
    """The message in the place of a call's result, until it has one."""
    return Message(role=Role.TOOL, content=text, name=call.name, tool_call_id=call.id, metadata={"placeholder": True})


def texts(found: Any) -> list[str]:
    """The texts of a stored list, as far as it is one."""
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def readable(replaced: Any) -> list[CallRecord]:
    """The calls that were replaced, as they are stored; none where nobody can read them."""
    try:
        found = _RECORDS.validate_python(replaced or [])
    except (ValidationError, RecursionError):
        return []
    return [one for one in found if one.child_session or [asked.call for asked in one.requests] == [one.proposed]]


def count(stored: Any) -> int:
    """A stored count; 0 for what is none."""
    return stored if type(stored) is int and stored > 0 else 0


def pending(review: Sequence[ApprovalRequest], turn: Sequence[CallRecord | PendingCall]) -> list[ApprovalRequest]:
    """Everything that waits for a decision: the run's own requests, then those of its calls."""
    return [*review, *(request for call in turn if call.phase is CallPhase.WAITING for request in call.requests)]


class ExecutionResult(BaseModel):
    """The result of a run, or of its part up to a pause. `metadata["uncertainty"]` is there unless it was unwatched."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    status: AgentStatus
    output: str = ""
    messages: list[Message] = Field(default_factory=list)
    tool_calls_made: int = 0
    token_usage: TokenUsage = Field(default_factory=TokenUsage)
    duration_seconds: float = 0.0
    steps_taken: int = 0
    metadata: dict[str, Any] = Field(default_factory=dict)
    pending: list[ApprovalRequest] = Field(default_factory=list)
    session_id: str = ""


class PendingSession(BaseModel):
    """A run that waits for a human."""

    agent_id: str
    session_id: str
    waiting_since_s: float
    requests: list[ApprovalRequest]


def in_pause(call: ToolCall) -> str:
    """A call as the runner's line on a pause names it: a drill's line has to name its own."""
    return call.canonical()[:500]
