"""The JSON object that is a whole message or closes it, where a model states its confidence in the form asked for."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from grampus_uq.signals.stated import INVALID, parse_number

__all__ = ["ANSWER_FIELDS", "FIELDS", "ClosingObject", "closing_object"]

FIELDS = frozenset({"confidence", "confidence_score"})
ANSWER_FIELDS = FIELDS | {
    *(
        "answer",
        "final_answer",
        "final",
        "response",
        "reply",
        "solution",
        "conclusion",
        "summary",
        "decision",
        "choice",
    ),
    *("reason", "reasoning", "explanation", "rationale", "justification", "thought", "thoughts", "chain_of_thought"),
    *("action", "plan", "steps", "next_step", "next_steps", "next_action", "recommendation", "assumptions"),
}
"""What an answer has beside its confidence; an object with any other field may be a tool's result or a page's data."""
_OTHERS_FIELDS = frozenset(
    {"role", "tool", "tool_name", "tool_call_id", "tool_result", "tool_output", "observation"}
    | {"type", "arguments", "args", "parameters"}
)
_FIELD = re.compile(r"""["']confidence(?:_score)?["']\s{0,64}:""", re.IGNORECASE)
_FLAT = re.compile(
    r"""\{\s{0,64}(["'])confidence(?:_score)?\1\s{0,64}:\s{0,64}(["']?)([^\s"'{}\[\],]{1,60}(?:\s?%)?)\2\s{0,64},?\s{0,64}\}""",
    re.IGNORECASE,
)
_INFO = re.compile(r"[a-z0-9]{0,10}[ \t]{0,8}\n?", re.IGNORECASE)
_AFTER_SENTENCE = re.compile(r"[.!?:][*_)]{0,3}[ \t]{1,8}(?=\{)")
_CLOSING_WORDS = re.compile(
    r"\s{1,8}(?:done|finished|that is all|that's all|i hope this helps|let me know[^.\n]{0,60})"
    r"[.!]?\Z",
    re.IGNORECASE,
)
_LONGEST = 20_000
_MOST_STARTS = 8


_MOST_TEXTS = 100


class ClosingObject(NamedTuple):
    """What precedes the object, the values that it states (`INVALID` for no probability), and its other fields.

    It is the model's answer when it has no other fields than an answer has: any other may be a tool's result.
    """

    before: str
    values: tuple[float, ...] = ()
    is_answer: bool = True
    others: tuple[tuple[str, Any], ...] = ()

    @property
    def texts(self) -> list[str]:
        """What its other fields say, at any depth: the first hundred texts."""
        found: list[str] = []
        waiting: list[Any] = list(self.others)[::-1]
        while waiting and len(found) < _MOST_TEXTS:
            value = waiting.pop()
            if isinstance(value, str):
                found.append(value)
            elif isinstance(value, list | tuple):
                waiting += value[::-1]
        return found


def closing_object(text: str, *, other_scale: bool = False) -> ClosingObject:
    """Split a text into what precedes its closing JSON object, fenced or not, and the confidences that this one states.

    Only the object's own field counts: one further down belongs to what it describes. A text that does not close with
    an object is given back whole. Linear in the length of the text.

    >>> closing_object('It is Paris. {"confidence": 0.9}')
    ClosingObject(before='It is Paris. ', values=(0.9,), is_answer=True, others=())
    """
    stripped = text.strip()
    closing = _CLOSING_WORDS.search(stripped, max(0, len(stripped) - 100))
    stripped = stripped if closing is None else stripped[: closing.start()]
    before, inner = _fenced(stripped)
    if inner is not None:
        found = _read(inner, before, other_scale)
        return ClosingObject(text) if found is None else found
    if stripped.startswith("{"):
        found = _read(stripped, "", other_scale)
        if found is not None:
            return found
    if stripped.endswith("}"):
        for start in _starts(stripped):
            found = _read(stripped[start:], stripped[:start], other_scale)
            if found is not None:
                return found
    return ClosingObject(text)


def _fenced(text: str) -> tuple[str, str | None]:
    """What precedes a closing block of code that begins on a line of its own, and its content."""
    if not text.endswith("```"):
        return text, None
    start = text.rfind("```", 0, len(text) - 3)
    if start < 0 or text[text.rfind("\n", 0, start) + 1 : start].strip(" "):
        return text, None
    info = _INFO.match(text, start + 3)
    inner = text[info.end() if info else start + 3 : -3].strip()
    return (text[:start], inner) if inner.startswith("{") else (text, None)


def _starts(text: str) -> list[int]:
    """Where a closing object may begin, latest first: on a line of its own, or after a sentence on the last line."""
    last_line = text.rfind("\n") + 1
    after = _AFTER_SENTENCE.search(text, max(last_line, len(text) - _LONGEST))
    starts = [] if after is None else [after.end()]
    end = len(text)
    while len(starts) < _MOST_STARTS:
        end = text.rfind("\n{", max(0, len(text) - _LONGEST), end)
        if end < 0:
            break
        starts.append(end + 1)
    return starts


def _read(text: str, before: str, other_scale: bool) -> ClosingObject | None:
    """What an object states that is all of the text, after another one; None when the text is no such object."""
    try:
        fields = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return _malformed(text, before)
    if not isinstance(fields, tuple):
        return None
    names = {name.lower().replace(" ", "_") for name, _ in fields}
    if names & _OTHERS_FIELDS:
        return ClosingObject(before)
    values, others = [], []
    for name, value in fields:
        if name.lower() in FIELDS:
            values.append(_value(value, other_scale))
        else:
            others.append((name, value))
    return ClosingObject(before, tuple(values), names <= ANSWER_FIELDS, tuple(others))


_DECODER = json.JSONDecoder(object_pairs_hook=tuple)


def _value(value: Any, other_scale: bool) -> float:
    if isinstance(value, str):
        number = parse_number(value)
        other_scale = other_scale and "%" not in value
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        number = float(value) if is_number and 0 <= value <= 1 else None
    return INVALID if number is None or (other_scale and number > 0.0) else number


def _malformed(text: str, before: str) -> ClosingObject | None:
    """What is written like the object asked for and is not quite JSON: `.5`, `85 %`, single quotation marks."""
    flat = _FLAT.fullmatch(text)
    if flat is not None:
        value = parse_number(flat[3])
        return ClosingObject(before, (INVALID if value is None else value,))
    closed = text.endswith("}") or "}" not in text
    return ClosingObject(before, (INVALID,)) if closed and _FIELD.search(text) else None
