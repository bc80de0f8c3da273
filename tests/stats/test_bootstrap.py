"""The bootstrap: small cases by enumeration, coverage and its failure on trials of one task, memory and determinism."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats import bootstrap as module
from grampus_uq.stats.bootstrap import bootstrap, count_blocks, mean_rows, paired_bootstrap
from grampus_uq.stats.ranking import auroc_rows
from tests.binomial import binomial_ceiling
from tests.sampling import examples


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@settings(max_examples=examples(50))
@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 500), st.integers(0, 99))
def test_every_draw_takes_n_units_and_blocks_do_not_change_the_draws(n, draws, cells, seed):
    whole = np.concatenate(list(count_blocks(n, draws, rng(seed))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_CELLS", cells)
        pieces = list(count_blocks(n, draws, rng(seed)))
    assert (np.concatenate(pieces) == whole).all()
    assert all(piece.size <= max(cells, n) for piece in pieces)
    assert whole.shape == (draws, n)
    assert (whole.sum(axis=1) == n).all()


def test_the_draws_follow_the_multinomial_law():
    """All 27 samples of three units, by enumeration: the ten count vectors and their probabilities."""
    expected: dict[tuple[int, ...], float] = {}
    for picks in itertools.product(range(3), repeat=3):
        key = tuple(picks.count(i) for i in range(3))
        expected[key] = expected.get(key, 0) + 1 / 27
    draws = 20_000
    got = np.concatenate(list(count_blocks(3, draws, rng(3)))).astype(int)
    for key, probability in expected.items():
        seen = int((got == key).all(axis=1).sum())
        assert seen <= binomial_ceiling(draws, probability, 0.9999)
        assert draws - seen <= binomial_ceiling(draws, 1 - probability, 0.9999)


def test_the_bootstrap_error_of_a_mean_is_the_textbook_one():
    """Efron and Tibshirani (1993), eq. 5.12: sd / sqrt(n) with the population form of sd."""
    values = rng(1).exponential(size=300)
    got = bootstrap(mean_rows(values), 300, rng=rng(2), draws=20_000)
    assert got.estimate == pytest.approx(values.mean(), rel=1e-14)
    assert got.sd == pytest.approx(values.std() / math.sqrt(300), rel=0.02)
    assert got.low < got.estimate < got.high
    assert got.undefined_draws == 0


def test_percentiles_of_a_tiny_sample_equal_the_enumeration():
    """Of two values the mean is 0, .5 or 1; of five the one is drawn more than three times in .0067 of the draws."""
    got = bootstrap(mean_rows([0.0, 1.0]), 2, rng=rng(), draws=4000)
    assert (got.low, got.high) == (0.0, 1.0)
    five = bootstrap(mean_rows([0.0] * 4 + [1.0]), 5, rng=rng(), draws=20_000)
    assert (five.low, five.high) == (0.0, pytest.approx(0.6))


def coverage(trials: int, *, named: bool = False, simulations: int = 300) -> int:
    """Intervals that contain the true mean 0, with so many identical trials of each of forty tasks, named or not."""
    generator = rng(11)
    hit = 0
    for _ in range(simulations):
        values = np.repeat(generator.normal(size=40), trials)
        tasks = [str(task) for task in np.repeat(np.arange(40), trials)] if named else None
        got = bootstrap(mean_rows(values), len(values), rng=generator, draws=300, tasks=tasks)
        hit += got.low <= 0 <= got.high
    return hit


def test_intervals_cover_also_trials_that_name_their_task_and_not_those_that_do_not():
    """First-order coverage: .95 aimed at, .92 granted to forty tasks; five unnamed trials of each fall near .62."""
    assert 300 - coverage(1) <= binomial_ceiling(300, 1 - 0.92)
    assert 300 - coverage(5, named=True) <= binomial_ceiling(300, 1 - 0.92)
    assert 300 - coverage(5) > binomial_ceiling(300, 1 - 0.92)


@settings(max_examples=examples(50))
@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=20), st.integers(1, 30), st.integers(0, 99))
def test_trials_of_a_task_are_drawn_together_as_their_tasks_would_be_alone(tasks, draws, seed):
    names = sorted(set(tasks))
    got = np.concatenate(list(count_blocks(len(tasks), draws, rng(seed), tasks)))
    alone = np.concatenate(list(count_blocks(len(names), draws, rng(seed))))
    if len(names) < len(tasks):
        assert (got == alone[:, [names.index(task) for task in tasks]]).all()
    else:  # every trial is a task of its own: the draws are those without names
        assert (got == alone).all()


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=12), st.booleans())
def test_trials_of_one_task_have_an_estimate_and_no_interval(values, named):
    """Every draw of a single task is the sample itself: its percentiles are a point, which claims to be certain."""
    values = values if named else values[:1]
    got = bootstrap(mean_rows(values), len(values), rng=rng(), draws=20, tasks=["a"] * len(values) if named else None)
    assert got.estimate == pytest.approx(np.mean(values), abs=1e-9)
    assert (got.low, got.high, got.sd, got.z) == (None, None, None, None)
    two = bootstrap(
        mean_rows([*values, 99.0]), len(values) + 1, rng=rng(), draws=200, tasks=["a"] * len(values) + ["b"]
    )
    assert two.low < two.high == 99.0


def test_pairing_cancels_what_two_streams_share():
    base = rng(4).normal(size=400) * 10
    better = base + 0.1 + rng(5).normal(size=400) * 0.05
    paired = paired_bootstrap(mean_rows(base), mean_rows(better), 400, rng=rng(6), draws=1000)
    assert paired.estimate == pytest.approx(0.1, abs=0.01)
    assert paired.z == pytest.approx(paired.estimate / paired.sd)
    assert paired.z > 20
    alone = bootstrap(mean_rows(base), 400, rng=rng(6), draws=1000)
    assert alone.sd > 100 * paired.sd
    back = paired_bootstrap(mean_rows(better), mean_rows(base), 400, rng=rng(6), draws=1000)
    assert back.estimate == -paired.estimate
    assert back.z == -paired.z


def test_z_is_calibrated_under_no_difference_and_finds_one():
    generator = rng(12)
    beyond = 0
    for _ in range(400):
        first, second = generator.normal(size=(2, 80))
        got = paired_bootstrap(mean_rows(first), mean_rows(second), 80, rng=generator, draws=200)
        beyond += abs(got.z) > 1.96
    assert 4 <= beyond <= binomial_ceiling(400, 0.075)


def test_equal_streams_have_no_z_rather_than_a_z_of_zero():
    same = mean_rows([0.1, 0.7, 0.30000000000000004])
    got = paired_bootstrap(same, same, 3, rng=rng())
    assert (got.estimate, got.sd, got.z) == (0.0, 0.0, None)
    constant = bootstrap(mean_rows(np.full(7, 0.1)), 7, rng=rng())
    assert (constant.estimate, constant.sd) == (0.1, 0.0)


def test_draws_without_a_value_are_left_out_and_counted():
    """Three trajectories, one failure: 8/27 of the draws miss the failure and 1/27 take nothing else."""
    scores, failed = np.array([0.9, 0.2, 0.3]), np.array([1.0, 0.0, 0.0])
    got = bootstrap(lambda counts: auroc_rows(scores, failed, counts), 3, rng=rng(), draws=27_000)
    assert got.estimate == 1.0
    assert (got.low, got.high) == (1.0, 1.0)
    assert 27_000 - binomial_ceiling(27_000, 18 / 27) <= got.undefined_draws <= binomial_ceiling(27_000, 9 / 27)
    never = bootstrap(lambda counts: auroc_rows(scores, np.ones(3), counts), 3, rng=rng(), draws=50)
    assert (never.estimate, never.low, never.high, never.sd) == (None, None, None, None)
    assert never.undefined_draws == 50
    assert (
        paired_bootstrap(
            lambda counts: auroc_rows(scores, np.ones(3), counts), mean_rows(scores), 3, rng=rng(), draws=50
        ).z
        is None
    )


def test_the_same_generator_state_gives_the_same_interval():
    values = rng(8).normal(size=50)
    assert bootstrap(mean_rows(values), 50, rng=rng(9)) == bootstrap(mean_rows(values), 50, rng=rng(9))
    assert bootstrap(mean_rows(values), 50, rng=rng(9)) != bootstrap(mean_rows(values), 50, rng=rng(10))


def test_memory_is_bounded_by_the_block_not_by_the_draws():
    """20,000 trajectories x 1,000 draws would be 160 MB of counts at once."""
    values = rng(1).normal(size=20_000)
    tracemalloc.start()
    bootstrap(mean_rows(values), 20_000, rng=rng(2), draws=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 8 * module.BLOCK_CELLS


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: bootstrap(mean_rows([1.0]), 1, rng=rng(), draws=1), "draws"),
        (lambda: bootstrap(mean_rows([]), 0, rng=rng()), "'n'"),
        (lambda: bootstrap(mean_rows([1.0, 2.0]), 2, rng=rng(), tasks=["a"]), "'n'"),
        (lambda: mean_rows([1.0, math.nan]), "finite"),
        (lambda: mean_rows([[1.0]]), "one-dimensional"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, says):
    with pytest.raises(ConfigurationError, match=says):
        call()
