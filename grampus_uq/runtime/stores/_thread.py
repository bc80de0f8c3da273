"""A thread of its own for each store: tools that keep every other worker thread busy must not keep it from saving."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

__all__ = ["StoreThread"]

Result = TypeVar("Result")


class StoreThread:
    """Runs blocking calls one at a time, beside the worker threads that tools share; one line of waiting per loop."""

    def __init__(self) -> None:
        self._limiter: RunVar[anyio.CapacityLimiter | None] = RunVar(f"grampus_store_{uuid.uuid4().hex}", None)

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """The result of `work(*arguments)`; waiting for one's turn can be cancelled, a started call ends first."""
        limiter = self._limiter.get()
        if limiter is None:
            limiter = anyio.CapacityLimiter(1)
            self._limiter.set(limiter)
        return await anyio.to_thread.run_sync(work, *arguments, limiter=limiter)
