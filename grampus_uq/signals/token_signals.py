"""Confidence from the token log-probabilities that came with the step itself: no further model call.

Two readings a stream (Trajectory Proper Score, section 3, "token streams"): the mean probability of the chosen tokens,
and exp(-H) of the mean entropy H of each token's reported alternatives; both for the whole completion and for the
tokens of the committed action alone (`action_span`). Beside them the probability of the whole completion. All in
[0, 1], higher is better; all missing when the model reports no log-probabilities, or none but those of blanks and end
marks: certainty about stopping says nothing of the action.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from grampus_uq.records.values import Reading, Step, TokenLogprob
from grampus_uq.records.vocabulary import MissingReason, UncertaintySource
from grampus_uq.signals.action_span import action_places
from grampus_uq.stats.entropy import top_k_entropy
from grampus_uq.wire.logprobs import BLANKS

_MARK: Final = re.compile(r"(?:<[|｜]?/?[\w▁ -]{0,60}[|｜]?>|\[/?[A-Z_]{1,30}\]|\[end of text\])+")
_UNSEEN: Final = frozenset("\u034f\u115f\u1160\u2800\u3164\ufe0e\ufe0f\uffa0")  # letters and marks that show nothing
_LONGEST_MARK: Final = 200
_LEAST_MASS: Final = 1e-100


def says_something(tokens: Sequence[TokenLogprob]) -> bool:
    """True unless every token is empty, blank, or a mark such as `</s>` or `<|im_end|>`."""
    for token in tokens:
        text = token.token.strip(BLANKS)
        if not (text.isascii() and text.isprintable()):
            text = "".join(c for c in text if c.isprintable() and c not in _UNSEEN)
        if text and not (len(text) <= _LONGEST_MARK and _MARK.fullmatch(text)):
            return True
    return False


def alternatives(token: TokenLogprob) -> dict[str, float] | None:
    """The probability of each reported alternative, the chosen token among them; None when one of them is malformed.

    Some servers leave the chosen token out of its alternatives.
    """
    logprobs = dict(token.top)
    logprobs.setdefault(token.token, token.logprob)
    if not all(logprob <= 1e-3 for logprob in logprobs.values()):  # refuses NaN too
        return None
    return {text: math.exp(min(logprob, 0.0)) for text, logprob in logprobs.items()}


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
    entropies = token_entropies(tokens)
    return None if entropies is None else confidence_of_entropies(entropies)


def token_entropies(tokens: Sequence[TokenLogprob]) -> list[float | None] | None:
    """Top-k entropy in nats at each token, None where fewer than two alternatives are reported; None when malformed."""
    found: list[float | None] = []
    exp, log = math.exp, math.log
    for token in tokens:  # the same as `top_k_entropy`, written out: the longest loop of a step
        if len(token.top) < 2:
            found.append(None)
            continue
        total = weighted = 0.0
        for _, logprob in token.top:
            if not logprob <= 1e-3:
                return None
            mass = exp(logprob)
            if mass:
                total += mass
                weighted += mass * logprob
        if total > _LEAST_MASS:
            entropy = log(total) - weighted / total
            found.append(entropy if entropy > 0.0 else 0.0)
        else:  # too small for floats as they are: scaled by the largest
            values = [logprob for _, logprob in token.top]
            if max(values) == -math.inf:
                return None
            found.append(top_k_entropy(values))
    return found


def confidence_of_entropies(entropies: Sequence[float | None]) -> float | None:
    """exp(-H), H the mean of the entropies that are there; None when none is."""
    known = [entropy for entropy in entropies if entropy is not None]
    return math.exp(-sum(known) / len(known)) if known else None


def token_readings(step: Step) -> list[Reading]:
    """The five readings of a step's tokens, in one pass; each missing where the tokens do not give it."""
    tokens = step.logprobs or ()
    entropies = token_entropies(tokens)

    def entropy(_: Sequence[TokenLogprob]) -> float | None:
        return None if entropies is None else confidence_of_entropies(entropies)

    probability = _reading(UncertaintySource.TOKEN_PROBABILITY, tokens, mean_token_probability)
    readings = [
        probability,
        _reading(UncertaintySource.TOKEN_ENTROPY, tokens, entropy),
        _reading(UncertaintySource.SEQUENCE_PROBABILITY, tokens, sequence_probability),
    ]
    if not step.tool_calls:  # the action is the whole completion
        return [
            *readings,
            replace(probability, source=UncertaintySource.ACTION_PROBABILITY),
            replace(readings[1], source=UncertaintySource.ACTION_ENTROPY),
        ]
    places = action_places(tokens, step.tool_calls) or ()
    action = [tokens[place] for place in places]

    def action_entropy(found: Sequence[TokenLogprob]) -> float | None:
        if entropies is None:  # a token beside the action is malformed
            return entropy_confidence(found)
        return confidence_of_entropies([entropies[place] for place in places])

    readings.append(_reading(UncertaintySource.ACTION_PROBABILITY, action, mean_token_probability))
    readings.append(_reading(UncertaintySource.ACTION_ENTROPY, action, action_entropy))
    return readings


def _reading(
    source: str, tokens: Sequence[TokenLogprob], read: Callable[[Sequence[TokenLogprob]], float | None]
) -> Reading:
    """The value of a function of the tokens; missing where they say nothing or hold a malformed number."""
    value = read(tokens) if says_something(tokens) else None
    return Reading(source=source, value=value, reason=None if value is not None else _why(tokens))


def _why(tokens: Sequence[TokenLogprob]) -> MissingReason:
    numbers = (value for token in tokens for value in (token.logprob, *(logprob for _, logprob in token.top)))
    return MissingReason.NO_LOGPROBS if all(value <= 1e-3 for value in numbers) else MissingReason.INVALID_VALUE


TOKEN_SOURCES: Final = (
    UncertaintySource.TOKEN_PROBABILITY,
    UncertaintySource.TOKEN_ENTROPY,
    UncertaintySource.SEQUENCE_PROBABILITY,
    UncertaintySource.ACTION_PROBABILITY,
    UncertaintySource.ACTION_ENTROPY,
)
"""Names of the readings of `token_readings`, in order."""

NO_TOKEN_READINGS: Final = tuple(
    Reading(source=source, value=None, reason=MissingReason.NO_LOGPROBS) for source in TOKEN_SOURCES[:2]
)
"""The readings of a step without log-probabilities: the first two, missing."""
