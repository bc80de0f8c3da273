"""The only impure part of a step: which signals run, in which order, and what they may spend.

Instant signals first, then the fast signals that ask a model, side by side; then, unless their fusion lies above the
trigger zone, the slow path. In speculative mode the slow path's first samples are drawn beside the fast signals: one
round trip less where they are needed, two calls more where they are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import anyio

from grampus_uq.core.decision import leaves_word_out
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.core.worst_case import UNAIDED
from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.models.own_threads import OwnThreads
from grampus_uq.monitor.read_ahead import ReadAhead, read_beside
from grampus_uq.monitor.sensing_settings import Sensing, check_budgets, check_weights, own_budgets
from grampus_uq.records.call_parts import WHOLE_CALL
from grampus_uq.records.protocols import InstantSignal, ModelClient, Signal
from grampus_uq.records.values import Message, ModelResponse, Reading, Step
from grampus_uq.records.vocabulary import MissingReason, UncertaintySource
from grampus_uq.signals.call_reader import Reader
from grampus_uq.signals.claim_probability import MAX_TOKENS
from grampus_uq.signals.driver import (
    Budget,
    MeteredContext,
    cancel_requests,
    explained,
    read_instant,
    read_tokens,
    sense_all,
    sense_one,
    stop_if_cancelled,
)
from grampus_uq.signals.equivalence import SameWording
from grampus_uq.signals.prefix_verifier import PrefixVerifier
from grampus_uq.signals.registry import BUILT_IN
from grampus_uq.signals.semantic_entropy import SemanticEntropy
from grampus_uq.signals.token_signals import NO_TOKEN_READINGS, TOKEN_SOURCES
from grampus_uq.signals.verbalized import ElicitedConfidence, VerbalizedConfidence
from grampus_uq.stats.fusion import is_count

LONG_COMPLETION: Final = 500
"""Tokens with log-probabilities above which a step is read in a worker thread: as many take about a millisecond."""
LONG_TEXT: Final = 16_000
"""Characters of tokens, times calls, above which a step is: each of its calls is sought in all of the text."""
_threads: Final = OwnThreads("reading", 8)


def _is_long(step: Step) -> bool:
    """Return True if the step's tokens take too long to read on the event loop."""
    tokens = step.logprobs or ()
    if len(tokens) > LONG_COMPLETION:
        return True
    return bool(step.tool_calls) and len(step.tool_calls) * sum(len(one.token) for one in tokens) > LONG_TEXT


_P_TRUE, _CALL = UncertaintySource.P_TRUE, UncertaintySource.CALL_PROBABILITY
_CLAIM: Final = UncertaintySource.CLAIM_PROBABILITY
_P_TRUE_NOT_NEEDED: Final = Reading(source=_P_TRUE, value=None, reason=MissingReason.NOT_NEEDED)
_WITH_P_TRUE: Final = frozenset({"p_true", "fused", UNAIDED, "propagated", "p_success", "semantic_entropy"})
"""The streams that P(True) may be a part of; samples are drawn where the fusion, with it, asks for them."""


def _tokens_tell(policy: UncertaintyPolicy, step: Step, readings: Sequence[Reading]) -> bool:
    """True where all calls of a step are irreversible, and each part of each of them was found in its tokens."""
    calls = step.tool_calls
    parts = next((one.parts for one in readings if one.source == _CALL and one.value is not None), ())
    if not parts or not all(policy.is_irreversible(c.name) and "arguments" in c.model_fields_set for c in calls):
        return False
    found = all(part.probability is not None and part.name != WHOLE_CALL for part in parts)
    return found and {part.call for part in parts} == set(range(len(calls)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """Input of a step besides the step itself: prompt, model client, and available tools."""

    messages: Sequence[Message] = ()
    client: ModelClient | None = None
    model: str = ""
    tools: Sequence[Mapping[str, Any]] | None = None
    tools_known: bool = False
    """The caller said which tools there are, so that a step without calls proposes none."""
    over_cap: bool = False
    ahead: ReadAhead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SensingPlan:
    """The signals that a monitor runs; immutable, shared by all its sessions."""

    instant: tuple[InstantSignal, ...]
    fast: tuple[Signal, ...]
    slow: SemanticEntropy | None
    unasked: tuple[InstantSignal, ...] = ()
    """Those of `fast` that can also read by themselves: what is left of them while the model may not be asked."""
    own: tuple[Signal, ...] = ()
    """The user's signals that only sense: awaited on every step, since they need not ask the model."""
    brings_model: bool = False
    """Some signal asks a model of its own, so that it can be asked on a step that comes without one."""
    asks_of_calls: bool = True
    """False where P(True) is not asked of a step whose irreversible calls were read from their own tokens."""
    asks_of_answers: bool = True
    """False where P(True) is not asked of an answer in words that was read from its own tokens."""
    reader: Reader | None = None
    counts: bool = False
    """True when what the agent does is counted (`signals.structure`)."""
    origins: bool = False
    speculative: bool = False
    budget: Budget = field(default_factory=Budget)
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    max_overhead: float | None = None
    """The monitor's tokens as a share of the agent's, at most; None: no cap."""
    names: frozenset[str] = frozenset()
    """Names of all readings that these signals give."""

    @classmethod
    def of(cls, profile: Profile, sensing: Sensing | None = None) -> SensingPlan:
        """The signals that both policy and estimator enable, the user's own, and counts where a fit is on them.

        Raises ConfigurationError for two of one name, and for a budget or a weight of no signal.
        """
        sensing = sensing or Sensing()
        estimator, policy = profile.estimator, profile.policy
        instant: list[InstantSignal] = []
        fast: list[Signal] = []
        if sensing.repairs is None:
            instant.append(VerbalizedConfidence())
        else:
            fast.append(ElicitedConfidence(repairs=sensing.repairs))
        own = {signal.source for signal in sensing.signals}
        built_in = [
            known.make()
            for known in BUILT_IN
            if known.make is not None
            and not (known.replaceable and known.source in own)
            and (not known.switch or (getattr(policy, known.switch) and getattr(estimator, known.switch)))
        ]
        for signal in (*built_in, *sensing.signals):
            if isinstance(signal, Signal):
                fast.append(signal)
            else:
                instant.append(signal)
        slow = None
        if policy.enable_semantic_sampling and estimator.allows_semantic_sampling():
            slow = estimator.semantic_signal(sensing.equivalence or SameWording())
        names = (
            [*TOKEN_SOURCES, UncertaintySource.CLAIM_PROBABILITY, UncertaintySource.CALL_PROBABILITY]
            + [UncertaintySource.TRAJECTORY_RISK, UncertaintySource.ORIGIN_PROBABILITY]
            + [s.source for s in instant]
            + [s.source for s in fast]
            + [s.source for s in (slow, sensing.reader) if s is not None]
            + ([UncertaintySource.CALL_AGREEMENT] if slow else [])
        )
        twice = {str(name) for name in names if names.count(name) > 1}
        if twice:
            way_out = "Rename yours: a built-in signal has this name, or another of yours."
            raise ConfigurationError.of("signals", "Sensing", "of distinct names", sorted(twice), way_out)
        check_budgets(sensing.budgets, names)
        check_weights(estimator.extra_weights, names)
        depends = policy.call_floor is None or not _WITH_P_TRUE.isdisjoint(profile.fitted_streams)
        asks_of = {"calls": sensing.ask_of_calls or depends}
        asks_of["answers"] = sensing.ask_of_answers or depends or slow is not None
        if estimator.p_true_spared is not None:
            asks_of = {turns: turns not in estimator.p_true_spared for turns in asks_of}
        return cls(
            names=frozenset(str(name) for name in names),
            instant=tuple(instant),
            fast=tuple(fast),
            slow=slow,
            unasked=tuple(signal for signal in fast if isinstance(signal, InstantSignal)),
            own=tuple(s for s in sensing.signals if isinstance(s, Signal) and not isinstance(s, InstantSignal)),
            reader=sensing.reader,
            brings_model=sensing.reader is not None
            or any(isinstance(signal, PrefixVerifier) and signal.client is not None for signal in fast),
            asks_of_calls=asks_of["calls"],
            asks_of_answers=asks_of["answers"],
            counts=sensing.counts or any(map(is_count, profile.fitted_streams)),
            origins=sensing.origins or UncertaintySource.ORIGIN_PROBABILITY in profile.fitted_streams,
            speculative=sensing.speculative,
            budget=sensing.budget or Budget(),
            budgets=own_budgets(slow, sensing) | dict(sensing.budgets),
            max_overhead=sensing.max_overhead,
        )

    @property
    def asks(self) -> bool:
        """True when some signal needs a model."""
        return bool(self.fast) or self.slow is not None or self.reader is not None

    async def sense(self, profile: Profile, step: Step, given: StepInput, problem: str | None) -> list[Reading]:
        """All readings of a step: a long one's tokens in a worker thread. Raises nothing but cancellation."""
        if _is_long(step):
            tokens = await _threads.run(partial(read_tokens, step, given.messages, given.tools))
            readings = [*(read_instant(signal, step) for signal in self.instant), *tokens]
        else:
            readings = self.read(step, given.messages, problem, given.tools)
        asked = self.asks and (given.client is not None or self.brings_model)
        if not asked:
            readings += self.read_unasked(step)
            if not self.own:
                return readings
        requests = cancel_requests()
        readings += await (self.ask(profile, step, readings, given) if asked else self._fast(step, given, self.own))
        await stop_if_cancelled(requests)  # a client may have made another exception of it
        return readings

    def read(
        self,
        step: Step,
        messages: Sequence[Message] = (),
        problem: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Reading]:
        """The readings that need no model and no waiting; `problem` says why log-probabilities are missing."""
        readings = []
        for signal in self.instant:
            readings.append(read_instant(signal, step))  # noqa: PERF401 (before Python 3.12 a comprehension is a call)
        readings += NO_TOKEN_READINGS if step.logprobs is None else read_tokens(step, messages, tools)
        return readings if problem is None else [explained(reading, problem) for reading in readings]

    def over_cap(self, state: SessionState, step: Step) -> bool:
        """True once the monitor's tokens reach their share of the agent's; the step that does may overshoot it."""
        if self.max_overhead is None:
            return False
        spent = state.monitor_tokens
        agent_tokens = state.agent_tokens + step.input_tokens + step.output_tokens
        return spent >= self.max_overhead * agent_tokens if spent else self.max_overhead == 0.0

    def read_unasked(self, step: Step) -> list[Reading]:
        """The readings of asking signals when there is no model to ask: those that can read by themselves."""
        return [read_instant(signal, step) for signal in self.unasked]

    async def ask(self, profile: Profile, step: Step, instant: Sequence[Reading], given: StepInput) -> list[Reading]:
        """The readings that need a model; missing ones included, with reasons. Raises nothing but cancellation."""
        fast, unneeded = self.fast, []
        if self._tokens_suffice(profile.policy, step, instant, given):
            fast = tuple([signal for signal in fast if signal.source != _P_TRUE])
            unneeded = [_P_TRUE_NOT_NEEDED] * (len(self.fast) - len(fast))
        if self.reader is None:
            return unneeded + await self._ask(profile, step, [*instant, *unneeded], given, fast)
        needed = any(profile.policy.is_irreversible(call.name) for call in step.tool_calls)
        context, readings = self._context(self.reader, given), list[Reading]()
        read = partial(read_beside, self.reader, step, context, given.ahead, needed=needed, over_cap=given.over_cap)
        async with anyio.create_task_group() as group:
            group.start_soon(read, readings)
            asked = await self._ask(profile, step, [*instant, *unneeded], given, fast)
        return unneeded + asked + readings

    def _tokens_suffice(
        self, policy: UncertaintyPolicy, step: Step, readings: Sequence[Reading], given: StepInput
    ) -> bool:
        """True where a step's own tokens take the place of P(True)."""
        if step.tool_calls:
            return not self.asks_of_calls and _tokens_tell(policy, step, readings)
        if self.asks_of_answers or not given.tools_known or step.kind != "llm_call":
            return False
        if len(step.logprobs or ()) > MAX_TOKENS:  # later words are not read
            return False
        return any(one.source == _CLAIM and one.value is not None for one in readings)

    async def _ask(
        self, profile: Profile, step: Step, instant: Sequence[Reading], given: StepInput, fast: tuple[Signal, ...]
    ) -> list[Reading]:
        if given.over_cap:
            return self._over_cap(step, fast)
        if self.slow is None:
            return await self._fast(step, given, fast)
        slow, drawn = self.slow, list[ModelResponse | ModelError]()
        if self.speculative:
            context = self._context(slow, given)

            async def draw() -> None:
                drawn.extend(await slow.first_samples(step, context))

            async with anyio.create_task_group() as group:
                group.start_soon(draw)
                readings = await self._fast(step, given, fast)
        else:
            readings = await self._fast(step, given, fast)
            context = self._context(slow, given)  # its clock starts after the fast path
        if slow.source in profile.always_there or _needs_sampling(profile, [*instant, *readings]):
            readings += _by_argument(
                await sense_one(
                    slow.source,
                    lambda metered: slow.sense_from(drawn, step, metered) if drawn else slow.sense(step, metered),
                    context,
                )
            )
        elif context.calls:
            unused = Reading(source=slow.source, value=None, reason=MissingReason.NOT_NEEDED)
            readings.append(context.metered(unused))  # the drawn pair was not needed, but it was paid for
        return readings

    def _over_cap(self, step: Step, fast: Sequence[Signal]) -> list[Reading]:
        """Return the readings that ask no model, and the rest as missing because the monitor's budget is spent."""
        stated = [reading for reading in self.read_unasked(step) if reading.value is not None]
        names = [s.source for s in fast] + ([self.slow.source] if self.slow else [])
        silent = [name for name in names if all(reading.source != name for reading in stated)]
        return stated + [Reading(source=n, value=None, reason=MissingReason.OVERHEAD_CAP) for n in silent]

    async def _fast(self, step: Step, given: StepInput, fast: Sequence[Signal]) -> list[Reading]:
        if not fast:
            return []
        return await sense_all(fast, step, lambda signal: self._context(signal, given))

    def _context(self, signal: Signal, given: StepInput) -> MeteredContext:
        budget = self.budgets.get(signal.source, self.budget)
        client, model = given.client, given.model
        if isinstance(signal, PrefixVerifier | Reader) and signal.client is not None:
            client, model = signal.client, signal.model
        return MeteredContext(messages=given.messages, client=client, model=model, tools=given.tools, budget=budget)


def _needs_sampling(profile: Profile, readings: Sequence[Reading]) -> bool:
    """True when samples are due with what the model states or, where that releases no call, without it."""
    heard = [readings]
    if leaves_word_out(profile):
        heard.append([reading for reading in readings if reading.source != UncertaintySource.VERBALIZED])
    return any(map(profile.estimator.needs_sampling, heard))


def _by_argument(reading: Reading) -> list[Reading]:
    """The reading of the samples; beside it what they say of a call argument by argument: the least agreement."""
    shares = [part.agreement for part in reading.parts if part.agreement is not None]
    if not shares:
        return [reading]
    agreement = Reading(source=UncertaintySource.CALL_AGREEMENT, value=min(shares), parts=reading.parts)
    return [replace(reading, parts=()), agreement]
