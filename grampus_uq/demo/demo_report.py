"""Figures of a run of the demo: how many answers were published, paused and right, and the worth of each signal.

All of it is counted from what happened; a figure that is not defined (no wrong answer, no reading) is None, never 0.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from grampus_uq.core.propagator import UncertaintyPropagator
from grampus_uq.core.state import Profile
from grampus_uq.demo.demo_run import TOOL, Answered, Fate
from grampus_uq.records.values import Reading, TokenUsage
from grampus_uq.records.vocabulary import UncertaintyAction
from grampus_uq.signals.registry import LABELS
from grampus_uq.stats.bootstrap import bootstrap
from grampus_uq.stats.ranking import auroc, auroc_rows

FUSED: Final = "fused"
NAMES: Final = {**LABELS, FUSED: "fused confidence"}
_STEP_TYPE: Final = "llm_call"
_DRAWS: Final = 2_000
_LEAST_OF_EACH: Final = 5
_NO_PROMISE: Final = (
    "The tiers carry no guarantee: nothing bounds how many right answers they pause or wrong ones they publish."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Answers with the same fate: how many, and how many of them the answer key calls right."""

    fate: Fate
    n: int
    right: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalWorth:
    """How well one signal tells right answers from wrong ones.

    `auroc` is the probability that a right answer has the higher reading, ties counting half: 1 is best, 0.5 is
    chance. None when no answer, or only right or only wrong ones, have a reading. `low` and `high` are its 95 %
    percentile interval over resampled questions, None with fewer than five right or five wrong ones: resampling so few
    says nothing. `n` counts the answers with a reading, `missing` those without, by reason.
    """

    source: str
    n: int
    missing: dict[str, int]
    auroc: float | None
    low: float | None
    high: float | None
    calls: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Model calls, tokens and US dollars (None: no price is known)."""

    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None

    @property
    def tokens(self) -> int:
        """Tokens in and out."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The figures of a run; `remarks` are sentences that explain them."""

    asked: int
    seconds: float
    answered: int
    right: int
    advisory: bool
    groups: tuple[Group, ...]
    signals: tuple[SignalWorth, ...]
    agent: Spent
    monitor: Spent
    wrong_published: tuple[Answered, ...]
    remarks: tuple[str, ...]


def summarise(answers: Sequence[Answered], profile: Profile, promises: Sequence[str] = ()) -> DemoReport:
    """Count a run, finished or interrupted. With an advisory profile the groups are what the policy wanted.

    `promises` are those of a fitted profile; without one the remarks explain the effect of the default tiers.
    """
    answered = [one for one in answers if one.right is not None]
    groups = _groups(answers)
    published = [one for one in answered if _wanted(one) == "published"]
    signals = tuple(_signals(answered))
    return DemoReport(
        asked=len(answers),
        seconds=max((one.started_s + one.duration_s for one in answers), default=0.0)
        - min((one.started_s for one in answers), default=0.0),
        answered=len(answered),
        right=sum(one.right is True for one in answered),
        advisory=profile.advisory,
        groups=groups,
        signals=signals,
        agent=_spent_by_agent(answered),
        monitor=_spent_by_monitor(answered),
        wrong_published=tuple(one for one in published if not one.right),
        remarks=(*promises, *_remarks_on(signals))
        if promises
        else (*_remarks(answered, published, profile), *_remarks_on(signals), _NO_PROMISE),
    )


def _wanted(one: Answered) -> Fate:
    """The fate that the policy wanted; the same as the real one unless the monitor was advisory."""
    if one.wanted is None:
        return one.fate
    if one.wanted is UncertaintyAction.ABORT:
        return "aborted"
    return "paused" if one.wanted.stops else "published"


def _groups(answers: Sequence[Answered]) -> tuple[Group, ...]:
    n = Counter(_wanted(one) for one in answers)
    right = Counter(_wanted(one) for one in answers if one.right)
    fates: tuple[Fate, ...] = ("published", "paused", "aborted", "unanswered")
    return tuple(Group(fate=fate, n=n[fate], right=right[fate]) for fate in fates if n[fate] or fate != "unanswered")


def _signals(answered: Sequence[Answered]) -> Iterator[SignalWorth]:
    sources = dict.fromkeys(reading.source for one in answered for reading in one.readings)
    for source in sources:
        pairs = [(reading, one.right is True) for one in answered if (reading := _reading(one, source)) is not None]
        readings = [reading for reading, _ in pairs]
        yield _worth(
            source,
            [(reading.value, right) for reading, right in pairs if reading.value is not None],
            missing=Counter(str(reading.reason) for reading in readings if reading.value is None)
            + Counter({"not_asked": len(answered) - len(readings)}),
            calls=sum(reading.calls for reading in readings),
            tokens=sum(reading.input_tokens + reading.output_tokens for reading in readings),
        )
    fused = [
        (one.assessment.fused_confidence, one.right is True)
        for one in answered
        if one.assessment is not None and any(reading.value is not None for reading in one.readings)
    ]
    unread = Counter({"no_reading": len(answered) - len(fused)})
    yield _worth(FUSED, fused, missing=+unread, calls=0, tokens=0)


def _reading(one: Answered, source: str) -> Reading | None:
    return next((reading for reading in one.readings if reading.source == source), None)


def _worth(
    source: str, pairs: Sequence[tuple[float, bool]], *, missing: Counter[str], calls: int, tokens: int
) -> SignalWorth:
    scores = np.array([value for value, _ in pairs], dtype=np.float64)
    right = np.array([known for _, known in pairs], dtype=np.float64)
    area = auroc(scores, right) if len(pairs) else None
    low = high = None
    if min(right.sum(), len(right) - right.sum()) >= _LEAST_OF_EACH:
        # The seed is fixed so that the same recordings always give the same interval.
        interval = bootstrap(
            lambda weights: auroc_rows(scores, right, weights), len(pairs), rng=np.random.default_rng(0), draws=_DRAWS
        )
        low, high = interval.low, interval.high
    return SignalWorth(
        source=source,
        n=len(pairs),
        missing=dict(missing),
        auroc=area,
        low=low,
        high=high,
        calls=calls,
        tokens=tokens,
    )


def _spent_by_agent(answered: Sequence[Answered]) -> Spent:
    usage = sum((one.usage for one in answered), start=TokenUsage())
    return Spent(
        calls=len(answered),
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost_usd=usage.cost_usd,
    )


def _spent_by_monitor(answered: Sequence[Answered]) -> Spent:
    readings = [reading for one in answered for reading in one.readings]
    costs = [reading.cost_usd for reading in readings if reading.cost_usd is not None]
    return Spent(
        calls=sum(reading.calls for reading in readings),
        input_tokens=sum(reading.input_tokens for reading in readings),
        output_tokens=sum(reading.output_tokens for reading in readings),
        cost_usd=sum(costs) if costs else None,
    )


def _remarks(answered: Sequence[Answered], published: Sequence[Answered], profile: Profile) -> Iterator[str]:
    """Explain why all or no answers were paused, and why an abort was out of reach."""
    assessments = [one.assessment for one in answered if one.assessment is not None]
    confidences = [assessment.propagated_confidence for assessment in assessments]
    fused = [assessment.fused_confidence for assessment in assessments]
    if not confidences:
        return
    paused = "would have been paused" if profile.advisory else "was paused"
    if not isinstance(profile.propagator, UncertaintyPropagator):
        return  # the remarks below are the arithmetic of the default propagator
    policy, weight = profile.policy, profile.propagator.weight(_STEP_TYPE)
    if not published:
        needed = max(0.0, (policy.low_threshold - (1.0 - weight)) / weight)
        yield (
            f"Everything {paused}. {TOOL} cannot be undone, so the policy clears it only at LOW, a confidence of "
            f"{policy.low_threshold:.2f} or more; the highest was {max(confidences):.2f}. From a start at 1, one "
            f"{_STEP_TYPE} step stays LOW with a fused confidence of {needed:.2f} or more; the highest was "
            f"{max(fused):.2f}. Weights, biases and thresholds are the defaults, not fitted to this model."
        )
    elif len(published) == len(answered):
        yield (
            f"Nothing {paused}: the lowest confidence was {min(confidences):.2f}, and LOW begins at "
            f"{policy.low_threshold:.2f}. The thresholds are the defaults, not fitted to this model."
        )
    if 1.0 - weight >= policy.high_threshold:
        yield (
            f"An abort was out of reach: one {_STEP_TYPE} step (weight {weight:.2f}) cannot take the confidence from 1 "
            f"below {1.0 - weight:.2f}, and an abort needs less than {policy.high_threshold:.2f}."
        )


def _remarks_on(signals: Sequence[SignalWorth]) -> Iterator[str]:
    """Say which signals mislead here, and when one of them alone does better than the fusion."""
    for worth in signals:
        if worth.high is not None and worth.high < 0.5:
            name = NAMES.get(worth.source, worth.source)
            yield f"{name} misleads here: right answers tend to have the lower reading."
    fused = next((worth for worth in signals if worth.source == FUSED), None)
    if fused is None or fused.auroc is None:
        return
    of_all = [(worth.auroc, worth.source) for worth in signals if worth.auroc is not None and worth.n == fused.n]
    best, source = max(of_all)
    if best > fused.auroc and fused.low is not None:
        yield (
            f"{NAMES.get(source, source)} alone orders these answers better (AUROC {best:.2f}) than the default fusion "
            f"of all signals ({fused.auroc:.2f})."
        )
