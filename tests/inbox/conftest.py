"""The inbox is served by uvicorn, which runs on asyncio alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stores import open_store
from grampus_uq.runtime.stores.memory import MemoryStore
from tests.learn.test_pages_in_a_browser import axe
from tests.runtime.conftest import postgres_url

__all__ = ["axe", "postgres_url"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    """In memory by default, where no statement waits for a thread; the slow stage tries the room on a file, too."""
    return MemoryStore() if request.param == "memory" else open_store(f"sqlite:///{tmp_path}/store.db")
