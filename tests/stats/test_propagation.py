"""How confidence travels: the guide's rule and its claims, SAUP and AUQ at every prefix equal to their batch forms."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grampus_uq.stats.propagation import AuqState, SaupState, auq_update, propagate, saup_uncertainty, saup_update

unit = st.floats(0.0, 1.0)


@given(unit, unit, unit)
def test_the_rule_is_the_guides_weighted_mean(fused, cumulative, weight):
    exact = Fraction(weight) * Fraction(fused) + (1 - Fraction(weight)) * Fraction(cumulative)
    assert propagate(fused, cumulative, weight) == pytest.approx(float(exact), abs=1e-15)


@given(unit, unit, unit)
def test_rounding_never_carries_it_past_its_two_ends(fused, cumulative, weight):
    assert min(fused, cumulative) <= propagate(fused, cumulative, weight) <= max(fused, cumulative)


@given(unit, unit)
@example(0.1, 0.2)  # rounds up
@example(0.1, 0.3)  # rounds down
def test_a_run_of_equal_values_stays_exactly_where_it_is(value, weight):
    assert propagate(value, value, weight) == value


@given(unit, unit, unit, unit)
def test_more_confidence_never_propagates_to_less(first, second, cumulative, weight):
    low, high = sorted((first, second))
    assert propagate(low, cumulative, weight) <= propagate(high, cumulative, weight)


def test_nan_stays_nan_and_never_becomes_a_number():
    assert math.isnan(propagate(math.nan, 1.0, 0.5))


def test_three_confident_steps_do_erase_an_uncertain_one():
    """The guide claims otherwise; METHODS.md gives .814 for .2 followed by three steps at .84."""
    belief = 1.0
    for fused in (0.2, 0.84, 0.84, 0.84):
        belief = propagate(fused, belief, 0.55)
    assert belief == pytest.approx(0.814, abs=5e-4)


@given(st.lists(st.tuples(unit, unit), min_size=1, max_size=60))
def test_saup_at_every_prefix_is_the_root_mean_square_of_weighted_uncertainties(steps):
    """arXiv 2412.01033: U = sqrt((1/N) sum (W_i U_i)^2)."""
    state = SaupState()
    for n, (uncertainty, weight) in enumerate(steps, start=1):
        state = saup_update(state, uncertainty, weight)
        batch = math.sqrt(math.fsum((w * u) ** 2 for u, w in steps[:n]) / n)
        assert saup_uncertainty(state) == pytest.approx(batch, abs=1e-9)


def test_saup_is_none_before_the_first_step():
    assert saup_uncertainty(SaupState()) is None


@given(st.lists(unit, min_size=1, max_size=60))
def test_auq_at_every_prefix_is_last_mean_min_and_product(confidences):
    state = AuqState()
    for n, confidence in enumerate(confidences, start=1):
        state = auq_update(state, confidence)
        seen = confidences[:n]
        assert state.last == confidence
        assert state.mean == pytest.approx(math.fsum(seen) / n, abs=1e-12)
        assert state.minimum == min(seen)
        assert state.product == pytest.approx(math.prod(seen), rel=1e-9, abs=1e-300)


def test_auq_has_no_product_before_the_first_step_and_a_zero_keeps_it_at_zero():
    assert AuqState().product is None
    assert auq_update(auq_update(AuqState(), 0.0), 1.0).product == 0.0
