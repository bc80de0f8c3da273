"""The records of one session's calls in memory, found by id, name and canonical arguments; and those of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grampus_uq import ApprovalRequest, DataError, ToolCall
from grampus_uq.gate.call import CallPhase, CallRecord, edit_note
from grampus_uq.gate.carried import read_record

VERSION = 2
READABLE = (1, 2)
_MAX_SETTLED = 256
OVER = (CallPhase.STARTED, CallPhase.SETTLED)
Key = tuple[str, str]


class CallRecords(dict[int, CallRecord]):
    """Records by slot, in the order of their calls; of the settled ones the latest are kept."""

    def __init__(self) -> None:
        super().__init__()
        self._slots: dict[Key, list[int]] = {}
        self._as_edited: dict[Key, int] = {}
        self._digests: dict[str, tuple[ToolCall, str]] = {}
        self._next_slot = 0

    def key(self, call: ToolCall) -> Key:
        """The identity of a call; of one and the same object it is worked out once."""
        known = self._digests.get(call.id)
        if known is None or known[0] is not call:
            if len(self._digests) >= _MAX_SETTLED:
                self._digests.clear()
            known = self._digests[call.id] = call, call.digest()
        return call.id, known[1]

    def slot_of(self, call: ToolCall) -> int | None:
        """The slot of a call as it was proposed or as a human edited it: one that has not run yet, else the latest."""
        key = self.key(call)
        slots = self._slots.get(key)
        if slots:
            waits = (s for s in slots if self[s].phase not in OVER or self[s].child_session is not None)
            return next(waits, slots[-1])
        slot = self._as_edited.get(key)
        record = None if slot is None else self.get(slot)
        return slot if record is not None and record.edited and self.key(record.call) == key else None

    def add(self, record: CallRecord) -> int:
        """Keep a new record: its slot."""
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        self._slots.setdefault(self.key(record.proposed), []).append(slot)
        self.keep(slot, record)
        if len(self) > 2 * _MAX_SETTLED:
            over = [s for s, r in self.items() if r.phase is CallPhase.SETTLED]
            for old in over[:-_MAX_SETTLED]:
                self._drop(old)
        return slot

    def keep(self, slot: int, record: CallRecord) -> CallRecord:
        """Put a record in a slot; an edited call is found by its new arguments too: a transcript may hold either."""
        self[slot] = record
        if record.call is not record.proposed and record.edited:
            self._as_edited[self.key(record.call)] = slot
        return record

    def forget_waiting(self, call_id: str) -> None:
        """Drop what waits under an id: arguments that no answer held take its place."""
        for slot in [s for s, r in self.items() if r.proposed.id == call_id and r.waiting]:
            self._drop(slot)

    def _drop(self, slot: int) -> None:
        record = self.pop(slot)
        if record.edited:
            self._as_edited.pop(self.key(record.call), None)
        key = record.proposed.id, record.proposed.digest()
        self._slots[key].remove(slot)
        if not self._slots[key]:
            del self._slots[key]

    # -- asking ---------------------------------------------------------------------------------------------------

    def find(self, call: ToolCall) -> CallRecord | None:
        """The record of a call that was judged before, as it was proposed or as a human edited it."""
        slot = self.slot_of(call)
        return None if slot is None else self[slot]

    def proposed_as(self, call: ToolCall) -> ToolCall:
        """The call as it was proposed, where this is one that a human edited."""
        record = self.find(call)
        return call if record is None else record.proposed

    def known(self, name: str) -> list[ToolCall]:
        """The calls of a tool that were judged, those first that have not run."""
        records = [record for record in self.values() if record.proposed.name == name]
        return [record.proposed for record in sorted(records, key=lambda record: record.phase in OVER)]

    def approved(self, call_id: str) -> list[ToolCall]:
        """The calls with this id that humans approved, as they approved them."""
        records = (record for record in self.values() if record.proposed.id == call_id)
        return [r.call for r in records if r.decisions and r.phase in (CallPhase.CLEARED, CallPhase.STARTED)]

    def waiting_tools(self) -> set[str]:
        """Names of the tools whose calls wait."""
        return {record.proposed.name for record in self.values() if record.waiting}

    def edited(self) -> list[CallRecord]:
        """The calls that a human edited and that have not run."""
        return [record for record in self.values() if record.edited and record.phase is CallPhase.CLEARED]

    def notes(self, call_ids: Iterable[str]) -> list[str]:
        """Notes for the model beside the results of these calls: which arguments a human changed."""
        ids = set(call_ids) if self._as_edited else ()
        return [note for r in self.values() if r.proposed.id in ids and (note := edit_note(r)) is not None]


def check_version(snapshot: Mapping[str, Any]) -> None:
    """Raise DataError for a snapshot of another version."""
    if snapshot.get("v") not in READABLE:
        raise DataError(f"version {snapshot.get('v')!r:.40} is not {VERSION}", field="v")


def calls_in(snapshot: Mapping[str, Any]) -> list[CallRecord]:
    """The records of the calls in a snapshot; raises DataError."""
    check_version(snapshot)
    calls = snapshot.get("calls")
    try:
        return [read_record(entry) for entry in (calls if isinstance(calls, Sequence) else ())]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"not the calls of a session: {error}", field="calls") from error


def waiting_in(snapshot: Mapping[str, Any]) -> tuple[ApprovalRequest, ...]:
    """The pending approvals in a snapshot, for those who show them to a human; raises DataError."""
    return tuple(request for record in calls_in(snapshot) if record.waiting for request in record.requests)
