"""Holds arguments against a tool's JSON schema: types, required and unknown keys, enumerations. A human wrote them.

The part of JSON Schema that tools are declared with. What is not understood refuses nothing: the tool validates too.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from grampus_uq.records.values import canonical_json

BESIDE: Final = "beside the arguments"
"""Name under which fields besides a call's arguments are judged; no argument may have it."""
_DEEPEST: Final = 64
_MOST_LOOKS: Final = 100_000
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int,),
}


def problem_of(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """The first thing in which arguments do not fit a tool's schema, as a sentence; None where they fit.

    >>> pay = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
    >>> problem_of({"amount": "7"}, pay), problem_of({"amount": 7}, pay)
    ("'amount' must be number, not str", None)
    """
    try:
        return _problem(dict(arguments), schema, _Root(schema=schema), "", 0)
    except RecursionError:  # a schema that refers to itself without end, or on ever more ways
        return None


def schema_of_judged(schema: Mapping[str, Any] | None, judged: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A tool's schema as judged arguments fit it: where a call carries more, of all of it, which stays as it is."""
    if schema is None or BESIDE not in judged:
        return schema
    within = {"type": "object", **{name: schema[name] for name in ("$defs", "definitions") if name in schema}}
    return within | {
        "properties": {"arguments": schema, BESIDE: {"enum": [judged[BESIDE]]}},
        "required": ["arguments", BESIDE],
    }


@dataclass(slots=True, kw_only=True)
class _Root:
    """The whole schema, and how many of its words may still be looked at: a few references make 2^64 ways."""

    schema: Mapping[str, Any]
    left: int = _MOST_LOOKS

    def look(self, value: Any, schema: Mapping[str, Any], place: str) -> None:
        words = (place, *(schema.get(word) for word in ("$ref", "type", "enum", "required", "properties")))
        sized = (*words, value) if isinstance(value, dict) else words
        self.left -= 1 + sum(len(one) for one in sized if isinstance(one, str | list | dict))
        if self.left < 0:
            raise RecursionError


def _problem(value: Any, schema: Any, root: _Root, place: str, depth: int) -> str | None:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return None
    root.look(value, schema, place)
    if isinstance(schema.get("$ref"), str):
        return _problem(value, referred(schema["$ref"], root.schema), root, place, depth + 1)
    for word in ("anyOf", "oneOf"):
        choices = schema.get(word)
        if isinstance(choices, list) and choices:
            found = [_problem(value, choice, root, place, depth + 1) for choice in choices]
            if all(found):
                return found[0]
    shown = f"'{place}'" if place else "the arguments"
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if (
        isinstance(kinds, list)
        and all(isinstance(kind, str) and kind in _TYPES for kind in kinds)
        and not any(_is(value, kind) for kind in kinds)
    ):
        return f"{shown} must be {' or '.join(kinds)}, not {type(value).__name__}"
    if isinstance(schema.get("enum"), list) and not any(_equal(value, allowed) for allowed in schema["enum"]):
        return f"{shown} must be one of {reprlib.repr(schema['enum'])}"
    if isinstance(value, dict):
        return _object_problem(value, schema, root, place, depth)
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        found = [_problem(item, schema["items"], root, f"{place}[{n}]", depth + 1) for n, item in enumerate(value)]
        return next((problem for problem in found if problem), None)
    return None


def _object_problem(
    value: dict[str, Any], schema: Mapping[str, Any], root: _Root, place: str, depth: int
) -> str | None:
    known, required = schema.get("properties"), schema.get("required")
    within = f"{place}." if place else ""
    required = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    missing = [name for name in required if name not in value]
    if missing:
        return f"'{within}{missing[0]}' is missing"
    if not isinstance(known, Mapping):
        return None
    other = schema.get("additionalProperties", False)
    unknown = sorted(set(value) - set(known))
    if unknown and other is False:
        return f"there is no argument '{within}{unknown[0]}'"
    found = [
        _problem(value[name], rule, root, f"{within}{name}", depth + 1) for name, rule in known.items() if name in value
    ]
    return next((problem for problem in found if problem), None)


def referred(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _equal(value: Any, allowed: Any) -> bool:
    if type(value) is not type(allowed) or value != allowed:
        return False
    return not isinstance(value, dict | list) or canonical_json(value) == canonical_json(allowed)  # True is not 1
