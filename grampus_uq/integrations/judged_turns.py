"""A turn of a framework's model as JSON values: which calls may run, which wait for whom, and what was decided.

For frameworks that keep an agent's state in checkpoints (LangGraph, LangChain) everything here is a function from
values to values: nothing is held between two steps, so any process can take the next one, and a fork of the state is a
fork of the belief. `judge` costs model calls and belongs into a step that is checkpointed; `decide` costs none.

    belief   {"v", "tag", "session": a session's snapshot, "turns", "rejected": digests, "repeats": digests}
    turn     {"step_id", "action", "level", "confidence", "reason", "calls": [...], "review": request, "stopped": why}
    a call   {"call", "phase": cleared|waiting|settled, "effect", "request", "arguments": edited, "text", "is_error"}
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from grampus_uq import (
    ApprovalDecision,
    ApprovalError,
    ApprovalKind,
    ApprovalPolicy,
    ApprovalRequest,
    DataError,
    Effect,
    Message,
    Outcome,
    Session,
    StepUncertainty,
    StopReason,
    TokenUsage,
    ToolCall,
    ToolEffects,
    UncertaintyAction,
    UncertaintyMonitor,
)
from grampus_uq.gate.preconditions import Precondition, refusal_of
from grampus_uq.wire import NO_TOKENS, TokenStream

if TYPE_CHECKING:
    from grampus_uq.protocols import ModelClient

__all__ = [
    "VERSION",
    "Belief",
    "ModelTurn",
    "Precondition",
    "Turn",
    "TurnJudge",
    "call_of",
    "proposes",
    "requests_of",
    "run_of",
]

Belief = dict[str, Any]
Turn = dict[str, Any]

VERSION = 1
_MAX_REJECTED = 256
_MAX_AT_HAND = 1_024
_TAGS = itertools.count()
_PROCESS = uuid.uuid4().hex
REJECTED = "Not executed: a human rejected this call.{said} Do not propose it again."
REJECTED_BEFORE = "Not executed: a human already rejected exactly this call. Do something else."
STOPPED = "Not executed: the run was stopped ({why})."
CHANGED = "(A human changed the arguments to {arguments}.)"
REPEATED = "A branch that was rolled back already executed exactly this call: running it again does it twice."


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """What the framework's model said, and what it had been asked, in this package's words."""

    text: str
    calls: Sequence[ToolCall] = ()
    prompt: Sequence[Message] = ()
    logprobs: TokenStream = NO_TOKENS
    usage: TokenUsage | None = None
    model: str = ""


class TurnJudge:
    """The frozen wiring of an adapter; any number of runs share it.

    `model_client` is whom the monitor's signals may ask (None: only what came with the answer is read). `effects` says
    what tools do to the world, `approvals` who may decide and how, `precondition` is asked when a call was approved.
    `advisory` stops nothing, and records what would be.
    """

    def __init__(
        self,
        monitor: UncertaintyMonitor,
        *,
        model_client: ModelClient | None = None,
        agent_id: str = "",
        effects: ToolEffects | None = None,
        approvals: ApprovalPolicy | None = None,
        precondition: Precondition | None = None,
        advisory: bool = True,
    ) -> None:
        self.monitor = monitor
        self.model_client = model_client
        self.agent_id = agent_id
        self.approvals = approvals or ApprovalPolicy()
        self.advisory = advisory
        self._effects = effects or ToolEffects()
        self._precondition = precondition
        self._at_hand: OrderedDict[str, tuple[str, Session]] = OrderedDict()
        self._lock = threading.Lock()

    # -- belief ---------------------------------------------------------------------------------------------------

    def session(self, session_id: str, belief: Belief | None) -> Session:
        """The session as the belief has it; a new one without. Raises DataError on a belief of another version.

        The belief alone decides. A session that this process left in exactly that state is taken up as it is, which
        saves reading it again.
        """
        if belief is None or belief["session"] is None:
            return self.monitor.session(session_id, self.agent_id, advisory=self.advisory)
        if belief.get("v") != VERSION:
            raise DataError(f"version {belief.get('v')!r:.40} is not {VERSION}", field="v")
        snapshot = belief["session"]
        known = snapshot["state"]["session_id"]  # a sub-graph that shares its parent's state goes on with its session
        with (
            self._lock
        ):  # taken out: a step that fails half-way leaves nothing behind, and is taken again from the belief
            tag, at_hand = self._at_hand.pop(known, ("", None))
        if at_hand is not None and tag == belief["tag"]:
            return at_hand
        return self.monitor.session(known, self.agent_id, snapshot=snapshot, advisory=self.advisory)

    def belief(self, session: Session, before: Belief | None, **changes: Any) -> Belief:
        """What is believed now, without the assessments of past steps: the recording has those."""
        snapshot = session.snapshot(latest=0)
        tag = f"{_PROCESS}-{next(_TAGS)}"
        self._keep(tag, session)
        kept = before or {"turns": 0, "rejected": [], "repeats": []}
        return {**kept, "v": VERSION, "tag": tag, "session": snapshot, **changes}

    def _keep(self, tag: str, session: Session) -> None:
        with self._lock:
            self._at_hand[session.session_id] = tag, session
            while len(self._at_hand) > _MAX_AT_HAND:
                self._at_hand.popitem(last=False)

    # -- judging --------------------------------------------------------------------------------------------------

    async def judge(self, session: Session, before: Belief | None, said: ModelTurn) -> tuple[Belief, Turn]:
        """Observe a turn of the model and each of its calls; the belief after it, and what may happen now."""
        number = before["turns"] if before else 0
        rejected, repeats = (before["rejected"], before["repeats"]) if before else ([], [])
        step_id = f"llm_{number}"
        step, action = await session.observe_llm_response(
            said.text,
            step_id,
            prompt_messages=said.prompt,
            model_client=self.model_client,
            model_id=said.model,
            tool_calls=said.calls,
            logprobs=said.logprobs,
            usage=said.usage,
        )
        entries: list[dict[str, Any]] = []
        stopped = _why(step) if action is UncertaintyAction.ABORT else None
        for call in said.calls:
            if stopped is not None:
                break
            if rejected and call.digest() in rejected:
                entries.append(_entry(call, "settled", text=REJECTED_BEFORE, is_error=True))
                continue
            effect = self._effects.resolve(call)
            judged, verdict = await session.observe_tool_call(call, step_id, effect=effect)
            if session.profile.policy.is_irreversible(call.name):
                effect = Effect.IRREVERSIBLE
            repeated = bool(repeats) and call.digest() in repeats and not session.profile.advisory
            if verdict is UncertaintyAction.ABORT:
                stopped = _why(judged)
            elif verdict is UncertaintyAction.PAUSE_FOR_HUMAN or repeated or action.stops:
                why = {"rule": "repeat_after_rollback", "reason": REPEATED} if repeated else {}
                shown = judged if verdict.stops else step
                request = self._request(session, shown, step_id, call, **why)
                entries.append(_entry(call, "waiting", effect, request=request))
            else:
                entries.append(_entry(call, "cleared", effect))
        review = None
        if stopped is not None:
            text = STOPPED.format(why=stopped)
            entries = [_entry(call, "settled", text=text, is_error=True) for call in said.calls]
            session.finish(Outcome(success=None, stop_reason=StopReason.MONITOR_STOP, time_s=time.time()))
        elif action is UncertaintyAction.PAUSE_FOR_HUMAN and not said.calls:
            review = self._request(session, step, step_id, None)
        turn = {
            "step_id": step_id,
            "action": (step.advisory_action or action).value,
            "level": step.level.value,
            "confidence": step.propagated_confidence,
            "rule": step.rule,
            "reason": step.reasoning,
            "guarantee": step.guarantee,
            "calls": entries,
            "review": review,
            "stopped": stopped,
            "reflect": step.reflection_injected,
        }
        return self.belief(session, before, turns=number + 1), turn

    async def judge_late(self, session_id: str, belief: Belief | None, step_id: str, call: ToolCall) -> dict[str, Any]:
        """The entry of a call that the model's turn did not hold (another hook changed it): judged, not committed."""
        session = self.session(session_id, belief)
        if belief is not None:
            self._keep(belief["tag"], session)
        effect = self._effects.resolve(call)
        verdict = session.would_allow(call, effect=effect)
        if verdict.allowed:
            return _entry(call, "cleared", effect)
        request = self._asked(session, step_id, call, verdict.level, verdict.rule, verdict.reason, verdict.guarantee)
        return _entry(call, "waiting", effect, request=request)

    def _request(
        self, session: Session, step: StepUncertainty, step_id: str, call: ToolCall | None, **why: str
    ) -> dict[str, Any]:
        rule, reason = why.get("rule", step.rule), why.get("reason", step.reasoning)
        guarantee = None if why else step.guarantee
        return self._asked(session, step_id, call, step.level, rule, reason, guarantee, step.propagated_confidence)

    def _asked(
        self,
        session: Session,
        step_id: str,
        call: ToolCall | None,
        level: Any,
        rule: str,
        reason: str,
        guarantee: str | None,
        confidence: float | None = None,
    ) -> dict[str, Any]:
        now = time.time()
        expires = self.approvals.expires_s
        request = ApprovalRequest(
            agent_id=session.agent_id,
            session_id=session.session_id,
            step_id=step_id,
            call=call,
            level=level,
            rule=rule,
            reason=reason,
            guarantee=guarantee,
            confidence=confidence,
            created_s=now,
            expires_s=None if expires is None else now + expires,
        )
        return request.model_dump(mode="json")

    # -- deciding -------------------------------------------------------------------------------------------------

    async def decide(self, turn: Turn, answer: Any) -> tuple[Turn, list[Any], list[str]]:
        """Take what a human answered to the turn's requests.

        Returns the turn after it, the decisions that hold, and why others were refused: what was refused waits on,
        under a new request where the old one can never hold again (expired, or its precondition failed).
        """
        given, refusals = _decisions(answer)
        accepted: list[Any] = []
        for decision in given:
            entry = next((e for e in [turn, *turn["calls"]] if _id_of(e) == decision.request_id), None)
            if entry is None:
                refusals.append(f"Nothing waits under request {decision.request_id:.40}: stale, or already decided.")
                continue
            after, refusal = await self._decide_one(entry, decision)
            if refusal is None:
                call_id = None if entry is turn else entry["call"]["id"]
                accepted.append({"call_id": call_id, "decision": decision.model_dump(mode="json")})
            else:
                refusals.append(refusal)
            turn = after if entry is turn else {**turn, "calls": [after if e is entry else e for e in turn["calls"]]}
        return turn, accepted, refusals

    async def _decide_one(self, entry: dict[str, Any], decision: ApprovalDecision) -> tuple[dict[str, Any], str | None]:
        """An entry (or the turn itself, for a review) after one decision; and why it was refused, if it was."""
        key = "review" if "calls" in entry else "request"
        request = ApprovalRequest.model_validate(entry[key])
        try:
            self.approvals.check(request, decision)
        except ApprovalError as error:
            again = self._again(request, str(error)) if request.expired() else entry[key]
            return {**entry, key: again}, str(error)
        if request.call is None:
            return {**entry, "review": None, "reviewed": decision.model_dump(mode="json")}, None
        if decision.kind is ApprovalKind.RESPOND:
            return {**entry, "phase": "settled", "request": None, "text": decision.message or ""}, None
        if decision.kind is ApprovalKind.REJECT:
            text = REJECTED.format(said=f" They said: {decision.message}" if decision.message else "")
            return {**entry, "phase": "settled", "request": None, "text": text, "is_error": True}, None
        call = request.call
        if decision.arguments is not None:
            call = call.model_copy(update={"arguments": decision.arguments})
        refusal = await refusal_of(self._precondition, call)
        if refusal is not None:
            return {**entry, key: self._again(request, refusal)}, f"The approval is void: {refusal}"
        return {**entry, "phase": "cleared", "request": None, "arguments": decision.arguments}, None

    def _again(self, request: ApprovalRequest, why: str) -> dict[str, Any]:
        """A new request on the same thing: what was said to the old one holds for nothing."""
        now, expires = time.time(), self.approvals.expires_s
        return ApprovalRequest(
            **request.model_dump(exclude={"id", "call", "created_s", "expires_s", "reason"}),
            call=request.call,
            reason=f"asked again, because {why}",
            created_s=now,
            expires_s=None if expires is None else now + expires,
        ).model_dump(mode="json")

    def record(self, session: Session, before: Belief, turn: Turn, accepted: Sequence[Any]) -> Belief:
        """Take decisions that hold into the belief and the recording."""
        rejected = list(before["rejected"])
        for item in accepted:
            decision = ApprovalDecision.model_validate(item["decision"])
            call = next((call_of(e) for e in turn["calls"] if item["call_id"] == e["call"]["id"]), None)
            session.record_decision(
                decision.kind.value,
                principal=decision.principal,
                step_id=turn["step_id"],
                call=call,
                message=decision.message,
            )
            if call is not None and decision.kind is ApprovalKind.REJECT:
                rejected.append(call.digest())
        return self.belief(session, before, rejected=rejected[-_MAX_REJECTED:])


def requests_of(turn: Turn | None) -> list[dict[str, Any]]:
    """The requests that wait, as JSON values, in the order of the calls."""
    if turn is None:
        return []
    waiting = [entry["request"] for entry in turn["calls"] if entry["phase"] == "waiting"]
    return [*waiting, turn["review"]] if turn["review"] is not None else waiting


def proposes(entry: Mapping[str, Any], call: ToolCall) -> bool:
    """True when the entry is of this call: same id, name and arguments."""
    known = entry["call"]
    return bool(known["id"] == call.id and known["name"] == call.name and known["arguments"] == call.arguments)


def call_of(entry: Mapping[str, Any]) -> ToolCall:
    """The call of an entry as the model proposed it."""
    return ToolCall.model_validate(entry["call"])


def run_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a cleared call runs with: a human's where they were changed."""
    edited: dict[str, Any] | None = entry["arguments"]
    return dict(entry["call"]["arguments"]) if edited is None else edited


def _entry(
    call: ToolCall,
    phase: str,
    effect: Effect = Effect.UNKNOWN,
    *,
    request: dict[str, Any] | None = None,
    text: str | None = None,
    is_error: bool = False,
) -> dict[str, Any]:
    return {
        "call": {"id": call.id, "name": call.name, "arguments": call.arguments},
        "phase": phase,
        "effect": effect.value,
        "request": request,
        "arguments": None,
        "text": text,
        "is_error": is_error,
    }


def _id_of(entry: Mapping[str, Any]) -> str | None:
    request = entry.get("review") if "calls" in entry else entry.get("request")
    return None if request is None else request["id"]


def _why(step: StepUncertainty) -> str:
    return f"{step.level.value}: {step.reasoning}" if step.reasoning else step.level.value


def _decisions(answer: Any) -> tuple[list[ApprovalDecision], list[str]]:
    """The decisions in an answer: one or several, as objects or JSON; what is none is refused."""
    raw = answer.get("decisions") if isinstance(answer, Mapping) and "decisions" in answer else answer
    found, refusals = [], []
    for item in raw if isinstance(raw, list | tuple) else [raw]:
        try:
            found.append(item if isinstance(item, ApprovalDecision) else ApprovalDecision.model_validate(item))
        except ValidationError:
            refusals.append(f"This is no ApprovalDecision: {item!r:.200}. Build it with ApprovalRequest.decide(...).")
    return found, refusals
