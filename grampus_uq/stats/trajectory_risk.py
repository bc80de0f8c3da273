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
from grampus_uq.stats.tail_sketch import MAX_RISK, TailSketch, TailSketchState, check_fraction

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


def _added(scores: Iterable[float]) -> float:
    """The sum from left to right, as `update` forms it: from Python 3.12 on `sum` corrects its rounding."""
    total = 0.0
    for score in scores:
        total += score
    return total


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
    """A `TracerStream` as a JSON-able value."""

    running_max: float
    tails: tuple[TailSketchState, ...]


class TracerStream:
    """TRACER of a growing run in bounded memory: `update` commits a step, `peek` says what committing it would give.

    Use `peek` while a step is still open (a call is proposed and its observation is not there: no D_o^A yet) and
    `update` once, when it is complete. Both return TRACER_theta of the run (eq. 23, or the variant
    `parameters.composite`) to within `error`; `accuracy` bounds that error in advance (see `TailSketch`). A step
    without any component counts in N with risk 0.

    Per tail, rho_{k,w}(r) = (1 - w) TM_k(r) + w ||r||_inf. On vectors of a fixed length with r >= 0 it is monotone,
    positively homogeneous, subadditive, translation invariant for shifts that keep r >= 0, and 1-Lipschitz in the
    maximum norm (Theorems A.2, A.4; on vectors with negative entries ||r||_inf is not monotone, which the paper's
    statement on R^N passes over).

    In the length of the run it is not monotone: appending a harmless step can lower the score, so thresholds are set
    on `running_max`.

    >>> stream = TracerStream(TracerParameters(k=0.5, w=0.0), accuracy=1e-6)
    >>> for gap in (0.4, 0.8, 0.2, 0.6):
    ...     score = stream.update(StepComponents(is_agent=True, agent_gap=gap))
    >>> round(score, 4), round(stream.running_max, 4)
    (0.7, 0.8)
    """

    __slots__ = ("_parameters", "_running_max", "_tails")

    def __init__(self, parameters: TracerParameters, *, accuracy: float = 0.005) -> None:
        self._parameters = parameters
        count = _COMPONENTS if parameters.composite is Composite.SEPARATE else 1
        self._tails = tuple(TailSketch(parameters.k, accuracy=accuracy) for _ in range(count))
        self._running_max = 0.0

    @property
    def count(self) -> int:
        """The number of committed steps, N."""
        return self._tails[0].count

    @property
    def score(self) -> float | None:
        """TRACER of the committed steps, higher is worse; None before the first."""
        if not self.count:
            return None
        return _added(self._score(tail.mean or 0.0, tail.worst or 0.0) for tail in self._tails)

    @property
    def running_max(self) -> float | None:
        """The highest score of any prefix so far; None before the first step."""
        return self._running_max if self.count else None

    @property
    def error(self) -> float:
        """Bound on |score - exact score| beyond rounding."""
        return (1.0 - self._parameters.w) * math.fsum(tail.error for tail in self._tails)

    def update(self, step: StepComponents) -> float:
        """Commit one step and return the score of the longer run."""
        score = 0.0
        for tail, risk in zip(self._tails, self._risks(step), strict=True):
            worst = max(tail.worst or 0.0, risk)
            score += self._score(tail.update(risk), worst)
        self._running_max = max(self._running_max, score)
        return score

    def peek(self, step: StepComponents) -> float:
        """Return what `update(step)` would, and change nothing."""
        pairs = zip(self._tails, self._risks(step), strict=True)
        return _added(self._score(tail.peek(risk), max(tail.worst or 0.0, risk)) for tail, risk in pairs)

    def _risks(self, step: StepComponents) -> Sequence[float]:
        components = weighted_components(step, self._parameters)
        return components if len(self._tails) > 1 else (_combined(components, self._parameters.composite),)

    def _score(self, tail_mean: float, worst: float) -> float:
        w = self._parameters.w
        return (1.0 - w) * tail_mean + w * worst

    def state(self) -> TracerState:
        """Return the whole stream as a value."""
        return TracerState(running_max=self._running_max, tails=tuple(tail.state() for tail in self._tails))

    @classmethod
    def restore(cls, parameters: TracerParameters, state: TracerState) -> TracerStream:
        """Continue a stream exactly where its state was taken.

        Raises ConfigurationError when the state does not belong to these parameters, or is broken.
        """
        tails = tuple(TailSketch.restore(tail) for tail in state.tails)
        stream = cls(parameters)
        if len(tails) != len(stream._tails) or any(tail.k != parameters.k for tail in state.tails):
            rule = f"{len(stream._tails)} tails with k = {parameters.k}"
            raise ConfigurationError.of("state", "TracerStream.restore", rule, [tail.k for tail in state.tails])
        if len({tail.count for tail in tails}) != 1 or not 0.0 <= state.running_max <= MAX_RISK:
            rule = "tails over the same steps, with a finite running maximum"
            raise ConfigurationError.of("state", "TracerStream.restore", rule, state.running_max)
        stream._tails = tails
        stream._running_max = state.running_max
        return stream
