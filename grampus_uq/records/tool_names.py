"""Tool names as a reader sees them: one normal form for every spelling, and the substring rule in it.

`send_email`, `sendEmail`, `send-email`, `mcp__mail__send_email`, full-width letters, invisible characters in between,
letters of another script that look alike: whoever protects one of them means all of them. Not read as alike: two ASCII
letters for one (rn for m), and figures for letters of another shape (3 for e).
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable

_MAX_CACHED_LENGTH = 256
_MAX_CACHED_NAMES = 1_024
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0\U00013441\U00013442")  # letters by category, invisible all the same
_MARKS = re.compile(r"[*?\[\]^$\\()+{}|,;\n]")
_WORDS = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])")
_MAX_ENDINGS = 64
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_LETTER = re.compile(r"(?:LATIN .*LETTER|SYMBOL LETTER) (?:(?!TURNED|REVERSED)[A-Z]+ )*?([A-Z])(?: WITH .*)?$")

_LOOK_ALIKES = {
    "": "ǃɁʔʹʺʻʼʽʾˆˈˊˋːˮॽᎮᐳᐸᑊᚲᛌⲺⳆⵑ〳ノ丶丿ꓸꓹꓺꓻꓽꛫꝸꞌ𐊛𐌟𖼿ー",
    "2": "ƧϨᒿꙄꛯꝚ",
    "3": "ƷȜЗӠⳌꝪꞫ𑣊𖼻𝈆",
    "4": "Ꮞ𑢯",
    "5": "Ƽ𑢻",
    "6": "бᏮⳒ𑣕",
    "7": "𐓒𑣆𝈒",
    "8": "Ȣȣ৪੪𐌚ଃ\U0001e8cb",
    "9": "৭੧୨൭ⳊꝮ𑢬𑣌𑣖",
    "a": "ɑΑαАаᎪᗅꓮꭺ𐊠𖽀⍺",
    "aa": "Ꜳꜳ",
    "ae": "ÆæӔӕ",
    "ao": "Ꜵꜵ",
    "ar": "🜇",
    "au": "Ꜷꜷ",
    "av": "ꜸꜹꜺꜻ",
    "ay": "Ꜽꜽ",
    "b": "ƄΒВЬвᏏᏴᏼᑲᒈᖯᗷꓐꞴ𐊂𐊡𐌁",
    "bl": "Ы",
    "c": "ЄСсԑᏟⲈⲉⲤⲥꓚꮛꮯ𐊢𐌂𐐕𐐩𐐽𐔜𑣎𑣩𑣲🝌ϲϹ",
    "d": "ԁᎠᏧᑯᒇᗞᗪꓒꓓꭰ",
    "dz": "ʣ",
    "e": "ΕεЕеєҽԐᎬᏋⴹꓰꞝꭼ𐊆𐐁𐐪𑢦𑢮𖼭℮⋿ꬲ",
    "f": "Ϝքᖴꓝ𐊇𐊥𐔥𑢢𑣂𝈓ẝꞘꞙꬵ",
    "g": "ƍԌԍցᏀᏳᏻꓖꮐᶃ",
    "h": "ͰΗНнһհᎨᎰᎻᏂᕼⲎꓧꚱꜧꮀꮋ𐋏",
    "i": "ɩιіӏᎥꙇꭵ𑣃˛⍳ıͺ",
    "j": "ͿϳЈјյᎫᒍꓙꭻꞲ",
    "k": "ĸΚκКкᏦᛕⲔⲕꓗꮶ𐔘",
    "l": "ƖǀΙІӀ۱ᏞᒪᛁⲒⳐⳑⵏꓡꓲꮮ𐊊𐌉𐌠𐐛𐑃𐔦𑢣𑢲𖼖𖼨∣│⏽￨𝈪ا\u05c0\u05d5\u05df\u0661\u07ca\U0001e8c7",
    "ll": "ǁ‖∥\u05f0",
    "lo": "Ю",
    "ls": "ʪ",
    "lt": "₶",
    "lz": "ʫ",
    "m": "ʍΜϺМмᎷᗰᛖⲘꓟꭑꮇ𐊰𐌑",
    "mb": "🝫",
    "n": "ΝոռⲚꓠ𐔓",
    "o": "ͻΟοσϽОоՕօ۵०০੦૦ଠ୦௦౦೦ഠ൦๐໐ဝ၀ჿዐᎤↃↄⲞⲟⵔ〇ꓛꓳ𐊒𐊫𐐄𐐣𐐬𐑋𐓂𐓪𐔖𑓐𑢵𑣈𑣗𑣠ంಂംංᴑꬽ\u05e1\u0647\u0665\u06be\u06c1\u06d5\u07c0",
    "oe": "Œœ",
    "oo": "ꚘꚙꝎꝏ∞",
    "p": "ΡρРрᏢᑭᒆᴩⲢⲣꓑꮲ𐊕⍴",
    "q": "ԛգզᶐⵕԚ",
    "qe": "🜀",
    "r": "ƦгґᎡᏒᖇᴦⲅꓣꭇꭱꮁꮢ𐒴𖼵𝈖ꭈ",
    "rn": "𑜀𑣣",
    "s": "ƽβЅѕՏᏕᏚᏰꓢꞵꮪ𐊖𐐠𐑈𑣁𖼺",
    "sss": "🝜",
    "t": "ΤτТтႠᎢᎿⲦꓔꭲ𐊗𐊱𐌕𑢼𖼊⊤⟙🝨",
    "t3": "Ꜩ",
    "tf": "ꝷ",
    "ts": "ʦ",
    "u": "υՍսሀᑌᑧꓴꞟ𐓎𐓶𑢸𑣘𖽂∪⋃ʋꭎꭒ",
    "ue": "ᵫ",
    "uo": "ꭣ",
    "v": "νѴѵ۷Ꮩᐯⴸꓦꛟꮩ𐔝𑜆𑢠𑣀𖼈∨⋁𝈍\u05d8\u0667",
    "vb": "🝬",
    "w": "ɯѡԜԝաᎳᏔꓪꮃ𑜊𑜎𑜏𑣦𑣯",
    "x": "ΧХхᕁᕽᚷⲬⵝꓫꞳ𐊐𐊴𐌗𐌢𐔧𑣬×᙭᙮╳⤫⤬⨯",
    "y": "ɣΥγУуҮүყᎩᎽⲨꓬ𐊲𑢤𑣜𖽃ᶌỿꭚ",
    "z": "ΖᏃꓜꮓ𐋵𑢩𑣄𑣥",
}
"""Letters, digits and symbols beyond ASCII that look like these, from Unicode's confusables (UTS 39).

Left out is what compatibility decomposition or the character's own name tells already.
"""
_LIKE = {character: like for like, characters in _LOOK_ALIKES.items() for character in characters}
SIGNS_LIKE_LETTERS = frozenset(c for c, like in _LIKE.items() if like and not c.isalnum())
"""Signs and marks that a reader takes for Latin letters or digits."""
_BEYOND_ASCII = dict(zip("ϐϸϷҪҫћҿӘәӡⵁ", "ßþÞÇçħęƏəʒØ", strict=True))
"""Letters of other scripts that look like Latin letters of today beyond ASCII, from the same source."""
_DRAWN_SO = re.compile("LATIN (LETTER SMALL CAPITAL [A-Z]|SMALL LETTER SCRIPT [A-Z])$")  # others' names say more
_ONE_STROKE = str.maketrans("i1|0", "lllo")


def normal_form(name: str) -> str:
    """Letters and digits of a name: compatibility forms resolved, case folded, marks and separators gone.

    It works character by character, so that a part of a name stays a part of its normal form. Names that differ in
    case, separators, camel humps, full width, accents or invisible characters have the same.

    >>> normal_form("mcp__Mail.send-Email"), normal_form("ｓｅｎｄＥ\u200bmáil")
    ('mcpmailsendemail', 'sendemail')
    """
    if name.isascii():
        return "".join(filter(str.isalnum, name)).lower()
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).casefold())
    return "".join(c for c in folded if c.isalnum() and c not in _FILLERS)


def _looks(name: str) -> str:
    """The normal form of what a reader takes the name for: look-alikes are one, as are 1, l, I and i, or 0 and O."""
    if name.isascii():
        return "".join(filter(str.isalnum, name.lower().translate(_ONE_STROKE)))
    seen = []
    name = "".join([_LIKE.get(c, c) for c in name])  # before it is decomposed: that may give another sign
    for c in unicodedata.normalize("NFKD", name):
        if c.isascii():
            seen.append(c.lower())
        elif unicodedata.category(c)[0] not in "MC" and c not in _FILLERS:
            seen.append(_LIKE.get(c) or _named(c) or "".join(_LIKE.get(low, low) for low in c.casefold()))
    return "".join(c for c in "".join(seen).translate(_ONE_STROKE) if c.isalnum())


def _named(c: str) -> str:
    """The ASCII letter or digit that a character's name or value says it is, or nothing."""
    if c in _LIKE:
        return ""
    found = _LETTER.search(unicodedata.name(c, ""))
    digit = unicodedata.digit(c, None)
    return found[1].lower() if found else "" if digit is None else str(digit)


def _may_mislead(name: str) -> bool:
    """Return False for plain names without look-alike letters."""
    return not name.isascii() or any(c in name for c in "I01|")


def reordered(name: str) -> bool:
    """Return True for a name with direction marks, which readers see differently from how it is written.

    >>> reordered("\u202eyap")
    True
    """
    return not _REORDERING.isdisjoint(name)


@functools.lru_cache(maxsize=4_096)
def looks_like(character: str) -> str:
    """The Latin letters or digits that a reader takes another character for; empty for any that he does not.

    >>> looks_like("\u0430"), looks_like("\u0451"), looks_like("ж"), looks_like("é")
    ('a', 'ë', '', '')
    """
    if character.isascii():
        return ""
    plain = unicodedata.normalize("NFKD", character)
    if plain.isascii() and plain.isalnum():
        return plain
    drawn_so = _DRAWN_SO.match(unicodedata.name(character, ""))
    like = _LIKE.get(character) or _BEYOND_ASCII.get(character) or (_named(character) if drawn_so else "")
    if like or plain == character:
        return like
    base, marks = looks_like(plain[0]), plain[1:]
    if base and all(map(unicodedata.combining, marks)):
        return unicodedata.normalize("NFC", base + marks)
    whole = unicodedata.normalize("NFKC", character)
    latin = whole != character and all(unicodedata.name(c, "").startswith("LATIN") for c in whole)
    return whole if latin else ""


class NamePatterns:
    """Matches names that contain one of some patterns, in normal form or as a reader sees them."""

    __slots__ = ("_forms", "_known")

    def __init__(self, patterns: Iterable[str]) -> None:
        found = ((normal_form(p), _looks(p), _may_mislead(p)) for p in patterns)
        self._forms = tuple(form for form in found if form[0])
        self._known: dict[str, bool] = {}

    def match(self, name: str) -> bool:
        """True when the name contains one of the patterns."""
        known = self._known.get(name)
        if known is None:
            known = self._look(name)
            if len(name) <= _MAX_CACHED_LENGTH:
                if len(self._known) >= _MAX_CACHED_NAMES:
                    self._known.clear()
                self._known[name] = known
        return known

    def _look(self, name: str) -> bool:
        if reordered(name):
            return bool(self._forms)
        form, looks, misleading = normal_form(name), _looks(name), _may_mislead(name)
        return any(plain in form or ((misleading or odd) and seen in looks) for plain, seen, odd in self._forms)


@functools.lru_cache(maxsize=256)
def patterns_of(patterns: tuple[str, ...]) -> NamePatterns:
    """The patterns, brought to their normal form once."""
    return NamePatterns(patterns)


def refusal_of(pattern: object) -> tuple[str, str] | None:
    """The fault of a pattern that protects nothing, as rule and way out; None for one that can match."""
    if not isinstance(pattern, str) or not normal_form(pattern):
        return "a list of names with a letter or digit in each", "An empty pattern would match every tool, or none."
    seen = unicodedata.normalize("NFKC", pattern)
    if _MARKS.search(seen):
        plain = max(_MARKS.split(seen), key=len).strip("_-. ")
        rule = "a list of plain parts of names, without the marks of globs, regular expressions and lists"
        return rule, f"A pattern matches every tool whose name contains it: write {plain!r:.80}."
    return None


def whole_name_keys(name: str) -> tuple[str, str]:
    """The keys that a name shares with every other spelling of all of it: as read, and as mistaken.

    >>> whole_name_keys("bank.payNow")
    ('bankpaynow', '~bankpaynow')
    """
    return normal_form(name), f"~{_looks(name)}"


def same_tool_keys(name: str) -> tuple[str, ...]:
    """The keys that a name shares with every other spelling of the same tool.

    The first two are of the whole name, the others of its endings that start a word: a namespace or prefix is before.
    These cost as much as the name's square: for a name alone `whole_name_keys` do.

    >>> same_tool_keys("bank.payNow")
    ('bankpaynow', '~bankpaynow', 'paynow', '~paynow', 'now', '~now')
    """
    return _same_tool_keys(name) if len(name) <= _MAX_CACHED_LENGTH else _same_tool_keys.__wrapped__(name)


@functools.lru_cache(maxsize=_MAX_CACHED_NAMES)
def _same_tool_keys(name: str) -> tuple[str, ...]:
    words = _WORDS.split("".join(_written(c) for c in unicodedata.normalize("NFKC", name)))
    first = max(1, len(words) - _MAX_ENDINGS)
    tails = [name, *("_".join(words[start:]) for start in range(first, len(words)))]
    return tuple(key for tail in tails for key in whole_name_keys(tail))


def _written(c: str) -> str:
    """A character of a word as it is, nothing for one that nobody sees, and an underscore for any between words."""
    if c.isalnum() or _looks(c):
        return c
    return "" if unicodedata.category(c)[0] in "MC" or c in _FILLERS else "_"


def glob_keys(glob: str) -> tuple[str, ...]:
    """A glob over the keys of `same_tool_keys`: it matches in any spelling; nothing for one with character classes.

    >>> glob_keys("Delete_*")
    ('delete*', '~delete*')
    """
    if "[" in glob:
        return ()
    parts = re.split(r"([*?])", glob)
    plain, seen = ("".join(p if p in "*?" else form(p) for p in parts) for form in (normal_form, _looks))
    return plain, f"~{seen}"
