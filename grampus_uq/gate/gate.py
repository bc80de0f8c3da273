"""The gate of one host: its settings, and the transitions of a call that ask the monitor or the user's code.

A host keeps the records: in a store, in its framework's state, or in memory. `gate.call` has the transitions of a
record, `gate.clearance` the check whether a call may run.

    record = CallRecord.new(call, step_id)
    record, action = await gate.judge(record, session, terms, declared)         cleared, waiting, settled, or an abort
    record, refused = gate.decide(record, terms, arrived)                       the decisions on it
    record = await gate.start(record, call, terms, declared, policy)            just before it runs, and only then runs
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.errors import ApprovalError, StoreError
from grampus_uq.gate.call import (
    FRAMEWORK,
    REJECTED_BEFORE,
    REJECTED_IN_THREAD,
    REPEATED,
    UNKNOWN_OUTCOME,
    UNVOUCHED,
    CallPhase,
    CallRecord,
    Doubt,
    Terms,
    against,
    asked,
    asked_again,
    authority,
    bound,
    cleared,
    decided,
    doubt_of,
    held_by,
    may_be_granted,
    of_the_tool,
    review,
    settled,
)
from grampus_uq.gate.clearance import HARMLESS, Precondition, check_clearance, refusal_of
from grampus_uq.gate.delegations import Stands
from grampus_uq.gate.effects import ToolEffects
from grampus_uq.gate.recovery import recovered, restored
from grampus_uq.gate.requests import (
    ApprovalDecision,
    ApprovalPolicy,
    ApprovalRequest,
    Arrived,
    rules_digest,
)
from grampus_uq.gate.schema import problem_of, schema_of_judged
from grampus_uq.gate.starts import CallStarts, Starts, by_itself, let_by, permitted
from grampus_uq.monitor.session import Session
from grampus_uq.records.building import builder
from grampus_uq.records.events import PERMIT, InForce
from grampus_uq.records.values import ToolCall
from grampus_uq.records.vocabulary import Effect, UncertaintyAction, UncertaintyLevel
from grampus_uq.wire.calls import read_arguments

_new_terms = builder(Terms)
FRAMEWORK_ASKS = Doubt(level=UncertaintyLevel.LOW, rule=FRAMEWORK, reason="the framework's own rule asks for approval")
HOST_NOW_S: ContextVar[float] = ContextVar("grampus_uq_host_now", default=0.0)
"""When a host began to look what a run that it wakes was told, by its store: what expired by then is asked anew."""
HOST_ARRIVED: ContextVar[Sequence[Arrived]] = ContextVar("grampus_uq_host_arrived", default=())
"""The decisions that such a host found, with their arrival by its store: what came in time was not late."""
HOST_LEFT: ContextVar[list[tuple[CallRecord, list[Arrived]]] | None] = ContextVar("host_left", default=None)
"""The calls that waited as such a host was stopped, each with the decisions on it, until a turn heard of them."""
ALWAYS_ASK = Doubt(level=UncertaintyLevel.MEDIUM, rule="always_ask", reason="the policy always asks about this tool")


def here_s() -> float:
    """The time for a gate that no host gives a clock: this machine's, and not behind the host that woke the run."""
    return max(time.time(), HOST_NOW_S.get())


def record_answer(
    session: Session,
    decision: ApprovalDecision,
    *,
    step_id: str | None,
    call: ToolCall | None,
    acknowledges: bool = True,
) -> None:
    """Take a decision on a call, or on a whole answer (`call` None), into the session's belief and recording."""
    session.record_decision(
        decision.kind.value,
        principal=decision.principal,
        step_id=step_id,
        call=call,
        message=decision.message,
        acknowledges=acknowledges,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Release of a call by permits: `by` names them for the record, `why` states their promise."""

    by: str
    principal: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """That no permit lets a call ahead: `trouble` is what is wrong with the permits, for the request to show.

    `in_force`: the permits and grants for the tool at that moment; None where they cannot be told.
    """

    trouble: str | None = None
    in_force: tuple[InForce, ...] | None = None


class Permits(Protocol):
    """Interface to permits for calls held by their tool alone; implemented by `runtime.stored_permits`."""

    async def release(self, record: CallRecord, session: Session, terms: Terms, *, alike: bool) -> Released | Held:
        """The release of a waiting call, or why not, also where the store is down; `alike`: an equal call waits."""
        ...

    async def standing(self, released: Iterable[str]) -> dict[str, str]:
        """The reasons not to run calls now that were let ahead, by what let them; none for a call that may run."""
        ...

    async def answered(self, record: CallRecord, terms: Terms) -> None:
        """Take the answer on a call, if it is one; once, however often it is told."""
        ...

    async def tell_first(self, said: Sequence[tuple[CallRecord, ApprovalDecision | None]], terms: Terms) -> list[str]:
        """Take answers that no host has taken yet; why each could not be stored, "" where it was or need not be."""
        ...


class Gate:
    """Settings that sessions share: who may decide, what tools do, what must hold when an approved call runs.

    `schema_of`: a tool's JSON schema, or None, for edits. `clock`: the host's, in seconds since 1970. `started_by`: who
    started a session. `delegations`: which behind some decisions stand; None takes none. `starts` keeps other processes
    from starting a call on the same decisions; None knows this process only.
    """

    def __init__(
        self,
        *,
        approvals: ApprovalPolicy | None = None,
        effects: ToolEffects | None = None,
        precondition: Precondition | None = None,
        schema_of: Callable[[str], Mapping[str, Any] | None] = lambda name: None,
        clock: Callable[[], float] = here_s,
        permits: Permits | None = None,
        started_by: Callable[[str], str | None] = lambda session_id: None,
        delegations: Callable[[Sequence[ApprovalDecision]], Awaitable[Stands]] | None = None,
        starts: Starts | None = None,
    ) -> None:
        self._started_by = started_by
        self.starts = CallStarts(starts)
        self.delegations = delegations
        self.permits = permits
        self.approvals = approvals or ApprovalPolicy()
        self.effects = effects or ToolEffects()
        self.precondition = precondition
        self._schema_of = schema_of
        self.now_s = clock
        self._rules: tuple[UncertaintyPolicy | None, str] | None = None

    def terms(
        self,
        agent_id: str,
        session_id: str,
        policy: UncertaintyPolicy | None,
        *,
        run_id: str = "",
        vouched: bool = True,
        started_by: str | None = None,
        thread: str = "",
    ) -> Terms:
        """The terms of a session's calls under the current rules; `started_by` as stored, where that is believed."""
        known = self._rules
        if known is None or known[0] is not policy:  # frozen: the very same policy has the very same digest
            digest = rules_digest(self.approvals, None if policy is None else policy.model_dump(mode="json"))
            self._rules = known = policy, digest
        starter = (started_by or self._started_by(session_id) or None) if self.approvals.others_decide else None
        return _new_terms(
            agent_id=agent_id,
            session_id=session_id,
            run_id=run_id,
            rules=known[1],
            vouched=vouched,
            started_by=starter,
            thread=thread,
        )

    def effect(self, call: ToolCall, declared: Effect | None, policy: UncertaintyPolicy | None) -> Effect:
        """The effect of a call by the current declarations and policy."""
        effect = self.effects.resolve(call, declared)
        return Effect.IRREVERSIBLE if policy is not None and policy.is_irreversible(call.name) else effect

    def believes(self, holds: bool) -> bool:
        """True if carried state is believed: its seal is valid, or decisions are not signed here at all."""
        return holds or self.approvals.signer is None

    def sealed(self, place: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """JSON values for others to carry, with a seal where one is set; `authentic` believes them."""
        return dict(values) if self.approvals.seal is None else self.approvals.seal.sealed(place, values)

    def authentic(self, place: str, values: Mapping[str, Any]) -> bool:
        """True if carried JSON values are believed: their seal holds, or decisions are not signed here at all."""
        return self.believes(self.approvals.seal is not None and self.approvals.seal.authentic(place, values))

    def arrived(self, decision: ApprovalDecision, now_s: float) -> Arrived:
        """A decision that a run is given, with its arrival: now, or as the host knows that woke the run."""
        return decision, next((at_s for one, at_s in HOST_ARRIVED.get() if one == decision), now_s)

    # -- asking, by this host's rules and clock -------------------------------------------------------------------

    def asked(self, record: CallRecord, terms: Terms, doubt: Doubt) -> CallRecord:
        """Make a call wait under a new request (`call.asked`)."""
        return asked(record, terms, self.approvals, doubt, self.now_s())

    def asked_again(self, record: CallRecord, terms: Terms, reason: str | None = None) -> CallRecord:
        """Replace a request that can no longer be answered (`call.asked_again`)."""
        return asked_again(record, terms, self.approvals, self.now_s(), reason)

    def rebound(self, record: CallRecord, terms: Terms) -> CallRecord:
        """The record, asked about again where it waits under other rules than the current ones."""
        if not record.waiting or all(bound(request, record, terms) for request in record.requests):
            return record
        return self.asked_again(record, terms, "it was asked under other rules")

    def renewed(self, record: CallRecord, terms: Terms) -> CallRecord:
        """The record, asked about again where nobody can answer its request any more: `rebound`, or it expired."""
        again = self.rebound(record, terms)
        if again is not record or not record.waiting or not any(map(self.expired, record.requests)):
            return again
        return self.asked_again(record, terms, "the request before it expired")

    def expired(self, request: ApprovalRequest) -> bool:
        """True where a request expired before a host, if any, looked for decisions on it: what came in time counts."""
        return request.expired(HOST_NOW_S.get() or self.now_s())

    def review(self, terms: Terms, doubt: Doubt, step_id: str) -> ApprovalRequest:
        """A request on the run itself: its answer waits."""
        return review(terms, self.approvals, doubt, step_id, self.now_s())

    def restored(self, record: CallRecord, terms: Terms, *, believed: bool, delegates: bool = False) -> CallRecord:
        """A stored record as it counts here (`recovery.restored`)."""
        now_s = self.now_s()
        return restored(record, terms, self.approvals, now_s, believed=believed, delegates=delegates)

    def recovered(self, record: CallRecord, terms: Terms, effect: Effect) -> CallRecord:
        """A call that a dead process left started (`recovery.recovered`)."""
        return recovered(record, terms, self.approvals, effect, self.now_s())

    # -- judging --------------------------------------------------------------------------------------------------

    async def judge(
        self,
        record: CallRecord,
        session: Session | None,
        terms: Terms,
        declared: Effect | None = None,
        *,
        unwatched: UncertaintyPolicy | None = None,
        rejected: Collection[str] = (),
        before: Collection[str] = (),
        repeated: bool = False,
        doubt: Doubt | None = None,
        framework_asks: bool = False,
        delegates: bool = False,
        grants: Callable[[CallRecord], Awaitable[CallRecord]] | None = None,
        waiting: Sequence[CallRecord] = (),
        standing: str | None = None,
    ) -> tuple[CallRecord, UncertaintyAction]:
        """Commit a new call to the belief, and clear it, make it wait, or abort the run.

        Args:
            record: a new one.
            session: None clears every call that nothing else speaks against.
            terms: whose call it is, and the rules.
            declared: the tool's own word on its effect.
            unwatched: the policy of a host without a monitor: the tools that it always asks for wait.
            rejected: what humans answered against calls in this run (`call.against`).
            before: the same of earlier runs.
            repeated: a rolled-back attempt executed exactly this call, and it cannot be undone.
            doubt: why the step that proposes it pauses by itself, if it does.
            framework_asks: the framework's own rule wants a human's approval.
            delegates: it starts a sub-agent, whose own calls are judged.
            grants: asked before permits about a call that waits because of its tool alone.
            waiting: records of the session's other calls.
            standing: who approved all calls of the tool in the framework, beside which permits are not asked.
        """
        profile = None if session is None else session.profile
        acts = profile is None or not profile.advisory
        if acts and rejected and record.proposed.is_among(rejected):
            return settled(record, REJECTED_BEFORE, is_error=True), UncertaintyAction.PROCEED
        effect = self.effects.resolve(record.proposed, declared)
        why, action = await _asked_by_monitor(record, session, unwatched, effect)
        if action is UncertaintyAction.ABORT:
            return record, action
        policy = unwatched if profile is None else profile.policy
        if policy is not None and policy.is_irreversible(record.proposed.name):
            effect = Effect.IRREVERSIBLE
        if why is None and acts and not terms.vouched and not delegates and effect not in HARMLESS:
            why = UNVOUCHED
        if doubt is not None or framework_asks:
            why = both(both(why, doubt), FRAMEWORK_ASKS if framework_asks else None)
        if acts:
            held = await self.held_back(record.proposed, terms, effect, repeated=repeated, known={*before, *rejected})
            why = both(held, why)
        if why is None:
            by = "unmonitored" if session is None else "monitor"
            return cleared(record, by, effect=effect), UncertaintyAction.PROCEED
        record = self.asked(record.change(effect=effect), terms, why)
        in_force: tuple[InForce, ...] | None = None
        tool_alone = may_be_granted(record, terms)
        if tool_alone:
            in_force = () if grants is None and self.permits is None else None
            record = record if grants is None else await grants(record)
            if standing is not None:
                in_force = (InForce(rule="grant", id=standing),)
            elif record.waiting and session is not None:
                record, in_force = await self._permitted(record, session, terms, waiting, in_force)
        if not record.waiting:
            return record, UncertaintyAction.PROCEED
        if session is not None:
            session.record_asked(record.proposed, record.step_id, tool_alone=tool_alone, in_force=in_force)
        return record, UncertaintyAction.PAUSE_FOR_HUMAN

    async def held_back(
        self, call: ToolCall, terms: Terms, effect: Effect, *, repeated: bool, known: Collection[str] = ()
    ) -> Doubt | None:
        """The reason to hold a call back that is not in its session's belief: what became of an equal one."""
        if repeated:
            return REPEATED
        if (held := held_by(known, call, harmless=effect in HARMLESS)) is not None:
            return held
        try:
            rejected = await self.starts.rejected(call, terms, stored=effect not in HARMLESS)
        except StoreError as error:
            why = f"Whether a human rejected exactly this call in this thread before cannot be read: {error}"[:300]
            return replace(REJECTED_IN_THREAD, reason=why)
        return REJECTED_IN_THREAD if rejected else None

    async def _permitted(
        self,
        record: CallRecord,
        session: Session,
        terms: Terms,
        others: Sequence[CallRecord],
        in_force: tuple[InForce, ...] | None,
    ) -> tuple[CallRecord, tuple[InForce, ...] | None]:
        """The record, cleared where permits lift what the tool alone holds, and what is in force for the tool."""
        if self.permits is None or session.state.alarmed:
            return record, in_force
        same = record.proposed.likeness()
        alike = any(other.waiting and other.proposed.likeness() == same for other in others)
        released = await self.permits.release(record, session, terms, alike=alike)
        if isinstance(released, Held):
            if released.trouble is not None:
                (request,) = record.requests
                reason = f"{request.reason}; {released.trouble}"
                record = record.change(requests=(request.model_copy(update={"reason": reason}),))
            return record, released.in_force
        session.record_decision(
            PERMIT, principal=released.principal, step_id=record.step_id, call=record.proposed, message=released.why
        )
        return cleared(record, released.by), None

    async def answered(self, record: CallRecord, terms: Terms) -> None:
        """Let its thread, and permits, learn from the answer on a call, before it is forgotten; it may be told again.

        Raises StoreError where one against it cannot be stored: this process knows of it.
        """
        if against(record) is not None:
            await self.starts.reject(record.proposed, terms)
        if self.permits is not None:
            await self.permits.answered(record, terms)

    # -- deciding -------------------------------------------------------------------------------------------------

    async def tell_or_raise(self, records: Sequence[CallRecord], terms: Terms) -> None:
        """Let permits learn from answers that a host is about to carry out; StoreError where one would be lost.

        The host keeps the decisions elsewhere, and carries them out another time.
        """
        failed = [] if self.permits is None else await self.permits.tell_first([(one, None) for one in records], terms)
        why = next(filter(None, failed), None)
        if why is not None:
            raise StoreError(f"Nothing is carried out, because permits could not learn of an answer: {why[:300]}")

    async def tell_first(
        self, said: Iterable[tuple[CallRecord, ApprovalDecision]], terms: Terms, now_s: float
    ) -> dict[str, str]:
        """Let permits learn from decisions against a call before a host without a ledger takes them.

        Returns by the id of the request why a decision could not be stored: the host then refuses it. All of them share
        one limit of time. A decision that does not hold changes nothing: `decide` refuses it.
        """
        if self.permits is None:
            return {}
        holding = []
        for record, decision in said:
            after, refused = self.decide(record, terms, [self.arrived(decision, now_s)])
            if not refused:
                holding.append((after.change(requests=record.requests), decision))
        failed = await self.permits.tell_first(holding, terms)
        return {
            decision.request_id: _untold(record, decision, why)
            for (record, decision), why in zip(holding, failed, strict=True)
            if why
        }

    def problem(self, call: ToolCall) -> str | None:
        """The fault of edited arguments (no store can hold them, or they do not fit the tool's schema), or None."""
        unreadable = read_arguments(call.arguments).problem
        if unreadable is not None:
            return f"the arguments {unreadable}"
        schema = schema_of_judged(self._schema_of(call.name), call.arguments)
        return None if schema is None else problem_of(call.arguments, schema)

    def decide(
        self, record: CallRecord, terms: Terms, arrived: Sequence[Arrived]
    ) -> tuple[CallRecord, list[tuple[ApprovalDecision, str]]]:
        """The record after these decisions on its request, and the decisions that do not hold, with the reason.

        One that does not hold changes nothing; a request under other terms than the current ones is asked again.
        """
        request = record.requests[0] if len(record.requests) == 1 else None
        if not record.waiting or request is None:
            return record, [(decision, "this call has no pending request") for decision, _ in arrived]
        if (again := self.rebound(record, terms)) is not record:
            return again, [(decision, "the request was made under other rules") for decision, _ in arrived]
        deciding, refused = self.approvals.holding(request, arrived, self.problem)
        return (decided(record, deciding) if deciding else record), refused

    # -- running --------------------------------------------------------------------------------------------------

    def check(
        self,
        record: CallRecord,
        call: ToolCall,
        terms: Terms,
        declared: Effect | None,
        policy: UncertaintyPolicy | None,
        *,
        any_effect: bool = False,
    ) -> CallRecord:
        """The record with its current effect and who cleared it; ApprovalError unless exactly this call may run.

        With `any_effect` its effect holds nothing: a sub-agent's own calls are judged, or the monitor only advises.
        """
        if self.delegations is None and any(decision.delegation is not None for decision in record.decisions):
            raise ApprovalError("it is a delegated decision, which only a runner with a session store accepts")
        effect = self.effect(call, declared, policy)
        check_clearance(
            record,
            call,
            terms,
            self.approvals,
            effect=Effect.READ if any_effect else effect,
            now_s=self.now_s(),
            always_ask=not any_effect and _asks_always(policy, call),
        )
        by = authority(record)
        if effect is record.effect and by == record.cleared_by:
            return record
        return record.change(effect=effect, cleared_by=by)

    def allows(self, record: CallRecord, call: ToolCall, terms: Terms, policy: UncertaintyPolicy | None) -> bool:
        """`check` for hosts that do not keep the record that it returns: True when exactly this call may run now."""
        try:  # to work out the effect takes as long as all the rest
            counts = record.effect is not Effect.IRREVERSIBLE or not terms.vouched
            effect = self.effect(call, None, policy) if counts else Effect.READ
            always, now_s = _asks_always(policy, call), self.now_s()
            check_clearance(record, call, terms, self.approvals, effect=effect, now_s=now_s, always_ask=always)
        except (ApprovalError, TypeError, ValueError, RecursionError):  # the last three: arguments that are not JSON
            return False
        return True

    async def hindrance(self, record: CallRecord) -> str | None:
        """The reason not to run a cleared call now after all; the precondition is the user's."""
        if by_itself(record):
            return None
        why = await refusal_of(self.precondition, record.call)  # may take its time: what lapses is looked at last
        return why or (await self.lapsed([record])).get(record.proposed.id)

    async def lapsed(self, records: Sequence[CallRecord]) -> dict[str, str]:
        """The end of what cleared calls, in words, by call: a permit's, or that a delegation was revoked or is over.

        Each is asked for once for all calls: what is revoked while one call is looked at starts no other.
        """
        by = {one.proposed.id: one.cleared_by or "" for one in records if permitted(one)}
        unknown = dict.fromkeys(by.values(), "it was let ahead by a permit, and none is known here")
        over = unknown if self.permits is None or not by else await self.permits.standing({*by.values()})
        ends = {call: over.get(permits) for call, permits in by.items()}
        decided = [(one.proposed.id, by) for one in records for by in one.decisions]
        given = [(call, by.delegation) for call, by in decided if by.delegation is not None]
        if given and self.delegations is not None:
            standing, now_s = await self.delegations([by for _, by in decided]), self.now_s()
            for call, delegation in given:
                why = standing(delegation, now_s)
                ends[call] = ends.get(call) or (why and f"a delegation {why}")
        return {call: why for call, why in ends.items() if why is not None}

    def void(self, record: CallRecord, terms: Terms, why: str) -> CallRecord:
        """Ask again about a cleared call that must not run after all; its decisions lapse."""
        if permitted(record):
            doubt = Doubt(level=UncertaintyLevel.MEDIUM, rule="permit", reason=f"a permit let it through, but {why}")
            return self.asked(record, terms, doubt)
        return self.asked_again(record, terms, f"the approval is void: {why}")

    async def start(
        self,
        record: CallRecord,
        call: ToolCall,
        terms: Terms,
        declared: Effect | None,
        policy: UncertaintyPolicy | None,
        keep: Callable[[CallRecord], object],
        *,
        any_effect: bool = False,
    ) -> CallRecord:
        """Take a cleared call to `started`, or to `waiting` where it must not run; only what is `started` runs.

        `keep` gets each change, the first before any await: of two tasks with one call, the second finds it started.
        """
        try:
            record = self.check(record, call, terms, declared, policy, any_effect=any_effect)
        except ApprovalError as error:
            if record.phase is CallPhase.CLEARED:
                record = self.void(record, terms, str(error))
                keep(record)
            return record
        by = let_by(record, terms.run_id) if record.decisions or not any_effect else None
        if by is not None and not self.starts.spend(by):
            keep(record := self.asked(record, terms, UNKNOWN_OUTCOME))
            return record
        kept = record
        keep(record := record.change(phase=CallPhase.STARTED))  # before anything is awaited
        try:
            again = await self.held_again(record, terms, shared=not any_effect)
        except BaseException:  # it did not begin
            self.starts.give_back(kept, terms.run_id)
            keep(kept)
            raise
        if again is not None:
            keep(record := again)
        return record

    async def held_again(self, record: CallRecord, terms: Terms, *, shared: bool) -> CallRecord | None:
        """A cleared call that must not run after all, waiting again; None where it may run: then its start is taken.

        Not that of a call that other processes may start too (not `shared`): a sub-agent goes on in any of them.
        """
        why = await self.hindrance(record)
        if why is None and shared:
            held = await self._held_elsewhere(record, terms, starts=True)
            if held is not None:
                return held
            if self.starts.stored:  # which may have taken its time: what lapses is looked at last
                why = (await self.lapsed([record])).get(record.proposed.id)
        return None if why is None else self.not_begun(record, terms, why)

    async def _held_elsewhere(self, record: CallRecord, terms: Terms, *, starts: bool) -> CallRecord | None:
        try:
            first = await (self.starts.take if starts else self.starts.free)(record, terms)
        except StoreError as error:
            return self.not_begun(record, terms, f"it could not be stored that the call starts: {error}"[:300])
        return None if first else self.asked(record, terms, UNKNOWN_OUTCOME)

    async def held_before(self, record: CallRecord, terms: Terms, *, starts: bool) -> CallRecord | None:
        """`held_again` for a host that starts the call later, if it may run: not where it started here before.

        In two steps, because what holds one call may keep others from starting: the second takes starts, the first only
        looks whether they are free.
        """
        by = let_by(record, terms.run_id)
        if by is not None and not self.starts.spend(by):
            return self.asked(record, terms, UNKNOWN_OUTCOME)
        try:
            held = None if starts else await self.held_again(record, terms, shared=False)
            return held or await self._held_elsewhere(record, terms, starts=starts)
        finally:
            self.starts.give_back(record, terms.run_id)

    def not_begun(self, record: CallRecord, terms: Terms, why: str) -> CallRecord:
        """Ask again about a call that was to start and did not: if its start was taken, the new request has it."""
        return self.starts.hand_on(record, self.void(record, terms, why), terms.run_id)


def _asks_always(policy: UncertaintyPolicy | None, call: ToolCall) -> bool:
    return policy is not None and policy.asks_always(call.name)


def _untold(record: CallRecord, decision: ApprovalDecision, why: str) -> str:
    """Why a decision is refused that permits could not learn of."""
    permits = f"the permits on {record.proposed.name!r:.80}"
    if not decision.never:
        return f"The decision is not taken: {permits} could not learn of it ({why[:200]}). Say it again."
    return (
        f"The rejection is not taken: it says never, and {permits} could not be closed ({why[:200]}). "
        "Say it again, or close them: grampus-uq permits revoke"
    )


def both(why: Doubt | None, other: Doubt | None) -> Doubt | None:
    """Two reasons to wait as one: as grave as either, and no grant lifts it where it may not lift one of them."""
    if why is None or other is None:
        return why or other
    level = max(why.level, other.level, key=lambda level: level.severity)
    if not of_the_tool(why) or of_the_tool(other):
        said = of_the_tool(other) or other.reason == why.reason
        return replace(why, level=level, reason=why.reason if said else f"{other.reason}; {why.reason}")
    return replace(other, level=level, reason=f"{other.reason}; {why.reason}", confidence=why.confidence)


async def _asked_by_monitor(
    record: CallRecord, session: Session | None, unwatched: UncertaintyPolicy | None, effect: Effect
) -> tuple[Doubt | None, UncertaintyAction]:
    """Why the monitor, or without one the policy, wants a human to decide on a new call, and the monitor's action."""
    if session is None:
        return ALWAYS_ASK if _asks_always(unwatched, record.proposed) else None, UncertaintyAction.PROCEED
    call = record.proposed
    if "arguments" not in call.__pydantic_fields_set__:  # it would run without any: as given, compared with the turn's
        call = call.model_copy(update={"arguments": call.arguments})
    step, action = await session.observe_tool_call(call, record.step_id, effect=effect)
    return doubt_of(step) if action is UncertaintyAction.PAUSE_FOR_HUMAN else None, action
