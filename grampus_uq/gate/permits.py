"""A permit: calls of one scope may go ahead unasked as far as answers have earned it. A pure state machine.

Every covered call takes a ticket, in order: with the place of its score, the threshold in force and the audit
probability as they are at that moment, and one draw. A ticket is *settled* once its answer is there, is overdue (then
it counts as wrong), or none was asked for; tickets are *counted* in their order and never before an earlier one.

Why the promise of `stats.earned_threshold` holds. Let F be everything about the tickets before i, their answers
included. The threshold and the audit probability of ticket i are functions of a part of F, its draw is independent of
all else, and its stake is computed when it is counted, from the state that the tickets before it left: a function of F.
So with the risk at least `Target.share` given F each factor has a mean of at most 1, however late answers come. Counted
as they arrive, they would not: quick answers may be the right ones. An overdue ticket counts as wrong, which only
lowers the wealth. A call that the permit has to ask about for another reason than its draw (an equal call is pending)
takes a ticket without a threshold: it is seen with probability 1. While a wrong answer above the threshold waits to be
counted, the audit probability is 1: an earlier question that nobody answers holds back what was earned, not what was
refused.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.gate.call import STANDING_APPROVAL, CallRecord, Terms
from grampus_uq.gate.grants import within_limits
from grampus_uq.gate.requests import ApprovalKind
from grampus_uq.gate.signatures import signed_text
from grampus_uq.records.configuration import Configuration
from grampus_uq.records.values import ToolCall, canonical_json, sha256_of
from grampus_uq.stats.earned_threshold import (
    CANDIDATES,
    Earned,
    Target,
    audit_probability,
    begun_anew,
    broken,
    earned_from_json,
    earned_to_json,
    level,
    nothing_earned,
    place,
    spent,
    suspected,
    update,
)

MOST_OPEN: Final = 256
"""Tickets that may be unsettled, or wait for an earlier one; beyond, calls are asked about and teach nothing."""
_RULES: Final = frozenset({"max", "min", "equals", "in"})
_COMPARED: Final = {"max": "is at most", "min": "is at least", "equals": "is", "in": "is one of"}

Share = Annotated[float, Field(gt=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Value = Annotated[float, Field(ge=-(2.0**53), le=2.0**53)]
"""Evidence of any permit lies within; so no arithmetic on what was read can overflow."""


class Permit(Configuration):
    """Definition of a permit, fixed before the first call: scope, score, promise and grantor.

    `limits` are as a grant's. `judge` is the fingerprint of profile, model, prompt and tools (`Session.judge`); None:
    those of the first call. `stream` is the score: "confidence" (the run's), "p_success" or "call_probability" (of the
    call itself). At most `epsilon` of the calls in scope go out wrong (`of_released`: of those that may go out), with
    probability 1 - `delta`. `miss_rate` is the upper end of the share of wrong calls that reviewers approve, where it
    was measured; it may fail with probability `miss_delta`. A question without an answer after `answer_within_s` counts
    as wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    id: str = Field(default_factory=lambda: uuid.uuid4().hex, pattern=r"^[0-9a-f]{8,64}$")
    tool: str = Field(min_length=1, max_length=200)
    limits: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    agent_id: str | None = None
    judge: str | None = None
    stream: Literal["confidence", "p_success", "call_probability"] = "confidence"
    thresholds: tuple[float, ...] = CANDIDATES
    epsilon: float = 0.02
    delta: float = 0.05
    audit_rate: float = 0.05
    of_released: bool = False
    miss_rate: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    miss_delta: Share = 0.05
    answer_within_s: Annotated[float, Field(gt=0.0)] = 3 * 86_400.0
    principal: str = Field(min_length=1, max_length=200)
    created_s: float = Field(default_factory=time.time)
    expires_s: float
    signature: str | None = None

    @field_validator("limits")
    @classmethod
    def _known_rules(cls, limits: dict[str, dict[str, JsonValue]]) -> dict[str, dict[str, JsonValue]]:
        for name, rule in limits.items():
            numbers = all(type(rule[key]) in (int, float) for key in ("max", "min") if key in rule)
            if not rule or not set(rule) <= _RULES or not numbers or not isinstance(rule.get("in", []), list):
                wanted = '{"max": number}, {"min": number}, {"equals": value} or {"in": [...]}'
                raise ConfigurationError.of(f"limits[{name!r}]", "Permit", wanted, rule)
        return limits

    @model_validator(mode="after")
    def _target_holds(self) -> Permit:
        _ = self.target
        if self.stated_share() >= 1:
            rule = f"below 1 - epsilon ({1.0 - self.epsilon:g}), or the promise says nothing: measure it with drills"
            raise ConfigurationError.of("miss_rate", "Permit", rule, self.miss_rate)
        if self.assurance() <= 0:
            rule = f"below 1 - delta ({1.0 - self.delta:g}): both assurances must hold together"
            raise ConfigurationError.of("miss_delta", "Permit", rule, self.miss_delta)
        return self

    def assurance(self) -> Fraction:
        """With which probability the promise holds at least: with a miss rate, that both hold (a union bound)."""
        missed = Fraction(0) if self.miss_rate is None else Fraction(str(self.miss_delta))
        return 1 - Fraction(str(self.delta)) - missed

    def stated_share(self) -> Fraction:
        """The promised share of calls that are truly wrong: epsilon / (1 - miss_rate), of the numbers as written."""
        return Fraction(str(self.epsilon)) / (1 - Fraction(str(self.miss_rate or 0)))

    def with_miss_rate(self, miss_rate: float, miss_delta: float = 0.05) -> Permit:
        """An unsigned permit of the same promise with the upper end of the reviewers' miss rate; nothing is earned."""
        kept = self.model_dump(exclude={"id", "signature", "created_s", "miss_rate", "miss_delta"})
        return type(self)(**kept, miss_rate=miss_rate, miss_delta=miss_delta)

    @cached_property
    def target(self) -> Target:
        """The promise."""
        return Target(
            thresholds=self.thresholds,
            epsilon=self.epsilon,
            delta=self.delta,
            audit_rate=self.audit_rate,
            of_released=self.of_released,
        )

    def signed_text(self) -> bytes:
        """The canonical text of everything but the signature."""
        return signed_text("permit", self)

    def digest(self) -> str:
        """SHA-256 of the signed text: what a state belongs to."""
        return hashlib.sha256(self.signed_text()).hexdigest()

    def covers(self, call: ToolCall, agent_id: str, now_s: float) -> bool:
        """True when the call lies within the scope and the time has not passed."""
        return (
            call.name == self.tool
            and now_s < self.expires_s
            and self.agent_id in (None, agent_id)
            and within_limits(call, self.limits)
        )

    def scope(self) -> str:
        """The scope in words."""
        parts = [
            f"{name} {_COMPARED[rule]} {canonical_json(bound)}"
            for name, rules in sorted(self.limits.items())
            for rule, bound in sorted(rules.items())
        ]
        return f"{self.tool} calls" + (f" where {' and '.join(parts)}" if parts else "")


class Ticket(BaseModel):
    """One covered call that is not counted yet. `same` is short for equal calls of the agent, whoever proposes them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    at: Count
    in_force: Count
    audit: Annotated[float, Field(gt=0.0, le=1.0)]
    draw: Annotated[float, Field(ge=0.0, lt=1.0)]
    wrong: bool | None = None
    due_s: float
    same: str

    @property
    def asked(self) -> bool:
        """True if a human is asked about it."""
        return self.at >= self.in_force or self.draw < self.audit


class PermitState(BaseModel):
    """State of a permit; constant size. Ticket n is open at `open[n - counted]`.

    The tallies count since the evidence began, which `withdrawn` says how often it did anew. `closed` says why nothing
    is earned any more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    v: Literal[5] = 5
    permit: str
    judge: str | None = None
    revision: Count = 0
    counted: Count = 0
    open: Annotated[tuple[Ticket, ...], Field(strict=False, max_length=MOST_OPEN)] = ()
    earned: dict[str, list[Value]]
    answers: Count = 0
    audits: Count = 0
    released: Count = 0
    wrong: Count = 0
    overdue: Count = 0
    corrected: Count = 0
    withdrawn: Count = 0
    why_withdrawn: str = ""
    closed: str | None = None

    @classmethod
    def fresh(cls, permit: Permit) -> PermitState:
        """Nothing earned."""
        return cls(permit=permit.digest(), judge=permit.judge, earned=earned_to_json(nothing_earned(permit.target)))

    @classmethod
    def read(cls, permit: Permit, values: Any) -> PermitState:
        """A state out of JSON values; raises DataError unless it is one of exactly this permit."""
        if isinstance(values, dict) and values.get("v") in (1, 2, 3, 4):
            raise DataError("its state was written by an earlier release: revoke it and grant a new one")
        try:
            state = cls.model_validate(values)
            earned_from_json(permit.target, state.earned)
            state._fits(permit)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise DataError(f"its state is broken: {field[:80]}: {first['msg']}") from None
        except (ConfigurationError, TypeError, ValueError, RecursionError) as error:
            raise DataError(f"its state is broken: {str(error)[:300]}") from error
        if state.permit != permit.digest():
            raise DataError("its state belongs to another permit, or the permit was changed")
        return state

    def _fits(self, permit: Permit) -> None:
        """Raise ValueError for what no call can have led to: counts below 0, places beyond the thresholds."""
        negative = (name for name, values in self.earned.items() if not name.startswith("log_") and min(values) < 0.0)
        if (name := next(negative, None)) is not None:
            raise ValueError(f"{name} is below 0")
        if any(max(ticket.at, ticket.in_force) > len(permit.thresholds) for ticket in self.open):
            raise ValueError("a ticket lies beyond the thresholds")
        if any(ticket.audit < permit.audit_rate for ticket in self.open):
            raise ValueError("a ticket has less than the least audit rate")

    def of(self, permit: Permit) -> Earned:
        """The evidence."""
        return earned_from_json(permit.target, self.earned)

    @property
    def issued(self) -> int:
        """Tickets so far: the number of the next one."""
        return self.counted + len(self.open)

    def spent(self, permit: Permit) -> bool:
        """True if the permission is withdrawn for good."""
        return bool(spent(self.of(permit)))

    def in_force(self, permit: Permit) -> int:
        """The number of thresholds in force; 0: everything is asked about."""
        return 0 if self.closed else int(level(permit.target, self.of(permit)))

    def suspects(self, permit: Permit) -> bool:
        """True while a wrong call above the threshold speaks against what is in force, counted or waiting to be."""
        return self.caught(self.in_force(permit)) or bool(suspected(self.of(permit)))

    def caught(self, in_force: int) -> bool:
        """True while a wrong answer above the threshold waits to be counted."""
        return any(ticket.wrong and ticket.at < max(ticket.in_force, in_force) for ticket in self.open)

    def threshold(self, permit: Permit) -> float | None:
        """The least score that goes ahead, or None."""
        found = self.in_force(permit)
        return permit.thresholds[found - 1] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that happened to a permit, as its log keeps it; `now_s` by the store's clock.

    "propose": `score` of a call whose equals are `same`, judged by `judge`; `draw` in [0, 1) decides on an audit;
    `alike`: an equal call is pending; `certain`: asked about whatever had been earned, as every call of its time was.
    "answer": whether `ticket` was `wrong`. "close": `why`. "look": only the time.
    """

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    do: Literal["propose", "answer", "close", "look"]
    now_s: float
    score: float = 0.0
    same: str = ""
    judge: str = ""
    draw: float = 0.0
    alike: bool = False
    certain: bool = False
    ticket: int = 0
    wrong: bool = False
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON values without what is not said."""
        said = {name: getattr(self, name) for name in Entry.__dataclass_fields__ if name in _SAID[self.do]}
        return said | ({"certain": True} if self.certain else {})


_SAID: Final[Mapping[str, frozenset[str]]] = {
    "propose": frozenset({"do", "now_s", "score", "same", "judge", "draw", "alike"}),
    "answer": frozenset({"do", "now_s", "ticket", "wrong"}),
    "close": frozenset({"do", "now_s", "why"}),
    "look": frozenset({"do", "now_s"}),
}
_ENTRY: Final = TypeAdapter(Entry)


def refusal(state: PermitState, judge: str) -> str | None:
    """The reason for no ticket, so that a call in scope is asked about; None where it takes one. Looks at no score."""
    if state.closed is not None:
        return f"the permit is closed: {state.closed}"
    if state.judge not in (None, judge):
        return "another profile, model, prompt or tool set judges than the one that the permit began with"
    if len(state.open) >= MOST_OPEN:
        return f"{MOST_OPEN} calls wait for earlier answers"
    return None


def applied(permit: Permit, state: PermitState, entry: Entry) -> PermitState:
    """The state after one more thing happened; a late answer or a refused call changes no evidence."""
    new = state.model_copy(update={"revision": state.revision + 1})
    if entry.do == "close":
        return new if new.closed else new.model_copy(update={"closed": entry.why})
    new = _counted(permit, new, entry.now_s)
    if entry.do == "answer":
        new = _answered(new, entry)
    elif entry.do == "propose" and refusal(new, entry.judge) is None:
        new = new.model_copy(update={"judge": entry.judge, "open": (*new.open, _ticket(permit, new, entry))})
    return _counted(permit, new, entry.now_s)


def issued(permit: Permit, state: PermitState, entry: Entry) -> tuple[int, Ticket] | None:
    """The number and the ticket that a proposed call takes from this state; None where it takes none."""
    state = _counted(permit, state, entry.now_s)
    if refusal(state, entry.judge) is not None:
        return None
    return state.issued, _ticket(permit, state, entry)


def replayed(permit: Permit, entries: Iterable[Mapping[str, Any]]) -> PermitState:
    """The state after a log, equal to the live one to the last digit; raises DataError for an entry that is none."""
    state = PermitState.fresh(permit)
    for _, _, after in replay(permit, entries):
        state = after
    return state


def replay(permit: Permit, entries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[PermitState, Entry, PermitState]]:
    """Each entry of a log with the state before and after it; raises DataError for an entry that is none."""
    state = PermitState.fresh(permit)
    for number, values in enumerate(entries):
        try:
            said = _SAID[str(values["do"])]
            given = {name: values[name] for name in said} | {"certain": values.get("certain", False)}
            entry = _ENTRY.validate_python(given)
            before, state = state, applied(permit, state, entry)
        except (ConfigurationError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"no entry of a permit's log: {error!r:.200}", line=number + 1) from error
        yield before, entry, state


def _ticket(permit: Permit, state: PermitState, entry: Entry) -> Ticket:
    earned, at = state.of(permit), int(place(permit.target, entry.score))
    alike = entry.alike or any(t.asked and t.wrong is None and t.same == entry.same for t in state.open)
    now = int(level(permit.target, earned))
    in_force, sure = 0 if alike or entry.certain else now, entry.certain or state.caught(now)
    audit = 1.0 if sure else float(audit_probability(permit.target, earned))
    due_s = entry.now_s + permit.answer_within_s
    return Ticket(at=at, in_force=in_force, audit=audit, draw=entry.draw, due_s=due_s, same=entry.same)


def _answered(state: PermitState, entry: Entry) -> PermitState:
    """An answer before its ticket is counted replaces an earlier one; afterwards it is only noted."""
    index = entry.ticket - state.counted
    if index < 0:
        return state.model_copy(update={"corrected": state.corrected + 1})
    if index >= len(state.open) or not state.open[index].asked:
        return state
    ticket = state.open[index].model_copy(update={"wrong": entry.wrong})
    return state.model_copy(update={"open": (*state.open[:index], ticket, *state.open[index + 1 :])})


def _counted(permit: Permit, state: PermitState, now_s: float) -> PermitState:
    """Count the settled tickets at the front, in order."""
    waiting, earned, taken = state.open, state.of(permit), 0
    tally: dict[str, Any] = {name: getattr(state, name) for name in _TALLIED}
    for ticket in waiting:
        overdue = ticket.asked and ticket.wrong is None
        if overdue and now_s < ticket.due_s:
            break
        wrong = ticket.asked and ticket.wrong is not False
        earned = update(
            permit.target, earned, ticket.at, ticket.draw, wrong, in_force=ticket.in_force, audit=ticket.audit
        )
        taken += 1
        tally["answers"] += ticket.asked
        tally["audits"] += ticket.asked and ticket.at < ticket.in_force
        tally["released"] += not ticket.asked
        tally["wrong"] += wrong
        tally["overdue"] += overdue
        contrary, change = (bool(sign) for sign in broken(permit.target, earned))
        if level(permit.target, earned) and (contrary or change):
            earned = begun_anew(permit.target, earned)
            why = "more go out wrong than promised" if contrary else "answers are wrong more often than before"
            withdrawn = tally["withdrawn"] + 1
            tally = {**dict.fromkeys(_TALLIED, 0), "withdrawn": withdrawn, "why_withdrawn": why}
    if not taken:
        return state
    update_ = {**tally, "counted": state.counted + taken, "open": waiting[taken:], "earned": earned_to_json(earned)}
    return state.model_copy(update=update_)


_TALLIED: Final = {"answers", "audits", "released", "wrong", "overdue", "corrected", "withdrawn", "why_withdrawn"}


def identity_of(record: CallRecord, terms: Terms) -> str:
    """The identity of a ticket's call: the same however often the call is judged or asked about again."""
    place_ = [terms.agent_id, terms.session_id, terms.run_id, record.step_id]
    return sha256_of(canonical_json([*place_, record.proposed.id, record.proposed.digest()]))[:32]


def same_of(record: CallRecord, terms: Terms) -> str:
    """Short for all equal calls of one agent."""
    return same_call(terms.agent_id, record.proposed.likeness())


def same_call(agent_id: str, digest: str) -> str:
    """Short for all calls of one agent with this digest."""
    return sha256_of(canonical_json([agent_id, digest]))[:16]


def label_of(record: CallRecord) -> bool | None:
    """True if a call was wrong by its answer: approved as it was is right, all else wrong. None: no answer yet.

    What became of a call that a dead process had started says nothing of the call, nor does a standing approval.
    """
    if any(request.unknown_outcome for request in record.requests):
        return None
    if any(decision.message == STANDING_APPROVAL for decision in record.decisions):
        return None
    if not record.decisions:
        return True if record.phase.value == "settled" else None
    return record.decisions[0].kind not in (ApprovalKind.APPROVE, ApprovalKind.EDIT) or record.edited


def sentence(permit: Permit, state: PermitState) -> str:
    """The promise in force and what it rests on; or what is asked, and why."""
    if state.closed is not None:
        return f"asks about all {permit.scope()}: closed, {state.closed}"
    if state.spent(permit):
        why = "over all its time more went out wrong than promised: revoke it before you grant a new one"
        return f"asks about all {permit.scope()}: withdrawn for good, {why}"
    times = "once" if state.withdrawn == 1 else f"{state.withdrawn} times, last"
    again = f"; began anew {times} because {state.why_withdrawn}" if state.withdrawn else ""
    threshold = state.threshold(permit)
    if threshold is None:
        return f"asks about all {permit.scope()}: nothing is earned after {state.answers} answers{again}"
    return f"goes ahead: {promise_of(permit)}, from {state.answers} answers, {state.audits} of them audits{again}"


def _percent(share: Fraction, digits: int, rounding: str) -> str:
    """A share in percent, never stated better than it is."""
    whole = 100 * share
    return f"{Context(prec=digits, rounding=rounding).divide(Decimal(whole.numerator), Decimal(whole.denominator)):f}"


def promise_of(permit: Permit) -> str:
    """The promise of a permit once it is earned, and its assurance; one sentence wherever it is printed."""
    which = f"{permit.scope()} that may go out" if permit.of_released else permit.scope()
    share, sure = _percent(permit.stated_share(), 3, ROUND_CEILING), _percent(permit.assurance(), 6, ROUND_FLOOR)
    why = ", as judged by the reviewers"
    if permit.miss_rate is not None:
        parts = (1 - Fraction(str(delta)) for delta in (permit.delta, permit.miss_delta))
        answers, missed = (_percent(part, 6, ROUND_FLOOR) for part in parts)
        most = _percent(Fraction(str(permit.miss_rate)), 3, ROUND_CEILING)
        why = f" ({answers} % for the answers, {missed} % for reviewers who miss at most {most} %)"
    return f"at most {share} % of {which} go out wrong, at {sure} %{why}"
