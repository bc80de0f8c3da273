"""Pending requests: the list, oldest first, and the card of one request with everything a decision needs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from grampus_uq.errors import SessionError, StoreError
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind
from grampus_uq.gate.voices import Voices
from grampus_uq.inbox.call_shapes import alike_among
from grampus_uq.inbox.delegation_pages import in_place_of
from grampus_uq.inbox.edit_form import as_json_text, edit_form
from grampus_uq.inbox.people import Role
from grampus_uq.inbox.visits import Inbox, Visit, at_once, for_role
from grampus_uq.recording.run_rows import readings_in_words, thresholds_in_words
from grampus_uq.records.call_parts import doubt_with_values
from grampus_uq.records.call_sentences import sentence_of
from grampus_uq.records.values import Reading, canonical_json
from grampus_uq.records.visible_text import legend_of, name_form
from grampus_uq.runtime.asked_rows import ASKED, asked_in, row_key
from grampus_uq.runtime.cards import Card, card
from grampus_uq.runtime.drills import Drill
from grampus_uq.runtime.fates import WAITS, Fate, fate_of, shown_of
from grampus_uq.runtime.pending_approvals import count_pending, oldest_pending
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_decisions import OpenRequest, decisions_on, open_request
from grampus_uq.runtime.stored_drills import StoredDrills

_PAGE: Final = 25
_PLAIN: Final = re.compile(r"[\n\t -~]*")  # beside an escape, a backslash of the text's own may be taken for one
AGREED: Final = frozenset({ApprovalKind.APPROVE, ApprovalKind.EDIT})
MOST_COUNTED: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRow:
    """One line of the list."""

    card: Card
    sentence: str
    stands: Sequence[ApprovalDecision]


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument as it is shown."""

    name: str
    kind: str
    text: str
    doubted: bool


@for_role(Role.LOOK)
async def _list(visit: Visit) -> Response:
    after = visit.request.query_params.get("after")
    rows, following = await listed(visit.inbox, after)
    alike = dict[str, int]()
    if visit.person.role.covers(Role.DEPUTY):
        cards = [row.card for row in rows if not row.stands and not is_own(visit, row.card)]
        alike = await alike_among(cards)
    mark = mark_of(rows, following) if after is None else None
    return visit.page("requests.html", rows=rows, following=following, now_s=visit.now_s, mark=mark, alike=alike)


async def listed(inbox: Inbox, after: str | None = None) -> tuple[list[ListedRow], str | None]:
    """A page of what waits, the oldest first, and where the next one begins.

    Requests and drills are in one order, and a page is the part of it behind `after`, whatever `after` is.
    """
    ledger = inbox.ledger
    requests, _ = await oldest_pending(ledger, after=after, limit=_PAGE + 1)  # one more says whether a page follows
    decided = await ledger.store.at_once(partial(decisions_on, ledger, requests))
    mixed = await StoredDrills(ledger.store).mixed([card(one) for one in requests], await ledger.store.now())
    placed = sorted(((row_key(one.id, one.created_s), one) for one in mixed), key=lambda one: one[0])
    behind = [one for one in placed if after is None or one[0] > after]
    following = behind[_PAGE - 1][0] if len(behind) > _PAGE else None
    shown = [one for _, one in behind[:_PAGE]]
    rows = [ListedRow(card=one, sentence=said(inbox, one), stands=decided.get(one.id, ([], []))[1]) for one in shown]
    return rows, following


async def how_many(store: SessionStore) -> int:
    """The number listed, up to one more than are counted."""
    drills = await StoredDrills(store).mixed([], await store.now(), unlisted=True)
    return await count_pending(store, MOST_COUNTED + 1) + len(drills)


def said(inbox: Inbox, shown: Card) -> str:
    """The effect, in one sentence."""
    if shown.tool is None:
        return "Releases the run's answer."
    return sentence_of(shown.tool, shown.arguments, inbox.sentences)


async def found(visit: Visit, request_id: str) -> OpenRequest | Drill:
    """The entry under exactly this id; raises SessionError when nothing is, in one sentence for whatever is asked.

    For a drill a request is read all the same, the oldest that waits, and thrown away: the card takes as long.
    """
    ledger = visit.inbox.ledger
    with contextlib.suppress(SessionError):
        drill = await StoredDrills(ledger.store).find(request_id, visit.now_s)
        oldest = await ledger.store.scan(ASKED, limit=1)
        if drill is not None and drill.card.id == request_id:
            with contextlib.suppress(SessionError, StoreError):
                await open_request(ledger, asked_in(oldest[0]) if oldest else request_id)
            return drill
        one = await open_request(ledger, request_id)
        if one.request.id == request_id:
            return one
    raise SessionError(f"No pending request has the id {request_id!r:.40}.")


@at_once
@for_role(Role.LOOK)
async def _card(visit: Visit) -> Response:
    request_id = visit.request.path_params["request_id"]
    try:
        one = await found(visit, request_id)
        if one.card.expired(visit.now_s):
            raise SessionError("It expired.")
    except SessionError:
        decisions = [d for d, _ in (await visit.inbox.ledger.decisions([request_id]))[request_id]]
        fate, shown = await fate_of(visit.inbox.ledger, request_id), await shown_of(visit.inbox.ledger, request_id)
        call = None if shown is None else said(visit.inbox, shown)
        return visit.page("decided.html", status=404, decisions=decisions, id=request_id, fate=fate, call=call)
    shown, request = one.card, one if isinstance(one, OpenRequest) else None
    own = is_own(visit, shown)
    stands = [] if request is None else request.standing
    place = None if own else await in_place_of(visit, shown, stands)
    return visit.page(
        "request.html",
        **await call_parts(visit, shown),
        readings=readings_in_words([Reading(source=name, value=value) for name, value in shown.readings.items()]),
        thresholds=None if shown.thresholds is None else thresholds_in_words(shown.thresholds),
        stands=stands,
        fate=_beside(await fate_of(visit.inbox.ledger, request_id), stands, visit.inbox.required) if stands else None,
        refused=[] if request is None else request.refused,
        required=visit.inbox.required,
        agreed=_agreed(stands),
        editable=partial(as_json_text, shown.arguments),
        form=partial(edit_form, shown.arguments, one.parameters),
        now_s=visit.now_s,
        own=own,
        place=place,
        decides=(visit.person.role is Role.DECIDE or place is not None) and not own,
    )


@at_once
@for_role(Role.LOOK)
async def _fate(visit: Visit) -> Response:
    """What became of a request that was decided, for a page that follows it; of a drill as of no request."""
    request_id = visit.request.path_params["request_id"]
    fate, required = await fate_of(visit.inbox.ledger, request_id), visit.inbox.required
    if fate is not None and _is_open(fate) and (required > 1 or fate.told != WAITS):  # else its audit is read once
        with contextlib.suppress(SessionError):
            one = await found(visit, request_id)
            fate = _beside(fate, one.standing if isinstance(one, OpenRequest) else (), required)
    return JSONResponse({"told": "", "over": True, "ran": None} if fate is None else asdict(fate))


def _is_open(fate: Fate) -> bool:
    """Return True where a decision that stands may still be taken up."""
    return not fate.over and (fate.ran is not None or fate.told == WAITS)


def _beside(fate: Fate | None, stands: Sequence[ApprovalDecision], required: int) -> Fate | None:
    """The fate of a request on which these decisions stand."""
    if fate is None or not stands or not _is_open(fate):
        return fate
    lacks = _agreed(stands) < required and {given.kind for given in stands} <= AGREED
    return Fate(told="Waiting for another approval." if lacks else WAITS, over=False, ran=None)


def is_own(visit: Visit, shown: Card) -> bool:
    """Return True if this person started the call's run and the policy forbids that."""
    return shown.started_by is not None and name_form(visit.person.name) == name_form(shown.started_by)


async def call_parts(visit: Visit, shown: Card) -> dict[str, Any]:
    """The parts of a call for `call.html`, the whole of it, and the token in its last part.

    What looks at every character is a function, which the page calls.
    """
    (shown,) = await StoredDrills(visit.inbox.ledger.store).as_shown(shown)
    return {
        "card": shown,
        "sentence": said(visit.inbox, shown),
        "arguments": [_argument(shown, name, value) for name, value in sorted(shown.arguments.items())],
        "marks": partial(legend_of, [shown.tool, shown.arguments]),
        "doubt": None if shown.doubt is None else doubt_with_values(shown.doubt),
        "seen": await seen_token(visit, shown),
    }


def _agreed(standing: Sequence[ApprovalDecision]) -> int:
    """Return the number of approvals of the most agreed arguments."""
    alike: dict[str, list[ApprovalDecision]] = {}
    for one in standing:
        if one.kind in AGREED:
            alike.setdefault(canonical_json(one.arguments), []).append(one)
    return max((len(Voices(several).distinct()) for several in alike.values()), default=0)


async def seen_token(visit: Visit, shown: Card) -> str:
    """The proof in the last part of a card: that this session was given all of this very card."""
    return await visit.token("seen", shown.id, shown.digest)


def _argument(shown: Card, name: str, value: Any) -> Argument:
    block = isinstance(value, str) and _in_lines(value)
    indent = 1 if isinstance(value, dict | list) else None
    text = value if block else json.dumps(value, ensure_ascii=False, indent=indent)
    edges = [where for where, text in (("begins", value[:1]), ("ends", value[-1:])) if text.isspace()] if block else []
    large = type(value) in (int, float) and 10_000 <= abs(value) < 1e15
    number = f"number, {value:,}" if large else "number"
    kinds = {
        str: f"text that {' and '.join(edges)} with blank space" if edges else "text",
        bool: "yes or no",
        int: number,
        float: number,
        list: "list",
        dict: "object",
    }
    doubted = shown.doubt is not None and shown.doubt.part == name
    return Argument(name=name, kind=kinds.get(type(value), "nothing"), text=text, doubted=doubted)


def _in_lines(text: str) -> bool:
    """Return True for a text that is shown line by line, where no other one looks like it: else it is shown as JSON."""
    lines = text.replace("\r\n", "\n")  # as every page shows it
    ends = lines == text or ("\r" not in lines and lines.count("\n") == text.count("\r\n"))
    return "\n" in text and ends and ("\\" not in text or _PLAIN.fullmatch(text) is not None)


def mark_of(rows: Sequence[ListedRow], following: str | None) -> str:
    """A short text that changes whenever the first page of the list does, which carries it."""
    told = [following is None, *([row.card.id, len(row.stands)] for row in rows)]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


ROUTES = (
    Route("/requests", _list),
    Route("/requests/{request_id}", _card),
    Route("/requests/{request_id}/fate", _fate),
)
