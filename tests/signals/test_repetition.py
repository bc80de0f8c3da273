"""Repetition is the product of meaning and wording, taken from the turn that is repeated most."""

from __future__ import annotations

import numpy as np
import pytest

from grampus_uq.signals.components import hybrid_repetition, lexical_overlap
from grampus_uq.signals.embedding import HashingEmbedder
from grampus_uq.stats.content_words import content_words


def of(turn: str, *earlier: str) -> float:
    vectors = HashingEmbedder().embed([turn, *earlier])
    return hybrid_repetition(
        vectors[0],
        content_words(turn),
        [(v, content_words(text)) for v, text in zip(vectors[1:], earlier, strict=True)],
    )


def test_a_turn_said_again_repeats_fully_and_nothing_before_it_repeats_nothing() -> None:
    assert of("Your refund is on its way.", "Hello", "Your refund is on its way!") == pytest.approx(1.0)
    assert of("Your refund is on its way.") == 0.0
    assert of("", "") == 0.0
    assert of("the of and", "the of and") == 0.0  # nothing but stop words: no lexical overlap, by equation 9


def test_a_list_gone_through_item_by_item_repeats_less_than_a_loop() -> None:
    loop = of("Flight HAT069 leaves at noon", "Flight HAT069 leaves at noon")
    enumeration = of("Flight HAT136 leaves Atlanta", "Flight HAT069 leaves Boston")
    assert 0.0 < enumeration < 0.5 < loop


def test_the_value_is_the_product_for_the_most_repeated_turn() -> None:
    vector = np.array([1.0, 0.0])
    near = (np.array([0.6, 0.8]), frozenset("abc"))
    same_words = (np.array([0.1, np.sqrt(0.99)]), frozenset("ab"))
    assert hybrid_repetition(vector, frozenset("ab"), [near, same_words]) == pytest.approx(0.6 * 2 / 3)
    opposite = (np.array([-1.0, 0.0]), frozenset("ab"))
    assert hybrid_repetition(vector, frozenset("ab"), [opposite]) == 0.0


def test_lexical_overlap_is_jaccard() -> None:
    assert lexical_overlap(frozenset("abc"), frozenset("bcd")) == 0.5
    assert lexical_overlap(frozenset(), frozenset()) == 0.0
    assert lexical_overlap(frozenset("a"), frozenset()) == 0.0
