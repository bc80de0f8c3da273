"""Confidence in what an answer adds to its request: the probability of its least likely new word.

Most of an answer repeats its request ("The capital of France is ..."); a model writes those words with certainty
whether or not it knows the rest, so an average over all tokens drowns the one word that is the claim. Words of the
request are therefore left out, a word's probability is the product of its tokens', and the least of the new ones is the
reading:

    c = min over words w that are not in the request of exp(sum of log p(token) over the tokens that write w)

An answer without a new word ("the capital of Luxembourg is Luxembourg") says one of the old ones: its least likely word
of all is the reading; the words in which it states its confidence are no new ones. In [0, 1], higher is better. The
least token probability is the usual reading of this kind (Manakul et al. 2023, arXiv 2303.08896, "Max(-log p)");
leaving out what the prompt gives away is in the spirit of relevance weighting (Duan et al. 2023, arXiv 2307.01379).
Needs log-probabilities and no model call.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

from grampus_uq.records.values import Message, Reading, Step, TokenLogprob
from grampus_uq.records.vocabulary import MissingReason, Role, UncertaintySource
from grampus_uq.signals.action_span import overlapping_tokens
from grampus_uq.signals.stated_confidence import without_confidence
from grampus_uq.signals.token_signals import says_something

MAX_REQUEST_CHARACTERS: Final = 8_000
MAX_TOKENS: Final = 4_096
_WORD: Final = re.compile(r"\w+")


def requested_words(messages: Sequence[Message]) -> frozenset[str]:
    """The words, in lower case, of the user's latest message: of a longer one the last 8,000 characters count.

    What a tool returned is not a request: whoever writes it must not make a doubtful word of the answer look given.
    """
    for message in reversed(messages):
        if message.role is Role.USER:
            return _words((message.content or "")[-MAX_REQUEST_CHARACTERS:])
    return frozenset()


@functools.lru_cache(maxsize=32)  # an agent's request stays the same over all of its steps
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def least_new_word_probability(tokens: Sequence[TokenLogprob], given: frozenset[str]) -> float | None:
    """The least probability of a word that is not among the `given` ones (in lower case), in [0, 1].

    Of a longer completion the first 4,096 tokens are read. None when there is no such word, and when a log-probability
    is NaN or above 0 by more than rounding (1e-3).
    """
    worst = math.inf
    for word, logprob in _scored_words(tokens[:MAX_TOKENS]):
        if math.isnan(logprob):
            return None
        if logprob < worst and word not in given:
            worst = logprob
    return None if worst == math.inf else math.exp(worst)


def _scored_words(tokens: Sequence[TokenLogprob]) -> Iterator[tuple[str, float]]:
    """Each word of the completion with the sum of the log-probabilities of the tokens that write some of it."""
    words = list(_WORD.finditer("".join(token.token for token in tokens)))
    for word, places in zip(words, overlapping_tokens(tokens, (word.span() for word in words)), strict=True):
        total = 0.0
        for place in places:
            logprob = tokens[place].logprob
            total += min(logprob, 0.0) if logprob <= 1e-3 else math.nan
        yield word[0].lower(), total


def claim_reading(step: Step, messages: Sequence[Message]) -> Reading:
    """The probability of the least likely word of the step that the messages it answered did not contain.

    Where they contained all of its words, of the least likely word.
    """
    value, reason = None, MissingReason.NO_LOGPROBS
    if step.logprobs and says_something(step.logprobs):
        reason = MissingReason.NOTHING_TO_JUDGE
        given, stated = requested_words(messages), _words(step.text) - _words(without_confidence(step.text))
        if stated and least_new_word_probability(step.logprobs, given | stated) is None:
            given = frozenset()
        value = least_new_word_probability(step.logprobs, given)
        if value is None:
            value = least_new_word_probability(step.logprobs, frozenset())
    return Reading(
        source=UncertaintySource.CLAIM_PROBABILITY, value=value, reason=None if value is not None else reason
    )
