"""The frozen wiring: configuration, signals and processors that any number of concurrent sessions share."""

from __future__ import annotations

import contextvars
import functools
import logging
import os
import threading
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import JsonValue

from grampus_uq.core.estimator import UncertaintyEstimator
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.propagator import Propagator, UncertaintyPropagator
from grampus_uq.core.risk import TracerSettings
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.errors import ConfigurationError
from grampus_uq.monitor.expected_streams import ExpectedStreams
from grampus_uq.monitor.sensing import SensingPlan
from grampus_uq.monitor.session import Session, read_snapshot
from grampus_uq.recording.artifacts import ProfileArtifact, load, match, profile_fingerprint
from grampus_uq.records.events import Event, SessionStarted
from grampus_uq.records.protocols import Embedder, InstantSignal, ModelClient, Processor, Signal
from grampus_uq.records.values import AgentBeliefState, Message, StepUncertainty, ToolCall
from grampus_uq.records.vocabulary import Effect, Role, UncertaintyAction, UncertaintySource
from grampus_uq.signals.driver import Budget
from grampus_uq.signals.equivalence import Equivalence
from grampus_uq.signals.structure import StructureState
from grampus_uq.stats.eprocess_thresholds import tie_uniform
from grampus_uq.telemetry.spans import SpanEmitter
from grampus_uq.wire.turns import read_name

if TYPE_CHECKING:
    import numpy.typing as npt

    from grampus_uq.monitor.trajectory_watch import TrajectorySensor, TrajectoryWatch

__all__ = ["REFLECTION", "ReloadedProfile", "UncertaintyMonitor"]

ProfileSource = Profile | ProfileArtifact | str | os.PathLike[str]
"""A fitted profile, the artifact that holds it, or the path of one."""

log = logging.getLogger("grampus_uq.monitor.monitor")

REFLECTION = """Before you continue, assess your own uncertainty explicitly.
List the specific things you are NOT confident about in your current reasoning.
For each uncertain point state: (1) what you know, (2) what you don't know,
(3) what additional information would resolve the uncertainty."""

# Sessions of the current context, by monitor: one variable for all monitors, because context variables are never freed.
# A monitor that is gone takes its entry along (at the next binding); a session keeps no monitor alive.
_current: contextvars.ContextVar[tuple[tuple[weakref.ref[UncertaintyMonitor], Session], ...]] = contextvars.ContextVar(
    "grampus_uq_sessions", default=()
)


class _Outlet:
    """The processors of a monitor, and how often each of them failed."""

    __slots__ = ("_failures", "_lock", "processors")

    def __init__(self, processors: tuple[Processor, ...]) -> None:
        self.processors = processors
        self._failures: dict[str, int] = {}
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        for processor in self.processors:
            try:
                processor.on_event(event)
            except Exception as error:  # noqa: BLE001 (the processor loop: a failing sink must not stop the agent)
                self._count_failure(processor, error)

    def _count_failure(self, processor: Processor, error: Exception) -> None:
        name = type(processor).__qualname__
        with self._lock:
            self._failures[name] = self._failures.get(name, 0) + 1
            first = self._failures[name] == 1
        if first:
            # Where it failed, but of what it says only what comes from the system: the rest may quote the event's text.
            what = str(error) if isinstance(error, OSError) else ""
            place = "".join(traceback.format_tb(error.__traceback__))
            log.error(
                "processor %s failed; only counted from now on\n%s%s: %s", name, place, type(error).__name__, what
            )

    def failures(self) -> dict[str, int]:
        with self._lock:
            return dict(self._failures)


def _sensor(
    settings: TracerSettings | None,
    embedder: Embedder | Callable[[list[str]], npt.ArrayLike] | None,
    budget: Budget | None,
    budgets: Mapping[str, Budget],
) -> TrajectorySensor | None:
    if settings is None:
        if embedder is not None:
            rule = "given together with `trajectory`, or with a profile that has TRACER"
            raise ConfigurationError.of("embedder", "UncertaintyMonitor", rule, embedder)
        return None
    from grampus_uq.monitor.trajectory_watch import TrajectorySensor  # it loads NumPy

    allowed = budgets.get(UncertaintySource.TRAJECTORY_RISK, budget or Budget())
    return TrajectorySensor.of(settings, embedder, timeout_s=allowed.timeout_s)


def _watch(sensor: TrajectorySensor | None, snapshot: Mapping[str, Any] | None) -> TrajectoryWatch | None:
    """The turns of a session for TRACER, where the profile has it; those of an older snapshot begin here."""
    if sensor is None:
        return None
    from grampus_uq.monitor.trajectory_watch import TrajectoryWatch, TurnMemory

    turns = None if snapshot is None else snapshot.get("turns")
    return TrajectoryWatch(sensor, TurnMemory() if turns is None else TurnMemory.from_json(turns))


def _structure(plan: SensingPlan, state: SessionState, snapshot: Mapping[str, Any] | None) -> StructureState | None:
    """The counts of a session; None where nobody wants them, or where they were not kept from the run's beginning."""
    kept = None if snapshot is None else snapshot.get("structure")
    if not plan.counts or (kept is None and state.n_steps):
        return None
    return StructureState() if kept is None else StructureState.from_json(kept)


@dataclass(frozen=True, kw_only=True)
class _Wiring:
    """What follows from one profile; swapped whole."""

    artifact: ProfileArtifact | None
    profile: Profile
    plan: SensingPlan
    sensor: TrajectorySensor | None

    @functools.cached_property
    def expected(self) -> ExpectedStreams | None:
        return ExpectedStreams(self.profile) if self.profile.fitted_streams else None

    @functools.cached_property
    def fingerprint(self) -> str:
        return self.artifact.fingerprint if self.artifact is not None else profile_fingerprint(self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What a session was started with that decides whether a profile fits it."""

    model: str
    prompt_hash: str | None
    tools_hash: str | None
    advisory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadedProfile:
    """What a reload did: fingerprints before and now, how many running sessions went over, how many could not."""

    before: str
    fingerprint: str
    migrated: int = 0
    kept: int = 0


class UncertaintyMonitor:
    """Watches any number of concurrent runs with one frozen configuration.

    `session(id)` gives the handle of one run. The guide's convenience methods (`initialize`, `observe_llm_response`, …)
    act on the session of the current context, so two tasks that share a monitor never see each other.

    Give either a fitted `profile` (or the artifact that holds it, or the path of one, which is checked against each
    session's model, prompt and tools, and acts where it fits: elsewhere its tiers do), or `estimator`, `propagator` and
    `policy` (each with the guide's defaults). `tracer` takes a `GrampusTracer`, an OpenTelemetry tracer, an object with
    such a `_tracer`, or a `SpanEmitter` with options of its own.
    `signals` adds signals of your own, `equivalence` says when two sampled answers agree, `repairs` asks again for a
    stated confidence, `counts` counts what the agent does (`signals.structure`; a profile that was fitted on counts
    needs no word), `speculative` draws the slow path's first samples beside P(True). `budget` bounds every signal,
    `budgets` one by name; `max_overhead` caps the monitor's own tokens at that share of the agent's. `advisory`
    observes and stops nothing. `trajectory` adds TRACER's risk of the run so far to every step; its texts are
    compared by `embedder`: the hashing one, `MiniLM`, or any function from texts to a matrix, in a worker thread.
    `let_through` is the probability with which a run is drawn, from its id and `seed`, to go on where a step of the
    model or a call that is known to be reversible would have been stopped: such runs, recorded with that probability,
    are what an acting profile can be refitted on honestly. Irreversible calls are never let through. The default is 0:
    no run is.
    """

    def __init__(
        self,
        *,
        estimator: UncertaintyEstimator | None = None,
        propagator: Propagator | None = None,
        policy: UncertaintyPolicy | None = None,
        tracer: Any = None,
        profile: ProfileSource | None = None,
        signals: Sequence[Signal | InstantSignal] = (),
        equivalence: Equivalence | None = None,
        repairs: int | None = None,
        counts: bool = False,
        speculative: bool = False,
        budget: Budget | None = None,
        budgets: Mapping[str, Budget] | None = None,
        max_overhead: float | None = None,
        processors: Sequence[Processor] = (),
        window: int = 64,
        advisory: bool = False,
        trajectory: TracerSettings | None = None,
        embedder: Embedder | Callable[[list[str]], npt.ArrayLike] | None = None,
        let_through: float = 0.0,
        seed: int = 0,
    ) -> None:
        if profile is not None and (estimator or propagator or policy or trajectory):
            raise ConfigurationError.of(
                "profile",
                "UncertaintyMonitor",
                "given alone, or not at all",
                "profile together with estimator, propagator, policy or trajectory",
                "A profile holds all of them.",
            )
        for processor in processors:
            if isinstance(processor, type) or not callable(getattr(processor, "on_event", None)):
                rule = "objects with `on_event(event)`"
                raise ConfigurationError.of("processors", "UncertaintyMonitor", rule, processor)
        if max_overhead is not None and not max_overhead >= 0.0:
            raise ConfigurationError.of("max_overhead", "UncertaintyMonitor", "at least 0 or None", max_overhead)
        if not 0.0 <= let_through <= 1.0:
            raise ConfigurationError.of("let_through", "UncertaintyMonitor", "a probability in [0, 1]", let_through)
        if window < 1:
            raise ConfigurationError.of("window", "UncertaintyMonitor", "at least 1 step", window)
        if profile is None:
            profile = Profile(
                estimator=estimator or UncertaintyEstimator(),
                propagator=propagator or UncertaintyPropagator(),
                policy=policy or UncertaintyPolicy(),
                tracer=trajectory,
            )
        self._advisory = advisory
        self._plan_of = functools.partial(
            SensingPlan.of,
            extra=signals,
            equivalence=equivalence,
            repairs=repairs,
            counts=counts,
            speculative=speculative,
            budget=budget,
            budgets=budgets,
        )
        self._sensor_of = functools.partial(_sensor, embedder=embedder, budget=budget, budgets=budgets or {})
        self._wiring = self._wired(profile)
        self._live: weakref.WeakKeyDictionary[Session, _Setting] = weakref.WeakKeyDictionary()
        self._by_id: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        given = () if tracer is None else (tracer if isinstance(tracer, SpanEmitter) else SpanEmitter(tracer),)
        self._outlet = _Outlet((*given, *processors))
        self._spans = next((found for found in self.processors if isinstance(found, SpanEmitter)), None)
        self.max_overhead = max_overhead
        self.window = window
        self.let_through = let_through
        self._draw = f"let through {seed}"

    def _wired(self, given: ProfileSource) -> _Wiring:
        """Everything that follows from a profile, built before anything of it is used."""
        if isinstance(given, str | os.PathLike):
            given = load(given)
        checked: Any = given
        if not isinstance(checked, Profile | ProfileArtifact):
            way_out = "load(path) of grampus_uq.recording.artifacts reads one."
            raise ConfigurationError.of(
                "profile", "UncertaintyMonitor", "a Profile, a ProfileArtifact or the path of one", given, way_out
            )
        artifact = given if isinstance(given, ProfileArtifact) else None
        profile = given.profile if isinstance(given, ProfileArtifact) else given
        if self._advisory and not profile.advisory:
            profile = profile.model_copy(update={"advisory": True})
        return _Wiring(
            artifact=artifact, profile=profile, plan=self._plan_of(profile), sensor=self._sensor_of(profile.tracer)
        )

    @property
    def profile(self) -> Profile:
        """What new sessions are judged by, where it fits them."""
        return self._wiring.profile

    @property
    def artifact(self) -> ProfileArtifact | None:
        """The artifact that holds the profile; None when a profile alone was given."""
        return self._wiring.artifact

    @property
    def plan(self) -> SensingPlan:
        """Which signals new sessions run."""
        return self._wiring.plan

    @property
    def sensor(self) -> TrajectorySensor | None:
        """What reads trajectories for TRACER; None without it."""
        return self._wiring.sensor

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the artifact, or of the profile alone, in hex: what recordings name."""
        return self._wiring.fingerprint

    def reload(self, profile: ProfileSource, *, running: Literal["keep", "migrate"] = "keep") -> ReloadedProfile:
        """Take another profile while sessions run; none is dropped, none waits. Any thread may call it.

        New sessions get it, all of its wiring at once. Those that run keep the profile that they began with, or, with
        "migrate", go on under the new one from their next step on: belief, counts and acknowledgements stay; the
        detector begins anew, without a guarantee for this run; `p_success` is unknown until the next step of the model.
        The change is an event of the recording (`ProfileChanged`), and a replay that is given both profiles follows it.
        A session whose model the new profile refuses, or with other TRACER settings, keeps its profile, and the log
        says so. The monitor's own `advisory` stays; signals, budgets and processors too.

        Raises ConfigurationError when the profile cannot be wired; then nothing has changed.
        """
        wiring = self._wired(profile)
        with self._lock:
            before, self._wiring = self._wiring, wiring
            running_now = list(self._live.items()) if running == "migrate" else []
        kept = migrated = 0
        if wiring.fingerprint == before.fingerprint:
            running_now = []
        for session, setting in running_now:
            if self._wiring is not wiring:
                break  # somebody reloaded again: the newer one sees to the rest
            try:
                chosen, told = self._profile_for(wiring, setting.model, setting.prompt_hash, setting.tools_hash)
                if told.get("profile_status") == "refused":
                    raise ConfigurationError(told["profile_reason"])
                if setting.advisory and not chosen.advisory:
                    chosen = chosen.model_copy(update={"advisory": True})
                session.migrate(chosen, wiring.plan, lambda: wiring.fingerprint)
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
        model: str = "",
        prompt_hash: str | None = None,
        tools_hash: str | None = None,
        metadata: Mapping[str, str] | None = None,
        advisory: bool = False,
    ) -> Session:
        """Start a run, or take one up again from what `Session.snapshot` gave: it goes on as if never interrupted.

        With `advisory` this one session observes and stops nothing, whatever the monitor does otherwise.

        An id names one run. A session that begins anew (without a snapshot) under the id of one that still lives takes
        its place: where there are processors, the earlier one raises SessionConflictError at its next step, or,
        advisory, is no longer recorded.
        """
        session_id = self._named(session_id, "session_id", advisory)
        agent_id = self._named(agent_id, "agent_id", advisory)
        recent: Sequence[StepUncertainty] = ()
        escalations: Sequence[Mapping[str, JsonValue]] = ()
        drawn = self.let_through > 0.0 and tie_uniform(session_id, self._draw) < self.let_through
        state = SessionState(session_id=session_id, agent_id=agent_id, let_through=drawn)
        if snapshot is not None:
            state, recent, escalations = read_snapshot(snapshot)
            if state.session_id != session_id:
                raise ConfigurationError.of(
                    "snapshot", "UncertaintyMonitor.session", f"of session {session_id!r}", state.session_id
                )
        wiring = self._wiring  # once: a reload in another thread swaps all of it
        profile, standing = self._profile_for(wiring, model, prompt_hash, tools_hash)
        if advisory and not profile.advisory:
            profile = profile.model_copy(update={"advisory": True})
        spans, kept = self._spans, None
        if spans is not None:
            spans.begin(session_id, snapshot)
        elif snapshot is not None and isinstance(snapshot.get("trace"), Mapping):
            kept = dict(snapshot["trace"])  # no spans here: handed on, so that whoever has some finds the trace again
        session = Session(
            profile=profile,
            plan=wiring.plan,
            emit=self._outlet.emit if self.processors else None,
            state=state,
            max_overhead=self.max_overhead,
            window=self.window,
            recent=recent,
            escalations=escalations,
            watch=_watch(wiring.sensor, snapshot),
            structure=_structure(wiring.plan, state, snapshot),
            trace=(lambda: kept) if spans is None else functools.partial(spans.carrier, session_id),
            fingerprint=lambda: wiring.fingerprint,
            expected=wiring.expected,
        )
        with self._lock:
            earlier = None if snapshot is not None else self._by_id.get(session_id)
            self._by_id[session_id] = session
        if earlier is not None:
            earlier.supersede()
        if self.processors:
            self.emit(
                SessionStarted(
                    session_id=session_id,
                    agent_id=state.agent_id,
                    time_s=time.time(),
                    resumed=snapshot is not None,
                    model=model,
                    prompt_hash=prompt_hash,
                    tools_hash=tools_hash,
                    profile_fingerprint=wiring.fingerprint,
                    advisory=profile.advisory,
                    release_probability=self.let_through or None,
                    let_through=state.let_through,
                    metadata={**standing, **(metadata or {})},
                )
            )
        if snapshot is not None and snapshot.get("profile") not in (None, wiring.fingerprint):
            session.migrate(profile, wiring.plan, lambda: wiring.fingerprint)
        setting = _Setting(model=model, prompt_hash=prompt_hash, tools_hash=tools_hash, advisory=advisory)
        with self._lock:  # only now: whoever reloads must not change what has not been told to have begun
            self._live[session] = setting
        return session

    def _named(self, value: Any, parameter: str, advisory: bool) -> str:
        name, error = read_name(value, parameter, "UncertaintyMonitor.session")
        if error is not None:
            if not (advisory or self._advisory):
                raise error
            log.warning("%s", error)
        return name

    @staticmethod
    def _profile_for(
        wiring: _Wiring, model: str, prompt_hash: str | None, tools_hash: str | None
    ) -> tuple[Profile, dict[str, str]]:
        """The profile that a session runs with; where an artifact does not fit, its tiers, and the log says why."""
        if wiring.artifact is None:
            return wiring.profile, {}
        found = match(wiring.artifact, model=model or None, prompt_hash=prompt_hash, tools_hash=tools_hash)
        reasons = found.reasons if wiring.profile.fitted else ("nothing in it was fitted.", *found.reasons)
        if not reasons:
            return wiring.profile, {"profile_status": found.status}
        why = " ".join(reasons)
        log.warning("the fitted profile does not apply, and the tiers decide in its place: %s", why)
        return wiring.profile.standing_in(why), {"profile_status": found.status, "profile_reason": why}

    @property
    def processors(self) -> tuple[Processor, ...]:
        """Where events go, in this order; the spans of `tracer` first."""
        return self._outlet.processors

    def emit(self, event: Event) -> None:
        """Hand one event to every processor; one that fails is logged once, counted, and never reaches the agent."""
        self._outlet.emit(event)

    @property
    def processor_failures(self) -> dict[str, int]:
        """How often each processor failed, by class name."""
        return self._outlet.failures()

    # -- the guide's convenience methods, on the session of the current context ----------------------------------

    def initialize(self, session_id: str, agent_id: str = "") -> None:
        """Start a run in the current context; tasks started from here see it, tasks beside it do not."""
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
        """The guide's System-2 reflection, as a system message."""
        return Message(role=Role.SYSTEM, content=REFLECTION)

    def get_belief_state(self) -> AgentBeliefState:
        """What is believed of the current context's session."""
        return self.current_session().belief()

    def summary_metadata(self) -> dict[str, Any]:
        """What travels in `result.metadata["uncertainty"]`."""
        return self.current_session().summary()

    def reset(self) -> None:
        """Start the current context's session over: same ids, nothing believed yet."""
        session = self.current_session()
        self.initialize(session.session_id, session.agent_id)
