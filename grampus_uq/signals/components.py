"""TRACER's components of one step, computed from the texts of a trajectory; as slow as the embedder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from grampus_uq.records.protocols import Embedder
from grampus_uq.signals.embedding import cosine_similarity, semantic_distance
from grampus_uq.stats.content_words import content_words
from grampus_uq.stats.trajectory_risk import StepComponents

_Vectors = Mapping[str, npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentText:
    """An agent's turn as repetition sees it.

    `text` is z(x), its first `spoken` characters are the agent's own words, `calls` the digests of its calls.
    """

    text: str
    spoken: int
    calls: tuple[str, ...] = ()

    def units(self) -> frozenset[str]:
        """Give ContTok of D_rep: the content words that the agent spoke, and each call as one unit."""
        return content_words(self.text[: self.spoken]).union(self.calls)

    def words(self) -> frozenset[str]:
        """Give the content words of the whole turn, those in the names and arguments of its calls too."""
        return content_words(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStep:
    """A step with the texts that its components compare and the components that need no embedding.

    `text`: z(x). `said` and `earlier` (agent steps): the turn and those in its window, as repetition sees them.
    `counterpart`: z(o) of an agent step, the agent's text right before a user step; None when there is none, and when
    nothing that came back has any text: a tool that answers with silence gives nothing to be coherent with.
    """

    is_agent: bool
    text: str
    said: AgentText | None = None
    earlier: tuple[AgentText, ...] = ()
    counterpart: str | None = None
    surprisal: float | None = None
    tool_error: bool | None = None
    duplicate_call: bool | None = None
    duplicate_observation: bool | None = None


def sense_steps(steps: Sequence[ObservedStep], embedder: Embedder) -> list[StepComponents]:
    """Compute the components of several steps, embedding each different text once, all in one call.

    Slow where the embedder is, so it is called from a worker thread. What the embedder raises goes through.
    """
    texts = list(dict.fromkeys(text for step in steps for text in _texts(step)))
    vectors = dict(zip(texts, embedder.embed(texts), strict=True)) if texts else {}
    return [_with_vectors(step, vectors) for step in steps]


def needs_embedding(steps: Sequence[ObservedStep]) -> bool:
    """Say whether any text of these steps is compared with another."""
    return any(_texts(step) for step in steps)


def unsensed(step: ObservedStep) -> StepComponents:
    """Give what is known of a step when its texts could not be embedded: repetition and gaps are None, not 0."""
    return StepComponents(
        is_agent=step.is_agent,
        surprisal=step.surprisal,
        tool_error=step.tool_error,
        duplicate_call=step.duplicate_call,
        duplicate_observation=step.duplicate_observation,
    )


def _texts(step: ObservedStep) -> list[str]:
    """The texts of a step that something is compared with; a lone text needs no vector."""
    compared = [*(turn.text for turn in step.earlier), *(() if step.counterpart is None else (step.counterpart,))]
    return [step.text, *compared] if compared else []


def _with_vectors(step: ObservedStep, vectors: _Vectors) -> StepComponents:
    """The components with repetition and the coherence gaps, 1 - cos of two texts, in [0, 2], higher is worse.

    D_o^A compares an agent's turn with the observations of its calls (eq. 14), D_o^U a user's turn with the agent's
    turn right before it (eq. 15). What a gap measures depends on the embedder: between a call and a fitting answer it
    is rarely small, so only differences say anything.
    """
    counterpart = None if step.counterpart is None else vectors[step.counterpart]
    if not step.is_agent:
        gap = None if counterpart is None else semantic_distance(counterpart, vectors[step.text])
        return replace(unsensed(step), user_gap=gap)
    return replace(
        unsensed(step),
        repetition=_repetition(step, vectors, AgentText.units),
        wording_repetition=_repetition(step, vectors, AgentText.words),
        agent_gap=None if counterpart is None else semantic_distance(vectors[step.text], counterpart),
    )


def _repetition(step: ObservedStep, vectors: _Vectors, content: Callable[[AgentText], frozenset[str]]) -> float:
    if step.said is None or not step.earlier:
        return 0.0
    earlier = [(vectors[turn.text], content(turn)) for turn in step.earlier]
    return hybrid_repetition(vectors[step.text], content(step.said), earlier)


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
