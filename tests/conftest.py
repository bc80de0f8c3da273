"""What every test shares: both event loops, and Hypothesis without a clock (times are measured in benchmarks only)."""

from __future__ import annotations

import functools
import gc
import marshal
import os
import signal
import ssl
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

# Before Hypothesis is imported, and for the interpreters that tests start: each would compile again what it imports.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests import order, sampling
from tests.clocks import backend_of

# A shell starts what runs in the background with Ctrl-C ignored, and every process that a test starts would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every HTTP client read the certificates of all authorities, which takes longer than most tests.
ssl.create_default_context = functools.cache(ssl.create_default_context)

# Where the default run keeps its files: to make and delete them on a disk takes a twentieth of the processors' time.
MEMORY = Path("/dev/shm")
# How slowly examples are drawn says how busy the machine is, not whether the code is right.
RELAXED = [HealthCheck.too_slow]
SLOW_S = 900
settings.register_profile("thorough", deadline=None, max_examples=sampling.Grown(2000), suppress_health_check=RELAXED)
# A mutant that fifty examples let live is worth a test of its own; that it dies is all one asks, not of what.
settings.register_profile(
    "mutation",
    deadline=None,
    max_examples=50,
    suppress_health_check=RELAXED,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


def pytest_configure(config: pytest.Config) -> None:
    """Choose how much is tried, and collect no cycles while tests are: imports make millions of objects, drop few."""
    named = os.environ.get("HYPOTHESIS_PROFILE")
    sampling.FULL = bool(named) or sampling.asks_for_slow(config.option.markexpr)
    # In CI the same examples every time: a change is judged by what it changed. New ones are sought everywhere else.
    settings.register_profile(
        "grampus",
        deadline=None,
        max_examples=sampling.examples(100),
        suppress_health_check=RELAXED,
        derandomize=bool(os.environ.get("CI")),
    )
    settings.load_profile(named or "grampus")
    gc.disable()
    if not sampling.FULL and _has_room(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    worker = getattr(config, "workerinput", None)
    if worker and config.args == config.getini("testpaths") == ["tests"]:
        config.args[:] = order.turned(
            [f"tests/{path.name}" for path in sorted(Path(__file__).parent.iterdir()) if _may_hold_tests(path)],
            int(worker["workerid"].removeprefix("gw")),
            worker["workercount"],
        )


def _has_room(folder: Path) -> bool:
    """Return True for a folder with four gigabytes, in which programs may be started."""
    if sys.platform != "linux" or not folder.is_dir():
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize > 4 << 30 and not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)


def _may_hold_tests(path: Path) -> bool:
    return path.name.startswith("test_") if path.is_file() else path.name != "__pycache__"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many workers as cores and two more, four where slow tests run: they wait for processes, servers and clocks."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return cores + min(cores, 2) * (2 if sampling.asks_for_slow(config.option.markexpr) else 1)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark as slow what the slow stage tries in full and the default run in part; begin with what may take long."""
    asked = sampling.asks_for_slow(config.option.markexpr)
    items.sort(key=lambda item: item.path)  # workers read the files in different orders and must agree on one
    for item in items:
        if sampling.in_slow_stage(item, asked):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S))  # some take two minutes of an idle machine
    yield
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = order.long_first(items, workers, order.limit_s, lambda item: item.path)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what was imported out of every later collection: a seventh of the tests' time went into visiting it.

    What tests keep is visited seldom: with Python's own limits that took a tenth of the time that is left.
    """
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Send a worker's report in one piece: execnet writes and reads each field by itself, in Python."""
    data = yield
    return data and {"packed": marshal.dumps(data)}


@pytest.hookimpl(tryfirst=True)
def pytest_report_from_serializable(data: dict[str, Any]) -> None:
    """Put the fields of a report that was sent in one piece where pytest reads them."""
    data.update(marshal.loads(data.pop("packed")))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, Any]]:
    """Run each test that is marked `anyio` once on asyncio and once on trio."""
    return backend_of(request, request.param)
