"""What lists cost does not grow with what is stored beside them: by index, and in a fixed number of questions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import Append, Delete, Document, Drop, Put
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.stores.postgres import PostgresStore
from grampus_uq.runtime.stores.sqlite import SQLiteStore
from tests.runtime.agents import AGENT, SEND_ONE, World, runner

pytestmark = pytest.mark.anyio


async def ask_everything(store: Any) -> None:
    await store.get("full", "a/1")
    await store.scan("full", label="waiting_for_human")
    await store.scan("full", label="waiting_for_human", prefix="a/", after="a/1", limit=3)
    await store.scan("full", prefix="a/")
    await store.children("verdict", ["r1", "r2"])
    await store.read("full", start=2)


async def test_every_question_to_sqlite_is_a_search_in_an_index(tmp_path: Path) -> None:
    plans: list[str] = []

    class Explained(SQLiteStore):
        def _rows(self, db: Any, sql: str, values: Any) -> list[tuple[Any, ...]]:
            plans.extend(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values))
            return super()._rows(db, sql, values)

    store = Explained(tmp_path / "s.db")
    await store.put("full", "a/1", "{}", expected=0)
    await ask_everything(store)
    await store.aclose()
    searches = [plan for plan in plans if "texts" not in plan]
    assert len(searches) == 6 + ("USE TEMP B-TREE FOR ORDER BY" in searches)
    bound = ("key=?", "key>?", "position>?")
    for plan in searches:
        assert plan.startswith("USE TEMP") or (plan.startswith("SEARCH") and any(b in plan for b in bound)), plan


async def test_the_last_page_of_a_sqlite_listing_costs_what_the_first_does(tmp_path: Path) -> None:
    steps: list[int] = []

    class Counted(SQLiteStore):
        def _rows(self, db: Any, sql: str, values: Any) -> list[tuple[Any, ...]]:
            steps.append(0)

            def step() -> None:
                steps[-1] += 1

            db.set_progress_handler(step, 1)
            try:
                return super()._rows(db, sql, values)
            finally:
                db.set_progress_handler(None, 0)

    store = Counted(tmp_path / "s.db")
    await store.write(*(Put(kind="full", key=f"a/{n:04d}", body="{}", expected=0, label="x") for n in range(2_000)))
    for label, prefix in ((None, ""), ("x", ""), (None, "a/")):
        steps.clear()
        for after in ("a/0009", "a/1899"):
            assert len(await store.scan("full", label=label, prefix=prefix, after=after, limit=100)) == 100
        first, last = steps
        assert last < 1.1 * first
    await store.aclose()


async def test_a_request_is_found_without_reading_what_else_waits(tmp_path: Path) -> None:
    read: list[str] = []

    class Counted(SQLiteStore):
        async def scan(self, kind: str, **options: Any) -> list[Document]:
            found = await super().scan(kind, **options)
            read.extend(kind for _ in found)
            return found

    store = Counted(tmp_path / "s.db")
    one = runner(World(), SEND_ONE, store=store)
    asked = [(await one.run(AGENT, "mail bob", session_id=f"s{n}")).pending[0] for n in range(20)]
    read.clear()
    state, found = await Ledger(store).find_request(asked[7].id[:8])
    assert (state.session_id, found) == ("s7", asked[7])
    assert read == ["wake"]
    for document in await store.scan("wake"):  # as a release stored them that had no such rows
        await store.write(Delete(kind="wake", key=document.key, expected=document.version))
    assert (await Ledger(store).find_request(asked[7].id[:8]))[1] == asked[7]
    await store.aclose()


async def test_every_question_to_postgres_is_bounded_by_an_index(postgres_url: str) -> None:
    plans: list[str] = []

    class Explained(PostgresStore):
        def _rows(self, db: Any, sql: str, values: Any) -> list[tuple[Any, ...]]:
            plans.append("\n".join(row[0] for row in db.execute(f"EXPLAIN {sql.replace('?', '%s')}", values)))
            return super()._rows(db, sql, values)

    store, kinds = Explained(postgres_url), {"full": "a", "verdict": "r"}
    for kind, stem in kinds.items():  # few rows are read faster without an index
        puts = (Put(kind=kind, key=f"{stem}/{n}", body="{}", expected=0, label="completed") for n in range(5_000))
        await store.write(*puts)
    await store.write(Append(log="full", bodies=tuple("{}" for _ in range(2_000)), expected=0))
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("ANALYZE")  # as the server does some time later: it plans by what it knows of the rows
    await ask_everything(store)
    await store.write(
        *(Delete(kind=k, key=f"{stem}/{n}", expected=1) for k, stem in kinds.items() for n in range(5_000))
    )
    await store.write(Drop(log="full"))
    await store.aclose()
    for plan in plans:
        assert "Index Cond" in plan, plan
        condition = plan.partition("Index Cond")[2].splitlines()[0]
        assert "position" in condition or re.search(r"key\)?(::text)? (=|>)", condition), plan


@pytest.mark.one_loop
async def test_a_list_with_its_decisions_asks_as_often_for_fifty_waiting_sessions_as_for_one() -> None:
    asked: list[tuple[str, int]] = []

    class Counting(MemoryStore):
        async def scan(self, kind: str, **options: Any) -> list[Document]:
            found = await super().scan(kind, **options)
            asked.append((kind, len(found)))
            return found

        async def children(self, kind: str, parents: Any) -> list[Document]:
            asked.append((kind, len(parents)))
            return []

    for waiting in (1, 50):
        store = Counting()
        await store.write(
            *(Put(kind="session", key=f"old/{n}", body="{}", expected=0, label="completed") for n in range(500))
        )
        one = runner(World(), SEND_ONE, store=store)
        for number in range(waiting):
            await one.run(AGENT, "mail bob", session_id=f"{number}")
        asked.clear()
        ledger = Ledger(store)
        requests = [request for session in await ledger.pending() for request in session.requests]
        await ledger.decisions([request.id for request in requests])
        assert asked == [("session", waiting), ("session", 0), ("decision", waiting)]
