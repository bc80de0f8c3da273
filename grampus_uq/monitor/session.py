"""One watched run, the only mutable object: steps are sensed side by side and committed in arrival order."""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, TypeAdapter

from grampus_uq.core.engine import advance, judge_call
from grampus_uq.core.state import (
    Profile,
    SessionState,
    acknowledge,
    answer_alarm,
    change_profile,
    rearm_alarm,
    state_from_json,
    state_to_values,
)
from grampus_uq.core.turn_evidence import is_proposed
from grampus_uq.errors import ConfigurationError, DataError, SessionConflictError
from grampus_uq.monitor.expected_streams import ExpectedStreams
from grampus_uq.monitor.sensing import LONG_COMPLETION, SensingPlan, StepInput
from grampus_uq.records.building import builder
from grampus_uq.records.events import (
    DecisionEvent,
    Event,
    ObservationEvent,
    OutcomeEvent,
    ProfileChanged,
    StepEvent,
    TrajectoryReading,
)
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import (
    AgentBeliefState,
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
    parse_effect,
)
from grampus_uq.signals.driver import cancel_requests, stop_if_cancelled
from grampus_uq.signals.structure import StructureState, observe_structure, structure_step, with_structure
from grampus_uq.wire.fields import field, kind_of, text_field
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates
from grampus_uq.wire.messages import observed_text, read_messages
from grampus_uq.wire.turns import read_name, read_proposed, read_turn
from grampus_uq.wire.usage import MOST_TOKENS

if TYPE_CHECKING:  # it loads NumPy, which nobody needs who does not ask for TRACER
    from grampus_uq.monitor.trajectory_watch import TrajectoryWatch

log = logging.getLogger("grampus_uq.monitor.session")

__all__ = ["SNAPSHOT_VERSION", "Session", "processor_entries", "read_snapshot"]

SNAPSHOT_VERSION = 1
_OWN_ENTRIES = frozenset({"v", "profile", "state", "recent", "escalations", "structure", "turns"})
_WINDOW = 64
"""Latest steps that a session remembers."""
APPROVALS = frozenset({"approve", "edit"})
"""The answers after which a pause of steps that can be undone is not repeated."""
_READ_TRIES = 32  # each that fails means that another step or observation got through
_NOT_PROPOSED = (Reading(source="proposal", value=None, reason=MissingReason.NOT_PROPOSED),)
_new_step = builder(Step)
_new_step_event = builder(StepEvent)


class Session:
    """What the monitor knows of one run. Build it with `UncertaintyMonitor.session`.

    Any number of tasks and threads may observe at once: sensing runs side by side, committing is serialised.
    `would_allow` answers from the state and changes nothing; the `observe_*` methods commit.
    """

    def __init__(
        self,
        *,
        profile: Profile,
        plan: SensingPlan,
        emit: Callable[[Event], None] | None,
        state: SessionState,
        recent: Sequence[StepUncertainty] = (),
        escalations: Sequence[Mapping[str, JsonValue]] = (),
        watch: TrajectoryWatch | None = None,
        structure: StructureState | None = None,
        entries: Callable[[], Mapping[str, JsonValue]] = dict,
        fingerprint: Callable[[], str] | None = None,
        expected: ExpectedStreams | None = None,
    ) -> None:
        self._entries = entries
        self._profile = profile
        self._fingerprint = fingerprint
        self._expected = expected
        self._plan = plan
        self._emit = emit
        self._state = state
        self._recent: deque[StepUncertainty] = deque(recent, maxlen=_WINDOW)
        self._escalations: deque[dict[str, JsonValue]] = deque((dict(e) for e in escalations), maxlen=_WINDOW)
        self._watch = watch
        self._superseded = False
        self._finished = False
        self.tools_declared = False
        """True once somebody said which tools the agent has."""
        self._structure = structure
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

    # -- observing ------------------------------------------------------------------------------------------------

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
        `logprobs` and `usage` take the same libraries' values as they are (`grampus_uq.wire` lists the forms).

        `external` holds confidences in [0, 1] of the caller's own (a verifier's score), by name. Nothing is committed
        when the caller is cancelled while sensing.

        Raises ConfigurationError for an argument that can be read in no way; in a session that only advises it is
        logged, and its part of the step is missing. What a model wrote badly never raises: arguments that are no JSON
        are kept as text, and one broken log-probability makes the token readings missing, with the reason.
        """
        started_ns = time.time_ns()
        turn = read_turn(response_text, tool_calls=tool_calls, logprobs=logprobs, usage=usage)
        for error in turn.errors:
            self._reject(error)
        if type(prompt_messages) is not tuple or prompt_messages:
            prompt = read_messages(prompt_messages)
            prompt_messages = prompt.messages
            if prompt.problem is not None:
                self._reject(_wrong("prompt_messages", "a list of messages", prompt.problem, "Pass what was sent."))
        if model_client is not None and not callable(field(model_client, "complete")):
            way_out = "OpenAICompatibleModel and LiteLLMModel are such clients."
            self._reject(_wrong("model_client", "a client with `async complete(...)`", model_client, way_out))
            model_client = None
        if tools is not None and not (isinstance(tools, list | tuple) and all(isinstance(t, Mapping) for t in tools)):
            self._reject(_wrong("tools", "a list of JSON schemas", tools, "Pass what the model was given."))
            tools = None
        if tools and not self.tools_declared:
            self.declare_tools(tools)
        own = () if external is None else self._own_readings(external)
        step = _new_step(
            step_id=self._name(step_id, "step_id"),
            kind=self._name(step_type, "step_type"),
            time_s=started_ns / 1e9,
            text=turn.text,
            tool_calls=turn.calls,
            logprobs=turn.logprobs.tokens,
            input_tokens=turn.usage.input_tokens if turn.usage else 0,
            output_tokens=turn.usage.output_tokens if turn.usage else 0,
        )
        if step.logprobs is not None and len(step.logprobs) > LONG_COMPLETION:
            readings = await self._plan.read_long(step, prompt_messages)
        else:
            readings = self._plan.read(step, prompt_messages)
        if turn.logprobs.problem is not None:
            readings = [_explained(reading, turn.logprobs.problem) for reading in readings]
        if model_client is None and not self._plan.brings_model:
            if self._plan.unasked:
                readings += self._plan.read_unasked(step)
        elif self._plan.asks:
            given = StepInput(
                messages=prompt_messages,
                client=model_client,
                model=model_id,
                tools=tools,
                over_cap=self._over_cap(step),
            )
            requests = cancel_requests()
            readings += await self._plan.ask(self._profile, step, readings, given)
            await stop_if_cancelled(requests)  # a client may have made another exception of it
        readings += own
        if self._watch is None:
            assessment = self._commit(step, readings, started_ns)
        else:
            assessment = await self._read_and_commit(self._watch, step, readings, started_ns)
        return assessment, assessment.action

    def declare_tools(self, tools: Iterable[Mapping[str, Any] | str]) -> None:
        """Say which tools the agent has, by name or schema: a pattern of the policy that matches none is logged."""
        self.tools_declared = True
        try:
            names = frozenset(_tool_name(tool) for tool in tools)
        except Exception:  # noqa: BLE001 (somebody else's list)
            rule, way_out = "a list of names or schemas", "Pass what the model is given."
            self._reject(ConfigurationError.of("tools", "declare_tools", rule, kind_of(tools), way_out))
            return
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
        effect = self._effect(effect, "observe_tool_call")
        started_ns = time.time_ns()
        call = self._proposed(tool_name, "observe_tool_call")
        step_id = self._name(step_id, "step_id", "observe_tool_call")
        step = _new_step(step_id=step_id, kind="tool_call", time_s=started_ns / 1e9, tool_calls=(call,), effect=effect)
        readings = () if is_proposed(self._state.turns, call, step_id) else _NOT_PROPOSED
        if self._watch is None:
            assessment = self._commit(step, readings, started_ns)
        else:
            assessment = await self._read_and_commit(self._watch, step, readings, started_ns)
        return assessment, assessment.action

    async def _read_and_commit(
        self, watch: TrajectoryWatch, step: Step, readings: Sequence[Reading], started_ns: int
    ) -> StepUncertainty:
        """Commit a step together with what it does to the trajectory.

        The turns are read before the lock is taken. When something else came meanwhile they are read again from where
        they stand then; texts are remembered, so that it costs little.
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

    def _observe(self, kind: str, told: Any, *, call_id: str | None = None, is_error: bool = False) -> None:
        if self._watch is None and self._structure is None and self._emit is None:
            return  # nobody would see it
        text = observed_text(told)
        call_id = None if call_id is None else read_name(call_id, "call_id", "observe_tool_result")[0]
        event = ObservationEvent(
            session_id=self.session_id,
            agent_id=self.agent_id,
            kind=kind,
            text=text,
            call_id=call_id,
            is_error=_true(is_error),
            time_s=time.time(),
        )
        with self._lock:
            if self._watch is not None:
                self._watch.observe(event)
            if self._structure is not None:
                observe_structure(self._structure, event)
            self._send(event)

    def commit(
        self,
        step: Step,
        readings: Sequence[Reading],
        *,
        started_ns: int | None = None,
        trajectory: TrajectoryReading | None = None,
    ) -> StepUncertainty:
        """Advance by one step whose readings are there already; emits one event. For adapters and replays.

        Without `trajectory` the step is no turn of TRACER's trajectory, and its risk is missing as `not_sensed`.
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
            if self._superseded:
                self._check_place()
            if self._structure is not None:
                structure_step(self._structure, step)
                readings = with_structure(readings, self._structure, step)
            self._state, assessment = advance(self._profile, self._state, step, readings, trajectory)
            if self._expected is not None and step.kind != "tool_call":
                self._expected.saw(readings, assessment)
            self._recent.append(assessment)
            wanted = assessment.advisory_action or assessment.action
            if wanted in STOPPING:
                self._escalations.append(_escalation(assessment))
            if self._emit is not None and not self._superseded:
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

    def _over_cap(self, step: Step) -> bool:
        """True when the monitor's own tokens have reached their allowed share of the agent's, this step included.

        Looked at before a step is sensed, so the step that reaches the cap may overshoot it by what it costs itself.
        """
        cap = self._plan.max_overhead
        if cap is None:
            return False
        spent = self._state.monitor_tokens
        agent_tokens = self._state.agent_tokens + step.input_tokens + step.output_tokens
        return spent >= cap * agent_tokens if spent else cap == 0.0

    # -- what callers hand over ---------------------------------------------------------------------------------------

    def _reject(self, error: ConfigurationError) -> None:
        """Raise what is wrong with an argument; a session that only advises logs it once, and goes on without."""
        if not self._profile.advisory:
            raise error
        _log_rejected(str(error))

    def _name(self, value: Any, parameter: str, owner: str = "observe_llm_response") -> str:
        if type(value) is str and value.isascii():
            return value
        name, error = read_name(value, parameter, owner)
        if error is not None:
            self._reject(error)
        return name

    def _proposed(self, value: Any, owner: str) -> ToolCall:
        call, error = read_proposed(value, "tool_name" if owner == "observe_tool_call" else "call", owner)
        if error is not None:
            self._reject(error)
        return call

    def _effect(self, value: Effect | str | None, owner: str) -> Effect | None:
        try:
            return parse_effect(value, owner)
        except ConfigurationError as error:
            self._reject(error)
            return Effect.IRREVERSIBLE  # what cannot be read may be anything

    def _own_readings(self, external: Any) -> list[Reading]:
        if not isinstance(external, Mapping):
            self._reject(_wrong("external", "confidences in [0, 1] by name", external, "Pass {name: confidence}."))
            return []
        found = []
        try:
            given = list(external.items())
        except Exception:  # noqa: BLE001 (somebody else's mapping)
            self._reject(_wrong("external", "confidences in [0, 1] by name", kind_of(external), "Pass a dict."))
            return []
        for name, value in given:
            source = self._name(name, "external")
            if source in self._plan.names:
                self._reject(
                    _wrong("external", "confidences by names that no signal has", name, "Choose another name.")
                )
                continue
            try:
                found.append(Reading(source=source, value=value))
            except Exception:  # noqa: BLE001 (somebody else's number)
                self._reject(_wrong("external", "confidences in [0, 1] by name", value, "Leave out what is missing."))
                found.append(Reading(source=source, value=None, reason=MissingReason.INVALID_VALUE))
        return found

    # -- asking and answering -------------------------------------------------------------------------------------

    def would_allow(
        self,
        call: ToolCall | str | Mapping[str, Any],
        *,
        effect: Effect | str | None = None,
        step_id: str | None = None,
    ) -> Verdict:
        """What would be decided on this call now. Changes nothing, records nothing, asks no model.

        A call is judged on what was read of the turn that proposed it: found by the call's id, by `step_id` (that
        turn's), or by its name. Where several turns may have proposed it, the least of what was read of them counts.
        Raises ConfigurationError on an `effect` that is none.
        """
        effect = self._effect(effect, "would_allow")
        proposed = self._proposed(call, "would_allow")
        step_id = None if step_id is None else self._name(step_id, "step_id", "would_allow")
        return judge_call(self._profile, self._state, proposed, effect, step_id=step_id)

    def record_decision(
        self,
        decision: str,
        *,
        principal: str,
        step_id: str | None = None,
        call: ToolCall | None = None,
        message: str | None = None,
        acknowledges: bool = True,
    ) -> None:
        """Take a human's answer to a pause into the state and the recording.

        An approval ("approve", "edit") that `acknowledges` also means that the level that asked (HIGH or CRITICAL) asks
        no more until the belief has recovered, and a detector's alarm no more until it is re-armed: for steps that can
        be undone. Each irreversible call is asked for by itself, whatever was answered. Any other answer (a rejection,
        guidance) acknowledges nothing.
        """
        decision = self._name(decision, "decision", "record_decision")
        acknowledges = acknowledges and decision in APPROVALS
        with self._lock:
            self._check_place()
            level = self._state.level if self._state.level.severity >= UncertaintyLevel.HIGH.severity else None
            before = self._state
            if acknowledges:
                self._state = answer_alarm(self._profile, self._state)
                if level is not None:
                    self._state = acknowledge(self._state, level)
            if self._emit is not None and not self._superseded:
                self._emit(
                    DecisionEvent(
                        session_id=self.session_id,
                        agent_id=self.agent_id,
                        decision=decision,
                        principal=principal,
                        step_id=step_id,
                        call_id=call.id if call else None,
                        call_digest=call.digest() if call else None,
                        message=message,
                        acknowledged=level if acknowledges else None,
                        alarm_answered=self._state.alarm is not before.alarm,
                        time_s=time.time(),
                    )
                )

    def rearm(self, *, principal: str) -> None:
        """Let the detector ring again after its alarm was answered: from now on without a guarantee.

        The promise is on a run's first alarm; a second one is beyond what alpha pays for, and says so.
        """
        with self._lock:
            self._state = rearm_alarm(self._profile, self._state)
            if self._emit is not None and not self._superseded:
                self._emit(
                    DecisionEvent(
                        session_id=self.session_id,
                        agent_id=self.agent_id,
                        decision="rearm",
                        principal=principal,
                        alarm_rearmed=True,
                        time_s=time.time(),
                    )
                )

    async def settle(self) -> None:
        """Read what came after the last step, before `finish`: needed for the last components of a slow embedder."""
        if self._watch is not None:
            await self._watch.settle()

    def finish(self, outcome: Outcome) -> None:
        """Record how the run ended."""
        with self._lock:
            trajectory = None if self._watch is None else self._watch.ending()
            self._finished = True
            self._send(
                OutcomeEvent(session_id=self.session_id, agent_id=self.agent_id, outcome=outcome, trajectory=trajectory)
            )

    def migrate(self, profile: Profile, plan: SensingPlan, fingerprint: Callable[[], str]) -> None:
        """Go on under another profile from the next step on; for `UncertaintyMonitor.reload`.

        Waits for a commit that is under way. A step that is being sensed now is judged by the new profile on what the
        old one had read. Emits `ProfileChanged`. Raises ConfigurationError when the profiles differ in their
        trajectory risk: what was sensed of the run so far belongs to the old ones.
        """
        if profile.trajectory_risk != self._profile.trajectory_risk:
            rule = "with the trajectory risk that the session began with"
            raise ConfigurationError.of("profile", "Session.migrate", rule, profile.trajectory_risk)
        with self._lock:
            self._profile, self._plan, self._fingerprint = profile, plan, fingerprint
            self._state = change_profile(profile, self._state)
            if self._emit is not None:
                self._emit(
                    ProfileChanged(
                        session_id=self.session_id,
                        agent_id=self.agent_id,
                        time_s=time.time(),
                        profile_fingerprint=fingerprint(),
                        advisory=profile.advisory,
                        fallback=profile.fallback,
                    )
                )

    def _send(self, event: Event) -> None:
        with self._lock:
            self._check_place()
            if self._emit is not None and not self._superseded:
                self._emit(event)

    def supersede(self) -> None:
        """Give the id to a session that began anew under it; for `UncertaintyMonitor.session`.

        Two runs under one id would be mixed in every recording. Where there are processors, this one raises
        SessionConflictError from here on when it would commit, or, where it only advises, is no longer told of.
        """
        with self._lock:
            self._superseded = True
            if self._state.n_steps and not self._finished:
                log.warning("session %s began anew while an earlier one of its id was not finished", self.session_id)

    def _check_place(self) -> None:
        if self._superseded and self._emit is not None and not self._profile.advisory:
            raise SessionConflictError(
                f"Session {self.session_id!r:.200} began anew elsewhere: two runs under one id would be mixed. Give "
                "each run an id of its own, or go on with `monitor.session(id, snapshot=session.snapshot())`."
            )

    # -- belief ---------------------------------------------------------------------------------------------------

    def belief(self) -> AgentBeliefState:
        """What is believed now, with a window of the latest steps."""
        with self._lock:
            state, recent, escalations = self._state, list(self._recent), list(self._escalations)
        return AgentBeliefState(
            session_id=state.session_id,
            agent_id=state.agent_id,
            step_uncertainties=recent,
            cumulative_confidence=state.cumulative,
            overall_level=state.level,
            total_steps=state.n_steps,
            high_uncertainty_steps=state.n_high,
            escalation_history=escalations,
        )

    def summary(self) -> dict[str, Any]:
        """The guide's five numbers, what the latest escalation was decided on, and what the monitor itself spent."""
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
        }

    def snapshot(self, *, latest: int | None = None) -> dict[str, JsonValue]:
        """Everything needed to go on in another process, as JSON values; as large as the window of latest steps.

        `latest` keeps only so many of the window's steps, for those who write a snapshot at every step; what is decided
        later does not depend on the window.

        With TRACER it also holds the texts of the latest turns, at most 10,000 characters of each.
        """
        with self._lock:
            state, recent, escalations = self._state, list(self._recent), list(self._escalations)
            turns = None if self._watch is None else self._watch.memory
            structure = None if self._structure is None else self._structure.to_json()
        if latest is not None:
            recent, escalations = (
                recent[max(0, len(recent) - latest) :],
                escalations[max(0, len(escalations) - latest) :],
            )
        taken: dict[str, JsonValue] = {
            "v": SNAPSHOT_VERSION,
            **self._entries(),
            **({} if self._fingerprint is None else {"profile": self._fingerprint()}),
            "state": state_to_values(state),
            "recent": [assessment.model_dump(mode="json") for assessment in recent],
            "escalations": [dict(escalation) for escalation in escalations],
            **({} if structure is None else {"structure": structure}),
        }
        return taken if turns is None else taken | {"turns": turns.to_json()}


def processor_entries(snapshot: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """The entries of a snapshot that belong to processors."""
    others = {} if snapshot is None else {name: snapshot[name] for name in snapshot if name not in _OWN_ENTRIES}
    return {name: entry for name, entry in others.items() if isinstance(entry, Mapping)}


_RECENT = TypeAdapter(list[StepUncertainty])
_ESCALATIONS = TypeAdapter(list[dict[str, JsonValue]])


def read_snapshot(
    snapshot: Mapping[str, Any],
) -> tuple[SessionState, list[StepUncertainty], list[dict[str, JsonValue]]]:
    """Parse what `Session.snapshot` wrote; raises DataError on another version or a broken field."""
    if snapshot.get("v") != SNAPSHOT_VERSION:
        raise DataError(f"snapshot version {snapshot.get('v')!r:.40} is not {SNAPSHOT_VERSION}", field="v")
    state = state_from_json(json.dumps(snapshot.get("state")))
    try:
        recent = _RECENT.validate_json(json.dumps(snapshot.get("recent")))
    except (TypeError, ValueError) as error:
        raise DataError(f"not a list of step assessments: {error}", field="recent") from error
    try:
        escalations = _ESCALATIONS.validate_json(json.dumps(snapshot.get("escalations")))
    except (TypeError, ValueError) as error:
        raise DataError(f"not a list of objects: {error}", field="escalations") from error
    return state, recent, escalations


def _tool_name(tool: Mapping[str, Any] | str) -> str:
    """The name in a schema, OpenAI's form or a flat one; the empty text where none is found."""
    if isinstance(tool, str):
        return replace_lone_surrogates(tool)
    inner = field(tool, "function")
    return text_field(tool if inner is None else inner, "name")


@functools.lru_cache(maxsize=256)
def _log_unmatched(patterns: tuple[str, ...], names: frozenset[str]) -> None:
    if patterns:
        log.warning("the policy protects %s, and none of the agent's tools is named so: %s", patterns, sorted(names))


def _true(value: Any) -> bool:
    try:
        return bool(value)
    except Exception:  # noqa: BLE001 (an array, say: what cannot be read is no success)
        return True


@functools.lru_cache(maxsize=256)
def _log_rejected(message: str) -> None:
    log.warning("%s", message)


def _wrong(parameter: str, rule: str, value: object, way_out: str) -> ConfigurationError:
    return ConfigurationError.of(parameter, "observe_llm_response", rule, value, way_out)


def _explained(reading: Reading, why: str) -> Reading:
    """A reading that is missing because the log-probabilities that came are broken: it was due, and says why."""
    broken = reading.reason == MissingReason.NO_LOGPROBS
    return replace(reading, reason=MissingReason.BROKEN_LOGPROBS, detail=why) if broken else reading


def _escalation(assessment: StepUncertainty) -> dict[str, JsonValue]:
    """What the pause or abort was decided on."""
    return {
        "step_id": assessment.step_id,
        "level": assessment.level.value,
        "action": assessment.action.value,
        "advisory_action": assessment.advisory_action.value if assessment.advisory_action else None,
        "rule": assessment.rule,
        "guarantee": assessment.guarantee,
        "reasoning": assessment.reasoning,
        "fused_confidence": assessment.fused_confidence,
        "propagated_confidence": assessment.propagated_confidence,
        "missing_reason": assessment.missing_reason,
        "tool_name": assessment.tool_name,
    }
