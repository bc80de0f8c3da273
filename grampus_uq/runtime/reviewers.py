"""Reviewer statistics from drills: miss rates with intervals, by person, time and queue; suggested pauses."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from grampus_uq.runtime.drills import Drill, DrillPlan
from grampus_uq.runtime.ledger import decision_values
from grampus_uq.runtime.store import SessionStore, pages
from grampus_uq.stats.missed_cases import reported_at
from grampus_uq.stats.ranks import binomial_interval

LEAST_FOR_A_PERSON: Final = 30
"""Drills of one person below which nothing is said of that person."""
_LEVEL: Final = 0.9
_SITTING_S: Final = 900.0
_HOUR_S: Final = 3_600.0
_MINUTES: Final = (15.0, 30.0, 60.0)
_WAITING: Final = (5, 20)

Times = Mapping[str, Sequence[float]]
"""Times of each principal's decisions, drills included, in order; seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Missed drills out of `drills`, with the exact 90 % interval of the miss rate; None without a drill.

    The interval (Clopper and Pearson) is for these reviewers, weighted by how many drills each answered. It covers at
    least as often as it says where they differ and where chances change with time: given who answers when, answers are
    independent, and then their sum varies no more than with one chance for all (Hoeffding 1956). It says nothing of a
    reviewer who joins: for that the reviewers, not the answers, would be the sample.
    """

    missed: int
    drills: int
    low: float | None = None
    high: float | None = None

    @property
    def words(self) -> str:
        """The share in words."""
        if self.low is None or self.high is None:
            return "no drill"
        between = f"{100.0 * self.low:.0f} to {100.0 * self.high:.0f} %"
        return f"{100.0 * self.missed / self.drills:.0f} % missed ({between}), {self.drills} drills"


def missed(drills: Sequence[Drill]) -> Missed:
    """The share of these answered drills that were missed."""
    count, n = sum(drill.caught is False for drill in drills), len(drills)
    low, high = binomial_interval(count, n, _LEVEL) if n else (None, None)
    return Missed(missed=count, drills=n, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """Statistics of the answered drills.

    `people` has None for a principal with fewer than `LEAST_FOR_A_PERSON` drills. `by_minutes` is by the time since the
    sitting began (a quarter of an hour without a decision ends one), `by_queue` by what waited. `alarm_at`: the drill
    at which it was shown that more than `tolerated` are missed, with at most 5 % false reports ever. `pauses` are
    suggestions by principal, "" for all.
    """

    team: Missed
    people: Mapping[str, Missed | None]
    by_minutes: Mapping[str, Missed]
    by_queue: Mapping[str, Missed]
    tolerated: float
    alarm_at: int | None
    pauses: Mapping[str, str]


def reviewed(drills: Sequence[Drill], times: Times, now_s: float, plan: DrillPlan | None = None) -> Reviewed:
    """Sum up answered drills, in the order of their answers; without a plan the limits are the defaults."""
    tolerated = DrillPlan.model_fields["tolerated"].default if plan is None else plan.tolerated
    pace = DrillPlan.model_fields["pace_per_hour"].default if plan is None else plan.pace_per_hour
    people: dict[str, list[Drill]] = defaultdict(list)
    by_minutes: dict[str, list[Drill]] = {name: [] for name in _names(_MINUTES, "min")}
    by_queue: dict[str, list[Drill]] = {name: [] for name in _names(_WAITING, "waiting")}
    for drill in drills:
        if drill.answer is None:
            continue
        who = drill.answer.principal
        people[who].append(drill)
        minutes = (drill.answered_s - _sitting_began(times.get(who, ()), drill.answered_s)) / 60.0
        by_minutes[_name_of(minutes, _MINUTES, "min")].append(drill)
        by_queue[_name_of(drill.waiting, _WAITING, "waiting")].append(drill)
    late = {name: missed(found) for name, found in by_minutes.items()}
    alarm_at = reported_at([drill.caught is False for drill in drills], tolerated=tolerated)
    enough = {who: missed(d) if len(d) >= LEAST_FOR_A_PERSON else None for who, d in people.items()}
    return Reviewed(
        team=missed(drills),
        people=enough,
        by_minutes=late,
        by_queue={name: missed(found) for name, found in by_queue.items()},
        tolerated=tolerated,
        alarm_at=alarm_at,
        pauses=_too_fast(times, now_s, pace) | _tired(late),
    )


def _names(edges: Sequence[float], unit: str) -> list[str]:
    between = [f"{low:g} to {high:g} {unit}" for low, high in zip((0, *edges), edges, strict=False)]
    return [*between, f"from {edges[-1]:g} {unit}"]


def _name_of(value: float, edges: Sequence[float], unit: str) -> str:
    return _names(edges, unit)[sum(value >= edge for edge in edges)]


def _sitting_began(times: Sequence[float], at_s: float) -> float:
    """Return the start of a decision's sitting: the first of decisions at most a quarter of an hour apart."""
    began = at_s
    for place in range(bisect_right(times, at_s) - 1, -1, -1):
        time_s = times[place]
        if began - time_s > _SITTING_S:
            break
        began = time_s
    return began


def _too_fast(times: Times, now_s: float, pace: int) -> dict[str, str]:
    counts = {who: sum(now_s - _HOUR_S < time_s <= now_s for time_s in decided) for who, decided in times.items()}
    return {
        who: f"{who} decided {n} times within the last hour; above {pace} a pause is suggested."
        for who, n in sorted(counts.items())
        if n > pace
    }


def _tired(by_minutes: Mapping[str, Missed]) -> dict[str, str]:
    """A pause for all where significantly more is missed late in a sitting: the intervals do not meet."""
    (first, fresh), *later = by_minutes.items()
    for name, share in later:
        if fresh.high is not None and share.low is not None and share.low > fresh.high:
            late = f"{share.words} at {name}, {fresh.words} at {first}"
            return {"": f"More is missed later: {late}. A pause is suggested."}
    return {}


async def decision_times(store: SessionStore, drills: Sequence[Drill]) -> Times:
    """Return the stored times of each principal's decisions, on requests and on these drills."""
    times: dict[str, list[float]] = defaultdict(list)
    for drill in drills:
        if drill.answer is not None:
            times[drill.answer.principal].append(drill.answered_s)
    async for document in pages(store, "decision"):
        values = decision_values(document)
        if "principal" in values:
            times[str(values["principal"])].append(document.written_s)
    return {who: sorted(found) for who, found in times.items()}
