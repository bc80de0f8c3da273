"""A call floor for one model, without labels: the one under which so large a share of its own calls lies.

A probability means something else on every model (docs: policy, the table of models), a rank among the model's own
calls does not.
"""

from __future__ import annotations

import numpy as np

from grampus_uq.core.decision import is_irreversible
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.columns import task_of
from grampus_uq.learn.fit.task_draws import one_a_task
from grampus_uq.recording.copies import distinct_runs
from grampus_uq.recording.runs import Paths, Refused, Run
from grampus_uq.records.call_parts import call_probability
from grampus_uq.records.vocabulary import UncertaintySource
from grampus_uq.stats.selective import share_threshold


def call_floor_for_share(
    recordings: Paths,
    share: float,
    *,
    policy: UncertaintyPolicy | None = None,
    least: float = 0.1,
    on_refused: Refused | None = None,
) -> float | None:
    """The `call_floor` under which at most this share of a model's irreversible calls lies.

    Guarantee: if the tasks of the recorded runs and that of a new one are exchangeable, the probability of the new
    run's first irreversible call lies below the floor with probability at most `share`, unless the floor is `least`.
    It says how much is asked, and nothing of how many wrong calls go out: that takes labels. What breaks it: another
    model, prompt or tools, and runs that were chosen by how they looked.

    `recordings`: files and folders of one model's runs, labelled or not. Of the trials of a task (`task_id`) one
    counts, drawn before it is asked whether it has such a call; of the copies of a run one. `share`: of all
    irreversible calls, in (0, 1): questions a day over irreversible calls a day. `policy`: whose names say which calls
    are irreversible, beside their declared effects. `least`: the floor is never below it, in [0, 1]: a call less likely
    than that is held, whatever that asks. `on_refused` takes what is wrong with a file or a run, which is left out.

    Returns the floor, in [least, 1]; None where the calls whose own tokens were read are too few for the share (fewer
    than 1 / share - 1): keep the floor that you have. A call that was not read is held anyway, and does not count.
    """
    if not 0.0 < share < 1.0:
        raise ConfigurationError.of("share", "call_floor_for_share", "in (0, 1)", share)
    if not 0.0 <= least <= 1.0:
        raise ConfigurationError.of("least", "call_floor_for_share", "in [0, 1]", least)
    rules = policy or UncertaintyPolicy()
    found = [
        (task_of(run) or f"run {run.session_id}", first_call(run, rules))
        for run in distinct_runs(recordings, on_refused=on_refused)
    ]
    drawn = one_a_task([task for task, _ in found], np.random.default_rng(0))
    calls = [call for (_, call), out in zip(found, drawn, strict=True) if out and call is not None]
    floor = share_threshold(calls, share)
    return None if floor is None else max(least, floor)


def first_call(run: Run, policy: UncertaintyPolicy) -> float | None:
    """The `call_probability` of a run's first irreversible call; None without one, or where it was not read."""
    for at, event in enumerate(run.steps):
        name = event.step.tool_name
        if event.step.kind != "tool_call" or not is_irreversible(policy, name, event.step.effect):
            continue
        for turn in reversed(run.steps[:at]):
            for number, call in enumerate(turn.step.tool_calls if turn.step.kind != "tool_call" else ()):
                if (call.id, call.name) == (event.step.tool_calls[0].id, name):
                    parts = (r.parts for r in turn.readings if r.source == UncertaintySource.CALL_PROBABILITY)
                    return call_probability(next(parts, ()), number)
        return None
    return None
