"""Flushes within a deadline that no exporter can exceed, and on SIGTERM, which orchestrators send before they kill."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from grampus_uq.errors import ConfigurationError

_log = logging.getLogger("grampus_uq.telemetry")


def within(timeout_s: float, flush: Callable[[], object]) -> bool:
    """Call `flush`; True when it returned in time, False when the deadline passed first, it raised, or returned False.

    After the deadline it goes on by itself, on a daemon thread. What it raises is logged: flushing happens at the end
    of a process, where a telemetry backend that fails must not change how the process ends.
    """
    thread, returned = _started(flush)
    thread.join(timeout_s)
    return bool(returned) and returned[0] is not False


def _started(flush: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A daemon thread that calls `flush`, and the list that gets what it returns."""
    returned: list[object] = []

    def call() -> None:
        try:
            returned.append(flush())
        except Exception as error:  # noqa: BLE001 (an exporter may raise anything)
            _log.warning("telemetry could not be flushed: %s", type(error).__name__)

    thread = threading.Thread(target=call, name="grampus-uq-flush", daemon=True)
    thread.start()
    return thread, returned


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
        started = [_started(what) for what in flush]
        deadline_s = time.monotonic() + timeout_s
        for thread, _ in started:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handle and before is not None:
            signal.signal(signal.SIGTERM, before)
