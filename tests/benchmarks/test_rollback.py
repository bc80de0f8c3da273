"""The rollback benchmark runs, and starting again never leaves an error behind."""

from __future__ import annotations

import argparse

import pytest

from tests.benchmarks.rollback import rows

pytestmark = pytest.mark.anyio


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_every_way_back_is_measured_on_the_same_failures() -> None:
    options = argparse.Namespace(failures=8, calibration=12, steps=3, slip=0.0, seed=0)
    found = {(row["method"], row["level"]): row for row in await rows(options)}
    assert {row["failures"] for row in found.values()} == {8}
    scratch = found["scratch", None]
    assert (scratch["success"], scratch["coverage"], scratch["cost"]) == (1.0, 1.0, 1.0)
    for row in found.values():
        assert row["success"] == row["coverage"]  # without new errors, what is discarded succeeds and nothing else does
        assert row["cost"] <= 1.0
