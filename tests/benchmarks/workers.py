"""From a decision to its result, with thousands of parked runs and several workers on PostgreSQL. A script.

    python -m tests.benchmarks.workers [--parked 100 1000 10000] [--workers 8] [--rate 20] [--seconds 20] [--json]

Starts a PostgreSQL from its PyPI package, parks runs of a mail agent there (one is run, the others are copies of its
rows), and starts `grampus-uq worker` processes. Then so many decisions a second are stored, each on another run;
`p50_s` and `p99_s` are the seconds from before a decision is stored until a worker reports its run's end. Cases:
`steady`; `restart`, from the moment in which all workers, stopped and started with new code, say that they have
started; `backlog`, decisions given while no worker was there, from the start of the processes. `worker_mb` is the
largest resident memory of a worker then, `parked_kb` what a parked run takes in the database with its indexes, `wal_kb`
what one decision and all that follows from it adds to the write-ahead log.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import anyio

from grampus_uq import AgentRunner, ApprovalRequest, open_store
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.session_heads import SessionHead
from grampus_uq.runtime.store import Append, Change, Put, SessionStore
from tests.benchmarks._report import emit
from tests.runtime.agents import AGENT, SEND_ONE, World, runner
from tests.servers import postgres

ROOT = Path(__file__).parents[2]
BATCH = 200
PATIENCE_S = 120.0
WRITTEN = "pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"


def make(store: SessionStore) -> AgentRunner:
    """What the workers run; the code of today answers otherwise than that which parked the runs."""
    return runner(World(), [SEND_ONE[0], f"Done by {os.environ.get('GRAMPUS_BENCH_CODE', 'old')} code."], store=store)


async def park(store: SessionStore, parked: int) -> list[ApprovalRequest]:
    """So many runs that wait, each for one decision; what they ask."""
    pattern = f"pattern-{uuid.uuid4().hex}"
    await make(store).run(AGENT, "mail bob", session_id=pattern)
    found = await store.get("session", session_key("mailer", pattern))
    assert found is not None
    head = json.loads(found.body)
    run_id, request_id, log = (
        head["run_id"],
        SessionHead.model_validate(head).pending()[0].id,
        head["transcript"]["log"],
    )
    entries = tuple(await store.read(log))
    asked, changes = [], list[Change]()
    for number in range(parked):
        new = {pattern: f"parked-{uuid.uuid4().hex}", run_id: uuid.uuid4().hex, request_id: uuid.uuid4().hex}

        def renamed(text: str, new: dict[str, str] = new) -> str:
            for before, after in new.items():
                text = text.replace(before, after)
            return text

        (body, key), wake = map(renamed, (found.body, found.key)), {"agent_id": "mailer", "session_id": new[pattern]}
        changes += [
            Put(kind="session", key=key, body=body, expected=0, label=found.label),
            Put(kind="wake", key=f"{new[request_id]}/{key}", body=json.dumps(wake), expected=0),
            Append(log=renamed(log), bodies=tuple(map(renamed, entries)), expected=0),
        ]
        asked += SessionHead.model_validate_json(body).pending()
        if len(changes) >= BATCH or number == parked - 1:
            await store.write(*changes)
            changes = []
    return asked


class Workers:
    """Processes of `grampus-uq worker`, and the times at which they reported the end of each session."""

    def __init__(self, url: str, count: int) -> None:
        self.url, self.count = url, count
        self.ended: dict[str, float] = {}
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, code: str) -> None:
        """Start them all, and return when each has said that it has started."""
        command = [sys.executable, "-m", "grampus_uq.cli", "worker", "tests.benchmarks.workers:make"]
        command += ["--store", self.url, "--agent", "mailer", "--json"]
        environment = os.environ | {"GRAMPUS_BENCH_CODE": code}
        self.processes = [
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(self.count)
        ]
        for process in self.processes:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["event"] == "started"
            threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, lines: Any) -> None:
        for line in lines:
            event = json.loads(line)
            if event["event"] == "resumed":
                self.ended[event["session"]] = event["time_s"]
            elif event["event"] not in ("draining", "stopped", "health"):
                print(line, file=sys.stderr)

    def stop(self) -> None:
        """Drain them all."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(60)

    def memory_mb(self) -> float:
        """The largest resident memory of one of them."""
        sizes = []
        for process in self.processes:
            status = Path(f"/proc/{process.pid}/status").read_text()
            sizes += [int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")]
        return max(sizes)


async def decide(ledger: Ledger, asked: list[ApprovalRequest], rate: float) -> dict[str, float]:
    """Approve each at its time; when each was about to be stored."""
    given: dict[str, float] = {}
    begun = time.monotonic()
    for number, request in enumerate(asked):
        await anyio.sleep(max(0.0, begun + number / rate - time.monotonic()))
        given[request.session_id] = time.time()
        await ledger.decide(request.decide("approve", principal="ann"))
    return given


async def taken(workers: Workers, given: dict[str, float]) -> list[float]:
    """The seconds from each decision to its result, in order."""
    until = time.monotonic() + PATIENCE_S
    while missing := given.keys() - workers.ended.keys():
        if time.monotonic() > until:
            raise SystemExit(f"{len(missing)} of {len(given)} runs were never resumed.")
        await anyio.sleep(0.1)
    return sorted(workers.ended[session] - given[session] for session in given)


def figure(url: str, expression: str) -> float:
    """A number that the server knows."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        found = db.execute(f"SELECT {expression}").fetchone()
    assert found is not None
    return float(found[0])


async def measure(url: str, parked: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows for so many parked runs."""
    store = open_store(url)
    ledger, decided = Ledger(store), int(options.rate * options.seconds)
    await store.now()
    empty = figure(url, "pg_database_size(current_database())")
    asked = await park(store, parked + 2 * decided + options.backlog)
    parked_kb = (figure(url, "pg_database_size(current_database())") - empty) / len(asked) / 1024
    workers, rows = Workers(url, options.workers), []

    def row(case: str, seconds: list[float]) -> None:
        count = len(seconds)
        p50, p99 = seconds[count // 2], seconds[min(count - 1, int(count * 0.99))]
        mb = workers.memory_mb()
        what = {"case": case, "parked": parked, "workers": options.workers}
        beside = {"decisions": count, "parked_kb": parked_kb, "wal_kb": wal_kb}
        rows.append({**what, "p50_s": p50, "p99_s": p99, "worker_mb": mb, **beside})

    try:
        await anyio.to_thread.run_sync(workers.start, "old")
        written = figure(url, WRITTEN)
        seconds = await taken(workers, await decide(ledger, asked[:decided], options.rate))
        wal_kb = (figure(url, WRITTEN) - written) / decided / 1024
        row("steady", seconds)
        await anyio.to_thread.run_sync(workers.stop)
        await anyio.to_thread.run_sync(workers.start, "new")
        row("restart", await taken(workers, await decide(ledger, asked[decided : 2 * decided], options.rate)))
        await anyio.to_thread.run_sync(workers.stop)
        left = await decide(ledger, asked[2 * decided : 2 * decided + options.backlog], 1e9)
        begun = dict.fromkeys(left, time.time())
        await anyio.to_thread.run_sync(workers.start, "new")
        row("backlog", await taken(workers, begun))
        ended, _ = await ledger.known("mailer", asked[decided].session_id)
        assert ended.output == "Done by new code.", ended.output
    finally:
        await anyio.to_thread.run_sync(workers.stop)
        await store.aclose()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parked", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--backlog", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for parked in options.parked:
        with postgres() as server:
            rows += anyio.run(measure, server.get_uri(), parked, options)
    emit("workers", rows, options.json)


if __name__ == "__main__":
    main()
