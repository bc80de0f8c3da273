"""Brings the calls of one turn to their results: judge, ask, execute once, and write down each step before it is taken.

new -> cleared or waiting; waiting -> cleared or settled by a decision; cleared -> started -> settled. `started` is in
the store before the tool runs. A call found `started` by another worker was in the hands of one that died: reads run
again, anything else is never run again by itself; a human is asked what became of it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio

from grampus_uq.errors import StoreError
from grampus_uq.gate.effects import ToolEffects
from grampus_uq.gate.requests import ApprovalPolicy, ApprovalRequest
from grampus_uq.records import ToolCall, ToolResult
from grampus_uq.runtime.hold import Hold
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.state import CallPhase, CallRecord
from grampus_uq.vocabulary import Effect, UncertaintyAction, UncertaintyLevel

__all__ = ["Turn"]

Execute = Callable[[CallRecord, str], Awaitable[ToolResult | list[ApprovalRequest]]]

STORE_DOWN = "Not executed: the session store cannot be reached, and this call must not run without a record."
REPEATED = (
    "An attempt that was rolled back already executed exactly this call, and it cannot be undone: running it again "
    "does it twice."
)
CHANGED = "(A human changed the arguments to"
REJECTED_BEFORE = "Not executed: a human already rejected exactly this call. Do something else."


class Turn:
    """Works on the calls of one held session's current turn."""

    def __init__(
        self,
        hold: Hold,
        *,
        ledger: Ledger,
        policy: ApprovalPolicy,
        effects: ToolEffects,
        declared: Callable[[str], Effect | None],
        execute: Execute,
    ) -> None:
        self._hold = hold
        self._state = hold.state
        self._ledger = ledger
        self._policy = policy
        self._effects = effects
        self._declared = declared
        self._execute = execute

    # -- judging --------------------------------------------------------------------------------------------------

    async def judge(self) -> UncertaintyAction:
        """Clear every new call or make it wait; returns ABORT as soon as one call aborts the run."""
        for record in self._state.turn:
            if record.phase is CallPhase.NEW:
                if self.settled_by_rejection(record):
                    continue
                record.effect = self._effects.resolve(record.call, self._declared(record.call.name))
                if await self._judge_one(record) is UncertaintyAction.ABORT:
                    return UncertaintyAction.ABORT
        return UncertaintyAction.PROCEED

    def settled_by_rejection(self, record: CallRecord) -> bool:
        """Answer a call that a human rejected before, without asking again; False for any other."""
        if record.call.digest() not in self._state.rejected:
            return False
        self._state.settle(record, REJECTED_BEFORE, is_error=True)
        return True

    async def _judge_one(self, record: CallRecord) -> UncertaintyAction:
        session = self._hold.session
        repeated = self._state.already_executed(record.call)
        if session is None and repeated:
            self.ask(record, UncertaintyLevel.HIGH, "repeat_after_rollback", REPEATED, None, None)
            return UncertaintyAction.PAUSE_FOR_HUMAN
        if session is None:
            record.phase, record.cleared_by = CallPhase.CLEARED, "unmonitored"
            return UncertaintyAction.PROCEED
        step, action = await session.observe_tool_call(record.call, record.step_id, effect=record.effect)
        if repeated and action is not UncertaintyAction.ABORT:
            self.ask(record, step.level, "repeat_after_rollback", REPEATED, None, step.propagated_confidence)
            return UncertaintyAction.PAUSE_FOR_HUMAN
        if action is UncertaintyAction.PAUSE_FOR_HUMAN:
            if step.level in (UncertaintyLevel.LOW, UncertaintyLevel.MEDIUM) and await self._granted(record):
                return UncertaintyAction.PROCEED
            self.ask(record, step.level, step.rule, step.reasoning, step.guarantee, step.propagated_confidence)
        elif action is not UncertaintyAction.ABORT:
            record.phase, record.cleared_by = CallPhase.CLEARED, "monitor"
        return action

    async def _granted(self, record: CallRecord) -> bool:
        try:
            grant = await self._ledger.use_grant(
                record.call, agent_id=self._state.agent_id, session_id=self._state.session_id, policy=self._policy
            )
        except StoreError:
            return False
        if grant is None:
            return False
        record.phase, record.cleared_by = CallPhase.CLEARED, f"grant {grant.id} of {grant.principal}"
        if self._hold.session is not None:
            self._hold.session.record_decision(
                "grant", principal=grant.principal, step_id=record.step_id, call=record.call, acknowledges=False
            )
        return True

    def ask(
        self,
        record: CallRecord,
        level: UncertaintyLevel,
        rule: str,
        reason: str,
        guarantee: str | None,
        confidence: float | None,
        *,
        unknown_outcome: bool = False,
    ) -> None:
        """Make a call wait for a decision."""
        record.phase = CallPhase.WAITING
        record.requests = [
            self.request(
                record.step_id,
                level,
                rule,
                reason,
                guarantee,
                confidence,
                call=record.call,
                unknown_outcome=unknown_outcome,
            )
        ]

    def request(
        self,
        step_id: str,
        level: UncertaintyLevel,
        rule: str,
        reason: str,
        guarantee: str | None,
        confidence: float | None,
        *,
        call: ToolCall | None = None,
        unknown_outcome: bool = False,
    ) -> ApprovalRequest:
        """A request with the policy's expiry."""
        now = time.time()
        return ApprovalRequest(
            agent_id=self._state.agent_id,
            session_id=self._state.session_id,
            step_id=step_id,
            call=call,
            level=level,
            rule=rule,
            reason=reason,
            guarantee=guarantee,
            confidence=confidence,
            unknown_outcome=unknown_outcome,
            created_s=now,
            expires_s=None if self._policy.expires_s is None else now + self._policy.expires_s,
        )

    # -- after a crash --------------------------------------------------------------------------------------------

    def recover(self) -> list[CallRecord]:
        """Deal with the calls that a dead worker left `started`; returns those whose outcome nobody knows."""
        unknown = []
        for record in self._state.turn:
            if record.phase is not CallPhase.STARTED:
                continue
            if record.effect is Effect.READ or record.child_session is not None:
                record.phase = CallPhase.CLEARED  # harmless to run again; a sub-agent's session resumes itself
                continue
            unknown.append(record)
            self.ask(
                record,
                UncertaintyLevel.HIGH,
                "unknown_outcome",
                "The process died while this call was running: whether it took effect is unknown. Approving runs it "
                "again with the same idempotency key; respond says what became of it.",
                None,
                None,
                unknown_outcome=True,
            )
        return unknown

    # -- executing ------------------------------------------------------------------------------------------------

    async def execute_cleared(self) -> AsyncIterator[tuple[CallRecord, ToolResult]]:
        """Run every cleared call, side by side, each once; yields the results when all are there, in order."""
        cleared = [record for record in self._state.turn if record.phase is CallPhase.CLEARED]
        runnable = await self._announce(cleared)
        results: dict[int, ToolResult] = {}
        failures: list[Exception] = []

        async def run(index: int, record: CallRecord) -> None:
            try:
                result = await self._run_one(record)
            except Exception as error:  # noqa: BLE001 (raised below: it must not cut off siblings that are running)
                failures.append(error)
                return
            if result is not None:
                results[index] = result

        async def run_all() -> None:
            async with anyio.create_task_group() as group:
                for index, record in enumerate(runnable):
                    group.start_soon(run, index, record)
            if failures:
                raise failures[0]

        if runnable:
            await self._hold.watched(run_all)
        for index in sorted(results):
            yield runnable[index], results[index]

    async def _announce(self, cleared: list[CallRecord]) -> list[CallRecord]:
        """Put `started` into the store and the audit; what may not run without a record is settled when that fails."""
        if not cleared:
            return []
        for record in cleared:
            record.phase = CallPhase.STARTED
            if record.call.arguments != record.proposed.arguments:  # a human's: what it does was judged on the model's
                record.effect = self._effects.resolve(record.call, self._declared(record.call.name))
        try:
            await self._hold.save()
            for record in cleared:
                if record.effect is not Effect.READ:
                    await self._hold.note("execution_started", self.facts(record))
        except StoreError:
            harmless = [r for r in cleared if r.effect in (Effect.READ, Effect.REVERSIBLE) or not self._guarded(r)]
            for record in cleared:
                if record not in harmless:
                    self._state.settle(record, STORE_DOWN, is_error=True)
            return harmless
        return cleared

    def _guarded(self, record: CallRecord) -> bool:
        """Calls that must never run unrecorded: irreversible ones, and those that a human or a grant let through."""
        session = self._hold.session
        named = session is not None and session.profile.policy.is_irreversible(record.call.name)
        return record.effect is Effect.IRREVERSIBLE or named or record.cleared_by not in ("monitor", "unmonitored")

    async def _run_one(self, record: CallRecord) -> ToolResult | None:
        key = record.key(self._state.run_id)
        outcome = await self._execute(record, key)
        if isinstance(outcome, list):  # a sub-agent waits: its requests are this call's
            record.phase, record.requests = CallPhase.WAITING, outcome
            await self._keep()
            return None
        text = outcome.text()
        if record.call.arguments != record.proposed.arguments:
            text = f"{CHANGED} {record.call.canonical()}.)\n{text}"
        self._state.settle(record, text, is_error=outcome.is_error)
        self._state.tool_calls_made += 1
        if self._hold.session is not None:
            self._hold.session.observe_tool_result(record.call.id, text, is_error=outcome.is_error)
        if record.effect is not Effect.READ:
            await self._keep(note=("execution_finished", {**self.facts(record), "is_error": outcome.is_error}))
        return outcome

    async def _keep(self, note: tuple[str, dict[str, Any]] | None = None) -> None:
        """Save at once what happened; when the store is down it is still in memory and saved with the next step."""
        try:
            if note is not None:
                await self._hold.note(*note)
            await self._hold.save()
        except StoreError:
            self._state.metadata["store_failures"] = int(self._state.metadata.get("store_failures", 0)) + 1

    def facts(self, record: CallRecord) -> dict[str, Any]:
        """What the audit says of a call: no arguments, only their digest."""
        return {
            "run_id": self._state.run_id,
            "step_id": record.step_id,
            "tool": record.call.name,
            "call_id": record.call.id,
            "digest": record.call.digest(),
            "effect": record.effect.value,
            "idempotency_key": record.key(self._state.run_id),
            "cleared_by": record.cleared_by,
        }
