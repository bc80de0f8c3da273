"""Which tokens of a step write which part of its calls, and how likely they were: doubt about one argument.

A call in JSON is read by position: the value of each argument is the span that a decoder takes for it. Other ways to
write a call (`refund(order="A1", amount=5)`, arguments in a string of their own) are searched for the argument's name
and then its value. Where a value is not found, all tokens of the call stand for it: no part is less likely than all.

    p(value) = exp(sum of log p(token) over the tokens that write some of the value)
    p(call) = product over the tool's name and the values

This is the probability that the model, asked again, writes the same call in the same form ("maximum sequence
probability", Fadeeva et al. 2023, arXiv 2311.07383, section 3, of the call's values alone). Prose is left out: a letter
can be worded in many ways, and its probability says nothing of whether it should be sent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from grampus_uq.records.call_parts import TOOL_NAME, WHOLE_CALL, CallPart, call_probability
from grampus_uq.records.values import Message, Reading, Step, TokenLogprob, ToolCall
from grampus_uq.records.vocabulary import MissingReason, UncertaintySource
from grampus_uq.signals.action_span import call_spans, overlapping_tokens
from grampus_uq.signals.call_support import support_of

__all__ = ["MAX_CALLS", "MAX_PARTS", "call_parts", "call_reading"]

MAX_CALLS: Final = 32
MAX_PARTS: Final = 32
"""Arguments of one call that are told apart; a call with more is read as a whole."""
_MOST_DEPTH: Final = 3
_MOST_WORDS: Final = 8
_MOST_MENTIONS: Final = 64
_MOST_SUPPORTS: Final = 128  # arguments of one step whose origin is sought
_LONGEST: Final = 20_000  # characters of a call that is searched for its arguments instead of decoded
_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[\s,:]*")
_ASSIGNED = re.compile(r"[\"'\\]{0,64}\s{0,64}[:=]\s{0,64}[\\\"']{0,64}")
_PLAIN = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)

_Span = tuple[int, int]
_Members = dict[str, tuple[Any, _Span]]


def call_reading(step: Step, messages: Sequence[Message] = ()) -> Reading:
    """How likely the least likely call of a step was, in [0, 1], higher is better; its parts beside it.

    `messages` are those that the step answered: where the values of the parts come from.
    """
    tokens = step.logprobs or ()
    try:
        parts = call_parts(tokens, step.tool_calls, messages)
    except RecursionError:  # nested deeper than any tool's arguments
        parts = ()
    values = [call_probability(parts, call) for call in range(len(step.tool_calls[:MAX_CALLS]))]
    known = [value for value in values if value is not None]  # of every call, or of none
    if known:
        return Reading(source=UncertaintySource.CALL_PROBABILITY, value=min(known), parts=parts)
    broken = not all(token.logprob <= 1e-3 for token in tokens)
    reason = MissingReason.INVALID_VALUE if broken else MissingReason.NO_LOGPROBS
    return Reading(source=UncertaintySource.CALL_PROBABILITY, value=None, reason=reason, parts=parts)


def call_parts(
    tokens: Sequence[TokenLogprob], calls: Sequence[ToolCall], messages: Sequence[Message] = ()
) -> tuple[CallPart, ...]:
    """The parts of the calls with their probabilities; empty where the tokens do not write the calls.

    Also empty where a log-probability is NaN or above 0 by more than rounding (1e-3). Linear in the tokens.
    """
    text = "".join(token.token for token in tokens)
    spans = call_spans(text, calls)
    if spans is None or not all(token.logprob <= 1e-3 for token in tokens):
        return ()
    found: list[CallPart] = []
    for number, (call, span) in enumerate(zip(calls[:MAX_CALLS], spans, strict=False)):
        found += _parts_of(tokens, text, number, call, span, messages if len(found) < _MOST_SUPPORTS else ())
    return tuple(found)


def _parts_of(
    tokens: Sequence[TokenLogprob], text: str, number: int, call: ToolCall, span: _Span, messages: Sequence[Message]
) -> list[CallPart]:
    """The parts of one call, the tool's name first; the whole call alone where one of them is not found."""
    found: _Found = None, {}
    if len(call.arguments) <= MAX_PARTS:
        found = _written_as_json(text, span, call) or _written_otherwise(text, span, call)
    name, values = found
    if name is None or len(values) < len(call.arguments):
        places = next(overlapping_tokens(tokens, [span]))
        probability, least = _probabilities(tokens, places)
        return [CallPart(call=number, name=WHOLE_CALL, probability=probability, least=least)]
    spans = sorted({name, *values.values()})
    places_of = dict(zip(spans, overlapping_tokens(tokens, spans), strict=True))
    probability, least = _probabilities(tokens, places_of[name])
    parts = [CallPart(call=number, name=TOOL_NAME, probability=probability, least=least)]
    for place, (argument, value) in enumerate(call.arguments.items(), start=1):
        shown = argument if _PLAIN.fullmatch(argument) else f"argument {place}"  # a model may write anything
        probability, least = _probabilities(tokens, places_of[values[argument]])
        odds, support = (None, None) if _is_prose(value) else (probability, support_of(value, messages))
        parts.append(CallPart(call=number, name=shown, probability=odds, least=least, support=support))
    return parts


def _probabilities(tokens: Sequence[TokenLogprob], places: range) -> tuple[float, float]:
    """The product of the tokens' probabilities, and the least of them."""
    logprobs = [min(tokens[place].logprob, 0.0) for place in places]
    return math.exp(sum(logprobs)), math.exp(min(logprobs, default=0.0))


def _is_prose(value: object) -> bool:
    """True for a text, or a structure with texts, of more than eight words."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return len(text.split(maxsplit=_MOST_WORDS)) > _MOST_WORDS


_Found = tuple[_Span | None, dict[str, _Span]]
"""Where the tool's name is written, and where the values of the arguments are."""


def _written_as_json(text: str, span: _Span, call: ToolCall) -> _Found | None:
    """The places in a JSON object that holds the tool's name and the arguments, in itself or further inside."""
    try:
        members = _members(text, span[0])
    except ValueError:
        return None
    levels, name = [members], None
    for _ in range(_MOST_DEPTH):
        values = [member for inner in levels for member in inner.values()]
        if name is None:
            name = next((_inside(*member) for member in values if member[0] == call.name), None)
        nested = [_members(text, at) for value, (at, _) in values if isinstance(value, dict)]
        inner_first = [inner for inner in (*nested, *levels) if inner.keys() >= call.arguments.keys()]
        if name is not None and inner_first:
            found = {key: inner_first[0][key] for key in call.arguments}
            if not all(_is_same(found[key][0], value) for key, value in call.arguments.items()):
                return None  # another call, which the model only wrote about
            return name, {key: _inside(*member) for key, member in found.items()}
        levels = nested
    return None


def _is_same(written: object, value: object) -> bool:
    """True for equal values, and for a number that a client made of a text."""
    return written == value or str(written) == str(value)


def _members(text: str, at: int) -> _Members:
    """The members of the JSON object at a place, each with its value and the value's span. Raises ValueError."""
    if not text.startswith("{", at):
        raise ValueError("no object")
    found: _Members = {}
    at = _after_space(text, at + 1)
    while not text.startswith("}", at):
        key, at = _DECODER.raw_decode(text, at)
        if not isinstance(key, str):
            raise ValueError("no object")
        start = _after_space(text, at)
        value, at = _DECODER.raw_decode(text, start)
        found[key] = value, (start, at)
        at = _after_space(text, at)
    return found


def _after_space(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


def _inside(value: object, span: _Span) -> _Span:
    """A text without its quotes, unless it is empty."""
    return (span[0] + 1, span[1] - 1) if isinstance(value, str) and value else span


def _written_otherwise(text: str, span: _Span, call: ToolCall) -> _Found:
    """The places in any other text of a call: each argument's name, `=` or `:`, and its value behind that."""
    begin, end = span
    if end - begin > _LONGEST:
        return None, {}
    at = text.find(call.name, begin, end)
    name = (at, at + len(call.name)) if at >= 0 and call.name else None
    found: dict[str, _Span] = {}
    for key, value in call.arguments.items():
        forms = _forms(value)
        for start in _behind(text, key, begin, end):
            form = next((form for form in forms if text.startswith(form, start)), None)
            if form and not text[start + len(form) : start + len(form) + 1].isalnum():
                found[key] = start, start + len(form)
                break
    return name, found


def _behind(text: str, key: str, begin: int, end: int) -> Iterator[int]:
    """Where a value may begin: behind a mention of the key, `=` or `:`. Nowhere for a key without letter or digit."""
    at = text.find(key, begin, end) if any(map(str.isalnum, key)) else -1
    for _ in range(_MOST_MENTIONS):
        if at < 0:
            return
        sign = _ASSIGNED.match(text, at + len(key), end)
        if sign is not None and not (text[at - 1 : at].isalnum() or text[at - 1 : at] in ("_", "-")):
            yield sign.end()
        at = text.find(key, at + len(key), end)


def _forms(value: object) -> list[str]:
    """How a value may be written, the longest first."""
    if isinstance(value, str):
        written = json.dumps(value)[1:-1]
        forms = {value, written, written.replace("\\", "\\\\")}
    else:
        forms = {json.dumps(value), str(value)}
        if isinstance(value, float) and value.is_integer():
            forms.add(str(int(value)))
    return sorted(forms, key=len, reverse=True)
