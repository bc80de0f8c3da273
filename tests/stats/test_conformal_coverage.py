"""The coverage that the methods promise holds on exchangeable data, and the check can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from grampus_uq.stats.arrays import RaggedBatch
from grampus_uq.stats.conformal import recall_conformity
from grampus_uq.stats.entry_thresholds import (
    EntryThresholds,
    hierarchical_entry,
    keep_first,
    left_filtration_entry,
    right_filtration_entry,
    two_way_entry,
    vanilla_entry,
)
from grampus_uq.stats.envelope import envelope_entry, suffix_envelope_entry
from tests import sampling
from tests.benchmarks.split_evaluation import SplitEvaluation, evaluate_splits, with_fallback
from tests.binomial import binomial_ceiling

LEVELS = (0.5, 0.7, 0.8, 0.9)  # with n = 19 every (n + 1) level is whole: k/(n+1) is the level itself
N = 19
DRAWS = 10_000 if sampling.FULL else 4_000
NEAR = 1.5 / DRAWS**0.5  # three standard errors of a half; one rank more or less is .05

pytestmark = pytest.mark.sampled


@dataclass(frozen=True, kw_only=True)
class World:
    """`DRAWS` times n calibration trajectories and a new one, all from one distribution."""

    batch: RaggedBatch
    true_step: npt.NDArray[np.int64]
    draws: npt.NDArray[np.float64]
    calibration: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]

    def evaluate(self, entry: EntryThresholds, *, ties_broken: bool = True) -> SplitEvaluation:
        draws = self.draws if ties_broken else None
        return evaluate_splits(entry, self.true_step, self.calibration, self.test, LEVELS, draws)


def world(seed: int, signal: float = 0.4, decimals: int | None = None) -> World:
    """Early errors, lengths from 4 to 10, a score that is higher (or, adversarially, lower) at the true step."""
    rng = np.random.default_rng(seed)
    rows = DRAWS * (N + 1)
    lengths = rng.integers(4, 11, rows)
    true_step = np.floor(rng.beta(1.0, 2.0, rows) * lengths).astype(np.int64)
    scores = rng.random((rows, 10)) * 0.6
    scores[np.arange(rows), true_step] += signal
    scores -= min(0.0, scores.min())
    if decimals is not None:
        scores = scores.round(decimals)
    index = np.arange(rows).reshape(DRAWS, N + 1)
    return World(
        batch=RaggedBatch(values=scores, lengths=lengths),
        true_step=true_step,
        draws=rng.random(rows),
        calibration=index[:, :N],
        test=index[:, N:],
    )


@pytest.fixture(scope="module")
def smooth() -> World:
    return world(11)


@pytest.fixture(scope="module")
def rounded() -> World:
    return world(12, decimals=1)


FAMILIES: dict[str, Callable[[RaggedBatch], EntryThresholds]] = {
    "vcp": vanilla_entry,
    "lf": left_filtration_entry,
    "rf": right_filtration_entry,
    "twf": two_way_entry,
    "twf kept": lambda b: keep_first(two_way_entry(b)),
    "envelope": envelope_entry,
    "lf envelope": suffix_envelope_entry,
}


def misses_explained(coverage: float, level: float) -> bool:
    """Exact binomial ceiling on the misses among independent draws, at one in ten thousand."""
    return round((1.0 - coverage) * DRAWS) <= binomial_ceiling(DRAWS, 1.0 - level, 0.9999)


@pytest.mark.parametrize("family", FAMILIES)
def test_coverage_is_the_rank_over_n_plus_one(family: str, smooth: World) -> None:
    coverage = smooth.evaluate(FAMILIES[family](smooth.batch)).coverage.mean(axis=0)
    assert np.abs(coverage - LEVELS).max() <= NEAR
    assert all(misses_explained(c, level) for c, level in zip(coverage, LEVELS, strict=True))


@pytest.mark.parametrize("family", ["vcp", "rf", "twf", "envelope"])
def test_coverage_stays_exact_with_rounded_scores_because_ties_are_broken(family: str, rounded: World) -> None:
    coverage = rounded.evaluate(FAMILIES[family](rounded.batch)).coverage.mean(axis=0)
    assert np.abs(coverage - LEVELS).max() <= NEAR


def test_without_tie_draws_rounded_scores_cover_far_more_than_promised(rounded: World) -> None:
    """The sabotage of the test above: scores of one digit have few distinct values."""
    entry = vanilla_entry(rounded.batch)
    loose = rounded.evaluate(entry, ties_broken=False).coverage.mean(axis=0)
    exact = rounded.evaluate(entry).coverage.mean(axis=0)
    assert abs(exact[0] - 0.5) <= NEAR
    assert loose[0] >= 0.55


def test_crsvp_covers_at_least_its_target(smooth: World) -> None:
    rng = np.random.default_rng(3)
    entry = hierarchical_entry(smooth.batch, rng.random(len(smooth.draws)))
    coverage = smooth.evaluate(entry).coverage.mean(axis=0)
    assert (coverage >= np.array(LEVELS) - NEAR).all()


def test_crsvp_with_the_lower_quantile_of_the_papers_text_under_covers() -> None:
    """The sabotage: rank floor((n+1) alpha) instead of ceil((n+1)(1-alpha)); a useless scorer shows it best."""
    useless = world(16, signal=0.0)
    entry = hierarchical_entry(useless.batch, np.random.default_rng(3).random(len(useless.draws)))
    level = 0.7
    scores = entry.values[np.arange(len(useless.true_step)), useless.true_step]
    lower = np.sort(scores[useless.calibration], axis=1)[:, int((N + 1) * (1 - level)) - 1]
    test = useless.test[:, 0]
    assert entry.fallback is not None
    covered = (scores[test] <= lower) | (entry.fallback[test] == useless.true_step[test])
    assert covered.mean() < level - NEAR


def test_a_fallback_only_raises_coverage_and_leaves_no_set_empty(smooth: World) -> None:
    two_way = two_way_entry(smooth.batch)
    bare = smooth.evaluate(two_way)
    helped = smooth.evaluate(with_fallback(two_way, smooth.batch))
    assert (helped.coverage >= bare.coverage).all()
    assert (helped.coverage.mean(axis=0) <= np.array(LEVELS) + bare.empty_share.mean(axis=0) + NEAR).all()
    assert (helped.size >= 1.0).all()
    assert (bare.size.min(), bare.empty_share.max()) == (0.0, 1.0), "the fallback had something to do"


def test_the_kept_step_leaves_no_set_empty_either(smooth: World) -> None:
    kept = smooth.evaluate(keep_first(two_way_entry(smooth.batch)))
    assert (kept.size >= 1.0).all()


def test_vcp_keeps_its_coverage_under_a_scorer_that_points_away_from_the_error() -> None:
    adversarial = world(13, signal=-0.5)
    result = adversarial.evaluate(vanilla_entry(adversarial.batch))
    assert np.abs(result.coverage.mean(axis=0) - LEVELS).max() <= NEAR
    honest = world(13, signal=0.5)
    better = honest.evaluate(vanilla_entry(honest.batch))
    assert (better.removal_rate.mean(axis=0) > result.removal_rate.mean(axis=0) + 0.2).all(), "power"


def test_calibrating_on_the_best_scored_step_instead_of_the_true_one_under_covers(smooth: World) -> None:
    """The sabotage of the coverage tests: the mistake that METHODS warns of, and they would see it."""
    weak = world(14, signal=0.1)
    entry = vanilla_entry(weak.batch)
    best = np.where(entry.valid, weak.batch.values, -np.inf).argmax(axis=1)
    scores = entry.values[np.arange(len(best)), best]
    threshold = np.sort(scores[weak.calibration], axis=1)[:, round((N + 1) * 0.8) - 1]
    test = weak.test[:, 0]
    coverage = float((entry.values[test, weak.true_step[test]] <= threshold).mean())
    assert coverage < 0.8 - NEAR
    assert not misses_explained(coverage, 0.8)


def test_the_papers_infinite_boundary_over_covers_when_errors_come_late() -> None:
    """The atom at infinity: with the true step at the end, RF's score is +inf and the threshold too."""
    late = world(15)
    late = World(
        batch=late.batch,
        true_step=np.where(np.arange(len(late.draws)) % 4 == 0, late.batch.lengths - 1, late.true_step),
        draws=late.draws,
        calibration=late.calibration,
        test=np.random.default_rng(0).permuted(late.test, axis=0),
    )
    boundary = right_filtration_entry(late.batch)
    boundary.values[np.arange(len(late.draws)), late.batch.lengths - 1] = np.inf
    paper = late.evaluate(boundary, ties_broken=False).coverage.mean(axis=0)[2]
    ours = late.evaluate(right_filtration_entry(late.batch)).coverage.mean(axis=0)[2]
    assert paper > 0.8 + 1 / (N + 1) + NEAR, "beyond the upper bound that the paper states"
    assert ours < paper


def test_recall_of_several_errors_is_promised_as_often_as_asked(smooth: World) -> None:
    """Each trajectory has one to four errors; with probability `level` the set holds at least the wanted share."""
    rng = np.random.default_rng(4)
    errors = (rng.random(smooth.batch.values.shape) < 0.3) & smooth.batch.valid
    errors[np.arange(len(errors)), smooth.true_step] = True
    entry = envelope_entry(smooth.batch)
    for recall in (0.5, 1.0):
        scores = recall_conformity(entry, errors, recall)
        for level in LEVELS:
            threshold = np.sort(scores[smooth.calibration], axis=1)[:, round((N + 1) * level) - 1]
            test = smooth.test[:, 0]
            inside = entry.values[test] <= threshold[:, None]
            found = (inside & errors[test]).sum(axis=1) / errors[test].sum(axis=1)
            assert abs(float((found >= recall - 1e-12).mean()) - level) <= NEAR
