"""Result files of tau2-bench: one object with `simulations`, each a run of a tool-calling agent and a simulated user.

Read are a simulation's `id`, `task_id`, `trial`, `messages`, `termination_reason`, `reward_info.reward` and times. Not
read, ever, are `tasks` and the rest of `reward_info`: they hold the reference actions, which a monitor never sees.

Source: sierra-research/tau2-bench, `src/tau2/data_model/simulation.py` (Results, SimulationRun) and `message.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from grampus_uq.importers.foreign_messages import message_of
from grampus_uq.importers.imported_records import Refused, each_run
from grampus_uq.importers.imported_run import ImportedRun, MessageFacts
from grampus_uq.importers.json_stream import Element, nested
from grampus_uq.importers.record_fields import (
    iso_time_s,
    number_or_none,
    object_of,
    object_or_none,
    task_and_trial,
    text_or_none,
    token_count,
)
from grampus_uq.records.values import Message, Outcome
from grampus_uq.records.vocabulary import Role, StopReason

_TOLERANCE: Final = 1e-6
_STOPS: Final = {
    "user_stop": StopReason.CLEAN,
    "agent_stop": StopReason.CLEAN,
    "max_steps": StopReason.MAX_STEPS,
    "timeout": StopReason.MAX_STEPS,
    "too_many_errors": StopReason.TOOL_ERROR,
    "agent_error": StopReason.PARSE_ERROR,
    "user_error": StopReason.ENV_TERMINATED,
    "infrastructure_error": StopReason.ENV_TERMINATED,
    "context_window_exceeded": StopReason.ENV_TERMINATED,
    "unexpected_error": StopReason.ENV_TERMINATED,
}


def read_tau2(path: str | os.PathLike[str], *, on_refused: Refused | None = None) -> Iterator[ImportedRun]:
    """Yield the simulations of a result file, plain or gzip, holding one at a time; `run_id` is `<task_id>-<trial>`.

    A simulation that the user or the agent ended succeeded when its reward is 1. One that ran out of steps or time, or
    that an error ended, has no outcome. Tool calls of the simulated user are observations.

    Raises DataError with path, line and field for a file that is no such object. A simulation with a wrong field, or
    one whose task and trial came before, is given to `on_refused` and left out; without `on_refused` it raises.
    """
    return each_run(nested(path, ("simulations",)), _run, on_refused, id_field="trial")


def _run(element: Element) -> ImportedRun:
    value = element.value
    task_id, trial = task_and_trial(value, 0, element.error)
    reason = value.get("termination_reason")
    if not isinstance(reason, str) or reason not in _STOPS:
        raise element.error("termination_reason", f"must be one of {', '.join(_STOPS)}. Got {reason!r:.50}.")
    reward = _reward(element)
    stop = _STOPS[reason]
    success = reward >= 1 - _TOLERANCE if stop is StopReason.CLEAN and reward is not None else None
    messages, facts = _messages(value.get("messages"), element)
    return ImportedRun(
        run_id=f"{task_id}-{trial}",
        path=element.path,
        line=element.line,
        messages=messages,
        outcome=Outcome(success=success, stop_reason=stop),
        task_id=task_id,
        trial=trial,
        reward=reward,
        facts=facts,
    )


def _reward(element: Element) -> float | None:
    info = object_or_none(element.value.get("reward_info"), "reward_info", element.error)
    reward = number_or_none((info or {}).get("reward"), "reward_info.reward", element.error)
    if reward is not None and not -_TOLERANCE <= reward <= 1 + _TOLERANCE:
        raise element.error("reward_info.reward", f"must be a number in [0, 1]. Got {reward!r:.50}.")
    return reward


def _messages(value: Any, element: Element) -> tuple[tuple[Message, ...], dict[int, MessageFacts]]:
    if not isinstance(value, list):
        hint = " Voice runs hold `ticks` instead, which are not supported." if element.value.get("ticks") else ""
        raise element.error("messages", f"must be a list of messages. Got {type(value).__name__}.{hint}")
    messages: list[Message] = []
    facts: dict[int, MessageFacts] = {}
    for number, entry in enumerate(value):
        field = f"messages[{number}]"
        item = object_of(entry, field, element.error)
        parts = item.get("tool_messages") if item.get("role") == "tool" else None  # several answers in one entry
        for place, one in enumerate(parts) if isinstance(parts, list) else ((None, item),):
            where = field if place is None else f"{field}.tool_messages[{place}]"
            message, facts[len(messages)] = _message(one, where, element)
            messages.append(message)
    return tuple(messages), facts


def _message(value: Any, field: str, element: Element) -> tuple[Message, MessageFacts]:
    refuse = element.error
    message = message_of(value, field, refuse)
    if message.role is Role.TOOL:
        message = message.model_copy(update={"tool_call_id": text_or_none(value.get("id"), f"{field}.id", refuse)})
    usage = object_or_none(value.get("usage"), f"{field}.usage", refuse) or {}
    return message, MessageFacts(
        time_s=iso_time_s(value.get("timestamp"), f"{field}.timestamp", refuse),
        input_tokens=token_count(usage.get("prompt_tokens"), f"{field}.usage.prompt_tokens", refuse),
        output_tokens=token_count(usage.get("completion_tokens"), f"{field}.usage.completion_tokens", refuse),
        is_error=value.get("error") is True,
    )
