"""Applies a human's answer to what waits: decisions one by one, guidance as text, or the passing of time.

Only an `ApprovalDecision` runs or refuses a call. A text is guidance: the waiting calls get a not-executed result and
the model goes on with it. A decision that is stale, expired, replayed, tampered with, not signed or not permitted is
refused.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from grampus_uq.errors import ApprovalError
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind, ApprovalPolicy, ApprovalRequest
from grampus_uq.records import Message, ToolCall
from grampus_uq.runtime.hold import Hold
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.state import CallPhase, CallRecord
from grampus_uq.vocabulary import Role

__all__ = ["ROLLBACK", "apply_decisions", "apply_expiry", "apply_guidance", "take_decisions"]

NOT_EXECUTED = "Not executed: instead of deciding, a human gave guidance (see below)."
EXPIRED = "Not executed: the approval expired before anybody decided. Do not assume that it was refused or granted."
ROLLBACK = "rollback"
"""Rule of the request that a rollback over executed calls makes: only a decision answers it."""
_MAX_REJECTED = 256


async def take_decisions(
    hold: Hold, ledger: Ledger, policy: ApprovalPolicy, given: Sequence[ApprovalDecision]
) -> list[tuple[ApprovalRequest, ApprovalDecision]]:
    """Check the decisions given now, store them, and add those that other processes stored; the valid ones come back.

    Raises ApprovalError when one of those given is refused; a stored one that is refused is written to the audit, and
    its request gets a new identity, so that it is asked again.
    """
    waiting = {request.id: request for request in hold.state.pending() if request.child_session is None}
    for decision in given:
        request = waiting.get(decision.request_id)
        if request is None:
            raise ApprovalError(f"Nothing waits under request {decision.request_id!r:.40}: stale or already decided.")
        try:
            policy.check(request, decision)
        except ApprovalError as refusal:
            await hold.note("decision_refused", {"request": request.id, "why": str(refusal)})
            if request.expired():
                _ask_again(hold, request, policy)
                await hold.save()
            raise
    for decision in given:
        try:
            await ledger.decide(decision)
        except ApprovalError:  # a stored one that does not hold must not block the request for ever
            await _stored(hold, ledger, policy, waiting[decision.request_id], given)
            raise
    found = [(request, await _stored(hold, ledger, policy, request, given)) for request in waiting.values()]
    return [(request, decision) for request, decision in found if decision is not None]


async def _stored(
    hold: Hold,
    ledger: Ledger,
    policy: ApprovalPolicy,
    request: ApprovalRequest,
    given: Sequence[ApprovalDecision],
) -> ApprovalDecision | None:
    """The stored decision on a request if it holds; one that does not is refused, and the request asked again."""
    try:
        stored = await ledger.decision(request.id)
        if stored is not None and stored not in given:
            policy.check(request, stored, now_s=stored.decided_s)
    except ApprovalError as refusal:
        await hold.note("decision_refused", {"request": request.id, "why": str(refusal)})
        _ask_again(hold, request, policy)
        return None
    return stored


def _ask_again(hold: Hold, request: ApprovalRequest, policy: ApprovalPolicy) -> None:
    """Replace a request by a new one on the same thing: what was said to the old one holds for nothing."""
    now = time.time()
    fresh = ApprovalRequest(
        **request.model_dump(exclude={"id", "created_s", "expires_s", "call"}),
        call=request.call,
        created_s=now,
        expires_s=None if policy.expires_s is None else now + policy.expires_s,
    )
    for requests in [hold.state.review, *(record.requests for record in hold.state.turn)]:
        requests[:] = [fresh if r.id == request.id else r for r in requests]


async def apply_decisions(hold: Hold, decided: Sequence[tuple[ApprovalRequest, ApprovalDecision]]) -> None:
    """Carry out valid decisions on the state: clear, settle, or answer the run's review."""
    records = {request.id: record for record in hold.state.turn for request in record.requests}
    hold.state.touched = hold.state.touched or bool(decided)
    for request, decision in decided:
        record = records.get(request.id)
        call = None if record is None else record.call
        if hold.session is not None:
            hold.session.record_decision(
                decision.kind.value,
                principal=decision.principal,
                step_id=request.step_id,
                call=call,
                message=decision.message,
                acknowledges=request.rule != ROLLBACK,
            )
        await hold.note(
            "decision",
            {
                "request": request.id,
                "kind": decision.kind.value,
                "principal": decision.principal,
                "call_digest": None if call is None else call.digest(),
                "signed": decision.signature is not None,
            },
        )
        if record is None and request.rule == ROLLBACK:
            _after_rollback(hold, decision)
        elif record is None:
            _review(hold, decision)
        else:
            await _decide_call(hold, record, request, decision)
    await hold.save()


async def _decide_call(hold: Hold, record: CallRecord, request: ApprovalRequest, decision: ApprovalDecision) -> None:
    state = hold.state
    if request.unknown_outcome and decision.kind is not ApprovalKind.APPROVE:
        await hold.note("execution_settled", {"idempotency_key": record.key(state.run_id)})
    if decision.kind in (ApprovalKind.APPROVE, ApprovalKind.EDIT):
        if decision.arguments is not None:
            record.call = ToolCall(id=record.call.id, name=record.call.name, arguments=decision.arguments)
        record.phase, record.requests = CallPhase.CLEARED, []
        record.cleared_by = f"{decision.kind.value} of {decision.principal}"
    elif decision.kind is ApprovalKind.REJECT:
        state.rejected = [*state.rejected, record.call.digest()][-_MAX_REJECTED:]
        said = f" They said: {decision.message}" if decision.message else ""
        state.settle(record, f"Not executed: a human rejected this call.{said} Do not propose it again.", is_error=True)
    else:
        state.settle(record, decision.message or "")


def _review(hold: Hold, decision: ApprovalDecision) -> None:
    """The answer to a pause of the run itself: accept its answer, or go on with what the human said."""
    state = hold.state
    state.review = []
    if decision.kind is ApprovalKind.APPROVE:
        state.answer_approved_by = decision.principal
        return
    state.output = ""
    said = decision.message or ""
    if decision.kind is ApprovalKind.REJECT:
        said = f"A human rejected this answer. {said}".strip()
    state.messages.append(Message(role=Role.USER, content=said))


def _after_rollback(hold: Hold, decision: ApprovalDecision) -> None:
    """The answer to what a rollback asked: go on with the calls as they are, or as the human settled them, or end."""
    state = hold.state
    state.review = []
    if decision.kind is ApprovalKind.REJECT:
        state.rollback_refused_by = decision.principal
        return
    for call in state.discarded:
        call.settled = True
    if decision.message:
        state.messages.append(Message(role=Role.USER, content=decision.message))


async def apply_guidance(hold: Hold, text: str) -> None:
    """A text is guidance, never approval: what waits is not executed, and the model goes on with the text."""
    state = hold.state
    for record in state.turn:
        if record.phase is CallPhase.WAITING:
            if record.child_session is not None:
                record.guidance, record.phase, record.requests = text, CallPhase.CLEARED, []  # the child is told
                continue
            if any(request.unknown_outcome for request in record.requests):
                continue  # guidance cannot say what became of a call: that needs a decision
            state.settle(record, NOT_EXECUTED, is_error=True)
    state.review = [request for request in state.review if request.rule == ROLLBACK]  # that needs a decision too
    state.output = ""
    state.touched = True
    state.messages.append(Message(role=Role.USER, content=text))
    if hold.session is not None:
        hold.session.record_decision("guidance", principal="guidance", message=text)
    await hold.note("guidance", {"characters": len(text)})


async def apply_expiry(hold: Hold) -> None:
    """What expired is not executed, and the model is told that it expired: neither a refusal nor leave."""
    state = hold.state
    for record in state.turn:
        if record.child_session is not None:
            continue  # the child's own business: of its requests one may have expired and another been approved
        if record.phase is CallPhase.WAITING and any(r.expired() and not r.unknown_outcome for r in record.requests):
            await hold.note("approval_expired", {"requests": [r.id for r in record.requests]})
            state.touched = True
            state.settle(record, EXPIRED, is_error=True)
    if any(request.expired() and request.rule != ROLLBACK for request in state.review):
        await hold.note("approval_expired", {"requests": [r.id for r in state.review]})
        state.review = []
        state.output = ""
        state.messages.append(
            Message(role=Role.SYSTEM, content="The review of this answer expired: it was not released.")
        )
