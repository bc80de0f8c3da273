"""Logs of chat completions as JSON lines, in the forms of OpenAI's interface.

A line is one of: `{"messages": [...]}` (fine-tuning and distillation files), `{"request": {...}, "response":
{...}}`, a line of a batch's input (`custom_id`, `body`) or output (`custom_id`, `response.body`), or a chat completion
with `choices`, with or without its `messages` (platform.openai.com/docs/api-reference/chat and /batch).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from grampus_uq.importers.foreign_messages import message_of, messages_of
from grampus_uq.importers.imported_records import Refused, each_run, records
from grampus_uq.importers.imported_run import ImportedRun, MessageFacts
from grampus_uq.importers.json_stream import Element
from grampus_uq.importers.record_fields import logprobs, object_or_none, token_count, unix_time_s
from grampus_uq.records.values import Outcome
from grampus_uq.records.vocabulary import Role


def read_chat_logs(path: str | os.PathLike[str], *, on_refused: Refused | None = None) -> Iterator[ImportedRun]:
    """Yield the entries of a log of chat completions, plain or gzip, holding one at a time; no outcome is known.

    The answer is the first of `choices`, with its log-probabilities and tokens. An entry's id is its `custom_id`, else
    its `id`, else that of the completion, else its number in the file.

    Raises DataError with path, line and field for a file that is not JSON. An entry with a wrong field, without an
    answer, of a batch and failed, or whose id came before, is given to `on_refused` and left out; without `on_refused`
    it raises.
    """
    return each_run(records(path, on_refused), _entry, on_refused, id_field="id")


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
    elif "response" in value:
        raise refuse(f"{answered}choices", "is missing: this entry has no answer of the chat completions API.")
    elif given is None:
        raise refuse("messages", "is missing, and so are `choices`.")
    model = response.get("model", request.get("model"))
    names = (value.get("custom_id"), value.get("id"), response.get("id"))
    name = next((found for found in names if isinstance(found, str) and found), str(element.index))
    if not any(message.role is Role.ASSISTANT for message in messages):
        raise refuse("messages", "holds no message of the assistant, so no step.")
    return ImportedRun(
        run_id=name,
        path=element.path,
        line=element.line,
        messages=tuple(messages),
        outcome=Outcome(success=None),
        facts=facts,
        model=model if isinstance(model, str) else "",
    )


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
