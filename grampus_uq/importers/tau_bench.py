"""Result files of tau-bench: one JSON array of runs of a tool-calling agent that serves a simulated customer.

Read are `task_id`, `trial`, `reward` and `traj`. Not read, ever, is `info`: it holds the reference actions and the
customer's instructions, which a monitor never sees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from grampus_uq.importers.foreign_messages import messages_of
from grampus_uq.importers.imported_records import Refused, each_run, records
from grampus_uq.importers.imported_run import ImportedRun
from grampus_uq.importers.json_stream import Element
from grampus_uq.importers.record_fields import task_and_trial
from grampus_uq.records.values import Message, Outcome
from grampus_uq.records.vocabulary import Role, StopReason

_CLOSING: Final = "###STOP###"  # what the simulated customer says when it is done
_TRANSFER: Final = "transfer_to_human_agents"  # the tool that ends a run by handing the customer over
_MAX_TURNS: Final = 30  # tau-bench's own limit on turns of the agent
_TOLERANCE: Final = 1e-6  # tau-bench's own: a run succeeded when its reward is 1 within it


def read_tau_bench(path: str | os.PathLike[str], *, on_refused: Refused | None = None) -> Iterator[ImportedRun]:
    """Yield the runs of a result file, plain or gzip, holding one at a time; `run_id` is `<task_id>-<trial>`.

    A reward of 1 is success, less is failure. A run of 30 turns that neither the customer nor a transfer ended stopped
    for `max_steps`: its outcome is unknown, although tau-bench gives it the reward 0. A run without messages
    crashed before it began (`env_terminated`).

    Raises DataError with path, line and field for a file that is not a JSON array of runs. A run with a wrong field, or
    one whose task and trial came before, is given to `on_refused` and left out; without `on_refused` it raises.
    """
    return each_run(records(path, on_refused), _run, on_refused, id_field="trial")


def _run(element: Element) -> ImportedRun:
    value = element.value
    task_id, trial = task_and_trial(value, None, element.error)
    reward = value.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not -_TOLERANCE <= reward <= 1 + _TOLERANCE:
        raise element.error("reward", f"must be a number in [0, 1]. Got {reward!r:.50}.")
    if "traj" not in value:
        raise element.error("traj", "is missing.")
    messages = messages_of(value["traj"], "traj", element.error)
    stop_reason = _stop_reason(messages)
    success = reward >= 1 - _TOLERANCE if stop_reason is StopReason.CLEAN else None
    return ImportedRun(
        run_id=f"{task_id}-{trial}",
        path=element.path,
        line=element.line,
        messages=messages,
        outcome=Outcome(success=success, stop_reason=stop_reason),
        task_id=task_id,
        trial=trial,
        reward=float(reward),
    )


def _stop_reason(messages: tuple[Message, ...]) -> StopReason:
    if not messages:
        return StopReason.ENV_TERMINATED
    if sum(message.role is Role.ASSISTANT for message in messages) < _MAX_TURNS:
        return StopReason.CLEAN
    last = messages[-1]
    ended = (last.role is Role.USER and _CLOSING in (last.content or "")) or (
        last.role is Role.TOOL and any(call.name == _TRANSFER for message in messages for call in message.tool_calls)
    )
    return StopReason.CLEAN if ended else StopReason.MAX_STEPS
