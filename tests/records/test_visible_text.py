"""Hostile text reads as it is, in a terminal and on a page: by one rule."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.learn.pages.page import _environment
from grampus_uq.records.visible_text import is_hidden, visible, whole_arguments

HIDDEN = ["\u200b", "\u202e", "\u2066", "\ufeff", "\u034f", "\u3164", "\u2800", "\ufe0f", "\U000e0101", "\U000e0041"]
HIDDEN += ["\x1b", "\x00", "\x85", "\u2028", "\u00a0", "\ud800", "\ue000"]


@pytest.mark.parametrize(
    "character", [*HIDDEN, "\x1b", "\x00", "\x85", "\u2028", "\u00a0", "\ud800", "\ue000"], ids=ascii
)
def test_a_character_that_hides_is_an_escape_in_a_terminal_and_on_a_page(character: str) -> None:
    sent = f"pay 5{character} now"
    shown = f"pay 5{ascii(character)[1:-1]} now"
    assert visible(sent) == shown
    assert (
        whole_arguments({"note": sent}) == [f'  note = "{shown}"'] or ord(character) < 32
    )  # JSON escapes these itself
    assert _environment().from_string("{{ text }}").render(text=sent) == shown


def test_every_format_character_and_every_odd_space_counts_as_hidden() -> None:
    for point in range(sys.maxunicode + 1):
        character = chr(point)
        category = unicodedata.category(character)
        if category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or (category == "Zs" and character != " "):
            assert is_hidden(character), ascii(character)


@given(st.text())
def test_what_is_shown_hides_nothing_and_is_shown_the_same_again(text: str) -> None:
    shown = visible(text)
    assert not any(is_hidden(character) for character in shown)
    assert visible(shown) == shown


@given(st.text("abc é日本", min_size=1))
def test_text_that_hides_nothing_stays_as_it_is(text: str) -> None:
    assert visible(text) == text
