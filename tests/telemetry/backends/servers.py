"""Real servers for the slow tests: installed once into a cache folder, started on loopback, ended with the test.

The folder is GRAMPUS_UQ_TEST_CACHE, else `grampus_uq_tests` in the user's cache. What cannot be had is a skip that says
why: it needs a package index (Phoenix, rotel) or a Debian archive (Prometheus, when none is on the PATH).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers import free_port, listens

PHOENIX = "arize-phoenix==20.26.1"
ROTEL = "rotel==0.0.1a15"


def cache_folder() -> Path:
    stated = os.environ.get("GRAMPUS_UQ_TEST_CACHE", "")
    user = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(user) if user.startswith("/") else Path.home() / ".cache"
    return Path(stated) if stated else base / "grampus_uq_tests"


@contextmanager
def _installing(name: str) -> Iterator[tuple[Path, bool]]:
    """The folder of one thing, and whether it is whole already; others who want it wait."""
    folder = cache_folder() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        whole = folder / ".whole"
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            yield folder, False
            whole.touch()
        else:
            yield folder, True


def _run(command: Sequence[object], why: str, **given: Any) -> None:
    """Run to its end, or skip the test and say why."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=1200, check=False, **given)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        pytest.skip(f"{why}: {last[:300]}")


def environment_with(requirement: str) -> Path:
    """A virtual environment of its own that holds one package."""
    with _installing(requirement.replace("==", "-")) as (folder, whole):
        if not whole:
            why = f"{requirement} cannot be installed"
            _run([sys.executable, "-m", "venv", folder / "venv"], why)
            pip = [folder / "venv/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            _run([*pip, requirement], why)
    return folder / "venv"


def prometheus_tools() -> Path:
    """The folder of `prometheus` and `promtool`: on the PATH, else of Debian's package, unpacked without root."""
    found = shutil.which("prometheus")
    if found is not None and shutil.which("promtool", path=str(Path(found).parent)):
        return Path(found).parent
    why = "There is no prometheus on the PATH, and Debian's cannot be had"
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip(f"{why}: apt-get or dpkg is missing.")
    with _installing("prometheus-deb") as (folder, whole):
        if not whole:
            _run(["apt-get", "download", "-q", "prometheus"], why, cwd=folder)
            _run(["dpkg", "-x", *folder.glob("prometheus_*.deb"), folder / "root"], why)
    return folder / "root/usr/bin"


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 180.0) -> None:
    """Look again and again; fail, saying what was waited for, when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.1)


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def answers(url: str) -> bool:
    """True when something serves there without complaint."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def running(
    command: Sequence[object],
    log: Path,
    ready: Callable[[], bool],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A server until the end of the block; its output is in `log`, and shown when it does not come up."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*map(str, command)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=log.parent,
            env={**os.environ, **(environment or {})},
        )
    try:
        deadline = time.monotonic() + timeout_s
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-2000:]
                raise AssertionError(f"{command[0]} did not come up (exit status {process.poll()}):\n{said}")
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class Phoenix:
    """A running Phoenix: where its pages are, and where it takes OTLP by gRPC and by HTTP."""

    url: str
    grpc: str

    def endpoint(self, protocol: str) -> str:
        return self.grpc if protocol == "grpc" else f"{self.url}/v1/traces"

    def spans(self, project: str) -> list[dict[str, Any]]:
        """Every span of a project, through the REST interface, page by page; none while there is no such project."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            try:
                page = get_json(f"{self.url}/v1/projects/{project}/spans?limit=100{cursor}")
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return []
                raise
            found += page["data"]
            if not page.get("next_cursor"):
                return found
            cursor = f"&cursor={page['next_cursor']}"

    def wait_for(self, project: str, count: int, name: str = "") -> list[dict[str, Any]]:
        """All spans, once there are so many of this name, or of any."""
        found: list[dict[str, Any]] = []

        def came() -> bool:
            found[:] = self.spans(project)
            return sum(name in ("", span["name"]) for span in found) >= count

        wait_until(came, f"{count} spans {name} in {project}")
        return found


@contextmanager
def phoenix(folder: Path) -> Iterator[Phoenix]:
    """Phoenix on loopback, with its telemetry, its assistant and its shell switched off."""
    venv = environment_with(PHOENIX)
    port, grpc_port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
        "PHOENIX_AGENTS_DISABLE_BASH": "true",
        "PYTHONPATH": "",
    }
    with running(
        [venv / "bin/phoenix", "serve"],
        folder / "phoenix.log",
        lambda: answers(f"{url}/v1/projects"),
        timeout_s=480,
        environment=environment,
    ):
        yield Phoenix(url=url, grpc=f"http://127.0.0.1:{grpc_port}")


@contextmanager
def prometheus(folder: Path, configuration: Mapping[str, Any]) -> Iterator[str]:
    """Prometheus on loopback with this configuration; its address."""
    tools = prometheus_tools()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    file = folder / "prometheus.json.yml"
    file.write_text(json.dumps(configuration))
    command = [
        tools / "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with running(command, folder / "prometheus.log", lambda: answers(f"{url}/-/ready"), timeout_s=180):
        yield url


@dataclass(frozen=True, slots=True)
class Rotel:
    """A running rotel: where it takes OTLP, and the file to which it writes what it took."""

    grpc: str
    http: str
    log: Path

    def endpoint(self, protocol: str) -> str:
        return self.grpc if protocol == "grpc" else self.http


@contextmanager
def rotel(folder: Path) -> Iterator[Rotel]:
    """A collector in Rust, which shares no code with OpenTelemetry's Python: it prints what it decodes."""
    venv = environment_with(ROTEL)
    (agent,) = venv.glob("lib/python*/site-packages/rotel/rotel-agent")
    grpc_port, http_port = free_port(), free_port()
    command = [
        *(agent, "start"),
        *("--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}"),
        *("--otlp-http-endpoint", f"127.0.0.1:{http_port}"),
        *("--exporter", "blackhole"),
        *("--debug-log", "traces", "--debug-log", "metrics"),
        *("--debug-log-verbosity", "detailed"),
    ]

    log = folder / "rotel.log"
    with running(command, log, lambda: listens(grpc_port) and listens(http_port), timeout_s=180):
        yield Rotel(grpc=f"http://127.0.0.1:{grpc_port}", http=f"http://127.0.0.1:{http_port}", log=log)
