"""One call from a folder of recordings to a profile: what is fitted, on which runs, and what is said of the rest."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import anyio
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import ConfigurationError, Outcome, Reading, Step, ToolCall, UncertaintyMonitor
from grampus_uq.cli import _group
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import Profile
from grampus_uq.learn.fit.fit_calibration import fit_fusion
from grampus_uq.learn.fit.task_draws import held_out_runs
from grampus_uq.learn.profiles import FitOptions, ProfileFit, counterfactual, fit_profile, rates
from grampus_uq.learn.profiles.labelled import labelled_runs
from grampus_uq.learn.profiles.p_success import MOST_STEPS, _enough
from grampus_uq.learn.sensed import DERIVED
from grampus_uq.monitor.session import Session
from grampus_uq.recording import RecordingProcessor, runs
from grampus_uq.recording.artifacts import FittedFor, load, save
from grampus_uq.recording.replay import replay
from tests.binomial import binomial_ceiling
from tests.learn.profiles.recorded import HASH, POLICY, record

pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")

BASE, SEND = Profile(policy=POLICY), ToolCall(name="send_mail")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    record(path, 420, 1)
    return path


@pytest.fixture(scope="module")
def fitted(folder: Path) -> ProfileFit:
    return fit_profile(folder, base=BASE, options=FitOptions(accuracy=0.85, runs_per_day=50.0))


def part(fit: ProfileFit, name: str):
    (found,) = [part for part in fit.parts if part.name == name]
    return found


def test_everything_that_the_labels_allow_is_fitted_and_the_rest_says_why(fitted: ProfileFit) -> None:
    states = {part.name: part.status for part in fitted.parts}
    assert states == {
        "tracer": "not fitted",
        "stream noise": "fitted",
        "stream token_probability": "fitted",
        "stream verbalized": "not asked for",
        "p_success": "fitted",
        "release": "fitted",
        "detector": "fitted",
        "attribution": "not fitted",
    }
    for one in fitted.parts:
        assert one.why
        assert one.needs or one.status == "fitted"
    assert "no more than the success rate" in part(fitted, "stream noise").why
    assert part(fitted, "p_success").figures["auroc"] > 0.8
    assert sum(fitted.splits.values()) == fitted.counts["success"] + fitted.counts["failure"]
    assert fitted.counts["max_steps"] > 10


@pytest.mark.slow
def test_the_promises_hold_on_fresh_runs(fitted: ProfileFit, tmp_path: Path) -> None:
    record(tmp_path, 500, 2)
    fresh = [run for run in runs(tmp_path) if run.outcome.success is not None]
    found = rates(counterfactual(run, fitted.artifact.profile) for run in fresh)
    alarms = [one for one in fresh if counterfactual(one, fitted.artifact.profile).paused_by == "detector"]
    good = sum(run.outcome.success for run in fresh)
    assert sum(run.outcome.success for run in alarms) <= binomial_ceiling(good, 0.1)
    assert part(fitted, "release").promise  # certified
    released = found["right_among_released"]
    wrong = round((1 - released["estimate"]) * released["of"])
    assert released["of"] > 100
    assert wrong <= binomial_ceiling(released["of"], 0.15)


def test_no_run_teaches_what_it_sets_a_threshold_for(folder: Path, fitted: ProfileFit) -> None:
    """Turn the outcomes of the held-out runs around: what was learned stays the same to the last digit."""
    options = FitOptions(accuracy=0.85)
    read = labelled_runs(folder, BASE)
    held = held_out_runs(read.tasks, read.success, options.held_out, np.random.default_rng(options.seed))
    assert set(fitted.detector.report.threshold_ids) <= {i for i, h in zip(read.ids, held, strict=True) if h}
    learned = {i for i, h in zip(read.ids, held, strict=True) if not h}
    assert not learned & set(fitted.detector.report.threshold_ids)
    names = [name for name in read.streams if name not in (*DERIVED, "verbalized")]
    learned = read.taught_by(~held)
    alone = fit_fusion({name: read.at_moments(name, learned) for name in names}, read.success[learned])
    assert alone == fitted.artifact.profile.calibration


def test_what_the_model_states_is_left_out_beside_other_readings_unless_it_is_trusted(
    folder: Path, fitted: ProfileFit
) -> None:
    assert set(fitted.artifact.profile.calibration.readings) == {"token_probability", "noise"}
    assert "whoever can make the model state more" in part(fitted, "stream verbalized").why
    trusting = fit_profile(folder, base=BASE, options=FitOptions(accuracy=0.85, trust_stated=True))
    assert "verbalized" in trusting.artifact.profile.calibration.readings
    assert "It takes the model's word" in part(trusting, "p_success").why
    kept = fit_profile(folder, base=trusting.artifact, options=FitOptions(accuracy=0.85, keep_p_success=True))
    assert "It takes the model's word" in part(kept, "p_success").why


@pytest.mark.parametrize("given", [FitOptions(wrong_releases=0.2, detector=False), FitOptions(wrong_releases=0.2)])
def test_a_turn_with_nothing_but_a_statement_is_as_silent_as_one_without_where_the_fit_had_gaps(
    tmp_path: Path, given: FitOptions
) -> None:
    """Tokens in three of five runs, counts in all: a statement would open the door for what counts say of any run."""
    rng, turn = np.random.default_rng(2), Step(step_id="m", kind="llm_call", time_s=0.0, tool_calls=(SEND,))

    def session_of(watch: UncertaintyMonitor, name: str, **values: float) -> Session:
        session = watch.session(name, "a", model="m", prompt_hash=HASH, tools_hash=HASH)
        session.commit(turn, [Reading(source=source, value=value) for source, value in values.items()])
        return session

    with RecordingProcessor(tmp_path) as recorder:
        watch = UncertaintyMonitor(processors=[recorder], advisory=True, policy=POLICY)
        for number in range(150):
            good = bool(rng.random() < 0.8)
            read = {"token_probability": float(rng.uniform(0.5, 0.95) if good else rng.uniform(0.1, 0.6))}
            read = {"verbalized": 0.9, "count_calls": 0.5} | (read if rng.random() < 0.6 else {})
            session = session_of(watch, f"r{number}", **read)
            session.commit(Step(step_id="t", kind="tool_call", time_s=1.0, tool_calls=(SEND,)), ())
            session.finish(Outcome(success=good))
    monitor = UncertaintyMonitor(profile=fit_profile(tmp_path, base=BASE, options=given).artifact)
    tokens, stated, silent = {"token_probability": 0.95}, {"verbalized": 1.0}, {}
    found = [session_of(monitor, f"{one}", count_calls=0.5, **one) for one in (tokens, stated, silent)]
    assert [session.would_allow(SEND, effect="irreversible").allowed for session in found] == [True, False, False]


def test_a_promise_on_wrong_releases_holds_whatever_an_attacker_makes_the_model_state(folder: Path) -> None:
    """He writes what every deployed run states; with the word trusted he releases most of what is wrong."""
    released = {}
    for trusted in (False, True):
        options = FitOptions(wrong_releases=0.1, detector=False, trust_stated=trusted)
        fit, rng = fit_profile(folder, base=BASE, options=options), np.random.default_rng(5)
        monitor, wrong = UncertaintyMonitor(profile=fit.artifact), 0
        for number in range(300):
            chance = 0.08 if rng.random() < 0.5 else 0.97
            drawn = float(np.clip(chance + rng.normal(0.0, 0.35), 0.0, 1.0))
            session = monitor.session(f"{number}", "a", model="m", prompt_hash=HASH, tools_hash=HASH)
            heard = {"verbalized": 1.0, "noise": rng.random(), "token_probability": drawn}
            readings = [Reading(source=source, value=float(value)) for source, value in heard.items()]
            session.commit(Step(step_id="m", kind="llm_call", time_s=0.0, tool_calls=(SEND,)), readings)
            wrong += session.would_allow(SEND, effect="irreversible").allowed and rng.random() >= chance
        released[trusted] = wrong
    assert released[False] <= binomial_ceiling(300, 0.1)
    assert released[True] > 0.3 * 300


def test_trials_of_one_task_stay_in_one_part(tmp_path: Path) -> None:
    record(tmp_path, 60, 3, tasks=9)
    read = labelled_runs(tmp_path, BASE)
    held = held_out_runs(read.tasks, read.success, 0.5, np.random.default_rng(0))
    inside = {task for task, h in zip(read.tasks, held, strict=True) if h}
    outside = {task for task, h in zip(read.tasks, held, strict=True) if not h}
    assert not inside & outside
    assert 0.25 < held.mean() < 0.75


@given(st.integers(0, 200), st.integers(0, 200), st.floats(0.1, 0.9), st.integers(0, 5))
def test_both_parts_have_their_share_of_either_outcome(good: int, bad: int, share: float, seed: int) -> None:
    success = np.array([True] * good + [False] * bad, dtype=bool)
    held = held_out_runs([str(i) for i in range(good + bad)], success, share, np.random.default_rng(seed))
    assert abs(int(held[:good].sum()) - share * good) <= 1.0
    assert abs(int(held[good:].sum()) - share * bad) <= 1.0


def test_the_artifact_drives_a_monitor_which_releases_and_holds_with_the_stated_promise(
    fitted: ProfileFit, tmp_path: Path
) -> None:
    save(fitted.artifact, tmp_path / "profile.json")
    monitor = UncertaintyMonitor(profile=load(tmp_path / "profile.json"))
    fitting = {"model": "m", "prompt_hash": HASH, "tools_hash": HASH}
    for value, goes in ((0.97, True), (0.5, False)):
        session = monitor.session(f"live-{value}", **fitting)
        for index in range(3):
            step = Step(step_id=f"s{index}", kind="llm_call", time_s=0.0)
            both = [Reading(source="verbalized", value=value), Reading(source="token_probability", value=value)]
            session.commit(step, both)
        verdict = session.would_allow(ToolCall(name="send_mail"))
        assert verdict.allowed is goes
        assert (verdict.guarantee is not None) is (goes or verdict.rule == "detector")
    other = monitor.session("other", model="m", prompt_hash=HASH)
    held = other.would_allow("send_mail")  # other tools: the tiers stand in
    assert not held.allowed
    assert "the fitted profile does not apply here" in held.reason


def test_the_forecast_says_how_often_it_will_pause_and_how_often_rightly(fitted: ProfileFit) -> None:
    found = fitted.expected
    assert (found["runs"], found["with_outcome"]) == (420, fitted.splits["thresholds"])
    assert found["pauses_per_day"] == pytest.approx(50.0 * found["paused"]["estimate"])
    for name in ("paused", "precision", "false_alarms", "failures_caught", "right_among_released"):
        one = found[name]
        assert one["low"] <= one["estimate"] <= one["high"]
    assert found["right_among_released"]["estimate"] > found["right_before"]["estimate"] + 0.2


@pytest.mark.slow
def test_what_came_out_does_not_depend_on_how_many_read(folder: Path, fitted: ProfileFit) -> None:
    again = fit_profile(folder, base=BASE, options=FitOptions(accuracy=0.85, runs_per_day=50.0), workers=2)
    assert again.artifact.profile == fitted.artifact.profile
    assert again.to_json()["parts"] == fitted.to_json()["parts"]


async def watched(watch: UncertaintyMonitor, name: str, rng: np.random.Generator) -> None:
    """A run watched with TRACER: one that fails repeats itself and its tools fail."""
    bad = bool(rng.random() < 0.5)
    session = watch.session(name)
    for index in range(4):
        said = "let me look at the same page again" if bad else f"step {index} does thing number {rng.integers(1000)}"
        stated = float(np.clip(rng.normal(0.6 if bad else 0.75, 0.15), 0.0, 1.0))
        call = ToolCall(id=f"c{index}", name="look", arguments={"page": 1 if bad else index})
        await session.observe_llm_response(f'{said}. {{"confidence": {stated:.2f}}}', f"s{index}", tool_calls=[call])
        session.observe_tool_result(call.id, "nothing found" if bad else f"page {index}", is_error=bad and index > 1)
    session.finish(Outcome(success=not bad))


def test_where_runs_were_watched_with_tracer_its_parameters_and_its_stream_are_fitted(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    with RecordingProcessor(tmp_path) as recorder:
        watch = UncertaintyMonitor(processors=[recorder], advisory=True, trajectory_risk=TrajectoryRiskSettings())

        async def main() -> None:
            for number in range(90):
                await watched(watch, f"r{number}", rng)

        anyio.run(main)
    fit = fit_profile(tmp_path, options=FitOptions(detector=False))
    assert part(fit, "tracer").status == "fitted"
    assert part(fit, "tracer").figures["auroc_on_other_tasks"] > 0.7
    profile = fit.artifact.profile
    assert profile.trajectory_risk is not None
    assert {"trajectory_risk", "verbalized"} <= set(profile.calibration.readings), "a run's risk is no other reading"
    replayed = [step for run in runs(tmp_path) for step in replay(run.events, profile)]
    assert any(step.assessment.p_success is not None for step in replayed)


def test_with_too_few_labels_nothing_is_fitted_by_force(tmp_path: Path) -> None:
    record(tmp_path, 14, 5)
    for file in tmp_path.glob("*.jsonl"):  # versions named by other texts than hashes
        named = file.read_text().replace(f'"prompt_hash":"{HASH}"', '"prompt_hash":"v12"')
        file.write_text(named.replace(f'"tools_hash":"{HASH}"', '"tools_hash":"2026-11"'))
    fit = fit_profile(tmp_path, base=BASE, options=FitOptions(accuracy=0.9))
    assert fit.artifact.fitted_for == FittedFor(model="m", prompt_hash="v12", tools_hash="2026-11")
    assert part(fit, "p_success").status == "not fitted"
    assert "more labelled" in part(fit, "p_success").needs
    assert part(fit, "release").status == part(fit, "detector").status == "not fitted"
    assert "successes, about, for a false-alarm rate" in part(fit, "detector").needs
    profile = fit.artifact.profile
    assert (profile.calibration, profile.release, profile.detector) == (None, None, None)
    assert fit.artifact.guarantees[0].startswith("No guarantee")


def test_certified_only_releases_nothing_rather_than_without_a_promise(folder: Path, tmp_path: Path) -> None:
    some = tmp_path / "some"
    record(some, 80, 6)
    fit = fit_profile(some, base=BASE, options=FitOptions(accuracy=0.99, certified_only=True))
    release = fit.artifact.profile.release
    assert release.at_least is None
    assert "No guarantee" in release.shortage
    assert fit.expected["right_among_released"]["of"] == 0
    assert part(fit, "release").status == "not fitted"


def test_the_release_follows_a_share_of_pauses_where_one_is_given(folder: Path) -> None:
    fit = fit_profile(folder, base=BASE, options=FitOptions(detector=False, pause_share=0.2))
    release = fit.artifact.profile.release
    assert release.mode == "share"
    assert 0.1 <= fit.expected["paused"]["estimate"] <= 0.2
    assert release.guarantee


@pytest.mark.parametrize(
    "wrong",
    [
        {"accuracy": 90.0},
        {"accuracy": 0.9, "pause_share": 0.1},
        {"held_out": 0.0},
        {"assurance": 1.0},
    ],
)
def test_options_that_cannot_be_meant_are_refused(wrong) -> None:
    with pytest.raises(ConfigurationError):
        FitOptions(**wrong)


def test_a_stream_that_was_read_at_every_step_is_sensed_at_every_step_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with RecordingProcessor(tmp_path) as recorder:
        watch = UncertaintyMonitor(processors=[recorder], advisory=True)
        for number in range(120):
            good = bool(rng.random() < 0.5)
            session = watch.session(f"r{number}")
            value = float(np.clip(rng.normal(0.7 if good else 0.4, 0.15), 0, 1))
            step = Step(step_id="s", kind="llm_call", time_s=0.0)
            session.commit(step, [Reading(source="semantic_entropy", value=value)])
            session.finish(Outcome(success=good))
    profile = fit_profile(tmp_path).artifact.profile
    assert profile.policy.enable_semantic_sampling
    assert (profile.estimator.semantic_trigger_low, profile.estimator.semantic_trigger_high) == (0.0, 1.0)


def test_labelled_errors_become_a_calibration_that_attribute_takes(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with RecordingProcessor(tmp_path / "runs", content="full") as recorder:
        watch = UncertaintyMonitor(processors=[recorder], advisory=True)
        for number in range(44):
            bad = int(rng.integers(1, 4))
            session = watch.session(f"r{number}", "agent")
            for index in range(5):
                text = "error: could not find it" if index == bad else f"step {index} went well"
                session.commit(Step(step_id=f"s{index}", kind="llm_call", time_s=0.0, text=text), ())
            session.finish(Outcome(success=False, labelled_by="ana", note=f"error at s{bad}"))
    fit = fit_profile(tmp_path / "runs")
    assert part(fit, "attribution").status == "fitted"
    assert fit.artifact.attribution is not None
    save(fit.artifact, tmp_path / "p.json")
    assert load(tmp_path / "p.json") == fit.artifact
    with RecordingProcessor(tmp_path / "failed", content="full") as recorder:
        session = UncertaintyMonitor(processors=[recorder], advisory=True).session("new", "agent")
        for index in range(5):
            text = "error: could not find it" if index == 2 else f"step {index} went well"
            session.commit(Step(step_id=f"s{index}", kind="llm_call", time_s=0.0, text=text), ())
        session.finish(Outcome(success=False))
    done = CliRunner().invoke(
        _group, ["attribute", str(tmp_path / "failed"), "--calibration", str(tmp_path / "p.json"), "--json"]
    )
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["attributions"]
    assert 2 in found["set_steps"]
    asked = ["attribute", str(tmp_path / "failed"), "--calibration", str(tmp_path / "p.json"), "--level", "0.9"]
    refused = CliRunner().invoke(_group, asked)
    assert (refused.exit_code, "calibrated for vcp at 0.8" in refused.output) == (2, True)


@pytest.mark.slow
def test_the_command_prints_an_account_and_writes_one_artifact(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "profile.json"
    asked = ["fit", str(folder), "-o", str(target), "--accuracy", "0.85", "--irreversible", "send"]
    shown = CliRunner().invoke(_group, [*asked, "--runs-per-day", "40"], catch_exceptions=False).stdout
    for word in ("runs ", "split", "p_success", "release", "statistic", "promise", "NOT FITTED", "expect", "a day"):
        assert word in shown
    assert all(len(line.replace(str(tmp_path), "")) <= 120 for line in shown.splitlines())
    assert load(target).profile.release is not None
    told = json.loads(CliRunner().invoke(_group, [*asked, "--json"], catch_exceptions=False).stdout)
    assert told["fingerprint"] == load(target).fingerprint
    assert {part["name"] for part in told["parts"]} >= {"p_success", "release", "detector", "tracer", "attribution"}
    rows = json.loads(CliRunner().invoke(_group, ["backtest", str(target), str(folder), "--json"]).stdout)["rows"]
    assert any(row["deployed"] and row["power"] > 0.3 for row in rows)  # the detector reads p_success of the profile


def test_it_runs_beside_a_running_event_loop(folder: Path) -> None:
    async def main() -> ProfileFit:
        return await anyio.to_thread.run_sync(lambda: fit_profile(folder, options=FitOptions(detector=False)))

    assert anyio.run(main).artifact.profile.calibration is not None


def test_of_very_many_runs_a_random_part_teaches_the_chance_of_success(folder: Path) -> None:
    read = labelled_runs(folder, BASE)
    learn = np.arange(len(read)) % 2 == 0
    assert (_enough(read, learn, np.random.default_rng(0)) == learn).all()
    long = dataclasses.replace(read, lengths=read.lengths * 500)
    taught = _enough(long, learn, np.random.default_rng(0))
    assert not (taught & ~learn).any()
    assert 0.9 * MOST_STEPS < long.lengths[taught].sum() <= MOST_STEPS
