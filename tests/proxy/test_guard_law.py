"""Whatever client, server, humans and store do, in whatever order: nothing runs unapproved, twice, or for ever.

With a grant the same call (tool, arguments) runs once without a human, whatever became of its answer.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import anyio
import pytest

from grampus_uq.gate.call import CallPhase
from grampus_uq.runtime import MemoryStore, StoredStarts
from tests.proxy.ended_spans import counted
from tests.proxy.guarded import Bench, SlowStore, granted
from tests.sampling import sampled

_ODD = [
    b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\xff"}]}}',
    b'{"jsonrpc":"2.0","id":%d,"result":{"content":[]},"id":%d}',
    b'{"jsonrpc":"2.0","id":"%d","result":{"content":[]}}',
    b'{"jsonrpc":"2.0","id":%d,"error":{"code":1,"message":"no"}}',
    b'{"jsonrpc":"2.0","id":%d,"result":',
]


class World:
    """Everybody who may do something, by chance."""

    def __init__(self, one: Bench, store: SlowStore, chance: random.Random) -> None:
        self.one, self.store, self.chance = one, store, chance
        self.sent: list[int] = []
        self.approved: Counter[str] = Counter()

    async def step(self) -> None:
        await self.chance.choice(
            [self.call, self.call, self.cancel, self.answer, self.answer, self.decide, self.other]
        )()
        if self.chance.random() < 0.3:
            await anyio.sleep(self.chance.choice([0, 0.01, 0.1, 0.4]))

    async def call(self) -> None:
        identity = self.chance.choice([len(self.sent), len(self.sent), self.chance.randrange(len(self.sent) + 1)])
        self.sent.append(identity)
        tool = self.chance.choice(["delete_note", "pay", "read_note"])
        await self.one.call(identity, tool, n=self.chance.choice([0, 1, 1.0]))

    async def cancel(self) -> None:
        params = {"requestId": self.chance.randrange(len(self.sent) + 1)}
        await self.one.say(method="notifications/cancelled", params=params)

    async def answer(self) -> None:
        ran = self.one.ran()
        if ran:
            identity = self.chance.choice(ran)["id"]
            if self.chance.random() < 0.6:
                await self.one.returns(identity)
            else:
                line = self.chance.choice(_ODD)
                await self.one.guard.from_server(line.replace(b"%d", b"%d" % identity))

    async def decide(self) -> None:
        if self.store.locked:
            return
        for session in await self.one.ledger.pending():
            for request in session.requests:
                kind = self.chance.choice(["approve", "reject", "edit", "respond", None])
                if kind is None or request.call is None:
                    continue
                edited = {"n": self.chance.randrange(2)}
                given = {"arguments": edited} if kind == "edit" else {}
                await self.one.ledger.decide(request.decide(kind, principal="ann", message="so it is", **given))
                name, arguments = request.call.name, edited if kind == "edit" else request.call.arguments
                self.approved[f"{name}({int(arguments['n'])})"] += kind in ("approve", "edit")

    async def other(self) -> None:
        which = self.chance.randrange(3)
        if which == 0:
            self.store.locked = not self.store.locked
        elif which == 1:
            await self.one.lists(read_note={"annotations": {"readOnlyHint": True}})
        else:
            await self.one.guard.from_server(b"\xff not JSON")


async def live(seed: int, steps: int) -> None:
    store, chance = SlowStore(), random.Random(seed)
    starts = StoredStarts(MemoryStore()) if seed % 2 else None
    async with await granted(store, uses=1_000, hold_s=0.05, late_s=0.1, starts=starts) as one:
        world, spans = World(one, store, chance), counted(one.exchange)
        await one.lists(read_note={"annotations": {"readOnlyHint": True}})
        for _ in range(steps):
            with anyio.fail_after(60):
                await world.step()
        store.locked = False
        with anyio.fail_after(60):
            await one.guard.rest()
        ran: Counter[str] = Counter()
        for message in one.ran():
            params: dict[str, Any] = message["params"]
            if params["name"] != "read_note":
                ran[f"{params['name']}({int(params['arguments']['n'])})"] += 1
        covered = {call: call.startswith("pay") for call in ran}
        assert all(ran[call] <= world.approved[call] + covered[call] for call in ran), (ran, world.approved)
        for identity in tuple(one.guard._answers.running):  # the client gives up what is left: each call ends
            await one.say(method="notifications/cancelled", params={"requestId": identity})
        state = one.calls.session.current().lease.state
        with anyio.fail_after(60):
            while any(record.phase is CallPhase.STARTED for record in state.turn):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        await one.guard.rest()
        late = set(spans.ended())
        assert late <= {"", "cancelled", "tool_error", "no_answer", "1", "-32600", "-32602"}
        await one.call(len(world.sent) + 1, "read_note", last=True)  # a call that runs when the connection ends
        await one.asked(len(one.ran()) + 1)
    assert spans.ended()[-1] == "no_answer"


async def live_many(seeds: range, steps: int) -> None:
    async with anyio.create_task_group() as group:
        for seed in seeds:
            group.start_soon(live, seed, steps)


@sampled("lives", [range(15)], full=[range(40)])
def test_no_call_runs_unapproved_or_twice_and_each_one_ends(lives: range) -> None:
    anyio.run(live_many, lives, 60)


@pytest.mark.parametrize(
    "lives",
    [
        pytest.param(range(1_000, 1_010), marks=pytest.mark.slow),
        pytest.param(range(1_000, 1_060), marks=pytest.mark.kills),
    ],
    ids=len,
)
def test_the_same_in_more_and_longer_lives(lives: range) -> None:
    anyio.run(live_many, lives, 300)
