"""What is read at a glance is what all the rules read."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from grampus_uq.signals import statement_context
from grampus_uq.signals.stated_confidence import _parsed, plain_answer
from tests.sampling import sampled

ROOM = Path(statement_context.__file__).parent
SOURCES = [
    (ROOM / f"{name}.py").read_text(encoding="utf-8")
    for name in ("statement_context", "own_words", "confidence_forms", "admissions", "stated_confidence")
]
STEMS = sorted({word.lower() for source in SOURCES for word in re.findall(r"[A-Za-z]{2,}", source)})
WORDS = [stem + end for stem, end in product(STEMS, ["", "s", "ed", "ing"])]
PHRASES = sorted({p.lower() for source in SOURCES for p in re.findall(r"[a-z]+(?: [a-z]+)+", source)})
OBJECTS = [
    '{"confidence": 0.9}',
    '{"answer": "Paris", "confidence": 0.97}',
    '{"confidence":1,"reason":"Paid. Let me know"}',
    '{"answer": "Of {x}. {", "confidence": 0.8}',
    '{"answer": "I am 90% sure.", "confidence_score": 0.2, "explanation": "it says"}',
]


def agrees(text: str) -> bool:
    """Whether something was read at a glance, and then what all the rules read."""
    value = plain_answer(text.strip())
    assert value is None or (value, None) == _parsed(text, text)
    return value is not None


def test_the_form_asked_for_is_read_at_a_glance():
    for before in ("", "It is Paris. ", "The refund of 12.50 is due. It went out today.\n\n"):
        assert all(agrees(before + written) for written in OBJECTS[:2])


SHAPES = ["{}. ", "Paid, {}.\n\n", "{}\n", "So {} it is. ", "{} the order. ", "Done. {}! "]


@sampled("shape", SHAPES[:2], full=SHAPES)
def test_no_word_of_any_rule_is_overlooked(shape):
    read = [agrees(shape.format(word) + OBJECTS[1]) for word in (*WORDS, *PHRASES)]
    assert 100 < sum(read) < len(read)


WORD = st.sampled_from([*STEMS, *PHRASES, "the", "12", "0 to 5", "out of 10", "scale of 1 to 5", "e.g.", "no."])
MARK = st.sampled_from([" ", " ", ". ", "! ", ", ", "\n", ": ", "  ", ' "', "> ", "(", "_", "-", "’", "\t"])


@given(parts=st.lists(st.tuples(WORD, MARK), max_size=8), end=st.sampled_from(["", ". ", "\n\n"]), data=st.data())
@example(parts=[], end="", data=None)
def test_whatever_precedes_the_object_a_glance_reads_what_the_rules_read(parts, end, data):
    written = OBJECTS[0] if data is None else data.draw(st.sampled_from(OBJECTS))
    agrees("".join(word + mark for word, mark in parts) + end + written)
    agrees(written + "".join(word + mark for word, mark in parts))
