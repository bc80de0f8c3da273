"""Sleeps and timeouts that take no time: clocks that stand still while anything works, and jump when every task waits.

What is tried on them depends neither on how busy this machine is nor on how fast. A test asks for them by the mark
`jumping_clocks`.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from trio.testing import MockClock


def sleepless() -> tuple[str, dict[str, Any]]:
    """Backend and options of a new event loop, as `anyio_backend` and `anyio.run` take them."""
    return "trio", {"clock": MockClock(autojump_threshold=0.0)}


def backend_of(test: pytest.FixtureRequest, name: str) -> str | tuple[str, dict[str, Any]]:
    """What a fixture `anyio_backend` returns for a test on this event loop."""
    if test.node.get_closest_marker("jumping_clocks"):
        return all_clocks_jump(name, test.getfixturevalue("monkeypatch"))
    return name


def all_clocks_jump(backend: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    """Backend and options of a new event loop whose clock is every clock until `monkeypatch` ends.

    For tests without a socket or another process, whose threads only work: what goes to one is done here, at once.
    """
    name, options = sleepless()
    now: Callable[[], float] = options["clock"].current_time
    if backend == "asyncio":
        waits = _Waits()
        name, options, now = "asyncio", {"loop_factory": partial(_Loop, waits)}, waits.time
    began_s, loop_began_s = time.time(), now()
    monkeypatch.setattr(time, "monotonic", now)
    monkeypatch.setattr(time, "time", lambda: began_s + now() - loop_began_s)
    monkeypatch.setattr(anyio.to_thread, "run_sync", _at_once)
    return name, options


async def _at_once(work: Callable[..., Any], *arguments: Any, **_options: Any) -> Any:
    await checkpoint()
    return work(*arguments)


class _Waits(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Waits no longer than it is certain that something comes; the rest of the time it was given passes at once."""

    _now = 0.0

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            return super().select(None)
        found = super().select(0)
        if not found:
            self._now = max(self._now + timeout, math.nextafter(self._now, math.inf))  # else a timer is never due
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, waits: _Waits) -> None:
        super().__init__(waits)
        self._waits = waits

    def time(self) -> float:
        return self._waits.time()
