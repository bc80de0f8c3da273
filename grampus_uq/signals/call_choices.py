"""Probability of a value among those that a tool's schema allows there: the tools' names, and an `enum` of texts.

    p(token) = p / (p + what another allowed value may begin with + what was not reported)

What the schema rules out speaks against nothing: a grammar keeps it from being written, and without one it is no call
of these tools. Where no other allowed value begins as the value did so far, nothing is left to choose, and p is 1.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from grampus_uq.records.values import ToolCall
from grampus_uq.signals.quoting import function_of, is_function

MAX_CHOICES: Final = 256
"""Values of one part that are told apart; where a schema has more, none is ruled out."""
_LONGEST: Final = 64  # characters of the value that was written
_MOST: Final = 256  # characters of any of them
_PLAIN: Final = re.compile(rf"[ !#-&(-\[\]-~]{{0,{_MOST}}}")
"""A value that is written in one way: no escapes, and no letters of which a token may hold half."""
_ENDS: Final = re.compile(r"(?![ \t]*[\w.-])")
"""Behind a value without quotes: what makes it no longer one, if none of those known begins so."""


class Choice(NamedTuple):
    """A value that is one of several, which are sorted; another one is the same up to `common` characters."""

    value: str
    among: Sequence[str]
    common: int

    @classmethod
    def of(cls, value: str, among: Sequence[str]) -> Choice | None:
        """The value among the sorted ones; None if it is none of them."""
        at = bisect_left(among, value)
        if at == len(among) or among[at] != value:
            return None
        beside = (*among[max(at - 1, 0) : at], *among[at + 1 : at + 2])
        return cls(value, among, max([_alike(value, one) for one in beside], default=-1))

    def odds(self, written: int, logprob: float, others: Iterable[tuple[str, float]], quote: str) -> float:
        """The logarithm of p(token) behind the value's first `written` characters, at most 0.

        `others` are the alternatives, each from the value on; `quote` is the mark that ends it, "" for any.
        """
        if written > self.common:
            return 0.0
        own = reported = math.exp(logprob)
        against = 0.0
        for piece, other in others:
            odds = math.exp(other)
            reported += odds
            same = self.is_same(self.value[:written] + piece, quote)
            own += odds if same else 0.0
            against += odds if same is False else 0.0
        return min(math.log(own / min(own + against + max(1.0 - reported, 0.0), 1.0)), 0.0) if own else logprob

    def is_same(self, text: str, quote: str) -> bool | None:
        """True where a text writes the value and ends it, False where it may become another one, if only by an escape,
        or as nothing of a value is written yet."""
        text = text if quote else text.lstrip()
        shown, mark, _ = text.partition(quote) if quote else (text, "", "")
        if ("\\" in shown) if quote else bool(text and _ENDS.match(text)):
            return False
        ended = [shown] if mark else []
        if not quote:
            ended = [text[:i] for i in range(min(len(text), _MOST + 1)) if _ENDS.match(text, i)]
        if any(one != self.value and self._has(one) for one in ended) or not (mark or self._only_begins(text)):
            return False
        return True if self.value in ended else None

    def _has(self, text: str) -> bool:
        """True for one of the values."""
        at = bisect_left(self.among, text)
        return at < len(self.among) and self.among[at] == text

    def _only_begins(self, text: str) -> bool:
        """True where no value but this one begins with a text."""
        at = bisect_left(self.among, text)
        return all(one == self.value or not one.startswith(text) for one in self.among[at : at + 2])


def _alike(one: str, other: str) -> int:
    """Return the number of characters with which both begin."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)


class Choices:
    """What the schemas of an agent's tools allow."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        few = [*map(function_of, tools if len(tools) <= MAX_CHOICES else ())]
        named = [(name, one.get("parameters")) for one in few if isinstance(name := one.get("name"), str)]
        count = Counter(name for name, _ in named)
        self._tools = {name: parameters for name, parameters in named if count[name] == 1}
        self._names = _sorted([one.get("name") for one in few]) if all(map(is_function, tools)) else ()

    def of(self, call: ToolCall, number: int, written: str) -> Choice | None:
        """The name of a call (0) or its argument (from 1) among what may stand there; None where that is not known."""
        if len(written) > _LONGEST or written != [call.name, *call.arguments.values()][number]:
            return None
        within: Any = self._tools.get(call.name)
        for key in ("properties", list(call.arguments)[number - 1]) if number else ():
            within = within.get(key) if isinstance(within, Mapping) else None
        return Choice.of(written, _allowed(within) if number else self._names)


def _allowed(schema: object) -> Sequence[str]:
    """The texts that a schema lists, where it allows nothing else: null may stand beside them without being listed."""
    known = schema if isinstance(schema, Mapping) else {}
    listed, kinds = known.get("enum"), known.get("type")
    null = known.get("nullable") or (isinstance(kinds, list) and "null" in kinds)
    return _sorted(listed) if isinstance(listed, list) and not null else ()


def _sorted(values: Collection[Any]) -> Sequence[str]:
    """The values, each once; none where one is no text, or may be written in more ways than one."""
    few = len(values) <= MAX_CHOICES and all(isinstance(one, str) and _PLAIN.fullmatch(one) for one in values)
    return sorted(set(values)) if few else ()
