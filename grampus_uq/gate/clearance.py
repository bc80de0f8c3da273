"""The one check at the moment of running: may exactly this call run now?

It looks at what is about to run and at signatures, never at what a stored phase, effect or confidence says. An attacker
who writes every byte of the state, and has no approver's private key, gets no call past it that may be irreversible.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

from grampus_uq.errors import ApprovalError
from grampus_uq.gate.call import CallPhase, CallRecord, Terms, bound
from grampus_uq.gate.requests import ApprovalKind, ApprovalPolicy
from grampus_uq.records.values import ToolCall
from grampus_uq.records.vocabulary import Effect
from grampus_uq.signals.driver import FAILURES, cancel_requests, cancelled_from_outside
from grampus_uq.wire.lone_surrogates import error_text

HARMLESS = frozenset({Effect.READ, Effect.REVERSIBLE})
"""Effects that may run with an unvouched belief. An unclassified tool may well be irreversible."""

_BY_HUMANS = tuple(f"{kind} of " for kind in (ApprovalKind.APPROVE, ApprovalKind.EDIT))  # kept of a sub-agent's call
Precondition = Callable[[ToolCall], "str | Awaitable[str | None] | None"]
"""Why a call that more than the monitor cleared must not run now, or None where it may; may be awaited."""


async def refusal_of(precondition: Precondition | None, call: ToolCall) -> str | None:
    """The reason not to run the call now, or None. What cannot be checked does not hold."""
    if precondition is None:
        return None
    requests = cancel_requests()
    try:
        refusal = precondition(call)
        return await refusal if inspect.isawaitable(refusal) else refusal
    except (*FAILURES, asyncio.CancelledError) as error:  # user code: what cannot be checked does not hold
        if isinstance(error, asyncio.CancelledError) and cancelled_from_outside(requests):
            raise
        return f"its precondition could not be checked ({error_text(error)})"


def check_clearance(
    record: CallRecord,
    call: ToolCall,
    terms: Terms,
    approvals: ApprovalPolicy,
    *,
    effect: Effect,
    now_s: float,
    always_ask: bool = False,
) -> None:
    """Raise ApprovalError unless exactly this call, which is about to run, was cleared and has not run yet.

    `terms`, `effect` and `always_ask` (whether only a human may let it run) are as they are now, none of it read from
    the record; every signature is checked once more, and `now_s` is by the clock that grants are measured with.
    """
    if record.phase is not CallPhase.CLEARED:
        raise ApprovalError(f"the call is {record.phase.value}, not cleared")
    if record.decisions:
        _check_decisions(record, call, terms, approvals, now_s)
        return
    if always_ask and not (record.cleared_by or "").startswith(_BY_HUMANS):
        raise ApprovalError("the policy always asks about this tool")
    if not terms.vouched and effect not in HARMLESS:
        raise ApprovalError("the belief that let it through came from outside without a seal that holds")
    if record.grant is not None:
        approvals.check_grant(record.grant)
        approvals.check_other(record.grant.principal, terms.started_by)
        covers = record.grant.covers(call, agent_id=terms.agent_id, session_id=terms.session_id, now_s=now_s)
        if not covers or not call == record.proposed == record.call:
            raise ApprovalError("the grant does not cover the call")
        return
    if not record.cleared_here_for(call):
        same = call == record.call
        whose = "nobody with authority here cleared the call"
        raise ApprovalError(whose if same else "another call is about to run than the one that was cleared")
    if effect not in HARMLESS and record.effect not in (effect, Effect.IRREVERSIBLE):
        raise ApprovalError(f"it was let through as {record.effect.value}, and is {effect.value} now")


def _check_decisions(record: CallRecord, call: ToolCall, terms: Terms, approvals: ApprovalPolicy, now_s: float) -> None:
    request = record.requests[0] if len(record.requests) == 1 else None
    if request is None or not bound(request, record, terms):
        raise ApprovalError("the decisions are on another call, session or step, or were made under other rules")
    # In time it was when it arrived; the rest is checked again, on the record's own copy, a delegation's end by now.
    arrived = [(decision, request.created_s) for decision in record.decisions]
    deciding, refused = approvals.holding(request, arrived, standing=lambda given, _: given.over(now_s))
    if not deciding:
        raise ApprovalError(refused[0][1] if refused else f"{approvals.required} approvals are required")
    first = deciding[0]
    if first.kind not in (ApprovalKind.APPROVE, ApprovalKind.EDIT):
        raise ApprovalError(f"the decision is to {first.kind.value} it")
    arguments = record.proposed.arguments if first.arguments is None else first.arguments
    if call != record.proposed.model_copy(update={"arguments": arguments}):
        raise ApprovalError("another call is about to run than the one that was decided on")
