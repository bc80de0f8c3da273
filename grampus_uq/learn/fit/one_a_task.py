"""One run of each task: its trials resemble each other, and a count that takes them for independent is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["one_a_task"]


def one_a_task(
    tasks: Sequence[str], rng: np.random.Generator, others: Mapping[str, int] | None = None
) -> npt.NDArray[np.bool_]:
    """Draw one run of each task: True for those drawn.

    Draw before anything is asked of the runs (did it succeed, does it call something irreversible): the runs drawn are
    then independent draws of one distribution, task by task, and so are those among them that it holds of. Choosing one
    of the successes of each task instead would count a task that mostly fails like one that mostly succeeds.

    Args:
        tasks: shape (n,): trials of one task share a name.
        rng: draws; unused where every task has one run, so that such a fit stays what it was.
        others: further runs by task, which take part in the draw and are not here: where one of them is drawn, the task
            has none.
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
