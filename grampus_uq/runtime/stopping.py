"""Stop orders to one session or to all running ones, and reports on whom they reached.

An order is a counter in the store, not a time, so that no clock matters. A session notes the counters when it is
leased, and stops when one of them has grown. All orders are counted in one document, so that a worker polls one
document however many sessions it runs and however many orders there were.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from anyio.lowlevel import RunVar

from grampus_uq.errors import SessionError, StoreError
from grampus_uq.records.vocabulary import AgentStatus
from grampus_uq.runtime.ledger import Ledger, session_key
from grampus_uq.runtime.run_state import AgentState
from grampus_uq.runtime.store import Change, Document, Put, try_write

_POLL_S = 0.25
_ALL = "*"
_TRIES = 100


class StoppedError(SessionError):
    """A stop order reached the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """Keys of the sessions that a live worker ran when the order was given, and of those that stopped since."""

    reached: tuple[str, ...]
    acknowledged: tuple[str, ...]


class StopOrders:
    """The stop orders of one store, polled once every `_POLL_S` however many sessions wait for them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._orders: tuple[int, int] = (0, 0)
        self._asked_at = self._known_at = float("-inf")
        self._locks: RunVar[tuple[anyio.Lock, anyio.Lock] | None] = RunVar(f"grampus_stops_{uuid.uuid4().hex}", None)

    async def reached(self, state: AgentState, looked_at: int, *, since: float | None = None) -> tuple[bool, int]:
        """A pair: True if this session was ordered to stop; the number of the newest order considered.

        `looked_at` is that number before. An answer up to `_POLL_S` old counts, and an unreachable store orders
        nothing; with `since`, by the monotonic clock, all earlier orders count, or StoreError is raised.
        """
        try:
            if since is not None:
                async with self._turns()[1]:  # tasks that wait for another's answer share it
                    if self._known_at < since:
                        await self._ask()
            elif time.monotonic() - self._asked_at >= _POLL_S:
                await self._ask()
            number, to_all = self._orders
            if number == looked_at:
                return False, looked_at
            own = await self._ledger.store.get("stop", session_key(state.agent_id, state.session_id))
            above = await self._ledger.ordered_above(state)
        except StoreError:
            if since is not None:
                raise
            return False, looked_at
        seen_all, seen_own = state.stops_seen or (0, 0)
        stopped = above or to_all > seen_all or _version(own) > seen_own
        return stopped, looked_at if stopped else number  # who was stopped stays stopped, however often it asks

    async def news(self, looked_at: int, at_most_s: float) -> None:
        """Return when an order is newer than `looked_at`, or after so long; one task polls for all that wait."""
        with anyio.move_on_after(at_most_s):
            if self._orders[0] != looked_at:  # they could not be read just now
                await anyio.sleep(_POLL_S)
            while self._orders[0] == looked_at:
                async with self._turns()[0]:
                    if self._orders[0] == looked_at:
                        await anyio.sleep(_POLL_S)
                        with contextlib.suppress(StoreError):
                            await self._ask()

    async def _ask(self) -> None:
        self._asked_at = asked_at = time.monotonic()
        orders = _orders(await self._ledger.store.get("stop", _ALL))
        self._orders, self._known_at = max(self._orders, orders), max(self._known_at, asked_at)

    def _turns(self) -> tuple[anyio.Lock, anyio.Lock]:
        """The locks of this event loop: one for waiting, one for asking."""
        locks = self._locks.get()
        if locks is None:
            self._locks.set(locks := (anyio.Lock(), anyio.Lock()))
        return locks


async def stops_now(ledger: Ledger, state: AgentState) -> tuple[int, int]:
    """The numbers of orders so far, to all and to this session."""
    to_all = _orders(await ledger.store.get("stop", _ALL))[1]
    return to_all, _version(await ledger.store.get("stop", session_key(state.agent_id, state.session_id)))


async def stops_to_heed(ledger: Ledger, state: AgentState) -> tuple[int, int]:
    """The numbers of orders that a session leased now ignores.

    An order to this session that was given while it waited still counts. An order to all counts for a session that was
    running, including one whose worker died.
    """
    to_all, own = await stops_now(ledger, state)
    if not state.sealed:  # who could write the state could write there that it has seen every order to come
        return 0, 0
    if state.stops_seen is not None:
        seen_all, seen_own = map(min, state.stops_seen, (to_all, own))
        return (seen_all if state.status is AgentStatus.RUNNING else to_all), seen_own
    if state.v < 2 and own and state.claimed_s:  # taken up by a release that compared times
        found = await ledger.store.get("stop", session_key(state.agent_id, state.session_id))
        if found is not None and float(json.loads(found.body)["time_s"]) > max(state.claimed_s, state.created_s):
            return to_all, own - 1
    return to_all, own


async def order_stop(
    ledger: Ledger,
    agent_id: str | None = None,
    session_id: str | None = None,
    *,
    principal: str = "",
    wait_s: float = 0.0,
) -> StopReport:
    """Order a session, or without ids all running sessions, to stop; wait up to `wait_s` for them."""
    one = None if agent_id is None or session_id is None else session_key(agent_id, session_id)
    running: dict[str, str] = {}
    with contextlib.suppress(StoreError):  # whoever obeys at once is not found any more after the order
        running = await ledger.running()
    for _ in range(_TRIES):
        found = await ledger.store.get("stop", _ALL)
        number, to_all = _orders(found)
        body = {"time_s": ledger.now_s(), "principal": principal}
        changes: list[Change] = [
            Put(kind="stop", key=_ALL, body=json.dumps(body | {"to_all": to_all + (one is None)}), expected=number)
        ]
        if one is not None:
            own = _version(await ledger.store.get("stop", one))
            changes.append(Put(kind="stop", key=one, body=json.dumps(body), expected=own))
        if await try_write(ledger.store, *changes):
            break  # else there was another order at this very moment: count it, and count on
    else:
        raise StoreError(f"The order to stop could not be given: {_TRIES} times another one was first.")
    running |= await ledger.running()
    reached = tuple(sorted(key for key in running if one in (None, key)))
    return StopReport(reached=reached, acknowledged=await _standing(ledger, running, reached, wait_s))


async def _standing(ledger: Ledger, running: dict[str, str], reached: Sequence[str], wait_s: float) -> tuple[str, ...]:
    """The sessions that their workers have released, as soon as all have or the time is over."""
    until = time.monotonic() + wait_s
    while True:
        still = await ledger.running() if reached else {}
        standing = tuple(key for key in reached if still.get(key) != running[key])
        if len(standing) == len(reached) or time.monotonic() >= until:
            return standing
        await anyio.sleep(_POLL_S / 2)


def _orders(found: Document | None) -> tuple[int, int]:
    """The number of all orders, and how many of them were to all; before schema 2 the document counted only those."""
    if found is None:
        return 0, 0
    try:
        return found.version, int(json.loads(found.body).get("to_all", found.version))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(f"The stop orders of this store cannot be read: {type(error).__name__}.") from error


def _version(found: Document | None) -> int:
    return 0 if found is None else found.version
