"""A person's decision on a pending request: the one way from what was shown into the store, for terminal and pages."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from grampus_uq.errors import ApprovalError, DataError
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy, ApprovalRequest, Arrived, check_arguments
from grampus_uq.gate.schema import problem_of
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.begun_with import parameters_of
from grampus_uq.runtime.cards import Card, card
from grampus_uq.runtime.ledger import Ledger, decision_digest
from grampus_uq.runtime.stored_delegations import standing_in


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A pending request as it stands in the store at this moment.

    `decisions` were stored and not taken up, unchecked. `refused` are those that the runner's audit refuses: who
    decided, and why not; it may still take up those `standing`. `parameters`: the tool's schema, where it is kept.
    """

    request: ApprovalRequest
    card: Card
    decisions: tuple[ApprovalDecision, ...]
    refused: tuple[tuple[str, str], ...]
    standing: tuple[ApprovalDecision, ...]
    parameters: Mapping[str, Any] | None


def check_shown(card: Card, digest: str | None) -> None:
    """Raise ApprovalError unless this card has the digest of what was shown; None: whatever was."""
    if digest is not None and not hmac.compare_digest(digest.encode("utf-8", "replace"), card.digest.encode()):
        raise ApprovalError(
            f"The pending call is no longer what was shown: its digest is {card.digest}. Nothing was decided; look at "
            "it again."
        )


def check_edit(arguments: Mapping[str, Any] | None, parameters: Mapping[str, Any] | None) -> None:
    """Raise ApprovalError where the schema of a tool, as far as it is known, does not take the arguments of an edit."""
    if arguments is None:
        return
    check_arguments(arguments)
    problem = problem_of(arguments, parameters or {})
    if problem is not None:
        raise ApprovalError(f"The tool does not accept this: {problem}.")


async def open_request(ledger: Ledger, request_id: str) -> OpenRequest:
    """The pending request with this id, or a unique beginning of it; raises SessionError when there is none."""
    state, request = await ledger.find_request(request_id)
    arrived = (await ledger.decisions([request.id]))[request.id]
    refused = await _refusals(ledger, request)
    return OpenRequest(
        request=request,
        card=card(request, state),
        decisions=tuple(decision for decision, _ in arrived),
        refused=tuple(dict.fromkeys((str(one.get("of", "")), str(one.get("why", ""))) for one in refused)),
        standing=tuple(await _standing(ledger, arrived, refused)),
        parameters=None if (call := request.call) is None else parameters_of(state, call.name, call.arguments),
    )


async def store_decision(
    ledger: Ledger, found: OpenRequest, decision: ApprovalDecision
) -> tuple[ApprovalDecision, ...]:
    """Store a decision on what was shown, and wake its session; raises ApprovalError for one that cannot hold.

    Returns the decisions that stand and arrived before it, by the store's order: others may decide at the same moment.
    Whether its signature holds, and whether the principal may decide, is the runner's to say: it has the keys.
    """
    standing = await standing_in(ledger.store, [decision])
    deputies = [] if decision.delegation is None else [decision.principal]
    ApprovalPolicy(deputies=deputies).check(found.request, decision, now_s=ledger.now_s(), standing=standing)
    await ledger.decide(decision, shown=found.card, parameters=found.parameters)
    _, stand = (await decisions_on(ledger, [found.request])).get(found.request.id, ((), ()))
    mine = decision_digest(decision)
    return tuple(takewhile(lambda one: decision_digest(one) != mine, stand))


_Refusal = Mapping[str, Any]
Decided = tuple[Sequence[ApprovalDecision], Sequence[ApprovalDecision]]
"""The decisions on a request, and those of them that the runner may still take up."""


async def decisions_on(ledger: Ledger, requests: Sequence[ApprovalRequest]) -> dict[str, Decided]:
    """The decisions on each of these requests that has any."""
    arrived = await ledger.decisions([request.id for request in requests])
    return {
        request.id: (
            [decision for decision, _ in found],
            await _standing(ledger, found, await _refusals(ledger, request)),
        )
        for request in requests
        if (found := arrived[request.id])
    }


async def _standing(ledger: Ledger, arrived: Sequence[Arrived], refused: Sequence[_Refusal]) -> list[ApprovalDecision]:
    """Those that the runner did not refuse (earlier releases noted whose, not which), and whose delegation stands."""
    which = {str(one.get("decision")) for one in refused}  # whatever stands there
    whose = {str(one.get("of")) for one in refused if "decision" not in one}
    stands = await standing_in(ledger.store, [decision for decision, _ in arrived])
    return [
        one
        for one, at_s in arrived
        if one.principal not in whose
        and decision_digest(one) not in which
        and (one.delegation is None or stands(one.delegation, at_s) is None)
    ]


async def _refusals(ledger: Ledger, request: ApprovalRequest) -> list[_Refusal]:
    """The facts on the decisions that the runner refused, from the audit."""
    try:
        entries = await AuditLog(ledger.store, request.agent_id, request.session_id).entries()
    except DataError as error:
        return [{"why": f"the audit does not hold: {error}"}]
    data = [entry["data"] for entry in entries if entry["what"] == "decision_refused"]
    return [one for one in data if one.get("request") == request.id]
