"""Verbalised confidence: the number that a model states about its own answer, and the request to state one.

`stated_confidence` has the rules by which a text is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.building import builder
from grampus_uq.records.protocols import SenseContext
from grampus_uq.records.values import Message, Reading, Step
from grampus_uq.records.vocabulary import MissingReason, Role, UncertaintySource
from grampus_uq.signals.admissions import admitted_confidence
from grampus_uq.signals.confidence_forms import parse_number
from grampus_uq.signals.stated_confidence import parse_confidence

ELICITATION = (
    'End your reply with a line of JSON: {"confidence": p}, where p is a number between 0 and 1: the probability that '
    "the task will eventually be solved correctly from the current state."
)
_REPAIR = (
    'Reply with nothing but JSON: {"confidence": p}, where p is a number between 0 and 1: the probability that the '
    "task will eventually be solved correctly from the current state."
)
_SOURCE: Final = UncertaintySource.VERBALIZED


class VerbalizedConfidence:
    """Reads the confidence that the step's own text states; the arguments of its calls state none.

    Silence is a missing reading. An outright admission of not knowing, without a number, is read as a low confidence.
    """

    __slots__ = ()
    source: str = _SOURCE

    def read(self, step: Step) -> Reading:
        """Parse the step's text."""
        text = step.text
        value, reason = parse_confidence(text)
        if value is not None:
            return _new_reading(source=_SOURCE, value=value)
        if reason is MissingReason.NOT_STATED:
            admitted = admitted_confidence(text)
            return _NOT_STATED if admitted is None else Reading(source=self.source, value=admitted, detail="admission")
        return Reading(source=self.source, value=None, reason=reason)


_NOT_STATED = Reading(source=VerbalizedConfidence.source, value=None, reason=MissingReason.NOT_STATED)
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
