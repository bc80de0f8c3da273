"""The recorder: where it writes, what it leaves out, and what it does with what cannot be written as it is."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import hmac
import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.recording import MAX_LINE_BYTES, RecordingProcessor, decode, encode, file_name, read, redact
from grampus_uq.recording.kept_content import folder_key
from grampus_uq.recording.whole_file import place_new
from grampus_uq.recording.writer import Syncer
from grampus_uq.records.call_parts import CallPart, Candidate
from grampus_uq.records.events import DecisionEvent, Event, LookEvent, ObservationEvent, OutcomeEvent, StepEvent
from grampus_uq.records.protocols import Processor
from grampus_uq.records.values import Outcome, Reading, TokenLogprob, ToolCall
from grampus_uq.records.vocabulary import UncertaintyAction
from tests.recording.events import events, session, started, step_event
from tests.sampling import examples

KEY = b"k" * 32


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_it_is_a_processor_and_appends_a_line_an_event(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path, content="full") as recorder:
        assert isinstance(recorder, Processor)
        for event in session("s1") + session("s2"):
            recorder.on_event(event)
    assert list(read(recorder.path("s1"))) == session("s1")
    assert list(read(recorder.path("s2"))) == session("s2")


def test_a_session_taken_up_again_is_appended_to(tmp_path: Path) -> None:
    for _ in range(2):
        with RecordingProcessor(tmp_path, content="full") as recorder:
            recorder.on_event(started())
            recorder.close()
            recorder.on_event(step_event(0))  # after close: opens again
    assert len(list(read(tmp_path / "s1.jsonl"))) == 4


# --- names -----------------------------------------------------------------------------------------------------------

HOSTILE = ["../../etc/passwd", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "CON", "con", "nul.txt", "a\x00b", "A",
           ".x", "x" * 300,"é", "\ud800", "-", "~", "a~b", "s1.jsonl", ".hash-key", "a\nb", "C:\\x", "ſ"]  # fmt: skip


@pytest.mark.parametrize("session_id", HOSTILE)
def test_no_session_id_leaves_the_folder(tmp_path: Path, session_id: str) -> None:
    folder = tmp_path / "runs"
    event = ObservationEvent(session_id="", agent_id="a", kind="user", text="hi")
    name = file_name(session_id)
    assert Path(name).name == name
    assert name.isascii()
    assert len(name) < 150
    if session_id == "\ud800":  # no JSON can hold it
        return
    with RecordingProcessor(folder, content="none") as recorder:
        recorder.on_event(dataclasses.replace(event, session_id=session_id))
    assert [path.name for path in folder.iterdir()] == [name]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert next(read(folder / name)).session_id == session_id


def test_ids_that_differ_in_case_only_have_files_that_differ_in_more() -> None:
    names = [file_name(session_id).casefold() for session_id in ("run", "Run", "RUN", "RUn")]
    assert len(set(names)) == 4


@given(st.lists(st.text(max_size=6) | st.sampled_from(HOSTILE), unique=True, max_size=30))
def test_no_two_session_ids_share_a_file_even_where_case_is_folded(session_ids: list[str]) -> None:
    derived = [file_name(session_id) for session_id in session_ids]
    derived += [
        file_name(name.removesuffix(".jsonl")) for name in derived if "~" in name
    ]  # an id made to look like one
    assert len({name.casefold() for name in derived}) == len(derived)


def test_a_link_planted_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "s1.jsonl").symlink_to(target)
    recorder = RecordingProcessor(tmp_path / "runs")
    with pytest.raises(OSError, match="symbolic link"):
        recorder.on_event(started())
    assert target.read_text() == "mine"


def test_recordings_and_their_key_are_for_their_owner_only(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path / "runs") as recorder:
        recorder.on_event(started())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "runs").iterdir()}
    assert modes == {"s1.jsonl": 0o600, ".hash-key": 0o600}
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == 0o700


# --- content ---------------------------------------------------------------------------------------------------------

SECRET = "sk-live-4242"


def secretive() -> list[Event]:
    """A secret in every place where free text can be."""
    event = step_event(0, text=SECRET, arguments={"card": SECRET, SECRET: 1})
    assert event.step.logprobs is not None
    return [
        started(),
        dataclasses.replace(
            event,
            step=dataclasses.replace(
                event.step, logprobs=(TokenLogprob(token=SECRET, logprob=-1.0, top=((SECRET, -1.0),)),)
            ),
            readings=tuple(dataclasses.replace(reading, detail=SECRET) for reading in event.readings),
        ),
        ObservationEvent(session_id="s1", agent_id="agent", kind="tool_result", text=SECRET, call_id="c0"),
        DecisionEvent(session_id="s1", agent_id="agent", decision="edit", principal="ana", message=SECRET),
        OutcomeEvent(session_id="s1", agent_id="agent", outcome=Outcome(success=True, note=SECRET)),
    ]


@pytest.mark.parametrize("content", ["hashed", "none", None])
def test_no_text_reaches_the_disk_unless_it_is_asked_for(tmp_path: Path, content: Any) -> None:
    with RecordingProcessor(tmp_path, **({"content": content} if content else {})) as recorder:
        for event in secretive():
            recorder.on_event(event)
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert SECRET.encode() not in written
    assert hashlib.sha256(SECRET.encode()).hexdigest()[:16].encode() not in written  # a plain hash could be guessed
    assert {line["content"] for line in lines(tmp_path / "s1.jsonl")} == {content or "hashed"}


@pytest.mark.parametrize("decision", ["permit", "chain"])
def test_what_let_a_call_go_ahead_is_said_in_a_recording_that_keeps_no_human_message(decision: str) -> None:
    let = DecisionEvent(session_id="s1", agent_id="agent", decision=decision, principal="ana", message="at most 2 %")
    assert redact(let, "hashed", KEY) == let
    assert redact(let, "none", KEY) == dataclasses.replace(let, message=None)
    denied = redact(dataclasses.replace(let, decision="reject"), "hashed", KEY)
    assert str(denied.message).startswith("hmac:")  # type: ignore[union-attr]


@pytest.mark.parametrize("content", ["hashed", "none"])
def test_likely_values_are_content_and_whether_there_were_any_decides_nothing(content: Any) -> None:
    likely = Candidate(text="SECRET", whole=True, probability=0.3, match="SECRET 2", occurs_as=("SECRET 3",))
    part = CallPart(name="to", probability=0.3, least=0.3, occurs_as=("SECRET 4",), candidates=(likely,))
    event = replace(step_event(0), readings=(Reading(source="call_probability", value=0.3, parts=(part,)),))
    line = encode(redact(event, content, KEY), content=content)
    assert b"SECRET" not in line
    left = decode(line)
    assert isinstance(left, StepEvent)
    assert left.readings[0].parts == (replace(part, occurs_as=(), candidates=()),)
    assert b"SECRET 4" in encode(event)


def test_with_full_content_everything_is_kept(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path, content="full") as recorder:
        for event in secretive():
            recorder.on_event(event)
    assert list(read(tmp_path / "s1.jsonl")) == secretive()
    assert not (tmp_path / ".hash-key").exists()


def test_the_arguments_of_a_looks_call_are_kept_as_those_of_the_agents_own() -> None:
    call = ToolCall(id="c", name="send", arguments={"to": "bob"})
    look = LookEvent(session_id="s", agent_id="a", tier="big", call=call)
    for content in ("hashed", "none"):
        step = redact(step_event(0, arguments=call.arguments), content, KEY)
        left = redact(look, content, KEY)
        assert isinstance(left, LookEvent)
        assert isinstance(step, StepEvent)
        assert left.call is not None
        assert left.call.arguments == step.step.tool_calls[0].arguments != call.arguments
        assert left.call.name == "send"
    assert redact(dataclasses.replace(look, call=None), "none", KEY).call is None


@given(events, st.sampled_from(["hashed", "none"]))
@settings(max_examples=examples(100), deadline=None)
def test_what_a_replay_reads_is_never_taken_away(event: Event, content: Any) -> None:
    left = decode(encode(redact(event, content, KEY), content=content))
    assert type(left) is type(event)
    if isinstance(event, StepEvent) and isinstance(left, StepEvent):
        assert left.assessment == event.assessment
        assert [dataclasses.replace(reading, detail=None) for reading in left.readings] == [
            dataclasses.replace(reading, detail=None) for reading in event.readings
        ]
        for kept in ("step_id", "kind", "time_s", "effect", "tool_name"):
            assert getattr(left.step, kept) == getattr(event.step, kept)
        assert [call.name for call in left.step.tool_calls] == [call.name for call in event.step.tool_calls]
        assert (left.started_ns, left.ended_ns) == (event.started_ns, event.ended_ns)
    elif isinstance(event, OutcomeEvent) and isinstance(left, OutcomeEvent):
        assert dataclasses.replace(left.outcome, note=None) == dataclasses.replace(event.outcome, note=None)
    else:
        changeable = {"text", "message", "call"}
        names = {field.name for field in dataclasses.fields(event)} - changeable
        assert {name: getattr(left, name) for name in names} == {name: getattr(event, name) for name in names}


def test_equal_texts_and_equal_calls_stay_equal_and_different_ones_differ() -> None:
    same = [redact(step_event(0, text="a", arguments={"x": 1, "y": 2}), "hashed", KEY) for _ in range(2)]
    assert same[0] == same[1]
    reordered = redact(step_event(0, text="a", arguments={"y": 2, "x": 1}), "hashed", KEY)
    assert reordered == same[0]
    for other in (step_event(0, text="b", arguments={"x": 1, "y": 2}), step_event(0, text="a", arguments={"x": 1})):
        assert redact(other, "hashed", KEY) != same[0]
    assert redact(step_event(0, text="a"), "hashed", b"x" * 32) != redact(step_event(0, text="a"), "hashed", KEY)


def test_a_text_without_characters_stays_empty_so_that_a_silent_step_is_seen() -> None:
    left = redact(step_event(0, text=""), "hashed", KEY)
    assert isinstance(left, StepEvent)
    assert left.step.text == ""


def test_two_recorders_of_one_folder_hash_alike(tmp_path: Path) -> None:
    for session_id in ("s1", "s2"):
        with RecordingProcessor(tmp_path) as recorder:
            recorder.on_event(step_event(0, session_id))
    one, two = (next(read(tmp_path / f"s{n}.jsonl")) for n in (1, 2))
    assert isinstance(one, StepEvent)
    assert isinstance(two, StepEvent)
    assert one.step == two.step
    key = (tmp_path / ".hash-key").read_bytes()
    expected = hmac.new(key, b"I book the flight.", hashlib.sha256).hexdigest()[:32]
    assert one.step.text == f"hmac:{expected}:18"


def test_a_key_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            folder_key(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert folder_key(tmp_path) == folder_key(tmp_path)


def test_a_key_needs_no_hard_links_and_replaces_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", refused)
    key = folder_key(tmp_path)
    assert [(path.name, path.read_bytes(), path.stat().st_mode & 0o777) for path in tmp_path.iterdir()] == [
        (".hash-key", key, 0o600)
    ]
    with pytest.raises(FileExistsError):
        place_new(b"another", tmp_path / ".hash-key")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [key]


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".hash-key").write_bytes(b"short")
    with pytest.raises(DataError, match="must hold 32 bytes"):
        RecordingProcessor(tmp_path)


# --- what cannot be written as it is ---------------------------------------------------------------------------------


def recorded(tmp_path: Path, event: Event) -> tuple[dict[str, Any], Event]:
    with RecordingProcessor(tmp_path, content="full") as recorder:
        recorder.on_event(event)
    path = recorder.path(event.session_id)
    return lines(path)[0], next(read(path))


def test_an_event_too_long_for_a_line_is_kept_hashed(tmp_path: Path) -> None:
    event = step_event(0, text="x" * MAX_LINE_BYTES)
    line, back = recorded(tmp_path, event)
    assert line["content"] == "hashed"
    assert isinstance(back, StepEvent)
    assert back.assessment == event.assessment


def test_half_an_emoji_becomes_the_replacement_character(tmp_path: Path) -> None:
    line, back = recorded(tmp_path, step_event(0, text="good \ud83d", arguments={"\ud83d": ["\ud83d\ude00\ud83d"]}))
    assert line["content"] == "full"
    assert isinstance(back, StepEvent)
    assert back.step.text == "good \ufffd"
    assert back.step.tool_calls[0].arguments == {"\ufffd": ["\U0001f600\ufffd"]}
    assert back.step.logprobs == step_event(0).step.logprobs


def test_a_tool_whose_name_is_not_unicode_does_not_lose_the_step(tmp_path: Path) -> None:
    event = step_event(0)
    call = event.step.tool_calls[0].model_copy(update={"name": "delete\udc80"})
    broken = dataclasses.replace(event, step=dataclasses.replace(event.step, kind="tool_call", tool_calls=(call,)))
    with RecordingProcessor(tmp_path) as recorder:
        recorder.on_event(broken)
    back = next(read(recorder.path("s1")))
    assert isinstance(back, StepEvent)
    assert back.step.tool_name == "delete\ufffd"
    assert back.assessment == event.assessment


def test_infinite_log_probabilities_and_bottomless_arguments_do_not_lose_the_step(tmp_path: Path) -> None:
    infinite = step_event(0)
    step = dataclasses.replace(infinite.step, logprobs=(TokenLogprob(token="x", logprob=float("-inf")),))
    bottomless: dict[str, Any] = {}
    for _ in range(150):
        bottomless = {"a": bottomless}
    for number, event in enumerate([dataclasses.replace(infinite, step=step), step_event(0, arguments=bottomless)]):
        line, back = recorded(tmp_path / str(number), event)
        assert line["content"] == "hashed"
        assert isinstance(back, StepEvent)
        assert back.readings[0] == event.readings[0]


def test_what_has_no_form_at_all_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    recorder = RecordingProcessor(tmp_path, content="full")
    broken = step_event(0)
    with pytest.raises(DataError, match=r"step\.time_s"):
        recorder.on_event(dataclasses.replace(broken, step=dataclasses.replace(broken.step, time_s=float("nan"))))
    recorder.on_event(step_event(1))
    assert list(read(recorder.path("s1"))) == [step_event(1)]


# --- many sessions, threads, forks -----------------------------------------------------------------------------------


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
def test_hundreds_of_sessions_hold_no_more_files_than_allowed(tmp_path: Path) -> None:
    before = open_files()
    with RecordingProcessor(tmp_path, content="full", max_open=8) as recorder:
        for index in range(2):
            for number in range(300):
                recorder.on_event(step_event(index, f"s{number}"))
                assert open_files() <= before + 8 + 3  # the thread that syncs opens one file, and its folder
    assert open_files() <= before
    assert all(len(list(read(tmp_path / f"s{number}.jsonl"))) == 2 for number in range(300))


def test_threads_that_share_a_recorder_lose_and_mix_nothing(tmp_path: Path) -> None:
    recorder = RecordingProcessor(tmp_path, content="full", max_open=2, fsync="every")

    def write(writer: int) -> None:
        for index in range(100):
            event = step_event(index, f"s{index % 5}")
            recorder.on_event(dataclasses.replace(event, agent_id=str(writer)))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    found = [event for number in range(5) for event in read(tmp_path / f"s{number}.jsonl")]
    assert len(found) == 800
    for writer in range(8):
        for number in range(5):
            of_writer = [
                event.assessment.index
                for event in found
                if isinstance(event, StepEvent) and event.agent_id == str(writer) and event.session_id == f"s{number}"
            ]
            assert of_writer == list(range(number, 100, 5))


# --- syncing ---------------------------------------------------------------------------------------------------------


class Disk:
    """Stands where fsync is: notes which files were synced and how long they were."""

    def __init__(self) -> None:
        self.synced: dict[str, int] = {}
        self.threads: set[str] = set()
        self.refuses = False

    def fsync(self, descriptor: int) -> None:
        self.threads.add(threading.current_thread().name)
        if self.refuses:
            raise OSError(5, "Input/output error")
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.synced[Path(path).name] = os.fstat(descriptor).st_size

    def under(self, recorder: RecordingProcessor) -> RecordingProcessor:
        recorder._syncer = Syncer(recorder.folder, fsync=self.fsync)
        return recorder


@pytest.fixture
def disk() -> Disk:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("names of descriptors come from /proc")
    return Disk()


def wait_for(condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("did not happen within 10 s")


DECISION = DecisionEvent(session_id="s1", agent_id="agent", decision="approve", principal="ana")
OUTCOME = OutcomeEvent(session_id="s1", agent_id="agent", outcome=Outcome(success=True))
PAUSE = step_event(1, action=UncertaintyAction.PAUSE_FOR_HUMAN)


@pytest.mark.parametrize(
    ("policy", "event", "syncs"),
    [
        ("none", OUTCOME, False),
        ("none", PAUSE, False),
        ("decisions", step_event(1), False),
        ("decisions", PAUSE, True),
        ("decisions", DECISION, True),
        ("decisions", OUTCOME, True),
        ("every", step_event(1), True),
        ("every", started(), True),
    ],
)
def test_each_policy_syncs_what_it_says_on_a_thread_of_its_own(
    tmp_path: Path, disk: Disk, policy: Any, event: Event, syncs: bool
) -> None:
    recorder = disk.under(RecordingProcessor(tmp_path, fsync=policy))
    recorder.on_event(event)
    if syncs:
        size = recorder.path("s1").stat().st_size
        wait_for(lambda: tmp_path.name in disk.synced)  # the folder comes last
        assert disk.synced["s1.jsonl"] == size
        assert disk.threads == {"grampus-uq-sync"}
    else:
        assert disk.synced == {}
    recorder.close()
    assert ("s1.jsonl" in disk.synced) == (policy != "none")


@pytest.mark.parametrize("policy", ["none", "decisions", "every"])
def test_sync_returns_when_everything_is_on_the_disk_also_what_was_closed_meanwhile(
    tmp_path: Path, disk: Disk, policy: Any
) -> None:
    recorder = disk.under(RecordingProcessor(tmp_path, fsync=policy, max_open=1))
    for number in range(20):
        recorder.on_event(step_event(0, f"s{number}"))
    recorder.sync()
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.jsonl")}
    assert len(sizes) == 20
    assert {name: size for name, size in disk.synced.items() if name in sizes} == sizes
    recorder.close()


def test_a_disk_that_refuses_is_told_at_the_next_sync_and_never_to_the_agent(tmp_path: Path, disk: Disk) -> None:
    recorder = disk.under(RecordingProcessor(tmp_path, fsync="every"))
    disk.refuses = True
    recorder.on_event(started())
    wait_for(lambda: disk.threads)
    with pytest.raises(OSError, match="Input/output error"):
        recorder.sync()
    disk.refuses = False
    recorder.on_event(step_event(0))
    recorder.sync()
    recorder.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_raises_and_names_no_success(tmp_path: Path) -> None:
    recorder = RecordingProcessor(tmp_path)
    recorder.on_event(started())
    os.dup2(os.open("/dev/full", os.O_WRONLY), next(iter(recorder._files.values())).descriptor)
    with pytest.raises(OSError, match="No space left"):
        recorder.on_event(step_event(0))
    recorder.close()


@pytest.mark.parametrize(
    "wrong",
    [{"content": "all"}, {"fsync": "always"}, {"max_open": 0}, {"key": b"short"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_argument_is_refused_by_name(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        RecordingProcessor(tmp_path, **wrong)
