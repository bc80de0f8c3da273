"""Notes on calls in a session's stored state besides their records; no results if its seal is broken."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from grampus_uq.gate.call import CallPhase, CallRecord, against
from grampus_uq.gate.schema import BESIDE
from grampus_uq.integrations.mcp.pins import Pin
from grampus_uq.records.values import ToolCall
from grampus_uq.runtime.run_state import AgentState

_MAX_RESULTS: Final = 4_000_000
_MOST_SENT: Final = 1_000
_FAILED, _CHANGED = "e", "c"
_NAMES: Final = ("sent", "going", "lost", "rejected")
_DIGEST: Final = 24  # characters that tell calls of one session apart


def noted(record: CallRecord, what: str) -> CallRecord:
    """A call that waits, with this before the reason of its requests."""
    requests = [one.model_copy(update={"reason": f"{what}; {one.reason}"}) for one in record.requests]
    return record.change(requests=tuple(requests))


class CallNotes:
    """The notes in one state: what calls were asked under, results that are kept, calls that were sent."""

    def __init__(self, state: AgentState) -> None:
        self._state = state

    def _results(self) -> dict[str, str]:
        return self._believed("results") if self._state.sealed else {}

    def ask(self, call_id: str, shown: tuple[Pin, ...]) -> None:
        """A call is asked about under these definitions of its tool."""
        open_calls = {one.proposed.id for one in self._state.turn}
        kept = {name: digests for name, digests in self._believed("asked").items() if name in open_calls}
        self._state.metadata["asked"] = kept | {call_id: " ".join(pin.digest for pin in shown)}

    def asked_under(self, call_id: str) -> list[str] | None:
        """The digests of the definitions that a call was asked under; None where it was not asked about."""
        found = self._believed("asked").get(call_id)
        return None if found is None else found.split()

    def keep_result(self, call_id: str, result: str) -> None:
        """Keep a result, as JSON, unless they hold more than 4 million characters together."""
        kept = self._results()
        if len(result) + sum(map(len, kept.values())) <= _MAX_RESULTS:
            self._state.metadata["results"] = {**kept, call_id: result}

    def result(self, call_id: str) -> str | None:
        """A kept result."""
        return self._results().get(call_id)

    def drop_result(self, call_id: str) -> str | None:
        """The same; it is kept no longer."""
        kept = self._results()
        found = kept.pop(call_id, None)
        if found is not None:
            self._state.metadata["results"] = kept
        return found

    # -- calls that were sent to their server ---------------------------------------------------------------------

    def sends(self, call_id: str, same: str, now_s: float) -> None:
        """A call of this likeness starts to go to its server: it counts as sent until `sends_not`."""
        self._state.metadata["going"] = self._believed("going") | {call_id: f"{same} {now_s:.0f}"}

    def sends_not(self, call_id: str) -> str | None:
        """It did not go there after all, or is noted otherwise from now on: its note, now gone."""
        going = self._believed("going")
        found = going.pop(call_id, None)
        self._state.metadata["going"] = going
        return found

    def answered(self, call_id: str, same: str, now_s: float, *, is_error: bool) -> None:
        """Its server answered it."""
        self.sends_not(call_id)
        self._note(same, f"{now_s:.0f}{_FAILED if is_error else ''}")

    def lost(self, call_id: str) -> None:
        """It may have gone there, and nothing more will be known."""
        found = self.sends_not(call_id)
        if found is not None:
            same, _, began = found.partition(" ")
            self._note(same, began, "lost")

    def remember(self, old: AgentState) -> None:
        """Remember calls sent to servers by a process before this one, or in the session that this one replaces."""
        self._state.metadata |= {name: CallNotes(old)._believed(name) for name in _NAMES}
        for record in old.turn:
            self.keep_rejection(record)

    def lose(self) -> None:
        """Nothing will be known of the calls that a process before this one let go."""
        for call_id in self._believed("going"):
            self.lost(call_id)

    def told(self, record: CallRecord) -> CallRecord:
        """A call that waits, whose request says what became of the same one before, in this session."""
        said = self.known_of(likeness(record.proposed), but=record.proposed.id)
        return record if said is None else noted(record, f"the same call {said}")

    def keep_rejection(self, record: CallRecord) -> None:
        """The record of a call is kept no longer: what a human said against it is, beside what went."""
        if against(record) is not None and record.phase is CallPhase.SETTLED:
            said = f"{record.decisions[0].decided_s:.0f}{_CHANGED if record.edited else ''}"
            self._note(likeness(record.proposed), said, "rejected")

    def renew_rejection(self, same: str) -> None:
        """A call of this likeness is proposed: that a human rejected one is forgotten last."""
        if (said := self._believed("rejected").get(same)) is not None:
            self._note(same, said, "rejected")

    def _note(self, same: str, said: str, name: str = "sent") -> None:
        """Note it as the latest of the last 1,000. Calls on their way are not among them, and push out none."""
        notes = self._believed(name)
        notes.pop(same, None)
        self._state.metadata[name] = {**dict([*notes.items()][1 - _MOST_SENT :]), same: said}

    def _believed(self, name: str) -> dict[str, str]:
        """Texts that are believed without a seal, too: forgetting is what would let a call go, or go twice."""
        found = self._state.metadata.get(name)
        return {str(key): str(text) for key, text in found.items()} if isinstance(found, dict) else {}

    def known_of(self, same: str, *, but: str = "", ended: bool = False) -> str | None:
        """The outcome of the latest call of this likeness that started, and a human's rejection of one; or None.

        `but`: the call of this id is left out while it goes; `ended`: so is each of which it is not known.
        """
        on_the_way = {} if ended else {name: text for name, text in self._believed("going").items() if name != but}
        going = [text.partition(" ")[2] for text in on_the_way.values() if text.partition(" ")[0] == same]
        found, sent, lost = [], self._believed("sent").get(same), None if ended else self._believed("lost").get(same)
        if sent is not None:
            error = " with an error" if sent.endswith(_FAILED) else ""
            found.append(f"was sent to its server {_when(sent)}, and answered{error}")
        if going or lost is not None:
            when = _when(going[-1] if going else str(lost))
            found.append(f"was started {when}, and whether its server ran it is not known")
        if (rejected := self._believed("rejected").get(same)) is not None:
            found.append(f"was {'changed' if rejected.endswith(_CHANGED) else 'rejected'} by a human {_when(rejected)}")
        return ", and ".join(found) or None


def _when(said: str) -> str:
    with suppress(ValueError, OverflowError, OSError):  # whoever writes the store writes what he likes
        time = datetime.fromtimestamp(float(said.rstrip(_FAILED + _CHANGED)), UTC)
        return f"in this session at {time:%Y-%m-%d %H:%M:%S} UTC"
    return "before"


def likeness(call: ToolCall) -> str:
    """The same for calls that a server may take for one; what else a call carries does not make it another one."""
    arguments = call.arguments.get("arguments") if BESIDE in call.arguments else call.arguments
    return ToolCall.trusted("", call.name, arguments if isinstance(arguments, dict) else {}).likeness()[:_DIGEST]
