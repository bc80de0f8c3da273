"""Places for sessions: those that workers of several stores share, and those that all workers of one store share."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Final

import anyio

from grampus_uq.errors import ConfigurationError, SessionConflictError, StoreError
from grampus_uq.runtime.store import Delete, Put, SessionStore, try_write

_PLACE: Final = "place"


class Places:
    """At most `at_once` sessions of all members together; a member is a worker of one store.

    A place stays free for each member that has none at work. While a member that may have more to do has less than an
    equal share, nobody else gets more than theirs; so of several floods each has its share as soon as sessions end.
    """

    def __init__(self, at_once: int) -> None:
        if at_once < 1:
            raise ConfigurationError.of("at_once", "Places", "at least 1", at_once)
        self.at_once = at_once
        self._running: Counter[str] = Counter()
        self._hungry: set[str] = set()
        self._changed = anyio.Event()

    def join(self, member: str) -> None:
        """Take part, with none at work."""
        self._running[member] += 0

    def room(self, member: str) -> int:
        """The number of sessions that this member may still begin now."""
        others = [other for other in self._running if other != member]
        share = max(1, self.at_once // len(self._running))
        kept = sum(not self._running[other] for other in others)
        free = self.at_once - self._running.total() - kept
        if any(other in self._hungry and self._running[other] < share for other in others):
            free = min(free, share - self._running[member])
        if not self._running[member]:
            free = max(free, min(1, self.at_once - self._running.total()))  # more members than places
        return max(0, free)

    def began(self, member: str, sessions: int, *, hungry: bool) -> None:
        """Count sessions that begin; `hungry`: there may be more to do for this member."""
        self._running[member] += sessions
        (self._hungry.add if hungry else self._hungry.discard)(member)

    def ended(self, member: str) -> None:
        """Count a session that ended, and wake who waits for a place."""
        self._running[member] -= 1
        self._changed.set()
        self._changed = anyio.Event()

    async def changed(self) -> None:
        """Wait until a session ends."""
        await self._changed.wait()


class StorePlaces:
    """At most `most` sessions of a store at work in all bounded workers: a row for each, free again after `lease_s`."""

    def __init__(self, store: SessionStore, most: int, lease_s: float) -> None:
        self._store = store
        self._most = most
        self._lease_s = lease_s
        self._held: dict[str, int] = {}

    async def free(self) -> list[Put]:
        """The places that are free, each as the change that takes it."""
        found = {row.key: row for row in await self._store.scan(_PLACE)}
        free = []
        for key in map(str, range(self._most)):
            row = found.get(key)
            if row is None or (key not in self._held and row.age_s >= self._lease_s):
                free.append(Put(kind=_PLACE, key=key, body="{}", expected=0 if row is None else row.version))
        return free

    async def take(self) -> str | None:
        """Take a place; None when there is none."""
        free = await self.free()
        random.shuffle(free)
        for place in free:
            if await try_write(self._store, place):
                self._held[place.key] = place.expected + 1
                return place.key
        return None

    async def renew(self) -> None:
        """Keep the places that are held, again and again; one that was taken over meanwhile is no longer ours."""
        while True:
            await anyio.sleep(self._lease_s / 3)
            for key, version in [*self._held.items()]:
                with contextlib.suppress(SessionConflictError, StoreError):
                    await self._store.write(Put(kind=_PLACE, key=key, body="{}", expected=version))
                    if key in self._held:
                        self._held[key] = version + 1

    async def give(self, key: str) -> None:
        """Give a place back; it comes back by itself where the store is down."""
        version = self._held.pop(key)
        with contextlib.suppress(SessionConflictError, StoreError):
            await self._store.write(Delete(kind=_PLACE, key=key, expected=version))
