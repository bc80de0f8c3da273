"""Parts derived from one profile: signals, trajectory reader, and a check of the sessions it fits."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.core.state import Profile, SessionState
from grampus_uq.errors import ConfigurationError
from grampus_uq.monitor.expected_streams import ExpectedStreams
from grampus_uq.monitor.sensing import SensingPlan
from grampus_uq.monitor.sensing_settings import Sensing
from grampus_uq.recording.artifacts import ProfileArtifact, load, match, profile_fingerprint
from grampus_uq.records.vocabulary import UncertaintySource
from grampus_uq.signals.driver import Budget
from grampus_uq.signals.origins import OriginState
from grampus_uq.signals.structure import StructureState

if TYPE_CHECKING:  # it loads NumPy, which only the trajectory risk needs
    from grampus_uq.monitor.trajectory_watch import TrajectorySensor, TrajectoryWatch


log = logging.getLogger("grampus_uq.monitor.monitor")

T = TypeVar("T", StructureState, OriginState)
ProfileSource = Profile | ProfileArtifact | str | os.PathLike[str]
"""A fitted profile, the artifact that holds it, or the path of one."""
MadeWith = tuple[str, str | None, str | None]
"""The model, prompt hash and tools hash of an agent, each "" or None where unknown."""
UNKNOWN: Final[MadeWith] = ("", None, None)
STATUS: Final = ("profile_status", "profile_reason")
"""The entries of a session's metadata that say whether its profile acts, and why not."""


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """A profile, ready to serve sessions. Immutable: a reload swaps all of it at once."""

    artifact: ProfileArtifact | None
    profile: Profile
    plan: SensingPlan
    sensor: TrajectorySensor | None

    @classmethod
    def of(cls, source: ProfileSource, sensing: Sensing, *, advisory: bool) -> Wiring:
        """Build everything that follows from a profile; raises ConfigurationError where it cannot be served."""
        if isinstance(source, str | os.PathLike):
            source = load(source)
        checked: Any = source
        if not isinstance(checked, Profile | ProfileArtifact):
            rule, way_out = "a Profile, a ProfileArtifact or the path of one", "load(path) of artifacts reads one."
            raise ConfigurationError.of("profile", "UncertaintyMonitor", rule, source, way_out)
        artifact = source if isinstance(source, ProfileArtifact) else None
        profile = _advising(source.profile if isinstance(source, ProfileArtifact) else source, advisory)
        return cls(
            artifact=artifact,
            profile=profile,
            plan=SensingPlan.of(profile, sensing),
            sensor=_sensor(profile.trajectory_risk, sensing),
        )

    @functools.cached_property
    def expected(self) -> ExpectedStreams | None:
        """The streams that the profile was fitted on; None where it was fitted on none."""
        return ExpectedStreams(self.profile) if self.profile.fitted_streams else None

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the artifact, or of the profile alone, in hex."""
        return self.artifact.fingerprint if self.artifact is not None else profile_fingerprint(self.profile)

    def profile_for(self, made_with: MadeWith | None, *, advisory: bool) -> tuple[Profile, dict[str, str]]:
        """The profile that a session runs with, and its status; where an artifact does not fit, its tiers decide.

        Where nothing was said yet (None), it is that of unknown facts, and no warning.
        """
        profile, status = self.profile, dict[str, str]()
        if self.artifact is not None:
            model, prompt, tools = made_with or UNKNOWN
            found = match(self.artifact, model=model or None, prompt_hash=prompt, tools_hash=tools)
            reasons = found.reasons if profile.fitted else ("nothing in it was fitted.", *found.reasons)
            status = {STATUS[0]: found.status}
            if reasons:
                why = " ".join(reasons)
                if made_with is not None:
                    log.warning("the fitted profile does not apply, and the tiers decide in its place: %s", why)
                profile, status = profile.standing_in(why), status | {STATUS[1]: why}
        return _advising(profile, advisory), status

    def watch(self, snapshot: Mapping[str, Any] | None) -> TrajectoryWatch | None:
        """The turns of a session for the trajectory risk; those of an older snapshot begin here."""
        if self.sensor is None:
            return None
        from grampus_uq.monitor.trajectory_watch import TrajectoryWatch, TurnMemory

        turns = None if snapshot is None else snapshot.get("turns")
        return TrajectoryWatch(self.sensor, TurnMemory() if turns is None else TurnMemory.from_json(turns))

    def structure(self, state: SessionState, snapshot: Mapping[str, Any] | None) -> StructureState | None:
        """The counts of a session; None where they are not used, or were not kept from the run's beginning."""
        return _kept(StructureState, "structure", state, snapshot) if self.plan.counts else None

    def origins(self, state: SessionState, snapshot: Mapping[str, Any] | None) -> OriginState | None:
        """The origins of a session's values, as for `structure`."""
        return _kept(OriginState, "origins", state, snapshot) if self.plan.origins else None


def _kept(kind: type[T], name: str, state: SessionState, snapshot: Mapping[str, Any] | None) -> T | None:
    stored = None if snapshot is None else snapshot.get(name)
    if stored is None:
        return None if state.n_steps else kind()
    return kind.from_json(stored)


def _advising(profile: Profile, advisory: bool) -> Profile:
    return profile.model_copy(update={"advisory": True}) if advisory and not profile.advisory else profile


def _sensor(settings: TrajectoryRiskSettings | None, sensing: Sensing) -> TrajectorySensor | None:
    if settings is None:
        if sensing.embedder is not None:
            rule = "given together with `trajectory_risk`, or with a profile that has it"
            raise ConfigurationError.of("embedder", "Sensing", rule, sensing.embedder)
        return None
    from grampus_uq.monitor.trajectory_watch import TrajectorySensor

    allowed = sensing.budgets.get(UncertaintySource.TRAJECTORY_RISK, sensing.budget or Budget())
    return TrajectorySensor.of(settings, sensing.embedder, timeout_s=allowed.timeout_s)
