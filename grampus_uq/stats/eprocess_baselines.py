"""What a detector has to beat: simple alarms on the scores themselves.

The raw and the recalibrated rule carry no guarantee: a calibrated probability below alpha is no false-alarm rate (the
paper's counterexample 8.1.4: half of the successes alarm at alpha = .01). The running minimum is untrained too, and
with a held-out threshold it has the guarantee of that threshold; Bonferroni is `bonferroni_threshold`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.eprocess_scorers import LOGIT_LIMIT, FeatureScorer, LinearScore
from grampus_uq.stats.prefix_features import STREAM_FEATURES, logit
from grampus_uq.stats.step_blocks import StepBlocks, first_step_where

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

MINIMUM_CLIP = 1e-6
"""Where a probability is held before its logit becomes evidence; within it the order of runs is untouched."""


MINIMA_OF = ("ewma_50", "low", "ewma_20", "ewma_10")
"""What a running minimum may be taken of, by what did best untrained on other people's runs."""


def below_alarm_steps(blocks: StepBlocks, probability: FloatArray, alpha: float) -> IntArray:
    """First step at which a probability of success falls below alpha, 0 where it never does; no guarantee.

    The raw rule with the scores themselves, the recalibrated one with an isotonic map of them.

    Args:
        probability: shape (rows,), in block order; NaN never alarms.
        alpha: in (0, 1).

    Returns:
        A step a run, in the caller's order of runs.
    """
    if not 0.0 < alpha < 1.0:
        raise ConfigurationError.of("alpha", "below_alarm_steps", "in (0, 1)", alpha)
    return first_step_where(blocks, probability < alpha)


def running_minimum(
    *,
    bounded: tuple[bool, ...],
    neutral: tuple[float, ...],
    stream: int = 0,
    prior_log_odds: float = 0.0,
    of: str = "low",
) -> FeatureScorer:
    """Take the smallest score of one stream so far as the probability of success in eq. 3; nothing is learned.

    Or the smallest running mean: one low score is often noise, several in a row are not. A detector alarms at the
    highest evidence so far, which is what makes a running minimum out of `of`. A stream that is no probability enters
    as it is: `log M_t = -min`, evidence on the stream's own scale.

    Args:
        bounded: True for each stream whose scores are probabilities.
        neutral: one raw score a stream, which stands in while only other streams have given one.
        stream: which one counts.
        prior_log_odds: log(pi1 / (1 - pi1)) where the success rate is known; moves the scale, never an alarm.
        of: "low" for the scores themselves, or "ewma_50", "ewma_20", "ewma_10": exponentially weighted means of their
            log odds with weight .5, .2, .1 on the newest, half-lives of 1, 3 and 7 steps.
    """
    if of not in MINIMA_OF:
        raise ConfigurationError.of("of", "running_minimum", f"one of {', '.join(MINIMA_OF)}", of)
    column = len(STREAM_FEATURES) * stream + STREAM_FEATURES.index(of)
    return FeatureScorer(
        name="running_minimum" if of == "low" else f"running_minimum_of_{of}",
        clips=tuple(MINIMUM_CLIP if inside else None for inside in bounded),
        neutral=tuple(logit(x, MINIMUM_CLIP) if inside else x for x, inside in zip(neutral, bounded, strict=True)),
        longest=1,
        linear=LinearScore(columns=(column,), intercepts=(0.0,), weights=((1.0,),)),
        prior_log_odds=prior_log_odds if bounded[stream] else 0.0,
        limit=LOGIT_LIMIT if bounded[stream] else None,
    )
