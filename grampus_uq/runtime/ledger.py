"""What the runtime keeps in a store, as typed operations: sessions, decisions, grants and stop orders."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from urllib.parse import quote

from grampus_uq.errors import ApprovalError, SessionConflictError, SessionError, StoreError
from grampus_uq.gate.requests import ApprovalDecision, ApprovalPolicy, ApprovalRequest, Arrived, Grant
from grampus_uq.gate.seal import Seal
from grampus_uq.records import ToolCall
from grampus_uq.runtime.state import AgentState, PendingSession, read_state
from grampus_uq.runtime.store import Document, SessionStore
from grampus_uq.vocabulary import AgentStatus

__all__ = ["Ledger", "ordered_to_stop", "session_key"]

_ALL = "*"
_SHORTEST_ID = 8
_SEALED = '{"seal":"'
_GRANT_TRIES = 20
_log = logging.getLogger(__name__)


def session_key(agent_id: str, session_id: str) -> str:
    """The key of a session; ids may hold any character."""
    return f"{quote(agent_id, safe='')}/{quote(session_id, safe='')}"


class Ledger:
    """Typed access to one store."""

    def __init__(self, store: SessionStore, *, seal: Seal | None = None) -> None:
        self.store = store
        self._seal = seal

    def now_s(self) -> float:
        """The clock that requests, decisions and grants are measured with."""
        return time.time()

    # -- seals ----------------------------------------------------------------------------------------------------

    def sealed(self, place: str, body: str) -> str:
        """A JSON object as it is stored at this place: behind a seal over all of it, where this ledger has one."""
        return body if self._seal is None else f'{_SEALED}{self._seal.mac(place, body)}",{body[1:]}'

    def opened(self, place: str, text: str) -> tuple[str, bool]:
        """What was stored at this place, and whether its seal held; without a seal of its own nothing is checked."""
        body, mac = text, ""
        if text.startswith(_SEALED):
            mac, _, rest = text.removeprefix(_SEALED).partition('",')
            body = "{" + rest
        return body, self._seal is None or self._seal.holds(place, body, mac)

    # -- sessions -------------------------------------------------------------------------------------------------

    async def load(self, agent_id: str, session_id: str) -> tuple[AgentState, int] | None:
        """The stored state and its version, or None."""
        found = await self.store.get("session", session_key(agent_id, session_id))
        return None if found is None else (self._state(found), found.version)

    def _state(self, found: Document) -> AgentState:
        body, holds = self.opened(found.key, found.body)
        state = read_state(body)
        state._sealed = holds
        return state

    async def save(self, state: AgentState, version: int) -> int:
        """Write the next version; raises SessionConflictError when another worker wrote first."""
        key = session_key(state.agent_id, state.session_id)
        body = self.sealed(key, state.model_dump_json())
        return await self.store.put("session", key, body, expected=version, label=state.status.value)

    async def pending(self, agent_id: str | None = None) -> list[PendingSession]:
        """The sessions that wait for a human, those too whose worker died while something waited.

        A session that cannot be read is logged and left out: it must not hide the others.
        """
        prefix = "" if agent_id is None else session_key(agent_id, "")
        found = await self.store.scan("session", label=AgentStatus.WAITING_FOR_HUMAN.value, prefix=prefix)
        found += await self.store.scan("session", label=AgentStatus.RUNNING.value, prefix=prefix)
        states = []
        for document in found:
            try:
                state = self._state(document)
            except StoreError as error:
                _log.warning("session %s is left out of what waits: %s", document.key, type(error).__name__)
                continue
            left = state.status is AgentStatus.RUNNING and state.lease_until_s <= time.time() and state.pending()
            if state.status is AgentStatus.WAITING_FOR_HUMAN or left:
                states.append(state)
        return [
            PendingSession(
                agent_id=state.agent_id,
                session_id=state.session_id,
                waiting_since_s=min((r.created_s for r in state.pending()), default=state.claimed_s),
                requests=state.pending(),
            )
            for state in states
        ]

    async def find_request(self, request_id: str) -> tuple[AgentState, ApprovalRequest]:
        """The waiting request with this id, or a unique beginning of it of 8 characters or more.

        A shorter one could by now mean a request that nobody was shown. Raises SessionError when there is none.
        """
        if len(request_id) < _SHORTEST_ID:
            raise SessionError(f"{request_id!r:.40} is too short: give at least {_SHORTEST_ID} characters of the id.")
        matches = [
            (pending, request)
            for pending in await self.pending()
            for request in pending.requests
            if request.id.startswith(request_id) and request.child_session is None
        ]
        if len(matches) != 1:
            what = "No request" if not matches else f"{len(matches)} requests"
            raise SessionError(f"{what} that waits has an id beginning with {request_id!r:.40}.")
        pending, request = matches[0]
        loaded = await self.load(pending.agent_id, pending.session_id)
        if loaded is None:
            raise SessionError(f"Session {pending.session_id!r} is gone.")
        return loaded[0], request

    # -- decisions ------------------------------------------------------------------------------------------------

    async def decide(self, decision: ApprovalDecision) -> None:
        """Store a decision beside those that are there; which of them count says the runner, which has the keys."""
        body = decision.model_dump_json()
        key = f"{quote(decision.request_id, safe='')}/{hashlib.sha256(body.encode()).hexdigest()}"
        try:
            stamped = json.dumps({"arrived_s": self.now_s(), "decision": json.loads(body)})
            await self.store.put("decision", key, stamped, expected=0)
        except SessionConflictError:
            return  # this very decision is there

    async def decisions(self, request_id: str) -> list[Arrived]:
        """What is stored on a request, and when it arrived; what cannot be read is left out, and counts for nothing."""
        found: list[Arrived] = []
        for document in await self.store.scan("decision", prefix=f"{quote(request_id, safe='')}/"):
            try:
                content = json.loads(document.body)
                found.append((ApprovalDecision.model_validate(content["decision"]), float(content["arrived_s"])))
            except (ValueError, KeyError, TypeError, RecursionError):
                _log.warning("a stored decision on request %s cannot be read: it counts for nothing", request_id[:40])
        return found

    # -- grants ---------------------------------------------------------------------------------------------------

    async def grant(self, grant: Grant) -> None:
        """Store a grant."""
        body = json.dumps({"grant": grant.model_dump(mode="json"), "uses": 0})
        await self.store.put("grant", grant.id, body, expected=0, label=grant.tool)

    async def use_grant(
        self, call: ToolCall, *, agent_id: str, session_id: str, policy: ApprovalPolicy, now_s: float | None = None
    ) -> Grant | None:
        """Use one of the grants that cover this call, counting the use; None when none does."""
        now_s = self.now_s() if now_s is None else now_s
        for document in await self.store.scan("grant", label=call.name):
            found = _grant(document, policy)
            if found is None or not found[0].covers(call, agent_id=agent_id, session_id=session_id, now_s=now_s):
                continue
            if await self._count_use(document, policy):
                return found[0]
        return None

    async def _count_use(self, document: Document, policy: ApprovalPolicy) -> bool:
        """Count one use; False when none is left, or when too many workers use the grant at this moment."""
        newest: Document | None = document
        for _ in range(_GRANT_TRIES):
            found = None if newest is None else _grant(newest, policy)
            if newest is None or found is None:
                return False
            grant, uses = found
            if grant.max_uses is not None and uses >= grant.max_uses:
                return False
            try:
                body = json.dumps({"grant": grant.model_dump(mode="json"), "uses": uses + 1})
                await self.store.put("grant", newest.key, body, expected=newest.version, label=grant.tool)
                return True
            except SessionConflictError:
                newest = await self.store.get("grant", newest.key)  # another worker used it at this moment
        return False

    # -- stopping -------------------------------------------------------------------------------------------------

    async def stop(self, agent_id: str | None = None, session_id: str | None = None, *, principal: str = "") -> None:
        """Order a session, or with no ids every session that runs now, to stop."""
        both = agent_id is not None and session_id is not None
        key = session_key(agent_id or "", session_id or "") if both else _ALL
        found = await self.store.get("stop", key)
        body = json.dumps({"time_s": time.time(), "principal": principal})
        await self.store.put("stop", key, body, expected=0 if found is None else found.version)

    async def stops(self) -> dict[str, float]:
        """When each stop order was given, by session key; "*" is the order to all."""
        return {d.key: float(json.loads(d.body)["time_s"]) for d in await self.store.scan("stop")}


def _grant(document: Document, policy: ApprovalPolicy) -> tuple[Grant, int] | None:
    """A stored grant and its uses, or None: a grant that cannot be trusted grants nothing."""
    try:
        content = json.loads(document.body)
        grant = Grant.model_validate(content["grant"])
        policy.check_grant(grant)
        return grant, int(content["uses"])
    except (ValueError, KeyError, TypeError, ApprovalError):
        return None


def ordered_to_stop(stops: dict[str, float], state: AgentState) -> bool:
    """True when a stop order was given after this worker took the session up."""
    latest = max(stops.get(_ALL, 0.0), stops.get(session_key(state.agent_id, state.session_id), 0.0))
    return latest > state.claimed_s
