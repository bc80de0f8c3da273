"""The inbox is served by uvicorn, which runs on asyncio alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stores import open_store
from tests.learn.test_pages_in_a_browser import axe
from tests.runtime.conftest import postgres_url

__all__ = ["axe", "postgres_url"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return open_store(f"sqlite:///{tmp_path}/store.db")
