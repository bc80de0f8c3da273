"""How the time of each importer grows with the size of a hostile file: 2 means as the file does, 4 as its square.

    python tests/benchmarks/hostile_files.py [--bytes 200000] [--json]

Each kind is read at a size and at twice that size, in processor time, the best of three; `growth` is their ratio. What
is read ends in a DataError or in refused records; `refused` says how many.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.errors import DataError
from grampus_uq.importers import read_runs
from tests.benchmarks._report import emit


def _answers_without_ids(n: int) -> bytes:
    """Tools that ran, and behind them a model that is given their answers from the last to the first."""
    answers = [b"%08d" % number for number in range(n // 180)]
    tool = b'{"run_type": "tool", "trace_id": "t", "start_time": "2026-01-01", "outputs": {"output": "%b"}}\n'
    given = b", ".join(
        b'{"role": "tool", "tool_call_id": "c%b", "content": "%b"}' % (one, one) for one in answers[::-1]
    )
    asked = b'{"run_type": "llm", "trace_id": "t", "start_time": "2026-01-02", "inputs": {"messages": [%b]}}\n' % given
    return b"".join(tool % one for one in answers) + asked


KINDS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "one long text": ("chat-log", lambda n: b'{"messages": [{"role": "user", "content": "' + b"x" * n + b'"}]}\n'),
    "a text without end": ("chat-log", lambda n: b'{"messages": "' + b"x" * n),
    "no JSON at all": ("chat-log", lambda n: b"x" * n),
    "empty objects": ("chat-log", lambda n: b"{}\n" * (n // 3)),
    "escapes": ("tau-bench", lambda n: b'[{"a": "' + b"\\" * n),
    "empty simulations": ("tau2", lambda n: b'{"simulations": [' + b"{}," * (n // 3)),
    "a long array beside": ("tau2", lambda n: b'{"a": [' + b"0," * (n // 2)),
    "one trace": ("langsmith", lambda n: b'{"run_type": "llm", "trace_id": "t"}\n' * (n // 38)),
    "answers without ids": ("langsmith", _answers_without_ids),
    "empty spans, protobuf": ("otlp", lambda n: b"\x0a\x06\x12\x04\x12\x02\x0a\x00" * (n // 8)),
    "empty spans, JSON": ("otlp", lambda n: b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b"{}," * (n // 3)),
    "empty requests": ("otlp", lambda n: b'{"resourceSpans":[]}\n' * (n // 21)),
    "quotes, format unknown": ("auto", lambda n: b'{"history": "' + b'\\"' * (n // 2)),
    "quotes": ("failure-log", lambda n: b'{"history": "' + b'\\"' * (n // 2)),
}


def read(path: Path, form: str) -> tuple[float, int]:
    """Processor time of one reading, and what was refused."""
    refused = 0

    def count(_: DataError) -> None:
        nonlocal refused
        refused += 1

    begin = time.process_time()
    try:
        for _ in read_runs(path, form, on_refused=count):
            pass
    except DataError:
        refused += 1
    return time.process_time() - begin, refused


def rows(size: int, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each kind."""
    for kind, (form, make) in KINDS.items():
        path, times = folder / "x", []
        for times_larger in (1, 2):
            path.write_bytes(make(size * times_larger))
            found = [read(path, form) for _ in range(3)]
            times.append(min(took for took, _ in found))
        yield {
            "kind": kind,
            "format": form,
            "bytes": path.stat().st_size,
            "mb_per_s": path.stat().st_size / 2**20 / times[1],
            "growth": times[1] / times[0],
            "refused": found[0][1],
        }


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=200_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = list(rows(options.bytes, Path(folder)))
    emit("hostile_files", found, options.json)


if __name__ == "__main__":
    main()
