"""Entropies against scipy, their laws, and what impossible events do to them."""

from __future__ import annotations

import math

import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.entropy import cluster_confidence, top_k_entropy

sizes = st.lists(st.integers(1, 50), min_size=1, max_size=20).filter(lambda values: sum(values) >= 2)
logprobs = st.lists(st.floats(-60.0, 0.0), min_size=1, max_size=20)


@given(sizes)
def test_cluster_confidence_is_one_minus_the_normalised_entropy_and_in_the_unit_interval(counts):
    n = sum(counts)
    expected = 1.0 - float(scipy.stats.entropy(counts)) / math.log(n)
    assert cluster_confidence(counts) == pytest.approx(expected, abs=1e-12)
    assert 0.0 <= cluster_confidence(counts) <= 1.0


@given(sizes, st.randoms())
def test_cluster_confidence_does_not_depend_on_the_order_of_the_clusters(counts, random):
    shuffled = counts[:]
    random.shuffle(shuffled)
    assert cluster_confidence(shuffled) == cluster_confidence(counts)


@given(sizes.filter(lambda counts: len(counts) > 1))
def test_two_clusters_in_one_are_never_less_confident(counts):
    assert cluster_confidence([counts[0] + counts[1], *counts[2:]]) >= cluster_confidence(counts) - 1e-12


def test_fewer_than_two_answers_have_no_confidence():
    with pytest.raises(ConfigurationError, match="2 answers"):
        cluster_confidence([1])


@given(logprobs)
def test_top_k_entropy_is_scipys_over_the_renormalised_alternatives(values):
    shares = [math.exp(value - float(scipy.special.logsumexp(values))) for value in values]
    assert top_k_entropy(values) == pytest.approx(float(scipy.stats.entropy(shares)), abs=1e-9)


@given(logprobs, st.integers(1, 5))
def test_impossible_alternatives_change_no_entropy(values, n):
    """Some servers report -inf, others -9999: neither may turn doubt into certainty."""
    assert top_k_entropy([*values, *[-math.inf] * n]) == top_k_entropy(values)
    assert top_k_entropy([*values, *[-9999.0] * n]) == pytest.approx(top_k_entropy(values), abs=1e-12)
