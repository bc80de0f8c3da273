"""The cases of a release rule: a run's first irreversible call, scored as the live decision reads it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from grampus_uq.learn.fit.fit_calibration import apply_exactly
from grampus_uq.learn.fit.task_draws import one_a_task
from grampus_uq.learn.profiles.labelled import LabelledRuns
from grampus_uq.learn.profiles.options import FitOptions
from grampus_uq.learn.profiles.p_success import FittedPSuccess
from grampus_uq.stats.arrays import BoolArray, FloatArray

_OTHERWISE = 1e-3  # labelled runs that score as differently as this from the rest were not labelled at random
_MOST_TO_LABEL = 50
_FEW = 10  # cases to learn on, below which candidates for a threshold are not chosen on them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cases:
    """Runs with an irreversible call: what its decision reads, and how the run ended.

    p_success: shape (n,), at the first irreversible call, NaN where there is none. right, weights: shape (n,).
    once: shape (n,), one case a task at most, drawn before it was asked whether the run has a call. mass: shape (n,),
    one over the runs of the case's task, with a call or without. labelled: how many have a label (they come first);
    the others count as wrong. learnt: p_success and outcomes of the labelled cases that were learned
    on, for the choice of candidates; empty where these are too few, or nothing was learned. kept: p_success comes from
    another profile. praised: every label is a success, so that labels may come from praise alone: the rest counts as
    wrong. without_task: runs that name no task. about_the_others: the sentence on runs that are left out.
    """

    p_success: FloatArray
    right: BoolArray
    weights: FloatArray
    mass: FloatArray
    once: BoolArray
    labelled: int
    kept: bool = False
    praised: bool = False
    without_task: int = 0
    about_the_others: str = ""
    learnt: tuple[FloatArray, BoolArray] = field(default_factory=lambda: (np.empty(0), np.empty(0, dtype=np.bool_)))

    def __len__(self) -> int:
        return len(self.right)

    @property
    def by_score(self) -> bool:
        """True when runs without a label are among them."""
        return self.labelled < len(self)

    def of_each_task(self) -> tuple[FloatArray, BoolArray]:
        """Chances and outcomes of one case a task."""
        return self.p_success[self.once], self.right[self.once]


def cases_of(
    runs: LabelledRuns, fitted: FittedPSuccess, options: FitOptions, rng: np.random.Generator, *, outcomes: bool = True
) -> Cases:
    """Gather the cases that may set a threshold.

    Labelled ones that taught nothing. Those without a label join them, as wrong ones, where the labelled were chosen by
    their score, or may have been by their outcome; and always where no outcome is asked for (`outcomes` False). Of a
    task that was learned on none does.
    """
    unlabelled, held_out = runs.unlabelled, ~fitted.taught
    theirs = apply_exactly(fitted.fusion, unlabelled.streams) if len(unlabelled) else np.empty(0)
    mine = runs.at_ask(fitted.values)
    joins = _to_threshold(runs, held_out, options, rng)
    praised = outcomes and options.labels is None and len(unlabelled) > 0 and bool(runs.success[runs.has_call].all())
    if outcomes and not praised and not _by_score(mine[held_out & runs.has_call], theirs, options):
        joins[:] = False
    kept = [unlabelled.tasks[i] for i in np.flatnonzero(joins)]
    others = Counter(runs.others)
    if joins.any():
        others.update(unlabelled.uncalled)
    # Tasks lie wholly in one part, so that a draw among all runs is one among those that are held out.
    every = [*runs.tasks, *kept]
    drawn = one_a_task(every, rng, others)
    others.update(every)
    pool = held_out & runs.has_call
    learn = ~held_out & runs.has_call
    tasks = [*(runs.tasks[i] for i in np.flatnonzero(pool)), *kept]
    return Cases(
        p_success=np.concatenate([mine[pool], theirs[joins]]),
        right=np.concatenate([runs.success[pool], np.zeros(len(kept), dtype=np.bool_)]),
        weights=np.concatenate([runs.weights[pool], np.ones(len(kept))]),
        mass=np.array([1.0 / others[task] for task in tasks]),
        once=np.concatenate([drawn[: len(runs)][pool], drawn[len(runs) :]]),
        labelled=int(pool.sum()),
        kept=fitted.kept,
        praised=praised,
        without_task=runs.without_task,
        about_the_others=runs.about_the_others,
        **({"learnt": (mine[learn], runs.success[learn])} if int(learn.sum()) >= _FEW else {}),
    )


def worth_labelling(runs: LabelledRuns, fitted: FittedPSuccess | None) -> tuple[str, ...]:
    """The runs without a label that are likeliest right, best first: their labels let a release rule publish soonest.

    Without a `p_success` by the fused confidence, which needs no label.
    """
    unlabelled = runs.unlabelled
    if not len(unlabelled):
        return ()
    if fitted is not None:
        values = apply_exactly(fitted.fusion, unlabelled.streams)
    else:
        values = unlabelled.streams.get("fused", np.full(len(unlabelled), np.nan))
    order = np.argsort(-values, kind="stable")
    return tuple(unlabelled.ids[i] for i in order[:_MOST_TO_LABEL] if not np.isnan(values[i]))


def _to_threshold(runs: LabelledRuns, held_out: BoolArray, options: FitOptions, rng: np.random.Generator) -> BoolArray:
    """Deal the runs without a label to the two parts as the labelled ones were, whole tasks, known ones with theirs."""
    tasks = runs.unlabelled.tasks
    if held_out.all():
        return np.ones(len(tasks), dtype=np.bool_)
    part = dict(zip(runs.tasks, held_out.tolist(), strict=True))
    for task in sorted(set(tasks) - part.keys()):
        part[task] = bool(rng.random() < options.held_out)
    return np.array([part[task] for task in tasks], dtype=np.bool_)


def _by_score(labelled: FloatArray, rest: FloatArray, options: FitOptions) -> bool:
    """True if the labelled runs were chosen by score, as far as the scores alone show."""
    if options.labels is not None or not len(rest) or not len(labelled):
        return options.labels == "by_score"
    from scipy.stats import mannwhitneyu

    both = [np.where(np.isnan(side), -1.0, side) for side in (labelled, rest)]
    return bool(mannwhitneyu(*both, alternative="two-sided").pvalue < _OTHERWISE)
