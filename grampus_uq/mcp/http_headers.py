"""What the headers of HTTP say before a body is read: who may ask, in which alphabet, and for which call."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from grampus_uq.mcp.json_rpc import CALL, Message, UnclearError

EVENTS: Final = frozenset({"text/event-stream", "text/event-stream;charset=utf-8", 'text/event-stream;charset="utf-8"'})
JSON: Final = frozenset({"application/json", "application/json;charset=utf-8", 'application/json;charset="utf-8"'})
_PARAM: Final = "mcp-param-"
_ONCE: Final = frozenset(
    {
        *("mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name", "grampus-session", "last-event-id"),
        *("host", "origin", "content-type", "content-encoding"),
    }
)
_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade"),
        *("transfer-encoding", "host", "content-length", "accept-encoding", "grampus-session"),
        *("alt-svc", "location"),  # where else the server would have the client go: past this proxy
    }
)


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that concern the other side too, byte for byte: a value may be in any alphabet."""
    lower = ((name.lower(), value) for name, value in headers)
    return [(name, value) for name, value in lower if name.decode("latin-1") not in _HOP]


def content_kind(headers: Mapping[str, str]) -> str:
    """The content type without blanks."""
    return "".join(headers.get("content-type", "").split()).lower()


def origin_problem(headers: Mapping[str, str], hosts: frozenset[str]) -> tuple[int, str] | None:
    """Why a request is not served, with its status: it may be another site's page that asks."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if host not in hosts:
        return 421, f"this proxy does not serve the host {host!r:.80}"
    if origin is not None and urlsplit(origin).netloc not in hosts:
        return 403, f"pages of {origin!r:.80} may not use this proxy"
    return None


def reading_problem(headers: Mapping[str, str], names: Iterable[str], *, has_body: bool) -> tuple[int, str] | None:
    """Why a request is not judged, with its status: it could be read in two ways."""
    once = [name for name in names if name in _ONCE]
    if len(set(once)) < len(once):
        return 400, "a header comes twice"
    if headers.get("content-encoding", "identity") != "identity":
        return 415, "the body is encoded"
    if has_body and content_kind(headers) not in JSON:  # in another alphabet the server reads another message
        return 415, "the body is not application/json in UTF-8"
    return None


def check_routing(headers: Mapping[str, str], message: Message) -> None:
    """Raise UnclearError where the headers say another method or tool than the body: a server may believe either."""
    method, name = headers.get("mcp-method"), headers.get("mcp-name")
    if method is not None and method != message.method:
        raise UnclearError("its header Mcp-Method says another method", answer=message.id)
    if name is not None and message.method == CALL and _header_text(name) != message.params.get("name"):
        raise UnclearError("its header Mcp-Name says another tool", answer=message.id)


def check_parameters(headers: Iterable[tuple[str, str]], message: Message, schema: Mapping[str, Any] | None) -> None:
    """Raise UnclearError where a `Mcp-Param-*` header is not the argument that its tool's schema says it is."""
    given = [(name.lower(), value) for name, value in headers if name.lower().startswith(_PARAM)]
    if not given:
        return
    arguments = message.params.get("arguments")
    said = dict(_parameters(schema, arguments if isinstance(arguments, dict) else {}))
    for name, value in given:
        text, argument = _header_text(value), said.get(name)
        if text is None or argument is None or text != argument:
            why = f"its header {name!r:.80} is not the argument that the tool, as listed in this session, has there"
            raise UnclearError(why, answer=message.id)
    if len(dict(given)) < len(given):
        raise UnclearError("a header of a parameter comes twice", answer=message.id)


def _parameters(schema: Any, arguments: Any) -> Iterator[tuple[str, str]]:
    """The headers of a call's annotated arguments, as texts; nested as the schema's `properties` are."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or not isinstance(arguments, Mapping):
        return
    for key in arguments.keys() & properties.keys():
        value, one = arguments[key], properties[key]
        mark = one.get("x-mcp-header") if isinstance(one, Mapping) else None
        if isinstance(mark, str) and isinstance(value, str | int):
            yield _PARAM + mark.lower(), value if isinstance(value, str) else str(value).lower()
        yield from _parameters(one, value)


def _header_text(value: str) -> str | None:
    """The text of a header of the protocol: plain, or `=?base64?...?=`; None where it cannot be read."""
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except ValueError:
        return None


def session_name(headers: Mapping[str, str]) -> str:
    """The name of the session that a request belongs to: the server's own, one that the client chose, or its login."""
    given = headers.get("mcp-session-id") or headers.get("grampus-session") or headers.get("authorization")
    return "shared" if given is None else hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[:32]


def answer_problem(status: int, headers: Mapping[str, str]) -> str | None:
    """Why an answer is not passed on: a client could read in it what was not read here, or be led elsewhere."""
    if 300 <= status < 400:
        return (
            f"the server answered with a redirect ({status}), which is not followed: give the address it redirects to"
        )
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        return "the server's answer is encoded, though it was asked not to"
    kind = content_kind(headers)
    if kind in JSON or kind in EVENTS:
        return None
    if status >= 400 and kind.partition(";")[0] in ("", "text/plain", "text/html"):
        return None  # a page that says what is wrong
    if status in (202, 204) and not kind:
        return None
    return "the server's answer is neither JSON nor a stream of events, in UTF-8"
