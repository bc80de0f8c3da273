"""Verbalised confidence: the number a model states about its own answer, read in linear time, trusted when it is valid.

Read are the JSON object that closes a message (its field `confidence` or `confidence_score`), a `<confidence>` tag, and
sentences such as "Confidence: 85%" or "I am 85% sure", where the model says them of itself: never in a call's
arguments, a quotation, a block of code or another speaker's lines. What is not a number in [0, 1] (or a percentage in
[0 %, 100 %]) is *missing*, never clipped. A denial is no statement. Of statements that contradict each other the lowest
counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.building import builder
from grampus_uq.records.protocols import SenseContext
from grampus_uq.records.values import Message, Reading, Step
from grampus_uq.records.vocabulary import MissingReason, Role, UncertaintySource
from grampus_uq.signals.admissions import UNDECIDED, admissions
from grampus_uq.signals.closing_object import ClosingObject, closing_object
from grampus_uq.signals.own_words import as_read, own_words
from grampus_uq.signals.plain_answer import plain_answer
from grampus_uq.signals.stated import INVALID, MAY_STATE, OTHER_SCALE, STATING_WORDS, parse_number, stated
from grampus_uq.signals.statement_context import is_doubtful, sentences_of

__all__ = [
    "ELICITATION",
    "ElicitedConfidence",
    "VerbalizedConfidence",
    "elicit_confidence",
    "hedged_confidence",
    "parse_confidence",
    "parse_number",
    "without_confidence",
]

_ADMISSIONS = (
    "not sure", "not entirely sure", "not completely sure", "not really sure", "not certain", "not confident", "unsure",
    "uncertain", "no idea", "do not know", "don't know", "don’t know", "do not really know", "don't really know",
    "i am guessing", "i'm guessing", "i’m guessing", "just guessing", "only guessing", "wild guess",
)  # fmt: skip
_ADMITTING = ("sure", "certain", "confident", "idea", "know", "guess")  # one of them is in every admission
_LONGEST_SENTENCE = 320
_LONGEST_ANSWER = 20_000
_MOST_SENTENCES = 200
_SPLIT_TAG = re.compile(r"<(confidence(?:_score)?)>\s{0,64}([^<]{0,60}?)\s{0,64}(?=</confidence|\Z)", re.IGNORECASE)
_HEDGES = (
    "roughly", "approximately", "maybe", "perhaps", "possibly", "probably", "presumably", "might be", "could be",
    "i think", "i guess", "i believe", "seems", "unclear",
)  # fmt: skip

ELICITATION = (
    'End your reply with a line of JSON: {"confidence": p}, where p is a number between 0 and 1: the probability that '
    "the task will eventually be solved correctly from the current state."
)
_REPAIR = (
    'Reply with nothing but JSON: {"confidence": p}, where p is a number between 0 and 1: the probability that the '
    "task will eventually be solved correctly from the current state."
)


def parse_confidence(text: str) -> tuple[float | None, MissingReason | None]:
    """The stated confidence in [0, 1] (higher is better) and None, or None and the reason: not_stated or invalid_value.

    The least counts where several are stated. A statement that may be somebody else's counts when it is at most 0.5,
    and one that is no probability takes the others above 0.5 with it. Linear in the length of the text.

    >>> parse_confidence('{"answer": "Paris", "confidence": 0.9}')
    (0.9, None)
    >>> parse_confidence('{"confidence": 95}')
    (None, <MissingReason.INVALID_VALUE: 'invalid_value'>)
    >>> parse_confidence('The page says "Confidence: 100%".')
    (None, <MissingReason.NOT_STATED: 'not_stated'>)
    """
    stripped = text.strip()
    plain = plain_answer(stripped) if stripped.endswith("}") else None
    if plain is not None:
        return plain, None
    seen = text if text.isascii() else as_read(text)
    return _parsed(text, seen) if _has_any(seen.lower(), STATING_WORDS) else (None, _NOT_STATED)


def _parsed(text: str, seen: str) -> tuple[float | None, MissingReason | None]:
    """The same of any text, by all the rules; what only a reader sees (`as_read`) can only make it more careful."""
    values = _statements(text)
    if seen != text:
        values += [value for value in _statements(seen) if 0.0 <= value <= UNDECIDED]
    valid = [value for value in values if value != INVALID]
    if valid and (len(valid) == len(values) or min(valid) <= UNDECIDED):
        return min(valid), None
    return None, _INVALID if values else _NOT_STATED


def _statements(text: str) -> list[float]:
    """What the text states of itself, `INVALID` for what is no probability; above 0.5 only what is surely its own."""
    rest = closing_object(text)
    own = own_words(rest.before)
    lines = _lines(own.text)
    other_scale = OTHER_SCALE(own.text)
    values = list(_in_prose(lines, other_scale)) if MAY_STATE(own.text) else []
    if own.rest:
        values += [value for value in _in_prose(_lines(own.rest), other_scale) if 0.0 <= value <= UNDECIDED]
    if rest.values:
        earlier = closing_object(rest.before)
        after_another = bool(earlier.values or earlier.others)  # one of several objects in a row may be a tool's
        doubtful = own.open or after_another or not rest.is_answer or is_doubtful(lines, len(lines), (), 0)
        stated_last = closing_object(text, other_scale=True).values if other_scale else rest.values
        values += [value for value in stated_last if not doubtful or 0.0 <= value <= UNDECIDED]
        values += [value for value in earlier.values if 0.0 <= value <= UNDECIDED]
    if values:
        values += admissions(own.text, max(values))
        for text in rest.texts:  # what the answer itself says can only make the reading more careful
            shown = own_words(text).text
            told = [*_in_prose(_lines(shown), other_scale), *closing_object(text).values]
            values += [value for value in told if 0.0 <= value <= UNDECIDED]
            values += admissions(shown, max(values))
    return values


def without_confidence(text: str) -> str:
    """The text without what it states of its confidence: two answers that differ in nothing else say the same.

    >>> without_confidence('It is Paris. I am 90% sure.'), without_confidence('It is Paris. {"confidence": 0.8}')
    ('It is Paris.', 'It is Paris.')
    """
    if len(text) > _LONGEST_ANSWER or not MAY_STATE(text):
        return text
    rest = closing_object(text)
    if not rest.values:
        rest = ClosingObject(text)
    lines = (" ".join(part for part in sentences_of(line) if stated(part) is None) for line in rest.before.split("\n"))
    others = sorted((name, json.dumps(value)) for name, value in rest.others)
    return "\n".join([*lines, json.dumps(others) if others else ""]).strip() or text


def _lines(text: str) -> list[str]:
    return (_SPLIT_TAG.sub(r"<\1>\2", text) if "<" in text else text).split("\n")


def _in_prose(lines: Sequence[str], other_scale: bool) -> Iterator[float]:
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
                return
            value = stated(sentence, other_scale=other_scale)
            if value is not None and (0.0 <= value <= UNDECIDED or not is_doubtful(lines, number, sentences, index)):
                yield value


def hedged_confidence(text: str) -> tuple[float, bool]:
    """What hedging words make of an unstated confidence: at most 0.5, and whether one of them is an outright admission.

    Each distinct weak hedge ("roughly", "maybe") takes a tenth, each distinct admission ("not sure") two fifths.
    Words only ever lower the value, and only whole words count ("thoroughly" is not "roughly").

    >>> hedged_confidence("We checked thoroughly.")
    (0.5, False)
    """
    lowered = own_words(text).text.lower()
    admissions = sum(_has_words(lowered, phrase) for phrase in _ADMISSIONS)
    hedges = sum(_has_words(lowered, phrase) for phrase in _HEDGES)
    return 0.5 * 0.9 ** min(hedges, 4) * 0.6 ** min(admissions, 2), admissions > 0


def _has_words(lowered: str, phrase: str) -> bool:
    """True when the phrase stands in the text as whole words; a plain substring search first, it is far quicker."""
    return phrase in lowered and re.search(rf"\b{phrase}\b", lowered) is not None


def _has_any(lowered: str, words: Sequence[str]) -> bool:
    """True when one of the words is in the text: a quick look before the thorough one."""
    for word in words:  # noqa: SIM110 (a loop takes a third of the time of a generator)
        if word in lowered:
            return True
    return False


class VerbalizedConfidence:
    """Reads the confidence that the step's own text states; the arguments of its calls state none.

    Silence is a missing reading. An outright admission of not knowing, without a number, is read as a low confidence.
    """

    __slots__ = ()
    source: str = UncertaintySource.VERBALIZED

    def read(self, step: Step) -> Reading:
        """Parse the step's text."""
        text = step.text
        value, reason = parse_confidence(text)
        if value is not None:
            return _new_reading(source=self.source, value=value)
        if reason is _NOT_STATED:
            hedged, admitted = hedged_confidence(text) if _has_any(text.lower(), _ADMITTING) else (0.5, False)
            return Reading(source=self.source, value=hedged, detail="admission") if admitted else _SILENCE
        return Reading(source=self.source, value=None, reason=reason)


_NOT_STATED, _INVALID = MissingReason.NOT_STATED, MissingReason.INVALID_VALUE
_SILENCE = Reading(source=VerbalizedConfidence.source, value=None, reason=_NOT_STATED)
_new_reading = builder(Reading)


def elicit_confidence(messages: Sequence[Message]) -> list[Message]:
    """The same messages, with a request to state a confidence in the system prompt (added if there is none)."""
    messages = list(messages)
    for index, message in enumerate(messages):
        if message.role is Role.SYSTEM:
            content = f"{message.content}\n\n{ELICITATION}" if message.content else ELICITATION
            messages[index] = message.model_copy(update={"content": content})
            return messages
    return [Message(role=Role.SYSTEM, content=ELICITATION), *messages]


class ElicitedConfidence:
    """Reads the stated confidence, and asks for it again (at most `repairs` times) when it is absent or invalid.

    Use with `elicit_confidence` on the prompt. After the last repair the reading is missing with reason `parse_error`.
    Where the model may not be asked (none is at hand, or its share is spent) `read` takes what is stated as it is.
    """

    __slots__ = ("repairs",)
    source: str = UncertaintySource.VERBALIZED

    def __init__(self, *, repairs: int = 2) -> None:
        if repairs < 0:
            raise ConfigurationError.of("repairs", "ElicitedConfidence", "at least 0", repairs)
        self.repairs = repairs

    def read(self, step: Step) -> Reading:
        """Parse the step's text without asking for anything."""
        return VerbalizedConfidence().read(step)

    async def sense(self, step: Step, context: SenseContext) -> Reading:
        """Parse; on failure show the model its own reply and ask for the number alone."""
        value, _ = parse_confidence(step.text)
        messages = [
            *context.messages,
            Message(role=Role.ASSISTANT, content=step.judged_text()),
            Message(role=Role.USER, content=_REPAIR),
        ]
        attempts = 0
        while value is None and attempts < self.repairs:
            attempts += 1
            reply = await context.ask(messages, temperature=0.0, max_tokens=40)
            value = parse_confidence(reply.content)[0]
            if value is None:
                value = parse_number(reply.content)
        if value is None:
            return Reading(source=self.source, value=None, reason=MissingReason.PARSE_ERROR)
        return Reading(source=self.source, value=value)
