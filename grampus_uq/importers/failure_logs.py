"""Logs of failed multi-agent runs, in the form of Who&When: who said what, and apart from it who is to blame.

A log is a `history` of messages (the speaker in `name`, or in `role` where there is no name) and its label: the number
of the decisive message (`mistake_step`, from 0, often written as a string) and whom the annotator blames
(`mistake_agent`). The reference answer and the annotator's reason are not read: no method may lean on them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from grampus_uq.importers.imported_records import Refused, each_run, records
from grampus_uq.importers.imported_run import ImportedRun
from grampus_uq.importers.json_stream import Element
from grampus_uq.importers.record_fields import object_of, text_or_none
from grampus_uq.records.values import Message, Outcome
from grampus_uq.records.vocabulary import Role

_NUMBER: Final = re.compile(r"\s*\d{1,9}\s*", re.ASCII)
_PARTS: Final = ("content", "role", "name")
_ROLES: Final = {role.value: role for role in Role}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLabel:
    """The number of the decisive message, from 0, and the agent to blame.

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

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.run.run_id


def read_failure_logs(path: str | os.PathLike[str], *, on_refused: Refused | None = None) -> Iterator[FailureLog]:
    """Yield the logs of a file, holding one at a time: JSON lines, one JSON array, or a single object; plain or gzip.

    A run's id is its `question_ID` (or `question_id`), else its number in the file. Every message is a step; its
    speaker is in `Message.name`. Raises DataError with path, line and field for a file that is not JSON. A log with a
    wrong field, one that says it was right, or one whose id came before, is given to `on_refused` and left out; without
    `on_refused` it raises.
    """
    return each_run(records(path, on_refused), _log, on_refused, id_field="question_ID")


def _log(element: Element) -> FailureLog:
    value = element.value
    given = value.get("question_ID", value.get("question_id"))
    if given is not None and (isinstance(given, bool) or not isinstance(given, str | int)):
        raise element.error("question_ID", f"must be a name or a number. Got {type(given).__name__}.")
    if value.get("is_correct") not in (None, False):
        raise element.error("is_correct", f"is {value['is_correct']!r:.50}: not known as a run that failed.")
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
    item = object_of(value, field, element.error)
    content, role, name = (text_or_none(item.get(part), f"{field}.{part}", element.error) for part in _PARTS)
    speaker = name or role
    if not speaker:
        raise element.error(f"{field}.name", "is missing, and so is `role`: the speaker is unknown.")
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
