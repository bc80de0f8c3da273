"""Content-aware surprisal of a generated turn: the mean of -ln p over tokens that carry content (TRACER, eq. 5-7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.content_words import content_tokens

MAX_SURPRISAL: Final = 20.0
"""Nats at which -ln p is clipped: interfaces report -9999 or -inf for tokens below those they list."""

_ROUNDING: Final = 1e-3
"""A log-probability at most this far above 0 is rounding of p = 1 and reads as 0; more is an error of the caller."""


def content_surprisal(
    tokens: Sequence[str], logprobs: Sequence[float], *, pi_0: float = 0.95, eps: float = 1e-4
) -> float | None:
    """Average the surprisal of a turn over its content tokens, U_t (eq. 7).

    I_t = {j : p_j <= pi_0, token j belongs to a content word};  U_t = (1/|I_t|) sum_{j in I_t} -ln p_j, or eps when I_t
    is empty. Each -ln p_j is clipped at `MAX_SURPRISAL`, 20 nats.

    Parameters: `tokens`, the generated pieces in order, and `logprobs`, their natural log-probabilities (<= 0; -inf
    is allowed), of equal length. `pi_0` in (0, 1): more predictable tokens are dropped. `eps` >= 0: the value of a
    turn whose every token was dropped; it is the paper's, and says "nothing uncertain here", not "nothing known".

    Returns nats in [0, 20], higher is worse; None when there are no tokens (no log-probabilities: the component is
    absent).

    Raises ConfigurationError for NaN, for a log-probability above 0, and for unequal lengths.

    What it is not: Theorem A.1 calls U_t an unbiased estimate of the content-filtered cross-entropy. That holds for a
    fixed index set. Here the set depends on the drawn tokens through p_j <= pi_0 (and through their spelling), so the
    mean is over a selected sample and is biased upwards; read it as a ranking statistic.

    >>> content_surprisal([" the", " refund", " failed"], [-0.7, -1.0, -2.0])
    1.5
    """
    if len(tokens) != len(logprobs):
        raise ConfigurationError.of(
            "logprobs", "content_surprisal", f"as long as tokens ({len(tokens)})", len(logprobs)
        )
    if not 0.0 < pi_0 < 1.0:
        raise ConfigurationError.of("pi_0", "content_surprisal", "in (0, 1)", pi_0)
    if not 0.0 <= eps <= MAX_SURPRISAL:
        raise ConfigurationError.of("eps", "content_surprisal", f"in [0, {MAX_SURPRISAL:g}]", eps)
    if not tokens:
        return None
    threshold = math.log(pi_0)
    for logprob in logprobs:
        if not logprob <= _ROUNDING:
            raise ConfigurationError.of(
                "logprobs",
                "content_surprisal",
                "natural log-probabilities, each at most 0",
                logprob,
                "NaN is refused too",
            )
    kept = [
        min(-logprob, MAX_SURPRISAL)
        for logprob, is_content in zip(logprobs, content_tokens(tokens), strict=True)
        if is_content and logprob <= threshold
    ]
    return math.fsum(kept) / len(kept) if kept else eps
