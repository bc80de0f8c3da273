"""The JSON scanner: the objects of the standard parser, however the file is cut, and a place for each fault."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grampus_uq.errors import DataError
from grampus_uq.importers.json_stream import elements
from tests.sampling import examples

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=5), values, max_size=4)
quick = settings(deadline=None, max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])


SMALL = 7  # bytes a block: every element, escape and character is cut somewhere


def written(path: Path, documents: list[Any], form: str, indent: int | None, ascii_only: bool) -> Path:
    if form == "array":
        text = json.dumps(documents, indent=indent, ensure_ascii=ascii_only)
    else:
        text = "\n".join(json.dumps(document, indent=indent, ensure_ascii=ascii_only) for document in documents)
    data = text.encode("utf-8", "surrogatepass")
    path.write_bytes(gzip.compress(data) if form == "packed" else data)
    return path


@given(
    st.lists(objects, max_size=5),
    st.sampled_from(["array", "lines", "packed"]),
    st.sampled_from([None, 1]),
    st.booleans(),
)
@quick
def test_every_form_gives_the_objects_that_were_written(
    tmp_path: Path, documents: list[Any], form: str, indent: int | None, ascii_only: bool
) -> None:
    path = written(tmp_path / "x", documents, form, indent, ascii_only)
    found = list(elements(path, block_bytes=SMALL))
    assert [element.value for element in found] == documents
    assert [element.index for element in found] == list(range(len(documents)))


@given(st.lists(objects, min_size=1, max_size=4), st.data())
@quick
def test_a_truncated_array_is_never_taken_for_a_whole_one(tmp_path: Path, documents: list[Any], data: Any) -> None:
    text = json.dumps(documents, indent=1)
    path = tmp_path / "x"
    path.write_text(text[: data.draw(st.integers(1, len(text) - 1))])
    with pytest.raises(DataError) as caught:
        list(elements(path, block_bytes=SMALL))
    assert caught.value.path == str(path)
    assert caught.value.line is not None


@given(st.binary(max_size=300))
@quick
def test_any_bytes_give_objects_or_an_error_with_path_and_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    places = [(str(path), True)]
    try:
        assert all(isinstance(element.value, dict) for element in elements(path))
    except DataError as error:
        places.append((error.path, error.line is not None))
    assert len(set(places)) == 1


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b'[{"a": 1},\n {"b": tru}]', 2, "not JSON"),
        (b'[{"a": 1},\n\n {"b": 1}\n', 4, "the array does not end"),
        (b'[{"a": 1}\n {"b": 1}]', 2, "expected ','"),
        (b'[{"a": 1}]\n\n{"b": 1}', 3, "something follows"),
        (b'[{"a": 1},\n 5]', 2, "must be a JSON object. Got int"),
        (b'{"a": 1}\n[1]\n', 2, "must be a JSON object. Got list"),
        (b'{"a": "x\n{"a": 1}\n', 1, "control character"),
        (b'{"a": 1}\n{"a": "x', 2, "ends too early"),
        (b'{"a": NaN}', 1, "NaN"),
        (b'{"a": 1,}', 1, "not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", 1, "not JSON"),
        (b'{"a": 1}\n\n{"a": "\xff"}', 3, "not UTF-8"),
        (b'{"a": 1}\n{"a": "\xc3', 2, "not UTF-8"),
        (b'{"a"\xf0\x9f\x98\x80\xff\n\n', 1, "not UTF-8"),
        (b"[" * 100_000, 1, "nested too deeply"),
        (b"nonsense " * 100, 1, "not JSON"),
    ],
)
def test_a_fault_has_its_line(tmp_path: Path, content: bytes, line: int, says: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says.replace(".", r"\.")) as caught:
        list(elements(path, block_bytes=SMALL))
    assert (caught.value.path, caught.value.line) == (str(path), line)


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n{"b": 2}\r\n')
    assert [(element.value, element.line) for element in elements(path)] == [({"a": 1}, 1), ({"b": 2}, 2)]


def test_a_truncated_or_damaged_gzip_file_says_so(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"a": "' + bytes(range(32, 127)).replace(b'"', b"").replace(b"\\", b"") * 500 + b'"}\n')
    path = tmp_path / "x.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match="truncated"):
        list(elements(path, block_bytes=SMALL))
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 255
    path.write_bytes(bytes(damaged))
    with pytest.raises(DataError, match=r"damaged|not JSON|not UTF-8"):
        list(elements(path, block_bytes=SMALL))


def test_an_element_of_a_hundred_megabytes_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as stream:
        stream.write(b'{"a": 1}\n{"a": "')
        for _ in range(100):
            stream.write(b"x" * 2**20)
        stream.write(b'"}\n')
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="longer than 4194304 characters") as caught:
            list(elements(path, max_element_chars=2**22))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (caught.value.path, caught.value.line) == (str(path), 2)
    assert peak < 40 * 2**20


def test_a_long_file_of_small_elements_is_read_in_the_memory_of_one_block(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(b"[")
        for index in range(10_000):
            stream.write(b'%b{"index": %d, "text": "%b"}' % (b"," if index else b"", index, b"x" * 1000))
        stream.write(b"]")
    tracemalloc.start()
    try:
        for index, element in enumerate(elements(path)):
            assert element.value["index"] == index
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert index == 9_999
    assert peak < 8 * 2**20
