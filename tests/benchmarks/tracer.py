"""How well TRACER, its extension and trivial counts tell failed runs from successes, on files in tau-bench's format.

    python tests/benchmarks/tracer.py FILE... [--embedder hash|minilm] [--model-dir DIR] [--ablations] [--json]

Every score is looked at three times: at the end of a run (AUROC, AUARC), at a fixed step of the runs that get that
far (`prefix_auroc_*`), and as an alarm: the highest score so far is compared after every step with a conformal
quantile, level 10 %, of the same over successful runs of *other tasks* (each task is left out once).
`early_false_alarm_rate` and `early_detection` are the shares of successes and of failures that this stops at any
step, `early_before_half` the share of failures that it stops in the first half of the run. Intervals are bootstrapped
over tasks. `tracer_fitted` is scored by parameters that were fitted on other tasks, and `structure`, what the agent did
(`signals.structure`), by a plain logistic regression on the counts at the end of runs of other tasks, averaged over
five partings of the tasks; its `gain` is what its AUROC has over that of `n_steps`, on the same resampled tasks.
Closing turns of the simulated user are no steps. Runs and files that cannot be read are named and left out; every row
says how many runs of its file were `read` and `skipped`, and the exit status is then 1.

With --ablations also: the variants of Table IV, the agent's and the user's risk alone (Table III), and TRACER with
events.
"""

from __future__ import annotations

import os

# Read when NumPy is imported: the products of MiniLM are small, and on a busy machine threads wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.importers.imported_run import ImportedRun, turns
from grampus_uq.importers.tau_bench import read_tau_bench
from grampus_uq.learn.fit.fit_tracer import cross_validate_tracer
from grampus_uq.records.events import ObservationEvent
from grampus_uq.records.protocols import Embedder
from grampus_uq.signals.embedding import CachedEmbedder, HashingEmbedder
from grampus_uq.signals.minilm import MiniLM
from grampus_uq.signals.structure import StructureState, observe_structure, structure_step
from grampus_uq.signals.turn_events import (
    AgentTurn,
    Observation,
    TurnEvent,
    UserTurn,
    is_closing,
    turn_of_observation,
    turn_of_step,
)
from grampus_uq.stats.ranking import auroc
from tests.benchmarks._report import emit, positive
from tests.benchmarks.early_warning import ScoredPaths, early_warning
from tests.benchmarks.risk_scores import ABLATIONS, SCORES, CountedTrajectory, fitted_paths
from tests.trajectory_runs import run_components

FloatArray = npt.NDArray[np.float64]


def turn_events(run: ImportedRun) -> Iterator[TurnEvent]:
    """Give an imported run as the turns that TRACER reads."""
    for turn in turns(run):
        if isinstance(turn, ObservationEvent):
            yield turn_of_observation(turn)
        else:
            yield from turn_of_step(turn)


@dataclass(slots=True)
class Read:
    """What a file held: its runs, the counts of what their agents did, by run, and how many could not be used."""

    runs: list[CountedTrajectory] = field(default_factory=list)
    counts: list[FloatArray] = field(default_factory=list)
    skipped: int = 0

    def refuse(self, error: DataError) -> None:
        """Name what is left out, and count it."""
        print(f"left out: {error}", file=sys.stderr)
        self.skipped += 1


def load(path: str, embedder: Embedder, progress: Progress) -> Read:
    """Read a file and compute the components of its runs, the reward being the outcome, also at the limit of turns."""
    read = Read()
    imported: list[ImportedRun] = []
    try:
        imported.extend(read_tau_bench(path, on_refused=read.refuse))
    except DataError as error:  # the rest of the file
        read.refuse(error)
    for run in progress.track(imported, description=f"components of {Path(path).name}"):
        steps = run_components(turn_events(run), embedder)
        characters = characters_by_step(turn_events(run))
        if len(steps) != len(characters):
            raise AssertionError(f"{run.run_id}: {len(steps)} steps, {len(characters)} counted")
        if not steps:
            read.skipped += 1
        else:
            read.counts.append(counts_by_step(run))
            read.runs.append(
                CountedTrajectory(
                    run_id=run.run_id,
                    task=run.task_id or run.run_id,
                    failed=run.reward != 1.0,
                    steps=tuple(steps),
                    characters=tuple(characters),
                )
            )
    return read


def counts_by_step(run: ImportedRun) -> FloatArray:
    """Count what the agent did up to each step, its own and those of the user, shape (steps, counts)."""
    state = StructureState()
    rows: list[list[int]] = []
    for turn in turns(run):
        if isinstance(turn, ObservationEvent):
            observe_structure(state, turn)
            if turn.kind != "user" or is_closing(turn.text):
                rows[-1:] = [[*state.counts]] * bool(rows)  # it belongs to the step that asked for it
                continue
        else:
            structure_step(state, turn)
        rows.append([*state.counts])
    return np.array(rows, dtype=np.float64)


def structure_paths(read: Read, *, folds: int = 10, partings: int = 5, seed: int = 0) -> list[FloatArray]:
    """Log odds of failure after every step, by regressions on the counts at the end of runs of other tasks.

    The regression is penalised as scikit-learn's is by default; counts enter as log(1 + count).
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    tasks = np.array([run.task for run in read.runs])
    failed = np.array([run.failed for run in read.runs])
    ends = np.log1p(np.array([rows[-1] for rows in read.counts]))
    paths = [np.zeros(len(rows)) for rows in read.counts]
    rng = np.random.default_rng(seed)
    for _ in range(partings):
        names = rng.permutation(np.unique(tasks))
        fold_of = dict(zip(names.tolist(), (np.arange(len(names)) % folds).tolist(), strict=True))
        fold = np.array([fold_of[task] for task in tasks.tolist()])
        for k in range(folds):
            learn = fold != k
            if failed[learn].all() or not failed[learn].any():
                continue
            model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(ends[learn], failed[learn])
            for i in np.flatnonzero(~learn):
                paths[i] += model.decision_function(np.log1p(read.counts[i])) / partings
    return paths


def characters_by_step(events: Iterable[TurnEvent]) -> list[float]:
    """Count what agent, tools and user wrote at each step."""
    counts: list[float] = []
    for event in events:
        match event:
            case AgentTurn():
                counts.append(len(event.text) + sum(len(call.canonical()) for call in event.calls))
            case Observation() if counts:
                counts[-1] += len(event.text)
            case UserTurn() if not is_closing(event.text):
                counts.append(len(event.text))
            case _:
                pass
    return counts


def row(dataset: str, score: str, paths: ScoredPaths, given: argparse.Namespace) -> dict[str, Any]:
    """Measure one score on one file."""
    named = {"dataset": dataset, "score": score, "embedder": given.embedder}
    return named | early_warning(paths, seed=given.seed, draws=given.draws)


def measure(path: str, options: argparse.Namespace, embedder: Embedder, progress: Progress) -> Iterator[dict[str, Any]]:
    """Measure every score on one file."""
    read = load(path, embedder, progress)
    runs, dataset = read.runs, Path(path).name.removesuffix(".gz").removesuffix(".json")
    counts = {"read": len(runs), "skipped": read.skipped}
    if not runs:
        print(f"left out: {path}: no run of it was read.", file=sys.stderr)
        yield {"dataset": dataset, "score": "", **counts}
        return
    failed, tasks = [run.failed for run in runs], [run.task for run in runs]
    learned = {"structure": structure_paths(read, seed=options.seed)}
    try:
        fit = cross_validate_tracer([run.steps for run in runs], failed, tasks, rng=np.random.default_rng(options.seed))
        learned = {"tracer_fitted": fitted_paths(runs, fit.fold_of, fit.parameters)} | learned
    except ConfigurationError as error:  # too few tasks, or runs of one kind only
        print(f"tracer_fitted is left out: {path}: {error}", file=sys.stderr)
    functions = {**SCORES, **(ABLATIONS if options.ablations else {})}
    scores = {name: [function(run) for run in runs] for name, function in functions.items()}
    first, *others = scores
    every = {first: scores[first]} | learned | {name: scores[name] for name in others}
    for name, paths in progress.track(every.items(), description=f"scores of {dataset}"):
        more = auroc_gain(paths, every["n_steps"], failed, tasks, options) if name == "structure" else {}
        yield row(dataset, name, ScoredPaths(paths=paths, failed=failed, tasks=tasks), options) | counts | more


def auroc_gain(
    one: Sequence[FloatArray],
    other: Sequence[FloatArray],
    failed: Sequence[bool],
    tasks: Sequence[str],
    given: argparse.Namespace,
) -> dict[str, float | None]:
    """How much more AUROC the first score has at the end of runs, with a 95 % interval over resampled tasks."""
    ends = np.array([[path[-1] for path in side] for side in (one, other)])
    bad, rng = np.array(failed), np.random.default_rng(given.seed)
    of_task = [np.flatnonzero(np.array(tasks) == task) for task in dict.fromkeys(tasks)]
    draws = []
    for _ in range(given.draws):
        drawn = np.concatenate([of_task[i] for i in rng.integers(len(of_task), size=len(of_task))])
        first, second = (auroc(side[drawn], bad[drawn]) for side in ends)
        if first is not None and second is not None:
            draws.append(first - second)
    first, second = (auroc(side, bad) for side in ends)
    if first is None or second is None or not draws:
        return {"gain": None, "gain_low": None, "gain_high": None}
    low, high = np.quantile(draws, (0.025, 0.975))
    return {"gain": first - second, "gain_low": float(low), "gain_high": float(high)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="results in tau-bench's format, .json or .json.gz")
    parser.add_argument("--embedder", choices=("hash", "minilm"), default="hash")
    parser.add_argument("--model-dir", help="model directory of MiniLM (default: the installed package's)")
    parser.add_argument("--ablations", action="store_true", help="variants, actors alone, events")
    parser.add_argument("--draws", type=positive, default=2000, help="bootstrap draws")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    embedder = CachedEmbedder(
        MiniLM(options.model_dir) if options.embedder == "minilm" else HashingEmbedder(), capacity=1 << 16
    )
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        rows = [row for path in options.files for row in measure(path, options, embedder, progress)]
    emit("tracer", rows, options.json)
    if any(row["skipped"] or not row["read"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
