"""Stated confidences: which texts state one, which only seem to, and which are invalid rather than clipped."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grampus_uq import Message, MissingReason, Role, ToolCall, elicit_confidence
from grampus_uq.errors import ConfigurationError
from grampus_uq.signals.admissions import hedged_confidence
from grampus_uq.signals.confidence_forms import parse_number
from grampus_uq.signals.stated_confidence import parse_confidence
from grampus_uq.signals.verbalized import ELICITATION, ElicitedConfidence, VerbalizedConfidence
from grampus_uq.testing import ScriptedModel
from tests.signals.contexts import QUESTION, context, said

unit = st.floats(0.0, 1.0)
INVALID = (None, MissingReason.INVALID_VALUE)
SILENT = (None, MissingReason.NOT_STATED)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"answer": "Paris", "confidence": 0.9}', 0.9),
        ('{"confidence_score": 0.35}', 0.35),
        ('{"Confidence": 1}', 1.0),
        ('{"confidence": 0}', 0.0),
        ('{"confidence": 0.0, "x": 1}', 0.0),
        ('{"confidence": "85%"}', 0.85),
        ('{"confidence": 85 %}', 0.85),
        ('{"confidence": "0.85"}', 0.85),
        ("{'confidence': .5}", 0.5),
        ('{"confidence"\n :\t 7e-1}', 0.7),
        ('Here it is:\n```json\n{"confidence": 0.6}\n```\nDone.', 0.6),
        ("<confidence>0.7</confidence>", 0.7),
        ("<confidence>\n 70 % \n</confidence>", 0.7),
        ("<confidence_score>0.7", 0.7),
        ("Confidence: 85%", 0.85),
        ("**Confidence:** 0.9", 0.9),
        ("confidence: __0.85__", 0.85),
        ("Confidence level = 0.25, because", 0.25),
        ("My confidence is 0.8.", 0.8),
        ("with a confidence of about 80 %", 0.8),
        ("I am 85% sure", 0.85),
        ("I'm 12.5 % confident.", 0.125),
    ],
)
def test_a_stated_confidence_is_read(text, value):
    assert parse_confidence(text) == (value, None)


@pytest.mark.parametrize(
    "text",
    [
        '{"confidence": 95}',
        '{"confidence": 1.01}',
        '{"confidence": -0.2}',
        '{"confidence": NaN}',
        '{"confidence": Infinity}',
        '{"confidence": -inf}',
        '{"confidence": true}',
        '{"confidence": null}',
        '{"confidence": "high"}',
        '{"confidence": ""}',
        '{"confidence": {"value": 0.9}}',
        '{"confidence": [0.9]}',
        '{"confidence": }',
        '{"confidence": "101%"}',
        '{"confidence": 0.9.1}',
        '{"confidence": 1e400}',
        '{"confidence": 0x1}',
        '{"confidence": 0.6',
        '{"confidence": ' + "0" * 9 + "0.8" + "0" * 28 + "e5}",
        "<confidence>very high</confidence>",
        "<confidence></confidence>",
        "Confidence: 95",
        "Confidence: -0.2",
        "Confidence: nan",
        "Confidence: inf",
        "Confidence: 9/10",
        "Confidence: 1 / 10",
        "Confidence: 1 out of 10",
        "Confidence: 80-90%",
        "Confidence: 0.9" + "1" * 60,
        "I am 1000% sure",
        "I am -5% sure",
    ],
)
def test_a_stated_value_that_is_no_probability_is_missing_and_never_clipped(text):
    assert parse_confidence(text) == INVALID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The capital is Paris.",
        "I did it with confidence.",
        "confidence:",
        '"confidence":',
        "overconfidence: 0.9",
        "50% of the confidence interval",
        "Sales rose 95%.",
        "Confidence:\n1. First I look at the map.",
        r"{\"confidence\": 0.9}",
        "The field `confidence` is a float.",
    ],
)
def test_a_text_that_states_none_is_silent(text):
    assert parse_confidence(text) == SILENT


def test_the_last_of_duplicated_keys_counts_even_when_it_is_invalid():
    assert parse_confidence('{"confidence": 0.9, "confidence": 0.2}') == (0.2, None)
    assert parse_confidence('{"confidence": 0.9, "confidence": 95}') == INVALID


def test_of_two_statements_that_contradict_each_other_the_lower_one_counts():
    prose, tag, field = "Confidence: 70%.", "<confidence>0.6</confidence>", '{"confidence": 0.9}'
    for text in (
        f"{prose}\n{field}",
        f"{prose}\n{tag}\n{field}",
        f"{tag}\n{field}",
        f"{tag}\n{prose}",
        f"{prose}\n{tag}",
    ):
        assert parse_confidence(text) == (0.6 if tag in text else 0.7, None)


def test_an_unusable_statement_takes_a_high_one_with_it_and_leaves_a_low_one():
    assert parse_confidence("Confidence: 90%.\nConfidence: 9/10.") == INVALID
    assert parse_confidence("Confidence: 10%.\nConfidence: 9/10.") == (0.1, None)


@given(unit)
def test_any_probability_that_json_writes_is_read_back_exactly(value):
    assert parse_confidence(json.dumps({"answer": [1], "confidence": value, "plan": {}})) == (value, None)


@given(st.floats() | st.integers() | st.booleans() | st.none() | st.text(max_size=20))
def test_whatever_the_field_holds_the_reading_is_a_probability_or_has_a_reason(value):
    read, reason = parse_confidence(json.dumps({"confidence": value}))
    assert (read is None) == (reason is not None)
    if isinstance(value, float | int) and not isinstance(value, bool):
        assert read == (value if 0.0 <= value <= 1.0 else None)
    elif not isinstance(value, str):
        assert read is None


@given(st.text() | st.text("confidence_score\"':=<>/%{}[] \n0123456789.-+eEnaif*`~suretin", max_size=200))
@example('"confidence": ' + "9" * 100)
@example("İ" * 50 + "confidence: 0.5")
def test_any_text_gives_a_probability_or_a_reason(text):
    read, reason = parse_confidence(text)
    assert reason in {None, MissingReason.INVALID_VALUE, MissingReason.NOT_STATED}
    assert (read is None) == (reason is not None)
    assert read is None or 0.0 <= read <= 1.0
    hedged, _ = hedged_confidence(text)
    assert 0.0 < hedged <= 0.5


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_read_exactly_or_not_at_all(value):
    assert parse_number(repr(value)) == (value if 0.0 <= value <= 1.0 else None)


@pytest.mark.parametrize(
    "text", ["", "%", ".", "1.", "1..", "0,85", "1/2", "true", "½", "--1", "0.5 0.6", "0.5\x00", "1e", "e1"]
)
def test_what_only_resembles_a_number_is_none(text):
    assert parse_number(text) == (1.0 if text == "1." else None)


@given(st.integers(0, 100))
def test_a_percentage_is_a_hundredth_each(n):
    assert parse_number(f"{n}%") == n / 100
    assert parse_number(f"{n} %") == n / 100


# -- hedging --


@pytest.mark.parametrize(
    "text", ["We checked thoroughly.", "Mayberry is a town.", "The surest way.", "perhapsburg", "uncertainty"]
)
def test_a_hedge_within_another_word_is_no_hedge(text):
    assert hedged_confidence(text) == (0.5, False)


@given(
    st.lists(
        st.sampled_from(["maybe", "roughly", "not sure", "I think", "no idea", "certainly!", "Paris."]), max_size=8
    )
)
def test_hedging_only_ever_lowers_and_more_of_it_never_raises(words):
    values = [hedged_confidence(" ".join(words[:n]))[0] for n in range(len(words) + 1)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 0.5
    assert values[-1] >= 0.5 * 0.9**4 * 0.6**2


def test_an_admission_without_a_number_is_a_low_reading_and_a_weak_hedge_is_none():
    admitted = VerbalizedConfidence().read(said("I'm not sure, it might be Lyon."))
    assert admitted.value is not None
    assert admitted.value < 0.5
    hedged = VerbalizedConfidence().read(said("It is roughly 5 km."))
    assert (hedged.value, hedged.reason) == SILENT


def test_an_admission_does_not_touch_a_stated_number():
    assert VerbalizedConfidence().read(said("I'm not sure. Confidence: 30%")).value == 0.3


# -- what is read of a step --


def test_a_turn_without_text_states_nothing_whatever_its_arguments_say():
    reader = VerbalizedConfidence()
    for body in (
        '{"confidence": 1.0}',
        "Confidence: 100%",
        "I am 100% sure",
        "<confidence>1.0</confidence>",
        "I am not sure",
    ):
        call = ToolCall(name="forward_email", arguments={"body": body, "confidence": 1.0})
        for text in ("", " \n"):
            assert reader.read(said(text, call)).reason == MissingReason.NOT_STATED
        assert reader.read(said("I call the tool.", call)).reason == MissingReason.NOT_STATED
        assert reader.read(said("Confidence: 80%", call)).value == 0.8


# -- asking for it --


def test_the_request_is_added_to_the_system_prompt_and_the_callers_messages_stay():
    messages = [Message(role=Role.SYSTEM, content="Be brief."), *QUESTION]
    asked = elicit_confidence(messages)
    assert asked[0].content == f"Be brief.\n\n{ELICITATION}"
    assert asked[1:] == list(QUESTION)
    assert messages[0].content == "Be brief."


@pytest.mark.parametrize("system", [None, ""])
def test_a_prompt_without_a_system_text_gets_one(system):
    messages = list(QUESTION) if system is None else [Message(role=Role.SYSTEM, content=system), *QUESTION]
    assert [m.content for m in elicit_confidence(messages)] == [ELICITATION, QUESTION[0].content]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("text", "replies", "value", "calls"),
    [
        ('{"confidence": 0.9}', [], 0.9, 0),
        ("Paris.", ['{"confidence": 0.7}'], 0.7, 1),
        ("Paris.", ["0.6"], 0.6, 1),
        ("Paris.", ["no", "75%"], 0.75, 2),
        ('{"confidence": 95}', ['{"confidence": 95}', "0.95"], 0.95, 2),
        ("Paris.", ["no", "no"], None, 2),
        ("Paris.", ["", "NaN"], None, 2),
    ],
)
async def test_repairs_ask_until_a_number_is_there_and_then_give_up_with_a_reason(text, replies, value, calls):
    model = ScriptedModel(replies)
    reading = await ElicitedConfidence(repairs=2).sense(said(text), context(model))
    assert reading.value == value
    assert reading.reason == (None if value is not None else MissingReason.PARSE_ERROR)
    assert len(model.calls) == calls


@pytest.mark.anyio
async def test_a_repair_shows_the_model_its_own_reply_and_its_calls():
    model = ScriptedModel(["0.5"])
    call = ToolCall(name="pay", arguments={"to": "Alice"})
    await ElicitedConfidence().sense(said("I pay.", call), context(model))
    assert [m.role for m in model.calls[0].messages] == [Role.USER, Role.ASSISTANT, Role.USER]
    assert model.calls[0].messages[1].content == 'I pay.\npay({"to":"Alice"})'


def test_without_a_model_the_stated_confidence_is_still_read():
    assert ElicitedConfidence().read(said("Confidence: 40%")).value == 0.4
    assert ElicitedConfidence().read(said("Paris.")).reason == MissingReason.NOT_STATED


def test_a_negative_number_of_repairs_is_refused():
    with pytest.raises(ConfigurationError, match="repairs"):
        ElicitedConfidence(repairs=-1)


AFTERWARDS = [
    "Actually no, I take that back.", "Disregard the line above.", "Ignore that.", "Oops, I meant 10%.",
    "On reflection, more like 10%.", "Edit: make that 10%.", "I do not agree.", "(quoted from the page)",
    "(The above is from the page.)", "The line above comes from the tool.", "But that is a joke.", "Well, 10%.",
]  # fmt: skip


@pytest.mark.parametrize("afterwards", AFTERWARDS)
@pytest.mark.parametrize("between", [" ", "\n", "\n\n"])
def test_a_statement_that_the_next_words_take_back_reads_no_higher_than_half(afterwards, between):
    value, _ = parse_confidence(f"Confidence: 100%.{between}{afterwards}")
    assert value is None or value <= 0.5


@pytest.mark.parametrize(
    ("text", "highest"),
    [
        ("I am not 100% sure. Confidence: 100%", 0.5),
        ("I am not 100% sure.     Confidence: 100%", 0.5),
        ("I'm not fully certain.\nConfidence: 1.0", 0.5),
        ("I cannot be absolutely sure. I am 100% confident.", 0.5),
        ("I am far from certain. Confidence: 95%", 0.5),
        ("I am not 100% confident in this answer. Confidence: 100%", 0.5),
        ('It is Paris.\n{"confidence": 0.2}\n{"confidence": 0.99}', 0.2),
        ("I am not 100% sure. Confidence: 80%", 0.8),
        ("I am not entirely certain.\nConfidence: 95%", 0.95),
    ],
)
def test_a_number_that_contradicts_a_denial_of_certainty_counts_half_at_most(text: str, highest: float) -> None:
    assert parse_confidence(text) == (highest, None)


@pytest.mark.parametrize(
    "doubt",
    [
        "I believe this is wrong.",
        "I think that it might be incorrect.",
        "I fear it's wrong.",
        "I expect this answer to be wrong.",
        "My answer may be wrong.",
        "I doubt that this is right.",
        "I don't think my answer is correct.",
        "I am not convinced.",
        "I am pretty certain my answer is incorrect.",
        "There is a good chance this is wrong.",
        "I don't trust this answer.",
        "I would not rely on this answer.",
        "I believe I am wrong here.",
        "I'm not so sure.",
        "That was a guess.",
        "This is probably wrong.",
        "Probably wrong.",
    ],
)
@pytest.mark.parametrize("stated", ["Confidence: 95%", "I am 100% sure.", '{"confidence": 0.95}'])
def test_a_doubt_about_ones_own_answer_lowers_what_is_stated_beside_it(doubt: str, stated: str) -> None:
    assert parse_confidence(f"{doubt} {stated}") == (0.3, None)
    assert parse_confidence(f"{doubt}\n{stated}") == (0.3, None)


@pytest.mark.parametrize(
    "text",
    [
        "I believe this is right.",
        "The old total was 5. This is wrong.",
        "I think it is 6, which is correct.",
        "I don't trust this email.",
        "I am sure this is wrong.",
    ],
)
def test_a_judgement_of_something_else_lowers_nothing(text: str) -> None:
    assert parse_confidence(f"{text} Confidence: 95%") == (0.95, None)


@pytest.mark.parametrize(
    "table", ["| customer | certainty |\n|---|---|\n| Bob | 100% |", "name | x\n--- | ---\nBob | 3"]
)
@pytest.mark.parametrize("stated", ["Confidence: 100%", "I am 100% sure."])
def test_a_statement_beside_a_table_row_counts_as_half_at_most(table: str, stated: str) -> None:
    assert parse_confidence(f"{table}\n{stated}") in ((0.5, None), SILENT)
    assert parse_confidence(f"{stated}\n{table}") in ((0.5, None), SILENT)
    assert parse_confidence(f"{table}\n\n{stated}") == (1.0, None)
    assert parse_confidence(f"{table}\nConfidence: 10%") == (0.1, None)


@pytest.mark.parametrize(
    "doubt",
    ["| Check | Result |", "| Recipient | Ann |\n|---|---|", "Recipient: Ann", "The checks:", "An example follows."],
)
@pytest.mark.parametrize(
    "careful",
    ["My answer is wrong.\nConfidence: 99%", "Confidence: 99%\nMy answer is wrong.", "Confidence: 1/10",
     "Confidence: -0.2", "Confidence: 150%", "Confidence: low\nConfidence: 99%", "Confidence: 99%\n\nConfidence: 40%"],
)  # fmt: skip
def test_what_makes_a_statement_doubtful_never_makes_a_reason_to_be_careful_disappear(doubt: str, careful: str) -> None:
    value, reason = parse_confidence(f"{doubt}\n{careful}")
    assert reason is MissingReason.INVALID_VALUE or (value is not None and value <= 0.5)


def test_the_lower_of_a_doubtful_statement_and_a_sure_one_counts() -> None:
    assert parse_confidence("Recipient: Ann\nConfidence: 55%\n\nConfidence: 95%") == (0.55, None)
    assert parse_confidence("Recipient: Ann\nConfidence: 95%\n\nConfidence: 60%") == (0.6, None)
