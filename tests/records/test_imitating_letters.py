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
    return [c for c in map(chr, range(0x80, sys.maxunicode + 1)) if c.isalnum() and looks_like(c)]


@pytest.mark.parametrize("accented", ACCENTED)
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
