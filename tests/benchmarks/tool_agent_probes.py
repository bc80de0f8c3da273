"""What a tool agent says when it is asked again about a call: four more draws, "is it right?", "how sure?"."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grampus_uq.records.values import Message, ModelResponse, ToolCall
from grampus_uq.records.vocabulary import Role
from tests.benchmarks.tool_agent_model import JsonCalls, as_chat, written

_DRAWS = 4
_TEMPERATURE = 0.8
_RIGHT = "Is this call right by the rules and by what was said and returned? Answer with one word, True or False."
_SURE = "How sure are you that this call is right, from 0 to 100? Answer with the number only."


async def ask_again(
    client: JsonCalls, asked: Sequence[Message], call: ToolCall, tools: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Ask about the call that answered the messages; what is returned is a line of `probes.jsonl`."""
    begun = time.perf_counter()
    draws = [await client.complete(messages=asked, tools=tools, temperature=_TEMPERATURE) for _ in range(_DRAWS)]
    calls = [reply.tool_calls[0] if reply.tool_calls else None for reply in draws]
    found: dict[str, Any] = {
        "call": [call.name, call.arguments],
        "draws": [None if one is None else [one.name, one.arguments] for one in calls],
        "draw_s": (time.perf_counter() - begun),
        "draw_tokens": sum(reply.token_usage.input_tokens + reply.token_usage.output_tokens for reply in draws),
    }
    talk = [*as_chat(asked, tools, client.examples), Message(role=Role.ASSISTANT, content=written(call))]
    for name, question, tokens in (("ctx_true", _RIGHT, 2), ("sure", _SURE, 4)):
        begun = time.perf_counter()
        reply = await client.complete(
            messages=[*talk, Message(role=Role.USER, content=question)],
            temperature=0.0,
            max_tokens=tokens,
            top_logprobs=20,
        )
        found[name] = _shown(reply) | {"s": time.perf_counter() - begun}
    return found


def _shown(reply: ModelResponse) -> dict[str, Any]:
    top = [[one.token, one.logprob, [list(pair) for pair in one.top]] for one in reply.logprobs or ()]
    usage = reply.token_usage
    return {"text": reply.content, "top": top, "tokens": usage.input_tokens + usage.output_tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One score of one call, higher is surer; None where it is not there. With what it cost beside the agent."""

    value: float | None
    tokens: float | None = 0.0
    seconds: float = 0.0


def drawn_calls(probe: dict[str, Any]) -> Iterator[ToolCall | None]:
    """The calls that were proposed when asked again; None for another answer."""
    return (ToolCall(name=draw[0], arguments=draw[1]) if draw else None for draw in probe.get("draws", ()))


def probe_scores(call: ToolCall, probe: dict[str, Any]) -> dict[str, Score]:
    """What asking again gave: agreement of the whole call and of its least agreed part, P(True), a stated number."""
    drawn = list(drawn_calls(probe))
    alike = [draw is not None and _equal(draw, call) for draw in drawn]
    true, sure = probe.get("ctx_true", {}), probe.get("sure", {})
    stated = str(sure.get("text", "")).strip().rstrip("%")
    values = {
        "redraws": float(np.mean(alike)) if alike else None,
        "redraws_by_part": part_agreement(call, drawn),
        "asked_true": _true_share(true),
        "asked_sure": int(stated) / 100 if stated.isdecimal() else None,
    }
    draws = (probe.get("draw_tokens"), float(probe.get("draw_s", 0.0)))
    asked = [(answer.get("tokens"), float(answer.get("s", 0.0))) for answer in (true, sure)]
    return {  # None for tokens that were not counted
        name: Score(value=value, tokens=tokens, seconds=seconds)
        for (name, value), (tokens, seconds) in zip(values.items(), [draws, draws, *asked], strict=True)
    }


def _equal(one: ToolCall, other: ToolCall) -> bool:
    return one.name == other.name and one.arguments == other.arguments


def part_agreement(call: ToolCall, drawn: Sequence[ToolCall | None]) -> float | None:
    """The share of redraws that agree on the part they agree on least."""
    if not drawn:
        return None
    shares = [np.mean([draw is not None and draw.name == call.name for draw in drawn])]
    for name, value in call.arguments.items():
        shares.append(np.mean([draw is not None and draw.arguments.get(name) == value for draw in drawn]))
    return float(min(shares))


def _true_share(answer: dict[str, Any]) -> float | None:
    """p(True) / (p(True) + p(False)) over the alternatives of the first token."""
    top = answer.get("top")
    if not top:
        return None
    masses = {"true": 0.0, "false": 0.0}
    for text, logprob in top[0][2]:
        if text.strip().lower() in masses:
            masses[text.strip().lower()] += math.exp(logprob)
    total = sum(masses.values())
    return masses["true"] / total if total else None
