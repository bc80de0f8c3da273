"""What a chain of a small model, a big one and a human buys, and whether its one promise is kept.

    python -m tests.benchmarks.chain [--pair SMALL BIG ...] [--looked SET ...] [--again SET ...]
        [--resamples 200] [--cases 400] [--seed 0] [--json]

Without any of them, two simulated worlds, one where the big model's errors are its own and one where most are the small
one's too. A pair is two sets as `tool_agent` reads them, the same tasks handled by two models; a task that either did
not get as far as its irreversible call in is left out, and counted. A looked SET is one that `tool_agent --look`
recorded: the small model's runs, at whose irreversible calls the big one looked. Of a set with probes, `--again` takes
the first call that the agent drew anew as the look of a tier `again`, which has no score and whose figures stand in
the place of the big model's. Each resample draws `--cases` of the population with replacement (of a pair or a set: as
many as there are), fits the chain on them (`learn.chain`, `--budget`, delta .05), and follows it over the whole
population; a look costs 1, a question `--question`.

Rows: `data`, `policy`, means over the resamples that publish: `success`: right calls that go out and calls that a human
decides, who is taken to be right; `of_big`: `success` over the big model's; `big_calls`, `questions`, `wrong_out`:
shares of all cases; `kept`: the share of resamples with `wrong_out` at most the budget; `published`: of all resamples.
`random` and `length` send the same shares to the big model and to the human, at random or by the length of the answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import DataError
from grampus_uq.learn.chain import Chain, TierCases, fit_chain
from grampus_uq.learn.eligibility import eligibility
from grampus_uq.learn.profiles.chain_part import recorded_looks
from grampus_uq.recording import runs as recorded_runs
from grampus_uq.records.events import LookEvent
from tests.benchmarks._report import emit, existing, positive, share, usage_errors
from tests.benchmarks.recorded_sets import opened_set
from tests.benchmarks.tool_agent import Score, read_set

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
DELTA = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Cases that all tiers answered, what a human costs in their unit, and the length of the small model's answers."""

    tiers: tuple[TierCases, ...]
    question: float
    length: FloatArray

    def drawn(self, cases: npt.NDArray[np.intp]) -> World:
        """These cases of it."""
        tiers = tuple(
            TierCases(
                name=tier.name,
                score=tier.score[cases],
                right=tier.right[cases],
                agrees=None if tier.agrees is None else tier.agrees[cases],
                cost=tier.cost,
            )
            for tier in self.tiers
        )
        return World(tiers, self.question, self.length[cases])


@dataclass(frozen=True, slots=True)
class Followed:
    """What became of all cases."""

    success: float
    big_calls: float
    questions: float
    wrong: float


def world(rng: np.random.Generator, n: int, *, shared: float = 0.2, question: float = 5.0) -> World:
    """A small model that is right in seven of ten, a big one in nine; `shared`: how hard both find the same cases."""
    hard = rng.normal(size=n)
    scores, rights = [], []
    for level, sharp in ((0.95, 1.6), (2.4, 1.6)):
        own = rng.normal(size=n)
        logit = level * 1.4 - sharp * (np.sqrt(shared) * hard + np.sqrt(1.0 - shared) * own)
        rights.append(rng.random(n) < 1.0 / (1.0 + np.exp(-logit)))
        scores.append(1.0 / (1.0 + np.exp(-logit + rng.normal(size=n) * 0.5)))
    agrees = np.where(rights[0] & rights[1], True, ~rights[0] & ~rights[1] & (rng.random(n) < 0.5))
    small = TierCases(name="small", score=scores[0], right=rights[0])
    big = TierCases(name="big", score=scores[1], right=rights[1], agrees=agrees, cost=1.0)
    return World((small, big), question, np.exp(rng.normal(size=n)))


def pair(small: Path, big: Path, question: float) -> tuple[World, int]:
    """The tasks that both models handled, and how many only one got as far with."""
    sides = [{one.task: one for one in read_set(path)[0]} for path in (small, big)]
    both = sorted(sides[0].keys() & sides[1].keys())
    first, second = ([side[task] for task in both] for side in sides)
    alike = [one.call.canonical() == other.call.canonical() for one, other in zip(first, second, strict=True)]
    tiers = tuple(
        TierCases(
            name=name,
            score=np.array([one.scores.get("call_probability", Score(value=None)).value for one in cases], dtype=float),
            right=np.array([not one.wrong for one in cases]),
            agrees=np.array(alike) if name == "big" else None,
            cost=1.0 if name == "big" else 0.0,
        )
        for name, cases in (("small", first), ("big", second))
    )
    length = np.array([len(one.call.canonical()) for one in first], dtype=np.float64)
    return World(tiers, question, length), len(sides[0].keys() ^ sides[1].keys())


def again(path: Path, question: float) -> World:
    """The runs of a set whose agent was asked anew."""
    cases = read_set(path)[0]
    if all(one.redraw is None for one in cases):
        raise DataError("no call of this set was drawn anew.", path=str(path))
    score = [one.scores.get("call_probability", Score(value=None)).value for one in cases]
    drawn = [one.redraw.likeness() if one.redraw else "" for one in cases]
    own = TierCases(name="agent", score=np.array(score, dtype=float), right=np.array([not one.wrong for one in cases]))
    anew = TierCases(
        name="again",
        score=np.full(len(cases), np.nan),
        right=np.array([call == one.truth.likeness() for call, one in zip(drawn, cases, strict=True)]),
        agrees=np.array([call == one.call.likeness() for call, one in zip(drawn, cases, strict=True)]),
        cost=1.0,
    )
    return World((own, anew), question, np.array([float(len(one.call.canonical())) for one in cases]))


def looked(path: Path, question: float) -> World:
    """The runs of a set at whose first irreversible call the big model looked."""
    length = []
    with opened_set(path) as folder:
        tiers = recorded_looks(folder / "recordings", np.random.default_rng(0), costs={"big": 1.0}).tiers
        for run in recorded_runs(folder / "recordings"):
            look = next((event for event in run.events if isinstance(event, LookEvent)), None)
            if look is not None and eligibility(run).usable:
                step = next(event.step for event in run.steps if event.step.step_id == look.step_id)
                length.append(float(len(step.tool_calls[0].canonical())))
    if not length:
        raise DataError("no other model looked at a call of this set.", path=str(path))
    return World(tuple(tiers), question, np.array(length))


def followed(chain: Chain, cases: World) -> Followed:
    """Follow the chain over all cases, as `Chain.after` says."""
    by_name = {tier.name: tier for tier in cases.tiers}
    n = len(cases.length)
    big = questions = wrong = 0
    for case in range(n):
        for number, one in enumerate(chain.tiers):
            tier = by_name[one.name]
            big += number > 0
            agrees = None if tier.agrees is None else bool(tier.agrees[case])
            score = tier.score[case]
            does, _ = chain.after(number, None if np.isnan(score) else float(score), agrees)
            if does != "next":
                break
        questions += does == "ask"
        wrong += does == "release" and not tier.right[case]
    return Followed(success=1.0 - wrong / n, big_calls=big / n, questions=questions / n, wrong=wrong / n)


def routed(order: FloatArray, like: Followed, cases: World) -> Followed:
    """The same shares to the big model and to the human: those that come last in an order."""
    n = len(cases.length)
    rank = np.argsort(np.argsort(order, kind="stable"), kind="stable")
    asked = rank >= n - round(like.questions * n)
    to_big = rank >= n - round(max(like.big_calls, like.questions) * n)
    right = np.where(to_big, cases.tiers[1].right, cases.tiers[0].right)
    wrong = float((~asked & ~right).mean())
    return Followed(success=1.0 - wrong, big_calls=like.big_calls, questions=like.questions, wrong=wrong)


def rows_of(name: str, population: World, options: Any) -> Iterator[dict[str, Any]]:
    """Resample, fit, follow."""
    rng = np.random.default_rng(options.seed)
    n = len(population.length)
    found: dict[str, list[Followed]] = {"chain": [], "random": [], "length": []}
    for _ in range(options.resamples):
        cases = population.drawn(rng.integers(0, n, size=options.cases or n))
        chain = fit_chain(
            cases.tiers, budget=options.budget, delta=DELTA, cost_of_question=population.question, rng=rng
        )
        if chain.release.at_least is None:
            continue
        seen = followed(chain, population)
        found["chain"].append(seen)
        found["random"].append(routed(rng.random(n), seen, population))
        found["length"].append(routed(population.length, seen, population))
    for tier in population.tiers:
        right = float(tier.right.mean())
        alone = Followed(success=right, big_calls=float(tier is population.tiers[1]), questions=0.0, wrong=1.0 - right)
        found[tier.name] = [alone]
    big = found[population.tiers[1].name][0].success
    for policy, runs in found.items():
        row: dict[str, Any] = {"data": name, "policy": policy, "n": n}
        if runs:
            row |= {"success": _mean(runs, "success"), "of_big": _mean(runs, "success") / big if big else None}
            row |= {"big_calls": _mean(runs, "big_calls"), "questions": _mean(runs, "questions")}
            row |= {
                "wrong_out": _mean(runs, "wrong"),
                "kept": float(np.mean([r.wrong <= options.budget for r in runs])),
            }
        yield row | {"published": len(runs) / options.resamples if policy == "chain" else None}


def _mean(runs: Sequence[Followed], name: str) -> float:
    return float(np.mean([getattr(run, name) for run in runs]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", nargs=2, action="append", default=[], metavar=("SMALL", "BIG"), type=existing)
    parser.add_argument("--looked", nargs="+", default=[], metavar="SET", type=existing)
    parser.add_argument("--again", nargs="+", default=[], metavar="SET", type=existing)
    parser.add_argument("--resamples", type=positive, default=200)
    parser.add_argument(
        "--cases", type=positive, default=400, help="cases of a simulated world that a chain is fitted on"
    )
    parser.add_argument("--budget", type=share, default=0.1, help="share of all cases that may go out wrong")
    parser.add_argument("--question", type=float, default=20.0, help="what a question costs, in looks of the big model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    if options.pair or options.looked or options.again:
        options.cases = 0
    with usage_errors(parser):
        for read, paths in ((looked, options.looked), (again, options.again)):
            for path in paths:
                rows += rows_of(path.name.split(".tar")[0], read(path, options.question), options)
        for small, big in options.pair:
            cases, left_out = pair(small, big, options.question)
            if len(cases.length) < 2:
                parser.error(f"{small} and {big}: no two tasks were handled by both models")
            name = " to ".join(path.name.split(".tar")[0] for path in (small, big))
            rows += [row | {"left_out": left_out} for row in rows_of(name, cases, options)]
    for name, shared in () if options.cases == 0 else (("own errors", 0.1), ("shared errors", 0.7)):
        rng = np.random.default_rng(options.seed + 1)
        rows += rows_of(f"world: {name}", world(rng, 4000, shared=shared, question=options.question), options)
    emit("chain", rows, options.json)


if __name__ == "__main__":
    main()
