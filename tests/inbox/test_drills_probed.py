"""Odd addresses and bodies that a program makes up are answered alike of a drill and of a request."""

from __future__ import annotations

import html
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from grampus_uq import open_store
from grampus_uq.gate.delegations import Delegation
from grampus_uq.inbox.people import Role
from grampus_uq.runtime.stored_delegations import delegate
from tests.gate.test_webauthn import url64
from tests.inbox.browser import Browser, someone
from tests.inbox.test_drills_unseen import World, plain
from tests.sampling import sampled

pytestmark = pytest.mark.anyio
FORMS = (("request_id", "decided_s"), ("drill_id", "answered_s"))


def bodies(world: World, digest: str, now_s: float, who: str, place: Delegation | None) -> Iterator[dict[str, Any]]:
    """Decisions on a request, and answers to a drill, that nobody prepared."""
    edits: list[dict[str, Any]] = [{"kind": kind} for kind in ("approve", "reject", "respond", "edit", "odd")]
    edits += [{"kind": "edit", "arguments": one} for one in ({"to": "eve", "body": "hi"}, {"to": 7}, {})]
    for (name, time), edit in itertools.product(FORMS, edits):
        given = {name: world.newest, "digest": digest, "principal": who, time: now_s, "message": "x", **edit}
        yield from (given, {**given, "digest": "0" * 64}, {**given, "principal": "eve"}, {**given, time: 1.0})
        yield from (
            {**given, name: "0" * 32},
            {**given, "never": True},
            {**given, "odd": 1},
            {**given, "message": "\0"},
        )


async def answers(world: World, browser: Browser, who: str, place: Delegation | None) -> Iterator[Any]:
    """What is told of the newest, in the order in which it is asked."""
    whole, told = world.newest, list[tuple[Any, ...]]()
    names = [whole[:length] for length in (1, 7, 8, 20, 31)] + [whole.upper(), f"{whole}0", f"{whole}%20", whole]

    def keep(asked: str, answer: httpx.Response, name: str = whole) -> None:
        text = html.unescape(answer.text).replace(f"'{name.replace('%20', ' ')}'", "ID").replace(whole, "ID")
        told.append((asked, answer.status_code, plain(text)))

    page = (await browser.get(f"/requests/{whole}")).text
    known = {name: html.unescape(re.findall(rf'data-{name}="([^"]*)"', page)[0]) for name in ("digest", "seen")}
    for name, tail in itertools.product(names, ("", "/", "/alike", "/prepare", "/decide", "/fate")):
        keep(f"get {len(name)}{tail}", await browser.get(f"/requests/{name}{tail}"), name)
    for name in names[:-1]:
        keep(
            f"prepare {len(name)}", await browser.send(f"/requests/{name}/prepare", {"kind": "approve", **known}), name
        )
        calls = [[name, known["digest"], known["seen"]], [whole, known["digest"], known["seen"]]]
        keep("batch", await browser.send("/requests/alike/prepare", {"kind": "approve", "calls": calls}), name)
    sent = {"seen": known["seen"], "id": url64(browser.id), "signature": browser.assertion("something else")}
    for number, body in enumerate(bodies(world, known["digest"], await world.store.now(), who, place)):
        text = {"decision": json.dumps(body)}
        keep(f"decide {number}", await browser.send(f"/requests/{whole}/decide", sent | text))
        batched = [[whole, json.dumps(body), known["seen"]], [world.waits.id, json.dumps(body), known["seen"]]]
        keep(f"batch {number}", await browser.send("/requests/alike/decide", {**sent, "calls": batched}))
    return iter(told)


@sampled(
    "role,stands",
    [(Role.DECIDE, False)],
    full=[(Role.DECIDE, False), (Role.DEPUTY, False), (Role.DEPUTY, True), (Role.LABEL, False)],
)
async def test_no_address_and_no_unsigned_body_tells_a_drill_from_a_request(
    role: Role, stands: bool, tmp_path: Path
) -> None:
    told = list[list[Any]]()
    for kind in ("request", "drill"):
        world = World(open_store(f"sqlite:///{tmp_path}/{kind}.db"))
        await world.begin()
        await getattr(world, kind)()
        browser, who, place, now_s = world.ann, "ann", None, await world.store.now()
        if role is not Role.DECIDE:
            browser, who = await someone(world.desk.app, world.store, "dan", role), "dan"
        if stands:
            place = Delegation(principal="ann", deputy="dan", from_s=now_s, until_s=now_s + 3_600.0)
            await delegate(world.store, place)
        told.append(list(await answers(world, browser, who, place)))
        await world.store.aclose()
    assert len(told[0]) > 150
    assert [pair for pair in zip(*told, strict=True) if pair[0] != pair[1]] == []
    if role is Role.DECIDE or stands:
        assert {status for _, status, _ in told[0]} == {200, 400, 404, 405, 409}
        assert any("signature is not for this" in text for _, _, text in told[0])
