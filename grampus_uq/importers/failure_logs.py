"""Logs of failed multi-agent runs, in the form of Who&When: who said what, and apart from it who is to blame.

A log is a `history` of messages (the speaker in `name`, or in `role` where there is no name) and its label: the number
of the decisive message (`mistake_step`, from 0, often written as a string) and whom the annotator blames
(`mistake_agent`). The reference answer and the annotator's reason are not read: no method may lean on them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from grampus_uq.errors import DataError
from grampus_uq.importers.imported_run import ImportedRun
from grampus_uq.importers.json_stream import MAX_ELEMENT_CHARS, Element, elements
from grampus_uq.records.values import Message, Outcome
from grampus_uq.records.vocabulary import Role

__all__ = ["FailureLabel", "FailureLog", "read_failure_logs"]

_NUMBER: Final = re.compile(r"\s*\d{1,9}\s*", re.ASCII)
_ROLES: Final = {role.value: role for role in Role}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLabel:
    """Which message was decisive (its number from 0), and who is to blame.

    The two need not agree: annotators sometimes blame another than the speaker of the message.
    """

    run_id: str
    step: int
    agent: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLog:
    """One failed run and, apart from it, its label (None when the file has none)."""

    run: ImportedRun
    label: FailureLabel | None


def read_failure_logs(
    path: str | os.PathLike[str],
    *,
    on_refused: Callable[[DataError], None] | None = None,
    max_element_chars: int = MAX_ELEMENT_CHARS,
) -> Iterator[FailureLog]:
    """Yield the logs of a file, holding one at a time: JSON lines, one JSON array, or a single object; plain or gzip.

    A run's id is its `question_ID` (or `question_id`), else its number in the file. Every message is a step; its
    speaker is in `Message.name`. Raises DataError with path, line and field for a file that is no JSON. A log with a
    wrong field, one that says it was right, or one whose id came before, is given to `on_refused` and left out; without
    `on_refused` it raises.
    """
    seen: set[str] = set()
    for element in elements(path, max_element_chars=max_element_chars):
        try:
            log = _log(element)
            if log.run.run_id in seen:
                raise element.error("question_ID", f"{log.run.run_id!r:.80} came before.")
        except DataError as error:
            if on_refused is None:
                raise
            on_refused(error)
            continue
        seen.add(log.run.run_id)
        yield log


def _log(element: Element) -> FailureLog:
    value = element.value
    given = value.get("question_ID", value.get("question_id"))
    if given is not None and (isinstance(given, bool) or not isinstance(given, str | int)):
        raise element.error("question_ID", f"must be a name or a number. Got {type(given).__name__}.")
    if value.get("is_correct") is True:
        raise element.error("is_correct", "is true: this run did not fail.")
    run_id = str(element.index) if given is None else str(given)
    history = value.get("history")
    if not isinstance(history, list) or not history:
        raise element.error("history", f"must be a list of messages. Got {history!r:.50}.")
    messages = tuple(_message(item, f"history[{index}]", element) for index, item in enumerate(history))
    run = ImportedRun(
        run_id=run_id,
        path=element.path,
        line=element.line,
        messages=messages,
        outcome=Outcome(success=False),
        shape="log",
        task_id=run_id,
    )
    return FailureLog(run=run, label=_label(element, run_id, len(messages)))


def _message(value: Any, field: str, element: Element) -> Message:
    if not isinstance(value, dict):
        raise element.error(field, f"must be an object. Got {type(value).__name__}.")
    content, role, name = value.get("content"), value.get("role"), value.get("name")
    if content is not None and not isinstance(content, str):
        raise element.error(f"{field}.content", f"must be text or null. Got {type(content).__name__}.")
    for part, text in (("role", role), ("name", name)):
        if text is not None and not isinstance(text, str):
            raise element.error(f"{field}.{part}", f"must be text. Got {type(text).__name__}.")
    speaker = name or role
    if not speaker:
        raise element.error(f"{field}.name", "is missing, and there is no role either: nobody speaks.")
    return Message(role=_ROLES.get(role or "", Role.ASSISTANT), content=content, name=speaker)


def _label(element: Element, run_id: str, length: int) -> FailureLabel | None:
    step, agent = element.value.get("mistake_step"), element.value.get("mistake_agent")
    if agent is not None and not isinstance(agent, str):
        raise element.error("mistake_agent", f"must be a name. Got {type(agent).__name__}.")
    if step is None:
        return None
    number = int(step) if isinstance(step, str) and _NUMBER.fullmatch(step) else step
    if type(number) is not int or not 0 <= number < length:
        rule = f"must be the number of a message, from 0 to {length - 1}"
        raise element.error("mistake_step", f"{rule}. Got {step!r:.50}.")
    return FailureLabel(run_id=run_id, step=number, agent=agent)
