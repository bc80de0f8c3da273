"""Flushes on SIGTERM, which orchestrators send before they kill, without taking the signal from the application."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from grampus_uq.errors import ConfigurationError
from grampus_uq.telemetry.deadline import within

__all__ = ["flush_on_sigterm"]


@contextmanager
def flush_on_sigterm(*flush: Callable[[], object], timeout_s: float = 5.0) -> Iterator[None]:
    """While this is open, SIGTERM first calls each of `flush`, all within `timeout_s`, then does what it did before.

    What it did before: a handler of the application's is called with the same arguments; the default ends the process,
    with the status of a process that SIGTERM ended; where it was ignored it stays ignored. On leaving, the handler
    before is put back, unless somebody else has set one since. `flush` are such as `tracer.force_flush`,
    `annotations.flush`, `recorder.sync`; they run on threads of their own, because the signal may have interrupted a
    thread that holds a lock they need.

    An application whose event loop handles SIGTERM (`loop.add_signal_handler`, uvicorn) needs none of this: flush at
    the end of its shutdown.

    Raises ConfigurationError outside the main thread, where Python sets no signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError.of(
            "flush_on_sigterm", "grampus_uq.telemetry", "opened in the main thread", threading.current_thread().name
        )
    before = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        _flush_all(flush, timeout_s)
        _as_before(before, number, frame)

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handle and before is not None:
            signal.signal(signal.SIGTERM, before)


def _flush_all(flush: tuple[Callable[[], object], ...], timeout_s: float) -> None:
    threads = [threading.Thread(target=within, args=(timeout_s, what), daemon=True) for what in flush]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)


def _as_before(before: Any, number: int, frame: FrameType | None) -> None:
    if callable(before):
        before(number, frame)
    elif before == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
