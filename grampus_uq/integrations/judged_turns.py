"""Judges a model's turn and its tool calls for frameworks that keep state themselves and may run a step again.

What a framework checkpoints is JSON: the *belief* (the watch's snapshot, how many turns were judged, the calls that a
human rejected) and the *turn* (the records of the latest turn's calls). Nothing here outlives them, so going on from
any checkpoint, in any process and also on another branch, goes on from exactly that belief.

With a signer both carry a seal. State whose seal does not hold says nothing: its calls wait, and its belief releases
nothing that may be irreversible for the rest of the run.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

from pydantic import ValidationError

from grampus_uq import (
    ApprovalDecision,
    ApprovalError,
    ApprovalKind,
    ApprovalPolicy,
    ApprovalRequest,
    ConfigurationError,
    DataError,
    Message,
    Outcome,
    Session,
    StopReason,
    TokenUsage,
    ToolCall,
    ToolEffects,
    UncertaintyAction,
    UncertaintyMonitor,
)
from grampus_uq.gate.call import (
    MAX_REJECTED,
    RAN_BEFORE,
    REJECTED_BEFORE,
    REPEATED,
    UNKNOWN_OUTCOME,
    UNVOUCHED,
    CallPhase,
    CallRecord,
    Doubt,
    Terms,
    asked,
    asked_again,
    cleared,
    doubt_of,
    review,
    settled,
)
from grampus_uq.gate.carried import read_decided, read_record, write_record
from grampus_uq.gate.clearance import HARMLESS, Precondition
from grampus_uq.gate.gate import Gate
from grampus_uq.gate.recovery import restored
from grampus_uq.gate.seal import SEAL
from grampus_uq.wire import NO_TOKENS, TokenStream

if TYPE_CHECKING:
    from grampus_uq.records.protocols import ModelClient

__all__ = ["VERSION", "Belief", "Carried", "Held", "ModelTurn", "Settings", "Turn", "TurnJudge", "requests_of"]

Belief = dict[str, Any]
Turn = dict[str, Any]
Held = Mapping[str, Any]
"""What the framework keeps: {"belief", "turn", ...}, and "seal" with a signer."""

VERSION = 2
_READABLE = (1, 2)
_MAX_AT_HAND = 1_024
_TAGS = itertools.count()
_PROCESS = uuid.uuid4().hex
STOPPED = "Not executed: the run was stopped ({why})."
NOT_CLEARED = "Not executed: this call was not cleared. Propose it in a turn of the model."
_FIRST: Belief = {"turns": 0, "rejected": [], "repeats": [], "vouched": True}


class Settings(TypedDict, total=False):
    """What an adapter is told beside its monitor.

    model_client: whom the monitor's signals may ask; None reads only what came with the model's answer.
    agent_id: names the agent in records.
    effects: what the tools do to the world; beside it holds the policy's `irreversible_tool_names`.
    approvals: who may decide, how decisions are signed, when they expire.
    precondition: asked when a call was approved; a text says why it must not run now, and it is asked again.
    advisory: stop nothing, record what would be stopped (the default).
    """

    model_client: ModelClient | None
    agent_id: str
    effects: ToolEffects | None
    approvals: ApprovalPolicy | None
    precondition: Precondition | None
    advisory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """What the framework's model said, what it had been asked, and the agent's tools, in this package's words."""

    text: str
    calls: Sequence[ToolCall] = ()
    prompt: Sequence[Message] = ()
    logprobs: TokenStream = NO_TOKENS
    usage: TokenUsage | None = None
    model: str = ""
    tools: Collection[Mapping[str, Any] | str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Carried state, taken up: the session, whose calls they are, and the records as far as they are believed."""

    session: Session
    belief: Belief
    terms: Terms
    turn: Turn | None
    records: tuple[CallRecord, ...]
    place: str

    def record(self, call: ToolCall) -> CallRecord | None:
        """The record of this call: proposed, or edited by a human, with just this id, name and arguments."""
        for record in self.records:
            proposed = record.proposed
            if (proposed.id, proposed.name) == (call.id, call.name) and (
                call.arguments == proposed.arguments or call.arguments == record.call.arguments
            ):
                return record
        return None


class TurnJudge:
    """The frozen wiring of an adapter (see `Settings`); any number of runs share it.

    `schemas` gives the JSON schemas of tools that the adapter knows: a human's edit is checked against them.
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
        self.advisory = advisory
        self.schemas: dict[str, Callable[[], Mapping[str, Any]]] = {}
        self.gate = Gate(
            approvals=approvals,
            effects=effects,
            precondition=precondition,
            schema_of=lambda name: self.schemas[name]() if name in self.schemas else None,
        )
        self._at_hand: OrderedDict[str, tuple[str, Carried]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def acts(self) -> bool:
        """True unless it only advises."""
        return not (self.advisory or self.monitor.profile.advisory)

    # -- carried state --------------------------------------------------------------------------------------------

    def take(
        self, session_id: str, place: str, held: Held | None, *, to_judge: bool = False, begun: bool = True
    ) -> Carried:
        """Take up carried state; a new session without any, and in advisory mode instead of what is none.

        The state alone decides. State that this process made is taken up as this process knows it, which saves reading
        it again and leaves nothing of it to forge. `place` is what the framework, not the state, calls the run: the
        seal is bound to it. With `to_judge` nothing is left at hand: a step that fails half-way begins from the state.
        A run that has `begun`, and has no state of ours, is one that nobody vouches for.

        Raises:
            DataError: state of another version, or that is none.
        """
        try:
            return self._taken(session_id, place, held or {}, to_judge, begun)
        except (AttributeError, ConfigurationError, DataError, KeyError, TypeError, ValueError) as error:
            if self.acts:
                raise (
                    error if isinstance(error, DataError) else DataError(f"no carried state: {error!r:.200}")
                ) from error
            return self._taken(session_id, place, {}, to_judge, begun)

    def _taken(self, session_id: str, place: str, held: Held, to_judge: bool, begun: bool) -> Carried:
        given: Belief = held.get("belief") or {}
        repeats = [str(digest) for digest in held.get("repeats", ())]  # of a fork: it can only make more calls ask
        snapshot = given.get("session")
        if snapshot is not None:
            if snapshot["state"]["session_id"] != session_id:  # another's: whose run this is the framework says
                snapshot = {**snapshot, "state": {**snapshot["state"], "session_id": session_id}}
            with self._lock:
                tag, known = self._at_hand.get(session_id, ("", None))
                if known is not None and known.place == place and tag == given.get("tag"):
                    if to_judge:
                        del self._at_hand[session_id]
                    belief = known.belief
                    return (
                        replace(known, belief={**belief, "repeats": belief["repeats"] + repeats}) if repeats else known
                    )
        if given.get("v", VERSION) not in _READABLE:
            raise DataError(f"version {given.get('v')!r:.40} is not {VERSION}", field="v")
        turn = None if not held.get("turn") else _read_turn(held["turn"])
        believed = (not given and turn is None and not begun) or self.believes(place, held)
        belief = {**_FIRST, **given}
        belief |= {"turns": int(belief["turns"]), "rejected": list(belief["rejected"])}
        belief |= {"repeats": [*belief["repeats"], *repeats], "vouched": belief["vouched"] is True and believed}
        session = self.monitor.session(session_id, self.agent_id, snapshot=snapshot, advisory=self.advisory)
        terms = self.gate.terms(session.agent_id, session.session_id, session.profile.policy, vouched=belief["vouched"])
        if turn is not None and not believed:  # nobody knows when a decision arrived: nothing expired is made good
            turn["arrived"] = [[one, time.time()] for one, _ in turn["arrived"]]
        if turn is not None and not self.acts:
            turn |= {"stopped": None, "review": None}
        carried = Carried(session=session, belief=belief, terms=terms, turn=turn, records=(), place=place)
        return replace(carried, records=self.restored(carried, turn["calls"] if turn else (), believed=believed))

    def restored(self, carried: Carried, entries: Iterable[Any], *, believed: bool) -> tuple[CallRecord, ...]:
        """Records out of carried JSON values, each worth what the seal, or its own decisions, make it worth."""
        now_s, step_id, policy = time.time(), _step_id(carried), self.gate.approvals
        found = []
        for record in [read_record(entry, step_id) for entry in entries]:
            if not self.acts:  # nothing waits, and nothing is answered for
                found.append(cleared(record.change(text=None, is_error=False)))
            elif believed or record.step_id == step_id:
                found.append(restored(record, carried.terms, policy, now_s, believed=believed))
            else:  # what was decided at another step is no word on this one
                found.append(asked(record.change(step_id=step_id), carried.terms, policy, UNVOUCHED, now_s))
        return tuple(found)

    def decided(self, place: str, held: Held) -> list[CallRecord]:
        """What humans decided beside the latest turn, as far as it is believed; raises DataError."""
        try:
            items = [item for item in held.get("decided", ()) if self.believes(place, item, *_item_keys(item))]
            return [read_decided(item) for item in items]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if self.acts:
                raise DataError(f"not what humans decided: {error!r:.200}", field="decided") from error
            return []

    def packed(self, carried: Carried) -> dict[str, Any]:
        """Records and turn for a task's result, which is checkpointed: sealed, because others may write it."""
        calls = [write_record(record) for record in carried.records]
        return self.sealed(carried.place, {"turn": {**(carried.turn or {}), "calls": calls}})

    def unpacked(self, carried: Carried, packed: Mapping[str, Any]) -> Carried:
        """What `packed` wrote of just these calls, as far as it is believed; raises DataError."""
        try:
            believed = self.believes(carried.place, packed, "turn")
            turn = _read_turn({"step_id": "", "calls": packed.get("records", ()), **packed["turn"]})
            records = self.restored(carried, turn["calls"], believed=believed)
            if [_logical(record) for record in records] != [_logical(record) for record in carried.records]:
                raise ValueError("it is on other calls")
            return replace(carried, records=records, turn=turn)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"not what a task wrote: {error!r:.200}") from error

    def held(self, carried: Carried) -> dict[str, Any]:
        """What the framework is to keep: belief, turn and seal."""
        tag = f"{_PROCESS}-{next(_TAGS)}"
        belief = {**carried.belief, "v": VERSION, "tag": tag, "session": carried.session.snapshot(latest=0)}
        turn = carried.turn
        if turn is not None:
            turn = {**turn, "calls": [write_record(record) for record in carried.records]}
        with self._lock:
            self._at_hand[carried.session.session_id] = tag, replace(carried, belief=belief)
            while len(self._at_hand) > _MAX_AT_HAND:
                self._at_hand.popitem(last=False)
        return self.sealed(carried.place, {"belief": belief, "turn": turn})

    def sealed(self, place: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """JSON values for the framework's state, with a seal where one is set."""
        seal = self.gate.approvals.seal
        return dict(values) if seal is None else seal.sealed(place, values)

    def believes(self, place: str, values: Mapping[str, Any], *keys: str) -> bool:
        """True for values out of the framework's state that count: sealed, or of a host where nobody signs."""
        seal = self.gate.approvals.seal
        names = (*(keys or ("belief", "turn")), SEAL)
        holds = seal is not None and seal.authentic(place, {key: values[key] for key in names if key in values})
        return self.gate.believes(holds)

    def latest(self, session_id: str) -> Carried | None:
        """What this process knows of a session, for hooks that see nothing of the framework's state."""
        with self._lock:
            return self._at_hand.get(session_id, ("", None))[1]

    # -- judging --------------------------------------------------------------------------------------------------

    async def judge(self, carried: Carried, said: ModelTurn) -> Carried:
        """Observe a turn of the model and each of its calls; what may happen now is in the turn's records."""
        session, belief = carried.session, carried.belief
        step_id = f"llm_{belief['turns']}"
        if said.tools and not session.tools_declared:
            session.declare_tools(said.tools)
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
        doubt = doubt_of(step)
        undecided = {r.proposed.digest(): _doubt(r.requests[0]) for r in carried.records if r.waiting and r.requests}
        stopped = _why(doubt) if action is UncertaintyAction.ABORT else None
        records: list[CallRecord] = []
        for call in said.calls if stopped is None else ():
            record, verdict = await self.gate.judge(
                CallRecord(proposed=call, call=call, step_id=step_id),
                session,
                carried.terms,
                rejected=belief["rejected"],
                repeated=bool(belief["repeats"]) and call.digest() in belief["repeats"],
                doubt=doubt if action.stops else undecided.get(call.digest()) if undecided else None,
            )
            records.append(record)
            if verdict is UncertaintyAction.ABORT:
                latest = session.summary()["decision"] or {}
                stopped = f"{latest.get('level', doubt.level.value)}: {latest.get('reasoning') or doubt.reason}"
                break
        asked_review = None
        if stopped is not None:
            unrun = [CallRecord(proposed=call, call=call, step_id=step_id) for call in said.calls]
            records = [settled(record, STOPPED.format(why=stopped), is_error=True) for record in unrun]
            session.finish(Outcome(success=None, stop_reason=StopReason.MONITOR_STOP, time_s=time.time()))
        elif action is UncertaintyAction.PAUSE_FOR_HUMAN and not said.calls:
            request = review(carried.terms, self.gate.approvals, doubt, step_id, time.time())
            asked_review = request.model_dump(mode="json")
        turn: Turn = {
            "step_id": step_id,
            "action": (step.advisory_action or step.action).value,
            "level": step.level.value,
            "confidence": step.propagated_confidence if session.state.has_reading else None,  # nothing read yet
            "rule": step.rule,
            "reason": step.reasoning,
            "guarantee": step.guarantee,
            "review": asked_review,
            "arrived": [],
            "stopped": stopped,
            "reflect": step.reflection_injected,
        }
        return replace(carried, belief={**belief, "turns": belief["turns"] + 1}, turn=turn, records=tuple(records))

    def doubted(self, carried: Carried) -> Carried:
        """The state as one that nobody vouches for, from here to the run's end; as it is where nobody signs."""
        vouched = carried.terms.vouched and self.gate.believes(False)
        terms = replace(carried.terms, vouched=vouched)
        return replace(carried, belief={**carried.belief, "vouched": vouched}, terms=terms)

    def late(self, carried: Carried, call: ToolCall) -> Carried:
        """The state with the record, still new, of a call that the model's turn did not hold."""
        return replace(carried, records=(CallRecord(proposed=call, call=call, step_id=_step_id(carried)),))

    def judge_late(self, carried: Carried) -> Carried:
        """Judge, and do not commit, the call of `late`: another hook changed it."""
        (record,), session = carried.records, carried.session
        return replace(carried, records=(self._judged_late(carried, record, session),))

    def _judged_late(self, carried: Carried, record: CallRecord, session: Session) -> CallRecord:
        call = record.proposed
        if call.digest() in carried.belief["rejected"]:
            return settled(record, REJECTED_BEFORE, is_error=True)
        record = record.change(effect=self.gate.effect(call, None, session.profile.policy))
        verdict = session.would_allow(call, effect=record.effect)
        if call.digest() in carried.belief["repeats"]:
            doubt = REPEATED
        elif not verdict.allowed:
            doubt = doubt_of(verdict)
        elif self.gate.believes(False) or record.effect in HARMLESS:
            return cleared(record)
        else:  # that another hook changed it, and not the checkpoint's owner, nobody can tell
            doubt = UNVOUCHED
        return asked(record, carried.terms, self.gate.approvals, doubt, time.time())

    # -- deciding -------------------------------------------------------------------------------------------------

    async def decide(self, carried: Carried, answer: Any) -> tuple[Carried, list[str]]:
        """Take what a human answered to the turn's requests: the state after it, and why decisions were refused.

        What was refused waits on, under a new request where the old one can never hold again (expired, or its
        precondition failed). One of two approvals that are required is kept until the other comes.
        """
        given, refusals = _decisions(answer)
        now_s = time.time()
        known = {request["id"] for request in requests_of(carried)}
        for decision in given:
            if decision.request_id not in known:
                refusals.append(f"Nothing waits under request {decision.request_id:.40}: stale, or already decided.")
        turn: Turn = dict(carried.turn or {})
        arrived = [(ApprovalDecision.model_validate(one), at) for one, at in turn.get("arrived") or ()]
        arrived += [(decision, now_s) for decision in given if decision.request_id in known]
        records = []
        for record in carried.records:
            after, why = await self._decided(record, carried.terms, _on(record.requests, arrived), now_s)
            refusals += why
            records.append(after)
        if turn.get("review") is not None:
            request = ApprovalRequest.model_validate(turn["review"])
            holding, refused = self.gate.approvals.holding(request, _on([request], arrived))
            refusals += [why for _, why in refused]
            if holding:
                turn |= {"review": None, "reviewed": [decision.model_dump(mode="json") for decision in holding]}
            elif request.expired(now_s):
                again = review(carried.terms, self.gate.approvals, _doubt(request), request.step_id, now_s)
                turn["review"] = again.model_dump(mode="json")
        after_all = replace(carried, turn=turn, records=tuple(records))
        still = {request["id"] for request in requests_of(after_all)}
        turn["arrived"] = [(d.model_dump(mode="json"), at) for d, at in arrived if d.request_id in still]
        return after_all, refusals

    async def _decided(
        self, record: CallRecord, terms: Terms, arrived: Sequence[tuple[ApprovalDecision, float]], now_s: float
    ) -> tuple[CallRecord, list[str]]:
        if not arrived:
            return record, []
        after, refused = self.gate.decide(record, terms, arrived)
        refusals = [why for _, why in refused]
        if after.waiting and record.requests[0].expired(now_s):
            return asked_again(record, terms, self.gate.approvals, now_s, "the request before it expired"), refusals
        if after.phase is CallPhase.CLEARED:
            if self.gate.spent(after):
                again = asked(after, terms, self.gate.approvals, UNKNOWN_OUTCOME, now_s)
                return again, [*refusals, RAN_BEFORE]
            why = await self.gate.hindrance(after)
            if why is not None:
                return self.gate.void(after, terms, why), [*refusals, f"The approval is void: {why}"]
        return after, refusals

    def record(self, carried: Carried, decided: Iterable[CallRecord]) -> Carried:
        """Take what humans decided on these calls, and on the turn's answer, into the belief and the recording."""
        said = [(decision, record.proposed) for record in decided for decision in record.decisions]
        turn, rejected = dict(carried.turn or {}), list(carried.belief["rejected"])
        if not said and "reviewed" not in turn:
            return carried
        reviewed = [ApprovalDecision.model_validate(one) for one in turn.pop("reviewed", None) or ()]
        for decision, call in [*said, *((one, None) for one in reviewed)]:
            carried.session.record_decision(
                decision.kind.value,
                principal=decision.principal,
                step_id=turn.get("step_id"),
                call=call,
                message=decision.message,
            )
            if call is not None and decision.kind is ApprovalKind.REJECT:
                rejected.append(call.digest())
        belief = {**carried.belief, "rejected": rejected[-MAX_REJECTED:]}
        return replace(carried, belief=belief, turn=turn if reviewed else carried.turn)

    # -- running --------------------------------------------------------------------------------------------------

    def clears(self, carried: Carried, record: CallRecord | None, call: ToolCall) -> bool:
        """The check at the moment of running: True when exactly this call may run now."""
        try:
            if record is not None:
                self.gate.check(record, call, carried.terms, None, carried.session.profile.policy)
        except (ApprovalError, TypeError, ValueError, RecursionError):  # the last three: arguments that are no JSON
            return False
        return record is not None

    def clears_harmless(self, carried: Carried, record: CallRecord, call: ToolCall) -> bool:
        """True for other arguments of a cleared call that, as they are now, only read or can be undone."""
        effect = self.gate.effect(call, None, carried.session.profile.policy)
        return effect in HARMLESS and call.name == record.call.name and self.clears(carried, record, record.call)

    @contextlib.contextmanager
    def running(self, carried: Carried, record: CallRecord | None, call: ToolCall) -> Iterator[str | None]:
        """What to say in a call's place, or None where exactly this call runs now: a decided one once in a process.

        When the tool raises, the framework may run it again.
        """
        refused = self.refusal(carried, record, call)
        if record is None or refused is not None:
            yield refused
            return
        with self.gate.once(record) as first:
            yield None if first else RAN_BEFORE

    def refusal(self, carried: Carried, record: CallRecord | None, call: ToolCall) -> str | None:
        """What to say in a call's place when it may not run now."""
        if record is None or not self.clears(carried, record, call):
            return NOT_CLEARED
        return RAN_BEFORE if self.gate.spent(record) else None


def requests_of(carried: Carried) -> list[dict[str, Any]]:
    """The requests that wait, as JSON values, in the order of the calls."""
    waiting = [r.model_dump(mode="json") for record in carried.records if record.waiting for r in record.requests]
    asked_review = None if carried.turn is None else carried.turn.get("review")
    return waiting if asked_review is None else [*waiting, asked_review]


def _read_turn(turn: Mapping[str, Any]) -> Turn:
    """A turn as it is carried, what others rely on checked; raises KeyError, TypeError or ValueError."""
    review, arrived = turn.get("review"), turn.get("arrived") or ()
    return {
        **turn,
        "step_id": str(turn["step_id"]),
        "calls": list(turn["calls"]),
        "review": None if review is None else ApprovalRequest.model_validate(review).model_dump(mode="json"),
        "arrived": [[ApprovalDecision.model_validate(one).model_dump(mode="json"), float(at)] for one, at in arrived],
    }


def _item_keys(item: Mapping[str, Any]) -> tuple[str, ...]:
    return ("record",) if "record" in item else ("call", "decision")  # the latter as version 1 wrote it


def _step_id(carried: Carried) -> str:
    """The step of the latest turn."""
    return f"llm_{max(0, carried.belief['turns'] - 1)}"


def _logical(record: CallRecord) -> tuple[str, str, str]:
    return record.step_id, record.proposed.id, record.proposed.digest()


def _on(requests: Sequence[ApprovalRequest], arrived: Sequence[tuple[ApprovalDecision, float]]) -> list[Any]:
    ids = {request.id for request in requests}
    return [one for one in arrived if one[0].request_id in ids]


def _doubt(request: ApprovalRequest) -> Doubt:
    return Doubt(level=request.level, rule=request.rule, reason=request.reason, guarantee=request.guarantee)


def _why(doubt: Doubt) -> str:
    return f"{doubt.level.value}: {doubt.reason}" if doubt.reason else doubt.level.value


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
