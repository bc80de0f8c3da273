"""What humans answer against calls, heard before another call is judged.

An answer is stored at any moment, and the session that asked may never take it up: it still waits, it died, it was
stopped, or another call took the place of the one that was shown. So whoever judges looks for such answers first.

Invariant: a call that may do harm is judged, and starts, once all answers are known that were stored before, against
calls of its session and of those that run with it, the sub-agents and the one that began them; otherwise StoreError is
raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from grampus_uq.errors import StoreError
from grampus_uq.gate.call import UNREADABLE, CallRecord, Doubt, Terms, decided, held_by, remembered
from grampus_uq.gate.clearance import HARMLESS
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.requests import ApprovalKind
from grampus_uq.records.values import ToolCall
from grampus_uq.runtime.apply_decisions import apply_response, tell
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.stored_delegations import standing_in
from grampus_uq.runtime.worker_jobs import ABOVE, within_parent

if TYPE_CHECKING:
    from grampus_uq.runtime.turn import Turn

_Unread = list[tuple[CallRecord, StoreError]]


@contextlib.contextmanager
def heard_together(turn: Turn) -> Iterator[None]:
    """Let a session hear what is answered in those that run with it: the one that began it, and what that one began."""
    above = turn.lease.state.metadata.get(ABOVE)
    begun_by = above[0] if isinstance(above, list) and above else None
    beside = within_parent.get() or []
    if begun_by in [[one.lease.state.agent_id, one.lease.state.session_id, one.lease.state.run_id] for one in beside]:
        turn.together = beside
    turn.together.append(turn)
    try:
        yield
    finally:
        if turn.together is not beside:  # else until the one that began it has taken up what became of it
            turn.together.remove(turn)


async def hear_before(turn: Turn, new: Sequence[ToolCall]) -> None:
    """Hear all before new calls are judged; raises StoreError where what is not heard may be against one."""
    if turn.advises or not new:
        return
    names, alike, failed = {call.name for call in new}, {call.likeness() for call in new}, _Unread()
    for one in [*turn.together] or [turn]:
        also = one.lease.state.undecided()
        if one is turn:  # of its own, which may be many, those that these may be, and sub-agents that began before
            begun = [held for held in also if held.child_session is not None and held.proposed not in new]
            also = [held for held in also if held.child_session is None and held.proposed.name in names]
            also = [held for held in also if held.proposed.is_among(alike)]  # which writes each: they may be large
            also += begun
        failed += await _failing(one, also)
    first, *others = [one.lease.state for one in turn.together or [turn]]
    first.inherit(*others)
    for other in others:
        other.inherit(first)
    likely = {held.proposed.likeness() for held, _ in failed}
    below = any(held.child_session is not None for held, _ in failed)  # against calls that only the sub-agent knows
    risky = any(c.is_among(likely) or c.name in turn.delegates for c in new)
    if failed and (risky or (below and any(turn.effect(call) not in HARMLESS for call in new))):
        raise failed[0][1]


def answered_before(turn: Turn) -> list[str]:
    """The answers of humans against calls in earlier runs, and a mark where nobody here hears of all of them."""
    first, lease = (turn.together or [turn])[0], turn.lease
    apart = lease.asks_beside and ABOVE in first.lease.state.metadata
    return [*lease.state.rejected_before(), *([UNREADABLE] if apart else [])]


async def overruled(turn: Turn, announced: Sequence[CallRecord]) -> list[tuple[CallRecord, Doubt]]:
    """Announced calls that no human decided about, with the reason in what humans answered since they were judged.

    Not sub-agents that go on: what they do is judged. Raises StoreError.
    """
    judged = [] if turn.advises else [one for one in announced if not one.decisions and one.child_session is None]
    await hear_before(turn, [record.proposed for record in judged])
    known = {*answered_before(turn), *turn.lease.state.rejected}
    held = [(one, held_by(known, one.proposed, harmless=one.effect in HARMLESS)) for one in judged]
    return [(record, doubt) for record, doubt in held if doubt is not None]


async def hear_replaced(turn: Turn, *, ends: bool = False) -> None:
    """Remember what humans answered against calls that were replaced meanwhile, or left by an earlier run.

    Each for itself: a sub-agent's store may be another one, and down. Raises StoreError where one could not be read.
    `ends`: all are kept, for until the end is stored, humans may answer: the session's next run looks again.
    """
    for _, error in await _failing(turn, ends=ends):
        raise error


async def _failing(turn: Turn, also: Sequence[CallRecord] = (), *, ends: bool = False) -> _Unread:
    """Hear what is answered on a session's replaced calls, and `also` on these; returns what could not be read."""
    state, failed = turn.lease.state, _Unread()
    at_work = {one.lease.state.session_id for one in turn.together}  # a sub-agent that is not: it begins, or just ended
    undecided = [one for one in also if one.waiting or one.child_session not in at_work]
    every = [*state.replaced(), *undecided]
    heard = await answerable(turn.ledger, every)
    if len(heard) < len(every) and not ends:
        ids, now = {request.id for one in heard for request in one.requests}, state.replaced()
        kept = [one for one in now if one.child_session or state.is_of_this_run(one) or one.requests[0].id in ids]
        state.keep_replaced(kept)
    for held in heard:
        if held.child_session is not None and held.proposed.name not in turn.delegates:
            continue
        try:
            after, late = await _heard(turn, held, tells=held not in undecided)
        except StoreError as error:
            failed.append((held, error))
            continue
        others = [one for one in state.replaced() if one != held]  # as they are by now: others hear beside this one
        late = late and held not in undecided and state.is_of_this_run(held)
        state.keep_replaced([*others, after] if ends or late else others)
    return failed


async def _heard(turn: Turn, held: CallRecord, *, tells: bool) -> tuple[CallRecord, bool]:
    """Take up what was answered on a call, or below it; returns it with the decisions, which are told once, and True if
    who was shown it may answer yet.
    """
    state, here = turn.lease.state, turn.lease.state.is_of_this_run(held)
    if held.child_session is not None:
        below = turn.delegates[held.proposed.name]
        return held, await below.hear_rejections(state, held.child_session, here=here)
    new = await as_decided(turn.ledger, turn.gate, held)
    if tells and new.decisions != held.decisions and new.decisions[0].kind is ApprovalKind.REJECT:
        tell(turn, held.requests[0], held.proposed, new.decisions, here=here)
    if here:
        state.rejected = remembered(state.rejected, new)
    else:
        state.know_rejected(remembered(state.rejected_before(), new))
    return held.change(decisions=new.decisions), not new.decisions


async def answerable(ledger: Ledger, held: Sequence[CallRecord]) -> list[CallRecord]:
    """These calls without those on which no decision is stored, which many may be: one read says so of all."""
    asked = [one.requests[0].id for one in held if len(one.requests) == 1 and not one.decisions]
    stored = dict[str, Any]()
    if len(asked) > 1:
        with contextlib.suppress(StoreError):  # then each is read for itself
            stored = await ledger.decisions(asked)
    return [one for one in held if not one.requests or stored.get(one.requests[0].id, True)]


async def as_decided(ledger: Ledger, gate: Gate, held: CallRecord) -> CallRecord:
    """A call after the stored decisions on it, of which permits learn; as it is where they do not settle it, or it
    waits for none of its own. Raises StoreError.
    """
    if len(held.requests) != 1:
        return held
    request = held.requests[0]
    arrived = (await ledger.decisions([request.id]))[request.id]
    standing = await standing_in(ledger.store, [decision for decision, _ in arrived])
    deciding, _ = gate.approvals.holding(request, arrived, gate.problem, standing)
    if not deciding:
        return held
    new = decided(held, deciding)
    asked_by = Terms(agent_id=request.agent_id, session_id=request.session_id, run_id=request.run_id)
    await gate.answered(new.change(requests=held.requests), asked_by)
    return new


async def take_up_last(turn: Turn) -> None:
    """Take up what humans decided, in sub-agents too, as the run is ended: in the session's next run a "no" holds."""
    state = turn.lease.state
    if state.pending():
        await _try_twice(partial(apply_response, turn, None))
    state.keep_replaced(state.unheard())  # what still waits, and what sub-agents serve
    await _try_twice(partial(hear_replaced, turn, ends=True))


async def _try_twice(work: Callable[[], Awaitable[None]]) -> None:
    for _ in range(2):
        with contextlib.suppress(StoreError):
            await work()
            return
