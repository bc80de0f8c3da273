"""Permits in the two hosts that the adapters are made of: answers reach them, and what they earned lets calls ahead."""

from __future__ import annotations

import time

import pytest

from grampus_uq import Permit, ToolCall, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.carried_calls import take_up
from grampus_uq.integrations.carried_states import Carried
from grampus_uq.integrations.held_calls import HeldCalls
from grampus_uq.integrations.judged_turns import TurnJudge
from grampus_uq.integrations.model_turn import ModelTurn
from grampus_uq.integrations.settings import AdapterSettings
from grampus_uq.runtime import MemoryStore, StoredPermits, grant_permit, stored_permits
from grampus_uq.runtime.stored_permits import replayed_permit

pytestmark = pytest.mark.anyio
SAYS = 'I pay. {"confidence": 0.7}'


async def office() -> tuple[MemoryStore, StoredPermits, UncertaintyMonitor]:
    store = MemoryStore()
    until_s = time.time() + 60.0
    permit = Permit(tool="pay", thresholds=(0.3,), epsilon=0.5, delta=0.9, principal="ann", expires_s=until_s)
    await grant_permit(store, permit)
    monitor = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=["pay"]))
    return store, StoredPermits(store, agent_version="v1", draw=lambda: 0.999), monitor


def pay(number: int) -> ToolCall:
    return ToolCall(id=f"c{number}", name="pay", arguments={"amount": number})


async def counted(store: MemoryStore) -> tuple[int, int, int]:
    (standing,) = await stored_permits(store)
    assert standing.state == await replayed_permit(store, standing.permit)
    return standing.state.answers, standing.state.wrong, standing.state.released


async def test_calls_that_are_held_one_by_one() -> None:
    store, permits, monitor = await office()
    settings = AdapterSettings(monitor=monitor, permits=permits)
    gate = settings.gate(lambda name: None)

    async def proposed(number: int) -> HeldCalls:
        held = take_up(settings, gate, f"s{number}", "clerk")
        await held.observe(settings, ModelTurn(content=SAYS, calls=(pay(number),)), [pay(number)])
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
