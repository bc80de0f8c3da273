"""Puts one conversation together from model calls that each repeat the conversation before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from grampus_uq.importers.imported_run import MessageFacts
from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import Role


class ImportedTranscript:
    """The messages so far and what is known beside each.

    A call of a model is given the whole conversation: only what follows the last answer in it is new. A tool's answer
    that was observed by itself (it has a call id) is not added again.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.facts: dict[int, MessageFacts] = {}
        self._answered: set[str] = set()
        self._observed = Counter[str]()

    def add_given(self, given: Sequence[Message], time_s: float | None) -> None:
        """Take in what a model was given: what is new of it, and at the very beginning the system's instructions."""
        last = max((i for i, message in enumerate(given) if message.role is Role.ASSISTANT), default=-1)
        begins = not self.messages
        for index, message in enumerate(given):
            if message.role is Role.SYSTEM:
                if begins:
                    self._add(message, MessageFacts(time_s=time_s))
            elif index > last and not self._known(message):
                self._add(message, MessageFacts(time_s=time_s))
        self._observed.clear()

    def add_answer(self, message: Message, facts: MessageFacts) -> None:
        """Add an answer of the model, whatever role its format gives it: a step."""
        self._add(message.model_copy(update={"role": Role.ASSISTANT}), facts)

    def add_observation(self, message: Message, facts: MessageFacts) -> None:
        """Add the answer of a tool, at the time it ran and not when the model was given it."""
        if message.tool_call_id:
            if message.tool_call_id in self._answered:
                return
            self._answered.add(message.tool_call_id)
        else:
            self._observed[message.content or ""] += 1
        self._add(message, facts)

    def _known(self, message: Message) -> bool:
        if message.role is not Role.TOOL:
            return False
        if message.tool_call_id and message.tool_call_id in self._answered:
            return True
        if self._observed[message.content or ""] > 0:  # observed without an id, repeated with one
            self._observed[message.content or ""] -= 1
            return True
        if message.tool_call_id:
            self._answered.add(message.tool_call_id)
        return False

    def _add(self, message: Message, facts: MessageFacts) -> None:
        self.facts[len(self.messages)] = facts
        self.messages.append(message)
