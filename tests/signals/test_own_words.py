"""A corpus and laws of stated confidence: nothing denied, foreign or quoted reads as sure; what is affirmed is read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from grampus_uq import MissingReason, Step, ToolCall, UncertaintyEstimator
from grampus_uq.signals.admissions import hedged_confidence
from grampus_uq.signals.confidence_forms import closing_object
from grampus_uq.signals.own_words import own_words
from grampus_uq.signals.stated_confidence import parse_confidence
from grampus_uq.signals.statement_context import letter_end
from grampus_uq.signals.verbalized import VerbalizedConfidence
from tests.signals.contexts import said


class Line(NamedTuple):
    """A text of the corpus: what kind of statement it is, and the value that it states of the model's own answer."""

    kind: str
    value: float | None
    text: str


def _corpus() -> list[Line]:
    lines = []
    for line in (Path(__file__).parent / "data" / "certainty.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            kind, value, text = line.split(" | ", 2)
            lines.append(Line(kind, None if value == "-" else float(value), text.replace("\\n", "\n")))
    return lines


CORPUS = _corpus()
AFFIRMED = [line.text for line in CORPUS if line.kind == "affirmed"]
OTHER = [line.text for line in CORPUS if line.kind != "affirmed"]


def read(text: str, *calls: ToolCall) -> float | None:
    return VerbalizedConfidence().read(said(text, *calls)).value


def test_the_corpus_has_hundreds_of_texts_of_every_kind():
    kinds = {line.kind for line in CORPUS}
    assert kinds == {"affirmed", "denied", "hedged", "foreign", "percentage", "scale", "language"}
    assert len({line.text for line in CORPUS}) == len(CORPUS) >= 300
    assert len(AFFIRMED) >= 80


def test_each_text_of_the_corpus_states_what_the_corpus_says():
    assert {line: found for line in CORPUS if (found := parse_confidence(line.text)[0]) != line.value} == {}


def test_nothing_denied_hedged_or_foreign_reads_above_one_half():
    assert [text for text in OTHER if (read(text) or 0.0) > 0.5] == []
    assert [text for text in OTHER if UncertaintyEstimator().extract_verbalized(text) > 0.5] == []


@pytest.mark.parametrize(
    "end", ["  ", "..", "…", ";", ":", " –", " :(", "!!", "*", "**", " 🤷", "\u00a0", "\u200b", " (sorry)"]
)
def test_a_doubt_is_one_whatever_marks_end_its_sentence(end):
    doubts = [line.text for line in CORPUS if line.kind in ("denied", "hedged")]
    ends = [(text, dot) for text in doubts for dot in re.finditer(r"(?<=[a-z])\.(?=\s|$)", text) if "０" not in text]
    assert len(ends) > 80
    assert [text for text, dot in ends if (read(f"{text[: dot.start()]}{end}{text[dot.end() :]}") or 0.0) > 0.5] == []


FORMS = """- {}|• {}|# {}|3. {}|({}.)|[{}]|⚠️ {}.|Final answer — {}.|**Answer:** {}.|Verdict: {}|Caveat: {}!|Well, {}.
So honestly, {}.|{}, sorry.|{}, though.|`x` {}.""".replace("\n", "|").split("|")
DOUBTS = ["I don't know", "I have no clue", "I'm not sure", "I am guessing", "My answer is wrong", "This is a guess"]


@pytest.mark.parametrize("doubt", DOUBTS)
@pytest.mark.parametrize("form", FORMS)
def test_a_doubt_is_one_whatever_precedes_its_clause(doubt, form):
    for text in (form.format(doubt), form.format(doubt).replace("'", "")):
        assert read(f"{text}\nConfidence: 95%") == read(f"Confidence: 95%\n{text}") == 0.3
        assert read(json.dumps({"answer": f"It is 7.\n{text}", "confidence": 0.9})) == 0.3


@pytest.mark.parametrize("doubt", DOUBTS[:3])
@pytest.mark.parametrize(
    "object_", ["if this is right", "whether my answer is correct", "about any of this", "for sure"]
)
def test_a_doubt_of_the_answer_names_it_in_any_way(doubt, object_):
    assert read(f"{doubt} {object_}. Confidence: 95%") == 0.3
    assert read(doubt.replace("I ", "I honestly ") + ' at all. {"confidence": 0.9}') == 0.3


@pytest.mark.parametrize("mark", ["*", "**", "_", "***"])
@pytest.mark.parametrize(
    "doubt", ["I don't know", "I am not sure", "My answer is wrong", "I'm just guessing", "Unsure"]
)
def test_a_doubt_is_one_in_emphasis(doubt, mark):
    for text in (f"{mark}{doubt}{mark}", f"{mark}{doubt}.{mark}", f"{mark}{doubt}{mark}."):
        assert read(f"Confidence: 95%\n{text}") == read(f"{text}\nConfidence: 95%") == 0.3
    assert read(f"{mark}Confidence{mark}: {mark}low{mark}\n" + '{"confidence": 0.9}') == 0.3


@given(st.sampled_from(OTHER), st.sampled_from(OTHER), st.sampled_from(["\n", "\n\n", " "]))
@example('{"city": "Paris", "country": "France", "confidence": "90%"}', "My plan was wrong. I am 99% sure.", " ")
@example('"I am 100% sure."', "I think my answer is wrong. Confidence: 95%", " ")
@example("Confidence: 100%\nCon\xadfidence: 10%", "I am by no means 100% sure.", " ")
@example("    Confidence: 100%", '{"city": "Paris", "country": "France", "confidence": "90%"}', "\n")
@example("Confidence: 100%\nCon\xadfidence: 10%", '{"answer": "I have no idea", "confidence": 0.99}', " ")
@example("I am 100% sure.\n\nBob Miller\n+1 555 0100", "I am by no means 100% sure.", "\n\n")
@example("Confidence: 95%\n\nHonestly, I don't know", '{"city": "Paris", "confidence": "90%"}', "\n")
@example('{"city": "Paris", "confidence": "90%"}', "My confidence has dropped to 5%. Confidence: 95%", " ")
@example("~~Confidence: 95%~~", "My confidence has dropped to 5%. Confidence: 95%", " ")
def test_two_texts_that_state_nothing_state_nothing_together(first, second, between):
    framed = letter_end(first.split("\n")) or first.endswith(("*", "]", "$"))
    assume(between == "\n\n" or not framed)  # no longer the end of the letter, or of the frame
    assume(between != " " or not (first[-1].isalnum() or first[-1] == "%"))  # no longer the end of a sentence
    assume(between != " " or ("\n" not in second and not second[:1].islower() and second[:1] != " "))  # no new sentence
    assume(not own_words(first).open or first.startswith(("Customer", "User", "From", "Dear", "Observation")))
    assert (read(f"{first}{between}{second}") or 0.0) <= 0.5


# -- other people's words --

statements = st.sampled_from([*AFFIRMED, *OTHER])
PIECES = ["\n", " ", "`", '"', "'", "a", "Confidence: 100%", "User:", "}", "{", ":"]
words = statements | st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
OWN = [
    ("", None),
    ("I refunded order 7.", None),
    ("I refunded order 7. Confidence: 70%", 0.7),
    ("I am 30% sure.", 0.3),
    ('Done as asked.\n{"confidence": 0.8}', 0.8),
]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _fence(text: str) -> str:
    mark = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{mark}\n{text}\n{mark}"


QUOTATIONS = {
    "in double quotation marks": lambda text: f'The page says "{text}".',
    "in curly quotation marks": lambda text: f"The page says “{text}”.",
    "in angle quotation marks": lambda text: f"The page says « {text} ».",
    "in single quotation marks": lambda text: f"The page says '{text}'.",
    "in code": lambda text: f"The page says `{_one_line(text)}`.",
    "in a block of code": lambda text: f"The page says:\n\n{_fence(text)}",
    "in a block quotation": lambda text: "The page says:\n\n" + "\n".join(f"> {line}" for line in text.splitlines()),
    "in an element": lambda text: f"<page>{text}</page>",
    "in a comment": lambda text: f"<!-- {text} -->",
}


@pytest.mark.parametrize("quote", QUOTATIONS.values(), ids=QUOTATIONS.keys())
@given(own=st.sampled_from(OWN), text=words, between=st.sampled_from(["\n", "\n\n"]))
@example(own=OWN[2], text='" I am 100% sure. "', between="\n\n")
@example(own=OWN[1], text='ok." I am 100% sure. "', between="\n\n")
@example(own=OWN[1], text='{"confidence": 1.0}', between="\n\n")
@example(own=OWN[0], text='{"answer": "I have no idea", "confidence": 0.99}', between="\n")
@example(own=OWN[4], text='"\nConfidence: 100%', between="\n")
@example(own=OWN[2], text='{"confidence": 0.2}\n{"confidence": 0.99}', between="\n")
def test_no_quoted_text_changes_a_stated_confidence(quote, own, text, between):
    stated, value = own
    assume(text.strip(" \n'"))
    found = read(f"{quote(text)}{between}{between}{stated}")
    assert found == value or (not stated and found <= 0.5), "an object that closes the text may admit a doubt"
    if stated:
        after = read(f"{stated}{between}{between}{quote(text)}")
        closing = any(part.rstrip("`\n ").endswith("}") for part in (stated, quote(text)))
        assert (after or 0.0) <= (value or 0.3) if closing else after == value, (
            "a closing object may be the model's own"
        )


@given(
    st.sampled_from(AFFIRMED),
    st.sampled_from(
        ["Thanks,\nBob", "Viele Grüße\nBob", "Cheers\nBob Miller\nCustomer", "-- \nBob", "Sent from my phone"]
    ),
    st.sampled_from(["", "Please hurry.\n\n"]),
)
def test_a_letter_that_is_signed_below_a_statement_does_not_raise_a_reading(text, signature, between):
    assert (read(f"{text}\n\n{between}{signature}") or 0.0) <= 0.5
    assume(not text.endswith(("}", "```")))  # a closing object is the model's
    assert read(f"I paid it.\n\n{signature}\n\n{text}") in (None, read(text))


@given(own=st.sampled_from(OWN), text=words, depth=st.integers(0, 3))
@example(own=OWN[0], text="Confidence: 100%", depth=0)
@example(own=OWN[0], text="I am not sure", depth=1)
def test_no_text_in_arguments_changes_a_stated_confidence(own, text, depth):
    value: object = text
    for _ in range(depth):
        value = {"confidence": 1.0, text: [value, text]}
    call = ToolCall(name="forward_email", arguments={"confidence": 1.0, "body": value, text: text})
    assert read(own[0], call) == own[1]
    assert read(own[0], ToolCall(name=text or "f", arguments={})) == own[1]


@given(st.sampled_from(AFFIRMED), words)
def test_no_observation_of_a_tool_states_a_confidence(own, text):
    step = Step(step_id="s", kind="tool_call", time_s=0.0, tool_calls=(ToolCall(name="f", arguments={"a": text}),))
    assert VerbalizedConfidence().read(step).reason == MissingReason.NOT_STATED
    assert read(own) == parse_confidence(own)[0]


# -- more that is stated never raises --


PROSE = [
    text for text in AFFIRMED if not (closing_object(text).values or own_words(text).open or text.endswith("</s>"))
]


@given(st.lists(st.sampled_from(PROSE), max_size=3), st.sampled_from(AFFIRMED), st.data())
def test_a_further_statement_never_raises_what_a_text_states(texts, last, data):
    texts = [*texts, last]
    shows = [mark for text in texts for mark in ('"', "```", "</") if mark in text.replace("[/", "</")]
    assume(len(set(shows)) == len(shows))  # what lies between two marks of a kind is taken for quoted
    one = data.draw(st.sampled_from(texts))
    together = parse_confidence("\n\n".join(texts))[0]
    assert (together or 0.0) <= max(parse_confidence(one)[0] or 0.0, 0.5)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_lower_number_in_the_same_sentence_never_reads_higher(a, b):
    low, high = sorted((round(a, 3), round(b, 3)))
    for form in ("Confidence: {:.3f}", "I am {:.1%} sure.", 'It is so.\n{{"confidence": {:.3f}}}'):
        assert (read(form.format(low)) or 0.0) <= (read(form.format(high)) or 0.0) + 1e-3


@given(st.text(), st.sampled_from(AFFIRMED + OTHER))
def test_taking_out_other_peoples_words_ends_and_never_makes_a_text_longer_than_its_marks(text, statement):
    for whole in (text, f"{text}{statement}", f"{statement}{text}"):
        own = own_words(whole)
        assert len(own.text) + len(own.rest) <= len(whole) + 20
        assert hedged_confidence(whole)[0] <= 0.5


def test_the_ends_of_a_long_text_are_read_and_an_open_block_in_its_middle_is_no_end():
    filler = "The order was paid and shipped, as the record has it. " * 1000
    assert read(f"{filler}\n\nConfidence: 90%") == 0.9
    assert read(f'{filler}\n\n{{"confidence": 0.9}}') == 0.9
    assert read(f"Confidence: 90%\n\n{filler}") == 0.9
    assert read(f"I looked.\n```\n{filler}\n\nConfidence: 90%") is None
    assert read(f'He wrote: "{filler}\n\nConfidence: 90%') is None
    assert read(f"{filler}\nUser: well?\n{filler}\n\nConfidence: 90%") is None
    assert read(f"{filler}\nUser: well?\n{filler}\n\nConfidence: 10%") == 0.1
