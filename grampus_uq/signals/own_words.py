"""Extracts the model's own words: removes quotations, code, markup and other speakers' lines.

What lies between the first mark of a kind and the last one is taken out whole. A quoted text that contains the mark
itself therefore cannot end its own quotation and go on in the model's name.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

GAP: Final = "\ufffc"
"""Stands where something was taken out."""
BLOCK_GAP: Final = "\ufffb"
"""Stands for a line of a block quotation, which goes on over the lines that follow it in its paragraph."""

_WINDOW = 4_000  # of a longer text the head and the tail are read: a statement about it stands at one of its ends
_MOST_SHOWN = 1_000  # quotations in one text; what follows is not read
_MOST_LINES = 5_000

_FENCE = re.compile(
    r"(?:^[ \t]{0,12}+(?:[-*+][ \t]+|[0-9]{1,3}[.)][ \t]+)?|(?<=[ \t:.])(?=[`~]+[a-z]{0,12}[ \t]*$))"
    r"(`{3,99}|~{3,99})([^`\n]*)$",
    re.MULTILINE,
)
_QUOTED_LINE = r"[ \t]{0,12}+(?:[-*+][ \t]+|[0-9]{1,3}[.)][ \t]+)?>.*"
_QUOTED_LINES = re.compile(rf"^{_QUOTED_LINE}(?:\n{_QUOTED_LINE})*", re.MULTILINE)
_PAIR_OF_TICKS = re.compile(r"`(?=[^`]*`)|`(?=`)")
_PAIR_OF_STRIKES = re.compile(r"~~(?=[^~].*~~)", re.DOTALL)
_CODE_LINE = re.compile(r"^(?: {4}|\t).*\S.*$", re.MULTILINE)
_OWN_MARKUP = r"answer|final_answer|response|explanation|confidence|confidence_score"
_FORMATTING = r"br|hr|b|i|em|strong|p|u|li|ul|ol|sub|sup"
_FOREIGN_TAG = re.compile(
    rf"(?<!\w)<(?:[|<]|!--|(?!/?(?:{_OWN_MARKUP}|{_FORMATTING})[\s/>])(/?)[a-z][\w:.-]{{0,60}}(?=[\s/>]))",
    re.IGNORECASE,
)
_LAST_FOREIGN_END = re.compile(
    rf".*(?:-->|</(?!(?:{_OWN_MARKUP}|{_FORMATTING})[\s>])[a-z][\w:.-]{{0,60}}[^<>]{{0,60}}>)",
    re.DOTALL | re.IGNORECASE,
)
_BREAKING_TAG = re.compile(r"</?(?:answer|final_answer|response|explanation|br|hr|p|li|ul|ol)\s?/?>", re.IGNORECASE)
_ENTITY = re.compile(
    r"&(?:(?:quot|[lr][sd]quo|bdquo|[lr]aquo|gt|#(?:34|39|62));|(?:lt|#60);(?!/?confidence))", re.IGNORECASE
)
_BRACKET_TAG = re.compile(r"\[(/?)([a-z]{1,20})(?:[= ][^\[\]\n]{0,80})?\]", re.IGNORECASE)
_LATEX = re.compile(r"\\(begin|end)\{(?:display)?(?:quot(?:e|ation)|verbatim|lstlisting)\}")
_INLINE_TAG = re.compile(r"</?(?:b|i|em|strong|u|sub|sup)>", re.IGNORECASE)
_MARKS = '"“”„‟«»‹›「」『』〝〞＂'
_OPENS = re.compile(r"[“„‟«‹「『〝»›]|(?<!\w)[\"＂]|[\"＂](?=\w)")
_STILL_OPENS = re.compile(
    r"[„‟‹「『〝]|(?<=\s)«(?=\s)|(?<![\w.,!?;:%)\]}'’>…\ufffc\ufffb])[\"＂](?=[\w(\[{<$€#@/+'‘-])|(?<!\w)[“«](?=\S)"
)
_SINGLE_MARKS = "'‘‚"
_SINGLE_OPENS = re.compile(r"(?:(?<=[\s(\[{:;,=>—–\"“\ufffc])|\A)['‘‚]")
_LAST_SINGLE_CLOSE = re.compile(r".*['’](?!\w)", re.DOTALL)
SPEAKER = re.compile(
    r"^[^\w\n]{0,12}+(?:(?:user|customer|client|human|system|developer|assistant|agent|bot|tool|function|observation"
    r"|environment|stdout|stderr|email|transcript|search results?)s?(?:['’]s)?"
    r"(?:[ _-](?:output|results?|response|reply|messages?|input|turn|log|text|says|said|wrote|[0-9]{1,4}))?"
    r"(?: ?[(\[][^\n()\[\]]{0,40}[)\]])?(?:[^\w\n:.!?,;]{0,12}$|[*_ ]{0,6}:[^\n]{0,8}\S)"
    r"|(?:from|to|cc|subject|re|fwd):|dear [^\n.]{1,40},?$|-{2,9}[^\n-]{0,40}(?:begin|start|original|forwarded))",
    re.MULTILINE | re.IGNORECASE,
)


_MARK = re.compile(rf"[<>`~{_MARKS}{_SINGLE_MARKS}]")
"""In every text that shows something."""


class OwnWords(NamedTuple):
    """The model's own text, with a `GAP` or `BLOCK_GAP` for each part taken out.

    `rest` is the text from the beginning of a dialogue or letter on; `open`: the text ends in a quotation or in `rest`.
    """

    text: str
    rest: str
    open: bool


_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def as_read(text: str) -> str:
    """The text as a reader sees it: compatibility forms (full width, ligatures) resolved, invisible characters gone.

    >>> as_read("Con\u00adfidence： １０％")
    'Confidence: 10%'
    """
    return unicodedata.normalize("NFKC", _INVISIBLE.sub("", text))


def own_words(text: str) -> OwnWords:
    """Take out all text that the model only shows. Linear time; of a long text only its two ends are kept.

    >>> own_words('The page says "I am 100% sure". It may be wrong.').text.replace(GAP, "...")
    'The page says .... It may be wrong.'
    """
    text = "\n".join(text.splitlines())
    text = _ENTITY.sub(lambda mark: html.unescape(mark[0]), text) if "&" in text else text
    text = _BRACKET_TAG.sub(r"<\1\2>", text) if "[/" in text else text
    text = _LATEX.sub(lambda mark: "<quote>" if mark[1] == "begin" else "</quote>", text) if "\\end{" in text else text
    text, opened = _shown(text) if _MARK.search(text) else (text, False)
    text = _INLINE_TAG.sub("", _BREAKING_TAG.sub("\n", text)) if "<" in text else text
    rest = ""
    if len(text) > 2 * _WINDOW:
        text, rest = _ends(text)
    if "    " in text or "\t" in text:
        text = _CODE_LINE.sub(GAP, text)
    speaker = SPEAKER.search(text)
    if speaker is not None:
        text, rest = text[: speaker.start()], f"{text[speaker.start() :]}\n\n{rest}"
    return OwnWords(text, rest, opened or bool(rest))


def _ends(text: str) -> tuple[str, str]:
    """Head and tail of a long text; apart when a dialogue begins between them, or there are too many lines to tell."""
    head, tail = text[:_WINDOW], text[-_WINDOW:]
    between = len(text) - _WINDOW
    if text.count("\n", _WINDOW, between) > _MOST_LINES or SPEAKER.search(text, _WINDOW, between):
        return f"{head}{GAP}", f"{GAP}{tail}"
    return f"{head}{GAP}\n\n{GAP}{tail}", ""


def _shown(text: str) -> tuple[str, bool]:
    """The text without what it shows, and whether the last quotation is unclosed; the first to open goes first."""
    kept: list[str] = []
    at = 0
    openings = {kind: kind.opens(text, 0) for kind in _KINDS}
    for _ in range(_MOST_SHOWN):
        kind = min(_KINDS, key=openings.__getitem__)
        start = openings[kind]
        if start == len(text):
            return "".join([*kept, text[at:]]), False
        end = kind.closes(text, start)
        if end is None:
            break
        end = _with_crossing(text, openings, end)
        kept += [text[at:start], kind.trace]
        at = end
        for other, opening in openings.items():
            if opening < at:
                openings[other] = other.opens(text, at)
    return "".join([*kept, text[at : openings[kind]], GAP]), True


def _with_crossing(text: str, openings: Mapping[_Kind, int], end: int) -> int:
    """The end of a part, extended over parts that open within it and close after it."""
    for _ in _KINDS:
        line = _QUOTED_LINES.match(text, text.rfind("\n", 0, end) + 1)
        further = [kind.closes(text, opening) for kind, opening in openings.items() if opening < end]
        latest = max(end, *(at for at in further if at is not None), line.end() if line else 0)
        if latest == end:
            break
        end = latest
    return end


class _Kind(NamedTuple):
    """One way to show a text: where the next one opens (the text's length for nowhere), where it closes (None for not).

    All but block quotations close with the last mark of their kind.
    """

    opens: Callable[[str, int], int]
    closes: Callable[[str, int], int | None]
    trace: str = GAP


def _first(pattern: re.Pattern[str], marks: Sequence[str]) -> Callable[[str, int], int]:
    """The first match of a pattern, sought from the first of the marks on, one of which is in every match."""

    def opens(text: str, start: int) -> int:
        found = [at for at in (text.find(mark, start) for mark in marks) if at >= 0]
        if not found:
            return len(text)
        line = text.rfind("\n", start, min(found)) + 1  # a pattern may begin before the mark, on its line
        match = pattern.search(text, max(start, line))
        return len(text) if match is None else match.start()

    return opens


def _fence_end(text: str, start: int) -> int | None:
    """A fence is closed by one of its own kind, at least as long, without a word after it."""
    mark, end = "", None
    for count, match in enumerate(_FENCE.finditer(text, start)):
        if count == _MOST_SHOWN:
            return None
        if not mark:
            mark = match[1]
        elif match[1].startswith(mark) and not match[2].strip():
            mark, end = "", match.end()
    return None if mark else end


def _block_quotation_end(text: str, start: int) -> int:
    match = _QUOTED_LINES.match(text, start)
    return start if match is None else match.end()


def _element_end(text: str, start: int) -> int | None:
    last = _LAST_FOREIGN_END.match(text, start)
    return None if last is None or _FOREIGN_TAG.search(text, last.end()) else last.end()


def _double_end(text: str, start: int) -> int | None:
    last = max(text.rfind(mark) for mark in _MARKS)
    return None if last == start or _STILL_OPENS.match(text, last) else last + 1


def _single_end(text: str, start: int) -> int | None:
    last = _LAST_SINGLE_CLOSE.match(text, start + 1)
    return None if last is None else last.end()


def _last(mark: str) -> Callable[[str, int], int | None]:
    return lambda text, start: text.rfind(mark, start + len(mark)) + len(mark)  # there is one: it opens with two


_KINDS: Final = (
    _Kind(_first(_QUOTED_LINES, (">",)), _block_quotation_end, BLOCK_GAP),
    _Kind(_first(_FENCE, ("```", "~~~")), _fence_end),
    _Kind(_first(_FOREIGN_TAG, ("<",)), _element_end),
    _Kind(_first(_OPENS, tuple(_MARKS)), _double_end),
    _Kind(_first(_SINGLE_OPENS, tuple(_SINGLE_MARKS)), _single_end),
    _Kind(_first(_PAIR_OF_TICKS, ("`",)), _last("`")),
    _Kind(_first(_PAIR_OF_STRIKES, ("~~",)), _last("~~")),
)
