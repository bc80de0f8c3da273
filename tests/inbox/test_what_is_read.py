"""What a browser draws is what is stored: in its order, within the window, all of it looked at before Approve opens.

Chromium is the judge: it draws text by Unicode's bidirectional algorithm, and says where each character stands.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from grampus_uq import ToolCall
from grampus_uq.records.visible_text import visible
from grampus_uq.runtime.stores import open_store
from tests.inbox.test_in_a_browser import (
    CHROMIUM,
    DESK,
    PHONE,
    House,
    chromium,
    elsewhere,
    enter,
    house,
    notices,
    open_page,
    read,
)
from tests.proxy.guarded import bench
from tests.runtime.agents import mail

__all__ = ["chromium", "house", "notices", "open_page"]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]
_LETTERS = "\u05d0\u05d1\u05d2\u0627\u0628\u07d0"
_SIGNS = "ab7 9.,:;->=/|$%(){}[]\"'\u2192\u0661\u0669\u05b8\u0301"
_WORD = f"[{_LETTERS}][\u05b8\u0301]*"
_PHRASE = re.compile(  # words that are read together, with a number of their script before them
    f"(?:[\u0661\u0669][\u0661\u0669\u05b8\u0301.,]*[^a-z0-9\u0661\u0669\\\\{_LETTERS}]*)?{_WORD}(?:[^a-z0-9\u0661\u0669\\\\]*?{_WORD})*|[\u0661\u0669][\u0661\u0669.,]*"
)
_PLACES = """texts => {
  const lines = texts.map(text => Object.assign(document.createElement("pre"), { textContent: text }));
  document.body.replaceChildren(...lines);
  const range = document.createRange();
  return lines.map(line => Array.from(line.textContent, (_, at) => {
    range.setStart(line.firstChild, at);
    range.setEnd(line.firstChild, at + 1);
    const box = range.getBoundingClientRect();
    return (box.left + box.right) / 2;
  }));
}"""


def out_of_order(text: str, places: list[float]) -> bool:
    """True where something is drawn left of what is stored before it, phrases of a script from right to left aside."""
    spans = {found.start(): found.end() for found in _PHRASE.finditer(text)}
    at, drawn = 0, list[float]()
    while at < len(text):
        end = spans.get(at, at + 1)
        drawn.append(sum(places[at:end]) / (end - at))
        at = end
    return any(right < left - 0.5 for left, right in itertools.pairwise(drawn))


def test_figures_and_signs_are_drawn_in_the_order_in_which_they_are_stored(chromium: Any) -> None:
    rng, page = random.Random(7), chromium.new_page()
    sent = ["\u05d0 100 -> 900", "9.5 \u05d0 1000", "\u0661 -> \u0669", "\u05d0 \u2192 \u05d1"]
    sent += ["".join(rng.choices(_LETTERS * 2 + _SIGNS, k=rng.randrange(2, 14))) for _ in range(1_500)]
    page.set_content("<!doctype html><style>pre{width:4000px;white-space:pre}</style><body></body>")

    def turned(texts: list[str]) -> list[str]:
        return [
            text
            for text, places in zip(texts, page.evaluate(_PLACES, texts), strict=True)
            if out_of_order(text, places)
        ]

    as_shown, as_sent = turned([visible(text) for text in sent]), turned(sent)
    page.close()
    assert as_shown == []
    assert len(as_sent) > 400, "the judge sees what is turned"


NAME = "amount_" + "x" * 400 + "_of_EVIL"


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["390", "1280"])
def test_a_long_name_stays_within_the_window_and_what_sticks_out_keeps_approve_shut(
    house: House, open_page: Callable[..., Any], size: dict[str, int]
) -> None:
    page = open_page(size, bypass_csp=True)
    enter(page, house)
    call = ToolCall(id="c", name="send_email", arguments={"to": "bob", "body": "hi", NAME: 1})
    address = f"{house.origin}/requests/{house.pause(call)}"
    page.goto(address)
    approve = page.locator("[data-do=approve]")
    read(page)
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(width) <= 0
    page.goto(address)
    page.add_style_tag(content="article *{overflow-wrap:normal!important}")
    assert page.evaluate(width) > 0, "the sabotage lets the name out"
    page.wait_for_timeout(1_500)
    assert approve.is_disabled()
    read(page)


def test_a_window_of_the_size_that_reflow_asks_for_lets_a_long_call_be_read(
    house: House, open_page: Callable[..., Any]
) -> None:
    page = open_page({"width": 320, "height": 256})
    enter(page, house)
    lines = "\n".join(f"line {number}" for number in range(120))
    page.goto(f"{house.origin}/requests/{house.pause(mail('c', 'bob', lines))}")
    read(page)


def test_what_is_beside_the_screen_of_a_page_zoomed_in_does_not_count(
    house: House, open_page: Callable[..., Any]
) -> None:
    page = open_page(PHONE, is_mobile=True)
    enter(page, house)
    request = house.pause()
    page.goto(f"{house.origin}/me")
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setPageScaleFactor", {"pageScaleFactor": 3.0})
    page.goto(f"{house.origin}/requests/{request}")
    session.send("Emulation.setPageScaleFactor", {"pageScaleFactor": 3.0})
    page.wait_for_timeout(1_500)
    assert page.evaluate("visualViewport.scale") == 3.0
    assert page.locator("[data-do=approve]").is_disabled()
    session.send("Emulation.setPageScaleFactor", {"pageScaleFactor": 1.0})
    page.locator("[data-do=approve]:not([disabled])").wait_for()


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["390", "1280"])
def test_approve_opens_once_all_of_why_a_call_was_held_was_on_the_screen(
    house: House, open_page: Callable[..., Any], size: dict[str, int]
) -> None:
    async def ask() -> str:
        store = open_store(house.url)
        async with bench(store) as proxy:
            for letter in ("a ", "b "):
                text = dict.fromkeys(("description", "title", "outputSchema"), letter * 490)
                await proxy.lists(delete_note=text)
            await proxy.call(1)
            request = await proxy.waiting()
        await store.aclose()
        return request.id

    page = open_page({**size, "height": 700})
    enter(page, house)
    approve = page.locator("[data-do=approve]")
    page.goto(f"{house.origin}/requests/{elsewhere(ask)}")
    page.locator("[data-seen]").scroll_into_view_if_needed()
    page.wait_for_timeout(1_500)
    assert approve.is_disabled(), "the call alone is not the whole"
    read(page)
