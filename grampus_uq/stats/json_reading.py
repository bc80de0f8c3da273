"""Reading plain JSON values back into frozen values: each reader returns what it is asked for or says what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from grampus_uq.errors import ConfigurationError

T = TypeVar("T")


def mapping(value: Any, name: str, keys: set[str]) -> Mapping[str, Any]:
    """Read a mapping with exactly these keys: one too many may be a newer version's and is not ours to drop."""
    if not isinstance(value, Mapping) or set(value) != keys:
        found = sorted(value, key=str) if isinstance(value, Mapping) else value
        raise ConfigurationError.of(name, "from_json", f"a mapping with the keys {sorted(keys)}", found)
    return value


def items(value: Any, name: str, item: Callable[[Any, str], T]) -> tuple[T, ...]:
    """Read a list, each item by `item`."""
    if not isinstance(value, (list, tuple)):
        raise ConfigurationError.of(name, "from_json", "a list", value)
    return tuple(item(one, name) for one in value)


def number(value: Any, name: str) -> float:
    """Read a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigurationError.of(name, "from_json", "a finite number", value)
    return float(value)


def extended(value: Any, name: str) -> float:
    """Read a number that may be infinite: JSON has no infinity, so it stands as the word "inf" or "-inf"."""
    return {"inf": math.inf, "-inf": -math.inf}[value] if value in ("inf", "-inf") else number(value, name)


def whole(value: Any, name: str) -> int:
    """Read a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError.of(name, "from_json", "a whole number", value)
    return value


def text(value: Any, name: str) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise ConfigurationError.of(name, "from_json", "a text", value)
    return value


def numbers(value: Any, name: str) -> tuple[float, ...]:
    """Read a list of finite numbers."""
    return items(value, name, number)


def wholes(value: Any, name: str) -> tuple[int, ...]:
    """Read a list of whole numbers."""
    return items(value, name, whole)


def maybe_number(value: Any, name: str) -> float | None:
    """Read a finite number or null."""
    return None if value is None else number(value, name)


def written(value: float) -> float | str:
    """Write a number that may be infinite, as `extended` reads it."""
    return value if math.isfinite(value) else str(value)
