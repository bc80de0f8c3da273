"""The confidence that a text states of its own answer: a probability, or missing with a reason. Linear time.

The rules, in order:

1. A plain sentence or none and then the JSON object asked for is read at a glance (`plain_answer`): most steps. The
   other rules would give the same.
2. Text that is only shown (quotations, code, markup, other speakers' lines) is taken out (`own_words`).
3. The JSON object that closes the text, a `<confidence>` tag and sentences of known forms state a value
   (`confidence_forms`). A value that is not a number in [0, 1] (or percentage in [0 %, 100 %]) is invalid, never
   clipped.
4. A statement that may be somebody else's, hypothetical or taken back (`statement_context`) counts only where
   it lowers: up to 0.5, below another statement, or as a reason to be careful (invalid, or with words against it). One
   beside a row of a table counts as 0.5 at most.
5. Of several statements the lowest counts. An invalid one discards those above 0.5.
6. Words against the number ("My answer is wrong", "Confidence: low") lower it (`admissions`), also in the other fields
   of the object.
7. What only a reader sees (full width letters, words without their invisible characters) can only lower it.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from grampus_uq.records.vocabulary import MissingReason
from grampus_uq.signals.admissions import ADMITTING, UNDECIDED, admissions
from grampus_uq.signals.atomic_patterns import atomic
from grampus_uq.signals.confidence_forms import (
    ANSWER_FIELDS,
    FIELDS,
    INVALID,
    MAY_STATE,
    OTHER_SCALE,
    STATING_WORDS,
    ClosingObject,
    closing_object,
    sentence_confidence,
)
from grampus_uq.signals.own_words import GAP, SPEAKER, as_read, own_words
from grampus_uq.signals.statement_context import (
    FRAME,
    REPORT,
    SOURCE,
    beside_table_row,
    is_doubtful,
    letter_end,
    names_a_source,
    sentences_of,
)

_LONGEST_SENTENCE = 320
_LONGEST_ANSWER = 20_000
_MOST_SENTENCES = 200
_SPLIT_TAG = re.compile(r"<(confidence(?:_score)?)>\s{0,64}([^<]{0,60}?)\s{0,64}(?=</confidence|\Z)", re.IGNORECASE)
_END_OF_TEXT = re.compile(r"\s{0,8}(?:</s>|<end_of_turn>|<eos>|<[|｜][a-z_▁]{1,24}[|｜]>)\Z", re.IGNORECASE)
"""What a server leaves in that does not hide its model's last token."""
_BEHIND_SHOWN = re.compile(rf"(?<=[}}\]{GAP}]) ")
"""Where a sentence begins behind an object or a quotation: only what lowers is sought there."""
_HEADED = re.compile(
    r"^#{1,6} \**(?:confidence|certainty)(?: level| score)?:?\**:?[ \t]*\n\s{0,8}(?=\**[0-9.]{1,6} ?%?\**$)",
    re.IGNORECASE | re.MULTILINE,
)
_OTHER_FIELD = rf'"(?:{"|".join(sorted(ANSWER_FIELDS - FIELDS))})": ?"[^"\\{{\x00-\x1f]{{0,2000}}"'
_PLAIN: Final = re.compile(
    atomic(r"(?:[A-Za-z0-9][A-Za-z0-9 ,.!?%$]{0,240}(?:[.!?] |\n\n?))?", "before")
    + rf'\{{ ?(?:{_OTHER_FIELD}, ?){{0,8}}"({"|".join(sorted(FIELDS))})": ?'
    rf"(0(?:\.[0-9]{{1,20}})?|1(?:\.0{{1,20}})?)(?:, ?{_OTHER_FIELD}){{0,8}} ?\}}"
)
_WORDS: Final = re.compile(r"[a-z]+")
_DIGIT: Final = re.compile(r"[0-9]")
_OF_PHRASES: Final = frozenset(
    {"word", "words", "text", "told", "asked", "point", "percent", "five", "seven", "ten", "hundred"}
)
"""Words of phrases that no other word of the phrase gives away."""
_NAMES: Final = frozenset(f'{before}"{name}":' for before in ("", "{") for name in ANSWER_FIELDS - FIELDS)
"""Fields' names as they stand between blanks."""
_HARMLESS: Final = set(_NAMES)
_MOST_HARMLESS: Final = 4_096
_LONGEST_WORD: Final = 40


def parse_confidence(text: str) -> tuple[float | None, MissingReason | None]:
    """The stated confidence in [0, 1] (higher is better) and None, or None and the reason: not_stated or invalid_value.

    >>> parse_confidence('{"answer": "Paris", "confidence": 0.9}')
    (0.9, None)
    >>> parse_confidence('{"confidence": 95}')
    (None, <MissingReason.INVALID_VALUE: 'invalid_value'>)
    >>> parse_confidence('The page says "Confidence: 100%".')
    (None, <MissingReason.NOT_STATED: 'not_stated'>)
    """
    text = _without_end_of_text(text)
    stripped = text.strip()
    plain = plain_answer(stripped) if stripped.endswith("}") else None
    if plain is not None:
        return plain, None
    seen = text if text.isascii() else as_read(text)
    lowered = seen.lower()
    for word in STATING_WORDS:  # a loop takes a third of the time of a generator
        if word in lowered:
            return _parsed(text, seen)
    return None, MissingReason.NOT_STATED


def _parsed(text: str, seen: str) -> tuple[float | None, MissingReason | None]:
    """Rules 2 to 7: the values of the text, and the low ones of what a reader sees (`as_read`)."""
    values = _statements(text)
    if seen != text:
        values += _low(_statements(seen))
    valid = [value for value in values if value != INVALID]
    if valid and (len(valid) == len(values) or min(valid) <= UNDECIDED):
        return min(valid), None
    return None, MissingReason.INVALID_VALUE if values else MissingReason.NOT_STATED


def _low(values: Iterable[float]) -> list[float]:
    """The values that count whoever states them: they can only make the reading more careful."""
    return [value for value in values if 0.0 <= value <= UNDECIDED]


def _statements(text: str) -> list[float]:
    """Return the text's statements of its own confidence; `INVALID` for no probability; above 0.5 only certain ones."""
    closing = closing_object(text)
    own = own_words(closing.before)
    lines = _lines(own.text)
    other_scale = OTHER_SCALE(own.text)
    values, doubtful = _in_prose(lines, other_scale) if MAY_STATE(own.text) else ([], [])
    values += _low(chain(*_in_prose(_lines(own.rest), other_scale))) if own.rest else ()
    if _BEHIND_SHOWN.search(own.text):
        values += _low(chain(*_in_prose(_lines(_BEHIND_SHOWN.sub("\n", own.text)), other_scale)))
    if closing.values:
        earlier = closing_object(closing.before)
        after_another = bool(earlier.values or earlier.others)  # one of several objects in a row may be a tool's
        with_others = bool(closing.others) and names_a_source(sentences_of(lines[-1])[-1])
        in_doubt = (
            with_others or own.open or after_another or not closing.is_answer or is_doubtful(lines, len(lines), (), 0)
        )
        stated = closing_object(text, other_scale=True).values if other_scale else closing.values
        (doubtful if in_doubt else values).extend(stated)
        values += _low(earlier.values)
    values += [value for value in doubtful if value <= UNDECIDED]  # invalid ones too: they were due
    if values or doubtful:
        values += admissions(own.text, max(values + doubtful))
        for field_text in closing.texts:  # what the answer itself says
            field_words = own_words(field_text).text
            values += _low([*chain(*_in_prose(_lines(field_words), other_scale)), *closing_object(field_text).values])
            values += admissions(field_words, max(values + doubtful))
    return values + doubtful if any(value > UNDECIDED for value in values) else values  # where they can only lower


def _without_end_of_text(text: str) -> str:
    """The text without a last token that a server left in."""
    kept = text.rstrip()
    return _END_OF_TEXT.sub("", kept) if kept.endswith(">") else text


def without_confidence(text: str) -> str:
    """The text without what it states of its confidence: two answers that differ in nothing else say the same.

    >>> without_confidence('It is Paris. I am 90% sure.'), without_confidence('It is Paris. {"confidence": 0.8}')
    ('It is Paris.', 'It is Paris.')
    """
    if len(text) > _LONGEST_ANSWER:
        return text
    said = _without_end_of_text(text)
    if not MAY_STATE(said):
        return said
    closing = closing_object(said)
    if not closing.values:
        closing = ClosingObject(said)
    lines = [
        " ".join(sentence for sentence in sentences_of(line) if sentence_confidence(sentence) is None)
        for line in _lines(closing.before)
    ]
    others = sorted((name, json.dumps(value)) for name, value in closing.others)
    return "\n".join([*lines, json.dumps(others) if others else ""]).strip() or text


def _lines(text: str) -> list[str]:
    text = _HEADED.sub("Confidence: ", text) if "#" in text else text
    return (_SPLIT_TAG.sub(r"<\1>\2", text) if "<" in text else text).split("\n")


def _in_prose(lines: Sequence[str], other_scale: bool) -> tuple[list[float], list[float]]:
    """Return certain and doubtful statements in sentences; doubtful: above 0.5 or invalid, and perhaps not its own."""
    own: list[float] = []
    doubtful: list[float] = []
    signed = letter_end(lines)
    examined = 0
    for number, line in enumerate(lines):
        if not MAY_STATE(line):
            continue
        sentences = sentences_of(line)
        for index, sentence in enumerate(sentences):
            if len(sentence) > _LONGEST_SENTENCE or not MAY_STATE(sentence):
                continue
            examined += 1
            if examined > _MOST_SENTENCES:
                return own, doubtful
            value = sentence_confidence(sentence, other_scale=other_scale)
            if value is None:
                continue
            if 0.0 <= value <= UNDECIDED:
                own.append(value)
            elif number < signed or is_doubtful(lines, number, sentences, index):
                doubtful.append(value)
            else:
                own.append(min(value, UNDECIDED) if beside_table_row(lines, number) else value)
    return own, doubtful


def plain_answer(stripped: str) -> float | None:
    """The confidence that such a text states, without blanks around it; None for any other text.

    >>> plain_answer('It is Paris. {"confidence": 0.9}'), plain_answer('It says: {"confidence": 0.9}')
    (0.9, None)
    """
    match = _PLAIN.fullmatch(stripped)
    if match is None:
        return None
    lowered = stripped[: match.start(2)].lower()
    if len(stripped) - match.end(3) > 2:  # more than a brace stands behind the number
        lowered += stripped[match.end(3) :].lower()
    if "know" in lowered:  # "Let me know if ...}" would be a closing word
        return None
    words = lowered.split()
    if not _HARMLESS.issuperset(words) and (any(map(_matters, words)) or OTHER_SCALE(match[1] or "")):
        return None
    before = match[1]
    return None if before and _frames_at_the_end(before.rsplit(None, 1)[-1].lower()) else float(match[3])


_frames_at_the_end = functools.lru_cache(maxsize=1_024)(FRAME)


def _matters(written: str) -> bool:
    """Return True for a word that a rule looks for anywhere; the others are remembered if without digits.

    It may have marks of punctuation in it, which are not part of a word.
    """
    matters = written not in _NAMES and any(map(_is_sought, _WORDS.findall(written)))
    if not matters and len(written) <= _LONGEST_WORD and _DIGIT.search(written) is None:
        if len(_HARMLESS) >= _MOST_HARMLESS:
            _HARMLESS.clear()
            _HARMLESS.update(_NAMES)
        _HARMLESS.add(written)
    return matters


def _is_sought(word: str) -> bool:
    within = f"{word} x"
    return (
        word in _OF_PHRASES
        or word in ADMITTING
        or SPEAKER.search(word) is not None
        or SPEAKER.search(within) is not None
        or any(search(within) for search in (FRAME, REPORT, SOURCE, MAY_STATE, OTHER_SCALE))
    )
