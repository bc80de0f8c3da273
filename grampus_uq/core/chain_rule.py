"""The rule of a chain (`learn.fit_chain`): release a call, look at it again, or ask a human."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, Field, model_validator

from grampus_uq.core.release import ReleaseRule
from grampus_uq.stats.fusion import LogisticFusion
from grampus_uq.stats.stored_values import FROZEN

SCORE: Final = "score"
AGREES: Final = "agrees"
MOST_TIERS: Final = 4
"""The agent and three that look again: more are no more than that many thresholds to overfit."""


def as_reading(agrees: bool) -> float:
    """The agreement of an answer as a reading, which has log-odds; the fit finds what it is worth."""
    return 0.9 if agrees else 0.1


def chance_of(fusion: LogisticFusion, score: float | None, agrees: bool | None) -> float | None:
    """The chance that a tier's answer is right; None without a score where every case learned on had one."""
    if score is None and SCORE in fusion.without_gaps:
        return None
    return fusion({SCORE: score, AGREES: None if agrees is None else as_reading(agrees)})


class ChainTier(BaseModel):
    """One tier of a fitted chain: its chance of being right, and below which the next one looks (None: the last)."""

    model_config = FROZEN

    name: str
    chance: LogisticFusion
    below: float | None = Field(default=None, ge=0.0, le=1.0)
    cost: float = Field(default=0.0, ge=0.0)
    tokens: float = Field(default=0.0, ge=0.0)
    seconds: float = Field(default=0.0, ge=0.0)


class Expected(BaseModel):
    """The expected course of one case, measured on the cases that set the chain's threshold.

    looks: share of the cases that each tier looks at, by name. questions: share that a human is asked. wrong: share of
    all cases that goes out wrong.
    """

    model_config = FROZEN

    looks: dict[str, float]
    questions: float
    wrong: float
    cost: float
    tokens: float
    seconds: float


class Chain(BaseModel):
    """A fitted chain, frozen and JSON-able. `release` says when a call goes out, and what is promised of those."""

    model_config = FROZEN

    tiers: tuple[ChainTier, ...] = Field(min_length=1, max_length=MOST_TIERS)
    release: ReleaseRule
    expected: Expected

    @model_validator(mode="after")
    def _last_has_no_next(self) -> Chain:
        if self.tiers[-1].below is not None or any(tier.below is None for tier in self.tiers[:-1]):
            raise ValueError("The last tier has no `below`, and every other one has it.")
        return self

    def after(
        self, tier: int, score: float | None, agrees: bool | None = None
    ) -> tuple[Literal["release", "next", "ask"], float | None]:
        """The next action after a tier has looked, and the chance that its answer is right.

        `tier` counts from 0 for the agent itself. `score` of its answer is as in the recordings, None where there is
        none; where every recorded case had one, an answer without it has no chance. `agrees`: whether its answer equals
        the agent's, name and arguments; None for the agent. "release": this tier's answer may go out; "next": let the
        next tier look; "ask": ask a human. A changed call is a new call: it goes through the gate like any other.
        Without a chance the next tier looks, or a human.
        """
        one = self.tiers[tier]
        chance = chance_of(one.chance, score, agrees)
        if one.below is not None and (chance is None or chance < one.below):
            return "next", chance
        least = self.release.at_least
        goes = least is not None and chance is not None and chance >= least
        return ("release" if goes else "ask"), chance
