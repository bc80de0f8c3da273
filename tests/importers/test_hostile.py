"""Malformed and hostile files through every importer: a DataError that names the place, or runs; never anything else.

Every file of `samples` is broken in every way listed here: at the level of bytes, of JSON, and of single fields.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from grampus_uq.errors import DataError
from grampus_uq.importers import FORMATS, ImportedRun, events, read_otlp, read_runs
from grampus_uq.importers.imported_records import each_run, records
from grampus_uq.importers.json_stream import Element
from grampus_uq.recording import encode, runs
from grampus_uq.recording.kept_content import redact, unicode_only
from grampus_uq.records.events import StepEvent
from grampus_uq.records.values import Outcome
from tests.importers import samples
from tests.importers.test_encoded_spans import recorded  # noqa: F401 (a fixture)
from tests.sampling import examples, sampled

quick = settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
ROOT = Path(__file__).parents[2]


def swallow(path: Path, form: str) -> tuple[int, list[DataError]]:
    """Read a file to its end, as an import does: how many runs it gave, and what was left out."""
    refused: list[DataError] = []
    count = 0
    try:
        if form == "recording":
            count = sum(1 for _ in runs(path))
        else:
            for run in read_runs(path, form, on_refused=refused.append):
                count += 1
                try:
                    for event in events(run):
                        encode(unicode_only(redact(event, "full", b"")), content="full")
                except DataError as error:  # arguments that JSON cannot hold: refused when they are recorded
                    refused.append(DataError(error.reason, path=run.path, line=run.line, field=error.field))
    except DataError as error:
        refused.append(error)
    return count, refused


def check(path: Path, form: str) -> list[DataError]:
    """What a hostile file gives is runs or errors, each with its path, and a line but for files that are no text."""
    _, refused = swallow(path, form)
    assert {error.path for error in refused} <= {str(path)}
    without = [error for error in refused if error.line is None]
    assert not without or path.read_bytes()[:4] == b"PAR1", str(without[0])
    return refused


@pytest.fixture(scope="module")
def files(recorded: bytes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:  # noqa: F811 (the fixture)
    """A good file for every importer, by its format."""
    spans = tmp_path_factory.mktemp("otlp") / "spans"
    spans.write_bytes(recorded)
    (run,) = read_otlp(spans)
    return {
        **samples.FILES,
        "otlp, pretty": json.dumps(samples.request(samples.OTLP_SPANS), indent=1).encode(),
        "otlp, protobuf": recorded,
        "recording": b"".join(encode(event) for event in events(run) if isinstance(event, StepEvent)),
    }


NAMES = [*sorted(samples.FILES), "otlp, pretty", "otlp, protobuf", "recording"]


def form_of(name: str) -> str:
    return name.partition(",")[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_good_file_gives_runs_and_nothing_is_left_out(tmp_path: Path, files: dict[str, bytes], name: str) -> None:
    path = tmp_path / "x"
    for content in (files[name], gzip.compress(files[name]), files[name].replace(b"\n", b"\r\n")):
        if name in ("recording", "otlp, protobuf") and content != files[name]:
            continue  # recordings are not packed with gzip, and protobuf has no lines
        path.write_bytes(content)
        count, refused = swallow(path, form_of(name))
        assert (count > 0, refused) == (True, [])


@pytest.mark.parametrize("name", NAMES)
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, files: dict[str, bytes], name: str) -> None:
    if name in ("recording", "otlp, protobuf"):
        pytest.skip("is written by programs that write none")
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbf" + files[name])
    count, refused = swallow(path, form_of(name))
    assert (count > 0, refused) == (True, [])


@pytest.mark.parametrize("name", NAMES)
@sampled("pieces", [8], full=[25])
def test_a_file_that_is_cut_anywhere_is_named_or_gives_whole_records_only(
    tmp_path: Path, files: dict[str, bytes], name: str, pieces: int
) -> None:
    whole = files[name]
    path = tmp_path / "x"
    path.write_bytes(whole)
    most, _ = swallow(path, form_of(name))
    told = 0
    cuts = range(1, len(whole) - 1, max(1, len(whole) // pieces))
    for cut in cuts:
        for content in (whole[:cut], gzip.compress(whole)[:cut] if name != "recording" else whole[:cut]):
            path.write_bytes(content)
            told += bool(check(path, form_of(name)))
    assert most
    assert told > len(cuts) // 2 or name == "recording"  # there a piece is a warning, and whole lines stay


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**32))
@quick
def test_bytes_that_are_flipped_dropped_or_doubled_never_raise_anything_else(
    tmp_path: Path, files: dict[str, bytes], name: str, seed: int
) -> None:
    rng = random.Random(seed)
    data = bytearray(files[name])
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randrange(1, 9)]
        elif kind == 2:
            data[at:at] = data[at : at + rng.randrange(1, 40)]
        else:
            data[at : at + 1] = bytes([rng.randrange(256) for _ in range(3)])
    path = tmp_path / "x"
    path.write_bytes(bytes(data))
    check(path, form_of(name))


@pytest.mark.parametrize("form", [*FORMATS, "recording"])
@given(content=st.binary(max_size=200) | st.binary(max_size=60).map(lambda rest: b"\x0a" + rest))
@example(content=b"")
@example(content=b"\x00\x00\x00\x05\x0a\x03\x12\x01\x12")
@example(content=b"\x1f\x8b")
@example(content=b"PAR1")
@quick
def test_any_bytes_at_all_give_a_place(tmp_path: Path, form: str, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    check(path, form)


POISON: list[Any] = [
    None,
    True,
    -1,
    10**400,
    1e308,
    "",
    "\ud800",
    "x\u0000y",
    [],
    {},
    [[]],
    [None],
    {"": None},
    [{"role": "assistant"}],
    "9" * 400,
    "2026-99-99",
    "not a time",
    {"value": {"stringValue": 5}},
    float("inf"),
    float("nan"),
]


def documents(content: bytes) -> list[Any]:
    try:
        return [json.loads(content)]
    except ValueError:
        return [json.loads(line) for line in content.splitlines()]


def places(value: Any, trail: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if trail:
        yield trail
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*trail, key))


def poisoned(value: Any, trail: tuple[Any, ...], poison: Any) -> Any:
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in trail[:-1]:
        inner = inner[key]
    inner[trail[-1]] = poison
    return copy


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("otlp, protobuf", "otlp, pretty")])
@sampled("fields", [6], full=[30])
def test_every_field_of_every_format_may_hold_anything(
    tmp_path: Path, files: dict[str, bytes], name: str, fields: int
) -> None:
    """Each field in turn gets values of every wrong kind, the hostile ones among them; others go on as before."""
    path = tmp_path / "x"
    given = documents(files[name])
    rng = random.Random(name)
    told = tried = 0
    for number, document in enumerate(given):
        found = list(places(document))
        for trail in found if len(found) < fields else rng.sample(found, fields):
            poison = rng.choice(POISON)
            changed = [*given[:number], poisoned(document, trail, poison), *given[number + 1 :]]
            text = json.dumps(changed[0]) if len(changed) == 1 else "\n".join(map(json.dumps, changed))
            path.write_bytes(text.encode())
            tried += 1
            told += bool(check(path, form_of(name)))
    assert 0 < told < tried


DEEP = 200_000


@pytest.mark.parametrize("form", [*FORMATS, "auto"])
@pytest.mark.parametrize(
    "content",
    [
        b"[" * DEEP,
        b'{"a":' * DEEP,
        b'{"messages": ' + b"[" * DEEP + b"]" * DEEP + b"}\n",
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b'{"a":' * DEEP,
        b'{"simulations":[{"messages":' + b"[" * DEEP,
        b'{"n": ' + b"9" * 100_000 + b"}\n",
        b'{"a": "' + b"\\u12" * 50_000,
        b'"' * DEEP,
        b'{"a": "' + b'\\"' * DEEP,
        b"{" * DEEP,
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x0a" + b"\xff" * 1000,
        b"\x0a\x04\x12\x02\x12\x00" * 10_000,
        b"\n" * DEEP,
        b"\x1f\x8b" + b"\x00" * 100,
    ],
    ids=lambda content: repr(content[:12]),
)
def test_depth_digits_and_lengths_without_end_are_refused(tmp_path: Path, form: str, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    check(path, form)


def _depth_in_texts() -> Iterator[tuple[str, bytes]]:
    deep = "[" * 50_000
    attributes = {"gen_ai__operation__name": "chat", "gen_ai__output__messages": deep}
    yield "otlp", json.dumps(samples.request([samples.span(1, "chat", None, 0.0, **attributes)])).encode()
    nested: Any = {"stringValue": "x"}
    for _ in range(100):
        nested = {"arrayValue": {"values": [nested]}}
    span = samples.span(1, "chat", None, 0.0) | {"attributes": [{"key": "k", "value": nested}]}
    yield "otlp", json.dumps(samples.request([span])).encode()


@pytest.mark.parametrize(("form", "content"), list(_depth_in_texts()), ids=["messages", "attribute"])
def test_json_inside_texts_is_as_bounded_as_outside(tmp_path: Path, form: str, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    refused = check(path, form)
    assert refused
    assert refused[0].field


@pytest.mark.parametrize("head", [b"", b"[\n"])
def test_a_record_that_is_too_deep_for_its_reader_is_refused_alone(tmp_path: Path, head: bytes) -> None:
    """JSON may be as deep as the interpreter's stack has frames; a reader that takes three a level overflows it."""

    def depth(value: Any) -> int:
        return 1 + deepest(value)

    def deepest(values: Any) -> int:
        return max((depth(one) for one in values), default=0)

    def read(element: Element) -> ImportedRun:
        found = depth(element.value["nodes"])
        return ImportedRun(run_id=f"{found}", path="", line=1, messages=(), outcome=Outcome(success=None))

    path, deep = tmp_path / "x", sys.getrecursionlimit() // 2
    texts = ["[" * levels + "]" * levels for levels in (2, deep, 3)]
    path.write_bytes(head + (b",\n" if head else b"\n").join(b'{"nodes": %s}' % text.encode() for text in texts))
    if head:
        path.write_bytes(path.read_bytes() + b"\n]")
    refused: list[DataError] = []
    found = [run.run_id for run in each_run(records(path, refused.append), read, refused.append, id_field="nodes")]
    assert (found, len(refused)) == (["2", "3"], 1)
    assert "nested too deeply" in str(refused[0])
    assert (refused[0].line, refused[0].field) == ((3, "[1]") if head else (2, ""))


@pytest.mark.slow
def test_a_small_gzip_of_endless_zeros_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    with gzip.open(path, "wb", compresslevel=9) as stream:
        for _ in range(100):
            stream.write(b" " * 2**20)
        stream.write(b'{"messages": "')
        for _ in range(100):
            stream.write(b"0" * 2**20)
    assert path.stat().st_size < 2**19
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = check(path, "chat-log")
    assert "longer than" in str(refused[0])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024  # kB; the file unpacks to 200 MB


GIGABYTE = """
import pathlib, re, resource, sys
from grampus_uq.importers import read_runs
refused = []
count = steps = 0
for run in read_runs(sys.argv[1], sys.argv[2], on_refused=refused.append):
    count += 1
    steps += run.n_steps
# Where there is a /proc its high-water mark is this program's; what getrusage says begins at the size of its parent.
status = pathlib.Path("/proc/self/status")
marks = re.findall(r"VmHWM:\\s*(\\d+) kB", status.read_text()) if status.exists() else []
peak = int(marks[0]) if marks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(count, steps, len(refused), peak // 1024)
"""


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("form", "size"),
    [
        *(pytest.param(form, 2**27, marks=pytest.mark.slow) for form in FORMATS),
        *(pytest.param(form, 2**30, marks=pytest.mark.promises) for form in FORMATS),
    ],
)
def test_a_file_of_any_size_is_read_in_bounded_memory(tmp_path: Path, form: str, size: int) -> None:
    """A large file through each streaming importer, in a process whose resident set is then looked at."""
    path = tmp_path / "x"
    head, tail = samples.AROUND.get(form, (b"", b""))
    written = number = 0
    with path.open("wb") as stream:
        stream.write(head)
        while written < size:
            comma = b"," if head and number else b""
            # Texts of some size, as agents have them: the point is bytes, not the number of records.
            record = samples.RECORDS[form](f"{number:08d}".encode())
            record = record.replace(b"Be brief.", b"Be brief. " * 400).replace(b"Done.", b"Done. " * 900)
            for word in (b"It is 4.", b"Hi! How can I help?", b"Capital of France?", b"2+2=5"):
                record = record.replace(word, word * 600)
            stream.write(comma + record)
            written += len(record)
            number += 1
        stream.write(tail)
    run = subprocess.run(
        [sys.executable, "-c", GIGABYTE, str(path), form],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    path.unlink()
    count, steps, refused, peak_mb = map(int, run.stdout.split())
    print(f"{form}: {written / 2**20:.0f} MB, {count} runs, {steps} steps, peak {peak_mb} MB")
    assert (count, refused) == (number, 0)
    assert peak_mb < 150  # 55 to 85; with the file in memory, 183 at least
