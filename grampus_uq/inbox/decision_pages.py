"""Deciding: a passkey signs the text of a decision on exactly the call that was shown, and nothing else is stored.

Two steps. `prepare` makes the decision and hands out its signed text, which the browser hashes and has signed. `decide`
takes the decision back with the assertion. Each checks everything anew: the call may have changed in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from grampus_uq.errors import ApprovalError, DataError
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind, ApprovalPolicy, written_text
from grampus_uq.gate.voices import Voices
from grampus_uq.inbox.delegation_pages import check_place, in_place_of
from grampus_uq.inbox.edit_form import edit_form, edited
from grampus_uq.inbox.people import CHALLENGE_S, Role
from grampus_uq.inbox.request_pages import AGREED, found, how_many, seen_token
from grampus_uq.inbox.visits import Assertion, Body, Visit, at_once, for_role, past, same
from grampus_uq.records.strict_json import json_object
from grampus_uq.records.values import canonical_json
from grampus_uq.records.visible_text import visible
from grampus_uq.runtime.drills import Drill, DrillAnswer
from grampus_uq.runtime.stored_decisions import OpenRequest, check_edit, check_shown, store_decision
from grampus_uq.runtime.stored_drills import StoredDrills

Decision = ApprovalDecision | DrillAnswer
_DONE: Final = {
    ApprovalKind.APPROVE: "Approved",
    ApprovalKind.EDIT: "Approved with your change",
    ApprovalKind.REJECT: "Rejected",
    ApprovalKind.RESPOND: "Answered",
}


class FormTexts(Body):
    """The texts of the fields of an edit, None for no value, and the `mark` of the form that they are from."""

    mark: str = Field(max_length=100)
    texts: list[Annotated[str, Field(max_length=200_000)] | None] = Field(max_length=100)


class Wish(Body):
    """A person's intended decision on the card with this digest, whose last part carried `seen`.

    An edit has the `arguments` as JSON, or the `fields` of the form.
    """

    kind: Literal["approve", "edit", "reject", "respond"]
    digest: str = Field(max_length=100)
    seen: str = Field(max_length=100)
    message: str | None = Field(default=None, max_length=20_000)
    arguments: str | None = Field(default=None, max_length=200_000)
    fields: FormTexts | None = None
    never: bool = False


class SignedWish(Assertion):
    """A decision as `prepare` gave it, with the assertion of the passkey `id` over its signed text."""

    decision: str = Field(max_length=250_000)
    seen: str = Field(max_length=100)


@at_once
@for_role(Role.DEPUTY)
async def _prepare(visit: Visit) -> Response:
    wish = await visit.said(Wish)
    one = await found(visit, visit.request.path_params["request_id"])
    decision = await wished(visit, one, wish)
    text = written_text(decision)
    await check_decision(visit, one, decision, wish.seen)
    return JSONResponse(
        {
            "decision": decision.model_dump_json(),
            "text": text,
            **visit.passkeys(),
            "changes": changes(one.card.arguments, decision.arguments),
        }
    )


@at_once
@for_role(Role.DEPUTY)
async def _decide(visit: Visit) -> Response:
    signed = await visit.said(SignedWish)
    one = await found(visit, visit.request.path_params["request_id"])
    decision = read_decision(signed.decision)
    await check_decision(visit, one, decision, signed.seen)
    return JSONResponse({"told": visible(await store(visit, one, sign_with(visit, one, decision, signed)))})


def read_decision(text: str) -> Decision:
    """A decision as `prepare` gave it, on a request or on a drill; raises DataError."""
    for kind in (ApprovalDecision, DrillAnswer):
        with contextlib.suppress(ValueError):
            return kind.model_validate_json(text)
    raise DataError("The request cannot be read.")


def sign_with(visit: Visit, one: OpenRequest | Drill, decision: Decision, said: Assertion) -> Decision:
    """The decision with this person's signature; raises ApprovalError where it is not theirs, or not on this text.

    On a request only a decision counts, on a drill only an answer. The other one is refused here and no earlier: a
    program that makes one up is told the same of both.
    """
    fits = isinstance(decision, DrillAnswer) is isinstance(one, Drill)
    if not visit.signed(decision.signed_text(), said) or not fits:
        raise ApprovalError("The passkey's signature is not for this decision: nothing was decided.")
    return decision.model_copy(update={"signature": said.signature})


async def store(visit: Visit, one: OpenRequest | Drill, decision: Decision) -> str:
    """Store it; what the person is told."""
    ledger = visit.inbox.ledger
    if isinstance(decision, DrillAnswer):
        waiting = await how_many(ledger.store)
        done = await StoredDrills(ledger.store).answer(decision, visit.now_s, waiting=waiting)
        return done.told()
    assert isinstance(one, OpenRequest)  # noqa: S101 (a decision was read because it is)
    before = await store_decision(ledger, one, decision)
    first = _settled(visit, one, before)
    if first is not None:
        return f"{first.by} decided this first: {past(first.kind)}. Your decision is stored, and has no effect."
    more = visit.inbox.required - len(Voices([*_alike(before, decision), decision]).distinct())
    waits = f" {more} more needed." if decision.kind in AGREED and more > 0 else " The agent's program takes it up."
    return f"{_DONE[decision.kind]}.{waits}"


async def wished(visit: Visit, one: OpenRequest | Drill, wish: Wish) -> Decision:
    """The unsigned decision."""
    check_shown(one.card, wish.digest)
    if [wish.arguments, wish.fields].count(None) != (1 if wish.kind == "edit" else 2):
        raise DataError("The request cannot be read.")
    if wish.kind == "respond" and not (wish.message or "").strip():
        raise ApprovalError("A response needs the text that the model reads.")
    given: dict[str, Any] = {"message": wish.message or None, "principal": visit.person.name}
    if wish.arguments is not None:
        given["arguments"] = _edited(wish.arguments)
    if wish.fields is not None:
        form = edit_form(one.card.arguments, one.parameters)
        if form is None or form.mark != wish.fields.mark:
            raise ApprovalError("The tool's arguments changed since the form was opened. Open the request again.")
        given["arguments"] = edited(form, one.card.arguments, wish.fields.texts)
    if isinstance(one, Drill):
        return one.answered(wish.kind, **given).model_copy(update={"answered_s": visit.now_s})
    place = await in_place_of(visit, one.card, one.standing)
    decision = one.request.decide(wish.kind, never=wish.never, delegation=place, **given)
    return decision.model_copy(update={"decided_s": visit.now_s})  # by the store's clock, as all that is checked


def _edited(text: str) -> dict[str, Any]:
    try:
        return json_object(text, unique_names=True)
    except DataError as error:
        raise ApprovalError(f"The text of the arguments {str(error)[:200]}") from error


async def check_decision(visit: Visit, one: OpenRequest | Drill, decision: Decision, seen: str) -> None:
    """Raise ApprovalError unless this person may decide this now, on what they were shown in full."""
    shown = one.card
    check_shown(shown, decision.digest)
    if not same(await seen_token(visit, shown), seen):
        raise ApprovalError("The whole call was not shown in this session. Open the request again.")
    made_s = decision.decided_s if isinstance(decision, ApprovalDecision) else decision.answered_s
    if decision.principal != visit.person.name or not abs(visit.now_s - made_s) < CHALLENGE_S:
        raise ApprovalError("The decision belongs to another person, or it took too long. Open the request again.")
    ApprovalPolicy().check_other(decision.principal, shown.started_by)
    given = decision.delegation if isinstance(decision, ApprovalDecision) else None
    await check_place(visit, shown, given, drill=isinstance(decision, DrillAnswer))
    if shown.expired(visit.now_s):
        raise ApprovalError("The request expired while it was open: nothing was decided. The agent asks again.")
    if decision.arguments is not None:
        _check_edit(one, decision.arguments)
    if isinstance(one, OpenRequest) and isinstance(decision, ApprovalDecision):
        _check_first(visit, one, decision)


def _check_edit(one: OpenRequest | Drill, arguments: Mapping[str, Any]) -> None:
    shown = one.card
    if shown.tool is None:
        raise ApprovalError("This request has no call whose arguments could be edited.")
    check_edit(arguments, one.parameters)
    if canonical_json(arguments) == canonical_json(shown.arguments):
        raise ApprovalError("Nothing was changed: approve the call as it is, or change it.")


def _check_first(visit: Visit, one: OpenRequest, mine: ApprovalDecision) -> None:
    """Refuse what the decisions of before settle."""
    last = _settled(visit, one, one.standing)
    if last is not None:
        raise ApprovalError(f"{last.by} decided this already: {past(last.kind)}. Nothing more was stored.")
    agreed = _alike(one.standing, mine)
    if mine.kind in AGREED and len(Voices([*agreed, mine]).distinct()) == len(Voices(agreed).distinct()):
        raise ApprovalError("You decided this already. Somebody else has to agree.")


def _settled(visit: Visit, one: OpenRequest, given: Sequence[ApprovalDecision]) -> ApprovalDecision | None:
    """The decision that settled a request, by the runner's own rule; only the runner can check signatures."""
    deputies = {decision.principal for decision in given if decision.delegation is not None}
    policy = ApprovalPolicy(required=visit.inbox.required, deputies=deputies)
    arrived = [(decision, visit.now_s) for decision in given]
    settled, _ = policy.holding(one.request, arrived, standing=lambda given, at_s: None)
    return settled[-1] if settled else None


def _alike(given: Sequence[ApprovalDecision], mine: ApprovalDecision) -> list[ApprovalDecision]:
    """Return the decisions that agree to exactly the same arguments as this one."""
    wanted = canonical_json(mine.arguments)
    return [d for d in given if d.kind in AGREED and canonical_json(d.arguments) == wanted]


def changes(before: Mapping[str, Any], after: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """The changes of an edit, argument by argument, as JSON texts; "" for none."""
    if after is None:
        return []
    differing = [n for n in sorted({*before, *after}) if _json(before, n) != _json(after, n)]
    return [
        {"name": visible(n), "before": visible(_json(before, n)), "after": visible(_json(after, n))} for n in differing
    ]


def _json(arguments: Mapping[str, Any], name: str) -> str:
    return canonical_json(arguments[name]) if name in arguments else ""


ROUTES = (
    Route("/requests/{request_id}/prepare", _prepare, methods=["POST"]),
    Route("/requests/{request_id}/decide", _decide, methods=["POST"]),
)
