"""Kills workers that share a permit with SIGKILL at chosen store operations, and counts labels. A script.

    python -m tests.runtime.permit_kills STORE_URL --kills 100 --seed 1

Three workers at a time judge and answer calls of their own over one permit; each may die before or after its k-th store
operation, and whoever takes its calls up judges and answers again what was not finished. At the end every call that was
asked about has its answer in the log exactly once and as it was given, and the log gives the stored state to the last
digit. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, cast

import anyio

from grampus_uq import Permit, Session, ToolCall, open_store
from grampus_uq.gate.call import CallRecord, Doubt, Terms, asked, decided
from grampus_uq.gate.gate import Held
from grampus_uq.gate.permits import Entry, PermitState, applied, issued
from grampus_uq.gate.requests import ApprovalPolicy
from grampus_uq.records.vocabulary import UncertaintyLevel
from grampus_uq.runtime.store import Change
from grampus_uq.runtime.stored_permits import Standing, StoredPermits, grant_permit, replayed_permit, stored_permits
from tests.runtime.kill_driver import Kill, KillingStore

WORKERS, CALLS, OPERATIONS = 3, 4, 40
TERMS = Terms(agent_id="clerk", session_id="s", run_id="r")
DOUBT = Doubt(level=UncertaintyLevel.MEDIUM, rule="tier", reason="its tool")


class Believed:
    """A session as far as permits ask it."""

    def call_score(self, stream: str, call: ToolCall, step_id: str) -> float:
        return 0.9

    def judge(self, agent_version: str = "", stream: str = "") -> str:
        return "j"


class Apart(StoredPermits):
    """The sabotage: the ticket is written after the state that knows of it."""

    async def _written(self, now: Standing, state: PermitState, entry: Entry, *more: Change) -> bool:
        done = await super()._written(now, state, entry)
        if done and more:
            await self.store.write(*more)
        return done


def is_wrong(number: int) -> bool:
    return number % 23 == 5


def waiting(number: int) -> CallRecord:
    call = ToolCall(id="call_0", name="pay", arguments={"number": number})
    return asked(CallRecord(proposed=call, step_id="llm_0"), TERMS, ApprovalPolicy(), DOUBT, time.time())


async def live(url: str, numbers: list[int], progress: Path, kill: Kill | None, kind: type[StoredPermits]) -> None:
    """Judge and answer the calls; like a host, remember what was asked before the answer, and what is finished."""
    store = open_store(url)
    permits = kind(KillingStore(store, kill))
    session, before = cast(Session, Believed()), lines(progress)
    for number in numbers:
        record = waiting(number)
        asks = f"asked {number}" in before
        asks = asks or isinstance(await permits.release(record, session, TERMS, alike=False), Held)
        with progress.open("a") as file:
            file.write(f"{'asked' if asks else 'finished'} {number}\n")
        if asks:
            says = "reject" if is_wrong(number) else "approve"
            told = decided(record, [record.requests[0].decide(says, principal="ann")])
            await permits.answered(told, TERMS)
            with progress.open("a") as file:
                file.write(f"finished {number}\n")
    await store.aclose()


def lines(progress: Path) -> set[str]:
    return set(progress.read_text().splitlines()) if progress.exists() else set()


def started(url: str, numbers: list[int], progress: Path, kill: Kill | None, kind: type[StoredPermits]) -> int:
    child = os.fork()
    if child == 0:
        try:
            anyio.run(live, url, numbers, progress, kill, kind)
        except BaseException:  # noqa: BLE001 (the child's last word)
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def ended(child: int) -> bool:
    """True for a killed one; raises for one that failed."""
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
        raise AssertionError(f"a worker ended with {code}")
    return code != 0


def drive(url: str, folder: Path, kills: int, draw: random.Random, kind: type[StoredPermits]) -> Counter[str]:
    """Rounds of workers until so many were killed; each round's calls are finished by the end of it."""
    counts: Counter[str] = Counter()
    permit = Permit(
        tool="pay", thresholds=(0.5,), epsilon=0.2, audit_rate=0.4, principal="ann", expires_s=time.time() + 86_400
    )

    async def grant() -> None:
        store = open_store(url, create=True)
        await grant_permit(store, permit)
        await store.aclose()

    anyio.run(grant)
    while counts["killed"] < kills:
        first, waits = counts["calls"], []
        for worker in range(WORKERS):
            numbers = list(range(first + worker * CALLS, first + (worker + 1) * CALLS))
            kill = Kill(phase="", where=draw.choice(["before", "after"]), number=draw.randrange(OPERATIONS))
            progress = folder / f"{numbers[0]}"
            waits.append((numbers, progress, started(url, numbers, progress, kill, kind)))
        counts["calls"] += WORKERS * CALLS
        again = []
        for numbers, progress, child in waits:
            if ended(child):
                counts["killed"] += 1
                left = [number for number in numbers if f"finished {number}" not in lines(progress)]
                again.append(started(url, left, progress, None, kind))
        for child in again:
            ended(child)
    anyio.run(check, url, permit, counts)
    return counts


async def check(url: str, permit: Permit, counts: Counter[str]) -> None:
    store = open_store(url)
    standing = next(one for one in await stored_permits(store) if one.permit.id == permit.id)
    log: list[dict[str, Any]] = [json.loads(body) for body in await store.read(f"permit/{permit.id}")]
    documents = await store.scan("permit-ticket", label=permit.id)
    replayed = await replayed_permit(store, permit)
    await store.aclose()
    assert standing.state == replayed, "the log gives another state than the stored one"
    said = Counter(entry["ticket"] for entry in log if entry["do"] == "answer")
    assert set(said.values()) <= {1}, f"answers were counted twice: {said}"
    answers = {entry["ticket"]: entry["wrong"] for entry in log if entry["do"] == "answer"}
    state, questions = PermitState.fresh(permit), set()
    for values in log:
        entry = Entry(**{name: value for name, value in values.items() if name in Entry.__dataclass_fields__})
        taken = issued(permit, state, entry) if entry.do == "propose" else None
        if taken is not None:
            counts["tickets"] += 1
            questions |= {taken[0]} if taken[1].asked else set()
        state = applied(permit, state, entry)
    assert questions == set(answers), f"labels were lost: {questions ^ set(answers)}"
    tickets = {one["number"]: one for one in (json.loads(document.body) for document in documents)}
    assert len(tickets) == len(documents) == counts["calls"], "a call has no ticket of its own"
    assert {n: one["wrong"] for n, one in tickets.items() if one["asked"]} == answers, "a label is not as it was given"
    assert sum(answers.values()) <= sum(map(is_wrong, range(counts["calls"])))
    counts["answers"], counts["twice_judged"] = len(answers), counts["tickets"] - counts["calls"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url.replace("{folder}", folder)
        kind = Apart if options.sabotage else StoredPermits
        counts = drive(url, Path(folder), options.kills, random.Random(options.seed), kind)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
