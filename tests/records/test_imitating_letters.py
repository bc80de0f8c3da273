"""A letter that a reader takes for a Latin one is an escape, whatever stands beside it; words of one script stay."""

from __future__ import annotations

import functools
import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.records.tool_names import looks_like
from grampus_uq.records.visible_text import legend, visible
from tests.records.confusables import CONFUSABLES
from tests.sampling import sampled

DOTLESS = "\u0131"  # raw in words of letters: a Turkish text has it in every other sentence
ACCENTED = "éüøłßëñÅþ"
IMITATED = {  # confusables.txt of Unicode 15 (UTS 39); what looks like a capital is told as its small letter
    **dict(zip("ЀЁЌѐёїӐӑӒӓӖӗӦӧӮӯ", "èëḱèëïăăääĕĕööȳȳ", strict=True)),
    **dict(zip("ΆΈΌΎΫάίόϊϋ", "áéóýÿáíóïü", strict=True)),
    **dict(zip("ΊΪЇ", ["ĺ", "l\u0308", "l\u0308"], strict=True)),
    **dict(zip("ϐϸϷҪҫћҿӘәӡⵁ", "ßþÞÇçħęƏəʒØ", strict=True)),
    **dict(zip("\U0001d6a8\U0001d6c2\u210f\u01c6\u212a\u212b", ["a", "a", "ħ", "dž", "K", "Å"], strict=True)),
}


@functools.cache
def alike() -> list[str]:
    return [c for c in map(chr, range(0x80, sys.maxunicode + 1)) if c.isalnum() and looks_like(c) and c != DOTLESS]


@sampled("accented", ACCENTED[::4], full=ACCENTED)
def test_a_letter_that_is_an_escape_in_an_ascii_word_is_one_beside_an_accent_and_named(accented: str) -> None:
    for letter in alike():
        for word in (f"p{accented}{letter}y", f"{letter}{accented}", f"{accented}x{letter}", f"{accented}ж{letter}"):
            shown = visible(word)
            assert letter not in shown, ascii(word)
            assert any(f"looks like {looks_like(letter)!r}" in line for line in legend(word)), ascii(word)
    assert visible(f"p{accented}y") == f"p{accented}y"


@pytest.mark.parametrize(("letter", "taken_for"), IMITATED.items(), ids=ascii)
def test_a_letter_that_imitates_one_with_an_accent_is_an_escape_and_named(letter: str, taken_for: str) -> None:
    escape = ascii(letter)[1:-1]
    assert looks_like(letter) == taken_for
    assert visible(f"Zo{letter}") == f"Zo{escape}"
    assert visible(letter) == escape, "nothing shows its script"
    assert legend(f"Zo{letter}") == [f"{escape} looks like {taken_for!r}: {unicodedata.name(letter)}"]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("müll\u0435r@bank.de", "müll\\u0435r@bank.de"),
        ("\u0410\u0457\u0441\u04bb\u0430", "\\u0410\\u0457\\u0441\\u04bb\\u0430"),  # all Cyrillic, for Aïcha
        ("Zo\u0435\u0308", "Zo\\u0435\\u0308"),
        ("O\u02bc\u0412rian", "O\u02bc\\u0412rian"),
        ("\u043f\u0440\u03bf\u0449", "\u043f\\u0440\\u03bf\u0449"),  # a Greek letter in a Russian word
        ("\u0416e\u043d\u044f", "\\u0416e\\u043d\\u044f"),  # a Latin one
        ("\u044cank", "\\u044cank"),
        ("\U0001d400\U0001d6d1", "\\U0001d400\U0001d6d1"),
        ("p\u0430\u65e5", "p\\u0430\u65e5"),
        ("\uff42ank", "\\uff42ank"),
    ],
    ids=ascii,
)
def test_a_mixture_of_scripts_is_judged_letter_by_letter(sent: str, shown: str) -> None:
    assert visible(sent) == shown
    escapes = re.findall(r"\\u[0-9a-f]{4}|\\U[0-9a-f]{8}", shown)
    assert [line.partition(" ")[0] for line in legend(sent)] == list(dict.fromkeys(escapes))


PLAIN = [
    "Счёт для Ольги: 5 €",
    "Прийшла посилка з Києва, памʼять",
    "Πληρωμή λογαριασμού Αθηνών",
    "հաշիվ երեք",
    "თანხა",
    "تمامًا خطأ",
    "حساب بانکی",
    "ပါဝင်သည်",
    "ＡＢＣ株式会社のデータ",
    "二〇二四年、iPhoneを3台",
    "Kim은 서울에",
    "5μm, 3kΩ, Δt",
    "Müller, Łódź, Søren, Žižek, İstanbul, Nguyễn, Þór, señor, naïve, straße",
    "Mu\u0308ller Nguye\u0302\u0303n",
    "এ৫০ ৫০০",
    "\u05e1\u05d5\u05e1 \u05d5\u05d8\u05d5\u05df",  # Hebrew of nothing but look-alikes
    "\u0627\u0644\u0645\u0628\u0644\u063a",
    "\u0661\u0665\u0665\u0660\u066b\u0665 \u0647\u0640",
    "\u07ca\u07c0 \u07c1\u07c0",
    "Şırnak, ısıtıcı ılık, KIZILIRMAK",
    "東京１2 Łódź",
    "తెలుగులో సందేశం, ಕನ್ನಡಂ, മലയാളം",
]


@pytest.mark.parametrize("text", PLAIN, ids=range(len(PLAIN)))
def test_a_word_of_one_script_that_shows_it_stays_readable(text: str) -> None:
    assert visible(text) == text
    assert legend(text) == []


_MIXED = st.text("apéøüаеёжцьιελά日ア١ةا\u0301\u0308\u0e47\u200b\u02bc\\nu5_ .", max_size=12)


@given(_MIXED)
def test_no_word_that_is_shown_mixes_latin_with_letters_that_imitate_it(text: str) -> None:
    shown = visible(text)
    for word in re.split(r"[\W_]+", re.sub(r"\\+(?:[bfnrtxuU][0-9a-f]*)?", " ", unicodedata.normalize("NFC", shown))):
        if any((c.isascii() and c.isalpha()) or c in "éøü" for c in word):
            assert not [c for c in word if looks_like(c) or "CYRILLIC" in unicodedata.name(c, "")], ascii(word)


@given(_MIXED)
def test_a_text_with_escapes_is_shown_the_same_again_and_each_is_named(text: str) -> None:
    shown = visible(text)
    assert visible(shown) == shown
    assert (shown != text) is bool(legend(text)) or "\n" in text


@given(st.text("apéøüаеёжцьιελάίй日", max_size=8))
def test_a_word_is_judged_alike_with_its_accents_composed_and_apart(word: str) -> None:
    composed, apart = (unicodedata.normalize(form, word) for form in ("NFC", "NFD"))
    assert bool(legend(composed)) is bool(legend(apart))


@pytest.mark.parametrize("word", ["ban{}k", "{}bank", "bank{}", "1{}0.00", "10{}", "ann{}@bank.de", "éß{}"])
def test_whatever_unicode_takes_for_an_ascii_letter_or_figure_is_an_escape_beside_one_and_named(word: str) -> None:
    for character, like in CONFUSABLES.items():
        text = word.format(character)
        if character == DOTLESS and text.isalpha():
            continue  # a Turkish word
        assert looks_like(character), f"U+{ord(character):X} is {like}"
        assert character not in visible(text), f"U+{ord(character):X} is {like} in {word}"
        assert any(line.startswith(ascii(character)[1:-1]) for line in legend(text)), f"U+{ord(character):X} in {word}"


@pytest.mark.parametrize("figure", "½¼¾↉٥١२߀①৪౦")
def test_a_figure_behind_a_word_of_imitating_letters_shows_no_script(figure: str) -> None:
    for word in ("раура", "аррӏе", "ΑΒ"):
        assert not set(word) & set(visible(word + figure))


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("1\u0665\u0665\u0665.00", "1\\u0665\\u0665\\u0665.00"),
        ("1\u0664\u0665", "1\u0664\\u0665"),
        ("\u0627\u0644\u0633\u0627\u0639\u06291\u0665", "\u0627\u0644\u0633\u0627\u0639\\u06291\\u0665"),
        ("B\u07c0B, A\u07caDA, b\u05e1b", "B\\u07c0B, A\\u07caDA, b\\u05e1b"),
        ("\u2374\u237a\u2373", "\\u2374\\u237a\\u2373"),
        ("a \u222a b, 3 \u00d7 4, \u221e", "a \u222a b, 3 \u00d7 4, \u221e"),
        ("fatura al\u0131nd\u0131", "fatura al\u0131nd\u0131"),
        ("ann\u0131@x.de https://payp\u0131l.com 1\u01310", "ann\\u0131@x.de https://payp\\u0131l.com 1\\u01310"),
    ],
    ids=ascii,
)
def test_signs_figures_and_scripts_from_right_to_left_are_judged_by_the_latin_beside_them(
    sent: str, shown: str
) -> None:
    assert visible(sent) == shown
    assert visible(shown) == shown
