"""Kills agent runs with SIGKILL at chosen points, lets others take them up, and checks what the world saw. A script.

    python -m tests.runtime.kill_driver STORE_URL_TEMPLATE --kills 300 --seed 1

Every scenario forks workers from this process (imports are done once). A worker runs a turn of one to five parallel
calls, pauses, some calls are approved and the others rejected, another worker resumes; one of the workers is killed:
half of the time inside a tool (before, while or after it acts), otherwise before or after its k-th store operation.
Whoever takes the session up waits for one lease and no longer. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio

from grampus_uq import AgentRunner, FunctionTools, SessionError, ToolCall, UncertaintyMonitor, open_store, tool
from grampus_uq.errors import GrampusError
from grampus_uq.gate.call import CallPhase, CallRecord, cleared
from grampus_uq.records.vocabulary import AgentStatus, Effect
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.run_state import ExecutionResult
from grampus_uq.runtime.store import Change, Document, SessionStore
from grampus_uq.runtime.turn import Turn
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, results_by_call, scripted, unknown_calls

LEASE_S = 0.05
STEPS = 14  # store operations of a run or a resume, about


@dataclass(frozen=True)
class Kill:
    """Where to die: in which phase, and before or after which store operation, or where in the tool."""

    phase: str
    where: str
    number: int = 0

    def inside(self) -> bool:
        """True for a death inside a tool."""
        return self.where.startswith("tool")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(10)


class KillingStore(SessionStore):
    """Delegates to a real store and dies before or after the chosen operation."""

    def __init__(self, inner: SessionStore, kill: Kill | None) -> None:
        self._inner, self._kill, self._count = inner, kill, 0

    async def _do(self, work: Callable[[], Awaitable[Any]]) -> Any:
        number, kill = self._count, self._kill
        self._count += 1
        if kill is not None and kill.where == "before" and kill.number == number:
            die()
        result = await work()
        if kill is not None and kill.where == "after" and kill.number == number:
            die()
        return result

    async def get(self, kind: str, key: str) -> Document | None:
        if kind == "stop":
            return await self._inner.get(kind, key)  # polled by time: not a reproducible point
        return await self._do(lambda: self._inner.get(kind, key))  # type: ignore[no-any-return]  # delegated as it is

    async def write(self, *changes: Change) -> float:
        return await self._do(lambda: self._inner.write(*changes))  # type: ignore[no-any-return]  # delegated as it is

    async def scan(self, kind: str, **options: Any) -> list[Document]:
        return await self._do(lambda: self._inner.scan(kind, **options))  # type: ignore[no-any-return]  # delegated

    async def now(self) -> float:
        return await self._inner.now()

    async def read(self, log: str, *, start: int = 0) -> list[str]:
        return await self._do(lambda: self._inner.read(log, start=start))  # type: ignore[no-any-return]  # delegated as it is

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass(frozen=True)
class Scenario:
    """One life: its store and session, what the world saw, the calls of its turn, and which of them are approved."""

    url: str
    session: str
    effects: Path
    calls: tuple[ToolCall, ...]
    approved: frozenset[str]
    kill: Kill

    def runner(self, kill: Kill | None = None) -> AgentRunner:
        turns = [answer("I will act.", tool_calls=list(self.calls)), "Done."]
        return AgentRunner(
            scripted(turns),
            self.tools(kill),
            uncertainty_monitor=UncertaintyMonitor(),
            store=KillingStore(open_store(self.url), kill),
            lease_s=LEASE_S,
        )

    def tools(self, kill: Kill | None) -> FunctionTools:
        """Tools that write what they did to a file, durably; the chosen execution dies at one of three places."""
        executions = 0

        def act(text: str) -> str:
            nonlocal executions
            number, executions = executions, executions + 1
            where = kill.where if kill is not None and kill.number == number else ""
            if where == "tool_before":
                die()
            with self.effects.open("a") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())
                if where == "tool_during":
                    die()
            if where == "tool_after":
                die()
            return "done"

        @tool(effect=Effect.IRREVERSIBLE)
        def send_email(to: str, body: str) -> str:
            return act(to)

        @tool(effect=Effect.REVERSIBLE)
        def book(to: str) -> str:
            return act(to)

        @tool(effect=Effect.READ)
        def search(query: str) -> str:
            return act(query)

        return FunctionTools(send_email, book, search)

    def seen(self) -> Counter[str]:
        """How often the world saw each call."""
        return Counter(self.effects.read_text().split() if self.effects.exists() else ())


def drawn(url: str, number: int, folder: str, rng: random.Random, *, inside: bool) -> Scenario:
    """A turn of one to five calls, one of them irreversible at least, and where its worker dies."""
    names = ["send_email", *rng.choices(["send_email", "book", "search"], k=rng.randrange(5))]
    rng.shuffle(names)
    calls = tuple(
        ToolCall(
            id=f"c{n}",
            name=name,
            arguments={"query": f"{name}-c{n}"}
            if name == "search"
            else {"to": f"{name}-c{n}"} | ({"body": "hi"} if name == "send_email" else {}),
        )
        for n, name in enumerate(names)
    )
    approved = frozenset(call.id for call in calls if rng.random() < 0.7)
    runs = {"run": [call for call in calls if call.name != "send_email"]}
    runs["resume"] = [call for call in calls if call.name == "send_email" and call.id in approved]
    phases = [phase for phase, executed in runs.items() if executed]
    if inside and phases:
        phase = rng.choice(phases)
        kill = Kill(phase, rng.choice(["tool_before", "tool_during", "tool_after"]), rng.randrange(len(runs[phase])))
    else:
        kill = Kill(rng.choice(["run", "resume"]), rng.choice(["before", "after"]), rng.randrange(STEPS))
    return Scenario(
        url=url.format(n=number, folder=folder),
        session=f"s{number}",
        effects=Path(folder, f"effects-{number}"),
        calls=calls,
        approved=approved,
        kill=kill,
    )


def in_child(work: Callable[[], Awaitable[Any]]) -> bool:
    """Run in a forked child; True when it was killed, False when it ended by itself. Any other end is an error."""
    child = os.fork()
    if child == 0:
        try:
            anyio.run(work)
        except BaseException as error:  # noqa: BLE001 (the child's last word before it ends)
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        return True
    if os.WEXITSTATUS(status) != 0:
        raise AssertionError(f"a worker failed with status {os.WEXITSTATUS(status)}")
    return False


async def _paused(one: Scenario) -> None:
    await one.runner().run(AGENT, "act", session_id=one.session)


async def _decide(one: Scenario) -> None:
    """What a human does who sees what waits: approve or reject as this scenario says, look up what nobody knows."""
    ledger = Ledger(open_store(one.url))
    for found in await ledger.pending("mailer"):
        for request in found.requests if found.session_id == one.session else ():
            assert request.call is not None
            kind = "approve" if request.call.id in one.approved else "reject"
            if request.unknown_outcome:
                await ledger.decide(request.decide("respond", principal="ann", message="looked it up"))
            else:
                await ledger.decide(request.decide(kind, principal="ann"))


async def _unknown(one: Scenario) -> set[str]:
    entries = await AuditLog(open_store(one.url), "mailer", one.session).entries()
    return {str(call["call_id"]) for call in unknown_calls(entries)}


async def _go_on(one: Scenario) -> ExecutionResult:
    """What an operator's supervisor does: resume; start anew only when nothing was ever stored."""
    worker = one.runner()
    try:
        return await worker.resume("mailer", one.session)
    except SessionError as error:
        if "There is no session" in str(error):
            return await worker.run(AGENT, "act", session_id=one.session)
        loaded = await worker.ledger.load("mailer", one.session)
        if loaded is not None and loaded[0].status is AgentStatus.COMPLETED:
            return ExecutionResult(status=AgentStatus.COMPLETED, messages=loaded[0].messages)
        raise


def live(one: Scenario) -> dict[str, Any]:
    """One life with one kill; returns what was seen, raises AssertionError when a promise was broken."""
    if one.kill.phase == "run":
        killed = in_child(lambda: one.runner(one.kill).run(AGENT, "act", session_id=one.session))
    else:
        in_child(lambda: _paused(one))
        in_child(lambda: _decide(one))
        killed = in_child(lambda: one.runner(one.kill).resume("mailer", one.session))
    looked_up: set[str] = set()
    for _ in range(8):
        time.sleep(LEASE_S)
        result = anyio.run(_go_on, one)
        if result.status is AgentStatus.COMPLETED:
            break
        assert result.status is AgentStatus.WAITING_FOR_HUMAN, result.status
        asked = {request.call.id for request in result.pending if request.unknown_outcome and request.call is not None}
        assert asked <= anyio.run(_unknown, one), "the audit must say that the outcome is unknown"
        looked_up |= asked
        for call_id, count in one.seen().items():
            if call_id.startswith("send_email"):
                assert one.kill.phase == "resume", f"{call_id} ran {count} times before anybody approved it"
        anyio.run(_decide, one)
        if result.pending and one.kill.phase == "run":
            one = replace(one, kill=replace(one.kill, phase="resume"))
    else:
        raise AssertionError("the session never completed: something was lost")
    check(one, looked_up, result)
    return {
        "killed": killed,
        "unknown": bool(looked_up),
        "calls": len(one.calls),
        "inside": killed and one.kill.inside(),
    }


def check(one: Scenario, looked_up: set[str], result: ExecutionResult) -> None:
    """Every call had its one result, and the world saw it once, or not at all where nobody let it run."""
    seen = one.seen()
    for call in one.calls:
        times = seen[f"{call.name}-{call.id}"]
        if call.name == "search":
            assert times >= 1, f"the read {call.id} was lost"
            continue
        assert times <= 1, f"{call.name} {call.id} was executed {times} times"
        if call.name == "send_email" and call.id not in one.approved:
            assert times == 0, f"{call.id} ran though it was rejected"
        elif call.id not in looked_up:
            assert times == 1, f"{call.name} {call.id} was lost"
    assert set(results_by_call(result.messages).values()) == {1}


def _run_again(turn: Turn) -> list[CallRecord]:
    for record in turn._state.turn:
        if record.phase is CallPhase.STARTED:
            turn._state.keep(cleared(record))
    return []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url", help="store URL; {n} is replaced by the number of the scenario")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sabotage", action="store_true", help="run calls of unknown outcome again, as many loops do")
    options = parser.parse_args()
    if options.sabotage:
        Turn.recover = _run_again  # type: ignore[method-assign, assignment]  # the sabotage that the checks must notice
    rng = random.Random(options.seed)
    done: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        while done["killed"] < options.kills:
            number, inside = done["scenarios"] + 1_000_000 * options.seed, 2 * done["inside"] <= done["killed"]
            one = drawn(options.url, number, folder, rng, inside=inside)
            try:
                seen = live(one)
            except (AssertionError, GrampusError) as broken:
                raise SystemExit(
                    f"{one.kill} {[c.name for c in one.calls]} {sorted(one.approved)}: {broken}"
                ) from broken
            done["scenarios"] += 1
            done.update({key: int(value) for key, value in seen.items()})
            done[f"killed {one.kill.phase} {one.kill.where}"] += seen["killed"]
    sys.stdout.write(json.dumps(done) + "\n")


if __name__ == "__main__":
    main()
