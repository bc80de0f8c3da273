"""Checks of HTTP headers before a body is read: client, charset, and call."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Final

from grampus_uq.integrations.mcp.json_rpc import CALL, Message, UnclearError
from grampus_uq.integrations.mcp.parameter_headers import PARAMETER, header_text
from grampus_uq.records.visible_text import without_controls

EVENTS: Final = frozenset({"text/event-stream", "text/event-stream;charset=utf-8", 'text/event-stream;charset="utf-8"'})
JSON: Final = frozenset({"application/json", "application/json;charset=utf-8", 'application/json;charset="utf-8"'})
NO_BODY: Final = frozenset({202, 204})
"""Answers without a body, by the protocol: what a server sends with one all the same reaches nobody."""
BEYOND: Final = 600
"""No status of HTTP from here on: this proxy's own server cannot send one."""
LONGEST_PAGE: Final = 1_000
_MARK: Final = re.compile(r"[^a-z0-9-]")  # between words: gateways and web frameworks read an underscore as a hyphen
SHARED: Final = "shared"
"""The session of all clients that name none."""
_SESSION: Final = ("mcp-session-id", "grampus-session", "authorization")
_OWN_SESSION: Final = "grampus-"
Headers = list[tuple[bytes, bytes]]
_ONCE: Final = frozenset(
    {
        *("mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name", "grampus-session", "last-event-id"),
        *("host", "origin", "content-type", "content-encoding", "authorization"),
    }
)
_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade"),
        *("transfer-encoding", "host", "content-length", "accept-encoding", "grampus-session"),
        *("date", "server"),  # which the proxy's own server writes
        *("alt-svc", "location"),  # where else the server would have the client go: past this proxy
    }
)


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that concern the other side too, byte for byte: a value may be in any alphabet."""
    lower = ((name.lower(), value) for name, value in headers)
    own = b"mcp-session-id", _OWN_SESSION.encode()
    return [
        (name, value)
        for name, value in lower
        if name.decode("latin-1") not in _HOP and not (name == own[0] and value.startswith(own[1]))
    ]


def answered_with(headers: Iterable[tuple[bytes, bytes]], path: bytes, *, kind: bytes | None = None) -> Headers:
    """The headers of an answer for the client; `kind`: the content type of a body in place of the server's own.

    Cookies get the path of their upstream: without one, a client would send them to the other upstreams too.
    """
    kept = [
        (name, _cookie_at(value, path) if name == b"set-cookie" else value)
        for name, value in passed_on(headers)
        if kind is None or not name.startswith(b"content-")
    ]
    return [*kept, (b"content-type", kind)] if kind else kept


def _cookie_at(cookie: bytes, path: bytes) -> bytes:
    own, *attributes = cookie.split(b";")
    kept = [one for one in attributes if one.partition(b"=")[0].strip().lower() not in (b"path", b"domain")]
    return b";".join([own, *kept, b" Path=" + path])


def content_kind(headers: Mapping[str, str]) -> str:
    """The content type without blanks."""
    return "".join(headers.get("content-type", "").split()).lower()


def origin_problem(headers: Mapping[str, str], hosts: frozenset[str]) -> tuple[int, str] | None:
    """The reason not to serve a request, with its status: it may be another site's page that asks."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if host not in hosts:
        return 421, f"this proxy does not serve the host {host!r:.80}"
    if origin is not None and origin.partition("://")[2] not in hosts:
        return 403, f"pages of {origin!r:.80} may not use this proxy"
    return None


def reading_problem(headers: Mapping[str, str], names: Iterable[str], *, has_body: bool) -> tuple[int, str] | None:
    """The reason not to judge a request, with its status: it could be read in two ways."""
    given = [name.lower() for name in names]
    once = [name for name in given if name in _ONCE]
    if len(set(once)) < len(once):
        return 400, "a header appears twice"
    odd = next((name for name in given if name != (read := _MARK.sub("-", name)) and _matters(read)), None)
    if odd is not None:
        return 400, f"some servers read the header {odd!r:.80} as another one"
    if headers.get("content-encoding", "identity") != "identity":
        return 415, "the body is encoded"
    if has_body and content_kind(headers) not in JSON:  # in another alphabet the server reads another message
        return 415, "the body is not application/json in UTF-8"
    if not has_body and CALL in headers.get("mcp-method", "").lower():
        return 400, "its header Mcp-Method names a call, and it has no body"
    return None


def _matters(name: str) -> bool:
    return name in _ONCE or name in _HOP or name.startswith(PARAMETER)


def check_routing(headers: Mapping[str, str], message: Message) -> None:
    """Raise UnclearError where the headers say another method or tool than the body: a server may believe either."""
    method, name = headers.get("mcp-method"), headers.get("mcp-name")
    if method is not None and method != message.method:
        raise UnclearError("its header Mcp-Method says another method", answer=message.id)
    if name is not None and message.method == CALL and header_text(name) != message.params.get("name"):
        raise UnclearError("its header Mcp-Name says another tool", answer=message.id)


def session_name(headers: Mapping[str, str]) -> str:
    """The name of the session that a request belongs to: the server's own and one that the client chose, of its login.

    No value of one header stands for that of another, and who sends one of them is in no session without it.
    """
    given = [(name, value) for name in _SESSION if (value := headers.get(name))]
    return hashlib.sha256(json.dumps(given).encode()).hexdigest()[:32] if given else SHARED


def new_session() -> tuple[bytes, bytes]:
    """A session of the proxy's own, for a client that nothing else tells from others."""
    return b"mcp-session-id", f"{_OWN_SESSION}{secrets.token_hex(16)}".encode()


def is_page(status: int, kind: str) -> bool:
    """Return True for an error page: text, not a message."""
    return status >= 400 and kind.partition(";")[0] in ("", "text/plain", "text/html")


def page_text(status: int, body: bytes) -> bytes:
    """The text of an error's page for a client: one line of plain text that nobody reads as a message."""
    shown = " ".join(without_controls(body[:LONGEST_PAGE].decode("utf-8", "replace")).split())
    return f"the server answered {status}: {shown}".encode()


def answer_problem(status: int, headers: Mapping[str, str]) -> str | None:
    """The reason not to pass an answer on: a client could read in it what was not read here, or be led elsewhere."""
    if status in NO_BODY:
        return None
    if status >= BEYOND:
        return f"the server answered with {status}, which is no status of HTTP"
    if 300 <= status < 400:
        return (
            f"the server answered with a redirect ({status}), which is not followed: give the address it redirects to"
        )
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        return "the server's answer is encoded, though it was asked not to"
    kind = content_kind(headers)
    if status >= 400 and kind in EVENTS:
        return f"the server's answer is an error ({status}) and a stream of events: clients read one or the other"
    if kind in JSON or kind in EVENTS or is_page(status, kind):
        return None
    return "the server's answer is neither JSON nor a stream of events, in UTF-8"
