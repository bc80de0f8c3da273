"""Messages as OpenTelemetry's GenAI conventions write them, in attributes and in events, of several years.

The present form is `gen_ai.input.messages` and `gen_ai.output.messages`: lists of `{role, parts}`, a part being `text`,
`tool_call`, `tool_call_response` or another `type`, on a span as JSON text. Before 1.37 they were span events
(`gen_ai.user.message`, `gen_ai.choice`, ...); OpenLLMetry wrote numbered attributes (`gen_ai.prompt.0.role`).

Source: opentelemetry.io/docs/specs/semconv/gen-ai (gen-ai-input-messages.json, gen-ai-output-messages.json, and
gen-ai-events of 1.36); traceloop/openllmetry, `opentelemetry-semantic-conventions-ai`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from grampus_uq.importers.foreign_messages import message_of, shown
from grampus_uq.importers.otlp import OtlpSpan
from grampus_uq.importers.record_fields import Refuse, decoded, object_of, role_of, text_or_none, tool_call
from grampus_uq.records.values import Message
from grampus_uq.records.vocabulary import Role

_DETAILS: Final = "gen_ai.client.inference.operation.details"
_EVENTS: Final = {
    "gen_ai.system.message": Role.SYSTEM,
    "gen_ai.user.message": Role.USER,
    "gen_ai.assistant.message": Role.ASSISTANT,
    "gen_ai.tool.message": Role.TOOL,
}
_NUMBERED: Final = re.compile(
    r"gen_ai\.(prompt|completion)\.(\d{1,4})\."
    r"(role|content|tool_call_id|tool_calls\.(\d{1,3})\.(id|name|arguments))",
    re.ASCII,
)


def given_and_answer(span: OtlpSpan) -> tuple[list[Message], Message | None]:
    """The messages given to the model and its answer; an empty list and None where the span has none.

    Raises DataError naming the attribute or the event.
    """
    refuse = span.place.error
    sources: list[Mapping[str, Any]] = [span.attributes]
    sources += [event.attributes for event in span.events if event.name == _DETAILS]
    given: list[Message] = []
    answers: list[Message] = []
    for attributes in sources:
        instructions = attributes.get("gen_ai.system_instructions")
        if instructions is not None and not given:
            parts = _structured(instructions, "gen_ai.system_instructions", refuse)
            given += _message({"role": "system", "parts": parts}, "gen_ai.system_instructions", refuse)
        for name, messages in (("gen_ai.input.messages", given), ("gen_ai.output.messages", answers)):
            if attributes.get(name) is not None:
                found = _structured(attributes[name], name, refuse)
                for number, item in enumerate(found):
                    messages += _message(item, f"{name}[{number}]", refuse)
    if not given and not answers:
        given, answers = _from_events(span, refuse)
    if not given and not answers:
        given, answers = _numbered(span.attributes, refuse)
    return given, answers[0] if answers else None


def _structured(value: Any, name: str, refuse: Refuse) -> list[Any]:
    value = decoded(value, name, refuse)
    if not isinstance(value, list):
        raise refuse(name, f"must be a list. Got {type(value).__name__}.")
    return value


def _message(value: Any, field: str, refuse: Refuse) -> list[Message]:
    """One message, or several: each answer of a tool is a message of its own here."""
    role = role_of(object_of(value, field, refuse).get("role"), f"{field}.role", refuse)
    parts = value.get("parts")
    if isinstance(parts, str) or (parts is None and isinstance(value.get("content"), str)):
        parts = [{"type": "text", "content": parts or value["content"]}]
    if not isinstance(parts, list):
        raise refuse(f"{field}.parts", f"must be a list. Got {type(parts).__name__}.")
    texts: list[str] = []
    calls = []
    answers: list[Message] = []
    for number, part in enumerate(parts):
        place = f"{field}.parts[{number}]"
        kind = object_of(part, place, refuse).get("type")
        if kind == "text":
            texts.append(text_or_none(part.get("content"), f"{place}.content", refuse) or "")
        elif kind == "tool_call":
            calls.append(tool_call(part, place, refuse))
        elif kind == "tool_call_response":
            content = part.get("response", part.get("result"))
            identity = text_or_none(part.get("id"), f"{place}.id", refuse)
            answers.append(Message(role=Role.TOOL, content=shown(content), tool_call_id=identity))
    if answers and not texts and not calls:
        return answers
    return [*answers, Message(role=role, content="\n".join(texts) or None, tool_calls=tuple(calls))]


def _from_events(span: OtlpSpan, refuse: Refuse) -> tuple[list[Message], list[Message]]:
    given: list[Message] = []
    answers: list[Message] = []
    for number, event in enumerate(span.events):
        field = f"events[{number}]"
        if event.name in _EVENTS:
            given.append(_event_message(event.attributes, _EVENTS[event.name], field, refuse))
        elif event.name == "gen_ai.choice":
            inner = event.attributes.get("message")
            body = (
                object_of(decoded(inner, f"{field}.message", refuse), f"{field}.message", refuse)
                if inner is not None
                else event.attributes
            )
            answers.append(_event_message(body, Role.ASSISTANT, field, refuse))
    return given, answers


def _event_message(body: Mapping[str, Any], role: Role, field: str, refuse: Refuse) -> Message:
    content = body.get("content")
    calls = body.get("tool_calls")
    listed = _structured(calls, f"{field}.tool_calls", refuse) if calls is not None else []
    return Message(
        role=role,
        content=None if content is None else shown(content),
        tool_calls=tuple(tool_call(call, f"{field}.tool_calls[{i}]", refuse) for i, call in enumerate(listed)),
        tool_call_id=text_or_none(body.get("id"), f"{field}.id", refuse) if role is Role.TOOL else None,
    )


def _numbered(attributes: Mapping[str, Any], refuse: Refuse) -> tuple[list[Message], list[Message]]:
    """OpenLLMetry's attributes: `gen_ai.prompt.<number>.<field>`."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for key, value in attributes.items():
        match = _NUMBERED.fullmatch(key)
        if match is None:
            continue
        entry = found.setdefault((match[1], int(match[2])), {"calls": {}})
        if match[4] is None:
            entry[match[3]] = value
        else:
            entry["calls"].setdefault(int(match[4]), {})[match[5]] = value
    sides: dict[str, list[Message]] = {"prompt": [], "completion": []}
    for (side, number), entry in sorted(found.items()):
        content = entry.get("content")
        message = {
            "role": entry.get("role", "assistant" if side == "completion" else None),
            "content": content if content is None else shown(content),
            "tool_calls": [call for _, call in sorted(entry["calls"].items())],
            "tool_call_id": entry.get("tool_call_id"),
        }
        sides[side].append(message_of(message, f"gen_ai.{side}.{number}", refuse))
    return sides["prompt"], sides["completion"]
