"""Thresholds of release: what is certified holds, in simulation and against a sabotage; what is estimated says so."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy
from hypothesis import example, given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.selective import (
    Released,
    budget_needed,
    budget_of_wrong_releases,
    candidate_thresholds,
    certified_by_count,
    certified_threshold,
    estimated_threshold,
    released_needed,
    share_threshold,
)
from tests.binomial import binomial_ceiling

unit = st.floats(0.0, 1.0)
levels = st.sampled_from([0.1, 0.3, 0.5, 0.7, math.nan]) | unit
cases = st.lists(st.tuples(levels, st.booleans()), max_size=60)
TARGET, DELTA, CASES = 0.85, 0.1, 400


def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Chances that are too bold by far: a case of chance p is right with probability .35 + .6 p."""
    p = np.round(rng.random(n), 2)
    return p, rng.random(n) < 0.35 + 0.6 * p


def true_share(threshold: float) -> float:
    levels = np.arange(0, 101) / 100
    mass = np.full(101, 0.01)
    mass[[0, -1]] = 0.005  # rounding gives the two ends half
    out = levels >= threshold
    return float(((0.35 + 0.6 * levels) * mass)[out].sum() / mass[out].sum())


def broken(rng: np.random.Generator, histories: int, *, honest: bool) -> tuple[int, int]:
    """How often a certified threshold does not keep its promise, and how often there is one."""
    failed = there = 0
    for _ in range(histories):
        learn, held = draw(rng, CASES), draw(rng, CASES)
        if honest:
            found = certified_threshold(
                *held, candidates=candidate_thresholds(*learn, target=TARGET, cases=CASES), target=TARGET, delta=DELTA
            )
        else:  # the most generous threshold that kept the promise on the very cases
            found = estimated_threshold(*held, target=TARGET)
        if found.threshold is not None:
            there += 1
            failed += true_share(found.threshold) < TARGET
    return failed, there


def test_a_certified_threshold_keeps_its_promise_as_often_as_it_says_and_is_found():
    failed, there = broken(np.random.default_rng(0), 600, honest=True)
    assert failed <= binomial_ceiling(600, DELTA)
    assert there > 150  # power: the chances do tell cases apart


@given(
    st.lists(st.tuples(levels, st.integers(0, 9)), max_size=40),
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9]), max_size=5),
    st.sampled_from([0.35, 0.55]),
    st.sampled_from([0.3, 0.1]),
)
def test_the_tests_end_with_the_first_candidate_that_fails_and_the_first_most_generous_of_the_others_is_taken(
    drawn, candidates, target, delta
):
    p, good = np.array([c[0] for c in drawn]), np.array([c[1] > 1 for c in drawn], dtype=bool)
    passed, failed = [], []
    for level in candidates:
        out = p >= level
        n, wrong = int(out.sum()), int((~good[out]).sum())
        fits = n > 0 and wrong < n and scipy.stats.binom.cdf(wrong, n, 1 - target) <= delta
        (passed if fits else failed).append((level, n, wrong))
        if failed:
            break
    level, n, wrong = max(passed, key=lambda one: one[1]) if passed else (None, *[*failed, (0, 0, 0)][0][1:])
    found = certified_threshold(p, good, candidates=candidates, target=target, delta=delta)
    assert found == Released(threshold=level, cases=len(p), released=n, wrong=wrong)


def test_of_candidates_that_release_the_same_cases_the_first_is_taken():
    found = certified_threshold([0.9] * 30, [True] * 30, candidates=[0.8, 0.7, 0.9], target=0.9, delta=0.1)
    assert found == Released(threshold=0.8, cases=30, released=30, wrong=0)


def test_sabotage_a_threshold_picked_among_the_cases_it_is_tested_on_breaks_it():
    failed, _ = broken(np.random.default_rng(0), 300, honest=False)
    assert failed > binomial_ceiling(300, DELTA)


@given(
    st.lists(st.tuples(levels, st.booleans(), st.sampled_from([1.0, 1.0, 2.0, 5.0])), max_size=60),
    st.booleans(),
    st.floats(0.05, 0.95) | st.sampled_from([0.25, 0.5, 0.75]),
)
def test_the_estimated_threshold_is_the_most_generous_whose_posterior_mean_reaches_the_target(drawn, weighted, target):
    p, good = np.array([c[0] for c in drawn]), np.array([c[1] for c in drawn], dtype=bool)
    w = np.array([c[2] if weighted else 1.0 for c in drawn])
    found = estimated_threshold(p, good, target=target, weights=w if weighted else None)
    extra = max(w[~np.isnan(p)], default=1.0)
    fits = [
        level
        for level in sorted(set(p[~np.isnan(p)].tolist()))
        if (w[good & (p >= level)].sum() + extra / 2) / (w[p >= level].sum() + extra) >= target - 1e-9
        and w[p >= level].sum() * (1 - target) >= extra * (1 - 1e-9)
    ]
    if not fits:
        assert found == Released(threshold=None, cases=len(p), released=0, wrong=0)
        return
    out = p >= fits[0]
    wrong = int((~good[out]).sum())
    assert found == Released(threshold=fits[0], cases=len(p), released=int(out.sum()), wrong=wrong)


def test_weights_count_a_case_as_often_as_it_stands_for():
    p, good, w = [0.9, 0.9, 0.5, 0.5], [True, True, True, False], [1.0, 1.0, 2.0, 3.0]
    repeated = np.repeat(np.arange(4), [1, 1, 2, 3])
    for target in (0.3, 0.5, 0.6):
        weighted = estimated_threshold(p, good, target=target, weights=w).threshold
        plain = estimated_threshold(np.array(p)[repeated], np.array(good)[repeated], target=target).threshold
        assert weighted is None or plain <= weighted  # the largest weight is added, not one


def test_a_case_without_a_chance_is_never_released():
    p = [math.nan] * 10 + [0.9] * 40
    good = [False] * 10 + [True] * 40
    assert estimated_threshold(p, good, target=0.9).released == 40
    assert certified_threshold(p, good, candidates=[0.0, 0.9], target=0.9, delta=0.1).released == 40
    assert share_threshold(p, 0.1) is None


def test_where_a_rule_is_met_exactly_rounding_takes_nothing_away():
    assert estimated_threshold([0.99] * 10, [True] * 10, target=0.9).released == 10  # 10 (1 - 0.9) is below 1 as floats
    chances = [n / 100 for n in range(1, 100)]
    assert share_threshold(chances, 0.29) == 0.29  # 100 * 0.29 is below 29 as floats
    assert share_threshold(chances[:4], 0.4) == 0.02
    assert share_threshold(chances[:4], 1.0 - 2**-53) == 0.04
    assert share_threshold([], 1.0 - 2**-53) is None


def test_no_threshold_is_made_up_from_a_handful():
    assert estimated_threshold([0.99] * 5, [True] * 5, target=0.9).threshold is None
    assert certified_threshold([0.99] * 21, [True] * 21, candidates=[0.99], target=0.9, delta=0.1).threshold is None
    assert certified_threshold([], [], candidates=[], target=0.9, delta=0.1).threshold is None


@given(st.lists(levels, max_size=60), st.integers(1, 39))
def test_a_share_is_held_by_the_largest_order_statistic_that_a_new_case_is_below_so_seldom(chances, fortieths):
    k = (len(chances) + 1) * fortieths // 40  # a new case is below the k-th of n with probability at most k/(n + 1)
    known = sorted(-math.inf if math.isnan(p) else p for p in chances)
    expected = known[k - 1] if k >= 1 and known[k - 1] >= 0.0 else None
    assert share_threshold(chances, fortieths / 40) == expected


def test_what_a_certificate_needs_is_what_it_gets():
    for share_right in (1.0, 0.97, 0.95):
        n = released_needed(share_right, 0.9, 0.1)
        wrong = math.ceil(n * (1 - share_right) - 1e-9)
        good = [False] * wrong + [True] * (n - wrong)
        assert certified_threshold([0.9] * n, good, candidates=[0.9], target=0.9, delta=0.1).threshold == 0.9
    assert released_needed(0.9, 0.9, 0.1) is None
    assert released_needed(1.0, 0.5, 0.5) == 1  # the probability of error may be met exactly


@given(st.integers(0, 40), st.sampled_from([0.3, 0.5, 0.8]), st.sampled_from([0.25, 0.1, 0.03]))
def test_what_a_certificate_needs_is_the_least_number_whose_binomial_tail_passes(wrong_of_40, target, delta):
    """Up to 200, beyond which it goes by steps of a two-hundredth; shares in 40ths, so that whole numbers occur."""
    share_right, n = 1 - wrong_of_40 / 40, np.arange(1, 200)
    wrong = -(-n * wrong_of_40 // 40)
    passes = (wrong < n) & (scipy.stats.binom.cdf(wrong, n, 1 - target) <= delta * (1 + 1e-9))
    least = int(n[np.flatnonzero(passes)[0]]) if passes.any() else None
    found = released_needed(share_right, target, delta, most=199)
    assert found == (least if share_right > target else None)


def test_a_certificate_that_is_needed_may_be_the_last_that_is_looked_at():
    assert [released_needed(1.0, 0.9, 0.1, most=most) for most in (21, 22)] == [None, 22]
    assert released_needed(1.0, 0.1, 0.2) == 1
    n = released_needed(0.951, 0.95, 0.1)  # so near to the target that it goes in larger steps
    wrong = math.ceil(n * 0.049)
    assert n > 10_000
    assert (
        scipy.stats.binom.cdf(wrong, n, 0.05)
        <= 0.1
        < scipy.stats.binom.cdf(math.ceil(n * 0.98 * 0.049), int(n * 0.98), 0.05)
    )


ONE = ([0.5], [True])


@pytest.mark.parametrize("level", [0.0, 1.0, 90.0, math.nan])
@pytest.mark.parametrize(
    ("parameter", "call"),
    [
        ("target", lambda x: certified_threshold(*ONE, candidates=[0.5], target=x, delta=0.1)),
        ("delta", lambda x: certified_threshold(*ONE, candidates=[0.5], target=0.9, delta=x)),
        ("target", lambda x: certified_by_count(*ONE, target=x, delta=0.1)),
        ("delta", lambda x: certified_by_count(*ONE, target=0.9, delta=x)),
        ("target", lambda x: estimated_threshold(*ONE, target=x)),
        ("share", lambda x: share_threshold([0.5], x)),
        ("budget", lambda x: budget_of_wrong_releases(*ONE, budget=x)),
        ("delta", lambda x: budget_of_wrong_releases(*ONE, budget=0.1, delta=x)),
        ("budget", budget_needed),
    ],
)
def test_levels_outside_the_unit_interval_are_refused_by_their_name(parameter, call, level):
    with pytest.raises(ConfigurationError, match=f"^The '{parameter}' parameter of `selective release` must be"):
        call(level)


def test_arrays_of_different_shapes_are_refused_by_their_name():
    for call in (estimated_threshold, budget_of_wrong_releases, certified_by_count):
        levels = {"budget": 0.1} if call is budget_of_wrong_releases else {"target": 0.5}
        levels |= {"delta": 0.1} if call is certified_by_count else {}
        for chances, right in (([0.5], [True, False]), ([[0.5]], [[True]])):
            with pytest.raises(ConfigurationError, match=r"^The 'right' parameter .* of the shape of chances"):
                call(chances, right, **levels)
    with pytest.raises(ConfigurationError, match=r"^The 'weights' parameter of `estimated_threshold`"):
        estimated_threshold(*ONE, target=0.5, weights=[1.0, 1.0])


# -- a budget of wrong releases --


@given(
    st.lists(st.tuples(levels, st.booleans(), st.sampled_from([1.0, 0.5, 0.25, 1 / 3])), max_size=60),
    st.floats(0.02, 0.6) | st.sampled_from([0.1, 0.25, 0.5]),
    st.sampled_from([None, "massed", 0.1, 0.25, 0.3]),
)
def test_the_budgets_threshold_is_the_most_generous_one_within_the_bound(drawn, budget, promise):
    p, good = np.array([c[0] for c in drawn]), np.array([c[1] for c in drawn], dtype=bool)
    mass = np.array([c[2] if promise == "massed" else 1.0 for c in drawn])
    delta = None if promise == "massed" else promise
    found = budget_of_wrong_releases(p, good, budget=budget, delta=delta, mass=mass if promise == "massed" else None)
    n = math.floor(mass.sum() + 1e-9)

    def within(level: float) -> bool:
        out = ~good & (p >= level)
        if delta is None:
            return mass[out].sum() + 1 - budget <= budget * mass.sum() + 1e-9
        return scipy.stats.binom.cdf(out.sum(), n, budget) <= delta + 1e-9

    fits = [level for level in sorted(set(p[~np.isnan(p)].tolist())) if within(level)]
    if not fits:
        assert found == Released(threshold=None, cases=n, released=0, wrong=0)
        return
    out = p >= fits[0]
    assert found == Released(threshold=fits[0], cases=n, released=int(out.sum()), wrong=int((~good[out]).sum()))


def test_a_bound_that_is_met_exactly_is_met():
    two = ([0.9, 0.9], [True, True])
    assert budget_of_wrong_releases(*two, budget=0.5, delta=0.25).released == 2  # .5 ** 2
    assert certified_by_count(*two, target=0.5, delta=0.25).threshold is not None
    assert certified_threshold(*two, candidates=[0.9], target=0.5, delta=0.25).threshold == 0.9
    assert budget_of_wrong_releases([0.9], [True], budget=0.5).released == 1  # (0 + 1)/(1 + 1)


@pytest.mark.parametrize(("wrong", "released"), [(8, 20), (9, 0)])
def test_a_wrong_case_counts_by_its_mass(wrong, released):
    """.25 * 8 + .5 = .5 * .25 * 20."""
    good = [False] * wrong + [True] * (20 - wrong)
    assert budget_of_wrong_releases([0.9] * 20, good, budget=0.5, mass=[0.25] * 20).released == released


def test_masses_and_weights_of_a_narrow_type_are_summed_in_double_precision():
    """Counted in halves the sum of ones stops at 2,048."""
    n, ones = 4096, np.ones(4096, dtype=np.float16)
    assert budget_of_wrong_releases([0.9] * n, [False] * n, budget=0.9, mass=ones).threshold is None
    mostly_wrong = ([0.9] * n, [True] * 1200 + [False] * (n - 1200))
    assert estimated_threshold(*mostly_wrong, target=0.2, weights=ones).released == n


@given(cases, st.floats(0.02, 0.4), st.sampled_from([None, 0.2]), st.data())
def test_a_case_taken_for_wrong_never_makes_a_threshold_more_generous(drawn, budget, delta, data):
    """What lets labels be chosen by score, or by anything: a case without one counts as wrong."""
    p, good = np.array([c[0] for c in drawn]), np.array([c[1] for c in drawn], dtype=bool)
    known = np.array(data.draw(st.lists(st.booleans(), min_size=len(p), max_size=len(p))), dtype=bool)
    full = budget_of_wrong_releases(p, good, budget=budget, delta=delta).threshold
    some = budget_of_wrong_releases(p, good & known, budget=budget, delta=delta).threshold
    assert some is None or (full is not None and full <= some)


def test_a_budget_lets_something_out_from_so_many_cases_on_and_not_before():
    for budget, delta in ((0.05, None), (0.1, None), (0.05, 0.1), (0.02, 0.05)):
        n = budget_needed(budget, delta)
        assert budget_of_wrong_releases([0.9] * n, [True] * n, budget=budget, delta=delta).threshold == 0.9
        assert budget_of_wrong_releases([0.9] * (n - 1), [True] * (n - 1), budget=budget, delta=delta).threshold is None


def wrong_of_a_new_task(
    rng: np.random.Generator, *, massed: bool, tasks: int = 20, budget: float = 0.2
) -> tuple[float, float]:
    """Tasks of eight trials that stand or fall together; one in three calls always and fails, the rest call rarely.

    Returns the chance that a new run calls and is wrongly released, and that it calls.
    """
    trials, prone = 8, 0.3
    bad = rng.random(tasks) < prone
    calls = rng.random((tasks, trials)) < np.where(bad, 1.0, 0.25)[:, None]
    p = np.repeat(rng.random(tasks) * np.where(bad, 0.8, 1.0), trials).reshape(tasks, trials)
    good = np.repeat(~bad, trials).reshape(tasks, trials)
    mass = np.full(int(calls.sum()), 1.0 / trials) if massed else None
    found = budget_of_wrong_releases(p[calls], good[calls], budget=budget, mass=mass)
    share = prone + (1 - prone) * 0.25
    return (0.0 if found.threshold is None else prone * max(0.0, 1 - found.threshold / 0.8)), share


def test_the_budget_holds_on_average_for_runs_that_call_where_tasks_differ_in_how_often_they_do():
    rng = np.random.default_rng(0)
    wrong, calls = np.mean([wrong_of_a_new_task(rng, massed=True) for _ in range(3000)], axis=0)
    assert 0.05 < wrong / calls <= 0.2 + 0.005


def test_sabotage_trials_counted_one_by_one_break_the_budget():
    rng = np.random.default_rng(0)
    few = {"tasks": 10, "budget": 0.1}  # too few to say anything; 38 runs with a call, on average, seem enough
    wrong, calls = np.mean([wrong_of_a_new_task(rng, massed=False, **few) for _ in range(3000)], axis=0)
    assert wrong / calls > 0.11
    assert np.mean([wrong_of_a_new_task(rng, massed=True, **few)[0] for _ in range(200)]) == 0.0


@pytest.mark.parametrize("mass", [[0.0], [2.0], [0.5, 0.5], [math.nan]])
def test_a_mass_outside_the_unit_interval_or_of_another_length_is_refused(mass):
    with pytest.raises(
        ConfigurationError, match=r"^The 'mass' parameter of `budget_of_wrong_releases` must be of shape"
    ):
        budget_of_wrong_releases([0.5], [True], budget=0.1, mass=mass)


def test_with_high_probability_cases_count_one_by_one():
    with pytest.raises(
        ConfigurationError, match=r"^The 'mass' parameter of `budget_of_wrong_releases` must be of shape"
    ):
        budget_of_wrong_releases([0.5], [True], budget=0.1, delta=0.1, mass=[0.5])


# -- a certificate without other cases to choose candidates on --


def test_a_certificate_by_count_keeps_its_promise_and_is_found():
    rng, failed, there = np.random.default_rng(3), 0, 0
    for _ in range(400):
        found = certified_by_count(*draw(rng, CASES), target=TARGET, delta=DELTA)
        if found.threshold is not None:
            there += 1
            failed += true_share(found.threshold) < TARGET
    assert failed <= binomial_ceiling(400, DELTA)
    assert there > 50


def test_sabotage_all_sizes_at_the_full_level_break_it():
    """A world in which every size just misses the target: testing each at delta passes one of them far too often."""
    rng, passed, honest = np.random.default_rng(4), 0, 0
    for _ in range(400):
        p, good = rng.random(CASES), rng.random(CASES) < TARGET - 0.003
        order = np.argsort(-p)
        passed += any(
            certified_threshold(p, good, candidates=[p[order[k - 1]]], target=TARGET, delta=DELTA).threshold is not None
            for k in (25, 38, 57, 85, 128, 192, 288, 400)
        )
        honest += certified_by_count(p, good, target=TARGET, delta=DELTA).threshold is not None
    assert honest <= binomial_ceiling(400, DELTA)
    assert passed > binomial_ceiling(400, DELTA)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.8, 1.0, math.nan]) | unit, st.integers(0, 9)), max_size=90
    ),
    st.sampled_from([0.3, 0.5, 0.7]),
    st.sampled_from([0.3, 0.1]),
)
def test_a_certificate_by_count_is_the_most_generous_of_the_sizes_that_share_delta(drawn, target, delta):
    """Sizes: each half as large again as the one before, as many as fit, the least of which may have no wrong one."""
    p, good = np.array([c[0] for c in drawn]), np.array([c[1] > 1 for c in drawn], dtype=bool)
    there = sorted(p[~np.isnan(p)].tolist(), reverse=True)
    sizes: list[int] = []
    for k in range(1, 20):
        least = math.ceil(math.log(delta / k) / math.log(target) - 1e-9)
        if math.ceil(least * 1.5 ** (k - 1)) > len(there):
            break
        sizes = [math.ceil(least * 1.5**j) for j in range(k)]
    sets = [p > (there[size] if size < len(there) else -1.0) for size in sizes]
    passing = [
        out
        for out in sets
        if out.any() and scipy.stats.binom.cdf((~good[out]).sum(), out.sum(), 1 - target) <= delta / len(sizes)
    ]
    found = certified_by_count(p, good, target=target, delta=delta)
    if not passing:
        assert found == Released(threshold=None, cases=len(p), released=0, wrong=0)
        return
    best = max(passing, key=np.sum)
    assert 0.0 <= found.threshold <= 1.0
    assert ((p >= found.threshold) == best).all()
    assert (found.cases, found.released, found.wrong) == (len(p), best.sum(), (~good[best]).sum())


def test_a_certificate_by_count_holds_a_case_that_has_no_chance_at_all():
    """What it tested is above 0, so a threshold of 0 would release cases that no test counted."""
    found = certified_by_count([0.9] * 30 + [0.0] * 30, [True] * 30 + [False] * 30, target=0.9, delta=0.1)
    assert found.released == 30
    assert 0.0 < found.threshold <= 0.9


@given(st.integers(0, 500), st.floats(0.5, 0.99), st.floats(0.01, 0.3))
def test_with_all_cases_right_a_certificate_by_count_takes_no_more_than_it_must(n, target, delta):
    least = math.ceil(math.log(delta) / math.log(target) - 1e-9)
    found = certified_by_count(np.arange(n) / 500, np.ones(n, dtype=bool), target=target, delta=delta)
    assert (found.threshold is not None) == (n >= least)


_HALF = [(0.1, False)] * 7 + [(0.1, True)] * 3 + [(0.3, False)] * 2 + [(0.3, True), (1.0, False)]


@given(cases, st.sampled_from([0.5, 0.8]), st.integers(1, 200), st.sampled_from([1, 5, 20]))
@example(_HALF, 0.5, 34, 5)  # 10.5 of 14 are 25.5 of 34: 34 / 14 times 10.5 is less
def test_candidates_are_quantiles_ordered_by_the_p_value_that_they_would_have_among_the_new_cases(
    drawn, target, new, most
):
    p, good = np.array([c[0] for c in drawn]), np.array([c[1] for c in drawn], dtype=bool)
    there = np.sort(p[~np.isnan(p)])
    found = candidate_thresholds(p, good, target=target, cases=new, most=most)
    wanted = [math.ceil(round(q * (len(there) - 1), 9)) for q in np.linspace(0.0, 0.95, most)] if len(there) else []
    assert sorted(found) == sorted(set(there[wanted].tolist()))
    keys = []
    for level in found:
        out = p >= level
        n, wrong = round(out.sum() * new / len(p)), (~good[out]).sum() + 0.5
        wrong = math.floor(wrong * new / len(p) + 0.5)
        keys.append((0.0 if n == 0 or wrong >= n else scipy.stats.binom.logcdf(wrong, n, 1 - target), level))
    for before, after in itertools.pairwise(keys):
        assert before[0] < after[0] + 1e-9
        assert before < after or abs(before[0] - after[0]) < 1e-9


def test_there_are_at_most_twenty_candidates():
    assert len(candidate_thresholds(np.arange(1000) / 1000, np.ones(1000), target=0.9, cases=1000)) == 20


def test_candidates_are_ordered_as_if_none_seen_wrong_were_half_a_wrong_one():
    """Half a wrong case among twenty is more than none among forty: the larger set is the better bet."""
    p = [0.9] * 20 + [0.8] * 20
    found = candidate_thresholds(p, [True] * 40, target=0.9, cases=40)
    assert found[0] == 0.8
    few = candidate_thresholds([0.9] * 22 + [0.5] * 22, [True] * 43 + [False], target=0.9, cases=44)
    assert few[0] == 0.5  # one wrong of 44 against, as it counts, one of 22
    wrong_of_30 = candidate_thresholds([0.9] * 5 + [0.5] * 25, [True] * 27 + [False] * 3, target=0.9, cases=30)
    assert wrong_of_30[0] == 0.5  # if none seen wrong counted as none, five would be the better bet
    wrong_of_45 = candidate_thresholds([0.9] * 12 + [0.5] * 33, [True] * 41 + [False] * 4, target=0.9, cases=45)
    assert wrong_of_45[0] == 0.9  # if it counted as two, 45 would be
    all_wrong = candidate_thresholds([0.9, 0.5, 0.5], [False, True, True], target=0.5, cases=3)
    assert all_wrong[0] == 0.5


def test_a_share_beyond_the_cases_without_a_chance_is_the_chance_behind_them() -> None:
    assert share_threshold([math.nan, 0.3, 0.5], 0.5) == 0.3
    assert share_threshold([math.nan, 0.3, 0.5], 0.25) is None
