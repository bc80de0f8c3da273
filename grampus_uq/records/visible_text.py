"""Text that a model, a tool or a stranger wrote, as a human may safely read it: nothing hidden, nothing mistaken.

Characters that are invisible, control a terminal, turn the direction of reading or cover a letter are shown as escapes.
So are marks that are piled on one letter or stand on one of another script, letters that imitate Latin ones in a word
that is not wholly of their own script or shows nothing but such letters, and the letter of a script from right to left
that turns the figures or signs behind it. Terminal and pages show text by this one rule.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from grampus_uq.records.tool_names import SIGNS_LIKE_LETTERS, looks_like

_WITHOUT_INK = re.compile(  # what Unicode lets a font ignore (Default_Ignorable_Code_Point), then blanks and fillers
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\u2800\ufffc\U00013441\U00013442\U00016fe4\U0001d159]"
)
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_ESCAPE = re.compile(r"\\+(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[bfnrt])?")  # of JSON or of ours: ends a word
_SCRIPT = re.compile("[A-Z]*")
_WITH_HAN = frozenset(("BOPOMOFO", "CJK", "FULLWIDTH", "HALFWIDTH", "HANGUL", "HIRAGANA", "IDEOGRAPHIC", "KATAKANA"))
_NOT_WITH_LATIN = frozenset(("ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "LISU"))  # of its shapes, in no word with it
_FROM_THE_RIGHT = (
    frozenset(  # Hebrew, Arabic, N'Ko and Mende: in words without a Latin letter or figure read as they are
        "\u05d5\u05d8\u05df\u05e1\u05f0\u0647\u0661\u0665\u0667\u06be\u06c1\u06d5\u07c0\u07ca\U0001e8c7\U0001e8cb"
    )
)
_DOTLESS = "\u0131"
_RUN, _ADDRESS = re.compile(r"\S+"), re.compile("@|://")
_STACKERS = re.compile(  # show nothing but the letter behind them below the one before (Invisible_Stacker)
    "[\u1039\u17d2\u1a60\u1bab\uaaf6\U00010a3f\U00011133\U000113d0\U0001193e\U00011a47\U00011a99\U00011d45\U00011d97\U00011f42]"
)
_TO_THE_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\U00010800-\U00010fff\U0001e800-\U0001efff]")
_IN_A_PHRASE = re.compile(r"[\"'\u2019-]?|\)?[,.;:!?]? +\(?")  # what may stand between two words that are read together
_IN_A_NUMBER = ("", ",", ".", "\u066b", "\u066c")
_MAX_ARGUMENTS, _MAX_WIDTH = 12, 40
_CUT = re.compile(r"…\(\+(\d{1,9}) characters\)\Z", re.ASCII)
_MOST_MARKS, _MOST_OF_ALL_KINDS = 3, 5
_ASTRAY = "stands alone, or on a letter of another script"


@functools.lru_cache(maxsize=4_096)
def is_hidden(character: str) -> bool:
    """Return True for an invisible character, or one that moves or covers others: controls, odd spaces, overlays."""
    return not character.isprintable() or _covers(character) or _WITHOUT_INK.match(character) is not None


def name_form(name: str) -> str:
    """A person's name as it is compared: one for all its cases, widths, forms of accents, and hidden characters.

    >>> name_form(" \uff21nn\u200b"), name_form("Jo\u0308rg") == name_form("j\u00d6rg"), name_form("\u200b ")
    ('ann', True, '')
    """
    plain = "".join(c for c in unicodedata.normalize("NFKC", name) if not is_hidden(c))
    marks = _marks(plain)
    shown = "".join(c for place, c in enumerate(plain) if marks.get(place) != _ASTRAY)
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", shown).casefold()).split())


def _covers(character: str) -> bool:
    """Return True for a mark drawn through or around the letter before it."""
    return unicodedata.combining(character) == 1 or unicodedata.category(character) == "Me"


def _marks(text: str) -> dict[int, str]:
    """The places of marks that no script puts there, each with why: beyond those of one letter, or of another script.

    Scripts put up to three marks of a combining class on a letter, five of all kinds, and none without a class twice.
    """
    found = dict[int, str]()
    on, marks, spacing = "", "", ""
    for place, character in enumerate(text):
        category = unicodedata.category(character)
        if category not in ("Mn", "Me", "Mc"):
            on, marks, spacing = character, "", ""
            continue
        classed = unicodedata.combining(character) != 0
        if category == "Mc":  # takes room of its own
            if character in spacing:
                found[place] = "is one mark more than a letter has"
            else:
                spacing += character
        elif not _belongs(character, on) or (_STACKERS.match(character) and not text[place + 1 : place + 2].isalpha()):
            found[place] = _ASTRAY
        elif (
            (classed and sum(unicodedata.combining(one) != 0 for one in marks) >= _MOST_MARKS)
            or (not classed and character in marks)
            or len(marks) >= _MOST_OF_ALL_KINDS
        ):
            found[place] = "is one mark more than a letter has"
        else:
            marks += character
    return found


def _belongs(mark: str, letter: str) -> bool:
    """Return True for a mark of the letter's script, or one shared by many scripts."""
    if letter in ("", " ") or is_hidden(letter):
        return False
    script = unicodedata.name(mark, "").partition(" ")[0]
    return script in ("COMBINING", unicodedata.name(letter, "").partition(" ")[0])


def _turning(text: str) -> set[int]:
    """The places of letters, and figures, of scripts from right to left that turn figures or signs behind them.

    As Unicode's bidirectional algorithm has it (UAX 9), in lines from left to right: figures go with the last letter
    before them, and signs with the letters on both sides. Words of a phrase are read together.
    """
    found = set[int]()
    last, number, between = None, False, ""
    for place, character in enumerate(text) if _TO_THE_LEFT.search(text) else ():
        way = unicodedata.bidirectional(character)
        if way in ("R", "AL"):
            if last is not None and not _IN_A_PHRASE.fullmatch(between):
                found.add(last)
            last, number, between = place, False, ""
        elif way in ("EN", "AN"):
            if last is not None and (not number or (way == "AN" and between not in _IN_A_NUMBER)):
                found.add(last)
            last, number, between = (place if way == "AN" else None), True, ""
        elif way in ("L", "B"):
            last, between = None, ""
        elif way != "NSM":
            between += character
    return found


def escaped(character: str) -> str:
    """The character as Python writes it in ASCII."""
    return ascii(character)[1:-1]


def visible(text: str, keep: str = "", escape: Callable[[str], str] = escaped) -> str:
    """The text with every character that hides, moves or imitates another shown as an escape, save those in `keep`.

    `escape` writes one, in ASCII.

    >>> visible("to p\u0430y\u200b, \u043f\u0440\u0438\u0432\u0435\u0442")
    'to p\\\\u0430y\\\\u200b, привет'
    """
    if text.isascii() and text.isprintable():
        return text
    why = _escapes(text, keep)
    return "".join(escape(c) if place in why else c for place, c in enumerate(text))


def _escapes(text: str, keep: str) -> dict[int, str]:
    """The places of characters that are shown as escapes, each with why."""
    if text.isascii():
        return {one.start(): "is not visible" for one in _CONTROL.finditer(text) if one[0] not in keep}
    why = _marks(text) | dict.fromkeys(_turning(text), "turns the figures or signs behind it")
    for place, c in enumerate(text):
        if is_hidden(c) and c not in keep:
            why[place] = "covers the letter before it" if _covers(c) else "is not visible"
    why |= _imitating(text, why)
    for place, c in enumerate(text):
        if place - 1 in why and place not in why and unicodedata.category(c)[0] == "M":
            why[place] = "stands on a letter that is an escape"
    return why


def _imitating(text: str, apart: Container[int]) -> dict[int, str]:
    """The places of what a reader takes for Latin letters and figures, each with why; those `apart` end a word."""
    found = dict[int, str]()
    escapes = {place for one in _ESCAPE.finditer(text) for place in range(*one.span())}
    word = dict[int, str]()
    for place, c in enumerate(text):
        part = place not in apart and place not in escapes
        if part and (c.isalnum() or c in SIGNS_LIKE_LETTERS):
            word[place] = c
        elif word and not (part and unicodedata.category(c)[0] == "M"):
            found |= _of_word(word)
            word = {}
    return found | _of_word(word) | (_dotless(text) if _DOTLESS in text else {})


def _dotless(text: str) -> dict[int, str]:
    """The places of a dotless i in an address, which is not a Turkish word."""
    addresses = [run for run in _RUN.finditer(text) if _ADDRESS.search(run[0])]
    places = (place for run in addresses for place in range(*run.span()))
    return {place: f"looks like {looks_like(_DOTLESS)!r}" for place in places if text[place] == _DOTLESS}


def _of_word(word: Mapping[int, str]) -> dict[int, str]:
    """Return the look-alikes in one word; none if the whole word is of one other script and a letter shows it.

    A figure shows it where no letter, sign or ASCII figure is in the word. One kind of sign alone is not a word.
    """
    letters = "".join(word.values())
    seen = set(letters)
    if letters.isascii() or (len(seen) == 1 and seen <= SIGNS_LIKE_LETTERS):
        return {}
    scripts = {_script(c) for c in seen if c.isalpha()} - {""}
    figures = not letters.isalpha() and any(c.isascii() and c.isdigit() for c in seen)
    showing: Iterable[str] = seen
    if not letters.isalpha() and (scripts or figures or seen & SIGNS_LIKE_LETTERS):
        showing = filter(str.isalpha, seen)
    latin = "LATIN" in scripts
    itself = not latin and len(scripts) < 2 and any(_shows_its_script(c, figures) for c in showing)
    if itself and not figures:
        return {}
    odd = _NOT_WITH_LATIN & scripts if latin else ()
    found = dict[int, str]()
    for place, c in word.items():
        like = looks_like(c)
        if like and (not itself or (figures and _is_figure(c))) and (c != _DOTLESS or figures):
            found[place] = f"looks like {like!r}"
        elif c.isalpha() and _script(c) in odd:
            found[place] = "is of another script than its word"
    return found


@functools.lru_cache(maxsize=4_096)
def _shows_its_script(c: str, beside_figures: bool) -> bool:
    """Return True for a letter or digit that cannot be mistaken for an ASCII one in a word without Latin letters."""
    if c.isascii() or unicodedata.category(c) == "Lm":
        return False
    return not looks_like(c) or (not beside_figures and unicodedata.normalize("NFKD", c)[0] in _FROM_THE_RIGHT)


def _is_figure(c: str) -> bool:
    """Return True for a script's own digit, not an ASCII digit in another width or style."""
    return c.isdecimal() and not unicodedata.decomposition(c)


@functools.lru_cache(maxsize=4_096)
def _script(letter: str) -> str:
    """The script of a letter, by its name; one for those that are written together; none for a modifier's."""
    name = unicodedata.name(letter, "")
    if unicodedata.category(letter) == "Lm":
        return ""
    if not name.startswith(("FULLWIDTH", "HALFWIDTH")):
        name = unicodedata.name(unicodedata.normalize("NFKD", letter)[0], name)
    (script,) = _SCRIPT.findall(name)[:1]
    return "CJK" if script in _WITH_HAN else script


def without_controls(text: str, keep: str = "") -> str:
    """The text with a space for every character that controls what shows it, save those in `keep`: for short cells."""
    return "".join(char if char.isprintable() or char in keep else " " for char in text)


def legend_of(value: Any) -> list[str]:
    """`legend` of a JSON value however it is shown: in one line of JSON, and each of its texts over several lines."""
    return legend("\n".join([_json(value), *_texts(value)]))


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names too."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            left += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            left += one


def legend(text: str) -> list[str]:
    """A line for each kind of character that `visible` marks in the text, at most 20."""
    lines = dict[str, str]()
    for place, why in sorted(_escapes(text, keep="\n\t").items()):
        character = text[place]
        if len(lines) < 20:
            lines.setdefault(character, f"{escaped(character)} {why}: {unicodedata.name(character, 'no character')}")
    return list(lines.values())


def short(text: str, width: int) -> str:
    """The beginning of a text, and how much of it is left out, by an earlier cut too."""
    if len(text) <= width:
        return text
    earlier = _CUT.search(text, max(0, len(text) - 40))
    whole, more = (text, 0) if earlier is None else (text[: earlier.start()], int(earlier[1]))
    return f"{whole[:width]}…(+{max(0, len(whole) - width) + more} characters)"


def in_short(text: str, width: int) -> str:
    """`visible` in at most `width` characters of what is shown, for which a cut word counts as it stands."""
    while (shown := short(visible(short(text, width)), width)) != text:
        text = shown
    return text


def arguments_in_short(arguments: Mapping[str, Any]) -> str:
    """Every argument by name, each value cut by itself, so that a long one hides no other."""
    first = sorted(arguments.items())[:_MAX_ARGUMENTS]
    shown = [f"{in_short(name, _MAX_WIDTH)}={in_short(_json(value), _MAX_WIDTH)}" for name, value in first]
    more = [f"(+{len(arguments) - len(first)} arguments)"] if len(arguments) > len(first) else []
    return visible(" ".join([*shown, *more]))


def whole_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Every argument whole, one a line."""
    return [visible(f"  {name} = {_json(value)}") for name, value in sorted(arguments.items())]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
