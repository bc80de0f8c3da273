"""Profile (frozen, shared by all sessions) and SessionState (small, one per session): the inputs of a step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import (
    AliasChoices,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    model_serializer,
    model_validator,
)

from grampus_uq.core.alarm import (
    AlarmState,
    DetectorField,
    acknowledge_alarm,
    alarm_pending,
    alarm_raised,
    midway,
    rearm,
    rolled_back,
)
from grampus_uq.core.chain_rule import Chain
from grampus_uq.core.estimator import UncertaintyEstimator
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.propagator import Propagator, PropagatorMemory, UncertaintyPropagator
from grampus_uq.core.release import ReleaseRule
from grampus_uq.core.risk import RiskField, TrajectoryRiskSettings
from grampus_uq.core.turn_evidence import TurnEvidence, were_read, without_chances
from grampus_uq.errors import ConfigurationError
from grampus_uq.records.call_parts import Unit
from grampus_uq.records.configuration import Configuration
from grampus_uq.records.strict_json import snapshot_fault
from grampus_uq.records.vocabulary import UncertaintyLevel, UncertaintySource
from grampus_uq.stats.fusion import LogisticFusion, is_count
from grampus_uq.stats.stored_values import FROZEN

WITH_THE_WORD: Final = frozenset({str(UncertaintySource.VERBALIZED), "fused", "propagated"})
"""The streams that hold what a model states of its own confidence."""
_MAX_WHY = 300
Count = Annotated[int, Field(ge=0)]  # checked when a stored state is read, not when `advance` builds one


class Profile(Configuration):
    """Everything `advance` is parametrised by: frozen, JSON-able, shared by every session.

    With `advisory` set nothing is stopped; the action that would have been taken is recorded beside the actual one.
    """

    model_config = FROZEN

    policy: UncertaintyPolicy = Field(default_factory=UncertaintyPolicy)
    estimator: UncertaintyEstimator = Field(default_factory=UncertaintyEstimator)
    propagator: Propagator = Field(default_factory=UncertaintyPropagator)
    advisory: bool = False
    detector: DetectorField | None = None
    """A fitted detector: its alarm then decides pauses, with its guarantee, and the tiers stop nothing."""
    calibration: LogisticFusion | None = None
    """A fitted fusion of readings: `p_success` is then set on steps with one of them. It decides nothing by itself."""
    trajectory_risk: TrajectoryRiskSettings | None = Field(
        default=None, validation_alias=AliasChoices("trajectory_risk", "tracer")
    )
    """Steps then have a trajectory risk (TRACER), a stream of detector and calibration. Stored as `tracer`."""
    release: ReleaseRule | None = None
    """Releases irreversible calls by `p_success`; needs `calibration`. The tiers then stop nothing."""
    chain: Chain | None = None
    """Second looks at an irreversible call before a human is asked (`learn.fit_chain`), and the calls released at
    once; without a fitted detector or release. It only adds to what holds a call: `AgentRunner(looks=...)` looks."""
    fallback: str | None = None
    """Why a fitted profile does not apply, where this one stands in for it: the tiers and their rules decide."""

    @model_validator(mode="after")
    def _release_has_a_chance(self) -> Profile:
        if self.release is not None and self.calibration is None:
            rule = "given together with a calibration, whose p_success it reads"
            raise ConfigurationError.of("release", "Profile", rule, self.release)
        if self.chain is not None and (self.detector is not None or self.release is not None):
            rule = "given without a detector and without a release: each promises something else of the same calls"
            raise ConfigurationError.of("chain", "Profile", rule, self.chain)
        return self

    @property
    def released_by_counts(self) -> bool:
        """True if the probability that releases irreversible calls was fitted on counts only."""
        if self.release is None or self.calibration is None:
            return False
        return all(map(is_count, self.calibration.moved_by))

    @property
    def fitted_streams(self) -> frozenset[str]:
        """The streams that calibration and detector were fitted on."""
        used = set() if self.detector is None else set(self.detector.streams)
        return frozenset(used) if self.calibration is None else frozenset(used | set(self.calibration.moved_by))

    @property
    def takes_the_word(self) -> bool:
        """True if a detector or a release was fitted on the confidence that the model states, alone or in a fusion."""
        if self.detector is None and self.release is None:
            return False
        readings = {} if self.calibration is None else self.calibration.readings
        by_presence = {name for name, one in readings.items() if one.offset != 0.0}
        return not WITH_THE_WORD.isdisjoint(self.fitted_streams | by_presence)

    @property
    def always_there(self) -> frozenset[str]:
        """The streams, except counts, that had no gap when calibration or detector was fitted."""
        parts = (() if self.calibration is None else self.calibration.without_gaps) + (
            () if self.detector is None else self.detector.always_there
        )
        return frozenset(name for name in parts if not is_count(name))

    @property
    def fitted(self) -> bool:
        """True if any part was learned from runs."""
        return any(
            part is not None
            for part in (self.detector, self.calibration, self.release, self.trajectory_risk, self.chain)
        )

    def standing_in(self, why: str) -> Profile:
        """The fallback for a session that this profile does not fit: its tiers and rules, without fitted parts.

        Nothing learned elsewhere decides here, and nothing is less guarded than without a profile. Every pause
        gives `why`.
        """
        nothing = {"detector": None, "calibration": None, "release": None, "chain": None}
        return self.model_copy(update={**nothing, "fallback": why[:_MAX_WHY]})

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not there, so that older profiles keep their fingerprints."""
        values: dict[str, Any] = write(self)
        values["tracer"] = values.pop("trajectory_risk", None)  # the stored name
        for name in ("tracer", "release", "chain", "fallback"):
            if values.get(name) is None:
                values.pop(name, None)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Unaided:
    """The belief as it would be had the model stated no confidence; fields as in `SessionState`.

    `worst` is None until something else was read.
    """

    cumulative: Unit
    memory: PropagatorMemory | None = None
    worst: Unit | None = None

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """The belief with 0 in place of every missing reading that was due; irreversible calls are judged by it too.

    `unread` says which ones the latest step of the model lacked, and why; `scores` are the streams that a detector that
    looks at calls has of that step; the others are as in `SessionState`.
    """

    cumulative: Unit
    memory: PropagatorMemory | None = None
    worst: Unit | None = None
    unaided: Unaided | None = None
    alarm: AlarmState | None = None
    p_success: Unit | None = None
    unread: str = ""
    scores: tuple[Unit | None, ...] = ()

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """State of one session after its last committed step; bounded, JSON-able, immutable.

    `memory` is what the propagator keeps beside `cumulative`: None for the default one, which needs nothing more.
    `turn_read` is False while the latest step of the model had no reading; `turns` are the latest turns of the model
    that may have proposed calls, with what was read of each (empty in states of older versions: nothing then speaks for
    an irreversible call until the model's next turn). `alarmed` is True once a detector's alarm was raised in this run,
    answered or not, under whatever profile. `worst` is the least fused confidence so far; `unaided` is None while what
    the model states made no difference; `acknowledged` is the gravest level that a human already answered for; both
    token counts are sums. `p_success` is the calibrated chance after the latest step of the model, None where it had no
    reading; `let_through` is True for a run that was drawn to go on where a reversible step would have been stopped.
    `worst_case` is None until a reading was due and did not come. `read_before` is True once something but the model's
    own word was read that no turn of `turns` shows.
    """

    session_id: str
    agent_id: str = ""
    n_steps: Count = 0
    n_high: Count = 0
    cumulative: Unit = 1.0
    level: UncertaintyLevel = UncertaintyLevel.MEDIUM
    has_reading: bool = False
    turn_read: bool = False
    worst: Unit | None = None
    unaided: Unaided | None = None
    acknowledged: UncertaintyLevel | None = None
    last_step_id: str | None = None
    monitor_calls: Count = 0
    monitor_tokens: Count = 0
    monitor_cost_usd: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    agent_tokens: Count = 0
    alarm: AlarmState | None = None
    memory: PropagatorMemory | None = None
    risk: RiskField | None = None
    p_success: Unit | None = None
    let_through: bool = False
    worst_case: WorstCase | None = None
    turns: tuple[TurnEvidence, ...] = ()
    alarmed: Annotated[bool, Field(alias="rang")] = False  # the stored name
    read_before: bool = False

    @property
    def only_stated(self) -> bool:
        """True where nothing was read but the confidence that the model states."""
        return self.has_reading and not self.read_before and not were_read(self.turns)

    __pydantic_config__ = ConfigDict(extra="forbid")  # an unknown field is a newer version's: not ours to drop


_STATE = TypeAdapter(SessionState)
_write_state, _write_turn = _STATE.serializer.to_json, TypeAdapter(TurnEvidence).serializer.to_json
_TURNS = {"turns"}


def state_to_json(state: SessionState) -> str:
    """The state as one JSON object; `state_from_json` gives back an equal state."""
    return _STATE.dump_json(state, by_alias=True, exclude=_absent(state)).decode()


def state_to_values(state: SessionState) -> dict[str, Any]:
    """The same as JSON values, without the detour through text."""
    values: dict[str, Any] = _STATE.dump_python(state, mode="json", by_alias=True, exclude=_absent(state))
    return values


def _absent(state: SessionState) -> dict[str, Any]:
    """What the last release does not know, where it is not there: its workers refuse a state that names it."""
    turns = {
        place: {
            name for name, there in (("unaided", turn.unaided is not None), ("measured", turn.measured)) if not there
        }
        for place, turn in enumerate(state.turns)
    }
    own: dict[str, Any] = {name: True for name in ("unaided", "read_before") if not getattr(state, name)}
    worst = state.worst_case is not None and state.worst_case.unaided is None
    return own | ({"turns": turns} if turns else {}) | ({"worst_case": {"unaided"}} if worst else {})


class StateWriter:
    """Writes the states of one session one after the other; of a turn that it wrote before it keeps the text.

    What stands at its default is left out.
    """

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: dict[int, tuple[TurnEvidence, bytes]] = {}

    def write(self, state: SessionState) -> str:
        """The state as JSON, in a time that does not grow with its turns; `state_from_json` gives back an equal one."""
        known, kept, texts = self._turns, {}, []
        for turn in state.turns:
            key = id(turn)
            entry = known.get(key)
            if entry is None or entry[0] is not turn:
                entry = turn, _write_turn(turn, exclude_defaults=True)
            kept[key] = entry
            texts.append(entry[1])
        self._turns = kept
        rest = _write_state(state, by_alias=True, exclude=_TURNS, exclude_defaults=True)
        return (b'%b,"turns":[%b]}' % (rest[:-1], b",".join(texts))).decode()


def state_from_json(text: str | bytes) -> SessionState:
    """Parse and validate a stored state; raises DataError naming the field."""
    try:
        return _STATE.validate_json(text)
    except ValueError as error:
        raise snapshot_fault(error, "a session state") from error


def answer_alarm(profile: Profile, state: SessionState) -> SessionState:
    """A human answered the detector's alarm: reversible steps are asked for no more until it is re-armed.

    Each irreversible call is, until the run ends.
    """
    if profile.detector is None or state.alarm is None or not alarm_pending(profile.detector, state.alarm):
        return state
    return replace(state, alarm=acknowledge_alarm(state.alarm), alarmed=True)


def rearm_alarm(profile: Profile, state: SessionState) -> SessionState:
    """Start the detector's evidence anew; alarms from here on carry no guarantee."""
    if profile.detector is None or state.alarm is None:
        return state
    rearmed = rearm(profile.detector, state.alarm, state.session_id)
    worst_case = state.worst_case and replace(state.worst_case, alarm=rearmed)
    return replace(state, alarm=rearmed, worst_case=worst_case, alarmed=has_alarmed(profile, state))


def has_alarmed(profile: Profile, state: SessionState) -> bool:
    """True once a detector's alarm was raised in this run, answered or not."""
    return state.alarmed or (profile.detector is not None and alarm_raised(profile.detector, state.alarm))


def change_profile(profile: Profile, state: SessionState) -> SessionState:
    """A run goes on under another profile, from its next step on.

    What is believed stays; what was only stated is no first step of another propagator. The detector begins anew, and
    its alarms in this run carry no guarantee; the chance of success is unknown until the next step of the model, so an
    irreversible call does what missing evidence does.
    """
    alarm = None if profile.detector is None else midway(profile.detector, state.session_id)
    worst_case = state.worst_case and replace(state.worst_case, alarm=alarm, p_success=None)
    alarmed = state.alarmed or (state.alarm is not None and state.alarm.answered)
    turns = without_chances(state.turns)
    if state.only_stated and type(profile.propagator) is not UncertaintyPropagator:
        state = replace(state, unaided=Unaided(cumulative=1.0))
    return replace(state, alarm=alarm, p_success=None, worst_case=worst_case, turns=turns, alarmed=alarmed)


def went_back(profile: Profile, state: SessionState, *, alarmed: bool = False) -> SessionState:
    """A run goes on from this earlier state of its own; `alarmed`: an alarm was raised in the discarded steps.

    Such an alarm stays one of the run. Alarms from here on carry no guarantee, which is about one pass through a run.
    """
    alarm, detector = state.alarm, profile.detector
    if detector is not None:
        alarm = rolled_back(detector, alarm, state.session_id)
    return replace(state, alarm=alarm, alarmed=state.alarmed or alarmed)


def acknowledge(state: SessionState, level: UncertaintyLevel) -> SessionState:
    """A human answered for this level: it, and lesser ones, ask no more until the belief has been MEDIUM or better."""
    return replace(state, acknowledged=level)
