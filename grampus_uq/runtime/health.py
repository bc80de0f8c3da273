"""The health of a store's agents and reviewers in a few numbers, over the last days."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from grampus_uq.gate.requests import ApprovalKind
from grampus_uq.records.vocabulary import span
from grampus_uq.runtime.ledger import Ledger, decision_values
from grampus_uq.runtime.store import SessionStore, pages, stored_number
from grampus_uq.runtime.stored_drills import StoredDrills
from grampus_uq.runtime.worker_jobs import WAKES
from grampus_uq.stats.ranks import binomial_interval

_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Over the last `days`: what people were asked, and what it came to; a day, of those since the first was asked.

    `right` of the `decided` pauses were approved as they were; `right_low` and `right_high` are the exact 90 % interval
    of that share. `cost_usd` is that of the `ended` runs whose price is known. `running` runs are held by `workers`
    that are alive; `stops` counts stop orders, ever. What is not known, or has no budget, is None.
    """

    days: float
    pauses: int
    pauses_a_day: float
    budget_a_day: float | None
    over_budget: bool | None
    decided: int
    right: int
    right_low: float | None
    right_high: float | None
    waiting: int
    oldest_s: float | None
    ended: int
    cost_usd: float | None
    running: int
    workers: int
    stops: int


def health(
    *,
    now_s: float,
    days: float,
    asked_s: Iterable[float],
    decided: Iterable[Sequence[str]],
    waiting_since_s: Sequence[float],
    costs: Sequence[float | None],
    holders: Mapping[str, str],
    stops: int,
    budget_a_day: float | None = None,
) -> Health:
    """Sum it up.

    Args:
        now_s: by the clock of all times here, seconds since 1970.
        days: length of the window, above 0.
        asked_s: when each request was made; those outside of the window are left out.
        decided: for each request that was decided in the window, the kinds of its decisions in order.
        waiting_since_s: when each request that still waits was made.
        costs: of each run that ended in the window, in USD; None where no price is known.
        holders: for each session that runs, its live worker.
        stops: stop orders so far.
        budget_a_day: how many pauses a day are wanted at most.
    """
    asked = [*asked_s]
    pauses = sum(now_s - days * _DAY_S < time_s <= now_s for time_s in asked)
    known = min(days, max(1.0, (now_s - min(asked, default=0.0)) / _DAY_S))
    firsts = [kinds[0] for kinds in decided if kinds]
    right = sum(kind == ApprovalKind.APPROVE for kind in firsts)
    low, high = binomial_interval(right, len(firsts), 0.9) if firsts else (None, None)
    priced = [cost for cost in costs if cost is not None]
    return Health(
        days=days,
        pauses=pauses,
        pauses_a_day=pauses / known,
        budget_a_day=budget_a_day,
        over_budget=None if budget_a_day is None else pauses / known > budget_a_day,
        decided=len(firsts),
        right=right,
        right_low=low,
        right_high=high,
        waiting=len(waiting_since_s),
        oldest_s=max((now_s - since_s for since_s in waiting_since_s), default=None),
        ended=len(costs),
        cost_usd=sum(priced) if priced else None,
        running=len(holders),
        workers=len(set(holders.values())),
        stops=stops,
    )


async def store_health(store: SessionStore, *, days: float = 7.0, budget_a_day: float | None = None) -> Health:
    """The health of a store. Drills count among what was asked and waits, as in every list: else they could be told."""
    ledger = Ledger(store)
    now_s = await store.now()
    since_s = now_s - days * _DAY_S
    pending = [request for session in await ledger.pending() for request in session.requests]
    decided: dict[str, list[tuple[float, str]]] = {}
    async for document in pages(store, "decision"):
        if document.written_s > since_s:
            request = document.key.partition("/")[0]
            decided.setdefault(request, []).append((document.written_s, str(decision_values(document).get("kind", ""))))
    stop = await store.get("stop", "*")
    return health(
        now_s=now_s,
        days=days,
        asked_s=[
            *[document.written_s async for document in pages(store, WAKES)],
            *await StoredDrills(store).appeared(now_s),
        ],
        decided=[[kind for _, kind in sorted(given)] for given in decided.values()],
        waiting_since_s=[
            *(one.created_s for one in pending if one.child_session is None and not one.expired(now_s)),
            *(shown.created_s for shown in await StoredDrills(store).mixed([], now_s)),
        ],
        costs=[
            stored_number(document.body, None, "total_token_usage", "cost_usd")
            for status in ("completed", "failed")
            async for document in pages(store, "session", status)
            if document.written_s > since_s
        ],
        holders=await ledger.running(),
        stops=0 if stop is None else stop.version,
        budget_a_day=budget_a_day,
    )


def health_in_words(found: Health) -> dict[str, str]:
    """The numbers as sentences, by name."""
    days = f"{found.days:g} days"
    budget = "" if found.budget_a_day is None else f"; the budget is {found.budget_a_day:g}"
    over = ", EXCEEDED" if found.over_budget else ""
    since = " since the first" if found.pauses_a_day * found.days > 1.01 * found.pauses else ""
    approved = "no decision yet"
    if found.right_low is not None and found.right_high is not None:
        share = f"{100.0 * found.right / found.decided:.0f} %"
        between = f"{100.0 * found.right_low:.0f} to {100.0 * found.right_high:.0f} %"
        approved = f"{found.right} of {found.decided} decided calls, as they were: {share} ({between})"
    oldest = "" if found.oldest_s is None else f", the oldest for {span(found.oldest_s)}"
    price = "no price is known" if found.cost_usd is None else f"{found.cost_usd:.2f} USD"
    ended = "1 run" if found.ended == 1 else f"{found.ended} runs"
    cost = f"{price} for {ended} that ended in {days}" if found.ended else f"no run ended in {days}"
    return {
        "pauses": f"{found.pauses} in {days}: {found.pauses_a_day:.1f} a day{since}{budget}{over}",
        "approved": approved,
        "waiting": f"{found.waiting}{oldest}",
        "cost": cost,
        "running": f"{found.running} runs on {found.workers} live workers",
        "stops": f"{found.stops} so far",
    }
