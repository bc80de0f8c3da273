"""Kills agent runs with SIGKILL at chosen points, lets others take them up, and checks what the world saw. A script.

    python -m tests.runtime.kill_driver STORE_URL_TEMPLATE --kills 200 --seed 1

Every scenario forks workers from this process (imports are done once): a worker runs, pauses, is approved, resumes, and
is killed before or after its k-th store operation, or before, during or after its tool. Prints one JSON object.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from grampus_uq import AgentRunner, FunctionTools, SessionError, UncertaintyMonitor, open_store, tool
from grampus_uq.gate.call import CallPhase, CallRecord, cleared
from grampus_uq.runtime.audit import AuditLog, unknown_calls
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.state import ExecutionResult
from grampus_uq.runtime.store import Change, Document, SessionStore
from grampus_uq.runtime.turn import Turn
from grampus_uq.testing import answer
from grampus_uq.vocabulary import AgentStatus, Effect
from tests.runtime.agents import AGENT, look, mail, results_by_call, scripted

TURNS = [answer("I will mail Bob.", tool_calls=[look("a", "bob"), mail("b", "bob")]), answer("Done.")]
LEASE_S = 0.05


@dataclass(frozen=True)
class Kill:
    """Where to die: in which phase, and before or after which store operation, or where in the tool."""

    phase: str
    where: str
    number: int = 0


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


def tools(effects: Path, kill: Kill | None) -> FunctionTools:
    """The mail tool writes what it did to a file, durably, and may die at three places."""

    @tool(effect=Effect.IRREVERSIBLE)
    def send_email(to: str, body: str, idempotency_key: str = "") -> str:
        if kill is not None and kill.where == "tool_before":
            die()
        with effects.open("a") as file:
            file.write(f"{idempotency_key} {to}\n")
            file.flush()
            os.fsync(file.fileno())
            if kill is not None and kill.where == "tool_during":
                die()
        if kill is not None and kill.where == "tool_after":
            die()
        return "sent"

    @tool(effect=Effect.READ)
    def search(query: str) -> str:
        return f"found {query}"

    return FunctionTools(send_email, search)


def runner(url: str, effects: Path, kill: Kill | None) -> AgentRunner:
    store = KillingStore(open_store(url), kill)
    return AgentRunner(
        scripted(TURNS), tools(effects, kill), uncertainty_monitor=UncertaintyMonitor(), store=store, lease_s=LEASE_S
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


def scenario(url: str, session: str, effects: Path, kill: Kill) -> dict[str, Any]:
    """One life with one kill; returns what was seen, raises AssertionError when a promise was broken."""
    killed = False
    if kill.phase == "run":
        killed = in_child(lambda: runner(url, effects, kill).run(AGENT, "mail bob", session_id=session))
    else:
        in_child(lambda: runner(url, effects, None).run(AGENT, "mail bob", session_id=session))
        in_child(lambda: _approve(url, session))
        killed = in_child(lambda: runner(url, effects, kill).resume("mailer", session))
    asked, settled_by_human, decided = 0, False, kill.phase == "resume"
    for _ in range(8):
        time.sleep(LEASE_S * 1.2)
        result = anyio.run(_go_on, url, session, effects)
        if result.status is AgentStatus.COMPLETED:
            break
        assert result.status is AgentStatus.WAITING_FOR_HUMAN, result.status
        (request,) = result.pending
        if request.unknown_outcome:
            unknown = anyio.run(_unknown, url, session)
            assert len(unknown) == 1, "the audit must say that the outcome is unknown"
            settled_by_human = True
            anyio.run(_decide, url, request.decide("respond", principal="ann", message="looked it up"))
        else:
            asked += 1
            assert not decided, "a stored decision must not be asked for again"
            decided = True
            anyio.run(_decide, url, request.decide("approve", principal="ann"))
    else:
        raise AssertionError("the session never completed: something was lost")
    sent = effects.read_text().splitlines() if effects.exists() else []
    assert len(sent) <= 1, f"the call was executed {len(sent)} times"
    assert sent or settled_by_human, "an approved call was lost"
    assert set(results_by_call(result.messages).values()) == {1}
    return {"killed": killed, "unknown": settled_by_human, "sent": len(sent), "asked": asked}


async def _approve(url: str, session: str) -> None:
    ledger = Ledger(open_store(url))
    (waiting,) = [found for found in await ledger.pending("mailer") if found.session_id == session]
    await ledger.decide(waiting.requests[0].decide("approve", principal="ann"))


async def _decide(url: str, decision: Any) -> None:
    await Ledger(open_store(url)).decide(decision)


async def _unknown(url: str, session: str) -> list[dict[str, Any]]:
    return unknown_calls(await AuditLog(open_store(url), "mailer", session).entries())


async def _go_on(url: str, session: str, effects: Path) -> ExecutionResult:
    """What an operator's supervisor does: resume; start anew only when nothing was ever stored."""
    one = runner(url, effects, None)
    try:
        return await one.resume("mailer", session)
    except SessionError as error:
        if "There is no session" in str(error):
            return await one.run(AGENT, "mail bob", session_id=session)
        loaded = await one.ledger.load("mailer", session)
        if loaded is not None and loaded[0].status is AgentStatus.COMPLETED:
            return ExecutionResult(status=AgentStatus.COMPLETED, messages=loaded[0].messages)
        raise


def every_kill() -> list[Kill]:
    """Each store operation of a run (about 12) and of a resume (about 20), before and after; and the tool's places."""
    kills = [Kill("run", where, n) for n in range(12) for where in ("before", "after")]
    kills += [Kill("resume", where, n) for n in range(24) for where in ("before", "after")]
    return kills + [Kill("resume", where) for where in ("tool_before", "tool_during", "tool_after")]


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
    number = 0
    schedule: list[Kill] = []
    with tempfile.TemporaryDirectory() as folder:
        while done["killed"] < options.kills:
            if not schedule:
                schedule = every_kill()
                rng.shuffle(schedule)
            kill = schedule.pop()
            effects = Path(folder, f"effects-{number}")
            try:
                seen = scenario(options.url.format(n=number, folder=folder), f"s{number}", effects, kill)
            except AssertionError as broken:
                raise SystemExit(f"{kill}: {broken}") from broken
            number += 1
            done["scenarios"] += 1
            done.update({key: int(value) for key, value in seen.items()})
            done[f"killed {kill.phase} {kill.where}"] += seen["killed"]
    sys.stdout.write(json.dumps(done) + "\n")


if __name__ == "__main__":
    main()
