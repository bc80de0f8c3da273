"""One asyncio loop on its own thread, for a library that binds itself to the first loop it runs on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import anyio

from grampus_uq.models.http_pools import running_loop

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_owner_pid = 0


async def run_on_loop_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function on the loop thread and wait for it, on asyncio or trio.

    The work sees the caller's context variables. When the caller is cancelled, so is the work. The loop is started on
    first use, serves the whole process, and ends with it; a forked process gets its own.
    """
    finished = anyio.Event()
    wake = _waker()
    future = start_on_loop_thread(work)

    def notify(_: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop has ended: no caller is waiting
            wake(finished.set)

    future.add_done_callback(notify)
    try:
        await finished.wait()
    finally:
        future.cancel()  # does nothing to work that is done
    return future.result()


def start_on_loop_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """Start a coroutine function on the loop thread; nobody waits for it."""
    return _context().run(asyncio.run_coroutine_threadsafe, work(), _shared_loop())


def _context() -> contextvars.Context:
    """A copy of the caller's context, in which libraries see that asyncio runs, whatever the caller runs on."""
    context = contextvars.copy_context()
    with contextlib.suppress(ImportError):  # without it nothing can have noted another library
        import sniffio

        context.run(sniffio.current_async_library_cvar.set, "asyncio")
    return context


def _waker() -> Callable[[Callable[[], None]], Any]:
    """A function that schedules a call on the running loop, asyncio or trio, from another thread."""
    native = running_loop()
    return native.call_soon_threadsafe if isinstance(native, asyncio.AbstractEventLoop) else native.run_sync_soon


def _shared_loop() -> asyncio.AbstractEventLoop:
    global _loop, _owner_pid  # one a process is the point
    with _lock:
        if _loop is None or _owner_pid != os.getpid():
            _loop, _owner_pid = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="grampus-uq-loop", daemon=True).start()
        return _loop
