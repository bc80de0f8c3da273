"""From a folder of labelled recordings to one profile: everything that the labels allow, on disjoint runs.

    learn on one part:      each stream's calibration, their fusion (p_success), TRACER, the detector's statistic
    set thresholds on the other: the detector's alarm, the release of irreversible calls
    attribution:            labelled failures, parted by itself

What could not be fitted says why, and how many labels more it takes. What is promised is promised singly: of each part
by itself, over the same held-out runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from grampus_uq.artifacts import FittedFor, InputFile, ProfileArtifact, Provenance
from grampus_uq.errors import ConfigurationError
from grampus_uq.fit.detector import DetectorFit, fit_detector
from grampus_uq.parallel import Backend, in_order
from grampus_uq.profiles.blame import fit_attribution
from grampus_uq.profiles.chance import FittedChance, fit_chance
from grampus_uq.profiles.expected import Judged, judge_run, rates
from grampus_uq.profiles.labelled import NO_STEP, LabelledRuns, labelled_runs
from grampus_uq.profiles.options import FitOptions
from grampus_uq.profiles.parts import Part
from grampus_uq.profiles.releasing import fit_release
from grampus_uq.profiles.risk_part import fit_risk
from grampus_uq.profiles.splitting import held_out_runs
from grampus_uq.recording.parts import RecordingPart, recording_parts, runs_of_part
from grampus_uq.recording.runs import Paths, recording_files
from grampus_uq.recording.standing import standing
from grampus_uq.state import Profile
from grampus_uq.stats.eprocess_thresholds import Mode, successes_needed
from grampus_uq.vocabulary import UncertaintySource

__all__ = ["ProfileFit", "fit_profile"]

BoolArray = npt.NDArray[np.bool_]
_MOST_INPUTS = 1000
_ALWAYS_READ = 0.9  # a stream that was read on so many steps is meant to be read on every one


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFit:
    """An artifact, and the account of how it came about.

    parts: what became of each part. counts: runs by kind and by reason of exclusion. expected: what the profile would
    have done on the held-out runs (`expected.rates`); their thresholds were set on them, so it is a little too good.
    detector: the detector's own report, None without one.
    """

    artifact: ProfileArtifact
    parts: tuple[Part, ...]
    counts: dict[str, int]
    splits: dict[str, int]
    expected: dict[str, JsonValue]
    detector: DetectorFit | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Everything but the artifact, as JSON values."""
        return {
            "fingerprint": self.artifact.fingerprint,
            "counts": self.counts,
            "splits": self.splits,
            "parts": [part.to_json() for part in self.parts],
            "expected": self.expected,
        }


def fit_profile(
    paths: Paths,
    *,
    base: Profile | None = None,
    options: FitOptions | None = None,
    workers: int = 1,
    backend: Backend = "local",
    on_runs: Callable[[int], None] | None = None,
) -> ProfileFit:
    """Fit everything that labelled recordings allow, in one go.

    Args:
        paths: recordings, or folders of them.
        base: policy (irreversible tools), estimator and propagator that the profile is to have, TRACER's settings; what
            it holds that is fitted is replaced. Default: the guide's.
        options: levels, targets, costs, seed.
        workers, backend: who reads (`parallel.in_order`); the result does not depend on it.
        on_runs: told how many runs were read, part by part, for a progress line; files are read up to four times.

    Returns:
        The artifact and its account. Nothing is fitted by force: a part without enough labels is left out, and says so.

    Raises:
        ConfigurationError: no run with a step of the model, or a stream that no run has.
        DataError: a damaged recording.
        MissingDependencyError: scikit-learn is not installed (extra `fit`).
    """
    options = options or FitOptions()
    rng = np.random.default_rng(options.seed)
    cleared = {"detector": None, "calibration": None, "release": None}
    bare = (base or Profile()).model_copy(update=cleared)
    read = partial(labelled_runs, paths, task_key=options.task_key, workers=workers, backend=backend)
    runs = read(bare, on_runs=on_runs)
    if runs.recorded == runs.excluded.get(NO_STEP, 0):
        raise ConfigurationError.of("paths", "fit_profile", "recordings with at least one step of the model", 0)
    held = held_out_runs(runs.tasks, runs.success, options.held_out, rng)
    tracer, tracer_part = fit_risk(paths, runs, held, bare, options, rng)
    bare = bare.model_copy(update={"tracer": tracer})
    if tracer is not None:
        runs = read(bare)  # the same runs in the same order, with the risk among their streams
    chance, parts = fit_chance(runs, held, rng)
    release, release_part = fit_release(runs, held, None if chance is None else chance.values, options)
    detector, detector_part = _detector(runs, held, chance, options, rng)
    attribution, attribution_part = fit_attribution(paths, runs.errors_named, options)
    rings = detector is not None and not detector.detector.threshold.shortage
    profile = _sensing(bare, runs, chance, detector).model_copy(
        update={
            "calibration": None if chance is None else chance.fusion,
            "release": release,
            "detector": detector.detector if detector is not None and rings else None,
        }
    )
    parts = [tracer_part, *parts, release_part, detector_part, attribution_part]
    names = frozenset(name for name, chosen in zip(runs.ids, held, strict=True) if chosen)
    judge = partial(_judged_part, profile, names)
    judged = [one for part in in_order(judge, recording_parts(paths), workers=workers, backend=backend) for one in part]
    splits = {"learn": int((~held).sum()), "thresholds": int(held.sum())}
    return ProfileFit(
        artifact=_artifact(paths, profile, parts, runs, splits, attribution, options),
        parts=tuple(parts),
        counts=runs.counts,
        splits=splits,
        expected=rates(judged, runs_per_day=options.runs_per_day or runs.runs_per_day),
        detector=detector,
    )


def _detector(
    runs: LabelledRuns, held: BoolArray, chance: FittedChance | None, options: FitOptions, rng: np.random.Generator
) -> tuple[DetectorFit | None, Part]:
    """The alarm: its statistic from the runs to learn on and all failures, its threshold from held-out successes."""
    if not options.detector:
        return None, Part(name="detector", status="not asked for", why="It was switched off.")
    if not len(runs):
        why = "No run with an outcome of its own."
        return None, Part(name="detector", status="not fitted", why=why, needs="labelled runs that nobody touched")
    available = {**runs.streams, **({} if chance is None else {"p_success": chance.values})}
    streams = options.streams or (("p_success",) if chance is not None else ("fused",))
    unknown = [name for name in streams if name not in available]
    if unknown and options.streams is None:
        why = "No step has a reading."
        return None, Part(name="detector", status="not fitted", why=why, needs="runs with a confidence")
    if unknown:
        raise ConfigurationError.of("streams", "fit_profile", f"some of {sorted(available)}", unknown)
    found = fit_detector(
        runs.detector_runs({name: available[name] for name in streams}),
        rng=rng,
        alpha=options.false_alarms,
        delta=options.delta,
        costs=options.detector_costs,
        held_out={name for name, chosen in zip(runs.ids, held, strict=True) if chosen},
    )
    threshold = found.detector.threshold
    figures: dict[str, JsonValue] = {
        "statistic": found.report.member,
        "streams": list(streams),
        "alpha": threshold.alpha,
        "mode": threshold.mode.value,
        "log_threshold": None if np.isinf(threshold.log_value) else threshold.log_value,
        "threshold_runs": threshold.runs,
    }
    needs = "; ".join(_advice(found, int(runs.success.sum()), options))
    if threshold.shortage:
        return found, Part(name="detector", status="not fitted", why=threshold.shortage, needs=needs, figures=figures)
    return found, Part(
        name="detector",
        status="fitted",
        why=found.report.reason,
        needs=needs,
        promise=threshold.guarantee,
        figures=figures,
    )


def _advice(found: DetectorFit, successes: int, options: FitOptions) -> Iterator[str]:
    """What the listed levels that have no threshold lack, the nearest first; of the labels a share is held out."""
    mode = Mode.CONFORMAL if options.delta is None else Mode.PAC
    wanting = {t.alpha for t in found.detector.thresholds if t.mode is mode and t.shortage}
    for alpha in sorted(wanting, reverse=True):
        all_told = math.ceil(successes_needed(mode, alpha, options.delta) / options.held_out)
        if all_told > successes:
            yield f"a false-alarm rate of {alpha:g} needs about {all_told - successes} more labelled successes"


def _sensing(bare: Profile, runs: LabelledRuns, chance: FittedChance | None, detector: DetectorFit | None) -> Profile:
    """The profile with those signals on that what was fitted reads, as they were on in the recordings."""
    used = set() if chance is None else {name for name, one in chance.fusion.readings.items() if one.slope > 0.0}
    used |= set() if detector is None else set(detector.detector.streams)
    policy, estimator = bare.policy, bare.estimator
    if UncertaintySource.PREFIX_VERIFIER in used and not policy.enable_prefix_verifier:
        policy = policy.model_copy(update={"enable_prefix_verifier": True})
    slow = UncertaintySource.SEMANTIC_ENTROPY
    if slow in used:
        policy = policy.model_copy(update={"enable_semantic_sampling": True})
        always = float((~np.isnan(runs.streams[slow])).mean()) >= _ALWAYS_READ
        if always:  # a profile that was fitted on it at every step has to see it at every step
            estimator = estimator.model_copy(update={"semantic_trigger_low": 0.0, "semantic_trigger_high": 1.0})
    return bare.model_copy(update={"policy": policy, "estimator": estimator})


def _judged_part(profile: Profile, names: frozenset[str], part: RecordingPart) -> list[Judged]:
    return [
        judge_run(run, profile, keep_chances=False)
        for run in runs_of_part(part)
        if run.session_id in names and standing(run).usable and run.steps
    ]


def _artifact(
    paths: Paths,
    profile: Profile,
    parts: list[Part],
    runs: LabelledRuns,
    splits: dict[str, int],
    attribution: dict[str, JsonValue] | None,
    options: FitOptions,
) -> ProfileArtifact:
    promises = tuple(f"{part.name}: {part.promise}" for part in parts if part.promise)
    files = list(islice(recording_files(paths), _MOST_INPUTS))
    accounts: list[JsonValue] = [part.to_json() for part in parts]
    return ProfileArtifact(
        profile=profile,
        fitted_for=FittedFor(model=_one(runs.models), prompt_hash=_one(runs.prompts), tools_hash=_one(runs.tools)),
        guarantees=promises or ("No guarantee: nothing with a promise could be fitted.",),
        provenance=Provenance(
            counts=runs.counts,
            inputs=tuple(InputFile.of(path) for path in files),
            splits=splits,
            seed=options.seed,
            details={"parts": accounts, "options": {k: v for k, v in asdict(options).items() if v is not None}},
        ),
        attribution=attribution,
    )


def _one(values: frozenset[Any]) -> str | None:
    """What all runs have in common; what differs between them, or was not recorded, is not known."""
    only = next(iter(values)) if len(values) == 1 else None
    return only or None
