"""What labels buy: labels spent against what a release rule publishes, lets out, and lets out wrongly.

    python -m tests.benchmarks.labels [SCORES.csv.gz | TAU_BENCH.json.gz | RUNS.tar.gz ...] [--splits 20] [--json]

Takes files of verifier scores (as `evaluator`), tau-bench results (scored by the number of turns: the shorter the
likelier right, which is known before any label), and sets of recordings with `outcomes.jsonl` (scored by the last fused
confidence), each of 40 tasks or more. Two worlds are always there: `rising` and `sharp`. In every split, one run a
task, half of the runs is labelled from, as the rule says, and the other half tests. The one release of a run is at its
end, by a score that no label taught; thresholds are the product's own (`budget_of_wrong_releases`,
`certified_by_count`).

Rules: `certificate`: 90 % of the released are right (delta .1); `budget`: at most 5 % of all are released and wrong, on
average; `budget sure`: the same with delta .1; in all three, labels that are all successes are taken for praise, as
`fit` takes them: the rest counts as wrong; `active`: `budget`, the labels given to the best by score, the others
counted as wrong; `active certificate`: so, and certified.

Rows: `data`, `rule`, `labels`; `published`: share of splits with a threshold; `share_out`: share of the test runs let
out (0 where none is published); `share_right`: of those let out; `wrong_out`: share of all that is let out and wrong.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import DataError
from grampus_uq.importers import read_tau_bench
from grampus_uq.recording.runs import runs
from grampus_uq.records.vocabulary import Role
from grampus_uq.stats.selective import Released, budget_of_wrong_releases, certified_by_count
from tests.benchmarks._report import emit, existing, positive, usage_errors
from tests.benchmarks.recorded_sets import lines, opened_set
from tests.benchmarks.score_tables import read_score_table

SPENT = (20, 50, 100, 200, 400)
ACCURACY, BUDGET, DELTA = 0.9, 0.05, 0.1
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Scored:
    """One score a run, higher: likelier right; whether it was; the task that it is a trial of."""

    name: str
    score: FloatArray
    right: BoolArray
    task: npt.NDArray[np.object_]


def of_verifier(path: Path) -> Scored:
    """The last score of every run."""
    table = read_score_table(path)
    order = np.argsort(np.array(table.ids, dtype=object), kind="stable")
    last = np.array([trace[-1] or 0.0 for trace in table.scores])[order]
    ids = np.array(table.ids, dtype=object)[order]
    return Scored(path.name.split(".")[0], last, np.array(table.solved)[order], ids)


def of_tau_bench(path: Path) -> Scored:
    """Minus the number of turns of every run, on a scale of 0 to 1."""
    runs = [run for run in read_tau_bench(path) if run.messages]
    turns = np.array([sum(message.role is Role.ASSISTANT for message in run.messages) for run in runs], dtype=float)
    right = np.array([run.reward == 1.0 for run in runs], dtype=bool)
    tasks = np.array([run.task_id for run in runs], dtype=object)
    return Scored(path.name.split(".")[0], 1.0 / (1.0 + turns), right, tasks)


def of_recordings(path: Path) -> Scored:
    """The last fused confidence of every recorded run, and what `outcomes.jsonl` says of it."""
    with opened_set(path) as folder:
        known = {str(told["id"]): bool(told["ok"]) for told in lines(folder / "outcomes.jsonl", ("id", "ok"))}
        scores = {
            run.session_id: event.assessment.fused_confidence
            for run in runs(folder / "recordings")
            for event in run.steps
            if event.step.kind != "tool_call"
        }
    names = sorted(scores.keys() & known.keys())
    chances, right = np.array([scores[n] for n in names]), np.array([known[n] for n in names], dtype=bool)
    return Scored(path.name.partition(".tar")[0], chances, right, np.array(names, dtype=object))


def worlds(n: int = 1600) -> Iterator[Scored]:
    """Scores whose chance of being right rises, and scores that tell nearly all."""
    rng = np.random.default_rng(7)
    every = np.array([f"{i}" for i in range(n)], dtype=object)
    s = rng.random(n)
    yield Scored("world: rising", s, rng.random(n) < 0.35 + 0.62 * s, every)
    yield Scored("world: sharp", s, rng.random(n) < np.where(s > 0.4, 0.985, 0.3), every)


def read(path: Path) -> Scored:
    """One file, by its name."""
    if path.is_dir() or path.name.endswith((".tar.gz", ".tgz")):
        return of_recordings(path)
    return of_tau_bench(path) if ".json" in path.name else of_verifier(path)


Rule = Callable[[FloatArray, BoolArray, FloatArray, BoolArray], Released]
"""From the labelled cases, and from all of the half with those without a label counted as wrong, to a threshold."""


def _certificate(p: FloatArray, y: BoolArray, every: FloatArray, counted: BoolArray) -> Released:
    return certified_by_count(*_as_fit_takes(p, y, every, counted), target=ACCURACY, delta=DELTA)


def _budget(p: FloatArray, y: BoolArray, every: FloatArray, counted: BoolArray) -> Released:
    return budget_of_wrong_releases(*_as_fit_takes(p, y, every, counted), budget=BUDGET)


def _sure(p: FloatArray, y: BoolArray, every: FloatArray, counted: BoolArray) -> Released:
    return budget_of_wrong_releases(*_as_fit_takes(p, y, every, counted), budget=BUDGET, delta=DELTA)


def _as_fit_takes(p: FloatArray, y: BoolArray, every: FloatArray, counted: BoolArray) -> tuple[FloatArray, BoolArray]:
    """Labels that are all successes may come from praise alone: those without one then count as wrong."""
    return (every, counted) if y.all() else (p, y)


RULES: dict[str, tuple[bool, Rule]] = {
    "certificate": (False, _certificate),
    "budget": (False, _budget),
    "budget sure": (False, _sure),
    "active": (True, lambda p, y, every, counted: _budget(every, counted, every, counted)),
    "active certificate": (True, lambda p, y, every, counted: _certificate(every, counted, every, counted)),
}


def one_a_task(data: Scored, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """One run of each task, in random order."""
    order = rng.permutation(len(data.task))
    _, first = np.unique(data.task[order], return_index=True)
    return rng.permutation(order[first])


def spent(data: Scored, rule: str, labels: int, splits: int) -> dict[str, Any]:
    """One row."""
    active, decide = RULES[rule]
    published, out, wrong, right = [], [], [], []
    for split in range(splits):
        rng = np.random.default_rng([split, 11])
        order = one_a_task(data, rng)
        half, test = order[: len(order) // 2], order[len(order) // 2 :]
        best = np.argsort(-data.score[half], kind="stable") if active else np.arange(len(half))
        known = half[best[:labels]]
        counted = data.right[half] & np.isin(half, known)
        found = decide(data.score[known], data.right[known], data.score[half], counted)
        go = np.zeros(len(test), dtype=bool) if found.threshold is None else data.score[test] >= found.threshold
        published.append(found.threshold is not None)
        out.append(go.mean())
        wrong.append((go & ~data.right[test]).mean())
        right.append((go & data.right[test]).mean())
    share = float(np.mean(out))
    return {
        "data": data.name,
        "rule": rule,
        "labels": labels,
        "published": float(np.mean(published)),
        "share_out": share,
        "share_right": None if share == 0.0 else float(np.mean(right)) / share,
        "wrong_out": float(np.mean(wrong)),
        "standard_error": float(np.std(wrong, ddof=1) / math.sqrt(splits)) if splits > 1 else None,
        "runs": len(np.unique(data.task)),
    }


def measure(files: list[Path], splits: int) -> Iterator[dict[str, Any]]:
    """Every row of every file and world; labels that half of the tasks does not have are left out."""
    given = [read(path) for path in files]
    for path, data in zip(files, given, strict=True):
        if len(np.unique(data.task)) < 2 * SPENT[0]:
            raise DataError(f"has {len(np.unique(data.task))} tasks; {2 * SPENT[0]} are needed.", path=str(path))
    for data in (*given, *worlds()):
        for rule in RULES:
            for labels in SPENT:
                if labels <= len(np.unique(data.task)) // 2:
                    yield spent(data, rule, labels, splits)


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=existing)
    parser.add_argument("--splits", type=positive, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with usage_errors(parser):
        emit("labels", measure(given.files, given.splits), given.json)


if __name__ == "__main__":
    main()
