"""Conditions on arguments as they are typed: `amount=max:50`, `to=in:["ann"]`."""

from __future__ import annotations

from typing import Any

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.values import canonical_json


def limits_of(conditions: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The limits of conditions as they are typed, NAME=RULE:VALUE; raises ConfigurationError."""
    found: dict[str, dict[str, Any]] = {}
    for condition in conditions:
        name, _, rest = condition.partition("=")
        rule, _, text = rest.partition(":")
        try:
            value = parse_json(text)
        except ValueError:
            value = text  # equals:EUR needs no quotation marks
        fits = {"max": type(value) in (int, float), "min": type(value) in (int, float), "in": isinstance(value, list)}
        if not name or not fits.get(rule, rule == "equals") or rule in found.get(name, {}):
            wanted = "NAME=RULE:VALUE: max or min and a number, equals and a value, in and a list; each once"
            raise ConfigurationError.of("conditions", "permits", wanted, condition, "Such as amount=max:50.")
        found.setdefault(name, {})[rule] = value
    return found


def stricter(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The further rules of one argument; raises ConfigurationError for one that would widen it.

    Values are compared as a permit compares them: by their canonical JSON, in which 1, 1.0 and true are three.
    """
    for rule, value in new.items():
        if rule in old:
            wider = (rule == "max" and value > old[rule]) or (rule == "min" and value < old[rule])
            known = {canonical_json(one) for one in _listed(rule, old[rule])}
            among = rule in ("max", "min") or {canonical_json(one) for one in _listed(rule, value)} <= known
            if wider or not among:
                raise ConfigurationError.of("conditions", "permits narrow", f"stricter than {rule} {old[rule]}", value)
    return new


def _listed(rule: str, value: Any) -> list[Any]:
    return value if rule == "in" else [value]
