"""Steps of a LangGraph node whose results are checkpointed: a second run of the node finds them, and repeats none."""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.config import get_config
from langgraph.func import task

from grampus_uq.integrations.blocking import run_blocking

T = TypeVar("T")
Log = deque[Any]
"""What earlier attempts at a task checkpointed and this one has not used yet."""

Steps = Generator[Callable[[], Awaitable[Any]], Any, Any]
"""Work that awaits, step by step; each step's result is checkpointed.

A hook that interrupted runs again from its top: without this, a precondition that failed the first time might hold the
second, and an approval that was refused would count.
"""


def read_log(entry: Mapping[str, Any], first_do: Callable[[], Awaitable[Any]] | None = None) -> Steps:
    """Steps of earlier attempts at a task, up to this one's `entry`, before which each attempt awaits `first_do`."""
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


@dataclass(frozen=True, slots=True)
class Way:
    """How an adapter's coroutines wait: `awaits` in the framework's loop, else for a caller whose thread stands still.

    So what is done for both is written once: what the second way calls is stepped through by `to_its_end`.
    """

    awaits: bool

    async def do(self, work: Callable[[], Coroutine[Any, Any, Any]] | None) -> Any:
        """The result of a coroutine function of the adapter's own; None for none."""
        return None if work is None else await work() if self.awaits else run_blocking(work)

    async def call(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        """The result of a function of the framework's, which has to be awaited where the framework awaits."""
        return await function(*given, **named) if self.awaits else function(*given, **named)

    async def take(self, steps: Steps) -> Any:
        """The result of the steps."""
        result = None
        while True:
            try:
                work = steps.send(result)
            except StopIteration as end:
                return end.value
            result = await _start(_once, work) if self.awaits else _start(_once_blocking, work).result()


AWAITING, BLOCKING = Way(awaits=True), Way(awaits=False)


def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that goes the way of `BLOCKING` alone, and so never has to wait."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("What nobody awaits can wait for nothing.")


_CALL = "__pregel_call"
"""Where LangGraph gives a task what it starts others by: a function with the executor's `submit` behind a reference."""


def _start(once: Callable[[Any], Any], work: Callable[[], Awaitable[Any]]) -> Any:
    """Start a step as a LangGraph task that needs no place of its own among those that may run at the same time.

    The task that waits for it has such a place: with all places taken by tasks that wait, none would ever go on. They
    are as many as `max_concurrency`, or, without awaiting and without that, as threads of the default pool.
    """
    config: Any = get_config()
    start = config["configurable"].get(_CALL)
    try:
        executor = copy.copy(start.keywords["submit"]().__self__)  # shares the list of what it waits for
    except (AttributeError, KeyError, TypeError):
        return once(work)  # another LangGraph
    executor.semaphore, executor.executor = None, _CallersThread
    start = functools.partial(start, submit=lambda: executor.submit)
    config = {**config, "configurable": {**config["configurable"], _CALL: start}}
    token = var_child_runnable_config.set(config)
    try:
        return once(work)
    finally:
        var_child_runnable_config.reset(token)


class _CallersThread:
    """An executor that works in the thread that asks."""

    @staticmethod
    def submit(work: Callable[..., Any], *given: Any, **named: Any) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(work(*given, **named))
        except BaseException as error:  # noqa: BLE001 (whoever asks for the result gets it)
            done.set_exception(error)
        return done


async def _work(work: Callable[[], Awaitable[Any]]) -> Any:
    return await work()


def _work_blocking(work: Callable[[], Awaitable[Any]]) -> Any:
    return run_blocking(functools.partial(_work, work))


_as_task: Any = task(name="uncertainty_step")
_once, _once_blocking = _as_task(_work), _as_task(_work_blocking)
