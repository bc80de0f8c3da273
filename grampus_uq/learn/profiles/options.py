"""Options of a fit of everything: levels, targets, shares, seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.chain import MOST_COST
from grampus_uq.records.configuration import checked
from grampus_uq.stats.ranks import check_level


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """Choices of `fit_profile`; every share is in (0, 1).

    Attributes:
        false_alarms: allowed probability that a run which would succeed is ever paused by the detector.
        assurance: probability that a calibration was not unlucky, for both promises; 0: on average only.
        accuracy: wanted share of right ones among the released irreversible calls. None: not asked for.
        wrong_releases: allowed share of runs with an irreversible call in which it is released and that fail: what a
            small set of labels buys. Beside accuracy: what is tried where that cannot be certified. None: not asked
            for; beside accuracy `min(.05, 1 - accuracy)`.
        pause_share: instead, pause at most this share of first irreversible calls.
        certified_only: release nothing rather than by an estimated threshold, when none can be certified.
        keep_p_success: keep the `p_success` of the base profile, so that every label may set thresholds. Done in any
            case where there are too few labels to learn one.
        labels: how the labelled runs were chosen among the recorded ones: "random" or "by_score" (the best by
            `p_success`, say); a run without a label then counts as wrong, and the promises hold however they were
            chosen. None: by score where the labelled ones score otherwise than the rest (Mann-Whitney at .001), or
            where every labelled run with an irreversible call succeeded and others like it have no label.
        streams: what the detector watches; None: `p_success` where it could be fitted, else the calls' own
            probability where each has one and the detector looks at calls, else `unaided`, or `fused` where the
            word of the model is trusted or nearly all there is.
        trust_stated: let `p_success` use the confidence that the model states, though other readings exist: whoever can
            write what the agent reads may then release its calls.
        held_out: share of the runs that set thresholds and teach nothing, where anything is learned.
        detector: fit one.
        detector_at: what it looks at: "calls", irreversible ones alone, each by the turn that proposes it, or "steps",
            every step of the model. None: calls, where at least half of the runs have one.
        attribution_level: wanted coverage of error sets.
        task_key: metadata that names a run's task.
        runs_per_day: for the forecast of pauses; None: as the recordings say.
        question: cost of asking a human, > 0. Given, a chain of the recorded looks is fitted and nothing else, within
            the budget `wrong_releases`: of the calls that the chain sees.
        look_costs: cost of one look of each tier, in the unit of `question`; None: its seconds.
        seed: draws splits and ties.
    """

    false_alarms: float = 0.1
    assurance: float = 0.9
    accuracy: float | None = None
    wrong_releases: float | None = None
    pause_share: float | None = None
    certified_only: bool = False
    keep_p_success: bool = False
    labels: Literal["random", "by_score"] | None = None
    streams: tuple[str, ...] | None = None
    trust_stated: bool = False
    held_out: float = 0.5
    detector: bool = True
    detector_at: Literal["calls", "steps"] | None = None
    attribution_level: float = 0.8
    task_key: str = "task_id"
    runs_per_day: float | None = None
    question: float | None = None
    look_costs: Mapping[str, float] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        shares = ("false_alarms", "accuracy", "wrong_releases", "pause_share", "held_out", "attribution_level")
        for name in shares:
            value = getattr(self, name)
            if value is not None:
                check_level(name, "FitOptions", value)
        if not (0.0 <= self.assurance < 1.0 and (self.delta is None or 0.0 < self.delta < 1.0)):
            rule, way_out = "0, or in [1e-12, 1 - 1e-12]", "0.9 leaves a 10 % chance."
            raise ConfigurationError.of("assurance", "FitOptions", rule, self.assurance, way_out)
        if self.pause_share is not None and (self.accuracy is not None or self.wrong_releases is not None):
            rule = "one of accuracy or wrong_releases, and pause_share"
            raise ConfigurationError.of("accuracy", "FitOptions", rule, (self.accuracy, self.pause_share))
        self._check_looks()
        if self.labels not in (None, "random", "by_score"):
            raise ConfigurationError.of("labels", "FitOptions", "random or by_score", self.labels)
        if self.detector_at not in (None, "calls", "steps"):
            raise ConfigurationError.of("detector_at", "FitOptions", "calls or steps", self.detector_at)

    def _check_looks(self) -> None:
        if self.question is None and self.look_costs is not None:
            raise ConfigurationError.of("look_costs", "FitOptions", "left out without a question", self.look_costs)
        if self.question is not None and not 0.0 < self.question <= MOST_COST:
            raise ConfigurationError.of("question", "FitOptions", f"a cost > 0, at most {MOST_COST:g}", self.question)
        if not all(0.0 <= cost <= MOST_COST for cost in (self.look_costs or {}).values()):
            raise ConfigurationError.of("look_costs", "FitOptions", f"costs from 0 to {MOST_COST:g}", self.look_costs)
        if self.question is not None and (self.accuracy is not None or self.pause_share is not None):
            rule = "left out with a question, whose chain keeps to wrong_releases"
            raise ConfigurationError.of("accuracy", "FitOptions", rule, (self.accuracy, self.pause_share))

    @property
    def delta(self) -> float | None:
        """Allowed probability of an unlucky calibration; None: a promise on average."""
        return None if self.assurance == 0.0 else round(1.0 - self.assurance, 12)
