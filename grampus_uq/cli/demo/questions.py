"""The demo's questions: whole lists, none chosen by how a model does on them, and a seeded draw from all of them.

193 capitals (every member state of the United Nations), 118 symbols (every chemical element), and 120 sums, differences
and products of two seeded numbers of one to four digits: 431 questions, each with its key.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

import numpy as np

from grampus_uq.errors import ConfigurationError

Match = Literal["words", "symbol", "number"]

_MAX_GRADED_CHARACTERS: Final = 2_000

_APOSTROPHES: Final = re.compile("['’‘ʻʼʹ`´′]|(?<=\\b[a-z])\\.(?=[a-z]\\b)")  # and the points of "D.C."
_NOT_WORD: Final = re.compile(r"[^\w]+|_")
_LETTERS: Final = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th"})
# "not the city of Lyon": a denial, the words that may stand between, and the name.
_DENIAL: Final = r"(?:not|isnt|wasnt|never|nor|neither)(?: (?:is|the|a|city|town|of|in|called|named|really|actually))*"
_NUMBER: Final = re.compile(
    r"(?<![\w.,])[-+−]?(?:[0-9]{1,3}(?:[,\u00a0\u202f][0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?![\w%]|[.,][0-9])"
)
_DENIED_BEFORE: Final = re.compile(r"(?:\bnot|n['’]t|\bnever)\s{1,8}\Z", re.IGNORECASE)
_DENIED_AFTER: Final = re.compile(r"\s{1,8}(?:is|was)(?:\s{1,8}not\b|n['’]t\b)", re.IGNORECASE)
# Alone: no part of a formula ("As(OH)3"), an isotope ("Pu-24") or an ion ("Na+").
_SYMBOL: Final = re.compile(r"(?<![\w)\]])(?<!\w[-–])[^\W_]++(?![(\[{+]|[-–−])")
# Symbols that are also words: they count only where nothing but a symbol can stand.
_ALSO_WORDS: Final = frozenset({"I", "In", "As", "At", "No", "He", "Be", "Am", "Os", "La", "Mo", "Al", "Ho", "Pa"})
_BEFORE_SYMBOL: Final = re.compile(r"(?:[\"'“‘`*(\[:=]|->|→|\b(?:is|symbol|by|as))\s*\Z")
_AFTER_SYMBOL: Final = re.compile(r"[ \t]*+[.!\"'”’`*)\]]*+[ \t\r]*+(?:\Z|\n)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The key of a question: `accepted` (any of them), the comparison, and what must not be claimed beside it.

    `subject` is what the question asks about, so that repeating it ("the capital of Luxembourg") claims nothing.
    `rivals` are the other answers of a closed list; those that are accepted too do not count.
    """

    accepted: tuple[str, ...]
    match: Match = "words"
    subject: str = ""
    rivals: frozenset[str] = frozenset()


def is_right(key: Key, question: str, answer: str) -> bool:
    """True when the answer claims an accepted value, plainly and alone.

    >>> is_right(Key(accepted=("Paris",)), "What is the capital of France?", "It is **paris**.")
    True
    >>> is_right(Key(accepted=("42",), match="number"), "What is 17 + 25?", "17 + 25 = 42")
    True
    """
    answer = answer[:_MAX_GRADED_CHARACTERS]
    if key.match == "number":
        return _claimed_number(question, answer) in {exact_number(value) for value in key.accepted}
    if key.match == "symbol":
        return _claimed_symbols(answer, key.rivals | set(key.accepted)) == set(key.accepted)
    return _claims_words(key, answer)


def normalised(text: str) -> str:
    """Lower case, no accents, no apostrophes or points, one blank between words, "st" written as "saint".

    >>> normalised("St. John’s"), normalised("Port-au-Prince"), normalised("  São   Tomé! ")
    ('saint johns', 'port au prince', 'sao tome')
    """
    plain = unicodedata.normalize("NFKD", text.casefold().translate(_LETTERS))
    plain = "".join(character for character in plain if not unicodedata.combining(character))
    words = _NOT_WORD.sub(" ", _APOSTROPHES.sub("", plain)).split()
    return " ".join("saint" if word == "st" else word for word in words)


def _claims_words(key: Key, answer: str) -> bool:
    text = f" {normalised(answer)} "
    accepted = _normalised_all(frozenset(key.accepted))
    rivals = _normalised_all(key.rivals) - accepted
    text = _without_echo(text, normalised(key.subject).removeprefix("the "), accepted)
    for name in accepted | rivals:
        if f" {name} " in text:
            text = re.sub(rf" {_DENIAL} {re.escape(name)}(?= )", "", text)
    if not any(f" {name} " in text for name in accepted):
        return False
    for name in sorted(accepted, key=len, reverse=True):  # what is inside an accepted name is not a rival of it
        text = text.replace(f" {name} ", " ")
    return not any(f" {rival} " in text for rival in rivals)


def _without_echo(text: str, subject: str, accepted: frozenset[str]) -> str:
    """The text without the subject of the question; where that is part of the answer too (Mexico City), with care."""
    if not subject:
        return text
    name = re.escape(subject)
    if not any(f" {subject} " in f" {name} " for name in accepted):
        return re.sub(rf" {name}s?(?= )", "", text)
    return re.sub(rf" (?:(?:of|in|for)(?: the)? {name}|{name}s)(?= )", "", text)


@functools.lru_cache(maxsize=256)
def _normalised_all(names: frozenset[str]) -> frozenset[str]:
    return frozenset(normalised(name) for name in names)


def _claimed_symbols(answer: str, known: set[str] | frozenset[str]) -> set[str]:
    claimed = set()
    for match in _SYMBOL.finditer(answer):
        symbol = match[0]
        if symbol in known and (symbol not in _ALSO_WORDS or _stands_as_symbol(answer, match)):
            claimed.add(symbol)
    return claimed


def _stands_as_symbol(answer: str, match: re.Match[str]) -> bool:
    before = _BEFORE_SYMBOL.search(answer, max(0, match.start() - 12), match.start())
    return before is not None or _AFTER_SYMBOL.match(answer, match.end()) is not None


def exact_number(text: str) -> Decimal | None:
    """The number that a text is, or None: grouped thousands, a sign, a decimal point; no unit and no percent sign.

    >>> exact_number("1,204"), exact_number("−5.0") == -5, exact_number("42%")
    (Decimal('1204'), True, None)
    """
    match = _NUMBER.fullmatch(text.strip())
    return None if match is None else _decimal(match[0])


def _decimal(text: str) -> Decimal:
    return Decimal(re.sub("[,\u00a0\u202f]", "", text).replace("−", "-"))


def numbers(text: str) -> list[Decimal]:
    """The numbers that a text states, in order; parts of words, versions, percentages and denied ones it does not.

    >>> [str(number) for number in numbers("x2 is 1,204 or -3.5, not 8 or 7%")]
    ['1204', '-3.5']
    """
    return [_decimal(match[0]) for match in _NUMBER.finditer(text) if not _is_denied(text, match)]


def _is_denied(text: str, match: re.Match[str]) -> bool:
    before = _DENIED_BEFORE.search(text, max(0, match.start() - 16), match.start())
    return before is not None or _DENIED_AFTER.match(text, match.end()) is not None


def _claimed_number(question: str, answer: str) -> Decimal | None:
    """The one number that the answer claims: what follows the last `=`, else the only one not in the question."""
    result = exact_number(answer.rpartition("=")[2].strip(" \t\n*.`$\\()")) if "=" in answer else None
    if result is not None:
        return result
    stated = Counter(numbers(answer))
    if len(stated) > 1:
        asked = Counter(numbers(question))
        stated = Counter({number: n for number, n in stated.items() if number not in asked}) or stated - asked
    return next(iter(stated)) if len(stated) == 1 else None


_OPERATIONS: Final = (("plus", "+"), ("minus", "-"), ("times", "×"))
_DIGITS: Final = (1, 2, 3, 4)
_EACH: Final = 10


@functools.cache
def capitals() -> Mapping[str, tuple[str, ...]]:
    """The member states of the United Nations (with the article, as in a question), each with the names of its capital.

    Several names: capitals that the state's own law or constitution names (Bolivia, South Africa), other spellings and
    recent names (Kyiv, Kiev); any is right, the first is shown. Spellings that differ only in case, accents,
    apostrophes or hyphens stand once (`normalised`). A seat of government that no law calls a capital (The
    Hague) is none.
    """
    return {state: tuple(name.strip() for name in names.split("|")) for state, names in read_table("capitals.txt")}


@functools.cache
def elements() -> Mapping[str, str]:
    """Name -> symbol of the 118 chemical elements, in the order of their atomic numbers (IUPAC)."""
    return dict(read_table("elements.txt"))


def read_table(file: str) -> list[tuple[str, str]]:
    """The lines of a text file of the demo, each parted at its first colon."""
    text = importlib.resources.files("grampus_uq.cli.demo").joinpath(file).read_text(encoding="utf-8")
    return [(name, value) for name, _, value in (line.partition(": ") for line in text.splitlines())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question with its key; `id` is unique in its list and plain enough for a file name."""

    id: str
    topic: str
    text: str
    key: Key

    def is_right(self, answer: str) -> bool:
        """True when the answer claims an accepted value, plainly and alone."""
        return is_right(self.key, self.text, answer)


def all_questions(seed: int) -> list[Question]:
    """Every question, in a fixed order; the seed only makes the numbers of the arithmetic ones."""
    return [*_capitals(), *_symbols(), *_arithmetic(np.random.default_rng([seed, 1]))]


def draw(questions: Sequence[Question], n: int, seed: int) -> list[Question]:
    """Draw n different questions uniformly, in random order; the same seed draws the same ones.

    Raises ConfigurationError when n is below 1 or there are fewer than n.
    """
    if not 1 <= n <= len(questions):
        raise ConfigurationError.of("n", "draw", f"from 1 to {len(questions)}, the number of questions", n)
    chosen = np.random.default_rng([seed, 0]).choice(len(questions), size=n, replace=False)
    return [questions[index] for index in chosen]


def slug(text: str) -> str:
    """Lower-case letters and digits joined by hyphens, as session ids and file names are.

    >>> slug("São Tomé and Príncipe")
    'sao-tome-and-principe'
    """
    return re.sub(r"[^a-z0-9]+", "-", normalised(text)).strip("-")


def _capitals() -> list[Question]:
    every = frozenset(name for names in capitals().values() for name in names)
    return [
        Question(
            id=f"capital-{slug(state)}",
            topic="capital",
            text=f"What is the capital of {state}? Answer with the name of the city only.",
            key=Key(accepted=names, subject=state, rivals=every),
        )
        for state, names in capitals().items()
    ]


def _symbols() -> list[Question]:
    every = frozenset(elements().values())
    return [
        Question(
            id=f"symbol-{name}",
            topic="symbol",
            text=f"What is the chemical symbol of {name}? Answer with the symbol only.",
            key=Key(accepted=(symbol,), match="symbol", rivals=every),
        )
        for name, symbol in elements().items()
    ]


def _arithmetic(rng: np.random.Generator) -> list[Question]:
    """Ten questions for each operation and number of digits; no two alike."""
    questions: dict[str, Question] = {}
    for word, sign in _OPERATIONS:
        for digits in _DIGITS:
            wanted = len(questions) + _EACH
            while len(questions) < wanted:
                low = 0 if digits == 1 else 10 ** (digits - 1)
                a, b = (int(number) for number in rng.integers(low, 10**digits, size=2))
                result = {"plus": a + b, "minus": a - b, "times": a * b}[word]
                question = Question(
                    id=f"arithmetic-{a}-{word}-{b}",
                    topic="arithmetic",
                    text=f"What is {a} {sign} {b}? Answer with the number only.",
                    key=Key(accepted=(str(result),), match="number"),
                )
                questions.setdefault(question.id, question)
    return list(questions.values())
