"""Arguments of session methods: read in any known form, or rejected by an error that names the argument.

`reject` takes the error. It raises; in a session that only advises it returns, and the function then returns what
stands in for the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, Outcome, Reading, ToolCall
from grampus_uq.records.vocabulary import Effect, MissingReason, parse_effect
from grampus_uq.wire.fields import field, kind_of, text_field
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates
from grampus_uq.wire.messages import read_messages
from grampus_uq.wire.turns import read_name, read_proposed

Reject = Callable[[ConfigurationError], None]


def name(value: Any, parameter: str, owner: str, reject: Reject) -> str:
    """An id or a word."""
    if type(value) is str and value.isascii():
        return value
    found, error = read_name(value, parameter, owner)
    if error is not None:
        reject(error)
    return found


def one_of(words: Collection[str], value: Any, parameter: str, owner: str, reject: Reject) -> str:
    """A word of a list."""
    found = name(value, parameter, owner, reject)
    if found not in words:
        reject(ConfigurationError.of(parameter, owner, f"one of {', '.join(words)}", value))
    return found


def outcome(value: Any, reject: Reject) -> Outcome:
    """The end of a run; unknown where none was given."""
    if isinstance(value, Outcome):
        return value
    way_out = "Pass Outcome(success=True), or success=None while unknown."
    reject(ConfigurationError.of("outcome", "finish", "an Outcome", value, way_out))
    return Outcome(success=None)


def call(value: Any, parameter: str, owner: str, reject: Reject) -> ToolCall:
    """A proposed call, or the name of its tool."""
    found, error = read_proposed(value, parameter, owner)
    if error is not None:
        reject(error)
    return found


def effect(value: Effect | str | None, owner: str, reject: Reject) -> Effect | None:
    """An effect; one that cannot be read counts as irreversible."""
    try:
        return parse_effect(value, owner)
    except ConfigurationError as error:
        reject(error)
        return Effect.IRREVERSIBLE


def prompt(value: Any, reject: Reject) -> Sequence[Message]:
    """The messages that the model was sent, as far as they can be read."""
    found = read_messages(value)
    if found.problem is not None:
        reject(_error("prompt_messages", "a list of messages", found.problem, "Pass what was sent."))
    return found.messages


def client(value: Any, reject: Reject) -> ModelClient | None:
    """A model client; None for anything else."""
    if callable(field(value, "complete")):
        checked: ModelClient = value
        return checked
    way_out = "OpenAICompatibleModel and LiteLLMModel are such clients."
    reject(_error("model_client", "a client with `async complete(...)`", value, way_out))
    return None


def schemas(value: Any, reject: Reject) -> Sequence[Mapping[str, Any]] | None:
    """The JSON schemas of the tools; None for anything else."""
    if isinstance(value, list | tuple) and all(isinstance(schema, Mapping) for schema in value):
        return value
    reject(_error("tools", "a list of JSON schemas", value, "Pass what the model was given."))
    return None


def tool_names(tools: Iterable[Mapping[str, Any] | str], reject: Reject) -> frozenset[str] | None:
    """The names of tools, given by name or by schema; None where they cannot be read."""
    try:
        return frozenset(_tool_name(tool) for tool in tools)
    except Exception:  # noqa: BLE001 (somebody else's list)
        rule, way_out = "a list of names or schemas", "Pass what the model is given."
        reject(ConfigurationError.of("tools", "declare_tools", rule, kind_of(tools), way_out))
        return None


def confidences(value: Any, taken: Collection[str], reject: Reject) -> list[Reading]:
    """The caller's own confidences as readings; `taken` are the names of the monitor's signals."""
    rule = "confidences in [0, 1] by name"
    if not isinstance(value, Mapping):
        reject(_error("external", rule, value, "Pass {name: confidence}."))
        return []
    try:
        given = list(value.items())
    except Exception:  # noqa: BLE001 (somebody else's mapping)
        reject(_error("external", rule, kind_of(value), "Pass a dict."))
        return []
    found = []
    for key, number in given:
        source = name(key, "external", "observe_llm_response", reject)
        if source in taken:
            reject(_error("external", "confidences by names that no signal has", key, "Choose another name."))
            continue
        try:
            found.append(Reading(source=source, value=number))
        except Exception:  # noqa: BLE001 (somebody else's number)
            reject(_error("external", rule, number, "Leave out what is missing."))
            found.append(Reading(source=source, value=None, reason=MissingReason.INVALID_VALUE))
    return found


def flag(value: Any) -> bool:
    """A truth value; True where there is none: what cannot be read is not a success."""
    try:
        return bool(value)
    except Exception:  # noqa: BLE001 (an array, for example)
        return True


def _tool_name(tool: Mapping[str, Any] | str) -> str:
    """The name in a schema, OpenAI's form or a flat one; the empty text where none is found."""
    if isinstance(tool, str):
        return replace_lone_surrogates(tool)
    inner = field(tool, "function")
    return text_field(tool if inner is None else inner, "name")


def _error(parameter: str, rule: str, value: object, way_out: str) -> ConfigurationError:
    return ConfigurationError.of(parameter, "observe_llm_response", rule, value, way_out)
