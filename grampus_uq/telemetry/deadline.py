"""Runs what may block for long on a thread of its own, and waits for it only until a deadline."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__ = ["within"]

_log = logging.getLogger("grampus_uq.telemetry")


def within(timeout_s: float, what: Callable[[], object]) -> bool:
    """Call `what`; True when it returned in time, False when the deadline passed first, it raised, or returned False.

    After the deadline it goes on by itself, on a daemon thread. What it raises is logged: flushing happens at the end
    of a process, where a telemetry backend that fails must not change how the process ends.
    """
    returned: list[object] = []

    def call() -> None:
        try:
            returned.append(what())
        except Exception as error:  # noqa: BLE001 (an exporter may raise anything)
            _log.warning("telemetry could not be flushed: %s", type(error).__name__)

    thread = threading.Thread(target=call, name="grampus-uq-flush", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return bool(returned) and returned[0] is not False
