"""Simulate every promise of a fit: calibrations drawn anew, each fitted from a recording and acted on by live sessions.

    python -m tests.guarantees.promises [--calibrations 400] [--only NAME...] [--json]

Rows: `promise`, `world`; `level`: what is promised; `measured`: the share of calibrations whose profile breaks it (of
promises with high probability), or the mean of what is bounded (of promises on average); `ceiling`: what chance still
explains at .999, exact binomial, or 3.1 standard errors of the mean; `there`: share of calibrations that publish
anything (power); `out`: share of calls that go ahead without asking (of detectors: of failures that are caught).
"""

from __future__ import annotations

import argparse
import math
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from click.testing import CliRunner

from grampus_uq.cli import _group
from grampus_uq.core.state import Profile
from grampus_uq.learn.profiles import FitOptions, fit_profile
from grampus_uq.recording.artifacts import ProfileArtifact, load
from tests.benchmarks._report import emit
from tests.binomial import binomial_ceiling
from tests.guarantees.afterwards import (
    WATCHED,
    KnownRatio,
    Once,
    explained,
    fixed_bag_alarms,
    learned_ratio,
    watched,
)
from tests.guarantees.worlds import BASE, Runs, World, act, live, record

Label = Callable[[np.random.Generator, Runs], Any]
Seen = tuple[bool, float, float]
Fit = Callable[[Path, FitOptions, ProfileArtifact | None, int], ProfileArtifact | Profile | None]
FRESH = 600
MODES = {"right": "certified", "wrong": "wrong_releases", "held": "share"}


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One promise in one world.

    about: what is bounded: "right" among released calls (from below), "wrong" releases or "held" calls (from above),
    "alarms" in runs that succeed, "paused" runs, "watch": histories that alarm, "missed" errors. level: the bound.
    delta: None: on average. label: which runs have a label (None: all). older: p_success comes from a profile fitted on
    other runs. recorded: how a run looks in the recording, where that differs: a sabotage. attacked: every fresh run
    states 1. later: the world of fresh runs, where it has changed since. once: another way than to record, fit and act,
    of a generator, a folder and a number.
    """

    name: str
    where: str
    about: str
    level: float
    delta: float | None
    options: FitOptions = field(default_factory=FitOptions)
    world: World | KnownRatio = field(default_factory=World)
    n: int = 0
    label: Label | None = None
    older: bool = False
    recorded: Callable[[np.random.Generator, Runs], Runs] = lambda rng, runs: runs
    attacked: bool = False
    later: World | None = None
    fit: Fit = field(default=lambda *given: _fitted(*given))
    once: Once | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """Of each calibration: was anything published, what is bounded (nan: nothing), and what it is worth."""

    there: list[bool]
    bounded: list[float]
    worth: list[float]

    def broken(self, promise: Promise) -> int:
        """Calibrations whose profile breaks the promise."""
        sign = -1.0 if promise.about == "right" else 1.0
        return sum(sign * (value - promise.level) > 1e-9 for value in self.bounded if not math.isnan(value))

    def row(self, promise: Promise) -> dict[str, Any]:
        """What is promised, and what was seen."""
        n = len(self.there)
        if promise.delta is not None:
            level, measured = promise.delta, self.broken(promise) / n
            ceiling = binomial_ceiling(n, promise.delta) / n
        else:
            values = np.nan_to_num(np.array(self.bounded))
            level, measured = promise.level, float(values.mean())
            ceiling = level + 3.1 * float(values.std(ddof=1)) / math.sqrt(n)
        return {
            "promise": promise.name,
            "world": promise.where,
            "level": level,
            "measured": measured,
            "ceiling": ceiling,
            "there": float(np.mean(self.there)),
            "out": float(np.mean(self.worth)),
            "calibrations": n,
        }

    def kept(self, promise: Promise) -> bool:
        """Whether chance explains what was seen."""
        row = self.row(promise)
        return row["measured"] <= row["ceiling"]


def simulate(promise: Promise, calibrations: int, seed: int = 0) -> Found:
    """Draw, record, fit, and act: `calibrations` times."""
    found = Found(there=[], bounded=[], worth=[])
    with tempfile.TemporaryDirectory() as folder:
        older = _older(promise, Path(folder)) if promise.older else None
        for number in range(calibrations):
            rng = np.random.default_rng([seed, number])
            if promise.once is not None:
                there, bounded, worth = promise.once(rng, Path(folder), number)
            else:
                there, bounded, worth = _once(promise, rng, Path(folder), number, older)
            found.there.append(there)
            found.bounded.append(bounded)
            found.worth.append(worth)
    return found


def _once(promise: Promise, rng: np.random.Generator, folder: Path, number: int, older: ProfileArtifact | None) -> Seen:
    runs = promise.recorded(rng, promise.world.draw(rng, promise.n))
    labelled = None if promise.label is None else promise.label(rng, runs)
    path = record(folder / f"{number}.jsonl", runs, labelled, name=f"c{number}")
    profile = promise.fit(path, promise.options, older, number)
    path.unlink()
    return _seen(promise, profile, rng)


def _older(promise: Promise, folder: Path) -> ProfileArtifact:
    path = record(folder / "older.jsonl", promise.world.draw(np.random.default_rng(99), 120), name="older")
    return fit_profile(path, base=BASE, options=FitOptions(detector=False)).artifact


def _seen(promise: Promise, artifact: ProfileArtifact | Profile | None, rng: np.random.Generator) -> Seen:
    """What the profile does with fresh runs; their chances are known, so that outcomes need not be drawn."""
    if artifact is None:
        return False, math.nan, 0.0
    profile = artifact.profile if isinstance(artifact, ProfileArtifact) else artifact
    detector, release = profile.detector, profile.release
    about_release = promise.about not in ("alarms", "paused")
    if about_release and (
        release is None or release.mode != MODES[promise.about] or (release.delta is None) != (promise.delta is None)
    ):
        return False, math.nan, 0.0  # nothing, or another promise
    if not about_release and detector is None:
        return False, math.nan, 0.0
    # What is promised of runs that call is measured on such runs alone, where calling says nothing else of a run.
    world = promise.later or promise.world
    of_calls = about_release or (detector is not None and detector.at_calls)
    alone = of_calls and isinstance(world, World) and not world.prone
    fresh = (replace(world, calls=1.0) if alone else world).draw(rng, FRESH)
    if promise.attacked:
        fresh = replace(fresh, stated=np.ones_like(fresh.stated))
    told = live(artifact, fresh, name=f"f{rng.integers(2**40)}")
    good, calls = fresh.chance, fresh.calls
    if promise.about == "alarms":
        return True, float(good @ told.paused / good.sum()), float((1.0 - good) @ told.paused / (1.0 - good).sum())
    if promise.about == "paused":
        return True, float(told.paused.mean()), float(told.paused.mean())
    out = told.released
    share = float(out.sum() / calls.sum())
    if promise.about == "held":
        return True, 1.0 - share, share
    if promise.about == "wrong":
        return True, float(((1.0 - good) * out).sum() / calls.sum()), share
    return True, float(good[out].mean()) if out.any() else math.nan, share


def _fitted(path: Path, options: FitOptions, base: ProfileArtifact | None, seed: int) -> ProfileArtifact:
    return fit_profile(path, base=base or BASE, options=replace(options, seed=seed)).artifact


def _refitted(let_through: float) -> Fit:
    """Fit, act on as many new runs, and fit again on what these left alone."""

    def fit(path: Path, options: FitOptions, base: ProfileArtifact | None, seed: int) -> ProfileArtifact:
        first = _fitted(path, options, base, seed)
        runs = CALLS_NOTHING.draw(np.random.default_rng([seed, 77]), 200)
        acted = act(first, path.with_suffix(".acted.jsonl"), runs, let_through=let_through, seed=seed)
        return _fitted(acted, options, base, seed)

    return fit


def _budgeted(path: Path, options: FitOptions, base: ProfileArtifact | None, seed: int) -> ProfileArtifact | None:
    """By the command: an interruption budget needs no labels."""
    target = path.with_suffix(".profile")
    asked = ["fit", str(path), "--budget", str(options.false_alarms), "--seed", str(seed), "-o", str(target)]
    asked += ["--irreversible", "send"] if options.detector_at != "steps" else []
    done = CliRunner().invoke(_group, asked)
    if done.exit_code != 0:
        return None
    found = load(target)  # fitted for nothing in particular: it may act here all the same
    return found.model_copy(update={"fitted_for": found.fitted_for.model_copy(update=EVERYWHERE)})


EVERYWHERE = {"model": "*", "prompt_hash": "*", "tools_hash": "*"}


def best(share: float, random: float = 0.0) -> Label:
    """Label the best share by what is stated, and a random share of the rest."""

    def chosen(rng: np.random.Generator, runs: Runs) -> Any:
        said = runs.stated[:, -1]
        return (said >= np.quantile(said, 1.0 - share)) | (rng.random(len(runs)) < random)

    return chosen


def praised(rng: np.random.Generator, runs: Runs) -> Any:
    """Label half of the successes, and two failures."""
    return (runs.success & (rng.random(len(runs)) < 0.5)) | (~runs.success & (np.cumsum(~runs.success) <= 2))


def as_trials_of_many(rng: np.random.Generator, runs: Runs) -> Runs:
    """Sabotage: nobody says which runs are trials of one task."""
    return replace(runs, told=False)


def as_if_all_called(rng: np.random.Generator, runs: Runs) -> Runs:
    """Sabotage: every run is taken for one that calls something irreversible."""
    return replace(runs, calls=np.ones(len(runs), dtype=bool))


def with_wrong_labels(rng: np.random.Generator, runs: Runs) -> Runs:
    """Sabotage: half of the failures are labelled a success."""
    return replace(runs, success=runs.success | (rng.random(len(runs)) < 0.5))


def only_the_confident(rng: np.random.Generator, runs: Runs) -> Runs:
    """Sabotage: only runs that looked good are there, as after a monitor that stopped the rest."""
    said = runs.stated[:, -1]
    return runs.take(np.flatnonzero(said >= np.quantile(said, 0.3)))


PLAIN = World()
SHARP = World(skill=(0.3, 0.99), cut=0.5)
FEW_CALL = World(skill=(0.3, 0.98), others=(0.9, 1.0), calls=0.2, cut=0.6)
SHY = World(calls=0.3, shy=2.5)
TRIALS = World(trials=4, alike=0.9)
PRONE = World(trials=4, prone=True)
ROUND = World(digits=1)
STEPS = World(steps=3)
CALLS_NOTHING = World(calls=0.0)
MOST_CALL = World(calls=0.6, shy=2.5)
BESIDE = World(tokens=0.2)


def _certificate(where: str, world: World, n: int, **given: Any) -> Promise:
    options = FitOptions(accuracy=0.85, detector=False, labels=given.pop("labels", None))
    return Promise(
        name="certificate",
        where=where,
        about="right",
        level=0.85,
        delta=0.1,
        options=options,
        world=world,
        n=n,
        **given,
    )


def _wrong(where: str, world: World, n: int, *, delta: float | None = None, **given: Any) -> Promise:
    options = FitOptions(
        wrong_releases=0.1,
        assurance=0.0 if delta is None else 1.0 - delta,
        detector=False,
        labels=given.pop("labels", None),
    )
    return Promise(
        name="wrong releases",
        where=where,
        about="wrong",
        level=0.1,
        delta=delta,
        options=options,
        world=world,
        n=n,
        **given,
    )


def _held(where: str, world: World, n: int, **given: Any) -> Promise:
    options = FitOptions(pause_share=0.2, detector=False)
    return Promise(
        name="pause share", where=where, about="held", level=0.2, delta=None, options=options, world=world, n=n, **given
    )


def _alarm(
    where: str, world: World, n: int, *, delta: float | None = 0.1, at: Literal["steps"] | None = None, **given: Any
) -> Promise:
    options = FitOptions(false_alarms=0.2, assurance=0.0 if delta is None else 1.0 - delta, detector_at=at)
    name = "conformal" if delta is None else "PAC"
    return Promise(
        name=name, where=where, about="alarms", level=0.2, delta=delta, options=options, world=world, n=n, **given
    )


def _budget(where: str, world: World, n: int, *, at: Literal["steps"] | None = None, **given: Any) -> Promise:
    options = FitOptions(false_alarms=0.2, detector_at=at)
    return Promise(
        name="label-free budget",
        where=where,
        about="paused",
        level=0.2,
        delta=None,
        options=options,
        world=world,
        n=n,
        fit=_budgeted,
        **given,
    )


def _missed(where: str, once: Once) -> Promise:
    return Promise(name="error sets", where=where, about="missed", level=0.2, delta=None, once=once)


PROMISES = {
    "certificate": _certificate("every run calls", SHARP, 160),
    "certificate-few-call": _certificate("a fifth of the runs calls, and is worse", FEW_CALL, 800),
    "certificate-trials": _certificate("four trials a task", replace(SHARP, trials=4, alike=0.9), 400),
    "certificate-small": _certificate("60 labels, older p_success", SHARP, 60, older=True),
    "certificate-best": _certificate("the best quarter of 300 labelled", SHARP, 300, older=True, label=best(0.25, 0.1)),
    "certificate-round": _certificate("round numbers", replace(SHARP, digits=1), 160),
    "wrong": _wrong("every run calls", PLAIN, 60),
    "wrong-few": _wrong("twelve labels", PLAIN, 12),
    "wrong-few-call": _wrong("a fifth of the runs calls, and is worse", FEW_CALL, 300),
    "wrong-prone": _wrong("four trials a task, bad tasks call more", PRONE, 240),
    "wrong-best": _wrong("the best tenth of 200 labelled", PLAIN, 200, label=best(0.1, 0.02)),
    "wrong-sure": _wrong("every run calls", PLAIN, 60, delta=0.1),
    "wrong-sure-trials": _wrong("four trials a task", TRIALS, 240, delta=0.1),
    "wrong-round": _wrong("round numbers", ROUND, 60, delta=0.1),
    "wrong-attacked": _wrong("the tokens are read too, and new runs state 1", BESIDE, 60, attacked=True),
    "held": _held("every run calls", PLAIN, 60),
    "held-shy": _held("runs that call say less", SHY, 200),
    "held-round": _held("round numbers", ROUND, 60),
    "held-trials": _held("four trials a task", TRIALS, 240),
    "pac": _alarm("every run calls", PLAIN, 120),
    "pac-trials": _alarm("four trials a task", TRIALS, 300),
    "pac-few": _alarm("20 labels", PLAIN, 20),
    "pac-steps": _alarm("three steps, each looked at", STEPS, 120, at="steps"),
    "pac-most-call": _alarm("most runs call, and say less", MOST_CALL, 200),
    "conformal": _alarm("every run calls", PLAIN, 60, delta=None),
    "conformal-round": _alarm("round numbers", ROUND, 60, delta=None),
    "conformal-trials": _alarm("four trials a task", TRIALS, 240, delta=None),
    "conformal-attacked": _alarm(
        "the tokens are read too, and new runs state 1", BESIDE, 60, delta=None, attacked=True
    ),
    "refit": replace(
        _alarm("refitted, half let through", CALLS_NOTHING, 200, delta=None), name="refit", fit=_refitted(0.5)
    ),
    "budget": _budget("no label", PLAIN, 40, at="steps"),
    "budget-calls": _budget("no label, most runs call, and say less", MOST_CALL, 80),
    "budget-trials": _budget("no label, four trials a task", TRIALS, 80),
    "budget-attacked": _budget(
        "no label, the tokens are read too, new runs state 1", BESIDE, 40, at="steps", attacked=True
    ),
    "ville": Promise(
        name="Ville",
        where="a known ratio, 30 steps",
        about="alarms",
        level=0.1,
        delta=None,
        options=FitOptions(false_alarms=0.1),
        world=KnownRatio(),
        n=120,
        fit=lambda path, options, base, seed: KnownRatio().profile(options.false_alarms),
    ),
    "watch": Promise(name="watch", where="250 runs", about="watch", level=0.5, delta=WATCHED, once=watched()),
    "coverage": _missed("40 labelled failures", explained()),
    "coverage-trials": _missed("eight labelled failures a task", explained(n=160, trials=8)),
}

SABOTAGES: dict[str, Callable[[np.random.Generator, Runs], Runs] | dict[str, Any]] = {
    "certificate-few-call": as_if_all_called,
    "certificate": with_wrong_labels,
    "certificate-trials": as_trials_of_many,
    "wrong": with_wrong_labels,
    "wrong-chosen": {
        "where": "half of the successes are labelled, and two failures",
        "world": World(skill=(0.6, 0.7)),
        "n": 120,
        "label": praised,
    },
    "wrong-sure-trials": as_trials_of_many,
    "wrong-attacked": {
        "where": "the stated confidence is trusted, and new runs state 1",
        "options": FitOptions(wrong_releases=0.1, assurance=0.0, detector=False, trust_stated=True),
    },
    "held-shy": as_if_all_called,
    "wrong-changed": {"where": "fitted, then failures are up to twice as frequent", "later": World(skill=(0.0, 0.9))},
    "held-changed": {"where": "fitted, then every run states the square", "later": World(shy=2.0)},
    "pac-changed": {"where": "fitted, then every run states the square", "later": World(shy=2.0)},
    "conformal-changed": {"where": "fitted, then every run states the square", "later": World(shy=2.0)},
    "pac": only_the_confident,
    "pac-trials": as_trials_of_many,
    "conformal": only_the_confident,
    "budget": only_the_confident,
    "refit": {"where": "nothing is let through: what was not stopped is all there is", "fit": _refitted(0.0)},
    "ville": {"where": "the ratio was learned, from 120 runs", "fit": learned_ratio},
    "watch": {"where": "runs are ranked against the first bag alone", "once": watched(fixed_bag_alarms)},
    "watch-chosen": {"where": "only runs that state little are reported", "once": watched(chosen=0.6)},
    "coverage": {"where": "the step before the error is labelled", "once": explained(spoiled=True)},
}
"""What breaks a promise, by how its runs are recorded, or by what is done instead: each has to be seen, or the
simulation could not fail."""


def sabotaged(name: str) -> Promise:
    """The promise in a world where what it assumes does not hold."""
    promise, recorded = PROMISES[re.split("-chosen|-changed", name)[0]], SABOTAGES[name]
    if isinstance(recorded, dict):
        return replace(promise, **recorded)
    told = (recorded.__doc__ or "").removeprefix("Sabotage: ").removesuffix(".")
    world, n = promise.world, promise.n
    if recorded is as_trials_of_many and isinstance(world, World):
        world, n = replace(world, trials=16, alike=1.0), 2 * n
    return replace(promise, recorded=recorded, world=world, n=n, where=told)


def main() -> None:
    """Read the arguments, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibrations", type=int, default=400)
    parser.add_argument("--only", nargs="*", default=list(PROMISES | SABOTAGES), choices=[*PROMISES, *SABOTAGES])
    parser.add_argument("--sabotage", action="store_true", help="each in the world that breaks it")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    names = [name for name in given.only if name in (SABOTAGES if given.sabotage else PROMISES)]
    chosen = [sabotaged(name) if given.sabotage else PROMISES[name] for name in names]
    emit("promises", [simulate(one, given.calibrations).row(one) for one in chosen], given.json)


if __name__ == "__main__":
    main()
