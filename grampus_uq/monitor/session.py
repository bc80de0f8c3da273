"""One watched run, the only mutable object: steps are sensed side by side and committed in arrival order."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from grampus_uq.core.decision import CHAIN
from grampus_uq.core.engine import advance, judge_call
from grampus_uq.core.state import (
    Profile,
    SessionState,
    StateWriter,
    acknowledge,
    answer_alarm,
    change_profile,
    rearm_alarm,
    state_to_values,
    went_back,
)
from grampus_uq.core.turn_evidence import is_proposed
from grampus_uq.errors import ConfigurationError, SessionConflictError
from grampus_uq.monitor import arguments
from grampus_uq.monitor.beginning import Opening, SessionScope
from grampus_uq.monitor.history import AgentBeliefState, History, unaided_part
from grampus_uq.monitor.permit_basis import judge_of, score_of
from grampus_uq.monitor.read_ahead import ReadAhead
from grampus_uq.monitor.sensing import StepInput
from grampus_uq.monitor.snapshot import COMPACT_VERSION, SNAPSHOT_VERSION, STATE_TEXT
from grampus_uq.monitor.unread_turns import UnreadTurns
from grampus_uq.monitor.wiring import UNKNOWN, Wiring
from grampus_uq.records.building import builder
from grampus_uq.records.events import (
    PERMIT,
    CallAsked,
    DecisionEvent,
    Event,
    InForce,
    LookEvent,
    ObservationEvent,
    OutcomeEvent,
    ProfileChanged,
    StepEvent,
    TrajectoryReading,
)
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import (
    Outcome,
    Reading,
    Step,
    StepUncertainty,
    ToolCall,
    Verdict,
)
from grampus_uq.records.vocabulary import (
    STOPPING,
    Effect,
    MissingReason,
    UncertaintyAction,
    UncertaintyLevel,
)
from grampus_uq.signals.origins import OriginState, origins_of_observation, origins_of_prompt, with_origins
from grampus_uq.signals.structure import StructureState, observe_structure, structure_step, with_structure
from grampus_uq.wire.messages import observed_text
from grampus_uq.wire.turns import read_name, read_turn
from grampus_uq.wire.usage import MOST_TOKENS

if TYPE_CHECKING:  # it loads NumPy, which only the trajectory risk needs
    from grampus_uq.monitor.trajectory_watch import TrajectoryWatch

log = logging.getLogger("grampus_uq.monitor.session")


APPROVALS = frozenset({"approve", "edit"})
"""The answers after which a pause of steps that can be undone is not repeated."""
_ANSWERS = (*sorted(APPROVALS), "reject", "respond", "guidance", "grant", PERMIT, CHAIN)
_READ_TRIES = 32  # each that fails means that another step or observation got through
_NOT_PROPOSED = (Reading(source="proposal", value=None, reason=MissingReason.NOT_PROPOSED),)
_new_step = builder(Step)
_new_step_event = builder(StepEvent)


class Session:
    """One monitored run. Build it with `UncertaintyMonitor.session`.

    Any number of tasks and threads may observe at once: sensing runs side by side, committing is serialised.
    `would_allow` answers from the state and changes nothing; the `observe_*` methods commit.
    """

    def __init__(
        self,
        *,
        profile: Profile,
        emit: Opening | None,
        state: SessionState,
        scope: SessionScope,
        history: History | None = None,
        watch: TrajectoryWatch | None = None,
        structure: StructureState | None = None,
        origins: OriginState | None = None,
        unread: UnreadTurns | None = None,
        entries: Callable[[], Mapping[str, JsonValue]] = dict,
    ) -> None:
        self._scope = scope
        self._entries = entries
        self._profile = profile
        self._expected = scope.wiring.expected
        self._plan = scope.wiring.plan
        self._emit = emit
        self._state = state
        self._writer = StateWriter()
        self._history = history or History()
        self._watch = watch
        self._ahead = ReadAhead()
        self._unread = unread or UnreadTurns()
        self._superseded = False
        self._finished = False
        self.tools_declared = False
        """True once the agent's tools are known."""
        self._structure = structure
        self._origins = origins
        self._lock = threading.RLock()  # a processor may ask the session for its belief while it takes an event

    @property
    def session_id(self) -> str:
        """Identity of the run."""
        return self._state.session_id

    @property
    def agent_id(self) -> str:
        """Identity of the agent."""
        return self._state.agent_id

    @property
    def state(self) -> SessionState:
        """The state after the last committed step: an immutable value."""
        return self._state

    @property
    def profile(self) -> Profile:
        """The profile that the next step is judged by."""
        return self._profile

    def judge(self, agent_version: str = "", stream: str = "") -> str | None:
        """The profile, model, prompt and tools that judge this run, with their owner's name for them: a fingerprint.

        None where answers of the run were made with different ones.
        """
        if self._scope.mixed:
            return None
        return judge_of(self._scope.wiring.fingerprint, *(self._scope.made_with or UNKNOWN), agent_version, stream)

    def call_score(self, stream: str, call: ToolCall, step_id: str) -> float | None:
        """The belief about a proposed call, in [0, 1], higher is better; None where nothing was read."""
        return score_of(self._state, stream, call, step_id)

    # -- observing ------------------------------------------------------------------------------------------------

    def made_with(self, *, model: str, prompt_hash: str | None, tools_hash: str | None) -> None:
        """Say what the next answer of the model is made with, "" or None for what is unknown; before observing it.

        What differs from an earlier answer of the run is unknown from then on, so a profile fitted for it acts no more.
        """
        if (model, prompt_hash, tools_hash) == self._scope.made_with:  # as most answers of a run
            return
        named, prompt, tools = (
            fact if fact is None else arguments.name(fact, name, "made_with", self._reject)
            for name, fact in (("model", model), ("prompt_hash", prompt_hash), ("tools_hash", tools_hash))
        )
        with self._lock:
            scope, opening = self._scope, self._emit
            if scope.made_with is None and opening is not None and opening.told:
                scope.made_with = UNKNOWN  # the recording says so
            if not scope.take((named or "", prompt, tools)):
                return
            profile, status = scope.profile_in(scope.wiring)
            if opening is not None:
                opening.change(scope.made_with or UNKNOWN, status)
            if profile == self._profile:
                return
            if self._state.n_steps:
                self.migrate(profile, scope.wiring)
            else:
                self._profile = profile

    async def observe_llm_response(
        self,
        response_text: Any,
        step_id: str,
        *,
        prompt_messages: Any = (),
        model_client: ModelClient | None = None,
        model_id: str = "",
        step_type: str = "llm_call",
        tool_calls: Iterable[Any] = (),
        logprobs: Any = None,
        usage: Any = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        external: Mapping[str, float] | None = None,
    ) -> tuple[StepUncertainty, UncertaintyAction]:
        """Sense and commit a step of the model; returns the assessment and the action.

        `response_text` is the model's text, or its whole answer as a client returned it (a chat completion of OpenAI
        or litellm, a response of the responses API, a message of LangChain, a dict of any of these): text, calls,
        log-probabilities and usage are taken from it, unless they are given. `prompt_messages`, `tool_calls`,
        `logprobs` and `usage` take the same libraries' values as they are (`grampus_uq.wire` lists the forms). `tools`
        are the schemas of all tools that the model could call: what none of them allows is no doubt about a call.

        `external` holds confidences in [0, 1] of the caller's own (a verifier's score), by name. Nothing is committed
        when the caller is cancelled while sensing.

        Raises ConfigurationError for an argument that can be read in no way; in a session that only advises it is
        logged, and its part of the step is missing. What a model wrote badly never raises: arguments that are not JSON
        are kept as text, and one broken log-probability makes the token readings missing, with the reason.
        """
        started_ns = time.time_ns()
        turn = self._unread.begin(step_id)
        try:
            text, calls, stream, spent, errors = read_turn(
                response_text, tool_calls=tool_calls, logprobs=logprobs, usage=usage
            )
            for error in errors:
                self._reject(error)
            if type(prompt_messages) is not tuple or prompt_messages:
                prompt_messages = arguments.prompt(prompt_messages, self._reject)
                if self._origins is not None:
                    with self._lock:
                        origins_of_prompt(self._origins, prompt_messages)
            if model_client is not None:
                model_client = arguments.client(model_client, self._reject)
            if tools is not None:
                tools = arguments.schemas(tools, self._reject)
                if tools and not self.tools_declared:
                    self.declare_tools(tools)
            own = () if external is None else arguments.confidences(external, self._plan.names, self._reject)
            if type(step_id) is not str or not step_id.isascii():
                step_id = arguments.name(step_id, "step_id", "observe_llm_response", self._reject)
            if type(step_type) is not str or not step_type.isascii():
                step_type = arguments.name(step_type, "step_type", "observe_llm_response", self._reject)
            step = _new_step(
                step_id=step_id,
                kind=step_type,
                time_s=started_ns / 1e9,
                text=text,
                tool_calls=calls,
                logprobs=stream.tokens,
                input_tokens=spent.input_tokens if spent else 0,
                output_tokens=spent.output_tokens if spent else 0,
            )
            plan = self._plan
            # The usual case, without waiting.
            if model_client is None and step.logprobs is None and not plan.brings_model and not plan.own:
                readings = plan.read(step, prompt_messages, stream.problem)
                if plan.unasked:
                    readings += plan.read_unasked(step)
            else:
                given = StepInput(
                    messages=prompt_messages,
                    client=model_client,
                    model=model_id,
                    tools=tools,
                    tools_known=tools is not None or self.tools_declared,
                    over_cap=plan.over_cap(self._state, step),
                    ahead=self._ahead,
                )
                readings = await plan.sense(self._profile, step, given, stream.problem)
            if own:
                readings += own
            if self._watch is None:  # without a coroutine: this is the usual step
                assessment = self._commit(step, readings, started_ns)
            else:
                assessment = await self._read_and_commit(self._watch, step, readings, started_ns)
        except BaseException:
            self._unread.lose(turn)
            raise
        self._unread.read(turn)
        return assessment, assessment.action

    def declare_tools(self, tools: Iterable[Mapping[str, Any] | str]) -> None:
        """Say which tools the agent has, by name or schema: a pattern of the policy that matches none is logged."""
        self.tools_declared = True
        names = arguments.tool_names(tools, self._reject)
        if names is not None:
            _log_unmatched(tuple(self._profile.policy.unmatched(names)), names)

    async def observe_tool_call(
        self, tool_name: str | ToolCall | Mapping[str, Any], step_id: str, *, effect: Effect | str | None = None
    ) -> tuple[StepUncertainty, UncertaintyAction]:
        """Commit that a tool is about to be called; makes no model call.

        Takes the tool's name or the whole call, in any form that `grampus_uq.wire.calls` reads, and the id of this
        step, or of the turn that proposed the call: `would_allow` says how that turn is found. Returns the assessment
        and the action: on a pause or an abort the caller does not run the tool. Raises ConfigurationError on what is no
        call, and on an `effect` that is none.
        """
        if effect is not None and type(effect) is not Effect:
            effect = arguments.effect(effect, "observe_tool_call", self._reject)
        started_ns = time.time_ns()
        call = arguments.call(tool_name, "tool_name", "observe_tool_call", self._reject)
        if type(step_id) is not str or not step_id.isascii():
            step_id = arguments.name(step_id, "step_id", "observe_tool_call", self._reject)
        step = _new_step(step_id=step_id, kind="tool_call", time_s=started_ns / 1e9, tool_calls=(call,), effect=effect)
        unread = bool(self._unread)  # before the state: a turn that another thread commits is in one of them
        known = is_proposed(self._state.turns, call, step_id, exactly=unread)
        readings = () if known else _NOT_PROPOSED
        if self._watch is None:  # without a coroutine: this is the usual step
            assessment = self._commit(step, readings, started_ns)
        else:
            assessment = await self._read_and_commit(self._watch, step, readings, started_ns)
        return assessment, assessment.action

    async def _read_and_commit(
        self, watch: TrajectoryWatch, step: Step, readings: Sequence[Reading], started_ns: int
    ) -> StepUncertainty:
        """Commit a step together with what it does to the trajectory.

        Turns are read before the lock, and again (cheaply: texts are remembered) where something came between.
        """
        for _ in range(_READ_TRIES):
            read = await watch.read(step)
            with self._lock:
                if watch.take(read):
                    return self.commit(step, readings, started_ns=started_ns, trajectory=read.reading)
        with self._lock:
            return self.commit(step, readings, started_ns=started_ns, trajectory=watch.take_unread(step))

    def observe_tool_result(self, call_id: str, output: Any, *, is_error: bool = False) -> None:
        """Take what a tool answered. It is hostile text: never parsed for a confidence, never shown as the model's."""
        self._observe("tool_result", output, call_id=call_id, is_error=is_error)

    def observe_user(self, text: Any) -> None:
        """Take what the user said."""
        self._observe("user", text)

    @property
    def observes(self) -> bool:
        """True unless what users and tools say is used by nothing here."""
        unused = self._watch is None and self._structure is None and self._origins is None
        return not unused or self._emit is not None or self._superseded or self._ahead.follows

    def _observe(self, kind: str, content: Any, *, call_id: str | None = None, is_error: bool = False) -> None:
        if not self.observes:
            return
        text = observed_text(content)
        call_id = None if call_id is None else read_name(call_id, "call_id", "observe_tool_result")[0]
        if kind == "tool_result":
            self._ahead.answered(text, call_id)
        failed = arguments.flag(is_error)
        event = ObservationEvent(kind=kind, text=text, call_id=call_id, is_error=failed, **self._now())
        with self._lock:
            if self._watch is not None:
                self._watch.observe(event)
            if self._structure is not None:
                observe_structure(self._structure, event)
            if self._origins is not None:
                origins_of_observation(self._origins, event)
            self._check_place()
            self._tell(event)

    def commit(
        self,
        step: Step,
        readings: Sequence[Reading],
        *,
        started_ns: int | None = None,
        trajectory: TrajectoryReading | None = None,
    ) -> StepUncertainty:
        """Advance by one step whose readings are there already; emits one event. For adapters and replays.

        Without `trajectory` the step is not a turn of the trajectory, and its risk is missing as `not_sensed`.
        """
        for count in (step.input_tokens, step.output_tokens):
            if type(count) is not int or not 0 <= count < MOST_TOKENS:
                rule = f"a Step with numbers of tokens, at least 0 and below {MOST_TOKENS}"
                raise ConfigurationError.of("step", "Session.commit", rule, count)
        return self._commit(step, readings, started_ns, trajectory)

    def _commit(
        self,
        step: Step,
        readings: Sequence[Reading],
        started_ns: int | None,
        trajectory: TrajectoryReading | None = None,
    ) -> StepUncertainty:
        with self._lock:
            self._check_place()
            if self._structure is not None:
                structure_step(self._structure, step)
                readings = with_structure(readings, self._structure, step)
            if self._origins is not None:
                readings = with_origins(readings, self._origins, step)
            self._state, assessment = advance(self._profile, self._state, step, readings, trajectory)
            if self._expected is not None and step.kind != "tool_call":
                self._expected.saw(readings, assessment)
            self._history.steps.append(assessment)
            values = assessment.__dict__  # quicker than an attribute of a pydantic model
            if (values["advisory_action"] or values["action"]) in STOPPING:
                self._history.escalate(assessment)
            if self._emit is not None:
                ended_ns = time.time_ns()
                self._emit(
                    _new_step_event(
                        session_id=self._state.session_id,
                        agent_id=self._state.agent_id,
                        step=step,
                        readings=tuple(readings),
                        assessment=assessment,
                        started_ns=ended_ns if started_ns is None else started_ns,
                        ended_ns=ended_ns,
                        trajectory=trajectory,
                    )
                )
        return assessment

    def _reject(self, error: ConfigurationError) -> None:
        """Raise what is wrong with an argument; a session that only advises logs it once, and goes on without."""
        if not self._profile.advisory:
            raise error
        _log_rejected(str(error))

    # -- asking and answering -------------------------------------------------------------------------------------

    def would_allow(
        self,
        call: ToolCall | str | Mapping[str, Any],
        *,
        effect: Effect | str | None = None,
        step_id: str | None = None,
    ) -> Verdict:
        """The decision on this call as it would be now. Changes nothing, records nothing, asks no model.

        A call is judged on what was read of the turn that proposed it: found by the call's id, by `step_id` (that
        turn's), or by its name. Where several turns may have proposed it, the least of what was read of them counts.
        Raises ConfigurationError on an `effect` that is none.
        """
        effect = arguments.effect(effect, "would_allow", self._reject)
        proposed = arguments.call(call, "call", "would_allow", self._reject)
        step_id = None if step_id is None else arguments.name(step_id, "step_id", "would_allow", self._reject)
        unread = bool(self._unread)  # before the state: a turn that another thread commits is in one of them
        return judge_call(self._profile, self._state, proposed, effect, step_id=step_id, exactly=unread)

    def record_decision(
        self,
        decision: str,
        *,
        principal: str,
        step_id: str | None = None,
        call: ToolCall | str | Mapping[str, Any] | None = None,
        message: str | None = None,
        acknowledges: bool = True,
    ) -> None:
        """Take a human's answer to a pause into the state and the recording.

        An approval ("approve", "edit") that `acknowledges` also means that the level that asked (HIGH or CRITICAL) asks
        no more until the belief has recovered, and a detector's alarm no more until it is re-armed: for steps that can
        be undone. Each irreversible call is asked for by itself, whatever was answered. Any other answer (a rejection,
        guidance) acknowledges nothing. `call` is the call that was decided on, as `would_allow` takes it. Raises
        ConfigurationError for an unknown answer.
        """
        decision = arguments.one_of(_ANSWERS, decision, "decision", "record_decision", self._reject)
        decided = None if call is None else arguments.call(call, "call", "record_decision", self._reject)
        principal = arguments.name(principal, "principal", "record_decision", self._reject)
        step_id, message = (
            None if text is None else arguments.name(text, parameter, "record_decision", self._reject)
            for parameter, text in (("step_id", step_id), ("message", message))
        )
        acknowledges = acknowledges and decision in APPROVALS
        with self._lock:
            self._check_place()
            level = self._state.level if self._state.level.severity >= UncertaintyLevel.HIGH.severity else None
            before = self._state
            if acknowledges:
                self._state = answer_alarm(self._profile, self._state)
                if level is not None:
                    self._state = acknowledge(self._state, level)
            self._record(
                decision,
                principal,
                step_id=step_id,
                call_id=decided.id if decided else None,
                call_digest=decided.digest() if decided else None,
                message=message,
                acknowledged=level if acknowledges else None,
                alarm_answered=self._state.alarm is not before.alarm,
            )

    def record_asked(
        self, call: ToolCall, step_id: str | None, *, tool_alone: bool, in_force: Sequence[InForce] | None
    ) -> None:
        """Record that a call is asked about: `CallAsked`."""
        with self._lock:
            self._tell(
                CallAsked(
                    step_id=step_id,
                    call_id=call.id,
                    call_digest=call.digest(),
                    tool_alone=tool_alone,
                    in_force=None if in_force is None else tuple(in_force),
                    **self._now(),
                )
            )

    def record_look(self, tier: str, **found: Any) -> None:
        """Record what a tier would have called, which changed nothing: the other fields of `LookEvent`."""
        with self._lock:
            self._tell(LookEvent(tier=tier, **self._now(), **found))

    def rearm(self, *, principal: str) -> None:
        """Let the detector raise another alarm after its first was answered: from now on without a guarantee.

        The promise is on a run's first alarm; a second one is beyond what alpha pays for, and says so.
        """
        with self._lock:
            self._state = rearm_alarm(self._profile, self._state)
            self._record("rearm", principal, alarm_rearmed=True)

    def went_back(self, *, alarmed: bool = False) -> None:
        """Take it that the run goes on from an earlier step of its own: its alarms carry no guarantee from now on.

        `alarmed`: an alarm was raised in the discarded steps, and stays one of the run.
        """
        with self._lock:
            self._state = went_back(self._profile, self._state, alarmed=alarmed)

    def _record(self, decision: str, principal: str, **given: Any) -> None:
        self._tell(DecisionEvent(decision=decision, principal=principal, **self._now(), **given))

    def _now(self) -> dict[str, Any]:
        """The fields that every event of this session but a step's and its end has."""
        return {"session_id": self.session_id, "agent_id": self.agent_id, "time_s": time.time()}

    async def settle(self) -> None:
        """Read what came after the last step, before `finish`: needed for the last components of a slow embedder."""
        if self._watch is not None:
            await self._watch.settle()

    def finish(self, outcome: Outcome) -> None:
        """Record how the run ended. Raises ConfigurationError unless `outcome` is an `Outcome`."""
        outcome = arguments.outcome(outcome, self._reject)
        with self._lock:
            trajectory = None if self._watch is None else self._watch.ending()
            self._finished = True
            self._check_place()
            self._tell(
                OutcomeEvent(session_id=self.session_id, agent_id=self.agent_id, outcome=outcome, trajectory=trajectory)
            )

    def migrate(self, profile: Profile, wiring: Wiring) -> None:
        """Go on under another profile from the next step on; for `UncertaintyMonitor.reload`.

        Waits for a commit that is under way. A step that is being sensed now is judged by the new profile on what the
        old one had read. Emits `ProfileChanged`. Raises ConfigurationError when the profiles differ in their
        trajectory risk: what was sensed of the run so far belongs to the old ones.
        """
        if profile.trajectory_risk != self._profile.trajectory_risk:
            rule = "with the trajectory risk that the session began with"
            raise ConfigurationError.of("profile", "Session.migrate", rule, profile.trajectory_risk)
        with self._lock:
            self._profile, self._plan, self._scope.wiring = profile, wiring.plan, wiring
            self._state = change_profile(profile, self._state)
            self._tell(
                ProfileChanged(
                    profile_fingerprint=wiring.fingerprint,
                    advisory=profile.advisory,
                    fallback=profile.fallback,
                    thresholds=profile.policy.thresholds,
                    **self._now(),
                )
            )

    def _tell(self, event: Event) -> None:
        if self._emit is not None:
            self._emit(event)

    def supersede(self) -> None:
        """Give the id to a session that began anew under it: two runs under one would be mixed in every recording.

        With processors this one raises SessionConflictError at its next commit; advising, it is not recorded.
        """
        with self._lock:
            self._superseded, self._emit = self._emit is not None, None
            if self._state.n_steps and not self._finished:
                log.warning("session %s began anew while an earlier one of its id was not finished", self.session_id)

    def _check_place(self) -> None:
        if self._superseded and not self._profile.advisory:
            raise SessionConflictError(
                f"Session {self.session_id!r:.200} began anew elsewhere: two runs under one id would be mixed. Give "
                "each run an id of its own, or go on with `monitor.session(id, snapshot=session.snapshot())`."
            )

    # -- belief ---------------------------------------------------------------------------------------------------

    def belief(self) -> AgentBeliefState:
        """The belief now, with a window of the latest steps."""
        with self._lock:
            return self._history.belief(self._state)

    def summary(self) -> dict[str, Any]:
        """The belief's five numbers, what the latest escalation was decided on, and what the monitor itself spent.

        Where it is less, `unaided_confidence` leaves out what the model stated of itself; None: nothing else was read.
        """
        belief = self.belief()
        state = self._state
        return belief.to_summary() | {
            "last_step_id": state.last_step_id,
            "decision": belief.escalation_history[-1] if belief.escalation_history else None,
            "monitor_usage": {
                "calls": state.monitor_calls,
                "tokens": state.monitor_tokens,
                "cost_usd": state.monitor_cost_usd,
            },
            **({} if self._profile.fallback is None else {"profile_does_not_apply": self._profile.fallback}),
            **({} if state.risk is None else {"trajectory_risk": state.risk.latest}),
            **unaided_part(state),
        }

    def snapshot(self, *, latest: int | None = None) -> dict[str, JsonValue]:
        """Everything needed to go on in another process, as JSON values, with up to `latest` of the window's steps.

        What is decided later does not depend on the window. With a trajectory risk it also holds the texts of the
        latest turns, at most 10,000 characters of each.
        """
        return self._snapshot(SNAPSHOT_VERSION, state_to_values, latest)

    def compact_snapshot(self) -> dict[str, JsonValue]:
        """`snapshot(latest=0)` for those who keep one at every step: the state in it is a text, written quickly.

        `UncertaintyMonitor.session` takes either. What others put into the text's place is read as its values are.
        """
        return self._snapshot(COMPACT_VERSION, self._state_as_text, 0)

    def _state_as_text(self, state: SessionState) -> dict[str, JsonValue]:
        with self._lock:
            return {"session_id": state.session_id, STATE_TEXT: self._writer.write(state)}

    def _snapshot(
        self, version: int, write: Callable[[SessionState], dict[str, JsonValue]], latest: int | None
    ) -> dict[str, JsonValue]:
        unread = self._unread.to_json()  # before the state: a turn that another thread commits is in one of them
        with self._lock:
            state, history = self._state, None if latest == 0 else self._history.copy(latest)
            turns = None if self._watch is None else self._watch.memory
            structure = None if self._structure is None else self._structure.to_json()
            origins = None if self._origins is None else self._origins.to_json()
        values: dict[str, Any] = dict(self._entries(), v=version, profile=self._scope.wiring.fingerprint)
        if self._profile.fallback is not None:
            values["fallback"] = self._profile.fallback
        if self._scope.made_with is not None:
            values["made_with"] = list(self._scope.made_with)
        if self._scope.mixed:
            values["mixed"] = True
        values["thresholds"] = list(self._profile.policy.thresholds)
        values["state"] = write(state)
        values |= {"recent": [], "escalations": []} if history is None else history.to_json()
        for name, part in (("structure", structure), ("origins", origins), ("unread", unread or None)):
            if part is not None:
                values[name] = part
        if turns is not None:
            values["turns"] = turns.to_json()
        return values


@functools.lru_cache(maxsize=256)
def _log_unmatched(patterns: tuple[str, ...], names: frozenset[str]) -> None:
    if patterns:
        text = "the policy protects %s, and none of the agent's tools is named so: %s (a server's, or misspelt?)"
        log.warning(text, patterns, sorted(names))


@functools.lru_cache(maxsize=256)
def _log_rejected(message: str) -> None:
    log.warning("%s", message)
