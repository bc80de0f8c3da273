"""What the MCP proxy adds to a call: the same server with and without it, in turns, then many calls at once. A script.

    python -m tests.benchmarks.mcp_overhead [--calls 400] [--parallel 200] [--json]

The server answers at once, so that all of the time is the way there and back. `passing` is `--unguarded`; `guarded`
judges every call of a tool that reads, with a SQLite store in a file. At most 5 ms are allowed in the median. No model
is asked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.benchmarks._report import emit

_SERVER = """
import json, sys
tool = {"name": "read_note", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        listed = message["method"] == "tools/list"
        result = {"tools": [tool]} if listed else {"content": [{"type": "text", "text": "noted"}], "isError": False}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
_LIMIT_MS = 5.0


class Connection:
    """One client of one server: requests by their id, answers as they come."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._next = 0

    def send(self, method: str, **params: object) -> int:
        assert self._process.stdin is not None
        self._next += 1
        message = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": params}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        return self._next

    def receive(self) -> int:
        assert self._process.stdout is not None
        message = json.loads(self._process.stdout.readline())
        assert not message["result"].get("isError"), message
        return int(message["id"])

    def call(self, number: int) -> float:
        """The seconds of one call of a tool."""
        start = time.perf_counter()
        sent = self.send("tools/call", name="read_note", arguments={"number": number})
        assert self.receive() == sent
        return time.perf_counter() - start

    def at_once(self, count: int) -> tuple[float, float]:
        """The seconds that many calls take which are sent without waiting, and the median until one is answered."""
        start, sent, took = time.perf_counter(), {}, []

        def send_all() -> None:
            for number in range(count):
                now = time.perf_counter()
                sent[self.send("tools/call", name="read_note", arguments={"number": -number})] = now

        sender = threading.Thread(target=send_all)
        sender.start()
        answered = []
        for _ in range(count):
            answered.append(self.receive())
            took.append(time.perf_counter())
        sender.join()
        assert sorted(answered) == sorted(sent)
        waits = [end - sent[identity] for identity, end in zip(answered, took, strict=True)]
        return time.perf_counter() - start, statistics.median(waits)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def main() -> None:
    """Print the rows; exits with 1 where the guarded proxy adds more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--parallel", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    proxy, server = [sys.executable, "-m", "grampus_uq.cli", "mcp"], [sys.executable, "-c", _SERVER]
    with tempfile.TemporaryDirectory() as folder:
        store = ["--store", f"sqlite:///{Path(folder) / 'calls.db'}", "--trusted"]
        commands = {
            "alone": server,
            "passing": [*proxy, "--unguarded", "--", *server],
            "guarded": [*proxy, *store, "--", *server],
        }
        connections = {name: Connection(command) for name, command in commands.items()}
        times: dict[str, list[float]] = {name: [] for name in commands}
        for connection in connections.values():
            connection.send("tools/list")
            connection.receive()
            for number in range(20):
                connection.call(number)
        for number in range(given.calls):  # in turns: what else this machine does meets all of them
            for name, connection in connections.items():
                times[name].append(connection.call(1_000 + number))
        at_once = {name: connection.at_once(given.parallel) for name, connection in connections.items()}
        for connection in connections.values():
            connection.close()
    alone = statistics.median(times["alone"])
    rows = [
        {
            "way": name,
            "median_ms": statistics.median(seconds) * 1e3,
            "p95_ms": statistics.quantiles(seconds, n=20)[-1] * 1e3,
            "added_ms": (statistics.median(seconds) - alone) * 1e3,
            "at_once_s": at_once[name][0],
            "at_once_median_ms": at_once[name][1] * 1e3,
        }
        for name, seconds in times.items()
    ]
    emit("mcp_overhead", rows, given.json)
    sys.exit(int((statistics.median(times["guarded"]) - alone) * 1e3 > _LIMIT_MS))


if __name__ == "__main__":
    main()
