"""The processors of a monitor: the one loop that hands them events, and their part of a snapshot."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.events import Event
from grampus_uq.records.protocols import Processor, ResumableProcessor
from grampus_uq.records.values import canonical_json
from grampus_uq.signals.driver import AT_ONCE

log = logging.getLogger("grampus_uq.monitor.monitor")


class Processing:
    """Guards every call of a processor: one that fails is logged once and counted, and never reaches the agent."""

    def __init__(self, processors: Sequence[Processor]) -> None:
        for processor in processors:
            if isinstance(processor, type) or not callable(getattr(processor, "on_event", None)):
                rule = "objects with `on_event(event)`"
                raise ConfigurationError.of("processors", "UncertaintyMonitor", rule, processor)
        self.processors = tuple(processors)
        self._resumable = [processor for processor in processors if isinstance(processor, ResumableProcessor)]
        self._failures: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def failures(self) -> dict[str, int]:
        """The number of failures of each processor, by class name."""
        with self._lock:
            return dict(self._failures)

    def emit(self, event: Event) -> None:
        """Hand one event to every processor."""
        for processor in self.processors:
            try:
                processor.on_event(event)
            except AT_ONCE as error:  # the processor loop: a failing sink must not stop the agent
                self._count_failure(processor, error)

    def begin(self, session_id: str, entries: Mapping[str, Mapping[str, Any]]) -> Callable[[], Mapping[str, JsonValue]]:
        """Announce a session with its entries; returns what reads the next ones, with entries that nobody took."""
        for processor in self._resumable:
            try:
                processor.begin(session_id, entries.get(processor.snapshot_key))
            except AT_ONCE as error:  # a failing sink must not stop the agent
                self._count_failure(processor, error)
        keys = {processor.snapshot_key for processor in self._resumable}
        unread = {name: dict(entry) for name, entry in entries.items() if name not in keys}
        return (lambda: {**unread, **self._entries(session_id)}) if keys else unread.copy

    def _entries(self, session_id: str) -> dict[str, JsonValue]:
        entries: dict[str, JsonValue] = {}
        for processor in reversed(self._resumable):  # of two with one key the first one's counts
            try:
                entry = processor.snapshot(session_id)
                if entry is not None:
                    entry = dict(entry)
                    canonical_json(entry)  # any other entry would cost the session its whole snapshot
                    entries[processor.snapshot_key] = entry
            except AT_ONCE as error:  # a failing sink must not stop the agent
                self._count_failure(processor, error)
        return entries

    def _count_failure(self, processor: Processor, error: BaseException) -> None:
        name = type(processor).__qualname__
        with self._lock:
            self._failures[name] = self._failures.get(name, 0) + 1
            first = self._failures[name] == 1
        if first:
            # Of the message only what comes from the system: any other may quote the event's text.
            message = str(error) if isinstance(error, OSError) else ""
            place = "".join(traceback.format_tb(error.__traceback__))
            log.error(
                "processor %s failed; only counted from now on\n%s%s: %s", name, place, type(error).__name__, message
            )
