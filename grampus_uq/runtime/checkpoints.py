"""Checkpoints: the state before each step of the model, for rollbacks.

A checkpoint holds everything but the transcript, and the length and hash of that: earlier messages never change, so the
session's own transcript supplies them. The checkpoints of a run take space in proportion to its length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field

from grampus_uq.errors import SessionConflictError, SessionError, StoreError
from grampus_uq.records.values import Message
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.run_state import AgentState, Segment
from grampus_uq.runtime.store import Document, SessionStore, parsed

KIND = "checkpoint"


class Checkpoint(BaseModel):
    """A state before a step of the model without its messages: how many there were, and the hash over them."""

    v: Literal[1] = 1
    messages: int = Field(ge=0)
    digest: str
    state: AgentState

    @property
    def step(self) -> int:
        """The step that the run had not made."""
        return self.state.current_step


def lineage_of(state: AgentState) -> list[Segment]:
    """The branches that the steps of this state come from, the oldest first; one when nothing was rolled back."""
    return list(state.lineage) or [Segment(branch=0, run_id=state.run_id, from_step=0)]


def run_prefix(state: AgentState) -> str:
    """The beginning of all keys of one run: its session, and the id that the run had before any rollback."""
    return f"{session_key(state.agent_id, state.session_id)}/{lineage_of(state)[0].run_id}/"


async def write_checkpoint(ledger: Ledger, state: AgentState) -> None:
    """Store this state as the one before step `current_step`; a repeated step replaces its checkpoint."""
    checkpoint = Checkpoint(messages=len(state.messages), digest=_digest(state.messages), state=state)
    key = _key(state, state.branch, state.current_step)
    body = ledger.sealed(key, checkpoint.model_dump_json(exclude={"state": {"messages"}}))
    try:
        await ledger.store.put(KIND, key, body, expected=0)
    except SessionConflictError:
        found = await ledger.store.get(KIND, key)
        if found is not None and found.body != body:
            await ledger.store.put(KIND, key, body, expected=found.version)


async def checkpoints_of(store: SessionStore, state: AgentState) -> list[Checkpoint]:
    """The checkpoints of this state's own steps, in order; those of discarded branches are left out."""
    own = {_key(state, segment_at(state, step).branch, step) for step in range(state.current_step + 1)}
    kept = [_read(found) for found in await store.scan(KIND, prefix=run_prefix(state)) if found.key in own]
    return sorted(kept, key=lambda checkpoint: checkpoint.step)


async def read_checkpoint(ledger: Ledger, state: AgentState, step: int) -> AgentState:
    """The state before `step`. Raises SessionError: not kept; StoreError: unreadable, or not of this transcript."""
    found = await ledger.store.get(KIND, _key(state, segment_at(state, step).branch, step))
    if found is None:
        raise SessionError(
            f"Session {state.session_id!r:.80} has no checkpoint before step {step}: a run that may be rolled back "
            "needs AgentRunner(..., checkpoints=True) from its start."
        )
    checkpoint = _read(found)
    before = state.messages[: checkpoint.messages]
    if _digest(before) != checkpoint.digest:
        raise StoreError(f"The checkpoint before step {step} does not fit the session's transcript.")
    restored = checkpoint.state
    restored.messages = list(before)
    restored._sealed = ledger.opened(found.key, found.body)[1]
    return restored


def segment_at(state: AgentState, step: int) -> Segment:
    """The branch that this step of the state comes from."""
    return max((s for s in lineage_of(state) if s.from_step <= step), key=lambda s: s.branch)


def _key(state: AgentState, branch: int, step: int) -> str:
    return f"{run_prefix(state)}{branch:04d}/{step:06d}"


def _read(found: Document) -> Checkpoint:
    return parsed(Checkpoint, found.body, "A stored checkpoint")


def _digest(messages: Sequence[Message]) -> str:
    running = hashlib.sha256()
    for message in messages:
        running.update(message.model_dump_json().encode("utf-8", "surrogatepass") + b"\n")
    return running.hexdigest()
