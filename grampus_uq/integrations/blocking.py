"""Runs coroutines for frameworks that call without awaiting: one event loop a process, on a thread of its own.

One loop for all calls, because a model client may bind itself to the first loop that it sees. Only what runs on that
loop and calls without awaiting itself (a guarded agent in a precondition, a model client or a processor) gets a second
one: the thread of the first waits for it.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loops = dict[tuple[int, int], asyncio.AbstractEventLoop]()
_depth = contextvars.ContextVar("grampus_uq_blocking", default=0)
"""How many loops, one after the other, may stand still until what is done in this context ends."""


def run_blocking(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function to its end, with the caller's context variables; cancelled when the caller is."""
    context, depth = contextvars.copy_context(), _depth.get()
    context.run(_depth.set, depth + 1)
    future = context.run(lambda: asyncio.run_coroutine_threadsafe(work(), _own_loop(depth)))
    try:
        return future.result()
    finally:
        future.cancel()  # does nothing to work that is done


def _own_loop(depth: int) -> asyncio.AbstractEventLoop:
    with _lock:
        loop = _loops.get(key := (os.getpid(), depth))
        if loop is None:
            loop = _loops[key] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="grampus-uq-blocking", daemon=True).start()
        return loop
