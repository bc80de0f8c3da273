"""The evidence of a permit as a picture: how near each threshold came to what it needs, after each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from grampus_uq.errors import DataError
from grampus_uq.gate.permits import Permit, PermitState, replay
from grampus_uq.learn.pages.charts import Chart, Series
from grampus_uq.runtime.permit_words import same_as_logged
from grampus_uq.runtime.stored_permits import Standing
from grampus_uq.stats.earned_threshold import share_of_needed

_MOST_ENTRIES: Final = 5_000
_MOST_POINTS: Final = 200
_LINES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence in a permit's log: a picture, or why there is none, and whether it replays to the stored state."""

    chart: Chart | None
    problem: str | None


def evidence_of(standing: Standing, log: Sequence[Mapping[str, Any]]) -> Evidence:
    """The evidence of each threshold after each answer, of what is needed for it: 1 is when it comes into force."""
    if len(log) > _MOST_ENTRIES:
        many = f"The log has more than {_MOST_ENTRIES:,} entries: `grampus-uq permits show` replays it."
        return Evidence(chart=None, problem=many)  # how many would count requests, and not drills
    try:
        states = [after for _, _, after in replay(standing.permit, log)]
    except DataError as error:
        return Evidence(chart=None, problem=f"The log cannot be read: {error}")
    last = states[-1] if states else PermitState.fresh(standing.permit)
    changed = "The log does not give the stored state: one of the two was changed."
    problem = None if same_as_logged(standing, last) else changed
    return Evidence(chart=_drawn(standing.permit, states), problem=problem)


def _drawn(permit: Permit, states: Sequence[PermitState]) -> Chart | None:
    if not states or not states[-1].counted:
        return None
    after = list({state.counted: state for state in states}.values())  # a point for each question would count requests
    every = [after[n] for n in sorted({*range(0, len(after), max(1, len(after) // _MOST_POINTS)), len(after) - 1})]
    calls = np.array([state.counted for state in every], dtype=np.float64)
    shares = np.array([share_of_needed(permit.target, state.of(permit)) for state in every]).clip(0.0, 1.0)
    alike = [0, *(n for n in range(1, shares.shape[1]) if not np.array_equal(shares[:, n], shares[:, n - 1]))]
    ends = [*(n - 1 for n in alike[1:]), shares.shape[1] - 1]
    named = {round(n) for n in np.linspace(0, len(alike) - 1, min(len(alike), _LINES))}
    series, thin = list[Series](), list[Any]()
    for group, (first, last) in enumerate(zip(alike, ends, strict=True)):
        line, low, high = np.column_stack([calls, shares[:, first]]), permit.thresholds[last], permit.thresholds[first]
        if group in named:
            label = f"from {low:g} on" if low == high else f"from {low:g} to {high:g} on"
            series.append(Series(label=label, points=line, colour=len(series), thin=thin))
        else:
            thin.append(line)
    for label, colour, height, which in (("an audit", 7, 0.03, "audits"), ("a wrong answer", 6, 0.08, "wrong")):
        at = _rises(states, which)
        if at:
            points = np.column_stack([at, np.full(len(at), height)])
            series.append(Series(label=label, points=points, colour=colour, radii=[2.5] * len(at), joined=False))
    end = float(max(states[-1].counted, 1))
    return Chart(
        caption="Evidence of each threshold, as a share of what it needs: at 1, calls from that score on proceed.",
        x_label="calls that are counted",
        y_label="evidence of what is needed",
        series=series,
        x_ticks=[round(end * part) for part in (0.0, 0.5, 1.0)],
        x_to=end,
    )


def _rises(states: Sequence[PermitState], which: str) -> list[float]:
    """After how many calls a count rose; it begins anew where the permission was withdrawn."""
    found, before, withdrawn = list[float](), 0, 0
    for state in states:
        before = before if state.withdrawn == withdrawn else 0
        now = int(getattr(state, which))
        found += [float(state.counted)] if now > before else []
        before, withdrawn = now, state.withdrawn
    return found
