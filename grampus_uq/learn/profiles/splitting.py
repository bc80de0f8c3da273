"""Two disjoint parts of labelled runs: one to learn on, one to set thresholds; trials of one task stay together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["held_out_runs"]


def held_out_runs(
    tasks: Sequence[str], success: npt.NDArray[np.bool_], share: float, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Draw the part that is held out: True for its runs.

    Whole tasks are dealt in random order, each to the part that lacks more of what it holds, successes and failures
    apart; so both parts hold about their share of either, and no task is in both.

    Args:
        tasks: shape (n,): runs with the same name stay together.
        success: shape (n,).
        share: of each outcome that is held out, in (0, 1).
        rng: the same state gives the same parts.
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
