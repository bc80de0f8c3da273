"""Dead letters: the sessions that workers set aside after so many errors, to look at, to try again, or to give up.

There is at most one a session, with the last error: so many sessions, so many letters at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from grampus_uq.errors import SessionError, StoreError
from grampus_uq.records.vocabulary import ENDED, AgentStatus, StopReason
from grampus_uq.runtime.audit import call_facts
from grampus_uq.runtime.ledger import Ledger, Note, session_key
from grampus_uq.runtime.store import Document, SessionStore
from grampus_uq.runtime.worker_jobs import DEAD, Job, read_job, standing_letter

_GIVEN_UP = "Not executed: the run was given up."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A session that no worker takes up: how many of its jobs failed, the last error, and since when it stands."""

    agent_id: str
    session_id: str
    failed: int
    why: str
    since_s: float


async def dead_letters(
    store: SessionStore, agent_id: str | None = None, *, after: DeadLetter | None = None, limit: int = 1_000
) -> list[DeadLetter]:
    """The first `limit` of them behind `after`, by agent and session; one that cannot be read says so."""
    behind = None if after is None else session_key(after.agent_id, after.session_id)
    prefix = "" if agent_id is None else session_key(agent_id, "")
    letters: list[DeadLetter] = []
    while len(letters) < limit and (page := await store.scan(DEAD, prefix=prefix, after=behind, limit=limit)):
        behind = page[-1].key
        letters += [_letter(found) for found in page if await _stands(store, found)]
    return letters[:limit]


async def _stands(store: SessionStore, letter: Document) -> bool:
    session = await store.get("session", letter.key)
    return session is None or await standing_letter(store, session) is not None


def _letter(found: Document) -> DeadLetter:
    agent, _, session = found.key.partition("/")
    job = read_job(found.body)
    failed, why = (0, "This letter cannot be read.") if job is None else (job.failed, job.why)
    return DeadLetter(
        agent_id=unquote(agent), session_id=unquote(session), failed=failed, why=why, since_s=found.written_s
    )


async def retry(store: SessionStore, agent_id: str, session_id: str) -> None:
    """Put a session that was set aside back into the queue, as if it had never failed; SessionError if it was not."""
    found = await _found(store, agent_id, session_id)
    job = Job(agent_id=agent_id, session_id=session_id, sure=True)
    await store.write(found.removal(), job.now(found.read_s))


async def drop(ledger: Ledger, agent_id: str, session_id: str, *, principal: str = "") -> None:
    """Give a session up that was set aside: it ends as failed, by whom its audit says; an unreadable one is deleted.

    Raises SessionError for one that was not set aside, or that a worker runs.
    """
    found = await _found(ledger.store, agent_id, session_id)
    key = session_key(agent_id, session_id)
    try:
        loaded = await ledger.load(agent_id, session_id)
    except StoreError:
        document = await ledger.store.get("session", key)
        if document is None or not await ledger.unreadable(document):
            raise
        await ledger.store.write(document.removal(), found.removal())
        return
    if loaded is not None and loaded[0].status not in ENDED:
        state, version = loaded
        if state.leased_for_s():
            raise SessionError(f"Session {session_id!r:.80} is run by a worker: it is not given up.")
        state.keep_replaced(state.unheard())  # whose answers hold the session's next run can say
        started = state.give_up(_GIVEN_UP)
        state.status, state.review = AgentStatus.FAILED, []
        state.metadata |= {"stop_reason": StopReason.CANCELLED.value, "error": f"Given up: {_letter(found).why}"}
        notes: list[Note] = [("given_up", {"principal": principal, "why": _letter(found).why})]
        notes += [("outcome_unknown", call_facts(state.run_id, record)) for record in started]
        await ledger.save(state, version, notes)
    await ledger.store.write(found.removal())


async def _found(store: SessionStore, agent_id: str, session_id: str) -> Document:
    found = await store.get(DEAD, session_key(agent_id, session_id))
    if found is None or not await _stands(store, found):
        raise SessionError(f"Session {session_id!r:.80} of agent {agent_id!r:.80} was not set aside.")
    return found
