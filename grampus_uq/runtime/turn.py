"""Brings the calls of one turn to their results, with the session store as the gate's host.

`grampus_uq.gate` decides what becomes of a call; here it is asked, stored, and run once. A call is `started` in the
store before its tool runs. One that another worker left `started` runs again only if it reads; for any other a human is
asked what became of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.errors import SessionConflictError, StoreError
from grampus_uq.gate.call import (
    REJECTED_BEFORE,
    UNVOUCHED,
    CallPhase,
    CallRecord,
    Doubt,
    Terms,
    edit_note,
    granted,
    held_by,
)
from grampus_uq.gate.clearance import HARMLESS
from grampus_uq.gate.gate import Gate, both
from grampus_uq.gate.starts import by_itself
from grampus_uq.records.values import ToolCall, ToolResult
from grampus_uq.records.vocabulary import Effect, Role, UncertaintyAction
from grampus_uq.runtime.audit import call_facts, started_facts
from grampus_uq.runtime.concurrent_tasks import run_together
from grampus_uq.runtime.heard_answers import answered_before, overruled
from grampus_uq.runtime.ledger import Note
from grampus_uq.runtime.let_ahead import LetAhead
from grampus_uq.runtime.session_lease import SessionLease
from grampus_uq.runtime.standing_grants import taken_back
from grampus_uq.runtime.stopping import StoppedError

if TYPE_CHECKING:
    from grampus_uq.runtime.sub_agents import SubAgent

_Execute = Callable[[ToolCall, str], Awaitable[ToolResult]]
"""Runs a call under an idempotency key."""

_STORE_DOWN = "Not executed: the session store cannot be reached, and this call must not run without a record."


class Turn:
    """The calls of one leased session's turn; `delegates`: sub-agents by tool, `unwatched`: policy without monitor."""

    def __init__(
        self,
        lease: SessionLease,
        *,
        gate: Gate,
        declared: Callable[[str], Effect | None],
        execute: _Execute,
        delegates: Mapping[str, SubAgent],
        unwatched: UncertaintyPolicy | None = None,
    ) -> None:
        self.lease, self.ledger, self._state = lease, lease.ledger, lease.state
        self.gate = gate
        self._declared, self._execute = declared, execute
        self.delegates = delegates
        self._unwatched = unwatched
        self.let_ahead = LetAhead(self)
        self.together = list[Turn]()
        """The turns of the sessions that run together, this one among them (`heard_answers`)."""

    def policy(self) -> UncertaintyPolicy | None:
        """The monitor's current policy."""
        return self._unwatched if self.lease.session is None else self.lease.session.profile.policy

    def effect(self, call: ToolCall) -> Effect:
        """The effect of a call under the current policy."""
        return self.gate.effect(call, self._declared(call.name), self.policy())

    def terms(self) -> Terms:
        """The terms of this session's calls under the current rules."""
        state = self._state
        return self.gate.terms(
            state.agent_id,
            state.session_id,
            self.policy(),
            run_id=state.run_id,
            vouched=state.vouched,
            started_by=state.started_by,
        )

    @property
    def advises(self) -> bool:
        """Return True under an advisory monitor, which holds nothing for want of a seal either."""
        return self.lease.session is not None and self.lease.session.profile.advisory

    # -- what was stored ------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Take up a loaded state; without a valid seal, only what decisions prove, or all where nothing is held.

        A human's words to a sub-agent, which may have a monitor that acts, always need the seal.
        """
        state, believed = self._state, self.gate.believes(self._state.sealed)
        if len({record.proposed.id for record in state.turn}) != len(state.turn):
            raise StoreError("The stored session cannot be read: two calls of its turn have one id.")
        terms = self.terms()
        state.vouched = state.vouched and believed
        state.turn = [
            self.gate.restored(
                record if believed else record.change(guidance=None),
                terms,
                believed=believed or self.advises,
                delegates=record.proposed.name in self.delegates,
            )
            for record in state.turn
        ]
        if not (believed or self.advises):
            state.answer_approved_by = state.rollback_refused_by = None
            last = state.messages[-1] if state.messages else None
            if not state.turn and not state.review and last is not None and last.role is Role.ASSISTANT:
                state.review = [self.gate.review(self.terms(), UNVOUCHED, f"llm_{state.current_step - 1}")]

    def recover(self) -> list[CallRecord]:
        """Recover the calls that a dead worker left `started`; returns those of unknown outcome."""
        terms, unknown = self.terms(), []
        for record in [record for record in self._state.turn if record.phase is CallPhase.STARTED]:
            if record.call.name in self.delegates:  # the process may have died before it named the child
                record = record.change(child_session=self._state.child_session(record))
            new = self._state.keep(self.gate.recovered(record, terms, self.effect(record.call)))
            if new.waiting:
                unknown.append(record)
            else:  # what merely reads runs again in the process that started it, too
                self.gate.starts.give_back(record, self._state.run_id)
        return unknown

    # -- judging --------------------------------------------------------------------------------------------------

    async def judge(self, doubt: Doubt | None = None) -> UncertaintyAction:
        """Clear every new call or, also with a `doubt`, make it wait; returns ABORT as soon as one aborts the run."""
        before = answered_before(self)
        for record in [record for record in self._state.turn if record.phase is CallPhase.NEW]:
            new, action = await self.gate.judge(
                record,
                self.lease.session,
                self.terms(),
                self._declared(record.proposed.name),
                rejected=self._state.rejected,
                before=before,
                repeated=self._state.already_executed(record.proposed),
                unwatched=self._unwatched,
                doubt=doubt,
                delegates=record.proposed.name in self.delegates,
                grants=self._granted,
                waiting=self._state.turn,
            )
            if action is UncertaintyAction.ABORT:
                return action
            new = self.let_ahead.judged(new)
            if new.phase is CallPhase.SETTLED:
                self._state.settle(new, new.text or "", is_error=new.is_error)
            else:
                self._state.keep(new)
        return UncertaintyAction.PROCEED

    async def _granted(self, record: CallRecord) -> CallRecord:
        state = self._state
        try:
            grant = await self.ledger.use_grant(
                record.proposed,
                agent_id=state.agent_id,
                session_id=state.session_id,
                policy=self.gate.approvals,
                started_by=self.terms().started_by,
            )
        except StoreError:
            return record
        if grant is None:
            return record
        if self.lease.session is not None:
            self.lease.session.record_decision(
                "grant", principal=grant.principal, step_id=record.step_id, call=record.proposed, acknowledges=False
            )
        return granted(record, grant)

    def wait_for_all(self, doubt: Doubt) -> None:
        """Make every new call wait because of the step that proposes it, except calls that were rejected before."""
        terms, known = self.terms(), {*self._state.rejected_before(), *self._state.rejected}
        for record in [record for record in self._state.turn if record.phase is CallPhase.NEW]:
            if record.proposed.is_among(self._state.rejected):
                continue  # `judge` answers for it
            record = record.change(effect=self.effect(record.proposed))
            before = held_by(known, record.proposed, harmless=record.effect in HARMLESS)
            self._state.keep(self.gate.asked(record, terms, both(before, doubt) or doubt))

    # -- executing ------------------------------------------------------------------------------------------------

    async def execute_cleared(self) -> AsyncIterator[tuple[CallRecord, ToolResult]]:
        """Run all cleared calls concurrently, each once; yields the results in order when all are done."""
        cleared = [record for record in self._state.turn if record.phase is CallPhase.CLEARED]
        runnable = await self.announce(await self.start(cleared))
        results: list[ToolResult | None] = [None] * len(runnable)

        async def run(index: int, record: CallRecord) -> None:
            try:
                await self.lease.hold(self.lease.saved_at)  # the call beside it may have held this process up
            except StoreError:
                if self._guarded(record):
                    await self._withdraw([record])
                    raise
            results[index] = await self._run_one(record)

        works = [partial(run, index, record) for index, record in enumerate(runnable)]
        if works:  # a failure must not cut off siblings that are running
            await self.lease.run(lambda: run_together(works, finish=True))
        for record, result in zip(runnable, results, strict=True):
            if result is not None:
                yield record, result

    async def start(self, cleared: Sequence[CallRecord]) -> list[CallRecord]:
        """Start cleared calls: those that run now once they are announced; others wait again."""
        started = []

        async def begin() -> None:
            for record in cleared:
                if self.advises:
                    self.gate.starts.give_back(record, self._state.run_id)
                new = await self.gate.start(
                    record,
                    record.call,
                    self.terms(),
                    self._declared(record.call.name),
                    self.policy(),
                    self._state.keep,
                    any_effect=record.call.name in self.delegates or self.advises,
                )
                if new.phase is CallPhase.STARTED:
                    started.append(new)
                else:
                    why = new.requests[0].reason if new.requests else "it ran already"
                    self.lease.note("clearance_refused", {**self.facts(record), "why": why})

        try:
            if all(map(by_itself, cleared)):
                await begin()
            else:  # a precondition or the starts' store may take longer than the lease
                await self.lease.run(begin)
        except BaseException:  # none of these was announced, so none runs: what became of them is known
            ids = {record.proposed.id for record in cleared}
            self._clear_again([r for r in self._state.turn if r.proposed.id in ids and r.phase is CallPhase.STARTED])
            raise
        return started

    async def announce(self, started: list[CallRecord]) -> list[CallRecord]:
        """Write started calls to store and audit; then look for stop orders, what humans answered, and revocations.

        So a call does not run if an order or answer came before; raises StoppedError for an order. With the store
        down, only calls that may run without a record are returned; StoreError, where a human or a grant allowed one,
        or it had begun before.
        """
        if not started:
            return []
        announced = [record for record in started if self._audited(record)]
        for record in started:
            if record.call.name in self.delegates:  # whoever finds it started knows where its sub-agent's calls are
                self._state.keep(record.change(child_session=self._state.child_session(record)))
        facts = partial(started_facts, self._state.run_id, started_by=self._state.started_by)
        try:
            await self.lease.save(*(("execution_started", facts(one)) for one in announced))
            await self._unstopped()
            decided = await self.let_ahead.decided_meanwhile(announced)
            left = [record for record in announced if record not in decided]
            answered = await overruled(self, left)
            lapsed = await self._lapsed([record for record in left if record not in [one for one, _ in answered]])
            await self.lease.hold(self.lease.saved_at)
        except StoppedError:
            await self._withdraw(announced)
            raise
        except StoreError:
            guarded = [record for record in started if self._guarded(record)]
            allowed = any(r.decisions or r.grant is not None or r.began_before for r in guarded)
            await self._withdraw(started if allowed else guarded)
            if allowed:
                raise
            for record in guarded:
                self._state.settle(record, _STORE_DOWN, is_error=True)
            return [record for record in started if not self._guarded(record)]
        await self.let_ahead.hear(decided)
        for record, doubt in answered:
            again = self.gate.asked(record, self.terms(), doubt)
            self._state.keep(self.gate.starts.hand_on(record, again, self._state.run_id))
            if record.proposed.is_among(self._state.rejected):
                self._state.settle(record, REJECTED_BEFORE, is_error=True)
            await self.lease.try_save(self.withdrawn(record, why=doubt.reason))
        for record, why in lapsed:
            self._state.keep(self.gate.not_begun(record, self.terms(), why))
            await self.lease.try_save(self.withdrawn(record, why=why))
        held = [*decided, *(record for record, _ in (*answered, *lapsed))]
        return [record for record in started if record not in held]

    async def _lapsed(self, announced: Sequence[CallRecord]) -> list[tuple[CallRecord, str]]:
        """Announced calls with the end of what cleared them, in words; all is read in one turn of the store."""

        async def read() -> dict[str, str]:
            why = await self.gate.lapsed([record for record in announced if record.grant is None])
            granted = {record.proposed.id: record.grant for record in announced if record.grant is not None}
            ended = await taken_back(self.ledger.store, granted.values())
            return why | {call: ended[grant.id] for call, grant in granted.items() if grant.id in ended}

        why = {} if all(map(by_itself, announced)) else await self.ledger.store.at_once(read)
        return [(record, why[record.proposed.id]) for record in announced if record.proposed.id in why]

    async def _unstopped(self) -> None:
        """Raise StoppedError after a stop order; the store is asked twice, for an answer may be lost on the way."""
        since = time.monotonic()
        try:
            await self.lease.check_stop(since=since)
        except StoreError:
            await self.lease.check_stop(since=since)

    async def _withdraw(self, announced: Sequence[CallRecord]) -> None:
        """Withdraw announced calls: they are cleared as before; the audit says so while the session is ours."""
        self._clear_again(announced)
        with contextlib.suppress(StoreError, SessionConflictError):
            await self.lease.save(*map(self.withdrawn, filter(self._audited, announced)))

    def _clear_again(self, started: Sequence[CallRecord]) -> None:
        for record in started:
            self.gate.starts.give_back(record, self._state.run_id)
            self._state.keep(record.change(phase=CallPhase.CLEARED))

    def withdrawn(self, record: CallRecord, **why: str) -> Note:
        """The audit's note that a start did not run; what became of an earlier start stays unknown."""
        what = "outcome_unknown" if record.began_before else "execution_withdrawn"
        return what, {**self.facts(record), **why}

    def _audited(self, record: CallRecord) -> bool:
        """True where the audit has a call: all but those that only read and that nobody was asked about."""
        return record.effect is not Effect.READ or self._guarded(record)

    @staticmethod
    def _guarded(record: CallRecord) -> bool:
        """Return True if the call must not run unrecorded: not harmless, or cleared by a human or a grant."""
        return record.effect not in HARMLESS or bool(record.decisions) or record.grant is not None

    async def _run_one(self, record: CallRecord) -> ToolResult | None:
        delegate = self.delegates.get(record.call.name)
        if delegate is not None:
            try:
                outcome = await delegate.execute(record, self)
            finally:  # what it said is taken up here, before anybody else runs
                child = self._state.child_session(record)
                self.together[:] = [one for one in self.together if one.lease.state.session_id != child]
        else:
            outcome = await self._execute(record.call.model_copy(deep=True), record.key(self._state.run_id))
        record = self._state.record(record)  # a sub-agent's may have been changed meanwhile
        if isinstance(outcome, list):  # a sub-agent waits: its requests are this call's
            self._state.keep(record.change(phase=CallPhase.WAITING, requests=tuple(outcome)))
            await self.lease.try_save()
            return None
        self.take_result(record, outcome)
        await self.store_result(record, outcome)
        return outcome

    def take_result(self, record: CallRecord, outcome: ToolResult) -> None:
        """Take the result of a call that ran into the transcript and the belief."""
        self._state.settle(record, outcome.text(), is_error=outcome.is_error)
        self._state.tool_calls_made += 1
        if self.lease.session is not None:
            self.lease.session.observe_tool_result(record.call.id, outcome.text(), is_error=outcome.is_error)

    async def store_result(self, record: CallRecord, outcome: ToolResult, *, ran: bool = True) -> None:
        """Write a result that was taken to the store and the audit, where its start is there; `ran` or held back."""
        if self._audited(record):
            finished = "execution_finished", {**self.facts(record), "is_error": outcome.is_error}
            await self.lease.try_save(finished if ran else self.withdrawn(record))

    def notes(self) -> list[str]:
        """Notes for the model beside the results of this turn: which arguments a human changed."""
        return [note for record in self._state.turn if record.cleared_by is not None and (note := edit_note(record))]

    def facts(self, record: CallRecord) -> dict[str, Any]:
        """The audit's facts on a call: the digest of its arguments, and who cleared it."""
        return call_facts(self._state.run_id, record)
