"""Writes plain values as YAML: maps, lists, whole numbers, booleans, and printable texts in JSON's double quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["yaml_text"]

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_/.-]*\Z")
_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def yaml_text(value: Mapping[str, Any], *, comment: str = "") -> str:
    """A map as a YAML document, keys in their order, `comment` before it.

    >>> print(yaml_text({"a": [{"b": 1, "c": "x: y"}], "d": {}}), end="")
    a:
      - b: 1
        c: "x: y"
    d: {}
    """
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    return "\n".join([*lines, *_lines(value, "")]) + "\n"


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entry(f"{indent}{_scalar(key)}:", item, indent + "  ")
    else:
        for item in value:
            if isinstance(item, Mapping | list) and item:
                first, *rest = _lines(item, indent + "  ")
                yield f"{indent}- {first.removeprefix(indent + '  ')}"
                yield from rest
            else:
                yield f"{indent}- {_scalar(item)}"


def _entry(head: str, item: Any, indent: str) -> Iterator[str]:
    if isinstance(item, Mapping | list) and item:
        yield head
        yield from _lines(item, indent)
    else:
        yield f"{head} {_scalar(item)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.match(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
