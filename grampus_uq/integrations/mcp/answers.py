"""Requests forwarded to a server and not yet answered, by id, tool calls among them.

An answer passes to exactly the request that is open, with the id as it was sent, and once. So a list of tools, which
changes what later calls are judged by, and the result of a call are never shown to a client unread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from grampus_uq.gate.call import CallRecord
from grampus_uq.integrations.mcp.call_outcomes import unknown
from grampus_uq.integrations.mcp.guarded_calls import GuardedCalls
from grampus_uq.integrations.mcp.json_rpc import INVALID_REQUEST, LIST, Id, Message, error_line, id_in, is_id
from grampus_uq.integrations.mcp.message_lines import TooLong
from grampus_uq.integrations.mcp.server_messages import read_server_message
from grampus_uq.integrations.mcp.shown_names import with_prefix
from grampus_uq.records.latest import Latest

_MAX_OPEN: Final = 10_000
_ENDS: Final = 1_024
_MOST_SAID: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A message for the client; with the `record` of the call whose answer it is, which has to be stored before.

    `lost`: nobody read what the server answered.
    """

    line: bytes
    record: CallRecord | None = None
    lost: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)


class Answers:
    """The open requests of one stream of a server's messages. Of more than 10,000 the oldest are forgotten."""

    def __init__(self, calls: GuardedCalls, say: Callable[[str], None], *, prefix: str = "") -> None:
        self._calls, self._say, self._said, self._prefix = calls, say, 0, prefix
        self._open: Latest[Id, bool | None] = Latest(_MAX_OPEN)
        self.running: dict[Id, CallRecord] = {}
        """The calls that the server works on."""

    def __contains__(self, identity: object) -> bool:
        return is_id(identity) and (identity in self._open or identity in self.running)

    def expect(self, message: Message) -> None:
        """A request that is not a call goes to the server now."""
        if message.id is not None and message.method is not None:
            self._open[message.id] = "cursor" not in message.params if message.method == LIST else None

    def give_up(self, identity: Id, record: CallRecord) -> bool:
        """Wait for the answer to a call no longer; False where it came. Its id stays taken."""
        if self.running.get(identity) is not record:
            return False
        del self.running[identity]
        self._open[identity] = None
        return True

    def take(self, line: bytes | TooLong) -> Taken | None:
        """The message to the client for one of the server; None where it is sent nothing."""
        if isinstance(line, TooLong):
            return self._unread(id_in(line.head, line.tail), "is longer than a message may be")
        message = read_server_message(line)
        if message is None:
            if b'"' not in line:  # no part of a message for any client, however it reads: a line of a log
                return Taken(line=line)
            return self._unread(id_in(line[:_ENDS], line[-_ENDS:]), "cannot be read")
        values, identity = message.values, message.values.get("id")
        if "method" in values or (identity is None and "result" not in values):
            return Taken(line=message.line)
        if not is_id(identity) or identity not in self:
            self._tell(f"the server answered a request that is not open ({identity!r:.60}): the answer is dropped")
            return None
        if identity in self.running and "result" not in values and values.get("error") is None:
            return self._unread(identity, "has neither a result nor an error")
        return self._answer(identity, message.line, values)

    def fail(self, why: str, *, lost: bool = False) -> Taken | None:
        """Say that the one request which is open will not be answered; None where none is."""
        identity = next(iter((*self.running, *self._open)), None)
        return None if identity is None else self._failed(identity, why, lost=lost)

    def _unread(self, identity: Id | None, why: str) -> Taken | None:
        self._tell(f"a message of the server {why}: it is dropped")
        if identity is None or identity not in self:
            return None
        return self._failed(identity, f"the server's answer {why}", lost=True)

    def _failed(self, identity: Id, why: str, *, lost: bool) -> Taken:
        line = error_line(identity, INVALID_REQUEST, unknown(why, self.running.get(identity)) if lost else why)
        return replace(self._answer(identity, line, json.loads(line)), lost=lost)

    def _tell(self, text: str) -> None:
        self._said += 1
        if self._said <= _MOST_SAID:
            self._say(text if self._said < _MOST_SAID else f"{text} (the last of these that is told)")

    def _answer(self, identity: Id, line: bytes, values: Mapping[str, Any]) -> Taken:
        record = self.running.pop(identity, None)
        if record is not None:
            return Taken(line=line, record=record, values=values)
        begins_list = self._open.pop(identity)
        if begins_list is not None and "result" in values:
            result = with_prefix(self._prefix, values["result"])
            try:
                self._calls.take_list(result, begins=begins_list)
                if self._prefix:
                    line = json.dumps({**values, "result": result}, separators=(",", ":")).encode()
            except ValueError as error:
                self._tell(f"a list of tools is refused: {error}")
                line = error_line(identity, INVALID_REQUEST, f"the server's list of tools is refused: {error}")
        return Taken(line=line)
