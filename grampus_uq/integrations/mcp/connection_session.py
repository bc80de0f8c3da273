"""The session of one connection in the store: its lease, taken up or begun at the first call, and its end.

A process that died holds the lease for some seconds more; one that lives keeps the session, and this connection gets
one of its own. A stop order or the policy's end refuses every call from then on.
"""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from grampus_uq.errors import GrampusError, SessionConflictError, SessionError, StoreError
from grampus_uq.gate.call import CallPhase, CallRecord
from grampus_uq.gate.gate import Gate
from grampus_uq.integrations.mcp.call_notes import CallNotes
from grampus_uq.integrations.mcp.call_outcomes import matters
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.records.values import ToolCall, ToolResult
from grampus_uq.records.vocabulary import ENDED, StopReason
from grampus_uq.runtime.endings import Endings
from grampus_uq.runtime.guarantee_watch import CalibrationWatch
from grampus_uq.runtime.heard_answers import take_up_last
from grampus_uq.runtime.ledger import Ledger, Note, session_key
from grampus_uq.runtime.run_state import ATTENDED, AgentState
from grampus_uq.runtime.session_lease import Leases, SessionLease
from grampus_uq.runtime.stopping import StoppedError
from grampus_uq.runtime.turn import Turn

_POLL_S: Final = 0.3
_UNDECIDED: Final = "Not executed: the client left before it was decided."
_LOST: Final = (
    "Another process took this session over: no call runs here any more, and what became of those that waited here is "
    "known there."
)
_CONFIRM_S, _GOOD_S = 5.0, 1.0


class RefusedError(GrampusError):
    """A call that gets no record: the sentence is the model's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNames:
    """Identity of a session. `resumes`: it continues after a restart, under the same id."""

    agent_id: str
    session_id: str
    resumes: bool


class ConnectionSession:
    """One session. Whoever reads or changes its turn holds `lock`."""

    def __init__(
        self,
        names: SessionNames,
        *,
        monitor: UncertaintyMonitor,
        ledger: Ledger,
        gate: Gate,
        say: Callable[[str], None],
        watch: CalibrationWatch | None = None,
        lease_s: float = 10.0,
    ) -> None:
        self.names = names
        self.refusal: str | None = None
        self.monitor, self.ledger, self.gate, self.say = monitor, ledger, gate, say
        self._leases = Leases(ledger, lease_s)
        self._endings = Endings(gate.effects, watch)
        self._opened = anyio.Event()
        self._turn: Turn | None = None
        self._confirming, self._confirmed = anyio.Lock(), -math.inf
        self.lock = anyio.Lock()
        self.changed = anyio.Event()
        """Set, and replaced, whenever a call may have got further."""

    async def turn(self) -> Turn:
        """The session's turn, taken up or begun at its first call. Raises RefusedError once it has ended."""
        if self.refusal is not None:
            raise RefusedError(self.refusal)
        if self._turn is None:
            lease = await self._leased()
            lease.session = self.monitor.session(
                lease.state.session_id, self.names.agent_id, snapshot=lease.state.belief
            )
            turn = Turn(
                lease,
                gate=self.gate,
                declared=lambda name: None,  # annotations are in the gate's effects, which tell whom to trust
                execute=_nothing_runs_here,
                delegates={},
            )
            turn.restore()
            lease.state.turn = [one for one in lease.state.turn if _is_owed(one)]
            unknown, notes = turn.recover(), CallNotes(lease.state)
            for record in unknown:
                lease.state.keep(notes.told(lease.state.record(record)))
            notes.lose()
            lost = [("outcome_unknown", turn.facts(record)) for record in unknown]
            if lost:
                await lease.save(*lost)  # at once: humans are asked about these
            self._turn = turn
            self._opened.set()
        return self._turn

    async def _leased(self) -> SessionLease:
        """The session's lease. A process that died holds it for some seconds more; one that lives has the session."""
        session_id = self.names.session_id
        until = anyio.current_time() + 2 * self._leases.lease_s
        saves: set[tuple[str | None, int]] = set()
        while anyio.current_time() < until and len(saves) < 2:  # whoever lives saves again
            try:
                return await self._take(session_id)
            except SessionConflictError:
                loaded = await self.ledger.load(self.names.agent_id, session_id)
                if loaded is not None and loaded[0].leased_for_s():
                    saves.add((loaded[0].worker, loaded[0].saves))
                    await anyio.sleep(min(loaded[0].leased_for_s(), _POLL_S))
        if len(saves) == 1:  # nobody renewed it for two leases by this clock: the store's has gone back
            with contextlib.suppress(SessionConflictError):
                return await self._take(session_id, dead=saves.pop())
        other = f"{session_id}-{uuid.uuid4().hex[:8]}"
        self.say(f"session {session_id} is served by another process: this one is {other}, and ends with it")
        self.names = SessionNames(agent_id=self.names.agent_id, session_id=other, resumes=False)
        return await self._take(other)

    async def _take(self, session_id: str, dead: tuple[str | None, int] | None = None) -> SessionLease:
        agent_id = self.names.agent_id
        loaded = await self.ledger.load(agent_id, session_id)
        if loaded is None:
            state, version = AgentState(agent_id=agent_id, session_id=session_id), 0
        elif loaded[0].status in ENDED:
            state, version = AgentState(agent_id=agent_id, session_id=session_id).replaces(loaded[0]), loaded[1]
        else:
            state, version = loaded
            if dead == (state.worker, state.saves):
                state.forget_lease()
        if loaded is not None:
            CallNotes(state).remember(loaded[0])
        state.metadata[ATTENDED] = True
        return await self._leases.take(state, version)

    async def confirm(self) -> None:
        """Look whether the session is still this process's. Raises RefusedError if not, StoreError."""
        lease, found = self.current().lease, None
        with anyio.move_on_after(_CONFIRM_S) as scope:
            async with self._confirming:
                if anyio.current_time() < self._confirmed + _GOOD_S:
                    return
                key = session_key(lease.state.agent_id, lease.state.session_id)
                found = await self.ledger.store.get("session", key)
        if scope.cancelled_caught:
            raise StoreError("The store does not answer.")
        own = found is not None and found.version == lease.version
        if found is None or not (own or self.ledger.head(found)[0].worker == lease.state.worker):
            raise RefusedError(_LOST)
        self._confirmed = anyio.current_time()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do this work once the session is open, renew the lease and heed stop orders, until it is cancelled."""
        await self._opened.wait()
        lease = self.current().lease
        try:
            await lease.run(work)
        except StoppedError as stopped:
            why = "The session was ordered to stop: no call of it runs any more."
            self._refuse(why)
            async with self.lock:
                with contextlib.suppress(SessionConflictError):
                    await self._over(StopReason.CANCELLED, why, [("stopped", {"why": str(stopped)})])
        except SessionConflictError:
            self._refuse(_LOST)

    async def aclose(self) -> None:
        """The client and the server are gone: a session that resumes, or that still asks, is released, others end."""
        if self._turn is None or self.refusal is not None:
            return
        async with self.lock:
            lease = self._turn.lease
            lease.state.metadata.pop(ATTENDED, None)
            unknown = any(request.unknown_outcome for one in lease.state.turn for request in one.requests)
            if self.names.resumes or unknown:  # what became of a call is asked, whoever is gone
                await lease.release()
                return
            with contextlib.suppress(SessionConflictError):
                await self._over(StopReason.CLEAN, _UNDECIDED)

    @property
    def is_open(self) -> bool:
        """True once a call was proposed."""
        return self._turn is not None

    def current(self) -> Turn:
        """The turn of the session, which is open."""
        if self._turn is None:
            raise SessionError("The session is not open.")
        return self._turn

    def _refuse(self, why: str) -> None:
        self.refusal = why
        self.say(why)
        self.wake()

    def wake(self) -> None:
        """Tell those that wait on `changed`."""
        self.changed.set()
        self.changed = anyio.Event()

    async def abort(self, why: str) -> None:
        """End the session as the policy says; the caller holds the lock."""
        self._refuse(why)
        await self._over(StopReason.MONITOR_STOP, why)

    async def _over(self, reason: StopReason, unrun: str, notes: Sequence[Note] = ()) -> None:
        """End the session, once what humans decided is taken up: where it begins anew, a rejection holds back."""
        await take_up_last(self.current())
        await self._endings.end(self.current().lease, reason, unrun=unrun, notes=notes)


def _is_owed(record: CallRecord) -> bool:
    """Return False for ended calls that are read-only or reversible, and for undecided calls that did not start."""
    if record.phase is CallPhase.CLEARED:
        return bool(record.decisions)
    return record.phase is not CallPhase.SETTLED or matters(record)


async def _nothing_runs_here(call: ToolCall, key: str) -> ToolResult:
    raise SessionError(f"The call {call.id!r:.80} is run by its server, not here ({key:.8}).")
