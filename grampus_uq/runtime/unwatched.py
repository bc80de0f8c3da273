"""Running without a monitor, said in so many words."""

from __future__ import annotations

from dataclasses import dataclass, field

from grampus_uq.core.policy import UncertaintyPolicy

__all__ = ["UNWATCHED", "Unwatched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwatched:
    """In a monitor's place: nothing is read and nothing judged, irreversible tools run at once.

    Of the policy only `always_ask_tool_names` counts: calls of these tools still wait for a human.
    """

    policy: UncertaintyPolicy = field(default_factory=UncertaintyPolicy)


UNWATCHED = Unwatched()
