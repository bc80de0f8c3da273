"""Permits on pages: signed by the passkey, believed by a runner that knows its key, and closed by whoever decides."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.gate.permits import Entry, Permit, PermitState, applied
from grampus_uq.gate.requests import ApprovalPolicy
from grampus_uq.gate.signatures import PublicKeys
from grampus_uq.inbox.people import People, Role, keys_of
from grampus_uq.inbox.permit_pages import evidence_of
from grampus_uq.records.visible_text import visible
from grampus_uq.runtime.store import Document, Put, SessionStore
from grampus_uq.runtime.stored_permits import Standing, close_permit, grant_permit, stored_permits
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.stats.earned_threshold import share_of_needed
from tests.gate.test_webauthn import url64
from tests.inbox.browser import Browser, made, someone
from tests.inbox.test_decisions import HOSTILE, Desk
from tests.runtime.test_stored_permits import ANN, Office, permit

pytestmark = pytest.mark.anyio
WISH = {"tool": "send_email", "conditions": ['to=in:["bob"]', ""], "at_most": 50.0, "assurance": 60.0, "days": 1}


async def prepared(browser: Browser, **wish: Any) -> httpx.Response:
    return await browser.send("/permits/prepare", wish or WISH)


async def signed(browser: Browser, said: dict[str, Any], **forged: Any) -> httpx.Response:
    body = {name: said[name] for name in ("permit", "narrows", "token")} | {"id": url64(browser.id)}
    body["signature"] = browser.assertion(forged.pop("text", said["text"]), **forged.pop("assertion", {}))
    return await browser.send("/permits", body | forged)


async def granted(browser: Browser, **wish: Any) -> str:
    done = await signed(browser, (await prepared(browser, **wish)).json())
    assert done.status_code == 200, done.text
    return str(done.json()["next"]).removeprefix("/permits/")


async def test_what_is_granted_on_the_page_lets_calls_ahead_once_answers_earned_it(store: SessionStore) -> None:
    app = made(store)
    ann = await someone(app, store)
    told = (await prepared(ann)).json()["told"]
    assert told["promise"] == (
        'at most 50 % of send_email calls where to is one of ["bob"] go out wrong, at 60 %, as judged by the reviewers'
    )
    permit_id = await granted(ann)
    (passkey,) = keys_of(await People(store).all())["ann"]
    office = Office(store, approvals=ApprovalPolicy(signer=PublicKeys({"ann": [ANN.public_key, passkey]})))
    for number in range(12):
        await office.run(f"s{number}", body=f"mail {number}")
    standing = await office.standing()
    assert standing.state.released > 0
    assert standing.permit.id == permit_id
    listed = html.unescape((await ann.get("/permits")).text)
    assert "lets calls ahead from confidence" in listed
    page = html.unescape((await ann.get(f"/permits/{permit_id}")).text)
    assert "goes ahead: at most 50 %" in page
    assert "from 0.99 on" in page or "to 0.99 on" in page
    assert "by ann, signed" in page
    sent = await ann.client.post(f"/permits/{permit_id}/revoke", data={"csrf": ann.csrf, "message": "a complaint"})
    assert sent.status_code == 303
    assert "closed: ann revoked it: a complaint" in (await ann.get(f"/permits/{permit_id}")).text
    before = len(office.world.sent)
    await office.run("after", says=None)
    assert len(office.world.sent) == before
    assert "Revoke it" not in (await ann.get(f"/permits/{permit_id}")).text


async def test_the_counts_of_a_permit_that_began_anew_say_so_also_once_it_is_closed(store: SessionStore) -> None:
    ann, office = await someone(made(store), store), Office(store)
    one, office.draw = await office.earn(), 0.0
    assert "since it began anew" not in (await ann.get("/permits")).text
    for number in range(40):
        if (await office.standing()).state.withdrawn:
            break
        await office.run(f"wrong-{number}", says="reject", body=f"wrong {number}")
    await close_permit(store, one.id, "enough")
    listed = (await ann.get("/permits")).text
    assert "closed: enough" in listed
    assert "0 calls went ahead, since it began anew" in listed


FORGED: dict[str, dict[str, Any]] = {
    "another token": {"token": "0" * 64},
    "the place of another": {"narrows": "0" * 32},
    "no signature": {"signature": ""},
    "a passkey of nobody": {"id": "AAAA"},
    "another text": {"text": "grampus_uq permit 2\n{}"},
    "another origin": {"assertion": {"origin": "https://evil.example"}},
    "without the user": {"assertion": {"flags": 0x01}},
    "another field": {"more": 1},
    "no permit": {"permit": "{}"},
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
async def test_a_forged_grant_grants_nothing(store: SessionStore, forged: dict[str, Any]) -> None:
    ann = await someone(made(store), store)
    done = await signed(ann, (await prepared(ann)).json(), **forged)
    assert done.status_code in (400, 409)
    assert await stored_permits(store) == []


async def test_no_permit_but_the_one_that_was_prepared_for_this_person_here_and_now_is_granted(
    store: SessionStore,
) -> None:
    app = made(store)
    ann, bob = await someone(app, store), await someone(app, store, "bob")
    said = (await prepared(ann)).json()
    wider = json.loads(said["permit"]) | {"limits": {}}
    text = Permit.model_validate(wider).signed_text().decode()
    assert (await signed(ann, said, permit=json.dumps(wider), text=text)).status_code == 409
    assert (await signed(bob, said)).status_code == 409, "of another session"
    ann.csrf = ""
    assert (await signed(ann, said)).status_code == 403
    assert await stored_permits(store) == []
    eve = await someone(app, store, "eve")
    said = (await prepared(eve)).json()
    assert (await signed(eve, said)).status_code == 200
    assert (await signed(eve, said)).json()["error"] == "This permit was granted already."
    assert len(await stored_permits(store)) == 1


async def test_a_text_that_is_old_is_not_granted(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = await someone(made(store), store)
    said = (await prepared(ann)).json()
    monkeypatch.setattr("grampus_uq.inbox.visits.CHALLENGE_S", 0.0)
    assert "took too long" in (await signed(ann, said)).json()["error"]
    assert await stored_permits(store) == []


@pytest.mark.parametrize("role", [Role.LOOK, Role.LABEL])
async def test_who_may_not_decide_sees_permits_and_changes_none(store: SessionStore, role: Role) -> None:
    one = permit()
    await grant_permit(store, one)
    eve = await someone(made(store), store, "eve", role)
    page = (await eve.get(f"/permits/{one.id}")).text
    assert "asks about everything" in page
    assert not re.search(r"Narrow|Revoke|Grant", page + (await eve.get("/permits")).text)
    assert (await prepared(eve)).status_code == 403
    assert (await eve.send("/permits", {})).status_code == 403
    sent = await eve.client.post(f"/permits/{one.id}/revoke", data={"csrf": eve.csrf})
    assert sent.status_code == 403
    (standing,) = await stored_permits(store)
    assert standing.state.closed is None


async def test_where_several_must_agree_nobody_grants_and_anybody_revokes(store: SessionStore) -> None:
    one = permit()
    await grant_permit(store, one)
    ann = await someone(Desk(store, required=2).app, store)
    assert "have no effect" in (await ann.get("/permits")).text
    assert (await prepared(ann)).status_code == 409
    assert (await prepared(ann, narrows=one.id, days=0.5)).status_code == 409
    assert (await ann.client.post(f"/permits/{one.id}/revoke", data={"csrf": ann.csrf})).status_code == 303
    (standing,) = await stored_permits(store)
    assert standing.state.closed == "ann revoked it"


async def test_a_narrower_permit_takes_the_place_of_one_that_stands(store: SessionStore) -> None:
    ann = await someone(made(store), store)
    old = await granted(ann)
    wider = await prepared(ann, narrows=old, conditions=['to=in:["bob", "eve"]'])
    assert wider.status_code == 409
    said = (await prepared(ann, narrows=old, conditions=["amount=max:5"], at_most=10.0)).json()
    assert said["told"]["replaces"] == f"{old[:8]} (asks about everything), which this one closes"
    assert (await signed(ann, said, narrows=None)).status_code == 409, "not as a permit of its own"
    new = str((await signed(ann, said)).json()["next"]).removeprefix("/permits/")
    found = {one.permit.id: one for one in await stored_permits(store)}
    assert found[old].state.closed == f"ann narrowed it to {new[:8]}"
    assert found[new].permit.limits == {"to": {"in": ["bob"]}, "amount": {"max": 5}}
    assert (found[new].permit.epsilon, found[new].permit.delta) == (0.1, 0.4)
    late = (await prepared(ann, narrows=new, at_most=5.0)).json()
    await close_permit(store, new, "somebody revoked it")
    assert "closed" in (await signed(ann, late)).json()["error"]
    assert "closed" in (await prepared(ann, narrows=new, at_most=5.0)).json()["error"]
    assert len(await stored_permits(store)) == 2


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"conditions": ["amount=most:5"]}, "conditions"),
        ({"conditions": ["amount=max:NaN"]}, "conditions"),
        ({"tool": ""}, "tool"),
        ({"at_most": 0.0}, "cannot be read"),
        ({"miss_rate": 90.0}, "miss_rate"),
        ({"days": -1}, "cannot be read"),
        ({"stream": "nonsense"}, "cannot be read"),
        ({"narrows": "f" * 32}, "No permit has"),
        ({"narrows": "short"}, "No permit has"),
    ],
)
async def test_what_cannot_be_a_permit_is_refused_in_words(
    store: SessionStore, changed: dict[str, Any], why: str
) -> None:
    ann = await someone(made(store), store)
    refused = await prepared(ann, **WISH | changed)
    assert refused.status_code in (400, 409)
    assert why in refused.json()["error"]


async def test_a_page_lists_a_hundred_permits_the_open_ones_first_and_each_stands_on_one_page() -> None:
    store, read = MemoryStore(), list[str]()

    class Counting(MemoryStore):
        async def get(self, kind: str, key: str) -> Document | None:
            read.append(kind)
            return await store.get(kind, key)

        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, name) if name == "get" else getattr(store, name)

    permits = [permit(tool=f"t{number}", created_s=1e6 + number) for number in range(230)]
    for number, one in enumerate(permits):
        await grant_permit(store, one)
        if number % 23:
            await close_permit(store, one.id, "enough")
    await store.write(Put(kind="permit", key="broken", body="[]", expected=0))
    ann = await someone(made(Counting()), store)
    path, pages, back = "/permits", list[list[str]](), list[list[str]]()
    while path:
        read.clear()
        text = html.unescape((await ann.get(path)).text)
        assert 0 < sum(kind.startswith("permit") for kind in read) <= 2 * 100
        pages.append(re.findall(r'<li><a href="/permits/(\w+)"', text))
        back.append(re.findall(r'rel="prev" href="([^"]+)"', text))
        path = next(iter(re.findall(r'rel="next" href="(/permits\?from=\d+)"', text)), "")
    assert [len(page) for page in pages] == [100, 100, 30]
    assert back == [[], ["/permits"], ["/permits?from=100"]]
    newest = [one.id for one in reversed(permits)]
    opened = [one.id for one in reversed(permits[::23])]
    assert [one for page in pages for one in page] == [*opened, *(one for one in newest if one not in opened)]
    for odd in ("?from=-1", "?from=", "?from=x", "?from=\u0661", f"?from={'9' * 40}"):
        assert re.findall(r'<li><a href="/permits/(\w+)"', (await ann.get(f"/permits{odd}")).text) == pages[0]
    beyond = (await ann.get("/permits?from=999999999")).text
    assert "There is no permit" not in beyond
    assert "Next" not in beyond
    assert 'rel="prev" href="/permits"' in beyond


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
async def test_nothing_in_a_permit_becomes_part_of_the_page(store: SessionStore, text: str) -> None:
    text = text.replace("\ud800", "")
    one = permit(tool=text[:200], agent_id=text, limits={text: {"equals": text}}, principal=text[:200])
    await grant_permit(store, one)
    await close_permit(store, one.id, text)
    ann = await someone(made(store), store)
    for path in ("/permits", f"/permits/{one.id}"):
        page = (await ann.get(path)).text
        assert "<img" not in page
        assert not re.search(r"<[^>]+\son\w+\s*=", page)
        assert not any(character in page for character in "\u202e\u200b\u0430\x00\x1b")


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
async def test_what_is_read_before_signing_hides_and_imitates_nothing(text: str) -> None:
    text, store = text.replace("\ud800", ""), MemoryStore()
    app = made(store)
    ann = await someone(app, store)
    await someone(app, store, "dan", Role.DEPUTY)
    condition = f"{text.replace('=', '')}=in:{json.dumps([text], ensure_ascii=False)}"
    wishes = {
        "/permits/prepare": {"tool": text, "agent": text, "conditions": [condition], "at_most": 2.0},
        "/delegations/prepare": {"deputy": "dan", "tools": [text], "hours": 1},
    }
    for path, wish in wishes.items():
        answered = await ann.send(path, wish)
        said = answered.json()
        assert answered.status_code == 200, said
        assert {name: visible(told) for name, told in said["told"].items()} == said["told"]


async def test_a_log_that_does_not_give_the_state_is_said(store: SessionStore) -> None:
    office = Office(store)
    one = await office.earn()
    await store.append(f"permit/{one.id}", '{"do":"look","now_s":1.0}', expected=None)
    ann = await someone(made(store), store)
    assert "does not give the stored state" in (await ann.get(f"/permits/{one.id}")).text
    await store.append(f"permit/{one.id}", '{"do":"nonsense"}', expected=None)
    assert "The log cannot be read" in (await ann.get(f"/permits/{one.id}")).text


@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.97, 1.0]), st.booleans(), st.floats(0.0, 0.99)), max_size=40))
def test_a_line_reaches_the_top_where_its_threshold_came_into_force(calls: list[tuple[float, bool, float]]) -> None:
    one = permit(thresholds=(0.9, 0.4), epsilon=0.3, delta=0.3)
    state, log = PermitState.fresh(one), list[dict[str, Any]]()
    reached = [False, False]
    for number, (score, wrong, draw) in enumerate(calls):
        ticket = state.issued
        for entry in (
            Entry(do="propose", now_s=float(number), score=score, same=str(number), judge="j", draw=draw),
            Entry(do="answer", now_s=float(number), ticket=ticket, wrong=wrong),
        ):
            state = applied(one, state, entry)
            log.append(entry.to_json())
            shares = share_of_needed(one.target, state.of(one))
            reached = [known or bool(share >= 1.0) for known, share in zip(reached, shares, strict=True)]
        assert not state.in_force(one) or reached[0]
    standing = Standing(permit=one, state=state, version=1, now_s=0.0)
    evidence = evidence_of(standing, log)
    assert evidence.problem is None
    if not calls:
        assert evidence.chart is None
        return
    assert evidence.chart is not None
    tops = {
        threshold: bool(series.points[:, 1].max() >= 1.0)
        for series in evidence.chart.series
        for threshold in one.thresholds
        if f"{threshold:g}" in series.label
    }
    assert [tops[threshold] for threshold in one.thresholds] == reached
    wrongs = [series for series in evidence.chart.series if series.label == "a wrong answer"]
    assert sum(len(series.points) for series in wrongs) <= sum(wrong for _, wrong, _ in calls)
