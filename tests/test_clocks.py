"""On jumping clocks no time passes while anything works, and all of it at once while every task waits."""

from __future__ import annotations

import time
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.clocks import all_clocks_jump

pytestmark = pytest.mark.anyio
_REAL = time.time, time.monotonic, anyio.to_thread.run_sync


@pytest.mark.jumping_clocks
async def test_a_year_passes_at_once_on_every_clock_and_in_its_order() -> None:
    clocks = (anyio.current_time, time.time, time.monotonic)
    began, order = [clock() for clock in clocks], list[float]()

    async def sleeps(days: float) -> None:
        await anyio.sleep(days * 86_400)
        order.append(days)

    with anyio.move_on_after(365 * 86_400) as year:
        async with anyio.create_task_group() as group:
            for days in (300, 0.5, 364, 366):
                group.start_soon(sleeps, days)
    assert year.cancelled_caught
    assert order == [0.5, 300, 364]
    for clock, then in zip(clocks, began, strict=True):
        assert clock() - then == pytest.approx(365 * 86_400)


@pytest.mark.jumping_clocks
async def test_what_works_takes_no_time_however_slow_it_is() -> None:
    with anyio.move_on_after(0.001) as hurry:
        for work in range(1_000):
            await anyio.lowlevel.checkpoint()
            assert await anyio.to_thread.run_sync(sum, range(work)) == work * (work - 1) // 2
    assert not hurry.cancelled_caught


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_real_clocks_come_back(backend: str) -> None:
    now: Any = time.time
    with pytest.MonkeyPatch.context() as patched:
        name, options = all_clocks_jump(backend, patched)
        anyio.run(anyio.sleep, 1e9, backend=name, backend_options=options)
        assert time.time() > now() + 9e8
    assert (time.time, time.monotonic, anyio.to_thread.run_sync) == _REAL
