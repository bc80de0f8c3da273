"""A worker: takes jobs from the resume queue of a store, and resumes their sessions, so many at once.

What waits is rows: a worker holds nothing of a session that it does not run. It knows nobody else, and any may die.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio

from grampus_uq.errors import ConfigurationError, SessionConflictError, StoreError, UncertaintyError
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.store import WAKING
from grampus_uq.runtime.worker_jobs import DEAD, TIMER, Job, Taken, finish, set_aside, take

_POLL_S = 1.0
_BUSY_S = 0.25
_STAGGER_S = 0.02
_LATEST_TRY_S = 300.0
_ENDED = (AgentStatus.COMPLETED, AgentStatus.FAILED)
_DEATHS_PER_TRY = 5  # who dies takes innocent sessions along
_log = logging.getLogger(__name__)


class Resumes(Protocol):
    """What resumes sessions for a worker: an `AgentRunner`, or another runtime's under the same leases."""

    ledger: Ledger
    lease_s: float

    async def resume(self, agent_id: str, session_id: str, /) -> Any:
        """Apply what was decided or expired, and run the session until it ends or waits.

        Raises SessionConflictError when another worker has it, anything else when it failed and may be tried again.
        """
        ...


@dataclass(slots=True, kw_only=True)
class WorkerCounts:
    """What a worker has done: jobs by how they ended, and the seconds from taking a job to its end, the last one's."""

    resumed: int = 0
    nothing_to_do: int = 0
    busy: int = 0
    failed: int = 0
    set_aside: int = 0
    store_failures: int = 0
    last_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Worker:
    """Resumes sessions of these agents that have something to do, with one runner, at most `at_once` side by side.

    Agents share the places: who has the fewest sessions at work is served first, and of one agent at most `per_agent`
    run here. A decision, an expiry, a finished sub-agent and the death of another worker make something to do. A
    session whose resuming fails is tried `tries` times, ever later, then set aside with its error until somebody says
    otherwise (`dead_letters`).
    `stop` lets those that run go on for `drain_s` seconds, then cancels them: their leases are given back at once.
    `on_job` is told of every job's end: its job, how it ended, and the error if there was one.
    """

    runner: Resumes
    agents: Sequence[str]
    at_once: int = 8
    per_agent: int | None = None
    tries: int = 5
    drain_s: float = 30.0
    on_job: Callable[[Job, str, str], None] = lambda job, ended, why: None
    counts: WorkerCounts = field(default_factory=WorkerCounts)
    running: int = 0
    _looked_for_dead: float = float("-inf")
    _looked_for_due: float = float("-inf")
    _busy: Counter[str] = field(default_factory=Counter)
    _stopping: anyio.Event = field(default_factory=anyio.Event)
    _freed: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        for name in ("at_once", "per_agent", "tries"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError.of(name, "Worker", "at least 1", getattr(self, name))
        if not self.agents or isinstance(self.agents, str):
            raise ConfigurationError.of("agents", "Worker", "names of agents, at least one", self.agents)

    def stop(self) -> None:
        """Take no more jobs; `run` returns when those at work have ended, or have been given back."""
        self._stopping.set()
        self._freed.set()

    @property
    def stopping(self) -> bool:
        """True once `stop` was called."""
        return self._stopping.is_set()

    async def run(self) -> None:
        """Work until `stop`. A store that is down is asked again every second; the worker does not end by itself."""
        async with anyio.create_task_group() as group:
            while not self._stopping.is_set():
                try:
                    taken = await self._take()
                    for one in taken:
                        self.running += 1
                        self._busy[one.job.agent_id] += 1
                        group.start_soon(self._work, one)
                    if not taken:
                        await self._wait()
                except StoreError as error:
                    self._count_failure(error)
                    await anyio.sleep(_POLL_S)
            with anyio.move_on_after(self.drain_s):
                while self.running:
                    await self._slot()
            group.cancel_scope.cancel()

    async def _take(self) -> list[Taken]:
        """Some new jobs; once a second also those whose time has come, now and then those of dead workers."""
        free, now = self.at_once - self.running, time.monotonic()
        if free < 1:
            return []
        if now - self._looked_for_dead >= self.runner.lease_s / 2:
            self._looked_for_dead = now
            await self._find_orphans()
        kinds = [WAKING]
        if now - self._looked_for_due >= _POLL_S:
            self._looked_for_due = now
            kinds.append(TIMER)
        return await self._share_out(free, kinds)

    def _room(self, agent: str) -> int:
        return (self.at_once if self.per_agent is None else self.per_agent) - self._busy[agent]

    async def _share_out(self, free: int, kinds: Sequence[str]) -> list[Taken]:
        """Jobs for the free places: to each agent its share, then what others left; so none waits behind a flood."""
        taken: list[Taken] = []
        asking, got = sorted(self.agents, key=self._busy.__getitem__), Counter[str]()
        for share in dict.fromkeys((max(1, free // len(asking)), free)):
            more = []
            for agent in asking:
                most = min(share, self._room(agent) - got[agent], free - len(taken))
                found = (
                    await take(self.runner.ledger.store, [agent], most, self.runner.lease_s, kinds) if most > 0 else []
                )
                taken += found
                got[agent] += len(found)
                if found and len(found) == most:
                    more.append(agent)
            asking = more
        return taken

    async def _wait(self) -> None:
        if self.running >= self.at_once or all(self._room(agent) < 1 for agent in self.agents):
            await self._slot()
        else:
            await self.runner.ledger.store.wait_for_job(_POLL_S)
            # All workers hear of a job: who has less to do looks first, and the others seldom find it.
            await anyio.sleep(random.uniform(0.0, _STAGGER_S) * (1 + self.running))  # noqa: S311 (no secret)

    async def _slot(self) -> None:
        """Wait until a job ends."""
        self._freed = anyio.Event()
        await self._freed.wait()

    def _count_failure(self, error: StoreError) -> None:
        self.counts.store_failures += 1
        _log.warning("the store does not answer a worker: %s", error)

    async def _find_orphans(self) -> None:
        """Make jobs of sessions whose worker died: one for each, however many workers see them."""
        ledger = self.runner.ledger
        for agent in self.agents:
            for found in await ledger.store.scan(
                "session", label=AgentStatus.RUNNING.value, prefix=session_key(agent, "")
            ):
                try:
                    head, left = ledger.head(found)
                except StoreError:
                    continue  # nobody can resume what nobody can read
                if not left and head.agent_id == agent and await ledger.store.get(DEAD, found.key) is None:
                    job = Job(agent_id=agent, session_id=head.session_id)
                    with contextlib.suppress(SessionConflictError):
                        await ledger.store.write(job.at(found.written_s, f"{found.key}/{found.version}"))

    # -- one job --------------------------------------------------------------------------------------------------

    async def _work(self, taken: Taken) -> None:
        job, store, started = taken.job, self.runner.ledger.store, time.monotonic()
        try:
            ended, again, why = await self._outcome(taken)
            with contextlib.suppress(StoreError):  # it returns by itself
                if ended == "set_aside":
                    await set_aside(store, taken, session_key(job.agent_id, job.session_id), why)
                else:
                    await finish(store, taken, None if again is None else again.at(self._due_s(ended, again)))
            setattr(self.counts, ended, getattr(self.counts, ended) + 1)
            self.counts.last_s = time.monotonic() - started
            self.on_job(job, ended, why)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(2.0), contextlib.suppress(StoreError):
                await finish(store, taken, _untaken(job).now(self.runner.ledger.now_s()))
            raise
        finally:
            self.running -= 1
            self._busy[job.agent_id] -= 1
            self._freed.set()

    def _due_s(self, ended: str, again: Job) -> float:
        """When to try again: ever later, but while another worker runs the session not later than its lease."""
        if ended == "busy":
            delay = min(_BUSY_S * 2.0 ** min(again.busy - 1, 20), self.runner.lease_s)
        else:
            delay = min(2.0 ** min(again.failed, 20), _LATEST_TRY_S)
        return self.runner.ledger.now_s() + delay

    async def _outcome(self, taken: Taken) -> tuple[str, Job | None, str]:
        """How the job ended, the job to put in its place, and why it failed."""
        job = taken.job
        if job.taken > self.tries * _DEATHS_PER_TRY:
            return "set_aside", None, f"It was taken up {job.taken - 1} times, and no worker came back from it."
        try:
            left = await self._to_do(job)
            if left is None:
                return "nothing_to_do", None, ""
            if not left:
                await self.runner.resume(job.agent_id, job.session_id)
                return "resumed", None, ""
        except SessionConflictError:
            pass  # another worker was first
        except UncertaintyError:
            return "resumed", None, ""  # the policy aborted the run: it has ended
        except StoreError as error:
            if not await self._store_answers():
                self._count_failure(error)
                return "store_failures", _untaken(job), str(error)
            return self._failed(job, error)
        except Exception as error:  # noqa: BLE001 (a model, a tool or a row of one session must not end the others)
            return self._failed(job, error)
        return "busy", _untaken(job).model_copy(update={"busy": job.busy + 1}), ""

    def _failed(self, job: Job, error: Exception) -> tuple[str, Job | None, str]:
        why = f"{type(error).__name__}: {error}"[:2_000]
        _log.warning("session %.80s of %.80s failed: %s", ascii(job.session_id), ascii(job.agent_id), ascii(why)[:300])
        failed = job.model_copy(update={"failed": job.failed + 1, "why": why})
        return ("set_aside", None, why) if failed.failed >= self.tries else ("failed", failed, why)

    async def _store_answers(self) -> bool:
        try:
            await self.runner.ledger.store.now()
        except StoreError:
            return False
        return True

    async def _to_do(self, job: Job) -> float | None:
        """Seconds until the session may be taken up, 0: now; None when there is nothing to do for it."""
        ledger, key = self.runner.ledger, session_key(job.agent_id, job.session_id)
        found = await ledger.store.get("session", key)
        if found is None or await ledger.store.get(DEAD, key) is not None:
            return None
        head, left = ledger.head(found)
        if head.status is not AgentStatus.WAITING_FOR_HUMAN:
            return None if head.status in _ENDED else left
        requests = head.pending()
        if any(request.expired(found.read_s) for request in requests):
            return 0.0
        decisions = await ledger.decisions([request.id for request in requests])
        return 0.0 if job.sure or any(decisions.values()) else None


def _untaken(job: Job) -> Job:
    """The job as if it had not been taken: nothing became of it, by nobody's fault."""
    return job.model_copy(update={"taken": max(0, job.taken - 1)})
