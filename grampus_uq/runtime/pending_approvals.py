"""Pending approvals in a store: one page by index, oldest first, and their number, from any thread, for a gauge."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import anyio

from grampus_uq.errors import ConfigurationError, StoreError
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.runtime.asked_rows import ASKED, asked_in, asked_row, is_over
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.store import Document, SessionStore, pages, try_write
from grampus_uq.runtime.stores import open_store
from grampus_uq.runtime.worker_jobs import Job, read_job

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


async def oldest_pending(
    ledger: Ledger, *, after: str | None = None, limit: int = 25
) -> tuple[list[ApprovalRequest], str | None]:
    """Up to so many pending requests behind `after`, the oldest first; and the place for the next page.

    Those expired, or carried out at this moment, are left out; rows of what no longer waits are removed.
    """
    found, keys = list[ApprovalRequest](), dict[str, str]()
    while len(found) < limit:
        rows = await ledger.store.scan(ASKED, after=after, limit=limit)
        found += await requests_of(ledger, rows)  # together: each by itself would wait in line for the store
        if len(rows) < limit and len(found) < limit:
            return found, None
        after = rows[-1].key
        keys |= {asked_in(row): row.key for row in rows}
    return found[:limit], keys[found[limit - 1].id]


async def requests_of(ledger: Ledger, rows: Sequence[Document]) -> list[ApprovalRequest]:
    """The requests of rows of the index that wait and can be decided."""

    async def work() -> list[tuple[Document, ApprovalRequest | None]]:
        sessions = dict[tuple[str, str], _Asks | None]()  # many calls of one session may wait: it is read once
        return [(row, await _still_asked(ledger, row, sessions)) for row in rows]

    asked = await ledger.store.at_once(work)
    return [request for row, request in asked if request is not None and not request.expired(row.read_s)]


_Asks = tuple[set[str], Sequence[ApprovalRequest]]
"""The ids of the requests in a session, and those of them that wait and can be decided now."""


async def _still_asked(
    ledger: Ledger, row: Document, sessions: dict[tuple[str, str], _Asks | None]
) -> ApprovalRequest | None:
    """The request of a row of the index, if it waits."""
    job = read_job(row.body)
    if job is None:
        return None  # `prune` removes it when nothing asks for it any more
    place = job.agent_id, job.session_id
    if place not in sessions:
        sessions[place] = await _asked_in(ledger, *place)
    found = sessions[place]
    if found is None:
        return None  # its session is unreadable
    request_id = asked_in(row)
    if request_id not in found[0]:
        await try_write(ledger.store, row.removal())
    return next((one for one in found[1] if one.id == request_id), None)


async def _asked_in(ledger: Ledger, agent_id: str, session_id: str) -> _Asks | None:
    try:
        document = await ledger.store.get("session", session_key(agent_id, session_id))
        ids = set() if document is None else {one.id for one in ledger.head(document)[0].pending()}
    except (ValueError, RecursionError, StoreError):
        return None
    session = None if document is None or not ids else await ledger.pending_in(document)
    return ids, () if session is None else session.requests


async def count_pending(store: SessionStore, most: int) -> int:
    """The number of requests in the index that can be decided, up to `most`."""
    return sum(not is_over(row) for row in await store.scan(ASKED, limit=most))


async def index_pending(ledger: Ledger) -> None:
    """Add to the index what waits since before there was one."""
    known = {row.key async for row in pages(ledger.store, ASKED)}
    for session in await ledger.pending():
        place = Job(agent_id=session.agent_id, session_id=session.session_id)
        for row in (asked_row(request, place) for request in session.requests if request.child_session is None):
            if row.key not in known:
                await try_write(ledger.store, row)


async def _count(url: str) -> int:
    store = open_store(url, create=False)
    try:
        sessions = await Ledger(store).pending()
    finally:
        await store.aclose()
    # Where a sub-agent waits, its parent waits for the same thing.
    return sum(request.child_session is None for session in sessions for request in session.requests)
