"""The resume queue: rows of the session store that say which session has something to do, now or at a time.

A job is written in the same write as the change that makes it: a decision, a request that expires, a finished
sub-agent. It holds no more than the session's name, so two jobs of one session cost a second look and nothing else.
Taking a job moves it to a later time, in one compare-and-set; a worker that dies leaves it there, for another.
"""

from __future__ import annotations

import contextlib
import logging
import random
import uuid
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from grampus_uq.errors import SessionConflictError
from grampus_uq.gate.seal import session_place
from grampus_uq.runtime.store import WAKING, Delete, Document, Put, SessionStore, try_write

if TYPE_CHECKING:
    from grampus_uq.runtime.turn import Turn

TIMER: Final = "timer"
WAKES: Final = "wake"
DEAD: Final = "dead"
PARENT: Final = "parent_session"
"""Under this name a sub-agent's session holds agent and session of its parent in its metadata."""
PARENT_RUN: Final = "parent_run"
"""Under this name it holds the run id that the parent had: a parent rolled back or begun anew is another run."""
ABOVE: Final = "parents"
"""Under this name it holds agent, session and run id of each session above it, the nearest first."""
within_parent: ContextVar[list[Turn] | None] = ContextVar("grampus_within_parent", default=None)
"""While a parent itself waits for its sub-agent, the turns that run together: then nobody needs to wake it."""
looked_after: ContextVar[bool] = ContextVar("grampus_looked_after", default=False)
"""True within a worker's job: what becomes of the session then says the worker."""

_LATEST = 9_999_999_999.0
_ASIDE = 8  # rows that others may take at this moment
_log = logging.getLogger(__name__)


class Job(BaseModel):
    """A session to look after. `taken` counts how often it was taken, `failed` the errors, `busy` how often another
    worker was found running the session, `refused` how often its tools were found changed; `why` is the last error.
    `sure`: resumed though nothing was decided, because a sub-agent ended or a human said so. `attended`: whoever runs
    the session takes up decisions by itself, and no worker is woken."""

    model_config = ConfigDict(frozen=True)

    agent_id: str
    session_id: str
    taken: int = Field(default=0, ge=0, le=1_000_000)
    failed: int = Field(default=0, ge=0, le=1_000_000)
    busy: int = Field(default=0, ge=0, le=1_000_000)
    refused: int = Field(default=0, ge=0, le=1_000_000)
    why: str = ""
    sure: bool = False
    attended: bool = False

    def now(self, now_s: float) -> Put:
        """The change of a store that makes this job due at once, and wakes a worker."""
        return self._put(WAKING, now_s, uuid.uuid4().hex)

    def at(self, due_s: float, name: str | None = None) -> Put:
        """The change that makes it due at a time of the store's clock; one of a `name` and time is made once."""
        return self._put(TIMER, due_s, name or uuid.uuid4().hex)

    def _put(self, kind: str, due_s: float, name: str) -> Put:
        body = self.model_dump_json(exclude_defaults=True)
        return Put(kind=kind, key=f"{stamp(due_s)}/{name}", body=body, expected=0, label=quote(self.agent_id, safe=""))


def read_job(body: str) -> Job | None:
    """The job in a stored row; None where nobody can read it."""
    try:
        job = Job.model_validate_json(body)
        session_place(job.agent_id, job.session_id, errors="strict")
    except (ValueError, RecursionError):
        return None
    return job


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A job that this worker took, and the row that holds it for others until `lease_s` are over."""

    job: Job
    held: str
    now_s: float

    async def first_try(self, store: SessionStore) -> bool:
        """True while a job of the session that is `sure` was not at work yet, or is for the first time."""
        agent = quote(self.job.agent_id, safe="")
        jobs = [read_job(row.body) for kind in (WAKING, TIMER) for row in await store.scan(kind, label=agent)]
        return any(one and one.sure and one.taken < 2 and one.session_id == self.job.session_id for one in jobs)


def stamp(due_s: float) -> str:
    """A time as a text whose order is that of times; none is before 1970 or behind 2286."""
    return f"{min(max(due_s, 0.0), _LATEST):017.6f}"


async def take(
    store: SessionStore, agents: Sequence[str], most: int, hold_s: float, kinds: Sequence[str] = (WAKING, TIMER)
) -> list[Taken]:
    """Take up to so many due jobs of these agents; each returns by itself after `hold_s` seconds.

    Oldest first, some at random: workers seldom reach for one row. Unreadable ones are removed and logged.
    """
    taken: list[Taken] = []
    for kind in kinds:
        for agent in agents:
            if len(taken) >= most:
                return taken
            found = await store.scan(kind, label=quote(agent, safe=""), limit=2 * most + _ASIDE)
            due = [row for row in found if kind == WAKING or row.key <= stamp(row.read_s)]
            random.shuffle(due)
            for row in due[: most + _ASIDE]:
                one = await _take_one(store, row, agent, hold_s)
                if one is not None:
                    taken.append(one)
                if len(taken) >= most:
                    break
    return taken


async def oldest_due_s(store: SessionStore, agent: str) -> float:
    """Seconds since the oldest due job of an agent was due; 0 where none is."""
    oldest = 0.0
    for kind in (WAKING, TIMER):
        for row in await store.scan(kind, label=quote(agent, safe=""), limit=1):
            with contextlib.suppress(ValueError):  # a row that nobody can read
                oldest = max(oldest, row.read_s - float(row.key.partition("/")[0]))
    return oldest if oldest < _LATEST else 0.0


async def _take_one(store: SessionStore, found: Document, agent: str, hold_s: float) -> Taken | None:
    row, job = found.removal(), read_job(found.body)
    try:
        if job is None or job.agent_id != agent:
            _log.warning("a job of agent %.80s cannot be read: it is removed", ascii(agent))
            await store.write(row)
            return None
        job = job.model_copy(update={"taken": job.taken + 1})
        held = job.at(found.read_s + hold_s)
        now_s = await store.write(row, held)
    except SessionConflictError:
        return None  # another worker was first
    return Taken(job=job, held=held.key, now_s=now_s)


async def finish(store: SessionStore, taken: Taken, again: Put | None = None) -> None:
    """Remove a job that was taken, or put another row in its place; nothing where it has returned meanwhile."""
    await try_write(store, Delete(kind=TIMER, key=taken.held, expected=1), *([] if again is None else [again]))


async def set_aside(store: SessionStore, taken: Taken, key: str, job: Job) -> None:
    """Put a job among the dead letters, under the key of its session: it is not tried again until somebody says so."""
    body = job.model_dump_json(exclude_defaults=True)
    before = await store.get(DEAD, key)
    expected = 0 if before is None else before.version
    await finish(
        store, taken, Put(kind=DEAD, key=key, body=body, expected=expected, label=quote(job.agent_id, safe=""))
    )


async def standing_letter(store: SessionStore, session: Document) -> Document | None:
    """The dead letter that keeps workers from this session; one from before the session went on is removed."""
    letter = await store.get(DEAD, session.key)
    if letter is None or session.written_s <= letter.written_s:
        return letter
    await try_write(store, letter.removal())
    return None
