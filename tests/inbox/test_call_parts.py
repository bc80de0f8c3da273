"""What a card shows of a call: no two values look alike on it."""

from __future__ import annotations

import itertools

from jinja2 import DictLoader

from grampus_uq.inbox.request_pages import _argument
from grampus_uq.learn.pages.page import page_environment
from grampus_uq.records.visible_text import legend_of
from tests.inbox.test_call_shapes import waiting

_PARTS = ("\n", "\r", "\\", "r", "\u202e", "u202e")


def test_no_two_texts_of_a_call_are_shown_alike_with_what_is_named_beside_them() -> None:
    """Line ends of two kinds, and escapes of the text's own beside those of the page, are told apart."""
    template = page_environment(DictLoader({"x": "{{ one.text }}"})).get_template("x")
    card = waiting({})
    seen = dict[tuple[str, str, tuple[str, ...]], str]()
    for length in range(6):
        for parts in itertools.product(_PARTS, repeat=length):
            text = "".join(parts)
            one = _argument(card, "body", text)
            shown = template.render(one=one), one.kind, tuple(legend_of(text))
            assert seen.setdefault(shown, text) == text
