"""The only impure part of a step: which signals run, in which order, and what they may spend.

Instant signals first, then the fast signals that ask a model, side by side; then, unless their fusion lies above the
trigger zone, the slow path. In speculative mode the slow path's first samples are drawn beside the fast signals: one
round trip less where they are needed, two calls more where they are not.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import anyio.to_thread

from grampus_uq.core.state import Profile
from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.records.configuration import nearest
from grampus_uq.records.protocols import InstantSignal, ModelClient, Signal
from grampus_uq.records.values import Message, ModelResponse, Reading, Step
from grampus_uq.records.vocabulary import MissingReason, UncertaintySource
from grampus_uq.signals.driver import (
    Budget,
    MeteredContext,
    read_instant,
    read_tokens,
    sense_all,
    sense_one,
)
from grampus_uq.signals.equivalence import Equivalence, SameWording
from grampus_uq.signals.prefix_verifier import PrefixVerifier
from grampus_uq.signals.registry import BUILT_IN, BUILT_IN_NAMES
from grampus_uq.signals.semantic_entropy import SemanticEntropy
from grampus_uq.signals.token_signals import NO_TOKEN_READINGS, TOKEN_SOURCES
from grampus_uq.signals.verbalized import ElicitedConfidence, VerbalizedConfidence
from grampus_uq.stats.fusion import is_count

__all__ = ["LONG_COMPLETION", "SensingPlan", "StepInput"]

LONG_COMPLETION: Final = 500
"""Tokens with log-probabilities above which a step is read in a worker thread: as many take about a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """What came with a step beside the step itself: the prompt, the client to ask, the tools it may propose."""

    messages: Sequence[Message] = ()
    client: ModelClient | None = None
    model: str = ""
    tools: Sequence[Mapping[str, Any]] | None = None
    over_cap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SensingPlan:
    """Which signals a monitor runs; immutable, shared by all its sessions."""

    instant: tuple[InstantSignal, ...]
    fast: tuple[Signal, ...]
    slow: SemanticEntropy | None
    unasked: tuple[InstantSignal, ...] = ()
    """Those of `fast` that can also read by themselves: what is left of them while the model may not be asked."""
    brings_model: bool = False
    """Some signal asks a model of its own, so that it can be asked on a step that comes without one."""
    counts: bool = False
    """What the agent does is counted (`signals.structure`): a profile was fitted on it, or somebody asked."""
    speculative: bool = False
    budget: Budget = field(default_factory=Budget)
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    """Names of all readings that these signals give."""

    @classmethod
    def of(
        cls,
        profile: Profile,
        *,
        extra: Sequence[Signal | InstantSignal] = (),
        equivalence: Equivalence | None = None,
        repairs: int | None = None,
        counts: bool = False,
        speculative: bool = False,
        budget: Budget | None = None,
        budgets: Mapping[str, Budget] | None = None,
    ) -> SensingPlan:
        """The guide's signals as far as policy and estimator both allow them, and the user's own.

        `repairs` asks again for a stated confidence that is absent (see `ElicitedConfidence`). With `counts`, or where
        the profile was fitted on some, what the agent does is counted (`signals.structure`). Raises
        ConfigurationError when two signals share a name, a signal has neither `read` nor `sense`, or a budget or a
        weight is of no signal.
        """
        estimator, policy = profile.estimator, profile.policy
        instant: list[InstantSignal] = []
        fast: list[Signal] = []
        if repairs is None:
            instant.append(VerbalizedConfidence())
        else:
            fast.append(ElicitedConfidence(repairs=repairs))
        own = {getattr(signal, "source", "") for signal in extra}
        for known in BUILT_IN:
            if known.make is None or (known.replaceable and known.source in own):
                continue
            if getattr(policy, known.switch) and getattr(estimator, known.switch):
                fast.append(known.make())
        for signal in extra:
            if not isinstance(getattr(signal, "source", ""), str):
                raise ConfigurationError.of("signals", "UncertaintyMonitor", "of names that are text", signal.source)
            if isinstance(signal, Signal):
                fast.append(signal)
            elif isinstance(signal, InstantSignal):
                instant.append(signal)
            else:
                raise ConfigurationError.of(
                    "signals", "UncertaintyMonitor", "objects with `source` and `read` or `sense`", signal
                )
        slow = None
        if policy.enable_semantic_sampling and estimator.allows_semantic_sampling():
            slow = estimator.semantic_signal(equivalence or SameWording())
        names = (
            [*TOKEN_SOURCES, UncertaintySource.CLAIM_PROBABILITY, UncertaintySource.TRAJECTORY_RISK]
            + [s.source for s in instant]
            + [s.source for s in fast]
            + ([slow.source] if slow else [])
        )
        twice = {str(name) for name in names if names.count(name) > 1}
        if twice:
            raise ConfigurationError.of("signals", "UncertaintyMonitor", "of distinct names", sorted(twice))
        _check_budgets(budget, budgets or {}, names)
        _check_weights(estimator.extra_weights, names)
        return cls(
            names=frozenset(str(name) for name in names),
            instant=tuple(instant),
            fast=tuple(fast),
            slow=slow,
            unasked=tuple(signal for signal in fast if isinstance(signal, InstantSignal)),
            brings_model=any(isinstance(signal, PrefixVerifier) and signal.client is not None for signal in fast),
            counts=counts or any(map(is_count, profile.fitted_streams)),
            speculative=speculative,
            budget=budget or Budget(),
            budgets=_slow_budget(slow, judged=equivalence is not None, given=budget) | dict(budgets or {}),
        )

    @property
    def asks(self) -> bool:
        """True when some signal needs a model."""
        return bool(self.fast) or self.slow is not None

    def read(self, step: Step, messages: Sequence[Message] = ()) -> list[Reading]:
        """The readings that need no model and no waiting."""
        readings = []
        for signal in self.instant:
            readings.append(read_instant(signal, step))  # noqa: PERF401 (before Python 3.12 a comprehension is a call)
        readings += NO_TOKEN_READINGS if step.logprobs is None else read_tokens(step, messages)
        return readings

    async def read_long(self, step: Step, messages: Sequence[Message] = ()) -> list[Reading]:
        """The same for a completion of more than `LONG_COMPLETION` tokens, which are read off the event loop."""
        tokens = await anyio.to_thread.run_sync(read_tokens, step, messages)
        return [*(read_instant(signal, step) for signal in self.instant), *tokens]

    def read_unasked(self, step: Step) -> list[Reading]:
        """What the asking signals read when there is no model to ask: those that can read by themselves."""
        return [read_instant(signal, step) for signal in self.unasked]

    async def ask(self, profile: Profile, step: Step, instant: Sequence[Reading], given: StepInput) -> list[Reading]:
        """The readings that need a model; missing ones included, with reasons. Raises nothing but cancellation."""
        if given.over_cap:
            return self._over_cap(step)
        if self.slow is None:
            return await self._fast(step, given)
        drawn: list[ModelResponse | ModelError] = []
        if self.speculative:
            context = self._context(self.slow, given)
            readings = await self._beside(step, given, self.slow, context, drawn)
        else:
            readings = await self._fast(step, given)
            context = self._context(self.slow, given)  # its clock starts after the fast path
        if self.slow.source in profile.always_there or profile.estimator.needs_sampling((*instant, *readings)):
            readings.append(await self._slow(step, self.slow, context, drawn))
        elif context.calls:
            unused = Reading(source=self.slow.source, value=None, reason=MissingReason.NOT_NEEDED)
            readings.append(context.metered(unused))  # the drawn pair was not needed, but it was paid for
        return readings

    def _over_cap(self, step: Step) -> list[Reading]:
        """What is read without asking, and the rest missing because the monitor's share is spent."""
        stated = [reading for reading in self.read_unasked(step) if reading.value is not None]
        names = [s.source for s in self.fast] + ([self.slow.source] if self.slow else [])
        silent = [name for name in names if all(reading.source != name for reading in stated)]
        return stated + [Reading(source=n, value=None, reason=MissingReason.OVERHEAD_CAP) for n in silent]

    async def _fast(self, step: Step, given: StepInput) -> list[Reading]:
        if not self.fast:
            return []
        return await sense_all(self.fast, step, lambda signal: self._context(signal, given))

    async def _beside(
        self,
        step: Step,
        given: StepInput,
        slow: SemanticEntropy,
        context: MeteredContext,
        drawn: list[ModelResponse | ModelError],
    ) -> list[Reading]:
        """The fast signals and the slow path's first samples, side by side; the samples go into `drawn`."""
        readings: list[Reading] = []

        async def draw() -> None:
            drawn.extend(await slow.first_samples(step, context))

        async def read() -> None:
            readings.extend(await self._fast(step, given))

        async with anyio.create_task_group() as group:
            group.start_soon(draw)
            group.start_soon(read)
        return readings

    async def _slow(
        self, step: Step, slow: SemanticEntropy, context: MeteredContext, drawn: list[ModelResponse | ModelError]
    ) -> Reading:
        if drawn:
            return await sense_one(slow.source, lambda metered: slow.sense_from(drawn, step, metered), context)
        return await sense_one(slow.source, lambda metered: slow.sense(step, metered), context)

    def _context(self, signal: Signal, given: StepInput) -> MeteredContext:
        budget = self.budgets.get(signal.source, self.budget)
        client, model = given.client, given.model
        if isinstance(signal, PrefixVerifier) and signal.client is not None:
            client, model = signal.client, signal.model
        return MeteredContext(messages=given.messages, client=client, model=model, tools=given.tools, budget=budget)


def _check_budgets(budget: object, budgets: Mapping[str, object], names: Sequence[str]) -> None:
    known = {*names, *BUILT_IN_NAMES}
    for name, given in {**({} if budget is None else {"budget": budget}), **budgets}.items():
        if not isinstance(given, Budget):
            parameter = "budget" if given is budget else f"budgets[{name!r:.80}]"
            raise ConfigurationError.of(parameter, "UncertaintyMonitor", "a Budget", given, "Budget(timeout_s=5.0)")
        if given is not budget and name not in known:
            rule, way_out = "budgets by the names of signals", nearest(str(name), known)
            raise ConfigurationError.of("budgets", "UncertaintyMonitor", rule, name, way_out)


def _check_weights(weights: Mapping[str, float], names: Sequence[str]) -> None:
    """A name that nobody has may be a reading of the caller's own; one that nearly is a signal's is misspelt."""
    known = {*names, *BUILT_IN_NAMES}
    for name in weights:
        if name in known or name == "sub_agent":
            continue
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if close and not name.startswith(close[0]) and not close[0].startswith(name):
            rule = "weights by the names of readings"
            raise ConfigurationError.of("extra_weights", "UncertaintyEstimator", rule, name, nearest(name, known))


def _slow_budget(slow: SemanticEntropy | None, *, judged: bool, given: Budget | None) -> dict[str, Budget]:
    """Where no budget was given, the calls the slow path needs: n samples, both ways of each pair of n + 1 turns."""
    if slow is None or given is not None:
        return {}
    n = slow.max_samples
    return {slow.source: Budget(max_calls=max(Budget().max_calls, (n + 1) ** 2 if judged else n))}
