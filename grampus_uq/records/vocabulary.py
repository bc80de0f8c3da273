"""The fixed words: levels, actions, sources, effects, roles, and why a number is missing or a run stopped."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from grampus_uq.errors import ConfigurationError

TASK: Final = "task_id"
"""Name in a session's metadata of the task: trials of one task are not independent samples."""


class UncertaintyLevel(StrEnum):
    """The uncertainty of the run, ordered by `severity`."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def severity(self) -> int:
        """0 for LOW up to 3 for CRITICAL."""
        return _SEVERITY[self]


_SEVERITY = {level: rank for rank, level in enumerate(UncertaintyLevel)}


class UncertaintySource(StrEnum):
    """The source of a number or a decision."""

    VERBALIZED = "verbalized"
    P_TRUE = "p_true"
    SEMANTIC_ENTROPY = "semantic_entropy"
    PROPAGATED = "propagated"
    IRREVERSIBLE_TOOL = "irreversible_tool"
    TOKEN_PROBABILITY = "token_probability"  # noqa: S105 (a signal, no password)
    TOKEN_ENTROPY = "token_entropy"  # noqa: S105 (a signal, no password)
    SEQUENCE_PROBABILITY = "sequence_probability"
    ACTION_PROBABILITY = "action_probability"
    ACTION_ENTROPY = "action_entropy"
    CLAIM_PROBABILITY = "claim_probability"
    CALL_PROBABILITY = "call_probability"
    CALL_AGREEMENT = "call_agreement"
    ORIGIN_PROBABILITY = "origin_probability"
    PREFIX_VERIFIER = "prefix_verifier"
    READER_CALL_PROBABILITY = "reader_call_probability"
    TRAJECTORY_RISK = "trajectory_risk"
    DETECTOR = "detector"
    EXTERNAL = "external"
    MISSING_EVIDENCE = "missing_evidence"
    WORST_SO_FAR = "worst_so_far"
    CALL_EVIDENCE = "call_evidence"
    RELEASE = "release"
    ALWAYS_ASK = "always_ask"


def in_words(source: str) -> str:
    """The name of a reading as a human says it.

    >>> in_words("verbalized"), in_words("semantic_entropy")
    ('stated confidence', 'semantic entropy')
    """
    return _SAID_AS.get(source, source).replace("_", " ")


def quantity(number: int, one: str, many: str | None = None) -> str:
    """A number of things: `many` is the plural, with an s where it is not given.

    >>> [quantity(number, "run") for number in (0, 1, 2)]
    ['0 runs', '1 run', '2 runs']
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def span(seconds: float) -> str:
    """A time in its largest unit.

    >>> [span(seconds) for seconds in (-1.0, 59.0, 3_599.0, 90_000.0)]
    ['0 s', '59 s', '59 min', '1 d']
    """
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


_SAID_AS = {"verbalized": "stated confidence", "p_true": "P(True)"}


class UncertaintyAction(StrEnum):
    """The action to take now."""

    PROCEED = "proceed"
    PROCEED_WITH_LOG = "proceed_with_log"
    PAUSE_FOR_HUMAN = "pause_for_human"
    ABORT = "abort"

    @property
    def stops(self) -> bool:
        """True for the actions that stop the agent: pause and abort."""
        return self in STOPPING


STOPPING = frozenset({UncertaintyAction.PAUSE_FOR_HUMAN, UncertaintyAction.ABORT})
"""The two actions after which the agent does not go on by itself."""


STOPPING_LEVELS = frozenset({UncertaintyLevel.HIGH, UncertaintyLevel.CRITICAL})
"""The two levels at which a human is asked."""


class Effect(StrEnum):
    """The effect of a tool on the world; `unknown` unless declared."""

    READ = "read"
    REVERSIBLE = "reversible"
    IRREVERSIBLE = "irreversible"
    UNKNOWN = "unknown"


def parse_effect(effect: Effect | str | None, owner: str) -> Effect | None:
    """The effect meant, also by its word; None stays None. Raises ConfigurationError for others, naming `owner`."""
    if effect is None or type(effect) is Effect:
        return effect
    known = Effect.__members__.values()
    found = next((one for one in known if one == effect), None) if isinstance(effect, str) else None
    if found is None:
        rule = "one of " + ", ".join(repr(str(one)) for one in known)
        raise ConfigurationError.of("effect", owner, rule, effect, "Give Effect.IRREVERSIBLE, or its word.")
    return found


class MissingReason(StrEnum):
    """Why a reading has no value. A reason is never evidence for or against success."""

    NOT_STATED = "not_stated"
    INVALID_VALUE = "invalid_value"
    PARSE_ERROR = "parse_error"
    TIMEOUT = "timeout"
    BUDGET_EXCEEDED = "budget_exceeded"
    RATE_LIMITED = "rate_limited"
    MODEL_ERROR = "model_error"
    SIGNAL_ERROR = "signal_error"
    UNSUPPORTED_BY_MODEL = "unsupported_by_model"
    NO_LOGPROBS = "no_logprobs"
    BROKEN_LOGPROBS = "broken_logprobs"
    NO_MODEL = "no_model"
    NOTHING_TO_JUDGE = "nothing_to_judge"
    TOO_FEW_SAMPLES = "too_few_samples"
    TOO_LONG = "too_long"
    OVERHEAD_CAP = "overhead_cap"
    NOT_NEEDED = "not_needed"
    NOT_SENSED = "not_sensed"
    PROFILE_CHANGED = "profile_changed"
    NOT_PROPOSED = "not_proposed"


NOT_DUE = frozenset(
    {MissingReason.NOT_STATED, MissingReason.NO_LOGPROBS, MissingReason.NO_MODEL}
    | {MissingReason.NOT_NEEDED, MissingReason.NOT_PROPOSED}
)
"""Reasons of a reading that was not due: it does not belong to this agent or step. Any other reason says that a
reading was due and did not come, and then an irreversible call is judged as if it had been the worst."""


class StopReason(StrEnum):
    """Why a run ended. `clean` has an outcome; `max_steps` is administrative censoring; the others are informative."""

    CLEAN = "clean"
    MAX_STEPS = "max_steps"
    PARSE_ERROR = "parse_error"
    TOOL_ERROR = "tool_error"
    ENV_TERMINATED = "env_terminated"
    CANCELLED = "cancelled"
    HUMAN_REJECTED = "human_rejected"
    MONITOR_STOP = "monitor_stop"
    INTERVENED = "intervened"

    @property
    def informative(self) -> bool:
        """True when the stop depends on how the run went: neither scored nor fitted on as if it did not."""
        return self not in (StopReason.CLEAN, StopReason.MAX_STEPS)


class Role(StrEnum):
    """The speaker of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class AgentStatus(StrEnum):
    """The state of a run."""

    IDLE = "idle"
    RUNNING = "running"
    WAITING_FOR_HUMAN = "waiting_for_human"
    COMPLETED = "completed"
    FAILED = "failed"


ENDED = (AgentStatus.COMPLETED, AgentStatus.FAILED)
