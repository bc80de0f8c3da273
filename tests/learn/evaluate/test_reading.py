"""Which runs may be scored, and what their streams are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from grampus_uq.core.estimator import UncertaintyEstimator
from grampus_uq.core.state import Profile
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.evaluate import ForecastRuns, evaluate, read_recordings
from grampus_uq.records.events import DecisionEvent
from grampus_uq.records.vocabulary import StopReason
from grampus_uq.stats.trajectory_scores import ForecastTraces
from tests.guarantees.worlds import World, record
from tests.learn.evaluate.recorded import events, write

ONE = [{"verbalized": 0.8}]


def test_informative_stops_are_left_out_and_counted_with_their_outcomes(tmp_path: Path) -> None:
    stops = [stop for stop in StopReason if stop.informative]
    write(tmp_path / "a.jsonl", *(events(stop.value, ONE, False, stop=stop) for stop in stops), events("ok", ONE, True))
    found = read_recordings(tmp_path)
    assert found.ids == ("ok",)
    left_out = {row.stop_reason: row for row in found.audit if row.use == "left out"}
    assert set(left_out) == {stop.value for stop in stops}
    assert all((row.runs, row.failures, row.why) == (1, 1, "informative stop") for row in left_out.values())


def test_a_run_at_its_budget_is_censored_whatever_the_runtime_says_unless_somebody_labelled_it(tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl",
        events("budget", ONE, False, stop=StopReason.MAX_STEPS),
        events("labelled", ONE, False, stop=StopReason.MAX_STEPS, labelled_by="ann"),
    )
    found = read_recordings(tmp_path)
    assert dict(zip(found.ids, found.censored.tolist(), strict=True)) == {"budget": True, "labelled": False}


def test_unlabelled_unfinished_empty_and_touched_runs_are_left_out_each_for_its_reason(tmp_path: Path) -> None:
    decided = DecisionEvent(session_id="touched", agent_id="a", decision="approve", principal="ann", time_s=1.0)
    write(
        tmp_path / "a.jsonl",
        events("unlabelled", ONE, None),
        events("unfinished", ONE, None, ended=False),
        events("empty", [], True),
        [*events("touched", ONE, True), decided],
    )
    found = read_recordings(tmp_path)
    assert len(found) == 0
    assert {row.why for row in found.audit} == {
        "not labelled",
        "no step of the model",
        "a human decided on a step",
    }


@pytest.mark.parametrize(("decided", "way_out"), [(True, "advisory=True"), (False, "grampus-uq runs label")])
def test_runs_that_nobody_can_score_are_answered_with_what_would_help(
    tmp_path: Path, decided: bool, way_out: str
) -> None:
    run = events("run", ONE, True if decided else None)
    decision = DecisionEvent(session_id="run", agent_id="a", decision="approve", principal="ann", time_s=1.0)
    write(tmp_path / "a.jsonl", [*run, decision] if decided else run)
    with pytest.raises(DataError) as caught:
        evaluate(read_recordings(tmp_path), rng=np.random.default_rng(0))
    offered = [way for way in ("advisory=True", "grampus-uq runs label") if way in str(caught.value)]
    assert offered == [way_out]


def test_runs_that_all_reached_their_budget_are_answered_with_the_option_that_scores_them(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", events("run", ONE, None, stop=StopReason.MAX_STEPS))
    with pytest.raises(DataError, match="--censoring simple") as caught:
        evaluate(read_recordings(tmp_path), rng=np.random.default_rng(0))
    assert "none of their steps has a reading" not in str(caught.value)


def test_steps_of_tools_are_no_steps_of_the_forecast(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", events("a", [{"verbalized": 0.8}, {"verbalized": 0.6}], True, tools=True))
    found = read_recordings(tmp_path)
    assert found.streams["verbalized"].forecasts.tolist() == [0.8, 0.6]
    assert found.streams["verbalized"].lengths.tolist() == [2]


def test_a_missing_reading_is_missing_in_its_stream_and_in_what_is_derived_from_nothing(tmp_path: Path) -> None:
    steps = [{"verbalized": None}, {"verbalized": 0.8}, {"verbalized": None}]
    write(tmp_path / "a.jsonl", events("a", steps, True), events("b", [{"p_true": 0.5}], True))
    found = read_recordings(tmp_path)
    missing = {name: np.isnan(traces.forecasts).tolist() for name, traces in found.streams.items()}
    assert missing["verbalized"] == [True, False, True, True]
    assert missing["fused"] == [True, False, True, False]
    assert missing["propagated"] == [True, False, False, False]  # 1 before any reading is a start, not a forecast


def test_an_unweighted_reading_alone_leaves_the_fused_stream_missing(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", events("a", [{"somebody": 0.9}], True))
    streams = read_recordings(tmp_path).streams
    assert "fused" not in streams
    assert streams["somebody"].forecasts.tolist() == [0.9]


def test_another_profile_replays_the_recorded_readings(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", events("a", [{"verbalized": 0.8}], True, tools=True))
    plain = read_recordings(tmp_path).streams["fused"].forecasts
    other = Profile(estimator=UncertaintyEstimator(verbalized_calibration_bias=0.0))
    assert plain.tolist() == pytest.approx([0.6])
    assert read_recordings(tmp_path, profile=other).streams["fused"].forecasts.tolist() == pytest.approx([0.8])


def test_a_reading_named_like_a_derived_stream_does_not_take_its_place(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", events("a", [{"verbalized": 0.8, "fused": 0.1}], True))
    streams = read_recordings(tmp_path).streams
    assert streams["fused"].forecasts.tolist() == pytest.approx([0.6])


def test_a_run_in_two_files_is_refused_by_both_places(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", events("s", ONE, True))
    write(tmp_path / "b.jsonl", events("s", ONE, True))
    with pytest.raises(DataError, match=r"b\.jsonl:1.*'s' is also in .*a\.jsonl"):
        read_recordings(tmp_path)


def test_a_damaged_recording_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"v":1,"type":"nothing"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:1"):
        read_recordings(tmp_path)


def test_streams_of_other_runs_and_repeated_ids_are_refused() -> None:
    one, two = ForecastTraces.of([[0.5], [0.5]]), ForecastTraces.of([[0.5, 0.5], [0.5]])
    outcomes = np.array([1.0, 0.0])
    with pytest.raises(ConfigurationError, match="same runs and steps"):
        ForecastRuns(ids=("a", "b"), outcomes=outcomes, streams={"x": one, "y": two}, audit=())
    with pytest.raises(ConfigurationError, match="distinct"):
        ForecastRuns(ids=("a", "a"), outcomes=outcomes, streams={"x": one}, audit=())
    with pytest.raises(ConfigurationError, match="0, 1 or NaN"):
        ForecastRuns(ids=("a", "b"), outcomes=np.array([0.5, 1.0]), streams={"x": one}, audit=())


@pytest.mark.parametrize(("trials", "told"), [(1, True), (4, True), (4, False)])
def test_trials_of_a_task_are_warned_of_as_far_as_the_recording_names_the_task(
    tmp_path: Path, trials: int, told: bool
) -> None:
    runs = World(trials=trials, told=told).draw(np.random.default_rng(0), 40)
    record(tmp_path / "r.jsonl", runs)
    found = evaluate(read_recordings(tmp_path), rng=np.random.default_rng(0), draws=20).warnings
    assert any("The 40 runs are trials of 10 tasks" in warning for warning in found) == (trials > 1 and told)
