"""A session's reader: asked before an irreversible call, and reading ahead beside every other step.

It reads ahead on a loop of its own, so that no step waits for it; what that cost is told with the next reading.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace

import anyio

from grampus_uq.models.loop_thread import start_on_loop_thread
from grampus_uq.records.values import Message, Reading, Step
from grampus_uq.records.vocabulary import MissingReason, Role
from grampus_uq.signals.call_reader import Reader
from grampus_uq.signals.driver import MeteredContext, sense_one

_TIMEOUT_S = 60.0  # of reading ahead: a long transcript is read for the first time in many seconds


@dataclass(frozen=True, slots=True)
class _Reading:
    """A pending reading: its reader, and the step's access to the model with the transcript so far."""

    reader: Reader
    context: MeteredContext

    def start(self) -> Future[Reading]:
        """Read it; nobody waits."""
        given = self.context
        own = MeteredContext(
            messages=given.messages,
            client=given.client,
            model=given.model,
            tools=given.tools,
            budget=replace(given.budget, timeout_s=_TIMEOUT_S),
        )
        return start_on_loop_thread(lambda: sense_one(self.reader.source, self.reader.read_ahead, own))


class ReadAhead:
    """Background reading of a session: one request at a time, then the latest that arrived meanwhile."""

    __slots__ = ("_latest", "_lock", "_next", "_running", "_spent")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: _Reading | None = None
        self._next: _Reading | None = None
        self._running: Future[Reading] | None = None
        self._spent: Reading | None = None

    @property
    def follows(self) -> bool:
        """True while it waits for what tools answer."""
        return self._latest is not None

    def follow(self, reader: Reader, context: MeteredContext, *, start: bool) -> None:
        """The transcript so far: to be read at once where it is to `start`, and whenever a tool answers."""
        self._latest = _Reading(reader, context)
        if start:
            self._read(self._latest)

    def answered(self, text: str, call_id: str | None) -> None:
        """Read what a tool answered, too."""
        latest = self._latest
        if latest is not None:
            message = Message(role=Role.TOOL, content=text, tool_call_id=call_id)
            context = replace(latest.context, messages=(*latest.context.messages, message))
            self.follow(latest.reader, context, start=True)

    def _read(self, wanted: _Reading) -> None:
        with self._lock:
            if self._running is not None:
                self._next = wanted
                return
            running = self._running = wanted.start()
        running.add_done_callback(self._ended)  # called at once where it has ended

    def _ended(self, ended: Future[Reading]) -> None:
        with self._lock:
            if not ended.cancelled() and ended.exception() is None:
                self._spent = with_cost(ended.result(), self._spent)
            wanted, self._next, self._running = self._next, None, None
        if wanted is not None:
            self._read(wanted)

    async def settle(self, timeout_s: float) -> None:
        """Wait for a request that is under way: what it reads is then in the server's cache. Nothing else is begun."""
        with self._lock:
            self._next, self._latest = None, None
        with anyio.move_on_after(timeout_s):
            while self._running is not None:  # noqa: ASYNC110 (it is set on another loop)
                await anyio.sleep(0.005)

    def cost(self) -> Reading | None:
        """A missing reading with what reading ahead cost since; None where nothing was read."""
        with self._lock:
            spent, self._spent = self._spent, None
        return spent


async def read_beside(
    reader: Reader,
    step: Step,
    context: MeteredContext,
    ahead: ReadAhead | None,
    readings: list[Reading],
    *,
    needed: bool,
    over_cap: bool,
) -> None:
    """Add the reader's reading of a step where it is `needed`; else start reading ahead, and add what that has cost.

    A request that is under way is waited for, within the reading's own deadline: another would read all of it again.
    """
    ahead = ahead or ReadAhead()
    if needed or over_cap:
        await ahead.settle(0.0 if over_cap else context.budget.timeout_s)
    if needed and not over_cap:
        reading = await sense_one(reader.source, lambda metered: reader.sense(step, metered), context)
    else:
        reason = MissingReason.OVERHEAD_CAP if needed else MissingReason.NOT_NEEDED
        reading = Reading(source=reader.source, value=None, reason=reason)
    spent = ahead.cost()
    if needed or spent is not None:
        readings.append(with_cost(reading, spent))
    if not over_cap:
        said = Message(role=Role.ASSISTANT, content=step.text or None, tool_calls=step.tool_calls)
        ahead.follow(reader, replace(context, messages=(*context.messages, said)), start=not needed)


def with_cost(reading: Reading, spent: Reading | None) -> Reading:
    """A reading with what was spent beside it."""
    if spent is None:
        return reading
    costs = [one.cost_usd for one in (reading, spent) if one.cost_usd is not None]
    return replace(
        reading,
        calls=reading.calls + spent.calls,
        input_tokens=reading.input_tokens + spent.input_tokens,
        output_tokens=reading.output_tokens + spent.output_tokens,
        cost_usd=sum(costs) if costs else None,
    )
