"""Drills in a store: switched on and off, mixed into what waits, found and answered. It wakes no worker.

- `drill-plan`: one document, written by `switch_on`;
- `drill`: one a drill, under the id that is shown: `open`, `answered`, `expired`, or `none` where none could be made;
- `drill-source`: one for each call that served as a source, so that it serves once.

No method of `Ledger` reads any of them. Whoever reads the store can tell drills from requests; a reviewer who sees only
what is shown cannot.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import anyio.to_thread
from pydantic import BaseModel, JsonValue

from grampus_uq.errors import ApprovalError, SessionError, StoreError
from grampus_uq.gate.delegations import Delegation
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind
from grampus_uq.runtime.begun_with import parameters_of
from grampus_uq.runtime.cards import Card
from grampus_uq.runtime.drills import Drill, DrillAnswer, DrillPlan, drafts
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.store import Document, Put, SessionStore, pages, parsed, try_write

DRILL: Final = "drill"
SOURCE: Final = "drill-source"
_PLAN: Final = "drill-plan"
_SOURCES: Final = 200
_SHORTEST_ID: Final = 8
_LATEST_S: Final = 120.0
_Source = tuple[Card, dict[str, Any] | None]
_log = logging.getLogger(__name__)


class StoredDrills:
    """The drills of one store; `rng` draws sources, changes and delays, by default from the system."""

    def __init__(self, store: SessionStore, rng: random.Random | None = None) -> None:
        self._store = store
        self._rng = rng or random.SystemRandom()

    # -- on and off -----------------------------------------------------------------------------------------------

    async def plan(self) -> DrillPlan | None:
        """The plan in force; None while drills are off, which they are unless they were switched on."""
        found = await self._store.get(_PLAN, _PLAN)
        return None if found is None else parsed(DrillPlan, found.body, "The stored plan of drills")

    async def switch_on(self, plan: DrillPlan) -> None:
        """Mix drills into what is shown from now on."""
        found = await self._store.get(_PLAN, _PLAN)
        await self._store.put(_PLAN, _PLAN, plan.model_dump_json(), expected=0 if found is None else found.version)

    async def switch_off(self) -> bool:
        """Show no drills any more; False where they were off. Answers stay."""
        found = await self._store.get(_PLAN, _PLAN)
        if found is not None:
            await self._store.write(found.removal())
        return found is not None

    async def on(self) -> bool:
        """True while drills are shown: what nobody can read plans none."""
        try:
            return await self.plan() is not None
        except StoreError:
            return False

    # -- mixed in -------------------------------------------------------------------------------------------------

    async def mixed(
        self, cards: Sequence[Card], now_s: float, agent_id: str | None = None, *, unlisted: bool = False
    ) -> list[Card]:
        """The pending requests with the drills among them, oldest first; without drills where they are off.

        Makes the drills that are to follow these requests. A drill appears at its time, as a request does: it is
        counted as soon as it was asked (`unlisted`), and listed when its run would wait for the answer.
        """
        shown = list(cards)
        try:
            plan = await self.plan()
            for card in cards if plan is not None else ():
                if card.tool is not None and plan is not None and plan.follows(card.id):
                    await self._follow(plan, card, now_s)
        except (StoreError, ValueError) as error:  # the list is more than its drills
            _log.warning("no drill was made: %s", error)
            plan = None
        for document in await self._store.scan(DRILL, label="open") if plan is not None else ():
            drill = _readable(document)
            if drill is None:
                continue
            since_s = drill.card.created_s if unlisted else drill.listed_s
            if drill.card.expired(now_s):
                await self._closed(document, drill, "expired")
            elif since_s <= now_s and agent_id in (None, drill.card.agent_id):
                shown.append(drill.card)
        return sorted(shown, key=lambda card: card.created_s)

    async def as_shown(self, *cards: Card) -> list[Card]:
        """These cards as reviewers see them: while drills are on, without the names of their sessions.

        A drill has its source's, and many names say when a session began, or which one it was.
        """
        return [card.model_copy(update={"session_id": ""}) for card in cards] if await self.on() else [*cards]

    async def _follow(self, plan: DrillPlan, asked: Card, now_s: float) -> None:
        """Make the drill that follows a request, once."""
        key = plan.drill_id(asked.id)
        if await self._store.get(DRILL, key) is not None:
            return
        sources, parameters = await self._sources(plan, asked, now_s)
        found = drafts(plan, sources, asked, self._rng, now_s=now_s)
        session = await self._store.get("session", session_key(asked.agent_id, asked.session_id))
        late_s = 0.0 if session is None else min(max(0.0, session.written_s - asked.created_s), _LATEST_S)
        # in a thread: long transcripts take tenths of a second
        while (drill := await anyio.to_thread.run_sync(next, found, None)) is not None:
            served = Put(kind=SOURCE, key=drill.source, body="{}", expected=0)
            drill = drill.model_copy(update={"parameters": parameters, "late_s": late_s})
            if await self._stored(key, drill.model_dump_json(), "open", served):
                return
        await self._stored(key, "{}", "none")

    async def _stored(self, key: str, body: str, label: str, *beside: Put) -> bool:
        """Write a new drill; False where its source has served. Another process may have been first with this one."""
        put = Put(kind=DRILL, key=key, body=body, expected=0, label=label)
        return await try_write(self._store, put, *beside) or await self._store.get(DRILL, key) is not None

    async def _sources(
        self, plan: DrillPlan, asked: Card, now_s: float
    ) -> tuple[list[Card], dict[str, JsonValue] | None]:
        """Return one page of cards approved long enough ago, from a random position, and the tool's schema.

        Only under the schema that the tool has in the session that asks: a page has a field for each argument that it
        names, and the form of another one would tell a drill from what is asked today.
        """
        schema = None
        with suppress(SessionError, StoreError):  # it was decided meanwhile, or cannot be read: no drill follows it
            state, _ = await Ledger(self._store).find_request(asked.id)
            schema = parameters_of(state, asked.tool or "", asked.arguments)
        parameters = None if schema is None else dict(schema)
        start = uuid.UUID(int=self._rng.getrandbits(128)).hex
        page = await self._store.scan("decision", after=start, limit=_SOURCES)
        if len(page) < _SOURCES:
            page += [d for d in await self._store.scan("decision", limit=_SOURCES - len(page)) if d.key <= start]
        of_request: dict[str, list[Document]] = {}
        for document in page:
            of_request.setdefault(document.key.partition("/")[0], []).append(document)
        old = [
            documents
            for documents in of_request.values()
            if now_s - max(document.written_s for document in documents) >= plan.source_age_s
        ]
        found = [source for documents in old if (source := _approved(documents)) is not None]
        return [card for card, given in found if given == parameters], parameters

    # -- answered -------------------------------------------------------------------------------------------------

    async def find(self, drill_id: str, now_s: float) -> Drill | None:
        """The open drill with this id or unique beginning of it, where one is shown; raises SessionError for two."""
        if len(drill_id) < _SHORTEST_ID or not await self.on():
            return None
        found = [
            drill
            for document in await self._store.scan(DRILL, label="open", prefix=drill_id, limit=2)
            if (drill := _readable(document)) is not None and drill.listed_s <= now_s
        ]
        if len(found) > 1:
            raise SessionError(f"2 pending requests have an id beginning with {drill_id!r:.40}.")
        return found[0] if found else None

    async def answer(
        self, answer: DrillAnswer, now_s: float, *, waiting: int, place: Delegation | None = None
    ) -> Drill:
        """Store the answer to a drill, without the run that was shown; returns the drill with it.

        `waiting` is the length of the queue, `place` that of a deputy who answers. Raises ApprovalError where it would
        be refused on a request, and where another answer was first.
        """
        document = await self._store.get(DRILL, answer.drill_id)
        if document is None or document.label != "open":
            raise ApprovalError("This request was already decided: the decision is refused.")
        drill = parsed(Drill, document.body, "A stored drill")
        drill.check(answer, now_s, place)
        done = drill.model_copy(update={"answer": answer, "answered_s": now_s, "waiting": waiting})
        if not await self._closed(document, done, "answered"):
            raise ApprovalError("This request was already decided: the decision is refused.")
        return done

    async def _closed(self, document: Document, drill: Drill, label: str) -> bool:
        card = drill.card.model_copy(update={"messages": (), "reason": ""})
        kept = drill.model_copy(update={"card": card, "parameters": None}).model_dump_json()
        put = Put(kind=DRILL, key=document.key, body=kept, expected=document.version, label=label)
        return await try_write(self._store, put)

    async def appeared(self, now_s: float) -> list[float]:
        """Return the times at which the drills shown so far appeared."""
        found = []
        for label in ("open", "answered", "expired"):
            if label != "open" or await self.plan() is not None:
                drills = [_readable(one) async for one in pages(self._store, DRILL, label)]
                found += [drill.card.created_s for drill in drills if drill is not None]
        return [created_s for created_s in found if created_s <= now_s]

    async def unmade(self) -> int:
        """The number of drills that were to follow a request, and for which no past call served."""
        return len([one async for one in pages(self._store, DRILL, "none")])

    async def answered(self) -> list[Drill]:
        """The answered drills, in the order of their answers."""
        found = [_readable(one) async for one in pages(self._store, DRILL, "answered")]
        return sorted((drill for drill in found if drill is not None), key=lambda drill: drill.answered_s)


def _readable(document: Document) -> Drill | None:
    """A stored drill; None for one that cannot be read, which is logged and left out."""
    try:
        return parsed(Drill, document.body, "A stored drill")
    except StoreError as error:
        _log.warning("drill %.40s is left out: %s", ascii(document.key), error)
        return None


class _Kept(BaseModel):
    """The stored fields of a decision that drills need."""

    decision: ApprovalDecision
    shown: Card | None = None
    parameters: dict[str, JsonValue] | None = None


def _approved(documents: Sequence[Document]) -> _Source | None:
    """A request that every stored decision approved as it was; None for any other."""
    card, parameters = None, None
    for document in documents:
        try:
            kept = _Kept.model_validate_json(document.body)
        except ValueError:
            return None
        card, parameters = kept.shown or card, kept.parameters or parameters
        if kept.decision.kind is not ApprovalKind.APPROVE or card is None or card.digest != kept.decision.digest:
            return None
    return None if card is None else (card, parameters)
