"""A batch decides what it listed whole, each call under its own digest, and nothing that is looked at by itself."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Sequence
from typing import Any

import anyio
import httpx
import pytest

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.errors import StoreError
from grampus_uq.gate.requests import ApprovalDecision, ApprovalRequest
from grampus_uq.gate.webauthn import batch_text
from grampus_uq.inbox.people import Role
from grampus_uq.runtime.drills import sealed_card
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import Put, SessionStore
from grampus_uq.runtime.stored_drills import DRILL, StoredDrills
from grampus_uq.runtime.stores.memory import MemoryStore
from tests.gate.test_batches import batch
from tests.gate.test_webauthn import url64
from tests.inbox.browser import ORIGIN, RP, Browser, made, someone
from tests.inbox.test_decisions import Desk, decide, shown
from tests.proxy.guarded import bench, read_as_doubtful
from tests.runtime.agents import mail
from tests.runtime.drill_worlds import UNSEEN, plan
from tests.runtime.test_drills import drills

pytestmark = pytest.mark.anyio


async def three(desk: Desk) -> list[Any]:
    return [await desk.pause(mail("c", name), session=name) for name in ("ann", "bob", "eve")]


class Lost(MemoryStore):
    """Stores every decision, and the answer that it did is lost."""

    async def write(self, *changes: Any) -> float:
        written = await super().write(*changes)
        if any(one.kind == "decision" for one in changes if isinstance(one, Put)):
            raise StoreError("/srv/secret.db: connection lost")
        return written


async def test_a_fault_of_the_store_is_told_to_the_log_and_never_as_nothing_decided() -> None:
    desk = Desk(Lost())
    ann = await someone(desk.app, desk.store)
    *_, last = requests = await three(desk)
    calls = listed((await ann.get(f"/requests/{last.id}/alike")).text)[:2]
    done = await signed(ann, calls, (await prepared(ann, calls)).json())
    single = await decide(ann, last.id)
    assert (done.status_code, single.status_code) == (200, 503)
    for text in (*done.json()["told"], single.json()["error"]):
        assert "/srv" not in text
        assert "may have been stored" in text
        assert "nothing was" not in text.lower()
        assert "not decided" not in text.lower()
    assert len(await sent_of(desk, "ann", "bob", "eve")) == len(requests)


class Overtaken(MemoryStore):
    """A stranger's rejections come right before the first decision."""

    stranger: Sequence[ApprovalDecision] = ()

    async def write(self, *changes: Any) -> float:
        if self.stranger and any(one.kind == "decision" for one in changes if isinstance(one, Put)):
            first, self.stranger = self.stranger, ()
            for decision in first:
                await Ledger(self).decide(decision)
        return await super().write(*changes)


@pytest.mark.parametrize("many", [False, True])
async def test_the_name_of_whoever_was_faster_is_escaped(many: bool) -> None:
    store = Overtaken()
    desk = Desk(store)
    ann = await someone(desk.app, store)
    requests = await three(desk)
    calls = listed((await ann.get(f"/requests/{requests[0].id}/alike")).text)
    said = (await prepared(ann, calls)).json()
    store.stranger = [one.decide("reject", principal="mal\u202elory") for one in requests]
    done = await signed(ann, calls, said) if many else await decide(ann, requests[0].id)
    told = done.json()["told"]
    for text in told if many else [told]:
        assert "mal\\u202elory decided this first: rejected. Your decision is stored, and has no effect." in text


def listed(page: str) -> list[dict[str, str]]:
    """What each call of a batch's page hands to its script."""
    names = ("id", "digest", "seen")
    found = [re.findall(rf'data-{name}="([^"]+)"', page) for name in names]
    return [dict(zip(names, map(html.unescape, values), strict=True)) for values in zip(*found, strict=True)]


async def prepared(browser: Browser, calls: list[dict[str, str]], kind: str = "approve", **more: Any) -> httpx.Response:
    given = [[one["id"], one["digest"], one["seen"]] for one in calls]
    return await browser.send("/requests/alike/prepare", {"kind": kind, "calls": given, **more})


async def signed(
    browser: Browser, calls: list[dict[str, str]], said: dict[str, Any], texts: list[str] | None = None, **forged: Any
) -> httpx.Response:
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts or said["texts"]]
    given = [[one["id"], text, one["seen"]] for one, text in zip(calls, said["decisions"], strict=False)]
    signature = batch(digests, by=browser.key, rp=RP, origin=ORIGIN)
    body = {"calls": given, "id": url64(browser.id), "signature": signature} | forged
    return await browser.send("/requests/alike/decide", body)


async def sent_of(desk: Desk, *sessions: str) -> list[str]:
    for session in sessions:
        await desk.resume(session)
    return [to for to, _ in desk.world.sent]


async def test_one_touch_decides_three_calls_and_each_runs_once(store: SessionStore) -> None:
    desk = Desk(store)
    ann = await someone(desk.app, store)
    requests = await three(desk)
    page = (await ann.get("/requests")).text
    assert f'href="/requests/{requests[0].id}/alike">Decide 3 similar calls together' in page
    page = (await ann.get(f"/requests/{requests[1].id}/alike")).text
    calls = listed(page)
    assert [one["id"] for one in calls] == [one.id for one in requests]
    assert page.count("data-part") == 3
    done = await signed(ann, calls, (await prepared(ann, calls)).json())
    told = [f'send_email: to "{name}", body "hi". Approved.' for name in ("ann", "bob", "eve")]
    assert done.json()["told"] == [f"{one} The agent's program takes it up." for one in told]
    assert await sent_of(desk, "ann", "bob", "eve") == ["ann", "bob", "eve"]
    assert "No pending requests" in (await ann.get("/requests")).text


async def test_a_part_of_the_list_is_rejected_and_the_rest_waits(store: SessionStore) -> None:
    desk = Desk(store)
    ann = await someone(desk.app, store)
    requests = await three(desk)
    calls = listed((await ann.get(f"/requests/{requests[0].id}/alike")).text)[1:]
    done = await signed(ann, calls, (await prepared(ann, calls, "reject", message="too many")).json())
    assert done.status_code == 200
    assert await sent_of(desk, "ann", "bob", "eve") == []
    stored = await Ledger(store).decisions([one.id for one in requests])
    assert [len(decisions) for decisions in stored.values()] == [0, 1, 1]


@pytest.mark.parametrize("what", ["call", "seen", "digest", "twice", "unknown", "one", "kind", "long"])
async def test_what_was_not_shown_is_not_prepared(store: SessionStore, what: str) -> None:
    desk = Desk(store)
    ann, bob = await someone(desk.app, store), await someone(desk.app, store, "bob")
    requests = await three(desk)
    calls = listed((await ann.get(f"/requests/{requests[0].id}/alike")).text)
    other = await desk.pause(mail("c", "joe"), session="joe")
    wrong: dict[str, Any] = {
        "call": [*calls, {"id": other.id, "digest": other.digest(), "seen": calls[0]["seen"]}],
        "seen": [*calls[:2], calls[2] | {"seen": (await shown(bob, requests[2].id))["seen"]}],
        "digest": [*calls[:2], calls[2] | {"digest": calls[0]["digest"]}],
        "twice": [*calls, calls[0]],
        "unknown": [*calls, calls[0] | {"id": "0" * 32}],
        "one": calls[:1],
        "long": [calls[0], calls[1] | {"digest": "x" * 101}],
        "kind": calls,
    }
    refused = await prepared(ann, wrong[what], "respond" if what == "kind" else "approve")
    assert refused.status_code in (400, 404, 409)


async def test_a_batch_shows_of_each_call_why_it_was_held(store: SessionStore) -> None:
    """Of one that waited while the same call ran, the proxy says so in its reason alone, whose rule is the others'."""
    async with bench(store, **read_as_doubtful("pay")) as proxy:

        async def waiting(count: int) -> list[ApprovalRequest]:
            found: list[ApprovalRequest] = []
            with anyio.fail_after(60):
                while len(found) != count:
                    await anyio.sleep(0.01)
                    found = [request for one in await proxy.ledger.pending() for request in one.requests]
            return found

        for number, n in enumerate((1, 2, 1.0)):
            await proxy.call(number, "pay", n=n)
        (again,) = [request for request in await waiting(3) if request.rule == "repeated_call"]
        await proxy.ledger.decide(again.decide("approve", principal="ann"))
        await proxy.asked(1)
        both = await waiting(2)
        ann = await someone(made(store), store)
        page = (await ann.get(f"/requests/{both[0].id}/alike")).text
        assert len(listed(page)) == 2
        watched = [part[: part.index("data-seen")] for part in page.split("data-part")[1:]]
        reasons = [html.escape(one.reason).replace("&#x27;", "&#39;") for one in both]
        assert [sum(reason in part for part in watched) for reason in reasons] == [1, 1]
        assert any("the same call was started" in one.reason for one in both)


async def test_what_is_signed_is_exactly_what_is_stored(store: SessionStore) -> None:
    """A list without a call, of other texts, with a call that was decided meanwhile: nothing of it is stored."""
    desk = Desk(store)
    ann, bob = await someone(desk.app, store), await someone(desk.app, store, "bob")
    requests = await three(desk)
    calls = listed((await ann.get(f"/requests/{requests[0].id}/alike")).text)
    said = (await prepared(ann, calls)).json()
    for refused in (
        await signed(ann, calls, said, texts=said["texts"][:2]),
        await signed(ann, calls, said, texts=[*said["texts"][:2], "grampus_uq decision 2\n{}"]),
        await signed(ann, calls, said, signature=ann.assertion(said["texts"][0])),
        await signed(ann, calls, said, signature=ann.assertion(batch_text(["0" * 64]).decode())),
        await signed(ann, calls, said, id=url64(bob.id)),
        await signed(bob, calls, said),
        await signed(ann, calls[::-1], said),
        await signed(ann, [calls[0], calls[0]], {**said, "decisions": said["decisions"][:1] * 2}),
    ):
        assert refused.status_code in (400, 409), refused.text
    assert (await decide(bob, requests[1].id, "reject")).status_code == 200
    refused = await signed(ann, calls, said)
    assert refused.status_code == 409, "one of them was decided: none is stored"
    assert 'send_email: to "bob"' in refused.json()["error"], "and which"
    stored = await Ledger(store).decisions([one.id for one in requests])
    assert [len(decisions) for decisions in stored.values()] == [0, 1, 0]
    assert await sent_of(desk, "ann", "bob", "eve") == []


@pytest.mark.parametrize(
    "other",
    [
        mail("c", "p\u0430y"),
        mail("c", "m\xfcll\u0435r@bank.de"),
        mail("c", "bob").model_copy(update={"arguments": {"to": "x"}}),
        mail("c", "bob").model_copy(update={"arguments": {"to": "x", "body": "y", "more": 1}}),
        mail("c", "bob").model_copy(update={"arguments": {"to": "x", "body": None}}),
        mail("c", "bob").model_copy(update={"arguments": {"to": "x", "body": ["y"]}}),
    ],
    ids=["look-alike", "look-alike beside an accent", "a key less", "a key more", "null", "a list"],
)
async def test_a_call_of_another_shape_is_in_no_batch(store: SessionStore, other: Any) -> None:
    desk = Desk(store)
    ann = await someone(desk.app, store)
    plain = [await desk.pause(mail("c", name), session=name) for name in ("ann", "bob")]
    odd = await desk.pause(other, session="odd")
    calls = listed((await ann.get(f"/requests/{plain[0].id}/alike")).text)
    assert [one["id"] for one in calls] == [one.id for one in plain]
    assert "Decide this one individually" in (await ann.get(f"/requests/{odd.id}/alike")).text
    card = await shown(ann, odd.id)
    refused = await prepared(ann, [*calls, {"id": odd.id, **card}])
    assert "not similar" in refused.json()["error"]


async def test_a_tool_that_is_always_asked_for_is_in_no_batch(store: SessionStore) -> None:
    desk = Desk(store)
    ann = await someone(desk.app, store)
    asked = []
    for name in ("ann", "bob"):
        desk.monitor = UncertaintyMonitor(policy=UncertaintyPolicy(always_ask_tool_names=["send_email"]))
        asked.append(await desk.pause(mail("c", name), session=name))
    assert {one.rule for one in asked} == {"always_ask"}
    assert "similar calls together" not in (await ann.get("/requests")).text
    assert "Decide this one individually" in (await ann.get(f"/requests/{asked[0].id}/alike")).text
    calls = [{"id": one.id, **await shown(ann, one.id)} for one in asked]
    assert "decided individually" in (await prepared(ann, calls)).json()["error"]


async def test_who_may_not_decide_sees_no_batch(store: SessionStore) -> None:
    desk = Desk(store)
    await someone(desk.app, store)
    eve = await someone(desk.app, store, "eve", Role.LABEL)
    requests = await three(desk)
    assert "similar calls together" not in (await eve.get("/requests")).text
    assert (await eve.get(f"/requests/{requests[0].id}/alike")).status_code == 403
    assert (await prepared(eve, [])).status_code == 403


async def test_a_drill_among_them_is_in_the_batch_and_told(store: SessionStore) -> None:
    """Else whatever a batch offers is no drill."""
    desk = Desk(store)
    ann = await someone(desk.app, store)
    requests = await three(desk)
    await StoredDrills(store).switch_on(plan(share=UNSEEN))
    made, now_s = drills(1, 1)[0][0], await store.now()
    alike = {"agent_id": "mailer", "tool": "send_email", "arguments": {"to": "joe", "body": "hi"}, "expires_s": None}
    alike |= {"created_s": now_s - 0.01, "rule": requests[0].rule}
    card = sealed_card(made.card.model_copy(update=alike))
    drill = made.model_copy(update={"card": card})
    await store.put(DRILL, card.id, drill.model_dump_json(), expected=0, label="open")
    calls = listed((await ann.get(f"/requests/{requests[0].id}/alike")).text)
    assert {one["id"] for one in calls} == {card.id, *(one.id for one in requests)}
    told = (await signed(ann, calls, (await prepared(ann, calls)).json())).json()["told"]
    assert sum("This was a drill, and nothing runs" in one for one in told) == 1
    assert sum("Approved. The agent's program takes it up." in one for one in told) == 3
    assert sorted(await sent_of(desk, "ann", "bob", "eve")) == ["ann", "bob", "eve"]


async def test_two_batches_at_once_run_each_call_once(store: SessionStore) -> None:
    desk = Desk(store)
    ann, bob = await someone(desk.app, store), await someone(desk.app, store, "bob")
    requests = await three(desk)
    ready = []
    for browser in (ann, bob):
        calls = listed((await browser.get(f"/requests/{requests[0].id}/alike")).text)
        ready.append((browser, calls, (await prepared(browser, calls)).json()))
    async with anyio.create_task_group() as group:
        for one in ready:
            group.start_soon(signed, *one)
    assert sorted(await sent_of(desk, "ann", "bob", "eve")) == ["ann", "bob", "eve"]


async def test_no_more_than_twenty_are_offered_and_listed(store: SessionStore) -> None:
    desk = Desk(store)
    ann = await someone(desk.app, store)
    requests = [await desk.pause(mail("c", f"p{number}"), session=str(number)) for number in range(22)]
    assert "Decide 20 similar calls together" in (await ann.get("/requests")).text
    calls = listed((await ann.get(f"/requests/{requests[-1].id}/alike")).text)
    assert [one["id"] for one in calls] == [one.id for one in requests[:20]]
    more = [*calls, {"id": requests[20].id, **await shown(ann, requests[20].id)}]
    assert (await prepared(ann, more)).status_code == 400


async def test_calls_of_ones_own_runs_are_in_no_batch_that_one_is_offered(store: SessionStore) -> None:
    desk = Desk(store)
    desk.policy["others_decide"] = True
    ann, bob = await someone(desk.app, store), await someone(desk.app, store, "bob")
    desk.starter = "eve"
    others = await three(desk)
    desk.starter = "Ann"
    own = await desk.pause(mail("c", "zoe"), session="own")
    for who, count in ((ann, 3), (bob, 4)):
        link = f'href="/requests/{others[0].id}/alike">Decide {count} similar calls'
        assert link in (await who.get("/requests")).text
        calls = listed((await who.get(f"/requests/{others[1].id}/alike")).text)
        assert len(calls) == count
        assert (own.id in [one["id"] for one in calls]) is (count == 4)
        assert (await prepared(who, calls)).status_code == 200
