"""The watch from the command line: recordings feed it, labels arrive late, an alarm reaches report, backtest, exit."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from click.testing import CliRunner

from grampus_uq import Profile
from grampus_uq.cli import _group
from grampus_uq.errors import GrampusError
from grampus_uq.learn.fit.backtest import backtest
from grampus_uq.learn.fit.detector import fit_budget
from grampus_uq.learn.fit.streams import read_detector_runs
from grampus_uq.recording.artifacts import FittedFor, ProfileArtifact, Provenance, load, save
from grampus_uq.recording.labels import Label
from grampus_uq.recording.labels import label as label_recording
from grampus_uq.recording.runs import find_run
from grampus_uq.runtime.guarantee_watch import CalibrationWatch
from grampus_uq.runtime.stores import open_store
from grampus_uq.stats.calibration_watch import FinishedRun
from grampus_uq.stats.eprocess import log_peaks
from tests.cli.test_cli_fit import cli, record
from tests.learn.evaluate.recorded import events, write

pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings a (to fit on) and b (finished later), and a profile fitted on a."""
    folder = tmp_path_factory.mktemp("watched")
    record(folder / "a", np.random.default_rng(3), 240)
    record(folder / "b", np.random.default_rng(9), 40, prefix="later")
    cli("fit", str(folder / "a"), "-o", str(folder / "p.json"), "--assurance", "0")
    return folder


def shown(*arguments: str) -> Any:
    return json.loads(cli(*arguments, "--json").stdout)


def test_recordings_feed_it_once_however_often_and_in_pieces(made: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    first = shown("calibration", "feed", str(made / "p.json"), str(made / "b"), "--store", store, "--advisory")
    by_variant = {status["variant"]: status for status in first}
    successes = sum(number % 3 != 0 and number % 10 != 9 for number in range(40))
    assert by_variant["successes"]["n_runs"] == successes
    assert by_variant["all_runs"]["gathering"] == 60 - 40
    assert shown("calibration", "feed", str(made / "p.json"), str(made / "b"), "--store", store, "--advisory") == first
    assert shown("calibration", "show", "--store", store) == first
    assert "No evidence" in cli("calibration", "show", "--store", store).stdout


def test_a_folder_that_has_grown_since_the_fit_is_watched_from_there_on(made: Path, tmp_path: Path) -> None:
    """On its own runs a detector does better than on new ones, and the watch has those that set its threshold."""
    known, new, store = str(made / "a"), str(made / "b"), str(tmp_path / "s")
    profile = str(made / "p.json")
    with pytest.raises(GrampusError, match="judges and was not fitted on"):
        cli("calibration", "feed", profile, known, "--store", f"{store}0.db", "--advisory")
    grown = shown("calibration", "feed", profile, known, new, "--store", f"{store}1.db", "--advisory")
    assert grown == shown("calibration", "feed", profile, new, "--store", f"{store}2.db", "--advisory")


def test_without_a_run_to_feed_no_store_is_made(made: Path, tmp_path: Path) -> None:
    """What the profile was fitted on counts there already."""
    (tmp_path / "runs").mkdir()
    for runs in (made / "a", tmp_path / "runs"):
        result = CliRunner().invoke(
            _group, ["calibration", "feed", str(made / "p.json"), str(runs), "--store", str(tmp_path / "s.db")]
        )
        assert isinstance(result.exception, GrampusError)
        assert not (tmp_path / "s.db").exists()


def test_a_damaged_file_keeps_no_run_from_the_watch(made: Path, tmp_path: Path) -> None:
    store, folder = str(tmp_path / "s.db"), shutil.copytree(made / "b", tmp_path / "r")
    (folder / "0.jsonl").write_bytes(b"\xff\n")  # the first of the folder
    feed = ["calibration", "feed", str(made / "p.json"), str(folder), "--store", store, "--advisory"]
    done = CliRunner().invoke(_group, feed)
    assert (done.exit_code, "left out: " in done.stderr) == (1, True)
    assert shown("calibration", "show", "--store", store)[0]["n_runs"] == 24


def test_a_label_given_later_counts_from_the_recording_or_by_hand(made: Path, tmp_path: Path) -> None:
    store, folder = str(tmp_path / "s.db"), tmp_path / "r"
    folder.mkdir()
    for name in ("later9", "later19"):  # they reached their limit of steps: no outcome yet
        run = find_run(made / "b", name)
        (folder / Path(run.path).name).write_bytes(Path(run.path).read_bytes())
    feed = ("calibration", "feed", str(made / "p.json"), str(folder), "--store", store, "--advisory")
    assert shown(*feed)[0]["n_runs"] == 0
    assert (
        shown("calibration", "label", "later9", "success", "--store", store)[0]["n_runs"] == 0
    )  # a stop at the budget
    with pytest.raises(GrampusError, match="no calibration watch in this store has counted"):
        cli("calibration", "label", "nobody", "success", "--store", store)
    run = find_run(made / "b", "later1")
    text = Path(run.path).read_text().replace('"success":true', '"success":null')
    (folder / Path(run.path).name).write_text(text)
    assert shown(*feed)[0]["n_runs"] == 0
    assert shown("calibration", "label", "later1", "success", "--store", store)[0]["n_runs"] == 1
    label_recording(folder, Label(session_id="later1", success=True), by="ann")
    assert shown(*feed)[0]["n_runs"] == 1


def test_what_is_fed_is_what_the_detector_makes_of_the_recorded_scores(made: Path) -> None:
    from grampus_uq.learn.fit.streams import finished_in_recordings

    profile = load(made / "p.json").profile
    assert profile.detector is not None
    data = read_detector_runs([str(made / "b")], profile.detector.streams, labelled=False, profile=profile)
    peaks = dict(
        zip((name.rpartition("#")[0] for name in data.ids), log_peaks(profile.detector, data.blocks), strict=True)
    )
    found = list(finished_in_recordings(made / "b", profile))
    assert len(found) == 40
    assert all(run.log_peak == pytest.approx(peaks[run.run_id], abs=1e-12) for run in found)
    assert sum(run.touched for run in found) == 4  # those at their limit of steps


@pytest.fixture
def alarmed(made: Path, tmp_path: Path) -> str:
    """A store whose watch has seen a changed agent."""
    url = str(tmp_path / "alarmed.db")
    detector = load(made / "p.json").profile.detector
    assert detector is not None

    async def change() -> None:
        store = open_store(url)
        watch = CalibrationWatch(store, detector, acting=False)
        for i in range(60):
            await watch.finished(FinishedRun(run_id=f"x{i}", log_peak=50.0, success=True))
        await store.aclose()

    anyio.run(change)
    return url


def test_an_alarm_is_in_the_exit_status_the_backtest_and_both_reports(made: Path, tmp_path: Path, alarmed: str) -> None:
    failed = cli("calibration", "show", "--store", alarmed, "--check")
    assert failed.exit_code == 1
    assert "ALARM" in failed.stdout
    assert cli("calibration", "show", "--store", alarmed).exit_code == 0
    tested = shown("backtest", str(made / "p.json"), str(made / "b"), "--watch", alarmed)
    assert [status["alarmed"] for status in tested["watch"]] == [True, False]
    assert "no longer holds" in cli("backtest", str(made / "p.json"), str(made / "b"), "--watch", alarmed).stderr
    page = tmp_path / "report.html"
    report = shown("evaluate", str(made / "b"), "--draws", "10", "--watch", alarmed, "-o", str(page))
    assert report["watch"][0]["alarmed"] is True
    assert "no longer holds" in report["warnings"][0]
    assert "Does the calibration still hold?" in page.read_text()
    assert "no longer holds" in page.read_text()


def test_without_a_watch_report_and_backtest_say_nothing_of_it(made: Path, tmp_path: Path) -> None:
    assert shown("evaluate", str(made / "b"), "--draws", "10")["watch"] == []
    empty = str(tmp_path / "empty.db")

    async def create() -> None:
        store = open_store(empty)
        await store.now()
        await store.aclose()

    anyio.run(create)
    tested = cli("backtest", str(made / "p.json"), str(made / "b"), "--watch", empty).stderr
    assert "no calibration watch on this detector" in tested
    assert "No calibration is watched" in cli("calibration", "show", "--store", empty).stdout


def test_a_store_that_is_not_there_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    mistyped = tmp_path / "mistyped.db"
    with pytest.raises(GrampusError, match="no SQLite store"):
        cli("calibration", "show", "--store", str(mistyped))
    assert not mistyped.exists()


def test_a_profile_without_a_detector_cannot_be_watched(tmp_path: Path) -> None:
    artifact = ProfileArtifact(
        profile=Profile(), fitted_for=FittedFor(), guarantees=("none",), provenance=Provenance(counts={})
    )
    save(artifact, tmp_path / "bare.json")
    with pytest.raises(GrampusError, match="with a detector"):
        cli("calibration", "feed", str(tmp_path / "bare.json"), str(tmp_path), "--store", os.fspath(tmp_path / "s.db"))


# -- fit and backtest, item by item --


@pytest.mark.parametrize("command", [("backtest", "PROFILE"), ("evaluate", "--profile", "PROFILE"), ("runs", "replay")])
@pytest.mark.parametrize("model", ["m", "n"])
def test_figures_on_runs_of_another_agent_say_that_the_profile_would_not_act_there(
    made: Path, tmp_path: Path, command: tuple[str, ...], model: str
) -> None:
    artifact, its = load(made / "p.json"), str(tmp_path / "its.json")
    save(artifact.model_copy(update={"fitted_for": artifact.fitted_for.model_copy(update={"model": model})}), its)
    options = ("--profile", its) if command[0] == "runs" else ()
    called = cli(*(its if part == "PROFILE" else part for part in command), *options, str(made / "b"))
    assert ("40 of these runs are of another model" in called.stderr) is (model == "n")


def test_the_labels_that_are_lacking_are_named(made: Path, tmp_path: Path) -> None:
    given = ("fit", str(made / "b"), "-o", str(tmp_path / "p.json"))
    [part] = [part for part in shown(*given, "--stream", "fused")["parts"] if part["name"] == "detector"]
    assert re.search(r"more labelled successes, about, for a false-alarm rate: .*\d+ for 0.01$", part["needs"])
    assert "more labelled successes" in cli(*given).stdout


def test_a_detector_on_a_signal_that_is_off_by_default_brings_its_switch(tmp_path: Path) -> None:
    scored = [events(f"{i}", [{"prefix_verifier": 0.5 + (i % 7) / 20}] * 2, i % 3 != 0) for i in range(90)]
    write(tmp_path / "scored" / "a.jsonl", *scored)
    cli("fit", str(tmp_path / "scored"), "-o", str(tmp_path / "p.json"), "--stream", "prefix_verifier")
    policy = load(tmp_path / "p.json").profile.policy
    assert (policy.enable_prefix_verifier, policy.enable_semantic_sampling) == (True, False)


def test_every_figure_of_a_backtest_lies_in_its_interval_and_more_runs_narrow_it(made: Path) -> None:
    rng = np.random.default_rng(0)
    data = read_detector_runs([str(made / "a")], ["fused"])
    detector = fit_budget(data, rng=rng, share=0.2).detector
    whole, part = backtest(detector, data), backtest(detector, data.take(np.arange(60)))
    for rows in (whole, part):
        row = next(row for row in rows if row.deployed).to_json()
        for name, prefix in (
            ("false_alarm_rate", "false_alarm"),
            ("power", "power"),
            ("precision", "precision"),
            ("alarm_position", "alarm_position"),
            ("pauses_per_100", "pauses"),
            ("cost_used", "cost"),
        ):
            assert row[f"{prefix}_low"] <= row[name] <= row[f"{prefix}_high"], name
    wide, narrow = (next(row.to_json() for row in rows if row.deployed) for rows in (part, whole))
    for prefix in ("cost", "power"):
        assert narrow[f"{prefix}_high"] - narrow[f"{prefix}_low"] < wide[f"{prefix}_high"] - wide[f"{prefix}_low"]
