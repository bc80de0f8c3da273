"""What outlives a framework's state, in this process or in a store: the starts of calls, and rejections in a thread."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol

from grampus_uq.core.decision import CHAIN
from grampus_uq.gate.call import CallPhase, CallRecord, Terms
from grampus_uq.records.latest import Latest
from grampus_uq.records.values import ToolCall, canonical_json

CHAINED = f"{CHAIN} "
"""Prefix of `cleared_by` for calls released by a second look."""
PERMITTED = "permit "
"""Prefix of `cleared_by` for calls released by permits."""
_MAX_SPENT = 65_536
_REJECTED = "rejected"
_RUNNING: ContextVar[frozenset[str]] = ContextVar("grampus_uq_running", default=frozenset())


def permitted(record: CallRecord) -> bool:
    """Return True if permits alone released the call."""
    return record.cleared_by is not None and record.cleared_by.startswith(PERMITTED) and not record.decisions


def let_by(record: CallRecord, run_id: str) -> str | None:
    """Return the id under which a call may run once: the decided request, or this run's call that was let ahead."""
    if record.decisions:
        return record.requests[0].id
    return None if by_itself(record) else record.key(run_id)


def by_itself(record: CallRecord) -> bool:
    """Return True for a call that no decision, grant, permit or second look let run, which may run more than once."""
    by = record.cleared_by or ""
    return not record.decisions and record.grant is None and not by.startswith((CHAINED, PERMITTED))


def _rejection(call: ToolCall, terms: Terms) -> str:
    return canonical_json([_REJECTED, terms.thread, call.likeness()])  # whichever agent, and whatever a host calls it


class Starts(Protocol):
    """Interface to what processes start that share approvals; implemented by `runtime.stored_starts`."""

    async def take(self, by: str, owner: str) -> bool:
        """True if this start, known as `by`, is this owner's, the first to ask. Raises StoreError if not stored."""
        ...

    async def free(self, by: str, owner: str) -> bool:
        """True if this owner could take it now; nothing is stored. Raises StoreError."""
        ...


class CallStarts:
    """The starts of one host's calls, in this process and, with a `store`, in all that share it.

    A call starts once on the decisions on its request, or on its permit: a state that was put back to before the call
    ran would run it again. `store` None knows this process only.
    """

    def __init__(self, store: Starts | None) -> None:
        self._store = store
        self.stored = store is not None
        self._owned: Latest[str, str] = Latest(_MAX_SPENT)  # known no longer than what is spent
        self._taken: Latest[tuple[str, str], bool] = Latest(_MAX_SPENT)
        self._spent: Latest[str, bool] = Latest(_MAX_SPENT)  # True: cut off
        self._rejected: Latest[str, None] = Latest(_MAX_SPENT)
        self._lock = threading.Lock()

    def spend(self, request_id: str) -> bool:
        """True the first time that a call starts here on the decisions on this request."""
        with self._lock:
            if request_id in self._spent and request_id not in _RUNNING.get():
                return False
            self._spent[request_id] = False
        return True

    def give_back(self, record: CallRecord, run_id: str) -> None:
        """A call that was started did not run: what let it run lets it start once more."""
        with self._lock:
            self._spent.pop(let_by(record, run_id) or "", None)

    def spent(self, record: CallRecord, run_id: str = "") -> bool:
        """True when another task started a call here on the decisions on this record's request, or on its permit."""
        by = let_by(record, run_id)
        return by in self._spent and by not in _RUNNING.get()

    def cut_off(self, record: CallRecord, run_id: str) -> bool:
        """True when a start on the decisions on this record, or on its permit, was cancelled: the call may have run."""
        by = let_by(record, run_id)
        return by is not None and self._spent.get(by) is True

    def began_elsewhere(self, by: str) -> None:
        """Another process started the call that `by` lets run, and nobody knows what became of it."""
        with self._lock:
            self._spent.setdefault(by, True)

    async def take(self, record: CallRecord, terms: Terms) -> bool:
        """Take the start of a call that may run once; False where another has it: the call may have run there.

        It is of the call, whatever request an old state asks anew; where a human knew that it may have run, of that
        request. Raises StoreError where it cannot be stored: the call must not run.
        """
        return await self._ask(record, terms, take=True)

    async def free(self, record: CallRecord, terms: Terms) -> bool:
        """True if `take` would be now; takes nothing. Raises StoreError."""
        return await self._ask(record, terms, take=False)

    async def _ask(self, record: CallRecord, terms: Terms, *, take: bool) -> bool:
        by = None if record.phase is CallPhase.SETTLED else let_by(record, terms.run_id)
        if by is None or self._store is None:
            return True
        with self._lock:
            owner = self._owned.setdefault(by, uuid.uuid4().hex)
        known = any(request.unknown_outcome for request in record.requests)
        call = record.step_id, record.proposed.id, record.proposed.canonical()
        start = by if known else canonical_json([terms.agent_id, terms.session_id, terms.run_id, *call])
        own = start, f"{owner}/{os.getpid()}"
        if own in self._taken:  # nobody else can have it since, and the store may not answer a second time
            return True
        first = await (self._store.take(*own) if take else self._store.free(*own))
        if not first:
            self.began_elsewhere(by)
        elif take:
            self._taken[own] = True
        return first

    def know_rejected(self, call: ToolCall, terms: Terms) -> None:
        """A human rejected this call: all sessions of its thread in this process ask about an equal one."""
        if terms.thread:
            self._rejected[_rejection(call, terms)] = None

    async def reject(self, call: ToolCall, terms: Terms) -> None:
        """`know_rejected`, in all processes that share the store. Raises StoreError."""
        self.know_rejected(call, terms)
        if terms.thread and self._store is not None:
            await self._store.take(_rejection(call, terms), _REJECTED)

    async def rejected(self, call: ToolCall, terms: Terms, *, stored: bool) -> bool:
        """True if a human rejected such a call in this thread: here or, where that is `stored`, in another process.

        Raises StoreError.
        """
        store = self._store if stored else None
        if not terms.thread or (store is None and not self._rejected):  # nothing to look in, as in most runs
            return False
        by = _rejection(call, terms)
        return by in self._rejected or (store is not None and not await store.free(by, ""))

    @contextlib.contextmanager
    def once(self, record: CallRecord, run_id: str = "") -> Iterator[bool]:
        """For hosts that cannot store a record as started: True for the one task that may run the call, nested too.

        An exception gives the decision, or the permit, back: the host may try again. A cancelled start is `cut_off`.
        """
        by = let_by(record, run_id)
        if by is None or not self.spend(by):
            yield by is None
            return
        token = _RUNNING.set(_RUNNING.get() | {by})
        try:
            yield True
        except Exception:
            self.give_back(record, run_id)
            raise
        except BaseException:
            with self._lock:
                self._spent[by] = True
            raise
        finally:
            _RUNNING.reset(token)

    def hand_on(self, record: CallRecord, again: CallRecord, run_id: str) -> CallRecord:
        """A call that did not begin waits `again`, whose request has its start if that was taken."""
        self.give_back(record, run_id)
        with self._lock:
            owner = self._owned.pop(let_by(record, run_id) or "", None)
            if owner is not None:
                self._owned[again.requests[0].id] = owner
        return again
