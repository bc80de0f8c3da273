"""Runs whose state another engine keeps: a session store has what they ask, for lists, decisions and workers.

What a decision is worth says the engine's own gate, from what the engine keeps: a forged row can wake a run, no more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

import anyio

from grampus_uq.errors import SessionError
from grampus_uq.gate.gate import HOST_ARRIVED, HOST_LEFT, HOST_NOW_S
from grampus_uq.gate.requests import ApprovalDecision, ApprovalRequest
from grampus_uq.records.vocabulary import ENDED, AgentStatus
from grampus_uq.runtime.cards import end_of
from grampus_uq.runtime.ledger import Ledger, decision_digest
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.session_lease import Leases, SessionLease
from grampus_uq.runtime.stopping import StoppedError
from grampus_uq.runtime.store import SessionStore

Told = tuple[Sequence[ApprovalRequest], Sequence[str]]
ENGINE_MARK = "engine_mark"
_held: ContextVar[SessionLease | None] = ContextVar("grampus_held", default=None)


async def still_held() -> None:
    """Renew the lease under which this task runs; nothing where no `HostedRunner` runs it.

    Asked before whatever acts: a worker that was stopped for longer than its lease wakes up here. Raises
    SessionConflictError when another worker took the session over, StoreError when the store is down.
    """
    lease = _held.get()
    if lease is not None:
        await lease.hold()


class Host(Protocol):
    """An engine that keeps runs. Its methods are awaited from one task a run, and may raise."""

    async def pending(self, session_id: str) -> Sequence[ApprovalRequest] | None:
        """The requests of the run now; None once it has ended."""
        ...

    async def mark(self, session_id: str) -> str:
        """A text that is another one as soon as the engine has kept anything new of the run."""
        ...

    async def go_on(self, session_id: str, decisions: Sequence[ApprovalDecision], now_s: float) -> Any:
        """Run until it ends or waits, by these decisions, if any; what expired by `now_s` is settled or asked again.

        Raises SessionError where going on could do something twice: a human has to look.
        """
        ...


class HostedRunner:
    """Runs the sessions of a `Host` under leases of a store, and resumes them for a `Worker`.

    `begin` runs a new one, or one that ended, as the engine does; it and `resume` return how the session stands then.
    """

    def __init__(self, host: Host, store: SessionStore, *, agent_id: str, lease_s: float = 30.0) -> None:
        self.host = host
        self.agent_id = agent_id
        self.ledger = Ledger(store)
        self.lease_s = lease_s
        self._leases = Leases(self.ledger, lease_s)

    async def begin(self, session_id: str, work: Callable[[], Awaitable[Any]]) -> AgentStatus:
        """Await the work, which is the engine's run of this session; raises SessionError for one that is alive."""
        state, version = await self.ledger.fresh(self.agent_id, session_id)
        state.metadata[ENGINE_MARK] = await self.host.mark(session_id)
        return await self._run(await self._leases.take(state, version), work)

    async def resume(self, agent_id: str, session_id: str) -> AgentStatus:
        """Go on with a session by the decisions that are stored, where there are any or something expired."""
        state, version = await self.ledger.known(agent_id, session_id)
        if state.status in ENDED:
            raise SessionError(f"Session {session_id!r:.80} has ended ({state.status}): there is nothing to resume.")
        return await self._run(await self._leases.take(state, version), partial(self._go_on, state))

    async def describe(self, state: AgentState) -> Sequence[Told]:
        """Give the state of a run that waits what a card shows beside its requests: `messages`, and the `belief`.

        Returns the requests that were asked together, with why decisions on them were refused.
        """
        return []

    async def _note_refused(self, lease: SessionLease, requests: Sequence[ApprovalRequest], why: Sequence[str]) -> None:
        """Note what was refused for lists and cards, unless some decisions hold: then it is not known which."""
        arrived = await self.ledger.decisions([request.id for request in requests])
        given = [decision for request in requests for decision, _ in arrived[request.id]]
        for one, reason in zip(given, why, strict=True) if len(given) == len(why) else ():
            which = {"request": one.request_id, "of": one.principal, "decision": decision_digest(one)}
            lease.note("decision_refused", {**which, "why": reason})

    async def _go_on(self, state: AgentState) -> None:
        session_id = state.session_id
        asked = await self.host.pending(session_id)
        if asked is None:
            if state.metadata.get(ENGINE_MARK) == await self.host.mark(session_id):
                raise SessionError("The run died before its engine kept anything of it: begin it anew.")
            return
        now_s = self.ledger.now_s()  # before the decisions are read: what came in time of what expired is among them
        arrived = await self.ledger.decisions([request.id for request in asked])
        found = [one for request in asked for one in arrived[request.id]]
        if found or not asked or any(request.expired(now_s) for request in asked):
            HOST_NOW_S.set(now_s)
            HOST_ARRIVED.set(found)
            await self.host.go_on(session_id, [decision for decision, _ in found], now_s)

    async def _run(self, lease: SessionLease, work: Callable[[], Awaitable[Any]]) -> AgentStatus:
        state, before = lease.state, _held.set(lease)
        host = HOST_NOW_S.set(self.ledger.now_s()), HOST_ARRIVED.set(()), HOST_LEFT.set(None)
        try:
            replaced = {request.id: held for held in state.replaced() for request in held.requests}
            arrived = await self.ledger.decisions(list(replaced)) if replaced else {}
            HOST_LEFT.set(left := [(held, arrived[request]) for request, held in replaced.items()])
            await lease.run(work)
            state.keep_replaced([held for held, _ in left])
            asked = await self.host.pending(state.session_id)
            state.review = list(asked or ())
            if asked:
                for requests, why in await self.describe(state):
                    await self._note_refused(lease, requests, why)
                state.messages = list(end_of(state.messages))
            waits = AgentStatus.WAITING_FOR_HUMAN if asked else AgentStatus.IDLE
            state.status = AgentStatus.COMPLETED if asked is None else waits
            await lease.save(("ended" if asked is None else "paused", {}))
        except StoppedError:
            state.keep_replaced(state.unheard())  # what was answered the engine hears as it begins anew
            state.status, state.review = AgentStatus.FAILED, []
            await lease.save(("stopped", {}))
        except (Exception, anyio.get_cancelled_exc_class()):
            await lease.release(unfinished=True)
            raise
        finally:
            _held.reset(before)
            HOST_NOW_S.reset(host[0])
            HOST_ARRIVED.reset(host[1])
            HOST_LEFT.reset(host[2])
        return state.status
