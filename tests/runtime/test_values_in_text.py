"""A value stands in a text as whole words or as an amount, and nothing else gives way to another."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.records.vocabulary import Role
from grampus_uq.runtime.cards import Card
from grampus_uq.runtime.values_in_text import Text, in_place, is_clear
from tests.runtime.drill_worlds import made, plan, request

WORDS = st.lists(st.text("aél1_ß\u0301я", min_size=1, max_size=4).filter(lambda w: w[0] != "\u0301"), max_size=8)
BETWEEN = st.sampled_from([" ", ", ", ". ", "-", "'", "(", "\n", "@"])


@given(WORDS, BETWEEN, st.data())
def test_only_whole_words_count_and_give_way(words: list[str], between: str, data: st.DataObject) -> None:
    old = data.draw(st.sampled_from([*words, "a", "lea"]))
    text = between.join(words)
    assert in_place(text, old, "NEW") == between.join(["NEW" if word == old else word for word in words])
    assert Text(text).says(old) is (old.casefold() in [word.casefold() for word in words])


@pytest.mark.parametrize("text", ["Zahle 田中さんに 30", "จ่ายให้สมชายวันนี้ 田中"], ids=ascii)
def test_a_script_without_spaces_has_words_within_words(text: str) -> None:
    assert Text(text).says("田中")
    assert "鈴木" in in_place(text, "田中", "鈴木")


AMOUNTS = ["30 EUR", "30EUR", "30.00", "30,00 €", "$30", '{"amount":30}', "paid 30.", "(30)", "EUR 30, please", "of 30"]
OTHERS = [
    "30-20-10",
    "10/30",
    "12:30",
    "30:12",
    "order #30",
    "ORD-30",
    "v30",
    "30th",
    "Step 30 of 50",
    "5 of 30",
    "30 %",
]
OTHERS += ["30.05.2026", "2026-30", "30-day", "1.30.2"]


@pytest.mark.parametrize("text", AMOUNTS)
def test_a_figure_that_stands_as_an_amount_counts_and_gives_way(text: str) -> None:
    assert Text(text).says(30)
    assert in_place(text, 30, 45) == text.replace("30", "45")


@pytest.mark.parametrize("text", OTHERS)
def test_a_figure_joined_to_others_is_no_amount(text: str) -> None:
    assert not Text(text).says(30)
    assert in_place(text, 30, 45) == text


@pytest.mark.parametrize(
    ("texts", "clear"),
    [
        (["30 EUR", "I refund 30 EUR", '{"paid": 30}'], True),
        (["refund 30", "I refund 30"], True),
        (["30 EUR", "after 30 days I refund 30 EUR"], False),
        (["$30", "Step 30: I refund the order"], False),
        (["30 days, 30 please"], False),
        (["30 EUR for order 30-20"], True),
        (["nothing"], True),
    ],
)
def test_a_small_whole_number_is_clear_where_it_is_an_amount_everywhere(texts: list[str], clear: bool) -> None:
    assert is_clear(30, texts) is clear
    assert is_clear(30.5, [text.replace("30", "30.5") for text in texts])
    assert is_clear("30", texts)


SHORT_NAMES = ("ann", "al", "ed", "ray", "art", "max", "may", "kim", "lea", "ida", "eve", "dan", "hal", "gus", "nora")
SAYS = (
    "I checked the annual plan and the order; everyone agreed, the cleared refund goes to {n}.",
    "As already handled in March, I will now refund {a} EUR to {n}; the release was never confirmed.",
    "The order is older than {a} days? No: {n} is entitled, I refund {a} EUR. Please read the standard terms first.",
    "Step 2 of 5: I refund {a} EUR to {n} for order 30-20-10, as planned on 20 May.",
)


def _source(rng: random.Random, number: int) -> tuple[Card, str]:
    """A card of a refund to a short name, of a small whole amount; the pattern of what its model said."""
    _, card = request(rng, 1e6, number)
    name, amount, says = rng.choice(SHORT_NAMES), rng.choice((2, 5, 10, 20, 30, 40, 60, 80)), rng.choice(SAYS)
    ours: dict[str, Any] = {**card.arguments, "to": name, "amount": amount}
    messages = []
    for message in card.messages:
        text = (message.content or "").replace(str(card.arguments["to"]), name)
        if any(call.id == card.call_id for call in message.tool_calls):
            calls = tuple(call.model_copy(update={"arguments": ours}) for call in message.tool_calls)
            message = message.model_copy(update={"content": says.format(n=name, a=amount), "tool_calls": calls})
        elif message.role is Role.USER:
            message = message.model_copy(update={"content": re.sub(r"\d+\.\d\d", str(amount), text)})
        elif message.role is Role.TOOL:
            message = message.model_copy(update={"content": text})
        messages.append(message)
    pattern = re.escape(says).replace(r"\{n\}", rf"(?:{'|'.join(SHORT_NAMES)})").replace(r"\{a\}", r"\d+")
    return card.model_copy(update={"arguments": ours, "messages": tuple(messages)}), pattern


@pytest.mark.parametrize("change", ["amount", "recipient"])
def test_no_word_or_figure_of_the_models_own_sentence_is_torn_in_a_drill(change: str) -> None:
    rng, drills = random.Random(4), 0
    sources = [_source(rng, number) for number in range(50)]
    said = {card.digest: pattern for card, pattern in sources}
    rules = [{"tool": "refund", "change": change, "argument": "to" if change == "recipient" else "amount"}]
    for number in range(40):
        asked, _ = _source(rng, 100 + number)
        if (drill := made(plan(rules=rules), [card for card, _ in sources], asked, rng)) is not None:
            (own,) = (
                m.content or "" for m in drill.card.messages if any(c.id == drill.card.call_id for c in m.tool_calls)
            )
            assert re.fullmatch(said[drill.source], own)
            drills += 1
    assert drills > 20
