"""Where sessions, decisions, grants and audits live: six primitives that every backend implements the same way.

Documents are versioned and written by compare-and-set; logs are append-only with an expected length. Everything that
must hold across processes (one worker wins, a decision counts once, an audit chain has no fork) rests on these two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

from grampus_uq.errors import ConfigurationError

__all__ = ["SCHEMA_VERSION", "Document", "SessionStore", "open_store"]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A stored JSON text with its version (from 1) and the label that `scan` selects by."""

    kind: str
    key: str
    version: int
    body: str
    label: str = ""


@runtime_checkable
class SessionStore(Protocol):
    """A durable place for small JSON documents and logs.

    Every method may be awaited from any task of one event loop, on asyncio and trio; none blocks the loop. When `put`
    or `append` returns, the write survives the death of the process. `StoreError` is raised when the backend cannot be
    reached or refuses, `SessionConflictError` when another writer was first; after either nothing was written.
    """

    async def get(self, kind: str, key: str) -> Document | None:
        """The newest version of a document, or None."""
        ...

    async def put(self, kind: str, key: str, body: str, *, expected: int, label: str = "") -> int:
        """Write version `expected` + 1 if the stored version is `expected` (0: none); returns the new version."""
        ...

    async def scan(self, kind: str, *, label: str | None = None, prefix: str = "") -> list[Document]:
        """All documents of a kind, by key; only those with the label and the key prefix where given."""
        ...

    async def append(self, log: str, body: str, *, expected: int) -> None:
        """Append an entry if the log has exactly `expected` entries."""
        ...

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        """The entries of a log from `start` on."""
        ...

    async def aclose(self) -> None:
        """Let go of connections; the store may be opened again."""
        ...


def open_store(url: str) -> SessionStore:
    """A store by URL: "memory:", "sqlite:///path/to/file.db" (or a bare path), "postgresql://…", "redis://…"."""
    scheme = urlsplit(url).scheme
    if url == "memory:":
        from grampus_uq.runtime.stores.memory import MemoryStore

        return MemoryStore()
    if scheme in ("", "sqlite", "file") or len(scheme) == 1:  # one letter: a Windows drive
        from grampus_uq.runtime.stores.sqlite import SQLiteStore

        return SQLiteStore(url.removeprefix("sqlite:///") if scheme == "sqlite" else url)
    if scheme in ("postgresql", "postgres"):
        from grampus_uq.runtime.stores.postgres import PostgresStore

        return PostgresStore(url)
    if scheme in ("redis", "rediss", "unix"):
        from grampus_uq.runtime.stores.redis import RedisStore

        return RedisStore(url)
    raise ConfigurationError.of(
        "url", "open_store", "memory:, sqlite:///FILE, postgresql://… or redis://…", f"{scheme}://…"
    )
