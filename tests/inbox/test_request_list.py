"""The list: pages of the oldest first, drills among them, sentences, and news of it."""

from __future__ import annotations

import html
import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grampus_uq.errors import DataError
from grampus_uq.inbox.call_shapes import shape_of
from grampus_uq.inbox.inbox_app import News, _told
from grampus_uq.inbox.request_pages import listed
from grampus_uq.inbox.visits import Inbox
from grampus_uq.records.call_sentences import read_sentences, sentence_of
from grampus_uq.records.visible_text import visible
from grampus_uq.records.vocabulary import UncertaintyLevel
from grampus_uq.runtime.asked_rows import row_key
from grampus_uq.runtime.cards import Card
from grampus_uq.runtime.drills import Drill, sealed_card
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_drills import DRILL, StoredDrills
from grampus_uq.runtime.worker_jobs import stamp
from tests.inbox.browser import someone
from tests.inbox.test_decisions import Desk, decide
from tests.runtime.agents import mail
from tests.runtime.drill_worlds import UNSEEN, plan
from tests.runtime.test_drills import drills
from tests.signals.test_call_tokens import one_a_character

pytestmark = pytest.mark.anyio


def inbox_of(desk: Desk) -> Inbox:
    app: Any = desk.app
    found: Inbox = app._app.state.inbox
    return found


async def test_pages_lead_from_the_oldest_to_the_newest(store: SessionStore) -> None:
    desk = Desk(store)
    ann = await someone(desk.app, store)
    asked = [(await desk.pause(session=f"s{99 - n}")).id for n in range(30)]
    first = (await ann.get("/requests")).text
    ids = re.findall(r'href="/requests/([0-9a-f]{32})"', first)
    assert ids == asked[:25]
    following = html.unescape(re.findall(r'href="(/requests\?after=[^"]+)"', first)[0])
    second = (await ann.get(following)).text
    assert re.findall(r'href="/requests/([0-9a-f]{32})"', second) == asked[25:]
    assert "?after=" not in second
    for odd in ("x", "'", "9" * 900):
        assert (await ann.get(f"/requests?after={odd}")).status_code == 200


async def test_a_row_says_why_its_call_is_held_and_is_marked_where_that_is_doubt(store: SessionStore) -> None:
    """The run may be sure and the call not: who has little time opens the rows that stand out."""
    desk = Desk(store)
    ann = await someone(desk.app, store)
    call = mail("c", "bob@example.org", "hello there")
    written = json.dumps({"name": call.name, "arguments": call.arguments})
    request = await desk.pause(call, logprobs=one_a_character(written, "bob@", 0.9))
    assert (request.level, request.rule) == (UncertaintyLevel.LOW, "call_evidence")
    page = html.unescape((await ann.get("/requests")).text)
    (said,) = re.findall(r'<span class="tag">(.*?)</span>', page)
    assert said == f"{request.reason} · uncertainty of the run: low"
    assert "least sure of `to` (0.66; in no message or tool result)" in said


async def test_news_tell_the_count_and_change_with_the_list(store: SessionStore, monkeypatch: Any) -> None:
    monkeypatch.setattr("grampus_uq.inbox.inbox_app._EACH_S", 0.0)
    desk, news = Desk(store), News()
    ann = await someone(desk.app, store)
    told, listed = list[str](), list[str]()

    async def look() -> None:
        told.append(await news.now(inbox_of(desk)))
        listed.append((await ann.get("/requests")).text.partition('data-mark="')[2].partition('"')[0])

    await look()
    request = await desk.pause()
    await look()
    await look()
    await decide(ann, request.id)
    await look()
    await desk.resume()
    await look()
    marks = [json.loads(one.removeprefix("data: ")) for one in told]
    assert [one["count"] for one in marks] == ["0", "1", "1", "1", "0"]
    assert marks[1] == marks[2]
    assert len({one["mark"] for one in marks}) == 3, "it changed when it was asked, and when it was decided"
    assert listed == [one["mark"] for one in marks], "a list is known to be the one that the news name"


async def test_news_end_for_who_was_removed_though_the_list_changes_all_the_time(
    store: SessionStore, monkeypatch: Any
) -> None:
    monkeypatch.setattr("grampus_uq.inbox.inbox_app._EACH_S", 0.0)
    monkeypatch.setattr("grampus_uq.inbox.inbox_app._ALIVE_S", 0.0)
    gone = False

    class Changing(News):
        async def now(self, inbox: Inbox) -> str:
            self.asked = getattr(self, "asked", 0) + 1
            return f"data: {self.asked}\n\n"

    async def known(request: Any) -> object:
        return None if gone else request

    monkeypatch.setattr("grampus_uq.inbox.inbox_app.signed_in_as", known)
    visit: Any = SimpleNamespace(inbox=None, request=object(), person=SimpleNamespace(name="ann"))
    told = _told(visit, Changing())
    assert [await anext(told) for _ in range(3)] == [": alive\n\n", "data: 1\n\n", ": alive\n\n"]
    gone = True
    assert [one async for one in told] == ["data: 2\n\n"], "what was on its way, and nothing after"


def test_only_so_many_may_listen() -> None:
    news, open_ = News(), []
    for _ in range(4):
        assert not news.full("ann")
        open_.append(news.listening("ann"))
        open_[-1].__enter__()
    assert news.full("ann")
    assert not news.full("bob")
    open_.pop().__exit__(None, None, None)
    assert not news.full("ann")


async def test_a_sentence_of_the_tool_says_what_happens(store: SessionStore) -> None:
    desk = Desk(store, sentences={"send_email": "Mails {to}, who reads {body}{cc}."})
    ann = await someone(desk.app, store)
    await desk.pause()
    assert 'Mails "bob", who reads "hi"(nothing).' in html.unescape((await ann.get("/requests")).text)


def test_a_sentence_shows_values_as_data_and_cuts_none_in_silence(tmp_path: Path) -> None:
    hostile = {"to": "{body} and {0.__class__}", "body": "x" * 100}
    assert sentence_of("m", hostile, {"m": "To {to}, {body}."}).startswith('To "{body} and {0.__class__}", "xxx')
    assert sentence_of("m", hostile, {"m": "{body}"}).endswith("…(+42 characters)")
    hidden = dict.fromkeys("abcde", "\u202e" * 300)
    assert len(visible(sentence_of("\u202e" * 80, hidden))) < 400, "escapes count"
    assert sentence_of("m", dict.fromkeys("abcde", 1)) == "m: a 1, b 1, c 1 and 2 more."
    assert sentence_of("m", {}) == "m without arguments."
    file = tmp_path / "s.toml"
    file.write_text('pay = "Pays {amount}."\n')
    assert read_sentences(file) == {"pay": "Pays {amount}."}
    for odd in ("pay = 1", "pay", "[pay]\na = 'b'", "\x00"):
        file.write_text(odd)
        with pytest.raises(DataError):
            read_sentences(file)
    with pytest.raises(DataError):
        read_sentences(tmp_path / "nowhere")


async def test_a_drill_is_decided_like_a_request_told_at_once_and_run_by_nothing(
    store: SessionStore,
) -> None:
    desk = Desk(store)
    ann = await someone(desk.app, store)
    await StoredDrills(store).switch_on(plan(share=UNSEEN))
    made, now_s = drills(1, 1)[0][0], await store.now()
    card = sealed_card(made.card.model_copy(update={"created_s": now_s - 5.0, "expires_s": now_s + 900.0}))
    kinds = {"to": "string", "note": "string", "amount": "number"}
    schema = {"properties": {name: {"type": kind} for name, kind in kinds.items()}, "required": [*kinds]}
    drill = made.model_copy(update={"card": card, "parameters": schema})
    await store.put(DRILL, card.id, drill.model_dump_json(), expected=0, label="open")
    request = await desk.pause()
    assert json.loads((await News().now(inbox_of(desk))).removeprefix("data: "))["count"] == "2"
    rows, _ = await listed(inbox_of(desk))
    assert [row.card.id for row in rows] == [card.id, request.id]
    page = (await ann.get(f"/requests/{card.id}")).text
    assert "drill" not in page.lower()
    parts = re.compile(r"<(\w+)|class=\"([^\"]*)\"|data-(\w+)")
    real = (await ann.get(f"/requests/{request.id}")).text
    assert {*parts.findall(page)} - {*parts.findall(real)} <= {("", "", "expires"), ("b", "", ""), ("code", "", "")}
    before = {(one.kind, one.key) for kind in ("job", "timer", "decision") for one in await store.scan(kind)}
    told = (await decide(ann, card.id)).json()["told"]
    assert "This was a drill, and nothing runs" in told
    assert before == {(one.kind, one.key) for kind in ("job", "timer", "decision") for one in await store.scan(kind)}
    (answered,) = await StoredDrills(store).answered()
    assert answered.caught is False
    assert answered.answer is not None
    assert answered.answer.principal == "ann"
    assert answered.waiting == 2
    assert (await ann.get(f"/requests/{card.id}")).status_code == 404


async def _drill(store: SessionStore, rng_seed: int, created_s: float, **changed: Any) -> str:
    """An open drill that appeared at this time."""
    made = drills(rng_seed, 1)[0][0]
    card = sealed_card(made.card.model_copy(update={"created_s": created_s, "expires_s": created_s + 9e5}))
    body = made.model_copy(update={"card": card, **changed}).model_dump_json()
    await store.put(DRILL, card.id, body, expected=0, label="open")
    return card.id


async def test_each_page_is_what_is_behind_its_cursor_in_one_order_of_requests_and_drills(
    store: SessionStore, monkeypatch: Any
) -> None:
    """So no address tells drills from requests, and none is on two pages, or on no page."""
    monkeypatch.setattr("grampus_uq.inbox.request_pages._PAGE", 3)
    desk = Desk(store)
    await someone(desk.app, store)
    await StoredDrills(store).switch_on(plan(share=UNSEEN))
    order: list[tuple[str, float]] = []
    for number, is_drill in enumerate((1, 0, 0, 0, 1, 1, 0, 1, 1)):
        if is_drill:
            made_s = await store.now()
            order.append((await _drill(store, number, made_s), made_s))
        else:
            request = await desk.pause(session=f"s{number}")
            order.append((request.id, request.created_s))
    inbox, pages, after = inbox_of(desk), [], None
    while True:
        rows, after = await listed(inbox, after)
        pages.append([row.card.id for row in rows])
        if after is None:
            break
    assert pages == [[one for one, _ in order[at : at + 3]] for at in (0, 3, 6)], "nine make three full pages"
    keys = [row_key(*one) for one in order]
    for odd in ("", "~", "z", "x", "9" * 19, "0", *keys, *(stamp(at_s) for _, at_s in order)):
        rows, _ = await listed(inbox, odd)
        behind = [one for (one, _), key in zip(order, keys, strict=True) if key > odd]
        assert [row.card.id for row in rows] == behind[:3], odd


async def test_a_wrong_edit_is_answered_the_same_on_a_drill_and_in_a_fresh_process(store: SessionStore) -> None:
    """The schema of a drill's tool is kept with the decision that it is from, not in a server's memory."""
    desk = Desk(store)
    ann = await someone(desk.app, store)
    for session, to in (("s", "bob"), ("t", "zoe")):
        request = await desk.pause(mail("c", to), session=session)
        assert (await decide(ann, request.id)).status_code == 200
        await desk.resume(session)
    rule = {"tool": "send_email", "change": "recipient", "argument": "to"}
    await StoredDrills(store).switch_on(plan(share=0.5, rules=[rule]))
    waits = await desk.pause(session="other")
    await listed(inbox_of(desk))
    (document,) = await store.scan(DRILL, label="open")
    made = Drill.model_validate_json(document.body)
    card = sealed_card(made.card.model_copy(update={"created_s": await store.now() - 1.0}))
    body = made.model_copy(update={"card": card}).model_dump_json()
    await store.put(DRILL, card.id, body, expected=document.version, label="open")
    for wrong in ('{"zz": [1]}', '{"to": 7, "body": "hi"}', '{"to": "eve"}'):
        answers = []
        for one in (card.id, waits.id):  # the drill first: no card of a request was opened in this process
            fresh = await someone(Desk(store).app, store, f"p{len(wrong)}{one[:6]}")
            refused = await decide(fresh, one, "edit", arguments=wrong)
            answers.append((refused.status_code, refused.json()))
        assert answers[0] == answers[1]
        assert answers[0][0] == 409


async def test_the_list_looks_at_every_character_beside_the_loop(store: SessionStore, monkeypatch: Any) -> None:
    """What a batch takes is looked for in another thread than the loop's, for each card that may be decided."""
    desk, threads = Desk(store), list[int]()
    ann = await someone(desk.app, store)
    for number in range(3):
        await desk.pause(mail("c", "bob", "\u043e\u0436, "), session=str(number))

    def looked_at(card: Card) -> str | None:
        threads.append(threading.get_ident())
        return shape_of(card)

    monkeypatch.setattr("grampus_uq.inbox.call_shapes.shape_of", looked_at)
    assert (await ann.get("/requests")).status_code == 200
    assert len(threads) == 3
    assert threading.get_ident() not in threads
