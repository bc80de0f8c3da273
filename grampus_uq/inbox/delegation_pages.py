"""Delegations on pages: made and signed by whoever decides, revoked; and in whose place a deputy acts.

A delegation is signed as a permit is, in two steps: what comes back is stored only where it is the very one that this
session was given. Revoking needs no signature: it takes away and gives nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final

from pydantic import Field
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from grampus_uq.errors import ApprovalError
from grampus_uq.gate.delegations import LONGEST_S, Delegation
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy
from grampus_uq.inbox.people import Role
from grampus_uq.inbox.visits import Body, Section, SignedText, Visit, for_role
from grampus_uq.runtime.cards import Card
from grampus_uq.runtime.permit_words import until
from grampus_uq.runtime.stored_delegations import (
    delegate,
    find_delegation,
    revoke_delegation,
    standing_for,
    stored_delegations,
)

_HOUR_S: Final = 3600.0


class DelegationWish(Body):
    """An intended delegation: deputy, tools (none: all), and hours."""

    deputy: str = Field(max_length=200)
    tools: list[Annotated[str, Field(max_length=200)]] = Field(default=[], max_length=100)
    hours: float = Field(ge=0.01, le=LONGEST_S / _HOUR_S)


class SignedDelegation(SignedText):
    """A delegation as `prepare` gave it, with its token, and the assertion of the passkey `id` over its signed text."""

    delegation: str = Field(max_length=100_000)


# -- in whose place --------------------------------------------------------------------------------------------------


async def places(visit: Visit, shown: Card) -> list[Delegation]:
    """The delegations with which this deputy may decide on a card now, the one that lasts longest first."""
    if visit.person.role is not Role.DEPUTY:
        return []
    found = []
    for one in await standing_for(visit.inbox.ledger.store, visit.person.name, shown.tool):
        with suppress(ApprovalError):  # whoever started the run has no say in it
            ApprovalPolicy().check_other(one.principal, shown.started_by)
            found.append(one)
    return found[::-1]


async def in_place_of(visit: Visit, shown: Card, stands: Sequence[ApprovalDecision]) -> Delegation | None:
    """With which delegation a deputy decides, first one of somebody who said nothing yet; None without one."""
    found = await places(visit, shown)
    heard = {voice for one in stands for voice in one.voices}
    return min(found, key=lambda one: one.principal in heard, default=None)


async def check_place(visit: Visit, shown: Card, given: Delegation | None, *, drill: bool) -> None:
    """Raise ApprovalError unless a deputy decides with a delegation that covers this card now, and others without."""
    if visit.person.role is not Role.DEPUTY:
        right = given is None
    else:
        known = await places(visit, shown)
        right = bool(known) if drill else given in known
    if not right:
        raise ApprovalError("You have no active delegation for this call: it ended, or it was revoked.")


# -- seen, made, revoked ---------------------------------------------------------------------------------------------


@for_role(Role.LOOK)
async def _list(visit: Visit) -> Response:
    store = visit.inbox.ledger.store
    found = await stored_delegations(store)
    rows = [(one, _in_words(one.delegation), _may_revoke(visit, one.delegation)) for one in found]
    decides = visit.person.role is Role.DECIDE
    people = await visit.inbox.people.all() if decides else []
    deputies = [one.name for one in people if one.role is Role.DEPUTY]
    open_first = sorted(rows, key=lambda row: row[0].why_not is not None)
    return visit.page("delegations.html", rows=open_first, decides=decides, deputies=deputies)


def _in_words(given: Delegation) -> dict[str, str]:
    """Return the texts of a delegation, as shown before signing and in the list."""
    ends = until(given.until_s, "%Y-%m-%d %H:%M UTC")
    tools = "all pending calls" if given.tools is None else "calls of " + ", ".join(given.tools)
    return {"decides": f"{given.deputy} in the place of {given.principal}", "on": tools, "until": ends}


def _may_revoke(visit: Visit, given: Delegation) -> bool:
    return visit.person.role is Role.DECIDE or visit.person.name == given.deputy


@for_role(Role.DECIDE)
async def _prepare(visit: Visit) -> Response:
    wish = await visit.said(DelegationWish)
    person = await visit.inbox.people.find(wish.deputy)
    if person is None or person.role is not Role.DEPUTY:
        raise ApprovalError(f"{wish.deputy!r:.80} is not a deputy here: invite them with the role deputy.")
    try:
        given = Delegation(
            principal=visit.person.name,
            deputy=person.name,
            tools=tuple(name for line in wish.tools if (name := line.strip())) or None,
            from_s=visit.now_s,
            until_s=visit.now_s + wish.hours * _HOUR_S,
        )
        text = given.signed_text().decode()
    except ValueError as error:  # pydantic's, and a name that no browser can sign
        raise ApprovalError(f"This is not a delegation: {str(error)[:300]}") from error
    return JSONResponse(
        {
            "delegation": given.model_dump_json(),
            "token": await visit.token("delegation", text),
            **visit.to_sign(text, _in_words(given)),
        }
    )


@for_role(Role.DECIDE)
async def _delegate(visit: Visit) -> Response:
    signed = await visit.said(SignedDelegation)
    given = await visit.taken_back(Delegation, signed.delegation, signed, lambda given: given.from_s)
    await delegate(visit.inbox.ledger.store, given)
    return JSONResponse({"next": "/delegations"})


@for_role(Role.DEPUTY)
async def _revoke(visit: Visit) -> Response:
    await visit.form()
    store = visit.inbox.ledger.store
    found = await find_delegation(store, visit.request.path_params["delegation_id"])
    if not _may_revoke(visit, found.delegation):
        raise ApprovalError("Only approvers and the deputy can revoke a delegation.")
    await revoke_delegation(store, found.delegation.id, visit.person.name)
    return RedirectResponse("/delegations", 303)


DELEGATIONS: Final = Section(
    path="/delegations",
    label="Delegations",
    role=Role.LOOK,
    routes=(
        Route("/delegations", _list),
        Route("/delegations/prepare", _prepare, methods=["POST"]),
        Route("/delegations", _delegate, methods=["POST"]),
        Route("/delegations/{delegation_id}/revoke", _revoke, methods=["POST"]),
    ),
)
