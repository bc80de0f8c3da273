"""How well TRACER, its extension and trivial counts tell failed runs from successes, on files in tau-bench's format.

    python tests/benchmarks/tracer.py FILE... [--embedder hash|minilm] [--model-dir DIR] [--ablations] [--json]

Every score is looked at three times: at the end of a run (AUROC, AUARC), at a fixed step of the runs that get that
far (`prefix_auroc_*`), and as an alarm: the highest score so far is compared after every step with a conformal
quantile, level 10 %, of the same over successful runs of *other tasks* (each task is left out once).
`early_false_alarm_rate` and `early_detection` are the shares of successes and of failures that this stops at any
step, `early_before_half` the share of failures that it stops in the first half of the run. Intervals are bootstrapped
over tasks. `tracer_fitted` is scored by parameters that were fitted on other tasks. Closing turns of the simulated
user are no steps.

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
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.evaluate.early_warning import ScoredPaths, early_warning
from grampus_uq.evaluate.risk_scores import ABLATIONS, SCORES, fitted_paths
from grampus_uq.events import ObservationEvent
from grampus_uq.fit.tracer import cross_validate_tracer
from grampus_uq.importers.run import ImportedRun, turns
from grampus_uq.importers.tau_bench import read_tau_bench
from grampus_uq.protocols import Embedder
from grampus_uq.recording.trajectories import Trajectory
from grampus_uq.signals.embedding import CachedEmbedder, HashingEmbedder
from grampus_uq.signals.minilm import MiniLM
from grampus_uq.signals.text import (
    AgentTurn,
    Observation,
    TurnEvent,
    UserTurn,
    is_closing,
    turn_of_observation,
    turn_of_step,
)
from grampus_uq.signals.trajectory import run_components
from tests.benchmarks._report import emit


def turn_events(run: ImportedRun) -> Iterator[TurnEvent]:
    """Give an imported run as the turns that TRACER reads."""
    for turn in turns(run):
        if isinstance(turn, ObservationEvent):
            yield turn_of_observation(turn)
        else:
            yield from turn_of_step(turn)


def load(path: str, embedder: Embedder, progress: Progress) -> list[Trajectory]:
    """Read a file and compute the components of its runs, the reward being the outcome, also at the limit of turns."""
    runs = []
    imported = list(read_tau_bench(path, at_max_turns="reward", on_refused=lambda error: print(error, file=sys.stderr)))
    for run in progress.track(imported, description=f"components of {Path(path).name}"):
        steps = run_components(turn_events(run), embedder)
        characters = characters_by_step(turn_events(run))
        if len(steps) != len(characters):
            raise AssertionError(f"{run.run_id}: {len(steps)} steps, {len(characters)} counted")
        if steps and run.outcome.success is not None:
            runs.append(
                Trajectory(
                    run_id=run.run_id,
                    task=run.task_id or run.run_id,
                    failed=not run.outcome.success,
                    steps=tuple(steps),
                    characters=tuple(characters),
                    readings={},
                )
            )
    return runs


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
    runs = load(path, embedder, progress)
    dataset = Path(path).name.removesuffix(".gz").removesuffix(".json")
    fit = cross_validate_tracer(
        [run.steps for run in runs],
        [run.failed for run in runs],
        [run.task for run in runs],
        rng=np.random.default_rng(options.seed),
    )
    functions = {**SCORES, **(ABLATIONS if options.ablations else {})}
    scores = {name: [function(run) for run in runs] for name, function in functions.items()}
    first, *others = scores
    fitted = {"tracer_fitted": fitted_paths(runs, fit.fold_of, fit.parameters)}
    every = {first: scores[first]} | fitted | {name: scores[name] for name in others}
    failed, tasks = [run.failed for run in runs], [run.task for run in runs]
    for name, paths in progress.track(every.items(), description=f"scores of {dataset}"):
        yield row(dataset, name, ScoredPaths(paths=paths, failed=failed, tasks=tasks), options)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="results in tau-bench's format, .json or .json.gz")
    parser.add_argument("--embedder", choices=("hash", "minilm"), default="hash")
    parser.add_argument("--model-dir", help="model directory of MiniLM (default: the installed package's)")
    parser.add_argument("--ablations", action="store_true", help="variants, actors alone, events")
    parser.add_argument("--draws", type=int, default=2000, help="bootstrap draws")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    embedder = CachedEmbedder(
        MiniLM(options.model_dir) if options.embedder == "minilm" else HashingEmbedder(), capacity=1 << 16
    )
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        rows = [row for path in options.files for row in measure(path, options, embedder, progress)]
    emit("tracer", rows, options.json)


if __name__ == "__main__":
    main()
