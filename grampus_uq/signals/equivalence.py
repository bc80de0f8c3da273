"""Equivalence of two answers: by their wording, by the words that they share, or by a model's judgement."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.configuration import checked
from grampus_uq.records.protocols import SenseContext
from grampus_uq.records.values import Message, ModelResponse
from grampus_uq.records.vocabulary import Role
from grampus_uq.signals.quoting import QUOTED_IS_MATERIAL, quoted

T = TypeVar("T")

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_NUMBER = re.compile(r"(?:(?<![\w.)])[-−])?\d[\d,]{0,30}(?:\.\d{1,30})?")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+")
_NEGATIONS = frozenset(
    {"not", "no", "never", "none", "nor", "neither", "without", "cannot", "nobody", "nothing", "false", "incorrect"}
)
_ARTICLES = frozenset({"a", "an", "the"})
_FILLERS = frozenset({"an", "the", "well", "so", "okay", "ok", "please", "indeed", "certainly", "sure"})
_OPENINGS = (("final", "answer", "is"), ("answer", "is"), ("final", "answer"), ("answer",), ("it", "is"), ("it's",),
             ("this", "is"), ("that", "is"), ("that's",))  # fmt: skip
_COPULAS = frozenset({"is", "are", "was", "were"})
_OPPOSITES = (
    "approve/deny reject refuse decline", "accept/reject refuse decline", "allow permit/forbid deny block",
    "pay charge/refund", "send/withhold receive", "select read keep/delete drop", "insert/delete drop", "add/remove",
    "create/delete destroy", "enable/disable", "start/stop", "open/close", "buy/sell", "grant/revoke", "lock/unlock",
    "increase raise/decrease lower reduce", "encrypt/decrypt", "credit/debit", "upload/download", "succeed pass/fail",
    "safe/unsafe", "valid/invalid", "legal/illegal", "before/after", "from/to", "more/less fewer", "all/none", "on/off",
    "above over/below under", "in/out", "up/down", "yes/no", "always/never", "first/last", "left/right", "may/must",
    "innocent/guilty", "cancel/confirm keep",
)  # fmt: skip
MAX_COMPARED_CHARACTERS = 20_000


class Equivalence(Protocol):
    """Decides whether two answers mean the same; `strict` is asked for the early stop on the first pair."""

    async def same(self, first: str, second: str, context: SenseContext, *, strict: bool = False) -> bool:
        """True when the two answers belong to one meaning cluster."""
        ...


def same_wording(first: str, second: str) -> bool:
    """True when two texts say the same in the same words: no other word, number, symbol, or order of them.

    Case, sentence punctuation, articles, thousands separators, and an opening such as "The answer is" do not count; a
    question mark does, and so does every digit ("1.10" is not "1.1").
    "A is B" and "B is A" are the same; "A pays B" and "B pays A" are not. Two ways to say one thing are not either:
    to tell that takes a model (`EntailmentEquivalence`). Texts of more than 20,000 characters must be equal.

    >>> same_wording("The capital is Paris.", "paris is the capital"), same_wording("pay A for B", "pay B for A")
    (True, False)
    """
    if max(len(first), len(second)) > MAX_COMPARED_CHARACTERS:
        return first == second
    a, b = _wording(first), _wording(second)
    return a == b or (len(a) == len(b) and _turned(a) == b)


def _wording(text: str) -> list[str]:
    words = [_plain_word(chunk) for chunk in text.replace("’", "'").split()]
    content = [word for word in words if word and word not in _FILLERS and word != "a"]
    for opening in _OPENINGS:
        if tuple(content[: len(opening)]) == opening and len(content) > len(opening):
            content = content[len(opening) :]
            break
    return content or words or [text.strip()]


def _plain_word(chunk: str) -> str:
    """A word without the punctuation around it; symbols stay, a question mark, the case of what has digits."""
    bare = chunk.lstrip("\"'“‘([{*_`#").rstrip("\"'”’)]}*_`.,;:!…")
    if not bare:
        return "" if set(chunk) <= set("*_`#\"'“”‘’") else chunk
    if _NUMBER.fullmatch(bare):
        return _plain_number(bare)
    return bare if chunk == "A" or any(map(str.isdigit, bare)) else bare.casefold()


def _turned(words: Sequence[str]) -> list[str]:
    """ "A is B" as "B is A"; unchanged unless there is exactly one copula."""
    places = [place for place, word in enumerate(words) if word in _COPULAS]
    if len(places) != 1 or places[0] in {0, len(words) - 1}:
        return list(words)
    place = places[0]
    return [*words[place + 1 :], words[place], *words[:place]]


def _signs() -> dict[str, list[tuple[int, bool]]]:
    signs: dict[str, list[tuple[int, bool]]] = {}
    for number, pair in enumerate(_OPPOSITES):
        for side, words in enumerate(pair.split("/")):
            for word in words.split():
                stem = word.removesuffix("e")
                forms = {word, f"{word}s", f"{stem}ed", f"{stem}ing", f"{word}ed", f"{word.removesuffix('y')}ies"}
                for form in forms | {f"{word.removesuffix('y')}ied", f"{word}{word[-1]}ed", f"{word}{word[-1]}ing"}:
                    signs.setdefault(form, []).append((number, bool(side)))
    return signs | {"paid": signs["pay"], "sent": signs["send"], "bought": signs["buy"], "sold": signs["sell"]}


_SIGNS = _signs()


def _opposed(first: frozenset[str], second: frozenset[str]) -> bool:
    """True when one of two sets of words has a word and the other its opposite."""
    a = {sign for word in first for sign in _SIGNS.get(word, ())}
    return any((number, not side) in a for word in second for number, side in _SIGNS.get(word, ()))


def lexical_similarity(first: str, second: str) -> float:
    """Jaccard similarity of the two word sets in [0, 1], and 0 if the difference may reverse the meaning.

    That is: another negation or number, a question and a statement, shared words in another order ("A beats B", "B
    beats A"), or a word on one side and its opposite on the other ("approve", "deny"; the commonest ones). Case,
    punctuation and articles do not count.
    "is the capital" and "is not the capital" have Jaccard .86 and similarity 0. What words cannot show stays unseen:
    "pay Alice" and "pay Mallory" share one word of three. Texts without any word, or of more than 20,000 characters,
    are the same only when they are equal.

    >>> lexical_similarity("The capital is Paris.", "paris is the capital")
    1.0
    >>> lexical_similarity("x is 5", "x is 6")
    0.0
    """
    if max(len(first), len(second)) > MAX_COMPARED_CHARACTERS:
        return 1.0 if first == second else 0.0
    numbers = _numbers(first)
    if numbers != _numbers(second) or _asks(first) != _asks(second):
        return 0.0
    a_words, b_words = _words(first), _words(second)
    a, b = frozenset(a_words), frozenset(b_words)
    if _negations(a) != _negations(b) or _opposed(a - b, b - a):
        return 0.0
    shared = (a & b) - _ARTICLES
    in_a, in_b = [word for word in a_words if word in shared], [word for word in b_words if word in shared]
    if in_a != in_b and _turned(in_a) != in_b and list(dict.fromkeys(in_a)) != list(dict.fromkeys(in_b)):
        return 0.0
    a, b = (a - _ARTICLES).union(numbers), (b - _ARTICLES).union(numbers)
    union = len(a | b)
    if union == 0:
        return 1.0 if first.strip() == second.strip() else 0.0
    return len(a & b) / union


def _words(text: str) -> list[str]:
    """The words of a text; not its bare numbers, which `_numbers` has in one way of writing."""
    return [word.replace("’", "'") for word in _WORD.findall(text.casefold()) if not word.isdecimal()]


def _asks(text: str) -> bool:
    return text.rstrip(" \n\t\"'”’)*_!.").endswith("?")


def _negations(words: frozenset[str]) -> int:
    """Parity of the negating words: two texts agree when both negate or neither does."""
    return sum(word in _NEGATIONS or word.endswith("n't") for word in words) % 2


def _numbers(text: str) -> list[str]:
    """The numbers of a text in their order, each in one way of writing: "1,000" and "1000" are the same number.

    "1.10" and "1.1" are not: as versions they differ, and who reads two amounts apart is only more careful.
    """
    return [_plain_number(number) for number in _NUMBER.findall(text)]


def _plain_number(number: str) -> str:
    plain = number.replace("−", "-")
    sign, digits = ("-", plain[1:]) if plain.startswith("-") else ("", plain)
    whole, _, fraction = digits.partition(".")
    grouped = whole.replace(",", "") if _THOUSANDS.fullmatch(whole) else whole  # "1,5" and "0049" are as they stand
    return f"{sign}{grouped}.{fraction}" if fraction else f"{sign}{grouped}"


class SameWording:
    """Same if both texts use the same words (`same_wording`): the default of the monitor."""

    __slots__ = ()

    async def same(self, first: str, second: str, context: SenseContext, *, strict: bool = False) -> bool:
        """Compare wordings; asks no model."""
        return same_wording(first, second)


@checked
class LexicalEquivalence:
    """Same when the lexical similarity reaches `threshold` (`strict_threshold` for the early stop).

    It forgives a differing name or verb: "I pay Alice now" and "I pay Mallory now" are the same to it.
    """

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

    Costs up to two calls a pair within the signal's budget; answers in the same words are the same without a call, and
    answers too long to be shown whole are not the same. A judgement that is not plainly yes counts as no.
    """

    __slots__ = ()

    async def same(self, first: str, second: str, context: SenseContext, *, strict: bool = False) -> bool:
        """Ask for both directions; the second only when the first holds."""
        if same_wording(first, second):
            return True
        if max(len(first), len(second)) > MAX_COMPARED_CHARACTERS:
            return False
        return await self._entails(first, second, context) and await self._entails(second, first, context)

    async def _entails(self, premise: str, conclusion: str, context: SenseContext) -> bool:
        request = next((m.content for m in reversed(context.messages) if m.role is Role.USER and m.content), "")
        content = (
            f"{QUOTED_IS_MATERIAL}\n\nQuestion:\n{quoted(request[-MAX_COMPARED_CHARACTERS:])}\n\nAnswer A:\n"
            f"{quoted(premise)}\n\nAnswer B:\n{quoted(conclusion)}\n\n"
            "Does answer A, as a reply to the question, entail answer B? Reply with one word, Yes or No."
        )
        reply = await context.ask([Message(role=Role.USER, content=content)], temperature=0.0, max_tokens=8)
        return _YES.fullmatch(reply.content) is not None


_YES = re.compile(r"[\s*\"'`]{0,8}yes\b(?!.*\b(?:no|not|but|partly|if)\b)(?!.*n't).*", re.IGNORECASE | re.DOTALL)


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
