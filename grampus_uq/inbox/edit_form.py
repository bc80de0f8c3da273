"""The form of an edit: a field for each argument that a tool's schema names, and the arguments that the fields say.

The browser sends texts in the order of the fields. They become values here, so that one place knows what they mean.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grampus_uq.errors import ApprovalError
from grampus_uq.gate.schema import problem_of, referred
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.visible_text import visible

_MOST_FIELDS: Final = 100
_MOST_CHOICES: Final = 100
_DEEPEST: Final = 16
_SIMPLE: Final = {"string": "text", "number": "number", "integer": "whole number", "boolean": "yes or no"}
_YES_NO: Final = (True, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EditField:
    """One argument: `text` is what the field holds at first, of `choices` the index; `given` False: no value.

    `without` is what giving none means, "left out" or "null"; None where a value must be given.
    """

    name: str
    kind: str
    text: str
    about: str
    choices: tuple[Any, ...] = ()
    without: str | None
    given: bool

    @property
    def labels(self) -> list[str]:
        """The choices in words; a text that reads like another choice, as "1" like 1, stands in quotes."""
        if self.kind == "yes or no":
            return ["yes", "no"]
        others = {json.dumps(one) for one in self.choices}
        return [one if isinstance(one, str) and one not in others else json.dumps(one) for one in self.choices]


@dataclass(frozen=True, slots=True, kw_only=True)
class EditForm:
    """The fields of one call; `mark` changes with them."""

    fields: tuple[EditField, ...]
    mark: str


def edit_form(arguments: Mapping[str, Any], schema: Mapping[str, Any] | None) -> EditForm | None:
    """The form for these arguments; None where the schema names none, or takes others too: they are edited as JSON."""
    known = None if schema is None else schema.get("properties")
    if schema is None or not isinstance(known, Mapping) or schema.get("additionalProperties", False) is not False:
        return None
    names = sorted({*known, *arguments}) if all(isinstance(name, str) for name in known) else []
    if not 0 < len(names) <= _MOST_FIELDS:
        return None
    needed = schema.get("required")
    required = [name for name in names if name in known and name in needed] if isinstance(needed, list) else []
    fields = tuple(_field(name, arguments, known.get(name), schema, name in required) for name in names)
    told = json.dumps([[one.name, one.kind, one.text, one.choices, one.without] for one in fields])
    return EditForm(fields=fields, mark=hashlib.sha256(told.encode()).hexdigest()[:16])


def edited(form: EditForm, arguments: Mapping[str, Any], texts: Sequence[str | None]) -> dict[str, Any]:
    """The arguments that these texts say, None for no value, untouched ones as they were; raises ApprovalError."""
    if len(texts) != len(form.fields):
        raise ApprovalError("The form's fields differ from the tool's. Open the request again.")
    found = dict[str, Any]()
    for field, text in zip(form.fields, texts, strict=True):
        if text is None and field.without is None:
            raise ApprovalError(f"'{visible(field.name)}' needs a value.")
        if text == field.text and field.given:
            found[field.name] = arguments[field.name]
        elif text is not None:
            found[field.name] = _value(field, text)
        elif field.without == "null":
            found[field.name] = None
    return found


def as_json_text(value: Any) -> str:
    """A value as JSON to edit, with JSON's escapes for all that is shown as an escape: it is read as it is shown."""
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)
    return visible(text, keep="\n", escape=lambda character: json.dumps(character)[1:-1])


def _field(name: str, arguments: Mapping[str, Any], rule: Any, schema: Mapping[str, Any], required: bool) -> EditField:
    value, given = arguments.get(name), name in arguments
    rule, nullable = _resolved(rule, schema)
    without = "left out" if not required and not given else "null" if nullable else None if required else "left out"
    if given and value is None and nullable:
        given = False
    kind, text, choices = _shape(rule, schema, value, given)
    about = rule.get("description")
    return EditField(
        name=name,
        kind=kind,
        text=text,
        about=about[:300] if isinstance(about, str) else "",
        choices=choices,
        without=without,
        given=given,
    )


def _shape(rule: Mapping[str, Any], schema: Mapping[str, Any], value: Any, given: bool) -> tuple[str, str, Any]:
    """Kind, first text and choices of a field; JSON for all that no simpler field can hold."""
    kind, allowed = _SIMPLE.get(str(rule.get("type"))), rule.get("enum")
    choices: tuple[Any, ...] = _YES_NO if kind == "yes or no" else ()
    if isinstance(allowed, list):
        kind, choices = f"one of {len(allowed)}", tuple(allowed)
        if not 0 < len(allowed) <= _MOST_CHOICES or any(isinstance(one, dict | list) for one in allowed):
            kind = None
    fits = not given or problem_of({"": value}, {"properties": {"": rule}, **_definitions(schema)}) is None
    same = [str(n) for n, one in enumerate(choices) if type(one) is type(value) and one == value]
    held = bool(same) if choices else kind != "text" or (isinstance(value, str) and visible(value, "\n\t") == value)
    if kind is None or not fits or (given and not held):  # a rule that is not understood fits whatever it is
        return "JSON", as_json_text(value) if given else "", ()
    if choices:
        return kind, same[0] if given else "", choices
    return kind, "" if not given else value if kind == "text" else json.dumps(value), ()


def _value(field: EditField, text: str) -> Any:
    name = visible(field.name)
    if field.choices:
        if text not in map(str, range(len(field.choices))):
            raise ApprovalError(f"'{name}' is not one of its choices.")
        return field.choices[int(text)]
    if field.kind == "text":
        return text
    like = "12 or 7.5" if field.kind == "number" else "12"
    wrong = f"'{name}' is not a valid {field.kind}: write it like {like}."
    try:
        value = parse_json(text, unique_names=True)
    except (ValueError, RecursionError) as error:
        raise ApprovalError(f"'{name}' {str(error)[:200]}" if field.kind == "JSON" else wrong) from error
    if field.kind != "JSON" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ApprovalError(wrong)
    return value


def _resolved(rule: Any, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """A property's rule behind references, and whether null is among what it takes."""
    about, nullable = None, False
    for _ in range(_DEEPEST):
        if not isinstance(rule, Mapping):
            break
        about = about or rule.get("description")
        if isinstance(rule.get("$ref"), str):
            rule = referred(rule["$ref"], schema)
            continue
        kinds, choices = rule.get("type"), next((rule[w] for w in ("anyOf", "oneOf", "allOf") if w in rule), None)
        if isinstance(kinds, list) and len(kinds) == 2 and "null" in kinds:
            rule, nullable = {**rule, "type": next((k for k in kinds if k != "null"), "null")}, True
        elif isinstance(choices, list) and "enum" not in rule:
            some = [one for one in choices if not (isinstance(one, Mapping) and one.get("type") == "null")]
            nullable = nullable or len(some) < len(choices)
            rule = some[0] if len(some) == 1 else {}
        else:
            break
    return {**(rule if isinstance(rule, Mapping) else {}), "description": about}, nullable


def _definitions(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("$defs", "definitions") if name in schema}
