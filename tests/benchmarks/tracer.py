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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.events import ObservationEvent
from grampus_uq.fit.tracer import TracerCrossValidation, cross_validate_tracer
from grampus_uq.importers.run import ImportedRun, turns
from grampus_uq.importers.tau_bench import read_tau_bench
from grampus_uq.protocols import Embedder
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
from grampus_uq.stats.bootstrap import RowStatistic, bootstrap
from grampus_uq.stats.ranking import auarc, auroc, auroc_rows
from grampus_uq.stats.ranks import conformal_quantile
from grampus_uq.stats.trajectory_risk import (
    Composite,
    StepComponents,
    TracerParameters,
    TracerStream,
    extended_step_risk,
)
from tests.benchmarks._report import emit

ALPHA = 0.1
FIXED_STEPS = (5, 10, 20)
DEFAULTS = TracerParameters()

FloatArray = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Run:
    """A run with everything that a score may use: components, and characters said, up to and with each step."""

    task: str
    failed: bool
    steps: list[StepComponents]
    characters: FloatArray


PathScore = Callable[[Run], FloatArray]


@dataclass(frozen=True, slots=True)
class Scored:
    """A score's value after every step of every run."""

    name: str
    paths: list[FloatArray]


def turn_events(run: ImportedRun) -> Iterator[TurnEvent]:
    """Give an imported run as the turns that TRACER reads."""
    for turn in turns(run):
        if isinstance(turn, ObservationEvent):
            yield turn_of_observation(turn)
        else:
            yield from turn_of_step(turn)


def load(path: str, embedder: Embedder, progress: Progress) -> list[Run]:
    """Read a file and compute the components of its runs, the reward being the outcome, also at the limit of turns."""
    runs = []
    imported = list(read_tau_bench(path, at_max_turns="reward", on_refused=lambda error: print(error, file=sys.stderr)))
    for run in progress.track(imported, description=f"components of {Path(path).name}"):
        steps = run_components(turn_events(run), embedder)
        characters = characters_by_step(turn_events(run))
        if len(steps) != len(characters):
            raise AssertionError(f"{run.run_id}: {len(steps)} steps, {len(characters)} counted")
        if steps and run.outcome.success is not None:
            runs.append(Run(run.task_id or run.run_id, not run.outcome.success, steps, np.cumsum(characters)))
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


def tracer_path(parameters: TracerParameters, keep: Callable[[StepComponents], bool] | None = None) -> PathScore:
    """Make the function that scores every prefix of a run; steps that `keep` refuses stay in it with risk 0."""

    def path(run: Run) -> FloatArray:
        stream = TracerStream(parameters)
        silent = (StepComponents(is_agent=step.is_agent) for step in run.steps)
        steps = (
            step if keep is None or keep(step) else nothing for step, nothing in zip(run.steps, silent, strict=True)
        )
        return np.array([stream.update(step).score for step in steps])

    return path


def counted(what: Callable[[StepComponents], float]) -> PathScore:
    """Make the function that sums a number of each step over every prefix of a run."""
    return lambda run: np.cumsum([what(step) for step in run.steps], dtype=np.float64)


SCORES: dict[str, PathScore] = {
    "tracer_default": tracer_path(DEFAULTS),
    "extended_sum": counted(extended_step_risk),
    "n_steps": counted(lambda step: 1.0),
    "n_chars": lambda run: run.characters,
    "tool_errors": counted(lambda step: float(bool(step.tool_error))),
    "duplicate_calls": counted(lambda step: float(bool(step.duplicate_call))),
}
ABLATIONS: dict[str, PathScore] = {
    "tracer_additive": tracer_path(TracerParameters(composite=Composite.ADDITIVE)),
    "tracer_multiplicative": tracer_path(TracerParameters(composite=Composite.MULTIPLICATIVE)),
    "tracer_separate": tracer_path(TracerParameters(composite=Composite.SEPARATE)),
    "tracer_agent_only": tracer_path(DEFAULTS, keep=lambda step: step.is_agent),
    "tracer_user_only": tracer_path(DEFAULTS, keep=lambda step: not step.is_agent),
    "tracer_with_events": tracer_path(TracerParameters(event=1.0)),
    "duplicate_observations": counted(lambda step: float(bool(step.duplicate_observation))),
}


def fitted_paths(runs: Sequence[Run], fit: TracerCrossValidation) -> list[FloatArray]:
    """Score every prefix by the parameters of the other folds, as a rank among the runs that those were fitted on.

    The scores of two folds have different scales; ranks among the highest scores of the fitting runs have one.
    """
    paths: list[FloatArray] = [np.empty(0)] * len(runs)
    for fold, parameters in enumerate(fit.parameters):
        score = tracer_path(parameters)
        inside = np.sort([score(run).max() for run, its in zip(runs, fit.fold_of, strict=True) if its != fold])
        for index in (index for index, its in enumerate(fit.fold_of) if its == fold):
            path = score(runs[index])
            below = np.searchsorted(inside, path, "left") + np.searchsorted(inside, path, "right")
            paths[index] = below / (2.0 * len(inside))
    return paths


def alarms(runs: Sequence[Run], paths: Sequence[FloatArray]) -> list[int | None]:
    """Give the step (from 1) at which each run is stopped, by a threshold from the successes of all other tasks."""
    highest = np.array([path.max() for path in paths])
    succeeded = np.array([not run.failed for run in runs])
    tasks = np.array([run.task for run in runs])
    stops: list[int | None] = []
    for run, path in zip(runs, paths, strict=True):
        threshold = conformal_quantile(highest[succeeded & (tasks != run.task)], ALPHA)
        beyond = np.flatnonzero(path > threshold)
        stops.append(int(beyond[0]) + 1 if len(beyond) else None)
    return stops


def share(flags: FloatArray, among: FloatArray) -> RowStatistic:
    """Make the row statistic: the share of flagged runs among those of one kind."""

    def statistic(counts: FloatArray) -> FloatArray:
        weight = counts @ among
        flagged: FloatArray = counts @ (flags * among)
        shares: FloatArray = np.divide(flagged, weight, out=np.full(len(counts), np.nan), where=weight > 0)
        return shares

    return statistic


def row(dataset: str, runs: Sequence[Run], scored: Scored, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one score on one file."""
    failed = np.array([float(run.failed) for run in runs])
    last = np.array([path[-1] for path in scored.paths])
    lengths = np.array([len(run.steps) for run in runs])
    stops = alarms(runs, scored.paths)
    stopped = np.array([float(stop is not None) for stop in stops])
    when = np.array([np.nan if stop is None else stop / length for stop, length in zip(stops, lengths, strict=True)])

    def interval(statistic: RowStatistic) -> tuple[float | None, float | None]:
        rng = np.random.default_rng(options.seed)
        got = bootstrap(statistic, len(runs), rng=rng, draws=options.draws, clusters=[run.task for run in runs])
        return got.low, got.high

    auroc_low, auroc_high = interval(lambda counts: auroc_rows(last, failed, counts))
    alarm_low, alarm_high = interval(share(stopped, 1.0 - failed))
    found_low, found_high = interval(share(stopped, failed))
    detected = when[(failed == 1.0) & (stopped == 1.0)]
    measured: dict[str, Any] = {
        "dataset": dataset,
        "score": scored.name,
        "embedder": options.embedder,
        "runs": len(runs),
        "failures": int(failed.sum()),
        "auroc": auroc(last, failed),
        "auroc_low": auroc_low,
        "auroc_high": auroc_high,
        "auarc": auarc(-last, 1.0 - failed),
        "early_false_alarm_rate": float(stopped[failed == 0.0].mean()),
        "early_false_alarm_low": alarm_low,
        "early_false_alarm_high": alarm_high,
        "early_detection": float(stopped[failed == 1.0].mean()),
        "early_detection_low": found_low,
        "early_detection_high": found_high,
        "early_before_half": float((when[failed == 1.0] <= 0.5).mean()),
        "early_median_time": float(np.median(detected)) if len(detected) else None,
    }
    for step in FIXED_STEPS:
        still = lengths >= step
        at = np.array([path[step - 1] for path, there in zip(scored.paths, still, strict=True) if there])
        measured[f"prefix_auroc_{step}"] = auroc(at, failed[still]) if len(at) else None
        measured[f"prefix_runs_{step}"] = int(still.sum())
    return measured


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
    scored = [Scored(name, [function(run) for run in runs]) for name, function in functions.items()]
    scored.insert(1, Scored("tracer_fitted", fitted_paths(runs, fit)))
    for score in progress.track(scored, description=f"scores of {dataset}"):
        yield row(dataset, runs, score, options)


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
