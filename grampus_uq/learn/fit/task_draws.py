"""Draws by task: the trials of one task resemble each other, and a count that takes them for independent is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from grampus_uq.stats.arrays import BoolArray


def one_a_task(tasks: Sequence[str], rng: np.random.Generator, others: Mapping[str, int] | None = None) -> BoolArray:
    """Draw one run of each task (trials of one task share a name): True for those drawn.

    Draw before anything is asked of the runs (did it succeed, does it call something irreversible): the runs drawn are
    then independent draws of one distribution, task by task, and so are those among them that it holds of. Choosing one
    of the successes of each task instead would count a task that mostly fails like one that mostly succeeds.

    `rng` is unused where every task has one run, so that such a fit stays what it was. `others`: further runs by task,
    which take part in the draw and are not here: where one of them is drawn, the task has none.
    """
    others = others or {}
    drawn = np.ones(len(tasks), dtype=np.bool_)
    if len(set(tasks)) == len(tasks) and not any(others.get(task) for task in tasks):
        return drawn
    names, group, sizes = np.unique(np.array(tasks, dtype=object), return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    first = np.cumsum(sizes) - sizes
    drawn[:] = False
    extra = np.array([others.get(str(name), 0) for name in names], dtype=np.intp)
    chosen = rng.integers(0, sizes + extra)
    there = chosen < sizes
    drawn[order[first[there] + chosen[there]]] = True
    return drawn


def held_out_runs(tasks: Sequence[str], success: BoolArray, share: float, rng: np.random.Generator) -> BoolArray:
    """Draw the part that is held out: True for its runs.

    Whole tasks are dealt in random order, each to the part that lacks more of what it holds, successes and failures
    apart; so both parts hold about their share of either, and no task is in both.

    `tasks`, `success`: shape (n,); runs with the same task stay together. `share`: of each outcome that is held out, in
    (0, 1). The same state of `rng` gives the same parts.
    """
    names, group = np.unique(np.array(tasks, dtype=object), return_inverse=True)
    per_task = np.stack([np.bincount(group, weights=side, minlength=len(names)) for side in (success, ~success)], 1)
    wanted = share * per_task.sum(axis=0)
    got = np.zeros(2)
    dealt = np.zeros(2)
    held = np.zeros(len(names), dtype=np.bool_)
    for task in rng.permutation(len(names)):
        both = per_task[task]
        behind = (share * (dealt + both) - got - both / 2.0) @ both
        if behind > 0.0 or (behind == 0.0 and (wanted - got) @ both > 0.0 and rng.random() < share):
            held[task] = True
            got += both
        dealt += both
    return held[group]
