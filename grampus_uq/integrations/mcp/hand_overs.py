"""Tracks the requests that received a call's outcome; one cancelled before or later has not."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

import anyio

from grampus_uq.gate.call import CallRecord
from grampus_uq.integrations.mcp.json_rpc import Id

_MOST, _LATE_S = 1_000, 60.0
_MOST_CHARACTERS, _LONGEST_RESULT = 4_000_000, 100_000


@dataclass(slots=True)
class _Told:
    telling: int = 0
    until: float = math.inf
    has: set[Id] = field(default_factory=set)


class HandOvers:
    """The requests of one client by the calls that they were told of: of the last 1,000 calls, for a minute."""

    def __init__(self) -> None:
        self._telling: dict[str, _Told] = {}
        self._told: OrderedDict[str, _Told] = OrderedDict()
        self._call_of: dict[Id, str] = {}

    def begin(self, identity: Id, call_id: str, *, wanted: bool = True) -> None:
        """From now on this request is told what became of a call; one that is not `wanted` was given up before."""
        told = self._telling[call_id] = self._telling.get(call_id) or self._told.pop(call_id, _Told())
        told.until = math.inf
        told.telling += 1
        if wanted:
            told.has.add(identity)
            self._call_of[identity] = call_id

    def wants(self, identity: Id, call_id: str) -> bool:
        """True while the request that is being told of this call was not given up."""
        return identity in self._telling[call_id].has

    def end(self, call_id: str) -> bool:
        """A request was told; True where nobody is told any more, and all who were have given up."""
        told = self._telling[call_id]
        told.telling -= 1
        if told.telling:
            return False
        self._told[call_id] = self._telling.pop(call_id)
        told.until = anyio.current_time() + _LATE_S
        if len(self._told) > _MOST:
            oldest, forgotten = self._told.popitem(last=False)
            for identity in forgotten.has:
                if self._call_of.get(identity) == oldest:
                    del self._call_of[identity]
        return not told.has

    def give_up(self, identity: Id) -> tuple[str, bool] | None:
        """A request is given up: the call that nobody has been told of then, and whether nobody is being told."""
        call_id = self._call_of.pop(identity, None)
        told = None if call_id is None else self._telling.get(call_id) or self._told.get(call_id)
        if call_id is None or told is None or anyio.current_time() > told.until:
            return None
        told.has.discard(identity)
        return None if told.has else (call_id, not told.telling)

    def forget(self, identity: Id) -> None:
        """This id names another request from now on: what it named before was answered."""
        self._call_of.pop(identity, None)


class DeliveredResults:
    """The last 1,000 delivered results, should one not have arrived: 4 million characters, 100,000 each."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[CallRecord, str, str | None, int]] = OrderedDict()
        self._characters = 0

    def add(self, record: CallRecord, text: str, result: str | None) -> None:
        """Keep a settled call with what it was answered, as text and as JSON."""
        kept = result if result is None or len(result) <= _LONGEST_RESULT else None
        size = len(record.proposed.canonical()) + len(record.call.canonical()) + len(text) + len(kept or "")
        self._kept[record.proposed.id] = record, text, kept, size
        self._characters += size
        while len(self._kept) > _MOST or self._characters > _MOST_CHARACTERS:
            self._characters -= self._kept.popitem(last=False)[1][3]

    def take(self, call_id: str) -> tuple[CallRecord, str, str | None] | None:
        """Give a call back, once."""
        found = self._kept.pop(call_id, None)
        if found is None:
            return None
        self._characters -= found[3]
        return found[:3]
