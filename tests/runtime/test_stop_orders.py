"""The law of stop orders: what was not announced before an order was acknowledged does not run, wherever it arrives."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import (
    AgentRunner,
    AgentStatus,
    ApprovalPolicy,
    FunctionTools,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
    tool,
)
from grampus_uq.errors import GrampusError, SessionError, StoreError
from grampus_uq.gate.signatures import Ed25519Signer, PublicKeys
from grampus_uq.records.vocabulary import Effect
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.session_lease import Leases
from grampus_uq.runtime.stopping import StopOrders, order_stop, stops_to_heed
from grampus_uq.runtime.store import Change, Document, Put
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, scripted, unknown_calls
from tests.sampling import examples


class Ordering(MemoryStore):
    """Gives the order just before, or just after, the operation with a given number, as another process would."""

    def __init__(self, at: int, after: bool, to_all: bool) -> None:
        super().__init__()
        self._at, self._after, self._whom = at, after, () if to_all else ("mailer", "s")
        self.operations = 0
        self.announced: set[str] = set()
        self.ordered_when_announced: set[str] | None = None
        self._ordering = False

    async def _around(self, work: Any) -> Any:
        if self._ordering:
            return await work
        self.operations += 1
        here = self.operations == self._at
        if here and not self._after:
            await self._order()
        result = await work
        if here and self._after:
            await self._order()
        return result

    async def _order(self) -> None:
        self._ordering = True
        await order_stop(Ledger(self), *self._whom)
        self._ordering = False
        found = self._documents.get(("session", "mailer/s"))
        if found is not None and (self._whom or found.label == AgentStatus.RUNNING):  # else it concerns nobody yet
            self.ordered_when_announced = set(self.announced)

    async def get(self, kind: str, key: str) -> Document | None:
        return await self._around(super().get(kind, key))  # type: ignore[no-any-return]  # as it came

    async def write(self, *changes: Change) -> float:
        return await self._around(self._announce(changes))  # type: ignore[no-any-return]  # as it came

    async def _announce(self, changes: tuple[Change, ...]) -> float:
        written_s = await super().write(*changes)
        for change in changes:
            if isinstance(change, Put) and change.kind == "session":
                calls = json.loads(change.body)["turn"]
                self.announced |= {call["call"]["id"] for call in calls if call["phase"] == "started"}
        return written_s


async def precondition(call: ToolCall) -> None:
    """Holds; that it is there makes the way to the tool longer."""


@settings(max_examples=examples(60), deadline=None)
@given(
    at=st.integers(1, 24),
    after=st.booleans(),
    to_all=st.booleans(),
    effects=st.lists(st.sampled_from([Effect.READ, Effect.REVERSIBLE]), min_size=1, max_size=3),
    approved=st.booleans(),
)
def test_a_call_that_was_not_announced_before_an_order_to_stop_was_acknowledged_does_not_run(
    at: int, after: bool, to_all: bool, effects: list[Effect], approved: bool
) -> None:
    anyio.run(stopped_somewhere, at, after, to_all, effects, approved)


async def stopped_somewhere(at: int, after: bool, to_all: bool, effects: list[Effect], approved: bool) -> None:
    store, ran = Ordering(at, after, to_all), list[str]()

    @tool(effect=Effect.READ)
    async def search(n: str) -> str:
        ran.append(n)
        return "found"

    @tool(effect=Effect.REVERSIBLE)
    async def book(n: str) -> str:
        ran.append(n)
        return "booked"

    names = {Effect.READ: "search", Effect.REVERSIBLE: "book"}
    turns = []
    for turn in range(2):
        ids = [f"{turn}.{place}" for place in range(len(effects))]
        calls = [ToolCall(id=i, name=names[e], arguments={"n": i}) for i, e in zip(ids, effects, strict=True)]
        turns.append(answer("Go.", tool_calls=calls))
    policy: dict[str, Any] = {}
    if approved:
        rules = UncertaintyPolicy(enable_p_true=False, always_ask_tool_names=["book"])
        policy = {"uncertainty_monitor": UncertaintyMonitor(policy=rules)}
    one = AgentRunner(
        scripted([*turns, "Done."]), FunctionTools(search, book), store=store, precondition=precondition, **policy
    )
    result = await one.run(AGENT, "x", session_id="s")
    try:
        while result.status is AgentStatus.WAITING_FOR_HUMAN:
            decisions = [request.decide("approve", principal="ann") for request in result.pending]
            result = await one.resume("mailer", "s", decisions)
    except SessionError:
        pass  # the order came while it waited, and ended it
    allowed = store.ordered_when_announced
    assert allowed is None or set(ran) <= allowed  # None: the order concerned nobody, or the run had ended
    unknown = {data["call_id"] for data in unknown_calls(await AuditLog(store, "mailer", "s").entries())}
    assert unknown <= set(ran)  # of what did not run nobody says that its outcome is unknown


@pytest.mark.anyio
async def test_where_orders_cannot_be_read_an_approved_call_does_not_run_and_a_harmless_one_does() -> None:
    class Deaf(MemoryStore):
        deaf = False

        async def get(self, kind: str, key: str) -> Document | None:
            if self.deaf and kind == "stop":
                raise StoreError("down")
            return await super().get(kind, key)

    ran: list[str] = []

    @tool(effect=Effect.IRREVERSIBLE)
    async def pay(n: int) -> str:
        ran.append("pay")
        return "paid"

    @tool(effect=Effect.READ)
    async def search(n: int) -> str:
        ran.append("search")
        return "found"

    store = Deaf()
    calls = [ToolCall(id=name, name=name, arguments={"n": 1}) for name in ("pay", "search")]
    one = AgentRunner(scripted([answer("Go.", tool_calls=calls), "Done."]), FunctionTools(pay, search), store=store)

    first = await one.run(AGENT, "x", session_id="s")
    assert (ran, len(first.pending)) == (["search"], 1)
    decision = first.pending[0].decide("approve", principal="ann")

    class Late(Leases):
        async def take(self, state: Any, version: int, *notes: Any) -> Any:
            hold = await super().take(state, version, *notes)
            store.deaf = True
            return hold

    two = AgentRunner(one.model_client, FunctionTools(pay, search), store=store)
    two.leases = Late(two.ledger, two.lease_s)
    with pytest.raises(StoreError):  # not told to the model as refused: the approval stands
        await two.resume("mailer", "s", decision)
    assert ran == ["search"]
    store.deaf = False
    result = await one.resume("mailer", "s")
    assert (ran, result.status) == (["search", "pay"], AgentStatus.COMPLETED)


@pytest.mark.anyio
@pytest.mark.parametrize("seen", [(0, 0), (10**9, 10**9), None])
@pytest.mark.parametrize("status", ["waiting_for_human", "running"])
async def test_no_writer_of_the_store_talks_a_session_out_of_an_order_that_was_given_while_it_waited(
    seen: tuple[int, int] | None, status: str
) -> None:
    ann, store, ran = Ed25519Signer.generate(), MemoryStore(), []

    @tool(effect=Effect.IRREVERSIBLE)
    async def pay(n: int) -> str:
        ran.append(n)
        return "paid"

    def runner() -> AgentRunner:
        approvals = ApprovalPolicy(signer=PublicKeys({"ann": ann.public_key}))
        turns = [answer("Go.", tool_calls=[ToolCall(id="c", name="pay", arguments={"n": 1})]), "Done."]
        return AgentRunner(scripted(turns), FunctionTools(pay), store=store, approvals=approvals)

    (request,) = (await runner().run(AGENT, "x", session_id="s")).pending
    await runner().stop("mailer", "s")
    found = await store.get("session", "mailer/s")
    assert found is not None
    values = json.loads(found.body) | {"stops_seen": seen, "status": status}
    del values["seal"]
    forged = Put(kind="session", key="mailer/s", body=json.dumps(values), label=status, expected=found.version)
    await store.write(forged)
    with contextlib.suppress(GrampusError):
        await runner().resume("mailer", "s", ann.sign(request.decide("approve", principal="ann")))
    assert ran == []


@pytest.mark.anyio
@pytest.mark.parametrize("to_one", [False, True])
@pytest.mark.parametrize("status", AgentStatus)
async def test_an_order_outlives_the_worker_that_it_was_given_to(status: AgentStatus, to_one: bool) -> None:
    """Whoever takes up what a dead worker ran stops as that one would have; what waited ignores an order to all."""
    ledger = Ledger(MemoryStore())
    state = AgentState(agent_id="mailer", session_id="s", status=status, stops_seen=(0, 0))
    await order_stop(ledger, *(("mailer", "s") if to_one else ()), principal="ann")
    seen = state.stops_seen = await stops_to_heed(ledger, state)
    orders, looked_at, stopped = StopOrders(ledger), 0, to_one or status is AgentStatus.RUNNING
    for _ in range(2):  # however often it asks
        reached, looked_at = await orders.reached(state, looked_at, since=time.monotonic())
        assert reached is stopped, seen
