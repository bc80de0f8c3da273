"""Finds calls in unknown forms: the name, then each value at its key or in order.

A line before the call may hold the same words, and lend them to a call that lost them. So of several places of a name
or a key the last counts, it has to hold on to what is behind it, and nothing of the call may stand behind all that is
written. What stands between a name and the first key opens no other call (`_JOINT`), and what stands between a key and
its value holds no word (`_TO_VALUE`).
"""

from __future__ import annotations

import itertools
import operator
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from pydantic import JsonValue

from grampus_uq.records.values import ToolCall
from grampus_uq.signals.atomic_patterns import atomic
from grampus_uq.signals.call_begun import FORM_WORDS, Open, begins_another, covers, is_marked, joined, left_open
from grampus_uq.signals.call_places import MARKS, is_begun
from grampus_uq.signals.call_rest import MOST_LEAVES, Leaf, Rest, leaves
from grampus_uq.signals.prose import Span

_FAR: Final = 200  # characters from a name to the first key, and from a key to its value
_MOST_SLOTS: Final = 4_096  # places of one key: of more, none is known to hold the value
_MOST_STARTS: Final = 8  # places of a value that are looked at behind one key
_JOINT: Final = re.compile(
    r"[ \t\"'`]{0,8}\(\s*[{\[\"'\s]{0,8}"
    r"|[\"']?>\s*<(?:[|｜]?(?:[a-z]{1,12}[:|｜])?[a-z]{1,12}[\s=](?:name=)?[\"']?)?"
    rf"|{MARKS}[={{\"'\\\s]{{0,40}}"
)
_BY_POSITION: Final = re.compile(
    r"[ \t\"'`]{0,8}\(\s{0,8}[\[\"'\s]{0,8}|\s{0,8}(?:(?:[a-z]{1,12}[ _])?input\s{0,8}:)?\s{0,8}[\"']?"
)
_NEXT: Final = re.compile(r"[\"'`\])\s]{0,8},?[\"'`\[\s]{0,8}")  # between two arguments by position
_TO_VALUE: Final = re.compile(  # what closes an argument ends it: behind that nothing is its value
    r"(?:</[^<>\n]{1,40}>\s{0,8}<[^<>\n=]{0,20}value[^<>\n=]{0,10}>|\s\w{1,12}=\"\w{0,12}\"(?=\s{0,8}>)"
    r"|(?<=[>\[{(|])[^\S\n]{0,8}\n|(?<=[\"'`])#|(?<=[:=])\s?<(?:escape|\|\"\|)>|[^\w<\n})\]#/(!~^-])*"
)
_TO_LEAF: Final = re.compile(r"[^\w<]*")  # from one of a structure's texts and numbers to the next
_QUOTED: Final = re.compile(r"[\"'`][$€£¥#+]?$")
_CLOSED: Final = re.compile(r"[$€£¥%]{0,2}\\{0,4}[\"'`]")
_ESCAPED: Final = re.compile(r"<(?:escape|\|\"\|)>$")
_INSIDE: Final = re.compile(r">\s*$")  # of an element
_ENDED: Final = re.compile(r"[^\S\n]{0,8}(?:$|[,;)\]}<>|&#\n]|:?[\w-]{1,64}[\"'`\\]{0,4}[:=]|:[a-z])")
_EMPTY: Final = re.compile(
    r"(?P<gap>[^\w\"'<]*(?:[\"'\\]{1,4}(?:\s\w{1,12}=\"\w{0,12}\")?\s{0,4}[:=>]\s{0,4})?(?:</\w{1,40}>\s{0,8}<\w{1,40}>)?"
    r"(?:<escape>|<\|\"\|>)?)(?:\\?\"\\?\"|''|</|<escape>|<\|\"\|>|null|none|[,)}\n]|$)"
)
_CLOSING_ANY: Final = re.compile(r"[$€£¥%]{0,2}\s{0,8}</")
_NOTHING_BEHIND: Final = re.compile(r"(?:<escape>|<\|\"\|>)?[\s\"'`\\,:]*\Z")
_CLOSING: Final = re.compile(r"\s{0,8}</([^<>\n]{1,64})>")
_VARIABLE: Final = re.compile(r"\s{0,4}=\s{0,4}([a-z_]\w{0,63})\s{0,4}[,)]")
_NOTHING_MORE: Final = re.compile(
    rf"(?:[ \t\"'`]{{0,8}}\(\s{{0,8}}\)|{MARKS}(?:\{{\s{{0,8}}\}})?)"
    + atomic(
        r"(?:[\s\"'`\])}>,;.*\\]|[/|｜]>|</?[|｜]?(?![^<>\n]{0,40}(?:begin|start|channel))[/|｜][^<>\n]{1,40}>"
        r"|</[^<>\n]{1,40}>|<end_\w{1,30}>|<\w{1,30}\|>)*",
        "closing",
    )
    + r"[\s<\[({|-]*"
)
_ITS_END: Final = re.compile(  # behind a value, or the key of an empty one
    atomic(r"(?:[\s\"'`\])}>,;.*\\:=]|<escape>|<\|\"\|>|</[^<>\n]{1,64}>|<end_\w{1,30}>|<\w{1,30}\|>)*", "ending")
)
_OPENS_OR_CLOSES: Final = re.compile(r"(?P<opens>\{|<(?!escape>|\|\"\|>)[^<>/\s][^<>\n]{0,64}>)|\}|</[^<>\n]{1,64}>")
_AROUND: Final = re.compile(r"(?:<[^<>\s/][^<>\n]{0,80}>\s{0,8}){1,4}\[?\s{0,8}(?:<[^<>\n]{0,40})?$")
_TAG: Final = re.compile(r"<([^<>\s/][^<>\s]*)")
_NEXT_CALL: Final = re.compile(
    rf"{_NOTHING_MORE.pattern}(?:<[^<>\n]{{1,40}}>\s{{0,8}}(?:function\b)?){{0,4}}[<{{\[(\s\"']{{0,8}}"
    r"(?:[|｜]?(?:[a-z]{1,12}[:|｜])?[a-z_]{2,10}[\"']?\s{0,4}[:= ]\s{0,4}(?:name=)?[\"']?)?(?:functions\.)?"
)
_MOST_COPIES: Final = 16
_FORM: Final = 6  # characters around a name that tell one form from another
_AFTER: Final = re.compile(  # what closes a value
    r"[$€£¥%]{0,2}[\"'`\\]{0,8}(?:<(?:escape|\|\"\|)>)?(?P<element>\s{0,8}</[^<>\n]{1,64}>)?(?:[^\S\n]+(?:#|//)[^\n]*)?"
)
_MORE: Final = re.compile(  # and what follows it where the call goes on
    r"\s*,\s*[^\s}\])]|\s+:\w|[^\S\n]+[\w-]+\s?=|[^\S\n]*[\w$&|#@~^*+/%-]|[^\S\n]*[;.!?][^\S\n]*\w"
)
_MORE_LINES: Final = re.compile(
    r"[^\S\n]*\n([ \t]*)[\"']?(?!(?:tool|name|action|observation|thought)\b)[a-z_][\w-]*[\"']?:(?=\s)"
)
_MORE_ELEMENTS: Final = re.compile(r"\s*<(?:(?![/|｜]|end_)|[|｜](?=[^<>\n]{0,40}param))")
_NAMED_LAST: Final = re.compile(
    r",\s{0,8}[\"'](?:name|tool|tool_name|function|action)[\"']\s{0,4}:\s{0,4}[\"'](?:[\w-]{1,64}\.)?$"
)


class _Slot(NamedTuple):
    """A place of a key, and where the value of this key ends that stands there; None where another one does."""

    begin: int
    end: int | None


class _Value(NamedTuple):
    """An argument's value: its texts and numbers in their order, the keys in it in small letters, long ones first."""

    leaves: Sequence[Leaf]
    keys: Sequence[str]
    is_empty: bool


_begin = operator.attrgetter("begin")
_Slots = Sequence[Sequence[_Slot]]  # of each argument


class Written:
    """Places of the calls in the rest of a text; text before `since`, the end of the thoughts, counts for none.

    `all` are the spans, and `own` that of each call, None where it is not certain: no span is two calls' own, and equal
    calls are written as often as they are listed, in one form. `opened`: what is begun and left open beside them.
    `given`: what calls hold, where no name is a call's.
    """

    def __init__(self, rest: Rest, calls: Sequence[ToolCall], since: int = 0, given: Sequence[Span] = ()) -> None:
        self._rest, self._calls, self._since = rest, calls, since
        self._values = [[_value(value) for value in call.arguments.values()] for call in calls]
        self._slots = [_slots(rest, call, values) for call, values in zip(calls, self._values, strict=True)]
        inside = joined((x.begin, x.end) for own in self._slots for found in own for x in found if x.end is not None)
        self._names = [[at for at in rest.mentions(call.name) if not covers(inside, at)] for call in calls]
        self._bounds = sorted({at for own in self._names for at in own})
        self._free = [[at for at in own if not covers(given, at)] for own in self._names]

    @cached_property
    def _found(self) -> list[list[Span]]:
        of_calls = zip(self._calls, self._values, self._slots, self._free, strict=True)
        return [list(itertools.islice(_written(self._rest, *one, self._bounds), _MOST_COPIES)) for one in of_calls]

    @cached_property
    def all(self) -> list[Span]:
        """The spans of all writings, each of which is whole."""
        return [span for own in self._found for span in own]

    @cached_property
    def opened(self) -> list[Open]:
        """The slots begun and left open beside all that is written."""
        return left_open(self._rest, self.all, [call.name for call in self._calls], self._since)

    @cached_property
    def own(self) -> list[Span | None]:
        """The span of each call."""
        rest, spans = self._rest, joined(iter(self.all))
        behind = [[span for span in own if span[0] >= self._since] for own in self._found]
        chosen = _one_each(rest, self._calls, behind)
        begins = {span[0] for span in chosen if span}
        certain: list[Span | None] = []
        for call, slots, places, span in zip(self._calls, self._slots, self._names, chosen, strict=True):
            if span is not None:
                later = [at for at in places if at > span[0] and at not in begins and rest.is_opened(at, call.name)]
                meant = [one.begin for found in slots for one in found if one.end is None]
                meant += (at for at in rest.long_values(call) if not rest.is_in_words(at))
                stray = any(at >= span[1] and not covers(spans, at) for at in meant)
                if later or stray or begins_another(rest, span[1], [(at, at) for at in self._bounds]):
                    span = None
            certain.append(span)
        return certain


def ends_around(text: str, at: int) -> list[str]:
    """The tags that end, behind the last of several calls, what is begun directly before the first one; each once."""
    begun = _AROUND.search(text, max(at - 512, 0), at)
    names = _TAG.findall(begun[0]) if begun else []
    once = (one for one in names if len(re.findall(rf"</?{re.escape(one)}[\s>]", text)) == 2)  # no call's own
    return [f"</{one}>" for one in once]


def closes_more(text: str, behind: int, around: Sequence[str]) -> bool:
    """True where a text closes, behind a call and its own end, what it opens neither there nor `around` all calls: what
    is left of another.
    """
    closed, depth, left = _ITS_END.match(text, behind), 0, [*around]
    for one in _OPENS_OR_CLOSES.finditer(text, closed.end() if closed else behind):
        depth += 1 if one["opens"] else -1
        if depth < 0:
            if one[0] not in left:
                return True
            left.remove(one[0])
            depth = 0
    return False


def _one_each(rest: Rest, calls: Sequence[ToolCall], found: Sequence[Sequence[Span]]) -> list[Span | None]:
    """The last span of each call that is no other's; of equal calls only those that are written as the last one is."""
    taken: dict[Span, ToolCall] = {}
    chosen: list[Span | None] = []
    for call, spans in zip(calls, found, strict=True):
        span = next((one for one in spans if one not in taken), None)
        if span is not None and span != spans[0] and _around(rest, call, span) != _around(rest, call, spans[0]):
            span = None
        if span is not None:
            taken[span] = call
        chosen.append(span)
    return chosen


def _around(rest: Rest, call: ToolCall, span: Span) -> tuple[str, str]:
    """Return the text of the line before a call's name, and the text after the name."""
    begin, behind = span[0], span[0] + len(call.name)
    line = rest.text.rfind("\n", 0, begin) + 1
    first, *more = rest.text[behind : behind + _FORM].splitlines()[:2] or [""]
    return rest.text[max(line, begin - _FORM) : begin], first or "".join(more)


def _slots(rest: Rest, call: ToolCall, values: Sequence[_Value]) -> list[list[_Slot]]:
    found: list[list[_Slot]] = []
    for key, value in zip(call.arguments, values, strict=True):
        spans = rest.keys(key)
        few = len(spans) <= _MOST_SLOTS
        found.append([_Slot(begin, _end_at_key(rest, begin, end, value) if few else None) for begin, end in spans])
    return found


def _written(
    rest: Rest, call: ToolCall, values: Sequence[_Value], slots: _Slots, names: Sequence[int], bounds: Sequence[int]
) -> Iterator[Span]:
    """The places of the name at which the call is written, whole, up to the end of its last value; the last first."""
    if not all(rest.places_of(leaf) for value in values for leaf in value.leaves):
        return  # which many names need not be looked at for
    for at in reversed(names):
        place = bisect_right(bounds, at)
        stop = bounds[place] if place < len(bounds) else len(rest.text)
        end = _end_of_arguments(rest, call, values, slots, at, stop) if is_begun(rest.text, at) else None
        if end is None or (call.arguments and _is_left_open(rest.text, at, end)):
            continue
        if _is_closed(rest, at, at + len(call.name), end):
            yield at, end


def _is_closed(rest: Rest, begin: int, behind: int, end: int) -> bool:
    """True unless a name is the mark of an element that another name closes."""
    if not rest.text.startswith("<", begin - 1) or not rest.text.startswith(">", behind):
        return True
    return f"</{rest.text[begin:behind]}>" in rest.text[end : end + _FAR] or not rest.text[behind + 1 :].strip()


def _is_left_open(text: str, at: int, end: int) -> bool:
    """True where a text ends behind the last value, in a bracket that it opened around or behind the name."""
    if _NOTHING_BEHIND.match(text, end) is None:
        return False
    form = text[at - (text[max(at - 1, 0) : at] == "(") : end]
    return sum(map(form.count, "{[(")) > sum(map(form.count, "}])"))


def _end_of_arguments(
    rest: Rest, call: ToolCall, values: Sequence[_Value], slots: _Slots, at: int, stop: int
) -> int | None:
    """Return the end of the arguments between a name and the next; None if anything else stands there."""
    behind = at + len(call.name)
    if not call.arguments:
        form = _NOTHING_MORE if stop == len(rest.text) else _NEXT_CALL
        last = _NAMED_LAST.search(rest.text, max(at - _FAR, 0), at)
        return behind if form.fullmatch(rest.code, behind, stop) and not last else None
    own = [found[bisect_left(found, behind, key=_begin) : bisect_left(found, stop, key=_begin)] for found in slots]
    end, gap = behind, _BY_POSITION
    for found, value in zip(own, values, strict=True):
        if not found:
            after = _end_of_value(rest, end, value, gap)
            if after is None or after > stop:
                return None
            end, gap = after, _NEXT
    written: list[Span] = []
    for found in own:
        whole = [(one.begin, one.end) for one in found if one.end is not None]
        if found and not whole:
            return None
        written += ([span for span in whole if not rest.is_in_words(span[0])] or whole)[-1:]
    first = min((begin for begin, _ in written), default=end)
    if first - end > _FAR or not (_JOINT if end == behind else _NEXT).fullmatch(rest.text, end, max(first, end)):
        return None
    spans = joined(iter(written))
    if any(one.end is None and not covers(spans, one.begin) for found in own for one in found):
        return None
    to = max([end, *(last for _, last in spans)])
    return None if _has_words(rest, end, to, spans) or _goes_on(rest, first, to, stop) else to


def _has_words(rest: Rest, begin: int, end: int, but: Sequence[Span]) -> bool:
    """True where words stand in a part of the text that are neither of the spans nor of the form of a call."""
    for first, last in but:
        if FORM_WORDS.sub("", rest.text[begin:first]):
            return True
        begin = max(begin, last)
    return bool(FORM_WORDS.sub("", rest.text[begin:end]))


def _goes_on(rest: Rest, first: int, end: int, stop: int) -> bool:
    """True where another argument follows the last value, or the value itself goes on; `first`: where a key stands."""
    closed = _AFTER.match(rest.text, end, stop)
    at = closed.end() if closed else end
    if closed and closed["element"]:
        more = _MORE_ELEMENTS.match(rest.text, at, stop)
        return more is not None and not is_marked(rest, more.end() - 1)
    line = _MORE_LINES.match(rest.text, at, stop)
    if line is not None:
        begin = rest.text.rfind("\n", 0, first) + 1
        return len(line[1]) >= len(rest.text[begin:first]) - len(rest.text[begin:first].lstrip(" \t"))
    return _MORE.match(rest.text, at, stop) is not None


def _end_at_key(rest: Rest, begin: int, at: int, value: _Value) -> int | None:
    """Return the end of the value after a key, literal or as a variable of code."""
    end = _end_of_value(rest, at, value, _TO_VALUE)
    if end is not None and rest.text.startswith("<", begin - 1):  # an element: it is closed by the same key
        closing = _CLOSING.match(rest.text, end)
        return end if closing and closing[1] == rest.text[begin:at] else None
    variable = _VARIABLE.match(rest.text, at) if end is None else None
    if variable is not None:
        given = rest.variables.get(variable[1])
        if given is not None and _end_of_value(rest, given, value, _TO_VALUE) is not None:
            return variable.end(1)
    return end


def _end_of_value(rest: Rest, at: int, value: _Value, gap: re.Pattern[str]) -> int | None:
    """Return the end of a value directly after a place; for a structure, of its texts and numbers in order."""
    if value.is_empty:
        empty = _EMPTY.match(rest.text, at)
        return empty.end("gap") if empty else None
    if len(value.leaves) > MOST_LEAVES:
        return None
    for leaf in value.leaves:
        end = _end_of_leaf(rest, at, leaf, gap, value.keys)
        if end is None:
            return None
        at, gap = end, _TO_LEAF
    return at


def _end_of_leaf(rest: Rest, at: int, leaf: Leaf, gap: re.Pattern[str], keys: Sequence[str]) -> int | None:
    spans = rest.places_of(leaf)
    first = bisect_left(spans, (at, 0))
    for begin, end in spans[first : first + _MOST_STARTS]:
        if begin - at > _FAR:
            return None
        between = rest.text[at:begin]
        for key in keys:
            between = between.replace(key, "")
        if not gap.fullmatch(between):
            continue
        if _is_ended(rest, between, end):
            return end
    return None


def _is_ended(rest: Rest, before: str, end: int) -> bool:
    """True where a value ends as it began: with a quote, a mark, or the end of its element."""
    mark = _ESCAPED.search(before)
    if mark is not None:
        return rest.text.startswith(mark[0], end)
    if _QUOTED.search(before):
        return _CLOSED.match(rest.text, end) is not None
    if _INSIDE.search(before):
        return _CLOSING_ANY.match(rest.text, end) is not None
    return _ENDED.match(rest.text, end) is not None


def _value(value: JsonValue) -> _Value:
    keys: set[str] = set()
    inside = [value]
    for one in inside:  # which grows meanwhile
        if isinstance(one, dict):
            keys.update(map(str.lower, one))
            inside += one.values()
        elif isinstance(one, list):
            inside += one
    return _Value(leaves(value), sorted(keys - {""}, key=len, reverse=True), value == "")
