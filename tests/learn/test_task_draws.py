"""One run of each task is drawn, each with the same chance, whatever else the runs are."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.learn.fit.detector import fit_budget
from grampus_uq.learn.fit.detector_split import split, split_at
from grampus_uq.learn.fit.task_draws import one_a_task
from tests.detector_rows import detector_runs

names = st.lists(st.sampled_from("abcdefg"), max_size=40)


@given(names, st.integers(0, 9), st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 3), max_size=4))
def test_no_task_is_drawn_twice_and_only_one_with_others_may_be_left_without(tasks, seed, others) -> None:
    drawn = Counter(np.array(tasks, dtype=object)[one_a_task(tasks, np.random.default_rng(seed), others)])
    for task in set(tasks):
        assert drawn[task] == 1 or (drawn[task] == 0 and others.get(task))


def test_every_run_of_a_task_has_the_same_chance_those_that_are_elsewhere_too() -> None:
    rng = np.random.default_rng(0)
    tasks = ["a", "b", "a", "a"]
    hits = np.sum([one_a_task(tasks, rng, {"a": 1}) for _ in range(4000)], axis=0)
    assert hits[1] == 4000
    assert np.all(np.abs(hits[[0, 2, 3]] - 1000) < 110)  # 4 standard errors


def test_where_every_run_is_a_task_of_its_own_nothing_is_drawn() -> None:
    rng = np.random.default_rng(0)
    assert one_a_task(["a", "b"], rng, {"c": 5}).all()
    assert rng.random() == np.random.default_rng(0).random()


@given(st.integers(0, 30), st.integers(1, 5), st.booleans())
def test_no_task_both_sets_the_threshold_and_teaches_and_it_sets_it_once(seed, trials, at) -> None:
    rng = np.random.default_rng(seed)
    ids = [f"r{i}" for i in range(160)]
    runs = detector_runs(
        run_ids=ids,
        steps=[1] * len(ids),
        scores=rng.random(len(ids)),
        outcomes=dict(zip(ids, (rng.random(len(ids)) < 0.6).tolist(), strict=True)),
        tasks={name: f"t{i // trials}" for i, name in enumerate(ids)},
    )
    held = {name for i, name in enumerate(ids) if (i // trials) % 2}
    parts = split_at(runs, held, rng) if at else split(runs, 0.1, 0.1, rng)
    setting, teaching = ([runs.tasks[i] for i in part] for part in (parts.threshold, parts.fit))
    assert len(set(setting)) == len(setting) > 0
    assert not set(setting) & set(teaching)
    assert runs.success[list(parts.threshold)].all()


def test_an_interruption_budget_counts_a_task_once() -> None:
    ids = [f"r{i}" for i in range(40)]
    tasks = {name: f"t{i // 4}" for i, name in enumerate(ids)}
    runs = detector_runs(run_ids=ids, steps=[1] * 40, scores=[0.5] * 40, tasks=tasks)
    assert fit_budget(runs, rng=np.random.default_rng(0), share=0.2).detector.threshold.runs == 10
