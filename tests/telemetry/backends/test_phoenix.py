"""Against a running Arize Phoenix: what was sent by gRPC and by HTTP is what its REST interface gives back."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from grampus_uq import GrampusTracer, UncertaintyMonitor
from grampus_uq.cli import main
from grampus_uq.cli.demo.demo_run import Answered, answer_questions, demo_policy
from grampus_uq.cli.demo.questions import all_questions, draw
from grampus_uq.core.state import Profile
from grampus_uq.recording import encode, read, runs
from grampus_uq.records.events import DecisionEvent, Event, ObservationEvent, SessionStarted, StepEvent
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from grampus_uq.telemetry import PhoenixAnnotations, SpanEmitter
from grampus_uq.testing import ScriptedModel
from tests.demo.examinees import SURE, UNSURE, examinee, plan_for
from tests.telemetry.backends.recorded import watch_first_half, watch_second_half
from tests.telemetry.backends.servers import Phoenix, get_json, phoenix, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first run installs 650 MB

QUESTIONS = draw(all_questions(0), 12, 0)
SURENESS = {question.id: SURE if index % 2 else UNSURE for index, question in enumerate(QUESTIONS)}
GUIDE = {
    "step_id",
    "step_type",
    "verbalized_confidence",
    "p_true_confidence",
    "fused_confidence",
    "propagated_confidence",
    "level",
    "action",
    "p_true_ran",
    "samples_used",
}


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phoenix]:
    with phoenix(tmp_path_factory.mktemp("phoenix")) as running:
        yield running


class Sending:
    """A tracer that sends to a project of Phoenix, and keeps what it sent."""

    def __init__(self, backend: Phoenix, protocol: str, project: str) -> None:
        self.kept = InMemorySpanExporter()
        self.tracer = GrampusTracer(
            service_name="test",
            otlp_endpoint=backend.endpoint(protocol),
            protocol="grpc" if protocol == "grpc" else "http/protobuf",
            span_processor=SimpleSpanProcessor(self.kept),
            resource_attributes={"openinference.project.name": project},
        )

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.kept.get_finished_spans()


def microseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1e6)


def differences(sent: ReadableSpan, came: dict[str, Any]) -> list[str]:
    """What Phoenix tells otherwise than it was sent: name, ids, times to the microsecond, attributes, events."""
    assert sent.context is not None
    assert sent.start_time is not None
    assert sent.end_time is not None
    pairs: list[tuple[str, Any, Any]] = [
        ("name", sent.name, came["name"]),
        ("trace", f"{sent.context.trace_id:032x}", came["context"]["trace_id"]),
        ("parent", None if sent.parent is None else f"{sent.parent.span_id:016x}", came["parent_id"]),
        ("start", sent.start_time // 1000, microseconds(came["start_time"])),
        ("end", sent.end_time // 1000, microseconds(came["end_time"])),
    ]
    lasted, shown_us = (sent.end_time - sent.start_time) // 1000, _duration(came)
    if abs(lasted - shown_us) > 2:  # rounding may move either end by one
        pairs.append(("duration", lasted, shown_us))
    shown_as = {**came["attributes"], "openinference.span.kind": came["span_kind"]}  # Phoenix has a column for it
    pairs += [(key, value, shown_as.get(key)) for key, value in (sent.attributes or {}).items()]
    told = [(e.name, e.timestamp // 1000, dict(e.attributes or {})) for e in sent.events]
    shown = [(e["name"], microseconds(e["timestamp"]), e["attributes"]) for e in came["events"]]
    pairs.append(("events", told, shown))
    return [f"{what}: sent {a!r}, came {b!r}" for what, a, b in pairs if not _alike(a, b)]


def _duration(came: dict[str, Any]) -> int:
    return microseconds(came["end_time"]) - microseconds(came["start_time"])


def _alike(sent: Any, came: Any) -> bool:
    """Equal, numbers to a float's last digits, times to the microsecond that rounding may move."""
    if isinstance(sent, list) and isinstance(came, list):
        return len(sent) == len(came) and all(_alike(a, b) for a, b in zip(sent, came, strict=True))
    if isinstance(sent, tuple):
        return len(sent) == len(came) and all(_alike(a, b) for a, b in zip(sent, came, strict=True))
    if isinstance(sent, int) and not isinstance(sent, bool) and isinstance(came, int):
        return abs(sent - came) <= (1 if sent > 10 else 0)
    return bool(sent == came)


def hold_against(sent: tuple[ReadableSpan, ...], came: list[dict[str, Any]]) -> None:
    """Every span that was sent is there once, as it was sent, and nothing else is."""
    by_id = {span["context"]["span_id"]: span for span in came}
    assert len(by_id) == len(came)
    assert set(by_id) == {f"{span.context.span_id:016x}" for span in sent if span.context is not None}
    for span in sent:
        assert span.context is not None
        assert differences(span, by_id[f"{span.context.span_id:016x}"]) == []


async def demo(folder: Path, tracer: GrampusTracer) -> list[Answered]:
    """The demo's agent on twelve questions, its monitor and its questions traced."""
    client = ScriptedModel(examinee(QUESTIONS, SURENESS))
    plan = plan_for(QUESTIONS, folder)
    monitor = UncertaintyMonitor(profile=Profile(policy=demo_policy()), processors=[plan.recording], tracer=tracer)
    object.__setattr__(plan, "monitor", monitor)
    object.__setattr__(plan, "tracer", tracer)
    answers: list[Answered] = []
    with plan.recording:
        await answer_questions(plan, client, answers.append)
    return answers


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_demos_spans_come_back_as_they_were_sent(backend: Phoenix, tmp_path: Path, protocol: str) -> None:
    project = f"demo-{protocol}"
    sending = Sending(backend, protocol, project)
    with sending.tracer as tracer:
        answers = anyio.run(demo, tmp_path, tracer)
    assert len(answers) == len(QUESTIONS)
    came = backend.wait_for(project, len(sending.spans))
    hold_against(sending.spans, came)
    roots = [span for span in came if span["parent_id"] is None]
    assert {span["name"] for span in roots} == {"invoke_agent grampus-uq-demo"}
    assert {span["span_kind"] for span in roots} == {"AGENT"}
    assert len(roots) == len({span["context"]["trace_id"] for span in came}) == len(QUESTIONS)
    estimates = [span for span in came if span["name"] == "uncertainty.estimate"]
    assert len(estimates) == 2 * len(QUESTIONS)
    assert all(set(span["attributes"]) >= GUIDE for span in estimates)
    judged = [span for span in estimates if span["attributes"]["step_type"] == "llm_call"]
    assert all([event["name"] for event in span["events"]] == ["gen_ai.evaluation.result"] for span in judged)
    held = sum(one.fate == "paused" for one in answers)
    assert sum(span["name"] == "uncertainty.escalate" for span in came) >= held > 0


def test_the_demos_command_sends_the_same_spans(
    backend: Phoenix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.demo.test_cli import knows_half
    from tests.models.loopback import serving

    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "openinference.project.name=demo-command")
    with serving(knows_half) as server:
        arguments = [
            "demo",
            "--task",
            "questions",
            "--model",
            "tiny",
            "--api-base",
            server.api_base,
            "--n",
            "9",
            "--json",
        ]
        with pytest.raises(SystemExit, match="0"):
            main([*arguments, "--runs-folder", str(tmp_path), "--otlp", backend.grpc])
    steps = sum(len(run.steps) for run in runs(tmp_path))
    backend.wait_for("demo-command", steps, "uncertainty.estimate")
    came = backend.wait_for("demo-command", 9, "invoke_agent grampus-uq-demo")
    assert sum(span["name"] == "uncertainty.estimate" for span in came) == steps == 18
    assert sum(span["name"] == "invoke_agent grampus-uq-demo" for span in came) == 9


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_run_that_is_paused_and_resumed_in_another_process_is_one_trace(
    backend: Phoenix, tmp_path: Path, protocol: str
) -> None:
    project = f"paused-{protocol}"
    sending = Sending(backend, protocol, project)
    with sending.tracer as tracer:
        snapshot = anyio.run(watch_first_half, tmp_path, tracer)
    assert snapshot["trace"]["traceparent"]
    (tmp_path / "snapshot.json").write_text(json.dumps(snapshot))
    command = [sys.executable, "-m", "tests.telemetry.backends.second_process", str(tmp_path / "snapshot.json")]
    subprocess.run([*command, str(tmp_path), backend.endpoint(protocol), project], check=True, timeout=120)
    (run,) = runs(tmp_path)
    assert [event.resumed for event in run.events if isinstance(event, SessionStarted)] == [False, True]
    came = backend.wait_for(project, len(sending.spans) + 1)
    wait_until(lambda: len(estimates(backend.spans(project))) == len(run.steps), "a span of every step")
    came = backend.spans(project)
    assert {span["context"]["trace_id"] for span in came} == {snapshot["trace"]["traceparent"].split("-")[1]}
    assert {span["attributes"]["step_id"] for span in estimates(came)} == {step.step.step_id for step in run.steps}
    (root,) = [span for span in came if span["parent_id"] is None]
    by_id = {span["context"]["span_id"]: span for span in came}
    late = next(span for span in estimates(came) if span["attributes"]["step_id"] == "receipt")
    assert by_id[late["parent_id"]] is root


def estimates(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [span for span in spans if span["name"] == "uncertainty.estimate"]


def test_the_steps_are_annotated_with_their_scores(backend: Phoenix, tmp_path: Path) -> None:
    project = "annotated"
    sending = Sending(backend, "grpc", project)
    emitter = SpanEmitter(sending.tracer)
    seen: list[StepEvent] = []

    class Keeping:
        def on_event(self, event: Event) -> None:
            if isinstance(event, StepEvent):
                seen.append(event)

    notes = PhoenixAnnotations(emitter, endpoint=backend.url, delay_s=0.5)

    async def watch() -> None:
        fusion = LogisticFusion(readings={"verbalized": FusedReading(mean=0.0, sd=1.0, slope=1.0)}, intercept=0.0)
        monitor = UncertaintyMonitor(profile=Profile(calibration=fusion), tracer=emitter, processors=[notes, Keeping()])
        session = monitor.session("annotated-1", "desk")
        for index, stated in enumerate((0.9, 0.4, 0.8)):
            await session.observe_llm_response(f"Confidence: {stated:.0%}", f"s{index}")

    with sending.tracer:
        anyio.run(watch)
        sending.tracer.force_flush()
        came = backend.wait_for(project, len(sending.spans))
        assert notes.close(timeout_s=30)
    assert notes.dropped == 0
    span_of = {span["attributes"]["step_id"]: span["context"]["span_id"] for span in estimates(came)}
    wanted = set[tuple[str, str, float, str | None]]()
    for event in seen:
        span, step = span_of[event.step.step_id], event.assessment
        assert step.p_success is not None
        wanted.add((span, "uncertainty.confidence.fused", round(step.fused_confidence, 9), step.level.value))
        wanted.add((span, "uncertainty.p_success", round(step.p_success, 9), None))
    asked = "&".join(f"span_ids={one}" for one in span_of.values())
    url = f"{backend.url}/v1/projects/{project}/span_annotations?{asked}&limit=100"

    def annotated() -> set[tuple[str, str, float, str | None]]:
        return {
            (one["span_id"], one["name"], round(one["result"]["score"], 9), one["result"]["label"])
            for one in get_json(url)["data"]
        }

    wait_until(lambda: annotated() == wanted, "the annotations")
    assert len(wanted) == 2 * len(seen) == 6
    assert {one["annotator_kind"] for one in get_json(url)["data"]} == {"CODE"}


def earlier(event: Event, by_s: float) -> Event:
    """The same event some time ago."""
    if isinstance(event, StepEvent):
        by_ns = round(by_s * 1e9)
        readings = tuple(dataclasses.replace(r, started_ns=max(0, r.started_ns - by_ns)) for r in event.readings)
        step = dataclasses.replace(event.step, time_s=event.step.time_s - by_s)
        started_ns, ended_ns = event.started_ns - by_ns, event.ended_ns - by_ns
        return dataclasses.replace(event, step=step, readings=readings, started_ns=started_ns, ended_ns=ended_ns)
    if isinstance(event, SessionStarted | ObservationEvent | DecisionEvent):
        return dataclasses.replace(event, time_s=event.time_s - by_s)
    return event


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_recording_of_last_week_is_shown_last_week_and_once_however_often_it_is_sent(
    backend: Phoenix,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
) -> None:
    async def both() -> None:
        snapshot = await watch_first_half(tmp_path / "now", None)
        await watch_second_half(tmp_path / "now", None, snapshot)

    anyio.run(both)
    week_s = 7 * 86_400.0
    old = [earlier(event, week_s) for event in read(tmp_path / "now" / "run-1.jsonl")]
    (tmp_path / "old.jsonl").write_bytes(b"".join(map(encode, old)))
    project = f"exported-{protocol}"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"openinference.project.name={project}")
    counts = []
    for _ in range(2):
        arguments = ["send", str(tmp_path / "old.jsonl"), "--otlp", backend.endpoint(protocol), "--json"]
        with pytest.raises(SystemExit, match="0"):
            main([*arguments, "--protocol", protocol])
        counts.append(json.loads(capsys.readouterr().out)["spans"])
    came = backend.wait_for(project, counts[0])
    sentinel(backend, project, protocol)  # what was sent after both has come, so both have been taken in
    came = [span for span in backend.spans(project) if span["name"] != "sentinel"]
    assert counts == [len(came), len(came)]
    assert len({span["context"]["trace_id"] for span in came}) == 1
    (root,) = [span for span in came if span["parent_id"] is None]
    assert root["name"] == "invoke_agent desk"
    started = next(event for event in old if isinstance(event, SessionStarted))
    assert microseconds(root["start_time"]) == pytest.approx(started.time_s * 1e6, abs=1)
    assert {event["name"] for event in root["events"]} == {"uncertainty.resumed", "uncertainty.decision"}
    steps = {event.step.step_id: event for event in old if isinstance(event, StepEvent)}
    for span in estimates(came):
        step = steps[span["attributes"]["step_id"]]
        assert microseconds(span["start_time"]) == pytest.approx(step.started_ns / 1e3, abs=1)
        assert span["attributes"]["propagated_confidence"] == step.assessment.propagated_confidence
        assert span["parent_id"] == root["context"]["span_id"]
    assert len(estimates(came)) == len(steps)


def sentinel(backend: Phoenix, project: str, protocol: str) -> None:
    """Send one more span and wait until it is shown."""
    sending = Sending(backend, protocol, project)
    with sending.tracer as tracer:
        tracer._tracer.start_span("sentinel").end()
    shown = functools.partial(backend.spans, project)
    wait_until(lambda: any(span["name"] == "sentinel" for span in shown()), "the sentinel")
