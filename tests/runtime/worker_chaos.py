"""Kills workers once a second, restarts their database, and sets their clocks apart; then looks at every run. A script.

    python -m tests.runtime.worker_chaos --seconds 600 [--workers 4] [--restarts 2] [--kill-every 1.0] [--seed 1]

A client parks runs of a mail agent on PostgreSQL (its PyPI package), approves most and rejects the others, and looks up
what nobody knows when a worker died within a tool. `grampus-uq worker` processes resume them, the clock of each a
minute from the next one's; one is killed with SIGKILL every second and replaced, and the database is stopped without a
checkpoint and started again. At the end every run has to end, each approved mail was sent once (where the outcome was
unknown: once at most), and no other. Prints one JSON object. `--sabotage` lets workers run calls of unknown outcome
again, which these checks have to notice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from grampus_uq import AgentRunner, ApprovalRequest, FunctionTools, ToolCall, UncertaintyMonitor, open_store, tool
from grampus_uq.errors import GrampusError, StoreError
from grampus_uq.records.values import Message, ModelResponse
from grampus_uq.records.vocabulary import Effect, Role
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.turn import Turn
from grampus_uq.runtime.worker_jobs import DEAD
from grampus_uq.testing import ScriptedModel, answer
from tests.runtime.agents import AGENT, is_judgement
from tests.runtime.kill_driver import _run_again
from tests.servers import postgres, stop_at_once

ROOT = Path(__file__).parents[2]
LEASE_S = 2.0
SETTLE_S = 120.0
SKEW, EFFECTS, SABOTAGE = "GRAMPUS_CHAOS_SKEW_S", "GRAMPUS_CHAOS_EFFECTS", "GRAMPUS_CHAOS_SABOTAGE"


def written(to: str) -> None:
    """What the world saw, durably."""
    with Path(os.environ[EFFECTS]).open("a") as file:
        file.write(f"{to}\n")
        file.flush()
        os.fsync(file.fileno())


def make(store: SessionStore) -> AgentRunner:
    """What client and workers run: a mail that takes a moment to send, and is written down durably when it is sent."""
    if os.environ.get(SKEW):
        clock, skew_s = time.time, float(os.environ[SKEW])
        time.time = lambda: clock() + skew_s  # this machine's clock is wrong
    if os.environ.get(SABOTAGE):
        Turn.recover = _run_again  # type: ignore[method-assign, assignment]

    @tool(effect=Effect.IRREVERSIBLE)
    async def send_email(to: str) -> str:
        await anyio.sleep(0.1)
        written(to)
        await anyio.sleep(0.1)
        return "sent"

    def reply(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse | str:
        if is_judgement(messages):
            return '{"p_true": 0.62}'
        if any(message.role is Role.ASSISTANT for message in messages):
            return "Done."
        to = next(message.content for message in messages if message.role is Role.USER)
        return answer("I mail.", tool_calls=[ToolCall(id="m", name="send_email", arguments={"to": to})])

    watch = UncertaintyMonitor()
    tools = FunctionTools(send_email)
    return AgentRunner(ScriptedModel(reply), tools, uncertainty_monitor=watch, store=store, lease_s=LEASE_S)


class Campaign:
    """One client, its workers and their database."""

    def __init__(self, options: argparse.Namespace, folder: Path, server: Any) -> None:
        self.options, self.rng, self.counts = options, random.Random(options.seed), Counter[str]()
        self.server = server
        self.effects = folder / "effects"
        self.effects.touch()
        os.environ[EFFECTS] = str(self.effects)
        self.store = open_store(self.server.get_uri())
        self.ledger = Ledger(self.store)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.runs: dict[str, bool] = {}
        self.looked_up: set[str] = set()

    def start(self, number: int) -> None:
        """A worker whose clock is `number` minutes wrong."""
        environment = os.environ | {SKEW: str(60.0 * number)} | ({SABOTAGE: "1"} if self.options.sabotage else {})
        command = [sys.executable, "-m", "grampus_uq.cli", "worker", "tests.runtime.worker_chaos:make"]
        command += ["--store", self.server.get_uri(), "--agent", "mailer", "--tries", "20"]
        with Path(self.effects).with_name("workers.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=log)
        self.processes[number : number + 1] = [process]

    def kill(self, number: int) -> None:
        """Kill one worker wherever it is."""
        self.processes[number].kill()
        self.processes[number].wait()
        self.counts["killed"] += 1

    def restart_database(self) -> None:
        """Stop the server as a power cut would, and start it again."""
        stop_at_once(self.server)
        time.sleep(1.0)
        self.server.ensure_postgres_running()
        self.counts["database restarts"] += 1

    async def client(self, until: float) -> None:
        """Park runs and decide them, trying again while the database is down."""
        runner = make(self.store)
        number = 0
        while time.monotonic() < until or len(self.runs) < self.options.least_runs:
            session = f"s{number:06d}"
            approved = random.Random(f"{self.options.seed}/{session}").random() < 0.7
            number += 1
            try:
                asked = (await runner.run(AGENT, session, session_id=session)).pending
            except GrampusError:
                self.counts["runs that the client lost before they waited"] += 1
                await anyio.sleep(0.2)
                continue
            self.runs[session] = approved
            await self.decide(asked[0], "approve" if approved else "reject")
            await anyio.sleep(1.0 / self.options.rate)

    async def decide(self, request: ApprovalRequest, kind: str, message: str | None = None) -> None:
        """Store a decision, however often it takes."""
        while True:
            try:
                await self.ledger.decide(request.decide(kind, principal="ann", message=message))
                return
            except StoreError:
                await anyio.sleep(0.2)

    async def look_up(self) -> None:
        """Answer what nobody knows, and ask again what is asked again."""
        while True:
            try:
                for found in await self.ledger.pending("mailer"):
                    for request in found.requests:
                        if request.unknown_outcome and found.session_id not in self.looked_up:
                            self.looked_up.add(found.session_id)
                            await self.decide(request, "respond", "looked it up")
            except StoreError:
                pass
            await anyio.sleep(0.3)

    async def trouble(self, until: float) -> None:
        """Kill a worker every second, and restart the database at even distances."""
        begun, restarts = time.monotonic(), 0
        while time.monotonic() < until or restarts < self.options.restarts:
            await anyio.sleep(self.options.kill_every)
            number = self.rng.randrange(len(self.processes))
            self.kill(number)
            self.start(number)
            passed = (time.monotonic() - begun) / self.options.seconds
            if restarts < self.options.restarts and passed > (restarts + 1) / (self.options.restarts + 1):
                restarts += 1
                await anyio.to_thread.run_sync(self.restart_database)

    async def unfinished(self) -> list[str]:
        """The runs that have not ended."""
        ended = await self.store.scan("session", label="completed")
        return sorted(self.runs.keys() - {document.key.partition("/")[2] for document in ended})

    def check(self) -> None:
        """Raise SystemExit unless the world saw what was approved, once."""
        seen = Counter(self.effects.read_text().split())
        for session, approved in self.runs.items():
            times = seen[session]
            if times > 1:
                raise SystemExit(f"{session} was executed {times} times")
            if times and not approved:
                raise SystemExit(f"{session} was executed though it was rejected")
            if approved and not times and session not in self.looked_up:
                raise SystemExit(f"{session} was approved, and lost")
        strangers = seen.keys() - self.runs.keys()
        if strangers:
            raise SystemExit(f"nobody approved {sorted(strangers)[:3]}")
        self.counts["sent"] = sum(seen.values())

    async def run(self) -> dict[str, Any]:
        """The whole campaign."""
        try:
            for number in range(self.options.workers):
                self.processes.append(None)  # type: ignore[arg-type]  # its place
                self.start(number)
            until = time.monotonic() + self.options.seconds
            async with anyio.create_task_group() as group:
                group.start_soon(self.look_up)
                async with anyio.create_task_group() as troubled:
                    troubled.start_soon(self.client, until)
                    troubled.start_soon(self.trouble, until)
                begun = settled = time.monotonic()
                before = len(self.runs)
                while left := await self.unfinished():
                    if len(left) < before:
                        before, settled = len(left), time.monotonic()
                    if time.monotonic() - settled > SETTLE_S:
                        raise SystemExit(f"{len(left)} runs stand still: {left[:5]}")
                    await anyio.sleep(0.5)
                group.cancel_scope.cancel()
            aside = await self.store.scan(DEAD)
            if aside:
                raise SystemExit(f"{len(aside)} runs were set aside: {aside[0].body}")
            self.check()
            unknown = len(self.looked_up)
            settled_s = round(time.monotonic() - begun, 1)
            return {**self.counts, "runs": len(self.runs), "unknown outcomes": unknown, "last_ended_after_s": settled_s}
        finally:
            for process in self.processes:
                process.kill()
                process.wait()
            await self.store.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--kill-every", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--least-runs", type=int, default=0, help="go on beyond the time until so many were parked")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, postgres("grampus-chaos-") as server:
        campaign = Campaign(options, Path(folder), server)
        try:
            report = anyio.run(campaign.run)
        except BaseExceptionGroup as failures:
            first: BaseException = failures
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
