"""Arguments of ten megabytes, nesting of ten thousand, notifications by the million: a clear answer, bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

_SERVER = """
import json, sys
seen = 0
for line in sys.stdin.buffer:
    message = json.loads(line)
    if "id" not in message:
        seen += 1
    elif message["method"] == "tools/call":
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"content": [], "ran": True}}), flush=True)
    else:
        for number in range(message.get("params", {}).get("notifications", 0)):
            sys.stdout.write('{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%d}}\\n' % number)
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"seen": seen}}), flush=True)
"""
_MB = 1_024


class Flooded:
    """A guarded proxy in a process of its own, and its client."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self.stdin, self.stdout = process, process.stdin, process.stdout
        self.passed = 0

    def ask(self, method: str, **params: Any) -> Any:
        """The answer to a request; notifications before it are counted."""
        return self.told({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})

    def told(self, message: Any) -> Any:
        _write(self.stdin, message if isinstance(message, bytes) else json.dumps(message).encode())
        while "id" not in (answer := json.loads(self.stdout.readline())):
            self.passed += 1
        return answer

    def peak_kb(self) -> int:
        """The most memory that the proxy had at once."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def _write(pipe: IO[bytes], line: bytes) -> None:
    pipe.write(line + b"\n")
    pipe.flush()


@contextmanager
def flooded(folder: Path, text: str = "", server: str = _SERVER) -> Iterator[Flooded]:
    (folder / "guard.toml").write_text(f'store = "sqlite:///{folder}/calls.db"\nhold_s = 0.1\n{text}')
    options = ["--config", str(folder / "guard.toml"), "--", sys.executable, "-c", server]
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-m", "grampus_uq.cli", "mcp", *options], stdin=pipe, stdout=pipe)
    with process:  # closes its pipes and waits
        one = Flooded(process)
        one.ask("tools/list")
        yield one
    assert process.returncode == 0


pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.mark.parametrize(
    "count",
    [
        2_000,
        pytest.param(20_000, marks=pytest.mark.slow),
        pytest.param(1_000_000, marks=[pytest.mark.kills, pytest.mark.timeout(1_200)]),
    ],
)
def test_notifications_in_both_directions_all_pass_and_nothing_of_them_is_kept(count: int, tmp_path: Path) -> None:
    with flooded(tmp_path) as one:
        waits = one.ask("tools/call", name="delete_note", arguments={})  # while a call is known of
        assert "waits for a human" in waits["result"]["content"][0]["text"]
        before = one.peak_kb()
        line = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1}}'
        block = b"\n".join([line] * 1_000)
        for _ in range(count // 1_000):
            _write(one.stdin, block)
        assert one.ask("count")["result"]["seen"] == count
        assert one.ask("flood", notifications=count)["result"]["seen"] == count
        assert one.passed == count
        assert one.peak_kb() - before < 40 * _MB


@pytest.mark.slow
def test_notifications_of_cancelled_calls_that_nobody_made_are_not_kept(tmp_path: Path) -> None:
    with flooded(tmp_path) as one:
        before = one.peak_kb()
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
        lines = [json.dumps({**message, "params": {"requestId": f"{n}{'x' * 200}"}}) for n in range(20_000)]
        _write(one.stdin, "\n".join(lines).encode())
        assert one.ask("count")["result"]["seen"] == 20_000
        assert one.peak_kb() - before < 40 * _MB


def _deep(levels: int) -> bytes:
    head = b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"read_note","arguments":'
    return head + b'{"a":' * levels + b"1" + b"}" * levels + b"}}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "limit"), [("", 60), pytest.param("max_message_bytes = 1000000\n", 20, marks=pytest.mark.slow)]
)
def test_a_call_of_ten_megabytes_or_ten_thousand_levels_is_refused_and_the_next_one_served(
    more: str, limit: int, tmp_path: Path
) -> None:
    with flooded(tmp_path, more + '[effects]\nread_note = "read"\n') as one:
        before = one.peak_kb()
        for _ in range(3):
            large = {"name": "read_note", "arguments": {"text": "x" * 10_000_000}}
            refused = one.ask("tools/call", **large)["error"]["message"]
            assert "refused" in refused or "too long" in refused  # by its arguments, or by its bytes
            assert "refused" in one.told(_deep(10_000))["error"]["message"]
        assert one.ask("tools/call", name="read_note", arguments={"text": "x"})["result"]["ran"]
        assert one.peak_kb() - before < limit * _MB


def test_a_server_that_answers_with_more_than_a_message_may_hold_is_cut_off_with_a_clear_error(tmp_path: Path) -> None:
    """The answer is dropped, its call is told so, and the connection goes on."""
    large = _SERVER.replace('"content": []', '"content": ["x" * 3_000_000]')
    with flooded(tmp_path, 'max_message_bytes = 1000000\n[effects]\nread_note = "read"\n', large) as one:
        assert "longer than" in one.ask("tools/call", name="read_note", arguments={})["error"]["message"]
        assert one.ask("count")["result"]["seen"] == 0
