"""The attribution methods by name: each turns step scores into entry thresholds.

| name | sets | for |
|---|---|---|
| vcp | any steps | reading: the fewest steps, with holes (default) |
| envelope | interval around the most suspect step | reading one stretch |
| lf_envelope | suffix that starts where scores rise | rolling back |
| lf (left filtration) | suffix | rolling back; errors late in the run |
| rf (right filtration) | prefix | errors early in the run; nothing to roll back to |
| twf (two-way filtration) | interval | errors in the middle of the run |
| crsvp (hierarchical) | node of a binary tree | comparison |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy.typing as npt

from grampus_uq.stats.arrays import RaggedBatch
from grampus_uq.stats.entry_thresholds import (
    EntryThresholds,
    hierarchical_entry,
    keep_first,
    left_filtration_entry,
    right_filtration_entry,
    two_way_entry,
    vanilla_entry,
)
from grampus_uq.stats.envelope import envelope_entry, suffix_envelope_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionMethod:
    """A nested family of prediction sets.

    name: short name for tables. shape: what a set looks like, in words. thresholds: from a batch of step scores to
    entry thresholds. randomised: `thresholds` takes one uniform draw a trajectory as its second argument.
    """

    name: str
    shape: str
    thresholds: Callable[..., EntryThresholds]
    randomised: bool = False

    def entry(self, batch: RaggedBatch, draws: npt.ArrayLike) -> EntryThresholds:
        """Entry thresholds of a batch; `draws` is one uniform a trajectory."""
        return self.thresholds(batch, draws) if self.randomised else self.thresholds(batch)


def _two_way(batch: RaggedBatch) -> EntryThresholds:
    """Two-way filtration; the step that enters first is in every set, so that none is empty."""
    return keep_first(two_way_entry(batch))


METHODS: Mapping[str, AttributionMethod] = MappingProxyType(
    {
        method.name: method
        for method in (
            AttributionMethod(name="vcp", shape="any steps, not only neighbours", thresholds=vanilla_entry),
            AttributionMethod(
                name="envelope", shape="consecutive steps around the most suspect one", thresholds=envelope_entry
            ),
            AttributionMethod(name="lf_envelope", shape="the run's last steps", thresholds=suffix_envelope_entry),
            AttributionMethod(name="lf", shape="the run's last steps", thresholds=left_filtration_entry),
            AttributionMethod(name="rf", shape="the run's first steps", thresholds=right_filtration_entry),
            AttributionMethod(name="twf", shape="consecutive steps", thresholds=_two_way),
            AttributionMethod(
                name="crsvp",
                shape="a node of the binary tree over the steps",
                thresholds=hierarchical_entry,
                randomised=True,
            ),
        )
    }
)
"""Every method by its name."""
