"""The parts of a proposed call, its tool's name and each argument, and how sure its writer was of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field

TOOL_NAME: Final = ""
"""The name of the part that is the tool's name."""
WHOLE_CALL: Final = "*"
"""The name of the part that stands for all of a call whose arguments are not found one by one."""
NEW_WORD: Final = "**"
"""The name of the part that is the least likely new word of a text without calls, on which somebody else acts."""
UNREAD_CALL: Final = "***"
"""The name of the part that stands for a call whose own tokens were due and were not read."""
Unit = Annotated[float, Field(ge=0.0, le=1.0)]


class Support(StrEnum):
    """Where the value of an argument comes from, as far as the messages before the call show.

    A value with digits `_among_others` stands beside others of its form: which of them is meant was a choice.
    """

    RETURNED = "returned"
    RETURNED_AMONG_OTHERS = "returned_among_others"
    SAID = "said"
    SAID_AMONG_OTHERS = "said_among_others"
    COMPUTED = "computed"
    NOWHERE = "nowhere"


_SUPPORT_IN_WORDS: Final = {
    Support.RETURNED: "a tool returned it",
    Support.RETURNED_AMONG_OTHERS: "a tool returned it, among others like it",
    Support.SAID: "it was said",
    Support.SAID_AMONG_OTHERS: "it was said, among others like it",
    Support.COMPUTED: "computed from what was said or returned",
    Support.NOWHERE: "neither said nor returned",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPart:
    """One part of one call of a step: `call` counts the step's calls from 0, `name` is the argument's.

    `probability` is the product over the tokens that write the part: an argument's key, its value and what ends it. It
    is None where the tokens are not known, and for prose, which can be worded in many ways: an argument with prose has
    two parts, the prose and the rest. `least` is the probability of the least likely token.
    `support` says where the value comes from. `agreement` is the share of samples that have the same value there, where
    the turn was sampled again.
    """

    call: int = 0
    name: str = TOOL_NAME
    probability: Unit | None = None
    least: Unit | None = None
    support: Support | None = None
    agreement: Unit | None = None

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDoubt:
    """How sure the model was of one call: `call` is its id and name, `probability` that of the whole call.

    `part` is its least probable part, of probability `least`, and `support` where its value comes from.
    """

    call: str
    probability: Unit
    part: str
    least: Unit
    support: Support | None = None

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


def doubt_in_words(doubt: CallDoubt) -> str:
    """Which part of a call its writer was least sure of, how sure, and where its value comes from."""
    if doubt.part == UNREAD_CALL:
        return "its own log-probabilities were due and not read"
    if doubt.part == WHOLE_CALL and not doubt.least:
        return "its tokens were not found in what the model wrote, or not all of them"
    part = {TOOL_NAME: "the tool", WHOLE_CALL: "the arguments", NEW_WORD: "a word of the answer"}.get(
        doubt.part, f"`{doubt.part}`"
    )
    origin = "" if doubt.support is None else f"; {_SUPPORT_IN_WORDS[doubt.support]}"
    return f"least sure of {part} ({doubt.least:.2f}{origin})"


def call_probability(parts: Sequence[CallPart], call: int) -> float | None:
    """How likely the model was to write this very call: the product over its parts, in [0, 1]; None where unknown.

    Each token belongs to one part, so this is the product over all tokens of the call but those of prose.
    """
    known = [part.probability for part in parts if part.call == call and part.probability is not None]
    return math.prod(known) if known else None


def weakest_part(parts: Sequence[CallPart], call: int) -> CallPart | None:
    """The least probable part of a call: the first place to look for what is wrong with it."""
    known = [part for part in parts if part.call == call and part.probability is not None]
    return min(known, key=lambda part: part.probability or 0.0, default=None)


def doubt_of(parts: Sequence[CallPart], call: int, key: str = "") -> CallDoubt | None:
    """How sure its writer was of one call, and of its weakest part; None where no part of it is known.

    `key` is the name that the doubt bears.
    """
    probability, weakest = call_probability(parts, call), weakest_part(parts, call)
    if probability is None or weakest is None:
        return None
    least = weakest.probability or 0.0
    return CallDoubt(call=key, probability=probability, part=weakest.name, least=least, support=weakest.support)
