"""Semantic entropy: sample the step again, cluster the answers by meaning, and read 1 - H / ln n.

Adaptive as in the guide (arXiv 2504.03579): two samples at once; when they agree stop, else take the rest at once. One
failed sample is tolerated. Source of the entropy: Farquhar et al., Nature 2024, discrete semantic entropy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import anyio
from pydantic import JsonValue

from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.protocols import SenseContext
from grampus_uq.records import ModelResponse, Reading, Step, ToolCall, canonical_json
from grampus_uq.signals.equivalence import AskedOnce, Equivalence, LexicalEquivalence, cluster
from grampus_uq.stats.entropy import cluster_confidence, weighted_cluster_confidence
from grampus_uq.vocabulary import MissingReason, UncertaintySource

__all__ = ["SemanticEntropy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticEntropy:
    """Samples `min_samples` answers, extends to `max_samples` when the first pair disagrees, and reads their agreement.

    `likelihood_weighted` weights each answer by its length-normalised likelihood where every sample reports
    log-probabilities, and falls back to counting where one does not. The reading is missing when there is no prompt to
    answer again, and when fewer than two samples came back within the deadline and budget.

    A tool call counts as its name and canonical arguments. Two answers that propose calls mean the same only if the
    names, the keys and every argument that is not prose are equal; `equivalence` judges the rest. (By words alone, a
    payment to Alice and the same payment to Mallory are nearly the same.)
    """

    min_samples: int = 2
    max_samples: int = 5
    temperature: float = 0.8
    max_tokens: int | None = None
    equivalence: Equivalence = field(default_factory=LexicalEquivalence)
    likelihood_weighted: bool = False
    source: str = UncertaintySource.SEMANTIC_ENTROPY

    def __post_init__(self) -> None:
        if self.min_samples < 2:
            raise ConfigurationError.of("min_samples", "SemanticEntropy", "at least 2", self.min_samples)
        if self.max_samples < self.min_samples:
            raise ConfigurationError.of("max_samples", "SemanticEntropy", "at least min_samples", self.max_samples)

    async def sense(self, step: Step, context: SenseContext) -> Reading:
        """Sample, stop early on agreement, cluster, read."""
        return await self.sense_from(await self.first_samples(context), context)

    async def first_samples(self, context: SenseContext) -> list[ModelResponse | ModelError]:
        """Draw the first samples only: what the speculative mode does beside P(True). None without a prompt."""
        return await self._sample(self.min_samples, context) if context.messages else []

    async def sense_from(self, first: list[ModelResponse | ModelError], context: SenseContext) -> Reading:
        """Go on from the first samples: stop when they agree, else extend."""
        if not context.messages:
            return Reading(source=self.source, value=None, reason=MissingReason.NOTHING_TO_JUDGE)
        answers = [reply for reply in first if isinstance(reply, ModelResponse)]
        judged = _AnswerEquivalence(self.equivalence, AskedOnce(context))
        early = len(answers) == len(first) and await judged.all_same(answers)
        if not early and self.max_samples > self.min_samples:
            more = await self._sample(self.max_samples - self.min_samples, context)
            first = [*first, *more]
            answers += [reply for reply in more if isinstance(reply, ModelResponse)]
        if len(answers) < 2:
            failure = next((type(reply).__name__ for reply in first if isinstance(reply, ModelError)), None)
            return Reading(
                source=self.source,
                value=None,
                reason=MissingReason.TOO_FEW_SAMPLES,
                detail=failure,
                samples=len(answers),
            )
        clusters = [list(range(len(answers)))] if early else await cluster(answers, judged.same)
        value = self._confidence(answers, clusters)
        return Reading(source=self.source, value=value, samples=len(answers), early_stopped=early)

    async def _sample(self, n: int, context: SenseContext) -> list[ModelResponse | ModelError]:
        """Ask n times at once; a failed sample stands as its error, in its place."""
        results: list[ModelResponse | ModelError] = [ModelError("not drawn")] * n

        async def draw(index: int) -> None:
            try:
                results[index] = await context.ask(
                    context.messages,
                    temperature=self.temperature,
                    max_tokens=self.max_tokens,
                    top_logprobs=1 if self.likelihood_weighted else None,
                    tools=context.tools,
                )
            except ModelError as error:
                results[index] = error

        async with anyio.create_task_group() as group:
            for index in range(n):
                group.start_soon(draw, index)
        return results

    def _confidence(self, answers: list[ModelResponse], clusters: list[list[int]]) -> float:
        if self.likelihood_weighted:
            likelihoods = [_mean_logprob(answer) for answer in answers]
            known = [value for value in likelihoods if value is not None]
            if len(known) == len(answers):
                return weighted_cluster_confidence([[known[i] for i in members] for members in clusters])
        return cluster_confidence([len(members) for members in clusters])


@dataclass(frozen=True, slots=True)
class _AnswerEquivalence:
    """When two sampled answers mean the same, within one sensing."""

    equivalence: Equivalence
    context: SenseContext

    async def same(self, first: ModelResponse, second: ModelResponse, *, strict: bool = False) -> bool:
        if [_fixed(call) for call in first.tool_calls] != [_fixed(call) for call in second.tool_calls]:
            return False
        return await self.equivalence.same(_meaning(first), _meaning(second), self.context, strict=strict)

    async def all_same(self, answers: list[ModelResponse]) -> bool:
        for answer in answers[1:]:
            if not await self.same(answers[0], answer, strict=True):
                return False
        return True


def _fixed(call: ToolCall) -> str:
    """The call without its prose: two calls whose fixed parts differ do different things."""
    return f"{call.name}({canonical_json(_without_prose(call.arguments))})"


_PROSE_WORDS = 7  # a name or an address has fewer; a subject line that varies costs confidence, which is the safe side


def _without_prose(value: JsonValue) -> JsonValue:
    """The value with every text of seven words or more left empty."""
    if isinstance(value, str):
        return "" if len(value.split(maxsplit=_PROSE_WORDS)) >= _PROSE_WORDS else value
    if isinstance(value, list):
        return [_without_prose(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_prose(item) for key, item in value.items()}
    return value


def _meaning(response: ModelResponse) -> str:
    calls = "\n".join(call.canonical() for call in response.tool_calls)
    return f"{response.content}\n{calls}" if calls and response.content.strip() else calls or response.content


def _mean_logprob(response: ModelResponse) -> float | None:
    """Length-normalised log-likelihood; None when it is not reported or not finite."""
    if not response.logprobs:
        return None
    mean = math.fsum(token.logprob for token in response.logprobs) / len(response.logprobs)
    return mean if math.isfinite(mean) else None
