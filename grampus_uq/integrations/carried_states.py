"""Sessions in the state of frameworks that checkpoint it and may run a step again: read, believed or not, and written.

A checkpoint holds JSON: the *belief* (the session's snapshot, the number of judged turns, the calls that a human
rejected) and the *turn* (the records of the latest turn's calls). Nothing here outlives them, so going on from any
checkpoint, in any process and also on another branch, goes on from exactly that belief.

With a signer both carry a seal. A state whose seal does not hold counts for nothing: its calls wait, and its belief
releases nothing that may be irreversible for the rest of the run.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from grampus_uq import ApprovalRequest, ConfigurationError, DataError, Session, ToolCall
from grampus_uq.gate.call import UNVOUCHED, CallRecord, Terms, cleared
from grampus_uq.gate.carried import read_arrived, read_decided, read_record, write_arrived, write_record
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.seal import SEAL
from grampus_uq.integrations.call_records import VERSION, check_version
from grampus_uq.integrations.settings import AdapterSettings
from grampus_uq.records.events import ALARMED, BRANCH
from grampus_uq.records.latest import Latest

_Belief = dict[str, Any]
Turn = dict[str, Any]

HOST_AGENT: ContextVar[str] = ContextVar("grampus_uq_host_agent", default="")
"""What the host of a run calls its agent: the name in new sessions of an adapter that gives none."""
FORKED = "forked"
"""Beside belief and turn in a fork's state: what the session's metadata say of its branch, and what was rejected."""
REJECTED = "rejected"
ADVISED = "advised"
"""In a turn that a guard judged which only advised: to one that acts its calls are unjudged."""
_MAX_AT_HAND = 1_024
_TAG = 64
_TAGS = itertools.count()
_PROCESS = uuid.uuid4().hex
_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)
_FIRST: _Belief = {"turns": 0, "rejected": [], "repeats": [], "vouched": True, "run": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A state that was read: its session, whose calls they are, and the records as far as they are believed."""

    session: Session
    belief: _Belief
    terms: Terms
    turn: Turn | None
    records: tuple[CallRecord, ...]
    place: str

    def find(self, call_id: str, name: str, arguments: Any) -> tuple[CallRecord | None, ToolCall | None]:
        """The record of a call with this id, name and signed arguments, and the call as proposed, or as edited."""
        try:
            for record in self.records:
                for known in (record.proposed, record.call):
                    if known.id == call_id and known.arguments == arguments and known.matches(call_id, name, arguments):
                        return record, known
        except (TypeError, ValueError):  # arguments that are not JSON are not a record's
            pass
        return None, None


class CarriedStates:
    """Reads and writes the states of any number of sessions: {"belief", "turn", ...}, and "seal" with a signer."""

    def __init__(self, settings: AdapterSettings, gate: Gate) -> None:
        self._settings = settings
        self._gate = gate
        self._at_hand: Latest[str, tuple[str, Carried]] = Latest(_MAX_AT_HAND)
        self._lock = threading.Lock()

    def read(
        self,
        session_id: str,
        place: str,
        state: Mapping[str, Any] | None,
        *,
        thread: str = "",
        to_judge: bool = False,
        begun: bool = True,
    ) -> Carried:
        """Read a state; a new session without any, and in advisory mode instead of one that cannot be read.

        The state alone decides. A state that this process wrote is taken as this process knows it, by a copy that
        nobody else has: that saves reading it and leaves nothing of it to forge. `place` is what the framework, not the
        state, calls the run: the seal is bound to it; `thread` has its other sessions. With `to_judge` nothing is left
        at hand: a step that fails half-way begins from the state. Nobody vouches for a run that has `begun` and has no
        state of ours.

        Raises:
            DataError: a state of another version, or none at all.
        """
        try:
            known = self._known(session_id, place, state, to_judge) if state else None
            return known or self._read(session_id, place, thread, state or {}, begun)
        except (ConfigurationError, DataError, *_UNREADABLE) as error:
            if self._settings.acts:
                raise (
                    error if isinstance(error, DataError) else DataError(f"no carried state: {error!r:.200}")
                ) from error
            return self._read(session_id, place, thread, {}, begun)

    def _known(self, session_id: str, place: str, state: Mapping[str, Any], to_judge: bool) -> Carried | None:
        belief = state.get("belief")
        if not belief or belief.get("session") is None or FORKED in state:  # a branch begins with a session of its own
            return None
        with self._lock:
            tag, known = self._at_hand.get(session_id, ("", None))
            if known is None or known.place != place or tag != belief.get("tag"):
                return None
            if to_judge:
                del self._at_hand[session_id]
        repeats = _repeats(state)
        if not repeats:
            return known
        return replace(known, belief={**known.belief, "repeats": known.belief["repeats"] + repeats})

    def _read(self, session_id: str, place: str, thread: str, state: Mapping[str, Any], begun: bool) -> Carried:
        given: _Belief = state.get("belief") or {}
        snapshot = given.get("session")
        if snapshot is not None and snapshot["state"]["session_id"] != session_id:  # the framework names the session
            snapshot = {**snapshot, "state": {**snapshot["state"], "session_id": session_id}}
        check_version({"v": VERSION, **given})
        believed = (not given and not state.get("turn") and not begun) or self.believes(place, state)
        advised = self._settings.acts and bool(state.get("turn")) and ADVISED in state["turn"]
        turn = None if advised or not state.get("turn") else _read_turn(state["turn"], believed)
        belief = {**_FIRST, **{name: value for name, value in given.items() if name != "session"}}
        forked = state.get(FORKED, {})  # beside the seal: what a fork says can only hold calls
        left_behind = map(str, forked.get(REJECTED, ()))
        belief |= {
            "turns": int(belief["turns"]),
            "rejected": [*belief["rejected"], *left_behind],
            "repeats": [*belief["repeats"], *_repeats(state)],
            "vouched": belief["vouched"] is True and believed,
            "run": str(belief["run"]),
        }
        settings = self._settings
        session = settings.monitor.session(
            session_id,
            settings.agent_id or HOST_AGENT.get(),
            snapshot=snapshot,
            model=None,
            advisory=settings.advisory,
            metadata={name: str(forked[name])[:_TAG] for name in (BRANCH, ALARMED) if name in forked},
        )
        terms = self._gate.terms(
            session.agent_id,
            session.session_id,
            session.profile.policy,
            run_id=belief["run"],
            vouched=belief["vouched"],
            thread=thread,
        )
        if turn is not None and not settings.acts:
            turn |= {"stopped": None, "review": None}
        carried = Carried(session=session, belief=belief, terms=terms, turn=turn, records=(), place=place)
        if turn is None:
            return carried
        return replace(carried, records=self._records(carried, turn["calls"], believed=believed))

    def _records(self, carried: Carried, entries: Iterable[Any], *, believed: bool) -> tuple[CallRecord, ...]:
        """Records out of JSON values, each worth what the seal, or its own decisions, make it worth."""
        step_id, found = step_id_of(carried), []
        for record in [read_record(entry, step_id) for entry in entries]:
            if not self._settings.acts:  # nothing waits, and nothing is answered for
                found.append(cleared(record.change(text=None, is_error=False)))
            elif believed or record.step_id == step_id:
                found.append(self._gate.restored(record, carried.terms, believed=believed))
            else:  # a decision on another step decides nothing on this one
                found.append(self._gate.asked(record.change(step_id=step_id), carried.terms, UNVOUCHED))
        return tuple(found)

    def write(self, carried: Carried) -> dict[str, Any]:
        """The JSON values that the framework is to keep: belief, turn and seal."""
        tag, session = f"{_PROCESS}-{next(_TAGS)}", carried.session
        belief: _Belief = _copied(carried.belief)
        belief |= {"v": VERSION, "tag": tag, "session": session.compact_snapshot()}
        turn = _copied(carried.turn)
        if turn is not None:
            turn["calls"] = [write_record(record) for record in carried.records]
            turn |= {} if self._settings.acts else {ADVISED: True}
        with self._lock:
            self._at_hand[session.session_id] = tag, carried
        return self._gate.sealed(carried.place, {"belief": belief, "turn": turn})

    def latest(self, session_id: str) -> Carried | None:
        """The latest state of a session that this process wrote, for hooks that see nothing of the framework's."""
        with self._lock:
            return self._at_hand.get(session_id, ("", None))[1]

    # -- beside the state -----------------------------------------------------------------------------------------

    def write_part(self, carried: Carried) -> dict[str, Any]:
        """Records and turn for a task's result, which is checkpointed: sealed, because others may write it."""
        calls = [write_record(record) for record in carried.records]
        return self._gate.sealed(carried.place, {"turn": {**(carried.turn or {}), "calls": calls}})

    def read_part(self, carried: Carried, part: Mapping[str, Any]) -> Carried:
        """The state with what `write_part` wrote of just these calls, as far as it is believed; raises DataError."""
        try:
            believed = self.believes(carried.place, part, "turn")
            turn = _read_turn({"step_id": "", "calls": part.get("records", ()), **part["turn"]}, believed)
            turn |= {} if believed else {"review": (carried.turn or {}).get("review")}
            records = self._records(carried, turn["calls"], believed=believed)
            if [_identity(record) for record in records] != [_identity(record) for record in carried.records]:
                raise ValueError("it is on other calls")
            return replace(carried, records=records, turn=turn)
        except _UNREADABLE as error:
            raise DataError(f"not what a task wrote: {error!r:.200}") from error

    def write_decided(self, place: str, record: CallRecord) -> dict[str, Any]:
        """The decisions of humans on one call, beside the turn until the next one."""
        return self._gate.sealed(place, {"record": write_record(record)})

    def read_decided(self, place: str, state: Mapping[str, Any]) -> list[CallRecord]:
        """The decisions beside the latest turn, none on an earlier one, as far as believed; raises DataError."""
        try:
            before = "call", "decision"  # as version 1 wrote it
            given = [(one, ("record",) if "record" in one else before) for one in state.get("decided", ())]
            items = [item for item, keys in given if self.believes(place, item, *keys)]
            steps = "", (state.get("turn") or {}).get("step_id")  # "": as version 1 wrote it
            return [record for record in map(read_decided, items) if record.step_id in steps]
        except _UNREADABLE as error:
            if self._settings.acts:
                raise DataError(f"not what humans decided: {error!r:.200}", field="decided") from error
            return []

    def believes(self, place: str, values: Mapping[str, Any], *keys: str) -> bool:
        """Return True if values from the framework's state are trusted: sealed, or from a host without signing.

        All of the `keys` must be there: a task's turn, which is sealed without a belief, is no state.
        """
        names = {*(keys or ("belief", "turn")), SEAL}
        found = {key: values[key] for key in names if key in values}
        return self._gate.authentic(place, found) if found.keys() == names else self._gate.believes(False)


def requests_of(carried: Carried) -> list[dict[str, Any]]:
    """The requests that wait, as JSON values, in the order of the calls."""
    waiting = [r.model_dump(mode="json") for record in carried.records if record.waiting for r in record.requests]
    review = None if carried.turn is None else carried.turn.get("review")
    return waiting if review is None else [*waiting, review]


def step_id_of(carried: Carried) -> str:
    """The step of the latest turn."""
    return f"llm_{max(0, carried.belief['turns'] - 1)}"


def _copied(values: Any) -> Any:
    """JSON values of which nobody else has a part: the framework hands those of its state to the user's nodes."""
    if isinstance(values, dict):
        copy = values.copy()
        for name, value in values.items():
            if type(value) is dict or type(value) is list:
                copy[name] = _copied(value) if value else type(value)()
        return copy
    if isinstance(values, list):
        return [_copied(value) for value in values] if values else []
    return values


def _repeats(state: Mapping[str, Any]) -> list[str]:
    """Digests that a fork wrote beside the seal: they can only make more calls ask."""
    repeats = state.get("repeats", ())
    return [str(digest) for digest in repeats] if repeats != () else []


def _read_turn(turn: Mapping[str, Any], believed: bool) -> Turn:
    """A turn as it is carried, what others rely on checked; raises KeyError, TypeError or ValueError."""
    review = turn.get("review")
    return {
        **{name: value for name, value in turn.items() if believed or name != "reviewed"},
        **{name: [str(one) for one in turn[name]] for name in ("handed", "now") if name in turn},
        "step_id": str(turn["step_id"]),
        "calls": list(turn["calls"]),
        "review": None if review is None else ApprovalRequest.model_validate(review).model_dump(mode="json"),
        "arrived": write_arrived(read_arrived(turn.get("arrived") or (), believed=believed)),
    }


def _identity(record: CallRecord) -> tuple[str, str, str]:
    return record.step_id, record.proposed.id, record.proposed.digest()
