"""`grampus-uq demo` from outside: against a real server on loopback, with its spans, its errors and its Ctrl-C."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from grampus_uq.cli import main
from grampus_uq.cli.demo.demo_run import TOOL_SCHEMA
from grampus_uq.cli.demo.questions import all_questions
from grampus_uq.recording import runs
from grampus_uq.recording.artifacts import load, match, prompt_hash, tools_hash
from grampus_uq.records.vocabulary import StopReason
from tests.models.loopback import Loopback, Reply, Request, as_json, chat, failing, serving, tokens

AGENT_OF_THE_DEMO = {"model": "tiny", "prompt_hash": prompt_hash(""), "tools_hash": tools_hash([TOOL_SCHEMA])}
SENTENCE_OF = {question.text: question.key.accepted[0] for question in all_questions(0)}


def knows_half(request: Request, server: Loopback) -> Reply:
    """Right and sure when the question's length is even, wrong and unsure when it is odd; judges itself likewise."""
    asked = [message["content"] for message in request.body["messages"]]
    question = next(text for text in SENTENCE_OF if text in "\n".join(asked))
    sure = len(question) % 2 == 0
    said = SENTENCE_OF[question] if sure else "Xyzzy"
    ranked = [("True", -0.02), ("False", -4.0)] if sure else [("False", -0.5), ("True", -1.0)]
    if asked[-1] != question:
        return as_json(chat("True", logprobs=tokens(("True", ranked[0][1]), top=ranked)))
    chosen = -0.02 if sure else -1.5
    return as_json(chat(said, logprobs=tokens(("x", chosen), top=[("x", chosen), ("y", -4.0 if sure else -0.6)])))


def hangs_after_five(request: Request, server: Loopback) -> Reply:
    if server.hits > 5:
        server.stop.wait(60)
    return knows_half(request, server)


def run(*arguments: str) -> int:
    try:
        main(["demo", "--task", "questions", *arguments])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def test_json_is_one_object_with_the_figures_and_the_recording_holds_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(knows_half) as server:
        code = run("--api-base", server.api_base, "--n", "24", "--json", "--runs-folder", str(tmp_path / "a b"))
    out, err = capsys.readouterr()
    assert code == 0
    value: dict[str, Any] = json.loads(out)
    assert out.count("\n") == 1
    assert value["answered"] == 24
    groups = {group["decision"]: group for group in value["groups"]}
    assert groups["published"]["right"] == groups["published"]["n"] > 0
    assert groups["paused"]["n"] > groups["paused"]["right"] == 0
    recorded = list(runs(value["recording"]))
    assert len(recorded) == 24
    assert sum(reading.calls for found in recorded for reading in found.steps[0].readings) == server.hits - 24
    assert sum(bool(found.outcome and found.outcome.success) for found in recorded) == value["right"]
    published = (Path(value["recording"]) / "published.txt").read_text().splitlines()
    assert len(published) == groups["published"]["n"]
    assert value["next_command"].endswith(f"'{value['recording']}'")  # quoted: there is a blank in it
    assert "20 of 24 answered" in err


def test_the_report_is_printed_and_the_next_command_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(knows_half) as server:
        arguments = ["--model", "tiny", "--api-base", server.api_base, "--n", "9"]
        assert run(*arguments, "--runs-folder", str(tmp_path)) == 0
        assert {request.body["model"] for request in server.requests} == {"tiny"}
    out, _ = capsys.readouterr()
    assert "tiny: 9 questions answered" in out
    assert "carry no guarantee" in out
    command = next(line for line in out.splitlines() if line.startswith("Next:")).removeprefix("Next:").split()
    assert command[:2] == ["grampus-uq", "runs"]
    with pytest.raises(SystemExit) as end:
        main(command[1:])
    assert end.value.code == 0
    assert capsys.readouterr().out.count("demo-") >= 9


@pytest.mark.slow
def test_the_recordings_of_an_advisory_demo_can_be_fitted_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(knows_half) as server:
        arguments = ["--model", "tiny", "--api-base", server.api_base, "--n", "80", "--advisory", "--json"]
        assert run(*arguments, "--parallel", "16", "--runs-folder", str(tmp_path)) == 0
    value = json.loads(capsys.readouterr().out)
    command = shlex.split(value["next_command"])
    assert command[:2] == ["grampus-uq", "fit"]
    with pytest.raises(SystemExit) as end:
        main([*command[1:], "--stream", "token_probability", "--output", str(tmp_path / "p.json"), "--json"])
    assert end.value.code == 0
    fitted = json.loads(capsys.readouterr().out)
    assert fitted["counts"]["success"] == value["right"]
    assert fitted["counts"]["failure"] == 80 - value["right"]
    found = match(load(tmp_path / "p.json"), **AGENT_OF_THE_DEMO)
    assert found.status == "active", found.reasons
    with serving(knows_half) as server:
        arguments = ["--model", "tiny", "--api-base", server.api_base, "--n", "80", "--json"]
        profile = ["--profile", str(tmp_path / "p.json")]
        assert run(*arguments, *profile, "--parallel", "16", "--runs-folder", str(tmp_path / "again")) == 0
    again = json.loads(capsys.readouterr().out)
    assert "detector" in {found.steps[1].assessment.rule for found in runs(again["recording"])}
    assert f"detector: {fitted['guarantee']}" in again["promises"]
    wrong = {group["decision"]: group["n"] - group["right"] for group in again["groups"]}
    assert wrong["published"] < wrong["paused"]


def test_a_profile_says_which_signals_run_and_takes_no_further_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", "tiny", "--profile", str(tmp_path / "none.json"), "--runs-folder", str(tmp_path)]
    assert run(*arguments) == 1
    assert "none.json" in capsys.readouterr().err
    assert run(*arguments, "--every-signal") == 2
    assert "The profile says which signals run." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--n", "432"], 2, "from 1 to 431"),
        (["--n", "0"], 2, "0 is not in the range"),
        (["--api-base", "localhost:1"], 2, "an http or https address"),
        (["--questions", "own.csv"], 2, "No such option"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert run("--runs-folder", str(tmp_path / "runs"), *arguments) == code
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_server_that_refuses_the_key_is_asked_once_and_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(failing(401, b'{"error": {"message": "Incorrect API key"}}')) as server:
        assert run("--api-base", server.api_base, "--runs-folder", str(tmp_path)) == 1
        assert server.hits == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Incorrect API key" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("made_before", [False, True])
def test_a_demo_without_a_model_leaves_no_folder_that_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_before: bool
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    if made_before:
        (tmp_path / "runs").mkdir()
    for task in ("mails", "questions"):
        with pytest.raises(SystemExit):
            main(["demo", "--task", task, "--runs-folder", str(tmp_path / "runs")])
        assert [path.name for path in tmp_path.rglob("*")] == ["runs"] * made_before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run("--api-base", "http://127.0.0.1:9/v1", "--runs-folder", str(tmp_path / "file" / "runs")) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[Any]]]:
    """A real OTLP receiver over gRPC: its address, and the requests that came."""
    grpc: Any = importlib.import_module("grpc")  # it comes without types, and so do the stubs
    stubs: Any = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc")
    came: list[Any] = []

    class Receiver:
        def Export(self, request: Any, context: Any) -> Any:
            came.append(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    stubs.add_TraceServiceServicer_to_server(Receiver(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}", came
    server.stop(None).wait()


def test_otlp_brings_every_span_of_every_run_before_the_command_ends(
    tmp_path: Path, receiver: tuple[str, list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint, came = receiver
    with serving(knows_half) as server:
        run("--api-base", server.api_base, "--n", "12", "--json", "--runs-folder", str(tmp_path), "--otlp", endpoint)
    value = json.loads(capsys.readouterr().out)
    spans = [
        s
        for request in came
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for s in scope.spans
    ]
    by_id = {span.span_id: span for span in spans}
    agents = [span for span in spans if span.name == "invoke_agent grampus-uq-demo"]
    estimates = [span for span in spans if span.name == "uncertainty.estimate"]
    escalations = [span for span in spans if span.name == "uncertainty.escalate"]
    held = next(group["n"] for group in value["groups"] if group["decision"] == "paused")
    assert len(agents) == 12
    assert len(estimates) == 24
    assert len(escalations) >= held
    for span in estimates:
        assert by_id[span.parent_span_id].name == "invoke_agent grampus-uq-demo"
    sessions = {
        pair.value.string_value for span in agents for pair in span.attributes if pair.key == "gen_ai.conversation.id"
    }
    assert sessions == {found.session_id for found in runs(value["recording"])}


@pytest.mark.slow
def test_a_dead_otlp_endpoint_costs_the_run_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(knows_half) as server:
        arguments = ["--api-base", server.api_base, "--n", "2", "--json", "--runs-folder", str(tmp_path)]
        assert run(*arguments, "--otlp", "http://127.0.0.1:9") == 0
    assert json.loads(capfd.readouterr().out)["answered"] == 2


def test_ctrl_c_prints_what_there_is_and_leaves_a_readable_recording(tmp_path: Path) -> None:
    with serving(hangs_after_five) as server:
        command = [sys.executable, "-m", "grampus_uq.cli", "demo", "--task", "questions", "--json"]
        command += ["--api-base", server.api_base]
        process = subprocess.Popen(
            [*command, "--runs-folder", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert server.wait_for(lambda: server.hits > 8, timeout_s=60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    value = json.loads(out)
    assert value["interrupted"] is True
    assert 0 < value["answered"] < 60
    ends = [found.outcome.stop_reason if found.outcome else None for found in runs(tmp_path)]
    assert ends.count(StopReason.CANCELLED) == len(ends) - value["answered"] > 0
    assert None not in ends
