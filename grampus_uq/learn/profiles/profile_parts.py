"""The account of each part of a profile: fitted, or not and why, what it lacks, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`why` is one sentence; `needs` says how many labels more would change it, "" when none is missing."""

    name: str
    status: Literal["fitted", "not fitted", "not asked for"]
    why: str
    needs: str = ""
    promise: str = ""
    figures: Mapping[str, JsonValue] = field(default_factory=dict)
