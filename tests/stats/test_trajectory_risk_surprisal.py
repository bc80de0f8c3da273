"""Surprisal counts the tokens of content words, whatever pieces the model writes them in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.content_words import STOP_WORDS, content_tokens, content_words
from grampus_uq.stats.surprisal import MAX_SURPRISAL, content_surprisal


@pytest.mark.parametrize(
    "tokens",
    [
        ["I", " don", "'t", " know", " the"],
        ["ĠI", "Ġdon", "'t", "Ġknow", "Ġthe"],
        ["▁I", "▁don", "'t", "▁know", "▁the"],
        ["I", " don", "’", "t", " know", " the"],
        ["I", " do", "n't", " kn", "ow", " t", "he"],
    ],
)
def test_stop_words_are_recognised_whole_in_every_writing_of_the_pieces(tokens: list[str]) -> None:
    kept = "".join(token for token, keep in zip(tokens, content_tokens(tokens), strict=True) if keep)
    assert kept.strip(" Ġ▁") == "know"


@pytest.mark.parametrize(
    "tokens",
    [
        ["1", ",", "000"],
        [" $", "5"],
        ["12", ":", "30"],
        ["-", "3", ".", "14", "%"],
        ["**"],
        ["##", " "],
        ["\n", "-", " "],
        ["```"],
        ["{", '"', '":', "}"],
        ["<|im_end|>"],
        ["<|eot_id|>"],
        ["</s>"],
        ["<eos>"],
        ["[INST]"],
        [""],
        ["…", "—"],
    ],
)
def test_numbers_marks_and_control_tokens_are_not_content(tokens: list[str]) -> None:
    assert not any(content_tokens(tokens))


def test_a_piece_of_a_word_counts_with_its_word_even_when_it_is_digits_or_a_stop_word_alone() -> None:
    assert content_tokens([" HAT", "069", " ", "069"]) == [True, True, False, False]
    assert content_tokens([" the", "rapist"]) == [True, True]
    assert content_tokens([" the", " rapist"]) == [False, True]


def test_byte_pieces_of_one_character_share_its_word() -> None:
    assert content_tokens(["<0xC3>", "<0xA9>", "t", "é", " ", "<0xF0>"]) == [True, True, True, True, False, False]
    assert content_tokens(["bytes:\\xc3", "bytes:\\xa9"]) == [True, True]


@given(st.lists(st.text(max_size=6), max_size=30))
def test_every_token_of_any_text_gets_a_verdict(tokens: list[str]) -> None:
    assert len(content_tokens(tokens)) == len(tokens)


@given(st.text(st.sampled_from("ab tzhe'1,.\n"), min_size=1, max_size=40), st.data())
def test_the_verdict_on_a_character_does_not_depend_on_how_the_text_is_cut(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    single = content_tokens(list(text))
    spread = [flag for piece, flag in zip(pieces, content_tokens(pieces), strict=True) for _ in piece]
    # A piece is content when any of its characters is.
    expected = []
    place = 0
    for piece in pieces:
        expected += [any(single[place : place + len(piece)])] * len(piece)
        place += len(piece)
    assert spread == expected


def test_content_words_of_a_call_are_its_names_and_values_but_not_its_numbers() -> None:
    text = 'book_flight({"cabin":"economy","date":"2024-05-20","flight":"HAT136","price":250})'
    assert content_words(text) == {"book", "flight", "cabin", "economy", "date", "hat136", "price"}


def test_stop_words_are_lower_case_and_hold_the_words_that_carry_grammar() -> None:
    assert all(word == word.casefold() for word in STOP_WORDS)
    assert {"the", "don't", "and", "you're"} <= STOP_WORDS
    assert not {"refund", "error", "yes", "cancel"} & STOP_WORDS


def test_surprisal_is_the_mean_over_uncertain_content_tokens() -> None:
    tokens = [" The", " refund", " of", " $", "5", " failed", " again", "!"]
    probabilities = [0.2, 0.5, 0.1, 0.3, 0.01, 0.25, 0.4, 0.6]
    expected = -(math.log(0.5) + math.log(0.25)) / 2  # "again" is a stop word
    assert content_surprisal(tokens, [math.log(p) for p in probabilities]) == pytest.approx(expected, rel=1e-12)


def test_the_probability_threshold_is_inclusive_and_predictable_tokens_are_dropped() -> None:
    at, above = math.log(0.95), math.log(0.9500001)
    assert content_surprisal([" flight"], [at]) == pytest.approx(-at)
    assert content_surprisal([" flight"], [above]) == 1e-4
    assert content_surprisal([" flight"], [above], pi_0=0.99, eps=0.5) == pytest.approx(-above)


def test_a_turn_of_which_nothing_is_left_has_the_small_value_and_a_turn_without_tokens_has_none() -> None:
    assert content_surprisal([" the", "**"], [-1.0, -3.0]) == 1e-4
    assert content_surprisal([" the"], [-1.0], eps=0.0) == 0.0
    assert content_surprisal([], []) is None


@pytest.mark.parametrize("logprob", [-9999.0, -math.inf, -20.0001])
def test_one_impossible_token_is_worth_twenty_nats(logprob: float) -> None:
    assert content_surprisal([" flight", " hotel"], [logprob, -1.0]) == pytest.approx((MAX_SURPRISAL + 1.0) / 2.0)


@pytest.mark.parametrize("logprob", [math.nan, 0.01, math.inf])
def test_what_is_no_log_probability_is_refused_wherever_it_stands(logprob: float) -> None:
    for token in (" flight", " the", "**"):
        with pytest.raises(ConfigurationError, match="'logprobs' parameter"):
            content_surprisal([token, " hotel"], [logprob, -1.0])


def test_a_log_probability_a_hair_above_zero_is_rounding() -> None:
    assert content_surprisal([" flight", " hotel"], [1e-7, -1.0]) == 1.0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"pi_0": 0.0}, "pi_0"), ({"pi_0": 1.0}, "pi_0"), ({"eps": -1.0}, "eps"), ({"eps": math.nan}, "eps")],
)
def test_constants_outside_of_their_domain_are_refused(arguments: dict[str, float], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' parameter"):
        content_surprisal([" a"], [-1.0], **arguments)


def test_tokens_and_log_probabilities_must_be_of_one_length() -> None:
    with pytest.raises(ConfigurationError, match="as long as tokens"):
        content_surprisal([" a", " b"], [-1.0])
