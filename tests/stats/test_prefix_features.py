"""Causal features of a run so far: their definitions, and that the live and the batch twin agree to the last bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.stats.prefix_features import (
    EMPTY_STREAM,
    STREAM_FEATURES,
    logit,
    logits,
    prefix_features,
    stream_features,
    stream_update,
)
from grampus_uq.stats.step_blocks import step_blocks

SCORES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def _direct(scores: list[float]) -> dict[str, float]:
    """Every feature by its definition, from the whole prefix."""

    def ewma(weight: float) -> list[float]:
        values = [scores[0]]
        for x in scores[1:]:
            values.append(weight * x + (1 - weight) * values[-1])
        return values

    padded = [scores[0], scores[0], *scores]
    return {
        "last": scores[-1],
        "previous": padded[-2],
        "low": min(scores),
        "high": max(scores),
        "mean": sum(scores) / len(scores),
        "ewma_50": ewma(0.5)[-1],
        "ewma_20": ewma(0.2)[-1],
        "ewma_10": ewma(0.1)[-1],
        "first": scores[0],
        "low_ewma_50": min(ewma(0.5)),
        "low_ewma_20": min(ewma(0.2)),
        "recent": sum(padded[-3:]) / 3,
        "fall": scores[-1] - max(scores),
    }


@given(SCORES)
def test_features_follow_their_definitions(scores: list[float]) -> None:
    state = EMPTY_STREAM
    for score in scores:
        state = stream_update(state, score)
    expected = [_direct(scores)[name] for name in STREAM_FEATURES]
    np.testing.assert_allclose(stream_features(state, 0.0), expected, rtol=1e-9, atol=1e-9)


@given(
    st.lists(
        st.lists(st.tuples(*[st.floats(-1e6, 1e6) | st.just(math.nan)] * 2), min_size=1, max_size=12),
        min_size=1,
        max_size=6,
    )
)
def test_batch_equals_live_to_the_last_bit_with_missing_scores_and_several_streams(
    runs: list[list[tuple[float, float]]],
) -> None:
    neutral = (0.25, -3.0)
    blocks = step_blocks(np.array([row for run in runs for row in run]), [len(run) for run in runs])
    batch = prefix_features(blocks, neutral)[:, np.argsort(blocks.rows)]
    live = []
    for run in runs:
        states = [EMPTY_STREAM, EMPTY_STREAM]
        for row in run:
            states = [s if math.isnan(x) else stream_update(s, x) for s, x in zip(states, row, strict=True)]
            live.append([*stream_features(states[0], neutral[0]), *stream_features(states[1], neutral[1])])
    assert batch.T.tolist() == live


def test_columns_can_be_chosen_without_changing_them() -> None:
    blocks = step_blocks(np.random.default_rng(0).random((30, 2)), [5, 25])
    every = prefix_features(blocks, (0.0, 0.0))
    assert prefix_features(blocks, (0.0, 0.0), [17, 4]).tolist() == [every[17].tolist(), every[4].tolist()]


@given(st.floats(0, 1), st.floats(1e-12, 0.49))
def test_logits_are_clipped_monotone_and_the_same_one_by_one_and_together(p: float, clip: float) -> None:
    limit = math.log((1 - clip) / clip)
    rounding = 1e-9 + 2.0**-52 / clip  # 1 - clip keeps only so many digits of clip
    assert -limit - rounding <= logit(p, clip) <= limit + rounding
    assert logits(np.array([p, math.nan]), clip)[0] == logit(p, clip)
    assert logit(min(1.0, p + 0.01), clip) >= logit(p, clip)


def test_stated_zero_and_one_stay_finite_and_missing_stays_missing() -> None:
    low, high, missing = logits(np.array([0.0, 1.0, math.nan]), 1e-3)
    assert (low, high) == (pytest.approx(-6.906754778648554), pytest.approx(6.906754778648554))  # log(999)
    assert math.isnan(missing)
