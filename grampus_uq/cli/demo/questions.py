"""The demo's questions: whole lists, none chosen by how a model does on them, and a seeded draw from all of them.

193 capitals (every member state of the United Nations), 118 symbols (every chemical element), and 120 sums, differences
and products of two seeded numbers of one to four digits: 431 questions, each with its key.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grampus_uq.cli.demo.grading import Key, is_right, normalised
from grampus_uq.errors import ConfigurationError

_OPERATIONS: Final = (("plus", "+"), ("minus", "-"), ("times", "×"))
_DIGITS: Final = (1, 2, 3, 4)
_EACH: Final = 10


@functools.cache
def capitals() -> Mapping[str, tuple[str, ...]]:
    """The member states of the United Nations (with the article, as in a question), each with the names of its capital.

    Several names: capitals that the state's own law or constitution names (Bolivia, South Africa), other spellings and
    recent names (Kyiv, Kiev); any is right, the first is shown. Spellings that differ only in case, accents,
    apostrophes or hyphens stand once (`grading.normalised`). A seat of government that no law calls a capital (The
    Hague) is none.
    """
    return {state: tuple(name.strip() for name in names.split("|")) for state, names in _table("capitals.txt")}


@functools.cache
def elements() -> Mapping[str, str]:
    """Name -> symbol of the 118 chemical elements, in the order of their atomic numbers (IUPAC)."""
    return dict(_table("elements.txt"))


def _table(file: str) -> list[tuple[str, str]]:
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
