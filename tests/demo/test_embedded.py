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

import pytest

from grampus_uq.recording import runs
from grampus_uq.vocabulary import StopReason

pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'demo'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

COMMAND = [sys.executable, "-m", "grampus_uq.cli", "demo", "--json"]
SOURCES = {"verbalized", "token_probability", "token_entropy", "p_true", "semantic_entropy", "fused"}


def test_real_answers_are_sensed_decided_graded_and_recorded(tmp_path: Path) -> None:
    command = [*COMMAND, "--n", "24", "--seed", "1", "--runs-folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    assert value["answered"] == 24
    assert 0 < value["right"] < 24
    assert len({one["answer"] for one in value["answers"]}) > 20, "a model that says the same to everything is no model"
    assert value["processor_failures"] == {}
    signals = {one["signal"]: one for one in value["signals"]}
    assert signals.keys() >= SOURCES
    for name in ("token_probability", "token_entropy", "p_true", "fused"):
        assert signals[name]["n"] == 24, signals[name]
    assert signals["p_true"]["calls"] >= 24
    assert value["monitor"]["tokens"] > value["agent"]["tokens"] > 0
    # Of right and wrong answers drawn at random, the right ones have the likelier tokens: .88 on 60 questions.
    assert signals["token_probability"]["auroc"] > 0.5
    held = [one for one in value["answers"] if one["decision"] != "published"]
    published = (Path(value["recording"]) / "published.txt") if len(held) < 24 else None
    assert 24 - len(held) == (len(published.read_text().splitlines()) if published else 0)
    recorded = list(runs(value["recording"]))
    assert len(recorded) == 24
    assert sum(bool(run.outcome and run.outcome.success) for run in recorded) == value["right"]


def test_ctrl_c_on_a_terminal_ends_model_and_run_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--runs-folder", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    deadline = time.monotonic() + 300
    while len(list(tmp_path.rglob("*.jsonl"))) < 6 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group, the model's server included
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    value = json.loads(out)
    assert value["interrupted"] is True
    recorded = list(runs(tmp_path))
    assert len(recorded) >= 6
    ends = [run.outcome.stop_reason if run.outcome else None for run in recorded]
    assert ends.count(StopReason.CANCELLED) == len(recorded) - value["answered"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody of the group is left
