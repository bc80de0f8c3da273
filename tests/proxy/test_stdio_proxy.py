"""The proxy between two pipes: bytes stay as they are, and the server's end is the proxy's."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.integrations.mcp.message_lines import TooLong, read_lines

_ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
sys.exit(7)
"""


def _proxy(server: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "grampus_uq.cli", "mcp", "--unguarded", "--", *server]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def _lines(chunks: Sequence[bytes], limit: int) -> list[bytes | TooLong]:
    given = iter([*chunks, b""])

    async def receive() -> bytes:
        return next(given)

    async def read() -> list[bytes | TooLong]:
        return [line async for line in read_lines(receive, limit=limit)]

    return anyio.run(read)


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(1, 7)))
def test_lines_are_the_same_however_the_bytes_arrive(parts: list[bytes], cuts: list[int]) -> None:
    data, chunks, left = b"\n".join(parts), [], b"\n".join(parts)
    for cut in cuts:
        chunks, left = [*chunks, left[:cut]], left[cut:]
    chunks = [chunk for chunk in (*chunks, left) if chunk]
    expected = [line.removesuffix(b"\r") for line in data.split(b"\n")[:-1]] + [data.split(b"\n")[-1]]
    assert _lines(chunks, 10_000) == [line for line in expected if line]


@given(st.integers(1, 50), st.lists(st.integers(1, 64), min_size=1))
def test_a_line_that_is_too_long_is_reported_and_the_next_one_read(excess: int, sizes: list[int]) -> None:
    data, chunks = b"x" * (64 + excess) + b"\nnext\n", []
    for size in sizes:
        chunks, data = [*chunks, data[:size]], data[size:]
    first, second = _lines([chunk for chunk in (*chunks, data) if chunk], 64)
    assert isinstance(first, TooLong)
    assert second == b"next"


def test_bytes_pass_unchanged_both_ways_and_the_servers_status_is_the_proxys() -> None:
    sent = b'{ "a":"\\u00e9", "a": 1e5, "x": NaN}\n\xff not JSON\n' + b"y" * 1_000_000 + b"\nno end"
    process = _proxy([sys.executable, "-c", _ECHO])
    came, _ = process.communicate(sent, timeout=60)
    assert came == sent
    assert process.returncode == 7


def test_a_signal_reaches_the_server_and_ends_both(tmp_path: Path) -> None:
    told = tmp_path / "told"
    heed = f"import pathlib, signal\nsignal.signal(15, lambda *_: (pathlib.Path({str(told)!r}).touch(), sys.exit(3)))"
    server = f"{_ECHO.replace('import sys', f'import sys; {heed}', 1)}"
    process = _proxy([sys.executable, "-c", server])
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"up\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 3
    assert told.exists()
    process.communicate()


@pytest.mark.parametrize(("code", "status"), [("import os; os.kill(os.getpid(), 9)", 137), ("raise SystemExit(5)", 5)])
def test_the_end_of_the_server_is_the_end_of_the_proxy(code: str, status: int) -> None:
    process = _proxy([sys.executable, "-c", f"print('last words', flush=True); {code}"])
    assert process.stdout is not None
    assert process.stdout.read() == b"last words\n"  # the client has not closed its side
    assert process.wait(timeout=60) == status
    process.communicate()


def test_a_command_that_cannot_be_started_is_told_in_one_line() -> None:
    process = _proxy(["no-such-server"])
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert b"no-such-server" in told
    assert b"Traceback" not in told


def test_a_client_that_does_not_read_holds_the_server_back_and_not_the_memory() -> None:
    """Backpressure: while nobody reads, the server cannot write on."""
    code = "import sys\nwhile True: sys.stdout.write('z' * 9_999 + '\\n'); sys.stderr.write('.'); sys.stderr.flush()"
    process = _proxy([sys.executable, "-c", code])
    assert process.stdout is not None
    process.stdout.read(1)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    process.kill()
    _, err = process.communicate()
    written = len(err)
    most = 200 if sys.version_info < (3, 13) else 400  # 297 after one second there, 295 after four
    assert written < most  # pipes and buffers of some megabytes at most, not a second of writing


@pytest.mark.slow
def test_what_a_server_left_behind_reaches_a_client_that_takes_its_time() -> None:
    left = 150 * (b"z" * 999 + b"\n")  # more than the client's pipe holds, and less than all pipes between do
    code = f"import sys\nsys.stdout.buffer.write({left[:1000]!r} * 150); sys.stdout.flush(); sys.stderr.write('over')"
    process = _proxy([sys.executable, "-c", code])
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stderr.read(4) == b"over"
    time.sleep(2.5)  # longer than the proxy looks whether another process writes into the pipe
    assert process.stdout.read() == left
    assert process.wait(timeout=60) == 0
    process.communicate()


@pytest.mark.parametrize(
    "holder", ["sleep 600", pytest.param("while echo x; do sleep 0.1; done", marks=pytest.mark.slow)]
)
def test_a_process_that_holds_the_pipe_of_a_server_that_ended_does_not_hold_the_proxy(holder: str) -> None:
    code = f"import subprocess; print(subprocess.Popen(['sh', '-c', {holder!r}], stderr=subprocess.DEVNULL).pid)"
    process = _proxy([sys.executable, "-c", code])
    came, _ = process.communicate(timeout=120)
    with contextlib.suppress(ProcessLookupError):  # it may write no more when nobody reads
        os.kill(int(b"".join(came.split()).strip(b"x")), signal.SIGKILL)
    assert process.returncode == 0


def test_a_server_inherits_the_environment_without_the_keys_and_the_store_of_the_proxy() -> None:
    names = ["GRAMPUS_UQ_APPROVAL_KEY", "GRAMPUS_UQ_SEAL_KEY", "GRAMPUS_UQ_STORE", "OF_THE_SERVER"]
    code = f"import os; print([name for name in {names} if name in os.environ])"
    environment = {**os.environ, **dict.fromkeys(names, "0123456789abcdef")}
    proxy = _proxy([sys.executable, "-c", code], env=environment)
    assert proxy.communicate(timeout=60)[0] == b"['OF_THE_SERVER']\n"
