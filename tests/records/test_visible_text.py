"""Hostile text reads as it is, in a terminal and on a page: by one rule."""

from __future__ import annotations

import json
import re
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grampus_uq.learn.pages.page import _environment
from grampus_uq.records.visible_text import (
    arguments_in_short,
    in_short,
    is_hidden,
    legend,
    legend_of,
    name_form,
    short,
    visible,
    whole_arguments,
)
from tests.sampling import sampled

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


DEFAULT_IGNORABLE = """00AD 034F 061C 115F..1160 17B4..17B5 180B..180F 200B..200F 202A..202E 2060..206F 3164 FE00..FE0F
FEFF FFA0 FFF0..FFF8 1BCA0..1BCA3 1D173..1D17A E0000..E0FFF"""  # DerivedCoreProperties.txt of Unicode 15.1
BLANKS = "2800 FFFC 13441..13442 16FE4 1D159"  # braille, object replacement, hieroglyphs, Khitan filler, notehead


def _points(ranges: str) -> list[int]:
    ends = [[int(end, 16) for end in one.split("..")] for one in ranges.split()]
    return [point for each in ends for point in range(each[0], each[-1] + 1)]


def test_whatever_may_be_shown_as_nothing_is_an_escape_is_named_and_makes_no_other_name() -> None:
    for character in map(chr, _points(DEFAULT_IGNORABLE) + _points(BLANKS)):
        escape = ascii(character)[1:-1]
        assert visible(f"an{character}n") == f"an{escape}n"
        (line,) = legend(f"an{character}n")
        assert line.startswith(f"{escape} is not visible: ")
        assert name_form(f"an{character}n{character}") == "ann", escape


@given(st.text())
def test_what_is_shown_hides_nothing_and_is_shown_the_same_again(text: str) -> None:
    shown = visible(text)
    assert not any(is_hidden(character) for character in shown)
    assert visible(shown) == shown


@pytest.mark.parametrize("mark", ["\u0336", "\u0338", "\u20dd", "\u20e3", "\u0489"], ids=ascii)
def test_a_mark_that_covers_a_letter_is_an_escape_and_named(mark: str) -> None:
    assert visible(f"pay 1{mark}00") == f"pay 1{ascii(mark)[1:-1]}00"
    (line,) = legend(f"pay 1{mark}00")
    assert line.startswith(f"{ascii(mark)[1:-1]} covers the letter before it: ")


PLAIN = [
    "Vie\u0323\u0302t",
    "\u05e9\u05c1\u05bc\u05b8",  # Hebrew: dot, dagesh and vowel
    "\u0e17\u0e35\u0e48",
    "\u0915\u094d\u0937",
    "\u1000\u103c\u103d\u103e\u102d\u102f\u1037",  # Burmese, as in a crow: five marks that take no width
    "\u0f66\u0f92\u0fb2\u0f74",
    "\u179f\u17d2\u178f\u17d2\u179a\u17b8",
    "\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f",
    "\u0921\u093c\u0947\u0902",
    "\u05e9\u05dc\u05d5\u05dd, \u05e2\u05d5\u05dc\u05dd!",  # a phrase, read together
    "100 \u05e9\u05f4\u05d7 (\u05d1\u05de\u05d6\u05d5\u05de\u05df)",
    "1. \u05d3\u05e0\u05d4\n2. \u05d0\u05d1\n",
    "Bob \u05d3\u05e0\u05d4 Ann 12",
    "\u0661\u066c\u0660\u0660\u0660",
]


@sampled("before", ["a"], full=["a", " ", "\u0e01", "\u1000"], ids=ascii)
def test_no_mark_is_piled_on_a_letter_whatever_its_combining_class(before: str) -> None:
    for point in range(sys.maxunicode + 1):
        mark = chr(point)
        if unicodedata.category(mark) in ("Mn", "Me"):
            shown = visible(before + 40 * mark)
            assert len(re.findall(re.escape(mark), shown)) <= 3, ascii(mark)
            assert any(line.startswith(ascii(mark)[1:-1]) for line in legend(before + 40 * mark)), ascii(mark)


MARKS = st.deferred(
    lambda: st.sampled_from(
        [mark for mark in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(mark) in ("Mn", "Me")]
    )
)


@given(st.text(MARKS | st.sampled_from("a\u0e01\u1000\u05d0"), max_size=40))
def test_no_letter_carries_more_than_five_marks_of_any_kind(text: str) -> None:
    height = 0
    for character in visible(text):
        height = height + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        assert height <= 5


@pytest.mark.parametrize("mark", ["\u1039", "\u17d2", "\u1a60", "\u0e47", "\U0001e8d0"], ids=ascii)
def test_a_mark_that_no_script_puts_there_makes_no_other_name_and_is_an_escape(mark: str) -> None:
    assert name_form(f"ann{mark}") == name_form(f"a{mark}nn") == "ann"
    assert visible(f"ann{mark}") == f"ann{ascii(mark)[1:-1]}"
    (line,) = legend(f"ann{mark}")
    assert line.startswith(f"{ascii(mark)[1:-1]} stands alone, or on a letter of another script: ")


def test_a_letter_below_another_is_part_of_a_name_and_a_stacker_with_nothing_to_stack_is_not() -> None:
    stacked = "\u1000\u1039\u1001"
    assert name_form(stacked) == stacked
    assert name_form("\u1000\u1039") == "\u1000"
    assert name_form("J\u00f6rg") != name_form("Jorg")


@given(st.text() | st.text("an\u1039\u1000\u0301\u200b\u17d2 \u0130", max_size=8))
def test_the_form_of_a_name_is_its_own_form(name: str) -> None:
    assert name_form(name_form(name)) == name_form(name)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("\u05d0 100 -> 900", "\\u05d0 100 -> 900"),
        ("\u05d0.\u05d1.com", "\\u05d0.\u05d1.com"),
        ("9.5 \u05d0 1000", "9.5 \\u05d0 1000"),
        ("\u0627 100", "\\u0627 100"),
        ("\u05d0 -> \u05d1", "\\u05d0 -> \u05d1"),
        ('{"\u05d0": "\u05d1"}', '{"\\u05d0": "\u05d1"}'),
        ("\u0661 -> \u0669", "\\u0661 -> \u0669"),
        ("\u05d0\u05d1 $5, \u05d2 6", "\u05d0\\u05d1 $5, \\u05d2 6"),
    ],
    ids=ascii,
)
def test_a_letter_that_turns_what_stands_behind_it_is_an_escape_and_named(sent: str, shown: str) -> None:
    assert visible(sent) == shown
    assert any("turns the figures or signs behind it" in line for line in legend(sent))


def test_every_letter_and_figure_from_right_to_left_is_looked_at() -> None:
    for point in range(sys.maxunicode + 1):
        if unicodedata.bidirectional(chr(point)) in ("R", "AL", "AN") and not is_hidden(chr(point)):
            assert visible(f"{chr(point)} - 100 > 900") != f"{chr(point)} - 100 > 900" or (
                unicodedata.bidirectional(chr(point)) == "AN"
            ), ascii(chr(point))
            assert visible(f"{chr(point)} - \u0661") != f"{chr(point)} - \u0661", ascii(chr(point))


def test_marks_that_are_piled_on_one_letter_are_escapes_beyond_what_scripts_use() -> None:
    assert visible("a" + 9 * "\u0301") == "a" + 3 * "\u0301" + 6 * "\\u0301"
    assert legend("a" + 9 * "\u0301") == ["\\u0301 is one mark more than a letter has: COMBINING ACUTE ACCENT"]
    for plain in PLAIN:
        assert visible(plain, keep="\n") == plain
        assert legend(plain) == []


@given(st.text("a\u0301\u0323\u0336 é", max_size=30))
def test_no_letter_that_is_shown_carries_more_marks_than_scripts_use(text: str) -> None:
    shown = visible(text)
    assert re.search("[\u0301\u0323]{4}|\u0336", shown) is None
    assert visible(shown) == shown


@given(st.text("abc é日本", min_size=1))
def test_text_that_hides_nothing_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize("letter", "\u1d04\u1d0f\u1d20\u1d21\u1d22\ua731\u0261\u03f2\u03f9\u051a\u0627")
def test_a_letter_that_is_drawn_as_a_plain_one_is_an_escape_within_a_word_and_named(letter: str) -> None:
    assert visible(f"pa{letter}y") == f"pa\\u{ord(letter):04x}y"
    assert [line.partition(" ")[0] for line in legend(f"pa{letter}y")] == [f"\\u{ord(letter):04x}"]


def test_a_mark_that_takes_room_of_its_own_is_not_piled_either() -> None:
    assert visible("a" + 3 * "\u302e") == "a\u302e" + 2 * "\\u302e"
    assert visible("हिन्दी கொள்கை") == "हिन्दी கொள்கை"


@given(st.text("ab \n\t\r\x00\x1b\u0301\u05d0\u200b019>", max_size=8))
def test_what_a_page_shows_as_an_escape_is_named_over_one_line_and_over_several(text: str) -> None:
    as_shown = [visible(text, keep="\n\t"), visible(json.dumps(text, ensure_ascii=False))]
    escapes = {one for shown in as_shown for one in re.findall(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\r", shown)}
    named = " ".join(legend_of({"body": [text]}))
    known = {"\\u0000": "\\x00", "\\u001b": "\\x1b"}  # JSON writes these itself
    assert all(known.get(one, one) in named for one in escapes)


MIXED = "ab1 =\u200b\U000e0041\u0430\u0434é\u05d0\u0627\u0641\U0001ec71\U0001ec7a"


@given(st.text(MIXED, max_size=60), st.integers(1, 30))
@example("\u0641\u200b", 2)
def test_a_text_in_short_is_as_long_as_was_asked_for_with_its_escapes_and_shown_the_same_again(
    text: str, width: int
) -> None:
    """A cut within a word may leave letters that imitate others, and one before an escape."""
    shown = in_short(text, width)
    assert len(re.sub(r"…\(\+\d+ characters\)\Z", "", shown)) <= width
    assert shown == visible(text) or len(visible(text)) > width
    assert visible(shown) == shown


WORDS = st.text("ab1 \u05d0\u0627\u066b\u0430", max_size=5)


@given(st.dictionaries(WORDS, WORDS | st.integers(0, 9), max_size=3))
@example({"\u05d0": 1})
def test_what_stands_behind_a_name_or_a_value_is_not_turned_by_it(arguments: dict[str, str | int]) -> None:
    for line in (arguments_in_short(arguments), *whole_arguments(arguments)):
        assert visible(line) == line


def test_a_text_that_is_cut_twice_says_how_much_of_all_of_it_is_left_out() -> None:
    assert short("x" * 9, 9) == "x" * 9
    whole = "x" * 9_000
    assert short(short(whole, 2_000), 400) == short(whole, 400) == "x" * 400 + "…(+8600 characters)"
    nearly = short("x" * 9_000, 2_000)
    assert short(nearly, 2_005) == nearly  # longer with its note than the width, and nothing more to cut
