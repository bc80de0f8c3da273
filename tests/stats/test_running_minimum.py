"""What the running minimum is, and why a calibrated probability below alpha is no false-alarm rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from grampus_uq.stats.eprocess_scorers import running_minimum
from grampus_uq.stats.ranks import binomial_interval
from grampus_uq.stats.step_blocks import step_blocks


def test_counterexample_8_1_4_a_calibrated_score_below_alpha_alarms_on_half_of_the_successes() -> None:
    """The paper's numbers: S in {.005, .5}, P(S = .005) = .99, P(Y = 1 | S) = S, alpha = .01; the rate is .4975."""
    rng = np.random.default_rng(0)
    score = np.where(rng.random(1_000_000) < 0.99, 0.005, 0.5)
    success = rng.random(len(score)) < score
    blocks = step_blocks(score, np.ones(len(score), dtype=int))
    alarm = blocks.values[np.argsort(blocks.rows), 0] < 0.01
    low, high = binomial_interval(int(alarm[success].sum()), int(success.sum()), 0.999)
    assert low <= 0.005 * 0.99 / 0.00995 <= high
    assert alarm[success].mean() > 0.45


def test_the_running_minimum_is_eq_3_with_the_smallest_score_as_probability_of_success() -> None:
    scorer = running_minimum(bounded=(True,), neutral=(0.5,), prior_log_odds=math.log(3.0))
    log_m = scorer.batch(step_blocks([0.8, 0.2, 0.6], [3]))
    assert np.exp(log_m).tolist() == pytest.approx([0.25 * 3, 4 * 3, 4 * 3])


@pytest.mark.parametrize(("of", "weight"), [("ewma_50", 0.5), ("ewma_20", 0.2), ("ewma_10", 0.1)])
def test_the_running_minimum_of_an_ewma_is_its_smallest_value_so_far_in_log_odds(of: str, weight: float) -> None:
    scores = [0.8, 0.2, math.nan, 0.6, 0.1]
    scorer = running_minimum(bounded=(True,), neutral=(0.5,), of=of)
    wanted, mean = [], None
    for score in scores:
        if not math.isnan(score):
            odds = math.log(score / (1.0 - score))
            mean = odds if mean is None else weight * odds + (1.0 - weight) * mean
        wanted.append(-mean)  # type: ignore[operator]  # the first score is there
    assert scorer.batch(step_blocks(scores, [5])).tolist() == pytest.approx(wanted)


def test_the_running_minimum_of_a_stream_that_is_no_probability_is_its_negative() -> None:
    scorer = running_minimum(bounded=(True, False), neutral=(0.5, 0.0), stream=1, prior_log_odds=9.0)
    log_m = scorer.batch(step_blocks(np.array([[0.1, 40.0], [0.1, -70.0], [0.1, math.nan]]), [3]))
    assert log_m.tolist() == [-40.0, 70.0, 70.0]
