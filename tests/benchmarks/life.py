"""The whole life of a monitor on the embedded model: record, label, fit, advise, act; five times, on held-out runs.

    python -m tests.benchmarks.life [--recordings FOLDER] [--questions 400] [--splits 5] [--page FILE] [--json]

One pass of `grampus-uq demo --task questions --advisory --every-signal` records the questions with every signal (15
minutes on two busy cores; a folder with an earlier pass is used as it is). Then, for each seed, half of the runs is
fitted on by `grampus-uq fit`, and the other half is replayed: under the default tiers (before), under the fitted
profile while it only advises, and under the profile when it acts. Replay is number for number what the live monitor
concludes (`tests/recording/test_live_is_replay.py`), so the 400 answers are asked for once and judged five times.

`right` is the answer key's word. A false alarm is a right answer that the detector's alarm holds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.cli.demo.demo_run import demo_policy
from grampus_uq.core.state import Profile
from grampus_uq.recording import runs
from grampus_uq.recording.artifacts import ProfileArtifact, load
from grampus_uq.recording.replay import replay
from grampus_uq.recording.runs import Run
from grampus_uq.stats.ranking import auroc
from grampus_uq.stats.reliability import trajectory_ece
from grampus_uq.stats.trajectory_scores import ForecastTraces, tps
from tests.benchmarks._report import emit, progress
from tests.benchmarks.life_page import page

FloatArray = npt.NDArray[np.float64]
BEFORE = Profile(policy=demo_policy())
FIRST_RUN = "\n## The demo over ten seeds"  # what `first_run` writes behind this page
BINS = 5  # of 200 held-out runs; more would hold too few


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a profile concludes from one recorded run: is it held, by which rule, and what its forecasts are."""

    right: bool
    held: bool
    rule: str
    advised: bool
    fused: float | None
    p_success: float | None
    readings: Mapping[str, float]


def judged(run: Run, profile: Profile) -> Judged:
    """Replay one run of the demo: an answer, then the call that publishes it."""
    assert run.outcome is not None
    steps = list(replay(run.events, profile))
    answer, publish = steps[0], steps[-1]
    stopping = next((step.assessment for step in steps if step.assessment.action.stops), None)
    advice = (step.assessment for step in steps if step.assessment.advisory_action is not None)
    advised = next((one for one in advice if one.advisory_action and one.advisory_action.stops), None)
    said = answer.assessment
    read = "no reading on this step" not in (said.missing_reason or "")
    return Judged(
        right=run.outcome.success is True,
        held=stopping is not None,
        rule=(stopping or advised or publish.assessment).rule,
        advised=advised is not None,
        fused=said.fused_confidence if read else None,
        p_success=said.p_success,
        readings={reading.source: reading.value for reading in answer.event.readings if reading.value is not None},
    )


def split_row(seed: int, recorded: Sequence[Run], alpha: float, target: float) -> dict[str, Any]:
    """Fit on half of the runs, drawn by the seed; the figures of the other half."""
    order = np.random.default_rng(seed).permutation(len(recorded))
    half = len(recorded) // 2
    artifact = fitted([recorded[i] for i in order[:half]], alpha=alpha, target=target)
    held_out = [recorded[i] for i in order[half:]]
    before = [judged(run, BEFORE) for run in held_out]
    advisory = [judged(run, artifact.profile.model_copy(update={"advisory": True})) for run in held_out]
    after = [judged(run, artifact.profile) for run in held_out]
    assert not any(one.held for one in advisory)
    assert [one.advised for one in advisory] == [one.held for one in after], "advice and act differ"
    right = np.array([one.right for one in after])
    chance = filled([one.p_success for one in after])
    single = best_single(after, right)
    alarms = np.array([one.held and one.rule == "detector" for one in after])
    return {
        "split": seed,
        "fitted_on": half,
        "held_out": len(held_out),
        "right": float(right.mean()),
        **published("before", before),
        **published("after", after),
        "alpha": alpha,
        "false_alarms": float(alarms[right].mean()),
        "alarms_on_wrong": float(alarms[~right].mean()),
        "auroc_p_success": auroc(chance, right),
        "auroc_best_single": single[0],
        "best_single": single[1],
        **calibration("before", filled([one.fused for one in after]), right),
        **calibration("after", chance, right),
    }


def fitted(recorded: Sequence[Run], *, alpha: float, target: float) -> ProfileArtifact:
    """Fit as a user does: `grampus-uq fit FOLDER`, in its own process, on a folder with only these recordings."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = Path(folder) / "runs"
        chosen.mkdir()
        for run in recorded:
            (chosen / Path(run.path).name).symlink_to(Path(run.path).resolve())
        profile = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "grampus_uq.cli", "fit", str(chosen), "-o", str(profile)]
        options = ["--false-alarms", str(alpha), "--accuracy", str(target), "--json"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        return load(profile)


def published(when: str, judgements: Sequence[Judged]) -> dict[str, Any]:
    """How many answers go out, how many of them are right, and how many wrong ones that makes."""
    out = [one.right for one in judgements if not one.held]
    return {
        f"published_{when}": len(out) / len(judgements),
        f"paused_{when}": 1.0 - len(out) / len(judgements),
        f"right_of_published_{when}": sum(out) / len(out) if out else None,
        f"wrong_published_{when}": out.count(False),
        f"n_published_{when}": len(out),
    }


def calibration(when: str, forecasts: FloatArray, right: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Mean log score (TPS; higher is better) and T-ECE (lower is better) of forecasts of one step a run."""
    traces = ForecastTraces(forecasts=forecasts, lengths=np.ones(len(forecasts), dtype=np.int64))
    outcomes = right.astype(np.float64)
    return {
        f"tps_{when}": float(tps(traces, outcomes).mean()),
        f"t_ece_{when}": trajectory_ece(forecasts, outcomes, bins=BINS),
    }


def best_single(judgements: Sequence[Judged], right: npt.NDArray[np.bool_]) -> tuple[float, str]:
    """The best AUROC of a signal that read every answer, chosen on the held-out runs themselves: hard to beat."""
    names = set.intersection(*(set(one.readings) for one in judgements))
    areas = [(auroc(np.array([one.readings[name] for one in judgements]), right) or 0.0, name) for name in names]
    return max(areas)


def filled(values: Sequence[float | None]) -> FloatArray:
    """Every answer has a forecast: one that could not be read counts as even odds."""
    return np.array([0.5 if value is None else value for value in values])


def mean_row(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over the splits of every figure; a split without a figure is left out of its mean."""
    means: dict[str, Any] = {"split": "mean"}
    for key, value in rows[0].items():
        if key != "split" and isinstance(value, int | float):
            found = [row[key] for row in rows if row[key] is not None]
            means[key] = float(np.mean(found))
    return means


def recordings(folder: str | None, questions: int) -> Iterator[Run]:
    """The runs of an earlier pass, or of a new one, which is kept in the folder if one was named."""
    where = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="life-"))
    if not any(where.rglob("*.jsonl")):
        command = [
            sys.executable,
            "-m",
            "grampus_uq.cli",
            "demo",
            "--task",
            "questions",
            "--n",
            str(questions),
            "--every-signal",
            "--advisory",
        ]
        progress(f"recording {questions} answers into {where} ...")
        subprocess.run([*command, "--runs-folder", str(where), "--json"], check=True, stdout=subprocess.DEVNULL)
    for run in runs(where):
        if run.outcome is not None and run.outcome.success is not None and len(run.steps) == 2:
            yield run


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", help="where an earlier pass is, or a new one is to be kept")
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--alpha", type=float, default=0.1, help="allowed share of right answers that an alarm holds")
    parser.add_argument("--target", type=float, default=0.9, help="wanted share of right ones among the published")
    parser.add_argument("--page", help="write the results there, as the page of the documentation")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    recorded = list(recordings(arguments.recordings, arguments.questions))
    rows = [split_row(seed, recorded, arguments.alpha, arguments.target) for seed in range(arguments.splits)]
    rows.append(mean_row(rows))
    if arguments.page:
        target = Path(arguments.page)
        old = target.read_text(encoding="utf-8") if target.exists() else ""
        kept = old[old.index(FIRST_RUN) :] if FIRST_RUN in old else ""
        target.write_text(page(rows, len(recorded), arguments.target) + kept, encoding="utf-8")
    emit("life", rows, arguments.json)


if __name__ == "__main__":
    main()
