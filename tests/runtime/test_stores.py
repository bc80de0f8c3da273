"""Every store holds the one contract, on real servers, on asyncio and trio; the checks fail broken stores."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from grampus_uq.errors import ConfigurationError
from grampus_uq.runtime.store import Append, Change, Delete, Document, Put, Result, SessionStore, chained
from grampus_uq.runtime.stores.conformance import check_session_store
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.stores.postgres import PostgresStore
from grampus_uq.runtime.stores.redis import RedisStore
from grampus_uq.runtime.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.anyio


async def check(opened: Callable[[], SessionStore]) -> None:
    async def give() -> SessionStore:
        return opened()

    await check_session_store(give)


async def test_the_memory_store_conforms() -> None:
    store = MemoryStore()
    await check(lambda: store)


async def test_the_sqlite_store_conforms(tmp_path: Path) -> None:
    await check(lambda: SQLiteStore(tmp_path / "s.db"))


@pytest.mark.one_loop
async def test_the_postgres_store_conforms(postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as db:
        for table in ("grampus_documents", "grampus_logs", "grampus_schema"):
            db.execute(f"DROP TABLE IF EXISTS {table}")
    await check(lambda: PostgresStore(postgres_url))


async def test_the_redis_store_conforms(redis_url: str) -> None:
    namespace = uuid.uuid4().hex
    await check(lambda: RedisStore(redis_url, namespace=namespace))


async def test_what_is_done_at_once_cannot_wait_for_anything_else_and_the_store_goes_on(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")

    async def work() -> None:
        await store.put("doc", "a", "{}", expected=0)
        await anyio.lowlevel.checkpoint()

    class Waits:
        def __await__(self) -> Any:
            yield

    async def waits() -> None:
        await Waits()

    for waiting in (work, waits):
        with pytest.raises(RuntimeError):
            await store.at_once(waiting)
    assert await store.get("doc", "a") is not None
    await store.aclose()


async def test_what_is_done_at_once_and_cancelled_ends_first(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.db")

    async def work() -> None:
        for number in range(200):
            await store.put("doc", f"{number}", "{}", expected=0)

    async with anyio.create_task_group() as group:
        group.start_soon(store.at_once, work)
        await anyio.sleep(0.005)
        group.cancel_scope.cancel()
    assert len(await store.scan("doc")) in (0, 200)
    await store.aclose()


def test_a_store_that_lacks_a_method_cannot_be_made() -> None:
    class Unread(MemoryStore):
        read = SessionStore.read

    with pytest.raises(TypeError, match="read"):
        Unread()


# -- sabotage: each store below is right but for one thing, and the checks say which -----------------------------------


class LastWriterWins(MemoryStore):
    """Checks no version."""

    async def write(self, *changes: Change) -> float:
        return await super().write(*(self._anyway(change) for change in changes))

    def _anyway(self, change: Change) -> Change:
        if not isinstance(change, Put):
            return change
        found = self._documents.get((change.kind, change.key))
        version = 0 if found is None else found.version
        return Put(kind=change.kind, key=change.key, body=change.body, expected=version, label=change.label)


class LostUpdate(MemoryStore):
    """Checks the version of a document that is written alone, and writes a moment later."""

    async def write(self, *changes: Change) -> float:
        if len(changes) > 1 or not isinstance(changes[0], Put):
            return await super().write(*changes)
        found = self._documents.get((changes[0].kind, changes[0].key))
        self._expect("it", 0 if found is None else found.version, changes[0])
        await anyio.lowlevel.checkpoint()
        now_s = self._now()
        self._make(changes[0], now_s)
        return now_s


class DuplicateAppend(MemoryStore):
    """Tries an append again that had been made."""

    async def write(self, *changes: Change) -> float:
        written_s = await super().write(*changes)
        again = [c for c in changes if isinstance(c, Append) and c.expected is None]
        return await super().write(*again) if again else written_s


class StaleRead(MemoryStore):
    """Answers from a cache of what was read before."""

    def __init__(self) -> None:
        super().__init__()
        self._cache: dict[tuple[str, str], tuple[int, Document]] = {}

    async def get(self, kind: str, key: str) -> Document | None:
        uses, cached = self._cache.get((kind, key), (0, None))
        if cached is not None and uses < 2:
            self._cache[kind, key] = (uses + 1, cached)
            return cached
        found = await super().get(kind, key)
        if found is not None:
            self._cache[kind, key] = (0, found)
        return found


class TornWrite(MemoryStore):
    """Writes the version first and the text a moment later."""

    async def write(self, *changes: Change) -> float:
        before = {(c.kind, c.key): self._documents.get((c.kind, c.key)) for c in changes if isinstance(c, Put)}
        written_s = await super().write(*changes)
        for place, old in before.items():
            new = self._documents[place]
            if old is not None:
                self._documents[place] = Document(
                    kind=new.kind, key=new.key, version=new.version, body=old.body, label=new.label, written_s=written_s
                )
                await anyio.lowlevel.checkpoint()
                if self._documents.get(place) is not None and self._documents[place].version == new.version:
                    self._documents[place] = new
        return written_s


class VersionStandsStill(MemoryStore):
    """Gives out versions that do not grow from the third on."""

    def _make(self, change: Change, now_s: float) -> None:
        super()._make(change, now_s)
        if isinstance(change, Put) and change.expected >= 2:
            new = self._documents[change.kind, change.key]
            self._documents[change.kind, change.key] = Document(
                kind=new.kind, key=new.key, version=2, body=new.body, label=new.label, written_s=now_s
            )


class ForgottenLabelIndex(MemoryStore):
    """Enters a document under its first label only."""

    def _make(self, change: Change, now_s: float) -> None:
        old = self._documents.get((change.kind, change.key)) if isinstance(change, Put) else None
        super()._make(change, now_s)
        if isinstance(change, Put) and old is not None and old.label != change.label:
            self._by_label[change.kind, change.label].pop(change.key)
            self._by_label[change.kind, old.label][change.key] = None


class ClockGoesBack(MemoryStore):
    """Each handle has a clock of its own, as the machines of workers do."""

    behind = 0

    def _now(self) -> float:
        self.behind += 1
        return super()._now() - 5.0 * (self.behind % 2)


class NotAllOrNothing(MemoryStore):
    """Makes the changes one by one, and stops where one fails."""

    async def write(self, *changes: Change) -> float:
        written_s = 0.0
        for change in changes:
            written_s = await super().write(change)
        return written_s


class OutOfOrder(MemoryStore):
    """Puts an entry before the one that came at the same moment."""

    def _make(self, change: Change, now_s: float) -> None:
        super()._make(change, now_s)
        if isinstance(change, Append) and change.expected is not None and len(self._logs[change.log]) > 2:
            entries = self._logs[change.log]
            entries[-2:] = reversed(entries[-2:])


class Truncated(MemoryStore):
    """Keeps the first 100,000 characters, as a column of a fixed width does."""

    async def get(self, kind: str, key: str) -> Document | None:
        found = await super().get(kind, key)
        return None if found is None else Document(**{**_fields(found), "body": found.body[:100_000]})


class PrunesWhatLives(MemoryStore):
    """Deletes whatever version is there."""

    async def write(self, *changes: Change) -> float:
        return await super().write(*(self._anyway(change) for change in changes))

    def _anyway(self, change: Change) -> Change:
        found = self._documents.get((change.kind, change.key)) if isinstance(change, Delete) else None
        if not isinstance(change, Delete) or found is None:
            return change
        return Delete(kind=change.kind, key=change.key, expected=found.version)


class CreatesOnRead(MemoryStore):
    """Makes an empty document of whatever is asked for."""

    async def get(self, kind: str, key: str) -> Document | None:
        if (kind, key) not in self._documents:
            await self.put(kind, key, "{}", expected=0)
            return None
        return await super().get(kind, key)


class ForkedChain(MemoryStore):
    """Reads the end of a log, and appends to it a moment later."""

    async def write(self, *changes: Change) -> float:
        made: list[Change] = []
        for change in changes:
            if isinstance(change, Append) and change.expected is None:
                entries = list(self._logs.get(change.log, ()))
                await anyio.lowlevel.checkpoint()
                now_s = self._now()
                for body in change.bodies:
                    entries.append(chained(body, len(entries), now_s, entries[-1] if entries else None))
                now = len(self._logs.get(change.log, ()))
                made.append(Append(log=change.log, bodies=tuple(entries[-len(change.bodies) :]), expected=now))
            else:
                made.append(change)
        return await super().write(*made)


class ChainOfOthers(MemoryStore):
    """Chains every entry to the beginning."""

    def _make(self, change: Change, now_s: float) -> None:
        super()._make(change, now_s)
        if isinstance(change, Append) and change.expected is None:
            entries = self._logs[change.log]
            entries[-1] = chained(change.bodies[-1], len(entries) - 1, now_s, None)


class ForgetsOnClose(MemoryStore):
    """Keeps what was written as long as it is open."""

    async def aclose(self) -> None:
        self._documents.clear()


class DropsAll(MemoryStore):
    """Drops every log whose name begins alike."""

    def _make(self, change: Change, now_s: float) -> None:
        if not isinstance(change, Put | Delete | Append):
            self._logs.clear()
        super()._make(change, now_s)


class TriesAgain(MemoryStore):
    """Does twice what is to be done at once."""

    async def at_once(self, work: Callable[[], Awaitable[Result]]) -> Result:
        await work()
        return await work()


class ErrorsOfItsOwn(MemoryStore):
    """Lets the errors of its storage through."""

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        return self._logs[log][start:]


def _fields(document: Document) -> dict[str, Any]:
    return {name: getattr(document, name) for name in Document.__slots__}


SABOTAGED = [
    (LastWriterWins, "conflict"),
    (LostUpdate, "exactly one|lost"),
    (DuplicateAppend, "nothing else"),
    (StaleRead, "."),
    (TornWrite, "its own text|half of a text|comes back|changes nothing"),
    (VersionStandsStill, "."),
    (ForgottenLabelIndex, "label"),
    (ClockGoesBack, "clock"),
    (NotAllOrNothing, "none of them"),
    (OutOfOrder, "order"),
    (Truncated, "whole"),
    (PrunesWhatLives, "delet"),
    (CreatesOnRead, "asking creates nothing|conflict"),
    (ForkedChain, "follows the one before"),
    (ChainOfOthers, "follows the one before"),
    (ForgetsOnClose, "opens again"),
    (DropsAll, "only that"),
    (TriesAgain, "done once"),
    (ErrorsOfItsOwn, r"raises StoreError or SessionConflictError\. \(KeyError: 'log'\)"),
]


@pytest.mark.parametrize(("broken", "sentence"), SABOTAGED, ids=[broken.__name__ for broken, _ in SABOTAGED])
async def test_the_checks_fail_a_store_that_is_right_but_for_one_thing(
    broken: type[MemoryStore], sentence: str
) -> None:
    store = broken()
    with pytest.raises(AssertionError, match=sentence):
        await check(lambda: store)


async def test_errors_of_another_kind_break_the_rule_where_the_store_is_absent_too() -> None:
    async def absent() -> SessionStore:
        raise FileNotFoundError("no such folder")

    async def present() -> SessionStore:
        return MemoryStore()

    with pytest.raises(AssertionError, match=r"raises StoreError .*FileNotFoundError: no such folder"):
        await check_session_store(present, absent=absent)


@pytest.mark.parametrize("opened", [MemoryStore, MemoryStore()], ids=["no coroutine", "no function"])
async def test_what_gives_no_store_is_refused_with_the_way_out(opened: Any) -> None:
    with pytest.raises(ConfigurationError, match="async def open_store"):
        await check_session_store(opened)
