"""When two sampled answers mean the same: by their words, aware of negation and numbers, or by a model's judgement."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from grampus_uq.errors import ConfigurationError
from grampus_uq.protocols import SenseContext
from grampus_uq.records import Message, ModelResponse
from grampus_uq.vocabulary import Role

__all__ = ["AskedOnce", "EntailmentEquivalence", "Equivalence", "LexicalEquivalence", "cluster", "lexical_similarity"]

T = TypeVar("T")

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_NUMBER = re.compile(r"(?:(?<![\w.)])[-−])?\d[\d,]{0,30}(?:\.\d{1,30})?")
_NEGATIONS = frozenset(
    {"not", "no", "never", "none", "nor", "neither", "without", "cannot", "nobody", "nothing", "false", "incorrect"}
)
_ARTICLES = frozenset({"a", "an", "the"})
MAX_COMPARED_CHARACTERS = 20_000


class Equivalence(Protocol):
    """Decides whether two answers mean the same; `strict` is asked for the early stop on the first pair."""

    async def same(self, first: str, second: str, context: SenseContext, *, strict: bool = False) -> bool:
        """True when the two answers belong to one meaning cluster."""
        ...


def lexical_similarity(first: str, second: str) -> float:
    """Jaccard similarity of the two word sets in [0, 1], and 0 when negations or numbers differ.

    Case, punctuation and articles do not count. "is the capital" and "is not the capital" have Jaccard .86 and
    similarity 0. What words cannot show stays unseen: "A beats B" and "B beats A" are the same set. Two texts without
    any word are the same only when they are equal up to surrounding blanks.

    >>> lexical_similarity("The capital is Paris.", "paris is the capital")
    1.0
    >>> lexical_similarity("x is 5", "x is 6")
    0.0
    """
    first, second = first[:MAX_COMPARED_CHARACTERS], second[:MAX_COMPARED_CHARACTERS]
    numbers = _numbers(first)
    if numbers != _numbers(second):
        return 0.0
    a, b = _words(first), _words(second)
    if _negations(a) != _negations(b):
        return 0.0
    a, b = (a - _ARTICLES).union(numbers), (b - _ARTICLES).union(numbers)
    union = len(a | b)
    if union == 0:
        return 1.0 if first.strip() == second.strip() else 0.0
    return len(a & b) / union


def _words(text: str) -> frozenset[str]:
    """The words of a text; not its bare numbers, which `_numbers` has in one way of writing."""
    return frozenset(word.replace("’", "'") for word in _WORD.findall(text.casefold()) if not word.isdecimal())


def _negations(words: frozenset[str]) -> int:
    """Parity of the negating words: two texts agree when both negate or neither does."""
    return sum(word in _NEGATIONS or word.endswith("n't") for word in words) % 2


def _numbers(text: str) -> list[str]:
    """The numbers of a text, each in one way of writing, sorted: "1,000.50" and "1000.5" are the same number."""
    return sorted(_plain_number(number) for number in _NUMBER.findall(text))


def _plain_number(number: str) -> str:
    plain = number.replace(",", "").replace("−", "-")
    sign, digits = ("-", plain[1:]) if plain.startswith("-") else ("", plain)
    whole, _, fraction = digits.partition(".")
    return f"{sign}{whole.lstrip('0') or '0'}.{fraction.rstrip('0')}"


class LexicalEquivalence:
    """Same when the lexical similarity reaches `threshold` (`strict_threshold` for the early stop)."""

    __slots__ = ("strict_threshold", "threshold")

    def __init__(self, *, threshold: float = 0.40, strict_threshold: float = 0.60) -> None:
        for name, value in (("threshold", threshold), ("strict_threshold", strict_threshold)):
            if not 0.0 < value <= 1.0:
                raise ConfigurationError.of(name, "LexicalEquivalence", "in (0, 1]", value)
        self.threshold = threshold
        self.strict_threshold = strict_threshold

    async def same(self, first: str, second: str, context: SenseContext, *, strict: bool = False) -> bool:
        """Compare words; asks no model."""
        return lexical_similarity(first, second) >= (self.strict_threshold if strict else self.threshold)


class EntailmentEquivalence:
    """Same when a model says that each answer entails the other, given the question (Farquhar et al. 2024).

    Costs up to two calls a pair within the signal's budget; answers that are equal up to case, punctuation and articles
    are the same without a call. A judgement that is neither yes nor no counts as no.
    """

    __slots__ = ()

    async def same(self, first: str, second: str, context: SenseContext, *, strict: bool = False) -> bool:
        """Ask for both directions; the second only when the first holds."""
        if lexical_similarity(first, second) == 1.0:
            return True
        return await self._entails(first, second, context) and await self._entails(second, first, context)

    async def _entails(self, premise: str, conclusion: str, context: SenseContext) -> bool:
        request = next((m.content for m in reversed(context.messages) if m.role is Role.USER and m.content), "")
        content = (
            f"Question:\n{request[-MAX_COMPARED_CHARACTERS:]}\n\nAnswer A:\n{premise[:MAX_COMPARED_CHARACTERS]}\n\n"
            f"Answer B:\n{conclusion[:MAX_COMPARED_CHARACTERS]}\n\n"
            "Does answer A, as a reply to the question, entail answer B? Reply with one word, Yes or No."
        )
        reply = await context.ask([Message(role=Role.USER, content=content)], temperature=0.0, max_tokens=8)
        return reply.content.strip(" \t\n*\"'`.:").lower().startswith("yes")


class AskedOnce:
    """A context that asks an equal question once and remembers the answer: for the judgements within one sensing.

    The early stop and the clustering ask about the same pairs, and sampled answers repeat. A failure is not remembered.
    """

    __slots__ = ("_answers", "_context")

    def __init__(self, context: SenseContext) -> None:
        self._context = context
        self._answers: dict[str, ModelResponse] = {}

    @property
    def messages(self) -> Sequence[Message]:
        """The prompt that the step answered."""
        return self._context.messages

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        """The tools that the agent may propose."""
        return self._context.tools

    async def ask(self, messages: Sequence[Message], **options: Any) -> ModelResponse:
        """Answer from memory, or ask; raises what asking raises."""
        question = repr((messages, sorted(options.items())))
        if question not in self._answers:
            self._answers[question] = await self._context.ask(messages, **options)
        return self._answers[question]


async def cluster(answers: Sequence[T], same: Callable[[T, T], Awaitable[bool]]) -> list[list[int]]:
    """Put each answer into the first cluster whose first member means the same; returns indices.

    First match wins, so each answer lies in exactly one cluster; the result depends only on the order of the answers.
    """
    clusters: list[list[int]] = []
    for index, answer in enumerate(answers):
        for members in clusters:
            if await same(answers[members[0]], answer):
                members.append(index)
                break
        else:
            clusters.append([index])
    return clusters
