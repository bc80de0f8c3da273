"""Pruning: removes sessions that ended long ago, with all that belongs to them.

Ages are by the store's clock. A session is removed only at the version that was seen to have ended: one that is resumed
or rolled back at this moment stays.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import anyio.to_thread

from grampus_uq.errors import ConfigurationError, DataError, StoreError
from grampus_uq.importers.imported_run import ImportedRun
from grampus_uq.importers.run_folder import write_run
from grampus_uq.records.values import Outcome
from grampus_uq.records.vocabulary import ENDED, AgentStatus, StopReason
from grampus_uq.runtime.asked_rows import ASKED
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.run_state import REPLACED, AgentState
from grampus_uq.runtime.session_heads import SessionHead
from grampus_uq.runtime.store import (
    WAKING,
    Change,
    Delete,
    Document,
    Drop,
    Put,
    SessionStore,
    pages,
    stored_number,
    try_write,
)
from grampus_uq.runtime.stored_delegations import DELEGATION
from grampus_uq.runtime.stored_drills import DRILL, SOURCE
from grampus_uq.runtime.stored_starts import START
from grampus_uq.runtime.worker_jobs import DEAD, PARENT, TIMER, WAKES, read_job

_KEPT_AUDIT = "kept_audit"


async def prune(
    store: SessionStore,
    older_than_s: float | None,
    *,
    keep: int | None = None,
    audits: bool = False,
    audits_older_than_s: float | None = None,
    move_to: str | os.PathLike[str] | None = None,
) -> int:
    """Remove the sessions that ended more than `older_than_s` seconds ago, and all but the latest `keep`; how many.

    Each goes with its transcript, checkpoints, branches, stop orders and dead letter, with `audits` also its audit;
    kept audits go once their last entry is older than `audits_older_than_s`. Decisions, drills, starts, grants and jobs
    older than `older_than_s` go too, unless a pending request or a live session needs them, and so do permits that
    expired, and counted tickets of others. What has not ended is never touched; sub-agents end with their parent.
    Sessions are read in pages, at 8 bytes of memory each. What ended at the same time as the last of those `keep` stays
    too.

    `move_to` is a folder of recordings: each session is first written there, without the readings of a monitor (a
    `RecordingProcessor` keeps those), and stays in the store where that fails.

    Raises ConfigurationError for an age that is not above 0 or a `keep` below 0, StoreError when the store cannot be
    reached; at the end, the first DataError (an unreadable session, a folder with another run of its name) or OSError.
    """
    for name, age_s in (("older_than_s", older_than_s), ("audits_older_than_s", audits_older_than_s)):
        if age_s is not None and not age_s > 0.0:
            raise ConfigurationError.of(name, "prune", "above 0 seconds", age_s)
    if keep is not None and keep < 0:
        raise ConfigurationError.of("keep", "prune", "0 or more sessions", keep)
    if older_than_s is None and keep is None and audits_older_than_s is None:
        raise ConfigurationError.of("older_than_s", "prune", "given, or `keep`, or `audits_older_than_s`", None)
    before_s = await _ended_before(store, older_than_s, keep)
    forgotten, folder = 0, None if move_to is None else Path(move_to)
    failure: DataError | OSError | None = None
    async for document, ended_s in _ended(store):
        if ended_s >= before_s:
            continue
        try:
            log = _transcript_of(Ledger(store), document)
            if folder is None or await _moved(store, document, folder):
                forgotten += await _forget(store, document, log, audits)
        except (DataError, OSError) as error:  # it stays; the others go on
            failure = failure or error
    if audits_older_than_s is not None:
        await _prune_audits(store, audits_older_than_s)
    if older_than_s is not None:
        unread = await _prune_what_is_left(store, older_than_s)
        failure = failure or unread
    if failure is not None:
        raise failure
    return forgotten


async def _ended(store: SessionStore) -> AsyncIterator[tuple[Document, float]]:
    """The sessions that ended, each with the time of its end; a sub-agent's if its parent ended."""
    ledger = Ledger(store)
    for status in (*(one for one in AgentStatus if one not in ENDED), *ENDED):
        async for document in pages(store, "session", status.value):
            if ends := await _ends(ledger, document):
                yield document, max(map(_ended_s, ends))


def _ended_s(document: Document) -> float:
    """When a session ended; it has no time of its own from before schema 2."""
    return document.written_s or stored_number(document.body, document.read_s, "created_s")


async def _ends(ledger: Ledger, document: Document) -> list[Document]:
    """The session, if it ended and no live parent may read its result; a sub-agent's ends with its parent.

    What was answered in it, or below, and the session on top has not heard yet, goes with that one: behind it too.
    """
    ended = [document] if document.label in ENDED else []
    if PARENT not in document.body:
        return ended
    try:
        head, left = ledger.head(document)
    except StoreError:
        return ended
    named = head.metadata
    parent = await ledger.parent_status(named.parent_session, named.parent_run)
    if parent is None or parent not in ENDED:
        return ended if parent is None else []
    above = await ledger.above(named.parents)
    places = {head.session_id, *(one.session_id for _, one, _ in above)}
    if left or not above or above[-1][1].awaited().isdisjoint(places):
        return [] if left else [document]
    top = above[-1][0]
    return [document, top] if top.label in ENDED else []


async def _ended_before(store: SessionStore, older_than_s: float | None, keep: int | None) -> float:
    """The time before which a session must have ended to be removed: what ended with the last that is kept stays."""
    by_age = -math.inf if older_than_s is None else math.nextafter(await store.now() - older_than_s, math.inf)
    if keep is None:
        return by_age
    ends = array("d")
    async for _, ended_s in _ended(store):
        ends.append(ended_s)
    if len(ends) <= keep:
        return by_age
    latest = sorted(ends)
    return max(by_age, latest[-keep] if keep else math.nextafter(latest[-1], math.inf))


def _head(ledger: Ledger, document: Document) -> SessionHead:
    try:
        return ledger.head(document)[0]
    except StoreError as error:
        raise _unread(document) from error


def _unread(document: Document) -> DataError:
    return DataError(f"the stored session {document.key!r:.80} cannot be read: it stays")


def _transcript_of(ledger: Ledger, document: Document) -> str | None:
    """The log of a session's own transcript; raises DataError for a session that cannot be read."""
    _head(ledger, document)
    transcript = json.loads(document.body).get("transcript")
    log = str(transcript.get("log")) if isinstance(transcript, dict) else ""
    return log if log.startswith(f"transcript/{document.key}/") else None


async def _moved(store: SessionStore, document: Document, folder: Path) -> bool:
    """Write a session as a recording; False when it was taken up meanwhile."""
    found = _head(Ledger(store), document)
    try:
        loaded = await Ledger(store).load(found.agent_id, found.session_id)
    except StoreError as error:
        raise _unread(document) from error
    if loaded is None or loaded[1] != document.version:
        return False
    state = loaded[0]
    if not state.messages:
        return True  # what a prune that died left in the place of an audit
    reason = state.metadata.get("stop_reason")
    known = reason if reason in list(StopReason) else StopReason.CLEAN
    run = ImportedRun(
        run_id=state.session_id,
        path=document.key,
        line=0,
        messages=tuple(state.messages),
        outcome=Outcome(success=None, stop_reason=StopReason(known), time_s=document.written_s),
        model=str(state.definition.get("model") or ""),
        agent_id=state.agent_id,
    )
    # Two agents may have a session of one name, and a session may have been run twice.
    names = (state.session_id, f"{state.agent_id}/{state.session_id}", f"{state.session_id}/{state.run_id}")
    for name in names:
        try:
            await anyio.to_thread.run_sync(write_run, folder, replace(run, run_id=name), state.created_s)
            break
        except DataError:
            if name == names[-1]:
                raise
    return True


async def _prune_audits(store: SessionStore, older_than_s: float) -> None:
    """Remove the audits of forgotten sessions whose last entry is that old."""
    async for document in pages(store, _KEPT_AUDIT):
        log = f"audit/{document.key}"
        entries = await store.read(log)
        # one whose age nobody can say stays
        last_s = stored_number(entries[-1], math.inf, "time_s") if entries else document.written_s
        if document.read_s - last_s >= older_than_s:
            place = document.removal()
            # A session that begins meanwhile makes this write fail; one that begins behind it takes its place.
            agent, _, session = document.key.partition("/")
            gone = AgentState(agent_id=unquote(agent), session_id=unquote(session), status=AgentStatus.COMPLETED)
            body, name = gone.model_dump_json(exclude={"messages"}), document.key
            gone_row = Put(kind="session", key=name, body=body, expected=0, label=gone.status.value)
            if await try_write(store, gone_row, place, Drop(log=log)):
                await try_write(store, Delete(kind="session", key=name, expected=1))


async def _prune_what_is_left(store: SessionStore, older_than_s: float) -> DataError | None:
    """Remove what no session needs; while one cannot be read, decisions stay, and its error is returned."""
    failure = None
    try:
        asked = await _asked(store)
        for kind, part in (("decision", 0), (WAKES, 0), (ASKED, -1)):
            async for document in pages(store, kind):
                request = document.key.split("/")[part]
                old = document.age_s >= older_than_s and unquote(request) not in asked
                if old and not await _asks(store, request):
                    await try_write(store, document.removal())
    except DataError as error:
        failure = error
    for kind in (DRILL, SOURCE, START):
        async for document in pages(store, kind):
            if document.age_s >= older_than_s:
                await try_write(store, document.removal())
    for kind in (WAKING, TIMER, DEAD):
        async for document in pages(store, kind):
            if document.age_s >= older_than_s:
                session = await _session_of(store, document)
                if session is None or session.label in ENDED:
                    await try_write(store, document.removal())
    for kind, end in (("grant", "expires_s"), (DELEGATION, "until_s")):
        async for document in pages(store, kind):
            if document.read_s - stored_number(document.body, document.read_s, kind, end) >= older_than_s:
                await try_write(store, document.removal())
    async for document in pages(store, "permit"):
        await _prune_permit(store, document, older_than_s)
    return failure


async def _prune_permit(store: SessionStore, permit: Document, older_than_s: float) -> None:
    """Remove a permit that expired so long ago; of any other the tickets that were counted and are so old."""
    expired = permit.read_s - stored_number(permit.body, permit.read_s, "permit", "expires_s") >= older_than_s
    state = await store.get("permit-state", permit.key)
    counted = -math.inf if state is None else stored_number(state.body, -math.inf, "counted")
    async for ticket in pages(store, "permit-ticket", permit.key):
        if expired or (ticket.age_s >= older_than_s and stored_number(ticket.body, math.inf, "number") < counted):
            await try_write(store, ticket.removal())
    if expired:
        gone = [one for one in (permit, state) if one is not None]
        await try_write(store, *(one.removal() for one in gone), Drop(log=f"permit/{permit.key}"))


async def _forget(store: SessionStore, document: Document, transcript: str | None, audits: bool) -> bool:
    changes: list[Change] = [document.removal()]
    if transcript is not None:
        changes.append(Drop(log=transcript))
    belonging = [one for kind in ("stop", DEAD) if (one := await store.get(kind, document.key)) is not None]
    for kind in ("checkpoint", "branch"):
        belonging += await store.scan(kind, prefix=f"{document.key}/")
    changes += [found.removal() for found in belonging]
    kept = await store.get(_KEPT_AUDIT, document.key)
    if audits:
        changes.append(Drop(log=f"audit/{document.key}"))
        if kept is not None:
            changes.append(kept.removal())
    else:  # anew each time: who is about to remove the audit sees that it went on
        changes.append(Put(kind=_KEPT_AUDIT, key=document.key, body="{}", expected=kept.version if kept else 0))
    return await try_write(store, *changes)  # one of them that somebody changed meanwhile lives


async def _asked(store: SessionStore) -> set[str]:
    """The ids of all requests whose decisions may still count, also without rows; raises DataError if unreadable."""
    ledger, asked, failure = Ledger(store), set[str](), None
    for status in AgentStatus:
        async for document in pages(store, "session", status.value):
            if status not in ENDED or REPLACED in document.body:
                try:
                    asked |= _head(ledger, document).awaited()
                except DataError as error:
                    failure = error
    if failure is not None:
        raise failure
    return asked


async def _asks(store: SessionStore, request: str) -> bool:
    """True while a session waits for this request, whoever has the session at this moment."""
    ledger = Ledger(store)
    for row in await store.children(WAKES, [request]):
        found = await _session_of(store, row)
        if found is not None and unquote(request) in _head(ledger, found).awaited():
            return True
    return False


async def _session_of(store: SessionStore, row: Document) -> Document | None:
    """The session that a stored job names; None where there is none, or the job cannot be read."""
    job = read_job(row.body)
    return None if job is None else await store.get("session", session_key(job.agent_id, job.session_id))
