"""The release rule of a profile: from which chance of success irreversible calls go ahead, and with which promise.

The first irreversible call of a run is what is judged: a run without one is not a case. What a small set of labels buys
comes first to last: a budget of wrong releases on average over calibrations, the same with high probability, a
certified share of right ones among the released.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from pydantic import JsonValue

from grampus_uq.core.release import ReleaseRule
from grampus_uq.learn.profiles.cases import Cases, cases_of
from grampus_uq.learn.profiles.labelled import LabelledRuns
from grampus_uq.learn.profiles.options import FitOptions
from grampus_uq.learn.profiles.p_success import NONE_TAUGHT, FittedPSuccess
from grampus_uq.learn.profiles.profile_parts import Part
from grampus_uq.stats.eprocess_thresholds import percent
from grampus_uq.stats.selective import (
    Released,
    budget_needed,
    budget_of_wrong_releases,
    candidate_thresholds,
    certified_by_count,
    certified_threshold,
    estimated_threshold,
    released_needed,
    share_threshold,
)

NAME = "release"
BUDGET = 0.05
"""The budget of wrong releases that is tried where none was asked for."""
_DELTA = 0.1  # of a certificate, when the promise asked for is "on average": there is none such for this one
_PRAISED = (
    "Every labelled run with such a call succeeded, as it would if only successes were ever labelled: those without a "
    'label count as wrong. If they were labelled whatever became of them, say so (labels: "random").'
)
_WEIGHED = "Runs let through at random have no exact count."


def fit_release(
    runs: LabelledRuns,
    fitted: FittedPSuccess | None,
    options: FitOptions,
    rng: np.random.Generator,
    *,
    alone: bool = False,
) -> tuple[ReleaseRule | None, Part]:
    """Set the rule that was asked for: a wanted accuracy, a budget of wrong releases, or a share of pauses.

    `fitted`: p_success at every step, and which runs it was learned on; None where it could not be fitted. `rng` draws
    one case a task. `alone`: nothing else that pauses could be fitted: a budget is then tried though nothing was asked
    for.
    """
    asked = options.accuracy is not None or options.wrong_releases is not None
    if not asked and options.pause_share is None and not (alone and runs.has_call.any()):
        why = "No accuracy, budget or share of pauses was given: irreversible calls are left to the detector."
        return None, Part(name=NAME, status="not asked for", why=why)
    if fitted is None:
        return None, Part(name=NAME, status="not fitted", why="There is no p_success to release by.")
    if options.pause_share is not None:
        return _by_share(cases_of(runs, fitted, options, rng, outcomes=False), options.pause_share)
    cases = cases_of(runs, fitted, options, rng)
    if options.accuracy is None:
        rule, part = _by_budget(cases, options.wrong_releases or BUDGET, options)
    else:
        rule, part = _by_accuracy(cases, options.accuracy, options)
    return rule, replace(part, why=f"{part.why} {_PRAISED}") if cases.praised else part


def _by_share(cases: Cases, share: float) -> tuple[ReleaseRule | None, Part]:
    p_success = cases.p_success[cases.once]
    n = len(p_success)
    threshold = share_threshold(p_success, share)
    if threshold is None:
        least = math.ceil(1.0 / share) - 1
        why = f"{n} runs of independent tasks with an irreversible call do not resolve a share of {share:g}."
        needs = f"{least} runs with an irreversible call and a reading before it, of a task each"
        return None, Part(name=NAME, status="not fitted", why=why, needs=needs)
    promise = (
        f"At most {percent(share)} of first irreversible calls are held by this rule, on average over draws of the "
        f"{n} runs with such a call that set it, one a task. {_assumed(cases)} It promises nothing about which."
    )
    rule = ReleaseRule(at_least=threshold, mode="share", target=share, runs=n, guarantee=promise)
    figures: dict[str, JsonValue] = {"at_least": threshold, "runs": n}
    return rule, Part(name=NAME, status="fitted", why="A quantile of p_success.", promise=promise, figures=figures)


def _by_accuracy(cases: Cases, target: float, options: FitOptions) -> tuple[ReleaseRule | None, Part]:
    """Certify a threshold; else keep a budget of wrong releases; else estimate a threshold, without a promise."""
    delta = options.delta or _DELTA
    weighted = not (cases.weights == 1.0).all()
    certified = _certificate(cases, target, delta)
    if not weighted and certified.threshold is not None:
        return _certified(cases, certified, target, delta)
    needs = _needs(cases, target, delta)
    lacks = f"That {percent(target)} of the released are right has no certificate on {certified.cases} cases."
    shortage = f"{lacks} {_WEIGHED if weighted else 'No threshold passed the test.'} {needs}".strip()
    budget = options.wrong_releases or min(BUDGET, 1.0 - target)
    rule, part = _by_budget(cases, budget, options, instead=shortage)
    if rule is not None:
        return rule, part
    if options.certified_only:
        none = f"No guarantee. {shortage}"
        rule = ReleaseRule(at_least=None, mode="certified", target=target, delta=delta, runs=0, shortage=none)
        why = f"Nothing is released: no threshold could be certified. {part.why}"
        return rule, Part(name=NAME, status="not fitted", why=why, needs=needs)
    known = slice(0, cases.labelled)
    found = estimated_threshold(cases.p_success[known], cases.right[known], target=target, weights=cases.weights[known])
    none = f"No guarantee. {shortage}"
    rule = ReleaseRule(at_least=found.threshold, mode="estimated", target=target, runs=found.cases, shortage=none)
    if found.threshold is None:
        why = f"Nothing is released: at no threshold were {percent(target)} right, as far as so few can show."
        return rule, Part(name=NAME, status="not fitted", why=f"{why} {part.why}", needs=needs)
    why = f"Estimated on the very runs that it is right on: no guarantee, and a little too good. {part.why}"
    return rule, Part(name=NAME, status="fitted", why=why, needs=needs, figures=_figures(found, found.cases))


def _certificate(cases: Cases, target: float, delta: float) -> Released:
    p_success, right = cases.of_each_task()
    if not len(cases.learnt[0]):
        return certified_by_count(p_success, right, target=target, delta=delta)
    candidates = candidate_thresholds(*cases.learnt, target=target, cases=len(p_success))
    return certified_threshold(p_success, right, candidates=candidates, target=target, delta=delta)


def _certified(cases: Cases, found: Released, target: float, delta: float) -> tuple[ReleaseRule, Part]:
    promise = (
        f"With probability at least {percent(1.0 - delta)} over the {_counted(cases, found)}, at least "
        f"{percent(target)} of the runs whose first irreversible call reaches this threshold succeed, whatever else "
        f"may hold that call. {_assumed(cases)} It bounds no false alarms."
    )
    rule = ReleaseRule(
        at_least=found.threshold, mode="certified", target=target, delta=delta, runs=found.cases, guarantee=promise
    )
    how = "tested in an order fixed on other runs" if len(cases.learnt[0]) else "all tested at once"
    why = f"The most generous of the thresholds that passed, {how}."
    return rule, Part(name=NAME, status="fitted", why=why, promise=promise, figures=_figures(found, found.cases))


def _by_budget(
    cases: Cases, budget: float, options: FitOptions, *, instead: str = ""
) -> tuple[ReleaseRule | None, Part]:
    """Keep wrong releases within a share of the runs with a call: with high probability, else on average."""
    found = Released(threshold=None, cases=0, released=0, wrong=0)
    delta = options.delta
    weighted = not (cases.weights == 1.0).all()
    if not weighted and delta is not None:
        found = budget_of_wrong_releases(*cases.of_each_task(), budget=budget, delta=delta)
    if not weighted and found.threshold is None:
        delta = None
        found = budget_of_wrong_releases(cases.p_success, cases.right, budget=budget, mass=cases.mass)
    if found.threshold is None:
        return _no_budget(cases, found, budget, options, weighted=weighted, instead=instead)
    if delta is None:
        over = f"On average over draws of the {_counted(cases, found, averaged=True)},"
        zero = " A draw on which no threshold is found counts as 0."
    else:
        over, zero = f"With probability at least {percent(1.0 - delta)} over the {_counted(cases, found)},", ""
    promise = (
        f"{over} at most {percent(budget)} of the runs with an irreversible call have the first one released by this "
        f"rule and fail.{zero} {_assumed(cases)} It does not say how many of the released are right, and bounds no "
        "false alarms."
    )
    rule = ReleaseRule(
        at_least=found.threshold,
        mode="wrong_releases",
        target=budget,
        delta=delta,
        runs=found.cases,
        guarantee=promise,
        shortage=instead,
    )
    why = f"The most generous threshold within the budget of wrong releases. {instead}".strip()
    needs = ""
    if delta is None and options.delta is not None:
        lacking = budget_needed(budget, options.delta) - int(cases.once.sum())
        if lacking > 0:
            needs = f"for the same with a probability of {percent(1.0 - options.delta)}: {_labels(cases, lacking)}"
    of = len(cases) if delta is None else found.cases
    return rule, Part(name=NAME, status="fitted", why=why, needs=needs, promise=promise, figures=_figures(found, of))


def _no_budget(
    cases: Cases, found: Released, budget: float, options: FitOptions, *, weighted: bool, instead: str
) -> tuple[ReleaseRule | None, Part]:
    lacking = budget_needed(budget) - found.cases
    needs = f"{_labels(cases, lacking)}, of a task each" if lacking > 0 and not weighted else ""
    if weighted:
        why = _WEIGHED
    elif lacking > 0:
        least = budget_needed(budget)
        why = f"{found.cases} independent cases; a budget of {percent(budget)} of wrong releases takes {least}."
    else:
        why = f"On {found.cases} cases no threshold keeps wrong releases within {percent(budget)}: the best ones fail."
    rule = None
    if options.certified_only and not instead:
        rule = ReleaseRule(at_least=None, mode="wrong_releases", target=budget, runs=0, shortage=why)
        why = f"Nothing is released. {why}"
    return rule, Part(name=NAME, status="not fitted", why=why, needs=needs)


def _counted(cases: Cases, found: Released, *, averaged: bool = False) -> str:
    """Over what the probability is: the cases that count, and what is taken of the unlabelled."""
    runs = f"{found.cases} runs with an irreversible call that set it, one a task"
    if averaged and (cases.mass < 1.0).any():
        runs = f"{len(cases)} runs with an irreversible call that set it, worth {found.cases} independent ones"
    if not cases.by_score:
        return runs
    return f"{runs}; those without a label ({len(cases) - cases.labelled} runs) count as wrong"


def _assumed(cases: Cases) -> str:
    """The assumptions of a promise, and the runs that it is not about."""
    chosen = "" if cases.by_score else ", and labels given without regard to how a run went or scored"
    chosen += f", and that {NONE_TAUGHT}" if cases.kept else ""
    note = f" ({cases.without_task} runs name no task and count as one each)" if cases.without_task else ""
    return (
        f"This assumes independent tasks of one distribution{note}{chosen}; a changed agent, task mix or model breaks "
        f"it.{cases.about_the_others}"
    )


def _figures(found: Released, of: int) -> dict[str, JsonValue]:
    return {
        "at_least": found.threshold,
        "runs": found.cases,
        "released": found.released,
        "right_among_released": None if not found.released else 1.0 - found.wrong / found.released,
        "share_released": found.released / of if of else None,
    }


def _labels(cases: Cases, lacking: int) -> str:
    """So many labels that `lacking` more cases set a threshold, if the same share of them does as now."""
    now = max(int(cases.once.sum()), 1)
    more = math.ceil(lacking * (now + len(cases.learnt[0])) / now)
    return f"{more} more labelled runs with an irreversible call"


def _needs(cases: Cases, target: float, delta: float) -> str:
    """The likely number of labelled runs for a certificate, judged by the best fifth of the labelled."""
    p_success, right = cases.p_success[: cases.labelled], cases.right[: cases.labelled]
    there = ~np.isnan(p_success)
    independent = int(cases.once.sum())
    least = released_needed(1.0, target, delta)
    if int(there.sum()) < 10 or independent < (least or 0):
        return f"There are {independent} independent cases; a certificate takes at least {least}, all of them right."
    best = there & (p_success >= np.quantile(p_success[there], 0.8))
    seen = (float(right[best].sum()) + 0.5) / (int(best.sum()) + 1.0)
    needed = released_needed(seen, target, delta)
    if needed is None:
        return (
            f"Of the best fifth {100 * seen:.0f} % were right: more labels will not certify {percent(target)}, better "
            "readings might."
        )
    more = max(0, math.ceil(needed / float(best.mean())) - independent)
    return f"About {_labels(cases, more)} would certify it, if the best fifth stays as good ({100 * seen:.0f} %)."
