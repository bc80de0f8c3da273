"""Semantic entropy: sample the step again, cluster the answers by meaning, and see whether the step is among them.

Adaptive (arXiv 2504.03579): two samples at once; when they agree stop, else take the rest at once. One
failed sample is tolerated. Source of the entropy: Farquhar et al., Nature 2024, discrete semantic entropy. Unlike
there, the step that was taken is clustered with its samples: their agreement on something else does not speak for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio

from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.records.call_parts import CallPart
from grampus_uq.records.protocols import SenseContext
from grampus_uq.records.values import ModelResponse, Reading, Step, ToolCall, canonical_json
from grampus_uq.records.vocabulary import MissingReason, UncertaintySource
from grampus_uq.signals.call_tokens import MAX_CALLS, MAX_PARTS, part_name
from grampus_uq.signals.equivalence import AskedOnce, Equivalence, SameWording, cluster
from grampus_uq.signals.prose import is_prose
from grampus_uq.signals.quoting import is_function
from grampus_uq.signals.stated_confidence import without_confidence
from grampus_uq.stats.entropy import cluster_confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticEntropy:
    """Samples `min_samples` answers, extends to `max_samples` when the first disagree, and reads the agreement.

    The reading is the smaller of 1 - H / ln n over the clusters of the n samples and the share of the replies that mean
    the same as the step: 1 when all do, 0 when none does. A reply without text and calls (a refusal, a filter, a
    length) agrees with nothing. The reading is missing when the step says nothing, when there is no prompt to answer
    again, and when fewer than two samples came back with an answer within the deadline and budget.

    Two answers that propose calls mean the same only if these are equal, name by name and argument by argument: no word
    of an argument is forgiven. `equivalence` judges answers that are text, without the confidence that they state.
    """

    min_samples: int = 2
    max_samples: int = 5
    temperature: float = 0.8
    max_tokens: int | None = None
    equivalence: Equivalence = field(default_factory=SameWording)
    source: str = UncertaintySource.SEMANTIC_ENTROPY

    def __post_init__(self) -> None:
        if self.min_samples < 2:
            raise ConfigurationError.of("min_samples", "SemanticEntropy", "at least 2", self.min_samples)
        if self.max_samples < self.min_samples:
            raise ConfigurationError.of("max_samples", "SemanticEntropy", "at least min_samples", self.max_samples)

    async def sense(self, step: Step, context: SenseContext) -> Reading:
        """Sample, stop early on agreement, cluster, read."""
        return await self.sense_from(await self.first_samples(step, context), step, context)

    async def first_samples(self, step: Step, context: SenseContext) -> list[ModelResponse | ModelError]:
        """Draw the first samples only: what the speculative mode does beside P(True). None where there is no use."""
        if not context.messages or _Answer.of(step).is_empty:
            return []
        return await self._sample(self.min_samples, context)

    async def sense_from(self, first: list[ModelResponse | ModelError], step: Step, context: SenseContext) -> Reading:
        """Go on from the first samples: stop when they agree, else extend."""
        if not context.messages or _Answer.of(step).is_empty:
            return Reading(source=self.source, value=None, reason=MissingReason.NOTHING_TO_JUDGE)
        return await self._read(first, _Answer.of(step), context)

    async def agreement(self, context: SenseContext) -> Reading:
        """The agreement of the samples among themselves, where no step was taken."""
        return await self._read(await self._sample(self.min_samples, context), None, context)

    async def _read(
        self, first: list[ModelResponse | ModelError], taken: _Answer | None, context: SenseContext
    ) -> Reading:
        judged = _AnswerEquivalence(self.equivalence, AskedOnce(context))
        answers = _answers(first)
        early = len(answers) == len(first) and await judged.all_same(answers)
        if not early and self.max_samples > self.min_samples:
            first = [*first, *await self._sample(self.max_samples - self.min_samples, context)]
            answers = _answers(first)
        if len(answers) < 2:
            failure = next((type(reply).__name__ for reply in first if isinstance(reply, ModelError)), "no answer")
            return Reading(
                source=self.source,
                value=None,
                reason=MissingReason.TOO_FEW_SAMPLES,
                detail=failure,
                samples=len(answers),
            )
        replies = sum(isinstance(reply, ModelResponse) for reply in first)
        value = await self._confidence(answers, None if taken is None else (taken, replies), judged, early=early)
        parts = agreement_parts(taken.calls, [answer.tool_calls for answer in answers]) if taken else ()
        return Reading(source=self.source, value=value, samples=len(answers), early_stopped=early, parts=parts)

    async def _sample(self, n: int, context: SenseContext) -> list[ModelResponse | ModelError]:
        """Ask n times at once; a failed sample stands as its error, in its place."""
        results: list[ModelResponse | ModelError] = [ModelError("not drawn")] * n

        async def draw(index: int) -> None:
            try:
                results[index] = await context.ask(
                    context.messages,
                    temperature=self.temperature,
                    max_tokens=self.max_tokens,
                    tools=[tool for tool in context.tools or () if is_function(tool)] or None,
                )
            except ModelError as error:
                results[index] = error

        async with anyio.create_task_group() as group:
            for index in range(n):
                group.start_soon(draw, index)
        return results

    async def _confidence(
        self,
        answers: list[ModelResponse],
        taken: tuple[_Answer, int] | None,
        judged: _AnswerEquivalence,
        *,
        early: bool,
    ) -> float:
        """The agreement of the answers; no more than the share of the replies that repeat the step that was taken."""
        step = [] if taken is None else [taken[0]]
        sampled = [_Answer.of(answer) for answer in answers]
        clusters = await cluster([*step, *(sampled[:1] if early else sampled)], judged.same)
        members = [[index - len(step) for index in group if index >= len(step)] for group in clusters]
        agreement = 1.0 if early else cluster_confidence([len(group) for group in members if group])
        if taken is None:
            return agreement
        repeated = len(answers) if early and members[0] else len(members[0])
        return min(agreement, repeated / taken[1])


class _Answer(NamedTuple):
    """The text and the calls of a turn, by which two turns are compared."""

    text: str
    calls: tuple[ToolCall, ...]

    @classmethod
    def of(cls, turn: Step | ModelResponse) -> _Answer:
        return cls(without_confidence(turn.text if isinstance(turn, Step) else turn.content), turn.tool_calls)

    @property
    def is_empty(self) -> bool:
        return not self.calls and not self.text.strip()


def _answers(replies: list[ModelResponse | ModelError]) -> list[ModelResponse]:
    """The replies that answer anything."""
    return [reply for reply in replies if isinstance(reply, ModelResponse) and not _Answer.of(reply).is_empty]


@dataclass(frozen=True, slots=True)
class _AnswerEquivalence:
    """The equivalence of two answers, within one sensing."""

    equivalence: Equivalence
    context: SenseContext

    async def same(self, first: _Answer, second: _Answer, *, strict: bool = False) -> bool:
        if first.calls or second.calls:
            return [call.canonical() for call in first.calls] == [call.canonical() for call in second.calls]
        return await self.equivalence.same(first.text, second.text, self.context, strict=strict)

    async def all_same(self, answers: list[ModelResponse]) -> bool:
        for answer in answers[1:]:
            if not await self.same(_Answer.of(answers[0]), _Answer.of(answer), strict=True):
                return False
        return True


def agreement_parts(calls: Sequence[ToolCall], samples: Sequence[Sequence[ToolCall]]) -> tuple[CallPart, ...]:
    """The share of samples that agree on each call's tool and on each of its arguments; empty without samples."""
    found: list[CallPart] = []
    for place, call in enumerate(calls[:MAX_CALLS] if samples else ()):
        drawn = [sample[place] for sample in samples if place < len(sample) and sample[place].name == call.name]
        found.append(CallPart(call=place, agreement=len(drawn) / len(samples)))
        for number, (name, value) in enumerate(call.arguments.items(), start=1):
            if number > MAX_PARTS or is_prose(value):
                continue
            written = canonical_json(value)
            same = sum(name in one.arguments and canonical_json(one.arguments[name]) == written for one in drawn)
            found.append(CallPart(call=place, name=part_name(name, number), agreement=same / len(samples)))
    return tuple(found)
