"""The frozen wiring: configuration, signals and processors that any number of concurrent sessions share."""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grampus_uq.core.estimator import UncertaintyEstimator
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.propagator import Propagator, UncertaintyPropagator
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.errors import ConfigurationError
from grampus_uq.monitor.beginning import Opening, SessionScope, with_scope
from grampus_uq.monitor.history import AgentBeliefState
from grampus_uq.monitor.processing import Processing
from grampus_uq.monitor.sensing import SensingPlan
from grampus_uq.monitor.sensing_settings import Sensing
from grampus_uq.monitor.session import Session
from grampus_uq.monitor.snapshot import processor_entries, read_snapshot
from grampus_uq.monitor.unread_turns import UnreadTurns
from grampus_uq.monitor.wiring import ProfileSource, Wiring
from grampus_uq.recording.artifacts import ProfileArtifact
from grampus_uq.records.building import builder
from grampus_uq.records.configuration import checked
from grampus_uq.records.events import ALARMED, BRANCH, Event, SessionStarted
from grampus_uq.records.protocols import ModelClient, Processor
from grampus_uq.records.values import Message, StepUncertainty, ToolCall
from grampus_uq.records.vocabulary import Effect, Role, UncertaintyAction
from grampus_uq.stats.eprocess_thresholds import tie_uniform
from grampus_uq.wire.turns import read_name


@checked
@dataclass(frozen=True, slots=True)
class Exploration:
    """The probability that a run continues where a reversible step would have been stopped.

    The draw depends on the run's id and `seed` alone. Recordings keep it with its probability: an acting profile can be
    refitted honestly on such runs. An irreversible call is never explored. Raises ConfigurationError for a `rate`
    outside [0, 1].
    """

    rate: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise ConfigurationError.of("rate", "Exploration", "a probability in [0, 1]", self.rate)

    def draws(self, session_id: str) -> bool:
        """Return True if the run of this id explores."""
        return self.rate > 0.0 and tie_uniform(session_id, f"let through {self.seed}") < self.rate


log = logging.getLogger("grampus_uq.monitor.monitor")
_new_state = builder(SessionState)

REFLECTION = """Before you continue, assess your own uncertainty explicitly.
List the specific things you are NOT confident about in your current reasoning.
For each uncertain point state: (1) what you know, (2) what you don't know,
(3) what additional information would resolve the uncertainty."""

# Sessions of the current context, by monitor: one variable for all monitors, because context variables are never freed.
# A monitor that is gone takes its entry along (at the next binding); a session keeps no monitor alive.
_current: contextvars.ContextVar[tuple[tuple[weakref.ref[UncertaintyMonitor], Session], ...]] = contextvars.ContextVar(
    "grampus_uq_sessions", default=()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadedProfile:
    """The result of a reload: fingerprints before and now, sessions that went over, and those that could not."""

    before: str
    fingerprint: str
    migrated: int = 0
    kept: int = 0


@checked
class UncertaintyMonitor:
    """Watches any number of concurrent runs with one frozen configuration.

    `session(id)` gives the handle of one run. The convenience methods (`initialize`, `observe_llm_response`, …) act on
    the session of the current context, so two tasks that share a monitor never see each other.

    Args:
        profile: a fitted profile, the artifact that holds it, or the path of one. An artifact is checked against each
            session's model, prompt and tools; where it does not fit, its tiers decide. Excludes the next three and
            `trajectory_risk`: a profile holds all of them.
        policy: the default tiers unless given.
        estimator: fuses readings.
        propagator: turns a step's confidence into the run's.
        trajectory_risk: adds the TRACER risk of the run so far to every step.
        tracer: a `GrampusTracer`, an OpenTelemetry tracer, or an object with such a `_tracer`: emits spans.
        processors: take events, after the spans, in this order.
        sensing: which signals run, and what they may cost.
        advisory: observe and stop nothing, in all sessions.
        exploration: which runs go on where a reversible step would have been stopped; none unless given.

    Raises ConfigurationError for a value outside its domain.
    """

    def __init__(
        self,
        *,
        profile: ProfileSource | None = None,
        policy: UncertaintyPolicy | None = None,
        estimator: UncertaintyEstimator | None = None,
        propagator: Propagator | None = None,
        trajectory_risk: TrajectoryRiskSettings | None = None,
        tracer: Any = None,
        processors: Sequence[Processor] = (),
        sensing: Sensing | None = None,
        advisory: bool = False,
        exploration: Exploration | None = None,
    ) -> None:
        if profile is None:
            profile = Profile(
                policy=policy or UncertaintyPolicy(),
                estimator=estimator or UncertaintyEstimator(),
                propagator=propagator or UncertaintyPropagator(),
                trajectory_risk=trajectory_risk,
            )
        elif policy or estimator or propagator or trajectory_risk:
            got = "profile together with policy, estimator, propagator or trajectory_risk"
            rule, way_out = "given alone, or not at all", "A profile holds all of them."
            raise ConfigurationError.of("profile", "UncertaintyMonitor", rule, got, way_out)
        if tracer is not None:
            from grampus_uq.telemetry.spans import span_processor

            processors = (span_processor(tracer), *processors)
        self.exploration = exploration or Exploration()
        self._advisory = advisory
        self._processing = Processing(processors)
        self._wire = functools.partial(Wiring.of, sensing=sensing or Sensing(), advisory=advisory)
        self._wiring = self._wire(profile)
        self._running: weakref.WeakKeyDictionary[Session, SessionScope] = weakref.WeakKeyDictionary()
        self._by_id: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    @property
    def profile(self) -> Profile:
        """The profile of new sessions, where it fits them."""
        return self._wiring.profile

    @property
    def artifact(self) -> ProfileArtifact | None:
        """The artifact that holds the profile; None when a profile alone was given."""
        return self._wiring.artifact

    @property
    def plan(self) -> SensingPlan:
        """The signals that new sessions run."""
        return self._wiring.plan

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the artifact, or of the profile alone, in hex, as named in recordings."""
        return self._wiring.fingerprint

    def reload(self, profile: ProfileSource, *, running: Literal["keep", "migrate"] = "keep") -> ReloadedProfile:
        """Switch to another profile while sessions run; none is dropped or delayed. Any thread may call it.

        New sessions get it, all of its wiring at once. Those that run keep the profile that they began with, or, with
        "migrate", go on under the new one from their next step on: belief, counts and acknowledgements stay; the
        detector begins anew, without a guarantee for this run; `p_success` is unknown until the next step of the model.
        The change is an event of the recording (`ProfileChanged`), and a replay that is given both profiles follows it.
        A session whose model the new profile refuses, or with another trajectory risk, keeps its profile, and the log
        says so. The monitor's own `advisory`, `sensing` and processors stay.

        Raises ConfigurationError when the profile cannot be wired; then nothing has changed.
        """
        wiring = self._wire(profile)
        with self._lock:
            before, self._wiring = self._wiring, wiring
            sessions = list(self._running.items()) if running == "migrate" else []
        kept = migrated = 0
        if wiring.fingerprint == before.fingerprint:
            sessions = []
        for session, scope in sessions:
            if self._wiring is not wiring:
                break  # reloaded again meanwhile: the newer reload migrates the rest
            try:
                chosen, status = scope.profile_in(wiring)
                if status.get("profile_status") == "refused":
                    raise ConfigurationError(status["profile_reason"])
                session.migrate(chosen, wiring)
                migrated += 1
            except ConfigurationError as error:
                kept += 1
                log.warning("session %s keeps its profile: %s", session.session_id, error)
        return ReloadedProfile(before=before.fingerprint, fingerprint=wiring.fingerprint, migrated=migrated, kept=kept)

    # -- sessions -------------------------------------------------------------------------------------------------

    def session(
        self,
        session_id: str,
        agent_id: str = "",
        *,
        snapshot: Mapping[str, Any] | None = None,
        model: str | None = "",
        prompt_hash: str | None = None,
        tools_hash: str | None = None,
        metadata: Mapping[str, str] | None = None,
        advisory: bool | None = None,
    ) -> Session:
        """Start a run, or resume one from `Session.snapshot` as if it had never been interrupted.

        With `advisory` True this one session observes and stops nothing; otherwise it does as the monitor does.

        An id names one run. A session that begins anew (without a snapshot) under the id of one that still lives takes
        its place: where there are processors, the earlier one raises SessionConflictError at its next step, or,
        advisory, is no longer recorded.

        With `model` None each answer says what it is made with, by `Session.made_with`: the session begins, for
        processors, with its first event, and a fitted profile acts from its first answer on.

        `metadata` that name a branch (`grampus_uq.branch`) say that the run went back: see `Session.went_back`.
        """
        if advisory not in (None, True, False):  # "false" would stop nothing
            raise ConfigurationError.of("advisory", "UncertaintyMonitor.session", "True, False or None", advisory)
        session_id = self._named(session_id, "session_id", advisory)
        agent_id = self._named(agent_id, "agent_id", advisory)
        model, prompt_hash, tools_hash = (
            None if fact is None else self._named(fact, name, advisory)
            for name, fact in (("model", model), ("prompt_hash", prompt_hash), ("tools_hash", tools_hash))
        )
        history = None
        state = _new_state(session_id=session_id, agent_id=agent_id, let_through=self.exploration.draws(session_id))
        if snapshot is not None:
            state, history = read_snapshot(snapshot)
            if state.session_id != session_id:
                raise ConfigurationError.of(
                    "snapshot", "UncertaintyMonitor.session", f"of session {session_id!r}", state.session_id
                )
        given = None if model is None else (model, prompt_hash, tools_hash)
        wiring = self._wiring  # once: a reload in another thread swaps all of it
        scope = SessionScope.begun(wiring, given, snapshot, state.n_steps, advisory=bool(advisory))
        profile, status = scope.profile_in(wiring)
        opening = None
        if self.processors:
            started = SessionStarted(
                session_id=session_id,
                agent_id=state.agent_id,
                time_s=time.time(),
                resumed=snapshot is not None and (model is not None or state.n_steps > 0),
                profile_fingerprint=wiring.fingerprint,
                advisory=profile.advisory,
                release_probability=self.exploration.rate or None,
                let_through=state.let_through,
                metadata=metadata or {},
                thresholds=profile.policy.thresholds,
                irreversible_tools=tuple(profile.policy.irreversible_tool_names),
                always_ask_tools=tuple(profile.policy.always_ask_tool_names),
            )
            opening = Opening(self._processing.emit, with_scope(started, scope.made_with, status))
        session = Session(
            profile=profile,
            emit=opening,
            state=state,
            history=history,
            watch=wiring.watch(snapshot),
            structure=wiring.structure(state, snapshot),
            origins=wiring.origins(state, snapshot),
            unread=UnreadTurns.of(snapshot),
            entries=self._processing.begin(session_id, processor_entries(snapshot)),
            scope=scope,
        )
        if metadata is not None and BRANCH in metadata:
            session.went_back(alarmed=ALARMED in metadata)
        with self._lock:
            earlier = None if snapshot is not None else self._by_id.get(session_id)
            self._by_id[session_id] = session
        if earlier is not None:
            earlier.supersede()
        if opening is not None and model is not None:
            opening.tell()
        if snapshot is not None and (
            snapshot.get("profile") not in (None, wiring.fingerprint) or snapshot.get("fallback") != profile.fallback
        ):
            session.migrate(profile, wiring)
        with self._lock:  # only now: a reload must not change a session before its first event
            self._running[session] = scope
        return session

    def _named(self, value: Any, parameter: str, advisory: bool | None) -> str:
        name, error = read_name(value, parameter, "UncertaintyMonitor.session")
        if error is not None:
            if not (advisory or self._advisory):
                raise error
            log.warning("%s", error)
        return name

    @property
    def processors(self) -> tuple[Processor, ...]:
        """The processors of events, in this order; the spans of `tracer` first."""
        return self._processing.processors

    def emit(self, event: Event) -> None:
        """Hand one event to every processor; one that fails is logged once, counted, and never reaches the agent."""
        self._processing.emit(event)

    @property
    def processor_failures(self) -> dict[str, int]:
        """The number of failures of each processor, by class name."""
        return self._processing.failures

    # -- convenience methods, on the session of the current context ----------------------------------------------

    def initialize(self, session_id: str, agent_id: str = "") -> None:
        """Start a run in the current context; tasks started from here see it, sibling tasks do not."""
        self.bind(self.session(session_id, agent_id))

    def bind(self, session: Session) -> None:
        """Make a session the one that the convenience methods act on in the current context."""
        others = tuple((owner, bound) for owner, bound in _current.get() if owner() not in (None, self))
        _current.set((*others, (weakref.ref(self), session)))

    def current_session(self) -> Session:
        """The session of the current context; an anonymous one is started when there is none."""
        for owner, session in _current.get():
            if owner() is self:
                return session
        session = self.session(f"anonymous-{uuid.uuid4().hex[:12]}")
        self.bind(session)
        return session

    async def observe_llm_response(
        self,
        response_text: Any,
        step_id: str,
        *,
        prompt_messages: Any = (),
        model_client: ModelClient | None = None,
        model_id: str = "",
        step_type: str = "llm_call",
        **given: Any,
    ) -> tuple[StepUncertainty, UncertaintyAction]:
        """See `Session.observe_llm_response`."""
        return await self.current_session().observe_llm_response(
            response_text,
            step_id,
            prompt_messages=prompt_messages,
            model_client=model_client,
            model_id=model_id,
            step_type=step_type,
            **given,
        )

    async def observe_tool_call(
        self, tool_name: str | ToolCall | Mapping[str, Any], step_id: str, *, effect: Effect | str | None = None
    ) -> tuple[StepUncertainty, UncertaintyAction]:
        """See `Session.observe_tool_call`."""
        return await self.current_session().observe_tool_call(tool_name, step_id, effect=effect)

    def observe_tool_result(self, call_id: str, output: Any, *, is_error: bool = False) -> None:
        """See `Session.observe_tool_result`."""
        self.current_session().observe_tool_result(call_id, output, is_error=is_error)

    def observe_user(self, text: Any) -> None:
        """See `Session.observe_user`."""
        self.current_session().observe_user(text)

    def get_reflection_message(self) -> Message:
        """The System-2 reflection, as a system message."""
        return Message(role=Role.SYSTEM, content=REFLECTION)

    def get_belief_state(self) -> AgentBeliefState:
        """The belief of the current context's session."""
        return self.current_session().belief()

    def summary_metadata(self) -> dict[str, Any]:
        """The content of `result.metadata["uncertainty"]`."""
        return self.current_session().summary()

    def reset(self) -> None:
        """Restart the current context's session: same ids, no belief yet."""
        session = self.current_session()
        self.initialize(session.session_id, session.agent_id)
