"""A language model as step scorer: one question a step, or four analysts whose confidences are averaged.

Every call is bounded in time, calls run at most `concurrency` at a time, answers are cached by model and prompt, and
what was spent is counted apart from the agent's own. The whole conversation is context, but no step's score depends on
another's, so left and right filtration may ask step by step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import anyio

from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.learn.attribution.failed_trajectory import Trajectory
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ModelResponse, TokenUsage
from grampus_uq.records.vocabulary import MissingReason
from grampus_uq.signals.confidence_forms import parse_number
from grampus_uq.signals.driver import Budget, BudgetExceededError, MeteredContext
from grampus_uq.signals.stated_confidence import parse_confidence
from tests.benchmarks.attribution_prompts import ROLES, naive_messages, role_messages, summary_messages

__all__ = ["JudgeScorer", "JudgeSpending"]

T = TypeVar("T")


class _Answer(NamedTuple):
    text: str
    calls: int
    usage: TokenUsage


class _Judgement(NamedTuple):
    value: float | None
    why: str
    cost: _Answer


_NOTHING = _Answer("", 0, TokenUsage())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScore:
    """The judgement of one step and its cost; `missing` says why `value` is the stand-in."""

    value: float
    why: str = ""
    missing: str | None = None
    calls: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScores:
    """The judgements of all steps, and the cost of the summary of the run."""

    steps: tuple[StepScore, ...]
    shared_calls: int = 0
    shared_usage: TokenUsage = field(default_factory=TokenUsage)

    @property
    def values(self) -> list[float]:
        return [step.value for step in self.steps]

    @property
    def calls(self) -> int:
        return self.shared_calls + sum(step.calls for step in self.steps)

    @property
    def usage(self) -> TokenUsage:
        return sum((step.usage for step in self.steps), start=self.shared_usage)


@dataclass(slots=True, kw_only=True)
class _Gate:
    """Lets so many calls of one trajectory through at a time, and none that has not begun once one was refused."""

    limiter: anyio.Semaphore
    refusal: ModelError | None = None


@dataclass(slots=True, kw_only=True)
class JudgeSpending:
    """What a judge has spent since it was made: the one mutable thing about it, and what `max_calls` bounds."""

    calls: int = 0
    cached: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeScorer:
    """Asks a model how likely each step holds the decisive error; the score is that probability, in [0, 1].

    client, model: whom to ask. prompt: "naive" asks one question a step; "four_roles" asks once why the run failed and
    then four analysts about each step, and averages the confidences that came. stand_in: score of a step whose answers
    hold no usable number; 1 by default, so that a garbled answer never clears a step.

    concurrency: calls in flight within one trajectory. timeout_s: of one call. max_calls: over the life of the scorer.
    context_characters: of the run that a prompt quotes. cache: prompt digest to answer; any mutable mapping, a
    persistent one makes recalibration free.

    A call that gets no answer (timeout, rate limit, budget) raises: an outage is not a property of the run, and a
    stand-in for it would break exchangeability with the calibration failures. What was answered is cached, so calling
    again goes on from there. An answer without a usable number is the judge's own doing: it takes `stand_in`, in
    calibration and prediction alike.

    The prompts hold no reference answer (a `Trajectory` has none) and quote the run as untrusted text. A judge can
    still be talked round by the text it judges: a poor judge costs removal rate, never coverage.
    """

    client: ModelClient
    model: str
    prompt: Literal["naive", "four_roles"] = "naive"
    stand_in: float = 1.0
    concurrency: int = 4
    timeout_s: float = 60.0
    max_calls: int = 10_000
    max_tokens: int = 700
    context_characters: int = 24_000
    cache: MutableMapping[str, str] = field(default_factory=dict)
    spending: JudgeSpending = field(default_factory=JudgeSpending)

    def __post_init__(self) -> None:
        if self.prompt not in ("naive", "four_roles"):
            raise ConfigurationError.of("prompt", "JudgeScorer", "'naive' or 'four_roles'", self.prompt)
        if not 0.0 <= self.stand_in <= 1.0:
            raise ConfigurationError.of("stand_in", "JudgeScorer", "in [0, 1]", self.stand_in)
        if not self.timeout_s > 0.0:
            raise ConfigurationError.of("timeout_s", "JudgeScorer", "above 0 seconds", self.timeout_s)
        for name, least in (("concurrency", 1), ("max_calls", 0), ("max_tokens", 1), ("context_characters", 600)):
            if getattr(self, name) < least:
                raise ConfigurationError.of(name, "JudgeScorer", f"at least {least}", getattr(self, name))

    @property
    def name(self) -> str:
        """The word "judge" and the kind of prompt."""
        return f"judge:{self.prompt}"

    async def score(self, trajectory: Trajectory, /) -> StepScores:
        """Judge every step, `concurrency` calls at a time; raises ModelError when a call gets no answer."""
        gate = _Gate(limiter=anyio.Semaphore(self.concurrency))
        summary = await self._summary(trajectory, gate)
        judging = [partial(self._step, trajectory, index, summary.text, gate) for index in range(len(trajectory))]
        return StepScores(steps=tuple(await _all(judging)), shared_calls=summary.calls, shared_usage=summary.usage)

    async def score_step(self, trajectory: Trajectory, index: int, /) -> StepScore:
        """Judge one step; the summary of the run is asked for once and then comes from the cache. Raises as `score`."""
        gate = _Gate(limiter=anyio.Semaphore(self.concurrency))
        summary = await self._summary(trajectory, gate)
        score = await self._step(trajectory, index, summary.text, gate)
        return replace(score, calls=score.calls + summary.calls, usage=score.usage + summary.usage)

    async def _summary(self, trajectory: Trajectory, gate: _Gate) -> _Answer:
        if self.prompt == "naive":
            return _NOTHING
        return await self._ask(summary_messages(trajectory, self.context_characters), gate)

    async def _step(self, trajectory: Trajectory, index: int, summary: str, gate: _Gate) -> StepScore:
        limit = self.context_characters
        if self.prompt == "naive":
            found = [_read_number(await self._ask(naive_messages(trajectory, index, limit), gate))]
        else:
            prompts = {role: role_messages(trajectory, index, role, summary, limit) for role in ROLES}
            answers = await _all([partial(self._ask, messages, gate) for messages in prompts.values()])
            found = [_read_conclusion(answer, role) for role, answer in zip(prompts, answers, strict=True)]
        values = [judgement.value for judgement in found if judgement.value is not None]
        return StepScore(
            value=sum(values) / len(values) if values else self.stand_in,
            why=" ".join(judgement.why for judgement in found if judgement.why),
            missing=None if values else MissingReason.PARSE_ERROR,
            calls=sum(judgement.cost.calls for judgement in found),
            usage=sum((judgement.cost.usage for judgement in found), start=TokenUsage()),
        )

    async def _ask(self, messages: list[Message], gate: _Gate) -> _Answer:
        """Answer from the cache or, within budget and time, from the model; raises ModelError."""
        key = _digest(self.model, messages)
        async with gate.limiter:
            if gate.refusal is not None:
                raise gate.refusal
            if (known := self.cache.get(key)) is not None:
                self.spending.cached += 1
                return _Answer(known, 0, TokenUsage())
            try:
                reply = await self._call(messages)
            except ModelError as error:
                gate.refusal = error
                raise
            self.spending.usage = self.spending.usage + reply.token_usage
            self.cache[key] = reply.content
            return _Answer(reply.content, 1, reply.token_usage)

    async def _call(self, messages: list[Message]) -> ModelResponse:
        if self.spending.calls >= self.max_calls:
            raise BudgetExceededError(f"The judge's budget of {self.max_calls} calls is spent; raise `max_calls`.")
        self.spending.calls += 1
        budget = Budget(timeout_s=self.timeout_s, max_calls=1)
        context = MeteredContext(messages=(), client=self.client, model=self.model, budget=budget)
        return await context.ask(messages, temperature=0.0, max_tokens=self.max_tokens)


async def _all(questions: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Await all and return the answers in order; the first ModelError is raised as it is, when all are at rest."""
    answers: dict[int, T] = {}
    refused: list[ModelError] = []

    async def hear(index: int) -> None:
        try:
            answers[index] = await questions[index]()
        except ModelError as error:
            refused.append(error)

    async with anyio.create_task_group() as group:
        for index in range(len(questions)):
            group.start_soon(hear, index)
    if refused:
        raise refused[0]
    return [answers[index] for index in range(len(questions))]


def _read_number(answer: _Answer) -> _Judgement:
    value = parse_number(answer.text.strip().lstrip("*`").rstrip("*`."))
    if value is None:
        value, _ = parse_confidence(answer.text)
    return _Judgement(value, "", answer)


def _read_conclusion(answer: _Answer, role: str) -> _Judgement:
    """Confidence and reason of an analyst; a reply that is not the JSON asked for may still state a confidence."""
    start = answer.text.find("{")
    try:
        reply = json.JSONDecoder().raw_decode(answer.text, start)[0] if start >= 0 else {}
    except (ValueError, RecursionError):
        reply = {}
    conclusion = reply.get("primary_conclusion", reply)
    if not isinstance(conclusion, dict):
        conclusion = {}
    stated, reason = conclusion.get("confidence"), conclusion.get("reason")
    value = None if stated is None else parse_number(str(stated))
    if value is None and stated is None:
        value, _ = parse_confidence(answer.text)
    told = f"{role}: {reason.strip()[:300]}" if isinstance(reason, str) and reason.strip() else ""
    return _Judgement(value, told if value is not None else "", answer)


def _digest(model: str, messages: list[Message]) -> str:
    text = "\x00".join([model, *(f"{message.role}\x01{message.content}" for message in messages)])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
