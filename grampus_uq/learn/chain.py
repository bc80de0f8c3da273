"""A chain instead of a human at once: another look at a doubtful call, by a bigger model, say, and a human last.

The first tier is the agent's own call. Each tier gives an answer (a call) and a score of it; a fitted fusion makes the
score, and whether the answer is the one before, a chance of being right. Below the tier's threshold the next tier
looks; at the last one, and where no tier is left, the call goes out from `release.at_least` on, and else a human is
asked. What goes out wrong is bounded for the chain as a whole.

Learned on recordings in which every tier's answer is known. A third of the cases chooses tiers, fusions and thresholds
for the least expected cost; the others, which have chosen nothing, set the one threshold that the promise is about
(`budget_of_wrong_releases`: of a chain that is fixed, each case has one final answer with one chance).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from grampus_uq.core.chain_rule import AGREES, MOST_TIERS, SCORE, Chain, ChainTier, Expected, as_reading, chance_of
from grampus_uq.core.release import ReleaseRule
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.fit_calibration import fit_fusion
from grampus_uq.stats.arrays import BoolArray, FloatArray, IntArray
from grampus_uq.stats.fusion import LogisticFusion
from grampus_uq.stats.selective import budget_needed, budget_of_wrong_releases
from grampus_uq.stats.trajectory_scores import ForecastTraces

__all__ = ["Chain", "TierCases", "fit_chain"]

_LEVELS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_DRAWS: Final = 1000
MOST_COST: Final = 1e100
"""Of one question or look: sums and squares of many stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TierCases:
    """The answers of one tier to the recorded cases, the same cases for all tiers, one a task.

    score: shape (n,), in [0, 1], higher is better, NaN where there is none. right: shape (n,), whether its answer was.
    agrees: shape (n,), whether its answer equals that of the first tier; None for the first. cost: of one look, in the
    unit of the human's; tokens, seconds: of one look.
    """

    name: str
    score: FloatArray
    right: BoolArray
    agrees: BoolArray | None = None
    cost: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0


class _Given(NamedTuple):
    """The tiers, the chances of their answers, and what is demanded: a budget, how surely, the cost of a question."""

    tiers: Sequence[TierCases]
    chances: Sequence[FloatArray]
    budget: float
    delta: float | None
    question: float


@dataclass(frozen=True, slots=True, eq=False)
class _Route:
    """The end of each case on a fixed route: chance and truth of its last answer, and the tiers that looked."""

    tiers: tuple[int, ...]
    below: tuple[float, ...]
    chance: FloatArray
    right: BoolArray
    looks: FloatArray
    """Shape (tiers, n), 1 where a tier looked."""

    def goes(self, threshold: float | None) -> BoolArray:
        """True where the last answer goes out unasked: nowhere without a threshold."""
        return self.chance >= (np.inf if threshold is None else threshold)


def fit_chain(
    tiers: Sequence[TierCases],
    *,
    budget: float,
    cost_of_question: float,
    delta: float | None = 0.05,
    rng: np.random.Generator,
) -> Chain:
    """Fit the chain of least expected cost under a budget of wrong calls that go out.

    Guarantee: if the cases and a new one are independent draws, one a task, then with probability at least 1 - delta
    over the cases that set the threshold, a new case goes out wrong with probability at most `budget` (delta None: on
    average over those cases). It is about the chain as a whole, whichever tier answers. What breaks it: a tier whose
    model, prompt or order changes, a score computed otherwise, cases chosen by their outcome, a population that moves.
    A human's answer is not covered.

    A tier is kept only where it pays: on the third that chooses, the chain without it costs more, the 95 % bootstrap
    interval of the difference above 0.

    `tiers`: the agent's own calls first, then who may look again, in that order. `budget`: allowed share of all cases
    that go out wrong, in (0, 1). `cost_of_question`: of asking a human, > 0, in the unit of the tiers' costs. `delta`:
    allowed probability of an unlucky calibration; None: a promise on average. `rng` deals the cases to the parts, and
    draws the bootstrap. Raises ConfigurationError for tiers of other shapes or domains, or without right and wrong
    answers to learn on.
    """
    n = _checked(tiers, cost_of_question)
    order = rng.permutation(n)
    learn, rest = order[: n // 3], order[n // 3 :]
    fusions = [_fusion(tier, learn) for tier in tiers]
    chances = [_chances(one, tier) for one, tier in zip(fusions, tiers, strict=True)]
    given = _Given(tiers, chances, budget, delta, cost_of_question)
    best = _paying(given, learn, rng)
    fixed = _route(given, best.tiers, best.below, rest)
    found = budget_of_wrong_releases(fixed.chance, fixed.right, budget=budget, delta=delta)
    release = _rule(found.threshold, budget, delta, len(rest))
    below = (*best.below, None)
    return Chain(
        tiers=tuple(
            ChainTier(
                name=tiers[k].name,
                chance=fusions[k],
                below=limit,
                cost=tiers[k].cost,
                tokens=tiers[k].tokens,
                seconds=tiers[k].seconds,
            )
            for k, limit in zip(best.tiers, below, strict=True)
        ),
        release=release,
        expected=_expected(given, fixed, found.threshold),
    )


def _checked(tiers: Sequence[TierCases], cost_of_question: float) -> int:
    """The number of cases."""
    if not 1 <= len(tiers) <= MOST_TIERS or len({tier.name for tier in tiers}) < len(tiers):
        rule = f"1 to {MOST_TIERS} tiers of distinct names"
        raise ConfigurationError.of("tiers", "fit_chain", rule, [tier.name for tier in tiers])
    if not 0.0 < cost_of_question <= MOST_COST:
        rule = f"a cost > 0, at most {MOST_COST:g}"
        raise ConfigurationError.of("cost_of_question", "fit_chain", rule, cost_of_question)
    n = len(tiers[0].right)
    for number, tier in enumerate(tiers):
        agrees_fits = tier.agrees is None if number == 0 else tier.agrees is not None and tier.agrees.shape == (n,)
        if tier.score.shape != (n,) or tier.right.shape != (n,) or not agrees_fits:
            rule = f"of the same {n} cases, with `agrees` for all but the first"
            raise ConfigurationError.of("tiers", "fit_chain", rule, tier.name)
        known = tier.score[~np.isnan(tier.score)]
        costs = (tier.cost, tier.tokens, tier.seconds)
        if ((known < 0.0) | (known > 1.0)).any() or not all(0.0 <= cost <= MOST_COST for cost in costs):
            rule = f"of scores in [0, 1] and cost, tokens and seconds from 0 to {MOST_COST:g}"
            raise ConfigurationError.of("tiers", "fit_chain", rule, tier.name)
    return n


def _readings(tier: TierCases) -> dict[str, FloatArray]:
    found = {SCORE: tier.score}
    if tier.agrees is not None:
        found[AGREES] = np.where(tier.agrees, as_reading(True), as_reading(False))
    return found


def _chances(fusion: LogisticFusion, tier: TierCases) -> FloatArray:
    """As a live call has them, bit for bit; NaN where there is none."""
    scores = [None if math.isnan(score) else score for score in tier.score.tolist()]
    agrees = [None] * len(scores) if tier.agrees is None else tier.agrees.tolist()
    found = (chance_of(fusion, *readings) for readings in zip(scores, agrees, strict=True))
    return np.array([math.nan if chance is None else chance for chance in found], dtype=np.float64)


def _fusion(tier: TierCases, cases: IntArray) -> LogisticFusion:
    steps = np.ones(len(cases), dtype=np.intp)
    streams = {name: ForecastTraces(forecasts=values[cases], lengths=steps) for name, values in _readings(tier).items()}
    return fit_fusion(streams, tier.right[cases].astype(np.float64))


def _route(given: _Given, chosen: tuple[int, ...], below: tuple[float, ...], cases: IntArray) -> _Route:
    """Follow each case to the tier at which it ends."""
    tiers, chances = given.tiers, given.chances
    chance, right = chances[chosen[0]][cases], tiers[chosen[0]].right[cases]
    looks = np.zeros((len(tiers), len(cases)))
    looks[chosen[0]] = 1.0
    on = np.ones(len(cases), dtype=np.bool_)
    for limit, k in zip(below, chosen[1:], strict=True):
        on = on & ~(chance >= limit)  # one without a chance goes on, too
        looks[k] = on
        chance = np.where(on, chances[k][cases], chance)
        right = np.where(on, tiers[k].right[cases], right)
    return _Route(chosen, below, chance, right, looks)


def _cost(given: _Given, route: _Route, threshold: float | None) -> FloatArray:
    """The cost of each case: the looks, and a question where it does not go out."""
    looks = np.array([tier.cost for tier in given.tiers]) @ route.looks
    return np.asarray(looks + given.question * ~route.goes(threshold), dtype=np.float64)


def _candidates(chances: Sequence[FloatArray], chosen: tuple[int, ...]) -> Iterator[tuple[float, ...]]:
    """Thresholds for all tiers but the last: deciles of each one's chances; 1 where all cases go on."""
    grids = []
    for k in chosen[:-1]:
        known = chances[k][~np.isnan(chances[k])]
        grids.append(sorted({*np.quantile(known, _LEVELS).tolist(), 1.0}) if len(known) else [1.0])
    yield from itertools.product(*grids)


def _cheapest(given: _Given, chosen: tuple[int, ...], learn: IntArray) -> tuple[_Route, FloatArray]:
    """The thresholds of least mean cost for these tiers, as far as the third that chooses can tell."""
    found = []
    for below in _candidates([one[learn] for one in given.chances], chosen):
        route = _route(given, chosen, below, learn)
        out = budget_of_wrong_releases(route.chance, route.right, budget=given.budget, delta=given.delta)
        found.append((route, _cost(given, route, out.threshold)))
    return min(found, key=lambda one: float(one[1].mean()))


def _paying(given: _Given, learn: IntArray, rng: np.random.Generator) -> _Route:
    """The cheapest chain of tiers each of which pays: dropped one by one, the least useful first."""
    chosen = tuple(range(len(given.tiers)))
    route, cost = _cheapest(given, chosen, learn)
    while len(chosen) > 1:
        without = [_cheapest(given, tuple(k for k in chosen if k != drop), learn) for drop in chosen[1:]]
        shorter, saved = min(without, key=lambda one: float(one[1].mean()))
        draws = rng.integers(0, len(cost), size=(_DRAWS, len(cost)))
        if np.quantile((saved - cost)[draws].mean(axis=1), 0.025) > 0.0:
            break
        chosen, route, cost = shorter.tiers, shorter, saved
    return route


def _rule(threshold: float | None, budget: float, delta: float | None, cases: int) -> ReleaseRule:
    rule = ReleaseRule(at_least=threshold, mode="wrong_releases", target=budget, delta=delta, runs=cases)
    if threshold is None:
        needed = budget_needed(budget, delta)
        lacks = f"{cases} cases set no threshold for a budget of {budget:g}; without a wrong one it takes {needed}."
        return rule.model_copy(update={"shortage": lacks})
    sure = "on average over draws of" if delta is None else f"with probability at least {1.0 - delta:g} over"
    promise = (
        f"At most {budget:.1%} of all calls that the chain sees go out wrong, whichever tier answers, {sure} the "
        f"{cases} cases that set the threshold, if these and new ones are independent draws of one population, and "
        "labels were given without regard to how a run went or scored."
    )
    return rule.model_copy(update={"guarantee": promise})


def _expected(given: _Given, route: _Route, threshold: float | None) -> Expected:
    tiers = given.tiers
    shares = route.looks.mean(axis=1)
    goes = route.goes(threshold)
    return Expected(
        looks={tiers[k].name: float(shares[k]) for k in route.tiers},
        questions=float(1.0 - goes.mean()),
        wrong=float((goes & ~route.right).mean()),
        cost=float(_cost(given, route, threshold).mean()),
        tokens=float(sum(shares[k] * tiers[k].tokens for k in route.tiers)),
        seconds=float(sum(shares[k] * tiers[k].seconds for k in route.tiers)),
    )
