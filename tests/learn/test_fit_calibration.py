"""The live p_success: what the fusion computes, how it is fitted, and that it changes nothing else."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.linear_model import LogisticRegression

from grampus_uq.core.engine import advance
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.fit_calibration import apply_fusion, fit_fusion, fit_success
from grampus_uq.records.values import Reading, Step
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from grampus_uq.stats.scoring import log_odds
from grampus_uq.stats.trajectory_scores import ForecastTraces, step_weights

unit = st.floats(0.0, 1.0)
fused_readings = st.builds(
    FusedReading,
    mean=st.floats(-5, 5),
    sd=st.floats(0.1, 5),
    slope=st.floats(0, 5),
    offset=st.floats(-3, 3),
)
fusions = st.builds(
    LogisticFusion,
    readings=st.fixed_dictionaries({"a": fused_readings, "b": fused_readings}),
    intercept=st.floats(-3, 3),
)


def world(n: int, rng: np.random.Generator, *, silent: float = 0.0):
    """Two honest streams with independent noise; `b` is silent at this share of the steps, more often in failures."""
    lengths = rng.integers(1, 6, n)
    chance = rng.beta(1.5, 1.5, n)
    outcomes = (rng.random(n) < chance).astype(np.float64)
    z = np.repeat(log_odds(chance), lengths)
    a = 1.0 / (1.0 + np.exp(-(z + rng.normal(0, 1.0, len(z)))))
    b = 1.0 / (1.0 + np.exp(-(z + rng.normal(0, 1.0, len(z)))))
    hidden = rng.random(len(z)) < silent * np.where(np.repeat(outcomes, lengths) == 1.0, 0.5, 1.0)
    b[hidden] = np.nan
    streams = {"a": ForecastTraces(forecasts=a, lengths=lengths), "b": ForecastTraces(forecasts=b, lengths=lengths)}
    return streams, outcomes, [f"r{i:05}" for i in range(n)]


@given(fusions, unit, unit, unit)
def test_no_reading_lowers_the_result_by_rising_and_it_stays_inside(fusion, low, high, other):
    low, high = sorted((low, high))
    first, second = fusion({"a": low, "b": other}), fusion({"a": high, "b": other})
    assert fusion.epsilon <= first <= second <= 1.0 - fusion.epsilon


@given(fused_readings, st.floats(-5, 5), unit)
def test_no_value_of_a_reading_is_worse_than_its_worst(reading, slope, value):
    count = reading.model_copy(update={"slope": slope})
    fusion = LogisticFusion(readings={"a": reading, "count_a": count}, intercept=0.0)
    for name in fusion.readings:
        assert fusion({name: fusion.worst_of(name)}) <= fusion({name: value})


extreme = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([5e-324, 1e-300, 1e-17, 1e300, -1e300])


@given(extreme, extreme, extreme, extreme, extreme, extreme, st.sampled_from([0.0, 1e-320, 0.5, 1.0]))
def test_every_fusion_that_can_be_built_gives_a_probability(mean, sd, slope, offset, intercept, epsilon, value):
    try:
        reading = FusedReading(mean=mean, sd=sd, slope=slope, offset=offset)
        fusion = LogisticFusion(readings={"a": reading, "b": reading}, intercept=intercept, epsilon=epsilon)
    except ValidationError:
        return
    assert fusion.epsilon <= fusion({"a": value, "b": 1.0 - value}) <= 1.0 - fusion.epsilon


@given(fusions, st.lists(st.tuples(st.none() | unit, st.none() | unit), min_size=1, max_size=8))
def test_arrays_and_single_steps_agree_and_survive_json(fusion, rows):
    again = LogisticFusion.model_validate_json(fusion.model_dump_json())
    columns = {
        name: np.array([math.nan if row[i] is None else row[i] for row in rows]) for i, name in enumerate(("a", "b"))
    }
    for row, many in zip(rows, apply_fusion(fusion, columns).tolist(), strict=True):
        one = again({"a": row[0], "b": row[1]})
        assert (one is None) == math.isnan(many)
        assert one is None or one == pytest.approx(many, abs=1e-12)


def test_a_value_outside_its_domain_and_an_unfitted_fusion_are_refused():
    fusion = LogisticFusion(readings={"a": FusedReading(mean=0, sd=1, slope=1)}, intercept=0)
    for wrong in (1.5, -0.1, math.nan):
        with pytest.raises(ConfigurationError, match=r"in \[0, 1\]"):
            fusion({"a": wrong})
    for wrong in ({}, {"a": {"mean": 0, "sd": 0, "slope": 1}}, {"a": {"mean": 0, "sd": 1, "slope": -1}}):
        with pytest.raises(ValidationError):
            LogisticFusion.model_validate({"readings": wrong, "intercept": 0.0})


def test_one_stream_that_is_never_missing_is_platt_scaling():
    streams, outcomes, _ = world(400, np.random.default_rng(0))
    fused = fit_fusion({"a": streams["a"]}, outcomes)
    x, w = log_odds(streams["a"].forecasts), step_weights(streams["a"])
    mean = np.average(x, weights=w)
    sd = np.sqrt(np.average((x - mean) ** 2, weights=w))
    assert (fused.readings["a"].mean, fused.readings["a"].sd) == pytest.approx((mean, sd))
    model = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12)
    model.fit(((x - mean) / sd)[:, None], np.repeat(outcomes, streams["a"].lengths), sample_weight=w)
    grid = np.linspace(0.001, 0.999, 101)
    platt = model.predict_proba(((log_odds(grid) - mean) / sd)[:, None])[:, 1]
    assert apply_fusion(fused, {"a": grid}) == pytest.approx(platt, abs=1e-8)


def test_coefficients_equal_scikit_learns_on_the_same_design():
    streams, outcomes, _ = world(400, np.random.default_rng(1), silent=0.4)
    fusion = fit_fusion(streams, outcomes)
    w = step_weights(streams["a"])
    x = np.column_stack([log_odds(t.forecasts) for t in streams.values()])
    there = ~np.isnan(x)
    mean = np.array([np.average(x[there[:, i], i], weights=w[there[:, i]]) for i in range(2)])
    sd = np.array([np.sqrt(np.average((x[there[:, i], i] - mean[i]) ** 2, weights=w[there[:, i]])) for i in range(2)])
    z = np.where(there, (np.nan_to_num(x) - mean) / sd, 0.0)
    model = LogisticRegression(C=1.0, tol=1e-12, max_iter=10_000)
    model.fit(np.column_stack([z, there[:, 1]]), np.repeat(outcomes, streams["a"].lengths), sample_weight=w)
    got = [fusion.readings["a"].slope, fusion.readings["b"].slope, fusion.readings["b"].offset]
    assert got == pytest.approx(model.coef_[0].tolist(), abs=1e-5)
    assert fusion.intercept == pytest.approx(float(model.intercept_[0]), abs=1e-5)
    assert fusion.readings["a"].offset == 0.0


def test_two_streams_beat_each_alone_out_of_sample_and_silence_is_used():
    streams, outcomes, ids = world(3000, np.random.default_rng(2), silent=0.6)
    both = fit_success(streams, outcomes, ids)
    alone = fit_success({"a": streams["a"]}, outcomes, ids)
    assert both.score > alone.score + 0.01 > both.base_score
    assert both.fusion.readings["b"].offset > 0.2  # silence is a bad sign in this world
    assert both.scored == 3000


def test_noise_is_worth_no_more_than_the_base_rate_and_a_reversed_stream_is_not_turned_around():
    rng = np.random.default_rng(3)
    streams, outcomes, ids = world(2000, rng)
    noise = streams["a"].with_forecasts(rng.random(len(streams["a"].forecasts)))
    fitted = fit_success({"noise": noise}, outcomes, ids)
    assert fitted.score == pytest.approx(fitted.base_score, abs=0.003)
    reversed_stream = streams["b"].with_forecasts(1.0 - streams["b"].forecasts)
    fusion = fit_fusion({"a": streams["a"], "b": reversed_stream}, outcomes)
    assert fusion.readings["b"].slope == 0.0
    assert fusion.readings["a"].slope > 0.0


def test_no_run_is_judged_by_a_fusion_that_saw_it():
    """Sabotage of the outcomes of one half leaves that half's own forecasts as they were."""
    streams, outcomes, ids = world(200, np.random.default_rng(4))
    fitted = fit_success(streams, outcomes, ids)
    half = fitted.cross.second_half
    changed = outcomes.copy()
    first, second = np.flatnonzero(half & (outcomes == 1.0))[0], np.flatnonzero(half & (outcomes == 0.0))[0]
    changed[[first, second]] = changed[[second, first]]
    again = fit_success(streams, changed, [ids[i] for i in _swapped(len(ids), first, second)])
    steps = np.repeat(half, streams["a"].lengths)
    assert np.array_equal(again.cross.second_half, half)
    assert np.array_equal(again.cross.traces.forecasts[steps], fitted.cross.traces.forecasts[steps])
    assert not np.array_equal(again.cross.traces.forecasts[~steps], fitted.cross.traces.forecasts[~steps])


def _swapped(n: int, one: int, other: int) -> list[int]:
    order = list(range(n))
    order[one], order[other] = order[other], order[one]
    return order


def test_one_class_is_flat_and_wrong_input_is_refused():
    streams, outcomes, ids = world(40, np.random.default_rng(5))
    assert fit_fusion(streams, np.ones(40)).flat
    silent = streams["a"].with_forecasts(np.full(len(streams["a"].forecasts), np.nan))
    with pytest.raises(ConfigurationError, match="at least one reading"):
        fit_fusion({"a": silent}, outcomes)
    with pytest.raises(ConfigurationError, match="'streams'"):
        fit_fusion({}, outcomes)
    with pytest.raises(ConfigurationError, match="'outcomes'"):
        fit_fusion(streams, np.full(40, 0.5))
    with pytest.raises(ConfigurationError):
        fit_success(streams, outcomes, ["same"] * 40)
    assert ids


def taken(profile: Profile, *readings: Reading):
    step = Step(step_id="s", kind="llm_call", time_s=0.0, text="x")
    return advance(profile, SessionState(session_id="s"), step, readings)


STATED = Reading(source="verbalized", value=0.8)
SILENT = Reading(source="verbalized", value=None, reason="not_stated")


@pytest.mark.parametrize("source", ["verbalized", "fused", "propagated", "semantic_entropy"])
def test_a_calibrated_profile_sets_p_success_and_changes_nothing_else(source: str):
    fusion = LogisticFusion(readings={source: FusedReading(mean=0.0, sd=1.0, slope=2.0)}, intercept=0.3)
    readings = (STATED, Reading(source="semantic_entropy", value=0.7))
    plain_state, plain = taken(Profile(), *readings)
    state, seen = taken(Profile(calibration=fusion), *readings)
    value = {
        "verbalized": 0.8,
        "fused": plain.fused_confidence,
        "propagated": plain.propagated_confidence,
        "semantic_entropy": 0.7,
    }[source]
    assert plain.p_success is None
    assert seen.p_success == fusion({source: value})
    assert seen.model_dump(exclude={"p_success"}) == plain.model_dump(exclude={"p_success"})
    turns = tuple(dataclasses.replace(turn, p_success=seen.p_success) for turn in plain_state.turns)
    assert state == dataclasses.replace(plain_state, p_success=seen.p_success, turns=turns)
    assert type(seen).model_validate(seen.model_dump()) == seen


@pytest.mark.parametrize("source", ["verbalized", "fused", "propagated", "p_true"])
def test_where_nothing_was_read_there_is_no_p_success(source: str):
    fusion = LogisticFusion(readings={source: FusedReading(mean=0.0, sd=1.0, slope=2.0)}, intercept=0.3)
    assert taken(Profile(calibration=fusion), SILENT)[1].p_success is None


def test_the_profile_with_its_calibration_goes_through_json():
    fusion = LogisticFusion(readings={"p_true": FusedReading(mean=0.1, sd=1.0, slope=2.0)}, intercept=1 / 3)
    profile = Profile(calibration=fusion)
    assert Profile.model_validate_json(profile.model_dump_json()) == profile
