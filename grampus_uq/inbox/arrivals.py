"""Requests and drills that arrived since the last look; due drills are created here.

They are made whether or not anybody looks at the list: else a drill would appear when somebody does, and requests when
an agent asks.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio

from grampus_uq.errors import StoreError
from grampus_uq.runtime.asked_rows import ASKED, row_key
from grampus_uq.runtime.cards import card
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.pending_approvals import requests_of
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_drills import StoredDrills
from grampus_uq.runtime.worker_jobs import stamp

EACH_S: Final = 2.0
_LATE_S: Final = 120.0  # a look may come this much after a row was written
_MOST: Final = 1_000
_log = logging.getLogger(__name__)


class Arrivals:
    """Looks at one store; what waited at the first look is no news."""

    def __init__(self) -> None:
        self._rows: set[str] | None = None
        self._followed: set[str] = set()  # rows that were listed; a run that has other calls to make first is not yet
        self._drills: set[str] = set()

    async def look(self, store: SessionStore) -> bool:
        """True if something began to wait since the last look; raises StoreError."""
        now_s, before = await store.now(), self._rows
        newest = await store.scan(ASKED, after=stamp(now_s - _LATE_S), limit=_MOST)
        found = [*newest, *await store.scan(ASKED, limit=_MOST)]  # the clock of whoever asks may be late by any time
        rows = {row.key: row for row in found if now_s - row.written_s < _LATE_S}
        keys, drills = set(rows), StoredDrills(store)
        unlisted = keys - self._followed if await drills.plan() is not None else ()
        asked = await requests_of(Ledger(store), [rows[key] for key in sorted(unlisted)])
        shown = {one.id for one in await drills.mixed([card(one) for one in asked], now_s, unlisted=True)}
        shown -= {request.id for request in asked}
        fresh = bool(keys - (before or set())) or bool(shown - self._drills)
        listed = {row_key(one.id, one.created_s) for one in asked}
        self._rows, self._drills, self._followed = keys, shown, (self._followed | listed) & keys
        return fresh and before is not None

    async def run(self, store: SessionStore) -> None:
        """Look every two seconds, until cancelled; a store that is away ends nothing."""
        while True:
            try:
                await self.look(store)
            except StoreError as error:
                _log.warning("no drill was made, the store is away: %s", error)
            await anyio.sleep(EACH_S)
