"""Batches: calls of one shape that one touch of a passkey decides, each listed whole, each under its own digest.

The passkey signs the list of the hashes of the decisions' texts (`gate.webauthn`); the runner checks each decision by
its own text. What has to be looked at by itself is in no batch, by the rule of the gate, which the runner asks too.
Nothing is stored unless every decision of the batch could be stored alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final, Literal

from pydantic import Field
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from grampus_uq.errors import ApprovalError, GrampusError, SessionError
from grampus_uq.gate.requests import written_text
from grampus_uq.gate.webauthn import MOST_IN_BATCH
from grampus_uq.inbox.call_shapes import shapes_of
from grampus_uq.inbox.decision_pages import Decision, Wish, check_decision, read_decision, sign_with, store, wished
from grampus_uq.inbox.people import Role
from grampus_uq.inbox.request_pages import call_parts, found, is_own, listed, said
from grampus_uq.inbox.visits import Assertion, Body, Visit, for_role, told_of
from grampus_uq.records.visible_text import visible
from grampus_uq.runtime.drills import Drill
from grampus_uq.runtime.stored_decisions import OpenRequest

_PAGES: Final = 4
_Text = Annotated[str, Field(max_length=200_000)]
_Three = Annotated[list[_Text], Field(min_length=3, max_length=3)]
_Shown = Annotated[list[Annotated[str, Field(max_length=100)]], Field(min_length=3, max_length=3)]
_Given = tuple[OpenRequest | Drill, Decision]


class BatchWish(Body):
    """A decision on several cards, each named by its id, its digest and the token of its last part."""

    kind: Literal["approve", "reject"]
    message: str | None = Field(default=None, max_length=20_000)
    calls: list[_Shown] = Field(min_length=2, max_length=MOST_IN_BATCH)


class SignedBatch(Assertion):
    """The decisions as `prepare` gave them, each with id and what its card carried; one assertion of the passkey."""

    calls: list[_Three] = Field(min_length=2, max_length=MOST_IN_BATCH)


@for_role(Role.DEPUTY)
async def _alike(visit: Visit) -> Response:
    """Every call of the batch, whole: the oldest that are alike."""
    one = await found(visit, visit.request.path_params["request_id"])
    (shape,), ids, after = await shapes_of([one.card]), list[str](), None
    for _ in range(_PAGES if shape is not None else 0):
        rows, after = await listed(visit.inbox, after)
        cards = [row.card for row in rows if not row.stands and not is_own(visit, row.card)]
        ids += [card.id for card, its in zip(cards, await shapes_of(cards), strict=True) if its == shape]
        if after is None or len(ids) >= MOST_IN_BATCH:
            break
    calls = []
    for request_id in ids[:MOST_IN_BATCH]:
        try:
            shown = (await found(visit, request_id)).card
        except SessionError:
            continue  # decided at this moment
        if await shapes_of([shown]) == [shape] and not shown.expired(visit.now_s) and not is_own(visit, shown):
            calls.append(await call_parts(visit, shown))
    return visit.page("batch.html", calls=calls, sentence=said(visit.inbox, one.card), now_s=visit.now_s)


@for_role(Role.DEPUTY)
async def _prepare(visit: Visit) -> Response:
    wish = await visit.said(BatchWish)
    given = list[tuple[_Given, str]]()
    for request_id, digest, seen in wish.calls:
        one = await found(visit, request_id)
        mine = Wish(kind=wish.kind, digest=digest, seen=seen, message=wish.message)
        given.append(((one, await wished(visit, one, mine)), seen))
    await _check(visit, given)
    texts = [written_text(decision) for (_, decision), _ in given]
    return JSONResponse(
        {"decisions": [decision.model_dump_json() for (_, decision), _ in given], "texts": texts, **visit.passkeys()}
    )


@for_role(Role.DEPUTY)
async def _decide(visit: Visit) -> Response:
    signed = await visit.said(SignedBatch)
    given = list[tuple[_Given, str]]()
    for request_id, text, seen in signed.calls:
        one = await found(visit, request_id)
        given.append(((one, read_decision(text)), seen))
    await _check(visit, given)
    done = [(one, sign_with(visit, one, decision, signed)) for (one, decision), _ in given]
    told = list[str]()
    for one, decision in done:  # each is its own: what became of the others changes none
        try:
            stored = await visit.inbox.ledger.store.at_once(partial(store, visit, one, decision))
            told.append(f"{said(visit.inbox, one.card)} {stored}")
        except GrampusError as error:
            status, why = told_of(visit.request, error)
            told.append(f"{said(visit.inbox, one.card)} {'Not decided: ' if status < 500 else ''}{why}")
    return JSONResponse({"told": [*map(visible, told)]})


async def _check(visit: Visit, given: Sequence[tuple[_Given, str]]) -> None:
    """Raise ApprovalError unless each of them could be decided alone, and all are alike, and none is there twice."""
    shapes = set(await shapes_of([one.card for (one, _), _ in given]))
    if len(shapes) != 1 or None in shapes:
        raise ApprovalError("These calls are not similar, or one of them has to be decided individually.")
    if len({one.card.id for (one, _), _ in given}) < len(given):
        raise ApprovalError("One of these calls is named twice.")
    for (one, decision), seen in given:
        try:
            await check_decision(visit, one, decision, seen)
        except ApprovalError as error:
            raise ApprovalError(f"{said(visit.inbox, one.card)} {error}") from error


ROUTES = (
    Route("/requests/alike/prepare", _prepare, methods=["POST"]),
    Route("/requests/alike/decide", _decide, methods=["POST"]),
    Route("/requests/{request_id}/alike", _alike),
)
