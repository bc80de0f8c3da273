"""The part of a stored session that lists of sessions need, and those that run beside it: read without the rest."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from grampus_uq.gate.call import CallPhase
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.run_state import STATE_VERSION, count, pending, readable, texts


class PendingCall(BaseModel):
    """The part of a call's record that lists of sessions need."""

    phase: CallPhase = CallPhase.NEW
    requests: tuple[ApprovalRequest, ...] = ()
    child_session: str | None = None


class _HeadMetadata(BaseModel):
    """The part of a session's metadata that lists of sessions need."""

    attended: Any = False
    worker_deaths: Any = 0
    parent_session: Any = None
    parent_run: Any = None
    parents: Any = None
    looks_replaced: Any = None
    rejected_before: Any = None


class SessionHead(BaseModel):
    """The part of a stored session that lists of sessions need, read without the rest."""

    model_config = ConfigDict(extra="ignore")

    v: int = Field(le=STATE_VERSION)
    agent_id: str
    session_id: str
    run_id: str = ""
    status: AgentStatus
    turn: list[PendingCall] = Field(default_factory=list)
    review: list[ApprovalRequest] = Field(default_factory=list)
    rejected: list[str] = Field(default_factory=list)
    worker: str | None = None
    lease_s: float = 0.0
    lease_until_s: float = 0.0
    claimed_s: float = 0.0
    stops_seen: tuple[int, int] | None = None
    metadata: _HeadMetadata = _HeadMetadata()

    @property
    def attended(self) -> bool:
        """Return True if the worker takes up decisions while the session runs; pending requests are shown meanwhile."""
        return self.metadata.attended is True

    @property
    def deaths(self) -> int:
        """The number of workers in a row that died while they ran the session, the latest one included."""
        return count(self.metadata.worker_deaths) + (self.status is AgentStatus.RUNNING)

    def pending(self) -> list[ApprovalRequest]:
        """The pending approval requests."""
        return pending(self.review, self.turn)

    def asks_beside(self, sessions: Collection[str]) -> bool:
        """True where humans may answer, or have answered, a call of the turn that none of these sessions serves."""
        open_calls = [call for call in self.turn if call.child_session not in sessions]
        return any(
            call.phase is CallPhase.WAITING or (call.child_session and call.phase is not CallPhase.SETTLED)
            for call in open_calls
        )

    def rejected_before(self) -> list[str]:
        """The answers of humans against calls in earlier runs of the session, or of its parent's."""
        return texts(self.metadata.rejected_before)

    def awaited(self) -> set[str]:
        """The ids of requests whose decisions may still count, pending or replaced, and of sub-agents' sessions with
        some."""
        replaced = readable(self.metadata.looks_replaced)
        asked = {request.id for request in [*self.pending(), *(one for held in replaced for one in held.requests)]}
        return asked | {held.child_session for held in replaced if held.child_session is not None}
