"""When two answers mean the same: by words with negations and numbers, by a model's judgement, asked once."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Message, Role
from grampus_uq.errors import ConfigurationError, RateLimitedError
from grampus_uq.signals.driver import BudgetExceededError
from grampus_uq.signals.equivalence import (
    AskedOnce,
    EntailmentEquivalence,
    LexicalEquivalence,
    SameWording,
    cluster,
    lexical_similarity,
    same_wording,
)
from grampus_uq.signals.quoting import quoted
from grampus_uq.testing import ScriptedModel
from tests.signals.contexts import QUESTION, context

words = st.text("abcdefgh XYZ.,!?'-0123456789", max_size=60)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The capital is Paris.", "paris is the capital"),
        ("PARIS!", "paris"),
        ("It costs 1,000.50 dollars", "it costs 1000.50 dollars"),
        ("It doesn’t work", "It doesn't work"),
        ("STRASSE", "Straße"),
        ("minus −5", "minus -5"),
        ("", "  "),
    ],
)
def test_case_punctuation_articles_and_ways_of_writing_numbers_do_not_count(first, second):
    assert lexical_similarity(first, second) == 1.0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("dose 1,5 mg", "dose 15 mg"),
        ("options 1,2", "options 12"),
        ("account 00123", "account 123"),
        ("Paris is the capital of France", "Paris is not the capital of France"),
        ("The statement is true", "The statement is false"),
        ("It works", "It doesn't work"),
        ("you can delete it", "you cannot delete it"),
        ("The answer is 5", "The answer is 6"),
        ("The answer is 5", "The answer is -5"),
        ("The answer is 1.5", "The answer is 15"),
        ("version 1.10", "version 1.1"),
        ("It takes 2 of 3", "It takes 3 of 3"),
        ("10", "100"),
        ("Yes.", "Yes?"),
        ("!!!", "???"),
        ("Paris", ""),
    ],
)
def test_a_negation_or_another_number_makes_two_answers_differ(first, second):
    assert lexical_similarity(first, second) == 0.0


def test_the_negated_capital_of_the_methods_has_jaccard_86_and_is_not_the_same():
    """METHODS.md section 2."""
    yes, no = "paris is the capital of all france", "paris is not the capital of all france"
    a, b = set(yes.split()), set(no.split())
    assert len(a & b) / len(a | b) > 0.85
    assert lexical_similarity(yes, no) == 0.0


@pytest.mark.parametrize(
    ("first", "second", "similarity"),
    [
        ("it is so", "it is never not so", 3 / 5),
        ("it is not so", "no it is never not so", 4 / 6),
        ("it is not so", "it is never not so", 0.0),
    ],
)
def test_negations_cancel_in_pairs(first, second, similarity):
    assert lexical_similarity(first, second) == pytest.approx(similarity)


@given(words, words)
def test_similarity_is_symmetric_and_in_the_unit_interval(first, second):
    similarity = lexical_similarity(first, second)
    assert 0.0 <= similarity <= 1.0
    assert similarity == lexical_similarity(second, first)


@given(st.text())
def test_every_text_is_the_same_as_itself(text):
    assert lexical_similarity(text, text) == 1.0


@pytest.mark.anyio
async def test_the_early_stop_asks_for_more_likeness_than_the_clustering():
    unused = context(None)
    for lexical in (LexicalEquivalence(), LexicalEquivalence(threshold=0.5, strict_threshold=0.51)):
        first, second = "alpha beta gamma delta", "alpha beta gamma epsilon zeta"  # Jaccard 3 / 6
        assert await lexical.same(first, second, unused)
        assert not await lexical.same(first, second, unused, strict=True)
    assert await LexicalEquivalence(strict_threshold=0.5).same(first, second, unused, strict=True)


@pytest.mark.parametrize("given", [{"threshold": 0.0}, {"strict_threshold": 1.1}])
def test_a_threshold_outside_its_domain_is_refused(given):
    with pytest.raises(ConfigurationError, match=next(iter(given))):
        LexicalEquivalence(**given)


# -- who does what --

OTHER_ACTS = [
    ("I pay Alice now", "I pay Mallory now"),
    ("Alice pays Bob", "Bob pays Alice"),
    ("Alice is paying Bob", "Bob is paying Alice"),
    ("Transfer 5 from A to B", "Transfer 5 from B to A"),
    ("I pay A for B", "I pay B for A"),
    ("Pay 5 to account 7", "Pay 7 to account 5"),
    ("I approve the refund of the order", "I deny the refund of the order"),
    ("I approved it", "I rejected it"),
    ("SELECT the rows of the customer", "DELETE the rows of the customer"),
    ("Delete the old files", "Delete the new files"),
    ("rm -rf /srv/old", "rm -rf /srv/new"),
    ("rm -rf .", "rm -rf /"),
    ("It is safe to send", "It is not safe to send"),
    ("It is safe to send", "It is unsafe to send"),
    ("You can send it", "You can't send it"),
    ("Send it before noon", "Send it after noon"),
    ("I must pay", "I must not pay"),
    ("Pay $5", "Pay €5"),
    ("Raise it by 5", "Raise it by 5%"),
    ("x < y", "x > y"),
    ("I send it to Bob", "I send it from Bob"),
    ("Option A", "Option B"),
    ("account aB3", "account Ab3"),
    ("yes", "no"),
    ("Yes.", "Yes?"),
    ("Pay it.", "Pay it?"),
    ("Paris?!", "Paris!"),
    ("Install 1.10", "Install 1.1"),
    ("order 7.0", "order 7"),
    ("Paris", "Paris or Rome"),
    ("Paris", "Paris, I guess"),
    ("", "Paris"),
]


@pytest.mark.parametrize(("first", "second"), OTHER_ACTS)
def test_another_word_number_symbol_or_order_is_another_wording(first, second):
    assert not same_wording(first, second)
    assert not same_wording(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The capital is Paris.", "paris is the capital"),
        ("Paris", "The answer is Paris."),
        ("It's **Paris**!", "paris"),
        ("It costs 1,000.50 dollars", "it costs 1000.50 dollars"),
        ("STRASSE", "Straße"),
        ("It doesn’t work", "It doesn't work"),
        ("I refund\norder 7.", "I refund order 7"),
        ("", "  "),
    ],
)
def test_the_same_words_are_the_same_wording_however_they_are_dressed(first, second):
    assert same_wording(first, second)
    assert same_wording(second, first)


@given(st.text())
def test_every_text_has_its_own_wording(text):
    assert same_wording(text, text)
    assert not same_wording(text, f"{text} never")


@given(words, words)
def test_wordings_are_compared_alike_from_both_sides(first, second):
    assert same_wording(first, second) == same_wording(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Alice pays Bob today", "Bob pays Alice today"),
        ("transfer it from savings to checking", "transfer it to checking from savings to fees"),
        ("approve the refund of the order", "deny the refund of the order"),
        ("I approved the refund of the order", "I rejected the refund of the order"),
        ("select all rows of the customer", "delete all rows of the customer"),
        ("pay 5 to account 7", "pay 7 to account 5"),
    ],
)
def test_word_overlap_is_none_where_order_numbers_or_opposites_differ(first, second):
    assert lexical_similarity(first, second) == lexical_similarity(second, first) == 0.0


def test_texts_that_differ_only_far_behind_are_not_the_same():
    long = "word " * 10_000
    assert lexical_similarity(f"{long} pay Alice", f"{long} pay Mallory") == 0.0
    assert not same_wording(f"{long} pay Alice", f"{long} pay Mallory")


@pytest.mark.anyio
async def test_answers_too_long_to_be_shown_whole_are_not_judged_the_same():
    model = ScriptedModel("Yes")
    long = "word " * 10_000
    assert not await EntailmentEquivalence().same(f"{long} pay Alice", f"{long} pay Mallory", context(model))
    assert not model.calls


@pytest.mark.anyio
async def test_the_wording_decides_alike_for_the_early_stop():
    for strict in (True, False):
        assert await SameWording().same("It is Paris", "Paris.", context(None), strict=strict)
        assert not await SameWording().same("Paris", "Rome", context(None), strict=strict)


# -- clustering --


@given(st.lists(st.integers(0, 5), max_size=12))
def test_each_answer_lies_in_exactly_one_cluster_with_its_equals(labels):
    async def same(first: int, second: int) -> bool:
        return first == second

    clusters = anyio.run(cluster, labels, same)
    assert sorted(index for members in clusters for index in members) == list(range(len(labels)))
    assert [{labels[index] for index in members} for members in clusters] == [{v} for v in dict.fromkeys(labels)]


@pytest.mark.anyio
async def test_the_first_match_wins_where_sameness_is_not_transitive():
    async def near(first: int, second: int) -> bool:
        return abs(first - second) <= 1

    assert await cluster([0, 1, 2, 3], near) == [[0, 1], [2, 3]]


@pytest.mark.anyio
async def test_an_equivalence_of_ones_own_sees_the_prompt_and_the_tools_and_asks_within_the_budget():
    given = context(ScriptedModel("Yes"), max_calls=1)
    given.tools = [{"name": "pay"}]
    once = AskedOnce(given)
    assert (once.messages, once.tools) == (given.messages, given.tools)
    for _ in range(3):
        assert (await once.ask(given.messages, temperature=0.0)).content == "Yes"
    with pytest.raises(BudgetExceededError):
        await once.ask(given.messages, temperature=1.0)
    assert given.calls == 1


# -- entailment --


def entails(pairs):
    """A judge that says Yes to the ordered pairs (A, B) given."""

    def judge(messages, _options):
        text = messages[-1].content
        premise, conclusion = (text.split(f"Answer {name}:\n")[1].split("\n")[1] for name in "AB")
        return "Yes." if (premise, conclusion) in pairs else "No"

    return ScriptedModel(judge)


@pytest.mark.anyio
async def test_entailment_must_hold_both_ways_and_the_second_way_is_asked_only_then():
    both = entails({("It is Paris", "Paris it is, in France"), ("Paris it is, in France", "It is Paris")})
    assert await EntailmentEquivalence().same("It is Paris", "Paris it is, in France", context(both))
    assert len(both.calls) == 2
    one = entails({("Paris, France", "Paris or Rome")})
    assert not await EntailmentEquivalence().same("Paris, France", "Paris or Rome", context(one))
    assert len(one.calls) == 2
    none = entails(set())
    assert not await EntailmentEquivalence().same("Paris", "Rome", context(none))
    assert len(none.calls) == 1


@pytest.mark.anyio
async def test_the_judge_is_shown_the_question():
    model = ScriptedModel("No")
    later = Message(role=Role.ASSISTANT, content="Let me think.")
    await EntailmentEquivalence().same("Paris", "Rome", context(model, messages=(*QUESTION, later)))
    shown = model.calls[0].messages[0].content or ""
    assert all(quoted(text) in shown for text in ("What is the capital of France?", "Paris", "Rome"))


@pytest.mark.anyio
async def test_equal_answers_are_the_same_without_a_call():
    assert await EntailmentEquivalence().same("Paris.", "PARIS", context(None))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "reply",
    ["", "maybe", "Not really", "I would say yes", "true", "yesterday", "Yes and no", "Yes, but not quite", "yes if"],
)
def test_a_judgement_that_is_neither_yes_nor_no_counts_as_no(reply, anyio_backend):
    async def ask():
        return await EntailmentEquivalence().same("Paris", "Rome", context(ScriptedModel(reply)))

    assert not anyio.run(ask, backend=anyio_backend)


@pytest.mark.anyio
async def test_an_equal_question_is_asked_once_and_a_failure_is_not_remembered():
    model = ScriptedModel([RateLimitedError("slow down"), "No", "Yes", "Yes"])
    once, judge = AskedOnce(context(model)), EntailmentEquivalence()
    with pytest.raises(RateLimitedError):
        await judge.same("Paris", "Rome", once)
    for _ in range(3):
        assert not await judge.same("Paris", "Rome", once, strict=True)
        assert not await judge.same("Paris", "Rome", once)
    assert len(model.calls) == 2
    assert await judge.same("Paris", "Lutetia", once)
    assert len(model.calls) == 4


@pytest.mark.parametrize(
    ("first", "second"), [("take 1,5 mg", "take 15 mg"), ("ids 1,2,3", "ids 1,23"), ("code 07", "code 7")]
)
def test_a_comma_that_groups_no_thousands_and_a_leading_zero_make_another_wording(first, second):
    assert not same_wording(first, second)
    assert same_wording("pay 1,234,567.50", "pay 1234567.50")
