"""Evidence that never forgets: fair while the promise is kept, and fatal to an agent that goes back and forth."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.stats import earned_threshold as e
from grampus_uq.stats import lasting_evidence as lasting
from tests.benchmarks import permits
from tests.binomial import binomial_ceiling
from tests.sampling import sampled
from tests.stats.test_earned_threshold import ASKED, DRAW, FAIR, HISTORIES, TARGETS, UNASKED, WORLD, K, played, risk_of


def begins(t: float) -> float:
    return 1.0 / (1.0 + math.log(t)) - 1.0 / (1.0 + math.log(t + 1.0))


@given(st.integers(0, 2**53) | st.floats(0.0, 53.0).map(lambda bits: int(2.0**bits)))
def test_a_bet_begins_with_its_weight_at_any_count_that_a_stored_state_may_have(exposed: int) -> None:
    exposed = int(float(exposed) + 1.0) - 1
    with localcontext(prec=60):
        one, t = Decimal(1), Decimal(exposed + 1)
        weight = one / (one + t.ln()) - one / (one + (t + one).ln())
        expected = float(weight.ln())
    nothing = np.full(len(lasting.RATIOS), -np.inf)
    assert lasting.log_begun(np.array([float(exposed)]), nothing) == pytest.approx(expected, rel=1e-12)


@settings(deadline=None)
@given(TARGETS, HISTORIES, WORLD, st.integers(1, K), st.floats(0.01, 0.99), st.floats(0.0, 1.0))
def test_on_average_it_does_not_grow_while_the_promise_is_kept_whatever_share_of_calls_has_an_equal_pending(
    target: e.Target, history: Any, world: Any, level: int, audit: float, alike: float
) -> None:
    """A call with an equal one pending is asked for certain: it may not go out, and counts among the calls."""
    places, wrong = np.array(world).T
    places, state = places / places.sum(), played(target, history)
    risk = risk_of(target, places, wrong)[level - 1]
    wrong = wrong * min(1.0, target.epsilon / max(risk, 1e-12))
    begun = np.exp(state.log_lasting) + begins(float(state.exposed[0]) + 1.0)
    least, audit = target.audit_rate, max(audit, target.audit_rate)
    ratio, total = np.zeros(len(lasting.RATIOS)), 0.0
    for at in range(K + 1):
        for in_force, share in ((0, alike), (level, 1.0 - alike)):
            for draw, chance in ((ASKED, least), (least, audit - least), (UNASKED, 1.0 - audit)):
                for bad, rate in ((True, wrong[at]), (False, 1.0 - wrong[at])):
                    after = e.update(target, state, at, draw, bad, in_force=in_force, audit=audit)
                    weight = places[at] * share * chance * rate
                    if after.exposed > state.exposed:
                        ratio += weight * np.exp(after.log_lasting) / begun
                        total += weight
    assert (ratio <= total + 1e-9).all()
    if not target.of_released:
        assert total == pytest.approx(1.0)


@settings(deadline=None)
@given(TARGETS, HISTORIES, st.integers(0, K), st.booleans(), st.integers(0, K))
def test_what_is_asked_about_for_certain_changes_nothing_and_neither_does_a_new_beginning(
    target: e.Target, history: Any, at: int, wrong: bool, level: int
) -> None:
    state = played(target, history)
    names = ("log_lasting", "log_lasting_peak", "exposed")
    for after in (
        e.update(target, state, at, ASKED, wrong, in_force=level, audit=1.0),
        e.begun_anew(target, state),
    ):
        assert [getattr(after, name).tolist() for name in names] == [getattr(state, name).tolist() for name in names]
    anew, nothing = e.begun_anew(target, state), e.nothing_earned(target)
    kept = {name: getattr(state, name) for name in names}
    assert e.earned_to_json(anew) == e.earned_to_json(replace(nothing, **kept))


def test_by_hand_bets_begin_with_the_first_call_and_with_every_later_one_and_no_rate_in_force_counts() -> None:
    """The least rate is .05; a wrong audit that was drawn at a higher one alone, the fourth, is none here."""
    sizes = np.minimum((lasting.RATIOS - 1.0) * 0.05, 0.9 / FAIR.epsilon)
    expected, state = np.ones(len(sizes)), e.nothing_earned(FAIR)
    calls = [(0.01, True, 0.05), (0.9, False, 0.3), (0.01, False, 0.9), (0.05, True, 0.1), (0.049, True, 0.99)]
    assert lasting.log_evidence(state.log_lasting) == pytest.approx([math.log(0.5)])
    for t, (draw, wrong, audit) in enumerate(calls, 1):
        state = e.update(FAIR, state, 0, draw, wrong, in_force=1, audit=audit)
        expected = (expected + begins(t)) * (1.0 + sizes * (20.0 * (draw < 0.05 and wrong) - FAIR.epsilon))
        assert np.exp(state.log_lasting) == pytest.approx(expected)
    assert state.exposed.tolist() == [5.0]
    assert state.log_lasting_peak == pytest.approx([math.log(expected.mean() / 2.0)])
    assert sum(begins(t) for t in range(1, 2_000)) == pytest.approx(1.0 - 1.0 / (1.0 + math.log(2_000.0)))


def test_of_those_released_a_call_below_the_threshold_is_not_exposed() -> None:
    released = replace(FAIR, of_released=True)
    state = e.update(released, e.nothing_earned(released), 0, UNASKED, False, in_force=2, audit=0.5)
    below = e.update(released, state, 3, ASKED, True, in_force=2, audit=0.5)
    assert (below.exposed.tolist(), below.log_lasting.tolist()) == ([1.0], state.log_lasting.tolist())
    of_all = e.update(FAIR, state, 3, ASKED, True, in_force=2, audit=0.5)
    assert of_all.exposed.tolist() == [2.0]


def test_once_it_is_spent_nothing_is_ever_in_force_again() -> None:
    assert pytest.approx(math.log(1.0 / 0.01)) == lasting.LOG_SPENT  # false with probability at most 1 %
    state = replace(e.nothing_earned(FAIR), log_peak=np.full(K, 9.0))
    below = replace(state, log_lasting_peak=np.array([lasting.LOG_SPENT - 1e-9]))
    above = replace(state, log_lasting_peak=np.array([lasting.LOG_SPENT]))
    assert (int(e.level(FAIR, below)), int(e.level(FAIR, above))) == (K, 0)
    for _ in range(200):
        above = e.update(FAIR, above, 0, ASKED, False, in_force=0, audit=1.0)
    assert int(e.level(FAIR, above)) == 0
    assert e.audit_probability(FAIR, above) == 1.0


# -- an agent that sees whether its calls wait, and is wrong only while they do not -----------------------------------


def most_caught(target: e.Target, calls: float) -> int:
    """Wrong calls whose draw was below the least rate, of so many, after which it is spent: see the module."""
    loss = (lasting.RATIOS - 1.0) * target.audit_rate * target.epsilon
    assert (loss < 0.9).all()
    gain = np.log1p((lasting.RATIOS - 1.0) * (1.0 - target.audit_rate * target.epsilon))
    needed = math.log(200.0 * len(lasting.RATIOS))
    return int(np.ceil((needed - calls * np.log1p(-loss)) / (gain - np.log1p(-loss))).min())


def most_out(target: e.Target, calls: int, sure: float = 0.95) -> int:
    """Wrong calls that may go out in so many, whatever the agent does, with this probability."""
    return int(scipy.stats.nbinom.ppf(sure, most_caught(target, calls), target.audit_rate))


STEERED = st.lists(
    st.tuples(st.integers(0, K), DRAW | st.floats(0.0, 0.02), st.booleans(), st.integers(0, K), st.floats(0.0, 1.0)),
    min_size=20,
    max_size=60,
)


@settings(deadline=None)
@given(TARGETS, STEERED, st.integers(1, K))
def test_however_the_rates_are_steered_so_many_wrong_calls_below_the_least_one_withdraw_for_good(
    target: e.Target, calls: Any, at_least: int
) -> None:
    """And of the wrong calls that go out none has a draw below it: with the count of these, the bound on the page."""
    target = replace(target, audit_rate=min(target.audit_rate, 0.2), epsilon=min(target.epsilon, 0.3))
    state, caught = e.nothing_earned(target), 0
    for at, draw, wrong, level, rate in calls:
        level, audit = max(level, at_least), target.audit_rate + rate * (1.0 - target.audit_rate)
        state = e.update(target, state, at, draw, wrong, in_force=level, audit=audit)
        goes_out = at < level and draw >= audit
        caught += wrong and at < level and audit < 1.0 and draw < target.audit_rate
        assert not (goes_out and draw < target.audit_rate)
        if caught >= most_caught(target, float(state.exposed[0])):
            assert e.spent(state)


class Forgetful(permits.Earned):
    """The rule without this evidence."""

    def take(self, *call: Any) -> None:
        super().take(*call)
        kept = e.nothing_earned(self.target, (len(self.out),))
        self.state = replace(self.state, log_lasting=kept.log_lasting, log_lasting_peak=kept.log_lasting_peak)


def back_and_forth(rule: type[permits.Earned], populations: int, calls: int, **given: Any) -> tuple[Any, Any, float]:
    """Wrong calls that went out of each population, which permissions are spent, and the bound."""
    usual: dict[str, Any] = {"name": "back and forth", "epsilon": 0.02, "base": 0.0, "auroc": 0.5, "turns": 1.0}
    world = permits.World(**usual | given)
    played_ = rule(world, populations)
    history = permits.simulate(world, played_, populations, calls, seed=31)
    return history.all_wrong_out, e.spent(played_.state), most_out(world.target(), calls)


def kept(wrong_out: Any, bound: float) -> bool:
    """Whether the bound, which holds in 95 % of populations, was kept as often as chance explains."""
    return bool((wrong_out > bound).sum() <= binomial_ceiling(len(wrong_out), 0.05))


@pytest.mark.slow
def test_an_agent_that_goes_back_and_forth_is_withdrawn_for_good_and_the_rule_without_it_lets_a_quarter_out() -> None:
    calls = 2_500
    out, spent, bound = back_and_forth(permits.Earned, 40, calls)
    assert spent.all()
    assert kept(out, bound)
    assert out.mean() / calls < 0.04
    sabotaged, spent, _ = back_and_forth(Forgetful, 20, calls)
    assert not spent.any()
    assert not kept(sabotaged, bound)
    assert sabotaged.mean() / calls > 0.15


SHARES: list[dict[str, Any]] = [
    {},
    {"turns": 0.3},
    {"turns": 0.1},
    {"turns": 0.05},
    {"turns_after": 2_000},
    {"epsilon": 0.05},
    {"epsilon": 0.05, "turns": 0.25},
    {"audit_rate": 0.1},
]


@pytest.mark.slow
@pytest.mark.parametrize("world", SHARES)
def test_whatever_share_of_its_exposed_calls_is_wrong_no_more_goes_out_than_stated(world: dict[str, Any]) -> None:
    out, _, bound = back_and_forth(permits.Earned, 60, 2_500, **world)
    assert kept(out, bound)


@pytest.mark.promises
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", SHARES)
def test_of_five_hundred_agents_no_more_goes_out_than_stated(world: dict[str, Any]) -> None:
    out, _, bound = back_and_forth(permits.Earned, 500, 5_000, **world)
    assert kept(out, bound)


class Steering:
    """Many agents that choose each audit probability as they like: right at `high`, so that evidence is lost, then
    wrong at the least rate until an audit is drawn, and so on."""

    def __init__(self, target: e.Target, populations: int, calls: int, right: int, high: float) -> None:
        rng, everyone = np.random.default_rng(7), np.zeros(populations, dtype=int)
        self.state, self.out = e.nothing_earned(target, (populations,)), np.zeros(populations)
        log_before, peak_before = np.zeros((populations, len(lasting.RATIOS))), np.zeros(populations)
        self.out_before, left = np.zeros(populations), np.full(populations, right)
        for call in range(calls):
            wrong, draw = left <= 0, rng.random(populations)
            audit = np.where(wrong, target.audit_rate, high)
            goes_out = draw >= audit
            self.out += wrong & goes_out & ~e.spent(self.state)
            self.out_before += wrong & goes_out & (peak_before < lasting.LOG_SPENT)
            self.state = e.update(target, self.state, everyone, draw, wrong, in_force=1, audit=audit)
            mu = (lasting.RATIOS - 1.0) * audit[:, None]  # the sabotage: bets by the rate that is in force
            loss = np.where(wrong & ~goes_out, 1.0 / audit, 0.0)[:, None]
            begun = lasting.log_begun(np.full((populations, 1), float(call)), log_before)
            log_before = begun + np.log1p(mu * (loss - target.epsilon))
            peak_before = np.maximum(peak_before, lasting.log_evidence(log_before)[:, 0])
            left = np.where(wrong & ~goes_out, right, left - 1)


@pytest.mark.slow
@sampled("right,high", [(20, 0.9)], full=[(20, 0.9), (60, 0.6)])
def test_an_agent_that_steers_the_rates_lets_no_more_out_than_stated_and_more_where_bets_follow_them(
    right: int, high: float
) -> None:
    target = e.Target(thresholds=(0.5,), epsilon=0.02)
    bound = most_out(target, 5_000)
    assert (most_caught(target, 5_000), bound) == (16, 442)
    agents = Steering(target, 100, 5_000, right, high)
    assert kept(agents.out, bound)
    assert not kept(agents.out_before, bound)
