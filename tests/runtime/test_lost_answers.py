"""The law of an approved call: whatever one answer of the store is lost, it runs once or a human is asked about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from grampus_uq import (
    AgentRunner,
    AgentStatus,
    ApprovalPolicy,
    Ed25519Signer,
    FunctionTools,
    PublicKeys,
    Seal,
    UncertaintyMonitor,
    UncertaintyPolicy,
    tool,
)
from grampus_uq.errors import SessionConflictError, SessionError, StoreError
from grampus_uq.gate.call import UNKNOWN_OUTCOME
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind, ApprovalRequest
from grampus_uq.records.vocabulary import Role
from grampus_uq.runtime.apply_decisions import apply_response
from grampus_uq.runtime.audit import AuditLog
from grampus_uq.runtime.dead_letters import drop
from grampus_uq.runtime.ledger import session_key
from grampus_uq.runtime.rollback import rollback
from grampus_uq.runtime.store import Change, Document
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.worker_hosted import HostedRunner, still_held
from grampus_uq.runtime.worker_jobs import Job, set_aside, take
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, World, mail, runner, unknown_calls

pytestmark = [pytest.mark.anyio, pytest.mark.jumping_clocks]


class Faulty(MemoryStore):
    """Fails one operation, counted from when `at` is set, before or after it took effect."""

    at, after, count = 0, False, 0

    async def _around(self, work: Any) -> Any:
        self.count += 1
        failing = self.count == self.at
        if failing and not self.after:
            work.close()
            raise StoreError("lost")
        result = await work
        if failing:
            raise StoreError("lost")
        return result

    async def get(self, kind: str, key: str) -> Document | None:
        return await self._around(super().get(kind, key))  # type: ignore[no-any-return]

    async def write(self, *changes: Change) -> float:
        return await self._around(super().write(*changes))  # type: ignore[no-any-return]


@pytest.mark.one_loop
@pytest.mark.parametrize("after", [False, True])
async def test_whichever_operation_of_the_store_fails_an_approved_call_is_never_left_out(after: bool) -> None:
    async def ends(at: int) -> bool:
        """One run whose operation `at` fails while it is resumed; False where it had fewer."""
        store, world = Faulty(), World()
        one = runner(world, store=store, lease_s=0.05)
        (request,) = (await one.run(AGENT, "x", session_id="s")).pending
        store.count, store.at, store.after = 0, at, after
        try:
            result = await one.resume("mailer", "s", request.decide("approve", principal="ann"))
        except (StoreError, SessionError):
            store.at = 0
            await anyio.sleep(0.06)
            if not any(found.kind == "decision" for found in await store.scan("decision", prefix="", limit=9)):
                await one.ledger.decide(request.decide("approve", principal="ann"))
            result = await one.resume("mailer", "s")
        asked = [one for one in result.pending if one.unknown_outcome]
        assert len(world.sent) + bool(asked) >= 1, f"operation {at}: left out"
        assert len(world.sent) <= 1
        assert bool(asked) != (result.status is AgentStatus.COMPLETED)
        return store.count >= at

    at = 1
    while await ends(at):
        at += 1
    assert at > 10  # a resumed run has so many operations


class Standing(MemoryStore):
    """Stands still after the write that announces a call, and `more` behind it, so that another worker takes over.

    Or is `dead`.
    """

    def __init__(self, more: int = 0) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None
        self.more, self.stands = more, False
        self.dead: Callable[[], bool] = lambda: False

    async def write(self, *changes: Change) -> float:
        if self.dead():
            raise StoreError("killed")
        done = await super().write(*changes)
        self.stands = self.stands or any("execution_started" in repr(change) for change in changes)
        if self.meanwhile is not None and self.stands:
            await anyio.sleep(0.25)
            self.more -= 1
            if self.more < 0:
                other, self.meanwhile = self.meanwhile, None
                await other()
        return done


@pytest.mark.parametrize("more", [0, 1])
async def test_a_worker_that_stood_still_while_it_announced_a_call_leaves_it_to_who_took_over(more: int) -> None:
    store, world, others = Standing(more), World(), []
    one, two = (runner(world, store=store, lease_s=0.2) for _ in range(2))
    (request,) = (await one.run(AGENT, "x", session_id="s")).pending

    async def take_over() -> None:
        others.append(await two.resume("mailer", "s"))

    store.meanwhile = take_over
    with pytest.raises(SessionConflictError):
        await one.resume("mailer", "s", request.decide("approve", principal="ann"))
    assert world.sent == []
    assert [asked.unknown_outcome for asked in others[0].pending] == [True]


class Acting:
    """An engine whose run asks whether its session is still its own, and acts."""

    def __init__(self) -> None:
        self.acted = 0

    async def pending(self, session_id: str) -> list[ApprovalRequest]:
        return []

    async def mark(self, session_id: str) -> str:
        return ""

    async def go_on(self, session_id: str, decisions: Sequence[ApprovalDecision], now_s: float) -> None:
        await still_held()
        self.acted += 1


async def test_a_hosted_run_that_stood_still_while_it_asked_for_its_session_leaves_it_to_who_took_over() -> None:
    store, engine = Standing(), Acting()
    one, two = (HostedRunner(engine, store, agent_id="a", lease_s=0.2) for _ in range(2))

    async def work() -> None:
        store.meanwhile, store.stands = (lambda: two.resume("a", "s")), True
        await engine.go_on("s", [], 0.0)

    with pytest.raises(SessionConflictError):
        await one.begin("s", work)
    assert engine.acted == 1


async def test_a_session_that_is_given_up_says_of_a_call_that_had_started_that_it_may_have_run() -> None:
    store, world = Standing(), World()
    one = runner(world, store=store, lease_s=0.05)
    (request,) = (await one.run(AGENT, "x", session_id="s")).pending
    store.dead = lambda: bool(world.sent)  # the worker dies before it stores the result
    await one.resume("mailer", "s", request.decide("approve", principal="ann"))
    store.dead = lambda: False
    await anyio.sleep(0.06)
    await store.write(Job(agent_id="mailer", session_id="s").now(0.0))
    (taken,) = await take(store, ["mailer"], 1, 30.0)
    await set_aside(store, taken, session_key("mailer", "s"), taken.job)
    await drop(one.ledger, "mailer", "s", principal="ops")
    state, _ = await one.ledger.known("mailer", "s")
    (said,) = [m.content for m in state.messages if m.role is Role.TOOL and m.tool_call_id == "b"]
    assert len(world.sent) == 1
    assert said is not None
    assert "may have taken effect" in said
    assert len(unknown_calls(await AuditLog(store, "mailer", "s").entries())) == 1


@pytest.mark.parametrize("kind", [ApprovalKind.REJECT, ApprovalKind.RESPOND])
@pytest.mark.parametrize("then", ["a text", "a rollback"])
async def test_a_refusal_that_nobody_took_up_yet_still_counts_whatever_comes_before_the_worker(
    kind: ApprovalKind, then: str
) -> None:
    """The reviewer was told that it is stored. What it says of the call reaches the model; a "no" forbids the same."""
    store, world = MemoryStore(), World()
    turns = [*(answer("I mail.", tool_calls=[mail(n, "bob")]) for n in "ab"), answer("Done.")]
    one = runner(world, turns, store=store, checkpoints=True)
    (request,) = (await one.run(AGENT, "x", session_id="s")).pending
    await one.ledger.decide(request.decide(kind, principal="ann", message="Bob has his mail."))
    if then == "a rollback":
        result = await rollback(one, "mailer", "s", 0)
    else:
        result = await one.resume("mailer", "s", "hurry up")
        assert any("Bob has his mail." in str(m.content) for m in result.messages if m.role is Role.TOOL)
    assert kind is ApprovalKind.RESPOND or all(asked.call is None for asked in result.pending)
    assert world.sent == []


@pytest.mark.parametrize("changed", ["the policy", "the tool", "the seal"])
async def test_a_rejection_counts_although_the_call_is_asked_about_anew(changed: str) -> None:
    """What voids an approval voids no "no": somebody else might approve what a colleague has refused."""
    store, world, ann = MemoryStore(), World(), Ed25519Signer.generate()

    def process(of: str) -> AgentRunner:
        named = ["send_email"] if of == "the policy" else []
        policy = UncertaintyPolicy(always_ask_tool_names=named)
        seal = Seal(b"a key of another" if of == "the seal" else b"a key of its own")
        approvals = ApprovalPolicy(signer=PublicKeys({"ann": ann.public_key}), seal=seal)
        one = runner(world, store=store, monitor=UncertaintyMonitor(policy=policy), approvals=approvals)
        if of == "the tool":
            one.tool_executor = FunctionTools(tool(effect="irreversible")(send_email))
        return one

    (request,) = (await process("before").run(AGENT, "x", session_id="s")).pending
    await process("before").ledger.decide(ann.sign(request.decide("reject", principal="ann")))
    result = await process(changed).resume("mailer", "s")
    assert all(asked.call is None for asked in result.pending)
    assert world.sent == []


def send_email(to: str, subject: str, body: str) -> str:
    """Send a mail."""
    raise AssertionError


@pytest.mark.parametrize("began", [False, True])
@pytest.mark.parametrize("kind", list(ApprovalKind))
async def test_a_decision_settles_what_became_of_a_call_where_that_was_asked_and_it_is_not_to_run_again(
    kind: ApprovalKind, began: bool
) -> None:
    """A "no" to the request before, from when nobody knew that the call had started, settles nothing."""
    store, world = MemoryStore(), World()
    one = runner(world, store=store)
    (first,) = (await one.run(AGENT, "x", session_id="s")).pending
    lease = await one.leases.take(*(await one.ledger.known("mailer", "s")))
    lease.session, turn = one._session(lease.state, AGENT), one._turn(lease)
    request = first
    if began:
        (record,) = [record for record in lease.state.turn if record.waiting]
        request = lease.state.keep(one.gate.asked(record, turn.terms(), UNKNOWN_OUTCOME)).requests[0]
        await one.ledger.decide(first.decide("reject", principal="ann"))
        await apply_response(turn, None, earlier=[first])
        assert lease.state.pending() == [request]
    given = {"arguments": {"to": "eve", "body": "hi"}} if kind is ApprovalKind.EDIT else {"message": "So it is."}
    await apply_response(turn, request.decide(kind, principal="ann", **given))
    settled = [e for e in await AuditLog(store, "mailer", "s").entries() if e["what"] == "execution_settled"]
    assert len(settled) == (began and kind is not ApprovalKind.APPROVE)


@pytest.mark.parametrize("of", ["another session", "an earlier run"])
async def test_who_writes_the_store_puts_no_request_of_another_run_that_was_approved_in_the_place_of_an_answers(
    of: str,
) -> None:
    store, ann = MemoryStore(), Ed25519Signer.generate()
    approvals = ApprovalPolicy(signer=PublicKeys({"ann": ann.public_key}))
    one = runner(World(), ["I do not know.", "So be it."], store=store, approvals=approvals, p_true=0.05)
    other = "s" if of == "an earlier run" else "t"
    (approved,) = (await one.run(AGENT, "x", session_id=other)).pending
    await one.resume("mailer", other, ann.sign(approved.decide("approve", principal="ann")))
    assert (await one.run(AGENT, "x", session_id="s")).pending
    state, version = await one.ledger.known("mailer", "s")
    state.review = [approved]
    await one.ledger.save(state, version)
    result = await one.resume("mailer", "s")
    assert result.status is AgentStatus.WAITING_FOR_HUMAN
    assert result.pending[0].id != approved.id
