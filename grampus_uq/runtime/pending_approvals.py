"""Counts the pending approvals in a store, from any thread: for a gauge."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import anyio

from grampus_uq.errors import ConfigurationError
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.stores import open_store

_log = logging.getLogger(__name__)


def pending_approvals(url: str, *, timeout_s: float = 5.0) -> Callable[[], int | None]:
    """Return a function for `MetricsProcessor(pending_approvals=...)` that counts what waits in the store at `url`.

    It opens the store each time, on a thread with its own event loop, so any thread may call it. It returns None, and
    the gauge shows nothing, when the store fails or does not answer within `timeout_s` seconds. An approval that a
    parent agent passes on is counted once. Give it to one process of a service: each would show the same approvals.

    Raises ConfigurationError for a URL of a store that other processes cannot see.
    """
    if url == "memory:":
        rule = "of a store that outlives a process: sqlite:///FILE, postgresql://… or redis://…"
        raise ConfigurationError.of("url", "pending_approvals", rule, url)
    open_store(url)  # an impossible URL is refused here, not on the exporting thread

    def count() -> int | None:
        found: list[int] = []

        def ask() -> None:
            try:
                found.append(anyio.run(_count, url))
            except Exception as error:  # noqa: BLE001 (whatever a store's driver raises: metrics go on without this one)
                _log.warning("waiting approvals could not be counted: %s", type(error).__name__)

        thread = threading.Thread(target=ask, name="grampus-uq-waiting", daemon=True)
        thread.start()
        thread.join(timeout_s)
        return found[0] if found else None

    return count


async def _count(url: str) -> int:
    store = open_store(url, create=False)
    try:
        sessions = await Ledger(store).pending()
    finally:
        await store.aclose()
    # Where a sub-agent waits, its parent waits for the same thing.
    return sum(request.child_session is None for session in sessions for request in session.requests)
