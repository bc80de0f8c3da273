"""The life of one proposed call, as pure functions from one frozen record to the next.

    new -> cleared | waiting | settled         judged: by the monitor, by a grant, by an earlier rejection
    waiting -> cleared | settled | waiting     decided, expired, guided, asked again
    cleared -> started -> settled              started: the one check at the moment of running (`gate.clearance`)
    started -> cleared | waiting               `gate.recovery`: its process died; only what merely reads runs again

A record never says by itself that its call may run. What may run follows from the signatures of its decisions, or from
`cleared_here`, which is never stored: a clearance of the monitor is good in the process that gave it, and in another
one only under the host's seal (`gate.recovery`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr, model_validator

from grampus_uq.core.decision import GRANTABLE
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind, ApprovalPolicy, ApprovalRequest
from grampus_uq.records.building import built_model
from grampus_uq.records.values import StepUncertainty, ToolCall, Verdict, canonical_json, sha256_of
from grampus_uq.records.vocabulary import Effect, UncertaintyLevel

REJECTED = "Not executed: a human rejected this call.{message} Do not propose it again."
NOT_AGAIN = (
    "Not executed again: this call was started before and may have taken effect; a human refused to repeat it."
    "{message} Do not propose it again."
)
REJECTED_BEFORE = "Not executed: a human already rejected exactly this call. Do something else."
RAN_BEFORE = "Not executed again: this approved call was already started once."
NOT_EXECUTED = "Not executed: instead of deciding, a human gave guidance (see below)."
EXPIRED = "Not executed: the approval expired before anybody decided. Do not assume that it was refused or granted."
MAX_REJECTED = 256
UNREADABLE = "unreadable"
"""Among answers against calls: others were given that nobody can read."""


class CallPhase(StrEnum):
    """The state of one proposed call."""

    NEW = "new"
    WAITING = "waiting"
    CLEARED = "cleared"
    STARTED = "started"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Owner and rules of a session's calls: what a request is bound to besides the call.

    `vouched` is False when the belief was loaded without a valid seal; it then clears nothing that may be irreversible.
    `started_by` is who may not decide, where the policy asks that; None where it does not, or where nobody knows.
    `thread` names what sessions belong to in which a rejection of one counts for the others; "" for a session alone.
    """

    agent_id: str
    session_id: str
    run_id: str = ""
    rules: str = ""
    vouched: bool = True
    started_by: str | None = None
    thread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why a call waits, as its request shows it."""

    level: UncertaintyLevel
    rule: str
    reason: str
    guarantee: str | None = None
    confidence: float | None = None


REPEATED = Doubt(
    level=UncertaintyLevel.HIGH,
    rule="repeat_after_rollback",
    reason="An attempt that was rolled back already executed exactly this call, and it cannot be undone: running it "
    "again does it twice.",
)
REJECTED_IN_THREAD = Doubt(
    level=UncertaintyLevel.HIGH,
    rule="rejected_in_thread",
    reason="A human rejected exactly this call in this thread before, or changed it: in this run or another one of the "
    "session, in another visit of an agent, or in a state that was left behind.",
)
FORGOTTEN = replace(
    REJECTED_IN_THREAD,
    reason="As many calls were rejected or changed in this session as are remembered: whether one of them was exactly "
    "this call is not known.",
)
LOST = replace(
    REJECTED_IN_THREAD,
    reason="What humans answered in another session of this run cannot be read, or against more calls of this one than "
    "are remembered: whether exactly this call was rejected or changed is not known.",
)
UNKNOWN_OUTCOME = Doubt(
    level=UncertaintyLevel.HIGH,
    rule="unknown_outcome",
    reason="This call was started, and whether it took effect is unknown: its process died, no readable answer came, "
    "or another process has it, as it was decided there. Approving runs it again with the same idempotency key; "
    "respond says what became of it.",
)
UNVOUCHED = Doubt(
    level=UncertaintyLevel.HIGH,
    rule="unvouched_state",
    reason="The stored state has no valid seal: its record of this call and of the run is not trusted. It was changed, "
    "or a process without this one's `Seal` wrote it.",
)
VOID = Doubt(
    level=UncertaintyLevel.HIGH,
    rule="approval_void",
    reason="The clearance of this call is no longer valid.",
)
UNREAD = Doubt(
    level=UncertaintyLevel.HIGH,
    rule="unread_answer",
    reason="The answer with this call is still streaming and not judged yet, so nothing clears the call.",
)
FRAMEWORK = "framework"
STANDING_APPROVAL = "a standing approval of all calls of the tool: nobody looked at this one"
"""The message of a decision that is not a reviewer's answer."""


_Identity = tuple[str, str, str, str]
"""Step, id and name of a call, and its arguments as they are signed."""


class CallRecord(BaseModel):
    """One proposed call and its state; frozen, JSON-able.

    `proposed` is the model's call, `call` the one to run, `effect` the last resolved one, for the audit only.
    `requests` wait, or are kept with the `decisions` on them; `grant` cleared the call; `text` stands for a result.
    `child_session` is a sub-agent's, `guidance` a text for it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    proposed: ToolCall
    call: ToolCall
    step_id: str
    effect: Effect = Effect.UNKNOWN
    phase: CallPhase = CallPhase.NEW
    requests: tuple[ApprovalRequest, ...] = ()
    decisions: tuple[ApprovalDecision, ...] = ()
    grant: Grant | None = None
    cleared_by: str | None = None
    text: str | None = None
    is_error: bool = False
    child_session: str | None = None
    guidance: str | None = None
    _cleared_here: _Identity | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _call_is_the_proposed_one(cls, values: Any) -> Any:
        if isinstance(values, dict) and "call" not in values and "proposed" in values:
            return {**values, "call": values["proposed"]}
        return values

    @classmethod
    def new(cls, call: ToolCall, step_id: str) -> CallRecord:
        """The record of a call that a step just proposed, unchecked: the caller knows that these are what they say."""
        values = {**_NEW, "proposed": call, "call": call, "step_id": step_id}
        return built_model(cls, values, set(_OF_NEW), {"_cleared_here": None})

    @property
    def waiting(self) -> bool:
        """True while a decision is pending."""
        return self.phase is CallPhase.WAITING

    @property
    def asks_itself(self) -> bool:
        """True while a decision on the call is pending, not on what a sub-agent that began to serve it asks."""
        return self.waiting and (
            self.child_session is None or any(request.child_session is None for request in self.requests)
        )

    @property
    def edited(self) -> bool:
        """True when a human changed the arguments."""
        return self.call is not self.proposed and self.call != self.proposed

    @property
    def began_before(self) -> bool:
        """Return True if an earlier start may have taken effect: a human is or was asked, or a sub-agent has begun."""
        return self.child_session is not None or any(request.unknown_outcome for request in self.requests)

    @property
    def cleared_here(self) -> bool:
        """True when this process, or one with a valid seal, cleared exactly this call at this step."""
        return self.cleared_here_for(self.call)

    def cleared_here_for(self, call: ToolCall) -> bool:
        """True when exactly this call was cleared by this process, or by one with a valid seal."""
        identity = self._vouched_for
        return identity is not None and identity == self._identity(call)

    @property
    def _vouched_for(self) -> _Identity | None:
        """The private attribute, past pydantic's way to one: it takes longer than to write the identity."""
        kept = self.__pydantic_private__
        return None if kept is None else kept["_cleared_here"]

    def _identity(self, call: ToolCall) -> _Identity:
        return self.step_id, call.id, call.name, canonical_json(call.arguments)

    def key(self, run_id: str) -> str:
        """Idempotency key: the same for every attempt at this logical call of this run, different for any other."""
        text = canonical_json([run_id, self.step_id, self.call.id, self.call.canonical()])
        return sha256_of(text)

    def clear_here(self, **changes: Any) -> CallRecord:
        """A copy with these fields that this process vouches for: exactly this call at exactly this step may run."""
        values = {**self.__dict__, **changes}
        private = {"_cleared_here": self._identity(values["call"])}
        return built_model(type(self), values, {*self.__pydantic_fields_set__, *changes}, private)

    def change(self, **changes: Any) -> CallRecord:
        """A copy with these fields; it keeps the clearance of this process only while it is cleared or started."""
        values = {**self.__dict__, **changes}
        kept = self._vouched_for if values["phase"] in _VOUCHED else None
        return built_model(type(self), values, {*self.__pydantic_fields_set__, *changes}, {"_cleared_here": kept})


_NEW = {name: field.default for name, field in CallRecord.model_fields.items()}
_OF_NEW = frozenset({"proposed", "call", "step_id"})
_AGAIN, _BEFORE = "asked again, because ", ". Before: "
_MAX_EDITED = 2_000
_CHANGED = "changed "
_CLEARED = CallPhase.CLEARED
_VOUCHED = frozenset({CallPhase.CLEARED, CallPhase.STARTED})


# -- judging ----------------------------------------------------------------------------------------------------------


def doubt_of(judged: StepUncertainty | Verdict | ApprovalRequest) -> Doubt:
    """The reason of a judgement, as a request shows it."""
    if isinstance(judged, StepUncertainty):
        reason, confidence = judged.reasoning, judged.believed
    else:
        reason, confidence = judged.reason, judged.confidence
    return Doubt(level=judged.level, rule=judged.rule, reason=reason, guarantee=judged.guarantee, confidence=confidence)


def cleared(record: CallRecord, by: str = "monitor", **changes: Any) -> CallRecord:
    """Clear a call without a human decision; valid in this process only."""
    nobody: dict[str, Any] = {"requests": (), "decisions": (), "grant": None}
    return record.clear_here(**{"phase": _CLEARED, "cleared_by": by, **nobody, **changes})


def may_be_granted(record: CallRecord, terms: Terms) -> bool:
    """Return True if a grant may lift the pause: its reason is the tool, not doubt, and the belief is vouched for."""
    return record.waiting and terms.vouched and all(of_the_tool(r) for r in record.requests)


def of_the_tool(reason: Doubt | ApprovalRequest) -> bool:
    """Return True if a grant or permit may lift this reason: the tool's, without serious doubt about the run."""
    return reason.level not in (UncertaintyLevel.HIGH, UncertaintyLevel.CRITICAL) and reason.rule in GRANTABLE


def granted(record: CallRecord, grant: Grant) -> CallRecord:
    """Clear a call by a grant, which is checked again when the call runs."""
    new = record.change(phase=CallPhase.CLEARED, grant=grant, requests=())
    return new.change(cleared_by=authority(new))


def request_for(
    record: CallRecord | None, terms: Terms, doubt: Doubt, now_s: float, *, step_id: str = "", **given: Any
) -> ApprovalRequest:
    """A new request on a call, or without one on the run itself."""
    return ApprovalRequest(
        agent_id=terms.agent_id,
        session_id=terms.session_id,
        run_id=terms.run_id,
        rules=terms.rules,
        started_by=terms.started_by,
        step_id=step_id if record is None else record.step_id,
        call=None if record is None else record.proposed,
        created_s=now_s,
        **asdict(doubt),
        **given,
    )


def asked(record: CallRecord, terms: Terms, approvals: ApprovalPolicy, doubt: Doubt, now_s: float) -> CallRecord:
    """Make a call wait under a new request; earlier decisions lapse. One of unknown outcome never expires."""
    unknown = doubt.rule == UNKNOWN_OUTCOME.rule
    if unknown and record.edited:
        doubt = replace(doubt, reason=_started_as_edited(record))
    expires_s = None if unknown else approvals.expiry(now_s)
    request = request_for(record, terms, doubt, now_s, expires_s=expires_s, unknown_outcome=unknown)
    return record.change(
        phase=CallPhase.WAITING,
        requests=(request,),
        call=record.proposed,
        decisions=(),
        grant=None,
        cleared_by=None,
        text=None,
        is_error=False,
    )


def _started_as_edited(record: CallRecord) -> str:
    """Why a call of unknown outcome waits that a human had changed: it is asked about as it was proposed."""
    arguments = canonical_json(record.call.arguments)
    more = len(arguments) - _MAX_EDITED
    return (
        "A human changed this call, and it was started as they changed it, or as it was decided in another process: "
        "whether that took effect is unknown. Approving runs it as it was proposed; respond says what became of the "
        "changed one. Its arguments: "
        f"{arguments[:_MAX_EDITED]}" + (f"…(+{more} characters)" if more > 0 else "")
    )


def asked_again(
    record: CallRecord, terms: Terms, approvals: ApprovalPolicy, now_s: float, reason: str | None = None
) -> CallRecord:
    """Replace a request that can no longer be answered by a new one on the same call."""
    old = next((request for request in record.requests if request.child_session is None), None)
    doubt = VOID if terms.vouched else UNVOUCHED
    if old is not None:
        doubt = doubt_of(old)
    if reason is not None:
        first = doubt.reason
        if first.startswith(_AGAIN):
            rest = first.removeprefix(_AGAIN)
            first = rest.partition(_BEFORE)[2] or rest
        reason = reason.replace(_BEFORE, _BEFORE.lower())  # words of strangers may stand in both
        why = f"{_AGAIN}{reason}{_BEFORE}{first}" if first else f"{_AGAIN}{reason}"
        doubt = replace(doubt, reason=why)
    return asked(record, terms, approvals, doubt, now_s)


def review(terms: Terms, approvals: ApprovalPolicy, doubt: Doubt, step_id: str, now_s: float) -> ApprovalRequest:
    """A request on the run itself: its answer waits."""
    return request_for(None, terms, doubt, now_s, step_id=step_id, expires_s=approvals.expiry(now_s))


def bound(request: ApprovalRequest, record: CallRecord, terms: Terms) -> bool:
    """True when a request is on exactly this call of this session, run and step, under the current rules."""
    return request.call == record.proposed and under(request, terms, record.step_id)


def under(request: ApprovalRequest, terms: Terms, step_id: str) -> bool:
    """True when a request, also one on the run itself, is of this session, run and step, under the current rules."""
    of = (request.agent_id, request.session_id, request.run_id, request.step_id, request.rules, request.started_by)
    return of == (terms.agent_id, terms.session_id, terms.run_id, step_id, terms.rules, terms.started_by)


# -- deciding ---------------------------------------------------------------------------------------------------------


def decided(record: CallRecord, decisions: Sequence[ApprovalDecision]) -> CallRecord:
    """Apply the decisions that settle the record's request (`ApprovalPolicy.holding`)."""
    first = decisions[0]
    if first.kind in (ApprovalKind.REJECT, ApprovalKind.RESPOND):
        text = answer_text(first, NOT_AGAIN if record.began_before else REJECTED)
        new = settled(record, text, is_error=first.kind is ApprovalKind.REJECT)
        return new.change(decisions=tuple(decisions))
    call = record.proposed
    if first.arguments is not None:
        call = call.model_copy(update={"arguments": first.arguments})
    new = record.change(phase=CallPhase.CLEARED, call=call, decisions=tuple(decisions), grant=None)
    return new.change(cleared_by=authority(new))


def against(record: CallRecord) -> str | None:
    """A human's answer against a call as the model proposed it, as hosts keep it; None for any other answer.

    Its likeness where it was rejected: the run is refused it from now on. Marked where it was changed: it waits.
    """
    if record.decisions and record.decisions[0].kind is ApprovalKind.REJECT:
        return record.proposed.likeness()
    return _CHANGED + record.proposed.likeness() if record.edited else None


def held_by(known: Collection[str], call: ToolCall, *, harmless: bool) -> Doubt | None:
    """The reason to wait for a call that one of these answers is against or, unless it is harmless, may have been."""
    if call.is_among(known) or (known and _CHANGED + call.likeness() in known):
        return REJECTED_IN_THREAD
    if UNREADABLE in known and not harmless:
        return LOST
    return FORGOTTEN if len(known) >= MAX_REJECTED and not harmless else None


def remembered(known: Iterable[str], *decided: CallRecord) -> list[str]:
    """These answers against calls and those on the records, each once; of too many the latest (`held_by`)."""
    return list(dict.fromkeys([*known, *filter(None, map(against, decided))]))[-MAX_REJECTED:]


def authority(record: CallRecord) -> str | None:
    """The authority that cleared a call: its decisions, else its grant, else `cleared_by`."""
    if record.decisions:
        who = " and ".join(decision.by for decision in record.decisions)
        return f"{record.decisions[0].kind.value} of {who}"
    return record.cleared_by if record.grant is None else f"grant {record.grant.id} of {record.grant.principal}"


def answer_text(decision: ApprovalDecision, rejected: str = REJECTED) -> str:
    """The text for the model in place of a result, when a human rejected the call, or answered for it."""
    if decision.kind is ApprovalKind.RESPOND:
        return decision.message or ""
    said = (decision.message or "").rstrip()
    end = "" if said.endswith((".", "!", "?")) else "."
    return rejected.format(message=f" They said: {said}{end}" if said else "")


def edit_note(record: CallRecord) -> str | None:
    """The note for the model beside the result of an edited call; None for any other call."""
    if not record.edited:
        return None
    return f"A human changed the arguments of {record.proposed.name} to {canonical_json(record.call.arguments)}."


def expired(record: CallRecord, now_s: float) -> CallRecord:
    """Settle a call whose time to decide has passed, except one of unknown outcome: that needs a decision."""
    late = any(request.expired(now_s) and not request.unknown_outcome for request in record.requests)
    return settled(record, EXPIRED, is_error=True) if record.waiting and late else record


def guided(record: CallRecord, text: str) -> CallRecord:
    """Apply guidance: a waiting call is not executed, a sub-agent gets the text. Guidance never approves."""
    if not record.waiting:
        return record
    if not record.asks_itself:
        return cleared(record, "unmonitored").change(guidance=text)
    if record.began_before:
        return record  # guidance cannot say what became of a call: that needs a decision
    return settled(record, NOT_EXECUTED, is_error=True)


def settled(record: CallRecord, text: str | None, *, is_error: bool = False) -> CallRecord:
    """Settle a call: it has its one result, or this text in its place."""
    return record.change(phase=CallPhase.SETTLED, requests=(), text=text, is_error=is_error)
