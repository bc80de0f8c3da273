"""From a folder of labelled recordings to one profile: everything that the labels allow, on disjoint runs.

    learn on one part:      each stream's calibration, their fusion (p_success), TRACER, the detector's statistic
    set thresholds on the other: the detector's alarm, the release of irreversible calls
    attribution:            labelled failures, parted by itself

What could not be fitted says why, and how many labels more it takes. What is promised is promised singly: of each part
by itself, over the same held-out runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from grampus_uq.artifacts import FittedFor, InputFile, ProfileArtifact, Provenance
from grampus_uq.engine import Profile
from grampus_uq.errors import ConfigurationError
from grampus_uq.fit.detector import DetectorFit, fit_detector
from grampus_uq.profiles.blame import fit_attribution
from grampus_uq.profiles.chance import FittedChance, fit_chance
from grampus_uq.profiles.expected import judge_run, rates
from grampus_uq.profiles.labelled import LabelledRuns, labelled_runs
from grampus_uq.profiles.options import FitOptions
from grampus_uq.profiles.parts import Part
from grampus_uq.profiles.releasing import fit_release
from grampus_uq.profiles.splitting import held_out_runs
from grampus_uq.recording.runs import Paths, Run, recording_files
from grampus_uq.recording.runs import runs as read_runs
from grampus_uq.recording.standing import standing
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
    on_run: Callable[[Run], None] | None = None,
) -> ProfileFit:
    """Fit everything that labelled recordings allow, in one go.

    Args:
        paths: recordings, or folders of them.
        base: policy (irreversible tools), estimator and propagator that the profile is to have, TRACER's settings; what
            it holds that is fitted is replaced. Default: the guide's.
        options: levels, targets, costs, seed.
        on_run: called with each run as it is read, for a progress line; files are read up to three times.

    Returns:
        The artifact and its account. Nothing is fitted by force: a part without enough labels is left out, and says so.

    Raises:
        ConfigurationError: no run with a step of the model.
        DataError: a damaged recording.
        MissingDependencyError: scikit-learn is not installed (extra `fit`).
    """
    options = options or FitOptions()
    rng = np.random.default_rng(options.seed)
    bare = (base or Profile()).model_copy(update={"detector": None, "calibration": None, "release": None})
    tracer, tracer_parts, bare = _tracer(paths, bare, options, rng)
    runs = labelled_runs(_told(paths, on_run), bare, task_key=options.task_key)
    if not runs.recorded or (not len(runs) and set(runs.excluded) <= {"no_step_of_the_model"}):
        raise ConfigurationError.of("paths", "fit_profile", "recordings with at least one step of the model", 0)
    held = _held(runs, tracer, options, rng)
    chance, parts = fit_chance(runs, held)
    release, release_part = fit_release(runs, held, None if chance is None else chance.values, options)
    detector, detector_part = _detector(runs, held, chance, options, rng)
    attribution, attribution_part = fit_attribution(paths, options)
    profile = _sensing(bare, runs, chance, detector).model_copy(
        update={
            "calibration": None if chance is None else chance.fusion,
            "release": release,
            "detector": None if detector is None else detector.detector,
        }
    )
    parts = [*tracer_parts, *parts, release_part, detector_part, attribution_part]
    names = {name for name, chosen in zip(runs.ids, held, strict=True) if chosen}
    judged = [judge_run(run, profile) for run in read_runs(paths) if run.session_id in names and standing(run).usable]
    per_day = options.runs_per_day if options.runs_per_day is not None else runs.runs_per_day
    splits = {"learn": int((~held).sum()), "thresholds": int(held.sum())}
    fit = ProfileFit(
        artifact=_artifact(paths, profile, parts, runs, splits, attribution, options),
        parts=tuple(parts),
        counts=runs.counts,
        splits=splits,
        expected=rates(judged, runs_per_day=per_day),
        detector=detector,
    )
    return fit
