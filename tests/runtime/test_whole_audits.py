"""The law of the audit: whatever writes of the store fail, each call that ran is in it, once, and nothing else is."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from grampus_uq import AgentRunner, AgentStatus, FunctionTools, Grant, ToolCall, ToolEffects, UncertaintyMonitor, tool
from grampus_uq.errors import SessionError, StoreError
from grampus_uq.records.vocabulary import Effect
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.store import Change, Document
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, scripted
from tests.sampling import sampled

pytestmark = pytest.mark.anyio
LEASE_S = 0.05


class Failing(MemoryStore):
    """From the write of this number on so many fail: `before` or `after` they were made, or the run is `cancelled`.

    Behind each the next document cannot be read: nobody knows at once whether the write was made.
    """

    def __init__(self, how: str, first: int, number: int) -> None:
        super().__init__()
        self.how, self.writes, self.failing = how, 0, range(first, first + number)
        self.down, self.scope = False, anyio.CancelScope()

    async def write(self, *changes: Change) -> float:
        self.writes += 1
        fails = self.writes in self.failing
        self.down = fails and self.how != "cancelled"
        if fails and self.how == "before":
            raise StoreError("the connection broke")
        written_s = await super().write(*changes)
        if fails and self.how == "cancelled":
            self.scope.cancel()
            await anyio.sleep(1.0)
        elif fails:
            raise StoreError("the connection broke")
        return written_s

    async def get(self, kind: str, key: str) -> Document | None:
        if self.down:
            self.down = False
            raise StoreError("down")
        return await super().get(kind, key)


def payer(store: MemoryStore, ran: list[str]) -> AgentRunner:
    """Two calls that can be undone; two that cannot, one of them granted, beside one that can; and one more."""

    @tool(effect=Effect.REVERSIBLE)
    async def book(n: int, idempotency_key: str = "") -> str:
        await anyio.lowlevel.checkpoint()
        ran.append(idempotency_key)
        return f"booked {n}"

    @tool(effect=Effect.IRREVERSIBLE)
    async def pay(n: int, idempotency_key: str = "") -> str:
        await anyio.lowlevel.checkpoint()
        ran.append(idempotency_key)
        return f"paid {n}"

    def calls(*names: str) -> Any:
        proposed = [ToolCall(id=name, name=name[:-1], arguments={"n": int(name[-1])}) for name in names]
        return answer("Next.", tool_calls=proposed)

    turns = [calls("book1", "book2"), calls("pay3", "book4", "pay5"), calls("book6"), "Done."]
    tools = FunctionTools(book, pay)
    monitor = UncertaintyMonitor()
    return AgentRunner(scripted(turns, 0.7), tools, uncertainty_monitor=monitor, store=store, lease_s=LEASE_S)


async def attempt(store: Failing, work: Callable[[], Awaitable[Any]]) -> Any:
    with anyio.CancelScope() as store.scope:
        try:
            return await work()
        except (StoreError, SessionError) as error:
            return error
    return None


async def run_with(store: Failing, kind: str) -> tuple[list[str], list[dict[str, Any]]]:
    """What ran, and the audit, once the run has ended although some writes failed."""
    ran, failing = list[str](), store.failing
    one, store.failing = payer(store, ran), range(0)
    await one.ledger.grant(Grant(tool="pay", limits={"n": {"min": 4}}, principal="ann", expires_s=time.time() + 3600))
    store.writes, store.failing = 0, failing
    for _ in range(30):
        store.down = False
        found = await one.ledger.load("mailer", "s")
        if found is not None and found[0].status is AgentStatus.COMPLETED:
            return ran, await AuditLog(store, "mailer", "s").entries()
        result = await attempt(
            store, lambda new=found is None: one.run(AGENT, "x", session_id="s") if new else one.resume("mailer", "s")
        )
        if isinstance(result, Exception) or result is None:
            await anyio.sleep(LEASE_S)
        for request in getattr(result, "pending", ()):
            how = "respond" if request.unknown_outcome else kind if request.call is not None else "approve"
            with contextlib.suppress(StoreError):
                await one.ledger.decide(request.decide(how, principal="ann", message="So it is."))
    raise AssertionError("the run stands still")


def wrong_with(ran: list[str], entries: list[dict[str, Any]]) -> list[str]:
    """What an audit says too much or too little."""
    found, runs = list[str](), Counter(ran)
    calls = [(entry["data"]["idempotency_key"], entry["what"]) for entry in entries
             if "idempotency_key" in entry["data"]]  # fmt: skip
    for key in {key for key, _ in calls} | set(runs):
        whats, running = [what for one, what in calls if one == key], 0
        for what in whats:
            running += {"execution_started": 1, "execution_finished": -1, "execution_withdrawn": -1}.get(what, 0)
            running = 0 if what == "execution_settled" else running
        if running != 0 or whats.count("execution_started") < runs[key]:
            found.append(f"ran {runs[key]} times: {whats}")
        if whats.count("execution_finished") > runs[key]:
            found.append(f"ran {runs[key]} times: {whats}")
    once = [(entry["what"], str(sorted(entry["data"].items()))) for entry in entries if entry["what"] != "paused"]
    found += [f"twice: {what}" for (what, _), count in Counter(once).items() if count > 1]
    decided = Counter(entry["data"]["request"] for entry in entries if entry["what"] == "decision")
    return found + [f"decided {count} times" for count in decided.values() if count > 1]


@pytest.mark.one_loop
@pytest.mark.jumping_clocks
@sampled(
    "how,number,every",
    [("before", 2, 4), ("before", 4, 7), ("after", 1, 4), ("cancelled", 1, 4)],
    full=[(how, number, 1) for how in ("before", "after", "cancelled") for number in range(1, 7)],
)
async def test_whatever_writes_fail_the_audit_has_each_call_that_ran_and_nothing_twice(
    how: str, number: int, every: int
) -> None:
    for first in range(2, 200, every):
        store = Failing(how, first, number)
        ran, entries = await run_with(store, "reject" if first % 3 == 0 else "approve")
        assert [entry["what"] for entry in entries].count("decision") >= 1
        assert wrong_with(ran, entries) == [], (first, [entry["what"] for entry in entries])
        if store.writes < first:
            return
    raise AssertionError("so many writes")


async def test_an_approved_call_that_could_not_begin_beside_one_that_held_the_process_up_begins_later() -> None:
    ran, store = list[str](), Failing("before", 1_000, 2)

    class Pays:
        async def execute(self, call: ToolCall) -> str:
            ran.append(call.id)
            if len(ran) == 1:
                store.failing = range(store.writes + 1, store.writes + 3)
                time.sleep(2 * LEASE_S)  # noqa: ASYNC251 (it holds the process up)
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
            return "paid"

    calls = [ToolCall(id=f"{n}", name="pay", arguments={"n": n}) for n in range(2)]
    turns, effects = [answer("Pay.", tool_calls=calls), "Done."], ToolEffects({"pay": "irreversible"})
    monitor = UncertaintyMonitor()
    one = AgentRunner(
        scripted(turns), Pays(), uncertainty_monitor=monitor, store=store, lease_s=LEASE_S, effects=effects
    )
    asked = (await one.run(AGENT, "x", session_id="s")).pending
    with pytest.raises(StoreError):
        await one.resume("mailer", "s", [request.decide("approve", principal="ann") for request in asked])
    result = await one.resume("mailer", "s")
    assert (result.status, sorted(ran)) == (AgentStatus.COMPLETED, ["0", "1"])
    whats = [entry["what"] for entry in await AuditLog(store, "mailer", "s").entries()]
    assert (whats.count("execution_withdrawn"), whats.count("execution_started")) == (1, 3)
