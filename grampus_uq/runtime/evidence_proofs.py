"""Proofs of a call's authorization from a file of evidence: decisions, grants, and permits with their logs.

The rules are those of the gate (`ApprovalPolicy.holding`, `Grant.covers`, `Permit.covers`, the replay of a permit's
log), asked anew with public keys and with the times that the file states.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final
from urllib.parse import unquote

from grampus_uq.errors import ApprovalError, ConfigurationError, DataError
from grampus_uq.gate.delegations import Delegation, Stands
from grampus_uq.gate.grants import Grant
from grampus_uq.gate.permits import Permit, issued, replay, same_call
from grampus_uq.gate.requests import ApprovalDecision, ApprovalKind, ApprovalPolicy, ApprovalRequest
from grampus_uq.gate.schema import problem_of
from grampus_uq.gate.seal import session_place
from grampus_uq.gate.starts import CHAINED, PERMITTED
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.runtime.cards import Card

GRACE_S: Final = 60.0
"""Seconds that a call may be written down after it was looked at for the last time."""
_BY_ITSELF: Final = ("monitor", "unmonitored")
_WHICH: Final = ("run_id", "step_id", "call_id", "tool", "digest", "idempotency_key", "cleared_by")
GOES_ON: Final = "goes on"
"""Authorization of a sub-agent that goes on after waiting for its own calls: not another start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A stored decision: what was shown, when it arrived by the store's clock, and the schema of the tool then."""

    decision: ApprovalDecision
    card: Card | None
    arrived_s: float
    parameters: Mapping[str, Any] | None

    def request(self) -> ApprovalRequest | None:
        """The request that was shown, where it is the one that was decided on."""
        request = None if self.card is None else request_of(self.card)
        return request if request is not None and request.digest() == self.decision.digest else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A call that was started: the line, the session's place, the time, and what the audit says of it."""

    line: int
    of: str
    time_s: float
    facts: Mapping[str, Any]
    withdrawn: bool = False
    finished: bool = False

    @property
    def call(self) -> str:
        """Exactly which call it says it is, and who let it run: also what later notes on it say."""
        return canonical_json([self.of, *(self.facts.get(name) for name in _WHICH)])


@dataclass(slots=True, kw_only=True)
class Records:
    """Everything of a file that may let a call run; with `looked` only what is signed is in it.

    Grants stand under the words that a call says it ran on, and their id: an id may hold any words.
    """

    policy: ApprovalPolicy
    looked: bool
    decided: dict[str, list[Decided]] = field(default_factory=dict)
    grants: dict[str, dict[str, tuple[Grant, float | None]]] = field(default_factory=dict)
    permits: dict[str, tuple[Permit, float | None]] = field(default_factory=dict)
    delegations: dict[str, tuple[Delegation, float | None, float | None]] = field(default_factory=dict)
    logs: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    _proven: set[str] = field(default_factory=set)
    _used: Counter[str] = field(default_factory=Counter)
    _released: dict[str, _LetAhead | str] = field(default_factory=dict)

    def check(self, start: Start) -> tuple[str, str | None]:
        """The ground of a call ("decision", "permit", "monitor" or GOES_ON), and the fault in it, or None.

        Every start that is not a GOES_ON is one use of what let it run: to be asked in the order of time.
        """
        if start.facts.get("child_session") and start.call in self._proven:
            return GOES_ON, None
        on, wrong = self._let_run(start)
        if wrong is None:
            self._proven.add(start.call)
        return on, wrong

    def _let_run(self, start: Start) -> tuple[str, str | None]:
        by, requests = str(start.facts.get("cleared_by")), start.facts.get("decisions") or []
        if requests:
            return "decision", self._on_decisions(start, requests if isinstance(requests, list) else [requests])
        if by.startswith(("grant ", PERMITTED)):
            wrong = self._covered(start, by)
            return "permit", None if wrong is None else f"{'grant' if by.startswith('grant ') else 'permit'} {wrong}"
        by_itself = by in _BY_ITSELF or by.startswith(CHAINED)
        return "monitor", None if by_itself else f"word of {by!r:.80} that nothing here bears out"

    def _more_than(self, uses: int | None, what: str) -> bool:
        """Count one more use of this; True when there were as many before."""
        self._used[what] += 1
        return uses is not None and self._used[what] > uses

    # -- decisions ------------------------------------------------------------------------------------------------

    def _on_decisions(self, start: Start, requests: Sequence[object]) -> str | None:
        """Return the proof that timely decisions on one request authorize exactly this call, once; None without one."""
        asked_on = str(requests[0])
        stored = [one for one in self.decided.get(asked_on, ()) if one.arrived_s <= start.time_s + GRACE_S]
        asked = {one.decision.digest: request for one in stored if (request := one.request()) is not None}
        if len(requests) >= self.policy.required:
            with contextlib.suppress(ConfigurationError):  # more are named than there are approvers
                policy = ApprovalPolicy(
                    signer=self.policy.signer,
                    required=len(requests),
                    others_decide=self.policy.others_decide,
                    deputies=self.policy.deputies,
                )
                for (digest, request), grace_s in product(asked.items(), (GRACE_S, 0.0)):
                    on_it = [one for one in stored if one.decision.digest == digest]
                    arrived = [(one.decision, one.arrived_s) for one in on_it]
                    standing = self._standing(start.time_s, grace_s)
                    deciding, _ = policy.holding(request, arrived, _schema_problem(on_it), standing)
                    if deciding and _lets(deciding[0], request, start):
                        twice = self._more_than(1, f"request {asked_on}")
                        return "decision that had let it run before: it lets it run once" if twice else None
        how = "signed decision" if self.looked else "decision"
        return f"decision, but no {how} on exactly this call is here"

    def _standing(self, start_s: float, grace_s: float) -> Stands:
        """Return the delegations in force from the arrival of a decision until its call ran."""

        def standing(given: Delegation, at_s: float) -> str | None:
            known, made_s, revoked_s = self.delegations.get(given.id, (None, None, None))
            if known != given:
                return "is not here"
            if made_s is not None and made_s > start_s + GRACE_S:
                return "was made after it ran"
            looked_s = max(at_s, start_s - grace_s)
            if revoked_s is not None and revoked_s <= looked_s:
                return "was revoked"
            return given.over(at_s) or given.over(looked_s)

        return standing

    # -- grants and permits ---------------------------------------------------------------------------------------

    def _covered(self, start: Start, by: str) -> str | None:
        """Why the grant or the permits that a call names do not cover it, or None where each of them does."""
        call, why = _call_of(start.facts)
        agent_id, session_id = (unquote(part, errors="surrogatepass") for part in (*start.of.split("/"), "")[:2])
        if call is None:
            return why
        if by.startswith("grant "):
            wrong: str | None = "that is not here, or whose signature does not hold"
            for grant, revoked_s in self.grants.get(by, {}).values():
                in_scope = grant.covers(call, agent_id=agent_id, session_id=session_id, now_s=start.time_s - GRACE_S)
                wrong = self._not_lifted(grant, start, in_scope)
                if revoked_s is not None and revoked_s < start.time_s - GRACE_S:
                    wrong = "that was revoked before"
                if wrong is None and self._more_than(grant.max_uses, f"grant {grant.id}"):
                    wrong = "that was used up"
                if wrong is None:
                    break
            return wrong
        for permit_id in by.removeprefix(PERMITTED).split(" and "):
            permit, closed_s = self.permits.get(permit_id, (None, None))
            if permit is None:
                return "that is not here, or whose signature does not hold"
            wrong = self._not_lifted(permit, start, permit.covers(call, agent_id, start.time_s - GRACE_S))
            same = same_call(agent_id, call.likeness()), same_call(agent_id, call.digest())  # of earlier releases
            wrong = wrong or self._without_ticket(permit, closed_s, start, same)
            if wrong is not None:
                return wrong
        return None

    def _not_lifted(self, one: Grant | Permit, start: Start, in_scope: bool) -> str | None:
        if self.policy.required > 1:
            return f"of one principal, where {self.policy.required} approvals are required"
        if self.policy.others_decide:
            said = start.facts.get("started_by")
            try:
                self.policy.check_other(one.principal, said if isinstance(said, str) else None)
            except ApprovalError:
                return "of the run's starter, or the audit does not name the starter: somebody else has to clear it"
        if one.created_s > start.time_s + GRACE_S:
            return "that was made after it ran"
        return None if in_scope else "that does not cover it: another tool, agent or session, its limits, or its end"

    def _without_ticket(self, permit: Permit, closed_s: float | None, start: Start, names: Sequence[str]) -> str | None:
        """Check that the permit's log released this call, on a ticket of its own, before the permit closed."""
        released = self._released.get(permit.id)
        if released is None:
            released = self._released[permit.id] = _released_in(permit, self.logs.get(permit.id, []))
        if isinstance(released, str):
            return released
        closings = [released.closed_s] + ([] if closed_s is None else [closed_s])
        if min(closings) < start.time_s - GRACE_S:
            return "that was closed before"
        same = next((name for name in names if name in released.tickets), names[0])
        tickets = bisect_right(released.tickets.get(same, ()), start.time_s + GRACE_S)
        without = self._more_than(tickets, f"permit {permit.id} {same}")
        return "whose log lets no such call ahead, or not so often" if without else None


def request_of(card: Card) -> ApprovalRequest:
    """The request that a card shows."""
    call = None if card.tool is None else ToolCall(id=card.call_id, name=card.tool, arguments=card.arguments)
    fields = card.model_dump(include=set(ApprovalRequest.model_fields) & set(Card.model_fields))
    return ApprovalRequest(**fields, call=call)


def _schema_problem(stored: Sequence[Decided]) -> Callable[[ToolCall], str | None]:
    """Why edited arguments were refused, by the tool's schema of then."""
    parameters = next((one.parameters for one in stored if one.parameters is not None), None)
    return lambda call: None if parameters is None else problem_of(call.arguments, parameters)


def _lets(decision: ApprovalDecision, request: ApprovalRequest, start: Start) -> bool:
    """Return True if the decision allows exactly this call, in this session, run and step."""
    if decision.kind not in (ApprovalKind.APPROVE, ApprovalKind.EDIT) or request.call is None:
        return False
    arguments = request.call.arguments if decision.arguments is None else decision.arguments
    call = request.call.model_copy(update={"arguments": arguments})
    place = (session_place(request.agent_id, request.session_id), request.run_id, request.step_id)
    said = (start.of, *(start.facts.get(name) for name in ("run_id", "step_id", "call_id", "tool", "digest")))
    return (*place, call.id, call.name, call.digest()) == said


def _call_of(facts: Mapping[str, Any]) -> tuple[ToolCall | None, str]:
    """The call that ran, out of the arguments that the audit keeps of it; they must have its digest."""
    arguments = facts.get("arguments")
    if not isinstance(arguments, dict):
        return None, "whose cover cannot be checked: the audit keeps no arguments of it (an earlier release wrote it)"
    call = ToolCall(id=str(facts.get("call_id")), name=str(facts.get("tool")), arguments=arguments)
    return (call, "") if call.digest() == facts.get("digest") else (None, "with other arguments than its digest says")


@dataclass(frozen=True, slots=True, kw_only=True)
class _LetAhead:
    """Of a permit's log: the times of the tickets for each call that it let ahead, rising, and its first closing."""

    tickets: Mapping[str, Sequence[float]]
    closed_s: float


def _released_in(permit: Permit, log: Sequence[Mapping[str, Any]]) -> _LetAhead | str:
    """Return the calls that a log released, or the fault in the log."""
    tickets, closed_s = dict[str, list[float]](), math.inf
    try:
        for before, entry, _ in replay(permit, log):
            taken = issued(permit, before, entry) if entry.do == "propose" else None
            if entry.do == "close":
                closed_s = min(closed_s, entry.now_s)
            elif taken is not None and not taken[1].asked:
                tickets.setdefault(entry.same, []).append(entry.now_s)
    except (ApprovalError, DataError) as error:
        return f"whose log cannot be replayed: {error}"
    return _LetAhead(tickets={same: sorted(times) for same, times in tickets.items()}, closed_s=closed_s)
