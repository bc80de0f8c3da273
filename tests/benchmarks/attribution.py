"""How precisely failures are attributed: coverage and removal rate over random splits, step scorers, rollbacks, speed.

    python -m tests.benchmarks.attribution FILE [--splits 1000] [--seed 0] [--json]

FILE holds failed multi-agent runs as JSON lines (`history`, `mistake_step`), plain or gzipped; a folder is searched for
them. Every split parts the runs into a labelled and a test half; methods that need a fitted scorer fit it on about half
of the labelled half and calibrate on the rest, so that nothing serves twice. The column `for` marks the sets that
people are shown and those that a rollback takes. Rows come in four kinds, told apart by `table`: sets,
step_scores, rollback (an empty set restarts at the best-scored step), speed.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import DataError
from grampus_uq.learn.attribution import METHODS, LabelledTrajectory, Plan, Trajectory, read_labelled_failures
from grampus_uq.learn.attribution.attribute import FIT_SHARE
from grampus_uq.learn.attribution.conditional_logit import cheap_features, fit_conditional_logit
from grampus_uq.stats.arrays import RaggedBatch, ragged
from grampus_uq.stats.conformal import conformal_threshold, prediction_sets, whole_rank_size
from grampus_uq.stats.entry_thresholds import (
    EntryThresholds,
    right_filtration_entry,
    two_way_entry,
)
from grampus_uq.stats.ranking import auprc, auroc
from tests.benchmarks._report import emit, existing, positive, usage_errors
from tests.benchmarks.split_evaluation import (
    SplitEvaluation,
    conformity_at,
    evaluate_splits,
    random_splits,
    with_fallback,
)

LEVELS = (0.5, 0.7, 0.8, 0.9)
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Thresholds = Callable[[RaggedBatch, FloatArray], EntryThresholds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Labelled failures of one file, and how many rows were left out because their label points nowhere."""

    dataset: str
    labelled: list[LabelledTrajectory]
    left_out: int

    @property
    def true_step(self) -> IntArray:
        return np.array([item.error_steps[0] for item in self.labelled], dtype=np.int64)


def read_runs(path: Path) -> Runs:
    """Read the runs of a file, or of the one matching file in a folder; labels, reasons and answers feed nothing."""
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if re.search(r"\.jsonl(\.gz)?$", p.name) and "who_and_when" in str(p))
        if len(found) != 1:
            rule = f"must hold one file of runs in a folder `who_and_when`. Found {len(found)}."
            raise DataError(rule, path=str(path))
        path = found[0]
    left_out: list[DataError] = []
    labelled = read_labelled_failures(path, on_left_out=left_out.append)
    if len(labelled) < 2:
        rule = f"holds {len(labelled)} labelled failures ({len(left_out)} left out); 2 are needed to part them."
        raise DataError(rule, path=str(path))
    return Runs(dataset=path.name.split(".")[0], labelled=labelled, left_out=len(left_out))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Step scores of all runs under one scorer, a block of rows a split when the scorer is fitted anew each time."""

    scorer: str
    batch: RaggedBatch
    true_step: IntArray
    calibration: IntArray
    test: IntArray
    lazy: bool


def score_once(
    scorer: str, rows: list[list[float]], runs: Runs, labelled: IntArray, test: IntArray, lazy: bool
) -> Scored:
    """A scorer that is not fitted: the whole labelled half calibrates."""
    return Scored(
        scorer=scorer, batch=ragged(rows), true_step=runs.true_step, calibration=labelled, test=test, lazy=lazy
    )


def score_fitted(runs: Runs, labelled: IntArray, test: IntArray) -> Scored:
    """The conditional logit, fitted in every split on the first part of its labelled half."""
    names: tuple[str, ...] = ()
    features: list[FloatArray] = []
    for item in runs.labelled:
        names, values = cheap_features(item.trajectory)
        features.append(values)
    size = labelled.shape[1]
    calibrating = whole_rank_size(size - round(FIT_SHARE * size), 0.8)
    fitting = size - calibrating
    rows: list[FloatArray] = []
    for part in labelled[:, :fitting]:
        errors = [runs.labelled[i].error_steps for i in part]
        model = fit_conditional_logit([features[i] for i in part], errors, names)
        rows += [len(values) * model.probabilities(values) for values in features]
    shift = np.arange(len(labelled))[:, None] * len(runs.labelled)
    return Scored(
        scorer="conditional_logit",
        batch=ragged([row.tolist() for row in rows]),
        true_step=np.tile(runs.true_step, len(labelled)),
        calibration=labelled[:, fitting:] + shift,
        test=test + shift,
        lazy=False,
    )


def recorded_scores(run: Trajectory) -> list[float]:
    """What a monitor without any model would have written down: failed tools (in the step and behind it, the mean
    where no tool answered), and repetition.
    """
    names, values = cheap_features(run)
    failed = np.array([np.nan if step.tool_failed is None else float(step.tool_failed) for step in run.steps])
    columns = [_filled(failed), _filled(np.append(failed[1:], np.nan)), values[:, names.index("repetition")]]
    return np.sum(columns, axis=0).tolist()


def _filled(column: FloatArray) -> FloatArray:
    missing = np.isnan(column)
    return np.where(missing, 0.0 if missing.all() else column[~missing].mean(), column)


def set_rows(
    dataset: str,
    scored: Scored,
    methods: Mapping[str, Thresholds],
    seed: int,
    *,
    ties_broken: bool = True,
) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    for name, thresholds in methods.items():
        entry = thresholds(scored.batch, rng.random(len(scored.true_step)))
        draws = rng.random((len(scored.calibration), len(scored.true_step)) if scored.lazy else len(scored.true_step))
        result = evaluate_splits(
            entry, scored.true_step, scored.calibration, scored.test, LEVELS, draws if ties_broken else None
        )
        lazy = scored.lazy and thresholds in FROM_ONE_END
        length = scored.batch.lengths[scored.test].mean()
        for column, level in enumerate(LEVELS):
            yield _set_row(dataset, name, scored, result, column, level, lazy=lazy, length=float(length))


def _set_row(
    dataset: str,
    name: str,
    scored: Scored,
    result: SplitEvaluation,
    column: int,
    level: float,
    *,
    lazy: bool,
    length: float,
) -> dict[str, Any]:
    return {
        "table": "sets",
        "dataset": dataset,
        "method": name,
        "for": PURPOSES.get(name, ""),
        "level": level,
        "coverage": float(result.coverage[:, column].mean()),
        "removal_rate": float(result.removal_rate[:, column].mean()),
        "removal_rate_sd": float(result.removal_rate[:, column].std()),
        "evaluations": float(result.lazy_evaluations[:, column].mean()) if lazy else length,
        "empty_share": float(result.empty_share[:, column].mean()),
        "scorer": scored.scorer,
        "calibration_size": int(scored.calibration.shape[1]),
    }


def step_score_row(dataset: str, scored: Scored, splits: int = 100) -> dict[str, Any]:
    """Step-level discrimination on test runs, pooled within a split and averaged over the first splits."""
    figures = []
    for test in scored.test[:splits]:
        values = [scored.batch.row(i) for i in test]
        positive = np.concatenate([np.arange(len(v)) == scored.true_step[i] for v, i in zip(values, test, strict=True)])
        hits = [
            float(v[scored.true_step[i]] == v.max()) / float((v == v.max()).sum())  # ties are guessed among
            for v, i in zip(values, test, strict=True)
        ]
        flat = np.concatenate(values)
        figures.append((auroc(flat, positive), auprc(flat, positive), float(np.mean(hits))))
    mean = np.array(figures, dtype=np.float64).mean(axis=0)
    return {
        "table": "step_scores",
        "dataset": dataset,
        "method": f"scorer:{scored.scorer}",
        "level": None,
        "auroc": float(mean[0]),
        "auprc": float(mean[1]),
        "top1": float(mean[2]),
        "scorer": scored.scorer,
    }


def rollback_rows(dataset: str, scored: Scored, seed: int) -> Iterator[dict[str, Any]]:
    """Restart at the set's first step: how often that is early enough, and which share of the run is done again."""
    rng = np.random.default_rng(seed)
    batch = scored.batch
    best = np.where(batch.valid, batch.values, -np.inf).argmax(axis=1)
    draws = rng.random(len(scored.true_step))
    tested = scored.test.reshape(-1)
    yield _rollback_row(dataset, "top1", None, scored, best[tested], 0.0)
    for name in ("vcp", "lf_envelope", "envelope"):
        entry = METHODS[name].entry(batch, draws)
        for level in LEVELS:
            starts, empty = _starts(entry, scored, draws, level, best)
            yield _rollback_row(dataset, name, level, scored, starts, empty)


def _starts(
    entry: EntryThresholds, scored: Scored, draws: FloatArray, level: float, best: IntArray
) -> tuple[IntArray, float]:
    """First step of every test set, the best-scored step where the set is empty, and how often that was."""
    conformity = conformity_at(entry, scored.true_step)
    starts, empty = [], 0
    for calibration, test in zip(scored.calibration, scored.test, strict=True):
        threshold = conformal_threshold(conformity[calibration], level, draws[calibration])
        part = EntryThresholds(values=entry.values[test], lengths=entry.lengths[test])
        inside = prediction_sets(part, threshold, draws[test])
        nothing = ~inside.any(axis=1)
        empty += int(nothing.sum())
        starts.append(np.where(nothing, best[test], inside.argmax(axis=1)))
    return np.concatenate(starts), empty / scored.test.size


def _rollback_row(
    dataset: str, name: str, level: float | None, scored: Scored, starts: IntArray, empty: float
) -> dict[str, Any]:
    tested = scored.test.reshape(-1)
    lengths = scored.batch.lengths[tested]
    return {
        "table": "rollback",
        "dataset": dataset,
        "method": f"rollback:{name}",
        "level": level,
        "coverage": float((starts <= scored.true_step[tested]).mean()),
        "cost": float(((lengths - starts) / lengths).mean()),
        "empty_share": empty,
        "scorer": scored.scorer,
    }


def speed_row(splits: int = 1000) -> dict[str, Any]:
    """Calibrate and test 184 synthetic runs of 5 to 130 steps, entry thresholds given; the best of three."""
    rng = np.random.default_rng(0)
    batch = ragged([rng.random(rng.integers(5, 131)).tolist() for _ in range(184)])
    true_step = np.floor(rng.random(184) * batch.lengths).astype(np.int64)
    entry = right_filtration_entry(batch)
    calibration, test = random_splits(184, splits, rng)
    draws = rng.random((splits, 184))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        evaluate_splits(entry, true_step, calibration, test, LEVELS, draws)
        seconds.append(time.perf_counter() - start)
    return {
        "table": "speed",
        "dataset": "synthetic",
        "method": "speed:evaluate_splits",
        "level": None,
        "splits": splits,
        "seconds": min(seconds),
    }


def eager(entry: Callable[[RaggedBatch], EntryThresholds]) -> Thresholds:
    return lambda batch, draws: entry(batch)


def infinite_boundary(
    method: Thresholds, batch: RaggedBatch, draws: FloatArray, *, first: bool = False, last: bool = False
) -> EntryThresholds:
    """A filtration of scores >= 0 as printed: g of the whole trajectory is infinite."""
    entry = method(batch, draws)
    if last:
        entry.values[np.arange(len(entry.lengths)), entry.lengths - 1] = np.inf
    if first:
        entry.values[:, 0] = np.inf
    return entry


PURPOSES = {Plan().method.name: "people", "lf_envelope": "rollback"}
RF, LF = METHODS["rf"].entry, METHODS["lf"].entry
FROM_ONE_END = (RF, LF)
TWF_EMPTY = eager(two_way_entry)
FITTED: dict[str, Thresholds] = {
    "vcp": METHODS["vcp"].entry,
    "crsvp": METHODS["crsvp"].entry,
    "rf": RF,
    "lf": LF,
    "twf": TWF_EMPTY,
    "twf_fallback": eager(lambda batch: with_fallback(two_way_entry(batch), batch)),
    "twf_kept": METHODS["twf"].entry,
    "envelope": METHODS["envelope"].entry,
    "lf_envelope": METHODS["lf_envelope"].entry,
}
POSITION_ONLY: dict[str, Thresholds] = {"constant_rf": RF, "constant_lf": LF, "constant_twf": TWF_EMPTY}
PAPER: dict[str, Thresholds] = {  # as printed: g(x) = inf, and nothing breaks the ties that it makes
    "lf_paper": partial(infinite_boundary, LF, first=True),
    "rf_paper": partial(infinite_boundary, RF, last=True),
    "twf_paper": partial(infinite_boundary, TWF_EMPTY, first=True, last=True),
}
RECORDED: dict[str, Thresholds] = {"record_rf": RF, "record_envelope": METHODS["envelope"].entry}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=existing, help="JSON lines of failed runs, or a folder that holds them")
    parser.add_argument("--splits", type=positive, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    with usage_errors(parser):
        runs = read_runs(options.file)
        print(f"{runs.dataset}: {len(runs.labelled)} runs, {runs.left_out} left out", file=sys.stderr)
        labelled, test = random_splits(len(runs.labelled), options.splits, np.random.default_rng(options.seed))
        position = score_once(
            "constant", [[1.0] * len(r.trajectory) for r in runs.labelled], runs, labelled, test, True
        )
        recorded = score_once(
            "monitor_record", [recorded_scores(r.trajectory) for r in runs.labelled], runs, labelled, test, False
        )
        fitted = score_fitted(runs, labelled, test)
        rows = [
            *set_rows(runs.dataset, fitted, FITTED, options.seed),
            *set_rows(runs.dataset, fitted, PAPER, options.seed, ties_broken=False),
            *set_rows(runs.dataset, position, POSITION_ONLY, options.seed),
            *set_rows(runs.dataset, recorded, RECORDED, options.seed),
            *(step_score_row(runs.dataset, scored) for scored in (position, recorded, fitted)),
            *rollback_rows(runs.dataset, fitted, options.seed),
            speed_row(),
        ]
    emit("attribution", rows, options.json)


if __name__ == "__main__":
    main()
