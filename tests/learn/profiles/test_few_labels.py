"""What few labels buy, which runs they are counted on, and what is said where they buy nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from grampus_uq import Exploration, Outcome, Reading, Step, StopReason, ToolCall, UncertaintyMonitor
from grampus_uq.cli import _group
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.profiles import FitOptions, fit_profile
from grampus_uq.learn.profiles.labelled import labelled_runs
from grampus_uq.recording import RecordingProcessor
from grampus_uq.recording.artifacts import load, save
from grampus_uq.recording.replay import replay_all
from grampus_uq.records.vocabulary import Effect
from tests.guarantees.worlds import BASE, CALL, FITTING, POLICY, World, record

pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")


def part(fit, name):
    (found,) = [one for one in fit.parts if one.name == name]
    return found


def recorded(path: Path, n: int, *, seed: int = 0, labelled: object = None, **world: object) -> Path:
    return record(
        path / f"{seed}.jsonl", World(**world).draw(np.random.default_rng(seed), n), labelled, name=f"r{seed}"
    )


def test_fifty_labels_buy_a_detector_and_a_budget_that_all_of_them_set(tmp_path: Path) -> None:
    path = recorded(tmp_path, 50, skill=(0.5, 0.99))
    fit = fit_profile(path, base=BASE, options=FitOptions(wrong_releases=0.05))
    assert fit.counts["failure"] < 20
    assert part(fit, "detector").figures["threshold_runs"] == fit.counts["success"]
    release = fit.artifact.profile.release
    assert (release.mode, release.runs, release.target) == ("wrong_releases", 50, 0.05)
    assert "at most 5 %" in release.guarantee
    assert "independent tasks" in release.guarantee
    assert fit.artifact.profile.detector.threshold.runs == fit.counts["success"]


def test_the_labels_that_a_level_is_said_to_lack_buy_it_where_only_some_runs_can_set_a_threshold(
    tmp_path: Path,
) -> None:
    world = {"skill": (1.0, 1.0), "calls": 0.6}
    found = part(fit_profile(recorded(tmp_path, 20, **world), base=BASE), "detector")
    assert found.status == "not fitted"
    lacking = int(re.search(r"(\d+) for 0.1\b", found.needs)[1])
    more = recorded(tmp_path, round(1.2 * lacking), seed=1, **world)
    assert part(fit_profile([tmp_path / "0.jsonl", more], base=BASE), "detector").status == "fitted"


def test_the_labels_that_a_budget_is_said_to_lack_buy_it_where_half_of_them_are_learned_on(tmp_path: Path) -> None:
    options, world = FitOptions(wrong_releases=0.05), {"skill": (0.2, 1.0)}
    fit = fit_profile(recorded(tmp_path, 60, **world), base=BASE, options=options)
    assert fit.artifact.profile.release.delta is None
    lacking = int(re.search(r"90 %: (\d+) more", part(fit, "release").needs)[1])
    recorded(tmp_path, round(1.2 * lacking), seed=1, **world)
    assert fit_profile(tmp_path, base=BASE, options=options).artifact.profile.release.delta == 0.1


def test_the_accuracy_that_a_budget_stands_in_for_is_named(tmp_path: Path) -> None:
    """Beside the budget's promise, a missing certificate of nobody knows what reads as a contradiction."""
    fit = fit_profile(recorded(tmp_path, 60, skill=(0.2, 1.0)), base=BASE, options=FitOptions(accuracy=0.95))
    assert fit.artifact.profile.release.mode == "wrong_releases"
    shortage = fit.artifact.profile.release.shortage
    assert shortage.startswith("That 95 % of the released are right has no certificate on ")
    assert shortage in part(fit, "release").why


def test_where_nothing_was_asked_for_and_no_detector_can_be_had_a_budget_is_what_labels_buy_first(
    tmp_path: Path,
) -> None:
    path = recorded(tmp_path, 21, skill=(0.7, 1.0))
    fit = fit_profile(path, base=BASE)
    assert fit.artifact.profile.detector is None
    assert fit.artifact.profile.release.mode == "wrong_releases"
    assert fit.artifact.profile.release.delta is None
    fewer = fit_profile(recorded(tmp_path, 12, seed=1, skill=(0.7, 1.0)), base=BASE)
    assert fewer.empty
    assert part(fewer, "release").needs == "7 more labelled runs with an irreversible call, of a task each"


def test_cases_are_runs_with_an_irreversible_call_and_too_few_say_how_many_are_needed(tmp_path: Path) -> None:
    path = recorded(tmp_path, 90, calls=0.15, others=(0.9, 1.0))
    fit = fit_profile(path, base=BASE, options=FitOptions(accuracy=0.9, detector=False))
    runs = labelled_runs(path, BASE)
    cases = int(runs.has_call.sum())
    assert cases < 19
    assert f"There are {cases} independent cases; a certificate takes at least 22" in part(fit, "release").needs
    assert f"{cases} independent cases; a budget of 5 % of wrong releases takes 19" in part(fit, "release").why


def test_the_score_of_a_case_is_bit_for_bit_what_the_live_decision_reads(tmp_path: Path) -> None:
    """Models say round numbers: on these all runs lie, and a last bit would decide for all of them."""
    path = recorded(tmp_path, 300, digits=1, skill=(0.1, 0.9))
    fit = fit_profile(path, base=BASE, options=FitOptions(pause_share=0.3, detector=False))
    release = fit.artifact.profile.release
    session = UncertaintyMonitor(profile=fit.artifact).session("x", **FITTING)
    chances = set()
    for tenth in range(11):
        reading = Reading(source="verbalized", value=tenth / 10)
        session.commit(Step(step_id=f"{tenth}", kind="llm_call", time_s=0.0), [reading])
        chances.add(session.state.p_success)
    assert release.at_least in chances


def test_a_call_before_any_step_of_the_model_is_a_case_without_a_chance(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        session = UncertaintyMonitor(processors=[recorder], advisory=True, policy=POLICY).session("r", **FITTING)
        for kind in ("tool_call", "llm_call", "tool_call"):
            calls = (CALL,) if kind == "tool_call" else ()
            readings = () if calls else [Reading(source="verbalized", value=0.9)]
            session.commit(Step(step_id=kind, kind=kind, time_s=0.0, tool_calls=calls), readings)
        session.finish(Outcome(success=True))
    runs = labelled_runs(tmp_path, BASE)
    assert runs.has_call.tolist() == [True]
    assert np.isnan(runs.at_ask(runs.streams["verbalized"])).all()


def test_trials_of_one_task_are_worth_one_run(tmp_path: Path) -> None:
    path = recorded(tmp_path, 200, trials=4, alike=0.9)
    fit = fit_profile(path, base=BASE, options=FitOptions(wrong_releases=0.1, assurance=0.9))
    assert fit.artifact.profile.release.runs <= 50
    assert part(fit, "detector").figures["threshold_runs"] <= 50
    other = fit_profile(path, base=BASE, options=FitOptions(wrong_releases=0.1, task_key="none"))
    assert other.artifact.profile.release.runs > 50
    assert "name no task" in other.artifact.profile.release.guarantee


def test_an_older_p_success_is_kept_on_request_and_its_own_runs_set_no_threshold(tmp_path: Path) -> None:
    old = recorded(tmp_path, 120, seed=1)
    older = fit_profile(old, base=BASE, options=FitOptions(detector=False)).artifact
    new = recorded(tmp_path, 60, seed=2)
    options = FitOptions(wrong_releases=0.1, keep_p_success=True, detector=False)
    fit = fit_profile([new], base=older, options=options)
    assert fit.artifact.profile.calibration == older.profile.calibration
    assert (fit.splits, fit.artifact.profile.release.runs) == ({"learn": 0, "thresholds": 60}, 60)
    both = fit_profile([old, new], base=older, options=options)
    assert both.splits == {"learn": 120, "thresholds": 60}
    assert both.artifact.profile.release.runs == 60
    with pytest.raises(ConfigurationError, match=r"keep_p_success' .* has a p_success. Got True"):
        fit_profile([new], base=BASE, options=options)


def test_each_promise_on_a_kept_p_success_says_that_no_run_taught_it(tmp_path: Path) -> None:
    """Of a bare profile nobody knows what taught it: here all of these runs did."""
    old = recorded(tmp_path, 120, seed=1)
    bare = fit_profile(old, base=BASE, options=FitOptions(detector=False)).artifact.profile
    fit = fit_profile(old, base=bare, options=FitOptions(wrong_releases=0.1, keep_p_success=True))
    assert fit.splits == {"learn": 0, "thresholds": 120}
    for name in ("release", "detector"):
        assert "none of these runs taught the p_success that was kept" in part(fit, name).promise
    other = fit_profile(old, base=bare, options=FitOptions(keep_p_success=True, streams=("verbalized",)))
    assert "taught" not in part(other, "detector").promise


def test_a_run_that_taught_an_older_p_success_sets_no_threshold_though_its_file_has_grown_since(tmp_path: Path) -> None:
    old = recorded(tmp_path, 120, seed=1)
    older = fit_profile(old, base=BASE, options=FitOptions(detector=False)).artifact
    learned = older.provenance.splits["learn"]
    more = recorded(tmp_path, 40, seed=2)
    old.write_bytes(old.read_bytes() + more.read_bytes())
    options = FitOptions(wrong_releases=0.1, keep_p_success=True, detector=False)
    once = fit_profile([old], base=older, options=options)
    assert once.splits == {"learn": learned, "thresholds": 160 - learned}
    again = fit_profile([more], base=older, options=options).artifact
    assert fit_profile([old], base=again, options=options).splits["learn"] >= learned


@pytest.mark.slow
def test_labels_given_to_the_best_are_noticed_and_the_rest_counts_as_wrong(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    runs = World().draw(rng, 200)
    said = runs.stated[:, 0]
    top = said >= np.quantile(said, 0.85)
    path = record(tmp_path / "r.jsonl", runs, top, name="r")
    fit = fit_profile(path, base=BASE, options=FitOptions(wrong_releases=0.1))
    release = fit.artifact.profile.release
    assert release.runs == 200
    assert "without a label (170 runs) count as wrong" in release.guarantee
    beyond = sorted(said[~top], reverse=True)[:3]
    assert [said[int(name.split("-")[1])] for name in fit.label_next[:3]] == beyond
    told = fit_profile(path, base=BASE, options=FitOptions(wrong_releases=0.1, labels="random"))
    assert told.artifact.profile.release.runs == 30
    some = record(tmp_path / "s.jsonl", runs, rng.random(200) < 0.3, name="s")
    assert fit_profile(some, base=BASE, options=FitOptions(wrong_releases=0.1)).artifact.profile.release.runs < 100


def test_labels_from_praise_alone_release_nothing_unless_somebody_answers_for_them(tmp_path: Path) -> None:
    """Only successes are labelled: the scores may look alike, and 35 % of releases were wrong at a budget of 10 %."""
    rng = np.random.default_rng(5)
    runs = World(skill=(0.6, 0.7)).draw(rng, 120)
    path = record(tmp_path / "r.jsonl", runs, runs.success & (rng.random(120) < 0.5), name="r")
    for asked in (FitOptions(wrong_releases=0.1, detector=False), FitOptions(accuracy=0.9, detector=False)):
        fit = fit_profile(path, base=BASE, options=asked)
        assert fit.artifact.profile.release is None or fit.artifact.profile.release.at_least is None
        assert "Every labelled run with such a call succeeded" in part(fit, "release").why
    told = fit_profile(path, base=BASE, options=FitOptions(wrong_releases=0.1, labels="random", detector=False))
    assert told.artifact.profile.release.at_least is not None
    everyone = record(tmp_path / "s.jsonl", World(skill=(1.0, 1.0)).draw(rng, 30), name="s")
    sure = fit_profile(everyone, base=BASE, options=FitOptions(wrong_releases=0.1, detector=False))
    assert sure.artifact.profile.release.mode == "wrong_releases"


def test_a_stream_of_which_the_labels_show_no_worth_still_ranks_the_runs(tmp_path: Path) -> None:
    """Of the best few, the better are often not the righter ones; a flat p_success would hold all or none of them."""
    rng = np.random.default_rng(2)
    runs = World().draw(rng, 24)
    turned = replace(runs, success=runs.stated[:, 0] < np.quantile(runs.stated[:, 0], 0.9))
    path = record(tmp_path / "r.jsonl", turned, name="r")
    few = fit_profile(path, base=BASE, options=FitOptions(wrong_releases=0.2))
    chances = [few.artifact.profile.calibration({"fused": value}) for value in (0.2, 0.5, 0.8)]
    assert chances == sorted(set(chances))
    assert chances[-1] - chances[0] < 0.01
    assert few.artifact.profile.release.at_least is not None


@pytest.mark.slow
def test_the_forecast_says_what_replay_stops_on_the_same_runs(tmp_path: Path) -> None:
    """Recorded under a profile that acts: what it stopped is among the runs to come, not only what it let pass."""
    first = fit_profile(recorded(tmp_path, 200, seed=4, skill=(0.1, 0.95)), base=BASE, options=FitOptions(accuracy=0.8))
    folder = tmp_path / "acted"
    rng = np.random.default_rng(5)
    with RecordingProcessor(folder) as recorder:
        monitor = UncertaintyMonitor(profile=first.artifact, processors=[recorder])
        runs = World(skill=(0.1, 0.95)).draw(rng, 120)
        for i, stated in enumerate(runs.stated[:, 0]):
            session = monitor.session(f"a{i}", "a", **FITTING)
            step = Step(step_id="s", kind="llm_call", time_s=0.0)
            stopped = session.commit(step, [Reading(source="verbalized", value=float(stated))]).action.stops
            if not stopped:
                call = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(CALL,))
                stopped = session.commit(call, ()).action.stops
            reason = StopReason.MONITOR_STOP if stopped else StopReason.CLEAN
            session.finish(Outcome(success=None if stopped else bool(runs.success[i]), stop_reason=reason))
    fit = fit_profile(folder, base=first.artifact, options=FitOptions(wrong_releases=0.1, keep_p_success=True))
    counts = replay_all(folder, fit.artifact.profile)
    paused = fit.expected["paused"]
    assert paused["of"] == counts.runs == 120
    assert paused["estimate"] * 120 == pytest.approx(counts.runs_stopped_now)
    assert counts.runs_stopped_now > 20
    stopped = fit.counts["stopped_at_call"]
    assert f"stopped_at_call {stopped}" in fit.artifact.profile.release.guarantee


def test_the_forecast_counts_a_run_let_through_at_random_for_those_that_were_stopped_in_its_place(
    tmp_path: Path,
) -> None:
    """Half of the runs are hopeless and stopped at once; the forecast of the same profile is that half again."""
    rng = np.random.default_rng(6)
    with RecordingProcessor(tmp_path) as recorder:
        monitor = UncertaintyMonitor(policy=POLICY, processors=[recorder], exploration=Exploration(0.25, seed=1))
        for i in range(400):
            session = monitor.session(f"a{i}", "a", **FITTING)
            step = Step(step_id="s", kind="llm_call", time_s=0.0)
            value = 0.05 if i % 2 else 0.95
            stopped = session.commit(step, [Reading(source="verbalized", value=value)]).action.stops
            success = None if stopped else bool(rng.random() < value)
            reason = StopReason.MONITOR_STOP if stopped else StopReason.CLEAN
            session.finish(Outcome(success=success, stop_reason=reason))
    fit = fit_profile(tmp_path, base=BASE, options=FitOptions(detector=False))
    found = fit.expected
    profile = fit.artifact.profile
    assert profile.detector is None
    assert profile.release is None  # the tiers decide, as they did
    assert found["paused"]["estimate"] == pytest.approx(0.5, abs=0.12)
    assert found["failure_rate"] == pytest.approx(0.5, abs=0.12)


def test_a_fit_of_nothing_writes_nothing_and_fails_unless_it_is_forced(tmp_path: Path) -> None:
    path, target = recorded(tmp_path, 12), tmp_path / "p.json"
    for more in ((), ("--stream", "fused")):
        done = CliRunner().invoke(_group, ["fit", str(path), "-o", str(target), *more])
        assert done.exit_code == 1
        assert not target.exists()
        assert "nothing was written" in done.output
        assert "backtest" not in done.output
        told = CliRunner().invoke(_group, ["fit", str(path), "-o", str(target), "--json", *more])
        assert (told.exit_code, json.loads(told.stdout)["profile"]) == (1, None)
    done = CliRunner().invoke(_group, ["fit", str(path), "-o", str(target), "--force"])
    assert done.exit_code == 1
    assert load(target).guarantees[0].startswith("No guarantee")


def test_the_command_offers_the_budget_the_labels_and_the_older_p_success(tmp_path: Path) -> None:
    old = recorded(tmp_path, 120, seed=1)
    save(fit_profile(old, base=BASE, options=FitOptions(detector=False)).artifact, tmp_path / "old.json")
    runs = World(skill=(0.6, 1.0)).draw(np.random.default_rng(8), 80)
    path = record(tmp_path / "new.jsonl", runs, np.arange(80) < 40, name="n")
    asked = ["fit", str(path), "-o", str(tmp_path / "p.json"), "--base", str(tmp_path / "old.json")]
    asked += ["--keep-p-success", "--wrong-releases", "0.1", "--labels", "random", "--task-key", "job"]
    done = CliRunner().invoke(_group, asked)
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert "0 to learn on, 40 to set thresholds of 40 independent tasks; 40 runs name no task" in words
    assert "at most 10 % of the runs with an irreversible call" in words
    assert "label next n-" in words
    assert load(tmp_path / "p.json").profile.release.mode == "wrong_releases"


def test_an_effect_makes_a_call_a_case_too(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        session = UncertaintyMonitor(processors=[recorder], advisory=True).session("r", **FITTING)
        session.commit(Step(step_id="s", kind="llm_call", time_s=0.0), [Reading(source="verbalized", value=0.9)])
        call = ToolCall(name="x")
        irreversible = Effect.IRREVERSIBLE
        session.commit(Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(call,), effect=irreversible), ())
        session.finish(Outcome(success=True))
    assert labelled_runs(tmp_path, BASE).has_call.tolist() == [True]


def test_recordings_with_nothing_but_the_models_word_are_fitted_on_it_and_say_so(tmp_path: Path) -> None:
    fit = fit_profile(recorded(tmp_path, 120), base=BASE, options=FitOptions(wrong_releases=0.2))
    assert set(fit.artifact.profile.calibration.readings) == {"verbalized"}
    assert "It takes the model's word" in part(fit, "p_success").why


@pytest.mark.parametrize("options", [["--budget", "0.45"], ["--assurance", "0", "--false-alarms", "0.3"]])
@pytest.mark.parametrize("read", ["both", "nothing stated", "only stated"])
def test_no_statement_silences_an_alarm_where_other_readings_were_recorded(
    tmp_path: Path, options: list[str], read: str
) -> None:
    """With few labels and without any: the word is heard as a doubt, and as evidence where there was nothing else."""
    beside = read != "only stated"
    folder, output = tmp_path / "runs", tmp_path / "profile.json"
    rng = np.random.default_rng(1)
    step = Step(step_id="m", kind="llm_call", time_s=0.0, tool_calls=(CALL,))

    def readings(stated: float | None, p_true: float) -> list[Reading]:
        given = {"verbalized": stated, "p_true": p_true if beside else None}
        return [Reading(source=source, value=value) for source, value in given.items() if value is not None]

    with RecordingProcessor(folder) as recorder:
        watch = UncertaintyMonitor(processors=[recorder], advisory=True, policy=POLICY)
        for number in range(40):
            session, good = watch.session(f"r{number}", **FITTING), 0.3 + 0.4 * (rng.random() > 0.3)
            stated = None if read == "nothing stated" else good + 0.05 * rng.random()
            session.commit(step, readings(stated, good + 0.05 * rng.random()))
            session.commit(Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(CALL,)), ())
            session.finish(Outcome(success=good > 0.5))
    fitted = CliRunner().invoke(_group, ["fit", str(folder), *options, "--irreversible", "send", "-o", str(output)])
    assert fitted.exit_code == 0, fitted.output
    assert beside is ("It takes the model's word" not in " ".join(fitted.output.split()))
    monitor, released = UncertaintyMonitor(profile=load(output)), {}
    for stated in (None, 0.2, 0.97) if beside else (0.2, 0.97):
        session = monitor.session(f"s{stated}", **FITTING)
        session.commit(step, readings(stated, 0.62 if read == "both" else 0.68))
        released[stated] = session.would_allow(CALL, effect=Effect.IRREVERSIBLE).allowed
    assert released == ({None: False, 0.2: False, 0.97: False} if beside else {0.2: False, 0.97: True})
