"""One worker's hold on one session: every write is a compare-and-set, so whoever lost the session cannot act on it.

While the worker waits for a model or a tool, a watcher beside it renews the lease and looks for stop orders; either may
end the waiting. A write that fails because another worker took over ends this one before it does anything further.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import anyio
from pydantic import JsonValue

from grampus_uq.errors import SessionConflictError, SessionError, StoreError
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.ledger import Ledger, ordered_to_stop
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
        now = time.monotonic()
        if now - self._read_at >= POLL_S:
            self._read_at = now
            try:
                self._stops = await self._ledger.stops()
            except StoreError:
                return False
        return ordered_to_stop(self._stops, state)


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
        self._worker = worker
        self._lease_s = lease_s
        self._stops = stops
        self._lock = anyio.Lock()
        self._since = time.monotonic()

    @classmethod
    async def take(
        cls, ledger: Ledger, state: AgentState, version: int, *, worker: str, lease_s: float, stops: StopOrders
    ) -> Hold:
        """Claim the session; raises SessionConflictError when another worker holds it or claims it at this moment."""
        now = time.time()
        if state.status is AgentStatus.RUNNING and state.worker != worker and state.lease_until_s > now:
            raise SessionConflictError(
                f"Session {state.session_id!r} is run by another worker; its lease ends in "
                f"{state.lease_until_s - now:.1f} s unless it is renewed."
            )
        state.worker, state.status, state.claimed_s = worker, AgentStatus.RUNNING, now
        hold = cls(ledger, state, version, worker=worker, lease_s=lease_s, stops=stops)
        await hold.save()
        return hold

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
            self._version = await self._ledger.save(self.state, self._version)

    async def note(self, what: str, data: Mapping[str, JsonValue]) -> None:
        """Add to the audit."""
        await self.audit.append(what, {"worker": self._worker, **data})

    async def release(self) -> None:
        """Let others take the session up at once, even while this worker is being cancelled."""
        if self.state.status is AgentStatus.RUNNING:
            self.state.status = AgentStatus.IDLE
        with anyio.CancelScope(shield=True), anyio.move_on_after(2.0):
            try:
                await self.save()
            except (StoreError, SessionConflictError):
                return  # the lease runs out by itself, or another worker holds the session already

    async def watched(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Await the work while renewing the lease; raises StoppedError on a stop order.

        Raises SessionConflictError when the session was taken over meanwhile. Either cancels the work.
        """
        outcome: list[Result] = []
        ended: list[Exception] = []

        async def watch(scope: anyio.CancelScope) -> None:
            renew_at = time.monotonic() + self._lease_s / 3
            while True:
                await anyio.sleep(POLL_S)
                if await self._stops.reached(self.state):
                    ended.append(StoppedError(f"Session {self.state.session_id!r} was ordered to stop."))
                elif time.monotonic() >= renew_at:
                    renew_at = time.monotonic() + self._lease_s / 3
                    try:
                        await self.save()
                    except SessionConflictError as error:
                        ended.append(error)
                    except StoreError:
                        continue  # try again at the next renewal; what may not run without the store asks it first
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
        raise ended[0]

    async def check_stop(self) -> None:
        """Raise StoppedError when a stop order was given."""
        if await self._stops.reached(self.state):
            raise StoppedError(f"Session {self.state.session_id!r} was ordered to stop.")
