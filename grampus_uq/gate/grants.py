"""A grant: calls of one tool go ahead unasked, within limits and until a time, because a principal signed it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from pydantic import Field, JsonValue

from grampus_uq.gate.signatures import signed_text
from grampus_uq.records.configuration import Configuration
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.stats.stored_values import FROZEN


class Grant(Configuration):
    """Permission to run one tool without asking, within limits and until a time: "under 50 EUR, for one hour".

    `limits` maps an argument's name to its rule: {"max": x}, {"min": x}, {"equals": v} or {"in": [...]}; an argument
    without a rule is free, an argument with one must be there. `max_uses` counts calls over all workers of the store.
    """

    model_config = FROZEN

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    tool: str = Field(min_length=1)
    limits: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    agent_id: str | None = None
    session_id: str | None = None
    principal: str = Field(min_length=1, max_length=200)
    created_s: float = Field(default_factory=time.time)
    expires_s: float
    max_uses: int | None = Field(default=None, ge=1)
    signature: str | None = None

    def signed_text(self) -> bytes:
        """The canonical text of everything but the signature."""
        return signed_text("grant", self)

    def covers(self, call: ToolCall, *, agent_id: str, session_id: str, now_s: float) -> bool:
        """True when the call lies within the scope and the time has not passed."""
        return (
            call.name == self.tool
            and now_s < self.expires_s
            and self.agent_id in (None, agent_id)
            and self.session_id in (None, session_id)
            and within_limits(call, self.limits)
        )


def within_limits(call: ToolCall, limits: Mapping[str, Mapping[str, JsonValue]]) -> bool:
    """True when each argument that has a rule is there and within it."""
    return all(name in call.arguments and _within(call.arguments[name], rule) for name, rule in limits.items())


def _within(value: JsonValue, rule: Mapping[str, JsonValue]) -> bool:
    """Numbers compare as numbers; a boolean or a text is never within a limit; an unknown rule holds for nothing."""
    for name, bound in rule.items():
        if name == "equals":
            if canonical_json(value) != canonical_json(bound):
                return False
        elif name == "in":
            if not isinstance(bound, list) or canonical_json(value) not in map(canonical_json, bound):
                return False
        elif name in ("max", "min"):
            if not _number(value) or not _number(bound):
                return False
            if (name == "max" and value > bound) or (name == "min" and value < bound):  # type: ignore[operator]  # numbers
                return False
        else:
            return False
    return bool(rule)


def _number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # not NaN
