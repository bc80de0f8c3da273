"""The transcript of a session as a log of changes: a save writes only what is new, however long the run is.

Each entry has the first message that it replaces or adds, the number of messages after it, and the messages. The
session's document has the name of the log, how many of its entries count, and their hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from grampus_uq.errors import StoreError
from grampus_uq.records.values import Message
from grampus_uq.runtime.store import parsed


class Transcript(BaseModel):
    """Location of a session's messages: the log, the number of valid entries, and their hash in order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    log: str
    entries: int = Field(default=0, ge=0)
    digest: str = ""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    start: int = Field(ge=0)
    length: int = Field(ge=0)
    messages: list[Message]


def changes(before: Sequence[Message], after: Sequence[Message]) -> list[str]:
    """The entries that lead from one transcript to the other; messages never change, so the same object is the same."""
    ranges: list[tuple[int, list[Message]]] = []
    for index, message in enumerate(after):
        if index >= len(before) or before[index] is not message:
            if ranges and ranges[-1][0] + len(ranges[-1][1]) == index:
                ranges[-1][1].append(message)
            else:
                ranges.append((index, [message]))
    if not ranges and len(after) < len(before):
        ranges.append((len(after), []))
    return [_written(start, len(after), messages) for start, messages in ranges]


def _written(start: int, length: int, messages: Sequence[Message]) -> str:
    texts = ",".join(message.model_dump_json(exclude_defaults=True) for message in messages)
    return f'{{"start":{start},"length":{length},"messages":[{texts}]}}'


def extended(transcript: Transcript, entries: Sequence[str]) -> Transcript:
    """The transcript with these entries behind its own."""
    digest = transcript.digest
    for entry in entries:
        digest = hashlib.sha256(digest.encode() + entry.encode("utf-8", "surrogatepass")).hexdigest()
    return Transcript(log=transcript.log, entries=transcript.entries + len(entries), digest=digest)


def replayed(transcript: Transcript, entries: Sequence[str]) -> list[Message]:
    """The messages in the log; raises StoreError when it is not the one that its session wrote."""
    counted = entries[: transcript.entries]
    if extended(Transcript(log=transcript.log), counted) != transcript:
        raise StoreError("The stored transcript does not fit its session: it was changed, or part of it is gone.")
    messages: list[Message] = []
    for body in counted:
        entry = parsed(_Entry, body, "The stored transcript")
        del messages[entry.length :]
        messages[entry.start : entry.start + len(entry.messages)] = entry.messages
    return messages
