"""Reading back: pieces of lines, damaged lines, endless lines."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grampus_uq.errors import DataError
from grampus_uq.recording import PartialLine, RecordingProcessor, encode, read
from grampus_uq.recording.reader import scan
from grampus_uq.records.events import Event
from tests.recording.events import session, started, step_event
from tests.sampling import examples


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def found(path: Path) -> tuple[list[Event], list[PartialLine]]:
    torn: list[PartialLine] = []
    return list(read(path, on_partial_line=torn.append)), torn


WHOLE = b"".join(map(encode, session(steps=2)))


@given(st.integers(0, len(WHOLE)))
@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_cut_anywhere_gives_every_whole_line_and_sets_the_piece_aside(tmp_path: Path, cut: int) -> None:
    events, torn = found(written(tmp_path / "s1.jsonl", WHOLE[:cut]))
    ends = [end for end in range(1, len(WHOLE) + 1) if WHOLE[end - 1 : end] == b"\n"]
    # A line that lacks nothing but its newline is whole.
    assert events == session(steps=2)[: sum(end - 1 <= cut for end in ends)]
    piece = WHOLE[:cut].rpartition(b"\n")[2]
    assert [one.data for one in torn] == ([piece] if piece and cut + 1 not in ends else [])


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=3))
@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_in_front_of_a_whole_line_cost_no_event(tmp_path: Path, cuts: list[int]) -> None:
    line = encode(step_event(1))
    pieces = [encode(step_event(0))[: min(cut, len(encode(step_event(0))) - 2)] for cut in cuts]
    data = encode(started()) + b"".join(pieces) + line + encode(step_event(2))
    events, torn = found(written(tmp_path / "s1.jsonl", data))
    assert events == [started(), step_event(1), step_event(2)]
    assert b"".join(one.data for one in torn) == b"".join(pieces)
    assert {one.line for one in torn} == {2}


def test_a_line_that_only_lost_its_newline_is_read_also_in_front_of_another(tmp_path: Path) -> None:
    events, torn = found(written(tmp_path / "s1.jsonl", encode(started())[:-1] + encode(step_event(0))))
    assert events == [started(), step_event(0)]
    assert not torn


def test_zeros_that_a_power_cut_left_are_set_aside(tmp_path: Path) -> None:
    data = encode(started()) + b"\x00" * 4096
    assert found(written(tmp_path / "a.jsonl", data))[0] == [started()]
    events, torn = found(written(tmp_path / "b.jsonl", data + encode(step_event(0))))
    assert events == [started(), step_event(0)]
    assert [len(one.data) for one in torn] == [4096]


def test_a_text_that_looks_like_a_line_is_not_taken_for_one(tmp_path: Path) -> None:
    fake = encode(step_event(7)).decode()
    event = step_event(0, text=f"x\n{fake}", arguments={"v": 1, "type": "step", "inner": {"v": 1, "type": "step"}})
    damaged = encode(event).replace(b'"readings"', b'"readigns"')
    assert found(written(tmp_path / "s1.jsonl", encode(event)))[0] == [event]
    with pytest.raises(DataError, match="readings"):
        found(written(tmp_path / "s1.jsonl", damaged))


def test_a_damaged_line_is_an_error_with_its_place_and_not_a_piece(tmp_path: Path) -> None:
    path = written(tmp_path / "s1.jsonl", encode(started()) + b'{"v":1,"type":"step"\n' + encode(step_event(0)))
    with pytest.raises(DataError) as caught:
        list(read(path))
    assert (caught.value.path, caught.value.line) == (str(path), 2)


def test_a_last_line_that_is_whole_but_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    newer = encode(step_event(0)).replace(b'{"v":1,', b'{"v":2,')[:-1]
    with pytest.raises(DataError, match="newer version"):
        found(written(tmp_path / "s1.jsonl", encode(started()) + newer))


def test_blank_lines_and_an_empty_file_are_nothing(tmp_path: Path) -> None:
    assert found(written(tmp_path / "a.jsonl", b"")) == ([], [])
    assert found(written(tmp_path / "b.jsonl", b"\n \r\n" + encode(started()) + b"\n"))[0] == [started()]


def test_a_line_of_a_hundred_megabytes_is_refused_in_bounded_memory_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s1.jsonl"
    with path.open("wb") as stream:
        stream.write(encode(started()))
        for _ in range(100):
            stream.write(b"x" * 2**20)
        stream.write(b"\n" + encode(step_event(0)))
    tracemalloc.start()
    try:
        results = list(scan(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * 2**20
    assert [number for number, *_ in results] == [1, 2, 3]
    assert isinstance(results[1][1], DataError)
    assert results[2][1] == step_event(0)
    with pytest.raises(DataError, match="longer than 16777216 bytes") as caught:
        list(read(path))
    assert (caught.value.path, caught.value.line) == (str(path), 2)


def test_a_damaged_line_full_of_heads_of_lines_is_not_tried_at_every_one_of_them(tmp_path: Path) -> None:
    path = written(tmp_path / "s1.jsonl", b'x{"v":1,"type":"step",' * 700_000 + b"\n")
    with pytest.raises(DataError):
        list(read(path))


def test_an_unfinished_line_is_logged_when_nobody_listens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    list(read(written(tmp_path / "s1.jsonl", encode(started())[:50])))
    assert "s1.jsonl:1: an unfinished line of 50 bytes was left out." in caplog.text


@given(st.integers(1, len(encode(step_event(1))) - 1))
@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_session_taken_up_after_a_kill_keeps_the_piece_in_a_file_beside(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "s1.jsonl", encode(started()) + encode(step_event(1))[:cut])
    aside = tmp_path / "s1.jsonl.torn"
    aside.unlink(missing_ok=True)
    with RecordingProcessor(tmp_path, content="full", fsync="none") as recorder:
        recorder.on_event(step_event(2))
    whole = cut == len(encode(step_event(1))) - 1
    assert path.read_bytes() == encode(started()) + (encode(step_event(1)) if whole else b"") + encode(step_event(2))
    assert not aside.exists() if whole else aside.read_bytes() == encode(step_event(1))[:cut] + b"\n"


def test_what_another_writer_may_still_be_writing_is_never_moved(tmp_path: Path) -> None:
    other = RecordingProcessor(tmp_path, content="full", fsync="none")
    other.on_event(started())
    with (tmp_path / "s1.jsonl").open("ab") as stream:
        stream.write(encode(step_event(1))[:100])  # half of a line that the other process is in the middle of
    with RecordingProcessor(tmp_path, content="full", fsync="none") as recorder:
        recorder.on_event(step_event(2))
    other.close()
    assert not (tmp_path / "s1.jsonl.torn").exists()
    events, torn = found(tmp_path / "s1.jsonl")
    assert events == [started(), step_event(2)]
    assert [len(one.data) for one in torn] == [100]


def test_a_writer_that_came_second_still_counts_when_the_first_has_left(tmp_path: Path) -> None:
    first, second = (RecordingProcessor(tmp_path, content="full", fsync="none") for _ in range(2))
    first.on_event(started())
    second.on_event(step_event(0))
    first.close()
    with (tmp_path / "s1.jsonl").open("ab") as stream:
        stream.write(encode(step_event(1))[:100])  # the second one is in the middle of a line
    with RecordingProcessor(tmp_path, content="full", fsync="none") as third:
        third.on_event(step_event(2))
    second.close()
    assert not (tmp_path / "s1.jsonl.torn").exists()
