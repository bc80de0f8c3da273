"""A threshold earned from answers: fair bets under the null, promises kept at any time, sabotage seen."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats import earned_threshold as e
from tests.benchmarks import permits
from tests.binomial import binomial_ceiling
from tests.sampling import sampled

K = 4
TARGETS = st.builds(
    e.Target,
    thresholds=st.just((0.9, 0.7, 0.5, 0.3)),
    epsilon=st.floats(0.005, 0.5),
    delta=st.floats(0.01, 0.3),
    audit_rate=st.floats(0.01, 0.9),
    of_released=st.booleans(),
)
DRAW = st.floats(0.0, 1.0, exclude_max=True)
CALL = st.tuples(st.integers(0, K), DRAW, st.booleans(), st.integers(0, K), st.floats(0.01, 1.0))
ASKED, UNASKED = 0.0, math.nextafter(1.0, 0.0)
"""Draws below and above any audit probability below 1."""
HISTORIES = st.lists(CALL, max_size=30)


def played(target: e.Target, history: list[tuple[int, float, bool, int, float]]) -> e.Earned:
    """Evidence after any sequence of calls, possible ones and others."""
    state = e.nothing_earned(target)
    for at, draw, wrong, level, audit in history:
        state = e.update(target, state, at, draw, wrong, in_force=level, audit=audit)
    return state


Update = Callable[..., e.Earned]


def expected_factors(
    target: e.Target, state: e.Earned, places: np.ndarray, wrong: np.ndarray, level: int, audit: float, update: Update
) -> tuple[np.ndarray, float]:
    """E of the next call's factor of each W(c), and of the contrary evidence, over score, audit and truth, exactly."""
    wealth, contrary = np.zeros(K), np.zeros(3)
    begun = np.maximum(state.log_contrary, 0.0)
    for at in range(K + 1):
        seen = audit if at < level else 1.0
        for draw, chance in ((ASKED, seen), (UNASKED, 1.0 - seen)):
            for bad, rate in ((True, wrong[at]), (False, 1.0 - wrong[at])):
                after = update(target, state, at, draw, bad, in_force=level, audit=audit)
                weight = places[at] * chance * rate
                wealth += weight * np.exp(after.log_wealth - state.log_wealth)
                counts = not target.of_released or at < level
                contrary += weight * (np.exp(after.log_contrary - begun) if counts else 1.0)
    return wealth, float(contrary.max())


def risk_of(target: e.Target, places: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Share of wrong calls at or above each threshold: of all calls, or of those at or above it."""
    risk = np.cumsum(places * wrong)[:K]
    return risk / np.maximum(np.cumsum(places)[:K], 1e-12) if target.of_released else risk


WORLD = st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 1.0)), min_size=K + 1, max_size=K + 1)


@settings(deadline=None)
@given(TARGETS, HISTORIES, WORLD, st.integers(0, K), st.floats(0.01, 1.0))
def test_no_bet_on_a_threshold_gains_on_average_while_at_least_epsilon_would_go_out_wrong_at_it(
    target: e.Target, history: Any, world: Any, level: int, audit: float
) -> None:
    places, wrong = np.array(world).T
    places = places / places.sum()
    state, audit = played(target, history), max(audit, target.audit_rate)
    wealth, contrary = expected_factors(target, state, places, wrong, level, audit, e.update)
    risk = risk_of(target, places, wrong)
    goes_out = risk if target.of_released else risk * (1.0 - target.audit_rate)
    assert (wealth[goes_out >= target.epsilon] <= 1.0 + 1e-9).all()
    if level and risk[level - 1] <= target.epsilon:
        assert contrary <= 1.0 + 1e-9


PLACES = np.array([0.2, 0.2, 0.2, 0.2, 0.2])
AT_EPSILON = np.array([0.02, 0.02, 0.1, 0.11, 0.5]) / 0.95
FAIR = e.Target(thresholds=(0.9, 0.7, 0.5, 0.3), epsilon=0.05)
"""At the laxest threshold exactly epsilon go out wrong, with audits of 5 %: a fair bet stays at 1."""


def factor_with(update: Update) -> float:
    wealth, _ = expected_factors(FAIR, e.nothing_earned(FAIR), PLACES, AT_EPSILON, 2, 0.1, update)
    return float(wealth[K - 1])


def test_a_bet_at_exactly_epsilon_is_fair() -> None:
    assert factor_with(e.update) == pytest.approx(1.0, abs=1e-12)


def test_sabotage_bets_on_what_goes_out_after_audits_gain_where_fewer_are_audited() -> None:
    def stopped_half(target: e.Target, state: e.Earned, *call: Any, **terms: Any) -> e.Earned:
        return e.update(replace(target, audit_rate=0.5), state, *call, **terms)

    assert factor_with(stopped_half) > 1.0 + 1e-4


def test_sabotage_an_answer_that_is_looked_at_before_the_bet_gains() -> None:
    def peeking(target: e.Target, state: e.Earned, at: int, draw: float, wrong: bool, **terms: Any) -> e.Earned:
        seen = replace(state, slipped=state.slipped + (10.0 if wrong and draw == ASKED else 0.0))
        return e.update(target, seen, at, draw, wrong, **terms)

    assert factor_with(peeking) > 1.0 + 1e-4


def test_sabotage_a_bet_that_depends_on_the_score_of_its_own_call_gains() -> None:
    def scored(target: e.Target, state: e.Earned, at: int, draw: float, wrong: bool, **terms: Any) -> e.Earned:
        held = replace(state, slipped=state.slipped + (10.0 if at < K else 0.0))  # bets only where nothing is lost
        return e.update(target, held, at, draw, wrong, **terms)

    assert factor_with(scored) > 1.0 + 1e-4


def test_sabotage_audits_that_are_not_weighted_gain() -> None:
    def unweighted(target: e.Target, state: e.Earned, at: int, draw: float, wrong: bool, **terms: Any) -> e.Earned:
        return e.update(target, state, at, draw, wrong and draw == ASKED, in_force=terms["in_force"], audit=1.0)

    assert factor_with(unweighted) > 1.0 + 1e-4


def test_sabotage_thresholds_chosen_after_the_fact_break_the_promise() -> None:
    """The only candidate lies just above the best wrong answer so far, and is tested on those very answers."""
    rng, n, populations = np.random.default_rng(1), 75, 300
    score, wrong = rng.random((n, populations)), rng.random((n, populations)) < 0.3  # the score says nothing
    chosen = np.where(wrong, score, 0.0).max(axis=0)
    target = e.Target(thresholds=(0.5,), epsilon=0.004)
    state = e.nothing_earned(target, (populations,))
    for s, bad in list(zip(score, wrong, strict=True)) * 12:
        state = e.update(target, state, s <= chosen, ASKED, bad, in_force=0, audit=1.0)
    broken = (e.level(target, state) > 0) & (0.3 * (1.0 - chosen) > target.epsilon)
    assert broken.sum() > binomial_ceiling(populations, 0.05)


def usual(state: e.Earned, level: int) -> np.ndarray:
    """The share of wrong answers at each place that a change is held against: more than was seen in its zone."""
    middle = (level + K + 1) // 2
    zones = [[j for j in range(K + 1) if (j >= level) + (j >= middle) == zone] for zone in range(3)]
    found = np.empty(K + 1)
    for zone in zones:
        k, n = state.usual_wrong[zone].sum(), state.usual[zone].sum()
        found[zone] = min((k + 0.25 * math.sqrt(k + 1.0) + 1.0 + 8.0 * k / (n + 1.0)) / (n + 1.0), 1.0)
    return found


def expected_change(
    target: e.Target, state: e.Earned, places: np.ndarray, wrong: np.ndarray, level: int, audit: float, update: Update
) -> np.ndarray:
    """E of the next call's factor of each bet on a change, over score, audit and truth, exactly."""
    found, begun = np.zeros(6), np.maximum(state.log_change, 0.0)
    for at in range(K + 1):
        seen = audit if at < level else 1.0
        for draw, chance in ((ASKED, seen), (UNASKED, 1.0 - seen)):
            for bad, rate in ((True, wrong[at]), (False, 1.0 - wrong[at])):
                after = update(target, state, at, draw, bad, in_force=level, audit=audit)
                found += places[at] * chance * rate * np.exp(after.log_change - begun)
    return found


@settings(deadline=None)
@given(TARGETS, HISTORIES, WORLD, st.integers(0, K), st.floats(0.01, 1.0))
def test_no_bet_on_a_change_gains_on_average_while_answers_are_wrong_as_seldom_as_it_assumes(
    target: e.Target, history: Any, world: Any, level: int, audit: float
) -> None:
    places, wrong = np.array(world).T
    places, state = places / places.sum(), played(target, history)
    wrong = np.minimum(wrong, usual(state, int(e.level(target, state))))
    found = expected_change(target, state, places, wrong, level, audit, e.update)
    assert (found[:3] <= 1.0 + 1e-9).all()
    if not level or risk_of(target, places, wrong)[level - 1] <= target.epsilon:
        assert (found[3:] <= 1.0 + 1e-9).all()


ANSWERED = [(at, ASKED, at == 4 and i % 5 == 0, 0, 1.0) for i in range(40) for at in range(K + 1)]


def test_a_bet_on_a_change_is_fair_at_the_assumed_share_and_gains_above_it() -> None:
    state = played(FAIR, ANSWERED)
    level = int(e.level(FAIR, state))
    assert level == 4
    seen = usual(state, level)
    fair = expected_change(FAIR, state, PLACES, seen, 0, 1.0, e.update)
    assert fair[:3] == pytest.approx(np.ones(3), abs=1e-12)
    spoilt = seen + 0.2 * (1.0 - seen)
    assert (expected_change(FAIR, state, PLACES, spoilt, 0, 1.0, e.update)[:3] > 1.03).all()
    wrong = np.where(np.arange(K + 1) < 4, 0.0625, seen)  # exactly epsilon of all calls go out wrong
    joined = expected_change(FAIR, state, PLACES, wrong, 4, 0.5, e.update)[3:]
    assert joined == pytest.approx(np.ones(3), abs=1e-12)


def test_a_bet_on_spoilt_answers_is_on_a_tenth_and_a_quarter_of_the_right_ones_and_that_on_odds_on_four_times() -> None:
    state = played(FAIR, ANSWERED)
    share = usual(state, 4)[4]
    right = e.update(FAIR, state, 4, ASKED, False, in_force=4, audit=1.0).log_change[:3] - np.maximum(
        state.log_change[:3], 0.0
    )
    assert np.exp(right) == pytest.approx([0.9, 0.75, 1.0 / (1.0 + 3.0 * share)])
    wrong = e.update(FAIR, state, 4, ASKED, True, in_force=4, audit=1.0).log_change[:3] - np.maximum(
        state.log_change[:3], 0.0
    )
    assert np.exp(wrong) == pytest.approx(
        [*(1.0 + d * (1.0 - share) / share for d in (0.1, 0.25)), 4 / (1 + 3 * share)]
    )


def test_sabotage_a_change_detector_trained_on_the_answer_it_bets_on_gains() -> None:
    def ahead(target: e.Target, state: e.Earned, at: int, draw: float, wrong: bool, **terms: Any) -> e.Earned:
        trained = replace(state, usual_wrong=state.usual_wrong * (0.0 if wrong else 1.0))
        return e.update(target, trained, at, draw, wrong, **terms)

    state = played(FAIR, ANSWERED)
    assert (expected_change(FAIR, state, PLACES, usual(state, 4), 0, 1.0, ahead)[:3] > 1.01).all()


def test_answers_below_the_threshold_that_become_wrong_withdraw_it() -> None:
    state = played(FAIR, ANSWERED * 2)
    assert e.level(FAIR, state) == 4
    for _ in range(40):
        state = e.update(FAIR, state, 4, ASKED, True, in_force=4, audit=0.05)
    assert [bool(sign) for sign in e.broken(FAIR, state)] == [False, True]


def test_the_evidence_on_a_change_that_withdraws_grows_with_the_calls_and_is_expected_once_in_fifty_thousand() -> None:
    for calls, needed in ((0.0, 4_000.0), (1_000.0, 8_000.0), (49_000.0, 200_000.0)):
        state = replace(e.nothing_earned(FAIR), calls=np.array([calls]))
        for shift, withdraws in ((-1e-9, False), (1e-9, True)):
            after = replace(state, log_change=np.full(6, math.log(needed) + shift))
            assert [bool(sign) for sign in e.broken(FAIR, after)] == [False, withdraws]
    assert 0.9 < sum(1.0 / (4_000.0 + 4.0 * calls) for calls in range(50_000)) < 1.0


def holds(world: permits.World, populations: int = 200) -> dict[str, Any]:
    found = permits.row(world, "earned", populations)
    assert found["exceeded"] * populations <= binomial_ceiling(populations, permits.DELTA)
    return found


@pytest.mark.slow
@sampled("place", [0], full=[0, 9])
def test_the_promise_is_kept_and_questions_are_saved(place: int) -> None:
    assert holds(permits.WORLDS[place])["asked_last_200"] < 0.6


@pytest.mark.promises
@pytest.mark.timeout(900)
def test_the_promise_is_kept_in_every_world_whose_assumptions_hold() -> None:
    for world in permits.WORLDS:
        if world.holds:
            holds(world, 500)


@pytest.mark.parametrize(("level", "audit"), [(0, 1.0), (1, 0.3), (1, 0.05)], ids=["asked", "audits", "few audits"])
@pytest.mark.parametrize("epsilon", [0.02, 0.2, 0.5])
def test_who_knows_all_later_answers_gains_nothing_by_keeping_right_ones_back(
    epsilon: float, level: int, audit: float
) -> None:
    """All sequences of ten answers, then forty right ones: an answer kept back counts as wrong, and no threshold ever
    stands higher by it. Sabotage: what is kept back does not count at all."""
    target, n = e.Target(thresholds=(0.9, 0.5), epsilon=epsilon), 10
    sequences = np.arange(2**n)
    wrong = (sequences[:, None] >> np.arange(n)) & 1 == 1

    def peaks(counts: np.ndarray) -> np.ndarray:
        state = e.nothing_earned(target, (2**n,))
        for place in range(n + 40):
            bad = wrong[:, place] if place < n else np.zeros(2**n, dtype=bool)
            after = e.update(target, state, place % 2, ASKED, bad, in_force=level, audit=audit)
            state = e.chosen(counts[:, place] if place < n else ~bad, after, state)
        return state.log_peak

    asked = peaks(np.ones_like(wrong))
    for answer in range(n):
        kept_back = sequences | 1 << answer
        assert (asked[kept_back] <= asked + 1e-9).all()
    assert (peaks(~wrong) > asked + 0.001).any()


def test_bets_that_see_every_truth_ask_little_more_than_any_rule_must() -> None:
    world = permits.World(name="few calls", epsilon=0.2, base=0.3)
    asked = permits.simulate(world, permits.Free(world, 200), 200, 120).asked
    least = permits.least_asked(world, 120)
    assert least < asked.mean() < least + 0.12


def test_rules_of_thumb_break_it_in_the_same_world() -> None:
    for rule in ("five approvals", "59 of 59"):
        assert permits.row(permits.WORLDS[2], rule, 50)["exceeded"] > 0.5


@pytest.mark.slow
def test_a_rise_to_five_times_epsilon_is_withdrawn_within_a_hundred_answers() -> None:
    found = permits.row(permits.CHANGES[1], "earned", 100)
    assert found["revoked_within_100"] > 0.9


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(3_000, marks=pytest.mark.slow),
        pytest.param(50_000, marks=[pytest.mark.promises, pytest.mark.timeout(900)]),
    ],
)
def test_without_a_change_hardly_any_permit_is_withdrawn(calls: int) -> None:
    found = permits.long_row(permits.WORLDS[1], 100, calls)
    assert found["falsely_revoked"] * 100 <= binomial_ceiling(100, 0.05)


@pytest.mark.parametrize(("epsilon", "most"), [(0.05, 58), (0.02, 146)])
def test_the_first_permission_comes_early_when_no_answer_is_wrong(epsilon: float, most: int) -> None:
    target = e.Target(thresholds=(0.5,), epsilon=epsilon)
    state, answers = e.nothing_earned(target), 0
    while not e.level(target, state):
        assert e.audit_probability(target, state) == 1.0
        state = e.update(target, state, 0, ASKED, False, in_force=0, audit=1.0)
        answers += 1
    assert math.log(target.delta) / math.log(1.0 - epsilon / 0.95) <= answers == most


def test_of_those_released_the_calls_below_a_threshold_are_no_evidence_for_it() -> None:
    target = e.Target(thresholds=(0.9, 0.5), epsilon=0.05, of_released=True)
    state = played(target, [(2, ASKED, False, 0, 1.0)] * 200)
    assert e.level(target, state) == 0
    assert state.log_wealth.tolist() == state.reached.tolist() == [0.0, 0.0]
    state = played(target, [(1, ASKED, False, 0, 1.0)] * 200)
    assert e.level(target, state) == 2  # the laxer one alone was earned; calls above the stricter are above it too


def test_of_all_calls_a_threshold_waits_for_every_stricter_one_and_of_those_released_each_answers_for_itself() -> None:
    sure, doubtful = math.log(1.0 / FAIR.delta) + 1e-9, math.log(1.0 / FAIR.delta) - 1e-9
    state = replace(e.nothing_earned(FAIR), log_peak=np.array([sure, doubtful, sure, sure]))
    assert e.level(FAIR, state) == 1
    assert e.level(FAIR, replace(state, log_peak=np.full(K, sure))) == K
    released = replace(FAIR, of_released=True)
    assert e.level(released, state) == 0  # four candidates: each needs four times the evidence
    assert e.level(released, replace(state, log_peak=np.array([0.0, 0.0, sure + math.log(K), 0.0]))) == 3


def test_of_those_released_a_call_that_is_always_asked_about_says_nothing_against_the_threshold_in_force() -> None:
    released = replace(FAIR, of_released=True)
    before = played(released, [(0, ASKED, True, 2, 0.5)])
    below = e.update(released, before, 3, ASKED, True, in_force=2, audit=0.5)
    assert below.log_contrary.tolist() == before.log_contrary.tolist()
    assert (e.update(released, before, 1, ASKED, False, in_force=2, audit=0.5).log_contrary < before.log_contrary).all()


EARNED_ONE = [(0, ASKED, False, 0, 1.0)] * 30 + [(1, ASKED, False, 0, 1.0)] * 40
"""Right answers that earn every threshold of `FAIR`."""


def test_stakes_under_audits_fall_with_wrong_audits_far_more_than_with_wrong_calls_that_are_always_seen() -> None:
    sure = np.array([math.log(1.0 / FAIR.delta) + 1e-9, 0.0, 0.0, 0.0])
    before = replace(played(FAIR, EARNED_ONE), log_peak=sure, log_wealth=sure)
    audited = e.update(FAIR, before, 0, ASKED, True, in_force=1, audit=0.1)
    seen = e.update(FAIR, before, 3, ASKED, True, in_force=1, audit=0.1)
    kept, rare, always = (e.stakes(FAIR, state, np.array(0.1)) for state in (before, audited, seen))
    assert (rare < 0.1 * kept).all()  # ten wrong calls of seventy: no bet worth the name
    assert always[3] == pytest.approx(kept[3], rel=0.05)
    assert (always[:3] > 0.99 * kept[:3]).all()
    fully = e.stakes(FAIR, seen, np.array(1.0))[3] / e.stakes(FAIR, before, np.array(1.0))[3]
    assert fully < 0.95 < always[3] / kept[3] <= 1.0
    assert (seen.usual_wrong + seen.recent_wrong).tolist() == [0.0, 0.0, 0.0, 1.0, 0.0]
    assert audited.slipped.tolist() == [10.0] * 4
    assert seen.slipped.tolist() == [0.0] * 4


def test_a_stake_on_the_strictest_threshold_is_bold_and_the_others_are_hedged() -> None:
    first = e.stakes(FAIR, e.nothing_earned(FAIR), np.array(1.0)) * (1.0 - FAIR.epsilon / 0.95)
    assert first == pytest.approx([1.0 - 0.05 * 0.8, 0.8125, 0.8125, 0.8125], abs=0.02)


def test_a_wrong_audit_multiplies_the_contrary_evidence_and_what_is_not_seen_changes_no_usual_share() -> None:
    before = played(FAIR, [(0, ASKED, False, 2, 0.1)] * 5)
    after = e.update(FAIR, before, 0, ASKED, True, in_force=2, audit=0.1)
    assert np.exp(after.log_contrary) == pytest.approx([2.0, 5.0, 15.0], rel=0.01)
    unseen = e.update(FAIR, after, 0, UNASKED, False, in_force=2, audit=0.1)
    assert unseen.log_change[:3].tolist() == np.maximum(after.log_change[:3], 0.0).tolist()
    assert unseen.usual.tolist() == after.usual.tolist()


def rate_with(missing: float, *, between: float = 10.0, below: float = 0.0) -> float:
    """Audit probability with the strictest threshold in force, where so much log wealth is missing for the next one."""
    sure = math.log(1.0 / FAIR.delta) + 1e-9
    state = replace(
        e.nothing_earned(FAIR),
        log_wealth=np.array([sure, sure - missing, -60.0, -60.0]),
        log_peak=np.array([sure, 0.0, 0.0, 0.0]),
        calls=np.array([200.0]),
        reached=np.array([100.0, 100.0 + between, 100.0 + between, 100.0 + between]),
        usual=np.array([100.0, 0.0, 0.0, 0.0, 0.0]),
        usual_wrong=np.array([0.0, below, 0.0, 0.0, 0.0]),
    )
    return float(e.audit_probability(FAIR, state))


def test_audits_become_denser_the_nearer_the_next_threshold_is_and_the_more_calls_it_would_let_out() -> None:
    rates = [rate_with(missing) for missing in (60.0, 4.0, 3.0, 0.1)]
    assert rates[0] == FAIR.audit_rate < rates[1] < rates[2] < rates[3] == 1.0
    assert rate_with(3.0, between=9.0) < rates[2] < rate_with(3.0, between=12.0)
    assert rate_with(3.0, below=3.0) < rates[2]  # wrong answers there leave less room for wrong calls that go out
    assert rate_with(0.1, between=0.0) == FAIR.audit_rate


def test_an_audit_is_planned_where_it_saves_as_many_questions_as_it_costs() -> None:
    """By hand: 10 more for 100 calls, growth (share-b)(1 - s + s log s) a call, 3 to go, over 400 calls."""
    share = FAIR.epsilon / 0.95
    b, above = 1.5 / (200 + 8 / share), 0.2 / (200 + 8 / share)
    room = share - b
    growth = room - above + above * math.log(above / room)
    assert rate_with(3.0) == pytest.approx((400 * 0.1 * growth / 3.0) ** 3, rel=1e-6)


def test_a_threshold_once_in_force_stays_although_its_wealth_falls() -> None:
    target = e.Target(thresholds=(0.5,), epsilon=0.05)
    state = played(target, [(0, ASKED, False, 0, 1.0)] * 61)
    after = e.update(target, state, 0, ASKED, True, in_force=1, audit=1.0)
    assert after.log_wealth < math.log(1.0 / target.delta) <= after.log_peak
    assert e.level(target, after) == 1


@settings(deadline=None)
@given(TARGETS, HISTORIES, st.integers(1, K))
def test_after_one_wrong_audit_nothing_goes_out_until_answers_were_right(
    target: e.Target, history: Any, level: int
) -> None:
    """So an agent that turns wrong lets out no more than what comes before its first audit: a geometric number."""
    target = replace(target, epsilon=min(target.epsilon, 0.09))
    earned = replace(played(target, history), log_peak=np.where(np.arange(K) < level, 9.0, 0.0))
    audit = float(e.audit_probability(target, earned))
    for _ in range(10):
        if any(e.broken(target, earned)):
            return
        if e.spent(earned):
            assert int(e.level(target, earned)) == 0
            return
        in_force = int(e.level(target, earned))
        earned = e.update(target, earned, 0, ASKED, True, in_force=in_force, audit=audit)
        audit = float(e.audit_probability(target, earned))
        assert audit == 1.0
    raise AssertionError("never withdrawn")


def test_wrong_audits_make_every_call_asked_about_and_then_withdraw() -> None:
    target = e.Target(thresholds=(0.9, 0.5), epsilon=0.05)
    state = played(target, [(0, ASKED, False, 0, 1.0)] * 100)
    assert e.level(target, state) == 2
    assert e.audit_probability(target, state) < 0.2
    state = e.update(target, state, 0, ASKED, True, in_force=2, audit=0.1)
    assert e.audit_probability(target, state) == 1.0
    assert not any(e.broken(target, state))
    for _ in range(12):
        state = e.update(target, state, 0, ASKED, True, in_force=2, audit=1.0)
    assert all(e.broken(target, state))


@settings(deadline=None)
@given(TARGETS, st.lists(HISTORIES, min_size=2, max_size=3))
def test_many_permits_at_once_are_each_one_bit_for_bit(target: e.Target, histories: Any) -> None:
    length = min(map(len, histories))
    many = e.nothing_earned(target, (len(histories),))
    for calls in zip(*(history[:length] for history in histories), strict=True):
        at, draw, wrong, level, audit = map(np.array, zip(*calls, strict=True))
        many = e.update(target, many, at, draw, wrong, in_force=level, audit=audit)
    for i, history in enumerate(histories):
        one = played(target, history[:length])
        assert {n: x[i].tolist() for n, x in vars_of(many).items()} == {n: x.tolist() for n, x in vars_of(one).items()}


def vars_of(state: e.Earned) -> dict[str, np.ndarray]:
    return {name: getattr(state, name) for name in e.Earned.__dataclass_fields__}


@settings(deadline=None)
@given(TARGETS, HISTORIES, HISTORIES)
def test_a_stored_permit_goes_on_to_the_last_digit_and_does_not_grow(target: e.Target, before: Any, after: Any) -> None:
    stored = json.dumps(e.earned_to_json(played(target, before)))
    state = e.earned_from_json(target, json.loads(stored))
    for at, draw, wrong, level, audit in after:
        state = e.update(target, state, at, draw, wrong, in_force=level, audit=audit)
    assert e.earned_to_json(state) == e.earned_to_json(played(target, before + after))
    assert len(stored) < 1200


def test_what_was_not_asked_about_is_not_read() -> None:
    one, other = (played(FAIR, [(0, UNASKED, wrong, 2, 0.1)] * 5) for wrong in (False, True))
    assert e.earned_to_json(one) == e.earned_to_json(other)


def test_ties_reach_the_threshold_and_a_missing_score_reaches_none() -> None:
    assert e.place(FAIR, [1.0, 0.9, 0.89, 0.3, 0.0, float("nan")]).tolist() == [0, 0, 1, 3, 4, 4]


@pytest.mark.parametrize(
    "changes",
    [
        {"thresholds": ()},
        {"thresholds": (0.1, 0.2)},
        {"thresholds": (0.5, 0.5)},
        {"thresholds": (math.inf,)},
        {"epsilon": 5},
        {"epsilon": 0.6},
        {"delta": 0.0},
        {"audit_rate": 0.0},
    ],
)
def test_a_target_that_promises_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        e.Target(**{"thresholds": (0.5,), "epsilon": 0.05, **changes})


@pytest.mark.parametrize("broken", [None, {}, {"slipped": [math.nan] * 4}, {"slipped": [0.0]}, {"slipped": ["0"] * 4}])
def test_broken_evidence_is_refused(broken: Any) -> None:
    data = {**e.earned_to_json(e.nothing_earned(FAIR)), **broken} if broken else broken
    with pytest.raises(ConfigurationError):
        e.earned_from_json(FAIR, data)


def test_the_benchmark_has_a_row_for_each_rule_with_the_same_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permits, "CALLS", 300)
    found = [permits.row(permits.WORLDS[0], rule, 3) for rule in permits.RULES]
    assert len({tuple(row) for row in found}) == 1
    assert [row["rule"] for row in found] == list(permits.RULES)
    assert all(0.0 <= row["wrong_out"] <= 1.0 - row["asked_1000"] <= 1.0 for row in found)
