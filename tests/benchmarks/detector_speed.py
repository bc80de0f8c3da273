"""How long a detector takes: one live step at several depths of a run, one row in batch; and how large its state is.

    python tests/benchmarks/detector_speed.py [--runs 2000] [--json]

Detectors are fitted on simulated runs of up to 60 steps. `update_us` is the best of several rounds of 2,000 updates at
that step (other processes only ever make it slower), `batch_us_a_row` the best of five passes over all rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.learn.fit.detector import fit_budget
from grampus_uq.learn.fit.detector_bank import bank, fit_members
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.stats.eprocess import Detector, detector_to_json, score_rows, start, update
from grampus_uq.stats.eprocess_scorers import FeatureScorer, PaperScorer
from tests.benchmarks._report import emit
from tests.benchmarks.published_evaluator import fit_paper_scorer
from tests.detector_rows import detector_runs

STEPS = (1, 10, 100, 10_000)
UPDATES, ROUNDS, PASSES = 500, 40, 5  # short rounds: the best of many finds a moment without other work


def simulated(runs: int) -> DetectorRuns:
    """Runs of 1 to 60 steps whose confidence sags when they fail; no two scores are equal, which is the slow case."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 61, runs)
    success = rng.random(runs) < 0.6
    ids = np.repeat([f"run-{i:06d}" for i in range(runs)], lengths)
    steps = np.concatenate([np.arange(1, length + 1) for length in lengths])
    level = np.where(np.repeat(success, lengths), 6.0, 6.0 / (1.0 + 0.03 * steps))
    return detector_runs(
        run_ids=ids, steps=steps, scores=rng.beta(level, 2.0), outcomes=dict(zip(np.unique(ids), success, strict=True))
    )


def rows(runs: DetectorRuns) -> Iterator[dict[str, Any]]:
    """One row a detector and step."""
    scorers: dict[str, FeatureScorer | PaperScorer] = {**fit_members(runs, bank(runs)), "paper": fit_paper_scorer(runs)}
    template = fit_budget(runs.take(np.arange(100)), rng=np.random.default_rng(0)).detector
    blocks = runs.blocks
    for name, scorer in scorers.items():
        detector = replace(template, scorer=scorer)
        batch_us = (
            min(_seconds(lambda d=detector: score_rows(d, blocks)) for _ in range(PASSES)) * 1e6 / len(runs.values)
        )
        for step in STEPS:
            update_us, state_bytes = _live(detector, step)
            yield {
                "detector": name,
                "step": step,
                "update_us": update_us,
                "state_bytes": state_bytes,
                "batch_us_a_row": batch_us,
                "detector_kb": len(json.dumps(detector_to_json(detector))) / 1024,
            }


def _live(detector: Detector, step: int) -> tuple[float, int]:
    scores = np.random.default_rng(1).beta(5.0, 2.0, max(step, UPDATES)).tolist()
    state = start(detector, "run")
    for score in scores[: step - 1]:
        state, _ = update(detector, state, score)

    def same_step() -> None:
        for score in scores[:UPDATES]:
            update(detector, state, score)

    best = min(_seconds(same_step) for _ in range(ROUNDS)) * 1e6 / UPDATES
    state, _ = update(detector, state, scores[step - 1])
    return best, len(json.dumps(state))


def _seconds(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    emit("detector_speed", rows(simulated(options.runs)), options.json)


if __name__ == "__main__":
    main()
