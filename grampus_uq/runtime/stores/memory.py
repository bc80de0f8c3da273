"""A store in the memory of one process: for tests, and for runs that need not outlive it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from grampus_uq.errors import SessionConflictError, StoreError
from grampus_uq.runtime.store import Append, Change, Delete, Document, Put, SessionStore, chained, hash_of


class MemoryStore(SessionStore):
    """Dictionaries; gone with the process."""

    def __init__(self) -> None:
        self._documents: dict[tuple[str, str], Document] = {}
        self._by_label: dict[tuple[str, str | None], dict[str, None]] = {}
        self._logs: dict[str, list[str]] = {}
        self._latest = 0.0

    @classmethod
    def opened(cls, url: str, *, create: bool = True) -> MemoryStore:
        """A new one; with `create=False` a StoreError, since no other process's memory can be meant."""
        if not create:
            raise StoreError("A store in memory belongs to one process: there is no existing one to open.")
        return cls()

    def _now(self) -> float:
        self._latest = max(self._latest, time.time())
        return self._latest

    async def now(self) -> float:
        """This machine's clock, which never goes back."""
        return self._now()

    async def get(self, kind: str, key: str) -> Document | None:
        found = self._documents.get((kind, key))
        return None if found is None else self._read(found)

    def _read(self, found: Document) -> Document:
        return replace(found, read_s=self._now())

    async def scan(
        self,
        kind: str,
        *,
        label: str | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Document]:
        keys = sorted(
            key
            for key in self._by_label.get((kind, label), ())
            if key.startswith(prefix) and (after is None or key > after)
        )
        return [self._read(self._documents[kind, key]) for key in keys[:limit]]

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        return self._logs.get(log, [])[start:]

    async def write(self, *changes: Change) -> float:
        """Check all changes, then make them: no other task runs in between."""
        for change in changes:
            if isinstance(change, Put | Delete):
                current = self._documents.get((change.kind, change.key))
                self._expect(f"{change.kind} {change.key!r}", 0 if current is None else current.version, change)
            elif isinstance(change, Append) and change.expected is not None:
                self._expect(f"log {change.log!r}", len(self._logs.get(change.log, ())), change)
            elif isinstance(change, Append) and self._logs.get(change.log):
                hash_of(self._logs[change.log][-1])
        now_s = self._now()
        for change in changes:
            self._make(change, now_s)
        return now_s

    @staticmethod
    def _expect(what: str, version: int, change: Any) -> None:
        if version != change.expected:
            raise SessionConflictError(f"{what} is at {version}, not {change.expected}: another writer was first.")

    def _make(self, change: Change, now_s: float) -> None:
        if isinstance(change, Append):
            entries = self._logs.setdefault(change.log, [])
            for body in change.bodies:
                last = entries[-1] if entries else None
                entries.append(body if change.expected is not None else chained(body, len(entries), now_s, last))
        elif isinstance(change, Put | Delete):
            old = self._documents.pop((change.kind, change.key), None)
            if old is not None:
                self._by_label[old.kind, old.label].pop(old.key, None)
                self._by_label[old.kind, None].pop(old.key, None)
            if isinstance(change, Put):
                self._documents[change.kind, change.key] = Document(
                    kind=change.kind, key=change.key, version=change.expected + 1, body=change.body,
                    label=change.label, written_s=now_s,
                )  # fmt: skip
                for label in (change.label, None):
                    self._by_label.setdefault((change.kind, label), {})[change.key] = None
        else:
            self._logs.pop(change.log, None)

    async def aclose(self) -> None:
        """Nothing to let go of."""
