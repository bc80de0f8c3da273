"""The formats, one line each; the format of a file, by its first fields; its runs in any format."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.importers.chat_logs import read_chat_logs
from grampus_uq.importers.failure_logs import read_failure_logs
from grampus_uq.importers.imported_records import Refused
from grampus_uq.importers.imported_run import ImportedRun
from grampus_uq.importers.langsmith import read_langsmith
from grampus_uq.importers.opening import blocks
from grampus_uq.importers.otlp_runs import read_otlp
from grampus_uq.importers.otlp_wire import is_protobuf
from grampus_uq.importers.tau2 import read_tau2
from grampus_uq.importers.tau_bench import read_tau_bench


class _Format(NamedTuple):
    """A format of runs.

    A file has it when its first object has all the fields that one of the texts in `fields` names. `read` is called as
    `read(path, on_refused=...)`; with `outcome=...` too where `labelled`, which is a format that may hold several
    evaluations of a run.
    """

    name: str
    read: Callable[..., Iterator[ImportedRun]]
    fields: tuple[str, ...]
    labelled: bool = False


def _failed_runs(path: str | os.PathLike[str], *, on_refused: Refused | None) -> Iterator[ImportedRun]:
    return (log.run for log in read_failure_logs(path, on_refused=on_refused))


# The first that fits counts: a format with many fields stands before one with few.
_FORMATS: Final = (
    _Format("otlp", read_otlp, ("resourceSpans",), labelled=True),
    _Format("langsmith", read_langsmith, ("run_type trace_id", "run_type dotted_order"), labelled=True),
    _Format("tau2", read_tau2, ("simulations", "info tasks")),
    _Format("tau-bench", read_tau_bench, ("task_id traj", "task_id reward")),
    _Format("failure-log", _failed_runs, ("history",)),
    _Format("chat-log", read_chat_logs, ("messages", "choices", "custom_id", "request response")),
)
FORMATS: Final = tuple(form.name for form in _FORMATS)
"""The names of all formats."""

_HEAD: Final = 2**17
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|[{}\[\]:]', re.DOTALL)  # texts may be cut: none is sought within one


def detect_format(path: str | os.PathLike[str]) -> str:
    """Return the format of a file. Raises DataError naming its first fields for an unknown one.

    What is looked at are the names of the fields of its first object, in the first 128 KiB.
    """
    if is_protobuf(path):
        return "otlp"
    head = next(blocks(path, size=_HEAD), b"")
    names = _first_fields(head)
    for form in _FORMATS:
        if any(names.issuperset(fields.encode().split()) for fields in form.fields):
            return form.name
    shown = ", ".join(sorted(name.decode("utf-8", "replace")[:40] for name in names)[:10])
    reason = (
        f"is in none of the known formats ({', '.join(FORMATS)}): "
        + (f"its first object has the fields {shown}. " if shown else "it begins with no JSON object. ")
        + 'Write each run as a line {"id": NAME, "messages": [...]} with OpenAI\'s messages: a chat-log.'
    )
    raise DataError(reason, path=os.fspath(path), line=1)


def read_runs(
    path: str | os.PathLike[str], form: str = "auto", *, outcome: str | None = None, on_refused: Refused | None = None
) -> Iterator[ImportedRun]:
    """Yield the runs of a file in any of `FORMATS`; "auto" finds out which.

    `outcome` names the evaluation or feedback that says how a run ended; only the formats that hold several take it.
    Raises and refuses as the importer of the format does; ConfigurationError for an unknown format.
    """
    name = detect_format(path) if form == "auto" else form
    found = next((known for known in _FORMATS if known.name == name), None)
    if found is None:
        raise ConfigurationError.of("form", "read_runs", f"one of auto, {', '.join(FORMATS)}", form)
    if found.labelled:
        yield from found.read(path, outcome=outcome, on_refused=on_refused)
    else:
        yield from found.read(path, on_refused=on_refused)


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
