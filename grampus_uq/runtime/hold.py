"""One worker's hold on one session: every write is a compare-and-set, so whoever lost the session cannot act on it.

While the worker waits for a model or a tool, a watcher beside it renews the lease and looks for stop orders; either may
end the waiting. A write that fails because another worker took over ends this one before it does anything further.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import anyio
from pydantic import JsonValue

from grampus_uq.errors import SessionConflictError, SessionError, StoreError
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.ledger import Ledger, ordered_to_stop, session_key
from grampus_uq.runtime.state import AgentState
from grampus_uq.session import Session
from grampus_uq.vocabulary import AgentStatus

__all__ = ["Hold", "StopOrders", "StoppedError"]

Result = TypeVar("Result")

POLL_S = 0.25


class StoppedError(SessionError):
    """A stop order reached the worker."""


class StopOrders:
    """The stop orders of one store, read at most once every `POLL_S` however many sessions ask."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._stops: dict[str, float] = {}
        self._read_at = -1.0

    async def reached(self, state: AgentState) -> bool:
        """True when this session was ordered to stop; an unreachable store orders nothing."""
        if time.monotonic() - self._read_at >= POLL_S and not await self._read():
            return False
        return ordered_to_stop(self._stops, state)

    async def _read(self) -> bool:
        self._read_at = time.monotonic()
        try:
            self._stops = await self._ledger.stops()
        except StoreError:
            return False
        return True

    async def since_left(self, state: AgentState) -> bool:
        """True when just this session was ordered to stop after its last worker had taken it up, as while it waited."""
        await self._read()
        order = self._stops.get(session_key(state.agent_id, state.session_id), 0.0)
        return order > max(state.claimed_s, state.created_s)


class Hold:
    """A session taken up by one worker: its state, its version in the store, its lease and its audit."""

    def __init__(
        self,
        ledger: Ledger,
        state: AgentState,
        version: int,
        *,
        worker: str,
        lease_s: float,
        stops: StopOrders,
        session: Session | None = None,
    ) -> None:
        self.state = state
        self.session = session
        self.audit = AuditLog(ledger.store, state.agent_id, state.session_id)
        self._ledger = ledger
        self._version = version
        self._worker = f"{worker}/{uuid.uuid4().hex[:12]}"  # two tasks of one process are two workers as well
        self._lease_s = lease_s
        self._stops = stops
        self._lock = anyio.Lock()
        self._since = time.monotonic()
        self._unsure = False

    @classmethod
    async def take(
        cls, ledger: Ledger, state: AgentState, version: int, *, worker: str, lease_s: float, stops: StopOrders
    ) -> Hold:
        """Claim the session; raises SessionConflictError when another worker holds it or claims it at this moment."""
        now = time.time()
        if state.status is AgentStatus.RUNNING and state.lease_until_s > now:
            raise SessionConflictError(
                f"Session {state.session_id!r} is run by another worker; its lease ends in "
                f"{state.lease_until_s - now:.1f} s unless it is renewed."
            )
        hold = cls(ledger, state, version, worker=worker, lease_s=lease_s, stops=stops)
        left = max(state.claimed_s, state.created_s)
        state.claimed_s = left if await stops.since_left(state) else now  # an order given while it waited still holds
        state.worker, state.status = hold._worker, AgentStatus.RUNNING
        await hold.save()
        return hold

    def now_s(self) -> float:
        """The clock that requests, decisions and grants are measured with."""
        return self._ledger.now_s()

    async def save(self) -> None:
        """Write the state; raises SessionConflictError when the session was taken over, StoreError when it is down."""
        async with self._lock:
            now = time.monotonic()
            self.state.active_s += now - self._since
            self._since = now
            running = self.state.status is AgentStatus.RUNNING
            self.state.lease_until_s = time.time() + self._lease_s if running else 0.0
            if self.session is not None:
                self.state.belief = self.session.snapshot()
            await self._put()

    async def _put(self) -> None:
        """Compare and set; a write whose answer was lost (connection cut, task cancelled) may have been made."""
        unsure, self._unsure = self._unsure, True
        try:
            self._version = await self._ledger.save(self.state, self._version)
        except SessionConflictError:
            found = await self._ledger.load(self.state.agent_id, self.state.session_id) if unsure else None
            if found is None or found[0].worker != self._worker:
                self._unsure = False
                raise
            self._version = await self._ledger.save(self.state, found[1])  # that newer version was our own
        self._unsure = False

    async def note(self, what: str, data: Mapping[str, JsonValue]) -> None:
        """Add to the audit."""
        await self.audit.append(what, {"worker": self._worker, **data})

    async def release(self) -> None:
        """Let others take the session up at once, even while this worker is being cancelled."""
        if self.state.status is AgentStatus.RUNNING:
            self.state.status = AgentStatus.WAITING_FOR_HUMAN if self.state.pending() else AgentStatus.IDLE
        with anyio.CancelScope(shield=True), anyio.move_on_after(2.0):
            try:
                await self.save()
            except (StoreError, SessionConflictError):
                return  # the lease runs out by itself, or another worker holds the session already

    async def watched(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Await the work while renewing the lease; raises StoppedError on a stop order.

        Raises SessionConflictError when the session was taken over meanwhile. Either cancels the work. Whatever is
        raised is raised as it is, never inside a group of errors.
        """
        outcome: list[Result] = []
        ended: list[Exception] = []

        async def watch(scope: anyio.CancelScope) -> None:
            renew_at = time.monotonic() + self._lease_s / 3
            while True:
                await anyio.sleep(POLL_S)
                try:
                    await self.check_stop()
                    if time.monotonic() >= renew_at:
                        renew_at = time.monotonic() + self._lease_s / 3
                        await self.save()
                except StoreError:
                    continue  # try again at the next renewal; what may not run without the store asks it first
                except Exception as error:  # noqa: BLE001 (carried out of the task group as it is, like the work's own)
                    ended.append(error)
                if ended:
                    scope.cancel()
                    return

        async with anyio.create_task_group() as group:
            group.start_soon(watch, group.cancel_scope)
            try:
                outcome.append(await work())
            except Exception as error:  # noqa: BLE001 (carried out of the task group as it is, not as a group of errors)
                ended.append(error)
            group.cancel_scope.cancel()
        if outcome:
            return outcome[0]
        raise _plain(ended[0])

    async def check_stop(self) -> None:
        """Raise StoppedError when a stop order was given."""
        if await self._stops.reached(self.state):
            raise StoppedError(f"Session {self.state.session_id!r} was ordered to stop.")


def _plain(error: Exception) -> Exception:
    """The first error of a group: what happened to the session rather than what followed from it."""
    while isinstance(error, ExceptionGroup):
        conflicts = error.subgroup(SessionError)
        error = (conflicts or error).exceptions[0]
    return error
