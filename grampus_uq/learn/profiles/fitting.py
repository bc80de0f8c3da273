"""From a folder of labelled recordings to one profile: everything that the labels allow.

    learn on one part:      each stream's calibration, their fusion (p_success), TRACER, the detector's statistic
    set thresholds on the other: the detector's alarm, the release of irreversible calls
    attribution:            labelled failures, parted by itself

A part that taught nothing is given back: with few labels, or with the p_success of an older profile, every label sets
thresholds. Trials of one task stay in one part, and set a threshold together as one. What could not be fitted says why,
and how many labels more it takes. What is promised is promised singly: of each part by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from pydantic import JsonValue

from grampus_uq.core.state import Profile
from grampus_uq.core.worst_case import UNAIDED
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.columns import looks_at_calls
from grampus_uq.learn.eligibility import NO_STEP, eligibility, traffic_weight
from grampus_uq.learn.fit.detector import DetectorFit, fit_detector
from grampus_uq.learn.fit.task_draws import held_out_runs
from grampus_uq.learn.guarded import guarding_as_recorded
from grampus_uq.learn.profiles.attribution_part import fit_attribution
from grampus_uq.learn.profiles.cases import worth_labelling
from grampus_uq.learn.profiles.chain_part import fit_chain_part, recorded_looks
from grampus_uq.learn.profiles.expected import Counterfactual, counterfactual, rates
from grampus_uq.learn.profiles.labelled import LabelledRuns, labelled_runs
from grampus_uq.learn.profiles.options import FitOptions
from grampus_uq.learn.profiles.p_success import (
    NONE_TAUGHT,
    STATED,
    FittedPSuccess,
    can_learn,
    fit_p_success,
    keep_p_success,
    most_read,
    rank_by_one,
    without_the_word,
    word_in,
)
from grampus_uq.learn.profiles.profile_parts import Part
from grampus_uq.learn.profiles.releasing import fit_release
from grampus_uq.learn.profiles.risk_part import fit_risk
from grampus_uq.learn.sensed import sensing_as_recorded
from grampus_uq.recording.artifacts import FittedFor, InputFile, ProfileArtifact, Provenance
from grampus_uq.recording.parts import over_parts
from grampus_uq.recording.runs import Paths, Refused, Run, recording_files, run_digests
from grampus_uq.records.values import sha256_of
from grampus_uq.records.vocabulary import UncertaintySource
from grampus_uq.stats.arrays import BoolArray, FloatArray
from grampus_uq.stats.eprocess_thresholds import Mode, successes_needed

_MOST_INPUTS = 1000
_MOST_TEACHERS = 20_000
_TAUGHT = "taught"
_LEFT_OUT = Part(
    name=f"stream {STATED}",
    status="not asked for",
    why="Left out: whoever can make the model state more would release its calls. See --trust-stated.",
    needs="an agent that reads nothing which an attacker may have written",
)
_ALWAYS_READ = 0.9  # a stream that was read on so many steps is meant to be read on every one


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFit:
    """An artifact, and the account of how it came about.

    parts: what became of each part. counts: runs by kind and by reason of exclusion. splits: how many taught, and how
    many could set thresholds; tasks: of how many tasks these are; without_task: runs that name none and count as one
    each; unreported: runs that propose an irreversible call and report no call. expected: what the profile would have
    done on all recorded runs, as `replay` says (`expected.rates`); of outcomes only those that taught nothing, though
    they set its thresholds, so they look a little too good. label_next: runs without a label that are the most worth
    one, best first. detector: the detector's own report, None without one.
    """

    artifact: ProfileArtifact
    parts: tuple[Part, ...]
    counts: dict[str, int]
    splits: dict[str, int]
    expected: dict[str, JsonValue]
    tasks: int = 0
    without_task: int = 0
    unreported: int = 0
    label_next: tuple[str, ...] = ()
    detector: DetectorFit | None = field(default=None, repr=False)

    @property
    def empty(self) -> bool:
        """True when nothing was fitted: a monitor with this profile would do what it does without one."""
        return not any(part.status == "fitted" for part in self.parts if not part.name.startswith("stream "))

    def to_json(self) -> dict[str, Any]:
        """Everything but the artifact, as JSON values."""
        return {
            "fingerprint": self.artifact.fingerprint,
            "counts": self.counts,
            "splits": self.splits,
            "parts": [asdict(part) for part in self.parts],
            "expected": self.expected,
            "tasks": self.tasks,
            "unreported": self.unreported,
            "label_next": list(self.label_next),
        }


def fit_profile(
    paths: Paths,
    *,
    base: Profile | ProfileArtifact | None = None,
    options: FitOptions | None = None,
    workers: int = 1,
    on_runs: Callable[[int], None] | None = None,
    on_refused: Refused | None = None,
) -> ProfileFit:
    """Fit everything that labelled recordings allow; a part without enough labels is left out, and says so.

    `paths` are recordings, or folders of them; files are read up to four times, by `workers` processes
    (`parallel.in_order`), on which the result does not depend. `base` gives policy, estimator, propagator and TRACER's
    settings (default: the default tiers); tools that the recordings' monitors guarded are guarded too
    (`guarding_as_recorded`). What is fitted is replaced, but its p_success stays where the labels are too few to learn
    one, or the options say so. Runs that served the fit of an artifact set no threshold; of a bare profile nobody knows
    them. `on_runs` is told how many runs were read, part by part; `on_refused` what is wrong with a file, whose rest is
    left out.

    Raises `ConfigurationError` for a stream that no run has, `DataError` for no run with a step of the model and for a
    damaged recording, unless `on_refused` takes it, `MissingDependencyError` without scikit-learn (extra `fit`).
    """
    options = options or FitOptions()
    rng = np.random.default_rng(options.seed)
    given = base.profile if isinstance(base, ProfileArtifact) else base or Profile()
    if options.keep_p_success and given.calibration is None:
        raise ConfigurationError.of("keep_p_success", "fit_profile", "given with a base that has a p_success", True)
    policy = guarding_as_recorded(given.policy, paths)
    bare = given.model_copy(
        update={"policy": policy, "detector": None, "calibration": None, "release": None, "chain": None}
    )
    spread: dict[str, Any] = {"workers": workers, "on_refused": on_refused}
    runs = labelled_runs(paths, bare, task_key=options.task_key, on_runs=on_runs, **spread)
    if runs.recorded == runs.excluded.get(NO_STEP, 0):
        raise DataError("no run with a step of the model was found.")
    if options.question is not None:
        return _chain_alone(paths, bare, runs, options, spread)
    parted = held_out_runs(runs.tasks, runs.success, options.held_out, rng)
    kept = given.calibration if options.keep_p_success or not can_learn(runs, parted) else None
    tracer, tracer_part = given.trajectory_risk, Part(name="tracer", status="not asked for", why="Kept with p_success.")
    if kept is None:
        tracer, tracer_part = fit_risk(paths, runs, parted, bare, options, rng, on_refused)
    bare = bare.model_copy(update={"trajectory_risk": tracer})
    if tracer is not None:
        # The same runs in the same order, with the risk among their streams.
        runs = labelled_runs(paths, bare, task_key=options.task_key, **spread)
    heard = without_the_word(runs, trusted=options.trust_stated)
    if kept is None:
        fitted, parts = fit_p_success(heard, parted, rng)
        if STATED in runs.streams and STATED not in heard.streams:
            parts = [*parts, _LEFT_OUT]
    else:
        fitted, parts = keep_p_success(runs, kept, _served(runs, base))
    ranked = rank_by_one(heard) if fitted is None else None
    detector, detector_part = _detector(runs, heard, parted, fitted if ranked is None else ranked.solid, options, rng)
    rings = detector is not None and not detector.detector.threshold.shortage
    fitted = fitted or (None if ranked is None else ranked.fitted)
    release, release_part = fit_release(runs, fitted, options, rng, alone=not rings)
    if ranked is not None and (ranked.solid is not None or (release is not None and release.guarantee)):
        parts = [ranked.part]
    elif ranked is not None:  # it ranks, says nothing of how sure, and no promise came of it
        fitted = release = None
    profile = _sensing(bare, runs, fitted, detector).model_copy(
        update={
            "calibration": None if fitted is None else fitted.fusion,
            "release": release,
            "detector": detector.detector if detector is not None and rings else None,
        }
    )
    attribution, attribution_part = fit_attribution(paths, runs.errors_named, options, on_refused)
    parts = [tracer_part, *parts, release_part, detector_part, attribution_part]
    taught = np.zeros(len(runs), dtype=np.bool_) if fitted is None else fitted.taught
    names = frozenset(name for name, out in zip(runs.ids, taught, strict=True) if out)
    judge = partial(_replayed_part, profile, names)
    replayed = [one for part in over_parts(judge, paths, **spread) for one in part]
    splits = {"learn": int(taught.sum()), "thresholds": int((~taught).sum())}
    before = None if kept is None else base
    teachers = {_digest(name) for name in names} | _listed(_TAUGHT, before)
    return ProfileFit(
        artifact=_artifact(
            paths, profile, parts, runs, splits, teachers, attribution, options, _listed("runs", before)
        ),
        parts=tuple(parts),
        counts=runs.counts,
        splits=splits,
        expected=rates(replayed, runs_per_day=options.runs_per_day or runs.runs_per_day),
        tasks=len({task for task, out in zip(runs.tasks, taught, strict=True) if not out}),
        without_task=runs.without_task,
        unreported=runs.unreported,
        label_next=worth_labelling(runs, fitted),
        detector=detector,
    )


def _chain_alone(
    paths: Paths, bare: Profile, runs: LabelledRuns, options: FitOptions, spread: Mapping[str, Any]
) -> ProfileFit:
    """The chain of the recorded looks; a replay has no looks, so that nothing is forecast by one."""
    rng = np.random.default_rng(options.seed)
    looks = recorded_looks(paths, rng, costs=options.look_costs, task_key=options.task_key, **spread)
    rate = options.runs_per_day or runs.runs_per_day
    chain, part = fit_chain_part(looks, options, None if rate is None else rate * looks.share)
    cases = len(looks.tiers[0].right) if looks.tiers else 0
    splits = {"learn": cases // 3, "thresholds": cases - cases // 3}
    profile = bare.model_copy(update={"chain": chain})
    return ProfileFit(
        artifact=_artifact(paths, profile, [part], runs, splits, frozenset(), None, options),
        parts=(part,),
        counts=runs.counts,
        splits=splits,
        expected=rates(()),
        tasks=splits["thresholds"],
        without_task=runs.without_task,
        unreported=runs.unreported,
    )


def _served(runs: LabelledRuns, base: Profile | ProfileArtifact | None) -> BoolArray:
    """The runs that taught the base, by their names; by their files, unchanged since, as far as it names these."""
    if not isinstance(base, ProfileArtifact):
        return np.zeros(len(runs), dtype=np.bool_)
    known = {file.sha256 for file in base.provenance.inputs}
    served = {path: InputFile.of(path).sha256 in known for path in set(runs.paths)}
    taught = _listed(_TAUGHT, base)
    pairs = zip(runs.ids, runs.paths, strict=True)
    return np.array([served[path] or _digest(name) in taught for name, path in pairs], dtype=np.bool_)


def _listed(name: str, base: Profile | ProfileArtifact | None) -> frozenset[str]:
    """Digests of runs that served an earlier fit: a file that has grown since is another file."""
    return base.provenance.listed(name) if isinstance(base, ProfileArtifact) else frozenset()


def _digest(name: str) -> str:
    return sha256_of(name)[:12]


def _detector(
    runs: LabelledRuns,
    heard: LabelledRuns,
    parted: BoolArray,
    fitted: FittedPSuccess | None,
    options: FitOptions,
    rng: np.random.Generator,
) -> tuple[DetectorFit | None, Part]:
    """The alarm, on p_success; where too few successes are left to set its threshold, on what nothing taught."""
    if not options.detector:
        return None, Part(name="detector", status="not asked for", why="It was switched off.")
    if not len(runs):
        why = "No run with an outcome of its own."
        return None, Part(name="detector", status="not fitted", why=why, needs="labelled runs without intervention")
    available = {**runs.streams, **({} if fitted is None else {"p_success": fitted.values})}
    first = ("call_probability",) if _at_calls(runs, options) else ()
    untaught = (most_read(heard, (*first, "fused", UNAIDED)) or UNAIDED,)
    streams = options.streams or (("p_success",) if fitted is not None else untaught)
    unknown = [name for name in streams if name not in available]
    if unknown and options.streams is None:
        why = "No step has a reading."
        return None, Part(name="detector", status="not fitted", why=why, needs="runs with a confidence")
    if unknown:
        raise ConfigurationError.of("streams", "fit_profile", f"some of {sorted(available)}", unknown)
    taught, more = np.zeros(len(runs), dtype=np.bool_), runs.about_the_others
    if fitted is not None and "p_success" in streams:
        taught |= fitted.taught
        more = (f" It assumes that {NONE_TAUGHT}." if fitted.kept else "") + more
    if "trajectory_risk" in streams:
        taught |= ~parted
    found = _detector_on(streams, available, runs, taught, options, rng, more)
    if found.detector.threshold.shortage and options.streams is None and taught.any() and untaught[0] in available:
        streams, taught = untaught, np.zeros_like(taught)
        found = _detector_on(streams, available, runs, taught, options, rng, runs.about_the_others)
    return found, _detector_part(found, streams, runs, taught, options)


def _at_calls(runs: LabelledRuns, options: FitOptions) -> bool:
    return looks_at_calls(runs.calls) if options.detector_at is None else options.detector_at == "calls"


def _detector_on(
    streams: tuple[str, ...],
    available: Mapping[str, FloatArray],
    runs: LabelledRuns,
    taught: BoolArray,
    options: FitOptions,
    rng: np.random.Generator,
    more: str,
) -> DetectorFit:
    """Its statistic from the runs to learn on and all failures, its threshold from successes that taught no stream."""
    names = {name for name, out in zip(runs.ids, taught, strict=True) if not out}
    found = fit_detector(
        runs.detector_runs({name: available[name] for name in streams}, at_calls=_at_calls(runs, options)),
        rng=rng,
        alpha=options.false_alarms,
        delta=options.delta,
        held_out=names if taught.any() else None,
    )
    thresholds = tuple(replace(t, guarantee=t.guarantee + more) for t in found.detector.thresholds)
    return replace(found, detector=replace(found.detector, thresholds=thresholds))


def _detector_part(
    found: DetectorFit, streams: tuple[str, ...], runs: LabelledRuns, taught: BoolArray, options: FitOptions
) -> Part:
    threshold = found.detector.threshold
    figures: dict[str, JsonValue] = {
        "statistic": found.report.member,
        "streams": list(streams),
        "alpha": threshold.alpha,
        "mode": threshold.mode.value,
        "log_threshold": None if np.isinf(threshold.log_value) else threshold.log_value,
        "threshold_runs": threshold.runs,
    }
    needs = _advice(found, runs, options)
    if threshold.shortage:
        return Part(name="detector", status="not fitted", why=threshold.shortage, needs=needs, figures=figures)
    why, promise = found.report.reason + word_in(streams), threshold.guarantee
    return Part(name="detector", status="fitted", why=why, needs=needs, promise=promise, figures=figures)


def _advice(found: DetectorFit, runs: LabelledRuns, options: FitOptions) -> str:
    """The labels that the levels without a threshold lack, the nearest first, as many of which set one as until now."""
    mode = Mode.CONFORMAL if options.delta is None else Mode.PAC
    wanting = {t.alpha: t.runs for t in found.detector.thresholds if t.mode is mode and t.shortage}
    successes = len({task for task, good in zip(runs.tasks, runs.success, strict=True) if good})
    needed = {
        alpha: math.ceil((successes_needed(alpha, options.delta) - set_it) * max(successes, 1) / max(set_it, 1))
        for alpha, set_it in wanting.items()
    }
    lacking = [f"{more} for {alpha:g}" for alpha, more in sorted(needed.items(), reverse=True)]
    return f"more labelled successes, about, for a false-alarm rate: {', '.join(lacking)}" if lacking else ""


def _sensing(bare: Profile, runs: LabelledRuns, fitted: FittedPSuccess | None, detector: DetectorFit | None) -> Profile:
    """The profile with those signals on that what was fitted reads, as they were on in the recordings."""
    used = set() if fitted is None else {name for name, one in fitted.fusion.readings.items() if one.slope != 0.0}
    used |= set() if detector is None else set(detector.detector.streams)
    profile = sensing_as_recorded(bare, used, runs.sensed)
    slow = UncertaintySource.SEMANTIC_ENTROPY
    read = runs.streams.get(slow)
    if profile.policy.enable_semantic_sampling and read is not None and (~np.isnan(read)).mean() >= _ALWAYS_READ:
        # a profile that was fitted on it at every step has to see it at every step
        always = {"semantic_trigger_low": 0.0, "semantic_trigger_high": 1.0}
        profile = profile.model_copy(update={"estimator": profile.estimator.model_copy(update=always)})
    return profile


def _replayed_part(
    profile: Profile, taught: frozenset[str], runs: Iterator[Run], refuse: Refused | None
) -> list[Counterfactual]:
    """Every run, whatever became of it; its outcome counts where it may be used and taught nothing."""
    found = []
    for run in runs:
        replayed = counterfactual(run, profile, keep_p_success=False)
        known = eligibility(run).usable and run.session_id not in taught
        found.append(replace(replayed, weight=traffic_weight(run), known=known))
    return found


def _artifact(
    paths: Paths,
    profile: Profile,
    parts: list[Part],
    runs: LabelledRuns,
    splits: dict[str, int],
    teachers: Set[str],
    attribution: dict[str, JsonValue] | None,
    options: FitOptions,
    before: Set[str] = frozenset(),
) -> ProfileArtifact:
    promises = tuple(f"{part.name}: {part.promise}" for part in parts if part.promise)
    details: dict[str, JsonValue] = {
        "parts": [asdict(part) for part in parts],
        "options": {k: list(v) if k == "streams" else v for k, v in asdict(options).items() if v is not None},
    }
    if teachers and len(teachers) <= _MOST_TEACHERS:
        details[_TAUGHT] = list[JsonValue](sorted(teachers))
    details["runs"] = list[JsonValue](sorted({*run_digests(paths), *before})[:_MOST_TEACHERS])
    return ProfileArtifact(
        profile=profile,
        fitted_for=FittedFor.shared(runs.made_with),
        guarantees=promises or ("No guarantee: nothing with a promise could be fitted.",),
        provenance=Provenance(
            counts=runs.counts,
            inputs=tuple(islice(InputFile.of_each(recording_files(paths)), _MOST_INPUTS)),
            splits=splits,
            seed=options.seed,
            details=details,
        ),
        attribution=attribution,
    )
