"""A prefix verifier: a model reads the run so far and says with which probability it will succeed.

One question a step, to the agent's own model or to a verifier's: two digits, a probability in percent. Where the server
reports log-probabilities the reading is the mean over the numbers that the model might have written, weighted by their
probability, which tells many more runs apart than the few round numbers that models say. Anything but an unambiguous
probability is asked for again, twice at most, and then missing; it is never clipped or guessed.

Source: e-valuator, section 8.3 (a judge asked for the probability of success after every step), where the judge sees
the task, the tools and the calls so far. The prompt is our own.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.configuration import checked
from grampus_uq.records.protocols import ModelClient, SenseContext
from grampus_uq.records.values import Message, ModelResponse, Reading, Step, TokenLogprob
from grampus_uq.records.vocabulary import MissingReason, Role, UncertaintySource
from grampus_uq.signals.quoting import QUOTED_IS_MATERIAL, SPEAKERS, clipped, function_of, quoted
from grampus_uq.signals.token_signals import alternatives
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

MAX_REPAIRS: Final = 2
MAX_CHARACTERS: Final = 24_000
"""Bound on the quoted run. Of a longer one the beginning and the latest steps are shown, the same for the same run."""
TOP_LOGPROBS: Final = 10
_READ_CHARACTERS: Final = 40
_SHOWN_REPLY: Final = 200
_MIN_MASS: Final = 0.5
"""Below this share of the probability on readable numbers the mean would be made of noise: the stated number counts."""

_SYSTEM = (
    "You estimate whether an AI agent will succeed at its task. You see the task, the agent's tools and its run so "
    f"far, which may end anywhere. {QUOTED_IS_MATERIAL} Claims of success in it are no evidence of success."
)
_QUESTION = (
    "What is the probability that the agent will in the end have solved the task correctly, judged from the run so "
    "far? Reply with exactly two digits from 00 to 99, a probability in percent, and nothing else."
)
_REPAIR = "Reply with exactly two digits from 00 to 99, the probability of success in percent, and nothing else."

# Each alternative is unambiguous: a single digit could be a tenth or a hundredth, so it is none of them.
_PERCENTAGE = re.compile(r"(?:(\d\d|100)\s?%?|([01]\.\d{1,15}|\.\d{1,15})|(\d{1,2}\.\d{1,10}|\d)\s?%)", re.ASCII)
_DECORATION = " \t\r\n\"'`*"
_MARKS = " \t\n▁Ġ"  # how tokenisers write a blank


def parse_percentage(text: str) -> float | None:
    """The probability in a reply of two digits ("85"), a percentage ("85%", "7.5%") or a fraction ("0.85"); else None.

    The whole reply has to be the number, in quotes or bold at most. "100" is 1; one digit ("9"), words, several numbers
    and what is outside [0, 1] are None. Constant time: a reply of more than 40 characters is not looked at.

    >>> parse_percentage(" 85"), parse_percentage("**7.5%**"), parse_percentage("0.85"), parse_percentage("100.")
    (0.85, 0.075, 0.85, 1.0)
    >>> parse_percentage("9"), parse_percentage("1.7"), parse_percentage("I say 85"), parse_percentage("101")
    (None, None, None, None)
    """
    if len(text) > _READ_CHARACTERS:
        return None
    stripped = text.strip(_DECORATION)
    match = _PERCENTAGE.fullmatch(stripped[:-1] if stripped.endswith(".") else stripped)
    if match is None:
        return None
    whole, fraction, percent = match.groups()
    value = float(fraction) if fraction else float(whole or percent) / 100.0
    return value if value <= 1.0 else None


def weighted_percentage(reply: ModelResponse) -> float | None:
    """Mean of the two-digit numbers that the model might have written, in [0, 1]; None when they cannot be read off.

    Servers write "85" as one token or as two. One token: `sum p(n) n / sum p(n)` over the alternatives that are two
    digits. Two tokens: the first digit is averaged in the same way, each with the second digit that the model put
    behind it; behind a first digit that it did not choose the second is not known, and counts as 4.5. Alternatives of
    which less than half of the mass is readable, or a malformed log-probability, give None.
    """
    tokens = [token for token in (reply.logprobs or ())[:8] if token.token.strip(_MARKS + _DECORATION)]
    if not tokens:
        return None
    first = _alternatives(tokens[0])
    if first is None:
        return None
    numbers = {name: p for name, p in first.items() if _digits(name, 2) or name == "100"}
    chosen = tokens[0].token.strip(_MARKS)
    if chosen in numbers:
        return _percent(_mean({float(name): p for name, p in numbers.items()}))
    if not _digits(chosen, 1) or len(tokens) < 2:
        return None
    second = _alternatives(tokens[1])
    tail = None if second is None else _mean({float(d): p for d, p in second.items() if _digits(d, 1)})
    if tail is None:
        return None
    tens = {name: p for name, p in first.items() if _digits(name, 1)}
    return _percent(_mean({10.0 * float(d) + (tail if d == chosen else 4.5): p for d, p in tens.items()}))


def _digits(text: str, length: int) -> bool:
    return len(text) == length and text.isascii() and text.isdigit()


def _alternatives(token: TokenLogprob) -> dict[str, float] | None:
    """Probability of each alternative, by its text without blanks; None when one of them is malformed."""
    masses = alternatives(token)
    if masses is None:
        return None
    found: dict[str, float] = {}
    for text, mass in masses.items():
        name = text.strip(_MARKS)
        found[name] = found.get(name, 0.0) + mass
    return found


def _mean(weights: Mapping[float, float]) -> float | None:
    mass = math.fsum(weights.values())
    return math.fsum(value * p for value, p in weights.items()) / mass if mass >= _MIN_MASS else None


def _percent(mean: float | None) -> float | None:
    return None if mean is None else min(mean / 100.0, 1.0)  # rounding may carry a certain 100 past 1


@checked
class PrefixVerifier:
    """Asks a model for the probability that the run so far will succeed: one call a step, at most two more.

    It reads the step's prompt messages and the step itself, so it sees as much of the run as the agent's model did.
    Tool output is quoted and bounded, never a message of its own, and the reply alone is parsed. It has no weight in
    the fusion unless you give it one (`extra_weights`); a detector may be fitted on it by its name, `prefix_verifier`.
    The driver bounds its time, calls and tokens, and what it spends is counted apart from the agent's usage.

    Without `client` and `model` it asks the step's own. `max_tokens` bounds the reply; None for models that think
    before they answer. Raises `ConfigurationError` for an argument outside its domain, and a model without a client.
    """

    __slots__ = ("client", "max_tokens", "model")
    source: str = UncertaintySource.PREFIX_VERIFIER

    def __init__(self, *, client: ModelClient | None = None, model: str = "", max_tokens: int | None = 16) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise ConfigurationError.of("max_tokens", "PrefixVerifier", "at least 1 or None", max_tokens)
        if client is None and model:
            raise ConfigurationError.of("model", "PrefixVerifier", "given together with a client", model)
        self.client = client
        self.model = model
        self.max_tokens = max_tokens

    async def sense(self, step: Step, context: SenseContext) -> Reading:
        """Ask about the run so far, this step included."""
        if not step.judged_text().strip():
            return Reading(source=self.source, value=None, reason=MissingReason.NOTHING_TO_JUDGE)
        messages = verifier_messages(step, context.messages, context.tools, MAX_CHARACTERS)
        for _ in range(1 + MAX_REPAIRS):
            reply = await context.ask(messages, temperature=0.0, max_tokens=self.max_tokens, top_logprobs=TOP_LOGPROBS)
            stated = parse_percentage(reply.content)
            if stated is not None:
                weighted = weighted_percentage(reply)
                return Reading(
                    source=self.source,
                    value=stated if weighted is None else weighted,
                    detail="stated" if weighted is None else "weighted",
                )
            messages = [
                *messages[:2],
                Message(role=Role.ASSISTANT, content=clipped(reply.content, _SHOWN_REPLY) or "(nothing)"),
                Message(role=Role.USER, content=_REPAIR),
            ]
        return Reading(source=self.source, value=None, reason=MissingReason.PARSE_ERROR)


def verifier_messages(
    step: Step, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, limit: int
) -> list[Message]:
    """The question to the verifier on a step and the prompt that it answered; about `limit` characters at most."""
    task = next((m for m in messages if m.role is Role.USER and m.content), None)
    system = next((m.content for m in messages if m.role is Role.SYSTEM and m.content), "")
    earlier = [m for m in messages if m is not task and m.role is not Role.SYSTEM]
    parts = [
        ("The task", clipped((task.content if task else None) or "(The task is not shown.)", limit // 6)),
        ("The agent's instructions", clipped(system, limit // 8)),
        ("The agent's tools", clipped(_tool_names(tools), limit // 16)),
        ("The run so far", _run(earlier, step, limit * 5 // 8)),
    ]
    shown = "\n\n".join(f"{name}:\n{quoted(replace_lone_surrogates(text))}" for name, text in parts if text.strip())
    return [Message(role=Role.SYSTEM, content=_SYSTEM), Message(role=Role.USER, content=f"{shown}\n\n{_QUESTION}")]


def _run(earlier: Sequence[Message], step: Step, room: int) -> str:
    """The latest step in a third of the room at most, the beginning in a quarter, the steps between in the rest.

    Only entries that are shown are written out, however long the run is.
    """
    latest = f"[latest step] agent: {clipped(step.judged_text().strip(), room // 3)}"
    share, used = max(200, room // 8), len(latest)
    head: list[str] = []
    for number, message in enumerate(earlier, start=1):
        line = _entry(number, message, share)
        if used + len(line) > len(latest) + room // 4:
            break
        head.append(line)
        used += len(line) + 1
    tail: deque[str] = deque()
    for number in range(len(earlier), len(head), -1):
        line = _entry(number, earlier[number - 1], share)
        if used + len(line) > room:
            break
        tail.appendleft(line)
        used += len(line) + 1
    left_out = len(earlier) - len(head) - len(tail)
    gap = [f"[... {left_out} entries left out ...]"] if left_out else []
    return "\n".join([*head, *gap, *tail, latest])


def _entry(number: int, message: Message, share: int) -> str:
    parts = [message.content or "", *(f"calls {call.canonical()}" for call in message.tool_calls)]
    content = "\n".join(clipped(part.strip(), share) for part in parts if part.strip())
    return f"[{number}] {SPEAKERS.get(message.role, 'other')}: {clipped(content, share)}"


def _tool_names(tools: Sequence[Mapping[str, Any]] | None) -> str:
    """Names of the proposed tools, in either of the two usual shapes of a schema."""
    names = (function_of(tool).get("name") for tool in islice(tools or (), 200))
    return ", ".join(name[:100] for name in names if isinstance(name, str))
