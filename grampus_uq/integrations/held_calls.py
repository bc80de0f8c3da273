"""The tool calls of one watched session: judged once each, held until a human decides, let through once.

What an adapter for any framework needs, out of public names only. A call is known by its id, its name and its canonical
arguments together: the same id with other arguments is another call, and no decision carries over to it.

    framework proposes a call -> `judge` -> it may run, or waits with an `ApprovalRequest`
    a human decides           -> `decide` (refused when it is on another call, expired, unsigned or not permitted)
    just before it would run  -> `release` -> run it (perhaps with edited arguments), answer for it, or go on waiting
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue

from grampus_uq import (
    ApprovalDecision,
    ApprovalError,
    ApprovalKind,
    ApprovalPolicy,
    ApprovalRequest,
    DataError,
    Effect,
    Session,
    ToolCall,
    ToolEffects,
    UncertaintyAction,
    UncertaintyError,
)
from grampus_uq.gate.preconditions import Precondition, refusal_of

__all__ = ["Edit", "HeldCall", "HeldCalls", "Precondition", "Release", "aborted", "waiting_in"]

VERSION = 1
FRAMEWORK = "framework"
_MAX_SETTLED = 256
REJECTED = "Not executed: a human rejected this call.{said} Do not propose it again."
REJECTED_BEFORE = "Not executed: a human already rejected exactly this call. Do something else."
RAN_BEFORE = "Not executed again: this approved call was already let through once."


class _Phase(StrEnum):
    CLEARED = "cleared"
    WAITING = "waiting"
    DECIDED = "decided"
    RELEASED = "released"


class HeldCall(BaseModel):
    """One call, and where it stands; JSON-able."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    call: ToolCall
    digest: str
    """Of the call's name and canonical arguments: with its id it says which call this is."""
    effect: Effect
    step_id: str
    phase: _Phase
    request: ApprovalRequest | None = None
    decision: ApprovalDecision | None = None

    @property
    def waiting(self) -> bool:
        """True while nobody decided."""
        return self.phase is _Phase.WAITING

    def key(self) -> tuple[str, str]:
        """What identifies the call."""
        return self.call.id, self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The arguments that a human put in place of the model's."""

    arguments: dict[str, JsonValue]

    def to_json(self) -> str:
        """The arguments as JSON."""
        return json.dumps(self.arguments)

    def told(self, output: str) -> str:
        """The result as the model reads it, which has to know that it is not of the call that it proposed."""
        return f"(A human changed the arguments to {json.dumps(self.arguments, sort_keys=True)}.)\n{output}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What to do with a call that is about to run.

    `run`: execute it, with the arguments of `edit` where a human changed them. `answer`: give this text to the model in
    its place. Neither: it waits, under `request`.
    """

    run: bool = False
    edit: Edit | None = None
    answer: str | None = None
    request: ApprovalRequest | None = None


class HeldCalls:
    """The calls of one session. Not shared between sessions; safe for concurrent tasks of one event loop.

    `effects` says what the tools do, `approvals` who may decide and how, `precondition` is asked before an approved
    call runs: when it fails, the approval is void and the call is asked again.
    """

    def __init__(
        self,
        session: Session,
        *,
        effects: ToolEffects | None = None,
        approvals: ApprovalPolicy | None = None,
        precondition: Precondition | None = None,
    ) -> None:
        self.session = session
        self.approvals = approvals or ApprovalPolicy()
        self._effects = effects or ToolEffects()
        self._precondition = precondition
        self._held: dict[tuple[str, str], HeldCall] = {}
        self._of_id: dict[str, list[tuple[str, str]]] = {}
        self._rejected: list[str] = []
        self._digests: dict[str, tuple[ToolCall, str]] = {}
        self._steps = session.state.n_steps

    def next_step_id(self, kind: str) -> str:
        """A step id that no other step of this session has."""
        self._steps += 1
        return f"{kind}-{self._steps}"

    def _key(self, call: ToolCall) -> tuple[str, str]:
        """What identifies a call; of one and the same object it is worked out once."""
        known = self._digests.get(call.id)
        if known is None or known[0] is not call:
            if len(self._digests) >= _MAX_SETTLED:
                self._digests.clear()
            known = self._digests[call.id] = call, call.digest()
        return call.id, known[1]

    # -- judging --------------------------------------------------------------------------------------------------

    async def judge(self, call: ToolCall, declared: Effect | None = None, *, framework_asks: bool = False) -> HeldCall:
        """Commit that this call is proposed, the first time it is seen; raises UncertaintyError when the run aborts.

        With `framework_asks` it waits even where the monitor would let it through.
        """
        key = self._key(call)
        known = self._held.get(key)
        if known is not None:
            return known
        held = HeldCall(
            call=call,
            digest=key[1],
            effect=self._effects.resolve(call, declared),
            step_id=self.next_step_id("tool"),
            phase=_Phase.WAITING,
        )
        self._keep(held)
        if held.digest in self._rejected:
            held.phase = _Phase.CLEARED  # `release` answers for it
            return held
        step, action = await self.session.observe_tool_call(call, held.step_id, effect=held.effect)
        if action is UncertaintyAction.ABORT:
            raise aborted(self.session, held.step_id)
        asked = action is UncertaintyAction.PAUSE_FOR_HUMAN
        if not asked and not framework_asks:
            held.phase = _Phase.CLEARED
        else:
            held.request = self._request(
                held,
                level=step.level,
                rule=step.rule if asked else FRAMEWORK,
                reason=step.reasoning if asked else "the framework's own rule asks for approval",
                guarantee=step.guarantee if asked else None,
                confidence=step.believed,
            )
        return held

    def _keep(self, held: HeldCall) -> None:
        """Take a call up; the same id with other arguments goes: what was said of those holds no more."""
        same_id = self._of_id.setdefault(held.call.id, [])
        stale = [key for key in same_id if self._held[key].phase is not _Phase.RELEASED]
        self._held[held.key()] = held
        same_id.append(held.key())
        if len(self._held) > 2 * _MAX_SETTLED:
            stale += [key for key, other in self._held.items() if other.phase is _Phase.RELEASED][:-_MAX_SETTLED]
        for key in stale:
            del self._held[key]
            self._of_id[key[0]].remove(key)
            if not self._of_id[key[0]]:
                del self._of_id[key[0]]

    def _request(self, held: HeldCall, **why: Any) -> ApprovalRequest:
        now = time.time()
        expires = self.approvals.expires_s
        return ApprovalRequest(
            agent_id=self.session.agent_id,
            session_id=self.session.session_id,
            step_id=held.step_id,
            call=held.call,
            created_s=now,
            expires_s=None if expires is None else now + expires,
            **why,
        )

    def _ask_again(self, held: HeldCall, old: ApprovalRequest, reason: str) -> None:
        """A new request on the same call: what was said to the old one holds for nothing."""
        held.phase, held.decision = _Phase.WAITING, None
        held.request = self._request(
            held, level=old.level, rule=old.rule, reason=reason, guarantee=old.guarantee, confidence=old.confidence
        )

    # -- deciding -------------------------------------------------------------------------------------------------

    def requests(self) -> tuple[ApprovalRequest, ...]:
        """What waits, in order; a request that expired is replaced by a new one."""
        for held in self._held.values():
            if held.waiting and held.request is not None and held.request.expired():
                self._ask_again(
                    held, held.request, f"the request before this one expired. {held.request.reason}".strip()
                )
        return tuple(held.request for held in self._held.values() if held.waiting and held.request is not None)

    def decide(self, decision: ApprovalDecision) -> HeldCall:
        """Take a decision on a waiting call; raises ApprovalError when it is refused, and the call waits on."""
        for held in self._held.values():
            if held.waiting and held.request is not None and held.request.id == decision.request_id:
                self.approvals.check(held.request, decision)
                self._accept(held, decision)
                return held
        raise ApprovalError(f"Nothing waits under request {decision.request_id!r:.40}: stale or already decided.")

    def _accept(self, held: HeldCall, decision: ApprovalDecision) -> None:
        held.phase, held.decision = _Phase.DECIDED, decision
        self.session.record_decision(
            decision.kind.value,
            principal=decision.principal,
            step_id=held.step_id,
            call=held.call,
            message=decision.message,
        )
        if decision.kind is ApprovalKind.REJECT:
            self._rejected = [*self._rejected, held.digest][-_MAX_SETTLED:]

    def accept_foreign(self, call: ToolCall, *, principal: str, arguments: dict[str, JsonValue] | None = None) -> bool:
        """Take the framework's own approval of a waiting call, if this policy takes decisions unsigned from anybody.

        `arguments` are those that a human put in place of the call's own, None for a call that was not edited.
        """
        held = self._held.get(self._key(call))
        if held is None or not held.waiting or held.request is None:
            return False
        kind = ApprovalKind.APPROVE if arguments is None else ApprovalKind.EDIT
        try:
            self.decide(held.request.decide(kind, principal=principal, arguments=arguments))
        except ApprovalError:
            return False
        return True

    # -- executing ------------------------------------------------------------------------------------------------

    async def release(self, call: ToolCall, declared: Effect | None = None, *, principal: str | None = None) -> Release:
        """Say what becomes of a call that is about to run; an approved one is let through once, and never again.

        `principal` is for a framework that comes here only with calls that it holds for approved: one that still waits
        is first taken as approved by it, if this policy takes such decisions. A request that is renewed here waits on.
        """
        held = await self.judge(call, declared)
        if principal is not None and held.waiting:
            self.accept_foreign(call, principal=principal)
        if held.digest in self._rejected and held.decision is None:
            held.phase = _Phase.RELEASED
            return Release(answer=REJECTED_BEFORE)
        if held.waiting:
            return Release(request=held.request)
        if held.decision is None:  # the monitor let it through
            held.phase = _Phase.RELEASED
            return Release(run=True)
        if held.phase is _Phase.RELEASED:
            return Release(answer=RAN_BEFORE)
        if held.decision.kind in (ApprovalKind.REJECT, ApprovalKind.RESPOND):
            held.phase = _Phase.RELEASED
            return Release(answer=self.told(held.decision))
        return await self._let_through(held, held.decision)

    async def _let_through(self, held: HeldCall, decision: ApprovalDecision) -> Release:
        held.phase = _Phase.RELEASED  # before anything is awaited: two tasks cannot both let it through
        call = self._decided(held, decision)
        refusal = await refusal_of(self._precondition, call)
        if refusal is not None and held.request is not None:
            self._ask_again(held, held.request, f"the approval is void: {refusal}")
            return Release(request=held.request)
        return Release(run=True, edit=None if decision.arguments is None else Edit(arguments=decision.arguments))

    async def void(self, held: HeldCall) -> bool:
        """Ask the precondition of a call that was just approved: when it fails the call waits again, and True returns.

        For frameworks that cannot make a call wait any more once it is on its way: `release` asks once more.
        """
        decision = held.decision
        if decision is None or decision.kind not in (ApprovalKind.APPROVE, ApprovalKind.EDIT) or held.request is None:
            return False
        refusal = await refusal_of(self._precondition, self._decided(held, decision))
        if refusal is not None:
            self._ask_again(held, held.request, f"the approval is void: {refusal}")
        return refusal is not None

    @staticmethod
    def _decided(held: HeldCall, decision: ApprovalDecision) -> ToolCall:
        return (
            held.call if decision.arguments is None else held.call.model_copy(update={"arguments": decision.arguments})
        )

    @staticmethod
    def told(decision: ApprovalDecision) -> str:
        """What the model is told in place of a result when a human rejected the call, or answered for it."""
        if decision.kind is ApprovalKind.RESPOND:
            return decision.message or ""
        return REJECTED.format(said=f" They said: {decision.message}" if decision.message else "")

    def decision(self, call_id: str) -> ApprovalDecision | None:
        """What was decided on the latest call of this id."""
        return next((held.decision for held in reversed(self._held.values()) if held.call.id == call_id), None)

    def edit_of(self, call: ToolCall) -> Edit | None:
        """What a human put in place of this call's arguments, None for a call that was not edited."""
        held = self._held.get(self._key(call))
        decision = None if held is None else held.decision
        return None if decision is None or decision.arguments is None else Edit(arguments=decision.arguments)

    def would_allow(self, call: ToolCall, declared: Effect | None = None) -> bool:
        """What would be said of this call now. Changes nothing."""
        return self.session.would_allow(call, effect=self._effects.resolve(call, declared)).allowed

    # -- in another process ---------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, JsonValue]:
        """The belief and the calls, as JSON values: what travels with the framework's own state."""
        return {
            "v": VERSION,
            "belief": self.session.snapshot(),
            "calls": [held.model_dump(mode="json") for held in self._held.values()],
            "rejected": list(self._rejected),
            "steps": self._steps,
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Take up what `snapshot` gave (the session was started with its belief already); raises DataError."""
        held = _read_calls(snapshot)
        try:
            self._rejected = [str(digest) for digest in snapshot["rejected"]]
            self._steps = max(self._steps, int(snapshot["steps"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not the calls of a session: {error}", field="rejected") from error
        self._held = {call.key(): call for call in held}
        self._of_id = {}
        for call_id, digest in self._held:
            self._of_id.setdefault(call_id, []).append((call_id, digest))


def waiting_in(snapshot: Mapping[str, Any]) -> tuple[ApprovalRequest, ...]:
    """What waits in a snapshot, for those who show it to a human; raises DataError."""
    return tuple(call.request for call in _read_calls(snapshot) if call.waiting and call.request is not None)


def _read_calls(snapshot: Mapping[str, Any]) -> list[HeldCall]:
    if snapshot.get("v") != VERSION:
        raise DataError(f"version {snapshot.get('v')!r:.40} is not {VERSION}", field="v")
    try:
        calls = [HeldCall.model_validate_json(json.dumps(call)) for call in snapshot["calls"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"not the calls of a session: {error}", field="calls") from error
    if any(call.digest != call.call.digest() for call in calls):
        raise DataError("a call's digest is not that of its name and arguments", field="calls")
    return calls


def aborted(session: Session, step_id: str) -> UncertaintyError:
    """What an adapter raises when the policy aborts the run."""
    details = {"session_id": session.session_id, "step_id": step_id, "decision": session.summary()["decision"]}
    return UncertaintyError("The uncertainty policy aborted the run.", details=details)
