"""The guarded sessions of one HTTP upstream, by name; each runs beside the requests until it is let go."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from grampus_uq.gate.call import CallRecord
from grampus_uq.integrations.mcp.answers import Answers
from grampus_uq.integrations.mcp.call_exchange import CallExchange
from grampus_uq.integrations.mcp.call_outcomes import matters, unknown
from grampus_uq.integrations.mcp.json_rpc import Id, Message, UnclearError, meta_in
from grampus_uq.records.latest import Latest

_SESSION = "grampus_uq/session"
"""The key of a request's `_meta` that names its session, as the header `Grampus-Session` does."""
_MAX_SESSIONS = 256
_MAX_EVENTS = 1_000
_MAX_RUNNING = 1_000
_MAX_ID = 1_024


@dataclass(slots=True)
class Owed:
    """Pending answers of the server to one client request, kept apart from other requests with equal ids.

    `record`: of a call. `resumable`: events have ids, so the stream may go on in another one. `begins_session`: the
    answer names a session of the proxy's. `judged`: in advisory mode, where answers pass, and are read afterwards.
    """

    answers: Answers
    identity: Id | None = None
    record: CallRecord | None = None
    resumable: bool = False
    readers: int = 0
    begins_session: bool = False
    judged: anyio.Event | None = None

    @property
    def matters(self) -> bool:
        """Return True for a call whose outcome must be reported."""
        return self.judged is None and self.record is not None and matters(self.record)

    async def until_judged(self) -> None:
        """Wait for the judgement where it happens beside the call, in advisory mode."""
        if self.judged is not None:
            await self.judged.wait()

    def unknown(self, why: str) -> str:
        """The words for a client whose request had this instead of an answer, after it was sent."""
        return unknown(why, self.record)


@dataclass(slots=True)
class HttpSession:
    """One session: its exchange, the calls that wait, how many are at work, and the streams that may go on."""

    exchange: CallExchange
    scope: anyio.CancelScope
    held: list[tuple[Id, anyio.Event]] = field(default_factory=list)
    running: deque[tuple[Id, str]] = field(default_factory=lambda: deque(maxlen=_MAX_RUNNING))
    busy: int = 0
    """Requests at work, answers that are read, and answers that are sent."""
    _streams: Latest[bytes, Owed] = field(default_factory=lambda: Latest(_MAX_EVENTS))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the session while something of it is at work."""
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1

    def cancel(self, identity: object) -> bool:
        """Give up the one call with this id that waits; False where there is none, or clients share the id.

        One that runs goes on, and the same call again waits for its result.
        """
        found = [cancelled for held, cancelled in self.held if type(held) is type(identity) and held == identity]
        if len(found) == 1:
            found[0].set()
        for running, call_id in self.running:
            if type(running) is type(identity) and running == identity:
                self.exchange.calls.left(call_id)
        return len(found) == 1

    def goes_on(self, event_id: bytes, owed: Owed) -> None:
        """The stream of a request may go on after this event."""
        if len(event_id) > _MAX_ID:
            return
        owed.resumable = True
        self._streams[event_id] = owed

    def after(self, event_id: bytes) -> Owed | None:
        """The messages owed in a stream that goes on after this event."""
        return self._streams.get(event_id)


def session_in(message: Message) -> str | None:
    """The session that a message names in its `_meta`; raises UnclearError where that is not text."""
    named = meta_in(message.params).get(_SESSION)
    if named is not None and (not isinstance(named, str) or not 0 < len(named) <= _MAX_ID):
        raise UnclearError(f"its session is not text of 1 to {_MAX_ID} characters", answer=message.id)
    return named


def without_session(message: Message) -> Message:
    """The message without its session's name, which its server is not to see."""
    meta = {name: value for name, value in message.params["_meta"].items() if name != _SESSION}
    return message.having({**message.params, "_meta": meta})


class HttpSessions:
    """The sessions of one upstream. `make` builds the exchange of a new one by its name."""

    def __init__(self, make: Callable[[str], CallExchange], group: TaskGroup) -> None:
        self._make, self._group = make, group
        self._sessions: OrderedDict[str, HttpSession] = OrderedDict()

    async def of(self, name: str) -> HttpSession | None:
        """The session of this name; None where too many are busy. The longest unused idle one makes room."""
        if name not in self._sessions and len(self._sessions) >= _MAX_SESSIONS:
            idle = next((n for n, one in self._sessions.items() if not one.busy), None)
            if idle is None:
                return None
            await self.let_go(idle)
        if name not in self._sessions:
            self._sessions[name] = session = self.apart(name)
            self._group.start_soon(self._run, session)
        self._sessions.move_to_end(name)
        return self._sessions[name]

    def apart(self, name: str) -> HttpSession:
        """A session in which no call is judged: it does not run."""
        return HttpSession(exchange=self._make(name), scope=anyio.CancelScope())

    async def _run(self, session: HttpSession) -> None:
        with session.scope:
            await session.exchange.calls.run()

    async def let_go(self, name: str) -> None:
        """Release a session in the store, and forget it here."""
        session = self._sessions.pop(name, None)
        if session is not None:
            await session.exchange.aclose()
            session.scope.cancel()

    def end(self) -> None:
        """Keep no request open any more whose call waits."""
        for session in self._sessions.values():
            session.exchange.end()

    async def aclose(self) -> None:
        """Let all go."""
        for name in list(self._sessions):
            await self.let_go(name)
