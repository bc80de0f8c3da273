"""The values that travel: what a model, a tool or a human said, and what the monitor made of it.

Everything here is immutable. Values that users build or that leave the process are pydantic models; values that only
travel inside are frozen, slotted dataclasses, and `pydantic.TypeAdapter` reads and writes them as JSON. A missing
number is `None` with a reason beside it; no record accepts NaN or infinity.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Final, SupportsFloat

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.building import built_model
from grampus_uq.records.call_parts import CallDoubt, CallPart, Unit, doubt_with_values
from grampus_uq.records.configuration import Configuration, checked
from grampus_uq.records.vocabulary import (
    Effect,
    StopReason,
    UncertaintyAction,
    UncertaintyLevel,
    UncertaintySource,
    parse_effect,
)
from grampus_uq.records.vocabulary import Role as Role
from grampus_uq.stats.stored_values import FROZEN

_MOST: Final = 2**53
_MOST_NS: Final = 2**62
_MOST_USD: Final = 1e12
Count = Annotated[int, Field(ge=0, le=_MOST)]
"""A number of things; a sum of a thousand fits into 64 bits."""
Nanoseconds = Annotated[int, Field(ge=0, le=_MOST_NS)]
"""Since 1970 (UTC)."""
Cost = Annotated[float, Field(ge=0.0, le=_MOST_USD)]
"""US dollars; a sum of costs stays finite."""
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_SETTINGS: Final[Any] = (_CANONICAL.default, json.encoder.encode_basestring, None, ":", ",", True, False, False)
_make: Final[Any] = getattr(json.encoder, "c_make_encoder", None)  # CPython's; None elsewhere
_encoder: Final[Any] = None if _make is None else _make(None, *_SETTINGS)


def canonical_json(value: Any) -> str:
    """Write a JSON value in one way only: keys sorted at every depth, no spaces, no NaN.

    >>> canonical_json({"b": 1, "a": {"d": [2], "c": None}})
    '{"a":{"c":null,"d":[2]},"b":1}'
    """
    if _encoder is not None:
        try:
            return "".join(_encoder(value, 0))  # what `encode` does in the end, in a fifth of its time
        except RecursionError:
            pass  # `encode` tells a circle, of which this one keeps no account
    return _CANONICAL.encode(value)


def _as_read(value: Any) -> Any:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        found = {unicodedata.normalize("NFC", key): _as_read(one) for key, one in value.items()}
        return found if len(found) == len(value) else {key: _as_read(one) for key, one in value.items()}
    return [_as_read(one) for one in value] if isinstance(value, list) else value


def sha256_of(text: str) -> str:
    """SHA-256 of a text in hex, also of one that holds half a character."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class ToolCall(BaseModel):
    """A call that the model proposes: nothing has run yet."""

    model_config = FROZEN

    id: str = ""
    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)

    @classmethod
    def trusted(cls, call_id: str, name: str, arguments: dict[str, Any] | None) -> ToolCall:
        """Build, unchecked, from arguments that are JSON values already, or None where the call came without any."""
        values = {"id": call_id, "name": name, "arguments": {} if arguments is None else arguments}
        return built_model(cls, values, {"id", "name"} if arguments is None else {"id", "name", "arguments"})

    def canonical(self) -> str:
        """Name and canonical arguments, equal for calls that differ only in the order of keys."""
        return f"{self.name}({canonical_json(self.arguments)})"

    def __eq__(self, other: object) -> bool:
        """Equal as it is signed: 1, 1.0 and True are three different arguments."""
        if self is other:
            return True
        return isinstance(other, ToolCall) and self.matches(other.id, other.name, other.arguments)

    def matches(self, call_id: str, name: str, arguments: dict[str, Any]) -> bool:
        """True if this is exactly this call as signed. Raises TypeError or ValueError where it is not JSON."""
        if (self.id, self.name) != (call_id, name):
            return False
        return self.arguments is arguments or canonical_json(self.arguments) == canonical_json(arguments)

    def __hash__(self) -> int:
        return hash((self.id, self.name))

    def digest(self) -> str:
        """SHA-256 of the canonical form, in hex; an approval is bound to it."""
        return sha256_of(self.canonical())

    def likeness(self) -> str:
        """The digest of the call as JSON readers see it: equal for calls that many tools treat as one.

        1 and 1.0 are one number to JSON Schema, and a letter with its accent is one or two characters. For what is to
        hold a call back because of an equal one; what lets a call run is bound to `digest`.
        """
        return ToolCall.trusted(self.id, self.name, _as_read(self.arguments)).digest()

    def is_among(self, known: Collection[str]) -> bool:
        """True if one of these is the likeness of this call, or its digest as stored by earlier releases."""
        return bool(known) and (self.likeness() in known or self.digest() in known)


class ToolResult(BaseModel):
    """The answer of a tool; `is_error` is set by the executor when the tool failed."""

    model_config = FROZEN

    tool_call_id: str
    output: Any = ""
    duration_ms: float = 0.0
    is_error: bool = False

    def text(self) -> str:
        """The output for the model: text unchanged, anything else as canonical JSON."""
        if isinstance(self.output, str):
            return self.output
        try:
            return canonical_json(self.output)
        except (TypeError, ValueError):
            return str(self.output)


class Message(BaseModel):
    """One entry of a transcript."""

    model_config = FROZEN

    role: Role
    content: str | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class TokenUsage(BaseModel):
    """Tokens and money of one or several model calls; `cost_usd` is None when no price is known."""

    model_config = FROZEN

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    total_tokens: int = Field(default=0, ge=0)
    cost_usd: float | None = None
    model: str = ""

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """Sum; the cost is known as soon as one of the two is, the model only while both agree."""
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return TokenUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cost_usd=math.fsum(costs) if costs else None,
            model=self.model if self.model == other.model or not other.model else other.model if not self.model else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One generated token, its natural log-probability, and the alternatives the model reported at that place."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class ModelResponse(BaseModel):
    """The answer of a model. `logprobs` is None when the model reports none.

    `logprobs_problem` says why reported ones could not be read; they then count as a missing reading.
    """

    model_config = FROZEN

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    token_usage: TokenUsage = Field(default_factory=TokenUsage)
    model: str = ""
    stop_reason: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    logprobs_problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action of an agent, as the monitor sees it. `time_s` is seconds since 1970 (UTC), set when the step was seen.

    `effect` is the effect of a tool step's tool, resolved once when the step was seen, so that a replay
    needs no tool registry. The tokens are the agent's own for this step, as its model reported them.
    """

    step_id: str
    kind: str
    time_s: float
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    effect: Effect | None = None
    input_tokens: Count = 0
    output_tokens: Count = 0

    def __post_init__(self) -> None:
        if self.effect is not None and type(self.effect) is not Effect:
            object.__setattr__(self, "effect", parse_effect(self.effect, "Step"))

    @property
    def tool_name(self) -> str | None:
        """Name of the tool of a tool step, None on any other step."""
        return self.tool_calls[0].name if self.kind == "tool_call" and self.tool_calls else None

    def judged_text(self) -> str:
        """The text for a signal to judge: the model's own text and its proposed calls, name and canonical arguments."""
        if not self.tool_calls:
            return self.text
        calls = "\n".join(call.canonical() for call in self.tool_calls)
        return f"{self.text}\n{calls}" if self.text.strip() else calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The reading of one step by one signal: a confidence in [0, 1] (higher is better), or None and the reason.

    Calls, tokens and cost are the monitor's own, never the agent's. `samples` and `early_stopped` belong to sampling
    signals. Any kind of number (an int, numpy's) is kept as a float. Raises ValueError when the value is not a finite
    number in [0, 1] (a boolean is none), or is missing without a reason, and on anything that no recording can hold: a
    count that is not a whole number of at least 0, a cost or a time that is not finite, half a character.

    `parts` belong to a reading of proposed calls: their tools' names and arguments, one by one.
    """

    source: str
    value: float | None
    reason: str | None = None
    detail: str | None = None
    calls: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    cost_usd: Cost | None = None
    samples: Count = 0
    early_stopped: bool | None = None
    started_ns: Nanoseconds = 0
    duration_s: float = 0.0
    parts: tuple[CallPart, ...] = ()

    def __post_init__(self) -> None:
        if self.value is None:
            if self.reason is None:
                raise ValueError(f"A missing reading of {self.source!r} needs a reason.")
        else:
            if type(self.value) is not float:
                object.__setattr__(self, "value", _as_float(self.source, self.value))
            if not 0.0 <= self.value <= 1.0:  # also refuses NaN
                raise ValueError(f"A reading of {self.source!r} must be in [0, 1] or None. Got {self.value!r}.")
        counts = (self.calls, self.input_tokens, self.output_tokens, self.samples)
        rest = (self.started_ns, self.cost_usd, self.duration_s, self.early_stopped, self.parts)
        if (counts, rest) != _NOTHING_SPENT:
            _check_rest(self, counts)
        for text in (self.source, self.reason, self.detail):
            if text is not None and not text.isascii():
                text.encode()


_NOTHING_SPENT: Final = ((0, 0, 0, 0), (0, None, 0.0, None, ()))


def _check_rest(reading: Reading, counts: tuple[Any, ...]) -> None:
    cost, early = reading.cost_usd, reading.early_stopped
    if (
        all(type(count) is int and 0 <= count <= _MOST for count in counts)
        and type(reading.started_ns) is int
        and 0 <= reading.started_ns <= _MOST_NS
        and (cost is None or 0.0 <= cost <= _MOST_USD)
        and math.isfinite(reading.duration_s)
        and (early is None or type(early) is bool)
        and type(reading.parts) is tuple
    ):
        return
    got = {name: getattr(reading, name) for name in ("calls", "input_tokens", "output_tokens", "samples", "cost_usd")}
    raise ValueError(f"A reading of {reading.source!r} must say what it cost in finite numbers, at least 0. Got {got}.")


def _as_float(source: str, value: object) -> float:
    if isinstance(value, SupportsFloat) and not type(value).__name__.startswith("bool"):  # also numpy's
        with contextlib.suppress(TypeError):  # an array of several numbers
            return float(value)
    raise ValueError(f"A reading of {source!r} must be a number or None. Got {value!r:.200}.")


NO_READING: Final = "no reading on this step"
"""Last part of `StepUncertainty.missing_reason` on a step without any reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The policy's decision on a step or a proposed call, with its rule, numbers and guarantee.

    `guarantee` is the sentence of the statistical guarantee behind a pause, or None: no guarantee. `confidence` is the
    run's, in [0, 1], higher is better; None before the first reading. `advisory_action` is the action that the rules
    ask for where `action` is not bound by it: in an advisory session, or a run that explores. `doubt` is how sure the
    model was of the call that is asked about, None where that is unknown; `doubt_in_words` says it with the values that
    were likely too, which the reason, being recorded and sent, leaves out.
    """

    action: UncertaintyAction
    level: UncertaintyLevel
    rule: str
    reason: str
    guarantee: str | None = None
    confidence: float | None = None
    advisory_action: UncertaintyAction | None = None
    doubt: CallDoubt | None = field(default=None, compare=False)

    @property
    def doubt_in_words(self) -> str:
        """The part that the model was least sure of, with other likely values, made visible; empty if unknown."""
        return "" if self.doubt is None else doubt_with_values(self.doubt)

    @property
    def allowed(self) -> bool:
        """True when the agent may go on."""
        return not self.action.stops


def _unit_or_not_run(value: float) -> float:
    if value != -1.0 and not 0.0 <= value <= 1.0:
        raise ValueError("must be in [0, 1], or -1 where it was not run")
    return value


class StepUncertainty(BaseModel):
    """The monitor's conclusion from one step.

    `verbalized_confidence`, `p_true_confidence` and `fused_confidence` are plain floats: 0.5 stands for "none
    stated" or "no reading", -1.0 for "not run"; `missing_reason` says which numbers are not evidence.
    `p_success` is a calibrated probability and None until a fitted profile supplies one.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="forbid", use_enum_values=False)

    step_id: str
    step_type: str
    index: Count
    verbalized_confidence: Unit = 0.5
    p_true_confidence: Annotated[float, AfterValidator(_unit_or_not_run)] = -1.0
    token_probability: Unit | None = None
    token_entropy: Unit | None = None
    semantic_confidence: Unit | None = None
    fused_confidence: Unit = 0.5
    propagated_confidence: Unit
    p_success: Unit | None = None
    trajectory_risk: Annotated[float, Field(ge=0.0)] | None = None
    level: UncertaintyLevel
    sources: tuple[UncertaintySource, ...] = ()
    action: UncertaintyAction
    rule: str = "tier"
    guarantee: str | None = None
    reflection_injected: bool = False
    reasoning: str = ""
    samples_used: Count = 0
    missing_reason: str | None = None
    tool_name: str | None = None
    effect: Effect | None = None
    log_e_value: float | None = None
    log_threshold: float | None = None
    alpha: float | None = None
    alarm_mode: str | None = None
    advisory_action: UncertaintyAction | None = None
    timestamp: datetime

    @property
    def believed(self) -> float | None:
        """The propagated confidence; None before the session's first reading, where it is at its start of 1.

        A belief of 1 that rests on readings is LOW, since no threshold is higher; without any it never is.
        """
        unread = self.propagated_confidence == 1.0 and self.level is not UncertaintyLevel.LOW
        return None if unread else self.propagated_confidence

    @property
    def was_read(self) -> bool:
        """True if this step had a reading; without one `fused_confidence` is 0.5, which is not evidence."""
        return self.missing_reason is None or not self.missing_reason.endswith(NO_READING)

    @property
    def verdict(self) -> Verdict:
        """The decision as one value."""
        return Verdict(
            action=self.action,
            level=self.level,
            rule=self.rule,
            reason=self.reasoning,
            guarantee=self.guarantee,
            confidence=self.believed,
            advisory_action=self.advisory_action,
        )

    @classmethod
    def trusted(cls, values: dict[str, Any]) -> StepUncertainty:
        """Build without validation, which costs more than the rest of a step: every field given, typed, finite.

        A test holds that both are equal. All share one set of "fields that were set", which nobody may change.
        """
        built: StepUncertainty = _new(_StepDraft)  # as in `records.building`; these four make up a pydantic model
        built.__dict__ = values
        built.__pydantic_fields_set__ = _ALL_STEP_FIELDS
        built.__pydantic_extra__ = built.__pydantic_private__ = None
        built.__class__ = cls
        return built


_new: Final[Any] = object.__new__
_THAWED: Final = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
# Made by `type`, without a schema of its own, which it never needs.
_StepDraft: Final = type.__new__(type(StepUncertainty), "StepUncertainty", (StepUncertainty,), _THAWED)
_ALL_STEP_FIELDS = set(StepUncertainty.model_fields)


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a run: `success` is None while unknown; `stop_reason`, or its name ("clean"), says why it ended.

    `right_looks` names the tiers whose other call, as recorded (`LookEvent`), would have been right.
    Raises ConfigurationError for a `success` that is neither true, false nor None, and for an unknown stop reason.
    """

    success: bool | None
    stop_reason: StopReason = StopReason.CLEAN
    labelled_by: str | None = None
    time_s: float = 0.0
    note: str | None = None
    right_looks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.success is not None:
            if type(self.success).__name__ not in ("bool", "bool_"):  # numpy's is not a subclass
                raise ConfigurationError.of("success", "Outcome", "True, False, or None while unknown", self.success)
            object.__setattr__(self, "success", bool(self.success))
        if not math.isfinite(self.time_s):
            raise ConfigurationError.of("time_s", "Outcome", "finite seconds since 1970", self.time_s)
        try:
            object.__setattr__(self, "stop_reason", StopReason(self.stop_reason))
        except ValueError:
            rule = f"one of {', '.join(StopReason)}"
            raise ConfigurationError.of("stop_reason", "Outcome", rule, self.stop_reason) from None


class AgentDefinition(Configuration):
    """An agent: its name, its model and its system prompt."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    model: str = ""
    system_prompt: str = ""
    tools: tuple[Any, ...] = ()
    max_iterations: int = Field(default=25, ge=1)
    temperature: float | None = None


def utc(time_s: float) -> datetime:
    """Seconds since 1970 as an aware UTC time. Raises ConfigurationError for a time that no calendar has."""
    try:
        return datetime.fromtimestamp(time_s, UTC)
    except (OverflowError, OSError, TypeError, ValueError):
        rule = "seconds since 1970, before the year 10000"
        raise ConfigurationError.of("time_s", "Step", rule, time_s, "time.time() gives them.") from None
