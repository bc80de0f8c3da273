"""What every test shares: both event loops, and Hypothesis without a clock (times are measured in benchmarks only)."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("grampus", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "grampus"))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run each test that is marked `anyio` once on asyncio and once on trio."""
    return str(request.param)
