"""Runs coroutines for frameworks that call without awaiting: one event loop a process, on a thread of its own.

One loop for all calls, because a model client may bind itself to the first loop that it sees.
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
_loop: asyncio.AbstractEventLoop | None = None
_owner_pid = 0


def run_blocking(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function to its end, with the caller's context variables; cancelled when the caller is."""
    context = contextvars.copy_context()
    future = context.run(lambda: asyncio.run_coroutine_threadsafe(work(), _own_loop()))
    try:
        return future.result()
    finally:
        future.cancel()  # does nothing to work that is done


def _own_loop() -> asyncio.AbstractEventLoop:
    global _loop, _owner_pid  # one a process is the point
    with _lock:
        if _loop is None or _owner_pid != os.getpid():
            _loop, _owner_pid = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="grampus-uq-blocking", daemon=True).start()
        return _loop
