"""Reads result files of the tau-bench family as runs of turn events, for the benchmarks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grampus_uq.errors import DataError
from grampus_uq.records import ToolCall
from grampus_uq.signals.text import AgentTurn, Observation, TurnEvent, UserTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class TauRun:
    """One run: its task, whether it failed, and what happened in it. The reference actions in `info` are not read."""

    task: str
    failed: bool
    events: tuple[TurnEvent, ...]


def read_tau_bench(path: str | Path) -> list[TauRun]:
    """Read a JSON list of runs, gzipped or not. Raises DataError with the place of what is not as it should be."""
    name = str(path)
    try:
        data = Path(path).read_bytes()
        rows = json.loads((gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode("utf-8"))
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"is no readable JSON: {error}", path=name) from error
    if not isinstance(rows, list) or not rows:
        raise DataError("must be a list of runs", path=name)
    return [_run(row, name, number) for number, row in enumerate(rows)]


def _run(row: Any, name: str, number: int) -> TauRun:
    where = f"[{number}]"
    if not isinstance(row, dict):
        raise DataError("must be an object", path=name, field=where)
    for field in ("task_id", "reward", "traj"):
        if field not in row:
            raise DataError("is missing", path=name, field=f"{where}.{field}")
    if row["reward"] not in (0, 1):
        raise DataError(f"must be 0 or 1, got {row['reward']!r:.40}", path=name, field=f"{where}.reward")
    if not isinstance(row["traj"], list):
        raise DataError("must be a list of messages", path=name, field=f"{where}.traj")
    events = tuple(
        event for place, message in enumerate(row["traj"]) for event in _events(message, name, f"{where}.traj[{place}]")
    )
    return TauRun(task=str(row["task_id"]), failed=row["reward"] == 0, events=events)


def _events(message: Any, name: str, where: str) -> Iterator[TurnEvent]:
    if not isinstance(message, dict):
        raise DataError("must be an object", path=name, field=where)
    role, content = message.get("role"), message.get("content") or ""
    if not isinstance(content, str):
        raise DataError("must be text", path=name, field=f"{where}.content")
    if role == "assistant":
        calls = tuple(_call(call, name, where) for call in message.get("tool_calls") or ())
        yield AgentTurn(text=content, calls=calls)
    elif role == "tool":
        yield Observation(text=content, call_id=str(message.get("tool_call_id") or ""))
    elif role == "user":
        yield UserTurn(text=content)
    elif role != "system":
        raise DataError(f"must be system, user, assistant or tool, got {role!r:.40}", path=name, field=f"{where}.role")


def _call(call: Any, name: str, where: str) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError("must name a function", path=name, field=f"{where}.tool_calls")
    text = function.get("arguments") or "{}"
    try:
        arguments = json.loads(text)
    except (TypeError, ValueError):
        arguments = None
    if not isinstance(arguments, dict):  # what the model wrote is no JSON object: kept as it is, so that repeats match
        arguments = {"": str(text)}
    return ToolCall(id=str(call.get("id") or ""), name=function["name"], arguments=arguments)
