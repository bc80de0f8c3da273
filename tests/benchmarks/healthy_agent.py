"""How often a healthy agent is paused: by a fitted detector, and by the default tiers without any calibration.

    python tests/benchmarks/healthy_agent.py [--runs 1000] [--calibrations 20] [--json]

The agent states .93 (sd .08), P(True) says .85 (sd .15), 100 steps, every fifth an irreversible tool call; every run
would have succeeded. The detector sees the fused score of each step and is calibrated on other healthy runs (and, to
learn from, on failing ones that sag by .3 half way). `paused` is the share of runs that are ever paused: over the
evidence alone, and, `through the engine`, by whatever rule at whichever step or irreversible call a profile decides.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.core.engine import advance
from grampus_uq.core.estimator import UncertaintyEstimator
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.propagator import UncertaintyPropagator
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.learn.fit.detector import fit_detector
from grampus_uq.learn.fit.detector_runs import DetectorRuns
from grampus_uq.records.values import Reading, Step
from grampus_uq.records.vocabulary import Effect
from grampus_uq.stats.eprocess import Detector, alarm_steps, score_rows
from grampus_uq.stats.eprocess_thresholds import tie_uniform
from grampus_uq.stats.ranks import binomial_interval
from tests.benchmarks._report import emit
from tests.detector_rows import detector_runs, threshold_for

FloatArray = npt.NDArray[np.float64]

STEPS, EVERY = 100, 5


def fused_scores(rng: np.random.Generator, runs: int, *, failing: bool = False) -> FloatArray:
    """Fused confidence of each step as the estimator computes it, shape (runs, steps)."""
    estimator = UncertaintyEstimator()
    sag = np.where(np.arange(STEPS) >= STEPS // 2, 0.3, 0.0) if failing else 0.0
    verbalised = np.clip(rng.normal(0.93, 0.08, (runs, STEPS)) - sag, 0.0, 1.0)
    p_true = np.clip(rng.normal(0.85, 0.15, (runs, STEPS)) - sag, 0.0, 1.0)
    pairs = zip(verbalised.ravel().tolist(), p_true.ravel().tolist(), strict=True)
    return np.array([estimator.fuse(v, p, p_true_ran=True) for v, p in pairs]).reshape(runs, STEPS)


def paused_by_tiers(fused: FloatArray, *, irreversible: bool) -> int:
    """How many runs the defaults pause or abort at least once."""
    policy, propagator, paused = UncertaintyPolicy(), UncertaintyPropagator(), 0
    for run in fused.tolist():
        cumulative = 1.0
        for step, confidence in enumerate(run, start=1):
            tool = step % EVERY == 0
            kind = "tool_call" if tool else "llm_call"
            cumulative = propagator.propagate(confidence, kind, cumulative)
            if policy.decide(policy.classify(cumulative), kind, irreversible=tool and irreversible).stops:
                paused += 1
                break
    return paused


def labelled(healthy: FloatArray, failing: FloatArray, prefix: str) -> DetectorRuns:
    """Healthy runs as successes, the others as failures."""
    scores = np.concatenate([healthy, failing])
    names = [f"{prefix}-{i:05d}" for i in range(len(scores))]
    return detector_runs(
        run_ids=np.repeat(names, STEPS),
        steps=np.tile(np.arange(1, STEPS + 1), len(scores)),
        scores=scores.ravel(),
        outcomes={name: i < len(healthy) for i, name in enumerate(names)},
        streams=("fused",),
    )


def paused_by_detector(
    detector: Detector, runs: DetectorRuns, alpha: float, delta: float | None
) -> npt.NDArray[np.bool_]:
    """Which runs the detector ever pauses at this level."""
    blocks = runs.blocks
    ties = np.array([tie_uniform(run, detector.salt) for run in runs.ids])
    return alarm_steps(blocks, score_rows(detector, blocks), threshold_for(detector, alpha, delta), ties) > 0


def paused_by_engine(detector: Detector, fused: FloatArray, tag: str) -> int:
    """How many runs a session with this detector pauses or aborts at least once, at a step or at an irreversible call.

    The estimator is set so that the fused confidence of a step is the score given.
    """
    estimator = UncertaintyEstimator(enable_p_true=False, verbalized_calibration_bias=0.0)
    profile = Profile(detector=detector, estimator=estimator)
    paused = 0
    for number, run in enumerate(fused.tolist()):
        state = SessionState(session_id=f"{tag}-{number:05d}")
        for index, confidence in enumerate(run, start=1):
            step = Step(step_id=str(index), kind="llm_call", time_s=0.0)
            state, seen = advance(profile, state, step, [Reading(source="verbalized", value=confidence)])
            if not seen.action.stops and index % EVERY == 0:
                call = Step(step_id=f"t{index}", kind="tool_call", time_s=0.0, effect=Effect.IRREVERSIBLE)
                state, seen = advance(profile, state, call, [])
            if seen.action.stops:
                paused += 1
                break
    return paused


def rows(runs: int, calibrations: int, alpha: float) -> Iterator[dict[str, Any]]:
    """The tiers first, then the detector with either threshold, averaged over calibrations."""
    rng = np.random.default_rng(0)
    healthy, failing = fused_scores(rng, runs), fused_scores(rng, runs, failing=True)
    for irreversible in (False, True):
        paused = paused_by_tiers(healthy, irreversible=irreversible)
        name = f"default tiers{', irreversible tools' if irreversible else ''}"
        yield {"driver": name, **_share(paused, runs)}
    fresh = labelled(healthy, failing, "fresh")
    shares: dict[str, list[tuple[float, float]]] = {"pac": [], "conformal": []}
    few = max(1, runs // calibrations)
    in_engine, driven = 0, 0
    for seed in range(calibrations):
        known = labelled(fused_scores(rng, 120), fused_scores(rng, 60, failing=True), f"known-{seed}")
        detector = fit_detector(known, rng=np.random.default_rng(seed), alpha=alpha, delta=0.1).detector
        for mode, delta in (("pac", 0.1), ("conformal", None)):
            rang = paused_by_detector(detector, fresh, alpha, delta)
            good = np.asarray(fresh.success)
            shares[mode].append((float(rang[good].mean()), float(rang[~good].mean())))
        in_engine += paused_by_engine(detector, fused_scores(rng, few), f"live-{seed}")
        driven += few
    yield {
        "driver": "detector, pac, through the engine",
        "alpha": alpha,
        **_share(in_engine, driven),
        "calibrations": calibrations,
    }
    for mode, pairs in shares.items():
        false_alarms, power = np.array(pairs).T
        yield {
            "driver": f"detector, {mode}, any step, irreversible or not",
            "alpha": alpha,
            "paused": float(false_alarms.mean()),
            "calibrations_above_alpha": float((false_alarms > alpha).mean()),
            "failures_caught": float(power.mean()),
            "calibrations": calibrations,
        }


def _share(paused: int, runs: int) -> dict[str, float]:
    low, high = binomial_interval(paused, runs)
    return {"paused": paused / runs, "low": low, "high": high}


def main() -> None:
    """Read the arguments, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--calibrations", type=int, default=20)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    emit("healthy_agent", rows(options.runs, options.calibrations, options.alpha), options.json)


if __name__ == "__main__":
    main()
