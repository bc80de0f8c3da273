"""From recordings to a deployed profile by two commands: fit, backtest; and the profile drives a monitor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from grampus_uq import Outcome, Reading, Step, StopReason, UncertaintyMonitor
from grampus_uq.cli import _group
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError, GrampusError
from grampus_uq.learn.columns import recorded_rows
from grampus_uq.learn.eligibility import eligibility
from grampus_uq.learn.fit.streams import read_detector_runs
from grampus_uq.recording import RecordingProcessor
from grampus_uq.recording.artifacts import ProfileArtifact, load, save
from grampus_uq.recording.runs import runs
from tests.guarantees.worlds import World
from tests.guarantees.worlds import record as written

pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")

HASH = "0" * 64


def record(folder: Path, rng: np.random.Generator, n: int, *, prefix: str = "r", source: str = "verbalized") -> None:
    """Advisory recordings of an agent: two in three runs succeed; failing ones drift down; every tenth was censored."""
    with RecordingProcessor(folder) as recorder:
        monitor = UncertaintyMonitor(processors=[recorder], advisory=True)
        for number in range(n):
            success = number % 3 != 0
            session = monitor.session(f"{prefix}{number}", "agent", model="m", prompt_hash=HASH, tools_hash=HASH)
            for index in range(12):
                level = 0.9 if success or index < 4 else 0.9 - 0.07 * (index - 3)
                value = float(np.clip(rng.normal(level, 0.08), 0.0, 1.0))
                step = Step(step_id=f"s{index}", kind="llm_call", time_s=float(index))
                session.commit(step, [Reading(source=source, value=value)])
                session.commit(Step(step_id=f"t{index}", kind="tool_call", time_s=float(index)), [])
            reason = StopReason.MAX_STEPS if number % 10 == 9 else StopReason.CLEAN
            known = None if reason is StopReason.MAX_STEPS else success
            session.finish(Outcome(success=known, stop_reason=reason, time_s=1.0))


def cli(*arguments: str) -> Any:
    finished = CliRunner().invoke(_group, list(arguments))
    if finished.exception is not None and not isinstance(finished.exception, SystemExit):
        raise finished.exception
    return finished


def test_the_runs_of_a_fit_are_known_again_in_files_that_have_changed_since(tmp_path: Path) -> None:
    """A label is a line more, and a copy has another name; another run of the same session id is another run."""
    record(tmp_path / "a", np.random.default_rng(3), 30)
    profile = str(tmp_path / "profile.json")
    cli("fit", str(tmp_path / "a"), "--budget", "0.2", "-o", profile)
    (tmp_path / "copies").mkdir()
    for number, file in enumerate(sorted((tmp_path / "a").glob("*.jsonl"))):
        (tmp_path / "copies" / f"{number}.jsonl").write_bytes(file.read_bytes())
        cli("runs", "label", str(tmp_path / "copies" / f"{number}.jsonl"), file.stem, "success", "--by", "ann")
    record(tmp_path / "b", np.random.default_rng(4), 30)
    for folder, used in (("a", 30), ("copies", 30), ("b", 0)):
        tested = json.loads(cli("backtest", profile, str(tmp_path / folder), "--json").stdout)
        assert (tested["files_used_in_the_fit"], tested["tasks"]) == (used, tested["rows"][0]["runs"])
        judged = cli("evaluate", str(tmp_path / folder), "--profile", profile, "--json")
        warnings = json.loads(judged.stdout)["warnings"]
        told = f"{used} of these files were used to fit a profile; its figures are too optimistic."
        assert (told in warnings) == (used > 0)
        assert any("were used to fit" in warning for warning in warnings) == (used > 0)


def test_the_account_of_a_fit_fits_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    record(Path("a"), np.random.default_rng(3), 30)
    lines = cli("fit", "a", "--budget", "0.2", "-o", "p.json").stdout.splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 60


def test_streams_of_which_a_fit_says_the_same_share_a_line_and_no_name_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RecordingProcessor(tmp_path / "a") as recorder:
        monitor = UncertaintyMonitor(processors=[recorder], advisory=True)
        for number in range(120):
            session = monitor.session(f"r{number}", "agent")
            values = {"told": 0.9 - number % 4 / 10, "one-a": 0.5, "one-b": 0.5, "one-c": 0.5}
            read = [Reading(source=source, value=value) for source, value in values.items()]
            session.commit(Step(step_id="s", kind="llm_call", time_s=1.0), read)
            session.finish(Outcome(success=number % 3 != 0, stop_reason=StopReason.CLEAN, time_s=2.0))
    for columns in ("40", "60", "100"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = cli("fit", str(tmp_path / "a"), "-o", str(tmp_path / "p.json")).stdout.splitlines()
        assert sum("stream one-" in line for line in lines) == 2  # what is fitted, and its twins
        assert not any(line.endswith("-") for line in lines)


def test_a_backtest_on_trials_of_tasks_says_that_its_intervals_are_too_short(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, trials in (("single", 1), ("trials", 4)):
        written(tmp_path / f"{name}.jsonl", World(trials=trials).draw(rng, 80), name=name)
    profile = str(tmp_path / "profile.json")
    cli("fit", str(tmp_path / "single.jsonl"), "--budget", "0.2", "-o", profile)
    for name, told in (("single", False), ("trials", True)):
        said = cli("backtest", profile, str(tmp_path / f"{name}.jsonl")).stderr
        assert ("these 80 runs are trials of 20 tasks; the intervals take" in said) == told


def test_tasks_of_another_name_are_those_of_the_profiles_fit_in_every_command_that_counts_runs(tmp_path: Path) -> None:
    """By the wrong name each trial is a run of its own: intervals are too short, and the watch counts them all."""
    known, profile, guide, store = (str(tmp_path / name) for name in ("runs.jsonl", "p.json", "guide.json", "watch"))
    for name in ("runs", "later"):
        drawn = World(trials=4, alike=1.0).draw(np.random.default_rng(0), 80)
        path = written(tmp_path / f"{name}.jsonl", drawn, name=name)
        path.write_bytes(path.read_bytes().replace(b'"task_id":', b'"case":'))
    cli("fit", known, "--task-key", "case", "--budget", "0.2", "-o", profile)
    save(ProfileArtifact(profile=Profile()), guide)
    width = {}
    for given, told in (((), True), (("--task-key", "task_id"), False)):
        assert json.loads(cli("backtest", profile, known, "--json", *given).stdout)["tasks"] == (20 if told else 80)
        for asked in ((*given, "--profile", profile), ("--task-key", "case") if told else ()):
            warnings = " ".join(json.loads(cli("evaluate", known, *asked, "--draws", "2", "--json").stdout)["warnings"])
            assert ("The 80 runs are trials of 20 tasks" in warnings, "Only 20 tasks are" in warnings) == (told, told)
        compared = json.loads(cli("compare", guide, profile, known, "--draws", "200", "--json", *given).stdout)
        width[told] = compared["rows"][0]["high"] - compared["rows"][0]["low"]
        fed = cli("calibration", "feed", profile, str(path), "--store", f"{store}{told}.db", *given, "--json").stdout
        (every,) = [one for one in json.loads(fed) if one["variant"] == "all_runs"]
        assert (every["gathering"], every["n_runs"]) == ((20, 0) if told else (0, 40))  # 60, 20 of them from the fit
    assert width[True] > 1.5 * width[False] > 0.0


@pytest.mark.slow
def test_fit_and_backtest_from_recordings_and_the_profile_pauses_a_live_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    record(tmp_path / "a", rng, 240)
    record(tmp_path / "b", rng, 150, prefix="other")
    profile = tmp_path / "profile.json"
    fitted = json.loads(cli("fit", str(tmp_path / "a"), "-o", str(profile), "--json").stdout)
    assert fitted["counts"]["max_steps"] == 24
    assert fitted["counts"]["success"] + fitted["counts"]["failure"] == 216
    assert "at most 10 %" in fitted["guarantee"]
    tested = json.loads(cli("backtest", str(profile), str(tmp_path / "b"), "--json").stdout)
    assert tested["files_used_in_the_fit"] == 0
    (deployed,) = [row for row in tested["rows"] if row["deployed"]]
    assert deployed["false_alarm_low"] <= 0.1
    assert deployed["power"] > 0.5
    again = json.loads(cli("backtest", str(profile), str(tmp_path / "a"), "--json").stdout)
    assert again["files_used_in_the_fit"] == 240
    assert "CAUTION" in cli("backtest", str(profile), str(tmp_path / "a")).stderr

    artifact = load(profile)
    assert artifact.fitted_for.model == "m"
    session = UncertaintyMonitor(profile=artifact).session("live", model="m", prompt_hash=HASH, tools_hash=HASH)
    for index in range(12):
        step = Step(step_id=f"s{index}", kind="llm_call", time_s=float(index))
        seen = session.commit(step, [Reading(source="verbalized", value=0.9 if index < 4 else 0.2)])
    assert seen.action.value == "pause_for_human"
    assert seen.guarantee == fitted["guarantee"]


@pytest.mark.parametrize("source", ["verbalized", "p_true"])
def test_an_interruption_budget_needs_no_label(tmp_path: Path, source: str) -> None:
    record(tmp_path / "a", np.random.default_rng(4), 120, source=source)
    fitted = json.loads(
        cli("fit", str(tmp_path / "a"), "-o", str(tmp_path / "p.json"), "--budget", "0.1", "--json").stdout
    )
    assert fitted["mode"] == "budget"
    tested = cli("backtest", str(tmp_path / "p.json"), str(tmp_path / "a"), "--unlabelled", "--json")
    rows = json.loads(tested.stdout)["rows"]
    assert all(row["power"] is None for row in rows)
    (deployed,) = [row for row in rows if row["deployed"]]
    assert 5.0 <= deployed["pauses_per_100"] <= 15.0
    record(tmp_path / "b", np.random.default_rng(4), 2)
    for file in (tmp_path / "b").glob("*.jsonl"):  # nobody says how they ended
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        file.write_text("".join(line for line in lines if '"outcome"' not in line), encoding="utf-8")
    with pytest.raises(DataError, match=r"holds no run that this detector judges: one with .*, an outcome and nobody"):
        cli("backtest", str(tmp_path / "p.json"), str(tmp_path / "b"))


def test_the_scores_that_are_fitted_on_are_those_that_the_live_detector_is_fed(tmp_path: Path) -> None:
    record(tmp_path / "a", np.random.default_rng(5), 3)
    for run in runs([tmp_path / "a"]):
        rows = recorded_rows(run, eligibility(run)).rows
        steps = [event for event in run.steps if event.step.kind != "tool_call"]
        assert [row["fused"] for row in rows] == [event.assessment.fused_confidence for event in steps]
        assert [row["verbalized"] for row in rows] == [event.readings[0].value for event in steps]
    data = read_detector_runs([str(tmp_path / "a")], ["fused"])
    assert data.lengths.tolist() == [12] * len(data)


def test_what_cannot_be_fitted_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(GrampusError, match="empty: holds no recording"):
        cli("fit", str(tmp_path / "empty"))
    for beyond in ("90", "1", "-.1", "nan", "1e-300"):  # 1 - 1e-300 is 1
        with pytest.raises(GrampusError, match=r"'assurance' parameter .* must be 0, or in \[1e-12, 1 - 1e-12\]"):
            cli("fit", str(tmp_path / "empty"), "--assurance", beyond)
