"""A hash-chained audit of one session: each entry carries the hash of the one before, so a changed past shows.

An entry is written before a call is executed and after it. A call with the first entry and without the second was in
the hands of a process that died: whether it took effect is unknown, and the audit says so.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from grampus_uq.errors import DataError, SessionConflictError
from grampus_uq.records import canonical_json
from grampus_uq.runtime.ledger import session_key
from grampus_uq.runtime.store import SessionStore

__all__ = ["AuditLog", "unknown_calls", "verify_audit"]

_GENESIS = "0" * 64


class AuditLog:
    """Appends to one session's audit; several workers may append, each sees the others' entries first."""

    def __init__(self, store: SessionStore, agent_id: str, session_id: str) -> None:
        self._store = store
        self._log = f"audit/{session_key(agent_id, session_id)}"
        self._length = 0
        self._last = _GENESIS

    async def append(self, what: str, data: Mapping[str, JsonValue]) -> None:
        """Add one entry; raises StoreError when it could not be written: what it announces must then not happen."""
        while True:
            for body in await self._store.read(self._log, start=self._length):
                self._last = str(json.loads(body)["hash"])
                self._length += 1
            entry = {
                "seq": self._length,
                "time_s": time.time(),
                "what": what,
                "data": dict(data),
                "previous": self._last,
            }
            entry["hash"] = _hash(entry)
            try:
                await self._store.append(self._log, canonical_json(entry), expected=self._length)
            except SessionConflictError:
                continue  # another worker appended meanwhile: read it and chain to it
            self._last = str(entry["hash"])
            self._length += 1
            return

    async def entries(self) -> list[dict[str, Any]]:
        """The whole audit, verified; raises DataError at the first entry that does not fit the chain."""
        entries = [json.loads(body) for body in await self._store.read(self._log)]
        verify_audit(entries)
        return entries


def _hash(entry: Mapping[str, Any]) -> str:
    content = {key: value for key, value in entry.items() if key != "hash"}
    return hashlib.sha256(canonical_json(content).encode("utf-8", "surrogatepass")).hexdigest()


def verify_audit(entries: Sequence[Mapping[str, Any]]) -> None:
    """Raise DataError at the first entry whose place, predecessor or content is not what its hash says."""
    previous = _GENESIS
    for index, entry in enumerate(entries):
        if entry.get("seq") != index:
            raise DataError(f"entry {index} says it is number {entry.get('seq')!r:.20}", line=index + 1, field="seq")
        if entry.get("previous") != previous:
            raise DataError(f"entry {index} does not follow the one before it", line=index + 1, field="previous")
        if entry.get("hash") != _hash(entry):
            raise DataError(f"entry {index} was changed after it was written", line=index + 1, field="hash")
        previous = str(entry["hash"])


def unknown_calls(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The calls that were started and never reported back: nobody knows whether they took effect."""
    open_calls: dict[str, dict[str, Any]] = {}
    for entry in entries:
        key = str(entry["data"].get("idempotency_key", ""))
        if entry["what"] in ("execution_started", "outcome_unknown"):
            open_calls[key] = dict(entry["data"])
        elif entry["what"] in ("execution_finished", "execution_settled"):
            open_calls.pop(key, None)
    return list(open_calls.values())
