"""Shared by the stores behind a blocking driver: a connection made when it is needed, and a thread of their own.

Tools that keep every other worker thread busy must not keep a store from saving.
"""

from __future__ import annotations

import threading
import uuid
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from grampus_uq.runtime.store import Result, SessionStore

_IN_THREAD: Final = ContextVar("grampus_store_thread", default=False)
"""True in the thread of a store, which `at_once` has for a whole piece of work."""


class ThreadedStore(SessionStore):
    """Runs a driver's calls one at a time beside the worker threads that tools share, so asyncio and trio both work."""

    def __init__(self, *, create: bool) -> None:
        self._create = create
        self._connection: Any = None
        self._ear: Any = None  # a store of the same kind, which hears of new jobs
        self._lock = threading.Lock()
        self._limiter: RunVar[anyio.CapacityLimiter | None] = RunVar(f"grampus_store_{uuid.uuid4().hex}", None)

    async def aclose(self) -> None:
        """Let go of the connections; they are opened again when needed."""
        if self._ear is not None:
            await self._ear.aclose()

        def close() -> None:
            with self._lock:
                self._let_go()

        await self._in_thread(close)

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def at_once(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Run it to its end in one turn of the thread; raises RuntimeError when it awaits anything but a store."""
        return await self._in_thread(_to_its_end, work)

    async def _run(self, work: Callable[[Any], Result]) -> Result:
        """The result of the work on the connection; waiting for one's turn can be cancelled, a started call ends."""
        return await self._in_thread(self._call, work)

    @abstractmethod
    def _call(self, work: Callable[[Any], Result]) -> Result:
        """Do the work on a connection of the store's kind; its errors become StoreError and SessionConflictError."""

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        if _IN_THREAD.get():
            return work(*arguments)
        limiter = self._limiter.get()
        if limiter is None:  # one line of waiting an event loop
            self._limiter.set(limiter := anyio.CapacityLimiter(1))
        return await anyio.to_thread.run_sync(work, *arguments, limiter=limiter)


def _to_its_end(work: Callable[[], Awaitable[Result]]) -> Result:
    """Run a coroutine that never has to wait, as every method of a store returns at once within its thread."""
    _IN_THREAD.set(True)  # in a copy of the caller's context, which ends with this call
    steps = work().__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: Result = done.value
        return result
    raise RuntimeError("What a store does at once can wait for nothing but a store.")
