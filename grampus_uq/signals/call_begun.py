"""Finds the beginnings of calls in a text by the marks of known forms, and the calls left open.

A call that is begun and lost some of its tokens writes no call, and what stands behind it must not lend it a value.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from grampus_uq.records.values import ToolCall
from grampus_uq.signals.call_rest import Rest, long_leaves, lowered
from grampus_uq.signals.prose import Span

_FAR: Final = 200  # characters from what begins a call to a name that is read
_FORM: Final = (
    r"[\"']name[\"']\s{0,8}:\s{0,8}(?:[\"'][^\"'\n]{0,64}[\"'],?\s{0,8}|\s{0,8})[\"'](?:arguments|parameters)\b"
    r"|\[tool_calls\]|\bto=functions\b|<(?!\w{1,30}\|>)[|｜]?(?:\w{1,12}[:|｜])?(?:start_)?(?:tool|function|invoke)"
    r"(?![^<>\n]{0,40}(?:[_▁ ]end|sep\b|argument))[^<>\n]{0,40}>?"
)
_MARKED: Final = re.compile(_FORM)
_ELEMENTS: Final = r"<[a-z_][\w.-]{0,63}>\s{0,8}<[a-z_][\w.-]{0,63}>[^<>\n]{0,200}</"
_LINE: Final = re.compile(r"\s{0,8}(?:action|tool)\s{0,4}:", re.MULTILINE)
_GIVEN: Final = r"[\"'](?:arguments|parameters)[\"']\s{0,8}:\s{0,8}[\"']?\{\s{0,8}\\?[\"']"
_STRONG: Final = re.compile(rf"{_FORM}|{_ELEMENTS}|{_GIVEN}|{_LINE.pattern}")
_BEGUN: Final = re.compile(
    rf"{_FORM}|{_ELEMENTS}|{_GIVEN}|[\"'](?:name|tool|tool_name|function|action|recipient_name)[\"']\s{{0,8}}:"
    rf"|^{_LINE.pattern}"
    r"|^[\s\[]{0,8}(?:\((?:[^a-z()\n]|\b[a-z]\b){0,40}\)|[a-z_][\w.-]{0,63}\(|\([a-z_][\w.-]{0,63}(?:\s{1,4}[:)]|:\w"
    r"|\)[^\S\n]{0,8}$)|<(?!arg_|param)(?:[a-z_][\w.-]{0,63})?>\s{0,8}<)",
    re.MULTILINE,
)
_CLOSED: Final = re.compile(r"[})]|</")
"""End of a call: a call after it is another one."""
_CUT: Final = re.compile(  # at the end of a text
    r"(?:(?:[{\[]|<(?![\s\d=-])|^[^\S\n]*\()[^{}\[\]<>()\n]{0,64}|<[|｜](?:start|channel)[|｜]>[^<>{}]{0,64}"
    r"|^```\w{1,12}\s{0,4}|^(?:action|tool)(?:\s{1,4}input)?\s{0,4}:?\s{0,4})\Z",
    re.MULTILINE,
)
_NEAR: Final = 60  # characters from what begins a call to its name or its arguments
_REGION: Final = 400  # characters behind what begins a call that are taken for it
FORM_WORDS: Final = re.compile(  # marks, and words that are not a name, key or value
    r"</[^<>\n]{1,64}>|(?<=[<|｜])\w{1,12}[:|｜]|#[^\n]*|\b(?:string|type)=\"\w{0,12}\"|(?<![^\W_])(?:arg(?:ument)?s?|param(?:eter)?s?|kwargs"
    r"|inputs?|action|names?|keys?|values?|items?|types?|strings?|integers?|numbers?|json|constrain|message|channel"
    r"|commentary|functions?|(?:tool)?calls?|tools?|recipient|section|invoke|sep|begin|escape|start|assistant"
    r"|to=functions)(?=[\W_]|$)|[_\W]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A call that is begun, and that nothing that is read follows: `span` is what may be of it.

    `strong`: it has the marks of a call. A draft without any stands for none beside a call that has them.
    """

    span: Span
    strong: bool


def left_open(rest: Rest, spans: Sequence[Span], names: Sequence[str], since: int) -> list[Open]:
    """The calls that a text begins, where neither a place that is read nor one of the spans is what follows.

    `spans`: where calls are written in the rest; `names`: of these calls; `since`: behind the thoughts, where drafts
    may stand.
    """
    known, inside = sorted(at for at, _ in (*spans, *rest.taken)), joined(iter(spans))
    found: list[Open] = []
    for one in _BEGUN.finditer(rest.code, since):
        if covers(inside, one.start()):
            continue
        place = bisect_left(known, one.start())
        following = min(known[place] if place < len(known) else len(rest.text), one.end() + _REGION)
        between = rest.code[one.start() : following]
        for name in names if _LINE.match(one[0]) else ():
            between = between.replace(lowered(name), "")
        if place < len(known) and not _CLOSED.search(between) and not FORM_WORDS.sub("", between):
            continue
        begin = max(known[place - 1] if place else 0, one.start() - _FAR)
        found.append(Open(span=(begin, following), strong=_STRONG.match(rest.code, one.start()) is not None))
    return found


def may_be(rest: Rest, call: ToolCall, others: Sequence[int], opened: Sequence[Open]) -> bool:
    """True where one of the calls left open may be this one, which lost a value that a line behind it must not lend.

    `others`: where values of the call stand. One of which little can be told by its values may be any.
    """
    if not opened:
        return False
    keys = (begin for key in call.arguments for begin, _ in rest.keys(key))
    return holds(sorted([*rest.mentions(call.name), *keys, *others]), opened) or not long_leaves(call)


def holds(places: Sequence[int], opened: Sequence[Open]) -> bool:
    """True where one of the places, in order, is in one of those left open."""
    for begin, end in (one.span for one in opened):
        at = bisect_left(places, begin)
        if at < len(places) and places[at] < end:
            return True
    return False


def begins_another(rest: Rest, behind: int, but: Sequence[Span] = ()) -> bool:
    """True where a call is begun behind a place, and neither one that is read stands there nor one of the spans."""
    known = sorted(at for at, _ in (*but, *rest.taken))
    return any(not _leads_to_one(rest, one.start(), one.end(), known) for one in _BEGUN.finditer(rest.code, behind))


def _leads_to_one(rest: Rest, begin: int, end: int, known: Sequence[int]) -> bool:
    """True where nothing but words of a form stand between what begins a call and one that is known."""
    place = bisect_left(known, begin)
    if place == len(known) or known[place] > end + _FAR:
        return False
    between = rest.text[end : known[place]]
    return not _CLOSED.search(between) and (known[place] <= end + _NEAR or not FORM_WORDS.sub("", between))


def is_cut(rest: Rest, behind: int = 0) -> bool:
    """Return True if the text ends inside something opened after a position; a whole turn does not."""
    return _CUT.search(rest.code, max(len(rest.code) - _FAR, behind)) is not None


def is_marked(rest: Rest, at: int | None = None) -> bool:
    """True where a text holds what only calls are begun with; at one place, where that is given."""
    return (_MARKED.search(rest.code) if at is None else _MARKED.match(rest.code, at)) is not None


def is_strong(rest: Rest, span: Span) -> bool:
    """Return True if a call's marks precede the written call."""
    for one in _STRONG.finditer(rest.code, max(span[0] - _FAR, 0), span[1]):
        if one.end() >= span[0] or not FORM_WORDS.sub("", rest.code[one.end() : span[0]]):
            return True
    return False


def joined(spans: Iterator[Span]) -> list[Span]:
    """The spans in order, those that overlap as one."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def covers(spans: Sequence[Span], at: int) -> bool:
    place = bisect_right(spans, at, key=lambda span: span[0]) - 1
    return place >= 0 and at < spans[place][1]
