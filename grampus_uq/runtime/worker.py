"""A worker: takes jobs from the resume queue of a store, and resumes their sessions, so many at once.

What waits is rows: a worker holds nothing of a session that it does not run. It knows nobody else, and any may die.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio

from grampus_uq.errors import (
    ChangedToolsError,
    ConfigurationError,
    SessionConflictError,
    SessionError,
    StoreError,
    UncertaintyError,
)
from grampus_uq.records.configuration import checked
from grampus_uq.records.vocabulary import ENDED, AgentStatus
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.store import WAKING
from grampus_uq.runtime.worker_jobs import TIMER, Job, Taken, finish, looked_after, set_aside, standing_letter, take
from grampus_uq.runtime.worker_places import Places, StorePlaces
from grampus_uq.signals.driver import FAILURES, cancelled_from_outside
from grampus_uq.wire.lone_surrogates import error_text

_POLL_S = 1.0
_EVERYWHERE_S = 0.25
_BUSY_S = (0.25, 0.5)  # the second time, and ever after: a decision is taken up within a second of the pause
_STAGGER_S = 0.02
_LATEST_TRY_S = 300.0
_REFUSED_S = 10.0
_REFUSALS = 360  # an hour of a rolling deploy
_DEATHS_PER_TRY = 5  # who dies takes innocent sessions along
_log = logging.getLogger(__name__)


class Resumes(Protocol):
    """Interface for resuming sessions: an `AgentRunner`, or another runtime's runner under the same leases."""

    ledger: Ledger
    lease_s: float

    async def resume(self, agent_id: str, session_id: str, /) -> Any:
        """Apply what was decided or expired, and run the session until it ends or waits.

        Raises SessionConflictError when another worker has it, anything else when it failed and may be tried again.
        """
        ...


@dataclass(slots=True, kw_only=True)
class WorkerCounts:
    """Counts of a worker: jobs by ending, and the duration of the latest job in seconds."""

    resumed: int = 0
    nothing_to_do: int = 0
    busy: int = 0
    failed: int = 0
    refused: int = 0
    set_aside: int = 0
    store_failures: int = 0
    last_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """Seconds until a session may be taken up (0: now; None: there is nothing to do), the workers in a row that died
    while they ran it, and when the first of its requests expires."""

    left_s: float | None = None
    deaths: int = 0
    expires_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """Ending of a job (a name in `WorkerCounts`), its reason, and the job that replaces it."""

    how: str
    why: str = ""
    failed: int = 0
    again: Job | None = None
    due_s: float = 0.0


@checked
@dataclass(slots=True, kw_only=True)
class Worker:
    """Resumes sessions of these agents that have something to do, with one runner, at most `at_once` side by side.

    Agents share the places: who has the fewest sessions at work is served first, and of one agent at most `per_agent`
    run here (by default all but one place for each other agent). At most `at_once_everywhere` sessions of the store run
    in all workers that have this bound. `places` are shared with the workers of other stores.
    A decision, an expiry, a finished sub-agent and the death of another worker make something to do. A session whose
    resuming fails is tried `tries` times, ever later, then set aside with its error until somebody says otherwise.
    `stop` lets those that run go on for `drain_s` seconds, then cancels them: their leases are given back at once.
    `on_job` is told of every job's end: its job, how it ended, and the error if there was one.
    """

    runner: Resumes
    agents: Sequence[str]
    at_once: int = 8
    per_agent: int | None = None
    at_once_everywhere: int | None = None
    places: Places | None = None
    tries: int = 5
    drain_s: float = 30.0
    on_job: Callable[[Job, str, str], None] = lambda job, ended, why: None
    counts: WorkerCounts = field(default_factory=WorkerCounts)
    running: int = 0
    _name: str = field(default_factory=lambda: uuid.uuid4().hex)
    _shared: Places = field(init=False)
    _everywhere: StorePlaces | None = None
    _looked_for_dead: float = float("-inf")
    _looked_for_due: float = float("-inf")
    _busy: Counter[str] = field(default_factory=Counter)
    _stopping: anyio.Event = field(default_factory=anyio.Event)
    _freed: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        for name in ("at_once", "per_agent", "at_once_everywhere", "tries"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError.of(name, "Worker", "at least 1", getattr(self, name))
        if not self.agents or isinstance(self.agents, str):
            raise ConfigurationError.of("agents", "Worker", "names of agents, at least one", self.agents)
        self._shared = self.places or Places(self.at_once)
        self._shared.join(self._name)
        if self.at_once_everywhere is not None:
            runner = self.runner
            self._everywhere = StorePlaces(runner.ledger.store, self.at_once_everywhere, runner.lease_s)

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
            if self._everywhere is not None:
                group.start_soon(self._everywhere.renew)
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
        free, now = self._free(), time.monotonic()
        if free < 1:
            return []
        if now - self._looked_for_dead >= self.runner.lease_s / 2:
            self._looked_for_dead = now
            await self._find_orphans()
        kinds = [WAKING]
        if now - self._looked_for_due >= _POLL_S:
            self._looked_for_due = now
            kinds.append(TIMER)
        most = free if self._everywhere is None else min(free, len(await self._everywhere.free()))
        if not most:
            await anyio.sleep(_EVERYWHERE_S)
            return []
        taken = await self._share_out(most, kinds)
        self._shared.began(self._name, len(taken), hungry=len(taken) == most)
        return taken

    def _free(self) -> int:
        return min(self.at_once - self.running, self._shared.room(self._name))

    def _room(self, agent: str) -> int:
        kept = len(self.agents) - 1  # a place for each of the others, whose sessions may be the shorter ones
        return (max(1, self.at_once - kept) if self.per_agent is None else self.per_agent) - self._busy[agent]

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
        if self._stopping.is_set():
            return
        if self.running >= self.at_once or all(self._room(agent) < 1 for agent in self.agents):
            await self._slot()
        elif self._free() < 1:  # others have the places; who is told to stop need not wait for them
            with anyio.move_on_after(_POLL_S):
                await self._shared.changed()
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
        _log.warning("the store does not answer a worker: %s", ascii(error_text(error))[:300])

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
                if left or head.agent_id != agent:
                    continue
                job, name = Job(agent_id=agent, session_id=head.session_id), f"{found.key}/{found.version}"
                with contextlib.suppress(SessionConflictError, StoreError):  # one row must not stand in others' way
                    if await standing_letter(ledger.store, found) is None:
                        await ledger.store.write(job.at(found.written_s, hashlib.sha256(name.encode()).hexdigest()))

    # -- one job --------------------------------------------------------------------------------------------------

    async def _work(self, taken: Taken) -> None:
        job, store, started = taken.job, self.runner.ledger.store, time.monotonic()
        looked_after.set(True)
        try:
            end = await self._outcome(taken)
            again = None if end.again is None else end.again.at(end.due_s)
            with contextlib.suppress(StoreError):  # it returns by itself
                if end.how == "set_aside":
                    letter = job.model_copy(update={"why": end.why, "failed": job.failed + end.failed})
                    await set_aside(store, taken, session_key(job.agent_id, job.session_id), letter)
                else:
                    await finish(store, taken, again)
            setattr(self.counts, end.how, getattr(self.counts, end.how) + 1)
            self.counts.last_s = time.monotonic() - started
            try:
                self.on_job(job, end.how, end.why)
            except Exception as error:  # noqa: BLE001 (the user's own)
                _log.error("on_job failed: %s", type(error).__name__)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(2.0, shield=True), contextlib.suppress(StoreError):
                await finish(store, taken, _untaken(job).now(self.runner.ledger.now_s()))
            raise
        finally:
            self.running -= 1
            self._busy[job.agent_id] -= 1
            self._shared.ended(self._name)
            self._freed.set()

    async def _outcome(self, taken: Taken) -> _End:
        """Process a taken job: resume the session if it has work."""
        job, now_s, place = taken.job, self.runner.ledger.now_s, None
        try:
            if self._everywhere is not None:
                place = await self._everywhere.take()
                if place is None:  # other workers were first
                    return _End(how="busy", again=_untaken(job), due_s=now_s() + _EVERYWHERE_S)
            if job.taken > self.tries * _DEATHS_PER_TRY and not await self._is_over(job):  # perhaps by a look alone
                why = f"It was taken up {job.taken - 1} times, and no worker came back from it."
                return _End(how="set_aside", why=why)
            look = await self._look(job)
            if look.deaths >= self.tries * _DEATHS_PER_TRY and not (job.sure and job.taken < 2):
                how = "nothing_to_do" if await taken.first_try(self.runner.ledger.store) else "set_aside"
                return _End(how=how, why=f"{look.deaths} workers in a row died while they ran it.")
            if look.left_s is None:  # a request's timer that came early, by a clock that was set back, comes again
                again = None if look.expires_s is None else _untaken(job)
                return _End(how="nothing_to_do", again=again, due_s=look.expires_s or 0.0)
            if not look.left_s:
                await self.runner.resume(job.agent_id, job.session_id)
                return _End(how="resumed")
        except ChangedToolsError as error:
            return self._refused(job, error)
        except SessionConflictError:
            pass  # another worker was first
        except SessionError as error:  # another worker may have ended it since the look
            gone = await self._nothing_left(job)
            return _End(how="nothing_to_do") if gone else self._failed(job, error)
        except UncertaintyError:
            return _End(how="resumed")  # the policy aborted the run: it has ended
        except StoreError as error:
            if not await self._store_answers():
                self._count_failure(error)
                return _End(how="store_failures", why=error_text(error), again=_untaken(job), due_s=now_s() + _POLL_S)
            return self._failed(job, error)
        except anyio.get_cancelled_exc_class() as error:
            if cancelled_from_outside(math.inf):
                raise  # this worker is being cancelled
            return self._failed(job, error)  # a model client let its own out
        except (
            *FAILURES,
            BaseExceptionGroup,
        ) as error:  # a model, a tool or a row of one session must not end the others
            return self._failed(job, error)
        finally:
            if place is not None and self._everywhere is not None:
                with anyio.move_on_after(2.0, shield=True):
                    await self._everywhere.give(place)
        again = _untaken(job).model_copy(update={"busy": job.busy + 1})
        return _End(how="busy", again=again, due_s=now_s() + _BUSY_S[min(job.busy, 1)])

    def _failed(self, job: Job, error: BaseException) -> _End:
        why, kind = error_text(error), type(error).__name__  # the text may quote a message: the log has the kind
        _log.warning("session %.80s of %.80s failed: %s", ascii(job.session_id), ascii(job.agent_id), kind)
        failed = job.model_copy(update={"failed": job.failed + 1, "why": why})
        if failed.failed >= self.tries:
            return _End(how="set_aside", why=why, failed=1)
        due_s = self.runner.ledger.now_s() + min(2.0 ** min(failed.failed, 20), _LATEST_TRY_S)
        return _End(how="failed", why=why, again=failed, due_s=due_s)

    def _refused(self, job: Job, error: ChangedToolsError) -> _End:
        """Leave the session to workers of another release; after an hour nobody of them is there any more."""
        why = error_text(error)
        again = _untaken(job).model_copy(update={"refused": job.refused + 1, "why": why})
        if again.refused >= _REFUSALS:
            return _End(how="set_aside", why=why)
        due_s = self.runner.ledger.now_s() + min(0.25 * 2.0 ** min(job.refused, 20), _REFUSED_S)
        return _End(how="refused", why=why, again=again, due_s=due_s)

    async def _is_over(self, job: Job) -> bool:
        found = await self.runner.ledger.store.get("session", session_key(job.agent_id, job.session_id))
        return found is None or found.label in ENDED

    async def _nothing_left(self, job: Job) -> bool:
        try:
            return (await self._look(job)).left_s is None
        except StoreError:
            return False

    async def _store_answers(self) -> bool:
        try:
            await self.runner.ledger.store.now()
        except StoreError:
            return False
        return True

    async def _look(self, job: Job) -> _Look:
        ledger, key = self.runner.ledger, session_key(job.agent_id, job.session_id)
        found = await ledger.store.get("session", key)
        if found is None or await standing_letter(ledger.store, found) is not None:
            return _Look()
        head, left = ledger.head(found)
        if head.status is not AgentStatus.WAITING_FOR_HUMAN:
            return _Look() if head.status in ENDED else _Look(left_s=left, deaths=0 if left else head.deaths)
        requests = head.pending()
        if any(request.expired(found.read_s) for request in requests):
            return _Look(left_s=0.0)
        decisions = await ledger.decisions([request.id for request in requests])
        if job.sure or any(decisions.values()):
            return _Look(left_s=0.0)
        return _Look(expires_s=min((one.expires_s for one in requests if one.expires_s is not None), default=None))


def _untaken(job: Job) -> Job:
    """The job as if it had not been taken: nothing became of it, by nobody's fault."""
    return job.model_copy(update={"taken": max(0, job.taken - 1)})
