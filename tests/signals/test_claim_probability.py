"""The least likely new word: what it leaves out, how a word of several tokens counts, and what hostile input does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import ConfigurationError, Message, Role, UncertaintyMonitor
from grampus_uq.records.protocols import Processor
from grampus_uq.records.values import Reading, Step, TokenLogprob, ToolCall
from grampus_uq.signals.claim_probability import MAX_TOKENS, claim_reading, least_new_word_probability, requested_words

FRANCE = frozenset({"the", "capital", "of", "france", "is"})


def tokens(*pairs: tuple[str, float]) -> list[TokenLogprob]:
    return [TokenLogprob(token=text, logprob=math.log(p)) for text, p in pairs]


def test_the_words_of_the_request_do_not_count_however_unlikely() -> None:
    said = tokens(
        ("The", 0.2), (" capital", 0.9), (" of", 0.9), (" France", 0.1), (" is", 0.9), (" Paris", 0.8), (".", 0.3)
    )
    assert least_new_word_probability(said, FRANCE) == pytest.approx(0.8)


def test_a_word_of_several_tokens_is_as_likely_as_all_of_them_together() -> None:
    said = tokens(("Ou", 0.5), ("aga", 0.4), ("dou", 0.9), ("gou", 1.0), (" perhaps", 0.9))
    assert least_new_word_probability(said, frozenset()) == pytest.approx(0.18)


def test_a_token_that_writes_two_words_counts_for_both() -> None:
    said = tokens(("Buenos Ai", 0.5), ("res", 0.5))
    assert least_new_word_probability(said, frozenset()) == pytest.approx(0.25)
    assert least_new_word_probability(said, frozenset({"aires"})) == pytest.approx(0.5)


def test_an_answer_without_a_new_word_claims_nothing() -> None:
    assert least_new_word_probability(tokens(("The", 0.5), (" CAPITAL", 0.5), ("!", 0.1)), FRANCE) is None
    assert least_new_word_probability([], FRANCE) is None


@pytest.mark.parametrize("wrong", [math.nan, 0.5])
def test_a_malformed_token_makes_the_reading_missing(wrong: float) -> None:
    said = [*tokens(("Paris", 0.5)), TokenLogprob(token=" now", logprob=wrong)]
    assert least_new_word_probability(said, frozenset()) is None


def test_an_impossible_token_is_probability_nought() -> None:
    assert least_new_word_probability([TokenLogprob(token="x", logprob=-math.inf)], frozenset()) == 0.0


def test_an_answer_in_the_words_of_its_request_is_as_likely_as_its_least_likely_word() -> None:
    said = tuple(tokens(("Capital", 0.9), (" Luxembourg", 0.3), (".", 0.1)))
    step = Step(step_id="1", kind="llm_call", time_s=0.0, text="Capital Luxembourg.", logprobs=said)
    asked = [Message(role=Role.USER, content="Capital of Luxembourg?")]
    assert claim_reading(step, asked).value == pytest.approx(0.3)


@given(
    st.lists(st.tuples(st.sampled_from(["Capital", "yes", "95", "sure"]), st.floats(0.01, 1.0)), min_size=1),
    st.sampled_from(["Confidence: 95%", '{"confidence": 0.9}', "<confidence>1.0</confidence>", "I am 95% sure."]),
    st.sampled_from(["Capital of Luxembourg?", "Answer yes or no.", "How sure are you of Luxembourg?"]),
)
def test_what_an_answer_states_of_itself_makes_none_of_its_words_likelier(
    words: list[tuple[str, float]], stated: str, asked: str
) -> None:
    """A "Yes" at .3, in answer to "Yes or no?", read .99 beside a "Confidence: 95%"."""

    def claim(*behind: tuple[str, float]) -> float:
        said = tokens(*[(f"{word} ", odds) for word, odds in words], *behind)
        text = "".join(token.token for token in said)
        step = Step(step_id="1", kind="llm_call", time_s=0.0, text=text, logprobs=tuple(said))
        value = claim_reading(step, [Message(role=Role.USER, content=asked)]).value
        assert value is not None
        return value

    assert claim(("\n", 1.0), (stated, 0.99)) <= claim()


@given(st.lists(st.tuples(st.text(max_size=6), st.floats(-30.0, 0.0)), max_size=30), st.frozensets(st.text(max_size=4)))
def test_it_is_a_probability_that_more_given_words_never_lower(
    pairs: list[tuple[str, float]], given_words: frozenset[str]
) -> None:
    said = [TokenLogprob(token=text, logprob=logprob) for text, logprob in pairs]
    all_new = least_new_word_probability(said, frozenset())
    some = least_new_word_probability(said, given_words)
    assert all_new is None or 0.0 <= all_new <= 1.0
    if some is not None:
        assert all_new is not None
        assert all_new <= some


@given(st.text(alphabet="aİß ñ1", max_size=12), st.lists(st.integers(1, 3), min_size=12, max_size=12))
def test_how_the_text_is_cut_into_certain_tokens_does_not_matter(text: str, cuts: list[int]) -> None:
    said, at = [], 0
    for cut in cuts:
        said.append(TokenLogprob(token=text[at : at + cut], logprob=0.0))
        at += cut
    whole = [TokenLogprob(token=text[:at], logprob=0.0)]
    assert least_new_word_probability(said, frozenset()) == least_new_word_probability(whole, frozenset())


def test_a_long_completion_is_read_up_to_a_bound() -> None:
    said = tokens(*[(" sure", 0.9)] * MAX_TOKENS, (" late", 0.1))
    assert least_new_word_probability(said, frozenset()) == pytest.approx(0.9)


def test_the_request_is_the_latest_user_message_and_a_tools_result_after_it() -> None:
    messages = [
        Message(role=Role.SYSTEM, content="system"),
        Message(role=Role.USER, content="old"),
        Message(role=Role.ASSISTANT, content="mine"),
        Message(role=Role.USER, content="What NOW?"),
        Message(role=Role.TOOL, content="first result", tool_call_id="1"),
        Message(role=Role.TOOL, content="last result", tool_call_id="2"),
    ]
    assert requested_words(messages) == {"what", "now"}, "who writes a tool's result makes no word look requested"
    assert requested_words([]) == frozenset()


class Readings:
    def __init__(self) -> None:
        self.seen: dict[str, Reading] = {}

    def on_event(self, event: object) -> None:
        self.seen |= {reading.source: reading for reading in getattr(event, "readings", ())}


@pytest.mark.anyio
async def test_a_session_reads_it_where_there_are_log_probabilities_and_leaves_the_fusion_as_it_was() -> None:
    readings = Readings()
    assert isinstance(readings, Processor)
    session = UncertaintyMonitor(processors=[readings]).session("s")
    asked = [Message(role=Role.USER, content="What is the capital of France?")]
    said = tokens(("The capital of", 0.9), (" France is", 0.9), (" Paris", 0.3))
    step, _ = await session.observe_llm_response("...", "1", prompt_messages=asked, logprobs=said)
    assert readings.seen["claim_probability"].value == pytest.approx(0.3)
    other, _ = await UncertaintyMonitor().session("t").observe_llm_response("...", "1", logprobs=said)
    assert other.fused_confidence == step.fused_confidence


@pytest.mark.anyio
async def test_messages_that_are_no_messages_are_refused_and_in_advisory_mode_left_out() -> None:
    hostile: list[Message] = [object()]  # type: ignore[list-item]  # what a framework might pass
    with pytest.raises(ConfigurationError, match="prompt_messages"):
        await UncertaintyMonitor().session("s").observe_llm_response("x", "1", prompt_messages=hostile)
    readings = Readings()
    session = UncertaintyMonitor(processors=[readings], advisory=True).session("s")
    await session.observe_llm_response("x", "1", prompt_messages=hostile, logprobs=tokens(("x", 0.5)))
    assert readings.seen["token_probability"].value == pytest.approx(0.5)


def test_a_call_that_is_written_in_tokens_claims_its_arguments() -> None:
    step = Step(
        step_id="1",
        kind="llm_call",
        time_s=0.0,
        tool_calls=(ToolCall(id="c", name="pay", arguments={"to": "Mallory"}),),
        logprobs=tuple(tokens(('pay({"to": "', 0.99), ("Mal", 0.5), ("lory", 0.5), ('"})', 0.99))),
    )
    asked = [Message(role=Role.USER, content="Pay to Alice")]
    assert claim_reading(step, asked).value == pytest.approx(0.25)
