"""False alarms, power and cost of every alarm rule on files of step-wise verifier scores, over random splits.

    python tests/benchmarks/evaluator.py FILE... --splits 200 --alphas .1 .2 [--calibration-fraction .2] [--json]

A file is a CSV (gzipped or not) with a row a step: `uq_problem_idx`, `num_steps` (from 1), `judge_probability`,
`solved`. In every split a random share of the runs calibrates and the rest tests. Figures are means over splits.
`violation_share` is the share of splits whose false-alarm rate on the test runs exceeds alpha (for `ours_budget`:
whose share of paused runs does). `unfitted_share` counts splits with too few runs for the method, where it never
alarms.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.isotonic import IsotonicRegression

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.alarm_figures import alarm_figures
from grampus_uq.learn.fit.detector import fit_budget, fit_detector
from grampus_uq.learn.fit.detector_bank import untrained
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.stats.eprocess import Detector, alarm_steps, log_peaks, score_rows
from grampus_uq.stats.eprocess_thresholds import Threshold, pac_threshold, tie_uniform, ville_threshold
from grampus_uq.stats.step_blocks import StepBlocks, first_step_where
from tests.benchmarks._report import emit, existing, positive, share, usage_errors
from tests.benchmarks.published_evaluator import bonferroni_threshold, fit_paper
from tests.benchmarks.score_tables import read_score_table
from tests.detector_rows import detector_runs, threshold_for

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
Alarms = Callable[[float], IntArray]
Row = dict[str, Any]

FIGURES = ("false_alarm_rate", "power", "precision", "alarm_position", "cost_used", "accuracy_kept", "paused_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One division of the runs, and what is asked of every rule."""

    calibration: DetectorRuns
    test: DetectorRuns
    blocks: StepBlocks
    alphas: tuple[float, ...]
    delta: float
    seed: int

    @property
    def wished(self) -> float:
        """The level that a detector is fitted for: .1, or the middle one asked for; the others are listed beside it."""
        return 0.1 if 0.1 in self.alphas else sorted(self.alphas)[len(self.alphas) // 2]

    @property
    def rng(self) -> np.random.Generator:
        """A fresh stream of random numbers, the same for every rule."""
        return np.random.default_rng([self.seed, 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One way to learn from calibration runs, and the alarm rules that follow from it."""

    fit: Callable[[Split], Any]
    alarms: Mapping[str, Callable[[Any, Split], Alarms]]


def load(path: Path) -> DetectorRuns:
    """Read one file of verifier scores."""
    table = read_score_table(path)
    return detector_runs(
        run_ids=[name for name, trace in zip(table.ids, table.scores, strict=True) for _ in trace],
        steps=[step for trace in table.scores for step in range(1, len(trace) + 1)],
        scores=[math.nan if score is None else score for trace in table.scores for score in trace],
        outcomes=dict(zip(table.ids, table.solved, strict=True)),
    )


def _by_threshold(find: Callable[[Detector, float, Split], Threshold]) -> Callable[[Detector, Split], Alarms]:
    def alarms(detector: Detector, split: Split) -> Alarms:
        log_m = score_rows(detector, split.blocks)
        ties = np.array([tie_uniform(run, detector.salt) for run in split.test.ids])
        return lambda alpha: alarm_steps(split.blocks, log_m, find(detector, alpha, split), ties)

    return alarms


def _never(split: Split) -> Alarms:
    return lambda alpha: np.zeros(len(split.test), dtype=np.intp)


def _raw(_: None, split: Split) -> Alarms:
    return lambda alpha: first_step_where(split.blocks, split.blocks.values[:, 0] < alpha)


def _fit_isotonic(split: Split) -> IsotonicRegression:
    known = split.calibration
    outcomes = np.repeat(np.asarray(known.success, dtype=np.float64), known.lengths)
    there = ~np.isnan(known.values[:, 0])
    if not there.any():
        raise ConfigurationError("No step has a probability.")
    return IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(known.values[there, 0], outcomes[there])


def _isotonic(fitted: IsotonicRegression, split: Split) -> Alarms:
    values = split.blocks.values[:, 0]
    mapped = np.where(np.isnan(values), np.nan, fitted.predict(np.nan_to_num(values)))
    return lambda alpha: first_step_where(split.blocks, mapped < alpha)


def _fit_paper(split: Split, *, fit_share: float) -> Detector:
    return fit_paper(
        split.calibration,
        rng=split.rng,
        alpha=split.wished,
        delta=split.delta,
        levels=split.alphas,
        fit_share=fit_share,
    ).detector


def _fit_minimum(split: Split, *, of: str) -> Detector:
    """An untrained running minimum: nothing to fit, so every success sets the threshold."""
    known = split.calibration
    kept = known.take(np.asarray(known.success))
    bare = Detector(
        streams=known.streams,
        scorer=untrained(known, of=of),
        thresholds=(ville_threshold(0.5),),
        deployed=0,
        salt="benchmark",
    )
    peaks, ties = log_peaks(bare, kept.blocks), np.array([tie_uniform(run, bare.salt) for run in kept.ids])
    thresholds = tuple(pac_threshold(peaks, ties, alpha, split.delta) for alpha in split.alphas)
    return Detector(streams=known.streams, scorer=bare.scorer, thresholds=thresholds, deployed=0, salt=bare.salt)


def _fit_ours(split: Split) -> Detector:
    return fit_detector(
        split.calibration,
        rng=split.rng,
        alpha=split.wished,
        delta=split.delta,
        levels=split.alphas,
    ).detector


def _fit_budget(split: Split) -> Detector:
    return fit_budget(split.calibration, rng=split.rng, share=split.alphas[0], shares=split.alphas).detector


_pac = _by_threshold(lambda detector, alpha, split: threshold_for(detector, alpha, split.delta))
_conformal = _by_threshold(lambda detector, alpha, split: threshold_for(detector, alpha))
_ville = _by_threshold(lambda detector, alpha, split: ville_threshold(alpha))
_bonferroni = _by_threshold(
    lambda detector, alpha, split: bonferroni_threshold(alpha, int(split.calibration.lengths.max()))
)

RULES = (
    Rule(fit=lambda split: None, alarms={"raw": _raw}),
    Rule(fit=_fit_isotonic, alarms={"isotonic": _isotonic}),
    Rule(fit=partial(_fit_paper, fit_share=1.0), alarms={"bonferroni": _bonferroni, "paper_ville": _ville}),
    Rule(fit=partial(_fit_minimum, of="low"), alarms={"running_min": _pac}),
    Rule(fit=partial(_fit_minimum, of="ewma_50"), alarms={"running_min_ewma": _pac}),
    Rule(fit=partial(_fit_paper, fit_share=0.5), alarms={"paper_pac": _pac}),
    Rule(fit=_fit_ours, alarms={"ours_pac": _pac, "ours_conformal": _conformal}),
    Rule(fit=_fit_budget, alarms={"ours_budget": _conformal}),
)
METHODS = tuple(name for rule in RULES for name in rule.alarms)


def split_rows(
    seed: int, *, runs: DetectorRuns, fraction: float, alphas: Sequence[float], delta: float, methods: Sequence[str]
) -> list[Row]:
    """Every figure of every rule at every level on one split."""
    order = np.random.default_rng([seed, 0]).permutation(len(runs))
    size = max(1, round(len(runs) * fraction))
    test = runs.take(order[size:])
    split = Split(
        calibration=runs.take(order[:size]),
        test=test,
        blocks=test.blocks,
        alphas=tuple(alphas),
        delta=delta,
        seed=seed,
    )
    return [row for rule in RULES for row in _rule_rows(rule, split, methods)]


def _rule_rows(rule: Rule, split: Split, methods: Sequence[str]) -> Iterator[Row]:
    wanted = [name for name in rule.alarms if name in methods]
    if not wanted:
        return
    begin = time.perf_counter()
    try:
        fitted = rule.fit(split)
        unfitted = False
    except ConfigurationError:  # too few runs of a class for this method
        unfitted = True
    fit_s = time.perf_counter() - begin
    for name in wanted:
        begin = time.perf_counter()
        alarms = _never(split) if unfitted else rule.alarms[name](fitted, split)
        score_us = (time.perf_counter() - begin) * 1e6 / len(split.test.values)
        for alpha in split.alphas:
            try:
                steps = alarms(alpha)
            except ConfigurationError:  # no run could set this threshold
                unfitted, steps = True, _never(split)(alpha)
            figures = _figures(steps, split.test.lengths, np.asarray(split.test.success))
            rate = figures["paused_share"] if name == "ours_budget" else figures["false_alarm_rate"]
            yield {
                "method": name,
                "alpha": alpha,
                **{figure: figures[figure] for figure in FIGURES},
                "violation": float(rate is not None and rate > alpha),
                "unfitted_share": float(unfitted),
                "fit_s": fit_s,
                "score_us_a_row": score_us,
            }


def _figures(alarm: IntArray, lengths: IntArray, success: npt.NDArray[np.bool_]) -> dict[str, float | None]:
    """The product's figures; the position as the mean over caught failures, the cost as a share of all steps."""
    found = alarm_figures(alarm, lengths, success)
    caught = (alarm > 0) & ~success
    rate = found.false_alarms.estimate
    return {
        "false_alarm_rate": rate,
        "power": found.power.estimate,
        "precision": found.precision.estimate,
        "alarm_position": float((alarm[caught] / lengths[caught]).mean()) if caught.any() else None,
        "cost_used": float(np.where(alarm > 0, alarm, lengths).sum() / lengths.sum()) if len(alarm) else None,
        "accuracy_kept": None if rate is None else 1.0 - rate,
        "paused_share": found.paused.estimate,
    }


def summary(dataset: str, fraction: float, splits: int, rows: Sequence[Row]) -> Iterator[Row]:
    """Means over splits, in the order of the methods."""
    for key in dict.fromkeys((row["method"], row["alpha"]) for row in rows):
        mine = [row for row in rows if (row["method"], row["alpha"]) == key]
        mean = {name: _mean(row[name] for row in mine) for name in mine[0] if name not in ("method", "alpha")}
        yield {
            "dataset": dataset,
            "method": key[0],
            "alpha": key[1],
            "false_alarm_rate": mean["false_alarm_rate"],
            "violation_share": mean["violation"],
            **{name: mean[name] for name in FIGURES[1:]},
            "calibration_fraction": fraction,
            "splits": splits,
            "unfitted_share": mean["unfitted_share"],
            "fit_s": mean["fit_s"],
            "score_us_a_row": mean["score_us_a_row"],
        }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def main() -> None:
    """Read the arguments, run the splits, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=existing)
    parser.add_argument("--splits", type=positive, default=50)
    parser.add_argument("--alphas", type=share, nargs="+", default=[0.05, 0.1, 0.2, 0.3])
    parser.add_argument("--delta", type=share, default=0.1)
    parser.add_argument("--calibration-fraction", type=share, nargs="+", default=[0.2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--jobs", type=positive, default=1, help="processes to spread the splits over")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[Row] = []
    with usage_errors(parser), ProcessPoolExecutor(options.jobs) if options.jobs > 1 else nullcontext() as pool:
        for path in options.files:
            runs = load(path)
            for fraction in options.calibration_fraction:
                if max(1, round(len(runs) * fraction)) >= len(runs):
                    raise DataError(f"of {len(runs)} runs a share of {fraction:g} leaves none to test.", path=str(path))
                work = partial(
                    split_rows,
                    runs=runs,
                    fraction=fraction,
                    alphas=options.alphas,
                    delta=options.delta,
                    methods=options.methods,
                )
                seeds = range(options.splits)
                parts = pool.map(work, seeds) if pool is not None else map(work, seeds)
                found = [row for part in _shown(parts, options.splits, f"{path.name} {fraction:g}") for row in part]
                rows += summary(path.name.split(".")[0], fraction, options.splits, found)
    emit("evaluator", rows, options.json)


def _shown(parts: Iterable[list[Row]], total: int, label: str) -> Iterator[list[Row]]:
    """Pass the parts on, with a progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield from parts
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(parts, description=label, total=total, console=Console(stderr=True))


if __name__ == "__main__":
    main()
