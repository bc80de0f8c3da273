"""Messages of a transcript, in every form that clients and frameworks keep them: objects or dicts.

OpenAI's chat and responses forms, LangChain's messages (objects, `type` and `data`, serialised constructors, pairs of
role and text), pydantic-ai's requests and responses, Anthropic's blocks, Gemini's contents, and our own records.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from grampus_uq.records.values import Message, ToolCall
from grampus_uq.records.vocabulary import Role
from grampus_uq.wire.calls import ReadCall, read_call
from grampus_uq.wire.fields import field, kind_of, text_field
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

ROLES: Final = {role.value: role for role in Role} | {
    "developer": Role.SYSTEM,
    "human": Role.USER,
    "HumanMessage": Role.USER,
    "HumanMessageChunk": Role.USER,
    "ai": Role.ASSISTANT,
    "model": Role.ASSISTANT,
    "AIMessage": Role.ASSISTANT,
    "AIMessageChunk": Role.ASSISTANT,
    "SystemMessage": Role.SYSTEM,
    "SystemMessageChunk": Role.SYSTEM,
    "function": Role.TOOL,
    "ToolMessage": Role.TOOL,
    "ToolMessageChunk": Role.TOOL,
    "FunctionMessage": Role.TOOL,
}
_PARTS: Final = {"system-prompt": Role.SYSTEM, "user-prompt": Role.USER}
_ANSWERS: Final = frozenset({"tool-return", "retry-prompt", "tool_result", "function_call_output"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMessages:
    """The messages that could be read, in order, and what is wrong with the first that could not."""

    messages: tuple[Message, ...]
    problem: str | None = None


def text_of(content: Any) -> str:
    """The text of a content: text as it is, and of a list of parts those that are text, joined. Never raises.

    >>> text_of([{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "refusal", "refusal": "b"}])
    'ab'
    """
    if isinstance(content, str):
        return replace_lone_surrogates(content)
    if content is None:
        return ""
    if isinstance(content, list | tuple):
        return replace_lone_surrogates("".join(part if isinstance(part, str) else _part_text(part) for part in content))
    return replace_lone_surrogates(_part_text(content))


def leading_system(messages: Iterable[Any] | str | None) -> str:
    """The standing instructions of a prompt: its system messages before any other, of any framework."""
    given = () if isinstance(messages, str) else messages or ()
    read = itertools.chain.from_iterable(read_messages(message).messages for message in given)
    system = itertools.takewhile(lambda message: message.role is Role.SYSTEM, read)
    return "\n\n".join(message.content or "" for message in system)


def said_by_users(messages: Any) -> list[str]:
    """The words of users after the latest answer, in order; of messages in any form, or a text. Never raises.

    >>> said_by_users([{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Pay Bob."}])
    ['Pay Bob.']
    """
    said: list[str] = []
    for message in [messages] if not isinstance(messages, list | tuple) else reversed(messages):
        read = read_messages(message).messages
        if any(one.role is Role.ASSISTANT for one in read):
            break
        said[:0] = [one.content for one in read if one.role is Role.USER and one.content]
    return said


def observed_text(value: Any) -> str:
    """A tool's answer or a user's message as text: text as it is, that of parts, anything else as JSON. Never raises.

    >>> observed_text({"found": 2})
    '{"found": 2}'
    """
    text = text_of(value)
    if text or value is None or isinstance(value, str):
        return text
    try:
        return replace_lone_surrogates(json.dumps(value, ensure_ascii=False, default=str))
    except Exception:  # noqa: BLE001 (somebody else's object)
        return kind_of(value)


def _part_text(part: Any) -> str:
    return text_field(part, "text", "refusal") or (text_field(part, "content") if _kind(part) == "text" else "")


def calls_of(message: Any) -> tuple[ReadCall, ...]:
    """The calls that a message proposes, in order."""
    return tuple(map(read_call, proposed_in(message)))


def proposed_in(message: Any) -> list[Any]:
    """A message's calls as they stand there: in `tool_calls`, the older `function_call`, or blocks of its content."""
    listed, single = field(message, "tool_calls"), field(message, "function_call")
    found = [*listed] if isinstance(listed, list | tuple) else []
    if found or single is not None:
        return found or [single]
    return _blocks(message, ("tool_use", "tool_call", "function_call"))


def answers_in(message: Any) -> list[Message]:
    """The answers of tools among a message's blocks: Anthropic's are the user's."""
    return list(map(_answer, _blocks(message, _ANSWERS)))


def _blocks(message: Any, kinds: Container[str]) -> list[Any]:
    content = field(message, "content")
    return [part for part in content if _kind(part) in kinds] if isinstance(content, list | tuple) else []


def read_messages(value: Any) -> ReadMessages:
    """Read a transcript: a list of messages of any of the forms above, one message, or one text of the user.

    Never raises: what is not a message is left out, and the `problem` says which it was.

    >>> [m.role.value for m in read_messages([{"role": "system", "content": "Be brief."}, ("user", "Hi")]).messages]
    ['system', 'user']
    """
    if value is None:
        return ReadMessages(messages=())
    if type(value) in (list, tuple) and all(type(item) is Message for item in value):
        return ReadMessages(messages=tuple(value))
    single = isinstance(value, str | bytes | Mapping | Message) or not isinstance(value, Iterable) or _named(value)
    problem = None
    found: list[Message] = []
    try:
        for place, item in enumerate([value] if single else value):
            read = _read(item)
            if read is None:
                problem = problem or f"message {place} is none: {kind_of(item)}"
            else:
                found += read
    except Exception as error:  # noqa: BLE001 (somebody else's object)
        problem = problem or f"they cannot be read ({type(error).__name__})"
    return ReadMessages(messages=tuple(found), problem=problem)


def _named(value: Any) -> bool:
    """Return True for an iterable object that is one message (a pydantic model is iterable)."""
    return not isinstance(value, list | tuple) and field(value, "role", "type", "parts") is not None


def _kind(item: Any) -> str:
    return text_field(item, "type", "part_kind")


def _read(item: Any) -> list[Message] | None:
    """The messages in one entry; None when it is none."""
    if isinstance(item, Message):
        return [item]
    if isinstance(item, str):
        return [Message(role=Role.USER, content=replace_lone_surrogates(item))]
    if isinstance(item, list | tuple):
        pair = len(item) == 2 and isinstance(item[0], str) and item[0] in ROLES
        return [Message(role=ROLES[item[0]], content=text_of(item[1]))] if pair else None
    kind = _kind(item)
    inner = field(item, "kwargs") if kind == "constructor" else field(item, "data")
    if isinstance(inner, Mapping):  # LangChain's: {"lc": 1, "type": "constructor", "id": [..., "AIMessage"], "kwargs"}
        names = field(item, "id")
        kind = str(names[-1]) if kind == "constructor" and isinstance(names, list) and names else kind
        item = inner
    parts = field(item, "parts")
    if isinstance(parts, list | tuple):
        return _of_parts(item, parts)
    known = ROLES.get(text_field(item, "role") or kind)
    if known is not None:
        return _messages(item, known)
    if kind in _ANSWERS or kind.endswith("_call_output"):
        return [_answer(item)]
    if kind.endswith("_call"):
        return [Message(role=Role.ASSISTANT, tool_calls=(read_call(item).call,))]
    return [] if kind in ("reasoning", "item_reference", "compaction") else None


def _messages(item: Any, role: Role) -> list[Message]:
    if role is Role.TOOL:
        return [_answer(item)]
    content = field(item, "content")
    found: list[Message] = []
    if role is Role.USER:
        found = answers_in(item)
        if found and not text_of(content):
            return found
    calls: tuple[ToolCall, ...] = ()
    if role is Role.ASSISTANT:
        calls = tuple(read.call for read in calls_of(item))
        content = content if content is not None else field(item, "refusal")
    text, name = None if content is None else text_of(content), text_field(item, "name") or None
    return [*found, Message(role=role, content=text, name=name, tool_calls=calls)]


def _answer(item: Any) -> Message:
    identity = text_field(item, "tool_call_id", "call_id", "tool_use_id")
    return Message(
        role=Role.TOOL,
        content=_rendered(item) or observed_text(field(item, "content", "output", "response")),
        name=text_field(item, "name", "tool_name") or None,
        tool_call_id=identity or None,
    )


def _rendered(item: Any) -> str:
    """A tool's answer as pydantic-ai shows it to the model."""
    render = None if isinstance(item, Mapping) else field(item, "model_response_str", "model_response")
    shown = render() if callable(render) else None
    return replace_lone_surrogates(shown) if isinstance(shown, str) else ""


def _of_parts(item: Any, parts: Iterable[Any]) -> list[Message]:
    """A request or a response of pydantic-ai, a content of Gemini."""
    instructions = text_field(item, "instructions")
    found = [Message(role=Role.SYSTEM, content=replace_lone_surrogates(instructions))] if instructions else []
    speaker = ROLES.get(text_field(item, "role"), Role.USER)
    texts: list[str] = []
    calls: list[ToolCall] = []
    for part in parts:
        kind = _kind(part)
        if kind in _ANSWERS:
            found.append(_answer(part))
        elif kind in _PARTS:
            found.append(Message(role=_PARTS[kind], content=text_of(field(part, "content"))))
        elif kind == "text":
            texts.append(text_of(part))
        elif kind == "tool-call" or field(part, "function_call", "functionCall") is not None:
            calls.append(read_call(part).call)
        elif (answer := field(part, "function_response", "functionResponse")) is not None:  # Gemini's
            found.append(_answer(answer).model_copy(update={"tool_call_id": text_field(answer, "id") or None}))
        elif (said := text_of(part)) and speaker is Role.ASSISTANT:
            texts.append(said)
        elif said:
            found.append(Message(role=speaker, content=said))
    if texts or calls:
        found.append(Message(role=Role.ASSISTANT, content="\n".join(texts), tool_calls=tuple(calls)))
    return found
