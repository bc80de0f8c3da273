"""Exports of OpenAI: the conversations of ChatGPT's data export, and logs of chat completions as JSON lines.

`conversations.json` is an array of conversations. Each is a tree of messages (`mapping`), of which the branch that ends
at `current_node` is what was last on the screen. OpenAI publishes no schema; these are the fields that its exports have
(mitkury/chatgpt-export-parser, `docs/chatgpt-data-export-format.md`).

A log line is one of: `{"messages": [...]}` (fine-tuning and distillation files), `{"request": {...}, "response":
{...}}`, a line of a batch's input (`custom_id`, `body`) or output (`custom_id`, `response.body`), or a chat completion
with `choices`, with or without its `messages` (platform.openai.com/docs/api-reference/chat and /batch).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from grampus_uq.importers.foreign_messages import message_of, messages_of
from grampus_uq.importers.imported_records import Refused, each_run, records
from grampus_uq.importers.imported_run import ImportedRun, MessageFacts
from grampus_uq.importers.json_stream import Element
from grampus_uq.importers.record_fields import logprobs, object_or_none, text_or_none, token_count, unix_time_s
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.values import Message, Outcome, ToolCall
from grampus_uq.records.vocabulary import Role

_ROLES: Final = {role.value: role for role in Role}
_SILENT: Final = frozenset({"thoughts", "reasoning_recap", "user_editable_context", "model_editable_context"})


def read_chatgpt(path: str | os.PathLike[str], *, on_refused: Refused | None = None) -> Iterator[ImportedRun]:
    """Yield the conversations of `conversations.json`, plain or gzip, holding one at a time; no outcome is known.

    An answer to another than everybody (`recipient`) is a call of that tool. Hidden system messages and the kinds that
    are no speech (thoughts, recaps, contexts) are left out.

    Raises DataError with path, line and field for a file that is no JSON. A conversation with a wrong field, without an
    answer, or whose id came before, is given to `on_refused` and left out; without `on_refused` it raises.
    """
    return each_run(records(path, on_refused), _conversation, on_refused, id_field="id")


def read_chat_logs(path: str | os.PathLike[str], *, on_refused: Refused | None = None) -> Iterator[ImportedRun]:
    """Yield the entries of a log of chat completions, plain or gzip, holding one at a time; no outcome is known.

    The answer is the first of `choices`, with its log-probabilities and tokens. An entry's id is its `custom_id`, else
    its `id`, else that of the completion, else its number in the file. Raises and refuses as `read_chatgpt`; an entry
    of a batch that failed is refused with its error.
    """
    return each_run(records(path, on_refused), _entry, on_refused, id_field="id")


def _conversation(element: Element) -> ImportedRun:
    value, refuse = element.value, element.error
    name = value.get("conversation_id", value.get("id"))
    if not isinstance(name, str) or not name:
        raise refuse("conversation_id", f"must be the id of a conversation. Got {name!r:.50}.")
    messages: list[Message] = []
    facts: dict[int, MessageFacts] = {}
    model = ""
    for place, node in _branch(element):
        item = object_or_none(node.get("message"), f"{place}.message", refuse)
        found = None if item is None else _chatgpt_message(item, f"{place}.message", element)
        if item is not None and found is not None:
            facts[len(messages)] = MessageFacts(
                time_s=unix_time_s(item.get("create_time"), f"{place}.message.create_time", refuse)
            )
            messages.append(found)
            slug = (object_or_none(item.get("metadata"), f"{place}.message.metadata", refuse) or {}).get("model_slug")
            model = slug if isinstance(slug, str) and found.role is Role.ASSISTANT else model
    return _imported(element, name, messages, facts, model)


def _imported(
    element: Element, name: str, messages: list[Message], facts: dict[int, MessageFacts], model: str
) -> ImportedRun:
    if not any(message.role is Role.ASSISTANT for message in messages):
        raise element.error("messages", "holds no message of the assistant, so no step.")
    return ImportedRun(
        run_id=name,
        path=element.path,
        line=element.line,
        messages=tuple(messages),
        outcome=Outcome(success=None),
        facts=facts,
        model=model,
    )


def _branch(element: Element) -> list[tuple[str, dict[str, Any]]]:
    """The nodes from the root to `current_node`; without one, to the last leaf."""
    mapping, refuse = element.value.get("mapping"), element.error
    if not isinstance(mapping, dict):
        raise refuse("mapping", f"must be an object. Got {type(mapping).__name__}.")
    at = element.value.get("current_node")
    if at is None:
        leaves = [key for key, node in mapping.items() if isinstance(node, dict) and not node.get("children")]
        at = leaves[-1] if leaves else None
    branch: list[tuple[str, dict[str, Any]]] = []
    passed: set[str] = set()
    while at is not None:
        place = f"mapping.{at!s:.50}"
        node = mapping.get(at) if isinstance(at, str) else None
        if not isinstance(node, dict):
            raise refuse(place, "must be a node of `mapping`.")
        if at in passed:
            raise refuse(f"{place}.parent", "is its own ancestor.")
        passed.add(at)
        branch.append((place, node))
        at = node.get("parent")
    return branch[::-1]


def _chatgpt_message(item: Any, field: str, element: Element) -> Message | None:
    refuse = element.error
    author = object_or_none(item.get("author"), f"{field}.author", refuse) or {}
    role = author.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise refuse(f"{field}.author.role", f"must be one of {', '.join(_ROLES)}. Got {role!r:.50}.")
    content = object_or_none(item.get("content"), f"{field}.content", refuse) or {}
    kind = text_or_none(content.get("content_type"), f"{field}.content.content_type", refuse) or "text"
    metadata = object_or_none(item.get("metadata"), f"{field}.metadata", refuse) or {}
    if kind in _SILENT or metadata.get("is_visually_hidden_from_conversation") is True:
        return None
    text = _chatgpt_text(content, f"{field}.content", element)
    recipient = text_or_none(item.get("recipient"), f"{field}.recipient", refuse) or "all"
    if role == "assistant" and recipient != "all":
        identity = text_or_none(item.get("id"), f"{field}.id", refuse) or ""
        call = ToolCall(id=identity, name=recipient, arguments=_spoken_arguments(text))
        return Message(role=Role.ASSISTANT, tool_calls=(call,))
    name = text_or_none(author.get("name"), f"{field}.author.name", refuse)
    return Message(role=_ROLES[role], content=text, name=name) if text or role == "assistant" else None


def _chatgpt_text(content: Any, field: str, element: Element) -> str:
    parts = content.get("parts")
    if parts is None:
        return text_or_none(content.get("text"), f"{field}.text", element.error) or ""
    if not isinstance(parts, list):
        raise element.error(f"{field}.parts", f"must be a list. Got {type(parts).__name__}.")
    texts = [part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | dict)]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _spoken_arguments(text: str) -> dict[str, Any]:
    """The arguments in a text to a tool: its JSON object, else the text itself."""
    try:
        found = parse_json(text) if text.lstrip().startswith("{") else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"input": text}


def _entry(element: Element) -> ImportedRun:
    value, refuse = element.value, element.error
    request, asked = _part(value, ("request", "body"), element)
    response, answered = _response(value, element)
    given = request.get("messages")
    messages = list(messages_of(given, f"{asked}messages", refuse)) if given is not None else []
    facts: dict[int, MessageFacts] = {}
    choices = response.get("choices")
    if choices is not None:
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise refuse(f"{answered}choices", f"must be a list of choices. Got {choices!r:.50}.")
        place = f"{answered}choices[0]"
        answer = message_of(choices[0].get("message"), f"{place}.message", refuse)
        usage = object_or_none(response.get("usage"), f"{answered}usage", refuse) or {}
        tokens = object_or_none(choices[0].get("logprobs"), f"{place}.logprobs", refuse) or {}
        facts[len(messages)] = MessageFacts(
            time_s=unix_time_s(response.get("created"), f"{answered}created", refuse),
            logprobs=logprobs(tokens.get("content"), f"{place}.logprobs.content", refuse),
            input_tokens=token_count(usage.get("prompt_tokens"), f"{answered}usage.prompt_tokens", refuse),
            output_tokens=token_count(usage.get("completion_tokens"), f"{answered}usage.completion_tokens", refuse),
        )
        messages.append(answer)
    elif given is None:
        raise refuse("messages", "is missing, and so are `choices`.")
    model = response.get("model", request.get("model"))
    names = (value.get("custom_id"), value.get("id"), response.get("id"))
    name = next((found for found in names if isinstance(found, str) and found), str(element.index))
    return _imported(element, name, messages, facts, model if isinstance(model, str) else "")


def _part(value: dict[str, Any], names: tuple[str, ...], element: Element) -> tuple[Any, str]:
    """One of these objects with the place of its fields, else the entry itself."""
    for name in names:
        found = object_or_none(value.get(name), name, element.error)
        if found is not None:
            return found, f"{name}."
    return value, ""


def _response(value: dict[str, Any], element: Element) -> tuple[Any, str]:
    failed = value.get("error")
    if failed is not None:
        raise element.error("error", f"this entry failed: {failed!s:.200}.")
    response, place = _part(value, ("response",), element)
    body, inner = _part(response, ("body",), element) if place else (response, "")
    return body, place + inner
