"""The state before each step of a model, kept so that a run can be taken back to it.

A checkpoint holds everything but the transcript, and of that the length and a hash: what was said before a step is
never changed afterwards, so the session's own transcript supplies it. Together the checkpoints of a run take space in
proportion to its length.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from grampus_uq.errors import SessionConflictError, SessionError, StoreError
from grampus_uq.records import Message
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.state import AgentState, Segment, read_state
from grampus_uq.runtime.store import SessionStore

__all__ = [
    "Checkpoint",
    "checkpoints_of",
    "copy_checkpoints",
    "lineage_of",
    "read_checkpoint",
    "run_prefix",
    "write_checkpoint",
]

KIND = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A stored checkpoint: before which step, after how many messages, and its text."""

    step: int
    messages: int
    body: str


def lineage_of(state: AgentState) -> list[Segment]:
    """The branches that the steps of this state come from, the oldest first; one when nothing was rolled back."""
    return list(state.lineage) or [Segment(branch=0, run_id=state.run_id, from_step=0)]


def run_prefix(state: AgentState) -> str:
    """The beginning of all keys of one run: its session, and the id that the run had before any rollback."""
    return f"{session_key(state.agent_id, state.session_id)}/{lineage_of(state)[0].run_id}/"


async def write_checkpoint(ledger: Ledger, state: AgentState) -> None:
    """Keep this state as the one before step `current_step`; a step that is tried again replaces its checkpoint."""
    body = json.dumps(
        {
            "v": 1,
            "messages": len(state.messages),
            "digest": _digest(state.messages),
            "state": json.loads(state.model_dump_json(exclude={"messages"})),
        }
    )
    key = _key(state, state.branch, state.current_step)
    body = ledger.sealed(key, body)
    try:
        await ledger.store.put(KIND, key, body, expected=0)
    except SessionConflictError:
        found = await ledger.store.get(KIND, key)
        if found is not None and found.body != body:
            await ledger.store.put(KIND, key, body, expected=found.version)


async def checkpoints_of(store: SessionStore, state: AgentState) -> list[Checkpoint]:
    """The checkpoints of the steps that this state consists of, by step; those of discarded branches are left out."""
    found = {document.key: document.body for document in await store.scan(KIND, prefix=run_prefix(state))}
    kept = []
    for step in range(state.current_step + 1):
        body = found.get(_key(state, _branch_at(state, step), step))
        if body is not None:
            kept.append(Checkpoint(step=step, messages=_field(body, "messages"), body=body))
    return kept


async def read_checkpoint(ledger: Ledger, state: AgentState, step: int) -> AgentState:
    """The state before `step` of this run.

    Raises SessionError when it was not kept, StoreError when it cannot be read or does not fit the transcript.
    """
    found = await ledger.store.get(KIND, _key(state, _branch_at(state, step), step))
    if found is None:
        raise SessionError(
            f"Session {state.session_id!r:.80} has no checkpoint before step {step}: a run that may be rolled back "
            "needs AgentRunner(..., checkpoints=True) from its start."
        )
    before = state.messages[: _field(found.body, "messages")]
    if _digest(before) != json.loads(found.body).get("digest"):
        raise StoreError(f"The checkpoint before step {step} does not fit the session's transcript.")
    restored = read_state(json.dumps(json.loads(found.body).get("state")))
    restored.messages = list(before)
    restored._sealed = ledger.opened(found.key, found.body)[1]
    return restored


async def copy_checkpoints(
    source: SessionStore, state: AgentState, target: SessionStore, copy: AgentState, *, until: int
) -> None:
    """Give a copy of this run the checkpoints of the steps before `until`; what was believed is the run's own."""
    for checkpoint in await checkpoints_of(source, state):
        if checkpoint.step < until:
            body = json.loads(checkpoint.body)
            body["state"]["belief"] = None
            await target.put(KIND, _key(copy, copy.branch, checkpoint.step), json.dumps(body), expected=0)


def _branch_at(state: AgentState, step: int) -> int:
    return max((s for s in lineage_of(state) if s.from_step <= step), key=lambda s: s.branch).branch


def _key(state: AgentState, branch: int, step: int) -> str:
    return f"{run_prefix(state)}{branch:04d}/{step:06d}"


def _field(body: str, name: str) -> int:
    value = json.loads(body).get(name)
    if not isinstance(value, int) or value < 0:
        raise StoreError(f"A stored checkpoint cannot be read: its {name!r} is {value!r:.40}.")
    return value


def _digest(messages: Sequence[Message]) -> str:
    running = hashlib.sha256()
    for message in messages:
        running.update(message.model_dump_json().encode("utf-8", "surrogatepass") + b"\n")
    return running.hexdigest()
