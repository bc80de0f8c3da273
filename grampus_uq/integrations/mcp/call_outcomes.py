"""Outcome of a proposed call, and the shared state of the call for all requests waiting on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grampus_uq.gate.call import CallRecord, Doubt
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.integrations.mcp.pins import Pin
from grampus_uq.records.vocabulary import Effect, UncertaintyLevel

REPEATED: Final = Doubt(
    level=UncertaintyLevel.HIGH,
    rule="repeated_call",
    reason="of equal calls that cannot be undone only one goes ahead by itself in a session, and the same one was "
    "proposed before: running it again does it twice",
)
"""Of equal calls (tool, arguments) that cannot be undone, one goes ahead without a human: whether its client was told
of it is known to nobody for certain, and a client that was not sends it again."""


def matters(record: CallRecord) -> bool:
    """Return True for a call whose outcome must be reported."""
    return bool(record.decisions) or record.effect is Effect.IRREVERSIBLE


def unknown(why: str, record: CallRecord | None) -> str:
    """The words for a client whose request had this instead of an answer, after it was sent; `record` of its call."""
    matter = record is not None and matters(record)
    return f"{why}: whether the call took effect is not known" if matter else why


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """This call is to run now, once, by whoever was told so."""

    record: CallRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """This call waits: for a decision on the request, or (None) for its own result."""

    request: ApprovalRequest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer for the model: the server's result (`raw`), or a text of the gate."""

    text: str = ""
    is_error: bool = False
    raw: str | None = None


@dataclass(slots=True, weakref_slot=True, kw_only=True)
class OpenCall:
    """A call as all requests for it know it, its `answer` once there is one; `shown`: its tool's definitions."""

    id: str
    shown: tuple[Pin, ...] = ()
    answer: Answer | None = None
