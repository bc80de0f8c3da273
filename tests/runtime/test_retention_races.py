"""Whatever happens between any two looks of a prune at the store, nothing young and nothing needed is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from grampus_uq.gate.requests import ApprovalPolicy, ApprovalRequest
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.retention import prune
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stores.memory import MemoryStore
from tests.runtime.agents import AGENT, World, runner

pytestmark = pytest.mark.anyio
OLD_S = 1_000.0


class Interrupted(MemoryStore):
    """A store with a clock of its own, whose n-th operation comes after something that somebody else does."""

    def __init__(self) -> None:
        super().__init__()
        self.later_s, self.left, self.every = 0.0, -1, False
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    def _now(self) -> float:
        return super()._now() + self.later_s

    async def _interrupt(self) -> None:
        self.left -= 1
        meanwhile = self.meanwhile
        if meanwhile is not None and (self.left == 0 or (self.every and self.left < 0)):
            self.meanwhile = None
            await meanwhile()
            self.meanwhile = meanwhile if self.every else None

    async def get(self, *given: Any) -> Any:
        await self._interrupt()
        return await super().get(*given)

    async def scan(self, *given: Any, **named: Any) -> Any:
        await self._interrupt()
        return await super().scan(*given, **named)

    async def read(self, *given: Any, **named: Any) -> Any:
        await self._interrupt()
        return await super().read(*given, **named)

    async def write(self, *changes: Any) -> float:
        await self._interrupt()
        return await super().write(*changes)


class Scene:
    """A session that was forgotten but for its audit, one that ended, and one that waits for its second approval."""

    def __init__(self) -> None:
        self.store, self.world = Interrupted(), World()
        self.quick = runner(World(), ["Done."], store=self.store, p_true=0.95)
        self.slow = runner(self.world, store=self.store, approvals=ApprovalPolicy(required=2))
        self.other = runner(self.world, store=self.store, approvals=ApprovalPolicy(required=2))
        self.lease: Any = None

    async def prepare(self) -> ApprovalRequest:
        await self.quick.run(AGENT, "x", session_id="again")
        self.store.later_s += OLD_S
        await prune(self.store, OLD_S / 2)
        await self.quick.run(AGENT, "x", session_id="ended")
        (request,) = (await self.slow.run(AGENT, "x", session_id="waits")).pending
        await self.slow.ledger.decide(request.decide("approve", principal="ann"), wake=False)
        self.store.later_s += OLD_S
        return request

    async def begins(self) -> None:
        for name in ("again", "ended"):
            await self.slow.run(AGENT, "x", session_id=name)

    async def begins_and_is_forgotten(self) -> None:
        for name in ("again", "ended"):
            await self.quick.run(AGENT, "x", session_id=name)
        await prune(self.store, None, keep=0)

    async def changes_hands(self) -> None:
        if self.lease is None:
            self.lease = await self.other.leases.take(*(await self.other.ledger.known("mailer", "waits")))
        else:
            await self.lease.release()
            self.lease = None


async def young_entries(store: SessionStore) -> list[str]:
    """The hashes of the entries of audits that are younger than what is pruned."""
    logs = [log for log in store._logs if log.startswith("audit/")]  # type: ignore[attr-defined]
    return [entry for log in logs for entry in await store.read(log)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("what", "often"),
    [
        (Scene.begins, False),
        pytest.param(Scene.begins_and_is_forgotten, False, marks=pytest.mark.slow),
        (Scene.changes_hands, False),
        pytest.param(Scene.changes_hands, True, marks=pytest.mark.slow),
    ],
)
async def test_before_every_operation_of_a_prune_somebody_may_begin_end_or_take_a_session(
    what: Callable[[Scene], Awaitable[None]], often: bool
) -> None:
    place = 0
    while True:
        place += 1
        scene = Scene()
        request = await scene.prepare()
        store, written = scene.store, list[str]()

        async def meanwhile(scene: Scene = scene, store: Interrupted = store, written: list[str] = written) -> None:
            before = set(await young_entries(store))
            await what(scene)
            written += [entry for entry in await young_entries(store) if entry not in before]

        store.left, store.every, store.meanwhile = place, often, meanwhile
        await prune(store, OLD_S / 2, audits_older_than_s=OLD_S / 2)
        done, store.meanwhile = store.left > 0, None
        assert set(written) <= set(await young_entries(store)), place
        if scene.lease is not None:
            await scene.lease.release()
        assert len(await store.scan("wake", prefix=f"{request.id}/")) == 1, place
        result = await scene.slow.resume("mailer", "waits", request.decide("approve", principal="bea"))
        assert (result.status, scene.world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")]), place
        for name in ("again", "ended") if what == Scene.begins and written else ():
            assert (await scene.slow.ledger.known("mailer", name))[0].pending(), place
        if done:
            break
    assert place > 20
