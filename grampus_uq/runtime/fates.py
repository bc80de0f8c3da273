"""What became of a request once somebody had decided on it, by the state and the audit of its run, both unchecked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from grampus_uq.errors import DataError
from grampus_uq.gate.call import CallPhase
from grampus_uq.gate.requests import ApprovalKind
from grampus_uq.records.visible_text import in_short
from grampus_uq.records.vocabulary import ENDED
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.cards import Card
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.store import Document, documents
from grampus_uq.runtime.worker_hosted import ENGINE_MARK
from grampus_uq.runtime.worker_jobs import WAKES

WAITS: Final = "Waiting for the agent's program."
_CLEARED: Final = "Taken up: the call has not started yet."
_STARTED: Final = "The call is running."
_TOLD: Final = {
    "approval_expired": "The request expired before a decision was taken up",
    **dict.fromkeys(("asked_again", "clearance_refused"), "It is asked about anew"),
    "execution_withdrawn": "The call was held back as it started",
    "outcome_unknown": "The call was started, and nobody knows whether it took effect",
}
_REFUSED: Final = "The agent's program refused the decision of "
_ELSEWHERE: Final = "The agent's program went on with the run. What became of the call is in that program's own state."
_NO_DECISION: Final = "The request is no longer pending, and the audit of the run names no decision on it."
_LEFT: Final = {
    _CLEARED: "The audit of the run has no start of the call: the run ended first, or the call is asked about anew.",
    _STARTED: "The call was started. Its end is not in the audit of the run.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """In words; `over` once no more will be known. `ran`: True for a call that ran without an error, None while that is
    open, and where there is no call."""

    told: str
    over: bool = True
    ran: bool | None = False


async def fate_of(ledger: Ledger, request_id: str) -> Fate | None:
    """The fate of a request; None where nobody decided on it. Raises StoreError."""
    name = quote(request_id, safe="")
    decided = await ledger.store.children("decision", [name])
    wakes = await ledger.store.children(WAKES, [name]) if decided else ()
    shown = [*filter(None, map(_session_of, decided))]  # a sub-agent's own, where that above it is woken
    sessions = await documents(ledger.store, "session", shown or [row.key.partition("/")[2] for row in wakes])
    if not sessions:
        return Fate(told="The run that asked was not found in this store.", ran=None) if decided else None
    state = ledger.state_in(next(iter(sessions.values())))
    waits = request_id in {request.id for request in state.pending()}
    try:  # after the state: what that has no more, the audit knows
        entries = await AuditLog(ledger.store, state.agent_id, state.session_id).entries()
    except DataError as error:
        return Fate(told=f"What became of the call is not known: the audit of the run does not hold ({error}).")
    if ENGINE_MARK in state.metadata and not waits:
        return Fate(told=_ELSEWHERE, ran=None)
    fate = None
    for entry in entries:
        fate = _after(fate, entry["what"], entry["data"], request_id)
    if fate is None:  # of a call that was rolled back, or replaced by another look, a rejection is still taken up
        kept = [request.id for one in state.replaced() for request in one.requests] if state.status not in ENDED else ()
        open_ = waits or request_id in kept
        return Fate(told=WAITS, over=False, ran=None) if open_ else Fate(told=_NO_DECISION, ran=None)
    phases = [one.phase for one in state.turn if request_id in [given.request_id for given in one.decisions]]
    if fate.over or waits or any(phase is not CallPhase.SETTLED for phase in phases):
        return fate
    return Fate(told=_LEFT.get(fate.told, fate.told), over=not phases)  # of two calls one may be saved with the other


async def shown_of(ledger: Ledger, request_id: str) -> Card | None:
    """The card of a request, as it was shown to one who decided on it; None where none can be read."""
    for decided in await ledger.store.children("decision", [quote(request_id, safe="")]):
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            return Card.model_validate(json.loads(decided.body)["shown"])
    return None


def _session_of(decided: Document) -> str | None:
    """The key of the session whose request was shown beside a decision; None where that cannot be read."""
    try:
        shown = json.loads(decided.body)["shown"]
        return session_key(shown["agent_id"], shown["session_id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _after(before: Fate | None, what: str, data: Mapping[str, Any], request_id: str) -> Fate | None:
    """The fate after an entry of the audit."""
    several = [data.get(name) for name in ("decisions", "requests")]
    if request_id not in [data.get("request"), *(one for some in several if isinstance(some, list) for one in some)]:
        return before
    why = in_short(str(data.get("why", "")), 300)
    if what == "decision" and data.get("call_digest") is None:  # on the run's answer, or after a rollback
        return Fate(told="Taken up.", ran=None)
    if what == "decision":
        runs = data.get("kind") in (ApprovalKind.APPROVE, ApprovalKind.EDIT)
        return Fate(told=_CLEARED, over=False, ran=None) if runs else Fate(told="Taken up: the call does not run.")
    if what == "decision_refused":
        if before is not None and not before.told.startswith(_REFUSED):
            return before  # it was taken up, and is looked at once more beside what was asked anew
        return Fate(told=f"{_REFUSED}{in_short(str(data.get('of', 'a person')), 80)}: {why}", over=False)
    if what == "execution_started":
        return Fate(told=_STARTED, over=False, ran=None)
    if what == "execution_finished":
        failed = data.get("is_error") is True
        return Fate(told="The call ended with an error." if failed else "The call ran.", ran=not failed)
    if what not in _TOLD:
        return before
    return Fate(told=f"{_TOLD[what]}{f': {why}' if why else ''}".rstrip(".") + ".", over=False)
