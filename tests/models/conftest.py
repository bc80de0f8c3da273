"""Both event loops, for every test that asks for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

Runner = Callable[[Callable[[], Awaitable[Any]]], Any]


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Runner:
    """Run an async function to its end, once on asyncio and once on trio."""

    def on_this_loop(function: Callable[[], Awaitable[Any]]) -> Any:
        return anyio.run(function, backend=str(request.param))

    return on_this_loop
