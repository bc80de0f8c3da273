"""What the detector promises, put to the test: violations within exact binomial ceilings, power, and sabotage.

Scores are drawn from known densities: successes from N(0, 1), failures from N(-shift, 1), independent steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from grampus_uq.stats.eprocess import Detector, alarms, start, update
from grampus_uq.stats.eprocess_scorers import FeatureScorer, LinearScore, running_minimum
from grampus_uq.stats.eprocess_thresholds import (
    Threshold,
    budget_threshold,
    conformal_threshold,
    exceeds_many,
    pac_threshold,
    ville_threshold,
)
from grampus_uq.stats.ranks import binomial_interval
from tests.benchmarks.published_evaluator import bonferroni_threshold
from tests.binomial import binomial_ceiling
from tests.sampling import crossed

FloatArray = npt.NDArray[np.float64]

SHIFT = 0.6


def _scores(rng: np.random.Generator, runs: int, steps: int, *, failing: bool) -> FloatArray:
    return rng.normal(-SHIFT if failing else 0.0, 1.0, (runs, steps))


def _known_peaks(x: FloatArray, assumed_shift: float = SHIFT) -> FloatArray:
    """Running maximum of the log ratio for given densities: each step adds log N(x; -s, 1) - log N(x; 0, 1)."""
    steps = -assumed_shift * x - assumed_shift**2 / 2
    return np.asarray(np.cumsum(steps, axis=1).max(axis=1))


def _rounded(x: FloatArray) -> FloatArray:
    """Scores as models state them: few values, so that many runs tie."""
    return np.clip(np.round(x), -3, 3)


def test_under_the_known_ratio_a_success_crosses_villes_threshold_with_probability_at_most_alpha() -> None:
    rng, runs = np.random.default_rng(1), 20_000
    peaks = _known_peaks(_scores(rng, runs, 200, failing=False))
    for alpha in (0.01, 0.05, 0.2):
        for threshold in (ville_threshold(alpha), bonferroni_threshold(alpha, 200)):
            assert exceeds_many(threshold, peaks, np.zeros(runs)).sum() <= binomial_ceiling(runs, alpha)


def test_under_the_known_ratio_failures_are_caught() -> None:
    peaks = _known_peaks(_scores(np.random.default_rng(2), 5000, 200, failing=True))
    assert exceeds_many(ville_threshold(0.05), peaks, np.zeros(5000)).mean() > 0.99


def test_sabotage_a_slightly_wrong_ratio_breaks_villes_promise() -> None:
    rng, runs = np.random.default_rng(3), 20_000
    drifting = _scores(rng, runs, 200, failing=False) - 0.15  # successes score a little lower than was believed
    assert exceeds_many(ville_threshold(0.05), _known_peaks(drifting), np.zeros(runs)).mean() > 0.1


def test_the_accumulated_known_ratio_is_a_martingale_of_mean_one() -> None:
    x = _scores(np.random.default_rng(4), 200_000, 3, failing=False)
    log_p0, log_p1 = -((x + SHIFT) ** 2) / 2, -(x**2) / 2
    m = np.exp(np.cumsum(log_p0 - log_p1, axis=1))
    error = 4 * m.std(axis=0) / math.sqrt(len(x))
    assert (np.abs(m.mean(axis=0) - 1) < error).all()


Statistic = Callable[[FloatArray], FloatArray]
CONTINUOUS: Statistic = lambda x: -x.min(axis=1)  # noqa: E731 (a named rule reads better here)
COARSE: Statistic = lambda x: -_rounded(x).min(axis=1)  # noqa: E731 (as above)


def _true_rate(threshold: Threshold, peaks: FloatArray) -> float:
    """False-alarm rate on a large fresh population; the draw of a run is uniform and independent."""
    above = float((peaks > threshold.log_value).mean())
    return above + float((peaks == threshold.log_value).mean()) * (1 - threshold.tie)


@crossed("statistic,level", [CONTINUOUS, COARSE], [(0.1, 0.1), (0.05, 0.2), (0.3, 0.05)])
def test_a_pac_threshold_is_too_low_in_at_most_delta_of_calibrations(
    statistic: Statistic, level: tuple[float, float]
) -> None:
    alpha, delta = level
    rng, repeats, n = np.random.default_rng(5), 800, 80
    population = statistic(_scores(rng, 200_000, 8, failing=False))
    unlucky = 0
    for _ in range(repeats):
        peaks = statistic(_scores(rng, n, 8, failing=False))
        unlucky += _true_rate(pac_threshold(peaks, rng.random(n), alpha, delta), population) > alpha
    assert unlucky <= binomial_ceiling(repeats, delta)


@pytest.mark.parametrize("statistic", [CONTINUOUS, COARSE])
@pytest.mark.parametrize("make", [conformal_threshold, budget_threshold])
def test_a_conformal_threshold_has_its_level_on_average_exactly(
    make: Callable[..., Threshold], statistic: Statistic
) -> None:
    rng, repeats, n, alpha = np.random.default_rng(6), 4000, 59, 0.1
    alarmed = 0
    for _ in range(repeats):
        peaks, ties = statistic(_scores(rng, n + 1, 8, failing=False)), rng.random(n + 1)
        threshold = make(peaks[:n], ties[:n], alpha)
        alarmed += bool(exceeds_many(threshold, peaks[n:], ties[n:])[0])
    low, high = binomial_interval(alarmed, repeats, 0.999)
    assert alarmed <= binomial_ceiling(repeats, alpha)
    assert low <= 6 / 60 <= high  # (n + 1 - rank)/(n + 1) = 6/60: the draws leave nothing unused


def test_calibrated_thresholds_catch_failures() -> None:
    rng, n = np.random.default_rng(7), 100
    peaks, ties = _known_peaks(_scores(rng, n, 30, failing=False)), rng.random(n)
    failures = _known_peaks(_scores(rng, 4000, 30, failing=True))
    for threshold in (pac_threshold(peaks, ties, 0.1, 0.1), conformal_threshold(peaks, ties, 0.1)):
        assert exceeds_many(threshold, failures, rng.random(4000)).mean() > 0.75


def test_sabotage_comparing_with_at_least_instead_of_more_than_breaks_on_ties() -> None:
    rng, repeats, n, alpha, delta = np.random.default_rng(8), 300, 80, 0.1, 0.1
    population = COARSE(_scores(rng, 200_000, 8, failing=False))
    unlucky = 0
    for _ in range(repeats):
        threshold = pac_threshold(COARSE(_scores(rng, n, 8, failing=False)), rng.random(n), alpha, delta)
        unlucky += float((population >= threshold.log_value).mean()) > alpha
    assert unlucky > 3 * binomial_ceiling(repeats, delta)


@pytest.mark.parametrize("reused", [False, True])
def test_sabotage_fitting_on_the_threshold_set_breaks_the_promise_and_holding_it_out_keeps_it(reused: bool) -> None:
    rng, repeats, n, steps, alpha, delta = np.random.default_rng(9), 100, 60, 40, 0.1, 0.1
    label = np.repeat([0.0, 1.0], n)
    unlucky = 0
    for _ in range(repeats):
        good, held, bad = (_scores(rng, n, steps, failing=failing) for failing in (False, False, True))
        weights = np.linalg.lstsq(np.concatenate([good, bad]), label - 0.5, rcond=None)[0]  # many, on few runs
        threshold = pac_threshold((good if reused else held) @ weights, rng.random(n), alpha, delta)
        unlucky += _true_rate(threshold, _scores(rng, 5000, steps, failing=False) @ weights) > alpha
    ceiling = binomial_ceiling(repeats, delta)
    assert unlucky > 4 * ceiling if reused else unlucky <= ceiling


def test_sabotage_a_moved_population_breaks_the_promise() -> None:
    rng, n = np.random.default_rng(10), 200
    threshold = pac_threshold(CONTINUOUS(_scores(rng, n, 8, failing=False)), rng.random(n), 0.1, 0.1)
    moved = CONTINUOUS(_scores(rng, 20_000, 8, failing=False) - 0.8)
    assert _true_rate(threshold, moved) > 0.2


def _linear_detector(threshold: Threshold) -> Detector:
    newest = LinearScore(columns=(5,), intercepts=(0.0,), weights=((1.0,),))  # log M is minus the EWMA .5
    scorer = FeatureScorer(name="ewma", clips=(None,), neutral=(0.0,), longest=1, linear=newest, limit=None)
    return Detector(streams=("score",), scorer=scorer, thresholds=(threshold,), deployed=0, salt="s")


def test_peeking_after_every_step_and_stopping_at_will_does_not_raise_the_rate() -> None:
    rng, n, alpha = np.random.default_rng(11), 400, 0.1
    scoring = _linear_detector(ville_threshold(0.5))

    def run(name: str, scores: FloatArray, detector: Detector, nosy: bool) -> tuple[float, bool]:
        state, rang = start(detector, name), False
        for step, score in enumerate(scores.tolist()):
            state, log_m = update(detector, state, score)
            if nosy:
                rang = rang or alarms(state, detector.threshold)
                if step > 2 and log_m is not None and log_m > 1.2:  # stop where it looks worst
                    break
        return state.log_peak or 0.0, rang or alarms(state, detector.threshold)

    calibration = _scores(rng, n, 25, failing=False)
    peaks = [run(f"c{i}", x, scoring, nosy=False)[0] for i, x in enumerate(calibration)]
    ties = [start(scoring, f"c{i}").tie for i in range(n)]
    detector = _linear_detector(conformal_threshold(peaks, ties, alpha))
    fresh = _scores(rng, 1500, 25, failing=False)
    patient = [run(f"n{i}", x, detector, nosy=False)[1] for i, x in enumerate(fresh)]
    nosy = [run(f"n{i}", x, detector, nosy=True)[1] for i, x in enumerate(fresh)]
    assert all(late for early, late in zip(nosy, patient, strict=True) if early)  # peeking finds nothing of its own
    assert sum(nosy) <= sum(patient) <= binomial_ceiling(1500, alpha + 2 * math.sqrt(alpha * (1 - alpha) / n))


def test_a_healthy_agent_is_paused_in_at_most_alpha_of_its_runs() -> None:
    """Verbalised .93 (sd .08), P(True) .85 (sd .15), 100 steps: the fused score drives the detector."""
    rng, alpha, delta, repeats, fresh = np.random.default_rng(12), 0.1, 0.1, 120, 4000

    def fused(runs: int) -> FloatArray:
        verbalised = np.clip(rng.normal(0.93, 0.08, (runs, 100)), 0, 1)
        p_true = np.clip(rng.normal(0.85, 0.15, (runs, 100)), 0, 1)
        return 0.4 * verbalised + 0.6 * p_true

    lowest = -fused(fresh).min(axis=1)
    unlucky = 0
    for _ in range(repeats):
        calibration = -fused(60).min(axis=1)
        threshold = pac_threshold(calibration, rng.random(60), alpha, delta)
        unlucky += exceeds_many(threshold, lowest, rng.random(fresh)).sum() > binomial_ceiling(fresh, alpha)
    assert unlucky <= binomial_ceiling(repeats, delta)


def test_the_running_minimum_of_the_library_is_the_one_simulated_here() -> None:
    scorer = running_minimum(bounded=(False,), neutral=(0.0,))
    detector = Detector(streams=("s",), scorer=scorer, thresholds=(ville_threshold(0.5),), deployed=0, salt="")
    x = _scores(np.random.default_rng(13), 1, 9, failing=False)
    state = start(detector, "r")
    for score in x[0].tolist():
        state, _ = update(detector, state, score)
    assert state.log_peak == CONTINUOUS(x)[0]
