"""Semantic entropy: how many samples are drawn, what their agreement says, and what is left when some fail."""

from __future__ import annotations

import math

import pytest

from grampus_uq import Message, MissingReason, ModelResponse, Role, ToolCall, UncertaintyEstimator
from grampus_uq.errors import ConfigurationError, ModelError, RateLimitedError
from grampus_uq.signals.driver import sense_one
from grampus_uq.signals.equivalence import EntailmentEquivalence
from grampus_uq.signals.semantic_entropy import SemanticEntropy
from grampus_uq.testing import HANG, ScriptedModel, answer
from tests.signals.contexts import context, said

pytestmark = pytest.mark.anyio


async def sample(replies, signal=None, step=None, **budget):
    signal, step = signal or SemanticEntropy(), step or said("Paris")
    model = replies if isinstance(replies, ScriptedModel) else ScriptedModel(replies)
    given = context(model, **budget)
    return await sense_one("semantic_entropy", lambda metered: signal.sense(step, metered), given), model


def proposed(reply):
    """The step that a reply would be."""
    return said(reply.content, *reply.tool_calls)


async def test_an_agreeing_pair_stops_early_with_full_confidence():
    reading, model = await sample(["Paris", "paris."])
    assert (reading.value, reading.samples, reading.early_stopped, reading.calls) == (1.0, 2, True, 2)
    assert [call.options["temperature"] for call in model.calls] == [0.8, 0.8]


async def test_a_disagreeing_pair_extends_to_the_maximum_and_reads_one_minus_the_normalised_entropy():
    reading, _ = await sample(["Paris", "Rome", "Paris", "Paris", "Rome"])
    entropy = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))
    assert reading.value == pytest.approx(1.0 - entropy / math.log(5))
    assert (reading.samples, reading.early_stopped, reading.calls) == (5, False, 5)


async def test_five_different_answers_have_no_confidence():
    reading, _ = await sample(["Paris", "Rome", "Oslo", "Bern", "Lima"])
    assert reading.value == pytest.approx(0.0, abs=1e-12)


@pytest.mark.jumping_clocks
async def test_the_first_pair_is_drawn_together_and_so_is_the_rest():
    model = ScriptedModel(["Paris", "Rome", "Paris", "Paris", "Rome"], delay_s=0.01)
    await sample(model)
    assert model.most_in_flight == 3


async def test_one_failed_sample_is_tolerated_and_prevents_the_early_stop():
    reading, _ = await sample(["Paris", RateLimitedError("slow down"), "Paris", "Paris", "Paris"])
    assert (reading.value, reading.samples, reading.early_stopped, reading.calls) == (1.0, 4, False, 5)


@pytest.mark.parametrize("failure", [RateLimitedError("slow down"), ModelError("no"), ValueError("x"), 3, None])
async def test_too_few_samples_are_a_missing_reading_that_names_the_failure(failure):
    reading, _ = await sample(["Paris", failure, failure, failure, failure])
    assert (reading.value, reading.reason, reading.samples) == (None, MissingReason.TOO_FEW_SAMPLES, 1)
    assert reading.detail in {"RateLimitedError", "ModelError"}
    assert reading.calls == 5


@pytest.mark.jumping_clocks
async def test_samples_that_hang_past_the_deadline_are_given_up_and_the_others_read():
    reading, model = await sample(["Paris", "Rome", HANG, "Paris", "Paris"], timeout_s=0.4)
    assert reading.value is not None
    assert (reading.samples, reading.calls) == (4, 5)
    assert (model.cancelled, model.in_flight) == (1, 0)


async def test_a_first_pair_that_hangs_leaves_no_time_for_the_rest_and_asks_no_more():
    reading, model = await sample([HANG, HANG, "Paris", "Paris", "Paris"], timeout_s=0.05)
    assert (reading.value, reading.reason) == (None, MissingReason.TOO_FEW_SAMPLES)
    assert reading.detail == "ModelTimeoutError"
    assert (len(model.calls), reading.calls) == (2, 2)


async def test_a_budget_of_calls_bounds_the_samples():
    reading, model = await sample(["Paris", "Rome", "Paris", "Paris", "Paris"], max_calls=3)
    assert (reading.samples, len(model.calls)) == (3, 3)


async def test_without_a_prompt_there_is_nothing_to_sample_again():
    reading, model = await sample(["Paris", "Paris"], messages=())
    assert (reading.value, reading.reason, model.calls) == (None, MissingReason.NOTHING_TO_JUDGE, [])


# -- proposed calls --


def call(**arguments):
    return answer(tool_calls=[ToolCall(name=arguments.pop("name", "pay"), arguments=arguments)])


LETTER = "Dear customer, your refund was approved and will arrive within the next few days."
OTHER = "Dear customer, your refund was approved and will arrive within the next three weeks."


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (call(to="Alice", eur=5), call(eur=5, to="Alice"), True),
        (call(to="Alice", text=LETTER), call(to="Mallory", text=LETTER), False),
        (call(to="Alice", eur=5), call(to="Alice", eur=50), False),
        (call(to="Alice", eur=5), call(to="Alice", eur=5, name="refund"), False),
        (call(to="Alice", eur=5), call(to="Alice"), False),
        (call(to="Alice", eur=5, sure=True), call(to="Alice", eur=5, sure=False), False),
        (call(items=[{"id": "a1"}]), call(items=[{"id": "a2"}]), False),
        (call(city="New York City"), call(city="New Orleans City"), False),
        (call(to="Alice", text=LETTER), call(to="Alice", text=LETTER), True),
        (call(to="Alice", text=LETTER), call(to="Alice", text=OTHER), False),
        (call(text="one two three four five six seven"), call(text="one two three four five six ten"), False),
        (
            call(sql="SELECT * FROM orders WHERE customer = 7 AND paid"),
            call(sql="DELETE * FROM orders WHERE customer = 7 AND paid"),
            False,
        ),
        (call(cmd="cd /srv && rm -rf old && ls -l"), call(cmd="cd /srv && rm -rf new && ls -l"), False),
        (call(text="pay ten euros from A to B"), call(text="pay ten euros from B to A"), False),
        (call(text="do pay it to them now"), call(text="do not pay it to them now"), False),
        (call(n=1), call(n=True), False),
        (call(n=1), call(n="1"), False),
        (call(items=[1, 2]), call(items=[2, 1]), False),
        (call(a={"b": [{"c": "x"}]}), call(a={"b": [{"c": "y"}]}), False),
        (call(to="Alice"), answer("I pay Alice"), False),
        (answer("Paying.", tool_calls=call(to="Alice").tool_calls), call(to="Alice"), True),
    ],
)
async def test_proposed_calls_agree_only_when_every_argument_is_equal(first, second, same):
    reading, _ = await sample([first, second], SemanticEntropy(max_samples=2), proposed(first))
    assert reading.value == (1.0 if same else pytest.approx(0.0, abs=1e-12))


# -- the step is among what is compared --

PAYS = said("I pay.", ToolCall(name="pay", arguments={"to": "B"}))
A, B = call(to="A"), call(to="B")
NO = answer("I must not pay, it is fraud.")


@pytest.mark.parametrize(
    ("replies", "value"),
    [
        ([A, A, A, A, A], 0.0),
        ([NO, NO, NO, NO, NO], 0.0),
        ([B, B], 1.0),
        ([A, A, B, B, B], 0.0),
        ([A, B, A, A, A], 0.2),
        ([B, A, B, B, B], 1.0 - (0.8 * math.log(1.25) + 0.2 * math.log(5.0)) / math.log(5)),
        ([B, answer(""), B, answer(""), answer(" ")], 0.4),
    ],
)
async def test_a_step_that_its_samples_do_not_repeat_reads_low_however_much_they_agree(replies, value):
    reading, _ = await sample(replies, step=PAYS)
    assert reading.value == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("said_so", "replies"),
    [
        ("Paris. Confidence: 70%", ["Paris. Confidence: 90%", "Paris"]),
        ('Paris.\n{"confidence": 0.7}', ['Paris.\n{"confidence": 0.9}', "Paris. I am 85% sure."]),
        ('{"answer": "Paris", "confidence": 0.7}', ['{"confidence": 0.9, "answer": "Paris"}'] * 2),
        ("Paris.\n# Confidence\n95%", ["Paris.\n<confidence>\n1.0\n</confidence>", "Paris. Confidence: 100%</s>"]),
    ],
)
async def test_the_confidence_that_answers_state_is_no_part_of_what_they_say(said_so, replies):
    assert (await sample(replies, SemanticEntropy(max_samples=2), said(said_so)))[0].value == 1.0
    other = ['{"answer": "Rome", "confidence": 0.7}'] * 2
    assert (await sample(other, SemanticEntropy(max_samples=2), said(said_so)))[0].value == 0.0


async def test_one_more_sample_that_disagrees_with_the_step_never_raises_the_reading():
    values = [(await sample([B] * (5 - n) + [A] * n, step=PAYS))[0].value for n in range(6)]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True) or max(values[3:]) <= 0.4
    assert values[-1] == 0.0


@pytest.mark.parametrize("stop_reason", ["refusal", "content_filter", "length", "max_tokens", None])
@pytest.mark.parametrize("content", ["", " \n"])
async def test_samples_that_say_nothing_are_no_agreement(stop_reason, content):
    empty = ModelResponse(content=content, stop_reason=stop_reason)
    reading, _ = await sample([empty] * 5)
    assert (reading.value, reading.reason, reading.samples) == (None, MissingReason.TOO_FEW_SAMPLES, 0)
    reading, _ = await sample([answer("Paris"), *[empty] * 4])
    assert (reading.value, reading.reason) == (None, MissingReason.TOO_FEW_SAMPLES)


@pytest.mark.parametrize("step", [said(""), said(" \n")])
async def test_a_step_that_says_nothing_is_not_sampled(step):
    reading, model = await sample(["Paris", "Paris"], step=step)
    assert (reading.value, reading.reason, model.calls) == (None, MissingReason.NOTHING_TO_JUDGE, [])
    assert await SemanticEntropy().first_samples(step, context(model)) == []


async def test_without_a_step_the_samples_agree_among_themselves_and_an_empty_prompt_is_asked_too():
    model = ScriptedModel(["Paris", "Rome", "Paris", "Paris", "Paris"])
    assert await UncertaintyEstimator().semantic_entropy([], model, "m") == (pytest.approx(0.689, abs=1e-3), 5)
    assert all(not asked.messages for asked in model.calls)
    assert await UncertaintyEstimator().semantic_entropy([], ScriptedModel(answer("")), "m") == (0.5, 0)


async def test_the_functions_among_the_tools_are_offered_again_when_a_step_is_sampled():
    model = ScriptedModel(call(to="Alice"))
    given = context(model)
    given.tools = [{"name": "pay"}, {"type": "web_search"}]
    await SemanticEntropy().sense(said("", ToolCall(name="pay")), given)
    assert model.calls[0].options["tools"] == [{"name": "pay"}]


# -- judged by a model --


def judging(answers, judgement):
    """A model that draws the answers at temperature .8 and judges entailment at 0."""
    drawn = iter(answers)
    return ScriptedModel(lambda _, options: next(drawn) if options["temperature"] > 0.5 else judgement)


async def test_a_pair_is_judged_once_for_the_early_stop_and_the_clustering_together():
    model = judging(["Paris", "Rome", "Paris", "Rome", "Oslo"], "No")
    reading, _ = await sample(model, SemanticEntropy(equivalence=EntailmentEquivalence()))
    questions = [c.messages[-1].content for c in model.calls if c.options["temperature"] == 0.0]
    assert len(questions) == len(set(questions))
    assert reading.calls == 5 + len(questions)
    assert reading.samples == 5


async def test_a_judge_that_fails_makes_the_reading_missing_with_its_reason_and_its_cost():
    model = judging(["Paris", "Rome", "Paris", "Rome", "Oslo"], RateLimitedError("slow down"))
    reading, _ = await sample(model, SemanticEntropy(equivalence=EntailmentEquivalence()))
    assert (reading.value, reading.reason, reading.calls) == (None, MissingReason.RATE_LIMITED, 3)


# -- configuration --


@pytest.mark.parametrize("given", [{"min_samples": 1}, {"min_samples": 4, "max_samples": 3}])
async def test_impossible_numbers_of_samples_are_refused(given):
    with pytest.raises(ConfigurationError, match="samples"):
        SemanticEntropy(**given)


async def test_messages_with_unhashable_metadata_are_no_obstacle():
    messages = (Message(role=Role.USER, content="Where?", metadata={"a": [1]}),)
    model = judging(["Paris", "Rome"], "No")
    signal = SemanticEntropy(max_samples=2, equivalence=EntailmentEquivalence())
    assert (await sample(model, signal, messages=messages))[0].samples == 2
