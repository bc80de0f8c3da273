"""Token probabilities of a step's calls: doubt about a call, and about each of its arguments.

    p(call) = product over its parts, the name and each argument, of p(value)^(3/4) * p(all tokens of the part)^(1/4)

The tokens of a part are a key, a value and what ends it: their product over the call is the probability that the model,
asked again, writes the same call in the same form ("maximum sequence probability", Fadeeva et al. 2023, arXiv
2311.07383, section 3, of the call alone). p(value) leaves out how it is written (`value_odds`), so that keys and marks
count a quarter. Of several places the least likely one counts. The wording of prose is left out (`prose`): a letter
can be worded in many ways, and its probability says nothing of whether it should be sent.

What stands for a call has to hold its name and all of its values. Where a call, or another copy of it, is written in a
form that is not read (`call_rest`), it has one part over all tokens from its name or first value on that write no
other listed call, whatever the visible text is. Tokens that say something, and hold no writing of a call, are as
unlikely as can be: its probability is 0. They are the visible text's alone where they write that and no call.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, Final

from grampus_uq.records.call_parts import FORM_WEIGHT, TOOL_NAME, WHOLE_CALL, CallPart, Candidate, call_probability
from grampus_uq.records.values import Message, ModelResponse, Reading, Step, TokenLogprob, ToolCall
from grampus_uq.records.vocabulary import MissingReason, UncertaintySource
from grampus_uq.signals.call_begun import begins_another, holds, is_cut, is_marked, is_strong, may_be
from grampus_uq.signals.call_candidates import Other, candidates_of, other_values
from grampus_uq.signals.call_choices import Choices
from grampus_uq.signals.call_places import APPLICATION, MENTION, Place, Writing
from grampus_uq.signals.call_rest import Found, Rest
from grampus_uq.signals.call_slots import Written, closes_more, ends_around
from grampus_uq.signals.call_support import names_of, support_of
from grampus_uq.signals.prose import Span
from grampus_uq.signals.token_signals import says_something
from grampus_uq.signals.value_odds import LOWEST, odds_before, value_odds
from grampus_uq.stats.matching import matching
from grampus_uq.wire.responses import stream_of

MAX_CALLS: Final = 32
MAX_PARTS: Final = 32
"""Arguments of one call that are told apart; a call with more is read as a whole."""
_MOST_SUPPORTS: Final = 128  # arguments of one step whose origin is sought
_MOST_OBJECTS: Final = 64  # behind a call, whose keys are none of its own
_WHOLE: Final = -1
_THOUGHT = re.compile(  # what ends the thoughts
    r"</\s{0,4}(?:seed:)?(?:think|thought|thinking|reasoning)s?>|\[/THINK\]|◁/think▷|<\|end_thinking\|>|<channel\|>"
    r"|<\|end\|>(?=<\|start\|>)|\[begin final response\]",
    re.IGNORECASE,
)
_END: Final = frozenset({"</s>", "<seed:eos>", "[e~[", "<start_function_response>"})
"""Tokens that end a turn, and look like what ends or begins a call."""
_PLAIN = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)


def call_reading(step: Step, messages: Sequence[Message] = (), tools: Sequence[Mapping[str, Any]] = ()) -> Reading:
    """The `call_probability` of a step's least likely call, in [0, 1], higher is better, with the parts of all calls.

    `messages` are those that the step answered: where the values of the parts come from. `tools` are the schemas of all
    tools that could be called.
    """
    tokens = step.logprobs or ()
    read = _read(tokens, step.tool_calls, step.text, tools)
    parts = _recorded(read, step.tool_calls, messages)
    known = [one for one in (call_probability(parts, number) for number in range(len(read))) if one is not None]
    if known:
        return Reading(source=UncertaintySource.CALL_PROBABILITY, value=min(known), parts=parts)
    broken = not all(token.logprob <= 1e-3 for token in tokens)
    reason = MissingReason.INVALID_VALUE if broken else MissingReason.NO_LOGPROBS
    return Reading(source=UncertaintySource.CALL_PROBABILITY, value=None, reason=reason, parts=parts)


def probability_of_call(reply: ModelResponse) -> float | None:
    """The `call_probability` of a reply's one call, in [0, 1]: what a chain compares; None where unknown."""
    calls, text = reply.tool_calls, reply.content
    tokens = stream_of(reply).tokens or ()
    return call_probability(call_parts(tokens, calls, text=text), 0) if len(calls) == 1 else None


def call_parts(
    tokens: Sequence[TokenLogprob], calls: Sequence[ToolCall], messages: Sequence[Message] = (), *, text: str = ""
) -> tuple[CallPart, ...]:
    """The parts of the calls with their probabilities; `text` is what the step says beside them.

    Empty where the tokens write that text or a part of it and all of it writes no call, and where a log-probability is
    NaN or above 0 by more than rounding (1e-3). Linear in the tokens and the text.
    """
    return _recorded(_read(tokens, calls, text), calls, messages)


def value_parts(
    tokens: Sequence[TokenLogprob], call: ToolCall, messages: Sequence[Message] = ()
) -> tuple[CallPart, ...]:
    """The parts of a call over the tokens of its name and its values alone, for a writer of whom the form is no news.

    Empty where they are not found one by one.
    """
    read = _read(tokens, [call], "")
    if not read or any(part.number == _WHOLE or not part.values for part in read[0]):
        return ()
    return _recorded([[_Part(part.number, part.values) for part in read[0]]], [call], messages)


def _read(
    tokens: Sequence[TokenLogprob], calls: Sequence[ToolCall], text: str, tools: Sequence[Mapping[str, Any]] = ()
) -> list[Sequence[_Part]]:
    """The least likely place of each call, in parts."""
    if not calls or not tokens or not all(token.logprob <= 1e-3 for token in tokens):
        return []
    read, kept = _Read(tokens[: -1 if tokens[-1].token in _END else None], Choices(tools)), calls[:MAX_CALLS]
    if not says_something(tokens) and not any(Rest(read.text, ()).names(call.name) for call in kept):
        return []
    places = [read.places(call) for call in kept]
    read.objects = [place.around for own in places for place in own]
    vouched = _vouched(places, read.thought)
    rest = Rest(read.text, [place.span for own in places for place in own])
    if not any(places) and read.is_shown(text) and not any(_may_write(one, kept) for one in (rest, Rest(text, ()))):
        return []
    least: list[Sequence[_Part]] = []
    written = Written(rest, kept, read.thought, read.writing.given)
    begins = [span[0] for span in (*map(read.writing.around, chain.from_iterable(places)), *filter(None, written.own))]
    read.around = ends_around(read.text, min(begins)) if len(begins) > 1 else ()
    for number, call in enumerate(kept):
        known = (i for i in range(number) if (kept[i].name, kept[i].arguments) == (call.name, call.arguments))
        same = next(known, None)
        parts = _least(read, number, call, places[number], rest, written) if same is None else least[same]
        one_more = number in vouched or (same is None and not places[number])
        least.append(parts if one_more or written.own[number] is not None else _LOST)
    return least


def _may_write(rest: Rest, calls: Sequence[ToolCall]) -> bool:
    """True where a text holds what begins a call, or speaks of one of these."""
    return is_marked(rest) or is_cut(rest) or any(rest.speaks_of(call) for call in calls)


def _vouched(places: Sequence[Sequence[Place]], thought: int) -> set[int]:
    """The calls that have a place of their own: one place stands for one call.

    Of a call's places those stand for it that are written as its last one is, behind the thoughts.
    """
    ends: list[list[int]] = []
    for own in places:
        meant = [place for place in own if place.form != MENTION and place.span[1] > thought]
        last = max(meant, key=lambda place: place.span, default=None)
        own_ends = sorted({place.span[1] for place in meant if last and place.form == last.form}, reverse=True)
        ends.append(own_ends[:MAX_CALLS])
    return set(matching(dict(enumerate(ends))).values())


def _recorded(
    read: Sequence[Sequence[_Part]], calls: Sequence[ToolCall], messages: Sequence[Message]
) -> tuple[CallPart, ...]:
    found: list[CallPart] = []
    for number, (call, parts) in enumerate(zip(calls, read, strict=False)):
        found += _described(number, call, parts, messages if len(found) < _MOST_SUPPORTS else ())
    return tuple(found)


def _least(
    read: _Read, number: int, call: ToolCall, places: Sequence[Place], rest: Rest, written: Written
) -> Sequence[_Part]:
    """The parts of the least likely writing of a call; one of probability 0 where the tokens hold none, or half of one.

    Half of one: the name as a call's with some of its values, or anything of it behind all that is read that is no
    writing of it or of another call: what was lost there may stand in a line before.
    """
    own: list[Sequence[_Part]] = [read.parts(place, call) for place in places]
    found = rest.find(call)
    read_to = max((place.span[1] for place in places), default=0)
    behind = not own or found.stands_behind(read_to, ()) or begins_another(rest, read_to)
    if behind and own:
        others = [span for span in written.own if span and span != written.own[number]]
        objects = [span for span in read.objects if span[0] >= read_to][:_MOST_OBJECTS]
        behind = found.stands_behind(read_to, [*others, *objects]) or begins_another(rest, read_to, others)
    half = behind or (bool(found.opened) and found.some)
    ends = [span[1] for span in (*map(read.writing.around, places), written.own[number]) if span]
    lost = bool(call.arguments and ends) and closes_more(read.text, max(ends), read.around)
    if lost or _is_left_open(rest, call, number, places, found, written):
        own.append(_LOST)
    elif (not behind and found.named and found.every) or (half and written.own[number]):
        tokens = [
            read.before(found.begin, call.name),
            *chain.from_iterable(map(read.logprobs, rest.spans(found.begin))),
        ]
        own.append([_Part(_WHOLE, tokens, (), tokens)])
    elif half:
        own.append(_LOST)
    return min(own, key=lambda parts: math.fsum([part.log_probability for part in parts]))


def _is_left_open(
    rest: Rest, call: ToolCall, number: int, places: Sequence[Place], found: Found, written: Written
) -> bool:
    """True where a call is begun that may be this one, and is written as plainly as what stands for it.

    What a text that is cut would have written may be any call of it. A draft without the marks that the call has is no
    more than a thought, unless a value of the call stands in it.
    """
    own = written.own[number]
    if is_cut(rest, 0 if own is None else own[1]):
        return True
    meant = [place for place in places if place.form != MENTION]
    if meant:
        strong = max(meant, key=lambda place: place.span).form != APPLICATION
    else:
        strong = own is not None and is_strong(rest, own)
    if holds(sorted(rest.long_values(call)), written.opened):
        return True
    return may_be(rest, call, found.others, [one for one in written.opened if one.strong or not strong])


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a call, 0 for its name and from 1 its arguments, and the log-probabilities of its tokens.

    `value` is that of the value apart from its form (`value_odds`), None where it is not one value of its own.
    """

    number: int
    counted: Sequence[float]
    prose: Sequence[float] = ()
    values: Sequence[float] = ()
    others: Sequence[Other] = ()
    value: float | None = None

    @property
    def tokens(self) -> float:
        """The log-probability of all tokens, and of what the marks before a name decide, which are in no part."""
        tokens = math.fsum(self.counted)
        return tokens if self.value is None or self.number else min(tokens, self.value)

    @property
    def log_probability(self) -> float:
        """As `call_probability` counts the part: its value whole, keys and marks a quarter."""
        return self.tokens if self.value is None else (1.0 - FORM_WEIGHT) * self.value + FORM_WEIGHT * self.tokens


def _described(number: int, call: ToolCall, parts: Sequence[_Part], messages: Sequence[Message]) -> Iterator[CallPart]:
    """The parts as they are recorded; of an argument with prose two, the first without a probability."""
    arguments = list(call.arguments.items())
    for part in parts:
        name, support = (WHOLE_CALL if part.number == _WHOLE else TOOL_NAME), None
        occurs_as: tuple[str, ...] = ()
        candidates: tuple[Candidate, ...] = ()
        if part.number > 0:
            name, value = arguments[part.number - 1]
            name = part_name(name, part.number)
            if not part.prose:
                support, occurs_as = support_of(value, messages), names_of(value, messages)
                candidates = tuple(candidates_of(part.others, messages))
        if part.prose:
            yield CallPart(call=number, name=name, least=math.exp(min(part.prose)))
        odds, least = math.exp(part.tokens), math.exp(min(part.counted, default=0.0))
        yield CallPart(
            call=number,
            name=name,
            probability=odds,
            least=least,
            value=None if part.value is None else math.exp(part.value),
            support=support,
            occurs_as=occurs_as,
            candidates=candidates,
        )


def part_name(name: str, number: int) -> str:
    """The name of an argument in a recording, where it is one; a model may write anything."""
    return name if _PLAIN.fullmatch(name) else f"argument {number}"


_LOST: Final = (_Part(_WHOLE, (-math.inf,), (), (-math.inf,)),)
"""The parts of a call that nothing stands for."""


class _Read:
    """The tokens of a step, each with its place in their text."""

    def __init__(self, tokens: Sequence[TokenLogprob], choices: Choices) -> None:
        self.choices = choices
        self.objects: Sequence[Span] = ()
        """Those that hold the names of calls."""
        self.around: Sequence[str] = ()
        """The tags that end what is begun directly before the first of several calls."""
        self.pieces = [token.token for token in tokens]
        self.logs = [max(min(token.logprob, 0.0), LOWEST) for token in tokens]
        *self.starts, _ = accumulate(map(len, self.pieces), initial=0)
        self.written = [*zip(self.starts, tokens, strict=True)]
        self.text = "".join(self.pieces)
        self.writing = Writing(self.text)
        self.thought = max((one.end() for one in _THOUGHT.finditer(self.text)), default=0)

    def places(self, call: ToolCall) -> list[Place]:
        """The place at which the call is read."""
        try:
            return self.writing.places(call)
        except RecursionError:  # nested deeper than any tool's arguments
            return []

    def is_shown(self, text: str) -> bool:
        """True where the tokens write the visible text, and nothing besides that says something."""
        shown, own = text.strip(), self.text.strip()
        if not shown or own in shown or "".join(own.split()) == "".join(shown.split()):
            return bool(shown)
        begin = self.text.find(shown)
        beside = self.text[:begin], self.text[begin + len(shown) :]
        return begin >= 0 and not says_something([TokenLogprob(token=one, logprob=0.0) for one in beside])

    def logprobs(self, span: Span) -> list[float]:
        """The log-probabilities of the tokens that write some of a span."""
        found = self._overlapping(*span)
        return self.logs[found.start : found.stop]

    def before(self, begin: int, name: str) -> float:
        """The log-probability of the name with which a call's writing begins, at the marks before it."""
        end, first = begin + len(name), self._overlapping(begin, begin + 1).start
        return odds_before(self.text, begin, end, self.written, first)

    def _end(self, place: int) -> int:
        """The end of a token; one without text belongs to the next that has one."""
        return self.starts[place] + max(len(self.pieces[place]), 1)

    def parts(self, place: Place, call: ToolCall) -> list[_Part]:
        """The parts of one place, the tool's name first; each token belongs to the part that ends next."""
        numbers, ends = _ends(place, call)
        counted: list[list[float]] = [[] for _ in numbers]
        values: list[list[float]] = [[] for _ in numbers]
        prose: list[list[float]] = [[] for _ in numbers]
        for at in self._overlapping(*place.span):
            part = min(bisect_right(ends, self.starts[at]), len(ends) - 1)
            logprob = self.logs[at]
            (prose if self._is_prose(at, place) else counted)[part].append(logprob)
            if place.ends is None or any(
                self.starts[at] < end and begin < self._end(at) for begin, end in place.values
            ):
                values[part].append(logprob)
        spans = self._spans(place, ends)
        others = [() if span is None else self._other_values(*span) for span in spans]
        found = zip(numbers, counted, prose, values, others, self._values(spans, numbers, call), strict=True)
        return [_Part(*one) for one in sorted(found, key=itemgetter(0))]

    def _spans(self, place: Place, ends: Sequence[int]) -> list[Span | None]:
        """Return the span of each part's value; None if a part has no single value of its own."""
        spans: list[list[Span]] = [[] for _ in ends]
        for begin, end in place.values if place.ends is not None else ():
            spans[min(bisect_right(ends, begin), len(ends) - 1)].append((begin, end))
        return [own[0] if len(own) == 1 else None for own in spans]

    def _values(self, spans: Sequence[Span | None], numbers: Sequence[int], call: ToolCall) -> Iterator[float | None]:
        """Yield the probability of each part's value, and of one more argument after the ones before it."""
        further = 0.0
        for span, number in zip(spans, numbers, strict=True):
            if span is None:
                yield None
                further = 0.0
                continue
            choice = self.choices.of(call, number, self.text[slice(*span)])
            first = self._overlapping(*span).start
            value, more = value_odds(self.text, *span, self.written, first, choice, named=not number)
            yield max(value + further, LOWEST)
            further = more

    def _other_values(self, begin: int, end: int) -> Sequence[Other]:
        found = self._overlapping(begin, end + 1)
        return other_values(self.text, begin, end, self.written[found.start : found.stop])

    def _overlapping(self, begin: int, end: int) -> range:
        """The tokens that write some of a span; one without text belongs to the next that has one."""
        first, stop = bisect_left(self.starts, begin), bisect_left(self.starts, end)
        if first and self.starts[first - 1] + len(self.pieces[first - 1]) > begin:
            first = bisect_left(self.starts, self.starts[first - 1])
        return range(first, max(first, stop))

    def _is_prose(self, at: int, place: Place) -> bool:
        """Return True for a token of the wording of a prose text."""
        span = bisect_right(place.prose, (self.starts[at], len(self.text))) - 1
        return span >= 0 and self._end(at) <= place.prose[span][1]


def _ends(place: Place, call: ToolCall) -> tuple[list[int], list[int]]:
    """The numbers of a place's parts, and where each ends, in the order in which they are written."""
    if place.ends is None or len(call.arguments) > MAX_PARTS:
        return [_WHOLE], [place.span[1]]
    arguments = [(place.ends[name], number) for number, name in enumerate(call.arguments, start=1)]
    written = sorted([(place.name_end, 0), *arguments])
    return [number for _, number in written], [end for end, _ in written]
