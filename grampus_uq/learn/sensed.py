"""A fitted profile senses as the monitors of its recordings did: its promises are about the numbers that were read."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

from grampus_uq.core.state import Profile
from grampus_uq.core.worst_case import UNAIDED
from grampus_uq.recording.runs import Run
from grampus_uq.records.vocabulary import MissingReason, UncertaintySource
from grampus_uq.signals.registry import BUILT_IN, switches_of

DERIVED = ("fused", UNAIDED, "propagated")
"""Streams that the engine makes out of the readings."""


@dataclass(frozen=True, slots=True)
class Sensed:
    """The readings of recorded runs: the sources of all readings, and the turns whose own tokens spared P(True).

    `sources`: missing readings count, for the signal was on. `spared`: as `UncertaintyEstimator.p_true_spared`.
    """

    sources: frozenset[str] = frozenset()
    spared: frozenset[str] = frozenset()

    def __or__(self, other: Sensed) -> Sensed:
        return Sensed(self.sources | other.sources, self.spared | other.spared)


_shared = lru_cache(Sensed)  # most runs are read alike: one value serves them all


def sensed_in(run: Run) -> Sensed:
    """The sources and spared turns of one run."""
    sources, spared = set[str](), set[str]()
    for event in run.steps:
        for reading in event.readings:
            sources.add(reading.source)
            if reading.reason == MissingReason.NOT_NEEDED and reading.source == UncertaintySource.P_TRUE:
                spared.add("calls" if event.step.tool_calls else "answers")
    return _shared(frozenset(sources), frozenset(spared))


def sensing_as_recorded(profile: Profile, used: Collection[str], seen: Iterable[Sensed]) -> Profile:
    """The profile with the signals that its fitted parts read, as they were on in the recordings.

    `used`: the streams of these parts. `fused`, `unaided` and `propagated` are made of all readings: where they are
    used, a signal that the recordings lack is off.
    """
    found = reduce(or_, seen, Sensed())
    switches = switches_of(used)
    if not set(DERIVED).isdisjoint(used):
        switches |= {one.switch: one.source in found.sources.union(used) for one in BUILT_IN if one.switch}
    estimator = profile.estimator
    if UncertaintySource.P_TRUE in found.sources:
        estimator = estimator.model_copy(update={"p_true_spared": tuple(sorted(found.spared))})
    policy = profile.policy.model_copy(update=switches)
    return profile.model_copy(update={"policy": policy, "estimator": estimator})
