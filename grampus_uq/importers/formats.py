"""The format of a file, by its first fields, and its runs in any format."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, get_args

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.importers.chat_exports import read_chat_logs, read_chatgpt
from grampus_uq.importers.failure_logs import read_failure_logs
from grampus_uq.importers.imported_records import Refused
from grampus_uq.importers.imported_run import ImportedRun
from grampus_uq.importers.langsmith import read_langsmith
from grampus_uq.importers.opening import blocks
from grampus_uq.importers.otlp_runs import read_otlp
from grampus_uq.importers.otlp_wire import is_protobuf
from grampus_uq.importers.tau2 import read_tau2
from grampus_uq.importers.tau_bench import read_tau_bench

__all__ = ["FORMATS", "RunFormat", "detect_format", "read_runs"]

RunFormat = Literal["tau-bench", "tau2", "otlp", "langsmith", "chatgpt", "chat-log", "failure-log"]
FORMATS: Final[tuple[RunFormat, ...]] = get_args(RunFormat)

_HEAD: Final = 2**17
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:]')
# The first of these of which the first object has all fields. Those with more fields come first.
_FIELDS: Final[tuple[tuple[RunFormat, frozenset[bytes]], ...]] = (
    ("otlp", frozenset({b"resourceSpans"})),
    ("langsmith", frozenset({b"run_type", b"trace_id"})),
    ("langsmith", frozenset({b"run_type", b"dotted_order"})),
    ("tau2", frozenset({b"simulations"})),
    ("tau2", frozenset({b"info", b"tasks"})),
    ("tau-bench", frozenset({b"task_id", b"traj"})),
    ("tau-bench", frozenset({b"task_id", b"reward"})),
    ("chatgpt", frozenset({b"mapping"})),
    ("failure-log", frozenset({b"history"})),
    ("chat-log", frozenset({b"messages"})),
    ("chat-log", frozenset({b"choices"})),
    ("chat-log", frozenset({b"custom_id"})),
    ("chat-log", frozenset({b"request", b"response"})),
)


def detect_format(path: str | os.PathLike[str]) -> RunFormat:
    """Return the format of a file. Raises DataError naming its first fields for an unknown one.

    What is looked at are the names of the fields of its first object, in the first 128 KiB.
    """
    if is_protobuf(path):
        return "otlp"
    head = next(blocks(path, size=_HEAD), b"")
    names = _first_fields(head)
    for form, fields in _FIELDS:
        if fields <= names:
            return form
    shown = ", ".join(sorted(name.decode("utf-8", "replace")[:40] for name in names)[:10])
    reason = f"has no format that is known ({', '.join(FORMATS)}): its first object has the fields {shown or 'none'}."
    raise DataError(reason, path=os.fspath(path), line=1)


def read_runs(
    path: str | os.PathLike[str],
    form: RunFormat | Literal["auto"] = "auto",
    *,
    outcome: str | None = None,
    on_refused: Refused | None = None,
) -> Iterator[ImportedRun]:
    """Yield the runs of a file in any format; `outcome` names the evaluation or feedback that says how they ended.

    Raises and refuses as the importer of the format does; ConfigurationError for an unknown format.
    """
    if form == "auto":
        form = detect_format(path)
    readers: dict[str, Callable[..., Iterator[Any]]] = {
        "tau-bench": read_tau_bench,
        "tau2": read_tau2,
        "chatgpt": read_chatgpt,
        "chat-log": read_chat_logs,
        "failure-log": read_failure_logs,
    }
    if form in ("otlp", "langsmith"):
        reader = read_otlp if form == "otlp" else read_langsmith
        yield from reader(path, outcome=outcome, on_refused=on_refused)
    elif form in readers:
        for found in readers[form](path, on_refused=on_refused):
            yield found.run if form == "failure-log" else found
    else:
        raise ConfigurationError.of("form", "read_runs", f"one of auto, {', '.join(FORMATS)}", form)


def _first_fields(head: bytes) -> frozenset[bytes]:
    """The names of the fields of the first object, as far as the head goes."""
    found: set[bytes] = set()
    depth, inside, last = 0, None, b""
    for match in _TOKEN.finditer(head):
        token = match[0]
        if token in b"{[":
            depth += 1
            if token == b"{" and inside is None:
                inside = depth
        elif token in b"}]":
            depth -= 1
            if inside is not None and depth < inside:
                break
        elif token == b":" and depth == inside:
            found.add(last)
        elif token != b":":
            last = token[1:-1]
    return frozenset(found)
