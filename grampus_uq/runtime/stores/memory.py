"""A store in the memory of one process: for tests, and for runs that need not outlive it."""

from __future__ import annotations

from grampus_uq.errors import SessionConflictError
from grampus_uq.runtime.store import Document

__all__ = ["MemoryStore"]


class MemoryStore:
    """Dictionaries; gone with the process."""

    def __init__(self) -> None:
        self._documents: dict[tuple[str, str], Document] = {}
        self._logs: dict[str, list[str]] = {}

    async def get(self, kind: str, key: str) -> Document | None:
        """The newest version of a document, or None."""
        return self._documents.get((kind, key))

    async def put(self, kind: str, key: str, body: str, *, expected: int, label: str = "") -> int:
        """Compare and set."""
        current = self._documents.get((kind, key))
        version = 0 if current is None else current.version
        if version != expected:
            raise SessionConflictError(
                f"{kind} {key!r} is at version {version}, not {expected}: another writer was first."
            )
        self._documents[kind, key] = Document(kind=kind, key=key, version=version + 1, body=body, label=label)
        return version + 1

    async def scan(self, kind: str, *, label: str | None = None, prefix: str = "") -> list[Document]:
        """All documents of a kind, by key."""
        found = (d for (k, _), d in self._documents.items() if k == kind)
        return sorted(
            (d for d in found if d.key.startswith(prefix) and (label is None or d.label == label)),
            key=lambda d: d.key,
        )

    async def append(self, log: str, body: str, *, expected: int) -> None:
        """Append if the log is as long as expected."""
        entries = self._logs.setdefault(log, [])
        if len(entries) != expected:
            raise SessionConflictError(
                f"log {log!r} has {len(entries)} entries, not {expected}: another writer was first."
            )
        entries.append(body)

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        """The entries from `start` on."""
        return self._logs.get(log, [])[start:]

    async def aclose(self) -> None:
        """Nothing to let go of."""
