"""Kills the proxy, its server or its client with SIGKILL at random moments, and counts what ran. A script.

    python -m tests.proxy.proxy_kills --kills 200 --seed 1

Each life: a client proposes five calls that cannot be undone, a human approves some, rejects some and leaves one alone,
each call at most once; somebody is killed while calls wait, right after a decision, or while the server works; then the
client is started again, with the same session, until it has its answers. Where nobody knows whether a call took effect,
the human says so and does not approve it again. Prints one JSON object; `unapproved` and `twice` have to be 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from grampus_uq import open_store
from grampus_uq.errors import GrampusError
from grampus_uq.gate.requests import ApprovalRequest
from grampus_uq.runtime.ledger import Ledger

HERE = Path(__file__).parent
LEASE_S = 1.0
PROXY = f"""
import functools, sys
from grampus_uq.cli import mcp_command
from grampus_uq.integrations.mcp import proxy_parts
proxy_parts.ConnectionSession = functools.partial(proxy_parts.ConnectionSession, lease_s={LEASE_S})
mcp_command.command(sys.argv[1:])
"""
_TRIES = 8
_LONGEST_S = 180.0


class Life:
    """One session: what was proposed, what the human decides, who is killed when, and what the world saw."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder, self.draw = folder, draw
        self.ran = folder / "ran"
        self.url = f"sqlite:///{folder / 'calls.db'}"
        self.calls: list[dict[str, Any]] = [{"n": n, "slow": 0.2} for n in range(4)]
        self.wish = {n: draw.choice(["approve", "approve", "reject"]) for n in range(4)}
        self.calls.append({"n": 4, "never": True})
        (folder / "calls.json").write_text(json.dumps(self.calls))
        (folder / "proxy.toml").write_text("hold_s = 0.3\n")
        self.victim = draw.choice(["proxy", "server", "client"])
        self.when = draw.choice(["waiting", "decided", "running"])
        self.delay_s = draw.uniform(0.0, 0.4)
        self.decided: set[int] = set()
        self.approved: dict[int, float] = {}
        self.counts: Counter[str] = Counter()

    def start(self) -> subprocess.Popen[bytes]:
        server = [sys.executable, str(HERE / "small_server.py"), str(self.ran)]
        options = ["--config", str(self.folder / "proxy.toml"), "--store", self.url, "--session", "desk"]
        proxy = [sys.executable, "-c", PROXY, *options, "--", *server]
        client = [sys.executable, str(HERE / "repeating_client.py"), str(self.folder), *proxy]
        return subprocess.Popen(client, start_new_session=True)

    async def decide(self, ledger: Ledger) -> None:
        """Answer what waits, each call once; what became of a call of unknown outcome is said, not tried again."""
        for session in await ledger.pending():
            for request in session.requests:
                kind = self._wish(request)
                if kind is not None:
                    with suppress(GrampusError):  # decided in between
                        await ledger.decide(request.decide(kind, principal="ann", message="as the human says"))

    def _wish(self, request: ApprovalRequest) -> str | None:
        assert request.call is not None
        number = int(str(request.call.arguments["n"]))
        if request.id in self.counts:
            return None
        self.counts[request.id] = 1
        if request.unknown_outcome:
            return "respond"
        if number not in self.wish:
            return None
        kind = self.wish[number] if number not in self.decided else "reject"
        self.decided.add(number)
        if kind == "approve":
            self.approved[number] = time.time()
        return kind

    def reached(self) -> bool:
        """True once the moment of the kill has come, but for its delay."""
        if self.when == "waiting":
            return bool(self.counts)
        return {"decided": bool(self.approved), "running": self.ran.exists()}.get(self.when, False)

    def kill(self, client: subprocess.Popen[bytes]) -> bool:
        proxy = int((self.folder / "proxy.pid").read_text())
        number = {"client": client.pid, "proxy": proxy}.get(self.victim)
        with suppress(OSError, ValueError, IndexError):  # the proxy, or its server, is not there yet, or not any more
            if number is None:
                number = int(Path(f"/proc/{proxy}/task/{proxy}/children").read_text().split()[0])
            os.kill(number, signal.SIGKILL)
            return True
        return False

    async def live(self) -> dict[str, Any]:
        killed, tries, store = False, 0, open_store(self.url, create=True)
        ledger = Ledger(store)
        status: int | None = 1
        while tries < _TRIES and status != 0:
            tries += 1
            client, until, due = self.start(), time.monotonic() + _LONGEST_S, None
            while client.poll() is None and time.monotonic() < until:
                await self.decide(ledger)
                if not killed and due is None and self.reached():
                    due = time.monotonic() + self.delay_s
                if not killed and due is not None and time.monotonic() >= due:
                    killed = self.kill(client)
                    due = None if killed else time.monotonic() + 0.05
                await anyio.sleep(0.02)
            status = client.poll()
            with suppress(ProcessLookupError):
                os.killpg(client.pid, signal.SIGKILL)  # whoever is left of this try
            client.wait()
            if status != 0:
                await anyio.sleep(LEASE_S * 1.2)  # of whoever died
        await store.aclose()
        return {**self.seen(), "killed": killed, "tries": tries, "answered": status == 0}

    def seen(self) -> dict[str, Any]:
        """What ran, from the server's own file: each line one call."""
        lines = self.ran.read_text().splitlines() if self.ran.exists() else []
        runs = Counter(int(json.loads(line)[1]["n"]) for line in lines)
        answers = self.folder / "answers.jsonl"
        told = (
            {a["n"]: text for a, text in map(json.loads, answers.read_text().splitlines())} if answers.exists() else {}
        )
        return {
            "ran": sum(runs.values()),
            "approved": len(self.approved),
            "unapproved": sum(times for n, times in runs.items() if n not in self.approved),
            "twice": sum(times > 1 for times in runs.values()),
            "lost": sum(n not in runs and "human says" not in told.get(n, "human says") for n in self.approved),
        }


def campaign(kills: int, seed: int, kind: type[Life] = Life) -> dict[str, Any]:
    """So many lives with a kill in each, and their sum."""
    total: Counter[str] = Counter()
    by: Counter[str] = Counter()
    number = 0
    while total["killed"] < kills and number < 2 * kills + 5:
        number += 1
        with tempfile.TemporaryDirectory() as folder:
            life = kind(Path(folder), random.Random(f"{seed}/{number}"))
            seen = anyio.run(life.live)
        total.update({key: int(value) for key, value in seen.items()})
        if seen["killed"]:
            by[f"{life.victim} {life.when}"] += 1
    return {"lives": number, **dict(total), "kills_by": dict(sorted(by.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(json.dumps(campaign(given.kills, given.seed)))


if __name__ == "__main__":
    main()
