"""Commands that take many runs: the same answer from lines, from Parquet, and with any number of workers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from grampus_uq.cli.backtest_command import command as backtest
from grampus_uq.cli.evaluate_command import command as evaluate
from grampus_uq.cli.runs_command import command as runs_command
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.learn.evaluate import read_recordings
from grampus_uq.learn.fit.detector import fit_detector
from grampus_uq.learn.fit.streams import read_detector_runs
from grampus_uq.recording import find_run, pack, recording_files, runs
from grampus_uq.recording.artifacts import ProfileArtifact, load, save
from grampus_uq.records.events import StepEvent
from tests.importers import samples
from tests.importers.test_tau_bench import row as tau_row
from tests.learn.evaluate.recorded import many, write
from tests.sampling import sampled

pytest.importorskip("pyarrow")


def invoke(command: Any, *arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(command, list(map(str, arguments)))
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """160 runs as lines in sixteen files, and packed into several."""
    folder = tmp_path_factory.mktemp("many")
    made = many(160, np.random.default_rng(3))
    for number in range(16):
        write(folder / "lines" / f"{number:02}.jsonl", *made[10 * number : 10 * number + 10])
    pack(folder / "lines", folder / "packed", file_bytes=100_000)
    assert len(list((folder / "packed").iterdir())) > 2
    return folder / "lines", folder / "packed"


@sampled("workers", [1], full=[1, 2])
def test_what_evaluate_and_fit_read_is_the_same_to_the_bit(places: tuple[Path, Path], workers: int) -> None:
    lines, packed = places
    plain = read_recordings(lines)
    streams = ("fused", "propagated", "verbalized")
    scores = read_detector_runs([str(lines)], streams)
    for place in (lines, packed):
        found = read_recordings(place, workers=workers)
        assert (found.ids, found.audit) == (plain.ids, plain.audit)
        assert found.outcomes.tobytes() == plain.outcomes.tobytes()
        assert found.features is not None
        assert plain.features is not None
        assert found.features.tobytes() == plain.features.tobytes()
        assert {name: traces.forecasts.tobytes() for name, traces in found.streams.items()} == {
            name: traces.forecasts.tobytes() for name, traces in plain.streams.items()
        }
        again = read_detector_runs([str(place)], streams, workers=workers)
        assert (again.ids, again.excluded, again.values.tobytes()) == (
            scores.ids,
            scores.excluded,
            scores.values.tobytes(),
        )
        assert again.success is not None
        assert scores.success is not None
        assert again.success.tolist() == scores.success.tolist()


@pytest.mark.slow
def test_the_commands_print_the_same_wherever_the_work_is_done(places: tuple[Path, Path], tmp_path: Path) -> None:
    lines, packed = places
    data = read_detector_runs([str(lines)], ("fused",))
    detector = fit_detector(data, rng=np.random.default_rng(0), members=["running_minimum"]).detector
    profile = tmp_path / "profile.json"
    save(ProfileArtifact(profile=Profile(detector=detector)), profile)
    commands = [
        (backtest, [profile, "--json"]),
        (evaluate, ["--draws", 20, "--json"]),
        (runs_command, ["replay", "--profile", profile, "--json"]),
    ]
    for command, arguments in commands:
        first, rest = (arguments[:1], arguments[1:]) if command is not evaluate else ([], arguments)
        one = json.loads(invoke(command, *first, lines, *rest).stdout)
        other = json.loads(invoke(command, *first, packed, *rest, "--workers", 2).stdout)
        assert one == other
    assert load(profile).profile.detector == detector


def test_import_reads_a_folder_of_every_format_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    for form, content in samples.FILES.items():
        (tmp_path / "in" / form).mkdir(parents=True)
        (tmp_path / "in" / form / "file").write_bytes(content)
    (tmp_path / "in" / "chat-log" / "file").write_bytes(samples.FILES["chat-log"] + b"{broken\n")
    (tmp_path / "in" / "other.txt").write_text("hello")
    first = json.loads(
        invoke(
            runs_command,
            "import",
            tmp_path / "in",
            "-o",
            tmp_path / "out",
            "--outcome",
            "correctness",
            "--json",
            status=1,
        ).stdout
    )
    assert sum(file["runs"] for file in first["files"]) == len(list(recording_files(tmp_path / "out"))) == 9
    errors = sorted(error for file in first["files"] for error in file["errors"])
    assert len(errors) == 2
    assert f"{tmp_path / 'in' / 'chat-log' / 'file'}:4" in errors[0]
    assert "is in none of the known formats" in errors[1]
    labelled = find_run(tmp_path / "out", samples._T)
    assert labelled.outcome is not None
    assert labelled.outcome.success is True
    told = invoke(runs_command, "import", tmp_path / "in", "-o", tmp_path / "out", status=1)
    assert "0 runs, 0 steps imported" in told.stdout
    assert "exists already" in told.stderr


def test_imported_runs_are_evaluated_by_what_the_agent_did(tmp_path: Path) -> None:
    made = [tau_row(task_id=number, reward=float(number % 2)) for number in range(8)]
    (tmp_path / "results.json").write_text("[\n" + ",\n".join(map(json.dumps, made)) + "\n]")
    invoke(runs_command, "import", tmp_path / "results.json", "-o", tmp_path / "out")
    table = json.loads(invoke(evaluate, tmp_path / "out", "--draws", 5, "--json").stdout)["table"]
    assert {row["runs"] for row in table if row["stream"] == "count_calls"} == {8}


def test_logs_of_a_home_made_agent_are_evaluated_at_their_irreversible_calls(tmp_path: Path) -> None:
    lines = []
    for number in range(60):
        call = {"id": "1", "function": {"name": "refund", "arguments": "{}"}}
        asked = {"role": "assistant", "content": f"Confidence: {40 + number % 60}%", "tool_calls": [call]}
        end = {"role": "assistant", "content": "It is on its way."}
        lines.append(
            {"id": f"r{number}", "messages": [asked, {"role": "tool", "tool_call_id": "1", "content": ""}, end]}
        )
    (tmp_path / "log").write_bytes(samples.json_lines(lines))
    (tmp_path / "labels.csv").write_text(
        "session_id,success\n" + "".join(f"r{number},{number % 60 >= 30}\n" for number in range(60))
    )
    invoke(runs_command, "import", tmp_path / "log", "-o", tmp_path / "out", "--irreversible", "refund")
    invoke(runs_command, "label", tmp_path / "out", "--from", tmp_path / "labels.csv", "--by", "ann")
    report = json.loads(invoke(evaluate, tmp_path / "out", "--draws", 5, "--json").stdout)
    (stated,) = [row for row in report["verdict"]["rows"] if row["name"] == "verbalized"]
    assert (report["verdict"]["at_the_call"], stated["at_the_call"]) == (True, 1.0)


@pytest.mark.parametrize("content", ["full", "hashed", "none"])
def test_import_keeps_of_texts_what_it_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "log").write_bytes(samples.FILES["chat-log"])
    told = invoke(runs_command, "import", tmp_path / "log", "-o", tmp_path / "out", "--content", content)
    assert "3 runs, 3 steps imported from 1 file; 0 records left out." in told.stdout
    texts = [event.step.text for run in runs(tmp_path / "out") for event in run.events if isinstance(event, StepEvent)]
    kept = {"full": "Hello" in texts, "hashed": all(text.startswith("hmac:") for text in texts), "none": not any(texts)}
    assert kept[content]


@pytest.mark.parametrize(("options", "said"), [((), "No run has an outcome:"), (("--outcome", "x"), "named 'x':")])
def test_import_says_how_runs_without_an_outcome_get_one(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    (tmp_path / "log").write_bytes(samples.FILES["langsmith"])
    told = invoke(runs_command, "import", tmp_path / "log", "-o", tmp_path / "out", *options).stderr
    assert said in told
    assert f"runs label {tmp_path / 'out'} --from FILE.csv" in told
    known = invoke(runs_command, "import", tmp_path / "log", "-o", tmp_path / "new", "--outcome", "correctness")
    assert known.stderr == ""


def test_a_table_of_labels_for_other_runs_says_where_the_names_stand(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(samples.FILES["chat-log"])
    (tmp_path / "labels.csv").write_text("session_id,success\nanother,yes\n")
    invoke(runs_command, "import", tmp_path / "log", "-o", tmp_path / "out")
    told = invoke(runs_command, "label", tmp_path / "out", "--from", tmp_path / "labels.csv", "--by", "ann", status=1)
    assert f"runs list {tmp_path / 'out'}" in told.stderr


@pytest.mark.parametrize("place", ["grampus_uq", "docs"])
def test_whoever_is_told_to_label_a_run_is_told_its_folder(place: str) -> None:
    texts = [
        path.read_text("utf-8")
        for path in (Path(__file__).parents[2] / place).rglob("*.py" if place == "grampus_uq" else "*.md")
    ]
    shown = [found for text in texts for found in re.findall(r"runs label\s+([A-Z]+)", text)]
    assert {*shown} == {"FOLDER"}


def test_import_keeps_hashed_what_no_reader_could_read_back_in_full(tmp_path: Path) -> None:
    deep = '{"amount": ' + "[" * 100 + "]" * 100 + "}"
    call = {"id": "c", "function": {"name": "pay", "arguments": deep}}
    said = {"role": "assistant", "content": "half an emoji \ud83d", "tool_calls": [call]}
    (tmp_path / "log").write_text(json.dumps({"id": "r", "messages": [said]}) + "\n")
    invoke(runs_command, "import", tmp_path / "log", "-o", tmp_path / "out", "--content", "full")
    (step,) = find_run(tmp_path / "out", "r").steps
    assert step.step.text.startswith("hmac:")
    assert list(step.step.tool_calls[0].arguments) == ["_hashed"]
    assert step.step.tool_calls[0].name == "pay"


@pytest.mark.slow
def test_import_with_two_workers_gives_the_same_recordings(tmp_path: Path) -> None:
    for number in range(4):
        messages = samples.CHAT_LOG[2]["messages"]
        lines = [{"id": f"r{number}-{i}", "messages": messages} for i in range(5)]
        (tmp_path / f"in{number}").write_bytes(samples.json_lines(lines))
    inputs = [tmp_path / f"in{number}" for number in range(4)]
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        invoke(runs_command, "import", *inputs, "-o", out, "--content", "none", "--workers", workers)
    one, two = ([(run.session_id, run.events) for run in runs(tmp_path / f"out{n}")] for n in (1, 2))
    assert one == two
    assert len(one) == 20


def test_packing_by_the_command_says_how_much(places: tuple[Path, Path], tmp_path: Path) -> None:
    told = invoke(runs_command, "pack", places[0], "-o", tmp_path / "packed")
    assert "160 sessions" in told.stdout
    with pytest.raises(DataError, match="choose an empty folder"):
        CliRunner().invoke(
            runs_command, ["pack", str(places[0]), "-o", str(tmp_path / "packed")], catch_exceptions=False
        )
