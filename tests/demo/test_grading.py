"""The grader: strict enough that no answer is right by accident, and right ones are found however they are put."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.cli.demo.questions import (
    Key,
    Question,
    all_questions,
    capitals,
    elements,
    exact_number,
    is_right,
    normalised,
    numbers,
)

QUESTIONS = {question.id: question for question in all_questions(0)}
CAPITAL_QUESTIONS = [question for question in QUESTIONS.values() if question.topic == "capital"]
SYMBOL_QUESTIONS = [question for question in QUESTIONS.values() if question.topic == "symbol"]

WAYS_TO_SAY = [
    "{}",
    "{}.",
    "**{}**",
    '"{}"',
    "It is {}.",
    "The answer is: {}!",
    "  {}\n",
    "The capital of {state} is {}.",
    "The capital city of {state} is called {}.",
    "{} is the capital of {state}.",
    "Sure! The capital of {state} is **{}**.",
]


def claims(question: Question, name: str) -> list[str]:
    state = question.key.subject
    return [way.format(name, state=state) for way in WAYS_TO_SAY]


@given(st.sampled_from(CAPITAL_QUESTIONS), st.data())
def test_every_accepted_name_is_right_in_every_way_of_saying_it(question: Question, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(question.key.accepted))
    written = data.draw(st.sampled_from([name, name.upper(), name.lower(), normalised(name)]))
    for answer in claims(question, written):
        assert question.is_right(answer), answer


@given(st.sampled_from(CAPITAL_QUESTIONS), st.sampled_from(CAPITAL_QUESTIONS))
def test_the_capital_of_another_state_is_never_right(question: Question, other: Question) -> None:
    shared = {normalised(name) for name in question.key.accepted} & {normalised(name) for name in other.key.accepted}
    if not shared:
        for name in other.key.accepted:
            for answer in claims(question, name):
                assert not question.is_right(answer), answer


def test_repeating_the_question_claims_nothing() -> None:
    for question in CAPITAL_QUESTIONS:
        state = question.key.subject
        for answer in (
            "",
            question.text,
            f"The capital of {state} is Xyzzy.",
            f"The capital of {state} is the largest city in {state}.",
            f"I do not know the capital of {state}.",
            f"{state}'s capital is Xyzzy.",
        ):
            assert not question.is_right(answer), answer


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("capital-france", "The capital of France is not Paris."),
        ("capital-france", "It isn't Paris."),
        ("capital-france", "Certainly not the city of Paris"),
        ("capital-france", "Paris or London."),
        ("capital-france", "London, Paris, Rome"),
        ("capital-france", "Parisian"),
        ("capital-france", "Comparison"),
        ("capital-luxembourg", "The capital of Luxembourg is Brussels."),
        ("capital-luxembourg", "Luxembourg: Brussels"),
        ("capital-guinea-bissau", "The capital of Guinea-Bissau is Conakry."),
        ("capital-guinea-bissau", "The capital of Guinea-Bissau is Porto Alegre."),
        ("capital-guinea", "The capital of Guinea is Bissau."),
        ("capital-guatemala", "The capital of Guatemala is Antigua."),
        ("capital-mexico", "Mexico"),
        ("capital-san-marino", "The capital of San Marino is Serravalle."),
        ("capital-sao-tome-and-principe", "The capital of São Tomé and Príncipe is Santo António."),
        ("capital-the-democratic-republic-of-the-congo", "Brazzaville"),
        ("capital-the-republic-of-the-congo", "Kinshasa"),
        ("capital-saint-vincent-and-the-grenadines", "Kingston"),
        ("capital-jamaica", "Kingstown"),
        ("capital-the-netherlands", "The Hague"),
        ("capital-india", "Delhi"),
        ("capital-niger", "The capital of Nigeria is Niamey... no, Abuja."),
    ],
)
def test_a_name_denied_beside_a_rival_in_an_echo_or_in_a_longer_word_is_wrong(question: str, answer: str) -> None:
    assert not QUESTIONS[question].is_right(answer)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("capital-south-africa", "Cape Town"),
        ("capital-south-africa", "Pretoria, Cape Town and Bloemfontein"),
        ("capital-bolivia", "The capitals of Bolivia are Sucre and La Paz."),
        ("capital-the-united-states", "Washington, D.C."),
        ("capital-antigua-and-barbuda", "St. John’s"),
        ("capital-grenada", "St George's"),
        ("capital-cote-divoire", "The capital of Cote d'Ivoire is YAMOUSSOUKRO"),
        ("capital-chad", "N’Djaména"),
        ("capital-tonga", "Nuku'alofa"),
        ("capital-denmark", "Kobenhavn"),
        ("capital-haiti", "Port au Prince"),
        ("capital-france", "Not London: the capital of France is Paris."),
        ("capital-singapore", "Singapore is the capital of Singapore"),
        ("capital-luxembourg", "Luxembourg City"),
        ("capital-papua-new-guinea", "Port Moresby, Papua New Guinea"),
        ("capital-ukraine", "Kyiv (Kiev)"),
    ],
)
def test_spellings_and_several_official_capitals_are_right(question: str, answer: str) -> None:
    assert QUESTIONS[question].is_right(answer)


SENTENCES_WITHOUT_A_SYMBOL = [
    "I do not know.",
    "In the periodic table it is number 26.",
    "No idea, sorry",
    "He was the first to isolate it.",
    "As far as we know, there is none",
    "At room temperature it is solid.",
    "Be careful: it is toxic.",
    "Am not sure about this one",
    "Iron",
    "fe",
    "FE",
    "Fe2O3",
    "Fe(OH)3",
    "Fe-56",
    "Na+ or Cl-",
    "The symbol is As(OH)3.",
    "The symbol is Br₂.",
    "It depends.",
    "",
]


def test_every_symbol_is_found_and_no_sentence_is_one() -> None:
    for question in SYMBOL_QUESTIONS:
        (symbol,) = question.key.accepted
        name = question.id.removeprefix("symbol-")
        for answer in (
            symbol,
            f"{symbol}.",
            f"**{symbol}**",
            f"The chemical symbol of {name} is {symbol}.",
            f"The symbol is {symbol}, from Latin",
            f"Symbol: {symbol}",
            f"{name.title()} ({symbol})",
            f"'{symbol}'",
        ):
            assert question.is_right(answer), answer
        for answer in SENTENCES_WITHOUT_A_SYMBOL:
            assert not question.is_right(answer), answer
        assert not question.is_right(f"It is either {symbol} or {'Xe' if symbol != 'Xe' else 'Kr'}.")
        assert not question.is_right(symbol.swapcase())


@given(st.sampled_from(SYMBOL_QUESTIONS), st.sampled_from(sorted(elements().values())))
def test_the_symbol_of_another_element_is_never_right(question: Question, symbol: str) -> None:
    assert question.is_right(f"The symbol is {symbol}.") == (symbol in question.key.accepted)


def sum_key(value: int) -> Key:
    return Key(accepted=(str(value),), match="number")


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_a_number_is_right_in_every_way_of_writing_it_and_its_neighbours_never_are(a: int, b: int) -> None:
    question, key = f"What is {a} + {b}?", sum_key(a + b)

    def ways(value: int) -> list[str]:
        return [
            f"{value}",
            f"{value}.",
            f"{value}.0",
            f"{value:,}",
            f"**{value}**",
            f"{a} + {b} = {value}",
            f"= {value}",
        ]

    for answer in ways(a + b):
        assert is_right(key, question, answer), answer
    for wrong in (a + b + 1, a + b - 1, (a + b) * 10 if a + b else 7, -(a + b) if a + b else 5):
        for answer in ways(wrong):
            assert not is_right(key, question, answer), answer


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("The sum of 17 and 25 is 42.", True),
        ("42 is the sum of 17 and 25", True),
        ("42 = 17 + 25", True),
        ("17 + 25 = 42 apples", True),
        ("17 + 25 = 42\n\nThis is a classic example.", True),
        ("$42", True),
        ("\\boxed{42}", True),
        ("−42", False),
        ("42%", False),
        ("42.5", False),
        ("4.2", False),
        ("420", False),
        ("142", False),
        ("x42", False),
        ("42nd", False),
        ("42,5", False),
        ("41 or 42", False),
        ("It is not 42.", False),
        ("It isn't 42", False),
        ("42 is not the sum of 17 and 25.", False),
        ("It is 42, not 41", True),
        ("17 + 25 = 43, not 42", False),
        ("17 + 25 = 42, not 43", True),
        ("The answer is 17 + 25.", False),
        ("forty-two", False),
        ("", False),
        ("= = =", False),
        ("1.42.0", False),
    ],
)
def test_only_the_number_itself_alone_is_right(answer: str, right: bool) -> None:
    assert is_right(sum_key(42), "What is 17 + 25?", answer) is right


def test_a_result_that_stands_in_the_question_too_is_right_when_it_is_said_once_more() -> None:
    key, question = sum_key(5), "What is 5 + 0?"
    assert is_right(key, question, "5")
    assert is_right(key, question, "5 plus 0 is 5")
    assert is_right(key, question, "5 + 0 = 5")
    assert not is_right(key, question, "5 plus 0 is 6")
    assert not is_right(key, question, "You asked for 5 + 0")
    assert not is_right(sum_key(0), "What is 0 × 9?", "The number 0 is not a valid result of 0 × 9.")


@given(st.text(max_size=300))
def test_no_text_is_too_strange_to_be_graded_and_strange_texts_are_wrong(text: str) -> None:
    for question in (QUESTIONS["capital-france"], QUESTIONS["symbol-iron"]):
        expected = normalised("paris") in normalised(text).split() or "Fe" in text
        assert question.is_right(text) <= expected
    numbers(text)


def test_a_million_characters_are_read_in_part_only() -> None:
    for filler in ("not the ", "1,", "(", "= ", "I think ", " of France", "é"):
        answer = filler * 200_000
        for question in (QUESTIONS["capital-france"], QUESTIONS["symbol-iodine"], QUESTIONS["symbol-iron"]):
            assert not question.is_right(answer)
        assert not is_right(sum_key(42), "What is 17 + 25?", answer)
        assert not QUESTIONS["capital-france"].is_right(answer + " Paris")


def test_accepted_names_differ_in_more_than_case_and_accents() -> None:
    for names in capitals().values():
        assert len({normalised(name) for name in names}) == len(names), names
        assert all(normalised(name) for name in names)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12))
def test_a_written_number_is_read_back_exactly(value: Decimal) -> None:
    assert exact_number(f"{value:f}") == value
    assert numbers(f"it is {value:,f}, I think") == [value]
