"""Applies a human's response to pending requests: decisions, guidance as text, or expiry.

Only an `ApprovalDecision` runs or refuses a call. A text is guidance: waiting calls get a not-executed result, and the
model continues with it. A decision that is stale, expired, replayed, tampered with, unsigned or not permitted has no
effect, and blocks no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grampus_uq.errors import ApprovalError, ChangedToolsError
from grampus_uq.gate.call import (
    CallPhase,
    CallRecord,
    cleared,
    decided,
    doubt_of,
    expired,
    guided,
    remembered,
    under,
)
from grampus_uq.gate.clearance import HARMLESS
from grampus_uq.gate.gate import record_answer
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind, ApprovalRequest
from grampus_uq.records.values import Message, ToolCall
from grampus_uq.records.vocabulary import Role
from grampus_uq.runtime.begun_with import BegunWith, broken, contracts
from grampus_uq.runtime.cards import card
from grampus_uq.runtime.ledger import decision_digest
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.stored_delegations import standing_in
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

if TYPE_CHECKING:
    from grampus_uq.runtime.turn import Turn

HumanResponse = str | ApprovalDecision | Sequence[ApprovalDecision] | None
"""Guidance, decisions, or None: take the decisions that were stored elsewhere."""

ROLLBACK = "rollback"
"""Rule of the request that a rollback over executed calls makes: only a decision answers it."""


_GONE = "the agent has no tool of this name any more"
_MAX_LISTED = 50

Schemas = Sequence[Mapping[str, Any]]
"""Tools in the OpenAI wire form."""

_Open = tuple[ApprovalRequest, CallRecord | None]
"""A pending request of this session's own, and the record of its call; None for a request on the run itself."""


def _open_requests(turn: Turn) -> list[_Open]:
    state = turn.lease.state
    calls = [r for r in state.turn if r.waiting and len(r.requests) == 1 and r.requests[0].child_session is None]
    return [*((request, None) for request in state.review), *((record.requests[0], record) for record in calls)]


async def apply_response(turn: Turn, response: HumanResponse, *, earlier: Iterable[ApprovalRequest] = ()) -> None:
    """Take a human's response to a session that waits; raises ApprovalError when a decision is refused.

    `earlier`: requests that its calls waited under before they were asked anew: a rejection of one still counts.
    """
    state, now_s = turn.lease.state, turn.lease.now_s()  # before decisions are read: what came in time is among them
    delegated = [r for r in state.turn if r.waiting and not r.asks_itself and r.call.name in turn.delegates]
    for record in delegated:
        for request in record.requests:
            if request.child_session is not None:
                await turn.delegates[record.call.name].answer(request, response)
    if isinstance(response, str):
        await _take_decisions(turn, [], earlier, runs_nothing=True)
        await _apply_guidance(turn, replace_lone_surrogates(response))
        return
    given = [response] if isinstance(response, ApprovalDecision) else list(response or ())
    children = {request.id for request in state.pending() if request.child_session is not None}
    await _take_decisions(turn, [d for d in given if d.request_id not in children], earlier)
    await _apply_expiry(turn, now_s)
    for record in delegated:  # cleared to look again at what was decided: a child asks for its own calls
        state.keep(cleared(record, record.cleared_by or "monitor"))


async def _take_decisions(
    turn: Turn, given: Sequence[ApprovalDecision], earlier: Iterable[ApprovalRequest], *, runs_nothing: bool = False
) -> None:
    """Store the given decisions, and carry out those that hold, with those that other processes stored.

    With `runs_nothing` only those that let no call run. Raises ApprovalError when a given one does not hold or comes
    too late: nothing is carried out then. Stored ones that do not hold are written to the audit.
    """
    lease, ledger, approvals = turn.lease, turn.ledger, turn.gate.approvals
    _renew(turn)
    waiting = {request.id: (request, record) for request, record in _open_requests(turn)}
    standing = await standing_in(ledger.store, given)
    for decision in given:
        if decision.request_id not in waiting:
            raise ApprovalError(f"No pending request {decision.request_id!r:.40}: stale or already decided.")
        request, record = waiting[decision.request_id]
        _, refused = approvals.holding(request, [(decision, lease.now_s())], turn.gate.problem, standing)
        if refused:
            lease.note("decision_refused", {"request": request.id, "why": refused[0][1]})
            if request.expired(lease.now_s()):
                _ask_again(turn, request, record)
                await lease.save()
            raise ApprovalError(refused[0][1])
    for decision in given:
        shown = card(waiting[decision.request_id][0])
        await ledger.decide(decision, shown=shown, wake=False)  # it is being resumed
    outcomes: list[tuple[_Open, tuple[ApprovalDecision, ...]]] = []
    before = _asked_before(waiting, earlier)
    waiting = before | waiting
    arrived = await ledger.decisions(list(waiting))
    standing = await standing_in(ledger.store, [one for several in arrived.values() for one, _ in several])
    for request, record in waiting.values():
        deciding, refused = approvals.holding(request, arrived[request.id], turn.gate.problem, standing)
        for decision, why in refused:
            which = {"request": request.id, "of": decision.principal, "decision": decision_digest(decision)}
            lease.note("decision_refused", {**which, "why": why})
        kind = deciding[0].kind if deciding else None
        if request.id in before and kind is not ApprovalKind.REJECT:
            continue
        if runs_nothing and kind not in (ApprovalKind.REJECT, ApprovalKind.RESPOND):
            changed = [decided(record, deciding)] if record is not None and deciding else []
            turn.lease.state.rejected = remembered(turn.lease.state.rejected, *changed)
            continue
        if deciding and not any(record is not None and record is one for (_, one), _ in outcomes):
            now = [decision for decision in given if decision.request_id == request.id]
            if any((d.kind, d.arguments) != (deciding[0].kind, deciding[0].arguments) for d in now):
                raise ApprovalError("This request was already decided: the decision is refused.")
            outcomes.append(((request, record), deciding))
    told = [(record, decided(record, deciding)) for (_, record), deciding in outcomes if record is not None]
    await turn.gate.tell_or_raise([new.change(requests=record.requests) for record, new in told], turn.terms())
    for (request, record), deciding in outcomes:
        await _carry_out(turn, request, record, deciding)
    await lease.save()


def _asked_before(waiting: Mapping[str, _Open], earlier: Iterable[ApprovalRequest]) -> dict[str, _Open]:
    """The earlier requests on what waits, by their ids; not where it started since, and "no" means another thing."""
    calls = {record.proposed.id: (now, record) for now, record in waiting.values() if record is not None}
    found = dict[str, _Open]()
    for request in earlier:
        now, record = calls.get("" if request.call is None else request.call.id) or (request, None)
        same = record is not None and request.call == record.proposed
        if same and request.id not in waiting and request.unknown_outcome == now.unknown_outcome:
            found[request.id] = request, record
    return found


def refuse_changes(state: AgentState, schemas: Schemas) -> None:
    """Raise ChangedToolsError for a session with an open call whose tool is gone, or demands other arguments now."""
    found = [f"{record.proposed.name!r:.80}: {why}" for record, why in _changed(state, schemas)]
    if found:
        raise ChangedToolsError(
            f"Session {state.session_id!r:.80} is not resumed, because tools changed since its calls were proposed "
            f"({'; '.join(found)[:500]}). Resume it with the original tools, or with changed_tools='ask'."
        )


def meet_changes(turn: Turn, now: BegunWith, schemas: Schemas) -> None:
    """Ask again about open calls whose tool is gone, or demands other arguments than before; the audit says why."""
    state, terms = turn.lease.state, turn.terms()
    before = BegunWith.read(state)
    differences = [] if before is None else before.differences(now)
    if differences:
        turn.lease.note("versions_changed", {"what": list(differences[:_MAX_LISTED])})
    for record, why in _changed(state, schemas):
        if record.child_session is not None or record.proposed.name in turn.delegates:
            continue  # a sub-agent's own session sees to its own calls
        turn.lease.note("asked_again", {**turn.facts(record), "why": why})
        state.keep(turn.gate.asked_again(record, terms, why))
    now.keep(state, schemas)


def _changed(state: AgentState, schemas: Schemas) -> list[tuple[CallRecord, str]]:
    """The open calls whose tool is not what it was, with the difference; calls that only read or ran are left out."""
    before = BegunWith.read(state)
    if before is None:
        return []
    now, found = contracts(schemas, before.open), []
    for record in state.turn:
        name = record.proposed.name
        if name not in before.open or record.phase not in (CallPhase.WAITING, CallPhase.CLEARED):
            continue
        if record.phase is CallPhase.CLEARED and record.effect in HARMLESS:
            continue
        parts = broken(before.open[name], now[name])
        if parts and not now[name]:
            found.append((record, _GONE))
        elif parts:
            found.append((record, f"the schema of its tool changed since it was proposed ({', '.join(parts)[:300]})"))
    return found


def _renew(turn: Turn) -> None:
    """Ask again what was asked under other rules, of another run, or by a release that bound a decision to less."""
    terms = turn.terms()
    for request, record in _open_requests(turn):
        if not under(request, terms, request.step_id if record is None else record.step_id):
            turn.lease.note("asked_again", {"request": request.id, "why": "it was asked under other rules"})
            _ask_again(turn, request, record)


def _ask_again(turn: Turn, request: ApprovalRequest, record: CallRecord | None) -> None:
    """Replace a request by a new one on the same thing: decisions on the old one lapse."""
    state, doubt = turn.lease.state, doubt_of(request)
    if record is not None:
        state.keep(turn.gate.asked_again(record, turn.terms()))
        return
    fresh = turn.gate.review(turn.terms(), doubt, request.step_id)
    if request.rule == ROLLBACK:
        fresh = fresh.model_copy(update={"expires_s": None})
    state.review = [fresh if one.id == request.id else one for one in state.review]


async def _carry_out(
    turn: Turn, request: ApprovalRequest, record: CallRecord | None, deciding: tuple[ApprovalDecision, ...]
) -> None:
    """Take the decisions that settle a request into the audit, the belief and the state, all at once."""
    if record is not None:  # first: whoever is cancelled meanwhile has carried out nothing, and is told again
        await turn.gate.answered(decided(record, deciding).change(requests=record.requests), turn.terms())
    tell(turn, request, None if record is None else record.proposed, deciding)
    if record is not None:
        _decide_call(turn, record, deciding)
    elif request.rule == ROLLBACK:
        _after_rollback(turn, deciding[0])
    else:
        _review(turn, deciding)


def tell(
    turn: Turn,
    request: ApprovalRequest,
    call: ToolCall | None,
    deciding: tuple[ApprovalDecision, ...],
    *,
    here: bool = True,
) -> None:
    """Take decisions into the audit and, where they are on this run, into the belief."""
    lease = turn.lease
    lease.state.touched = lease.state.touched or here
    for decision in deciding:
        lease.note(
            "decision",
            {
                "request": request.id,
                "kind": decision.kind.value,
                "principal": decision.principal,
                **({} if (given := decision.delegation) is None else {"for": given.principal, "delegation": given.id}),
                "call_digest": None if call is None else call.digest(),
                "signed": turn.gate.approvals.signer is not None,
            },
        )
    if lease.session is None or not here:
        return
    for decision in deciding:
        acknowledges = request.rule != ROLLBACK
        record_answer(lease.session, decision, step_id=request.step_id, call=call, acknowledges=acknowledges)


def _decide_call(turn: Turn, record: CallRecord, deciding: tuple[ApprovalDecision, ...]) -> None:
    state = turn.lease.state
    if record.began_before and deciding[0].kind is not ApprovalKind.APPROVE:
        turn.lease.note("execution_settled", {"idempotency_key": record.key(state.run_id)})
    new = decided(record, deciding)
    state.rejected = remembered(state.rejected, new)
    if new.phase is CallPhase.CLEARED:
        state.keep(new)
        return
    state.settle(new, new.text or "", is_error=new.is_error)


def _review(turn: Turn, deciding: Sequence[ApprovalDecision]) -> None:
    """Apply decisions on the run's answer: release it, or continue with the human's message."""
    state = turn.lease.state
    state.review = []
    if deciding[0].kind is ApprovalKind.APPROVE:
        state.answer_approved_by = " and ".join(decision.principal for decision in deciding)
        return
    state.output = ""
    message = deciding[0].message or ""
    if deciding[0].kind is ApprovalKind.REJECT:
        message = f"A human rejected this answer. {message}".strip()
    state.messages.append(Message(role=Role.USER, content=message))


def _after_rollback(turn: Turn, decision: ApprovalDecision) -> None:
    """Apply a decision on executed calls after a rollback: accept them, note what was done about them, or end."""
    state = turn.lease.state
    state.review = []
    if decision.kind is ApprovalKind.REJECT:
        state.rollback_refused_by = decision.principal
        return
    for call in state.discarded:
        call.settled = True
    if decision.message:
        state.messages.append(Message(role=Role.USER, content=decision.message))


async def _apply_guidance(turn: Turn, text: str) -> None:
    """Apply guidance, which never approves: waiting calls are not executed, the model continues with the text."""
    lease, state = turn.lease, turn.lease.state
    told = [(record, guided(record, text)) for record in state.turn if record.waiting]
    await turn.gate.tell_or_raise([new for _, new in told], turn.terms())
    asked = [(record, new) for record, new in told if new.phase is CallPhase.SETTLED]
    for _, new in asked:
        await turn.gate.answered(new, turn.terms())
    state.keep_replaced([*state.replaced(), *(record for record, _ in asked)])  # who was shown it may answer yet
    for _, new in told:
        if new.phase is CallPhase.SETTLED:
            state.settle(new, new.text or "", is_error=True)
        else:
            state.keep(new)
    state.review = [request for request in state.review if request.rule == ROLLBACK]  # that needs a decision too
    state.output = ""
    state.touched = True
    state.messages.append(Message(role=Role.USER, content=text))
    if lease.session is not None:
        lease.session.record_decision("guidance", principal="guidance", message=text)
    lease.note("guidance", {"characters": len(text)})


async def _apply_expiry(turn: Turn, now_s: float) -> None:
    """Settle expired calls as not executed; the model reads that they expired, which is neither yes nor no."""
    lease, state = turn.lease, turn.lease.state
    own = [record for record in state.turn if record.asks_itself]
    await turn.gate.tell_or_raise([expired(record, now_s) for record in own], turn.terms())
    for record in own:  # a child's requests are its own business: one may have expired and another been approved
        new = expired(record, now_s)
        if new.waiting and any(request.expired(now_s) for request in record.requests):
            # of unknown outcome, with an end, as an earlier release asked: nobody could decide it any more
            state.keep(turn.gate.asked_again(record, turn.terms()))
        elif new is not record:
            await turn.gate.answered(new, turn.terms())
            lease.note("approval_expired", {"requests": [request.id for request in record.requests]})
            state.touched = True
            state.settle(new, new.text or "", is_error=True)
    if any(request.expired(now_s) and request.rule != ROLLBACK for request in state.review):
        lease.note("approval_expired", {"requests": [request.id for request in state.review]})
        state.review = []
        state.output = ""
        state.messages.append(
            Message(role=Role.SYSTEM, content="The review of this answer expired: it was not released.")
        )
