"""Refitting a detector on the runs that it watched itself: what false alarms become, naively and repaired.

An agent runs in rounds. The first round is advisory: nothing is stopped, and a detector is fitted for a false-alarm
rate alpha. From then on it acts: a run that it alarms on is stopped, and nobody learns how it would have ended. After
each round the detector is fitted again on that round alone, five times. `false_alarms` is measured on fresh runs that
nothing stops: the share of those that succeed which the refitted detector alarms on.

- `advisory`: nothing is ever stopped; what could be had at best.
- `naive`: fitted on what was not stopped, as if that were all there is.
- `unweighted`: some alarmed runs are let through at random (`--let-through`), and counted like any other.
- `repaired`: the same runs, those let through counted one over the probability of their draw.

Every fit is the package's own (`fit_detector`), and every threshold is conformal, so that the four promise the same:
alpha on average over calibrations.

    python -m tests.benchmarks.refit [--histories 200] [--runs 600] [--json]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.progress import track

from grampus_uq.learn.fit.detector import fit_detector
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.stats.eprocess import Detector, alarm_steps, score_rows
from grampus_uq.stats.eprocess_thresholds import tie_uniform
from tests.benchmarks._report import emit
from tests.detector_rows import detector_runs

METHODS = ("advisory", "naive", "unweighted", "repaired")
REFITS = 5
STEPS = 8
FRESH = 4000
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """alpha: the rate fitted for. runs: in a round. let_through: probability with which an alarm does not stop."""

    alpha: float = 0.1
    runs: int = 600
    let_through: float = 0.2


def agent(rng: np.random.Generator, n: int, name: str) -> tuple[list[str], FloatArray, npt.NDArray[np.bool_]]:
    """n runs: ids, scores of shape (n, STEPS), successes. Half succeed; the scores tell them apart, but not well."""
    success = rng.random(n) < 0.5
    drift = np.where(success, 0.0, rng.choice([0.0, -0.25], n))[:, None] * np.linspace(0.0, 1.0, STEPS)
    scores = np.clip(rng.normal(0.7, 0.08, (n, 1)) + drift + rng.normal(0.0, 0.08, (n, STEPS)), 0.0, 1.0)
    return [f"{name}-{i}" for i in range(n)], scores, success


def gathered(
    ids: list[str], scores: FloatArray, success: npt.NDArray[np.bool_], weights: dict[str, float] | None = None
) -> DetectorRuns:
    return detector_runs(
        run_ids=[name for name in ids for _ in range(STEPS)],
        steps=np.tile(np.arange(1, STEPS + 1), len(ids)),
        scores=scores.reshape(-1),
        outcomes=dict(zip(ids, success.tolist(), strict=True)),
        streams=("fused",),
        weights=weights,
    )


def alarms(detector: Detector, runs: DetectorRuns) -> dict[str, bool]:
    ties = np.array([tie_uniform(name, detector.salt) for name in runs.ids])
    at = alarm_steps(runs.blocks, score_rows(detector, runs.blocks), detector.threshold, ties)
    return dict(zip(runs.ids, (at > 0).tolist(), strict=True))


def fitted(runs: DetectorRuns, setting: Setting, rng: np.random.Generator) -> Detector:
    return fit_detector(runs, rng=rng, alpha=setting.alpha, delta=None, levels=(), members=["pooled_ewma"]).detector


def false_alarms(detector: Detector, rng: np.random.Generator) -> tuple[float, float]:
    """Share of fresh successes, and of fresh failures, that it alarms on."""
    ids, scores, success = agent(rng, FRESH, "fresh")
    rang = alarms(detector, gathered(ids, scores, success))
    hit = np.array([rang[name] for name in ids])
    return float(hit[success].mean()), float(hit[~success].mean())


def one_round(
    method: str, detector: Detector, setting: Setting, rng: np.random.Generator, name: str
) -> tuple[DetectorRuns, Counter[str]]:
    """Watch a round; what may be fitted on afterwards, and how many runs were what."""
    ids, scores, success = agent(rng, setting.runs, name)
    rang = alarms(detector, gathered(ids, scores, success))
    kept, weights, counts = [], {}, Counter[str]()
    for place, run in enumerate(ids):
        alarmed = rang[run] and method != "advisory"
        drawn = method in ("unweighted", "repaired") and tie_uniform(run, f"draw {name}") < setting.let_through
        if alarmed and not drawn:
            counts["stopped"] += 1
            continue
        counts["let_through" if alarmed else "untouched"] += 1
        kept.append(place)
        if alarmed and method == "repaired":
            weights[run] = 1.0 / setting.let_through
    chosen = np.array(kept)
    return gathered([ids[i] for i in kept], scores[chosen], success[chosen], weights or None), counts


def history(method: str, setting: Setting, seed: int) -> list[dict[str, float]]:
    """One agent's life: false alarms, power and counts after the first fit and after each refit."""
    rng = np.random.default_rng(seed)
    ids, scores, success = agent(rng, setting.runs, "advisory")
    detector = fitted(gathered(ids, scores, success), setting, rng)
    rate, power = false_alarms(detector, rng)
    rows = [{"false_alarms": rate, "power": power, "stopped": 0.0, "let_through": 0.0, "untouched": float(len(ids))}]
    for refit in range(1, REFITS + 1):
        runs, counts = one_round(method, detector, setting, rng, f"round-{refit}")
        detector = fitted(runs, setting, rng)
        rate, power = false_alarms(detector, rng)
        told = {what: float(counts[what]) for what in ("stopped", "let_through", "untouched")}
        rows.append({"false_alarms": rate, "power": power, **told})
    return rows


def measure(histories: int, setting: Setting) -> list[dict[str, Any]]:
    """One row a method and refit: means over histories, with the standard error of the false alarms."""
    rows: list[dict[str, Any]] = []
    for method in METHODS:
        seen: dict[int, list[dict[str, float]]] = defaultdict(list)
        for seed in track(range(histories), method, disable=not sys.stderr.isatty()):
            for refit, row in enumerate(history(method, setting, seed)):
                seen[refit].append(row)
        for refit, found in seen.items():
            rates = np.array([row["false_alarms"] for row in found])
            rows.append(
                {
                    "method": method,
                    "refit": refit,
                    "alpha": setting.alpha,
                    "false_alarms": float(rates.mean()),
                    "standard_error": float(rates.std(ddof=1) / np.sqrt(len(rates))) if len(rates) > 1 else None,
                    "power": float(np.mean([row["power"] for row in found])),
                    **{
                        what: float(np.mean([row[what] for row in found]))
                        for what in ("untouched", "let_through", "stopped")
                    },
                    "histories": histories,
                    "runs": setting.runs,
                }
            )
    return rows


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=200, help="independent agents (default 200)")
    parser.add_argument("--runs", type=int, default=600, help="runs in a round (default 600)")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--let-through", type=float, default=0.2, help="probability of the random release")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    setting = Setting(alpha=given.alpha, runs=given.runs, let_through=given.let_through)
    emit("refit", measure(given.histories, setting), given.json)


if __name__ == "__main__":
    main()
