"""Simulates an earned threshold on recorded runs: calls asked about, released, and released wrongly.

The case of a run is its first irreversible call, as in a fit; it was wrong where the run failed. Only runs whose
outcome may be learned from take part (`eligibility`): in the others a human or the monitor had a hand in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from grampus_uq.core.state import Profile
from grampus_uq.learn.columns import SCORE, at_rows, read_columns, recorded_rows
from grampus_uq.recording.runs import Paths, Refused
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.earned_threshold import (
    Target,
    audit_probability,
    begun_anew,
    broken,
    level,
    nothing_earned,
    place,
    update,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledCalls:
    """Calls in the order of time: the score (NaN: none) and whether the call was wrong.

    left_out: runs without a case, by reason.
    """

    scores: FloatArray
    wrong: BoolArray
    left_out: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One passage over the calls.

    Attributes:
        calls: all of them; `wrong` of them were wrong.
        asked: calls that would have been asked about; `audits` of them above the threshold in force.
        out: calls that would have gone out unasked; `wrong_out` of them were wrong.
        first: answers before the first threshold was in force; None where none ever was.
        threshold: in force at the end; None where none is.
        withdrawn: how often everything was asked about again, because the promise no longer held.
    """

    calls: int
    wrong: int
    asked: int
    audits: int
    out: int
    wrong_out: int
    first: int | None
    threshold: float | None
    withdrawn: int


def read_labelled_calls(
    paths: Paths,
    stream: str,
    *,
    profile: Profile | None = None,
    tool: str | None = None,
    workers: int = 1,
    on_refused: Refused | None = None,
    on_runs: Callable[[int], None] | None = None,
) -> LabelledCalls:
    """Read the first irreversible call of each labelled run, or with a `tool` its first call of that tool.

    With a profile, streams are computed anew by it. The stream `SCORE` is what a permit goes by.
    """
    rows = partial(recorded_rows, profile=profile, streams=(stream,), tool=tool, scored=stream == SCORE)
    columns = read_columns(paths, rows, workers=workers, on_refused=on_refused, on_runs=on_runs)
    firsts = [run.calls[:1] for run in columns.runs]
    values = iter(at_rows(columns.stream(stream), columns.lengths, firsts))
    left_out: Counter[str] = Counter()
    cases: list[tuple[float, float, bool]] = []
    for run, first in zip(columns.runs, firsts, strict=True):
        score = float(next(values)) if first else 0.0
        known = run.outcome is not None and run.outcome.success is not None
        if not run.eligibility.usable or not known:
            left_out[run.eligibility.reason or "no_outcome"] += 1
        elif not first:
            left_out["no_irreversible_call" if tool is None else "no_call_of_the_tool"] += 1
        else:
            cases.append((np.inf if run.started_s is None else run.started_s, score, not run.success))
    cases.sort(key=lambda case: case[0])
    return LabelledCalls(
        scores=np.array([score for _, score, _ in cases], dtype=np.float64),
        wrong=np.array([wrong for *_, wrong in cases], dtype=np.bool_),
        left_out=left_out,
    )


def simulate_permit(target: Target, scores: FloatArray, wrong: BoolArray, rng: np.random.Generator) -> Simulated:
    """Let the calls pass one by one, as if nothing had been earned before the first of them.

    `scores`: shape (n,), in the order of time; a call without one (NaN) is asked about and teaches nothing: a stream
    that is missing at first must not earn what it may do later. `wrong`: shape (n,). `rng` draws the audits.
    """
    earned = nothing_earned(target)
    asked, audits, wrong_out, withdrawn = 0, 0, 0, 0
    first: int | None = None
    for at, bad, unscored in zip(place(target, scores).tolist(), wrong.tolist(), np.isnan(scores), strict=True):
        if unscored:
            asked += 1
            continue
        in_force, rate = int(level(target, earned)), float(audit_probability(target, earned))
        first = asked if first is None and in_force else first
        above = at < in_force
        draw = rng.random()
        ask = bool(draw < rate) or not above
        asked += ask
        audits += ask and above
        wrong_out += bad and not ask
        earned = update(target, earned, at, draw, bad, in_force=in_force, audit=rate)
        if level(target, earned) and any(broken(target, earned)):
            withdrawn += 1
            earned = begun_anew(target, earned)
    end = int(level(target, earned))
    return Simulated(
        calls=len(scores),
        wrong=int(wrong.sum()),
        asked=asked,
        audits=audits,
        out=len(scores) - asked,
        wrong_out=wrong_out,
        first=asked if first is None and end else first,
        threshold=target.thresholds[end - 1] if end else None,
        withdrawn=withdrawn,
    )
