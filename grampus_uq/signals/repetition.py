"""Hybrid repetition: does an agent's turn say again what one of its latest turns said? (TRACER, eq. 8-11)"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from grampus_uq.signals.embedding import cosine_similarity

__all__ = ["hybrid_repetition", "lexical_overlap"]


def lexical_overlap(first: frozenset[str], second: frozenset[str]) -> float:
    """Give sim_lex, the Jaccard overlap of two sets of content words, in [0, 1]; 0 when both are empty (eq. 9)."""
    union = len(first | second)
    return len(first & second) / union if union else 0.0


def hybrid_repetition(
    vector: npt.NDArray[np.float64],
    words: frozenset[str],
    earlier: Iterable[tuple[npt.NDArray[np.float64], frozenset[str]]],
) -> float:
    """Give D_rep, the largest product of semantic similarity and lexical overlap with an earlier turn (eq. 11).

    `vector` and `words` are the embedding and the content words of the turn, `earlier` those of the turns in its
    window: the latest 3 agent turns, where the paper counts m steps of either actor and prints no m. The caller
    decides what the words are: D_rep takes the words that the agent spoke and each tool call as one unit, so that two
    calls are the same or not; with the words of the calls it also sees a call repeated with one argument changed.

    Returns a number in [0, 1], higher is worse; 0 with no earlier turn. A negative similarity counts as 0.
    """
    products = (
        cosine_similarity(vector, other) * lexical_overlap(words, other_words) for other, other_words in earlier
    )
    return max(0.0, max(products, default=0.0))
