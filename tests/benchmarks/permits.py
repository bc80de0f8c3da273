"""Earned thresholds against rules of thumb and an oracle: who asks how often, and who breaks the promise.

    python -m tests.benchmarks.permits [--populations 500] [--long 50000] [--only TEXT] [--json]
    python -m tests.benchmarks.permits --recordings SET... [--populations 500] [--json]

The target is "at most epsilon of all calls go out wrong", at 95 %. A row is one world and one rule over all populations
of 1,000 calls. `exceeded`: share of populations in which the rule ever let out more than epsilon; `ceiling`: the
largest that 5 % still explains (exact binomial); `first_answer`: median answers before the first permission, that is,
before a threshold came into force; `revoked_within_100`: after call 1,000 of some worlds the share that would go out
wrong, or the share of wrong calls in the scope, becomes five times epsilon: populations withdrawn within 100 further
answers; `falsely_revoked`: a fifth of the populations over `--long` calls without a change (`--long 0` leaves these
rows out). `--only` takes the worlds whose name holds the text. The rule "labels are free" sees the truth of every call
whether it is asked about or not and audits nothing: what these bets would ask at the least, whatever the audits. "risk
known, fastest growth" takes the risk of every threshold for its stakes and audits as the rule does. "no rule asks less"
is a bound on every rule that keeps the promise and sees all that (`least_asked`). Seeds 0 and 2; the constants of the
rule were chosen on other worlds and on seeds from 9000 on.

The second form plays recorded runs of tool agents (sets as of `tests.benchmarks.tool_agent`; the case is the first
irreversible call, wrong unless it is the right one) in `--populations` random orders, by the belief that the default
policy holds calls by and by the least token probability of the arguments alone, against asking as often at random.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.learn.permit_simulation import simulate_permit
from grampus_uq.stats import earned_threshold as earned
from tests.benchmarks import tool_agent
from tests.benchmarks._report import emit, existing, positive, usage_errors
from tests.binomial import binomial_ceiling

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

CALLS = 1000
DELTA = 0.05
SHARES = np.linspace(0.1, 0.95, 48)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Normal scores of right and wrong calls; thresholds at fixed shares of past scores, which need no labels.

    Attributes:
        base: share of wrong calls, or a function of the call's number.
        missed: share of wrong calls that reviewers approve.
        run: consecutive calls that share one luck: a fifth of the runs are eight times as often wrong as the others.
        lost: share of calls whose update never reaches the store.
        step: scores are rounded to multiples of it; 0 leaves them.
        waits: share of wrong calls while anything may go out: an adversary who orders the calls.
        turns: share of wrong calls while calls may go out unseen: an agent that sees whether its calls wait.
        turns_after: the call from which on.
        audit_rate: the least one.
        then: share of wrong calls in the scope from call 1,000 on.
        then_out: share of all calls that would go out wrong from call 1,000 on, whatever their score.
        holds: whether the assumptions of the promise hold.
    """

    name: str
    epsilon: float
    base: float | Callable[[int], float]
    auroc: float = 0.86
    missed: float = 0.0
    run: int = 1
    lost: float = 0.0
    step: float = 0.0
    waits: float | None = None
    turns: float | None = None
    turns_after: int = 0
    audit_rate: float = 0.05
    then: float | None = None
    then_out: float | None = None
    holds: bool = True

    @property
    def shift(self) -> float:
        """Distance between the mean scores of right and wrong calls."""
        return float(np.sqrt(2.0) * scipy.special.ndtri(self.auroc))

    def wrong_share(self, call: int) -> float:
        """Share of wrong calls at this call."""
        return self.base(call) if callable(self.base) else self.base

    @property
    def cuts(self) -> FloatArray:
        """Thresholds, descending, at fixed shares of the scores of the first calls."""
        line = np.linspace(-8.0, 10.0, 36_001)
        wrong = max(self.wrong_share(0), 0.01)
        above = wrong * scipy.stats.norm.sf(line) + (1.0 - wrong) * scipy.stats.norm.sf(line - self.shift)
        cuts = np.interp(1.0 - SHARES, 1.0 - above, line)
        return np.unique(np.round(cuts / self.step) * self.step)[::-1] if self.step else cuts

    def wrong_at_or_above(self) -> FloatArray:
        """Chance that a wrong call reaches each threshold."""
        return np.asarray(scipy.stats.norm.sf(self.cuts - self.step / 2.0))

    def target(self) -> earned.Target:
        """The promise, with this world's thresholds."""
        thresholds = tuple(self.cuts.tolist())
        return earned.Target(thresholds=thresholds, epsilon=self.epsilon, delta=DELTA, audit_rate=self.audit_rate)


class Rule(Protocol):
    """What decides which calls go out: `asks` before the call, `take` after it."""

    out: BoolArray
    """Shape (populations, places): True where a call of this place goes out unless it is audited."""

    def audit(self) -> FloatArray:
        """Probability that a call which could go out is asked about."""

    def take(self, at: IntArray, draw: FloatArray, wrong: BoolArray, audit: FloatArray, stored: BoolArray) -> None:
        """Learn from one call."""

    revoked: BoolArray


def asked(out: BoolArray, at: IntArray, draw: FloatArray, audit: FloatArray) -> BoolArray:
    """Which calls are asked about, one of each population."""
    return np.asarray(~out[np.arange(len(at)), at] | (draw < audit))


class Earned:
    """The rule of this package."""

    def __init__(self, world: World, populations: int) -> None:
        self.target = world.target()
        self.state = earned.nothing_earned(self.target, (populations,))
        self.places = np.arange(len(self.target.thresholds) + 1)
        self.out = np.zeros((populations, len(self.places)), dtype=np.bool_)
        self.revoked = np.zeros(populations, dtype=np.bool_)

    def audit(self) -> FloatArray:
        return earned.audit_probability(self.target, self.state)

    def take(self, at: IntArray, draw: FloatArray, wrong: BoolArray, audit: FloatArray, stored: BoolArray) -> None:
        level = earned.level(self.target, self.state)
        state = earned.update(self.target, self.state, at, draw, wrong, in_force=level, audit=audit)
        state = state if stored.all() else earned.chosen(stored, state, self.state)
        stands = earned.level(self.target, state) > 0
        again = np.logical_or(*earned.broken(self.target, state)) & stands
        self.revoked = again | ((level > 0) & ~stands)
        self.state = earned.chosen(again, earned.begun_anew(self.target, state), state) if again.any() else state
        self.out = self.places < earned.level(self.target, self.state)[:, None]


class Free(Earned):
    """Sees the truth of every call, asked about or not, and audits nothing: a bound on what these bets can save."""

    def __init__(self, world: World, populations: int) -> None:
        super().__init__(replace(world, audit_rate=1e-12), populations)

    def audit(self) -> FloatArray:
        return np.zeros(len(self.out))

    def take(self, at: IntArray, draw: FloatArray, wrong: BoolArray, audit: FloatArray, stored: BoolArray) -> None:
        self.state = earned.update(self.target, self.state, at, draw, wrong, in_force=0, audit=1.0)
        self.out = self.places < earned.level(self.target, self.state)[:, None]


class Knowing(Earned):
    """The rule of this package with the stakes under which evidence grows fastest, from the true risk: see `stakes`."""

    def __init__(self, world: World, populations: int) -> None:
        super().__init__(world, populations)
        self.risk = world.wrong_share(0) * world.wrong_at_or_above()

    def take(self, at: IntArray, draw: FloatArray, wrong: BoolArray, audit: FloatArray, stored: BoolArray) -> None:
        eps, q, before = self.target.share, audit[:, None], self.state
        could, level = self.out[np.arange(len(at)), at], self.out.sum(axis=1)
        above = np.minimum(np.append(0.0, self.risk)[level][:, None], self.risk)
        below = self.risk - above
        assumed = (above + q * below) / np.maximum(eps - (1.0 - q) * below, 1e-9)
        stake = np.clip(1.0 - np.where(self.risk < eps, assumed, 1.0), 0.0, 0.9999) / (1.0 / q - eps)
        seen = asked(self.out, at, draw, audit) & wrong
        lost = seen[:, None] & (at[:, None] <= self.places[:-1])
        wealth = before.log_wealth + np.log1p(stake * (eps - lost / np.where(could, audit, 1.0)[:, None]))
        super().take(at, draw, wrong, audit, stored)
        grown = replace(self.state, log_wealth=wealth, log_peak=np.maximum(before.log_peak, wealth))
        self.state = earned.chosen(stored & (self.state.calls[:, 0] > 0.0), grown, self.state)
        self.out = self.places < earned.level(self.target, self.state)[:, None]


class Simple(Earned):
    """Plug-in stakes and a fixed audit rate of .1: what a first version does."""

    def __init__(self, world: World, populations: int) -> None:
        super().__init__(world, populations)
        self.log_wealth = np.zeros((populations, len(self.places) - 1))
        self.sums = np.zeros((2, *self.log_wealth.shape))
        self.n = 0

    def audit(self) -> FloatArray:
        return np.where(self.out.any(axis=1), 0.1, 1.0)

    def take(self, at: IntArray, draw: FloatArray, wrong: BoolArray, audit: FloatArray, stored: BoolArray) -> None:
        eps = self.target.epsilon
        mean, square = (self.sums + 0.5 * eps) / (self.n + 1.0)
        stake = np.clip((eps - mean) / np.maximum(square - mean**2 + (eps - mean) ** 2, 1e-9), 0.0, None)
        stake = np.minimum(stake, 0.5 / (1.0 / audit - eps)[:, None])
        weight = 1.0 / np.where(self.out[np.arange(len(at)), at], audit, 1.0)
        seen = asked(self.out, at, draw, audit) & wrong
        x = np.where(seen[:, None] & (at[:, None] <= self.places[:-1]), weight[:, None], 0.0)
        self.log_wealth += np.log1p(stake * (eps - x))
        self.sums += np.stack([x, x**2])
        self.n += 1
        grown = np.cumprod(self.log_wealth >= -np.log(DELTA), axis=1).sum(axis=1)
        self.out |= self.places < grown[:, None]


class FiveApprovals(Earned):
    """A place goes out for good after five approvals there without a denial in between."""

    row = 5

    def audit(self) -> FloatArray:
        return np.zeros(len(self.out))

    def take(self, at: IntArray, draw: FloatArray, wrong: BoolArray, audit: FloatArray, stored: BoolArray) -> None:
        if not hasattr(self, "streak"):
            self.streak = np.zeros(self.out.shape)
        here = self.reached(at) & asked(self.out, at, draw, audit)[:, None]
        self.streak = np.where(here & wrong[:, None], 0.0, self.streak + here)
        self.out |= self.streak >= self.row

    def reached(self, at: IntArray) -> BoolArray:
        """Which streaks this call belongs to."""
        return np.asarray(self.places == at[:, None])


class FiftyNine(FiveApprovals):
    """A threshold is in force for good once 59 answered calls in a row held no wrong one at or above it."""

    row = 59

    def take(self, at: IntArray, draw: FloatArray, wrong: BoolArray, audit: FloatArray, stored: BoolArray) -> None:
        if not hasattr(self, "streak"):
            self.streak = np.zeros(self.out.shape)
        seen = asked(self.out, at, draw, audit)[:, None]
        above = (at[:, None] <= self.places) & seen & wrong[:, None]
        self.streak = np.where(above, 0.0, self.streak + seen)
        self.out[:, :-1] |= self.streak[:, :-1] >= self.row


class Oracle(Earned):
    """Knows the risk of every threshold, and audits at the least rate."""

    def __init__(self, world: World, populations: int) -> None:
        super().__init__(world, populations)
        self.world, self.call, self.above = world, 0, world.wrong_at_or_above()
        self._choose()

    def audit(self) -> FloatArray:
        return np.full(len(self.out), self.target.audit_rate)

    def take(self, at: IntArray, draw: FloatArray, wrong: BoolArray, audit: FloatArray, stored: BoolArray) -> None:
        self.call += 1
        self._choose()

    def _choose(self) -> None:
        share = self.world.wrong_share(self.call) if self.world.waits is None else self.world.waits
        risk = share * self.above
        self.out[:] = self.places < (risk <= self.target.share).sum()


RULES: dict[str, Callable[[World, int], Rule]] = {
    "earned": Earned,
    "risk known, fastest growth": Knowing,
    "simple": Simple,
    "labels are free": Free,
    "five approvals": FiveApprovals,
    "59 of 59": FiftyNine,
    "oracle": Oracle,
}

_MIXED = [(0.02, 0.05, 0.86), (0.05, 0.05, 0.86), (0.02, 0.1, 0.86), (0.05, 0.1, 0.86), (0.05, 0.3, 0.86)]
_MIXED += [(0.05, 0.04, 0.76), (0.05, 0.3, 0.76), (0.05, 0.2, 0.92), (0.02, 0.04, 0.92)]
WORLDS = [World(name=f"base {base}, AUROC {auroc}", epsilon=eps, base=base, auroc=auroc) for eps, base, auroc in _MIXED]
WORLDS += [
    World(name="ties", epsilon=0.05, base=0.1, step=0.5),
    World(name="lost updates, a tenth", epsilon=0.05, base=0.1, lost=0.1),
    World(name="runs of ten calls", epsilon=0.05, base=0.1, run=10, holds=False),
    World(name="a tenth of the wrong approved", epsilon=0.05, base=0.1, missed=0.1, holds=False),
    World(name="drift .04 to .2", epsilon=0.05, base=lambda call: 0.04 + 0.16 * call / CALLS, holds=False),
    World(
        name="swings, .02 to .18 every 400 calls",
        epsilon=0.05,
        base=lambda call: 0.1 - 0.08 * float(np.cos(2.0 * np.pi * call / 400)),
        holds=False,
    ),
    World(name="wrong as soon as one may go out", epsilon=0.05, base=0.03, waits=0.3, holds=False),
    World(name="right first, then half wrong", epsilon=0.05, base=lambda call: 0.5 * (call >= 200), holds=False),
]
CHANGES = [
    World(name="scope: .05 to .25 wrong", epsilon=0.05, base=0.05, then=0.25),
    World(name="out: to five epsilon", epsilon=0.05, base=0.05, then_out=0.25),
    World(name="out: to five epsilon, base .3", epsilon=0.05, base=0.3, then_out=0.25),
    World(name="out: to five epsilon", epsilon=0.02, base=0.05, then_out=0.1),
    World(name="out: to five epsilon, audits .15", epsilon=0.02, base=0.05, then_out=0.1, audit_rate=0.15),
]


def share_of_wrong(world: World, call: int, rule: Rule) -> FloatArray:
    """Share of wrong calls at this call in each population."""
    base = world.wrong_share(call) if world.then is None or call < CALLS else world.then
    out = rule.out.any(axis=1)
    if world.turns is not None:
        return np.where(out & (rule.audit() < 1.0) & (call >= world.turns_after), world.turns, base)
    return np.where(out, base if world.waits is None else world.waits, base)


def draw(world: World, base: FloatArray, rng: np.random.Generator, luck: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Scores and truth of one call in each population."""
    wrong = rng.random(len(luck)) < base * luck
    score = rng.normal(size=len(luck)) + np.where(wrong, 0.0, world.shift)
    return (np.round(score / world.step) * world.step if world.step else score), wrong


def luck_of(world: World, rng: np.random.Generator, populations: int) -> FloatArray:
    """By how much the wrong calls of a run are more frequent than on average."""
    if world.run == 1:
        return np.ones(populations)
    return np.where(rng.random(populations) < 0.2, 8.0, 1.0) / 2.4


@dataclass(frozen=True, slots=True)
class History:
    """What happened, by population; `asked` by call. `wrong_out` of the first thousand calls, and of all."""

    asked: FloatArray
    wrong_out: FloatArray
    all_wrong_out: FloatArray
    exceeded: BoolArray
    first: FloatArray
    revoked_after: FloatArray
    revoked_before: BoolArray


def simulate(world: World, rule: Rule, populations: int, calls: int = CALLS, seed: int = 0) -> History:
    """Play a world; the draws of the world do not depend on the rule."""
    rng, coin = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    above, target = world.wrong_at_or_above(), world.target()
    share_at = np.diff(np.concatenate([[0.0], above, [1.0]]))
    answers = np.zeros(populations)
    asked_share, wrong_out, all_wrong_out = np.zeros(calls), np.zeros(populations), np.zeros(populations)
    exceeded, revoked_before = np.zeros((2, populations), dtype=np.bool_)
    first, revoked_after, answers_after = np.full((3, populations), np.inf)
    luck, extra = np.ones(populations), np.zeros(populations)
    for call in range(calls):
        if call % world.run == 0:
            luck = luck_of(world, rng, populations)
        if call == CALLS:
            answers_after = answers.copy()
            extra = _extra(world, rule, share_at)
        base = share_of_wrong(world, call, rule)
        score, wrong = draw(world, base, rng, luck)
        wrong |= rng.random(populations) < extra
        approved = rng.random(populations) < world.missed
        stored = rng.random(populations) >= world.lost
        at, audit, tossed = earned.place(target, score), rule.audit(), coin.random(populations)
        seen = asked(rule.out, at, tossed, audit)
        first = np.minimum(first, np.where(rule.out.any(axis=1), answers, np.inf))
        answers += seen
        asked_share[call] = seen.mean()
        all_wrong_out += ~seen & wrong
        if call < CALLS:
            wrong_out += ~seen & wrong
            unaudited = 1.0 - np.minimum(rule.audit(), world.audit_rate)
            exceeded |= (rule.out * share_at).sum(axis=1) * base * unaudited > world.epsilon + 1e-12
        rule.take(at, tossed, wrong & ~approved, audit, stored)
        if call < CALLS or (world.then is None and world.then_out is None):
            revoked_before |= rule.revoked
        else:
            revoked_after = np.where(rule.revoked, np.minimum(revoked_after, answers - answers_after), revoked_after)
    share = wrong_out / min(calls, CALLS)
    return History(asked_share, share, all_wrong_out, exceeded, first, revoked_after, revoked_before)


def _extra(world: World, rule: Rule, share_at: FloatArray) -> FloatArray:
    """Chance that a call becomes wrong whatever its score, so that `then_out` of all calls would go out wrong."""
    if world.then_out is None:
        return np.zeros(len(rule.out))
    out = np.concatenate([[0.0], SHARES, [1.0]])
    share = (rule.out * np.diff(out)).sum(axis=1)
    risk = (rule.out * share_at).sum(axis=1) * world.wrong_share(CALLS)
    return np.clip((world.then_out - risk) / np.maximum(share - risk, 1e-9), 0.0, 1.0) * (share > 0.0)


def row(world: World, rule: str, populations: int, seed: int = 0) -> dict[str, Any]:
    """One world and one rule over 1,000 calls, and over 1,000 more where the world changes."""
    changes = world.then is not None or world.then_out is not None
    played = RULES[rule](world, populations)
    found = simulate(world, played, populations, CALLS + CALLS * changes, seed)
    return {
        "world": world.name,
        "rule": rule,
        "epsilon": world.epsilon,
        "holds": world.holds,
        "exceeded": float(found.exceeded.mean()),
        "ceiling": binomial_ceiling(populations, DELTA) / populations,
        "asked_1000": float(found.asked[:CALLS].mean()),
        "asked_last_200": float(found.asked[CALLS - 200 : CALLS].mean()),
        "wrong_out": float(found.wrong_out.mean()),
        "first_answer": float(np.median(found.first)),
        "revoked_within_100": float((found.revoked_after <= 100).mean()) if changes else None,
        "falsely_revoked": None,
    }


def least_asked(world: World, calls: int = CALLS, last: int = CALLS) -> float:
    """Share of the last calls that a rule must ask about at the least, though it sees the truth of every call.

    Whoever keeps the promise has each threshold in force with probability at most 5 % where exactly epsilon of all
    calls are wrong at or above it. So for any mu >= 0 the expected calls for which it is in force are at most 5 % of mu
    plus the value of stopping at a gain of the calls to come less mu times the likelihood ratio of that world to the
    true one; that value is found by going backwards over all numbers of calls and of wrong ones. The least over mu.
    """
    n, last = np.arange(min(calls, 100) + 1.0), min(calls, last)
    risk = np.maximum(world.wrong_share(0) * world.wrong_at_or_above(), 1e-9)[:, None]
    mu, eps = np.geomspace(1.0, 1e5, 25)[:, None, None], world.epsilon
    value = np.zeros((len(mu), len(risk), len(n)))
    for call in reversed(range(calls)):
        ratio = n * np.log(eps / risk) + (call - n) * np.log((1.0 - eps) / (1.0 - risk))
        gain = min(calls - call, last) - mu * np.exp(np.minimum(ratio, 500.0))
        following = np.concatenate([value[..., 1:], value[..., -1:]], axis=-1)
        stopping = np.where(n <= call, gain, -np.inf)
        value = np.maximum(stopping, risk * following + (1.0 - risk) * value)
    in_force = np.where(risk[:, 0] < eps, (value[..., 0] + DELTA * mu[..., 0]).min(axis=0), DELTA * last)
    return float(1.0 - (np.diff(SHARES, prepend=0.0) * in_force).sum() / last)


def long_row(world: World, populations: int, calls: int) -> dict[str, Any]:
    """False withdrawals over a long time without a change."""
    found = simulate(world, Earned(world, populations), populations, calls, seed=2)
    return {
        "world": f"{world.name}, {calls:,} calls",
        "rule": "earned",
        "epsilon": world.epsilon,
        "holds": True,
        "ceiling": binomial_ceiling(populations, DELTA) / populations,
        "asked_last_200": float(found.asked[-200:].mean()),
        "falsely_revoked": float(found.revoked_before.mean()),
    }


def rows(populations: int, long: int, only: str = "") -> Iterator[dict[str, Any]]:
    """Each world with each rule, then the worlds that change, then long histories without a change."""
    for world in WORLDS:
        if only in world.name:
            yield from (row(world, rule, populations) for rule in RULES)
            if not (callable(world.base) or world.step or world.lost or world.waits is not None) and world.holds:
                least = {"asked_1000": least_asked(world), "asked_last_200": least_asked(world, last=200)}
                yield {"world": world.name, "rule": "no rule asks less", "epsilon": world.epsilon, **least}
    for world in CHANGES:
        if only in world.name:
            yield row(world, "earned", populations)
    for world in (WORLDS[1], WORLDS[4], WORLDS[0]) if long else ():
        if only in world.name:
            yield long_row(world, max(1, populations // 5), long)
    never = replace(WORLDS[1], name="none is wrong", base=0.0)
    for epsilon in (0.05, 0.02):
        if only in never.name:
            yield row(replace(never, epsilon=epsilon), "earned", 3)


SCORES = {"belief": "default", "least token of the arguments": "least_token"}


def recorded_rows(paths: Sequence[Path], orders: int) -> Iterator[dict[str, Any]]:
    """Recorded calls of tool agents in random orders: asked, gone out, wrong and out, on average."""
    cases = [one for path in paths for one in tool_agent.read_set(path)[0]]
    wrong = np.array([one.wrong for one in cases])
    for epsilon in (0.05, 0.1, 0.2):
        world = {"world": f"{len(cases)} recorded calls", "epsilon": epsilon, "calls": len(cases)}
        yield {**world, "rule": "ask always", "asked": float(len(cases)), "out": 0.0, "wrong_out": 0.0}
        for name, key in SCORES.items():
            values = [one.scores[key].value for one in cases]
            score = np.array([np.nan if value is None else value for value in values])
            target = earned.Target(thresholds=earned.CANDIDATES, epsilon=epsilon, delta=DELTA)
            drawn = [np.random.default_rng(seed) for seed in range(orders)]
            found = []
            for rng in drawn:
                order = rng.permutation(len(cases))
                found.append(simulate_permit(target, score[order], wrong[order], rng))
            asked, out = (float(np.mean([getattr(one, what) for one in found])) for what in ("asked", "out"))
            slipped = float(np.mean([one.wrong_out for one in found]))
            yield {**world, "rule": f"earned by {name}", "asked": asked, "out": out, "wrong_out": slipped}
            at_random = out * float(wrong.mean())
            yield {**world, "rule": "as many at random", "asked": asked, "out": out, "wrong_out": at_random}


def main() -> None:
    """Read the arguments, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--populations", type=positive, default=500)
    parser.add_argument("--long", type=int, default=50_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--recordings", nargs="+", type=existing, metavar="SET")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.recordings:
        with usage_errors(parser):
            emit("permits", recorded_rows(options.recordings, options.populations), options.json)
    else:
        emit("permits", rows(options.populations, options.long, options.only), options.json)


if __name__ == "__main__":
    main()
