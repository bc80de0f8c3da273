"""Calls that another look let ahead of a human: cleared by the chain, and held again where a human decided meanwhile.

The call that was looked at stays a waiting one in the store until its turn is settled or it starts, so a human may
decide about it as long: whoever starts what the look let ahead asks for such decisions last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from grampus_uq.core.decision import CHAIN, LOOKED_AT, leaves_word_out
from grampus_uq.core.turn_evidence import placed
from grampus_uq.gate.call import CallPhase, CallRecord, Doubt, cleared
from grampus_uq.gate.starts import CHAINED
from grampus_uq.monitor.session import Session
from grampus_uq.records.vocabulary import UncertaintyLevel
from grampus_uq.runtime.audit import call_facts

if TYPE_CHECKING:
    from grampus_uq.runtime.turn import Turn

LOOKED: Final = "#look"
"""Suffix of the id of a step whose call a second look proposed (`runtime.looks`)."""

_LOOKED = Doubt(
    level=UncertaintyLevel.HIGH,
    rule="look",
    reason="Another look proposed this call, and the chain of looks ended before it was let go, or another rule let it "
    "through that knows only the agent's own calls.",
)
_OVERTAKEN = replace(
    _LOOKED,
    reason="Another look proposed this call; meanwhile a human decided about the one that it replaces, which was not "
    "executed.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """Release of a call by a tier of a chain, with its promise; `held`: the waiting call that was looked at."""

    by: str
    why: str
    held: CallRecord


def may_be_lifted(record: CallRecord, session: Session | None) -> bool:
    """True where a call waits for what a look may lift; not where nothing speaks for it but the model's own word."""
    if session is None or not record.waiting or len(record.requests) != 1 or record.requests[0].rule not in LOOKED_AT:
        return False
    turn = placed(session.state.turns, record.proposed, record.step_id)[1]
    return not (turn.word_alone and leaves_word_out(session.profile))


class LetAhead:
    """The calls of one leased session that looks let ahead."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._proposed: dict[str, LetGo] = {}
        """By digest: calls that another look proposes and a chain lets go; never stored, so a crash asks a human."""
        self._instead_of: dict[str, CallRecord] = {}
        """By id: for calls that were let ahead, the one that waited."""

    def propose(self, digest: str, let_go: LetGo) -> None:
        """Let the call of this digest go once it is judged, as a chain says."""
        self._proposed[digest] = let_go

    def judged(self, record: CallRecord) -> CallRecord:
        """A call of another look goes out by the chain, where nothing holds it that a look may not lift, or waits."""
        if not record.step_id.endswith(LOOKED):
            return record
        let_go = self._proposed.pop(record.proposed.digest(), None)
        if let_go is not None:
            self._instead_of[record.proposed.id] = let_go.held
        if record.grant is not None:
            return record
        liftable = may_be_lifted(record, self._turn.lease.session) or record.cleared_by == "monitor"
        if record.phase is CallPhase.CLEARED:
            record = self._turn.gate.asked(record, self._turn.terms(), _LOOKED)
        return self.by_chain(record, let_go) if liftable and let_go and self._turn.lease.state.vouched else record

    def by_chain(self, record: CallRecord, let_go: LetGo) -> CallRecord:
        """Clear a waiting call by a chain, and say so in the recording; its request stays, for the next process."""
        by = f"{CHAINED}{let_go.by}"
        self._instead_of[record.proposed.id] = let_go.held
        if self._turn.lease.session is not None:
            self._turn.lease.session.record_decision(
                CHAIN,
                principal=by,
                step_id=record.step_id,
                call=record.proposed,
                message=let_go.why,
                acknowledges=False,
            )
        return self._turn.lease.state.keep(cleared(record, by, requests=record.requests))

    async def decided_meanwhile(self, announced: Sequence[CallRecord]) -> list[CallRecord]:
        """Those that were let ahead while a human decided about the call that waited. Raises StoreError."""
        held = {record.proposed.id: self._instead_of.get(record.proposed.id) for record in announced}
        ids = {call: record.requests[0].id for call, record in held.items() if record is not None}
        arrived = await self._turn.ledger.decisions(list(ids.values())) if ids else {}
        return [record for record in announced if arrived.get(ids.get(record.proposed.id, ""))]

    async def hear(self, decided: Sequence[CallRecord]) -> None:
        """Hear the human instead of the look: the very call waits as before, and another one is asked about."""
        state = self._turn.lease.state
        for record in decided:
            held = self._instead_of.pop(record.proposed.id)
            again = held
            if held.proposed.id != record.proposed.id:
                again = self._turn.gate.asked(record, self._turn.terms(), _OVERTAKEN)
            state.keep(self._turn.gate.starts.hand_on(record, again, state.run_id))
            why = {"why": "a human decided meanwhile", "request": held.requests[0].id}
            await self._turn.lease.try_save(("execution_withdrawn", {**call_facts(state.run_id, record), **why}))
