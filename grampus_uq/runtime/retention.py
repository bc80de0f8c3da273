"""Pruning: removes sessions that ended long ago, with all that belongs to them.

Ages are by the store's clock. A session is removed only at the version that was seen to have ended: one that is resumed
or rolled back at this moment stays.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from urllib.parse import unquote

from grampus_uq.errors import ConfigurationError, SessionConflictError
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.ledger import Ledger, audit_of, session_key
from grampus_uq.runtime.store import WAKING, Change, Delete, Document, Drop, SessionStore
from grampus_uq.runtime.worker_jobs import DEAD, TIMER, WAKES, Job

_PAGE = 200
_ENDED = (AgentStatus.COMPLETED, AgentStatus.FAILED)


async def prune(store: SessionStore, older_than_s: float, *, audits: bool = False) -> int:
    """Remove the sessions that ended more than `older_than_s` seconds ago; returns how many.

    Each with its transcript, checkpoints, branches and stop orders, with `audits` also its audit. Decisions, grants
    and jobs of that age are removed too, unless a pending request or a live session needs them. Sessions are read in
    pages: memory does not grow with the store.

    Raises ConfigurationError for an age that is not above 0, StoreError when the store cannot be reached.
    """
    if not older_than_s > 0.0:
        raise ConfigurationError.of("older_than_s", "prune", "above 0 seconds", older_than_s)
    forgotten = 0
    for status in _ENDED:
        async for document in _pages(store, "session", status.value):
            head = json.loads(document.body)
            written_s = document.written_s or float(head.get("created_s", document.read_s))  # 0: from before schema 2
            if document.read_s - written_s >= older_than_s:
                forgotten += await _forget(store, document, head, audits)
    asked = await _asked(store)
    for kind in ("decision", WAKES):
        async for document in _pages(store, kind):
            if document.age_s >= older_than_s and unquote(document.key.partition("/")[0]) not in asked:
                await _remove(store, [Delete(kind=kind, key=document.key, expected=document.version)])
    for kind in (WAKING, TIMER, DEAD):
        async for document in _pages(store, kind):
            if document.age_s >= older_than_s and not await _lives(store, document):
                await _remove(store, [Delete(kind=kind, key=document.key, expected=document.version)])
    async for document in _pages(store, "grant"):
        if document.read_s - _expiry(document) >= older_than_s:
            await _remove(store, [Delete(kind="grant", key=document.key, expected=document.version)])
    return forgotten


async def _pages(store: SessionStore, kind: str, label: str | None = None) -> AsyncIterator[Document]:
    after: str | None = None
    while page := await store.scan(kind, label=label, after=after, limit=_PAGE):
        after = page[-1].key
        for document in page:
            yield document


async def _forget(store: SessionStore, document: Document, head: dict[str, object], audits: bool) -> bool:
    changes: list[Change] = [Delete(kind="session", key=document.key, expected=document.version)]
    transcript = head.get("transcript")
    if isinstance(transcript, dict):
        changes.append(Drop(log=str(transcript["log"])))
    stop = await store.get("stop", document.key)
    belonging = [] if stop is None else [stop]
    for kind in ("checkpoint", "branch"):
        belonging += await store.scan(kind, prefix=f"{document.key}/")
    changes += [Delete(kind=found.kind, key=found.key, expected=found.version) for found in belonging]
    if audits:
        changes.append(Drop(log=audit_of(str(head["agent_id"]), str(head["session_id"]), []).log))
    return await _remove(store, changes)


async def _remove(store: SessionStore, changes: list[Change]) -> bool:
    try:
        await store.write(*changes)
    except SessionConflictError:
        return False  # somebody changed one of them meanwhile: it lives
    return True


async def _asked(store: SessionStore) -> set[str]:
    """The ids of all requests that may still be pending."""
    ledger, asked = Ledger(store), set[str]()
    for status in AgentStatus:
        if status not in _ENDED:
            async for document in _pages(store, "session", status.value):
                state, _ = ledger.head(document)  # one that cannot be read ends it: what it asks is not known
                asked |= {request.id for request in state.pending()}
    return asked


async def _lives(store: SessionStore, job: Document) -> bool:
    """True while the session of this job may still go on; False for a job that cannot be read."""
    try:
        named = Job.model_validate_json(job.body)
        found = await store.get("session", session_key(named.agent_id, named.session_id))
    except (ValueError, RecursionError):
        return False
    return found is not None and found.label not in _ENDED


def _expiry(document: Document) -> float:
    try:
        return float(json.loads(document.body)["grant"]["expires_s"])
    except (ValueError, KeyError, TypeError):
        return document.read_s
