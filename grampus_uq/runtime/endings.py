"""Endings of a run: stored state, outcome for the monitor and the calibration watch, and result."""

from __future__ import annotations

import time
from collections.abc import Sequence

from grampus_uq.errors import StoreError
from grampus_uq.gate.effects import ToolEffects
from grampus_uq.monitor.session import Session
from grampus_uq.records.values import Outcome
from grampus_uq.records.vocabulary import AgentStatus, StopReason
from grampus_uq.runtime.audit import call_facts
from grampus_uq.runtime.begun_with import BEGUN_WITH
from grampus_uq.runtime.guarantee_watch import CalibrationWatch, finished_run
from grampus_uq.runtime.ledger import Note
from grampus_uq.runtime.run_state import ExecutionResult
from grampus_uq.runtime.session_lease import SessionLease
from grampus_uq.stats.calibration_watch import detector_id


class Endings:
    """Ends the runs of one runner, and makes their results."""

    def __init__(self, effects: ToolEffects, calibration_watch: CalibrationWatch | None) -> None:
        self._effects = effects
        self._watch = calibration_watch

    async def end(
        self,
        lease: SessionLease,
        reason: StopReason,
        error: str | None = None,
        *,
        unrun: str = "",
        notes: Sequence[Note] = (),
    ) -> ExecutionResult:
        """Store how a run ended, and report it to the monitor and the calibration watch; calls left over get `unrun`.

        A failure of the store is counted: the run stops all the same, and its lease runs out.
        """
        state, session = lease.state, lease.session
        state.status = AgentStatus.COMPLETED if reason is StopReason.CLEAN else AgentStatus.FAILED
        state.metadata["stop_reason"] = reason.value
        if error is not None:
            state.metadata["error"] = error
        began = state.give_up(unrun)
        notes = [*notes, *(("outcome_unknown", call_facts(state.run_id, record)) for record in began)]
        ordered = reason in (StopReason.CANCELLED, StopReason.MONITOR_STOP)
        counted = StopReason.INTERVENED if state.touched and not ordered else reason
        if session is not None and not ordered:
            await session.settle()
        await lease.try_save(*notes)
        outcome = Outcome(success=None, stop_reason=counted, time_s=time.time())
        if session is not None:
            session.finish(outcome)
            await self._report(lease, session, outcome)
        return self.result(lease)

    async def _report(self, lease: SessionLease, session: Session, outcome: Outcome) -> None:
        detector = session.profile.detector
        if self._watch is None or detector is None or detector_id(detector) != self._watch.detector:
            return
        try:
            await self._watch.finished(finished_run(session, outcome, touched=lease.state.touched))
        except StoreError:
            lease.state.store_failures += 1

    def result(self, lease: SessionLease) -> ExecutionResult:
        """The result of the run so far."""
        state = lease.state
        metadata = {key: value for key, value in state.metadata.items() if key != BEGUN_WITH}
        if lease.session is not None:
            metadata["uncertainty"] = lease.session.summary()
        if state.store_failures:
            metadata["store_failures"] = state.store_failures
        if not state.vouched:
            metadata["unvouched"] = True
        if state.answer_approved_by is not None:
            metadata["answer_approved_by"] = state.answer_approved_by
        unclassified = self._effects.unclassified()
        if unclassified:
            metadata["unclassified_tools"] = unclassified
        return state.result(metadata)
