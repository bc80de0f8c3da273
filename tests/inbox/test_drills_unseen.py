"""A reviewer who watches everything that an inbox sends cannot tell the arrival of a drill from that of a request."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from grampus_uq import AgentRunner, FunctionTools, UncertaintyMonitor, open_store, tool
from grampus_uq.gate.seal import Seal
from grampus_uq.inbox.arrivals import Arrivals
from grampus_uq.inbox.inbox_app import News, inbox_app
from grampus_uq.inbox.request_pages import listed
from grampus_uq.inbox.reviewer_pages import SECTIONS
from grampus_uq.records.values import ToolCall
from grampus_uq.runtime.cards import Card, card
from grampus_uq.runtime.drills import Drill, sealed_card
from grampus_uq.runtime.health import health_in_words, store_health
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_decisions import open_request
from grampus_uq.runtime.stored_drills import DRILL, StoredDrills
from grampus_uq.runtime.stored_permits import stored_permits
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.testing import answer
from tests.inbox.browser import SETTINGS, someone
from tests.inbox.test_decisions import Desk, decide
from tests.inbox.test_permit_pages import granted
from tests.inbox.test_request_list import inbox_of
from tests.runtime.agents import AGENT, look, mail, scripted
from tests.runtime.drill_worlds import UNSEEN, made, plan

pytestmark = pytest.mark.anyio
RULE = {"tool": "send_email", "change": "recipient", "argument": "to"}


class World:
    """An inbox over a store in which calls were approved and one waits; what it sends, with names and ids left out."""

    def __init__(self, store: SessionStore, **policy: Any) -> None:
        self.store, self.desk = store, Desk(store)
        self.desk.policy |= policy
        self.newest = ""

    async def begin(self, *, permit: bool = False) -> None:
        self.desk.app = inbox_app(self.store, SETTINGS, SECTIONS)
        self.ann = await someone(self.desk.app, self.store)
        if permit:
            self.desk.policy["seal"] = Seal("k" * 32)  # of one host, which believes its permits' state
            self.permit = await granted(self.ann, tool="send_email", at_most=0.5, days=1)
        for number, to in enumerate(("bob", "zoe")):
            request = await self.desk.pause(mail("c", to), session=f"case-10{number}")
            assert (await decide(self.ann, request.id)).status_code == 200
            await self.desk.resume(f"case-10{number}")
        self.waits = await self.desk.pause(mail("c", "joe"), session="case-102")
        await StoredDrills(self.store).switch_on(plan(share=UNSEEN, rules=[RULE]))
        self.news, self.arrivals = News(), Arrivals()
        await self.arrivals.look(self.store)

    async def request(self, lasts_s: float | None = None) -> None:
        self.newest = (await self.desk.pause(mail("c", "zoe"), session="case-103")).id

    async def drill(self, lasts_s: float | None = None) -> None:
        kept = [json.loads(document.body)["shown"] for document in await self.store.scan("decision")]
        drill = made(plan(0.5, [RULE]), [Card.model_validate(one) for one in kept], card(self.waits), random.Random(1))
        assert drill is not None
        now_s = await self.store.now()
        shown = sealed_card(
            drill.card.model_copy(
                update={"created_s": now_s, "expires_s": None if lasts_s is None else now_s + lasts_s}
            )
        )
        body = drill.model_copy(update={"card": shown, "parameters": PARAMETERS}).model_dump_json()
        await self.store.put(DRILL, shown.id, body, expected=0, label="open")
        self.newest = shown.id

    async def page(self, path: str) -> Any:
        answer = await self.ann.get(path)
        headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
        return answer.status_code, headers, plain(answer.text)


PARAMETERS = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "body": {"type": "string"}},
    "required": ["to", "body"],
    "additionalProperties": False,
}


def plain(text: str) -> str:
    """Without what differs between any two requests: names, ids, times."""
    text = re.sub(r"\b[0-9a-f]{16,64}\b", "ID", text)
    text = re.sub(r"\d+\.\d{3,}", "TIME", text)
    return re.sub(r"\b(bob|zoe|joe)\b|case-\d+|\d+ s ago|(?<=oldest for )\d+ s", "NAME", text)


async def notices(world: World) -> Any:
    return [await world.arrivals.look(world.store) for _ in range(2)]


async def count_and_title(world: World) -> Any:
    world.news._asked_s = float("-inf")
    told = json.loads((await world.news.now(inbox_of(world.desk))).removeprefix("data: "))
    return told["count"], len(told["mark"])


async def list_of_what_waits(world: World) -> Any:
    return await world.page("/requests")


async def order_and_place(world: World) -> Any:
    rows, _ = await listed(inbox_of(world.desk))
    return [row.card.id in (world.newest, world.waits.id) for row in rows], rows[-1].card.id == world.newest


async def cursor(world: World) -> Any:
    rows, _ = await listed(inbox_of(world.desk), after="0")
    return len(rows), plain((await world.page(f"/requests?after={rows[0].card.created_s:017.6f}"))[2])


async def whole_card(world: World) -> Any:
    return await world.page(f"/requests/{world.newest}")


async def ids_and_digests(world: World) -> Any:
    drill = await StoredDrills(world.store).find(world.newest, await world.store.now())
    shown = (drill or await open_request(Ledger(world.store), world.newest)).card
    return {
        name: plain(str(value)) if name not in ("messages", "readings", "arguments") else len(value)
        for name, value in shown.model_dump().items()
    }


async def what_is_refused(world: World) -> Any:
    said: list[Any] = []
    for kind, given in (
        ("approve", {"digest": "0" * 64, "seen": "0" * 64}),
        ("approve", {"seen": "0" * 64}),
        ("edit", {"arguments": "{"}),
        ("edit", {"arguments": '{"to": 7}'}),
        ("respond", {}),
    ):
        page = (await world.ann.get(f"/requests/{world.newest}")).text
        known = {name: re.findall(rf'data-{name}="([^"]*)"', page)[0] for name in ("digest", "seen")}
        answer = await world.ann.send(f"/requests/{world.newest}/prepare", {"kind": kind, **known, **given})
        said.append((answer.status_code, plain(answer.text)))
    return said


async def health(world: World) -> Any:
    found = health_in_words(await store_health(world.store))
    said = {name: plain(str(found[name])) for name in ("pauses", "waiting", "approved", "stops")}
    return said, await world.page("/health")


async def reviewers(world: World) -> Any:
    return await world.page("/reviewers")


async def work_of_the_store(world: World) -> Any:
    """Which reads a card takes; their time is what a reviewer could measure."""
    store: Any = world.store
    seen: list[tuple[str, str]] = []
    kept = {name: getattr(store, name) for name in ("get", "scan", "read")}
    for name in kept:

        async def counted(*given: Any, name: str = name, **more: Any) -> Any:
            seen.append((name, str(given[0]).partition("/")[0]))
            return await kept[name](*given, **more)

        setattr(store, name, counted)
    try:
        await world.page(f"/requests/{world.newest}")
    finally:
        for name in kept:
            delattr(store, name)
    return seen


CHANNELS: list[Callable[[World], Awaitable[Any]]] = [
    notices,
    count_and_title,
    list_of_what_waits,
    order_and_place,
    cursor,
    whole_card,
    ids_and_digests,
    what_is_refused,
    health,
    reviewers,
    work_of_the_store,
]


async def test_health_does_not_say_that_a_request_is_about_to_arrive(store: SessionStore) -> None:
    """A worker holds the session of a request until it waits; no drill has one."""
    world = World(store)
    await world.begin()
    seen = list[str]()

    @tool(effect="read")
    async def search(query: str) -> str:
        seen.append(plain((await world.ann.get("/health")).text))
        return "found"

    turns = [answer("I look.", tool_calls=[look("a", "zoe")]), answer("I mail.", tool_calls=[mail("c", "zoe")])]
    for session in ("on", "off"):
        before = plain((await world.ann.get("/health")).text)
        agent = AgentRunner(
            scripted(turns), FunctionTools(search), uncertainty_monitor=UncertaintyMonitor(), store=store
        )
        await agent.run(AGENT, "mail zoe", session_id=session)
        assert (seen.pop() == before) is (session == "on")
        await StoredDrills(store).switch_off()


async def test_no_page_holds_a_sessions_name_while_drills_are_on(store: SessionStore) -> None:
    world = World(store)
    await world.begin()
    await world.desk.pause(mail("c", "zoe"), session="of-monday")
    for off in (False, True):
        paths = ["/requests", f"/requests/{world.waits.id}", f"/requests/{world.waits.id}/alike"]
        texts = [(await world.ann.get(path)).text for path in paths]
        assert [("case-102" in text, "of-monday" in text) for text in texts] == [
            (False, False),
            (off, False),
            (off, off),
        ]
        await StoredDrills(store).switch_off()


async def test_no_channel_tells_a_drill_from_a_request(tmp_path: Path) -> None:
    told = []
    for kind in ("request", "drill"):
        world = World(open_store(f"sqlite:///{tmp_path}/{kind}.db"))
        await world.begin()
        await getattr(world, kind)()
        told.append({channel.__name__: await channel(world) for channel in CHANNELS})
        await world.store.aclose()
    assert told[0] == told[1]


async def test_what_expired_leaves_the_list_the_count_and_the_page_at_once_either_way(tmp_path: Path) -> None:
    """No worker runs here: a request left when a worker took it up, a drill at its time."""
    told = []
    for kind in ("request", "drill"):
        world = World(open_store(f"sqlite:///{tmp_path}/{kind}.db"))
        await world.begin()
        world.desk.policy["expires_s"] = 0.5
        await getattr(world, kind)(0.5)
        shown = await count_and_title(world)
        while await world.store.now() < await over_s(world):  # noqa: ASYNC110 (by the store's clock)
            await anyio.sleep(0.05)
        told.append([shown, await count_and_title(world), await list_of_what_waits(world), await whole_card(world)])
        told[-1].append((await health(world))[0]["waiting"].partition(",")[0])
        await world.store.aclose()
    assert told[0] == told[1]
    assert told[0][0] != told[0][1]


async def test_a_drill_is_counted_before_it_is_listed_where_the_request_before_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn may propose another call beside the one that waits: that runs first, and the list does not know yet."""
    store, passed_s = MemoryStore(), 0.0
    monkeypatch.setattr(store, "_now", lambda: time.time() + passed_s)
    world = World(store)
    await world.begin()
    seen = dict[str, list[tuple[str, int]]]()

    async def look_on(kind: str) -> None:
        count, _ = await count_and_title(world)
        seen.setdefault(kind, []).append((count, (await world.ann.get("/requests")).text.count("data-row")))

    class Slow(FunctionTools):
        async def execute(self, call: ToolCall, /, *, idempotency_key: str = "") -> Any:
            nonlocal passed_s
            await world.arrivals.look(store)
            await look_on("request")
            passed_s += 7.0
            return await world.desk.world.tools().execute(call, idempotency_key=idempotency_key)

    turns = [answer("I look and mail.", tool_calls=[look("a", "zoe"), mail("c", "zoe")]), answer("Done.")]
    given: dict[str, Any] = {"approvals": world.desk.approvals, "store": store}
    tools = Slow(*world.desk.world.tools()._tools.values())
    agent = AgentRunner(scripted(turns), tools, uncertainty_monitor=UncertaintyMonitor(), **given)
    (asked,) = (await agent.run(AGENT, "mail zoe", session_id="case-104")).pending
    await look_on("request")
    secret = next(s for n in range(1_000) if plan(0.5, secret=(s := f"{n:032d}")).follows(asked.id))
    await StoredDrills(store).switch_on(plan(0.5, [RULE], secret=secret))
    await world.arrivals.look(store)
    drills = [Drill.model_validate_json(one.body) for one in await store.scan(DRILL, label="open")]
    (drill,) = [one for one in drills if one.card.id == plan(0.5, secret=secret).drill_id(asked.id)]
    for wait_s in (1.0, 8.0):
        passed_s = drill.card.created_s + wait_s - time.time()
        await look_on("drill")
        listed_now = (await world.ann.get(f"/requests/{drill.card.id}")).status_code
        assert listed_now == (404 if wait_s == 1.0 else 200)
    (before, rows), after = seen["request"]
    assert after == (before, rows + 1)
    assert seen["drill"] == [(str(int(before) + 1), rows + 1), (str(int(before) + 1), rows + 2)]


async def test_the_page_of_a_permit_says_the_same_whatever_arrived(tmp_path: Path) -> None:
    """It counts the requests that wait, and no drills: a figure that changes with each would tell a drill."""
    told = []
    for kind in ("request", "drill"):
        world = World(open_store(f"sqlite:///{tmp_path}/{kind}.db"))
        await world.begin(permit=True)
        (before,) = await stored_permits(world.store)
        await getattr(world, kind)()
        (after,) = await stored_permits(world.store)
        assert len(after.state.open) - len(before.state.open) == (kind == "request")
        told.append([await world.page(path) for path in ("/permits", f"/permits/{world.permit}")])
        await world.store.aclose()
    assert told[0] == told[1]


async def over_s(world: World) -> float:
    """When the newest expires."""
    for document in await world.store.scan(DRILL, label="open"):
        return Drill.model_validate_json(document.body).card.expires_s or 0.0
    requests = [one for session in await Ledger(world.store).pending() for one in session.requests]
    return next((one.expires_s for one in requests if one.id == world.newest), None) or 0.0


async def test_drills_are_made_and_told_of_though_nobody_looks_at_the_list(store: SessionStore) -> None:
    world = World(store)
    await world.begin()
    secret = next(s for n in range(1_000) if plan(0.5, secret=(s := f"{n:032d}")).follows(world.waits.id))
    await StoredDrills(store).switch_on(plan(0.5, [RULE], secret=secret))
    arrivals = Arrivals()
    assert await arrivals.look(store) is False, "what waited before is no news"
    (document,) = await store.scan(DRILL, label="open")
    drill = Drill.model_validate_json(document.body)
    assert drill.card.created_s > await store.now()
    assert await arrivals.look(store) is False
    body = drill.model_copy(update={"card": drill.card.model_copy(update={"created_s": 1.0})}).model_dump_json()
    await store.put(DRILL, document.key, body, expected=document.version, label="open")
    assert await arrivals.look(store) is True
    assert await arrivals.look(store) is False
