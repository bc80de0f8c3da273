"""The events of a monitor, in commit order: a session began, a step, an observation, a look, a decision, an outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import Field

from grampus_uq.records.values import Nanoseconds, Outcome, Reading, Step, StepUncertainty, ToolCall
from grampus_uq.records.vocabulary import UncertaintyLevel
from grampus_uq.stats.trajectory_risk import StepComponents

_Unit = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Thresholds = tuple[_Unit, _Unit, _Unit]
BRANCH: Final = "grampus_uq.branch"
"""In the metadata of a session that goes on after a rollback or a fork: which branch of its run, by any name."""
ALARMED: Final = "grampus_uq.alarmed"
"""Beside it, where an alarm was raised in the discarded steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryReading:
    """The components of the trajectory risk at one step: numbers only, so that a replay needs no text or embedder.

    `completed`: steps of agent and user complete since the step before, in order. `pending`: the agent's open turn so
    far, if any. `reason`: why texts could not be read. `no_surprisal`: why the open turn has none, where it has none.
    """

    completed: tuple[StepComponents, ...] = ()
    pending: StepComponents | None = None
    reason: str | None = None
    no_surprisal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """A step was committed: everything that produced its assessment, and the assessment."""

    session_id: str
    agent_id: str
    step: Step
    readings: tuple[Reading, ...]
    assessment: StepUncertainty
    started_ns: Nanoseconds
    ended_ns: Nanoseconds
    trajectory: TrajectoryReading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationEvent:
    """A tool answered or a user spoke; `kind` is "tool_result" or "user". The content is hostile text."""

    session_id: str
    agent_id: str
    kind: str
    text: str
    call_id: str | None = None
    is_error: bool = False
    time_s: float = 0.0


PERMIT: Final = "permit"
"""The decision by which a permit lets a call go ahead; its message is the promise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionEvent:
    """A human (or another principal) answered a pause; `acknowledged` is the severest level that no longer asks."""

    session_id: str
    agent_id: str
    decision: str
    principal: str
    step_id: str | None = None
    call_id: str | None = None
    call_digest: str | None = None
    message: str | None = None
    acknowledged: UncertaintyLevel | None = None
    alarm_answered: bool = False
    alarm_rearmed: bool = False
    time_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """A grant or a permit that lets some calls of a tool ahead; `rule` is "grant" or "permit".

    `audit` is the probability with which the call was to be asked about all the same, where it took a permit's ticket.
    """

    rule: str
    id: str
    audit: _Unit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAsked:
    """A call was asked about; `tool_alone` where nothing but its tool holds it, so that a grant or permit may lift it.

    `in_force`: then all grants and permits for its tool at that moment; None: not known.
    """

    session_id: str
    agent_id: str
    step_id: str | None = None
    call_id: str | None = None
    call_digest: str | None = None
    tool_alone: bool = False
    in_force: tuple[InForce, ...] | None = None
    time_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LookEvent:
    """A tier was asked which call it would make in the place of the run's first irreversible one, and changed nothing.

    `own` is the `call_probability` of the agent's call, `probability` that of the tier's `call`; `agrees` whether the
    two are equal. Without a `call`, `missing` says why. `tokens` and `seconds` are those of the look.
    """

    session_id: str
    agent_id: str
    tier: str
    step_id: str | None = None
    call: ToolCall | None = None
    agrees: bool = False
    own: _Unit | None = None
    probability: _Unit | None = None
    missing: str = ""
    tokens: Annotated[int, Field(ge=0, le=2**54)] = 0
    seconds: float = 0.0
    time_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeEvent:
    """A session ended, or its outcome became known; `trajectory` holds the steps that are complete if it ended here."""

    session_id: str
    agent_id: str
    outcome: Outcome
    trajectory: TrajectoryReading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted:
    """A session began, or was taken up again by this process; hashes are hex SHA-256.

    `release_probability` is the chance with which a run is drawn to go on where a reversible step would be stopped
    (None: no draw was made), `let_through` whether this one was drawn. `thresholds` are the least confidences of a
    step of low, medium and high uncertainty, in [0, 1]; None in recordings from before they were kept.
    `irreversible_tools` and `always_ask_tools` are the names that the policy guards: a profile that is fitted on the
    recording goes on to guard them.
    """

    session_id: str
    agent_id: str
    time_s: float
    resumed: bool = False
    model: str = ""
    prompt_hash: str | None = None
    tools_hash: str | None = None
    profile_fingerprint: str | None = None
    advisory: bool = False
    release_probability: _Unit | None = None
    let_through: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    thresholds: Thresholds | None = None
    irreversible_tools: tuple[str, ...] = ()
    always_ask_tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileChanged:
    """A running session goes on under another profile (`profile_fingerprint`, `thresholds`), from its next step on.

    `fallback` is why it does not apply to the session, where its tiers stand in for it.
    """

    session_id: str
    agent_id: str
    time_s: float
    profile_fingerprint: str
    advisory: bool = False
    fallback: str | None = None
    thresholds: Thresholds | None = None


Event = (
    SessionStarted
    | StepEvent
    | ObservationEvent
    | CallAsked
    | LookEvent
    | DecisionEvent
    | OutcomeEvent
    | ProfileChanged
)
