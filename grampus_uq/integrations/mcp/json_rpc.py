"""A client's message, read so that no server can read another one in the same bytes; and the proxy's own messages.

Servers differ: of a name that comes twice some take the first value and some the last, some compare names without
regard to case, some split lines at a carriage return, some round whole numbers beyond 2^53. What they could read in
two ways is refused, so that the call which is judged is the call that runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, TypeGuard

from grampus_uq.gate.schema import BESIDE
from grampus_uq.records.strict_json import parse_json
from grampus_uq.records.values import canonical_json
from grampus_uq.wire.calls import read_arguments

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
INVALID_PARAMS: Final = -32602
CALL: Final = "tools/call"
LIST: Final = "tools/list"
CANCEL: Final = "notifications/cancelled"
PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"

ENVELOPE: Final = ("jsonrpc", "id", "method", "params", "result", "error")
_PARAMS: Final = ("name", "arguments", "_meta", "task", "inputResponses", "requestState")
_PLAIN: Final = frozenset({"name", "arguments", "_meta", "task"})
_OWN_STATE: Final = "g1."
_REQUEST: Final = "grampus_uq/request"
_MAX_REQUEST: Final = 8_000
_MAX_ID: Final = 1_024
_SAFE_INTEGER: Final = 2**53 - 1
_SCALAR: Final = rb'-?\d{1,18}|"(?:[^"\\]|\\.){0,256}"'
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+')
_LAST_ID = re.compile(rb'[,{]\s*"id"\s*:\s*(' + _SCALAR + rb')\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?}\s*$')
_ENDS: Final = 4_096

Id = str | int


class UnclearError(Exception):
    """A message that could be read in two ways, or in none; `answer` is the id of the request, None without one."""

    def __init__(self, why: str, *, code: int = INVALID_REQUEST, answer: Id | None = None) -> None:
        super().__init__(why)
        self.code, self.answer = code, answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A JSON-RPC message: `id` None for a notification, `method` None for a response."""

    line: bytes
    values: Mapping[str, Any]
    id: Id | None = None
    method: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_call(self) -> bool:
        """Return True for a tool call."""
        return self.method == CALL

    def having(self, params: Mapping[str, Any]) -> Message:
        """The same message with other params."""
        values = {**self.values, "params": params}
        return replace(self, line=written(values), values=values, params=params)


def read_message(line: bytes, *, alone: bool = False) -> Message:
    """Read a client's message; `alone`: it is a body of its own, no line among others. Raises UnclearError."""
    if b"\r" in line and not alone:
        raise UnclearError("it holds a carriage return, where some servers end a line", answer=id_in(line, line))
    try:
        values = parse_json(line, unique_names=True)
    except ValueError as error:
        raise UnclearError(f"the message {error}", code=PARSE_ERROR, answer=id_in(line, line)) from None
    if not isinstance(values, dict):
        raise UnclearError("it is not a JSON object: batches are not passed on")
    identity = values.get("id")
    known = identity if is_id(identity) else None
    if isinstance(known, str) and len(known) > _MAX_ID:
        raise UnclearError(f"its id is longer than {_MAX_ID} characters")
    _check_names(values, ENVELOPE, known)
    method, params = values.get("method"), values.get("params", {})
    if method is not None and not isinstance(method, str):
        raise UnclearError("its method is not text", answer=known)
    if method is not None and known is None and identity is not None:  # its answer would be no open request's
        raise UnclearError("its id is neither text nor a whole number")
    params = params if isinstance(params, dict) else {}
    message = Message(line=line, values=values, id=known, method=method, params=params)
    if method is not None:
        _check_method(message)
    return message


def _check_names(values: Mapping[str, Any], known: tuple[str, ...], answer: Id | None) -> None:
    for name in values:
        if name not in known and name.casefold() in {one.casefold() for one in known}:
            raise UnclearError(f"some servers read the name {name!r:.40} as another one", answer=answer)


def _check_method(message: Message) -> None:
    """Refuse what a lenient server could take for a call of a tool, and a call that cannot be answered."""
    name = (message.method or "").strip().casefold()
    if name.startswith("tools/") and message.method not in (CALL, LIST):
        raise UnclearError(f"the method {message.method!r:.60} is not known, and may call a tool", answer=message.id)
    if message.method == CANCEL:
        _check_names(message.params, ("requestId",), message.id)
        if not is_id(message.params.get("requestId", "")):
            raise UnclearError(
                "it cancels a request by an id that is neither text nor a whole number", answer=message.id
            )
    if not message.is_call:
        return
    if message.id is None:
        raise UnclearError("a call of a tool needs an id that is a text or a whole number")
    if "result" in message.values or "error" in message.values:
        raise UnclearError("it is a request and a response in one", answer=message.id)
    if not isinstance(message.values.get("params"), dict):
        raise UnclearError("a call of a tool needs its params", code=INVALID_PARAMS, answer=message.id)
    _check_names(message.params, _PARAMS, message.id)
    try:
        problem = _call_problem(message.params) or _value_problem(message.line)
    except RecursionError:
        problem = "it is nested too deeply"
    if problem is not None:
        raise UnclearError(problem, code=INVALID_PARAMS, answer=message.id)


def _call_problem(params: Mapping[str, Any]) -> str | None:
    name, arguments = params.get("name"), params.get("arguments")
    if not isinstance(name, str) or not 0 < len(name) <= 256:
        return "the tool's name is not text of 1 to 256 characters"
    if arguments is not None and not isinstance(arguments, dict):
        return "the arguments are not a JSON object"
    read = read_arguments(judged_arguments(params))
    if read.problem is not None:
        return f"the arguments {read.problem}"
    if any("\ud800" <= char <= "\udfff" for char in json.dumps(params, ensure_ascii=False)):
        return "the call holds half a character"
    if BESIDE in (arguments or ()):
        return f"an argument is named {BESIDE!r}"
    return None


class _Fraction(str):
    """A number as it was written, with a point or an exponent."""

    __slots__ = ()


def _value_problem(line: bytes) -> str | None:
    """A call may hold no number that some servers round, and no two names that some take for one, at any depth."""
    left: list[Any] = [judged_arguments(json.loads(line.decode("utf-8-sig"), parse_float=_Fraction)["params"])]
    while left:
        one = left.pop()
        if type(one) is int and abs(one) > _SAFE_INTEGER:
            return "the arguments hold a number beyond 2^53, which some servers round: give it as text"
        if type(one) is _Fraction and not _is_a_double(one):
            return "the arguments hold a number of more digits than some servers keep: give it as text"
        if isinstance(one, dict) and len({name.casefold() for name in one}) < len(one):
            return "two arguments differ only in case, and some servers take them for one"
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return None


def _is_a_double(text: str) -> bool:
    """Return True for a number with the same value as a double and as a decimal."""
    value = float(text)
    if not abs(value) <= _SAFE_INTEGER:
        return False
    try:
        return Decimal(text) == Decimal(repr(value))
    except ArithmeticError:  # an exponent beyond that of a decimal
        return False


def judged_arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are judged: the call's own, or, where it carries more that a server may act on, all of it."""
    arguments = params.get("arguments") or {}
    if params.keys() <= _PLAIN:
        return dict(arguments)
    return {"arguments": arguments, BESIDE: {name: value for name, value in params.items() if name not in _PLAIN}}


def with_arguments(message: Message, arguments: Mapping[str, Any]) -> bytes:
    """The line of a call with other judged arguments; raises UnclearError where a server could read others in it."""
    inner = arguments if message.params.keys() <= _PLAIN else arguments.get("arguments")
    edited = message.having({**message.params, "arguments": inner})
    _check_method(edited)
    if canonical_json(judged_arguments(edited.params)) != canonical_json(arguments):
        raise UnclearError("it does not fit what else the call carries")
    return edited.line


def id_in(head: bytes, tail: bytes = b"") -> Id | None:
    """The id of a message that could not be read, by its beginning and its end; a guess, for an answer only."""
    depth, before = 0, (b"", b"")
    for found in _TOKEN.finditer(head[:_ENDS]):
        token = found[0]
        if depth == 1 and before == (b'"id"', b":") and re.fullmatch(_SCALAR, token) and found.end() < len(head):
            return _id_of(token)
        depth += (token in (b"{", b"[")) - (token in (b"}", b"]"))
        before = (before[1], token)
    ended = _LAST_ID.search(tail[-_ENDS:])
    return _id_of(ended[1]) if ended else None


def _id_of(text: bytes) -> Id | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if is_id(value) else None


def is_id(value: object) -> TypeGuard[Id]:
    """Return True for a valid request id: a string or an integer."""
    return isinstance(value, str) or type(value) is int


def written(values: Mapping[str, Any]) -> bytes:
    """A message as one line."""
    return json.dumps(values, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def error_line(answer: Id | None, code: int, why: str) -> bytes:
    """An error as the answer to a request; without an id to nobody in particular."""
    return written({"jsonrpc": "2.0", "id": answer, "error": {"code": code, "message": f"grampus_uq: {why}"}})


def result_line(message: Message, result: Mapping[str, Any]) -> bytes:
    """A result as the answer to a request."""
    return written({"jsonrpc": "2.0", "id": message.id, "result": result})


def refusal_line(message: Message, text: str) -> bytes:
    """The answer to a call that is not passed on, as its tool's result."""
    return result_line(message, text_result(text, is_error=True, modern=is_modern(message.params)))


def text_result(text: str, *, is_error: bool, modern: bool = False, **meta: Any) -> dict[str, Any]:
    """A tool's result that is a text of the proxy's; `modern` for the revisions that say when a result is complete."""
    return {
        **({"resultType": "complete"} if modern else {}),
        "content": [{"type": "text", "text": text}],
        "isError": is_error,
        **({"_meta": {f"grampus_uq/{name}": value for name, value in meta.items()}} if meta else {}),
    }


def meta_in(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `_meta` of a message; empty where it has none."""
    meta = params.get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def request_in(params: Mapping[str, Any]) -> str | None:
    """The user's request, where the client passes it with a call: at most 8,000 characters of it."""
    text = meta_in(params).get(_REQUEST)
    return text[:_MAX_REQUEST] if isinstance(text, str) and text.strip() else None


def is_modern(params: Mapping[str, Any]) -> bool:
    """Return True for a request of a revision without a handshake (2026-07-28 and later)."""
    version = meta_in(params).get(PROTOCOL_VERSION)
    return isinstance(version, str) and version >= "2026"


def without_state(message: Message) -> Message:
    """The call without a `requestState` of this proxy's, and what came with it: its server knows nothing of it."""
    state = message.params.get("requestState")
    if not isinstance(state, str) or not state.startswith(_OWN_STATE):
        return message
    own = ("requestState", "inputResponses")
    return message.having({name: value for name, value in message.params.items() if name not in own})
