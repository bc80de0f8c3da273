"""The methods by name: each turns step scores into entry thresholds, and says what its sets look like.

| method | sets | lazy | for |
|---|---|---|---|
| Vanilla (VCP) | any steps | no | reading: the fewest steps, with holes (default) |
| Envelope | interval around the most suspect step | no | reading one stretch |
| SuffixEnvelope | suffix | no | rolling back |
| LeftFiltration | suffix | yes | rolling back; errors late in the run |
| RightFiltration | prefix | yes | errors early in the run; nothing to roll back to |
| TwoWayFiltration | interval | no | errors in the middle of the run |
| Hierarchical (CRSVP) | node of a binary tree | no | comparison |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy.typing as npt

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import RaggedBatch
from grampus_uq.stats.entry_thresholds import (
    EntryThresholds,
    hierarchical_entry,
    keep_first,
    left_filtration_entry,
    right_filtration_entry,
    two_way_entry,
    vanilla_entry,
    with_fallback,
)
from grampus_uq.stats.envelope import envelope_entry, suffix_envelope_entry
from grampus_uq.stats.lazy_sets import Filtration

__all__ = [
    "METHODS",
    "AttributionMethod",
    "Envelope",
    "Hierarchical",
    "LeftFiltration",
    "RightFiltration",
    "SuffixEnvelope",
    "TwoWayFiltration",
    "Vanilla",
]


class AttributionMethod(Protocol):
    """A nested family of prediction sets."""

    @property
    def name(self) -> str:
        """Short name for tables."""
        ...

    @property
    def shape(self) -> str:
        """What a set looks like, in words."""
        ...

    @property
    def filtration(self) -> Filtration | None:
        """The end from which steps are filtered when the method can be lazy, None when it needs every score."""
        ...

    def entry(self, batch: RaggedBatch, draws: npt.ArrayLike) -> EntryThresholds:
        """Entry thresholds of a batch; `draws` is one uniform a trajectory (only CRSVP reads it)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Vanilla:
    """VCP: every step for itself."""

    name: str = "vcp"
    shape: str = "any steps, possibly with holes"
    filtration: None = None

    def entry(self, batch: RaggedBatch, draws: npt.ArrayLike) -> EntryThresholds:
        """See `vanilla_entry`."""
        return vanilla_entry(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchical:
    """CRSVP: a node of the binary tree over the steps; never empty; no upper bound on coverage."""

    name: str = "crsvp"
    shape: str = "a node of the binary tree over the steps"
    filtration: None = None

    def entry(self, batch: RaggedBatch, draws: npt.ArrayLike) -> EntryThresholds:
        """See `hierarchical_entry`."""
        return hierarchical_entry(batch, draws)


@dataclass(frozen=True, slots=True, kw_only=True)
class RightFiltration:
    """RF: a prefix. Lazy."""

    name: str = "rf"
    shape: str = "the run's first steps"
    filtration: Filtration = Filtration.RIGHT

    def entry(self, batch: RaggedBatch, draws: npt.ArrayLike) -> EntryThresholds:
        """See `right_filtration_entry`."""
        return right_filtration_entry(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftFiltration:
    """LF: a suffix. Lazy."""

    name: str = "lf"
    shape: str = "the run's last steps"
    filtration: Filtration = Filtration.LEFT

    def entry(self, batch: RaggedBatch, draws: npt.ArrayLike) -> EntryThresholds:
        """See `left_filtration_entry`."""
        return left_filtration_entry(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoWayFiltration:
    """TWF: an interval.

    when_empty: "nothing" leaves an empty set empty; "best" (the paper's fallback) puts the best-scored step there,
    which only raises coverage; "first" keeps the step that would enter first in every set, inside the guarantee.
    """

    when_empty: Literal["nothing", "best", "first"] = "first"
    name: str = "twf"
    shape: str = "consecutive steps"
    filtration: None = None

    def __post_init__(self) -> None:
        if self.when_empty not in ("nothing", "best", "first"):
            rule = "'nothing', 'best' or 'first'"
            raise ConfigurationError.of("when_empty", "TwoWayFiltration", rule, self.when_empty)

    def entry(self, batch: RaggedBatch, draws: npt.ArrayLike) -> EntryThresholds:
        """See `two_way_entry`, `with_fallback` and `keep_first`."""
        entry = two_way_entry(batch)
        if self.when_empty == "best":
            return with_fallback(entry, batch)
        return keep_first(entry) if self.when_empty == "first" else entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Unimodal envelope: an interval around the most suspect step."""

    name: str = "envelope"
    shape: str = "consecutive steps around the most suspect one"
    filtration: None = None

    def entry(self, batch: RaggedBatch, draws: npt.ArrayLike) -> EntryThresholds:
        """See `envelope_entry`."""
        return envelope_entry(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixEnvelope:
    """LF envelope: a suffix that starts where the scores rise."""

    name: str = "lf_envelope"
    shape: str = "the run's last steps"
    filtration: None = None

    def entry(self, batch: RaggedBatch, draws: npt.ArrayLike) -> EntryThresholds:
        """See `suffix_envelope_entry`."""
        return suffix_envelope_entry(batch)


METHODS: dict[str, AttributionMethod] = {
    method.name: method
    for method in (
        Vanilla(),
        Envelope(),
        SuffixEnvelope(),
        LeftFiltration(),
        RightFiltration(),
        TwoWayFiltration(),
        Hierarchical(),
    )
}
"""Every method as it comes, by its name."""
