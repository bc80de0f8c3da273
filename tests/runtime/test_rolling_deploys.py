"""The last release and this one work on one store side by side, while it is migrated, and one after the other."""

from __future__ import annotations

import io
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import psycopg
import pytest
import redis

from grampus_uq import open_store
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import SCHEMA_VERSION
from grampus_uq.runtime.stores.tenants import add_tenant
from tests.archives import unpack

ROOT = Path(__file__).parents[2]
LAST = "5e065e79"
"""The commit of the last release whose workers must be able to drain beside this one's."""
EACH = 15


@pytest.fixture(scope="module")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as the last release has it, out of the history of this checkout."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    archive = subprocess.run(
        ["git", "archive", "--format=tar", LAST, "grampus_uq"], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"the history of this checkout does not hold {LAST}")
    folder = tmp_path_factory.mktemp("last")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        unpack(files, folder)
    return folder


STEPS = {
    "sqlite.py": '("CREATE INDEX documents_by_time ON documents (kind, label, written_s)",'
    ' "ALTER TABLE documents ADD COLUMN note TEXT"),',
    "postgres.py": '("DROP INDEX CONCURRENTLY IF EXISTS grampus_documents_by_time",'
    ' "CREATE INDEX CONCURRENTLY grampus_documents_by_time ON grampus_documents (kind, label, written_s)",'
    ' "ALTER TABLE grampus_documents ADD COLUMN IF NOT EXISTS note text"),',
}


@pytest.fixture(scope="module")
def next_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a next release may be: its stores have an index and a column more."""
    folder = tmp_path_factory.mktemp("next")
    shutil.copytree(ROOT / "grampus_uq", folder / "grampus_uq", ignore=shutil.ignore_patterns("__pycache__"))
    runtime = folder / "grampus_uq" / "runtime"
    store = (runtime / "store.py").read_text()
    now, later = f"SCHEMA_VERSION = {SCHEMA_VERSION}\n", f"SCHEMA_VERSION = {SCHEMA_VERSION + 1}\n"
    assert now in store
    (runtime / "store.py").write_text(store.replace(now, later))
    for name, step in STEPS.items():
        file = runtime / "stores" / name
        before, behind = file.read_text().split("MIGRATIONS: tuple[tuple[str, ...], ...] = (\n")
        steps, rest = behind.split("\n)\n", 1)
        file.write_text(f"{before}MIGRATIONS: tuple[tuple[str, ...], ...] = (\n{steps}\n    {step}\n)\n{rest}")
    return folder


class Fleet:
    """Workers of two releases on one store; their errors are what users would have seen."""

    def __init__(self, url: str, folder: Path, last: Path, new: Path = ROOT) -> None:
        self.url, self.effects = url, folder / "effects"
        self._folder, self._last, self._new = folder, last, new
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.begun: list[str] = []

    def start(self, name: str, *, old: bool, sessions: int = EACH) -> None:
        said = self._folder / f"{name}.err"
        script = [str(ROOT / "tests/runtime/rolling_worker.py"), self.url, str(self.effects), name, str(sessions)]
        environment = os.environ | {"PYTHONPATH": str(self._last if old else self._new)}
        with said.open("wb") as errors:
            worker = subprocess.Popen(
                [sys.executable, *script, *([] if old else ["wider"])], stderr=errors, env=environment
            )
        self._running.append((worker, said))
        self.begun += [f"{name}-{number}" for number in range(1, sessions + 1)]

    def drain(self) -> list[str]:
        """Stop every worker, and wait until it has gone; what went wrong."""
        said = []
        for worker, _ in self._running:
            worker.send_signal(signal.SIGTERM)
        for worker, errors in self._running:
            if worker.wait(180):
                said.append(f"a worker ended with {worker.returncode}")
            said += errors.read_text().splitlines()
        self._running = []
        return said


async def decide_all(ledger: Ledger) -> None:
    """Approve whatever waits undecided."""
    requests = [request for one in await ledger.pending("mailer") for request in one.requests]
    decided = await ledger.decisions([request.id for request in requests])
    for request in requests:
        if not decided[request.id]:
            await ledger.decide(request.decide("approve", principal="ann"))


async def until_all_ended(ledger: Ledger, fleet: Fleet, most_s: float = 240.0) -> None:
    with anyio.fail_after(most_s):
        while True:
            await decide_all(ledger)
            done = await ledger.store.scan("session", label=AgentStatus.COMPLETED.value)
            if len(done) >= len(fleet.begun):
                return
            await anyio.sleep(0.05)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store; on PostgreSQL owned by a role that is no superuser, so that it can be given tenants."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/s.db"
    elif request.param == "redis":
        yield str(request.getfixturevalue("redis_url"))
    else:
        admin, name = str(request.getfixturevalue("postgres_url")), f"roll_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(admin, autocommit=True) as db:
            db.execute(f"CREATE ROLE {name} LOGIN")
            db.execute(f"CREATE ROLE {name}_tenant")
            db.execute(f"CREATE DATABASE {name} OWNER {name}")
        yield admin.replace("postgres:@/postgres", f"{name}:@/{name}")
        with psycopg.connect(admin, autocommit=True) as db:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)")
            db.execute(f"DROP ROLE {name}")
            db.execute(f"DROP ROLE {name}_tenant")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rolling_deploy_with_a_migration_under_load_loses_no_decision_and_shows_no_error(
    store_url: str, tmp_path: Path, last_release: Path
) -> None:
    anyio.run(roll, store_url, Fleet(store_url, tmp_path, last_release))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_next_releases_migration_runs_beside_this_release_and_this_release_works_on_its_store(
    store_url: str, tmp_path: Path, next_release: Path
) -> None:
    anyio.run(roll, store_url, Fleet(store_url, tmp_path, ROOT, next_release))
    assert later_schema(store_url) == SCHEMA_VERSION + 1


def later_schema(url: str) -> int:
    """What was applied to a store, read without this package."""
    if url.startswith("sqlite"):
        db = sqlite3.connect(url.removeprefix("sqlite:///"))
        db.execute("SELECT note FROM documents INDEXED BY documents_by_time WHERE kind = 'a' AND label = 'b'")
        found = db.execute("SELECT version FROM migrated").fetchone()[0]
        db.close()
        return int(found)
    if url.startswith("redis"):
        with redis.Redis.from_url(url) as client:
            return int(client.get("grampus:schema:applied") or 0)
    with psycopg.connect(url) as server:
        server.execute("SELECT note FROM grampus_documents")
        indexes = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'grampus_documents_by_time'::regclass"
        assert server.execute(indexes).fetchone() == (True,)
        return int(server.execute("SELECT applied FROM grampus_schema").fetchone()[0])  # type: ignore[index]


async def roll(url: str, fleet: Fleet) -> None:
    store = open_store(url)
    ledger = Ledger(store)
    if url.startswith("redis"):
        await store.now()
        with_client(url)
    fleet.start("old-a", old=True)
    fleet.start("old-b", old=True)
    with anyio.fail_after(180):
        while True:
            there = {found.key.partition("/")[2] for found in await store.scan("session")}
            if len(there) >= 10 and {"old-a-1", "old-b-1"} <= there:  # both at work, under load from here on
                break
            await anyio.sleep(0.05)
    await decide_all(ledger)
    old = fleet._running
    fleet._running = []
    ours_is_older = fleet._last == ROOT  # and refuses what the next release adds, once that has migrated
    if url.startswith("postgresql") and ours_is_older:
        await add_tenant(url, url.partition("//")[2].partition(":")[0] + "_tenant")
    fleet.start("new-a", old=False)
    fleet.start("new-b", old=False)
    if url.startswith("postgresql") and not ours_is_older:
        await add_tenant(url, url.partition("//")[2].partition(":")[0] + "_tenant")
    with anyio.move_on_after(8):
        await until_all_ended(ledger, fleet)
    new, fleet._running = fleet._running, old
    said = fleet.drain()  # the old ones, in the middle of it
    fleet._running = new
    await finished(ledger, fleet, said)
    fleet.start("back-a", old=True, sessions=3)  # one release back, on what the new one wrote
    await finished(ledger, fleet, [])
    await store.aclose()


def with_client(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.flushdb()


async def finished(ledger: Ledger, fleet: Fleet, said: list[str]) -> None:
    """Wait for the end of every session that was begun, and hold it against what the world saw."""
    fleet.begun = await begun_in(ledger, fleet)
    await until_all_ended(ledger, fleet)
    assert said + fleet.drain() == []
    seen = Counter(fleet.effects.read_text().split())
    assert set(seen.values()) == {1}  # each approved call once
    assert set(seen) == set(fleet.begun)


async def begun_in(ledger: Ledger, fleet: Fleet) -> list[str]:
    """The sessions that were begun: all of the workers that go on, and those that the drained ones had come to."""
    going_on = {name for name in fleet.begun if not name.startswith("old")}
    with anyio.fail_after(240):
        while True:
            there = [found.key.partition("/")[2] for found in await ledger.store.scan("session")]
            if going_on <= set(there):
                return there
            await decide_all(ledger)
            await anyio.sleep(0.1)
