"""A call that a permit let ahead, replayed from an older checkpoint in the same process: it runs once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage

import tests.integrations.test_langchain_middleware as langchain
import tests.integrations.test_langgraph_guard as langgraph
from grampus_uq import Permit
from grampus_uq.runtime import MemoryStore, StoredPermits, StoredStarts, grant_permit, stored_permits
from grampus_uq.runtime.stored_permits import close_permit


def world(host: ModuleType, permits: StoredPermits, to: str, **given: Any) -> Any:
    turn: Any = (
        langgraph.proposes("I pay.", langgraph.pay("1", to))
        if host is langgraph
        else AIMessage("I pay.", tool_calls=[{"name": "pay", "args": {"to": to}, "id": "1"}])
    )
    return host.World((0.7, turn), (0.95, AIMessage("Done.")), (0.95, AIMessage("Done.")), permits=permits, **given)


def earned(host: ModuleType, **given: Any) -> tuple[MemoryStore, StoredPermits]:
    """A permit that two approved calls earned."""
    store = MemoryStore()
    until_s = time.time() + 600.0
    permit = Permit(tool="pay", thresholds=(0.3,), epsilon=0.5, delta=0.9, principal="ann", expires_s=until_s)
    anyio.run(grant_permit, store, permit)
    permits = StoredPermits(store, agent_version="v1", draw=lambda: 0.999)
    for number in range(2):
        one = world(host, permits, f"t{number}", **given)
        for request in one.run():
            one.resume(request.decide("approve", principal="ann"))
    return store, permits


def go_on(host: ModuleType, app: Any) -> None:
    history = list(app.get_state_history(host.CONFIG))
    before = next(one for one in history if one.next and "tools" in str(one.next))
    app.invoke(None, before.config)


@pytest.mark.parametrize("host", [langgraph, langchain])
def test_a_call_that_a_permit_let_ahead_runs_once_in_a_process_however_often_it_is_replayed(host: ModuleType) -> None:
    store, permits = earned(host)
    one = world(host, permits, "bob")
    assert not one.run()
    assert len(one.done) == 1
    go_on(host, one.app)
    assert len(one.done) == 1
    (standing,) = anyio.run(stored_permits, store)
    assert standing.state.released >= 1


@pytest.mark.parametrize("host", [langgraph, langchain])
def test_a_call_that_a_permit_let_ahead_does_not_run_once_the_permit_is_closed(host: ModuleType) -> None:
    store, permits = earned(host)
    (standing,) = anyio.run(stored_permits, store)
    one = world(host, permits, "bob")
    standing_now, asked = permits.standing, list[str]()

    async def closed_meanwhile(released: Iterable[str]) -> dict[str, str]:
        asked.extend(released)
        await close_permit(store, standing.permit.id, "revoked")
        return await standing_now(released)

    permits.standing = closed_meanwhile  # type: ignore[method-assign]
    one.run()
    assert one.done == []
    assert asked == [f"permit {standing.permit.id}"]


@pytest.mark.parametrize(("host", "given"), [(langgraph, {}), (langgraph, {"own_node": True}), (langchain, {})])
def test_a_call_does_not_run_whose_permit_is_closed_while_its_start_is_stored(host: ModuleType, given: Any) -> None:
    store, permits = earned(host, **given)
    (standing,) = anyio.run(stored_permits, store)

    class Closing(MemoryStore):
        async def write(self, *changes: Any) -> float:
            await close_permit(store, standing.permit.id, "revoked")
            return await super().write(*changes)

    one = world(host, permits, "bob", starts=StoredStarts(Closing()), **given)
    one.run()
    assert one.done == []
