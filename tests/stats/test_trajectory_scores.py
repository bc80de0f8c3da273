"""The Trajectory Proper Score: propriety by enumeration and simulation, with sabotage; censoring."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.ranking import aurc, auroc
from grampus_uq.stats.reliability import trajectory_ece
from grampus_uq.stats.scoring import BRIER, LOG, beta_score, log_odds
from grampus_uq.stats.trajectory_scores import (
    ForecastTraces,
    last_forecast,
    linear_front,
    mean_forecast,
    min_forecast,
    step_weights,
    tps,
    tps_exact,
    uniform,
    weighted_forecast,
)
from tests.benchmarks.censored_scores import artificial_censoring, tps_censored, tps_simple, truncated
from tests.benchmarks.proper_scores import length_stratified, load
from tests.benchmarks.schedules import SCHEDULES
from tests.sampling import examples, sampled
from tests.stats.test_scoring import AbsoluteScore

SCORES = [LOG, BRIER, beta_score(a=2, b=4), beta_score(a=4, b=1)]
every_score = pytest.mark.parametrize("score", SCORES, ids=[score.name for score in SCORES])
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
forecasts = st.one_of(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), st.floats(0, 1))
trace_lists = st.lists(st.lists(forecasts, min_size=1, max_size=12), min_size=1, max_size=12)


def by_hand(trace, y, score, schedule, full_length=None):
    """The definition, one step after the other."""
    full = full_length or len(trace)
    total = 0.0
    for t, p in enumerate(trace, start=1):
        weight = float(schedule(np.array([float(t)]), np.array([float(full)]))[0])
        point = np.array([p])
        total += weight * (y * float(score.success(point)[0]) + (1 - y) * float(score.failure(point)[0]))
    return total


@every_score
@every_schedule
@settings(max_examples=8)
@given(trace_lists, st.integers(0, 2**32 - 1))
def test_the_ragged_batch_equals_the_definition_step_by_step(score, schedule, rows, seed):
    rng = np.random.default_rng(seed)
    y, q = rng.integers(0, 2, len(rows)), rng.random(len(rows))
    full = np.array([len(row) for row in rows]) + rng.integers(0, 5, len(rows))
    traces = ForecastTraces.of(rows)
    expected = [by_hand(row, label, score, schedule) for row, label in zip(rows, y, strict=True)]
    assert tps(traces, y, score=score, schedule=schedule) == pytest.approx(expected, rel=1e-12, abs=1e-13)
    expected = [by_hand(row, w, score, schedule, t) for row, w, t in zip(rows, q, full, strict=True)]
    unknown = np.full(len(rows), np.nan)
    got = tps_censored(traces, unknown, q, score=score, schedule=schedule, full_lengths=full)
    assert got == pytest.approx(expected, rel=1e-12, abs=1e-13)


# -- strict propriety -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Branch:
    probability: float
    second: str  # which second-step history was reached
    outcome: int


def two_step_process(chance, high, low):
    """History splits after step 1; p*_1 = chance high + (1 - chance) low, p*_2 = high or low."""
    return [
        Branch(chance * high, "high", 1),
        Branch(chance * (1 - high), "high", 0),
        Branch((1 - chance) * low, "low", 1),
        Branch((1 - chance) * (1 - low), "low", 0),
    ]


def expectation(branches, report, score, schedule):
    """Exact expected TPS of a report {first, high, low}, by enumeration of all branches."""
    traces = ForecastTraces.of([[report["first"], report[b.second]] for b in branches])
    values = tps(traces, [b.outcome for b in branches], score=score, schedule=schedule)
    return float(np.array([b.probability for b in branches]) @ values)


inner = st.floats(0.01, 0.99)


@every_score
@every_schedule
@settings(max_examples=12)
@given(inner, inner, inner, inner, inner, inner)
def test_the_truthful_process_is_the_unique_best_report(score, schedule, chance, high, low, first, at_high, at_low):
    """Theorem 4.1 on every two-step process, exactly."""
    branches = two_step_process(chance, high, low)
    truth = {"first": chance * high + (1 - chance) * low, "high": high, "low": low}
    report = {"first": first, "high": at_high, "low": at_low}
    regret = expectation(branches, truth, score, schedule) - expectation(branches, report, score, schedule)
    assert regret >= -1e-14
    if max(abs(truth[key] - report[key]) for key in truth) > 0.01:
        assert regret > 0


def last_step_only(step, length):
    """Weights that are not all positive: earlier steps may say anything."""
    return np.where(step == length, 1.0, 0.0)


def test_sabotage_an_improper_score_or_a_zero_weight_lets_a_lie_win_or_tie():
    branches = two_step_process(0.5, 0.8, 0.3)
    truth = {"first": 0.55, "high": 0.8, "low": 0.3}
    rounded = {"first": 1.0, "high": 1.0, "low": 0.0}
    assert expectation(branches, rounded, AbsoluteScore(), uniform) > expectation(
        branches, truth, AbsoluteScore(), uniform
    )
    late = {"first": 0.01, "high": 0.8, "low": 0.3}
    assert expectation(branches, late, LOG, last_step_only) == expectation(branches, truth, LOG, last_step_only)
    assert expectation(branches, late, LOG, uniform) < expectation(branches, truth, LOG, uniform)


def urn_runs(n: int, seed: int = 1) -> tuple[ForecastTraces, np.ndarray]:
    """Truthful traces: draws from a Polya urn (2 white, 2 black, two added a draw), outcome = white in a last draw.

    Lengths are drawn beforehand, so length says nothing about the outcome and the share of white is the truth.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 8, n)
    rows, outcomes = [], []
    for length in lengths:
        white, total, row = 2.0, 4.0, []
        for _ in range(length):
            white += 2.0 * (rng.random() < white / total)
            total += 2.0
            row.append(white / total)
        rows.append(row)
        outcomes.append(rng.random() < white / total)
    return ForecastTraces.of(rows), np.array(outcomes, dtype=float)


RUNS = urn_runs(6000)
LIES = {
    "overconfident": lambda t, y: 1 / (1 + np.exp(-2.0 * log_odds(t.forecasts))),
    "underconfident": lambda t, y: 1 / (1 + np.exp(-0.4 * log_odds(t.forecasts))),
    "optimistic": lambda t, y: np.minimum(t.forecasts + 0.12, 0.99),
    "base rate": lambda t, y: np.full_like(t.forecasts, y.mean()),
    "stale": lambda t, y: np.where(t.steps == 1, 0.5, np.roll(t.forecasts, 1)),
}


def z_of_truth(lie, score, schedule):
    traces, y = RUNS
    told = traces.with_forecasts(LIES[lie](traces, y))
    gains = tps(traces, y, score=score, schedule=schedule) - tps(told, y, score=score, schedule=schedule)
    return gains.mean() / (gains.std() / math.sqrt(len(gains)))


@every_score
@every_schedule
@pytest.mark.parametrize("lie", LIES)
def test_truth_beats_every_lie_in_simulation(lie, score, schedule):
    assert z_of_truth(lie, score, schedule) > 2.5


def test_sabotage_the_simulation_catches_an_improper_score():
    assert z_of_truth("overconfident", AbsoluteScore(), uniform) < -3


def test_the_score_tells_apart_what_rank_metrics_cannot():
    """A strictly increasing distortion of every step of one-step traces: AUROC and AURC equal, TPS not."""
    rng = np.random.default_rng(3)
    p = rng.random(500)
    y = rng.random(500) < p
    one_step = ForecastTraces.of([[x] for x in p])
    squared = one_step.with_forecasts(p**2)
    assert auroc(p, y) == auroc(p**2, y)
    assert aurc(p, y) == aurc(p**2, y)
    assert tps(one_step, y).mean() - tps(squared, y).mean() > 0.05


# -- censoring --------------------------------------------------------------------------------------------------------


@every_score
@every_schedule
@settings(max_examples=10)
@given(
    st.lists(forecasts, min_size=1, max_size=10), st.lists(st.booleans(), min_size=1, max_size=10), st.integers(0, 9)
)
def test_exact_is_the_average_over_continuation_branches(score, schedule, prefix, branches, unseen):
    """App. H.2: with q = share of succeeding branches, exact = mean over branches of the complete prefix score."""
    full = [len(prefix) + unseen]
    one = ForecastTraces.of([prefix])
    q = float(np.mean(branches))
    args = {"score": score, "schedule": schedule, "full_lengths": full}
    exact = tps_censored(one, [np.nan], [q], **args)[0]
    branch_scores = [tps_censored(one, [float(branch)], [np.nan], **args)[0] for branch in branches]
    assert exact == pytest.approx(np.mean(branch_scores), abs=1e-12)
    if unseen == 0:
        assert tps_exact(one, [q], score=score, schedule=schedule)[0] == exact
        complete = [tps(one, [branch], score=score, schedule=schedule)[0] for branch in branches]
        assert exact == pytest.approx(np.mean(complete), abs=1e-12)


@every_score
def test_the_exact_score_is_strictly_proper_on_the_prefix_and_the_simple_one_elicits_the_pseudo_label(score):
    """Theorem 4.3 and proposition C.3, on one step seen: a share of the runs is censored there, q = .6 for them.

    Completed runs succeed with .3, half of the runs are censored: the truth is .45 and the pseudo-label's mean is .15.
    """
    censored, q, completed = 0.5, 0.6, 0.3
    grid = np.linspace(0.01, 0.99, 99)
    traces = ForecastTraces(forecasts=np.tile(grid, 3), lengths=np.ones(297, dtype=np.int64))
    outcomes = np.repeat([np.nan, 1.0, 0.0], 99)
    mass = np.repeat([censored, (1 - censored) * completed, (1 - censored) * (1 - completed)], 99)
    exact = (
        (mass * tps_exact(traces, np.where(np.isnan(outcomes), q, outcomes), score=score)).reshape(3, 99).sum(axis=0)
    )
    simple = (mass * tps_simple(traces, outcomes, score=score)).reshape(3, 99).sum(axis=0)
    assert grid[exact.argmax()] == pytest.approx(censored * q + (1 - censored) * completed)
    assert grid[simple.argmax()] == pytest.approx((1 - censored) * completed)


def test_simple_is_not_a_lower_bound_of_the_complete_score():
    """Section 6.2: low forecasts gain from the swap, so the simple score can exceed the complete one."""
    hopeful, gloomy = ForecastTraces.of([[0.9]]), ForecastTraces.of([[0.1]])
    assert tps_simple(hopeful, [np.nan])[0] < tps(hopeful, [1])[0]
    assert tps_simple(gloomy, [np.nan])[0] > tps(gloomy, [1])[0]


@every_score
@every_schedule
@settings(max_examples=10)
@given(trace_lists, st.integers(0, 2**32 - 1))
def test_artificial_censoring_decomposes_exactly(score, schedule, rows, seed):
    rng = np.random.default_rng(seed)
    traces, y = ForecastTraces.of(rows), rng.integers(0, 2, len(rows)).astype(float)
    stops = rng.integers(1, traces.lengths + 1)
    parts = artificial_censoring(traces, y, stops, score=score, schedule=schedule)
    hidden = np.where(stops < traces.lengths, np.nan, y)
    direct = tps_simple(
        truncated(traces, stops), hidden, score=score, schedule=schedule, full_lengths=traces.lengths
    ) - tps(traces, y, score=score, schedule=schedule)
    assert parts.shift == pytest.approx(direct, abs=1e-12)
    assert (parts.tail_omission >= 0).all()
    assert (parts.prefix_swap[y == 0] == 0).all()
    assert (parts.shift[stops == traces.lengths] == 0).all()


def test_the_log_swap_flips_its_sign_at_one_half():
    """App. I.1, for a success: positive below 1/2, negative above."""
    traces = ForecastTraces.of([[0.2, 0.9], [0.5, 0.9], [0.7, 0.9]])
    swap = artificial_censoring(traces, [1, 1, 1], [1, 1, 1]).prefix_swap
    assert swap[0] > 0
    assert swap[1] == 0
    assert swap[2] < 0


@sampled("name", ["gsm8k"], full=["gsm8k", "hotpotqa", "chessgames"])
def test_the_artificial_censoring_sweep_holds_on_real_scores(name):
    """App. I.1 over families, schedules and rates, on other people's verifier scores."""
    root = os.environ.get("GRAMPUS_UQ_DATA")
    if not root:
        pytest.skip("GRAMPUS_UQ_DATA is not set: the sweep needs verifier_scores/")
    traces, outcomes, _ = load(Path(root) / "verifier_scores" / f"{name}.csv.gz")
    rng = np.random.default_rng(0)
    for rate in (0.1, 0.3, 0.5, 0.7):
        stops = length_stratified(traces.lengths, rate, rng)
        hidden = np.where(stops < traces.lengths, np.nan, outcomes)
        prefixes = truncated(traces, stops)
        for score in SCORES:
            for schedule in SCHEDULES.values():
                direct = tps_simple(prefixes, hidden, score=score, schedule=schedule, full_lengths=traces.lengths)
                closed = artificial_censoring(traces, outcomes, stops, score=score, schedule=schedule)
                change = direct - tps(traces, outcomes, score=score, schedule=schedule)
                assert np.abs(change - closed.shift).max() < 1e-12


# -- ragged batches and scalars ---------------------------------------------------------------------------------------


def test_a_missing_forecast_skips_its_trajectory_alone():
    traces = ForecastTraces.of([[0.5, None, 0.5], [0.5], [None]])
    scores = tps(traces, [1, 1, 0])
    assert np.isnan(scores).tolist() == [True, False, True]
    assert traces.missing.tolist() == [True, False, True]
    for scalar in (weighted_forecast, last_forecast, mean_forecast, min_forecast):
        assert np.isnan(scalar(traces)).tolist() == [True, False, True]
    assert traces.select(~traces.missing).forecasts.tolist() == [0.5]


@settings(max_examples=examples(40))
@given(st.floats(0.01, 0.99), st.lists(st.integers(1, 40), min_size=2, max_size=60))
def test_a_constant_stream_ties_whatever_the_lengths(p, lengths):
    """Averages of 0.8 over 3 and over 7 steps differ in the last bit; a rank metric must not read that bit."""
    traces = ForecastTraces.of([[p] * length for length in lengths])
    labels = np.arange(len(lengths)) % 2
    for scalar in (weighted_forecast, mean_forecast):
        assert len(set(scalar(traces))) == 1
        assert auroc(scalar(traces), labels) == 0.5
    rate = float(np.mean(labels))
    constant = traces.with_forecasts(np.full_like(traces.forecasts, rate))
    assert trajectory_ece(weighted_forecast(constant), labels) == pytest.approx(0, abs=1e-12)


def test_equal_averages_of_round_numbers_tie():
    traces = ForecastTraces.of([[0.3, 0.7, 0.1, 0.6], [0.1, 0.6, 0.3, 0.7]])
    assert len(set(mean_forecast(traces))) == 1


@settings(max_examples=examples(40))
@given(trace_lists)
def test_the_scalars_are_what_their_names_say(rows):
    traces = ForecastTraces.of(rows)
    assert last_forecast(traces).tolist() == [row[-1] for row in rows]
    assert min_forecast(traces).tolist() == [min(row) for row in rows]
    assert mean_forecast(traces) == pytest.approx([np.mean(row) for row in rows], abs=1e-12)
    front = [np.average(row, weights=np.arange(len(row), 0, -1)) for row in rows]
    assert weighted_forecast(traces) == pytest.approx(front, abs=1e-12)
    assert ((weighted_forecast(traces) >= 0) & (weighted_forecast(traces) <= 1)).all()


@settings(max_examples=examples(40))
@given(trace_lists, st.randoms(use_true_random=False))
def test_row_order_changes_nothing(rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    labels = np.arange(len(rows)) % 2
    straight = tps(ForecastTraces.of(rows), labels)
    assert tps(ForecastTraces.of([rows[i] for i in order]), labels[order]).tolist() == straight[order].tolist()


def test_a_run_that_was_stopped_is_weighed_over_the_steps_that_it_has():
    prefix = truncated(ForecastTraces.of([[0.5] * 4]), [2])
    assert step_weights(prefix, linear_front) == pytest.approx([2 / 3, 1 / 3])


def test_no_trajectory_gives_no_score():
    none = ForecastTraces.of([])
    assert len(none) == 0
    assert tps(none, []).shape == (0,)
    assert tps_simple(none, []).shape == (0,)
    assert min_forecast(none).shape == weighted_forecast(none).shape == last_forecast(none).shape == (0,)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ForecastTraces.of([[0.5], []]), "lengths"),
        (lambda: ForecastTraces.of([[0.5, 85.0]]), "divide by 100"),
        (lambda: ForecastTraces(forecasts=np.array([0.1, 0.2]), lengths=np.array([1])), "forecasts"),
        (lambda: ForecastTraces(forecasts=np.array([0.1, 0.2]), lengths=np.array([2.7])), "whole numbers"),
        (lambda: tps(ForecastTraces.of([[0.5]]), [np.nan]), "tps_exact"),
        (lambda: tps(ForecastTraces.of([[0.5]]), [0.5]), "outcomes"),
        (lambda: tps(ForecastTraces.of([[0.5]]), [1, 1]), "outcomes.*`tps`"),
        (lambda: tps(ForecastTraces.of([[0.5, 0.6]]), [1], schedule=lambda step, length: step / length), "schedule"),
        (lambda: tps(ForecastTraces.of([[0.5, 0.6]]), [1], schedule=lambda step, length: 5.0 - 3.0 * step), "schedule"),
        (lambda: tps(ForecastTraces.of([[0.5, 0.6]]), [1], schedule=lambda step, length: step + np.nan), "schedule"),
        (lambda: tps(ForecastTraces.of([[0.5, 0.6]]), [1], schedule=lambda step, length: 1.0), "schedule"),
        (lambda: tps_exact(ForecastTraces.of([[0.5]]), [np.nan]), "outcomes"),
        (lambda: tps_exact(ForecastTraces.of([[0.5]]), [1.2]), "outcomes"),
        (lambda: tps_exact(ForecastTraces.of([[0.5]]), [1, 0.5]), "outcomes.*`tps_exact`"),
    ],
)
def test_wrong_arguments_are_refused_by_their_name_and_that_of_the_function(call, says):
    with pytest.raises(ConfigurationError, match=says):
        call()
