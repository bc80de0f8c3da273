"""TRACER's components of one step, computed from the texts that a trajectory hands over; slow where the embedder is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import anyio.to_thread
import numpy as np
import numpy.typing as npt

from grampus_uq.records.protocols import Embedder
from grampus_uq.signals.coherence import agent_coherence_gap, user_coordination_gap
from grampus_uq.signals.repetition import hybrid_repetition
from grampus_uq.stats.content_words import content_words
from grampus_uq.stats.trajectory_risk import StepComponents

__all__ = [
    "AgentText",
    "ObservedStep",
    "needs_embedding",
    "sense_step",
    "sense_step_in_thread",
    "sense_steps",
    "unsensed",
]

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


def sense_step(step: ObservedStep, embedder: Embedder) -> StepComponents:
    """Compute the components of a step, embedding its texts. What the embedder raises goes through.

    Called from a worker thread, or by `sense_step_in_thread`: a model may need tens of milliseconds.
    """
    return sense_steps([step], embedder)[0]


def sense_steps(steps: Sequence[ObservedStep], embedder: Embedder) -> list[StepComponents]:
    """Compute the components of several steps, embedding each different text once, all in one call."""
    texts = list(dict.fromkeys(text for step in steps for text in _texts(step)))
    vectors = dict(zip(texts, embedder.embed(texts), strict=True)) if texts else {}
    return [_with_vectors(step, vectors) for step in steps]


async def sense_step_in_thread(step: ObservedStep, embedder: Embedder) -> StepComponents:
    """Compute the components of a step off the event loop; when cancelled, the thread's answer is dropped."""
    return await anyio.to_thread.run_sync(partial(sense_step, step, embedder), abandon_on_cancel=True)


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
    counterpart = None if step.counterpart is None else vectors[step.counterpart]
    if not step.is_agent:
        gap = None if counterpart is None else user_coordination_gap(counterpart, vectors[step.text])
        return replace(unsensed(step), user_gap=gap)
    return replace(
        unsensed(step),
        repetition=_repetition(step, vectors, AgentText.units),
        wording_repetition=_repetition(step, vectors, AgentText.words),
        agent_gap=None if counterpart is None else agent_coherence_gap(vectors[step.text], counterpart),
    )


def _repetition(step: ObservedStep, vectors: _Vectors, content: Callable[[AgentText], frozenset[str]]) -> float:
    if step.said is None or not step.earlier:
        return 0.0
    earlier = [(vectors[turn.text], content(turn)) for turn in step.earlier]
    return hybrid_repetition(vectors[step.text], content(step.said), earlier)
