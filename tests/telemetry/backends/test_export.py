"""A recording sent as spans: the spans that were live, at their own times, with the same ids each time, and no text."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grampus_uq.cli import main
from grampus_uq.errors import ConfigurationError, DataError, ExportError
from grampus_uq.importers import events as imported_events
from grampus_uq.importers import read_tau_bench
from grampus_uq.monitor.session import _ANSWERS
from grampus_uq.recording import Label, RecordingProcessor, encode, find_run, label, read
from grampus_uq.records.events import DecisionEvent, Event, ObservationEvent, OutcomeEvent, StepEvent
from grampus_uq.records.values import Outcome, ToolCall
from grampus_uq.records.vocabulary import UncertaintyLevel
from grampus_uq.telemetry.conventions import RUN, TOOL
from grampus_uq.telemetry.export import ExportReport, send_recordings
from grampus_uq.telemetry.otlp_exporter import span_exporter
from tests.recording.events import START_S, events, session, started, step_event
from tests.sampling import examples
from tests.telemetry.attribute_tables import ATTRIBUTES, EXPORTED, PARENT
from tests.telemetry.backends.receiver import Receiver, by_grpc, by_http, values
from tests.telemetry.backends.recorded import SECRET, Spans, watch_first_half, watch_second_half


def watched(folder: Path) -> Spans:
    """A run with a pause, recorded into the folder; its live spans."""
    spans = Spans()

    async def both() -> None:
        snapshot = await watch_first_half(folder, spans.tracer)
        await watch_second_half(folder, spans.tracer, snapshot)

    anyio.run(both)
    return spans


def write(path: Path, found: list[Event]) -> Path:
    path.write_bytes(b"".join(encode(event) for event in found))
    return path


def sent(paths: Any, **given: Any) -> tuple[ExportReport, list[Any]]:
    exporter = InMemorySpanExporter()
    report = send_recordings(paths, exporter, **given)
    return report, list(exporter.get_finished_spans())


def identities(spans: list[Any]) -> set[tuple[str, int, int, int | None]]:
    return {(s.name, s.context.trace_id, s.context.span_id, s.parent.span_id if s.parent else None) for s in spans}


# -- what is sent --


def test_the_monitors_spans_are_those_that_were_live_to_the_nanosecond_and_the_attribute(tmp_path: Path) -> None:
    live = watched(tmp_path)
    report, spans = sent(tmp_path)
    mine = [span for span in spans if span.name.startswith("uncertainty.")]
    assert {span.name for span in mine} == {
        f"uncertainty.{name}" for name in ("estimate", "semantic", "escalate", "approval")
    }

    def content(found: Any) -> list[Any]:
        told = [(s.name, s.start_time, s.end_time, dict(s.attributes), len(s.events)) for s in found]
        return sorted(told, key=str)

    assert content(mine) == content(live.finished)
    assert (report.runs, report.steps, report.spans, report.n_refused) == (1, 5, len(spans), 0)


def test_a_pause_does_not_break_the_trace_and_every_span_lies_beneath_the_run(tmp_path: Path) -> None:
    watched(tmp_path)
    _, spans = sent(tmp_path)
    assert len({span.context.trace_id for span in spans}) == 1
    (root,) = [span for span in spans if span.parent is None]
    by_id = {span.context.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        if span is not root:
            parent = by_id[span.parent.span_id]
            wanted = "uncertainty.estimate" if span.name.endswith(("semantic", "escalate", "approval")) else root.name
            assert parent.name == wanted
            around = root if span.name.endswith("approval") else parent  # one waits after the step that paused
            assert around.start_time <= span.start_time <= span.end_time <= around.end_time
    assert root.name == "invoke_agent desk"
    told = {event.name: event for event in root.events}
    assert set(told) == {"uncertainty.resumed", "uncertainty.decision"}
    assert told["uncertainty.decision"].attributes["principal"] == "ana"
    assert (root.attributes["uncertainty.outcome"], root.attributes["gen_ai.conversation.id"]) == ("failure", "run-1")


def test_a_tool_lies_between_what_let_it_run_and_its_result_and_a_rejected_call_did_not_run(tmp_path: Path) -> None:
    watched(tmp_path)
    recorded = list(read(tmp_path / "run-1.jsonl"))
    _, spans = sent(tmp_path)
    tools = {span.name: span for span in spans if span.name.startswith("execute_tool")}
    assert set(tools) == {"execute_tool look_up", "execute_tool send_money", "execute_tool receipt"}
    assert len(tools) == sum(span.name.startswith("execute_tool") for span in spans)  # one send_money: the approved one
    cleared = next(e for e in recorded if isinstance(e, StepEvent) and e.step.step_id == "look")
    answered = next(e for e in recorded if getattr(e, "call_id", None) == "c1")
    look = tools["execute_tool look_up"]
    assert (look.start_time, look.end_time) == (cleared.ended_ns, round(answered.time_s * 1e9))  # type: ignore[union-attr]
    assert look.status.is_ok
    approved = next(e for e in recorded if getattr(e, "decision", "") == "approve")
    assert tools["execute_tool send_money"].start_time == round(approved.time_s * 1e9)  # type: ignore[union-attr]
    assert tools["execute_tool send_money"].attributes["gen_ai.tool.call.id"] == "c2"
    assert not tools["execute_tool receipt"].status.is_ok
    assert tools["execute_tool receipt"].attributes["error.type"] == "tool_error"


@pytest.mark.parametrize("decision", _ANSWERS)
def test_a_call_ran_exactly_where_it_was_decided_so(decision: str, tmp_path: Path) -> None:
    watched(tmp_path)
    file = tmp_path / "run-1.jsonl"
    events = [
        dataclasses.replace(event, decision=decision) if getattr(event, "decision", "") == "approve" else event
        for event in read(file)
    ]
    file.unlink()
    write(file, events)
    names = [span.name for span in sent(tmp_path)[1]]
    assert ("execute_tool send_money" in names) is (decision not in ("reject", "respond", "guidance"))


@given(
    found=st.lists(st.builds(Outcome, success=st.none() | st.booleans(), labelled_by=st.sampled_from([None, "ana"])))
)
def test_the_outcome_is_the_one_that_counts_in_the_recording(found: list[Outcome]) -> None:
    """A run may be labelled while it waits, and go on: its label counts all the same."""
    with tempfile.TemporaryDirectory() as folder:
        ends: list[Event] = [OutcomeEvent(session_id="s1", agent_id="desk", outcome=one) for one in found]
        write(Path(folder, "s1.jsonl"), [started("s1"), *ends])
        counts, (root,) = find_run(folder, "s1").outcome, sent(folder)[1]
    told = [root.attributes.get(f"uncertainty.{name}") for name in ("outcome", "stop_reason", "labelled_by")]
    words = {True: "success", False: "failure", None: "unknown"}
    said = [None] * 3 if counts is None else [words[counts.success], counts.stop_reason.value, counts.labelled_by]
    assert told == said


def carried(spans: list[Any]) -> set[tuple[str, str]]:
    """{(key, where)} of all that is no span of the monitor's own, each value of its type in a table."""
    found = set()
    for span in spans:
        where = span.name.partition(" ")[0]
        if where in (RUN, TOOL):
            for place, attributes in [
                (where, span.attributes),
                *((event.name, event.attributes) for event in span.events),
            ]:
                for key, value in attributes.items():
                    table = EXPORTED if place in getattr(EXPORTED.get(key), "on", ()) else ATTRIBUTES
                    assert type(value) is table[key].type, (key, value)
                    assert table is EXPORTED or (place == RUN and PARENT in table[key].on), (key, place)
                    found |= {(key, place)} if table is EXPORTED else set()
    return found


def test_every_attribute_of_the_table_is_sent_and_none_beside_it(tmp_path: Path) -> None:
    watched(tmp_path)
    fitted = dataclasses.replace(started("s1"), profile_fingerprint="ab" * 32)
    answered = DecisionEvent(
        session_id="s1",
        agent_id="agent",
        decision="approve",
        principal="ana",
        acknowledged=UncertaintyLevel.HIGH,
        time_s=START_S + 1,
    )
    ended = OutcomeEvent(session_id="s1", agent_id="agent", outcome=Outcome(success=True, labelled_by="zoe"))
    permitted = dataclasses.replace(answered, decision="permit", acknowledged=None, message="goes ahead: the promise")
    write(tmp_path / "fitted.jsonl", [fitted, answered, permitted, ended])
    assert carried(sent(tmp_path)[1]) == {(key, where) for key, found in EXPORTED.items() for where in found.on}


# -- ids --


def test_sending_again_sends_the_same_ids_also_after_moving_growing_and_labelling(tmp_path: Path) -> None:
    watched(tmp_path / "a")
    before = sent(tmp_path / "a")[1]
    assert identities(sent(tmp_path / "a")[1]) == identities(before)
    (tmp_path / "b").mkdir()
    found = list(read(tmp_path / "a" / "run-1.jsonl"))
    half = write(tmp_path / "b" / "x.jsonl", found[: len(found) // 2])
    assert identities(sent(half)[1]) < identities(before)  # strictly less was there, and all of that is the same
    shutil.copy(tmp_path / "a" / "run-1.jsonl", half)
    label(tmp_path / "b", Label(session_id="run-1", success=True), by="zoe")
    labelled = sent(half)[1]
    assert identities(labelled) == identities(before)
    roots = [next(s for s in spans if s.parent is None) for spans in (before, labelled)]
    assert [root.attributes["uncertainty.outcome"] for root in roots] == ["failure", "success"]
    assert roots[0].end_time == roots[1].end_time  # the label of later does not make the run longer


def test_runs_that_share_an_id_an_agent_or_a_file_are_different_traces(tmp_path: Path) -> None:
    again = [dataclasses.replace(started("s1"), time_s=START_S + 99), *session("s1")[1:]]
    path = write(tmp_path / "many.jsonl", [*session("s1"), *again, *session("s2")])
    report, spans = sent(path)
    assert report.runs == 3
    assert len({span.context.trace_id for span in spans}) == 3
    assert len({(span.context.trace_id, span.context.span_id) for span in spans}) == len(spans)


# -- what never leaves --


def texts_sent(spans: list[Any]) -> str:
    return json.dumps([json.loads(span.to_json()) for span in spans], ensure_ascii=False)


def test_no_text_of_a_run_that_was_recorded_in_full_is_sent(tmp_path: Path) -> None:
    watched(tmp_path)
    assert (tmp_path / "run-1.jsonl").read_text().count(SECRET) >= 8
    with by_grpc() as receiver:
        exporter = span_exporter(receiver.endpoint)
        send_recordings(tmp_path, exporter)
        exporter.shutdown()
    assert receiver.spans
    assert SECRET.encode() not in receiver.wire()


def test_texts_are_sent_when_they_are_asked_for_and_after_redaction(tmp_path: Path) -> None:
    watched(tmp_path)
    said = [
        s.attributes["gen_ai.output.messages"]
        for s in sent(tmp_path, content=True)[1]
        if "gen_ai.output.messages" in s.attributes
    ]
    assert len(said) == 1
    assert f"I look it up: {SECRET}" in said[0]
    _, spans = sent(tmp_path, content=True, redact=lambda key, text: text.replace(SECRET, "[code]"))
    assert SECRET not in texts_sent(spans)
    assert "I look it up: [code]" in texts_sent(spans)


def test_a_hostile_name_of_a_tool_is_not_shown(tmp_path: Path) -> None:
    call = ToolCall(id="c0", name=f"tell {SECRET}")
    told = dataclasses.replace(
        step_event(0), step=dataclasses.replace(step_event(0).step, kind="tool_call", tool_calls=(call,))
    )
    result = ObservationEvent(
        session_id="s1", agent_id="agent", kind="tool_result", text="", call_id="c0", time_s=START_S
    )
    write(tmp_path / "a.jsonl", [started("s1"), told, result])
    assert [span.name for span in sent(tmp_path)[1] if "tool" in span.name] == ["execute_tool other"]


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(found=st.lists(events, min_size=1, max_size=6))
def test_whatever_a_recording_holds_is_sent_or_named_and_texts_stay(tmp_path: Path, found: list[Event]) -> None:
    marked = [_planted(dataclasses.replace(event, session_id="s", agent_id="a")) for event in found]
    path = write(tmp_path / "any.jsonl", marked)
    with by_http() as receiver:
        exporter = span_exporter(receiver.endpoint, protocol="http")
        report = send_recordings(path, exporter)
        exporter.shutdown()
    assert report.spans == len(receiver.spans)
    assert (report.runs > 0) or report.n_refused
    assert all(error.line is not None and error.path for error in report.refused)
    assert SECRET.encode() not in receiver.wire()
    for span in receiver.spans:
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano


def test_a_step_without_any_time_is_shown_at_the_latest_time_of_its_run(tmp_path: Path) -> None:
    decided = DecisionEvent(session_id="s1", agent_id="agent", decision="approve", principal="ann", time_s=START_S)
    step = step_event(0)
    timeless = dataclasses.replace(step, started_ns=0, ended_ns=0, step=dataclasses.replace(step.step, time_s=0.0))
    write(tmp_path / "a.jsonl", [decided, timeless])
    assert {span.start_time for span in sent(tmp_path)[1]} == {round(START_S * 1e9)}


def _planted(event: Event) -> Event:
    if isinstance(event, StepEvent):
        readings = tuple(dataclasses.replace(reading, detail=SECRET) for reading in event.readings)
        calls = (ToolCall(id=f"the id is {SECRET}", name=f"tell {SECRET}", arguments={"to": SECRET}),)
        step = dataclasses.replace(event.step, text=SECRET, tool_calls=calls)
        return dataclasses.replace(event, step=step, readings=readings)
    if isinstance(event, OutcomeEvent):
        return dataclasses.replace(event, outcome=dataclasses.replace(event.outcome, note=SECRET))
    if isinstance(event, ObservationEvent):
        return dataclasses.replace(event, text=SECRET, call_id=f"the id is {SECRET}")
    return dataclasses.replace(event, message=SECRET) if isinstance(event, DecisionEvent) else event


# -- what is wrong --


def test_a_damaged_line_is_named_and_everything_else_is_sent(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", session("s1", steps=3))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = b'{"v":1,"type":"step","content":"full","session_id":5}\n'
    path.write_bytes(b"".join(lines) + b'{"v":1,"type":"st')
    write(tmp_path / "b.jsonl", session("s2", steps=2))
    report, spans = sent(tmp_path)
    assert (report.runs, report.steps, report.torn_lines, report.n_refused) == (2, 4, 1, 1)
    (error,) = report.refused
    assert (error.path, error.line) == (str(path), 4)
    assert sum(span.name == "uncertainty.estimate" for span in spans) == 4


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ended_ns": 2**63}, "ended_ns"),
        ({"started_ns": -5}, "started_ns"),
    ],
)
def test_a_number_that_no_span_can_hold_is_named(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    bad = dataclasses.replace(step_event(1), **change)
    path = write(tmp_path / "a.jsonl", [*session("s1", steps=1)[:2], bad])
    report, spans = sent(path)
    assert [(error.path, error.line, error.field) for error in report.refused] == [(str(path), 3, field)]
    assert sum(span.name == "uncertainty.estimate" for span in spans) == 1


def test_a_run_that_was_imported_without_times_is_named_and_with_times_it_is_sent(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Done."}]
    (tmp_path / "results.json").write_text(json.dumps([{"task_id": 3, "trial": 0, "reward": 1.0, "traj": turns}]))
    (imported,) = read_tau_bench(tmp_path / "results.json")
    write(tmp_path / "without.jsonl", list(imported_events(imported)))
    report, spans = sent(tmp_path / "without.jsonl")
    assert (report.runs, spans) == (0, [])
    assert "start_s" in str(report.refused[0])
    write(tmp_path / "with.jsonl", list(imported_events(imported, start_s=START_S)))
    report, spans = sent(tmp_path / "with.jsonl")
    assert (report.runs, report.steps) == (1, 1)
    estimate = next(span for span in spans if span.name == "uncertainty.estimate")
    assert estimate.start_time == estimate.end_time == round((START_S + 1) * 1e9)


def test_a_session_that_goes_on_after_another_is_named(tmp_path: Path) -> None:
    first, second = session("s1", steps=2), session("s2", steps=1)
    path = write(tmp_path / "a.jsonl", [*first[:3], *second, *first[3:]])
    report, _ = sent(path)
    assert {error.line for error in report.refused} == set(range(3 + len(second) + 1, len(first) + len(second) + 1))
    assert report.steps == 2


def test_a_file_that_cannot_be_opened_does_not_hold_up_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "gone")
    write(tmp_path / "b.jsonl", session("s1"))
    report, _ = sent(tmp_path)
    assert (report.runs, [error.path for error in report.refused]) == (1, [str(tmp_path / "a.jsonl")])
    exporter = Counting()
    with pytest.raises(DataError, match="does not exist"):
        send_recordings([tmp_path, tmp_path / "nothing"], exporter)
    assert exporter.sizes == []


# -- handing over --


class Counting(SpanExporter):
    """Takes batches until it refuses; keeps only their sizes."""

    def __init__(self, takes: int = 10**9) -> None:
        self.takes = takes
        self.sizes: list[int] = []

    def export(self, spans: Any) -> SpanExportResult:
        if len(self.sizes) >= self.takes:
            return SpanExportResult.FAILURE
        self.sizes.append(len(spans))
        return SpanExportResult.SUCCESS


@pytest.mark.slow
def test_a_long_run_leaves_in_batches_and_none_is_dropped(tmp_path: Path) -> None:
    path = write(tmp_path / "long.jsonl", session("s1", steps=1500))
    exporter, told = Counting(), list[int]()
    report = send_recordings(path, exporter, on_sent=told.append)
    assert max(exporter.sizes) == 512
    assert sum(exporter.sizes) == sum(told) == report.spans == 1501
    with pytest.raises(ExportError, match="512 spans were taken before") as caught:
        send_recordings(path, Counting(takes=1))
    assert caught.value.sent == 512


def test_long_ids_are_cut_and_make_small_batches(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [dataclasses.replace(e, agent_id="x" * 50_000) for e in session("s1", steps=200)])
    exporter = Counting()
    send_recordings(tmp_path, exporter)
    assert max(exporter.sizes) < 128
    assert all(len(span.attributes.get("agent_id", "")) <= 8192 for span in sent(tmp_path)[1])


def test_an_application_that_samples_nothing_or_disables_the_sdk_does_not_lose_recordings_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.jsonl", session("s1"))
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert sent(tmp_path)[0].spans == 4
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with pytest.raises(ConfigurationError, match="OTEL_SDK_DISABLED"):
        sent(tmp_path)


def test_the_service_is_named_by_argument_environment_or_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.jsonl", session("s1"))

    def name(**given: Any) -> Any:
        return sent(tmp_path, **given)[1][0].resource.attributes["service.name"]

    assert name() == "grampus-uq"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=from-attributes,openinference.project.name=p")
    assert name() == "from-attributes"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "from-environment")
    assert name() == "from-environment"
    assert name(service_name="desk") == "desk"
    assert sent(tmp_path)[1][0].resource.attributes["openinference.project.name"] == "p"


# -- the command line --


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = 0
    try:
        main(["send", *arguments])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return code, *capsys.readouterr()


@pytest.mark.parametrize("protocol", [None, "grpc", "http"])
def test_the_command_sends_by_either_protocol_with_the_environments_headers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, protocol: str | None
) -> None:
    watched(tmp_path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20k3y")
    with by_http() if protocol == "http" else by_grpc() as receiver:
        asked = [] if protocol is None else ["--protocol", protocol]
        code, out, err = run(capsys, str(tmp_path), "--otlp", receiver.endpoint, "--json", *asked)
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "files": 1,
        "runs": 1,
        "steps": 5,
        "spans": len(receiver.spans),
        "torn_lines": 0,
        "n_left_out": 0,
        "left_out": [],
    }
    assert receiver.headers[0]["authorization"] == "Bearer k3y"
    assert receiver.resources[0]["service.name"] == "grampus-uq"
    expected = sorted((s.name, s.start_time, s.end_time, f"{s.context.span_id:016x}") for s in sent(tmp_path)[1])
    came = [(s.name, s.start_time_unix_nano, s.end_time_unix_nano, s.span_id.hex()) for s in receiver.spans]
    assert sorted(came) == expected
    estimate = next(
        span for span in receiver.spans if values(span).get("step_id") == "think" and span.name.endswith("estimate")
    )
    assert values(estimate)["verbalized_confidence"] == 0.7


def test_the_command_names_what_it_left_out_and_ends_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", session("s1"))
    path.write_bytes(path.read_bytes() + b'{"v":2}\n')
    with by_grpc() as receiver:
        code, out, err = run(capsys, str(path), "--otlp", receiver.endpoint)
        assert code == 1
        assert out.startswith("4 spans of 1 runs (3 steps) sent to http://127.0.0.1:")
        assert f"left out: {path}:9, field 'v': was written by a newer version" in err
        code, out, _ = run(capsys, str(path), "--otlp", receiver.endpoint, "--json")
        assert json.loads(out)["left_out"][0]["line"] == 9


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_an_endpoint_that_refuses_or_is_not_there_is_one_line_and_status_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    write(tmp_path / "a.jsonl", session("s1"))
    with by_http(takes=0) if protocol == "http" else by_grpc(takes=0) as receiver:
        code, out, err = run(capsys, str(tmp_path), "--otlp", receiver.endpoint, "--protocol", protocol)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "no such key" in err
    assert "Nothing was taken; send again when it answers." in err
    code, out, err = run(
        capsys, str(tmp_path), "--otlp", receiver.endpoint, "--protocol", protocol, "--timeout", "1"
    )  # it has gone
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "refused spans" in err


@pytest.mark.parametrize("address", ["", "ftp://x:1", "http://", "http://user:hunter2@:4317", "http://x:port"])
def test_an_address_that_cannot_be_one_is_refused_without_showing_its_password(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    write(tmp_path / "a.jsonl", session("s1"))
    code, _, err = run(capsys, str(tmp_path), f"--otlp={address}")
    assert code == 2
    assert "an http or https address such as http://localhost:4317" in err
    assert "hunter2" not in err


def test_the_path_of_http_is_added_only_where_it_is_missing() -> None:
    def endpoint(*given: Any, **more: Any) -> str:
        exporter: Any = span_exporter(*given, **more)
        exporter.shutdown()
        found: str = exporter._endpoint
        return found

    assert endpoint("http://x:4318") == "http://x:4318/v1/traces"
    assert endpoint("x:4318") == "http://x:4318/v1/traces"
    assert endpoint("https://x/otlp/v1/traces") == "https://x/otlp/v1/traces"
    assert endpoint("https://x/api/otel", protocol="http") == "https://x/api/otel/v1/traces"
    assert endpoint("localhost:4317") == "localhost:4317"
    with pytest.raises(ConfigurationError, match="'grpc' or 'http'"):
        span_exporter("http://x", protocol="zipkin")


def test_recordings_of_several_processes_are_sent_as_they_lie(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path / "a") as recorder:
        for event in session("s1"):
            recorder.on_event(event)
        recorder.on_event(OutcomeEvent(session_id="s1", agent_id="agent", outcome=Outcome(success=True)))
    with by_http() as receiver:
        exporter = span_exporter(receiver.endpoint, protocol="http")
        report = send_recordings([tmp_path / "a"], exporter)
        exporter.shutdown()
    assert isinstance(receiver, Receiver)
    assert report.spans == len(receiver.spans) == 4
