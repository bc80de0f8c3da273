"""TRACER: the risk of a step from its components, and the risk of a run from its steps, as a stream.

Symbols of the paper: U_t surprisal, D_rep repetition, D_o^A agent coherence gap, D_o^U user coordination gap, r_t
step risk, TM_k tail mean, theta = (alpha, beta, gamma, k, w). Every component, step risk and score is a risk: higher
is worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.tail_sketch import MAX_RISK, TailSketch, check_fraction, tail_update

_ROUNDING: Final = 1e-6
"""Tolerance around the range of a component: similarities of unit vectors in single precision reach 1 + 1e-7."""


class Composite(StrEnum):
    """Combination of a step's weighted components into one number (Table IV); the paper proposes MAX.

    `MAX`: max_c r^c (eq. 20). `ADDITIVE`: sum_c r^c. `MULTIPLICATIVE`: prod_c (1 + r^c) - 1. `SEPARATE`: no step
    risk; each component has its own tail, and the scores of the components are summed.
    """

    MAX = "max"
    ADDITIVE = "additive"
    MULTIPLICATIVE = "multiplicative"
    SEPARATE = "separate"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerParameters:
    """theta of TRACER, with the constants that the paper leaves unprinted as defaults.

    `alpha`, `beta`, `gamma` in [0, 1e6] weigh repetition, agent gap and user gap; surprisal has weight 1 (eq. 16-19).
    `k` in (0, 1] is the tail fraction, `w` in [0, 1] the share of the worst step (eq. 21-23). `composite`: see
    `Composite`.

    `event` in [0, 1e6] is not in the paper: it weighs a fifth component that is 1 on a step with a tool error, a
    duplicate call or a duplicate observation. With its default, 0, the score is the paper's.
    """

    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 1.0
    k: float = 0.1
    w: float = 0.1
    event: float = 0.0
    composite: Composite = Composite.MAX

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma", "event"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1e6:
                raise ConfigurationError.of(name, "TracerParameters", "in [0, 1e6]", value)
        check_fraction(self.k, "TracerParameters")
        if not 0.0 <= self.w <= 1.0:
            raise ConfigurationError.of("w", "TracerParameters", "in [0, 1]", self.w)
        if not isinstance(self.composite, Composite):
            raise ConfigurationError.of("composite", "TracerParameters", "a Composite", self.composite)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComponents:
    """The components sensed at one step; None for one that does not exist there, which adds no risk.

    `surprisal` U_t in nats, >= 0 (eq. 7): None without log-probabilities. `repetition` D_rep in [0, 1] (eq. 11): agent
    steps. `agent_gap` D_o^A in [0, 2] (eq. 14): agent steps that were answered by an observation. `user_gap` D_o^U in
    [0, 2] (eq. 15): user steps right after an agent step. `is_agent` says who acted; a user step has no agent component
    and an agent step no user gap.

    Not in the paper: `wording_repetition` in [0, 1], D_rep with the words of the calls among the content words (agent
    steps); `tool_error`, `duplicate_call`, `duplicate_observation` (agent steps that called a tool).
    """

    is_agent: bool
    surprisal: float | None = None
    repetition: float | None = None
    agent_gap: float | None = None
    user_gap: float | None = None
    wording_repetition: float | None = None
    tool_error: bool | None = None
    duplicate_call: bool | None = None
    duplicate_observation: bool | None = None

    def __post_init__(self) -> None:
        for name, highest in _RANGES:
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= highest:
                if not -_ROUNDING <= value <= highest + _ROUNDING:
                    rule = f"a number in [0, {highest:g}] or None"
                    raise ConfigurationError.of(name, "StepComponents", rule, value)
                object.__setattr__(self, name, min(max(value, 0.0), highest))
        for name in ("user_gap",) if self.is_agent else _AGENT_ONLY:
            if getattr(self, name) is not None:
                rule = f"None on {'an agent' if self.is_agent else 'a user'} step"
                raise ConfigurationError.of(name, "StepComponents", rule, getattr(self, name))


_COMPONENTS: Final = 5
_RANGES: Final = (
    ("surprisal", 1e6),
    ("repetition", 1.0),
    ("agent_gap", 2.0),
    ("user_gap", 2.0),
    ("wording_repetition", 1.0),
)
_AGENT_ONLY: Final = (
    "repetition",
    "agent_gap",
    "wording_repetition",
    "tool_error",
    "duplicate_call",
    "duplicate_observation",
)


def weighted_components(step: StepComponents, parameters: TracerParameters) -> tuple[float, float, float, float, float]:
    """Return r^U, r^rep, r^A, r^Uo (eq. 16-19) and the event component.

    A component that does not exist is 0, as the paper has it. Each is >= 0, higher is worse.
    """
    event = step.tool_error or step.duplicate_call or step.duplicate_observation
    return (
        step.surprisal or 0.0,
        parameters.alpha * (step.repetition or 0.0),
        parameters.beta * (step.agent_gap or 0.0),
        parameters.gamma * (step.user_gap or 0.0),
        parameters.event if event else 0.0,
    )


def _combined(components: Sequence[float], composite: Composite) -> float:
    """The step risk r_t (eq. 20 for `Composite.MAX`)."""
    if composite is Composite.ADDITIVE:
        return math.fsum(components)
    if composite is Composite.MULTIPLICATIVE:
        # Not prod(1 + r) - 1: that loses every risk below 1e-16 and most digits of a small one.
        return math.expm1(math.fsum(math.log1p(component) for component in components))
    return max(components)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerState:
    """TRACER of a growing run in bounded memory: `tracer_update` adds a step, `tracer_score` says what it comes to.

    A step that is still open (a call is proposed and its observation is not there: no D_o^A yet) is added to a state
    that is thrown away. The score is TRACER_theta of the run (eq. 23, or the variant `parameters.composite`) to within
    `tracer_error`; `accuracy` bounds that error in advance (see `TailSketch`). A step without any component counts in N
    with risk 0.

    Per tail, rho_{k,w}(r) = (1 - w) TM_k(r) + w ||r||_inf. On vectors of a fixed length with r >= 0 it is monotone,
    positively homogeneous, subadditive, translation invariant for shifts that keep r >= 0, and 1-Lipschitz in the
    maximum norm (Theorems A.2, A.4; on vectors with negative entries ||r||_inf is not monotone, which the paper's
    statement on R^N passes over).

    In the length of the run it is not monotone: appending a harmless step can lower the score, so thresholds are set
    on `running_max`, the highest score of any prefix so far; 0 before the first step.

    >>> theta = TracerParameters(k=0.5, w=0.0)
    >>> state = tracer_start(theta, accuracy=1e-6)
    >>> for gap in (0.4, 0.8, 0.2, 0.6):
    ...     state = tracer_update(theta, state, StepComponents(is_agent=True, agent_gap=gap))
    >>> round(tracer_score(theta, state), 4), round(state.running_max, 4)
    (0.7, 0.8)
    """

    running_max: float
    tails: tuple[TailSketch, ...]


def tracer_start(parameters: TracerParameters, *, accuracy: float = 0.005) -> TracerState:
    """The state of a run before its first step."""
    count = _COMPONENTS if parameters.composite is Composite.SEPARATE else 1
    return TracerState(running_max=0.0, tails=(TailSketch.of(parameters.k, accuracy=accuracy),) * count)


def tracer_update(parameters: TracerParameters, state: TracerState, step: StepComponents) -> TracerState:
    """Add one step."""
    risks: Sequence[float] = weighted_components(step, parameters)
    if len(state.tails) == 1:
        risks = (_combined(risks, parameters.composite),)
    tails = tuple(map(tail_update, state.tails, risks))
    score = _score(parameters, tails)
    return TracerState(running_max=max(state.running_max, score), tails=tails)


def tracer_score(parameters: TracerParameters, state: TracerState) -> float | None:
    """TRACER of the steps so far, higher is worse; None before the first."""
    return _score(parameters, state.tails) if state.tails[0].buckets else None


def check_tracer(parameters: TracerParameters, state: TracerState) -> None:
    """Refuse a stored state with ConfigurationError that does not belong to these parameters, or is broken."""
    for tail in state.tails:
        tail.check()
    expected = len(tracer_start(parameters).tails)
    if len(state.tails) != expected or any(tail.k != parameters.k for tail in state.tails):
        rule = f"{expected} tails with k = {parameters.k}"
        raise ConfigurationError.of("state", "TracerState", rule, [tail.k for tail in state.tails])
    if len({tail.count for tail in state.tails}) != 1 or not 0.0 <= state.running_max <= MAX_RISK:
        rule = "tails over the same steps, with a finite running maximum"
        raise ConfigurationError.of("state", "TracerState", rule, state.running_max)


def _score(parameters: TracerParameters, tails: Iterable[TailSketch]) -> float:
    """The sum over the tails from left to right: from Python 3.12 on `sum` corrects its rounding."""
    total = 0.0
    for tail in tails:
        total += (1.0 - parameters.w) * (tail.mean or 0.0) + parameters.w * tail.worst
    return total
