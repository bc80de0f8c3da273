"""Worker threads for one purpose: an application that holds every thread of the event loop's default ones holds none
of these.

Forty plain functions, each in a thread of its own, may wait for agents (the endpoints of a web server do): an agent
that needed one more of those threads would wait for them for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

T = TypeVar("T")


class OwnThreads:
    """At most so many threads on each event loop."""

    def __init__(self, purpose: str, most: int) -> None:
        self._most = most
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar(f"grampus_uq_{purpose}_threads")

    async def run(self, work: Callable[[], T]) -> T:
        """Await the work in one of them; a caller that is cancelled leaves it to end by itself."""
        try:
            limiter = self._limiter.get()
        except LookupError:
            self._limiter.set(limiter := anyio.CapacityLimiter(self._most))
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
