"""The equations of the TRACER paper, written down a second time from raw chat messages: slow, plain, and on their own.

Nothing of the package is used but the embedder's vectors. Messages are in the chat form of tau-bench. Numbers in
brackets are the paper's equations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

Embed = Callable[[str], Sequence[float]]
Message = dict[str, Any]

STOP = "###STOP###"
PI_0, EPS = 0.95, 1e-4


def plain_words(text: str) -> list[str]:
    """Cut a text into runs of letters and digits; an apostrophe between two of them belongs to the word."""
    words, word = [], ""
    for place, character in enumerate(text):
        inside = character.isalnum()
        joins = character in "'’" and word != "" and place + 1 < len(text) and text[place + 1].isalnum()
        if inside or joins:
            word += "'" if joins else character
        elif word:
            words.append(word)
            word = ""
    return [*words, word] if word else words


def content(text: str, stop_words: frozenset[str]) -> set[str]:
    """ContTok (9) with the stop-word and numeric filters of (5)."""
    lowered = {word.casefold() for word in plain_words(text)}
    return {word for word in lowered if word not in stop_words and any(c.isalpha() for c in word)}


def signature(call: Message) -> str:
    """Name and arguments with keys sorted at every depth."""

    def write(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{write(value[k])}" for k in sorted(value)) + "}"
        if isinstance(value, list):
            return "[" + ",".join(write(item) for item in value) + "]"
        return json.dumps(value, ensure_ascii=False)

    return f"{call['function']['name']}({write(json.loads(call['function']['arguments']))})"


def cosine(u: Sequence[float], v: Sequence[float]) -> float:
    """sim_sem (8)."""
    dot = math.fsum(a * b for a, b in zip(u, v, strict=True))
    lengths = math.sqrt(math.fsum(a * a for a in u)) * math.sqrt(math.fsum(b * b for b in v))
    return dot / lengths if lengths else 0.0


def jaccard(first: set[str], second: set[str]) -> float:
    """sim_lex (9)."""
    return len(first & second) / len(first | second) if first | second else 0.0


def surprisal(tokens: Sequence[tuple[str, float]] | None, stop_words: frozenset[str]) -> float:
    """U_t (7) for tokens that are whole words with a blank before them; 0 without token probabilities (III-E)."""
    if not tokens:
        return 0.0
    kept = [
        min(20.0, -logprob) for token, logprob in tokens if math.exp(logprob) <= PI_0 and content(token, stop_words)
    ]
    return sum(kept) / len(kept) if kept else EPS


def steps_of(messages: Sequence[Message]) -> list[Message]:
    """The trajectory (1): agent steps with their observations, user steps; the closing turn is none."""
    steps: list[Message] = []
    for message in messages:
        if message["role"] == "assistant":
            calls = [signature(call) for call in message.get("tool_calls") or []]
            said = (message.get("content") or "").strip()
            steps.append({"agent": True, "said": said, "calls": calls, "seen": [], "tokens": message.get("tokens")})
        elif message["role"] == "tool":
            steps[-1]["seen"].append(message["content"].strip())
        elif message["role"] == "user" and STOP not in message["content"]:
            steps.append({"agent": False, "said": message["content"].strip(), "calls": [], "tokens": None})
    for step in steps:
        step["text"] = "\n".join(part for part in (step["said"], *step["calls"]) if part)
    return steps


def components(messages: Sequence[Message], embed: Embed, stop_words: frozenset[str]) -> list[tuple[float, ...]]:
    """U_t, D_rep, D_o^A and D_o^U of every step (7, 11, 14, 15), 0 where one is not defined."""
    rows: list[tuple[float, ...]] = []
    steps = steps_of(messages)
    for t, step in enumerate(steps):
        repetition = agent_gap = user_gap = 0.0
        if step["agent"]:
            window = [other for other in steps[:t] if other["agent"]][-3:]
            for other in window:
                semantic = cosine(embed(step["text"]), embed(other["text"]))
                lexical = jaccard(
                    content(step["said"], stop_words) | set(step["calls"]),
                    content(other["said"], stop_words) | set(other["calls"]),
                )
                repetition = max(repetition, semantic * lexical)
            seen = "\n".join(text for text in step["seen"] if text)
            if seen:
                agent_gap = 1.0 - cosine(embed(step["text"]), embed(seen))
        elif t > 0 and steps[t - 1]["agent"]:
            user_gap = 1.0 - cosine(embed(steps[t - 1]["text"]), embed(step["text"]))
        rows.append((surprisal(step["tokens"], stop_words), repetition, agent_gap, user_gap))
    return rows


def score(rows: Sequence[tuple[float, ...]], weights: Sequence[float], k: float, w: float) -> float:
    """TRACER (16-23): weighted maximum a step, tail mean, worst case."""
    risks = sorted(
        (max(weight * part for weight, part in zip(weights, row, strict=True)) for row in rows), reverse=True
    )
    count = max(1, math.floor(k * len(risks) + 1e-9))
    return (1.0 - w) * sum(risks[:count]) / count + w * risks[0]
