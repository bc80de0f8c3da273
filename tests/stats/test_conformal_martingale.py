"""The watch on exchangeability: alarms at most at its level however long it watches, sees changes, stays small."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.conformal_martingale import (
    ACCOUNTS,
    JUMP_RATES,
    MartingaleState,
    bet,
    capped,
    martingale_start,
    martingale_update,
)
from grampus_uq.stats.stored_values import from_json, to_json
from tests.benchmarks.exchangeability_watch import first_alarms
from tests.binomial import binomial_ceiling

LEVEL = 0.05


def _alarm_share(seed: int, **change: Any) -> float:
    first = first_alarms(np.random.default_rng(seed), **{"histories": 400, "runs": 600, "level": LEVEL, **change})
    return float((first > 0).mean())


@pytest.mark.parametrize("calibration", [0, 30, 200])
def test_without_change_alarms_stay_at_the_level(calibration: int) -> None:
    assert _alarm_share(1, calibration=calibration) <= binomial_ceiling(400, LEVEL) / 400


@pytest.mark.slow
def test_without_change_2000_histories_of_5000_runs_alarm_at_most_at_the_level() -> None:
    for level in (0.01, 0.1):
        rng = np.random.default_rng(2)
        first = first_alarms(rng, histories=2000, runs=5000, calibration=200, level=level)
        assert (first > 0).sum() <= binomial_ceiling(2000, level)


def test_sabotage_a_bag_that_does_not_grow_alarms_falsely_far_more_often() -> None:
    assert _alarm_share(3, calibration=40, runs=1500, growing=False) > 0.3


@pytest.mark.parametrize(("change_at", "size", "least"), [(0, 1.2, 0.9), (0, -1.2, 0.9), (300, 1.0, 0.9)])
def test_a_change_in_either_direction_is_seen(change_at: int, size: float, least: float) -> None:
    assert _alarm_share(4, calibration=200, runs=change_at + 300, change_at=change_at, size=size) > least


def test_ranks_are_uniform_and_independent_even_for_round_statistics() -> None:
    rng, n = np.random.default_rng(5), 4000
    state = martingale_start(np.round(rng.normal(size=60)).tolist(), rng)
    ranks = []
    for peak in np.round(rng.normal(size=n)).tolist():
        state, p = martingale_update(state, peak, rng.random())
        ranks.append(p)
    gap = np.abs(np.sort(ranks) - (np.arange(n) + 0.5) / n).max()
    assert gap < 1.95 / math.sqrt(n)  # Kolmogorov, probability .001
    assert abs(np.corrcoef(ranks[:-1], ranks[1:])[0, 1]) < 3.3 / math.sqrt(n)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_no_bet_can_lose_more_than_it_has_and_every_bet_is_fair(ranks: list[float]) -> None:
    shares = np.full(len(JUMP_RATES) * ACCOUNTS, 1.0 / (len(JUMP_RATES) * ACCOUNTS))
    for p in ranks:
        shares, growth = bet(shares, np.array(p))
        assert growth > 0.0
        assert shares.min() >= 0.0
        assert shares.sum() == pytest.approx(1.0)
    grid = (np.arange(2000) + 0.5) / 2000
    _, factors = bet(np.tile(shares, (2000, 1)), grid)
    assert factors.mean() == pytest.approx(1.0, abs=1e-9)  # fair whatever the shares: the mean over uniform ranks is 1


def test_the_vectorised_histories_are_the_librarys_own_updates() -> None:
    """One history, replayed run by run with the same numbers."""
    rng = np.random.default_rng(9)
    [calibration] = rng.normal(size=(1, 50))
    state = martingale_start(calibration, rng)
    alarm = 0
    for run in range(1, 121):
        peak, draw = rng.normal(2.0 if run > 20 else 0.0, 1.0, 1)[0], rng.random(1)[0]
        state, _ = martingale_update(state, peak, draw)
        if not alarm and state.log_peak >= -math.log(LEVEL):
            alarm = run
    first = first_alarms(
        np.random.default_rng(9), histories=1, runs=120, calibration=50, level=LEVEL, change_at=20, size=2.0
    )
    assert first.tolist() == [alarm]
    assert alarm > 20


def test_the_state_is_bounded_and_survives_storage() -> None:
    rng = np.random.default_rng(7)
    state = martingale_start([*rng.normal(size=500).tolist(), -math.inf], rng)
    for peak in rng.normal(size=3000).tolist():
        state, _ = martingale_update(state, peak, rng.random())
    text = json.dumps(to_json(state), allow_nan=False)
    assert len(text) < 2048
    again = from_json(MartingaleState, json.loads(text), "watch")
    assert again == state
    assert martingale_update(again, 0.3, 0.5) == martingale_update(state, 0.3, 0.5)


def test_a_watch_that_was_stored_with_fewer_accounts_goes_on_with_what_it_had() -> None:
    rng = np.random.default_rng(0)
    state = martingale_start(rng.normal(size=100).tolist(), rng)
    old = to_json(state) | {"shares": [1 / 15] * 15, "log_capital": 1.5, "log_peak": 2.0, "runs": 7}
    again = from_json(MartingaleState, old, "watch")
    assert (again.log_capital, again.log_peak, again.runs) == (1.5, 2.0, 7)
    assert sum(again.shares) == pytest.approx(1.0)
    assert sorted(share for share in again.shares if share) == pytest.approx([1 / 15] * 15)
    assert from_json(MartingaleState, to_json(again), "watch") == again


def test_most_small_changes_are_seen_within_two_hundred_runs() -> None:
    """.6 standard deviations, at the level of one variant of a watch: full stakes alone saw .32 of them."""
    assert _alarm_share(6, calibration=60, level=0.005, runs=200, change_at=0, size=0.6) > 0.37


def test_an_alarm_of_the_watch_latches() -> None:
    rng = np.random.default_rng(8)
    state = martingale_start(rng.normal(size=200).tolist(), rng)
    for peak in rng.normal(3.0, 1.0, 40).tolist():
        state, _ = martingale_update(state, peak, rng.random())
    assert state.log_peak >= -math.log(0.01)
    for peak in rng.normal(-1.0, 1.0, 300).tolist():
        state, _ = martingale_update(state, peak, rng.random())
    assert state.log_peak >= -math.log(0.01)
    assert state.log_capital < state.log_peak


def test_capping_makes_the_statistic_the_same_whether_or_not_the_alarm_ended_the_run() -> None:
    assert capped(2.1, 2.0) == capped(9.9, 2.0) == 2.0
    assert capped(1.9, 2.0) == 1.9
    assert capped(-math.inf, 2.0) == -math.inf


@pytest.mark.parametrize(
    "change",
    [
        {"edges": [1.0]},
        {"counts": [-1]},
        {"shares": [1.0]},
        {"shares": [2.0] + [0.0] * (len(JUMP_RATES) * ACCOUNTS - 1)},
        {"log_capital": 1.0},
        {"runs": -1},
        {"runs": True},
        {"log_peak": "nan"},
    ],
)
def test_a_stored_watch_that_breaks_a_rule_is_refused(change: dict[str, Any]) -> None:
    stored = to_json(martingale_start([], np.random.default_rng(0)))
    assert from_json(MartingaleState, stored, "watch").counts == (0,)
    with pytest.raises(ConfigurationError):
        from_json(MartingaleState, {**stored, **change}, "watch")


def test_wrong_statistics_draws_and_levels_are_refused() -> None:
    state = martingale_start([], np.random.default_rng(0))
    for peak, draw in ((math.nan, 0.5), (0.0, 1.5)):
        with pytest.raises(ConfigurationError, match="martingale_update"):
            martingale_update(state, peak, draw)
    with pytest.raises(ConfigurationError, match="NaN"):
        martingale_start([math.nan], np.random.default_rng(0))
