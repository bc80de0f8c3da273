"""Entry thresholds say the same as each method's own definition, ties, empty sets and infinite thresholds included."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import isotonic_regression

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import RaggedBatch, ragged
from grampus_uq.stats.entry_thresholds import (
    EntryThresholds,
    hierarchical_entry,
    keep_first,
    left_filtration_entry,
    right_filtration_entry,
    two_way_entry,
    vanilla_entry,
)
from grampus_uq.stats.envelope import envelope_entry, isotonic_rows, suffix_envelope_entry, unimodal_envelope
from tests.benchmarks.split_evaluation import with_fallback
from tests.sampling import sampled

Sets = dict[str, set[int]]


def direct_g(scores: list[float], length: int) -> float:
    """g of a stretch from its formula; on quarters the sums are exact, so equal g are equal floats."""
    return math.fsum(scores) / length


def direct_sets(scores: list[float], thresholds: list[float]) -> list[Sets]:
    """F(x; q) of eq. 3 for every q: the longest prefix and suffix with g <= q (maybe the empty one), and VCP."""
    length = len(scores)
    prefixes = {k: direct_g(scores[:k], length) for k in range(1, length + 1)}
    suffixes = {k: direct_g(scores[length - k :], length) for k in range(1, length + 1)}
    found = []
    for q in thresholds:
        right = set(range(max((k for k in prefixes if prefixes[k] <= q), default=0)))
        left = set(range(length - max((k for k in suffixes if suffixes[k] <= q), default=0), length))
        vcp = {j for j in range(length) if -scores[j] <= q}
        found.append({"vcp": vcp, "rf": right, "lf": left, "twf": left & right})
    return found


def as_sets(entry: EntryThresholds, i: int, q: float) -> set[int]:
    return set(np.flatnonzero(entry.values[i, : entry.lengths[i]] <= q).tolist())


@sampled("cases", [4_000], full=[20_000])
def test_sets_from_entry_thresholds_are_the_sets_of_the_definitions(cases: int) -> None:
    """Trajectories with tied and negative scores (so g is not monotone), at q = 0 and inf too."""
    rng = np.random.default_rng(5)
    # Quarters are exact in binary, so equal g are equal floats on both sides.
    rows = [(rng.integers(-3, 7, size=rng.integers(1, 7)) / 4).tolist() for _ in range(cases)]
    batch = ragged(rows)
    entries = {
        "vcp": vanilla_entry(batch),
        "rf": right_filtration_entry(batch),
        "lf": left_filtration_entry(batch),
        "twf": two_way_entry(batch),
    }
    for i, scores in enumerate(rows):
        some_entry = float(entries["rf"].values[i, rng.integers(len(scores))])
        thresholds = [0.0, math.inf, some_entry, float(rng.normal())]
        for q, wanted in zip(thresholds, direct_sets(scores, thresholds), strict=True):
            for method, entry in entries.items():
                assert as_sets(entry, i, q) == wanted[method], (method, scores, q)


def climbing(scores: list[float], q: float, u: float) -> set[int]:
    """CRSVP's prediction as appendix B tells it: climb from the best leaf until g reaches q, then interpolate."""
    length = len(scores)
    leaf = max(range(length), key=lambda j: scores[j])
    low, high = 0, length
    path = [(low, high)]
    while high - low > 1:
        middle = (low + high + 1) // 2
        low, high = (low, middle) if leaf < middle else (middle, high)
        path.insert(0, (low, high))
    g = [direct_g(scores[a:b], length) for a, b in path]
    at = next((i for i in range(len(path)) if g[i] >= q), len(path) - 1)
    if at > 0 and g[at] - u * (g[at] - g[at - 1]) >= q:
        at -= 1
    return set(range(*path[at]))


def test_crsvp_returns_the_node_that_climbing_the_tree_returns() -> None:
    rng = np.random.default_rng(8)
    rows = [rng.random(rng.integers(1, 14)).tolist() for _ in range(3000)]
    draws = rng.random(len(rows))
    batch = ragged(rows)
    entry = hierarchical_entry(batch, draws)
    assert entry.fallback is not None
    for i, scores in enumerate(rows):
        for q in (-math.inf, float(rng.uniform(-1, 2)), math.inf):
            found = as_sets(entry, i, q) or {int(entry.fallback[i])}
            assert found == climbing(scores, q, draws[i])
            assert found == set(range(min(found), max(found) + 1)), "a node is contiguous"


def test_four_steps_give_the_tree_of_the_papers_figure_2() -> None:
    entry = hierarchical_entry(ragged([[0.1, 0.2, 0.4, 0.3]]), [0.0])
    # leaf v6 = {2}: g = .4/4; v3 = {2, 3}: .7/4; root: 1/4; with u = 0 nothing is taken off
    assert entry.values[0] == pytest.approx([0.25, 0.25, 0.1, 0.175])


scores_strategy = st.lists(
    st.lists(st.integers(-4, 4).map(float) | st.floats(-1e3, 1e3), min_size=1, max_size=9), min_size=1, max_size=6
)


@given(scores_strategy)
def test_the_isotonic_fit_is_scikit_learns(rows: list[list[float]]) -> None:
    fits = isotonic_rows(ragged(rows))
    for i, row in enumerate(rows):
        golden = isotonic_regression(np.array(row))
        assert fits[i, : len(row)] == pytest.approx(golden, rel=1e-9, abs=1e-9)
        assert np.isinf(fits[i, len(row) :]).all()


@given(scores_strategy)
def test_the_envelope_is_isotonic_up_to_the_mode_and_antitonic_behind(rows: list[list[float]]) -> None:
    fits = unimodal_envelope(ragged(rows))
    for i, row in enumerate(rows):
        mode = row.index(max(row))
        golden = np.concatenate(
            [
                isotonic_regression(np.array(row[: mode + 1]))[:-1],
                [row[mode]],
                isotonic_regression(np.array(row[mode:]), increasing=False)[1:],
            ]
        )
        assert fits[i, : len(row)] == pytest.approx(golden, rel=1e-9, abs=1e-9)
        assert np.argmax(fits[i]) <= mode


@given(scores_strategy, st.floats(-5, 5))
def test_envelope_sets_are_nested_intervals_and_suffix_sets_are_suffixes(rows: list[list[float]], q: float) -> None:
    batch = ragged(rows)
    for i, row in enumerate(rows):
        inside = sorted(as_sets(envelope_entry(batch), i, q))
        assert inside == list(range(inside[0], inside[-1] + 1)) if inside else True
        suffix = sorted(as_sets(suffix_envelope_entry(batch), i, q))
        assert suffix == list(range(len(row) - len(suffix), len(row)))


@given(scores_strategy)
def test_a_trajectory_has_the_same_thresholds_alone_and_in_a_batch(rows: list[list[float]]) -> None:
    together = [f(ragged(rows)) for f in (right_filtration_entry, left_filtration_entry, envelope_entry, two_way_entry)]
    for i, row in enumerate(rows):
        alone = [
            f(ragged([row])) for f in (right_filtration_entry, left_filtration_entry, envelope_entry, two_way_entry)
        ]
        for a, b in zip(together, alone, strict=True):
            assert a.values[i, : len(row)].tolist() == b.values[0].tolist()


def test_one_step_is_a_trajectory_too() -> None:
    batch = ragged([[0.4]])
    for f in (vanilla_entry, right_filtration_entry, left_filtration_entry, two_way_entry, envelope_entry):
        assert f(batch).values.shape == (1, 1)
    assert hierarchical_entry(batch, [0.5]).values.tolist() == [[0.4]]


def test_a_g_beyond_floats_is_refused_and_not_turned_into_infinity() -> None:
    with pytest.raises(ConfigurationError, match="finite"):
        right_filtration_entry(ragged([[1e308, 1e308]]))
    with pytest.raises(ConfigurationError, match="finite"):
        hierarchical_entry(ragged([[1e308, 1e308]]), [0.0])


@pytest.mark.parametrize("rows", [[], [[]], [[0.1], []], [[math.nan]], [[0.1, math.inf]], [[[0.1]]]], ids=str)
def test_rows_that_are_no_scores_are_refused(rows: list[list[float]]) -> None:
    with pytest.raises(ConfigurationError):
        ragged(rows)


def test_the_stand_in_is_the_best_scored_step_and_the_kept_one_the_first_to_enter() -> None:
    batch = ragged([[0.5, 0.1, 0.2, 0.1], [0.1, 0.9]])
    two_way = two_way_entry(batch)
    fallback = with_fallback(two_way, batch).fallback
    assert fallback is not None
    assert fallback.tolist() == [0, 1]
    kept = keep_first(two_way)
    assert kept.values[0].tolist() == [two_way.values[0, 0], -math.inf, *two_way.values[0, 2:].tolist()]


def test_reversing_twice_gives_the_batch_back() -> None:
    batch = ragged([[1.0, 2.0, 3.0], [4.0], [5.0, 6.0]])
    once = batch.reversed()
    assert once.values.tolist() == [[3.0, 2.0, 1.0], [4.0, 0.0, 0.0], [6.0, 5.0, 0.0]]
    assert once.reversed().values.tolist() == batch.values.tolist()


def test_entry_thresholds_refuse_nan_and_lengths_that_do_not_fit() -> None:
    with pytest.raises(ConfigurationError, match="NaN"):
        EntryThresholds(values=np.array([[np.nan]]), lengths=np.array([1]))
    with pytest.raises(ConfigurationError, match="lengths"):
        EntryThresholds(values=np.array([[0.0]]), lengths=np.array([2]))
    assert isinstance(ragged([[1.0]]), RaggedBatch)
