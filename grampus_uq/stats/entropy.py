"""Entropies in nats of meaning clusters (semantic entropy) and of a token's alternatives, and their confidences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grampus_uq.errors import ConfigurationError


def cluster_confidence(sizes: Sequence[int]) -> float:
    """Confidence 1 - H / ln n from the sizes of the meaning clusters of n sampled answers (n >= 2).

    1 when all answers mean the same, 0 when no two do; higher is better. H = -sum p ln p, p the share of a cluster, is
    the discrete semantic entropy of Farquhar et al. (Nature 2024) with each answer counted once. Raises
    ConfigurationError when fewer than 2 answers are given.

    >>> cluster_confidence([3])
    1.0
    >>> cluster_confidence([1, 1, 1])
    0.0
    """
    n = sum(sizes)
    if n < 2:
        raise ConfigurationError.of("sizes", "cluster_confidence", "at least 2 answers in all", list(sizes))
    entropy = -math.fsum(size / n * math.log(size / n) for size in sizes)
    confidence = 1.0 - entropy / math.log(n)
    # Within 1e-12 of an end of [0, 1] it is rounding.
    return 0.0 if confidence < 1e-12 else 1.0 if confidence > 1.0 - 1e-12 else confidence


def top_k_entropy(logprobs: Sequence[float]) -> float:
    """Entropy in nats of one token's reported alternatives, renormalised over those reported.

    Natural log-probabilities in, at least one of them finite; range [0, ln k]; 0 when a single alternative has all the
    mass. An alternative at -inf is an impossible one and contributes nothing.

    >>> round(top_k_entropy([math.log(0.4), math.log(0.4)]), 6)
    0.693147
    """
    top = max(logprobs)
    total = weighted = 0.0
    for value in logprobs:
        if value == -math.inf:  # 0 times -inf would be NaN, and NaN would read as no entropy at all
            continue
        shifted = value - top
        mass = math.exp(shifted)
        total += mass
        weighted += mass * shifted
    return max(0.0, math.log(total) - weighted / total)
