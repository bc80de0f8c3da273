"""The demo on the embedded model, as a user runs it: real answers, real readings, and a Ctrl-C in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grampus_uq.recording import Run, runs
from grampus_uq.records.vocabulary import StopReason
from grampus_uq.stats.ranking import auroc
from grampus_uq.stats.surprisal import content_surprisal
from tests.telemetry.receivers import otlp_grpc

pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'demo'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

COMMAND = [sys.executable, "-m", "grampus_uq.cli", "demo", "--task", "questions", "--json"]
SOURCES = {"verbalized", "token_probability", "token_entropy", "p_true", "semantic_entropy"}


def test_real_answers_are_sensed_decided_graded_and_recorded(tmp_path: Path) -> None:
    with otlp_grpc() as collector:
        command = [*COMMAND, "--n", "24", "--seed", "1", "--runs-folder", str(tmp_path), "--otlp", collector.endpoint]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)
        told = [
            {pair.key: pair.value for pair in span.attributes}
            for request in collector.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if span.name == "uncertainty.estimate"
        ]
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    assert value["answered"] == 24
    assert 0 < value["right"] < 24
    assert value["processor_failures"] == {}
    recorded = list(runs(value["recording"]))
    assert len({run.steps[0].step.text for run in recorded}) > 20, (
        "a model that says the same to everything is no model"
    )
    readings: dict[str, list[tuple[float, bool]]] = {}
    for run in recorded:
        assert run.outcome is not None
        for reading in run.steps[0].readings:
            values_of = readings.setdefault(reading.source, [])
            if reading.value is not None:
                values_of.append((reading.value, bool(run.outcome.success)))
    assert readings.keys() >= SOURCES
    for name in ("token_probability", "token_entropy", "p_true"):
        assert len(readings[name]) == 24
    # Of right and wrong answers drawn at random, the right ones have the likelier tokens: .88 on 60 questions.
    values, right = zip(*readings["token_probability"], strict=True)
    area = auroc(np.array(values), np.array(right, dtype=np.float64))
    assert area is not None
    assert area > 0.5
    out = next(group["n"] for group in value["groups"] if group["decision"] == "published")
    published = Path(value["recording"]) / "published.txt"
    assert out == (len(published.read_text().splitlines()) if published.exists() else 0)
    assert len(recorded) == 24
    assert sum(bool(run.outcome and run.outcome.success) for run in recorded) == value["right"]
    assert_surprisal_is_in_recording_and_span(recorded, told)


def assert_surprisal_is_in_recording_and_span(recorded: list[Run], told: list[Any]) -> None:
    """U_t of the answer from the model's own log-probabilities: computed again, recorded, in the span."""
    seen = set()
    spans = {
        span["gen_ai.conversation.id"].string_value: span
        for span in told
        if span["step_type"].string_value == "llm_call"
    }
    assert {run.session_id for run in recorded} == spans.keys()
    for run in recorded:
        answer = run.steps[0]
        logprobs = answer.step.logprobs
        assert logprobs
        u_t = content_surprisal([token.token for token in logprobs], [token.logprob for token in logprobs])
        assert answer.trajectory is not None
        assert answer.trajectory.pending is not None
        assert answer.trajectory.pending.surprisal == u_t
        seen.add(u_t)
        span = spans[run.session_id]
        assert span["uncertainty.surprisal"].double_value == u_t
        assert span["uncertainty.trajectory_risk"].double_value == answer.assessment.trajectory_risk
        assert answer.assessment.trajectory_risk == pytest.approx(u_t)  # one turn: nothing repeated, no gap
    assert len(seen) > 12  # answers without a doubtful content token share eps


def test_ctrl_c_on_a_terminal_ends_model_and_run_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--runs-folder", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    deadline = time.monotonic() + 900
    while len(list(tmp_path.rglob("*.jsonl"))) < 6 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group, the model's server included
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    value = json.loads(out)
    assert value["interrupted"] is True
    recorded = list(runs(tmp_path))
    assert len(recorded) >= 6
    ends = [run.outcome.stop_reason if run.outcome else None for run in recorded]
    assert ends.count(StopReason.CANCELLED) == len(recorded) - value["answered"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody of the group is left
