"""Records that another process stored: how far they are believed, and calls that were running when it died."""

from __future__ import annotations

from grampus_uq.gate.call import UNKNOWN_OUTCOME, UNVOUCHED, CallPhase, CallRecord, Terms, asked, bound, cleared
from grampus_uq.gate.requests import ApprovalPolicy
from grampus_uq.records.vocabulary import Effect


def restored(
    record: CallRecord,
    terms: Terms,
    approvals: ApprovalPolicy,
    now_s: float,
    *,
    believed: bool,
    delegates: bool = False,
) -> CallRecord:
    """A stored record as it counts here: as it is when it is `believed`, else it waits, whatever its phase.

    Under a valid seal, or without a signer, it is. Decisions in any other have to be given again, as nobody knows when
    they came or what voided them. `delegates`: the tool is a sub-agent, which asks for its own calls.
    """
    if believed:
        cleared = record.phase in (CallPhase.CLEARED, CallPhase.STARTED)
        by_monitor = cleared and not record.decisions and record.grant is None
        if by_monitor and record.requests and record.phase is CallPhase.CLEARED:  # a look let it go, in that process
            return record.change(phase=CallPhase.WAITING, cleared_by=None)
        return record.clear_here() if by_monitor else record.change()
    if record.phase is CallPhase.SETTLED:
        return record.change(requests=(), decisions=(), grant=None, cleared_by=None)
    record = record.change(guidance=None)
    if delegates and record.child_session is not None and record.waiting:
        return record
    record = record.change(child_session=None)
    began = record.phase is CallPhase.STARTED or record.began_before
    request = record.requests[0] if len(record.requests) == 1 else None
    if record.phase is CallPhase.STARTED or request is None or not bound(request, record, terms):
        return asked(record, terms, approvals, UNKNOWN_OUTCOME if began else UNVOUCHED, now_s)
    return record.change(phase=CallPhase.WAITING, call=record.proposed, decisions=(), grant=None, cleared_by=None)


def recovered(record: CallRecord, terms: Terms, approvals: ApprovalPolicy, effect: Effect, now_s: float) -> CallRecord:
    """A call that a dead process left started: one that was, and still is, a read runs again; else a human is asked."""
    if record.phase is not CallPhase.STARTED:
        return record
    reads = record.effect is Effect.READ is effect
    if record.child_session is not None or (reads and record.cleared_here):
        return cleared(record, record.cleared_by or "monitor")  # a sub-agent's session resumes itself
    if reads and (record.decisions or record.grant is not None):
        return record.change(phase=CallPhase.CLEARED)
    return asked(record, terms, approvals, UNKNOWN_OUTCOME, now_s)
