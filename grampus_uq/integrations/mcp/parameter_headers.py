"""The headers `Mcp-Param-*` of a call: what they may say, and what they have to say of arguments that a human edited.

A tool's schema marks an argument with `x-mcp-header`; whoever routes by the header, and a server that trusts it, acts
on what it says. It has to be what the judged argument says.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from grampus_uq.integrations.mcp.json_rpc import Message, UnclearError

PARAMETER: Final = "mcp-param-"
_MARKED: Final = ("=?base64?", "?=")


def check_parameters(headers: Iterable[tuple[str, str]], message: Message, schema: Mapping[str, Any] | None) -> None:
    """Raise UnclearError where a `Mcp-Param-*` header is not the argument that its tool's schema says it is."""
    given = [(name.lower(), value) for name, value in headers if name.lower().startswith(PARAMETER)]
    if not given:
        return
    pairs = list(_parameters(schema, message.params.get("arguments")))
    said = dict(pairs)
    names = [name for name, _ in pairs]
    for name, value in given:
        text = header_text(value)
        if text is None or names.count(name) != 1 or text != said[name]:
            why = f"its header {name!r:.80} is not the argument that the tool, as listed in this session, has there"
            raise UnclearError(why, answer=message.id)
    if len(dict(given)) < len(given):
        raise UnclearError("the header of a parameter appears twice", answer=message.id)


def parameter_headers(schema: Mapping[str, Any] | None, arguments: Any) -> list[tuple[bytes, bytes]]:
    """The headers of a call with these arguments."""
    return [(name.encode(), header_value(text)) for name, text in _parameters(schema, arguments)]


def _parameters(schema: Any, arguments: Any) -> Iterator[tuple[str, str]]:
    """The headers of a call's annotated arguments, as texts; nested as the schema's `properties` are."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or not isinstance(arguments, Mapping):
        return
    for key in properties:
        value, one = arguments.get(key), properties[key]
        mark = one.get("x-mcp-header") if isinstance(one, Mapping) else None
        if isinstance(mark, str) and isinstance(value, str | int | float):
            yield PARAMETER + mark.lower(), str(value).lower() if isinstance(value, bool) else str(value)
        yield from _parameters(one, value)


def header_text(value: str) -> str | None:
    """The text of a header of the protocol: plain, or `=?base64?...?=`; None where it cannot be read."""
    if not _is_marked(value):
        return value
    inner = value[len(_MARKED[0]) : -len(_MARKED[1])]
    try:
        data = base64.b64decode(inner, validate=True)
        return data.decode() if base64.b64encode(data).decode() == inner else None
    except ValueError:
        return None


def header_value(text: str) -> bytes:
    """A text as a header of the protocol has it."""
    if not (text.isascii() and text.isprintable()) or text != text.strip() or _is_marked(text):
        text = base64.b64encode(text.encode()).decode().join(_MARKED)
    return text.encode()


def _is_marked(value: str) -> bool:
    head, tail = _MARKED
    return len(value) >= len(head) + len(tail) and value.startswith(head) and value.endswith(tail)
