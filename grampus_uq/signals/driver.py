"""Runs signals concurrently, each bounded in time, calls and tokens; whatever goes wrong becomes a reason.

It catches `Exception`, since a signal is somebody else's code. Cancellation passes through.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel

from grampus_uq.errors import (
    ConfigurationError,
    ModelError,
    ModelTimeoutError,
    RateLimitedError,
    UnsupportedByModelError,
)
from grampus_uq.records.configuration import checked
from grampus_uq.records.protocols import InstantSignal, ModelClient, Signal
from grampus_uq.records.values import Message, ModelResponse, Reading, Step
from grampus_uq.records.vocabulary import MissingReason, UncertaintySource
from grampus_uq.signals.call_tokens import call_reading
from grampus_uq.signals.claim_probability import claim_reading
from grampus_uq.signals.token_signals import TOKEN_SOURCES, token_readings
from grampus_uq.wire.model_call import ask_model

T = TypeVar("T")

log = logging.getLogger("grampus_uq.signals")

FAILURES: Final = (Exception, SystemExit)
"""The failures of other people's code: what calls `sys.exit` ends no agent."""
AT_ONCE: Final = (*FAILURES, asyncio.CancelledError)
"""Those of code that is called without awaiting: nobody can cancel that from outside."""
_GRACE_S = 0.25  # a signal may still return what it has when its last model call ran into the deadline


class BudgetExceededError(ModelError):
    """A signal asked for more calls or tokens than its budget holds."""


class _NoModelError(ModelError):
    """A signal needs a model and the step came without one."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The budget of one signal on one step: seconds, model calls, and tokens (None: as many as the calls bring)."""

    timeout_s: float = 15.0
    max_calls: int = 8
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.timeout_s > 0.0:
            raise ConfigurationError.of("timeout_s", "Budget", "above 0 seconds", self.timeout_s)
        if self.max_calls < 0:
            raise ConfigurationError.of("max_calls", "Budget", "at least 0", self.max_calls)
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ConfigurationError.of("max_tokens", "Budget", "at least 0 or None", self.max_tokens)


@dataclass(slots=True, kw_only=True)
class MeteredContext:
    """One signal's way to the model for one step: counts every call, and refuses what the budget does not hold.

    A call that the model refused because of an option (logprobs, temperature) is counted in `refusals`, costs no tokens
    and is not charged to the budget of calls; the option is left out of the signal's further calls.
    """

    messages: Sequence[Message]
    client: ModelClient | None
    model: str
    budget: Budget
    tools: Sequence[Mapping[str, Any]] | None = None
    calls: int = 0
    refusals: int = 0
    refused: set[str] = field(default_factory=set)
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    started_ns: int = field(default_factory=time.time_ns)
    started: float = field(default_factory=time.perf_counter)

    async def ask(self, messages: Sequence[Message], **options: Any) -> ModelResponse:
        """Ask the step's model once; raises ModelError or one of its subclasses, nothing else but cancellation."""
        if self.client is None:
            raise _NoModelError("This step came without a model client.")
        spent = self.input_tokens + self.output_tokens
        if self.calls >= self.budget.max_calls or (
            self.budget.max_tokens is not None and spent >= self.budget.max_tokens
        ):
            raise BudgetExceededError(f"The signal's budget is spent: {self.calls} calls, {spent} tokens.")
        remaining_s = self.started + self.budget.timeout_s - time.perf_counter()
        if remaining_s <= 0.0:
            raise ModelTimeoutError(f"The signal's {self.budget.timeout_s} s are over.")
        self.calls += 1
        requests = cancel_requests()
        try:
            with anyio.fail_after(remaining_s):
                reply = await ask_model(
                    self.client, messages, self.model, options, refused=self.refused, on_refusal=self._count_refusal
                )
        except ModelError:
            raise
        except TimeoutError as error:
            raise ModelTimeoutError(f"No answer within {self.budget.timeout_s} s.") from error
        except FAILURES as error:
            raise ModelError(f"The model client raised {type(error).__name__}.") from error
        except asyncio.CancelledError as error:
            if cancelled_from_outside(requests):
                raise
            raise ModelError("The model client cancelled its own call.", retryable=True) from error
        usage = reply.token_usage
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        if usage.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + usage.cost_usd
        return reply

    def _count_refusal(self) -> None:
        self.refusals += 1

    def metered(self, reading: Reading) -> Reading:
        """The reading with what it cost."""
        return replace(
            reading,
            calls=self.calls + self.refusals,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cost_usd=self.cost_usd,
            started_ns=reading.started_ns or self.started_ns,
            duration_s=time.perf_counter() - self.started,
        )


def cancelled_from_outside(requests_before: float) -> bool:
    """Return True if a scope around the running task, or since `cancel_requests` was read the task, was cancelled.

    On asyncio anything may raise CancelledError: a client whose own inner task was cancelled (a closed connection pool,
    a lost leader) does. Passing that on would end an agent that nobody cancelled, and a task group would swallow it.
    Requests of earlier cancellations stay with a task whose code swallowed them.
    """
    return anyio.current_effective_deadline() == -math.inf or cancel_requests() > requests_before


def cancel_requests() -> int:
    """Cancellation requests that reached this asyncio task (its own, once it awaits); 0 on a loop that repeats them."""
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return 0
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling() - getattr(task, "_must_cancel", False)


async def stop_if_cancelled(requests_before: int) -> None:
    """Raise a cancellation requested after `cancel_requests` was read, even if other code swallowed it."""
    await anyio.lowlevel.checkpoint_if_cancelled()
    if cancelled_from_outside(requests_before):
        raise asyncio.CancelledError


def read_instant(signal: InstantSignal, step: Step) -> Reading:
    """Read an instant signal; what it raises, or returns in place of a reading, becomes a missing reading."""
    try:
        reading, source = signal.read(step), signal.source
        return reading if reading.source == source else replace(reading, source=source)
    except AT_ONCE as error:  # the signal driver: a failing signal must not stop the agent
        return _failed(signal.source, error)


def read_tokens(
    step: Step, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
) -> list[Reading]:
    """Read a step's own tokens, in themselves and against the prompt; an exception becomes missing readings."""
    readings = _guarded(TOKEN_SOURCES, lambda: token_readings(step))
    readings += _guarded((UncertaintySource.CLAIM_PROBABILITY,), lambda: [claim_reading(step, messages)])
    if step.tool_calls:
        readings += _guarded((UncertaintySource.CALL_PROBABILITY,), lambda: [call_reading(step, messages, tools or ())])
    return readings


def _guarded(sources: Sequence[str], read: Callable[[], list[Reading]]) -> list[Reading]:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 (the signal driver: a failing signal must not stop the agent)
        return [_failed(source, error) for source in sources]


def _log_failure(source: str, error: BaseException) -> None:
    """Name the kind of error and the last lines that it came through; never its text, which may quote a model."""
    frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), limit=-4, lookup_lines=False)
    places = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    log.warning("signal %s failed: %s (%s)", source, type(error).__name__, places)


def _failed(source: str, error: BaseException) -> Reading:
    _log_failure(source, error)
    return Reading(source=source, value=None, reason=MissingReason.SIGNAL_ERROR, detail=type(error).__name__)


def explained(reading: Reading, why: str | None) -> Reading:
    """A reading of log-probabilities that came and cannot be read (`why`): it is missing, was due, and says so."""
    broken = why is not None and reading.reason == MissingReason.NO_LOGPROBS
    return replace(reading, reason=MissingReason.BROKEN_LOGPROBS, detail=why) if broken else reading


async def sense_one(
    source: str, sense: Callable[[MeteredContext], Awaitable[Reading]], context: MeteredContext
) -> Reading:
    """Await one signal within its deadline; a failure, a timeout or nonsense becomes a missing reading."""

    async def sensed() -> Reading:
        reading = await sense(context)
        return context.metered(reading if reading.source == source else replace(reading, source=source))

    reading, reason, error = await _attempt(sensed, context.budget.timeout_s + _GRACE_S)
    if reading is not None:
        return reading
    if error is not None and reason is MissingReason.SIGNAL_ERROR:
        _log_failure(source, error)
    detail = None if error is None else type(error).__name__
    return context.metered(Reading(source=source, value=None, reason=reason, detail=detail))


async def within(
    source: str, work: Callable[[], Awaitable[T]], timeout_s: float
) -> tuple[T | None, MissingReason | None]:
    """Await work that asks no model within its deadline: what it gives, or why it gave nothing."""
    found, reason, error = await _attempt(work, timeout_s)
    if error is not None:
        _log_failure(source, error)
    return found, reason


async def _attempt(
    work: Callable[[], Awaitable[T]], timeout_s: float
) -> tuple[T | None, MissingReason | None, BaseException | None]:
    """What the work gives within its deadline, or why it gave nothing, and what it raised."""
    requests = cancel_requests()
    try:
        with anyio.move_on_after(timeout_s):
            return await work(), None, None
    except FAILURES as error:  # the signal driver: a failing signal must not stop the agent
        known = (reason for kind, reason in _REASONS if isinstance(error, kind))
        return None, next(known, MissingReason.SIGNAL_ERROR), error
    except asyncio.CancelledError as error:
        if cancelled_from_outside(requests):
            raise
        return None, MissingReason.SIGNAL_ERROR, error
    return None, MissingReason.TIMEOUT, None


_REASONS = (  # the first that fits
    (_NoModelError, MissingReason.NO_MODEL),
    (BudgetExceededError, MissingReason.BUDGET_EXCEEDED),
    (ModelTimeoutError, MissingReason.TIMEOUT),
    (RateLimitedError, MissingReason.RATE_LIMITED),
    (UnsupportedByModelError, MissingReason.UNSUPPORTED_BY_MODEL),
    (ModelError, MissingReason.MODEL_ERROR),
)


async def sense_all(
    signals: Sequence[Signal], step: Step, context_for: Callable[[Signal], MeteredContext]
) -> list[Reading]:
    """Await all signals side by side; the readings come back in the order of the signals."""
    if len(signals) == 1:
        return [await _sense(signals[0], step, context_for(signals[0]))]
    readings: list[Reading | None] = [None] * len(signals)

    async def run(index: int) -> None:
        readings[index] = await _sense(signals[index], step, context_for(signals[index]))

    async with anyio.create_task_group() as group:
        for index in range(len(signals)):
            group.start_soon(run, index)
    return [reading for reading in readings if reading is not None]


async def _sense(signal: Signal, step: Step, context: MeteredContext) -> Reading:
    return await sense_one(signal.source, lambda metered: signal.sense(step, metered), context)
