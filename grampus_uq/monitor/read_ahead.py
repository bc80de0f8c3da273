"""A session's reader: asked before an irreversible call, and reading ahead beside every other step.

It reads ahead on a loop of its own, so that no step waits for it; what that cost is told with the next reading.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import anyio

from grampus_uq.models.loop_thread import start_on_loop_thread
from grampus_uq.records.values import Message, Reading, Step
from grampus_uq.records.vocabulary import MissingReason, Role
from grampus_uq.signals.call_reader import Reader
from grampus_uq.signals.driver import Budget, MeteredContext, sense_one

_TIMEOUT_S = 60.0  # of reading ahead: a long transcript is read for the first time in many seconds


class ReadAhead:
    """What a session's reader reads while nobody waits: one request at a time."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: Future[Reading] | None = None

    def start(self, reader: Reader, context: MeteredContext) -> None:
        """Have the reader read the transcript so far, unless it still reads an earlier one."""
        if self._running is None:
            self._running = start_on_loop_thread(lambda: sense_one(reader.source, reader.read_ahead, context))

    async def settle(self, timeout_s: float) -> None:
        """Wait for a request that is under way: what it reads is then in the server's cache."""
        running = self._running
        with anyio.move_on_after(timeout_s):
            while running is not None and not running.done():  # noqa: ASYNC110 (it is set on another loop)
                await anyio.sleep(0.005)

    def cost(self) -> Reading | None:
        """A missing reading with what reading ahead cost; None where nothing was read since."""
        running = self._running
        if running is None or not running.done():
            return None
        self._running = None
        return running.result()


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
    if needed and not over_cap:
        if ahead is not None:
            await ahead.settle(context.budget.timeout_s)
        reading = await sense_one(reader.source, lambda metered: reader.sense(step, metered), context)
    else:
        reason = MissingReason.OVERHEAD_CAP if needed else MissingReason.NOT_NEEDED
        reading = Reading(source=reader.source, value=None, reason=reason)
    spent = None if ahead is None else ahead.cost()
    if needed or spent is not None:
        readings.append(reading if spent is None else _with_cost(reading, spent))
    if ahead is not None and not (needed or over_cap):
        said = Message(role=Role.ASSISTANT, content=step.text or None, tool_calls=step.tool_calls)
        budget = Budget(timeout_s=_TIMEOUT_S)
        ahead.start(reader, replace(context, messages=(*context.messages, said), budget=budget))


def _with_cost(reading: Reading, spent: Reading) -> Reading:
    costs = [one.cost_usd for one in (reading, spent) if one.cost_usd is not None]
    return replace(
        reading,
        calls=reading.calls + spent.calls,
        input_tokens=reading.input_tokens + spent.input_tokens,
        output_tokens=reading.output_tokens + spent.output_tokens,
        cost_usd=sum(costs) if costs else None,
    )
