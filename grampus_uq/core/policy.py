"""The default tiers, the irreversible-tool override, and what to do when evidence is missing."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.configuration import Configuration
from grampus_uq.records.tool_names import patterns_of, refusal_of
from grampus_uq.records.vocabulary import UncertaintyAction, UncertaintyLevel
from grampus_uq.stats.stored_values import FROZEN


def _no_switch(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number between 0 and 1, not true or false")
    return value


Probability = Annotated[float, BeforeValidator(_no_switch), Field(ge=0.0, le=1.0)]

# A member of an enum takes a while to look up by its name, and these are looked up at every step.
_LOW, _MEDIUM, _HIGH, _CRITICAL = UncertaintyLevel
_ACTIONS = {
    _LOW: UncertaintyAction.PROCEED,
    _MEDIUM: UncertaintyAction.PROCEED_WITH_LOG,
    _HIGH: UncertaintyAction.PAUSE_FOR_HUMAN,
    _CRITICAL: UncertaintyAction.ABORT,
}


_CALL_FLOOR = 0.80

_LATER: dict[str, object] = {"always_ask_tool_names": [], "call_floor": _CALL_FLOOR}
"""Fields that the first profiles did not have, with their defaults."""


class UncertaintyPolicy(Configuration):
    """Maps a propagated confidence to a level, and a level to an action.

    LOW (>= `low_threshold`) proceeds, MEDIUM proceeds with a log line, HIGH pauses for a human, CRITICAL aborts. A tool
    whose name contains one of `irreversible_tool_names` pauses at MEDIUM too. Names are compared in one normal form
    (`tool_names`): case, separators, camel humps, namespaces, invisible and look-alike characters make no difference.
    The tiers carry **no guarantee on false alarms**: a healthy agent's longer runs are paused by them; only a fitted
    profile bounds that.

    A threshold outside [0, 1] raises at construction, and so does a pattern without a letter or digit, or with the
    marks of a glob or regular expression; one that a file brings only warns, and protects what its letters say.
    Thresholds out of order only warn: the first tier that fits wins.
    """

    model_config = FROZEN

    low_threshold: Probability = 0.80
    medium_threshold: Probability = 0.60
    high_threshold: Probability = 0.40
    enable_p_true: bool = True
    enable_semantic_sampling: bool = False
    enable_prefix_verifier: bool = False
    """Ask a model, once a step, for the probability that the run so far will succeed (`signals.prefix_verifier`)."""
    irreversible_tool_names: list[str] = Field(default_factory=list)
    always_ask_tool_names: list[str] = Field(default_factory=list)
    """Tools whose calls pause whatever the numbers say; matched as the irreversible ones are."""
    inject_reflection_on_high: bool = True
    on_missing_evidence: UncertaintyAction = UncertaintyAction.PAUSE_FOR_HUMAN
    """What an irreversible call does when the session, or the turn that proposes it, has no reading at all.

    Where this stops it, the confidence that the model states may hold a call under the default tiers, and never helps
    one to proceed: who can make a model write "Confidence: 100%" could release any call.
    """
    worst_so_far_floor: Probability | None = None
    """When set: an irreversible call pauses once any fused confidence of the session fell below this floor."""
    call_floor: Probability | None = _CALL_FLOOR
    """An irreversible call pauses where the model gave the call itself, its tool and arguments, a lower probability.

    Only where its tokens' probabilities are known, and no fitted detector or release decides. None: the default
    tiers alone, by which confident steps before a doubtful call outweigh it.
    """
    on_alarm: UncertaintyAction = UncertaintyAction.PAUSE_FOR_HUMAN
    """What an alarm of a fitted detector does."""

    @field_validator("irreversible_tool_names", "always_ask_tool_names", mode="before")
    @classmethod
    def _patterns_match_something(cls, names: object, info: ValidationInfo) -> object:
        if isinstance(names, str):
            rule, way_out = "a list of strings", "Put it into a list."
            raise ConfigurationError.of(str(info.field_name), "UncertaintyPolicy", rule, names, way_out)
        if not isinstance(names, Iterable) or isinstance(names, bytes | Mapping):
            return names
        names = list(names)  # of any collection that is taken for a list, and of what can be read only once
        for name in names:
            if (refused := refusal_of(name)) is None:
                continue
            error = ConfigurationError.of(str(info.field_name), "UncertaintyPolicy", refused[0], name, refused[1])
            if info.mode != "json" or not isinstance(name, str) or not name.strip():
                raise error
            warnings.warn(f"{error} It is kept, and matches by its letters.", UserWarning, stacklevel=2)
        return names

    def model_post_init(self, _: object, /) -> None:
        """Warn when the thresholds are not in descending order."""
        if not self.low_threshold >= self.medium_threshold >= self.high_threshold:
            warnings.warn(
                "UncertaintyPolicy thresholds are out of order: expected low_threshold >= medium_threshold >= "
                f"high_threshold, got {self.low_threshold}, {self.medium_threshold}, {self.high_threshold}. "
                "The first tier that fits wins.",
                UserWarning,
                stacklevel=4,
            )

    @property
    def thresholds(self) -> tuple[float, float, float]:
        """The least confidences of LOW, MEDIUM and HIGH."""
        return self.low_threshold, self.medium_threshold, self.high_threshold

    def classify(self, confidence: float) -> UncertaintyLevel:
        """Level of a propagated confidence; a value on a threshold belongs to the better level."""
        if confidence >= self.low_threshold:
            return _LOW
        if confidence >= self.medium_threshold:
            return _MEDIUM
        if confidence >= self.high_threshold:
            return _HIGH
        return _CRITICAL  # NaN lands here too: it never reads as safe

    def is_irreversible(self, name: str) -> bool:
        """True when the tool's name contains one of the irreversible names, however either is spelt."""
        names = self.irreversible_tool_names
        return bool(names) and patterns_of(tuple(names)).match(name)

    def asks_always(self, name: str) -> bool:
        """True if the tool's name contains one of the always-ask names, however either is spelt."""
        names = self.always_ask_tool_names
        return bool(names) and patterns_of(tuple(names)).match(name)

    def unmatched(self, tool_names: Iterable[str]) -> list[str]:
        """Names in both lists that match none of these tools: misspelt, or for another agent."""
        declared = list(tool_names)
        patterns = [*self.irreversible_tool_names, *self.always_ask_tool_names]
        return [p for p in patterns if not any(map(patterns_of((p,)).match, declared))]

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out later fields at their defaults, so that older profiles keep their fingerprints."""
        values: dict[str, Any] = write(self)
        return {name: value for name, value in values.items() if name not in _LATER or value != _LATER[name]}

    def decide(
        self, level: UncertaintyLevel, step_type: str, tool_name: str | None = None, *, irreversible: bool | None = None
    ) -> UncertaintyAction:
        """Action for a level; `irreversible` overrides what the tool's name says."""
        if level is not _MEDIUM:
            return _ACTIONS[level]
        if irreversible is None:
            irreversible = tool_name is not None and self.is_irreversible(tool_name)
        return UncertaintyAction.PAUSE_FOR_HUMAN if irreversible else _ACTIONS[level]
