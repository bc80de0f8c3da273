"""What holds after a fit: one history under the watch, one set of explained failures, and a ratio that is known.

Each through the public path: sessions live under a profile and `CalibrationWatch`; recordings and `grampus-uq
attribute`; a profile whose detector has the true likelihood ratio.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import numpy as np
from click.testing import CliRunner

from grampus_uq import Outcome, Reading, Step, StopReason, UncertaintyMonitor
from grampus_uq.cli import _group
from grampus_uq.core.state import Profile
from grampus_uq.learn.profiles import FitOptions, fit_profile
from grampus_uq.learn.profiles.labelled import labelled_runs
from grampus_uq.recording.artifacts import ProfileArtifact
from grampus_uq.runtime.guarantee_watch import CalibrationWatch, finished_run
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.stats.calibration_watch import FinishedRun, Variant, start_watching, take_run, watch_statuses
from grampus_uq.stats.eprocess import Detector
from grampus_uq.stats.eprocess_scorers import FeatureScorer, LinearScore
from grampus_uq.stats.eprocess_thresholds import ville_threshold
from grampus_uq.stats.prefix_features import STREAM_FEATURES
from tests.benchmarks.published_evaluator import fit_paper
from tests.guarantees.worlds import BASE, CALL, FITTING, POLICY, Kept, Runs, World, record

Once = Callable[[np.random.Generator, Path, int], tuple[bool, float, float]]
WATCHED = 0.2
"""Level of the watch: high, so that few histories show whether it is kept."""


def finished_runs(artifact: ProfileArtifact, runs: Runs, name: str) -> Iterator[FinishedRun | None]:
    """Take runs through sessions under a profile that acts, and say what the watch is told of each."""
    monitor = UncertaintyMonitor(profile=artifact)
    for i in range(len(runs)):
        session = monitor.session(f"{name}-{i}", "a", **FITTING)
        stopped = False
        for index, value in enumerate(runs.stated[i]):
            step = Step(step_id=f"s{index}", kind="llm_call", time_s=0.0)
            stopped |= session.commit(step, [Reading(source="verbalized", value=float(value))]).action.stops
        if runs.calls[i]:
            call = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(CALL,))
            stopped |= session.commit(call, ()).rule == "detector"
        reason = StopReason.MONITOR_STOP if stopped else StopReason.CLEAN
        outcome = Outcome(success=None if stopped else bool(runs.success[i]), stop_reason=reason)
        session.finish(outcome)
        yield finished_run(session, outcome)


def watch_alarms(artifact: ProfileArtifact, told: list[FinishedRun | None]) -> bool:
    """Whether the watch ever alarms on these runs."""
    detector = artifact.profile.detector
    assert detector is not None

    async def watch() -> bool:
        watching = CalibrationWatch(MemoryStore(), detector, level=WATCHED)
        for run in told:
            await watching.finished(run)
        return any(status.alarmed for status in await watching.statuses())

    return anyio.run(watch)


def fixed_bag_alarms(artifact: ProfileArtifact, told: list[FinishedRun | None]) -> bool:
    """Sabotage: the same, but every run is ranked against the first bag only."""
    detector = artifact.profile.detector
    assert detector is not None
    state = start_watching(detector, level=WATCHED)
    for run in filter(None, told):
        natural = run.success is True and not run.touched
        for variant in (Variant.SUCCESSES, Variant.ALL_RUNS) if natural else (Variant.ALL_RUNS,):
            before = state.bets[variant].martingale
            state = take_run(state, variant, run.run_id, run.log_peak)
            after = state.bets[variant]
            if before is not None and after.martingale is not None:
                kept = replace(after, martingale=replace(after.martingale, counts=before.counts))
                state = replace(state, bets={**state.bets, variant: kept})
    return any(status.alarmed for status in watch_statuses(state))


@dataclass(frozen=True, kw_only=True)
class KnownRatio:
    """An agent whose likelihood ratio is known: given the outcome, every step states s with density ~ exp(+-k s).

    So that each step adds k (1 - 2 s) to log M. share: of successes.
    """

    k: float = 0.6
    steps: int = 30
    share: float = 0.6

    def draw(self, rng: np.random.Generator, n: int) -> Runs:
        """n runs, by the inverse of the distribution function."""
        success = rng.random(n) < self.share
        rate = np.where(success, self.k, -self.k)[:, None]
        stated = np.log1p(rng.random((n, self.steps)) * np.expm1(rate)) / rate
        return Runs(
            stated=np.clip(stated, 0.0, 1.0),
            chance=success.astype(np.float64),
            success=success,
            calls=np.zeros(n, dtype=np.bool_),
            task=np.arange(n),
        )

    def profile(self, alpha: float) -> Profile:
        """A profile whose detector has the true ratio and Ville's threshold."""
        place = STREAM_FEATURES.index("mean")
        steps = range(1, self.steps + 1)
        linear = LinearScore(
            columns=(place,),
            intercepts=tuple(-self.k * t for t in steps),
            weights=tuple((2.0 * self.k * t,) for t in steps),
        )
        scorer = FeatureScorer(
            name="known", clips=(None,), neutral=(0.5,), longest=self.steps, linear=linear, limit=None
        )
        detector = Detector(
            streams=("verbalized",), scorer=scorer, thresholds=(ville_threshold(alpha),), deployed=0, salt="known"
        )
        return Profile(policy=POLICY, detector=detector)


def learned_ratio(path: Path, options: FitOptions, base: ProfileArtifact | None, seed: int) -> Profile:
    """The published method: a logistic regression on the scores so far, under the threshold of a known ratio."""
    runs = labelled_runs(path, BASE)
    found = fit_paper(
        runs.detector_runs({"verbalized": runs.streams["verbalized"]}, at_calls=False),
        rng=np.random.default_rng(seed),
        alpha=options.false_alarms,
        fit_share=1.0,
    )
    ville = (ville_threshold(options.false_alarms),)
    detector = replace(found.detector, thresholds=ville, deployed=0, null_peaks=())
    return BASE.model_copy(update={"detector": detector})


def watched(
    alarms: Callable[[ProfileArtifact, list[FinishedRun]], bool] = watch_alarms, chosen: float | None = None
) -> Once:
    """Fit; watch 250 more runs of the same agent, and 120 of them before 250 that state less: does the watch alarm?

    chosen: only runs that state less than this are reported.
    """

    def once(rng: np.random.Generator, folder: Path, number: int) -> tuple[bool, float, float]:
        path = record(folder / f"w{number}.jsonl", World().draw(rng, 200), name=f"w{number}")
        options = FitOptions(false_alarms=0.2, assurance=0.0, seed=number)
        artifact = fit_profile(path, base=BASE, options=options).artifact
        path.unlink()
        told = []
        for name, world in (("same", World()), ("changed", World(shy=4.0))):
            runs = world.draw(rng, 250)
            if chosen is not None:
                runs = runs.take(np.flatnonzero(runs.stated[:, -1] < chosen))
            told.append(list(finished_runs(artifact, runs, f"{name}{number}")))
        same, changed = told
        return True, float(alarms(artifact, same)), float(alarms(artifact, same[:120] + changed))

    return once


def explained(*, spoiled: bool = False, n: int = 40, trials: int = 1) -> Once:
    """Label n recorded failures, have 20 new ones explained by the command: share of errors missed, of steps left out.

    spoiled: labels are given by another rule, the step before the error that everybody means. trials: so many failures
    of a task go alike.
    """

    def once(rng: np.random.Generator, folder: Path, number: int) -> tuple[bool, float, float]:
        labelled = folder / f"labelled{number}.jsonl"
        recorded_failures(labelled, rng, n, f"l{number}", spoiled=spoiled, trials=trials)
        return True, *_explained(rng, folder, number, labelled)

    return once


def _explained(rng: np.random.Generator, folder: Path, number: int, labelled: Path) -> tuple[float, float]:
    failed = folder / f"failed{number}.jsonl"
    meant = recorded_failures(failed, rng, 20, f"f{number}")
    asked = ["attribute", str(failed), "--calibration", str(labelled), "--json", "--seed", str(number)]
    done = CliRunner().invoke(_group, asked)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["attributions"]
    assert len(found) == len(meant)
    missed = [meant[one["trajectory_id"]] not in one["set_steps"] for one in found]
    out = [1.0 - len(one["set_steps"]) / len(one["steps"]) for one in found]
    return float(np.mean(missed)), float(np.mean(out))


def recorded_failures(
    path: Path,
    rng: np.random.Generator,
    n: int,
    name: str,
    *,
    spoiled: bool = False,
    trials: int = 1,
) -> dict[str, int]:
    """Record failures of 4 to 9 steps; the text of the step that was wrong mostly assumes something."""
    kept, meant = Kept(), {}
    monitor = UncertaintyMonitor(policy=POLICY, processors=[kept], advisory=True)
    for i in range(n):
        run = f"{name}-{i}"
        if i % trials == 0:
            length = int(rng.integers(4, 10))
            wrong = math.floor(rng.beta(1.5, 1.5) * length)
            assume = rng.random(length) < np.where(np.arange(length) == wrong, 0.7, 0.1)
        session = monitor.session(run, "a", metadata={"task_id": f"{name}{i // trials}"}, **FITTING)
        for index, assumes in enumerate(assume):
            text = f"{'I assume that it is a placeholder' if assumes else 'I looked it up'}: {rng.integers(99)}"
            session.commit(Step(step_id=f"s{index}", kind="llm_call", time_s=0.0, text=text), ())
        meant[run] = wrong
        said = max(0, wrong - 1) if spoiled else wrong
        session.finish(Outcome(success=False, note=f"error at s{said}"))
    path.write_bytes(kept.text())
    return meant
