"""The index of what waits: a row of the store for each pending request, whose key begins with when it was asked.

A row's label says until when it can be decided, where that has an end. Rows are written and removed in the same write
as the session that asks, so a list of the oldest costs one range of an index, however many wait. A release that does
not know them leaves rows behind: who lists removes those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote

from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.runtime.store import Change, Document, Put, SessionStore, pages
from grampus_uq.runtime.worker_jobs import Job, read_job, stamp

ASKED: Final = "asked"


def asked_row(request: ApprovalRequest, place: Job) -> Put:
    """The row of a request that the session at this place asks itself, whatever the request calls its session."""
    body = place.model_dump_json(exclude_defaults=True)
    until = "" if request.expires_s is None else stamp(request.expires_s)
    return Put(kind=ASKED, key=row_key(request.id, request.created_s), body=body, expected=0, label=until)


def asked_in(row: Document) -> str:
    """The id of a row's request."""
    return unquote(row.key.partition("/")[2])


def is_over(row: Document) -> bool:
    """Return True if the request has expired: it can no longer be decided, and no list shows it."""
    return bool(row.label) and row.label <= stamp(row.read_s)


async def sessions_asking(store: SessionStore, agent_id: str) -> set[str]:
    """The sessions of an agent that wait for a decision."""
    jobs = [read_job(row.body) async for row in pages(store, ASKED) if not is_over(row)]
    return {job.session_id for job in jobs if job is not None and job.agent_id == agent_id}


def row_key(request_id: str, created_s: float) -> str:
    """The key of a request's row: rows are in the order of asking."""
    return f"{stamp(created_s)}/{quote(request_id, safe='')}"


async def row_changes(
    store: SessionStore, place: Job, before: Sequence[ApprovalRequest], pending: Sequence[ApprovalRequest]
) -> list[Change]:
    """The changes of the index by a write of the session at this place: `before` are its requests of before.

    A request that is passed on for a sub-agent has its row from the sub-agent's own session, which alone removes it.
    """
    was, now = _own(before), _own(pending)
    changes: list[Change] = [asked_row(request, place) for request_id, request in now.items() if request_id not in was]
    for request_id in was.keys() - now.keys():
        row = await store.get(ASKED, row_key(request_id, was[request_id].created_s))
        if row is not None:
            changes.append(row.removal())
    return changes


def _own(requests: Sequence[ApprovalRequest]) -> dict[str, ApprovalRequest]:
    return {request.id: request for request in requests if request.child_session is None}
