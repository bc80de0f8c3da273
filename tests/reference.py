"""Writes docs/reference.md from the docstrings of the public names; a test holds the page to them.

python -m tests.reference
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from annotated_types import BaseMetadata

import grampus_uq

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
HEAD = """# Reference

Every public name, with its docstring. Written by `python -m tests.reference`; the tests run its
examples. Other names can be imported from their rooms and may change without notice.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for name in grampus_uq.__all__ for line in _entry(name))])


def _entry(name: str) -> Iterator[str]:
    value: Any = getattr(grampus_uq, name)
    yield f"## `{name}`\n"
    yield f"`from grampus_uq import {name}`\n"
    signature = _signature(value)
    if signature:
        yield f"```text\n{name}{signature}\n```\n"
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        yield "Members: " + ", ".join(f"`{member.value}`" for member in value) + ".\n"
    doc = value.__doc__ if inspect.isclass(value) or inspect.isroutine(value) else type(value).__doc__
    yield _text(inspect.cleandoc(doc or ""))
    if inspect.isclass(value):
        yield from _methods(value)


def _signature(value: Any) -> str:
    if not callable(value) or (inspect.isclass(value) and issubclass(value, (enum.Enum, BaseException))):
        return ""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return ""
    given = [one.replace(annotation=_annotation(one.annotation)) for one in signature.parameters.values()]
    text = str(signature.replace(parameters=given))
    text = re.sub(r"((?:: |-> ))'([^']*)'", r"\1\2", text)  # annotations that are kept as text
    text = re.sub(r"<factory>|<object object at 0x\w+>|<function [^>]*>", "...", text)
    text = re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", re.sub(r"grampus_uq(?:\.\w+)*\.(?=[A-Z])|typing\.", "", text))
    return text if len(text) < 100 else "(\n" + _parameters(text)


def _annotation(value: Any) -> Any:
    """An annotation as a reader wants it: unions by `|` on every Python, and of what is annotated the bounds alone."""
    origin, parts = get_origin(value), get_args(value)
    if origin is Union or origin is UnionType:
        return " | ".join(_written(part) for part in parts)
    if origin is Annotated:
        bounds = [bound for one in parts[1:] for bound in getattr(one, "metadata", (one,))]
        shown = [repr(bound) for bound in bounds if isinstance(bound, BaseMetadata)]
        return ", ".join([f"Annotated[{_written(parts[0])}", *shown]) + "]" if shown else _written(parts[0])
    if origin is tuple:
        return f"tuple[{', '.join(_written(part) for part in parts)}]"
    return value


def _written(value: Any) -> str:
    if value is NoneType or value is Ellipsis:
        return {NoneType: "None", Ellipsis: "..."}[value]
    plain = _annotation(value)
    return plain if isinstance(plain, str) else inspect.formatannotation(plain)


def _parameters(text: str) -> str:
    """One parameter a line, by the commas outside brackets."""
    depth, lines, line = 0, [], ""
    for character in text[1:]:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return (
                "\n".join(f"    {parameter}," for parameter in [*lines, line.strip()])
                + f"\n){text[text.rindex(')') + 1 :]}"
            )
        if character == "," and depth == 0:
            lines.append(line.strip())
            line = ""
        else:
            line += character
    return text


def _text(doc: str) -> str:
    """A docstring as Markdown: examples fenced, the rest as it is."""
    parts = [
        f"```pycon\n{part}\n```" if part.lstrip().startswith(">>>") else part.replace("<", "&lt;")
        for part in doc.split("\n\n")
    ]
    return "\n\n".join(parts) + "\n"


def _methods(value: type) -> Iterator[str]:
    rows = []
    for name, member in vars(value).items():
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        function = function.fget if isinstance(function, property) else function
        doc = inspect.getdoc(function) if inspect.isfunction(function) else None
        if doc and not name.startswith("_") and not name.startswith("model_"):
            first = re.split(r"(?<=[.])\s", doc.replace("\n", " "), maxsplit=1)[0].replace("|", "\\|")
            call = name if isinstance(member, property) else f"{name}()"
            rows.append(f"| `{call}` | {first.replace('<', '&lt;')} |")
    if rows:
        yield "\n".join(["| member | |", "|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
