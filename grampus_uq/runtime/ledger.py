"""What the runtime keeps in a store, as typed operations: sessions, decisions, grants and stop orders."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

from grampus_uq.errors import ApprovalError, SessionConflictError, SessionError
from grampus_uq.records import ToolCall
from grampus_uq.runtime.approvals import ApprovalDecision, ApprovalPolicy, ApprovalRequest, Grant
from grampus_uq.runtime.state import AgentState, PendingSession, read_state
from grampus_uq.runtime.store import SessionStore
from grampus_uq.vocabulary import AgentStatus

__all__ = ["Ledger", "ordered_to_stop", "session_key"]

_ALL = "*"


def session_key(agent_id: str, session_id: str) -> str:
    """The key of a session; ids may hold any character."""
    return f"{quote(agent_id, safe='')}/{quote(session_id, safe='')}"


class Ledger:
    """Typed access to one store."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store

    # -- sessions -------------------------------------------------------------------------------------------------

    async def load(self, agent_id: str, session_id: str) -> tuple[AgentState, int] | None:
        """The stored state and its version, or None."""
        found = await self.store.get("session", session_key(agent_id, session_id))
        return None if found is None else (read_state(found.body), found.version)

    async def save(self, state: AgentState, version: int) -> int:
        """Write the next version; raises SessionConflictError when another worker wrote first."""
        return await self.store.put(
            "session",
            session_key(state.agent_id, state.session_id),
            state.model_dump_json(),
            expected=version,
            label=state.status.value,
        )

    async def pending(self, agent_id: str | None = None) -> list[PendingSession]:
        """The sessions that wait for a human."""
        prefix = "" if agent_id is None else session_key(agent_id, "")
        found = await self.store.scan("session", label=AgentStatus.WAITING_FOR_HUMAN.value, prefix=prefix)
        states = [read_state(document.body) for document in found]
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
        """The waiting request with this id (or a unique beginning of it); raises SessionError when there is none."""
        matches = [
            (pending, request)
            for pending in await self.pending()
            for request in pending.requests
            if request.id.startswith(request_id) and request.child_session is None
        ]
        if len(matches) != 1 or not request_id:
            what = "No request" if not matches else f"{len(matches)} requests"
            raise SessionError(f"{what} that waits has an id beginning with {request_id!r:.40}.")
        pending, request = matches[0]
        loaded = await self.load(pending.agent_id, pending.session_id)
        if loaded is None:
            raise SessionError(f"Session {pending.session_id!r} is gone.")
        return loaded[0], request

    # -- decisions ------------------------------------------------------------------------------------------------

    async def decide(self, decision: ApprovalDecision) -> None:
        """Store a decision; the first on a request counts, the same again changes nothing. Raises ApprovalError."""
        try:
            await self.store.put("decision", decision.request_id, decision.model_dump_json(), expected=0)
        except SessionConflictError as error:
            if await self.decision(decision.request_id) != decision:
                raise ApprovalError("This request was already decided: the decision is refused.") from error

    async def decision(self, request_id: str) -> ApprovalDecision | None:
        """The stored decision on a request, or None; an unreadable one raises ApprovalError."""
        found = await self.store.get("decision", request_id)
        if found is None:
            return None
        try:
            return ApprovalDecision.model_validate_json(found.body)
        except ValueError as error:
            raise ApprovalError("The stored decision cannot be read: it is refused.") from error

    # -- grants ---------------------------------------------------------------------------------------------------

    async def grant(self, grant: Grant) -> None:
        """Store a grant."""
        body = json.dumps({"grant": grant.model_dump(mode="json"), "uses": 0})
        await self.store.put("grant", grant.id, body, expected=0, label=grant.tool)

    async def use_grant(
        self, call: ToolCall, *, agent_id: str, session_id: str, policy: ApprovalPolicy
    ) -> Grant | None:
        """Use one of the grants that cover this call, counting the use; None when none does."""
        for document in await self.store.scan("grant", label=call.name):
            content = json.loads(document.body)
            try:
                grant = Grant.model_validate(content["grant"])
                policy.check_grant(grant)
            except (ValueError, KeyError, ApprovalError):
                continue  # a grant that cannot be trusted grants nothing
            uses = int(content["uses"])
            if grant.max_uses is not None and uses >= grant.max_uses:
                continue
            if not grant.covers(call, agent_id=agent_id, session_id=session_id, now_s=time.time()):
                continue
            try:
                body = json.dumps(content | {"uses": uses + 1})
                await self.store.put("grant", document.key, body, expected=document.version, label=call.name)
            except SessionConflictError:
                continue  # another worker used it at this moment: the human is asked rather than the limit exceeded
            return grant
        return None

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


def ordered_to_stop(stops: dict[str, float], state: AgentState) -> bool:
    """True when a stop order was given after this worker took the session up."""
    latest = max(stops.get(_ALL, 0.0), stops.get(session_key(state.agent_id, state.session_id), 0.0))
    return latest > state.claimed_s
