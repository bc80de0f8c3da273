"""Examine a model: which of its abilities work, which signals they carry, what each costs, what is lost without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import anyio

from grampus_uq.models.chat_client import checked_timeout
from grampus_uq.models.probes import PROBES, Meter, ProbeResult, asking, probe
from grampus_uq.records.protocols import ModelClient, Signal
from grampus_uq.records.values import Message, ModelResponse, Reading, Step, ToolCall
from grampus_uq.records.vocabulary import MissingReason, UncertaintySource
from grampus_uq.signals.call_tokens import call_reading
from grampus_uq.signals.driver import Budget, MeteredContext, explained, read_tokens, sense_one
from grampus_uq.signals.p_true import PTrue
from grampus_uq.signals.registry import BUILT_IN
from grampus_uq.signals.semantic_entropy import SemanticEntropy
from grampus_uq.signals.stated_confidence import parse_confidence
from grampus_uq.signals.verbalized import elicit_confidence

_EASY = "What is the capital of France? Answer in one short sentence."
_RIGHT, _WRONG = "The capital of France is Paris.", "The capital of France is Lyon."
# Nobody can know this one, so a confidence that means anything is lower here than on the easy question.
_IMPOSSIBLE = "Which card am I going to draw from a shuffled deck of 52? Answer in one short sentence."

# A call of which one argument stands in the request and nothing else does: right, and wrong by that argument.
_REQUEST = "Order A17 arrived broken. I paid 42.50 EUR for it. Refund it."
_REFUND = {
    "name": "refund",
    "description": "Pay money back. It cannot be undone.",
    "parameters": {
        "type": "object",
        "properties": {"order": {"type": "string"}, "amount": {"type": "number"}},
        "required": ["order", "amount"],
    },
}
_CALLS = {
    name: ToolCall(id="doctor", name="refund", arguments={"order": "A17", "amount": amount})
    for name, amount in (("right call", 42.5), ("wrong call", 4250.0))
}

_step = partial(Step, step_id="doctor", kind="llm_call", time_s=0.0)

# A smaller difference between the two answers of the P(True) check is called weak; one pair proves nothing either way.
_TELLS_APART = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalCheck:
    """The check of one signal on the model, with the cost of one step.

    `works` is True when the signal had a value. `weak` says, in words, why the value may carry little ("" when nothing
    spoke against it). `calls`, tokens and `seconds` are for one step; calls of the agent itself are not counted.
    """

    source: str
    works: bool
    weak: str = ""
    reason: str | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    lost_without: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Findings of an examination. `answers` is False if the model gave no answer; then nothing else was tried."""

    model: str
    client: str
    answers: bool
    abilities: tuple[ProbeResult, ...]
    signals: tuple[SignalCheck, ...]
    calls: int
    input_tokens: int
    output_tokens: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return asdict(self)


async def examine(
    client: ModelClient, *, model: str = "", timeout_s: float = 30.0, tell: Callable[[str], None] = lambda what: None
) -> Examination:
    """Try everything that the signals need on a model, with about 20 short calls.

    `client` is used and not closed; `tell` hears the name of each probe before it runs. `timeout_s`, above 0, is the
    deadline of every single probe: a model that hangs is reported after one of them. A model that fails is a result.
    Raises `ConfigurationError` when `timeout_s` cannot be right or the client cannot be used as it was set up.
    """
    limit_s = checked_timeout(timeout_s, "examine")
    meter = Meter(client, model)
    begun = anyio.current_time()
    findings: list[ProbeResult] = []
    for name, run in PROBES.items():
        tell(name)
        findings.append(await probe(name, run, meter, limit_s))
        if name == "answer" and not findings[0].works:
            break
    signals = await _signals(meter, limit_s, findings, tell) if findings[0].works else []
    return Examination(
        model=model,
        client=repr(client),
        answers=findings[0].works,
        abilities=tuple(findings),
        signals=tuple(signals),
        calls=meter.calls,
        input_tokens=meter.input_tokens,
        output_tokens=meter.output_tokens,
        seconds=round(anyio.current_time() - begun, 3),
    )


async def _signals(
    meter: Meter, limit_s: float, findings: Sequence[ProbeResult], tell: Callable[[str], None]
) -> list[SignalCheck]:
    """Take each signal's reading as a monitor would, on an answer whose truth is known."""
    tell("token signals")
    reply, cost = await _ask(meter, limit_s, asking(_EASY), top_logprobs=5, max_tokens=40)
    checks = [*_tokens(reply), await _call(meter, limit_s, findings)]
    tell("P(True)")
    checks.append(await _p_true(meter, limit_s))
    tell("semantic entropy")
    varies = all(finding.verdict != "ignored" for finding in findings if finding.name == "temperature")
    checks.append(await _semantic_entropy(meter, limit_s, varies))
    tell("stated confidence")
    checks.append(await _stated(meter, limit_s, cost))
    return checks


def _tokens(reply: ModelResponse | None) -> list[SignalCheck]:
    """The two signals that read the log-probabilities of an answer that the agent asked for anyway: no further cost."""
    logprobs, problem = (None, None) if reply is None else (reply.logprobs, reply.logprobs_problem)
    readings = [explained(reading, problem) for reading in read_tokens(_step(logprobs=logprobs), ())[:2]]
    return [_check(reading.source, {"answer": reading}) for reading in readings]


async def _call(meter: Meter, limit_s: float, findings: Sequence[ProbeResult]) -> SignalCheck:
    """The tokens of a proposed call; of one written as JSON text where the model calls no tools."""
    native = any(finding.name == "tools" and finding.works for finding in findings)
    wanted: dict[str, Any] = {"tools": [{"type": "function", "function": _REFUND}]}
    if not native:
        written = {"name": {"type": "string", "enum": [_REFUND["name"]]}, "arguments": _REFUND["parameters"]}
        schema = {"type": "object", "properties": written, "required": list(written)}
        wanted = {"response_format": {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}}
    form = '{"name": "refund", "arguments": {"order": ..., "amount": ...}}'
    asked = _REQUEST if native else f"{_REQUEST} Answer as JSON: {form}"
    reply, cost = await _ask(meter, limit_s, asking(asked), **wanted, temperature=0.0, top_logprobs=5, max_tokens=200)
    calls = () if reply is None else reply.tool_calls if native else _written(reply.content)
    if calls and reply is not None:
        reading = call_reading(_step(tool_calls=tuple(calls), logprobs=reply.logprobs))
        reading = explained(reading, reply.logprobs_problem)
    else:
        reason = cost.reason or MissingReason.NOT_PROPOSED
        reading = Reading(source=UncertaintySource.CALL_PROBABILITY, value=None, reason=reason)
    weak = "" if native else "only of calls written as JSON text: the model calls no tools by itself"
    return _check(reading.source, {"call": reading}, weak)


def _written(text: str) -> list[ToolCall]:
    """The call that a text writes as JSON."""
    try:
        return [ToolCall(id="doctor", **json.loads(text))]
    except (TypeError, ValueError, RecursionError):
        return []


async def _p_true(meter: Meter, limit_s: float) -> SignalCheck:
    signal = PTrue()
    steps = {"right": _step(text=_RIGHT), "wrong": _step(text=_WRONG)}
    steps |= {name: _step(tool_calls=(call,)) for name, call in _CALLS.items()}
    readings = {
        name: await _sense(meter, limit_s, signal, step, _REQUEST if step.tool_calls else _EASY)
        for name, step in steps.items()
    }
    weak = [
        f"hardly tells a right {what} from a wrong one"
        for what, right, wrong in (("answer", "right", "wrong"), ("call", "right call", "wrong call"))
        if _alike(readings[right].value, readings[wrong].value)
    ]
    return _check(signal.source, readings, "; ".join(weak))


def _alike(right: float | None, wrong: float | None) -> bool:
    return right is not None and wrong is not None and right - wrong < _TELLS_APART


async def _semantic_entropy(meter: Meter, limit_s: float, varies: bool) -> SignalCheck:
    signal = SemanticEntropy(max_tokens=40)
    reading = await _sense(meter, limit_s, signal, _step(text=_RIGHT))
    weak = "" if varies else "samples are the same text whatever the question, so they always agree"
    return _check(signal.source, {"answer": reading}, weak)


async def _stated(meter: Meter, limit_s: float, plain: Reading) -> SignalCheck:
    """The confidence that the model states beside its answer when it is asked for one: what that adds to the answer."""
    readings: dict[str, Reading] = {}
    for name, question in (("easy", _EASY), ("impossible", _IMPOSSIBLE)):
        reply, cost = await _ask(meter, limit_s, elicit_confidence(asking(question)), temperature=0.0, max_tokens=120)
        value, reason = (None, cost.reason) if reply is None else parse_confidence(reply.content)
        readings[name] = Reading(
            source=UncertaintySource.VERBALIZED,
            value=value,
            reason=reason,
            input_tokens=max(0, cost.input_tokens - plain.input_tokens),
            output_tokens=max(0, cost.output_tokens - plain.output_tokens),
            duration_s=max(0.0, cost.duration_s - plain.duration_s),
        )
    weak = ""
    easy, impossible = readings["easy"].value, readings["impossible"].value
    if easy is not None and impossible is not None and easy <= impossible:
        weak = "states no less confidence on a question that nobody can answer"
    return _check(UncertaintySource.VERBALIZED, readings, weak)


async def _ask(
    meter: Meter, limit_s: float, messages: Sequence[Message], **options: Any
) -> tuple[ModelResponse | None, Reading]:
    """Ask through the driver of the signals, which omits refused options; the reading has the cost, or the reason."""
    replies: list[ModelResponse] = []

    async def sense(context: MeteredContext) -> Reading:
        replies.append(await context.ask(messages, **options))
        return Reading(source="doctor", value=1.0)

    cost = await sense_one("doctor", sense, _context(meter, limit_s))
    return (replies[0] if replies else None), cost


def _context(meter: Meter, limit_s: float, request: str = _EASY) -> MeteredContext:
    budget = Budget(timeout_s=limit_s, max_calls=8)
    return MeteredContext(messages=asking(request), client=meter, model=meter.model, budget=budget)


async def _sense(meter: Meter, limit_s: float, signal: Signal, step: Step, request: str = _EASY) -> Reading:
    """One reading as a monitor would take it, bounded by the deadline."""
    context = _context(meter, limit_s, request)
    return await sense_one(signal.source, lambda context: signal.sense(step, context), context)


def _check(source: str, readings: Mapping[str, Reading], weak: str = "") -> SignalCheck:
    """Combine several readings of one signal; the costs are those of the most expensive step."""
    taken = list(readings.values())
    missing = next((reading.reason for reading in taken if reading.value is None), None)
    return SignalCheck(
        source=str(source),
        works=missing is None,
        weak=weak,
        reason=missing,
        values={name: round(reading.value, 4) for name, reading in readings.items() if reading.value is not None},
        calls=max(reading.calls for reading in taken),
        input_tokens=max(reading.input_tokens for reading in taken),
        output_tokens=max(reading.output_tokens for reading in taken),
        seconds=round(max(reading.duration_s for reading in taken), 3),
        lost_without=next(signal.lost_without for signal in BUILT_IN if signal.source == source),
    )
