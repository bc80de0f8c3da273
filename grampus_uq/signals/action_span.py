"""The tokens of a step that write its proposed calls, without the text around them.

A call is found from its tool's name; models write calls as a JSON object or as name(arguments). A step without a call
commits its text, and the action is the whole completion. Services that report no log-probabilities for the tokens of a
call leave nothing to read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from grampus_uq.records.values import TokenLogprob, ToolCall

_MOST_MENTIONS = 64  # of a name, and objects around each: more are not a call but an attack
_MOST_NAMES = 32  # each is sought in all of the text
_MOST_DEPTH = 8
_LONGEST_ANSWER = 20_000
_LONGEST_TAG = 30
_NAME_KEYS = ('"name"', '"tool"', '"tool_name"', '"function"', '"action"')
_DECODER = json.JSONDecoder()
_PAIRS = {"(": ")", "{": "}", "[": "]"}


def action_places(tokens: Sequence[TokenLogprob], calls: Sequence[ToolCall]) -> Sequence[int] | None:
    """Indices of the tokens that write the calls, all of them without a call; None when a call is not found in them.

    A token that writes only part of a call counts.
    """
    if not calls:
        return range(len(tokens))
    spans = call_spans("".join(token.token for token in tokens), calls)
    if spans is None:
        return None
    found: list[int] = []
    for places in overlapping_tokens(tokens, spans):
        found += range(max(places.start, found[-1] + 1 if found else 0), places.stop)
    return found


def overlapping_tokens(tokens: Sequence[TokenLogprob], spans: Iterable[tuple[int, int]]) -> Iterator[range]:
    """For each span of the joined text, in order, the indices of the tokens that write some of it."""
    first = start = 0
    for begin, end in spans:
        while first < len(tokens) and start + len(tokens[first].token) <= begin:
            start += len(tokens[first].token)
            first += 1
        last, place = first, start
        while last < len(tokens) and place < end:
            place += len(tokens[last].token)
            last += 1
        yield range(first, last)


def call_spans(text: str, calls: Sequence[ToolCall]) -> list[tuple[int, int]] | None:
    """The span of each call in the text, in order and without overlap; None if one is not found, or of many names.

    Of several places that could be a call, the last ones are taken: models think aloud before they act.
    """
    names = {call.name for call in calls}
    if len(names) > _MOST_NAMES:
        return None
    places = {name: _places(text, name) for name in names}
    spans: list[tuple[int, int]] = []
    before = len(text)
    for call in reversed(calls):
        span = next((span for span in reversed(places[call.name]) if span[1] <= before), None)
        if span is None:
            return None
        spans.append(span)
        before = span[0]
    spans.reverse()
    return spans


def call_in_text(text: str, names: Iterable[str]) -> str | None:
    """The tool whose call a text ends with, written out instead of made; None where it ends with none.

    A fence or a closing tag may stand behind it. A name alone, or a call in the midst of a text, is none.
    """
    found = text[-_LONGEST_ANSWER:].rstrip("` \r\n\t")
    if found.endswith(">") and (tag := found.rfind("<")) >= 0 and len(found) - tag < _LONGEST_TAG:
        found = found[:tag].rstrip("` \r\n\t")
    if not found.endswith(("}", ")", "]")):
        return None
    for name in names:
        spans = _places(found, name)
        if not spans or found[spans[-1][1] :].strip("]} \n"):
            continue
        written = found[slice(*spans[-1])]
        if not written.startswith("{") or any(key in written for key in _NAME_KEYS):
            return name
    return None


def _places(text: str, name: str) -> list[tuple[int, int]]:
    """All spans that could be a call of this tool, in order and without overlap."""
    found: list[tuple[int, int]] = []
    at, floor = text.find(name) if name else -1, 0
    for _ in range(_MOST_MENTIONS):
        if at < 0:
            break
        span = _object_around(text, at, name, floor) or _application(text, at, at + len(name))
        if span is not None:
            found.append(span)
            floor = span[1]
        at = text.find(name, max(at + len(name), floor))
    return found


def _object_around(text: str, at: int, name: str, floor: int) -> tuple[int, int] | None:
    """The widest JSON object around a position with the name as a value, searched from the inside out."""
    best = None
    start = text.rfind("{", floor, at)
    for _ in range(_MOST_DEPTH):
        if start < 0:
            break
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = 0
        if end > at and name in _names(value):
            best = (start, end)
        start = text.rfind("{", floor, start)
    return best


def _names(value: object) -> list[object]:
    """Return the possible names in a call's JSON object, one level down included ({"function": {"name": ...}})."""
    inner = list(value.values()) if isinstance(value, dict) else []
    return inner + [item for part in inner if isinstance(part, dict) for item in part.values()]


def _application(text: str, start: int, end: int) -> tuple[int, int] | None:
    """name(...) or name{...} up to the bracket that closes it, or to the end of a text that was cut off."""
    at = end
    while at < len(text) and text[at] in " \t\r\n\"'`:":
        at += 1
    if at >= len(text) or text[at] not in _PAIRS:
        return None
    opening, closing, depth = text[at], _PAIRS[text[at]], 0
    for place in range(at, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if depth == 0:
            return start, place + 1
    return start, len(text)
