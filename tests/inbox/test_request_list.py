"""The list: pages of the oldest first, drills among them, sentences, and news of it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from grampus_uq.errors import DataError
from grampus_uq.inbox.news import News
from grampus_uq.inbox.request_pages import listed
from grampus_uq.inbox.visits import Inbox
from grampus_uq.records.call_sentences import read_sentences, sentence_of
from grampus_uq.runtime.drills import sealed_card
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stored_drills import DRILL, StoredDrills
from tests.inbox.browser import someone
from tests.inbox.test_decisions import Desk, decide
from tests.runtime.drill_worlds import plan
from tests.runtime.test_drills import drills

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
    for odd in ("x", "%00", "'", "9" * 900):
        assert (await ann.get(f"/requests?after={odd}")).status_code == 200


async def test_news_tell_the_count_and_change_with_the_list(store: SessionStore, monkeypatch: Any) -> None:
    monkeypatch.setattr("grampus_uq.inbox.news._EACH_S", 0.0)
    desk, news = Desk(store), News()
    ann = await someone(desk.app, store)
    told = [await news.now(inbox_of(desk))]
    request = await desk.pause()
    told += [await news.now(inbox_of(desk)), await news.now(inbox_of(desk))]
    await decide(ann, request.id)
    told.append(await news.now(inbox_of(desk)))
    await desk.resume()
    told.append(await news.now(inbox_of(desk)))
    marks = [json.loads(one.removeprefix("data: ")) for one in told]
    assert [one["count"] for one in marks] == ["0", "1", "1", "1", "0"]
    assert marks[1] == marks[2]
    assert len({one["mark"] for one in marks}) == 3, "it changed when it was asked, and when it was decided"


def test_only_so_many_may_listen() -> None:
    news, open_ = News(), []
    for _ in range(6):
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
    assert sentence_of("m", dict.fromkeys("abcde", 1)) == "Runs m with a 1, b 1, c 1 and 2 more."
    assert sentence_of("m", {}) == "Runs m."
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
    await StoredDrills(store).switch_on(plan(share=0.001))
    made, now_s = drills(1, 1)[0][0], await store.now()
    card = sealed_card(made.card.model_copy(update={"created_s": now_s - 5.0, "expires_s": now_s + 900.0}))
    await store.put(DRILL, card.id, made.model_copy(update={"card": card}).model_dump_json(), expected=0, label="open")
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
