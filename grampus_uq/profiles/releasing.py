"""The release rule of a profile: from which chance of success irreversible calls go ahead, and with which promise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from grampus_uq.profiles.labelled import LabelledRuns
from grampus_uq.profiles.options import FitOptions
from grampus_uq.profiles.parts import Part
from grampus_uq.release import ReleaseRule
from grampus_uq.stats.selective import (
    Released,
    candidate_thresholds,
    certified_threshold,
    cost_thresholds,
    estimated_threshold,
    released_needed,
    share_threshold,
)

__all__ = ["fit_release"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
NAME = "release"
_DELTA = 0.1  # of a certificate, when the promise asked for is "on average": there is none such for this one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cases:
    """One case a run: its first irreversible call, or its end where it had none."""

    chances: FloatArray
    right: BoolArray
    held: BoolArray
    weights: FloatArray


def fit_release(
    runs: LabelledRuns, held: BoolArray, chances: FloatArray | None, options: FitOptions
) -> tuple[ReleaseRule | None, Part]:
    """Set the rule that was asked for: a wanted accuracy, a share of pauses, or costs.

    Args:
        runs, held: the runs and which of them set thresholds.
        chances: p_success at every step; None where it could not be fitted.
        options: which of the three.
    """
    if options.accuracy is None and options.pause_share is None and options.cost_of_failure is None:
        why = "No accuracy, share of pauses or costs were given: irreversible calls are left to the detector."
        return None, Part(name=NAME, status="not asked for", why=why)
    if chances is None:
        return None, Part(name=NAME, status="not fitted", why="There is no p_success to release by.")
    if options.cost_of_failure is not None and options.cost_of_pause is not None:
        return _by_costs(options.cost_of_failure, options.cost_of_pause, options.cost_of_abort)
    cases = _Cases(chances=runs.at_ask(chances), right=runs.success, held=held, weights=runs.weights)
    if options.pause_share is not None:
        return _by_share(cases, options.pause_share)
    assert options.accuracy is not None  # noqa: S101 (for the type checker: one of the three was given)
    return _by_accuracy(cases, options.accuracy, options.delta or _DELTA, only=options.certified_only)


def _by_costs(failure: float, pause: float, abort: float | None) -> tuple[ReleaseRule, Part]:
    release, below = cost_thresholds(failure, pause, abort)
    rule = ReleaseRule(at_least=release, abort_below=below, mode="costs")
    why = "The actions of least expected cost, as far as p_success is calibrated: no guarantee."
    figures: dict[str, JsonValue] = {"at_least": release, "abort_below": below}
    return rule, Part(name=NAME, status="fitted", why=why, figures=figures)


def _by_share(cases: _Cases, share: float) -> tuple[ReleaseRule | None, Part]:
    chances = cases.chances[cases.held]
    threshold = share_threshold(chances, share)
    if threshold is None:
        least = math.ceil(1.0 / share) - 1
        why = f"{len(chances)} held-out runs do not resolve a share of {share:g}."
        return None, Part(name=NAME, status="not fitted", why=why, needs=f"{least} held-out runs with a reading")
    promise = (
        f"At most {100 * share:g} % of first irreversible calls are held by this rule, on average over draws of the "
        f"{len(chances)} held-out runs that set it. This assumes exchangeable runs; it promises nothing about which."
    )
    rule = ReleaseRule(at_least=threshold, mode="share", target=share, runs=len(chances), guarantee=promise)
    figures: dict[str, JsonValue] = {"at_least": threshold, "runs": len(chances)}
    return rule, Part(name=NAME, status="fitted", why="A quantile of p_success.", promise=promise, figures=figures)


def _by_accuracy(cases: _Cases, target: float, delta: float, *, only: bool) -> tuple[ReleaseRule, Part]:
    """Certify a threshold on the runs held out; where none passes, estimate one on all, without a promise."""
    held, learn = cases.held, ~cases.held
    weighted = not (cases.weights == 1.0).all()
    certified = Released(threshold=None, cases=int(held.sum()), released=0, wrong=0)
    if not weighted:
        candidates = candidate_thresholds(
            cases.chances[learn], cases.right[learn], target=target, cases=int(held.sum())
        )
        certified = certified_threshold(
            cases.chances[held], cases.right[held], candidates=candidates, target=target, delta=delta
        )
    if certified.threshold is not None:
        return _certified(certified, target, delta)
    needs = _needs(cases, target, delta)
    why = "runs let through at random have no exact count" if weighted else "no threshold passed the test"
    shortage = f"No guarantee: {why} on {certified.cases} held-out runs. {needs}".strip()
    if only:
        rule = ReleaseRule(at_least=None, mode="certified", target=target, delta=delta, runs=0, shortage=shortage)
        why = "Nothing is released: no threshold could be certified."
        return rule, Part(name=NAME, status="not fitted", why=why, needs=needs)
    found = estimated_threshold(cases.chances, cases.right, target=target, weights=cases.weights)
    rule = ReleaseRule(at_least=found.threshold, mode="estimated", target=target, runs=found.cases, shortage=shortage)
    if found.threshold is None:
        why = f"Nothing is released: at no threshold were {100 * target:g} % right, as far as so few can show."
        return rule, Part(name=NAME, status="not fitted", why=why, needs=needs)
    why = "Estimated on the very runs that it is right on: no guarantee, and a little too good."
    return rule, Part(name=NAME, status="fitted", why=why, needs=needs, figures=_figures(found))


def _certified(found: Released, target: float, delta: float) -> tuple[ReleaseRule, Part]:
    promise = (
        f"With probability at least {100 * (1 - delta):g} % over the {found.cases} held-out runs that set it, at least "
        f"{100 * target:g} % of the runs whose first irreversible call this rule releases succeed. This assumes "
        "independent runs of one distribution; a changed agent, task mix or model breaks it. It bounds no false alarms."
    )
    rule = ReleaseRule(
        at_least=found.threshold, mode="certified", target=target, delta=delta, runs=found.cases, guarantee=promise
    )
    why = "The most generous of the thresholds that passed, tested in an order fixed on other runs."
    return rule, Part(name=NAME, status="fitted", why=why, promise=promise, figures=_figures(found))


def _figures(found: Released) -> dict[str, JsonValue]:
    return {
        "at_least": found.threshold,
        "runs": found.cases,
        "released": found.released,
        "right_among_released": None if not found.released else 1.0 - found.wrong / found.released,
        "share_released": found.released / found.cases if found.cases else None,
    }


def _needs(cases: _Cases, target: float, delta: float) -> str:
    """How many labelled runs a certificate is likely to take, judged by the best fifth of these."""
    there = ~np.isnan(cases.chances)
    if int(there.sum()) < 10:
        return "There are too few runs to say how many more a certificate needs."
    best = there & (cases.chances >= np.quantile(cases.chances[there], 0.8))
    seen = (float(cases.right[best].sum()) + 0.5) / (int(best.sum()) + 1.0)
    needed = released_needed(seen, target, delta)
    if needed is None:
        return (
            f"Of the best fifth {100 * seen:.0f} % were right: more labels will not certify {100 * target:g} %, better "
            "readings might."
        )
    total = math.ceil(needed / (float(best.mean()) * max(0.05, float(cases.held.mean()))))
    more = max(0, total - len(cases.chances))
    return f"About {more} more labelled runs would certify it, if the best fifth stays as good ({100 * seen:.0f} %)."
