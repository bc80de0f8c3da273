"""Proposed tool calls, in every form that models and frameworks write them.

| form | name | arguments |
|---|---|---|
| OpenAI chat | `function.name`, `custom.name` | `function.arguments` (JSON text), `custom.input` |
| OpenAI responses | `name`, or the `type` of a built-in tool | `arguments`, `input`, `action`, `operation` |
| LangChain | `name` | `args` |
| pydantic-ai | `tool_name` | `args` (JSON text or object) |
| Anthropic | `name` | `input` |
| Gemini | `function_call.name`, `functionCall.name` | `args` |
| Cohere, Llama | `name` | `parameters` |
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from pydantic import JsonValue

from grampus_uq.records.building import builder
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.wire.fields import field, fields_of, kind_of, text_field
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

UNPARSED: Final = "unparsed_arguments"
"""The one argument of a call whose arguments are not a JSON object: their text, as the model wrote it."""

MAX_ARGUMENT_CHARACTERS: Final = 1_000_000
_MAX_SHOWN: Final = 16_000  # more than a judge is shown: what was cut off is too long to be judged
_MAX_DEPTH: Final = 100  # a stored session holds a call some ten levels deep, and what reads it takes 200
_MAX_BITS: Final = 13_000  # Python writes no whole number of more than 4300 digits
_ARGUMENTS: Final = ("arguments", "args", "input", "action", "operation", "operations", "parameters", "tool_args")
_MISPLACED: Final = "in an unknown field:"
_LANGCHAIN: Final = frozenset({"name", "args", "id", "type"})
_BESIDE: Final = frozenset(
    {"function", "custom", "function_call", "functionCall", "extra_content", "provider_specific_fields", "metadata"}
    | {"additional_kwargs", "cache_control", "caller", "_meta"}
)
"""Fields of a call that hold an object which is not its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of a call; where they are not a JSON object, their text under `UNPARSED`, and the `problem`."""

    values: dict[str, JsonValue]
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCall:
    """A call as far as it could be read, and what is wrong with it.

    `recognised` is False for a value that has no place for a tool's name: no model wrote it as a call.
    """

    call: ToolCall
    problem: str | None = None
    recognised: bool = True


_new_arguments, _new_read_call = builder(Arguments), builder(ReadCall)


def is_unparsed(call: ToolCall) -> bool:
    """Return True if the call's arguments could not be read, so that its effect is unknown."""
    return UNPARSED in call.arguments and len(call.arguments) == 1


def read_arguments(given: Any) -> Arguments:
    """Read arguments given as an object or as its JSON text; None, null and blank text are none. Never raises.

    Of a key that comes twice the last one counts, as it does for those who run the call.

    >>> read_arguments('{"amount": 5}').values, read_arguments('{"amount":')
    ({'amount': 5}, Arguments(values={'unparsed_arguments': '{"amount":'}, problem='are not JSON'))
    """
    try:
        found = _parsed(given) if isinstance(given, str) else given
        found = {} if found is None else found
        if type(found) is not dict and not isinstance(found, Mapping):
            raise _UnreadableError(f"are not a JSON object: {kind_of(found)}")
        values = _plain_object(found, _MAX_DEPTH)
        if not isinstance(given, str) and len(canonical_json(values)) > MAX_ARGUMENT_CHARACTERS:
            raise _UnreadableError(f"exceed {MAX_ARGUMENT_CHARACTERS} characters")
        return _new_arguments(values=values)
    except _UnreadableError as error:
        return Arguments(values={UNPARSED: _kept(given)}, problem=str(error))
    except Exception as error:  # noqa: BLE001 (somebody else's mapping)
        return Arguments(values={UNPARSED: _kept(given)}, problem=f"cannot be read ({type(error).__name__})")


def read_call(value: Any, *, stand_in_id: str = "") -> ReadCall:
    """Read a call of any of the forms above; `stand_in_id` is for one without an id. Never raises.

    >>> read_call({"id": "c1", "function": {"name": "pay", "arguments": '{"amount": 5}'}}).call
    ToolCall(id='c1', name='pay', arguments={'amount': 5})
    """
    if isinstance(value, ToolCall):
        return ReadCall(call=value)
    if _is_langchain(value):
        identity, name, given = value["id"] or stand_in_id, value["name"], value["args"]
    else:
        inner = field(value, "function", "custom", "function_call", "functionCall")
        named = value if inner is None or isinstance(inner, str) else inner
        identity = text_field(value, "call_id", "tool_call_id", "id") or text_field(inner, "id") or stand_in_id
        name = field(named, "name", "tool_name")
        kind = text_field(value, "type")
        if name is None and kind.endswith("_call"):
            name = kind.removesuffix("_call")  # a built-in tool of the responses API: computer_call, local_shell_call
        if name is None and field(named, *_ARGUMENTS) is None and not kind:
            nobody = ToolCall(id=identity, name="", arguments={UNPARSED: _kept(value)})
            return ReadCall(call=nobody, problem=f"is not a tool call: {kind_of(value)}", recognised=False)
        given = _given(named, kind)
    read = read_arguments(given)
    known = replace_lone_surrogates(name) if isinstance(name, str) else ""
    problem = None if read.problem is None else f"has arguments that {read.problem}"
    arguments = None if given is None else read.values  # a call that came without any says so
    call = ToolCall.trusted(replace_lone_surrogates(identity), known, arguments)
    return _new_read_call(call=call, problem=problem if known else "has no name")


def _is_langchain(value: Any) -> bool:
    """Return True for a call from LangChain's messages (fast path: no other form has its keys)."""
    if type(value) is not dict or value.keys() != _LANGCHAIN:
        return False
    return type(value["id"]) is type(value["name"]) is str and type(value["args"]) is dict


def _given(named: Any, kind: str) -> Any:
    found = field(named, *_ARGUMENTS)
    if found is None:
        return _misplaced(named)
    if isinstance(found, str | Mapping):
        # The one argument of a custom tool is free text, called "input".
        return {"input": found} if isinstance(found, str) and kind in ("custom", "custom_tool_call") else found
    dump = getattr(found, "model_dump", None)  # the action of a built-in tool, which is a model of the SDK
    try:
        return dump(mode="json", exclude_unset=True, warnings=False) if callable(dump) else found
    except Exception:  # noqa: BLE001 (somebody else's model)
        return found


def _misplaced(named: Any) -> str | None:
    """Return possible arguments under an unknown name as text, so that different arguments stay different."""
    try:
        fields = fields_of(named) or {}
        if field(named, "name", "tool_name") is None or any(name in fields for name in _ARGUMENTS):
            return None  # a built-in tool's call, or one that says that it has no arguments
        odd = {str(name): value for name, value in fields.items() if name not in _BESIDE and _holds_fields(value)}
    except Exception:  # noqa: BLE001 (somebody else's mapping)
        return None
    return f"{_MISPLACED} {_kept(odd)}" if odd else None


def _holds_fields(value: Any) -> bool:
    if isinstance(value, str):
        return value.lstrip()[:1] == "{"
    return isinstance(value, Mapping) and bool(value)


class _UnreadableError(Exception):
    """The fault of arguments."""


def _parsed(text: str) -> Any:
    if len(text) > MAX_ARGUMENT_CHARACTERS:
        raise _UnreadableError(f"exceed {MAX_ARGUMENT_CHARACTERS} characters")
    if not text.strip():
        return {}
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _UnreadableError("are nested too deeply") from None
    except ValueError:
        raise _UnreadableError("are not JSON") from None


def _refuse_constant(name: str) -> NoReturn:
    raise _UnreadableError(f"hold {name}, which is not a JSON number")


def _plain_object(found: Mapping[Any, Any], depth: int) -> dict[str, JsonValue]:
    """An object whose keys are distinct texts, as JSON values."""
    values: dict[str, JsonValue] = {}
    for name, item in found.items():
        if isinstance(name, str):
            key = name if type(name) is str and name.isascii() else replace_lone_surrogates(name)
            values[key] = item if type(item) is str and item.isascii() else _plain(item, depth)
    if len(values) < len(found):
        raise _UnreadableError("have keys that are not distinct texts")
    return values


def _plain(value: Any, depth: int) -> JsonValue:
    """The value as JSON values that every record, store and digest can hold."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise _UnreadableError("hold a number with too many digits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _UnreadableError(f"hold {value}, which is not a JSON number")
        return float(value)
    if depth == 0:
        raise _UnreadableError("are nested too deeply")
    if isinstance(value, Mapping):
        return _plain_object(value, depth - 1)
    if isinstance(value, list | tuple):
        return [_plain(item, depth - 1) for item in value]
    raise _UnreadableError(f"hold a value of type {type(value).__name__}, which JSON does not have")


def _kept(given: Any) -> str:
    """The arguments as bounded text. A digest replaces a part that is cut off, so different ones differ."""
    try:
        text = given if isinstance(given, str) else json.dumps(given, default=repr, sort_keys=True)
    except Exception:  # noqa: BLE001 (somebody else's object)
        return f"<{type(given).__name__} that cannot be shown, {uuid.uuid4().hex}>"  # equal to nothing else, to be safe
    text = replace_lone_surrogates(text)
    if len(text) <= _MAX_SHOWN:
        return text
    return f"{text[:_MAX_SHOWN]}… ({len(text)} characters, SHA-256 {hashlib.sha256(text.encode()).hexdigest()})"
