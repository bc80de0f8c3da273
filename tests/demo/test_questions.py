"""The lists are whole, the keys are sound, and a seed draws the same questions for everybody."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.cli.demo.questions import all_questions, capitals, draw, elements
from grampus_uq.errors import ConfigurationError
from grampus_uq.recording import file_name


def test_the_lists_are_whole() -> None:
    assert len(capitals()) == 193, "the United Nations have 193 members"
    assert len(elements()) == 118
    assert len(set(elements().values())) == 118
    counts = Counter(question.topic for question in all_questions(0))
    assert counts == {"capital": 193, "symbol": 118, "arithmetic": 120}


@pytest.mark.parametrize("seed", [0, 1, 2026])
def test_every_key_accepts_its_own_answers_and_every_id_is_a_plain_file_name(seed: int) -> None:
    questions = all_questions(seed)
    assert len({question.id for question in questions}) == len(questions) >= 400
    assert len({question.text for question in questions}) == len(questions)
    for question in questions:
        assert file_name(question.id) == f"{question.id}.jsonl"
        for answer in question.key.accepted:
            assert question.is_right(answer), (question.id, answer)


def test_the_arithmetic_is_right_and_graded() -> None:
    sizes: Counter[tuple[str, int]] = Counter()
    for question in all_questions(5):
        if question.topic == "arithmetic":
            a, sign, b = question.text.removeprefix("What is ").partition("?")[0].split()
            result = {"+": int(a) + int(b), "-": int(a) - int(b), "×": int(a) * int(b)}[sign]
            assert question.key.accepted == (str(result),)
            assert len(a) == len(b)
            sizes[sign, len(a)] += 1
    assert set(sizes) == {(sign, digits) for sign in "+-×" for digits in (1, 2, 3, 4)}
    assert set(sizes.values()) == {10}


@given(st.integers(0, 2**32), st.integers(1, 431))
def test_a_draw_is_of_different_questions_and_repeats_with_its_seed(seed: int, n: int) -> None:
    questions = all_questions(0)
    drawn = draw(questions, n, seed)
    assert len({question.id for question in drawn}) == n
    assert drawn == draw(questions, n, seed)
    assert {question.id for question in drawn} <= {question.id for question in questions}


def test_every_question_is_drawn_about_equally_often() -> None:
    questions = all_questions(0)
    counts = Counter(question.id for seed in range(2_000) for question in draw(questions, 60, seed))
    expected = 2_000 * 60 / 431
    # Binomial counts: five standard deviations hold for all 431 at once (probability of a false alarm below 1e-3).
    spread = 5.0 * (expected * (1 - 60 / 431)) ** 0.5
    assert len(counts) == 431
    assert all(abs(count - expected) < spread for count in counts.values())


@pytest.mark.parametrize("n", [0, -1, 432])
def test_more_questions_than_there_are_cannot_be_drawn(n: int) -> None:
    with pytest.raises(ConfigurationError, match="from 1 to 431"):
        draw(all_questions(0), n, 0)
