"""A recording in parts: where one ends and the next begins, and that whoever reads them reads one recording."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Outcome, UncertaintyMonitor
from grampus_uq.errors import ConfigurationError
from grampus_uq.recording import Label, RecordingProcessor, find_run, label, read, runs, validate
from grampus_uq.recording.replay import replay_file
from grampus_uq.records.events import SessionStarted
from tests.scripted_runs import Captured, acts, play, watch


def record(folder, n=10, session_id="run-1", monitor=None, **options):
    """A run of n steps; gives the events as they were emitted."""
    captured = Captured()
    with RecordingProcessor(folder, content="full", fsync="none", **options) as recorder:
        session = UncertaintyMonitor(processors=[captured, recorder]).session(session_id, "desk")

        async def steps():
            for number in range(n):
                await session.observe_llm_response("x" * 300 + " Confidence: 90%", f"llm_{number}")
            session.finish(Outcome(success=None))

        anyio.run(steps)
    return captured.events


def names(folder):
    return sorted(path.name for path in Path(folder).glob("*.jsonl"))


def test_a_part_ends_before_the_event_that_would_make_it_too_large(tmp_path):
    events = record(tmp_path, rotate_bytes=4000)
    parts = [tmp_path / "run-1.jsonl", *(tmp_path / name for name in names(tmp_path) if "+" in name)]
    assert len(parts) > 2
    assert [part.name for part in parts[1:3]] == ["run-1+0001.jsonl", "run-1+0002.jsonl"]
    sizes = [part.stat().st_size for part in parts]
    assert max(sizes) <= 4000
    firsts = [len(part.read_bytes().splitlines(keepends=True)[0]) for part in parts[1:]]
    assert all(size + first > 4000 for size, first in zip(sizes, firsts, strict=False))  # none ended too early
    assert list(read(tmp_path / "run-1.jsonl")) == events


def test_every_reader_takes_the_parts_as_one_recording(tmp_path):
    events = record(tmp_path, rotate_bytes=3000)
    (run,) = runs(tmp_path)
    assert run.events == tuple(events)
    assert find_run(tmp_path, "run-1").events == tuple(events)
    (report,) = validate(tmp_path)
    assert (report.ok, report.steps, report.lines) == (True, 10, len(events))
    assert not report.findings
    replayed = list(replay_file(tmp_path / "run-1.jsonl", UncertaintyMonitor().profile))
    assert len(replayed) == 10
    assert all(step.same for step in replayed)


def test_a_label_goes_behind_the_last_part_and_means_the_latest_run(tmp_path):
    record(tmp_path, rotate_bytes=3000)
    record(tmp_path, rotate_bytes=3000)
    assert label(tmp_path, Label(session_id="run-1", success=False), by="ana") is not None
    first, second = runs(tmp_path)
    assert first.outcome.success is None
    assert (second.outcome.success, second.outcome.labelled_by) == (False, "ana")


def test_a_writer_that_starts_again_goes_on_in_the_last_part(tmp_path):
    first = record(tmp_path, rotate_bytes=3000)
    before = names(tmp_path)
    second = record(tmp_path, n=1)
    assert names(tmp_path) == before
    assert list(read(tmp_path / "run-1.jsonl")) == first + second


def test_an_event_larger_than_a_part_has_one_of_its_own_and_is_whole(tmp_path):
    events = record(tmp_path, n=4, rotate_bytes=1)
    assert len(names(tmp_path)) == len(events)
    assert list(read(tmp_path / "run-1.jsonl")) == events


def test_by_age_a_part_ends_when_it_has_been_open_for_long_enough_and_holds_something(tmp_path):
    record(tmp_path, n=3, rotate_s=1e-9)
    assert len(names(tmp_path)) == 5  # session, three steps, outcome: each comes later than a nanosecond
    record(tmp_path / "young", n=3, rotate_s=3600.0)
    assert names(tmp_path / "young") == ["run-1.jsonl"]


def test_with_few_files_open_and_many_sessions_every_one_finds_its_part_again(tmp_path):
    with RecordingProcessor(tmp_path, max_open=2, rotate_bytes=600, fsync="none") as recorder:
        for number in range(60):
            recorder.on_event(SessionStarted(session_id=f"s{number % 6}", agent_id="a", time_s=float(number)))
    for session in range(6):
        found = [event.time_s for event in read(tmp_path / f"s{session}.jsonl")]
        assert found == [float(number) for number in range(60) if number % 6 == session]
    assert len(names(tmp_path)) > 6


def test_sessions_whose_names_look_like_parts_stay_their_own(tmp_path):
    for session_id in ("run-1", "run-1+0001", "run-1+0002.jsonl"):
        record(tmp_path, n=1, session_id=session_id)
    assert sorted(run.session_id for run in runs(tmp_path)) == ["run-1", "run-1+0001", "run-1+0002.jsonl"]


def test_a_recording_whose_beginning_was_deleted_is_read_from_what_is_there(tmp_path):
    events = record(tmp_path, rotate_bytes=3000)
    kept = len(list(read(tmp_path / "run-1+0001.jsonl")))
    (tmp_path / "run-1.jsonl").unlink()
    (run,) = runs(tmp_path)
    assert run.events == tuple(events[-kept:])


def test_a_part_that_a_killed_writer_left_torn_is_set_aside_and_the_next_part_is_whole(tmp_path):
    record(tmp_path, rotate_bytes=3000)
    path = tmp_path / "run-1.jsonl"
    path.write_bytes(path.read_bytes() + b'{"v":1,"type":"step","sess')
    torn = []
    whole = list(read(path, on_partial_line=torn.append))
    assert len(torn) == 1
    assert len(whole) == 12


def test_two_processes_that_rotate_one_session_lose_and_mix_nothing(tmp_path):
    program = f"""
        import sys
        from grampus_uq.records.events import SessionStarted
        from grampus_uq.recording import RecordingProcessor
        with RecordingProcessor({str(tmp_path)!r}, rotate_bytes=2000, fsync="none") as recorder:
            for number in range(300):
                begun = SessionStarted(session_id="s", agent_id=sys.argv[1], time_s=float(number), resumed=True)
                recorder.on_event(begun)
    """
    workers = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), name]) for name in ("a", "b")]
    assert [worker.wait(120) for worker in workers] == [0, 0]
    found = list(read(tmp_path / "s.jsonl"))
    for name in ("a", "b"):
        assert sorted(event.time_s for event in found if event.agent_id == name) == [float(n) for n in range(300)]
    assert max(os.path.getsize(tmp_path / name) for name in names(tmp_path)) <= 2000 + 600


@given(acts, st.integers(1, 5000))
def test_whatever_the_size_of_the_parts_the_events_read_back_are_the_same(script, size):
    with tempfile.TemporaryDirectory() as folder:
        captured = Captured()
        with RecordingProcessor(folder, fsync="none", rotate_bytes=size) as parts:
            monitor = watch(processors=[captured, parts])
            anyio.run(play, monitor.session("s"), script)
        with RecordingProcessor(Path(folder) / "whole", fsync="none", key=b"k" * 32) as whole:
            for event in read(Path(folder) / "s.jsonl"):
                whole.on_event(event)
        found = list(read(Path(folder) / "s.jsonl"))
        assert len(found) == len(captured.events)
        assert [type(event) for event in found] == [type(event) for event in captured.events]
        steps = [step.same for step in replay_file(Path(folder) / "s.jsonl", monitor.profile)]
        assert all(steps)


@pytest.mark.parametrize("wrong", [{"rotate_bytes": 0}, {"rotate_s": -1.0}])
def test_a_rotation_that_cannot_be_is_refused(tmp_path, wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        RecordingProcessor(tmp_path, **wrong)
