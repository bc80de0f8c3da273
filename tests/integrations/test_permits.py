"""Permits in the two hosts that the adapters are made of: answers reach them, and what they earned lets calls ahead."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import (
    ApprovalDecision,
    ApprovalRequest,
    Ed25519Signer,
    Permit,
    PublicKeys,
    Seal,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.errors import ApprovalError, StoreError
from grampus_uq.gate.call import CallRecord, Terms, decided
from grampus_uq.gate.requests import ApprovalKind, ApprovalPolicy
from grampus_uq.integrations.carried_calls import take_up, write_snapshot
from grampus_uq.integrations.carried_states import Carried
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.judged_turns import TurnJudge
from grampus_uq.integrations.model_turn import ModelTurn
from grampus_uq.integrations.settings import AdapterSettings
from grampus_uq.runtime import MemoryStore, StoredPermits, grant_permit, stored_permits
from grampus_uq.runtime.store import Change, Put
from grampus_uq.runtime.stored_permits import replayed_permit
from tests.clocks import sleepless
from tests.sampling import examples

pytestmark = pytest.mark.anyio
SAYS = 'I pay. {"confidence": 0.7}'


async def office(draw: Callable[[], float] = lambda: 0.999) -> tuple[MemoryStore, StoredPermits, UncertaintyMonitor]:
    store = MemoryStore()
    until_s = time.time() + 60.0
    permit = Permit(tool="pay", thresholds=(0.3,), epsilon=0.5, delta=0.9, principal="ann", expires_s=until_s)
    await grant_permit(store, permit)
    monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
    return store, StoredPermits(store, agent_version="v1", draw=draw), monitor


def pay(number: int) -> ToolCall:
    return ToolCall(id=f"c{number}", name="pay", arguments={"amount": number})


async def counted(store: MemoryStore) -> tuple[int, int, int]:
    (standing,) = await stored_permits(store)
    assert standing.state == await replayed_permit(store, standing.permit)
    return standing.state.answers, standing.state.wrong, standing.state.released


async def test_calls_that_are_held_one_by_one() -> None:
    store, permits, monitor = await office()
    chosen = AdapterSettings(monitor=monitor, permits=permits)
    gate = chosen.gate(lambda name: None)

    async def proposed(number: int) -> HeldCalls:
        held = take_up(chosen, gate, f"s{number}", "clerk")
        await held.observe(chosen, ModelTurn(content=SAYS, calls=(pay(number),)), [pay(number)])
        return held

    first = await proposed(1)
    record = await first.judge(pay(1))
    first.decide(record.requests[0].decide("approve", principal="ann"))
    assert (await first.release(pay(1))).run
    assert await counted(store) == (1, 0, 0)
    ahead = await proposed(2)
    assert (await ahead.judge(pay(2))).phase == "cleared"
    assert (await ahead.release(pay(2))).run
    assert await counted(store) == (1, 0, 1)


@pytest.mark.parametrize("phase", ["settled", "cleared"])
async def test_permits_learn_nothing_from_an_answer_in_a_state_that_nobody_sealed(phase: str) -> None:
    store, permits, monitor = await office()
    approvals = ApprovalPolicy(signer=PublicKeys({"ann": Ed25519Signer.generate().public_key}))
    chosen = AdapterSettings(monitor=monitor, permits=permits, approvals=approvals)
    gate = chosen.gate(lambda name: None)
    held = take_up(chosen, gate, "s", "clerk")
    await held.observe(chosen, ModelTurn(content=SAYS, calls=(pay(1),)), [pay(1)])
    (request,) = (await held.judge(pay(1))).requests
    forged = {**write_snapshot(held), "seal": None}
    said = request.decide("approve", principal="ann").model_dump(mode="json")
    forged["calls"][0] |= {"phase": phase, "decisions": [said]}
    assert not (await take_up(chosen, gate, "s", "clerk", forged).release(pay(1))).run
    assert await counted(store) == (0, 0, 0)


async def test_turns_that_are_judged_as_a_whole() -> None:
    store, permits, monitor = await office()
    judge = TurnJudge(monitor, permits=permits, agent_id="clerk")

    async def proposed(number: int) -> Carried:
        fresh = judge.states.read(f"s{number}", f"s{number}", None, begun=False)
        return await judge.judge(fresh, ModelTurn(content=SAYS, calls=(pay(number),)))

    carried = await proposed(1)
    (record,) = carried.records
    answer = record.requests[0].decide("approve", principal="ann").model_dump(mode="json")
    after, refused = await judge.decide(carried, answer)
    again, _ = await judge.decide(carried, answer)  # a node that runs again tells the same answer again
    assert (refused, after.records[0].phase, again.records[0].phase) == ([], "cleared", "cleared")
    assert await counted(store) == (1, 0, 0)
    ahead = await proposed(2)
    assert ahead.records[0].phase == "cleared"
    assert await counted(store) == (1, 0, 1)
    assert judge.refusal(ahead, ahead.records[0], pay(2)) is None


# -- every call that goes ahead has a ticket and a draw of its own -----------------------------------------------------

NO_AUDIT, AUDIT = 0.999, 0.0


class Host:
    """New runs in one of the two hosts; ids of sessions and calls may repeat."""

    def __init__(self, kind: str, permits: StoredPermits, monitor: UncertaintyMonitor) -> None:
        self.chosen = AdapterSettings(monitor=monitor, permits=permits)
        self.judge = TurnJudge(monitor, permits=permits, agent_id="clerk")
        self.gate = self.chosen.gate(lambda name: None)
        self.kind = kind

    async def run(self, session: str, calls: list[ToolCall]) -> list[CallRecord]:
        turn = ModelTurn(content=SAYS, calls=tuple(calls))
        if self.kind == "turns":
            fresh = self.judge.states.read(session, session, None, begun=False)
            return list((await self.judge.judge(fresh, turn)).records)
        held = take_up(self.chosen, self.gate, session, "clerk")
        await held.observe(self.chosen, turn, calls)
        return [await held.judge(call) for call in calls]

    async def told(self, permits: StoredPermits, record: CallRecord, says: str) -> None:
        """What a human said on a waiting call."""
        (request,) = record.requests
        after = decided(record, [request.decide(says, principal="ann")])
        terms = self.gate.terms("clerk", request.session_id, None, run_id=request.run_id)
        await permits.answered(after, terms)


@pytest.mark.parametrize("kind", ["calls", "turns"])
@given(
    runs=st.lists(
        st.tuples(
            st.sampled_from(["s", "t"]),
            st.lists(st.tuples(st.sampled_from(["call_0", "call_1"]), st.integers(1, 2)), min_size=1, max_size=3),
            st.booleans(),
        ),
        max_size=6,
    )
)
@settings(max_examples=12)
def test_no_call_goes_ahead_on_the_ticket_or_the_draw_of_another_whatever_ids_repeat(
    kind: str, runs: list[tuple[str, list[tuple[str, int]], bool]]
) -> None:
    async def work() -> None:
        draw = [NO_AUDIT]
        store, permits, monitor = await office(lambda: draw[0])
        host = Host(kind, permits, monitor)
        ahead = 0
        for session, calls, audited in [("earn", [("e", 9)], False), *runs]:
            draw[0] = AUDIT if audited else NO_AUDIT
            made = await host.run(session, [ToolCall(id=i, name="pay", arguments={"amount": n}) for i, n in calls])
            cleared = [record for record in made if record.phase == "cleared"]
            assert not (audited and cleared)
            ahead += len(cleared)
            (standing,) = await stored_permits(store)
            tickets = standing.state.released + sum(not ticket.asked for ticket in standing.state.open)
            assert tickets == ahead
            if session == "earn":
                await host.told(permits, made[0], "approve")
        assert (await stored_permits(store))[0].state.answers >= 1

    anyio.run(work)


@pytest.mark.parametrize("kind", ["calls", "turns"])
async def test_each_new_run_of_one_session_is_drawn_and_answered_for_itself(kind: str) -> None:
    draw = [NO_AUDIT]
    store, permits, monitor = await office(lambda: draw[0])
    host = Host(kind, permits, monitor)

    (first,) = await host.run("s", [pay(1)])
    await host.told(permits, first, "approve")
    (ahead,) = await host.run("s", [pay(1)])
    assert ahead.phase == "cleared"
    draw[0] = AUDIT
    for _ in range(3):
        (record,) = await host.run("s", [pay(1)])
        assert record.waiting
        await host.told(permits, record, "reject")
    assert await counted(store) == (4, 3, 1)


async def test_the_run_of_a_session_is_kept_in_its_state() -> None:
    _, permits, monitor = await office()
    chosen = AdapterSettings(monitor=monitor, permits=permits)
    gate = chosen.gate(lambda name: None)
    held = take_up(chosen, gate, "s", "clerk")
    again = take_up(chosen, gate, "s", "clerk", write_snapshot(held))
    assert held.terms.run_id == again.terms.run_id != take_up(chosen, gate, "s", "clerk").terms.run_id
    old = {name: value for name, value in write_snapshot(held).items() if name != "run"}
    assert take_up(chosen, gate, "s", "clerk", old).terms.run_id == ""
    judge = TurnJudge(monitor, permits=permits, agent_id="clerk")
    carried = await judge.judge(
        judge.states.read("s", "s", None, begun=False), ModelTurn(content=SAYS, calls=(pay(1),))
    )
    state = json.loads(json.dumps(judge.states.write(carried)))
    elsewhere = TurnJudge(monitor, permits=permits, agent_id="clerk").states.read("s", "s", state)
    assert carried.terms.run_id == elsewhere.terms.run_id != ""


@pytest.mark.parametrize("kind", ["calls", "turns"])
async def test_a_permit_is_bound_to_the_version_of_the_tool_that_it_began_with(kind: str) -> None:
    store, permits, monitor = await office()
    version = {"pay": "1"}
    permits.agent_version = version.__getitem__
    host = Host(kind, permits, monitor)
    (first,) = await host.run("first", [pay(1)])
    await host.told(permits, first, "approve")
    (ahead,) = await host.run("ahead", [pay(2)])
    assert ahead.phase == "cleared"
    version["pay"] = "2"
    (other,) = await host.run("other", [pay(3)])
    assert other.waiting
    assert (await stored_permits(store))[0].state.issued == 2


@pytest.mark.parametrize("kind", ["calls", "turns"])
async def test_a_run_whose_prompt_changed_is_asked_about_whatever_other_such_runs_would_have_earned(kind: str) -> None:
    """In another process too. Of each its prompt is unknown, and one unknown prompt is not another's."""
    store, permits, monitor = await office()
    chosen = AdapterSettings(monitor=monitor, permits=permits)
    gate = chosen.gate(lambda name: None)

    async def run(session: str, number: int, *prompts: str) -> CallRecord:
        turns = [ModelTurn(content='I look. {"confidence": 0.95}', system=prompt) for prompt in prompts]
        last = ModelTurn(content=SAYS, calls=(pay(number),), system=prompts[-1])
        if kind == "turns":
            judge, state = TurnJudge(monitor, permits=permits, agent_id="clerk"), None
            for turn in turns:
                before = judge.states.read(session, session, state, begun=False)
                state = json.loads(json.dumps(judge.states.write(await judge.judge(before, turn))))
            elsewhere = TurnJudge(monitor, permits=permits, agent_id="clerk")
            return (await elsewhere.judge(elsewhere.states.read(session, session, state), last)).records[0]
        held = take_up(chosen, gate, session, "clerk")
        for turn in turns:
            await held.observe(chosen, turn, [])
        again = take_up(chosen, gate, session, "clerk", json.loads(json.dumps(write_snapshot(held))))
        await again.observe(chosen, last, [pay(number)])
        return await again.judge(pay(number))

    host = Host(kind, permits, monitor)
    first = await run("first", 1, "Be good.", "Be kind.")
    await host.told(permits, first, "approve")
    other = await run("other", 2, "Be bad.", "Be quick.")
    assert other.waiting
    assert "name what varies" in other.requests[0].reason
    assert (await stored_permits(store))[0].state.issued == 0
    await host.told(permits, await run("same", 3, "Be good.", "Be good."), "approve")
    assert (await run("again", 4, "Be good.")).phase == "cleared"


# -- never -------------------------------------------------------------------------------------------------------------


class Flaky(MemoryStore):
    """Fails so often to write what a permit has of this kind: its definition, which a closing changes, or its state."""

    failing, kind = 0, "permit"

    async def write(self, *changes: Change) -> float:
        if self.failing and any(isinstance(change, Put) and change.kind == self.kind for change in changes):
            self.failing -= 1
            raise StoreError("no answer")
        return await super().write(*changes)


class Says:
    """A turn of calls that wait in one of the two hosts, and a list of decisions on them."""

    def __init__(self, kind: str, store: MemoryStore, calls: list[ToolCall]) -> None:
        self.kind, self.calls, self.store = kind, calls, store
        self.draw = AUDIT
        self.permits = StoredPermits(store, agent_version="v1", draw=lambda: self.draw)
        self.monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
        self.chosen = AdapterSettings(monitor=self.monitor, permits=self.permits)
        self.turns = TurnJudge(self.monitor, permits=self.permits, agent_id="clerk")

    async def waiting(self) -> list[ApprovalRequest]:
        turn = ModelTurn(content=SAYS, calls=tuple(self.calls))
        if self.kind == "turns":
            fresh = self.turns.states.read("s", "s", None, begun=False)
            self.carried = await self.turns.judge(fresh, turn)
            return [record.requests[0] for record in self.carried.records]
        self.held = take_up(self.chosen, self.chosen.gate(lambda name: None), "s", "clerk")
        await self.held.observe(self.chosen, turn, self.calls)
        return [(await self.held.judge(call)).requests[0] for call in self.calls]

    async def decide(self, decisions: list[ApprovalDecision]) -> list[str]:
        """Why decisions were refused."""
        if self.kind == "turns":
            answer = [decision.model_dump(mode="json") for decision in decisions]
            self.carried, refused = await self.turns.decide(self.carried, answer)
            return refused
        refused = []
        try:
            await self.held.tell_first(decisions)
        except ApprovalError as error:
            refused.append(str(error))
        for decision in decisions:
            try:
                self.held.decide(decision)
            except ApprovalError as error:
                refused.append(str(error))
        return refused

    def waits(self, call: ToolCall) -> bool:
        if self.kind == "turns":
            return next(record for record in self.carried.records if record.proposed.id == call.id).waiting
        return any(request.call is not None and request.call.id == call.id for request in self.held.requests())


@pytest.mark.parametrize("kind", ["calls", "turns"])
@given(
    failing=st.sampled_from([0, 1, 4, 5, 20]),
    others=st.lists(st.sampled_from(["approve", "reject", "stale", "forged"]), max_size=2),
    place=st.integers(0, 2),
)
@settings(max_examples=examples(25), deadline=None)
def test_a_never_closes_first_whatever_else_is_said_or_is_refused_by_name(
    kind: str, failing: int, others: list[str], place: int
) -> None:
    async def work() -> None:
        store = Flaky()
        permit = Permit(tool="pay", thresholds=(0.3,), principal="ann", expires_s=time.time() + 60.0)
        await grant_permit(store, permit)
        scene = Says(kind, store, [pay(number) for number in range(len(others) + 1)])
        never, *rest = await scene.waiting()
        decisions = []
        for said, request in zip(others, rest, strict=True):
            decision = request.decide("approve" if said != "reject" else "reject", principal="ann")
            wrong = {"stale": {"request_id": "f" * 32}, "forged": {"digest": "0" * 64}}.get(said, {})
            decisions.append(decision.model_copy(update=wrong))
        decisions.insert(min(place, len(decisions)), never.decide("reject", principal="ann", never=True))
        store.failing = failing
        refused = await scene.decide(decisions)
        lost = failing >= 5
        (standing,) = await stored_permits(store)
        assert (standing.state.closed is None) == lost
        assert any("The rejection is not taken: it says never" in why for why in refused) == lost
        assert scene.waits(pay(0)) == lost
        for said, call in zip(others, scene.calls[1:], strict=True):
            assert scene.waits(call) == (said in ("stale", "forged"))

    backend, options = sleepless()  # the pauses between tries
    anyio.run(work, backend=backend, backend_options=options)


async def test_a_never_that_nobody_stored_is_no_decision() -> None:
    """An adapter that forgets to close first, or an approval that says never."""
    store = MemoryStore()
    await grant_permit(store, Permit(tool="pay", thresholds=(0.3,), principal="ann", expires_s=time.time() + 60.0))
    scene = Says("calls", store, [pay(0)])
    (request,) = await scene.waiting()
    with pytest.raises(ApprovalError, match="await `tell_first` first"):
        scene.held.decide(request.decide("reject", principal="ann", never=True))
    assert scene.waits(pay(0))


class Hanging(MemoryStore):
    """Takes a permit's closing and never returns."""

    async def write(self, *changes: Change) -> float:
        if any(isinstance(change, Put) and change.kind == "permit" and change.expected for change in changes):
            await anyio.sleep_forever()
        return await super().write(*changes)


@pytest.mark.parametrize("host", ["untrusting", "two approvals"])
async def test_a_never_closes_by_definition_whoever_granted_and_whatever_this_host_trusts(host: str) -> None:
    """The host that is told does not know who granted, or would never let that permit ahead; another host would."""
    store, ann, bob = MemoryStore(), Ed25519Signer.generate(), Ed25519Signer.generate()
    scope: dict[str, Any] = {"tool": "pay", "principal": "bob", "expires_s": time.time() + 600}
    await grant_permit(store, bob.sign(Permit(**scope)))
    keys = {"ann": ann.public_key} | ({"bob": bob.public_key} if host == "two approvals" else {})
    policy = ApprovalPolicy(signer=PublicKeys(keys), seal=Seal("k" * 32), required=1 if host == "untrusting" else 2)
    told = StoredPermits(store, policy)
    record = CallRecord(proposed=pay(1), call=pay(1), step_id="llm_0")
    terms = Terms(agent_id="clerk", session_id="s")
    never = ApprovalDecision(request_id="r", digest="", kind=ApprovalKind.REJECT, principal="ann", never=True)
    assert await told.tell_first([(record, never)], terms) == [""]
    assert [one.state.closed for one in await stored_permits(store)] == ["ann said never"]


@pytest.mark.parametrize("anyio_backend", ["asyncio", sleepless()])
async def test_a_store_that_hangs_refuses_all_that_say_never_in_one_limit_of_time() -> None:
    store = Hanging()
    await grant_permit(store, Permit(tool="pay", principal="ann", expires_s=time.time() + 600))
    record, terms = CallRecord(proposed=pay(1), call=pay(1), step_id="llm_0"), Terms(agent_id="clerk", session_id="s")
    decision = ApprovalDecision(request_id="r", digest="", kind=ApprovalKind.REJECT, principal="ann", never=True)
    with anyio.fail_after(60):
        failed = await StoredPermits(store).tell_first([(record, decision)] * 20, terms)
    assert failed == ["the store took nothing within 2 seconds"] * 20


# -- a rejection is lost by no failure of the store --------------------------------------------------------------------


async def earned(store: MemoryStore) -> None:
    """A permit that one right answer earned."""
    until_s = time.time() + 60.0
    await grant_permit(
        store, Permit(tool="pay", thresholds=(0.3,), epsilon=0.5, delta=0.9, principal="ann", expires_s=until_s)
    )
    scene = Says("calls", store, [pay(99)])
    (request,) = await scene.waiting()
    assert await scene.decide([request.decide("approve", principal="ann")]) == []
    await scene.held.tell()
    assert await counted(store) == (1, 0, 0)


async def goes_ahead(scene: Says, number: int) -> bool:
    scene.draw = NO_AUDIT
    record = (await Host(scene.kind, scene.permits, scene.monitor).run(f"next-{number}", [pay(number)]))[0]
    return record.phase == "cleared"


@pytest.mark.parametrize("kind", ["calls", "turns"])
@given(
    failing=st.sampled_from([0, 1, 4, 5, 20]),
    says=st.sampled_from(["reject", "edit", "respond"]),
    beside=st.booleans(),
)
@settings(max_examples=examples(20), deadline=None)
def test_an_answer_against_a_call_is_either_in_the_permit_or_not_taken_and_nothing_goes_ahead_on_what_was_lost(
    kind: str, failing: int, says: str, beside: bool
) -> None:
    """In this process, and in one that begins afterwards; whatever else is in the list."""

    async def work() -> None:
        store = Flaky()
        await earned(store)
        scene = Says(kind, store, [pay(1), pay(2)])
        first, second = await scene.waiting()
        more = {"edit": {"arguments": {"amount": 7}}, "respond": {"message": "done by hand"}}.get(says, {})
        decisions = [first.decide(says, principal="ann", **more)]
        decisions += [second.decide("approve", principal="ann")] * beside
        store.failing, store.kind = failing, "permit-state"
        refused = await scene.decide(decisions)
        taken = not scene.waits(pay(1))
        assert taken == (failing < 5) == (not refused)
        assert all("could not learn of it" in why for why in refused)
        store.failing = 0
        if not taken:
            assert (await stored_permits(store))[0].state.wrong == 0
            assert await scene.decide(decisions[:1]) == []
        (standing,) = await stored_permits(store)
        assert standing.state.wrong + sum(ticket.wrong is True for ticket in standing.state.open) == 1
        if not beside:
            assert not await goes_ahead(Says(kind, store, []), 3)
            assert not await goes_ahead(scene, 4)

    backend, options = sleepless()
    anyio.run(work, backend=backend, backend_options=options)


@pytest.mark.parametrize("failing", [1, 3])
async def test_an_answer_that_no_host_can_refuse_is_told_again_before_this_process_lets_a_call_ahead(
    failing: int,
) -> None:
    """As a framework's own rejection, which is heard when it was carried out."""
    store = Flaky()
    await earned(store)
    scene = Says("calls", store, [pay(1)])
    (request,) = await scene.waiting()
    record = scene.held.records[0]
    store.failing, store.kind = failing, "permit-state"
    terms = scene.held.terms
    told = decided(record, [request.decide("reject", principal="ann")]).change(requests=record.requests)
    await scene.permits.answered(told, terms)
    for number in range(failing + 2):
        assert not await goes_ahead(scene, number + 5)
    assert (await counted(store))[1] == 1


async def test_a_locked_store_is_waited_for_once_whatever_the_number_of_rejections() -> None:
    """A call of it that cannot be interrupted, as SQLite's when another process holds the file."""

    class Locked(MemoryStore):
        waits, locked = 0, False

        async def write(self, *changes: Change) -> float:
            if not self.locked:
                return await super().write(*changes)
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2.5)
            self.waits += 1
            raise StoreError("database is locked")

    locked = Locked()
    await grant_permit(locked, Permit(tool="pay", principal="ann", expires_s=time.time() + 600))
    locked.locked = True
    record, terms = CallRecord(proposed=pay(1), call=pay(1), step_id="llm_0"), Terms(agent_id="clerk", session_id="s")
    decision = ApprovalDecision(request_id="r", digest="", kind=ApprovalKind.REJECT, principal="ann", never=True)
    failed = await StoredPermits(locked).tell_first([(record, decision)] * 4, terms)
    assert (locked.waits, all(failed)) == (1, True)
