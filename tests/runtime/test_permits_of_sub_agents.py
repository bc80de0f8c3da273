"""Permits that let a sub-agent begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from grampus_uq import AgentDefinition, AgentRunner, AgentStatus, SubAgent, ToolCall, UncertaintyMonitor
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.gate.effects import ToolEffects
from grampus_uq.runtime.cards import card
from grampus_uq.runtime.stored_permits import close_permit, grant_permit, stored_permits
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.testing import answer
from tests.runtime.agents import AGENT, World, mail, runner
from tests.runtime.test_stored_permits import NO_AUDIT, permit

pytestmark = pytest.mark.anyio
POST = AgentDefinition(name="post", model="m")


class Company:
    """An agent, unsure of its call, whose sub-agent mails."""

    def __init__(self) -> None:
        self.store, self.world = MemoryStore(), World()

    def runner(self, body: str, asks: Sequence[str] = ()) -> AgentRunner:
        monitor = UncertaintyMonitor(policy=UncertaintyPolicy(always_ask_tool_names=list(asks)))
        turns = [answer("I mail.", tool_calls=[mail("b", "bob", body)]), "Done."]
        post = runner(self.world, turns, p_true=0.99, store=self.store, monitor=monitor)
        turns = [answer("Mail it.", tool_calls=[ToolCall(id="d", name="post", arguments={"task": body})]), "Done."]
        given: dict[str, Any] = {"sub_agents": [SubAgent(post, POST)], "effects": ToolEffects({"post": "irreversible"})}
        above = runner(World(), turns, store=self.store, **given)
        for one in (post, above):
            one.gate.permits._draw = lambda: NO_AUDIT  # type: ignore[union-attr]
        return above

    async def earn(self) -> str:
        one = permit(tool="post")
        await grant_permit(self.store, one)
        for number in range(8):
            said = f"earn {number}"
            result = await self.runner(said).run(AGENT, "Mail.", session_id=said)
            for request in result.pending:
                await self.runner(said).resume("mailer", said, request.decide("approve", principal="ann"))
        assert [found.state.in_force(found.permit) for found in await stored_permits(self.store)] == [1]
        self.world.sent.clear()
        return one.id


@pytest.mark.parametrize(("says", "sent"), [("approve", [("bob", "hi")]), ("reject", []), ("Leave it.", [])])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_sub_agent_whose_permit_ended_while_it_waited_goes_on_only_if_a_human_lets_it(
    says: str, sent: list[Any], stored: bool
) -> None:
    """Though what it asked for was approved: guidance is no approval, and a rejection one thing more."""
    company = Company()
    permit_id = await company.earn()
    one = company.runner("hi", asks=["send_email"])
    (request,) = (await one.run(AGENT, "Mail.", session_id="s")).pending
    assert request.agent_id == "post"
    await close_permit(company.store, permit_id, "enough")
    (request,) = (await one.resume("mailer", "s", request.decide("approve", principal="ann"))).pending
    assert (request.agent_id, request.rule) == ("mailer", "permit")
    response: Any = says
    if says != "Leave it.":
        response = request.decide(says, principal="ann")
        if stored:
            await one.ledger.decide(response, shown=card(request), wake=False)
            response = None
    result = await company.runner("hi", asks=["send_email"]).resume("mailer", "s", response)
    assert company.world.sent == sent
    assert (result.status is AgentStatus.COMPLETED) == (says != "Leave it.")
