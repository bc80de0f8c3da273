"""A search for words in any case says what `re.IGNORECASE` says."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grampus_uq.signals.word_search import WordSearch

PATTERNS = [
    r"\b(?:says?|said|tool|kiss|insist(?:s|ed)|e-?mail)\b",
    r"confiden|sure|likelihood",
    r"\b(?:this|these|not)[.,]?$|\w\(|(?:=|[=-]>)$",
    r"\b[01] ?(?:-|–|to) ?(?:5|7|10)\b|\bin percent\b",
]
WORDS = st.sampled_from(
    [
        "says",
        "SAID",
        "Tool",
        "kiss",
        "kiſſ",
        "Kiss",
        "İn",
        "ınsists",
        "INSISTED",
        "e-Mail",
        "Sure",
        "ſure",
        "confidence",
        "not.",
        "This",
        "tell(",
        "=>",
        "1–5",
        "in",
        "percent",
        "é",
    ]
)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(words=st.lists(st.one_of(WORDS, st.text(max_size=3)), max_size=6), between=st.sampled_from(["", " "]))
@example(words=["unSURE", "\u017fure"], between=" ")
def test_words_are_found_as_a_search_that_ignores_case_finds_them(pattern, words, between):
    text = between.join(words)
    assert WordSearch(pattern)(text) is (re.search(pattern, text, re.IGNORECASE) is not None)
