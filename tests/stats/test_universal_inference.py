"""Universal inference: exact with learned densities where a learned ratio alone is not, and still able to see."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.eprocess_thresholds import ville_threshold
from grampus_uq.stats.ranks import binomial_ceiling
from grampus_uq.stats.universal_inference import UniversalModel, fit_universal, universal_start, universal_update


def _peak(model: UniversalModel, scores: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    state, peak = universal_start(model), -math.inf
    for score in scores.tolist():
        state, log_e = universal_update(model, state, score)
        peak = max(peak, log_e)
    return peak


def _plug_in_peak(model: UniversalModel, scores: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """The same learned densities as a plain ratio, the null taken as known: what the method protects from."""
    counts = np.array(model.anchors) + 0.5
    steps = np.array(model.log_failure) - np.log(counts / counts.sum())
    return float(np.cumsum(steps[np.searchsorted(model.edges, scores, side="right")]).max())


def test_successes_cross_at_most_alpha_with_few_calibration_scores_and_the_plain_learned_ratio_does_not_hold() -> None:
    rng, repeats, alpha = np.random.default_rng(0), 300, 0.1
    cut = ville_threshold(alpha).log_value
    universal = plain = 0
    for _ in range(repeats):
        model = fit_universal(rng.beta(4, 2, 60), rng.beta(3, 2, 60), rng=rng)
        run = rng.beta(4, 2, 150)
        universal += _peak(model, run) >= cut
        plain += _plug_in_peak(model, run) >= cut
    assert universal <= binomial_ceiling(repeats, alpha)
    assert plain > binomial_ceiling(repeats, alpha)


def test_a_failing_run_is_seen() -> None:
    rng, caught = np.random.default_rng(1), 0
    for _ in range(40):
        model = fit_universal(rng.beta(6, 2, 600), rng.beta(2, 3, 300), rng=rng)
        caught += _peak(model, rng.beta(2, 3, 20)) >= ville_threshold(0.05).log_value
    assert caught >= 36


def test_the_denominator_is_the_joint_maximum_of_the_likelihood() -> None:
    """Against a fine grid of two-bin laws, computed apart."""
    model = UniversalModel(edges=(0.5,), anchors=(7, 3), log_anchor_reference=-6.0, log_failure=(-0.2, -1.8))
    state = universal_start(model)
    for score in (0.1, 0.9, 0.2, None, 0.5):
        state, log_e = universal_update(model, state, score)
    p = np.linspace(1e-6, 1 - 1e-6, 400_001)
    best = (9 * np.log(p) + 5 * np.log1p(-p)).max()  # 7 + 2 below .5, 3 + 2 from .5 on
    assert log_e == pytest.approx(-6.0 + 2 * -0.2 + 2 * -1.8 - best, abs=1e-6)


def test_anchors_are_set_aside_and_teach_nothing() -> None:
    """What a(D) was learned from and D together are all successes, each once."""
    scores = np.random.default_rng(2).random(80)
    model = fit_universal(scores, [0.2, 0.5], rng=np.random.default_rng(3))
    anchors = np.array(model.anchors)
    assert anchors.sum() == 20
    learned = np.bincount(np.searchsorted(model.edges, scores, side="right"), minlength=len(anchors)) - anchors
    expected = anchors @ np.log((learned + 0.5) / (learned.sum() + len(anchors) / 2))
    assert model.log_anchor_reference == pytest.approx(expected)


def test_before_the_first_score_the_evidence_is_at_most_one() -> None:
    model = fit_universal(np.linspace(0, 1, 50), np.linspace(0, 0.5, 20), rng=np.random.default_rng(0))
    _, log_e = universal_update(model, universal_start(model), None)
    assert log_e <= 0.0


def test_scores_of_one_value_make_one_bin_less_and_no_evidence() -> None:
    model = fit_universal([0.5] * 9, [0.5] * 9, rng=np.random.default_rng(0))
    _, log_e = universal_update(model, universal_start(model), 0.5)
    assert math.isfinite(log_e)
    assert log_e <= 0.0


@pytest.mark.parametrize(
    ("good", "bad", "arguments"),
    [
        ([0.1, 0.2, 0.3], [0.1], {}),
        ([0.1] * 9, [], {}),
        ([0.1] * 9, [math.nan], {}),
        ([0.1] * 9, [0.1], {"bins": 1}),
        ([0.1] * 9, [0.1], {"anchor_share": 1.0}),
    ],
)
def test_too_little_to_learn_from_is_refused(good: list[float], bad: list[float], arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="fit_universal"):
        fit_universal(good, bad, rng=np.random.default_rng(0), **arguments)  # type: ignore[arg-type]  # several kinds
    model = fit_universal([0.1] * 9, [0.2], rng=np.random.default_rng(0))
    with pytest.raises(ConfigurationError, match="score"):
        universal_update(model, universal_start(model), math.inf)
