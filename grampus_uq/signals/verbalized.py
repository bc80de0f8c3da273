"""Verbalised confidence: the number a model states about itself, read in linear time and trusted only when it is valid.

Read are, in this order of trust, a JSON field `confidence` or `confidence_score` anywhere in the text, a `<confidence>`
tag, and prose such as "Confidence: 85%". The last statement of the most trusted kind decides, and if that one is not a
number in [0, 1] (or a percentage in [0 %, 100 %]) the reading is *missing*, never clipped. Only the model's own text is
read: a number in a tool's output is somebody else's claim.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from grampus_uq.errors import ConfigurationError
from grampus_uq.protocols import SenseContext
from grampus_uq.records import Message, Reading, Step, builder
from grampus_uq.vocabulary import MissingReason, Role, UncertaintySource

__all__ = [
    "ELICITATION",
    "ElicitedConfidence",
    "VerbalizedConfidence",
    "elicit_confidence",
    "hedged_confidence",
    "parse_confidence",
    "parse_number",
]

# The text is lowered once, so that each pattern starts with a literal that C code finds (what comes before it is looked
# at afterwards), and every quantifier is bounded. A scan is therefore linear in the text, whatever the text is. A value
# is taken whole ("{1,40}+" gives nothing back) or, when it goes on for longer, as the empty text, which is invalid:
# half a number is another number.
_JSON_FIELD = re.compile(
    r"""confidence(?:_score)?["']\s{0,64}:\s{0,64}"""
    r"""("[^"\n]{0,40}"|'[^'\n]{0,40}'|[^\s,}\]"']{1,40}+(?![^\s,}\]"'])(?:\s?%)?|(?=\S))"""
)
_TAG = re.compile(r"<confidence(?:_score)?>\s{0,64}([^<]{0,40})")
_PROSE = re.compile(
    r"confidence(?:[ _]score|[ _]level)?[*_`]{0,3}[ \t]{0,4}(?:is|of|at|[:=])[*_`]{0,3}[ \t]{0,4}"
    r"[*_`]{0,3}(?:about |around |~)?"
    r"([+-]?[\d.][\w.,+-]{0,30}+(?![\w.,+-])(?:\s?%|\s?/|\s?(?:out )?of \d)?|-?nan\b|-?inf(?:inity)?\b|(?=[+-]?[\d.]))"
)
_SURE = re.compile(r"%\s{1,4}(?:confident|confidence|certain|sure)\b")
_PERCENT_BEFORE = re.compile(r"(?<![\w.,+-])([+-]?\d{1,3}(?:\.\d{1,8})?)\s?\Z")
_NUMBER = re.compile(r"([+-]?(?:\d{1,15}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,3})?)\s?(%?)\Z")
_ADMISSIONS = (
    "not sure", "not entirely sure", "not completely sure", "not really sure", "not certain", "not confident", "unsure",
    "uncertain", "no idea", "do not know", "don't know", "don’t know", "do not really know", "don't really know",
    "i am guessing", "i'm guessing", "i’m guessing", "just guessing", "only guessing", "wild guess",
)  # fmt: skip
_ADMITTING = ("sure", "certain", "confident", "idea", "know", "guess")  # one of them is in every admission
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


def parse_number(text: str) -> float | None:
    """A probability stated as "0.85", ".85", "1" or "85%"; None when it is anything else (85, -0.2, NaN, true, "high").

    >>> parse_number("85%"), parse_number("0"), parse_number("85"), parse_number("-0.2"), parse_number("NaN")
    (0.85, 0.0, None, None, None)
    """
    match = _NUMBER.match(text.strip())
    if match is None:
        return None
    value = float(match[1]) / (100.0 if match[2] else 1.0)
    return value if 0.0 <= value <= 1.0 else None


def parse_confidence(text: str) -> tuple[float | None, MissingReason | None]:
    """The stated confidence in [0, 1] (higher is better) and None, or None and the reason: not_stated or invalid_value.

    Linear in the length of the text. When several statements are made the last one of the most trusted kind counts.

    >>> parse_confidence('{"answer": "Paris", "confidence": 0.9}')
    (0.9, None)
    >>> parse_confidence('{"confidence": 95}')
    (None, <MissingReason.INVALID_VALUE: 'invalid_value'>)
    """
    lowered = text.lower()
    stated = _stated_value(lowered) if "confidence" in lowered else None
    if stated is None and "%" in lowered:
        stated = _stated_percentage(lowered)
    if stated is None:
        return None, _NOT_STATED
    value = parse_number(stated)
    return (None, _INVALID) if value is None else (value, None)


def _stated_value(lowered: str) -> str | None:
    """What is stated as "confidence", last and in the most trusted way; None when nothing is."""
    stated = _last(_JSON_FIELD, lowered, _in_quotes) or _last(_TAG, lowered) or _last(_PROSE, lowered, _no_letter)
    return None if stated is None else stated[1].strip("\"'").rstrip(".,;_")


_in_quotes = frozenset("\"'").__contains__


def _no_letter(before: str) -> bool:
    return not before.isalpha()


def _last(pattern: re.Pattern[str], text: str, follows: Callable[[str], bool] | None = None) -> re.Match[str] | None:
    """The last match, of those whose preceding character (empty at the start) satisfies `follows`."""
    last, match = None, pattern.search(text)
    while match is not None:
        start, end = match.span()
        if follows is None or follows(text[start - 1 : start] if start else ""):
            last = match
        match = pattern.search(text, end)
    return last


def _stated_percentage(lowered: str) -> str | None:
    """The number of the last "85% sure"; empty when there is none before the sign, None when nobody is sure."""
    sure = _last(_SURE, lowered)
    if sure is None:
        return None
    number = _PERCENT_BEFORE.search(lowered[max(0, sure.start() - 16) : sure.start()])
    return "" if number is None else f"{number[1]}%"


def hedged_confidence(text: str) -> tuple[float, bool]:
    """What hedging words make of an unstated confidence: at most 0.5, and whether one of them is an outright admission.

    Each distinct weak hedge ("roughly", "maybe") takes a tenth, each distinct admission ("not sure") two fifths.
    Words only ever lower the value, and only whole words count ("thoroughly" is not "roughly").

    >>> hedged_confidence("We checked thoroughly.")
    (0.5, False)
    """
    lowered = text.lower()
    admissions = sum(_has_words(lowered, phrase) for phrase in _ADMISSIONS)
    hedges = sum(_has_words(lowered, phrase) for phrase in _HEDGES)
    return 0.5 * 0.9 ** min(hedges, 4) * 0.6 ** min(admissions, 2), admissions > 0


def _has_words(lowered: str, phrase: str) -> bool:
    """True when the phrase stands in the text as whole words; a plain substring search first, it is far quicker."""
    return phrase in lowered and re.search(rf"\b{phrase}\b", lowered) is not None


def _may_admit(lowered: str) -> bool:
    """False when no admission can be in the text: a quick look before the thorough one."""
    for word in _ADMITTING:  # noqa: SIM110 (a loop takes a third of the time of a generator)
        if word in lowered:
            return True
    return False


class VerbalizedConfidence:
    """Reads the confidence that the step's own text states; on a turn without text, that its proposed calls carry.

    Silence is a missing reading. An outright admission of not knowing, without a number, is read as a low confidence.
    """

    __slots__ = ()
    source: str = UncertaintySource.VERBALIZED

    def read(self, step: Step) -> Reading:
        """Parse the step's text."""
        text = step.text
        if not text or text.isspace():
            text = step.judged_text()
        value, reason = parse_confidence(text)
        if value is not None:
            return _new_reading(source=self.source, value=value)
        if reason is _NOT_STATED:
            hedged, admitted = hedged_confidence(text) if _may_admit(text.lower()) else (0.5, False)
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
        value, _ = parse_confidence(step.text if step.text.strip() else step.judged_text())
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
