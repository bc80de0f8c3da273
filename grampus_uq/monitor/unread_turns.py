"""The turns of the model that a session was handed and has not read: being read, given up, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import JsonValue

from grampus_uq.core.turn_evidence import text_key
from grampus_uq.errors import DataError

_KEPT: Final = 64
_MANY: Final = ""
"""Stands for turns beyond those that are kept by name; it is never read."""


class UnreadTurns:
    """The steps of turns whose calls are not known yet. While there is one, only calls that are listed are proposed.

    A turn belongs here from when it is handed over until it, or another try of the same step, has been committed.
    Nothing here needs a lock: lists and sets change in one operation.
    """

    def __init__(self, lost: frozenset[str] = frozenset()) -> None:
        self._in_flight: list[str] = []
        self._lost = set(lost)

    def __bool__(self) -> bool:
        return bool(self._in_flight or self._lost)

    @classmethod
    def of(cls, snapshot: Mapping[str, Any] | None) -> UnreadTurns:
        """Those of a snapshot; raises DataError where they are not a list of names."""
        steps = [] if snapshot is None else snapshot.get("unread", [])
        if not isinstance(steps, list) or not all(isinstance(step, str) for step in steps):
            raise DataError("not a list of steps", field="unread")
        return cls(frozenset(text_key(step) for step in steps[:_KEPT]) | ({_MANY} if len(steps) > _KEPT else set()))

    def to_json(self) -> list[JsonValue]:
        """Their steps: another process cannot read on what this one was reading."""
        return [*sorted({*self._lost, *map(text_key, self._in_flight)})] if self else []

    def begin(self, step_id: object) -> str:
        """A turn is handed over; returns its name here."""
        step = step_id if type(step_id) is str else _MANY
        self._in_flight.append(step)
        return step

    def read(self, step: str) -> None:
        """It was committed."""
        self._in_flight.remove(step)
        if self._lost and step:
            self._lost.discard(text_key(step))

    def lose(self, step: str) -> None:
        """It was given up or refused: what it proposed stays unknown."""
        self._lost.add(text_key(step) if len(self._lost) < _KEPT else _MANY)
        self._in_flight.remove(step)
