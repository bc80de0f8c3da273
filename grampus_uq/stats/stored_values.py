"""Frozen dataclasses as plain JSON values and back: strict types, no unknown key, the checks of their constructors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError

from grampus_uq.errors import ConfigurationError

T = TypeVar("T")

STORED: Final = ConfigDict(extra="forbid", allow_inf_nan=False)
"""For `__pydantic_config__` of a dataclass that is stored; holds for the dataclasses inside it too."""
FROZEN: Final = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
"""For `model_config` of a model that is a value: immutable, no unknown field, finite numbers."""

_INFINITIES: Final = {"inf": math.inf, "-inf": -math.inf}


def _extended(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError('a finite number, "inf" or "-inf"')
    return _INFINITIES.get(value, value) if isinstance(value, str) else value


Extended = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(_extended),
    PlainSerializer(lambda value: value if math.isfinite(value) else str(value), when_used="json"),
]
"""A number that may be infinite: JSON has no infinity, so it stands as the word "inf" or "-inf"."""


adapter_of: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Return the pydantic adapter of a type, built once."""


def to_json(value: Any) -> dict[str, Any]:
    """Return a dataclass as a strictly JSON-able mapping; `from_json` gives back an equal value."""
    written: dict[str, Any] = adapter_of(type(value)).dump_python(value, mode="json")
    return written


def from_json(kind: type[T], data: Any, name: str) -> T:
    """Read what `to_json` wrote.

    Raises `ConfigurationError` for a key unknown, or missing without a default, a value of the wrong kind, a broken
    rule of a constructor.
    """
    if not isinstance(data, Mapping):
        raise ConfigurationError.of(name, "from_json", "a mapping", data)
    try:
        value: T = adapter_of(kind).validate_json(json.dumps(dict(data)), strict=True)
    except (TypeError, ValueError) as error:
        if not isinstance(error, ValidationError):
            raise ConfigurationError.of(name, "from_json", "plain JSON values", data) from error
        raise first_fault(error, "from_json", name) from error
    return value


def first_fault(error: ValidationError, owner: str, whole: str) -> ConfigurationError:
    """The error of a constructor in it, else one that names the first field that breaks a rule, or the `whole`."""
    first = error.errors(include_url=False)[0]
    broken = first.get("ctx", {}).get("error")
    if isinstance(broken, ConfigurationError):
        return broken
    if first["type"] == "missing":
        return ConfigurationError.of(".".join(map(str, first["loc"])), owner, "given", None)
    rule = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    rule = re.sub(r"^(\w+) should have", lambda kind: f"a {kind[1].lower()} with", rule)
    return ConfigurationError.of(".".join(map(str, first["loc"])) or whole, owner, rule, first["input"])
