"""Delegations on pages: signed by who delegates, used by the deputy alone, gone the moment that they are revoked."""

from __future__ import annotations

import html
import json
from typing import Any

import httpx
import pytest

from grampus_uq.errors import StoreError
from grampus_uq.gate.delegations import Delegation
from grampus_uq.gate.requests import ApprovalDecision
from grampus_uq.gate.signatures import Ed25519Signer
from grampus_uq.inbox.people import People, Role, keys_of
from grampus_uq.runtime.evidence import evidence, verified
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_delegations import delegate, stored_delegations
from grampus_uq.runtime.stored_drills import DRILL
from grampus_uq.runtime.stores.memory import MemoryStore
from tests.gate.test_webauthn import url64
from tests.inbox.browser import Browser, someone
from tests.inbox.test_decisions import HOSTILE, Desk, decide, prepared, shown, signed
from tests.inbox.test_drills_unseen import World

pytestmark = pytest.mark.anyio
WISH = {"deputy": "dan", "tools": ["send_email", ""], "hours": 2}


async def wished(browser: Browser, **wish: Any) -> httpx.Response:
    return await browser.send("/delegations/prepare", WISH | wish)


async def sealed(browser: Browser, said: dict[str, Any], **forged: Any) -> httpx.Response:
    body = {name: said[name] for name in ("delegation", "token")} | {"id": url64(browser.id)}
    body["signature"] = browser.assertion(forged.pop("text", said["text"]), **forged.pop("assertion", {}))
    return await browser.send("/delegations", body | forged)


async def delegated(browser: Browser, **wish: Any) -> Delegation:
    said = (await wished(browser, **wish)).json()
    done = await sealed(browser, said)
    assert done.status_code == 200, done.text
    return Delegation.model_validate_json(said["delegation"])


async def revoke(browser: Browser, given: Delegation) -> int:
    sent = await browser.client.post(f"/delegations/{given.id}/revoke", data={"csrf": browser.csrf})
    return sent.status_code


class Office(Desk):
    """A desk with ann and bob, who decide, and dan, their deputy."""

    async def begin(self) -> Any:
        self.ann = await someone(self.app, self.store)
        self.bob = await someone(self.app, self.store, "bob")
        self.dan = await someone(self.app, self.store, "dan", Role.DEPUTY)
        return await self.pause()


async def test_a_deputy_decides_in_the_place_of_who_signed_it_and_the_runner_believes_keys_alone(
    store: SessionStore,
) -> None:
    office = Office(store)
    request = await office.begin()
    before = await office.dan.get(f"/requests/{request.id}")
    assert "You have no active delegation" in before.text
    assert "data-decide" not in before.text
    assert (await prepared(office.dan, request.id, card=await shown(office.dan, request.id))).status_code == 409
    said = (await wished(office.ann)).json()
    assert said["told"] | {"until": ""} == {
        "decides": "dan in the place of ann", "on": "calls of send_email", "until": "",
    }  # fmt: skip
    await delegated(office.ann)
    card = await office.dan.get(f"/requests/{request.id}")
    assert "You decide in the place of <b>ann</b>" in card.text
    assert "data-decide" in card.text
    assert (await decide(office.dan, request.id)).json()["told"] == "Approved. The agent's program takes it up."
    assert "Approved by <b>dan for ann</b>" in (await office.bob.get(f"/requests/{request.id}")).text
    await office.resume()
    assert office.world.sent == [("bob", "hi")]
    people = await People(store).all()
    keys = type(office.approvals.signer)(keys_of(people) | keys_of(people, Role.DEPUTY))
    lines = [line async for line in evidence(store)]
    assert verified(lines, keys, deputies=["dan"]).faults == []
    assert verified(lines, keys).by_decision == 0


async def test_what_is_revoked_while_the_page_is_open_decides_nothing(store: SessionStore) -> None:
    office = Office(store)
    request = await office.begin()
    for who in (office.bob, office.dan):
        given = await delegated(office.ann)
        card = await shown(office.dan, request.id)
        said = (await prepared(office.dan, request.id, card=card)).json()
        assert await revoke(who, given) == 303
        late = await signed(office.dan, request.id, said, card["seen"])
        assert (late.status_code, "revoked" in late.json()["error"]) == (409, True)
    assert "was revoked" in (await office.ann.get("/delegations")).text
    assert (await Ledger(store).decisions([request.id]))[request.id] == []
    await office.resume()
    assert office.world.sent == []


async def test_a_revoked_decision_that_waits_stands_in_nobodys_way(store: SessionStore) -> None:
    office = Office(store)
    request = await office.begin()
    given = await delegated(office.ann)
    await decide(office.dan, request.id)
    assert (await decide(office.bob, request.id, "reject")).status_code == 409, "dan was first"
    await revoke(office.ann, given)
    assert (await decide(office.bob, request.id, "reject")).status_code == 200
    await office.resume()
    assert office.world.sent == []


@pytest.mark.parametrize("change", ["none", "wider", "bob's", "its own", "another's"])
async def test_a_deputy_cannot_put_another_delegation_under_a_decision(store: SessionStore, change: str) -> None:
    office = Office(store)
    request = await office.begin()
    given = await delegated(office.ann)
    card = await shown(office.dan, request.id)
    said = (await prepared(office.dan, request.id, card=card)).json()
    now_s = await store.now()
    times: dict[str, Any] = {"from_s": now_s - 1.0, "until_s": now_s + 60.0}
    forged = {
        "none": None,
        "wider": given.model_copy(update={"tools": None}),
        "bob's": given.model_copy(update={"principal": "bob"}),
        "its own": Ed25519Signer.generate().sign(Delegation(principal="ann", deputy="dan", **times)),
        "another's": Ed25519Signer.generate().sign(Delegation(principal="bob", deputy="eve", **times)),
    }[change]
    if change in ("its own", "another's"):
        assert forged is not None
        await delegate(store, forged)  # whoever writes the store can: the runner looks at signatures
    mine = ApprovalDecision.model_validate_json(said["decision"]).model_copy(update={"delegation": forged})
    text = mine.signed_text().decode()
    sent = await signed(office.dan, request.id, {"decision": mine.model_dump_json(), "text": text}, card["seen"])
    assert (sent.status_code == 200) is (change == "its own"), sent.text
    await office.resume()
    assert office.world.sent == []


CHANGES: dict[str, tuple[str, Role | None, bool]] = {
    "ann removed": ("ann", None, False),
    "dan removed": ("dan", None, False),
    "ann lowered": ("ann", Role.LABEL, False),
    "ann a deputy": ("ann", Role.DEPUTY, False),
    "dan lowered": ("dan", Role.LOOK, False),
    "dan again": ("dan", Role.DEPUTY, True),
    "ann again": ("ann", Role.DECIDE, True),
    "bob removed": ("bob", None, True),
}


@pytest.mark.parametrize(("name", "role", "stays"), CHANGES.values(), ids=CHANGES.keys())
async def test_who_is_removed_or_may_less_has_no_delegation_any_more(
    store: SessionStore, name: str, role: Role | None, stays: bool
) -> None:
    """What the deputy decided and no runner has taken up lapses with it; everybody else's stand."""
    office = Office(store)
    request = await office.begin()
    given, other = await delegated(office.ann), await delegated(office.bob)
    await decide(office.dan, request.id)
    people = People(store)
    if role is None:
        assert await people.remove(name)
    else:
        assert (await Browser(office.app).register(await people.invite(name, role))).status_code == 200
    stands = {one.delegation.id: one.why_not for one in await stored_delegations(store)}
    assert (stands[given.id] is None) is stays
    assert (stands[other.id] is None) is (not name.startswith(("bob", "dan")) or role is Role.DEPUTY)
    used = (await Ledger(store).decisions([request.id]))[request.id][0][0].delegation
    assert used is not None
    await office.resume()
    assert len(office.world.sent) == (stands[used.id] is None)


FORGED: dict[str, dict[str, Any]] = {
    "another token": {"token": "0" * 64},
    "another text": {"text": "grampus_uq delegation 2\n{}"},
    "another origin": {"assertion": {"origin": "https://evil.example.org"}},
    "no verification": {"assertion": {"flags": 1}},
    "another passkey": {"id": url64(b"x" * 32)},
    "no delegation": {"delegation": "{}"},
}


@pytest.mark.parametrize("forged", FORGED)
async def test_what_this_session_did_not_see_and_sign_is_not_stored(store: SessionStore, forged: str) -> None:
    office = Office(store)
    await office.begin()
    said = (await wished(office.ann)).json()
    assert (await sealed(office.ann, said, **FORGED[forged])).status_code in (400, 409)
    longer = json.loads(said["delegation"]) | {"until_s": json.loads(said["delegation"])["until_s"] + 60.0}
    assert (await sealed(office.ann, said, delegation=json.dumps(longer))).status_code == 409
    assert (await sealed(office.bob, said)).status_code == 409
    assert await stored_delegations(store) == []
    assert (await sealed(office.ann, said)).status_code == 200
    assert (await sealed(office.ann, said)).status_code == 409, "once"


async def test_who_does_not_decide_delegates_nothing_and_nobody_to_who_is_no_deputy(store: SessionStore) -> None:
    office = Office(store)
    request = await office.begin()
    look = await someone(office.app, store, "lou", Role.LOOK)
    given = await delegated(office.ann)
    for who in (office.dan, look):
        assert (await wished(who)).status_code == 403
    for deputy in ("ann", "bob", "lou", "nobody", ""):
        assert (await wished(office.ann, deputy=deputy)).status_code == 409, deputy
    for wrong in ({"hours": 0}, {"hours": 1e9}, {"tools": [7]}, {"deputy": None}, {"more": 1}):
        assert (await wished(office.ann, **wrong)).status_code == 400, wrong
    assert await revoke(look, given) == 403
    assert (await prepared(look, request.id, card=await shown(look, request.id))).status_code == 403
    assert (await office.dan.send("/permits/prepare", {"tool": "send_email"})).status_code == 403
    foreign = await office.ann.client.post(f"/delegations/{given.id}/revoke", data={"csrf": office.bob.csrf})
    assert foreign.status_code == 403
    assert [one.why_not for one in await stored_delegations(store)] == [None]


async def test_what_lapsed_is_not_counted_among_the_approvals(store: SessionStore) -> None:
    """Ann's deputy approved, then she revoked: Bob is the first of two, and is told so."""
    office = Office(store, required=2)
    office.policy["required"] = 2
    request = await office.begin()
    given = await delegated(office.ann)
    assert (await decide(office.dan, request.id)).status_code == 200
    page = (await office.bob.get(f"/requests/{request.id}")).text
    assert "1 of 2 approvals" in page
    assert await revoke(office.ann, given) == 303
    for path in ("/requests", f"/requests/{request.id}"):
        assert "dan for ann" not in (await office.bob.get(path)).text
    assert (await decide(office.bob, request.id)).json()["told"] == "Approved. 1 more needed."
    await office.resume()
    assert office.world.sent == []


class Dying(MemoryStore):
    """Writes so many times more, where that is said."""

    left = 1_000

    async def write(self, *changes: Any) -> float:
        if self.left == 0:
            raise StoreError("gone")
        self.left -= 1
        return await super().write(*changes)


@pytest.mark.parametrize("writes", range(5))
async def test_a_registration_that_dies_midway_leaves_no_delegation_of_who_decides_no_more(writes: int) -> None:
    store = Dying()
    office = Office(store)
    await office.begin()
    await delegated(office.ann)
    token = await People(store).invite("ann", Role.LOOK)
    store.left = writes
    await Browser(office.app).register(token)
    ann = await People(store).find("ann")
    assert ann is not None
    (given,) = await stored_delegations(store)
    assert ann.role is Role.DECIDE or given.why_not == "was revoked"


async def test_where_two_must_agree_a_deputy_is_not_a_second_person(store: SessionStore) -> None:
    office = Office(store, required=2)
    office.policy["required"] = 2
    request = await office.begin()
    await delegated(office.ann)
    assert "1 more needed" in (await decide(office.ann, request.id)).json()["told"]
    again = await decide(office.dan, request.id)
    assert (again.status_code, "Somebody else" in again.json()["error"]) == (409, True)
    await delegated(office.bob)
    assert (await decide(office.dan, request.id)).json()["told"] == "Approved. The agent's program takes it up."
    await office.resume()
    assert office.world.sent == [("bob", "hi")]


async def test_who_started_the_run_lets_no_deputy_decide_on_it(store: SessionStore) -> None:
    office = Office(store)
    office.policy["others_decide"] = True
    office.starter = "ann"
    request = await office.begin()
    await delegated(office.ann)
    assert "You have no active delegation" in (await office.dan.get(f"/requests/{request.id}")).text
    await delegated(office.bob)
    assert (await decide(office.dan, request.id)).status_code == 200
    await office.resume()
    assert len(office.world.sent) == 1


async def test_a_drill_is_refused_and_answered_by_a_deputy_as_a_request_is(store: SessionStore) -> None:
    world = World(store)
    await world.begin()
    dan = await someone(world.desk.app, store, "dan", Role.DEPUTY)
    await world.drill()
    for request_id in (world.waits.id, world.newest):
        assert "You have no active delegation" in (await dan.get(f"/requests/{request_id}")).text
        refused = await prepared(dan, request_id)
        assert (refused.status_code, "You have no active delegation" in refused.json()["error"]) == (409, True)
    await delegated(world.ann)
    for request_id in (world.newest, world.waits.id):
        assert "You decide in the place of <b>ann</b>" in (await dan.get(f"/requests/{request_id}")).text
    assert "This was a drill" in (await decide(dan, world.newest, "reject")).json()["told"]
    assert len(await store.scan(DRILL, label="answered")) == 1


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
async def test_no_name_or_tool_writes_into_the_page(store: SessionStore, text: str) -> None:
    office = Office(store)
    await office.begin()
    now_s, text = await store.now(), text.replace("\ud800", "")
    named: dict[str, Any] = {"principal": text[:100], "deputy": "dan", "tools": (text[:100],)}
    await delegate(store, Delegation(**named, from_s=now_s, until_s=now_s + 60.0))
    page = (await office.ann.get("/delegations")).text
    assert "dan in the place of" in html.unescape(page)
    assert "<script>alert" not in page
    assert "\u202e" not in page
