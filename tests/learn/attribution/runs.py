"""Failed runs made for the tests: where the error is, how it shows, and how much."""

from __future__ import annotations

import numpy as np

from grampus_uq.learn.attribution import FunctionScorer, LabelledTrajectory, Trajectory, TrajectoryStep


def trajectory(name: str, texts: list[str], *, task: str = "Count the awnings.") -> Trajectory:
    steps = tuple(TrajectoryStep(step_id=f"s{i}", speaker=f"agent-{i % 2}", text=text) for i, text in enumerate(texts))
    return Trajectory(trajectory_id=name, steps=steps, task=task)


def failure(name: str, rng: np.random.Generator, *, signal: float = 1.0, several: bool = False) -> LabelledTrajectory:
    """A run of 4 to 9 steps; the text of a wrong step assumes something with probability `signal`."""
    length = int(rng.integers(4, 10))
    errors = sorted({int(e) for e in np.floor(rng.beta(1.0, 1.5, 3 if several else 1) * length)})
    texts = []
    for i in range(length):
        wrong = (i in errors and rng.random() < signal) or rng.random() < 0.1
        texts.append(
            f"step {i}: {'I assume that it is a placeholder' if wrong else 'I looked it up'} {rng.integers(99)}"
        )
    return LabelledTrajectory(trajectory=trajectory(name, texts), error_steps=tuple(errors))


def failures(
    n: int, seed: int, *, prefix: str = "run", signal: float = 1.0, several: bool = False
) -> list[LabelledTrajectory]:
    rng = np.random.default_rng(seed)
    return [failure(f"{prefix}-{seed}-{i}", rng, signal=signal, several=several) for i in range(n)]


CONSTANT = FunctionScorer(name="constant", function=lambda run: [1.0] * len(run))
"""What a method is worth without any judgement, from the position alone."""

ASSUMING = FunctionScorer(
    name="assuming", function=lambda run: [1.0 if "assume" in step.text else 0.1 for step in run.steps]
)
"""Does the text of a step assume something?"""
