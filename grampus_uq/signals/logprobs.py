"""Confidence from the token log-probabilities that came with the step itself: no further model call.

Two readings a stream (Trajectory Proper Score, section 3, "token streams"): the mean probability of the chosen tokens,
and exp(-H) of the mean entropy H of each token's reported alternatives. Beside them the probability of the whole
completion. All in [0, 1], higher is better; all missing when the model reports no log-probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from grampus_uq.records import Reading, Step, TokenLogprob
from grampus_uq.stats.entropy import top_k_entropy
from grampus_uq.vocabulary import MissingReason, UncertaintySource

__all__ = [
    "NO_STREAMS",
    "SequenceProbability",
    "TokenEntropy",
    "TokenProbability",
    "entropy_confidence",
    "mean_token_probability",
    "sequence_probability",
]


def mean_token_probability(tokens: Sequence[TokenLogprob]) -> float | None:
    """Mean over tokens of exp(logprob), in [0, 1], higher is better; None without tokens or with a malformed one.

    A log-probability above 0 is accepted up to rounding (1e-3, read as 0); a larger one, or NaN, makes it missing.
    """
    total = 0.0
    for token in tokens:
        logprob = token.logprob
        if not logprob <= 1e-3:
            return None
        total += math.exp(logprob) if logprob < 0.0 else 1.0
    return total / len(tokens) if tokens else None


def sequence_probability(tokens: Sequence[TokenLogprob]) -> float | None:
    """exp(sum of logprobs), the probability of the whole completion; in [0, 1], higher is better.

    It falls with every token, so it compares answers of one kind and length, and says little of a long text. None
    without tokens or with a malformed one. Source: "maximum sequence probability", Fadeeva et al. 2023
    (arXiv 2311.07383), section 3.
    """
    total = 0.0
    for token in tokens:
        if not token.logprob <= 1e-3:
            return None
        total += min(token.logprob, 0.0)
    return math.exp(total) if tokens else None


def entropy_confidence(tokens: Sequence[TokenLogprob]) -> float | None:
    """exp(-H), H the mean top-k entropy in nats over tokens that report alternatives; in (0, 1], higher is better.

    None when no token reports at least two alternatives, or one of them is NaN or above 0.
    """
    total, n = 0.0, 0
    for token in tokens:
        if len(token.top) < 2:
            continue
        values = [logprob for _, logprob in token.top]
        if not all(value <= 1e-3 for value in values) or max(values) == -math.inf:
            return None
        total += top_k_entropy(values)
        n += 1
    return math.exp(-total / n) if n else None


class TokenProbability:
    """Reads the mean chosen-token probability of the whole completion."""

    __slots__ = ()
    source: str = UncertaintySource.TOKEN_PROBABILITY

    def read(self, step: Step) -> Reading:
        """Average over the step's own tokens."""
        if step.logprobs is None:
            return NO_STREAMS[0]
        return _reading(self.source, mean_token_probability(step.logprobs))


class TokenEntropy:
    """Reads exp(-H) of the completion's mean token entropy."""

    __slots__ = ()
    source: str = UncertaintySource.TOKEN_ENTROPY

    def read(self, step: Step) -> Reading:
        """Average over the step's own tokens that report alternatives."""
        if step.logprobs is None:
            return NO_STREAMS[1]
        return _reading(self.source, entropy_confidence(step.logprobs))


class SequenceProbability:
    """Reads the probability of the whole completion."""

    __slots__ = ()
    source: str = UncertaintySource.SEQUENCE_PROBABILITY

    def read(self, step: Step) -> Reading:
        """Multiply over the step's own tokens."""
        return _reading(self.source, sequence_probability(step.logprobs or ()))


def _reading(source: str, value: float | None) -> Reading:
    return Reading(source=source, value=value, reason=None if value is not None else MissingReason.NO_LOGPROBS)


NO_STREAMS: Final = (_reading(TokenProbability.source, None), _reading(TokenEntropy.source, None))
"""What the first two signals say of a step without log-probabilities."""
