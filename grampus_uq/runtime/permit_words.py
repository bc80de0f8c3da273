"""Texts about a permit, and construction of a narrower one, shared by terminal and web pages."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from grampus_uq.gate.permit_conditions import stricter
from grampus_uq.gate.permits import MOST_OPEN, Permit, PermitState, sentence
from grampus_uq.records.visible_text import short
from grampus_uq.runtime.stored_permits import Standing
from grampus_uq.stats.earned_threshold import Target, earned_from_json, level, update

_MOST_MISSING: Final = 10_000


def narrowed(
    old: Permit,
    *,
    principal: str,
    now_s: float,
    conditions: Mapping[str, Mapping[str, Any]],
    at_most: float | None = None,
    days: float | None = None,
    miss_rate: float | None = None,
    miss_delta: float = 0.05,
) -> Permit:
    """An unsigned permit with more conditions, no larger share and no later end; else ConfigurationError."""
    before = old if miss_rate is None else old.with_miss_rate(miss_rate, miss_delta)
    limits = {name: dict(rule) for name, rule in before.limits.items()}
    for name, rule in conditions.items():
        limits[name] = limits.get(name, {}) | stricter(limits.get(name, {}), dict(rule))
    until_s = before.expires_s if days is None else now_s + days * 86_400.0
    changes: dict[str, Any] = {
        "limits": limits,
        "epsilon": min(before.epsilon, at_most or before.epsilon),
        "principal": principal,
        "created_s": now_s,
        "expires_s": min(before.expires_s, until_s),
    }
    return Permit(**before.model_dump(exclude={"id", "signature", *changes}), **changes)


def stands(standing: Standing) -> str:
    """The treatment of a call in scope now, in a few words."""
    permit, state = standing.permit, standing.state
    if state.closed is not None:
        return f"closed: {short(state.closed, 100)}"
    if standing.now_s >= permit.expires_s:
        return "expired"
    if standing.trouble is not None:
        return short(standing.trouble, 100)
    if state.spent(permit):
        return "withdrawn for good: asks about everything"
    threshold = state.threshold(permit)
    now = "asks about everything" if threshold is None else f"lets calls ahead from {permit.stream} {threshold:g} on"
    return f"{now}; began anew" if state.withdrawn else now


def replaced(old: Standing) -> str:
    """The permit that a narrower one closes, and what stood: a narrowing ends a withdrawal for good, too."""
    return f"{old.permit.id[:8]} ({stands(old)}), which this one closes"


def permit_facts(standing: Standing) -> dict[str, str]:
    """A permit in words: what stands, its promise, and what both rest on.

    What waits is said in steps: drills are not counted, and a number that stays as one arrives would tell it.
    """
    permit, state = standing.permit, standing.state
    signed, missing = "signed" if permit.signature else "unsigned", "a new permit"
    if state.closed is None and not state.spent(permit):
        least = least_missing(permit.target, state.earned)
        missing = f"{least} right answers at the least" if least else "nothing"
    waiting = sum(ticket.asked and ticket.wrong is None for ticket in state.open)
    anew = " since it began anew" if state.withdrawn else ""
    answers = f"{state.answers}{anew}, of them {state.audits} audits, {state.wrong} wrong ({state.overdue} by delay)"
    return {
        "permit": permit.id,
        "scope": permit.scope() + ("" if permit.agent_id is None else f" of agent {permit.agent_id}"),
        "status": stands(standing),
        "promise": sentence(permit, state),
        "granted": f"by {permit.principal}, {signed}; until {until(permit.expires_s)}",
        "score": f"{permit.stream}, under the profile, model, prompt and tools {state.judge or 'of the first call'}",
        "covers": "calls that the tier holds, at MEDIUM, and none that a profile's release rule lets go or holds",
        "answers": answers,
        "missing": missing,
        "cleared": f"{state.released} calls{anew}, unasked",
        "open": f"{_in_steps(waiting)} answers, {_in_steps(len(state.open))} uncounted calls (steps of 64 hide drills)",
        "corrected": f"{state.corrected} answers turned wrong after they were counted",
    }


def _in_steps(count: int) -> str:
    """Return an upper bound of a count, in quarters of a permit's capacity.

    >>> [_in_steps(count) for count in (0, 1, 64, 256)]
    ['up to 64', 'up to 64', 'up to 64', 'up to 256']
    """
    quarter = MOST_OPEN // 4
    return f"up to {max(1, -(-count // quarter)) * quarter}"


def same_as_logged(standing: Standing, replayed: PermitState) -> bool:
    """True if a permit's log gives the very state that is stored, but for a closing that no host saw."""
    unseen = {"closed": None, "revision": standing.state.revision - 1}
    return replayed in (standing.state, standing.state.model_copy(update=unseen))


def least_missing(target: Target, earned: Mapping[str, list[float]]) -> int:
    """The number of right answers, all at the highest scores, up to the first permission; 10,000: or more."""
    return _least_missing(target, json.dumps(earned))


@functools.lru_cache(maxsize=128)  # up to seconds of arithmetic, the same each time somebody looks at the permit
def _least_missing(target: Target, evidence: str) -> int:
    earned, count = earned_from_json(target, json.loads(evidence)), 0
    while not level(target, earned) and count < _MOST_MISSING:
        earned, count = update(target, earned, 0, 0.0, False, in_force=0, audit=1.0), count + 1
    return count


def until(end_s: float, form: str = "%Y-%m-%d") -> str:
    """The day on which a permission ends, in UTC; another `form` says the time, too."""
    try:
        return time.strftime(form, time.gmtime(end_s))
    except (OverflowError, OSError, ValueError):
        return f"{end_s:g} s"
