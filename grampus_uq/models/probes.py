"""One short question for each ability of a model: does it answer, report log-probabilities, vary, obey a format?"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from grampus_uq.errors import ModelError, ModelTimeoutError, UnsupportedByModelError
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ModelResponse, Role
from grampus_uq.signals.p_true import true_false_mass
from grampus_uq.wire.model_call import accepted_options, ask_model, parse_response

Verdict = tuple[str, str]

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "schema": {
            "type": "object",
            "properties": {"capital": {"type": "string"}},
            "required": ["capital"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The finding of a probe, and its cost.

    `verdict` is "works", "refused" (the model says that it does not take the parameter), "ignored" (it takes the
    parameter, without effect), "unusable" (it answers, but not in the form that was asked for), "timeout" or "failed".
    `detail` says it in words.
    """

    name: str
    verdict: str
    detail: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0

    @property
    def works(self) -> bool:
        """True when the ability can be used."""
        return self.verdict == "works"


class Meter:
    """A client that counts calls and tokens."""

    def __init__(self, client: ModelClient, model: str) -> None:
        self.client = client
        self.model = model
        self.calls = 0
        self.input_tokens = 0
        self.output_tokens = 0

    async def complete(self, *, messages: Sequence[Message], model: str = "", **options: Any) -> ModelResponse:
        """Ask the client once, and count. Raises `UnsupportedByModelError` for an option that the client has not."""
        given = {name: value for name, value in options.items() if value is not None}
        accepted = accepted_options(self.client)
        for name in given:
            if accepted is not None and name not in accepted:
                refusal = f"{type(self.client).__name__}.complete takes no {name}."
                raise UnsupportedByModelError(refusal, parameter="logprobs" if name == "top_logprobs" else name)
        self.calls += 1
        reply = await self.client.complete(messages=list(messages), model=model or self.model, **given)
        response = parse_response(reply)
        self.input_tokens += response.token_usage.input_tokens
        self.output_tokens += response.token_usage.output_tokens
        return response

    async def ask(self, messages: Sequence[Message], *, about: str = "", **options: Any) -> ModelResponse:
        """Ask without the options that the model refuses, unless the probe is `about` one of them."""
        return await ask_model(self, messages, self.model, options, needed=about)

    def refused(self, parameter: str) -> str | None:
        """The words with which the model refused a parameter that the client then left out, None when it did not."""
        capabilities = getattr(self.client, "capabilities", None)
        return None if capabilities is None else capabilities(self.model).refused.get(parameter)


async def probe(name: str, run: Callable[[Meter], Awaitable[Verdict]], meter: Meter, limit_s: float) -> ProbeResult:
    """Run one probe within its deadline; whatever the model does wrong becomes a verdict."""
    begun, calls, spent_in, spent_out = anyio.current_time(), meter.calls, meter.input_tokens, meter.output_tokens
    verdict, detail = "timeout", f"no answer within {limit_s:g} s"
    try:
        with anyio.move_on_after(limit_s):
            verdict, detail = await run(meter)
    except ModelTimeoutError as error:
        detail = str(error)
    except UnsupportedByModelError as error:
        verdict, detail = "refused", str(error)
    except ModelError as error:
        verdict, detail = "failed", str(error)
    return ProbeResult(
        name=name,
        verdict=verdict,
        detail=detail,
        calls=meter.calls - calls,
        input_tokens=meter.input_tokens - spent_in,
        output_tokens=meter.output_tokens - spent_out,
        seconds=round(anyio.current_time() - begun, 3),
    )


def asking(text: str) -> tuple[Message, ...]:
    """A transcript of one question."""
    return (Message(role=Role.USER, content=text),)


async def _answer(meter: Meter) -> Verdict:
    reply = await meter.ask(asking("What is the capital of France? Answer with one word."), max_tokens=1_024)
    if not reply.content.strip():
        return "unusable", f"the answer has no text (it stopped because of {reply.stop_reason!r})"
    return "works", f"answered {reply.content.strip()!r:.60}"


async def _logprobs(meter: Meter) -> Verdict:
    question = asking("Is Paris the capital of France? Reply with one word, True or False.")
    reply = await meter.ask(question, about="logprobs", temperature=0.5, max_tokens=8, top_logprobs=5)
    if words := meter.refused("logprobs"):
        return "refused", words
    if reply.logprobs is None:
        broken = reply.logprobs_problem
        return ("unusable", broken) if broken else ("ignored", "asked for log-probabilities, and none came")
    most = max(len(token.top) for token in reply.logprobs)
    if most < 2:
        return "unusable", "only the chosen token's log-probability comes, without alternatives"
    mass = true_false_mass(reply)
    seen = "hardly any mass on True or False" if mass is None else f"P(True) of a true statement is {mass:.2f}"
    hot = await meter.ask(question, temperature=1.0, max_tokens=8, top_logprobs=5)
    scaled = "; scaled by the temperature: ask at 1, below it each token looks surer than it is"
    return "works", f"{most} alternatives a token; {seen}{scaled if _is_scaled(reply, hot) else ''}"


def _is_scaled(cold: ModelResponse, hot: ModelResponse) -> bool:
    """Return True if, of the first token, the likelier alternative is less far before the next when asked hotter."""
    first, then = (dict(tokens[0].top) if (tokens := reply.logprobs) else {} for reply in (cold, hot))
    one, two, *_ = *sorted(first, key=lambda name: -first[name]), "", ""
    lead = first.get(one, 0.0) - first.get(two, 0.0)
    return lead > 0.5 and one in then and two in then and then[one] - then[two] < 0.75 * lead


async def _temperature(meter: Meter) -> Verdict:
    answers: list[str] = []

    async def draw(temperature: float) -> None:
        question = asking("Write one random number between 1000 and 9999, and nothing else.")
        reply = await meter.ask(question, about="temperature", temperature=temperature, max_tokens=16)
        answers.append(reply.content.strip())

    await draw(1.0)  # alone first: a refusal is then learnt before the others are sent
    if words := meter.refused("temperature"):
        return "refused", words
    failures: list[ModelError] = []

    async def guarded() -> None:
        try:
            await draw(1.0)
        except ModelError as error:
            failures.append(error)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(guarded)
    if failures:
        raise failures[0]
    distinct = len(set(answers))
    if distinct < 2:
        return "ignored", "four samples at temperature 1 are the same text: asking again tells nothing"
    return "works", f"{distinct} different texts in four samples at temperature 1"


async def _response_format(meter: Meter) -> Verdict:
    question = asking('What is the capital of France? Reply with JSON: {"capital": name}.')

    async def ask(wanted: dict[str, Any]) -> ModelResponse:
        about = "response_format"
        return await meter.ask(question, about=about, temperature=0.0, max_tokens=60, response_format=wanted)

    how = "json_schema"
    try:
        reply = await ask(_SCHEMA)
    except UnsupportedByModelError:
        how = "json_object"
        reply = await ask({"type": "json_object"})
    try:
        parsed = json.loads(reply.content)
    except (ValueError, RecursionError):
        return "unusable", f"asked for {how}, and {reply.content.strip()!r:.60} is not JSON"
    if not isinstance(parsed, dict) or "capital" not in parsed:
        return "unusable", f"JSON came, but not of the form that was asked for ({how})"
    return "works", f"{how} is obeyed"


async def _tools(meter: Meter) -> Verdict:
    question = asking("What is the weather in Paris now? Use the tool.")
    reply = await meter.ask(question, about="tools", temperature=0.0, max_tokens=200, tools=[_TOOL])
    names = [call.name for call in reply.tool_calls]
    if not names:
        return "unusable", f"no tool call came, but the text {reply.content.strip()!r:.60}"
    if "get_weather" not in names or not all("city" in call.arguments for call in reply.tool_calls):
        return "unusable", f"called {reply.tool_calls[0].canonical():.80}"
    return "works", f"called {reply.tool_calls[0].canonical():.80}"


PROBES: dict[str, Callable[[Meter], Awaitable[Verdict]]] = {
    "answer": _answer,
    "logprobs": _logprobs,
    "temperature": _temperature,
    "response_format": _response_format,
    "tools": _tools,
}
"""The probes by name, in the order in which they run; without an answer to the first the others are not tried."""
