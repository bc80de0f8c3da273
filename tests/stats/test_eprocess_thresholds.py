"""Thresholds: the right order statistic, ties told apart, too few runs said so, and every promise in words."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.eprocess_thresholds import (
    Mode,
    Threshold,
    budget_threshold,
    conformal_threshold,
    exceeds,
    exceeds_many,
    pac_threshold,
    successes_needed,
    tie_uniform,
    ville_threshold,
    weighted_threshold,
)
from grampus_uq.stats.stored_values import from_json, to_json
from tests.benchmarks.published_evaluator import bonferroni_threshold
from tests.sampling import examples

LEVEL = st.floats(0.005, 0.9)
RUNS_45 = ([1.0] * 45, [0.5] * 45)
PAIRS = st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 1)), min_size=1, max_size=120)


@given(PAIRS, LEVEL, LEVEL)
def test_so_many_calibration_runs_pass_as_the_binomial_tail_of_algorithm_3_allows(
    pairs: list[tuple[int, float]], alpha: float, delta: float
) -> None:
    scipy_stats = pytest.importorskip("scipy.stats", reason="the extra 'fit' is not installed")
    peaks, ties = np.array(pairs, dtype=float).T
    n = len(pairs)
    threshold = pac_threshold(peaks, ties, alpha, delta)
    tail = scipy_stats.binom.sf(np.arange(n), n, 1 - alpha)  # P(Bin(n, 1 - alpha) >= k), k = 1..n
    if (np.abs(tail - delta) < 1e-9).any():
        return  # on the edge either answer is right
    allowed = np.flatnonzero(tail <= delta)
    if not len(allowed):
        assert threshold.log_value == math.inf
        return
    rank = allowed[0] + 1
    assert threshold.rank == rank
    above = exceeds_many(threshold, peaks, ties).sum()
    assert above <= n - rank
    if len(set(pairs)) == n:
        assert above == n - rank


@settings(max_examples=examples(100))
@given(PAIRS, LEVEL)
def test_the_conformal_threshold_leaves_out_at_most_alpha_of_the_runs_and_a_new_one(
    pairs: list[tuple[int, float]], alpha: float
) -> None:
    peaks, ties = np.array(pairs, dtype=float).T
    threshold = conformal_threshold(peaks, ties, alpha)
    above = exceeds_many(threshold, peaks, ties).sum()
    if threshold.rank is None:
        assert above == 0
        assert (len(pairs) + 1) * alpha < 1.0 + 1e-6
    else:
        assert above <= (len(pairs) + 1) * alpha + 1e-6
        assert len(pairs) + 1 - (threshold.rank - 1) > (len(pairs) + 1) * alpha - 1e-6  # no smaller rank would do


@given(
    st.lists(st.tuples(st.sampled_from([-math.inf, -1.0, 0.0, 1.0, math.inf]), st.floats(0, 1)), min_size=1),
    LEVEL,
    st.data(),
)
def test_a_run_exceeds_exactly_a_smaller_pair_and_one_comparison_and_many_agree(
    pairs: list[tuple[float, float]], alpha: float, data: st.DataObject
) -> None:
    threshold = conformal_threshold(*np.array(pairs, dtype=float).T, alpha)
    level = (threshold.log_value, threshold.tie)
    run = data.draw(st.sampled_from([*pairs, level]) | st.tuples(st.just(level[0]), st.floats(0, 1)))
    above = run > level and run[0] != -math.inf and not run[0] == level[0] == math.inf
    assert exceeds(threshold, *run) is above
    for known in (threshold, ville_threshold(alpha), bonferroni_threshold(alpha, 3)):
        for peak in (run[0], known.log_value):
            many = exceeds_many(known, np.array([peak]), np.array([run[1]]))
            assert many.tolist() == [exceeds(known, peak, run[1])]


def test_missing_evidence_never_exceeds() -> None:
    threshold = conformal_threshold([0.0] * 20, [0.5] * 20, 0.5)
    assert exceeds_many(threshold, np.array([np.nan]), np.array([0.9])).tolist() == [False]


def test_ties_are_told_apart_by_the_draw_and_only_villes_threshold_includes_equality() -> None:
    draws = np.arange(100) / 100
    threshold = conformal_threshold([1.0] * 100, draws, 0.2)
    assert exceeds_many(threshold, np.ones(100), draws).mean() == pytest.approx(0.2, abs=0.011)
    known = ville_threshold(0.25)
    assert exceeds(known, known.log_value, 0.0)
    assert exceeds(bonferroni_threshold(0.5, 2), math.log(4.0), 0.0)


@pytest.mark.parametrize(
    ("set_from", "shortage"),
    [
        (lambda: pac_threshold([], [], 0.05, 0.1), "45 .*for alpha=0.05, delta=0.1; there are 0"),  # log(.1)/log(.95)
        (lambda: pac_threshold([1.0] * 44, [0.5] * 44, 0.05, 0.1), "45 .*; there are 44"),
        (lambda: conformal_threshold([1.0] * 18, [0.5] * 18, 0.05), "19 held-out .*for alpha=0.05; there are 18"),
        (lambda: budget_threshold([], [], 0.1), "9 recorded runs .*budget of 0.1; there are 0"),
        (lambda: weighted_threshold([1.0] * 18, [0.5] * 18, [5.0] + [1.0] * 17, 0.05), "95 .*=0.05; there are 18"),
        (lambda: weighted_threshold([], [], [], 0.05), "19 .*; there are 0"),
    ],
)
def test_too_few_runs_give_an_alarm_that_never_rings_and_say_how_many_are_needed(
    set_from: Callable[[], Threshold], shortage: str
) -> None:
    threshold = set_from()
    assert (threshold.log_value, threshold.tie, threshold.rank) == (math.inf, 1.0, None)
    assert re.match(shortage, threshold.shortage)
    assert not exceeds(threshold, 1e300, 1.0)
    assert not exceeds(threshold, math.inf, 1.0)


@pytest.mark.parametrize(
    ("set_from", "record"),
    [
        (lambda: pac_threshold(*RUNS_45, 0.05, 0.1), (Mode.PAC, 0.05, 0.1, 1.0, 0.5, 45, 45)),
        (lambda: conformal_threshold(*RUNS_45, 0.05), (Mode.CONFORMAL, 0.05, None, 1.0, 0.5, 45, 44)),
        (lambda: weighted_threshold(*RUNS_45, [2.0] * 45, 0.05), (Mode.CONFORMAL, 0.05, None, 1.0, 0.5, 45, 44)),
        (lambda: budget_threshold(*RUNS_45, 0.05), (Mode.BUDGET, 0.05, None, 1.0, 0.5, 45, 44)),
        (lambda: ville_threshold(0.5), (Mode.VILLE, 0.5, None, math.log(2.0), 0.0, 0, None)),
        (lambda: bonferroni_threshold(0.5, 1), (Mode.BONFERRONI, 0.5, None, math.log(2.0), 0.0, 0, None)),
    ],
)
def test_a_threshold_says_which_theorem_levels_and_runs_are_behind_it(
    set_from: Callable[[], Threshold], record: tuple[Any, ...]
) -> None:
    """Rank by hand: the last of 45 (.95^45 < .1), and ceil(46 * .95) = 44."""
    t = set_from()
    assert (t.mode, t.alpha, t.delta, t.log_value, t.tie, t.runs, t.rank) == record
    assert t.shortage == ""


@given(st.sampled_from([Mode.PAC, Mode.CONFORMAL]), LEVEL, LEVEL)
def test_the_number_said_to_be_needed_is_the_least_that_suffices(mode: Mode, alpha: float, delta: float) -> None:
    needed = successes_needed(alpha, delta if mode is Mode.PAC else None)

    def finite(n: int) -> bool:
        runs = ([1.0] * n, [0.5] * n)
        threshold = pac_threshold(*runs, alpha, delta) if mode is Mode.PAC else conformal_threshold(*runs, alpha)
        return threshold.log_value < math.inf

    assert finite(needed)
    assert needed <= 1 or not finite(needed - 1)


def test_villes_and_bonferronis_thresholds_are_the_papers() -> None:
    assert ville_threshold(0.05).log_value == pytest.approx(math.log(20))
    assert bonferroni_threshold(0.05, 7).log_value == pytest.approx(math.log(140))


def test_every_threshold_says_what_it_promises_and_what_breaks_it() -> None:
    runs = ([1.0] * 60, [0.5] * 60)
    pac = pac_threshold(*runs, 0.05, 0.1).guarantee
    assert all(part in pac for part in ("at least 90 %", "at most 5 %", "60 held-out", "breaks it"))
    assert "at most 5 %" in conformal_threshold(*runs, 0.05).guarantee
    assert "one over the probability of their draw" in weighted_threshold(*runs, [1.0] * 60, 0.05).guarantee
    assert "whatever their outcome" in budget_threshold(*runs, 0.05).guarantee
    assert "not a guarantee" in ville_threshold(0.05).guarantee
    assert "not a guarantee" in bonferroni_threshold(0.05, 3).guarantee


@pytest.mark.parametrize(
    "set_from",
    [
        lambda: pac_threshold([1.0] * 60, [0.5] * 60, 0.05, 0.1),
        lambda: pac_threshold([], [], 0.05, 0.1),
        lambda: budget_threshold([-math.inf] * 60, [0.5] * 60, 0.05),
        lambda: ville_threshold(0.3),
    ],
)
def test_json_gives_back_an_equal_threshold_infinite_ones_too(set_from: Callable[[], Threshold]) -> None:
    threshold = set_from()
    assert from_json(Threshold, json.loads(json.dumps(to_json(threshold), allow_nan=False)), "threshold") == threshold


FIELDS = [
    *((name, None) for name in ("alpha", "log_value", "tie", "runs", "guarantee", "shortage")),
    *(("delta", wrong) for wrong in ("0.1", None, 0.0, 1.5)),
    *(("alpha", wrong) for wrong in (0.0, 1.0, 5)),
    *(("log_value", wrong) for wrong in (math.nan, "nan", "Infinity")),
    *(("tie", wrong) for wrong in (-0.1, 1.1)),
    ("rank", "3"),
    ("mode", "PAC"),
]


@pytest.mark.parametrize(("name", "wrong"), FIELDS)
def test_a_stored_threshold_with_a_wrong_field_is_refused_by_the_fields_name(name: str, wrong: Any) -> None:
    stored = to_json(pac_threshold(*RUNS_45, 0.05, 0.1))
    assert stored["log_value"] == 1.0
    with pytest.raises(ConfigurationError, match=f"^The '{name}' parameter of `(from_json|Threshold)`"):
        from_json(Threshold, stored | {name: wrong}, "threshold")


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("log_value", {"log_value": math.nan}),
        ("log_value", {"log_value": -math.inf, "runs": 0}),
        ("delta", {"delta": None}),
        ("delta", {"mode": Mode.CONFORMAL}),
    ],
)
def test_a_threshold_that_no_theorem_gives_cannot_be_built(name: str, changed: dict[str, Any]) -> None:
    given_fields = {"mode": Mode.PAC, "alpha": 0.1, "delta": 0.1, "log_value": 1.0, "tie": 0.5, "runs": 45, "rank": 45}
    Threshold(**given_fields, guarantee="")
    with pytest.raises(ConfigurationError, match=f"^The '{name}' parameter of `Threshold`"):
        Threshold(**{**given_fields, **changed}, guarantee="")


@given(st.text() | st.just("\ud83d"), st.sampled_from(["", "salt", "\u00e9" * 80]))
def test_the_draw_of_a_run_is_the_middle_of_one_of_2_to_the_53_cells_of_the_unit_interval(run: str, salt: str) -> None:
    """The cell is the start of a keyed BLAKE2b digest: recordings and other processes draw the same number."""
    bits = hashlib.blake2b(run.encode("utf-8", "surrogatepass"), digest_size=8, key=salt.encode()[:64]).hexdigest()
    assert tie_uniform(run, salt) == float(Fraction(2 * (int(bits, 16) // 2**11) + 1, 2**54))


@pytest.mark.parametrize(
    ("call", "parameter", "owner"),
    [
        (lambda: pac_threshold([1.0], [0.5], 1.5, 0.1), "alpha", "smallest_n_for_pac"),
        (lambda: pac_threshold([1.0], [0.5], 0.1, 0.0), "delta", "pac_threshold"),
        (lambda: pac_threshold([math.nan], [0.5], 0.1, 0.1), "log_peaks", "pac_threshold"),
        (lambda: conformal_threshold([1.0], [0.5, 0.5], 0.1), "ties", "conformal_threshold"),
        (lambda: conformal_threshold([1.0], [1.5], 0.1), "ties", "conformal_threshold"),
        (lambda: weighted_threshold([math.nan], [0.5], [1.0], 0.1), "log_peaks", "weighted_threshold"),
        (lambda: weighted_threshold([1.0], [0.5], [1.0], 1.0), "alpha", "weighted_threshold"),
        (lambda: budget_threshold([[1.0]], [0.5], 0.1), "log_peaks", "budget_threshold"),
        (lambda: bonferroni_threshold(0.1, 0), "longest", "bonferroni_threshold"),
        (lambda: bonferroni_threshold(0.1, 1.5), "longest", "bonferroni_threshold"),
        (lambda: bonferroni_threshold(1.0, 3), "alpha", "bonferroni_threshold"),
        (lambda: ville_threshold(0.0), "alpha", "ville_threshold"),
        (lambda: successes_needed(1.0), "alpha", "conformal_rank"),
        (lambda: from_json(Threshold, None, "threshold"), "threshold", "from_json"),
    ],
)
def test_wrong_input_names_the_parameter_and_whose_it_is(call: Callable[[], Any], parameter: str, owner: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^The '{parameter}' parameter of `{owner}` must be"):
        call()
