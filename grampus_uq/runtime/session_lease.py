"""The lease of one session by one worker: every write is a compare-and-set, so a worker that lost it cannot act on.

While the worker awaits a model or a tool, a watcher renews the lease and looks for stop orders; either may cancel the
work. A write that fails because another worker took over ends this one before it does anything else.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping

import anyio
from pydantic import JsonValue

from grampus_uq.errors import SessionConflictError, SessionError, StoreError
from grampus_uq.monitor.session import Session
from grampus_uq.records.vocabulary import ENDED, AgentStatus
from grampus_uq.runtime.concurrent_tasks import run_with_watch
from grampus_uq.runtime.ledger import Ledger, Note
from grampus_uq.runtime.run_state import DEATHS, AgentState
from grampus_uq.runtime.stopping import StopOrders, StoppedError, stops_to_heed
from grampus_uq.runtime.store import Result
from grampus_uq.runtime.worker_jobs import ABOVE, PARENT, PARENT_RUN

_WRITES = 3
_AT_LEAST_S = 0.05  # a store that takes longer for every save would be asked for ever
_STEPS_SHOWN = 4


def half_gone(saved_at: float, lease_s: float) -> bool:
    """True where less than half of a lease is left; `saved_at`: when its last save began, by the monotonic clock."""
    return time.monotonic() - saved_at > max(lease_s / 2, _AT_LEAST_S)


async def put_own(write: Callable[[], Awaitable[None]], was_made: Callable[[], Awaitable[bool]], what: str) -> None:
    """Compare and set, with one retry after an error. A write whose answer was lost may have been made: the next one
    then conflicts with this writer's own, which `was_made` finds in the store and takes up."""
    for attempt in range(_WRITES):
        try:
            await write()
            return
        except SessionConflictError:
            if await was_made():
                return
        except StoreError:
            if attempt > 0:
                raise
    raise StoreError(f"{what} could not be written: its own earlier writes kept arriving first.")


class Leases:
    """Leases sessions of one store to one worker, for `lease_s` seconds that each lease renews."""

    def __init__(self, ledger: Ledger, lease_s: float) -> None:
        self.ledger, self.lease_s = ledger, lease_s
        self.worker, self.stops = uuid.uuid4().hex, StopOrders(ledger)

    async def take(self, state: AgentState, version: int, *notes: Note) -> SessionLease:
        """Lease the session; raises SessionConflictError when another worker has it or takes it at this moment."""
        left = state.leased_for_s()
        if left:
            raise SessionConflictError(
                f"Session {state.session_id!r} is run by another worker; its lease ends in {left:.1f} s unless it is "
                "renewed."
            )
        named = state.metadata.get(ABOVE)
        above = await self.ledger.above(named)
        parent, run = state.metadata.get(PARENT), state.metadata.get(PARENT_RUN)
        if await self.ledger.parent_status(parent, run, above) in ENDED:
            raise SessionError(
                f"Session {state.session_id!r:.80} belongs to a parent that has ended or was rolled back: it runs no "
                "more."
            )
        state.inherit(*(head for _, head, _ in above))  # as far as those above it stored: it may be run without them
        lease = SessionLease(self, state, version)
        sessions = {state.session_id, *(head.session_id for _, head, _ in above)}
        unread = isinstance(named, list) and len(above) < len(named)  # damaged, deleted, or in another store
        lease.asks_beside = unread or any(head.asks_beside(sessions) for _, head, _ in above)
        state.taken_over()
        state.stops_seen = await stops_to_heed(self.ledger, state)
        state.claimed_s, state.worker, state.status = self.ledger.now_s(), lease._worker, AgentStatus.RUNNING
        await lease.save(*notes)
        return lease


class SessionLease:
    """A session leased by one worker: its state, the version it wrote last, and the monitor's session."""

    def __init__(self, leases: Leases, state: AgentState, version: int) -> None:
        self.state = state
        self.session: Session | None = None
        self.asks_beside = False
        """True for a sub-agent's session where something may have been answered in those above it, or beside it."""
        self.ledger, self._stops, self._lease_s = leases.ledger, leases.stops, leases.lease_s
        self.version = version
        self._worker = f"{leases.worker}/{uuid.uuid4().hex[:12]}"  # two tasks of one process are two workers as well
        self._orders_seen = -1
        self._notes: list[tuple[int, Note]] = []  # each with the number of the first write that holds it
        self._lock = anyio.Lock()
        self._since = self.saved_at = time.monotonic()  # the latter: when the last save began that was made

    def now_s(self) -> float:
        """The store's clock, extrapolated from its last answer."""
        return self.ledger.now_s()

    async def save(self, *notes: Note) -> None:
        """Write the state and all notes, both or neither. Raises SessionConflictError (taken over), StoreError."""
        for what, data in notes:
            self.note(what, data)
        async with self._lock:
            now = time.monotonic()
            self.state.active_s += now - self._since
            self._since = now
            running = self.state.status is AgentStatus.RUNNING
            self.state.lease_s = self._lease_s if running else 0.0
            if not running:
                self.state.metadata.pop(DEATHS, None)
            if self.session is not None:  # on the way only what decides is kept of it, all where it stands
                self.state.belief = self.session.snapshot(latest=_STEPS_SHOWN if running else None)
            await self._put()
            self.saved_at = now

    async def hold(self, saved_at: float = float("-inf")) -> None:
        """Save until at least half of the lease is left; `saved_at`: when the last save began, by the monotonic clock.

        Asked before whatever acts: a process that stood still may have lost the session meanwhile.
        """
        while half_gone(saved_at, self._lease_s):
            saved_at = time.monotonic()
            await self.save()

    async def try_save(self, *notes: Note) -> bool:
        """Save; with the store down count the failure, and return False: the run goes on in memory, with its notes."""
        try:
            await self.save(*notes)
        except StoreError:
            self.state.store_failures += 1
            return False
        return True

    async def _put(self) -> None:
        first = self.state.saves + 1

        async def write() -> None:
            self.state.saves += 1
            number, notes = self.state.saves, [note for _, note in self._notes]
            self.version = await self.ledger.save(self.state, self.version, notes)
            self._written(number)

        await put_own(write, lambda: self._was_made(first), "The session")

    async def _was_made(self, first: int) -> bool:
        """True when the store holds this save, from its `first` write on; SessionConflictError: another worker's."""
        found = await self.ledger.adopt(self.state)
        if found is None or found[0].worker != self._worker:
            raise SessionConflictError(f"Session {self.state.session_id!r:.80} was taken over by another worker.")
        self.version = found[1]
        self._written(found[0].saves)
        return found[0].saves >= first

    def _written(self, number: int) -> None:
        self._notes = [(first, note) for first, note in self._notes if first > number]

    def note(self, what: str, data: Mapping[str, JsonValue]) -> None:
        """Add to the audit with the next save that succeeds: a worker that lost the session says nothing in it.

        Nothing is taken back: a write that failed may have been made. What is announced and does not come is said too.
        """
        self._notes.append((self.state.saves + 1, (what, {"worker": self._worker, **data})))

    async def release(self, *, unfinished: bool = False) -> None:
        """End the lease now, even while this worker is being cancelled; `unfinished`: a worker is to go on with it."""
        self.state._unfinished = unfinished
        if self.state.status is AgentStatus.RUNNING:
            self.state.status = AgentStatus.WAITING_FOR_HUMAN if self.state.pending() else AgentStatus.IDLE
        with anyio.move_on_after(2.0, shield=True), contextlib.suppress(StoreError, SessionConflictError):
            await self.save()  # else the lease runs out by itself, or another worker holds the session already

    async def run(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Await the work while renewing the lease; what is raised is raised as it is, never inside a group of errors.

        Cancels it and raises StoppedError on a stop order, SessionConflictError when taken over.
        """

        async def watch() -> None:
            renew_at = time.monotonic() + self._lease_s / 3
            while True:
                await self._stops.news(self._orders_seen, renew_at - time.monotonic())
                await self.check_stop()
                if time.monotonic() >= renew_at:
                    renew_at = time.monotonic() + self._lease_s / 3
                    with contextlib.suppress(StoreError):  # tried again at the next renewal; what may not run without
                        await self.save()  # the store asks it first

        return await run_with_watch(work, watch)

    async def check_stop(self, *, since: float | None = None) -> None:
        """Raise StoppedError when a stop order was given; what `since` asks for is in `StopOrders.reached`."""
        stopped, self._orders_seen = await self._stops.reached(self.state, self._orders_seen, since=since)
        if stopped:
            raise StoppedError(f"Session {self.state.session_id!r} was ordered to stop.")
