"""The session store: versioned documents and append-only logs, one atomic write, and a clock.

Documents are written by compare-and-set; logs grow at an expected position or chained to the entry before. What must
hold across processes (one worker wins, a decision counts once, an audit has no fork) rests on these two. Times are the
store's: the clocks of two machines are never compared.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, runtime_checkable

import anyio
from pydantic import BaseModel

from grampus_uq.errors import DamagedLogError, DataError, SessionConflictError, StoreError
from grampus_uq.records.strict_json import snapshot_fault
from grampus_uq.records.values import sha256_of

SCHEMA_VERSION = 3
"""The schema that this release makes of a store.

A store has two numbers: the schema that it has, and the least that a release must know to work on it, which is the one
before. A step adds; what it replaces goes with the next one. So a release works on a store that the next one has
migrated, and on one that only its owner may migrate and has not yet.
"""
OLDEST_SCHEMA = SCHEMA_VERSION - 1
Stored = TypeVar("Stored", bound=BaseModel)
Result = TypeVar("Result")
Default = TypeVar("Default", float, None)
WAKING: Final = "job"
"""The kind of documents that wake who waits in `wait_for_job`."""
_POLL_S = 0.1
_PAGE = 200
_SHORTEST_ID = 6
GENESIS: Final = "0" * 64
"""Predecessor hash of the first entry of a chained log."""
_HEX: Final = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A stored JSON text with its version (from 1) and the label that `scan` selects by.

    `written_s` and `read_s` are the times of writing and reading this version, both by the store's clock.
    """

    kind: str
    key: str
    version: int
    body: str
    label: str = ""
    written_s: float = 0.0
    read_s: float = 0.0

    @property
    def age_s(self) -> float:
        """Seconds from the writing of this version to its reading."""
        return self.read_s - self.written_s

    def removal(self) -> Delete:
        """The change that removes this version."""
        return Delete(kind=self.kind, key=self.key, expected=self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Write version `expected` + 1 of a document, if the stored version is `expected` (0: there is none)."""

    kind: str
    key: str
    body: str
    expected: int
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove a document, if its stored version is `expected`."""

    kind: str
    key: str
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Add entries to a log: at `expected`, if that is its length, or (`expected` None) chained to the last entry.

    A chained entry is a JSON object; the store puts its position, time and hash in front, as `chained` does.
    """

    log: str
    bodies: tuple[str, ...]
    expected: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Remove a log with all its entries."""

    log: str


Change = Put | Delete | Append | Drop


@runtime_checkable
class SessionStore(Protocol):
    """A durable place for small JSON documents and logs; your own store inherits from this and writes the six methods.

    They are `now`, `get`, `scan`, `read`, `write` and `aclose`; a store that lacks one cannot be made.

    Every method may be awaited from any task of one event loop, on asyncio and trio; none blocks the loop. When `write`
    returns, its changes survive the death of the process. `StoreError` is raised when the backend cannot be reached or
    refuses: then all of the changes were made or none. `SessionConflictError` when another writer was first: then none.
    """

    @abstractmethod
    async def now(self) -> float:
        """Seconds since 1970 by the store's own clock, which all its users share; it never goes back."""
        ...

    @abstractmethod
    async def get(self, kind: str, key: str) -> Document | None:
        """The newest version of a document, or None. Nothing is created by asking."""
        ...

    @abstractmethod
    async def scan(
        self,
        kind: str,
        *,
        label: str | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Document]:
        """The documents of a kind, by key in the order of code points, found by index.

        Only those with the label and the key prefix where given; of these the first `limit` behind the key `after`.
        """
        ...

    async def children(self, kind: str, parents: Sequence[str]) -> list[Document]:
        """The documents behind any of these keys and a slash, none within another; package stores ask once for all."""
        return [found for parent in parents for found in await self.scan(kind, prefix=f"{parent}/")]

    @abstractmethod
    async def read(self, log: str, *, start: int = 0) -> list[str]:
        """The entries of a log from `start` on."""
        ...

    @abstractmethod
    async def write(self, *changes: Change) -> float:
        """Make all changes or none, in one round trip; returns `now` of the writing. No two changes share a target."""
        ...

    @abstractmethod
    async def aclose(self) -> None:
        """Close connections; the next operation opens them again."""
        ...

    async def wait_for_job(self, at_most_s: float) -> None:
        """Return when a document of the kind `WAKING` may have been made since the last call, or after so long.

        The first call returns at once. Without a store's own way to hear of it: a short sleep.
        """
        await anyio.sleep(min(at_most_s, _POLL_S))

    async def at_once(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """The result of bounded work that awaits nothing but this store; it is not a transaction.

        The package's stores do it in one turn of their thread: ten reads cost little more than one.
        """
        return await work()

    async def put(self, kind: str, key: str, body: str, *, expected: int, label: str = "") -> int:
        """`write` one `Put`; returns the new version."""
        await self.write(Put(kind=kind, key=key, body=body, expected=expected, label=label))
        return expected + 1

    async def append(self, log: str, body: str, *, expected: int | None) -> None:
        """`write` one `Append` of one entry."""
        await self.write(Append(log=log, bodies=(body,), expected=expected))


def pages(store: SessionStore, kind: str, label: str | None = None) -> AsyncIterator[Document]:
    """All documents of a kind, read in pages: memory does not grow with the store."""
    return _Pages(store, kind, label)


async def documents(store: SessionStore, kind: str, keys: Iterable[str]) -> dict[str, Document]:
    """The documents of a kind that are under these keys, read in one turn of the store."""
    wanted = dict.fromkeys(keys)

    async def read() -> dict[str, Document]:
        return {key: found for key in wanted if (found := await store.get(kind, key)) is not None}

    return await store.at_once(read) if wanted else {}


async def find_record(
    store: SessionStore, kind: str, record_id: str, read: Callable[[Document], Result | None]
) -> Result:
    """The record under this id, or under a unique beginning of it of 6 characters or more; raises DataError."""
    exact = await store.get(kind, record_id)
    found = [] if exact is None else [exact]
    if exact is None and len(record_id) >= _SHORTEST_ID:
        found = await store.scan(kind, prefix=record_id, limit=2)
    if len(found) != 1 or (record := read(found[0])) is None:
        which = f"No {kind} has" if not found else f"Several {kind}s have, or one that cannot be read has,"
        raise DataError(f"{which} the id {record_id!r:.40}.")
    return record


async def try_write(store: SessionStore, *changes: Change) -> bool:
    """`write` these changes; False where another writer was first: then none of them was made."""
    try:
        await store.write(*changes)
    except SessionConflictError:
        return False
    return True


class _Pages(AsyncIterator[Document]):
    """No generator: a loop that an error ends would leave one open, of which trio warns."""

    def __init__(self, store: SessionStore, kind: str, label: str | None) -> None:
        self._store, self._kind, self._label = store, kind, label
        self._after: str | None = None
        self._page: list[Document] = []

    async def __anext__(self) -> Document:
        if not self._page:
            found = await self._store.scan(self._kind, label=self._label, after=self._after, limit=_PAGE)
            self._page = found[::-1]
        if not self._page:
            raise StopAsyncIteration
        document = self._page.pop()
        self._after = document.key
        return document


def link(previous: str, position: int, time_s: str, body: str) -> str:
    """The hash of a chained entry, in hex: SHA-256 over the hash before it, its position, time and content.

    `time_s` has six decimals. The content enters by its own hash, so that a script on a server hashes short texts only.
    """
    content = sha256_of(body)
    return hashlib.sha256(f"{previous} {position} {time_s} {content}".encode()).hexdigest()


def chained(body: str, position: int, now_s: float, last: str | None) -> str:
    """The stored text of a chained entry behind `last`: version, position, time and hashes, then its content.

    Raises DamagedLogError where `last` is not a chained entry: nothing can follow it.
    """
    previous = GENESIS if last is None else hash_of(last)
    time_s = f"{now_s:.6f}"
    head = f'"v":2,"seq":{position},"time_s":{time_s},"previous":"{previous}"'
    return f'{{{head},"hash":"{link(previous, position, time_s, body)}",{body[1:]}'


def hash_of(entry: str) -> str:
    """The hash that a stored entry says it has; raises DamagedLogError for a text that is not a chained entry."""
    try:
        found = json.loads(entry)["hash"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedLogError(f"a log cannot go on: its last entry cannot be read ({type(error).__name__})") from error
    if not isinstance(found, str) or len(found) != len(GENESIS) or not set(found) <= _HEX:
        raise DamagedLogError("a log cannot go on: its last entry has no hash")
    return found


def after_prefix(prefix: str) -> str | None:
    """The first text after all with the prefix, in the order of code points; None when there is none."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if 0xD800 <= following <= 0xDFFF else following)


def parsed(model: type[Stored], body: str, what: str) -> Stored:
    """A stored text as this model; raises StoreError, naming `what` it is and quoting nothing, where it is none."""
    try:
        return model.model_validate_json(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"{what} cannot be read: {snapshot_fault(error, 'what it should be')!s:.500}") from None


def stored_number(text: str, default: Default, *path: str) -> float | Default:
    """A number in a stored JSON text; the default where it cannot be read."""
    try:
        found = json.loads(text)
        for name in path:
            found = found[name]
        return float(found)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return default


def check_schema(needed: int) -> None:
    """Raise StoreError for a store that needs a newer release: one that the release behind the next has migrated."""
    if needed > SCHEMA_VERSION:
        raise StoreError(f"The store has schema version {needed}; this version reads up to {SCHEMA_VERSION}.")
