"""Steps of a LangGraph node whose results are checkpointed: a second run of the node finds them, and repeats none."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any

from langgraph.func import task

from grampus_uq.integrations.blocking import run_blocking

Log = deque[Any]
"""What earlier attempts at a task checkpointed and this one has not used yet."""

Steps = Generator[Callable[[], Awaitable[Any]], Any, Any]
"""Work that awaits, step by step; each step's result is checkpointed.

A hook that interrupted runs again from its top: without this, a precondition that failed the first time might hold the
second, and an approval that was refused would count.
"""


def read_log(entry: Mapping[str, Any], first_do: Callable[[], Awaitable[Any]] | None = None) -> Steps:
    """Steps checkpointed by earlier attempts at a task; `entry`, of this one, ends them: LangGraph numbers results.

    `first_do` is awaited by each attempt before its own entry.
    """
    log, first = Log(), list[bool]()

    async def end() -> Any:
        if first_do is not None:
            await first_do()
        first.append(True)
        return entry

    while True:
        found = yield end
        if first:
            return log
        log += [found] if found else []  # a step that was cancelled behind what it sent has none


async def awaiting(steps: Steps) -> Any:
    """The result of the steps."""
    result = None
    while True:
        try:
            work = steps.send(result)
        except StopIteration as end:
            return end.value
        result = await _once(work)


def blocking(steps: Steps) -> Any:
    """`awaiting` for nodes that run without awaiting."""
    result = None
    while True:
        try:
            work = steps.send(result)
        except StopIteration as end:
            return end.value
        result = _once_blocking(work).result()


async def _work(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()


def _work_blocking(work: Callable[[], Awaitable[Any]]) -> Any:
    return run_blocking(functools.partial(_work, work))


_as_task: Any = task(name="uncertainty_step")
_once, _once_blocking = _as_task(_work), _as_task(_work_blocking)
