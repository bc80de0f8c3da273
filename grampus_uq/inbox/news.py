"""The list's news as server-sent events: the store is asked once a second for everybody, while anybody listens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import anyio
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from grampus_uq.errors import GrampusError
from grampus_uq.inbox.people import Role
from grampus_uq.inbox.request_pages import MOST_COUNTED, how_many, listed, mark_of
from grampus_uq.inbox.visits import Inbox, Visit, for_role, refusal, signed_in_as

_EACH_S: Final = 1.0
_ALIVE_S: Final = 15.0
_MOST, _MOST_OF_ONE = 600, 6


class News:
    """Publishes changes to a bounded number of listeners."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._asked_s, self._told = float("-inf"), ""
        self._listeners = Counter[str]()
        self.over = False

    async def now(self, inbox: Inbox) -> str:
        """The state of the list as one event, at most a second old."""
        async with self._lock:
            if time.monotonic() - self._asked_s >= _EACH_S:
                rows, _ = await listed(inbox)
                count = await how_many(inbox)
                shown = f"{MOST_COUNTED}+" if count > MOST_COUNTED else str(count)
                self._told = f'data: {{"count": "{shown}", "mark": "{mark_of(rows, count)}"}}\n\n'
                self._asked_s = time.monotonic()
        return self._told

    def end(self) -> None:
        """Let who listens go within a second, in peace: the server ends."""
        self.over = True

    def full(self, name: str) -> bool:
        """True when too many listen, or too many of this person's pages."""
        return self._listeners.total() >= _MOST or self._listeners[name] >= _MOST_OF_ONE

    @contextmanager
    def listening(self, name: str) -> Iterator[None]:
        """Count a listener."""
        self._listeners[name] += 1
        try:
            yield
        finally:
            self._listeners[name] -= 1
            if not self._listeners[name]:
                del self._listeners[name]


@for_role(Role.LOOK)
async def _events(visit: Visit) -> Response:
    news: News = visit.request.app.state.news
    if news.full(visit.person.name):
        return refusal(visit.request, 429, "Too many pages are open.")
    return StreamingResponse(_told(visit, news), media_type="text/event-stream")


async def _told(visit: Visit, news: News) -> AsyncIterator[str]:
    last, known_s = "", time.monotonic()
    with news.listening(visit.person.name), suppress(GrampusError):  # the store is away: the browser asks again
        while not news.over:
            now = await news.now(visit.inbox)
            if time.monotonic() - known_s >= _ALIVE_S:  # however often the list changes
                if await signed_in_as(visit.request) is None:
                    return
                known_s = time.monotonic()
                yield ": alive\n\n"
            if now != last:
                last = now
                yield now
            await anyio.sleep(_EACH_S)


ROUTES = (Route("/requests/news", _events),)
