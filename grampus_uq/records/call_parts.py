"""The parts of a proposed call, its tool's name and each argument, and how sure its writer was of each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from grampus_uq.records.visible_text import visible
from grampus_uq.stats.stored_values import STORED

TOOL_NAME: Final = ""
"""The name of the part that is the tool's name."""
WHOLE_CALL: Final = "*"
"""The name of the part that stands for all of a call whose arguments are not found one by one."""
NEW_WORD: Final = "**"
"""The name of the part that is the least likely new word of a text without calls, on which somebody else acts."""
UNREAD_CALL: Final = "***"
"""The name of the part that stands for a call whose own tokens were due and were not read."""
_NUMBER: Final = re.compile(r"-?\d{1,32}(?:\.\d{1,32})?", re.ASCII)
_AS_GOOD_AS_CERTAIN: Final = 0.95
FORM_WEIGHT: Final = 0.25
"""Weight of the log-probability of keys and marks in that of a call, where a value's is 1."""
CALL_RULE: Final = (FORM_WEIGHT, "a value among those that the tools allow, and what may become one of them")
"""The rule by which a call's probability is computed: what another one has earned is no evidence."""
Unit = Annotated[float, Field(ge=0.0, le=1.0)]


class Support(StrEnum):
    """Origin of an argument's value, as far as the messages before the call show it.

    A value with digits `_among_others` stands beside others of its form: which of them is meant was a choice.
    """

    RETURNED = "returned"
    RETURNED_AMONG_OTHERS = "returned_among_others"
    SAID = "said"
    SAID_AMONG_OTHERS = "said_among_others"
    COMPUTED = "computed"
    NOWHERE = "nowhere"


_SUPPORT_IN_WORDS: Final = {
    Support.RETURNED: "returned by a tool",
    Support.RETURNED_AMONG_OTHERS: "returned by a tool, among similar values",
    Support.SAID: "stated in a message",
    Support.SAID_AMONG_OTHERS: "stated in a message, among similar values",
    Support.COMPUTED: "computed from stated or returned values",
    Support.NOWHERE: "in no message or tool result",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Another value that the model might as well have written in an argument's place: content, as the value itself is.

    `text` is the value, or its beginning where it is not `whole`: the other token was seen, and nothing behind it.
    `match` is then the one value of the messages that begins so. `probability` is that of writing the value up to and
    with the other token. `occurs_as` are names under which the value, or the match, stands in the messages.
    """

    text: str
    whole: bool
    probability: Unit
    match: str | None = None
    occurs_as: tuple[str, ...] = ()

    __pydantic_config__ = STORED


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPart:
    """One part of one call of a step: `call` counts the step's calls from 0, `name` is the argument's.

    `value` is the probability of the value itself and, of an argument behind another one, that there is one more: apart
    from keys and marks, which may be unlikely in right calls too. It is None where the part is not one such value, and
    in recordings of earlier versions.

    `probability` is the product over the tokens that write the part: an argument's key, its value and what ends it. It
    is None where the tokens are not known, and for prose, which can be worded in many ways: an argument with prose has
    two parts, the prose and the rest. `least` is the probability of the least likely token.
    `support` says where the value comes from, `occurs_as` under which names it stands there, and `candidates` which
    other values were likely. `agreement` is the share of samples that have the same value there, where the turn was
    sampled again.
    """

    call: int = 0
    name: str = TOOL_NAME
    probability: Unit | None = None
    least: Unit | None = None
    value: Unit | None = None
    support: Support | None = None
    agreement: Unit | None = None
    occurs_as: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDoubt:
    """The model's certainty of one call: `call` is its id and name, `probability` that of the whole call.

    `part` is its least probable part, of probability `least`; `support`, `occurs_as` and `candidates` are that part's.
    """

    call: str
    probability: Unit
    part: str
    least: Unit
    support: Support | None = None
    occurs_as: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()

    __pydantic_config__ = STORED


def doubt_with_values(doubt: CallDoubt) -> str:
    """The same as `doubt_in_words`, with what else the value is there and other likely values: content, made visible.

    >>> other = Candidate(text="7.0", whole=False, probability=0.42, match="7.09", occurs_as=("unit_price",))
    >>> doubt_with_values(CallDoubt(call="", probability=0.31, part="amount", least=0.31, candidates=(other,)))
    'least sure of `amount` (0.31); also likely: a value starting with 7.0 (0.42), such as 7.09 in `unit_price`'
    """
    there = f"; found in {_named(doubt.occurs_as)}" if doubt.occurs_as else ""
    others = "; or ".join([_candidate_in_words(one) for one in doubt.candidates])
    return f"{doubt_in_words(doubt)}{there}" + (f"; also likely: {others}" if others else "")


def _candidate_in_words(one: Candidate) -> str:
    beginning = "" if one.whole else "a value starting with "
    match = "" if one.match is None else f", such as {_shown(one.match)}"
    there = f" in {_named(one.occurs_as)}" if one.occurs_as else ""
    return f"{beginning}{_shown(one.text)} ({one.probability:.2f}){match}{there}"


def _shown(value: str) -> str:
    """A value that a model wrote: a number as it is, anything else in quotes, nothing hidden."""
    return value if _NUMBER.fullmatch(value) else visible(json.dumps(value, ensure_ascii=False))


def _named(names: Sequence[str]) -> str:
    return " and ".join([f"`{visible(name)}`" for name in names])


def without_values(part: CallPart) -> CallPart:
    """The part without what the values are: for what is kept without content."""
    return replace(part, occurs_as=(), candidates=()) if part.occurs_as or part.candidates else part


def doubt_in_words(doubt: CallDoubt) -> str:
    """The part of a call that its writer was least sure of, how sure, and the source of its value."""
    if doubt.part == UNREAD_CALL:
        return "the log-probabilities of its own tokens are missing"
    if doubt.part == WHOLE_CALL and not doubt.least:
        return "some or all of its tokens are not in the model's output"
    part = {TOOL_NAME: "the tool", WHOLE_CALL: "the arguments", NEW_WORD: "a word of the answer"}.get(
        doubt.part, f"`{doubt.part}`"
    )
    origin = "" if doubt.support is None else f"; {_SUPPORT_IN_WORDS[doubt.support]}"
    return f"least sure of {part} ({doubt.least:.2f}{origin})"


def call_probability(parts: Sequence[CallPart], call: int) -> float | None:
    """The probability that the model writes this very call, in [0, 1], higher is better; None where unknown.

        the product over its parts of p(value)^(1 - w) * p(all tokens of the part)^w, with w = 1/4

    So a value counts whole, and keys and marks, which a grammar or a template may have forced, to the power of 1/4.
    Prose is in no part.
    """
    known = [(part.value, part.probability) for part in parts if part.call == call and part.probability is not None]
    odds = [p if value is None else value ** (1.0 - FORM_WEIGHT) * p**FORM_WEIGHT for value, p in known]
    return math.prod(odds) if known else None


def weakest_part(parts: Sequence[CallPart], call: int) -> CallPart | None:
    """The part of a call of the least probable value: the first place to look for what is wrong with it.

    Where all values are as good as certain, the least probable part: the doubt is in keys and marks.
    """
    known = [part for part in parts if part.call == call and part.probability is not None]
    first = min(known, key=sureness, default=None)
    if first is None or sureness(first) < _AS_GOOD_AS_CERTAIN:
        return first
    return min(known, key=lambda part: part.probability or 0.0)


def sureness(part: CallPart) -> float:
    """The probability of a part's value, apart from keys and marks where that is known; 0 where nothing is."""
    return (part.probability if part.value is None else part.value) or 0.0


def doubt_of(parts: Sequence[CallPart], call: int, key: str = "") -> CallDoubt | None:
    """The sureness of one call and of its weakest part, under the name `key`; None where no part of it is known."""
    probability, weakest = call_probability(parts, call), weakest_part(parts, call)
    if probability is None or weakest is None:
        return None
    doubted = sureness(weakest)
    least = doubted if doubted < _AS_GOOD_AS_CERTAIN else weakest.probability or 0.0
    return CallDoubt(
        call=key,
        probability=probability,
        part=weakest.name,
        least=least,
        support=weakest.support,
        occurs_as=weakest.occurs_as,
        candidates=weakest.candidates,
    )
