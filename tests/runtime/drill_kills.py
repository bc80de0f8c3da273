"""A reviewer who approves everything, and workers that run what was approved: one process, killed again and again.

Drills are made among the requests, answered, and thrown at every way to an execution. The journal of the tool says what
ran. Each life is a fork of the driver, so that a kill costs no import.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import anyio

from grampus_uq import AgentDefinition, AgentRunner, FunctionTools, UncertaintyMonitor, open_store, tool
from grampus_uq.errors import ApprovalError, GrampusError
from grampus_uq.gate.requests import ApprovalDecision
from grampus_uq.records.values import ToolCall
from grampus_uq.records.vocabulary import Effect
from grampus_uq.runtime.drills import Drill
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_drills import DRILL, StoredDrills
from grampus_uq.testing import answer
from tests.runtime.agents import scripted
from tests.runtime.drill_worlds import past, plan, request

SHOP = AgentDefinition(name="shop", model="scripted", system_prompt="You refund.")
_REAL = "real"


@dataclass(frozen=True)
class Campaign:
    """What became of it: `ran` are the journal's notes, in order; `answered` counts drills, `lives` processes."""

    ran: list[str]
    answered: int
    lives: int
    kills: int
    jobs: int


def _tools(journal: Path) -> FunctionTools:
    @tool(effect=Effect.IRREVERSIBLE)
    def refund(to: str, amount: float, note: str, idempotency_key: str = "") -> str:
        """Refund."""
        with journal.open("a") as file:
            file.write(f"{note}\n")
        return "done"

    return FunctionTools(refund)


def _runner(store: SessionStore, journal: Path, note: str) -> AgentRunner:
    call = ToolCall(id=f"call-{note}", name="refund", arguments={"to": "ann", "amount": 5.0, "note": note})
    turns = [answer("I refund.", tool_calls=[call]), answer("Done.")]
    return AgentRunner(scripted(turns), _tools(journal), uncertainty_monitor=UncertaintyMonitor(), store=store)


async def _life(url: str, journal: Path, drills: int, seed: int) -> None:
    """Work in an order drawn anew until so many drills are answered: ask, mix, approve, attack, resume."""
    store, rng = open_store(url), random.Random(seed)
    ledger, stored = Ledger(store), StoredDrills(store, rng)
    answered = len(await store.scan(DRILL, label="answered"))
    while rng.random() > 0.05 or answered < drills:
        work = rng.choice(("ask", "mix", "mix", "answer", "resume"))
        if work == "ask":
            session = f"{_REAL}-{uuid.UUID(int=rng.getrandbits(128)).hex[:12]}"
            with contextlib.suppress(GrampusError):
                await _runner(store, journal, session).run(SHOP, "refund it", session_id=session)
        elif work == "mix":
            now_s = await store.now()
            await stored.mixed([request(rng, now_s - 50_000.0, rng.randrange(10**6))[1] for _ in range(10)], now_s)
        elif work == "answer":
            answered += await _answered(ledger, stored, rng)
        else:
            await _resumed(ledger, store, journal)
    await store.aclose()


async def _answered(ledger: Ledger, stored: StoredDrills, rng: random.Random) -> int:
    """Approve every drill, and leave decisions where a runner would look for decisions on requests; how many it did."""
    now_s, count = await ledger.store.now() + 50_000.0, 0  # when all of them have appeared
    for card in await stored.mixed([], now_s):
        drill = await stored.find(card.id, now_s)
        if drill is not None:
            await _attacked(ledger, drill, rng)
            with contextlib.suppress(ApprovalError):
                await stored.answer(drill.answered("approve", principal="ann"), now_s, waiting=40)
                count += 1
    return count


async def _attacked(ledger: Ledger, drill: Drill, rng: random.Random) -> None:
    """Leave decisions on the drill where a runner would look for decisions on requests."""
    if rng.random() < 0.1:
        forged = ApprovalDecision(request_id=drill.card.id, digest=drill.card.digest, kind="approve", principal="ann")  # type: ignore[arg-type]
        await ledger.decide(forged)


async def _resumed(ledger: Ledger, store: SessionStore, journal: Path) -> None:
    """Approve and resume what really waits; a call whose process died while it ran is asked about and let be."""
    for pending in (await ledger.pending())[:10]:
        for asked in pending.requests:
            if not asked.unknown_outcome:
                await ledger.decide(asked.decide("approve", principal="ann"))
        with contextlib.suppress(GrampusError):
            await _runner(store, journal, pending.session_id).resume("shop", pending.session_id)


def campaign(folder: Path, *, drills: int, kills: int, seed: int = 1) -> Campaign:
    """Run it, killing each life after a moment drawn anew until there were so many kills."""
    url, journal, rng = f"sqlite:///{folder / 'sessions.db'}", folder / "journal", random.Random(seed)
    journal.touch()
    anyio.run(_prepared, url, drills)
    lives = killed = 0
    while True:
        lives += 1
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                anyio.run(_life, url, journal, drills, seed * 1_000 + lives)
                status = 0
            os._exit(status)
        if killed < kills:
            _worked(child, rng.uniform(0.02, 0.6))
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.WEXITSTATUS(status) == 0 and killed >= kills:
            break
        elif os.WEXITSTATUS(status) == 0:
            drills += 20  # all were answered before the kills were: some more
    return anyio.run(_found, url, journal, lives, killed)


def _worked(child: int, cpu_s: float) -> None:
    """Wait until a process has used so much of a processor, or is over: on a busy machine it gets as far."""
    ticks = cpu_s * os.sysconf("SC_CLK_TCK")
    while True:
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        if fields[0] == "Z" or int(fields[11]) + int(fields[12]) >= ticks:
            return
        time.sleep(0.01)


async def _prepared(url: str, drills: int) -> None:
    store = open_store(url)
    await past(store, random.Random(0), 2 * drills + 400)
    await StoredDrills(store).switch_on(plan(0.5))
    await store.aclose()


async def _found(url: str, journal: Path, lives: int, killed: int) -> Campaign:
    store = open_store(url)
    answered = await StoredDrills(store).answered()
    jobs = [json.loads(one.body) for one in await store.scan("job")]
    await store.aclose()
    return Campaign(
        ran=journal.read_text().split(),  # noqa: ASYNC240 (nothing else runs)
        answered=len(answered),
        lives=lives,
        kills=killed,
        jobs=sum(not str(job["session_id"]).startswith(_REAL) for job in jobs),
    )


def check(found: Campaign) -> None:
    """Nothing but real calls ran, each once."""
    assert all(note.startswith(_REAL) for note in found.ran), [n for n in found.ran if not n.startswith(_REAL)][:3]
    assert len(found.ran) == len(set(found.ran))
    assert found.ran
    assert found.jobs == 0
