"""A bounded queue with a thread that empties it: `put` never waits, and dropped items are counted."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from opentelemetry import context

from grampus_uq.errors import ConfigurationError

_log = logging.getLogger("grampus_uq.telemetry")
_IDLE_S: Final = 30.0  # then the thread ends, until something is put again
_EXIT_S: Final = 5.0
_SUPPRESSED: Final = getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")

_T = TypeVar("_T")


class Outbox(Generic[_T]):
    """Hands items to `send` in batches, on a daemon thread that lives only while there is something to send.

    `put` may be called from any thread and from any event loop; it takes microseconds and never waits for `send`. At
    most `capacity` items wait. Beyond that the oldest item that is not urgent is dropped, and an urgent one only when
    all are urgent. A batch goes out when `batch` items wait, `delay_s` after the first of them, or on `flush`. `send`
    may raise and may block for long; a batch on which it raised counts as dropped and is not sent again: whoever wants
    to retry does so inside `send`.

    A forked child starts with an empty queue (its parent sends what was in it) and a thread of its own. When the
    process ends, what waits is sent, within five seconds.
    """

    def __init__(
        self,
        send: Callable[[Sequence[_T]], None],
        *,
        name: str,
        capacity: int = 2048,
        batch: int = 512,
        delay_s: float = 1.0,
    ) -> None:
        if not 1 <= batch <= capacity:
            raise ConfigurationError.of(
                "capacity", name, f"at least the batch ({batch}), which is at least 1", capacity
            )
        if not delay_s >= 0.0:
            raise ConfigurationError.of("delay_s", name, "at least 0 seconds", delay_s)
        self._send, self._name = send, name
        self._capacity, self._batch, self._delay_s = capacity, batch, delay_s
        self._begin()
        mine = weakref.ref(self)
        atexit.register(lambda: _if_there(mine, Outbox.close))
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lambda: _if_there(mine, Outbox._begin))

    def _begin(self) -> None:
        """Start empty, in a forked child too: its copy of the lock may be held by a thread of the parent."""
        self._state = threading.Condition()
        self._items: deque[_T] = deque()
        self._urgent: deque[_T] = deque()
        self._thread: threading.Thread | None = None
        self._put = self._done = 0
        self._dropped = 0
        self._hurry = self._closed = False
        self._complained_s = float("-inf")

    @property
    def dropped(self) -> int:
        """The number of items that were not sent: the queue was full or closed, or `send` raised."""
        with self._state:
            return self._dropped

    @property
    def waiting(self) -> int:
        """The number of queued items, without the batch that `send` has."""
        with self._state:
            return len(self._items) + len(self._urgent)

    def put(self, item: _T, *, urgent: bool = False) -> None:
        """Queue one item; drops another, or this one after `close`, and counts it."""
        with self._state:
            if self._closed:
                self._dropped += 1
                return
            self._put += 1
            (self._urgent if urgent else self._items).append(item)
            waiting = len(self._items) + len(self._urgent)
            if waiting > self._capacity:
                (self._items or self._urgent).popleft()
                self._dropped += 1
                self._done += 1
                waiting -= 1
            if self._thread is None:
                self._start()
            elif waiting in (1, self._batch):  # the first one starts the clock, a full batch need not wait for it
                self._state.notify_all()

    def count_dropped(self, n: int) -> None:
        """Count items that `send` handed over and that were then refused one by one."""
        with self._state:
            self._dropped += n

    def flush(self, timeout_s: float) -> bool:
        """Return True when all that was put before has left the queue and `send` has returned, False at the deadline.

        Blocks: call it off the event loop.
        """
        with self._state:
            return self._drain(timeout_s)

    def close(self, timeout_s: float = _EXIT_S) -> bool:
        """Flush, then take nothing more; what is left at the deadline is dropped. False when it passed. Blocks."""
        with self._state:
            already, self._closed = self._closed, True
            in_time = self._drain(timeout_s)
            left = len(self._items) + len(self._urgent)
            self._dropped += left
            self._done += left
            self._items.clear()
            self._urgent.clear()
            thread = self._thread
            self._state.notify_all()
        if thread is not None and in_time:
            thread.join(timeout_s)
        if left and not already:
            _log.warning("%s: %d items were still unsent when it was closed", self._name, left)
        return in_time

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"grampus-uq-{self._name}", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be started: the next item tries again
            thread.start()
            self._thread = thread

    def _drain(self, timeout_s: float) -> bool:
        """Wait, with the lock, until what was put so far is done."""
        target = self._put
        if self._done >= target:
            return True
        self._hurry = True
        if self._thread is None:
            self._start()
        self._state.notify_all()
        return self._thread is not None and self._state.wait_for(lambda: self._done >= target, timeout_s)

    def _run(self) -> None:
        context.attach(context.set_value(_SUPPRESSED, True))  # of this thread: an instrumented client makes no spans
        while True:
            with self._state:
                if not self._wait_for_batch():
                    self._thread = None
                    return
                batch = self._take()
            delivered = self._deliver(batch)
            with self._state:
                self._done += len(batch)
                if not delivered:
                    self._dropped += len(batch)
                self._state.notify_all()

    def _wait_for_batch(self) -> bool:
        """With the lock: True when there is a batch to send now, False when the thread may end."""
        idle_until_s = time.monotonic() + _IDLE_S
        while not self._items and not self._urgent:
            self._hurry = False
            left_s = idle_until_s - time.monotonic()
            if self._closed or left_s <= 0.0:
                return False
            self._state.wait(left_s)
        ready_s = time.monotonic() + self._delay_s
        while not self._hurry and not self._closed and len(self._items) + len(self._urgent) < self._batch:
            left_s = ready_s - time.monotonic()
            if left_s <= 0.0:
                break
            self._state.wait(left_s)
        return bool(self._items or self._urgent)

    def _take(self) -> list[_T]:
        batch: list[_T] = []
        for queue in (self._urgent, self._items):
            while queue and len(batch) < self._batch:
                batch.append(queue.popleft())
        return batch

    def _deliver(self, batch: Sequence[_T]) -> bool:
        try:
            self._send(batch)
        except Exception as error:  # noqa: BLE001 (a telemetry backend that fails must not end the thread)
            if time.monotonic() - self._complained_s > 60.0:
                self._complained_s = time.monotonic()
                _log.warning("%s: %d items could not be sent: %s", self._name, len(batch), type(error).__name__)
            return False
        return True


def _if_there(reference: weakref.ref[Outbox[_T]], act: Callable[[Outbox[_T]], object]) -> None:
    outbox = reference()
    if outbox is not None:
        act(outbox)
