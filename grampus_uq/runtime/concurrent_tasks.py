"""Concurrent tasks whose errors are raised as they are: several works at once, or one work beside a watch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import anyio

from grampus_uq.errors import SessionError
from grampus_uq.runtime.store import Result
from grampus_uq.signals.driver import cancel_requests, cancelled_from_outside


class CancelledItselfError(RuntimeError):
    """Work raised CancelledError although nobody had cancelled it."""


class ExitedError(RuntimeError):
    """Work called `sys.exit`."""


async def outcome_of(work: Callable[[], Awaitable[Result]], *, alone: bool = False) -> Result:
    """Await the work; a cancellation that only it raised is an error: a task group would take the work for done. So is
    an exit, which would end all tasks.

    `alone`: in a task of its own, which only scopes around it cancel: that it cancelled its task is an error too.
    """
    requests = math.inf if alone else cancel_requests()
    try:
        return await work()
    except asyncio.CancelledError as error:
        if cancelled_from_outside(requests):
            raise
        raise CancelledItselfError("nobody cancelled it, but it raised CancelledError") from error
    except SystemExit as error:
        raise ExitedError(*error.args) from error


async def run_together(works: Sequence[Callable[[], Awaitable[None]]], *, finish: bool = False) -> None:
    """Await all concurrently; the first failure cancels the others (with `finish`: waits for them) and is raised."""
    failures: list[Exception] = []

    async def guarded(work: Callable[[], Awaitable[None]], scope: anyio.CancelScope) -> None:
        try:
            await outcome_of(work, alone=True)
        except Exception as error:  # noqa: BLE001 (carried out of the task group as it is, not as a group of errors)
            failures.append(error)
            if not finish:
                scope.cancel()

    async with anyio.create_task_group() as group:
        for work in works:
            group.start_soon(guarded, work, group.cancel_scope)
    if failures:
        raise failures[0]


async def run_with_watch(work: Callable[[], Awaitable[Result]], watch: Callable[[], Awaitable[None]]) -> Result:
    """Await the work beside a watch that ends only by raising; the first error cancels the other and is raised."""
    outcome: list[Result] = []
    ended: list[Exception] = []

    async def run(part: Callable[[], Awaitable[Any]], scope: anyio.CancelScope) -> None:
        try:
            outcome.append(await part())
        except Exception as error:  # noqa: BLE001 (carried out of the task group as it is, not as a group of errors)
            ended.append(error)
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(run, partial(outcome_of, watch, alone=True), group.cancel_scope)
        await run(partial(outcome_of, work), group.cancel_scope)
    if outcome:
        return outcome[0]
    raise _plain(ended[0])


def _plain(error: Exception) -> Exception:
    """The first error of a group: what happened to the session rather than what followed from it."""
    while isinstance(error, ExceptionGroup):
        conflicts = error.subgroup(SessionError)
        error = (conflicts or error).exceptions[0]
    return error
