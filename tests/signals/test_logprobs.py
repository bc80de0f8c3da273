"""Token streams as confidence: means and entropies against hand-made sums, and what malformed streams give."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import MissingReason, Step, TokenLogprob, ToolCall
from grampus_uq.signals.action_span import action_places
from grampus_uq.signals.claim_probability import claim_reading
from grampus_uq.signals.token_signals import (
    NO_TOKEN_READINGS,
    TOKEN_SOURCES,
    entropy_confidence,
    mean_token_probability,
    says_something,
    sequence_probability,
    token_entropies,
    token_readings,
)
from grampus_uq.stats.entropy import top_k_entropy
from grampus_uq.testing import top_logprobs

natural = st.floats(-100.0, 0.0)
alternatives = st.lists(natural, min_size=2, max_size=6)


def tokens_of(logprobs, tops=()):
    tops = list(tops) or [[]] * len(logprobs)
    return [
        TokenLogprob(token="t", logprob=logprob, top=tuple((str(i), v) for i, v in enumerate(top)))
        for logprob, top in zip(logprobs, tops, strict=True)
    ]


def stream(*tokens: TokenLogprob) -> Step:
    return Step(step_id="s", kind="llm_call", time_s=0.0, text="x", logprobs=tokens)


@given(st.lists(natural, min_size=1, max_size=30))
def test_the_mean_probability_is_the_mean_of_the_chosen_tokens_probabilities(logprobs):
    expected = math.fsum(math.exp(value) for value in logprobs) / len(logprobs)
    got = mean_token_probability(tokens_of(logprobs))
    assert got == pytest.approx(expected, abs=1e-12)
    assert 0.0 <= got <= 1.0


@given(st.lists(alternatives, min_size=1, max_size=8))
def test_entropy_confidence_is_the_exponential_of_minus_the_mean_entropy_and_in_the_unit_interval(tops):
    def entropy(values):
        shares = [math.exp(v - max(values)) for v in values]
        return -math.fsum(s / sum(shares) * math.log(s / sum(shares)) for s in shares if s)

    got = entropy_confidence(tokens_of([-0.1] * len(tops), tops))
    assert got == pytest.approx(math.exp(-math.fsum(map(entropy, tops)) / len(tops)), abs=1e-9)
    assert 0.0 <= got <= 1.0


def test_a_fair_coin_has_confidence_one_half():
    assert entropy_confidence([top_logprobs({"heads": 0.5, "tails": 0.5})]) == pytest.approx(0.5)


def test_an_impossible_alternative_does_not_make_a_coin_certain():
    token = TokenLogprob(token="a", logprob=-0.7, top=(("a", math.log(0.5)), ("b", math.log(0.5)), ("c", -math.inf)))
    assert entropy_confidence([token]) == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [math.nan, 1.1e-3, 5.0, math.inf])
def test_a_malformed_log_probability_makes_the_reading_missing_and_not_half_true(bad):
    broken = TokenLogprob(token="t", logprob=bad, top=(("t", bad), ("u", -1.0)))
    fine = top_logprobs({"a": 0.5, "b": 0.25})
    step = stream(fine, broken, fine)
    for reading in token_readings(step):
        assert (reading.value, reading.reason) == (None, MissingReason.INVALID_VALUE)


def test_a_rounding_error_above_zero_is_certainty():
    assert mean_token_probability(tokens_of([1e-6, 0.0, 1e-3])) == 1.0
    assert entropy_confidence(tokens_of([0.0], [[1e-3, -math.inf]])) == 1.0


def test_a_token_that_cannot_be_has_probability_zero():
    assert mean_token_probability(tokens_of([-math.inf])) == 0.0


def test_tokens_without_alternatives_do_not_count_in_the_entropy_but_do_in_the_mean():
    coin, lone = top_logprobs({"heads": 0.5, "tails": 0.5}), TokenLogprob(token="t", logprob=0.0, top=(("t", 0.0),))
    assert entropy_confidence([lone, coin, lone]) == pytest.approx(0.5)
    assert entropy_confidence([lone]) is None
    assert mean_token_probability([coin, lone]) == pytest.approx(0.75)


@pytest.mark.parametrize("logprobs", [None, ()])
def test_a_step_without_log_probabilities_is_missing_with_that_reason(logprobs):
    step = Step(step_id="s", kind="llm_call", time_s=0.0, text="x", logprobs=logprobs)
    readings = token_readings(step)
    assert [reading.source for reading in readings] == list(TOKEN_SOURCES)
    for reading in (*readings, *NO_TOKEN_READINGS):
        assert (reading.value, reading.reason) == (None, MissingReason.NO_LOGPROBS)


def test_alternatives_that_are_all_impossible_are_missing():
    token = TokenLogprob(token="a", logprob=-1.0, top=(("a", -math.inf), ("b", -math.inf)))
    assert entropy_confidence([token]) is None


@given(st.lists(st.floats(-5.0, 0.0), min_size=1, max_size=30))
def test_the_probability_of_the_whole_completion_is_the_product_and_never_above_any_token(values: list[float]) -> None:
    said = [TokenLogprob(token="x", logprob=value) for value in values]
    found = sequence_probability(said)
    assert found == pytest.approx(math.prod(math.exp(value) for value in values))
    assert found <= math.exp(min(values)) + 1e-12


def test_a_whole_completion_with_a_malformed_token_or_none_at_all_has_no_probability() -> None:
    for values in ([], [-0.5, math.nan], [-0.5, 0.7]):
        assert sequence_probability([TokenLogprob(token="x", logprob=value) for value in values]) is None
    assert sequence_probability([TokenLogprob(token="x", logprob=-800.0)] * 9) == 0.0


MARKS = [
    "<|im_end|>",
    "</s>",
    "<eos>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "<|im_end|>\n",
    "[end of text]",
]
UNSEEN = ["\u200d", "\u2060", "\u00ad", "\u3000", "\u2028", "\u202e", "\ufe0f", "\x00", "\u2800", "\u3164", "\u200e"]
PAY = ToolCall(name="pay", arguments={"to": "Mallory"})


@pytest.mark.parametrize("calls", [(), (PAY,)], ids=["answer", "call"])
@pytest.mark.parametrize(
    "silent", [[""], [" ", "\n"], ["▁", "Ġ"], *([mark] for mark in [*MARKS, *UNSEEN]), ["", "\n", "</s>"], []]
)
def test_tokens_that_say_nothing_are_a_missing_reading_and_not_certainty(silent, calls):
    tokens = tuple(top_logprobs({token: 0.999, "other": 0.001}) for token in silent)
    step = Step(step_id="s", kind="llm_call", time_s=0.0, tool_calls=calls, logprobs=tokens)
    for reading in token_readings(step):
        assert (reading.value, reading.reason) == (None, MissingReason.NO_LOGPROBS), reading
    assert claim_reading(step, ()).value is None


@pytest.mark.parametrize("word", ["No", "0", ".", "{", "<b>x", "<", "A", "]", "<" + "a" * 300 + ">"])
def test_one_token_that_says_something_is_read(word):
    step = stream(top_logprobs({word: 0.5, "x": 0.5}), top_logprobs({"</s>": 1.0, "x": 1e-9}))
    assert all(reading.value is not None for reading in token_readings(step))


logprob = natural | st.sampled_from([0.0, -math.inf, math.nan, 0.5, 1e-4, -1e300])
words = st.sampled_from(["pay", "(", "{", '"', "to", ")", " ", "</s>", "Mallory", '{"name": "pay"}', "pay()", ""])
any_token = st.builds(
    TokenLogprob,
    token=words,
    logprob=logprob,
    top=st.lists(st.tuples(words, logprob), max_size=4).map(tuple),
)


@given(st.lists(any_token, max_size=12), st.sampled_from([(), (PAY,), (PAY, PAY)]))
def test_one_pass_reads_what_the_definitions_give_one_by_one(tokens, calls):
    step = Step(step_id="s", kind="llm_call", time_s=0.0, tool_calls=calls, logprobs=tuple(tokens))
    places = action_places(tokens, calls)
    action = [tokens[place] for place in places or ()]
    expected = [mean_token_probability(tokens), entropy_confidence(tokens), sequence_probability(tokens)]
    expected = expected if says_something(tokens) else [None] * 3
    expected += [mean_token_probability(action), entropy_confidence(action)] if says_something(action) else [None] * 2
    assert [reading.value for reading in token_readings(step)] == expected
    for reading in token_readings(step):
        assert reading.value is None or 0.0 <= reading.value <= 1.0


@given(st.lists(natural, min_size=2, max_size=6))
def test_the_entropy_that_is_written_out_is_the_one_of_the_definition(values):
    entropies = token_entropies(tokens_of([-1.0], [values]))
    assert entropies == [pytest.approx(top_k_entropy(values), abs=1e-9)]
