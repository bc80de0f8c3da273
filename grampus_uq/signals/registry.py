"""The built-in signals, one line each: a new one is its own file, a name in `UncertaintySource`, and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from grampus_uq.records.protocols import Signal
from grampus_uq.records.vocabulary import UncertaintySource
from grampus_uq.signals.p_true import PTrue
from grampus_uq.signals.prefix_verifier import PrefixVerifier

__all__ = ["BUILT_IN", "BUILT_IN_NAMES", "LABELS", "BuiltIn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A signal that a monitor may run.

    `label` is its name in reports, `lost_without` what a user gives up without it. A signal that asks a model at every
    step has `make`, and `switch`: the field that has to be true in both the policy and the estimator.
    A `replaceable` one gives way to the caller's own signal of the same name, which may have another model.
    """

    source: UncertaintySource
    label: str
    lost_without: str = ""
    make: Callable[[], Signal] | None = None
    switch: str = ""
    replaceable: bool = False


BUILT_IN: Final = (
    BuiltIn(
        source=UncertaintySource.VERBALIZED,
        label="stated confidence",
        lost_without="the confidence that the model states; it costs a few tokens a step",
    ),
    BuiltIn(
        source=UncertaintySource.TOKEN_PROBABILITY,
        label="token probability",
        lost_without="the cheapest signal: it costs no call, and often ranks best",
    ),
    BuiltIn(
        source=UncertaintySource.TOKEN_ENTROPY,
        label="token entropy",
        lost_without="how sharply the model chose its words; it costs no call",
    ),
    BuiltIn(source=UncertaintySource.SEQUENCE_PROBABILITY, label="sequence probability"),
    BuiltIn(source=UncertaintySource.ACTION_PROBABILITY, label="action probability"),
    BuiltIn(source=UncertaintySource.ACTION_ENTROPY, label="action entropy"),
    BuiltIn(source=UncertaintySource.CLAIM_PROBABILITY, label="claim probability"),
    BuiltIn(
        source=UncertaintySource.P_TRUE,
        label="P(True)",
        lost_without="the model's own check of its answer or its proposed call",
        make=PTrue,
        switch="enable_p_true",
    ),
    BuiltIn(
        source=UncertaintySource.PREFIX_VERIFIER,
        label="prefix verifier",
        make=PrefixVerifier,
        switch="enable_prefix_verifier",
        replaceable=True,
    ),
    BuiltIn(
        source=UncertaintySource.SEMANTIC_ENTROPY,
        label="semantic entropy",
        lost_without="whether the model says the same thing when it is asked again",
    ),
    BuiltIn(source=UncertaintySource.TRAJECTORY_RISK, label="trajectory risk"),
)

BUILT_IN_NAMES: Final = frozenset(signal.source.value for signal in BUILT_IN)
LABELS: Final[dict[str, str]] = {signal.source.value: signal.label for signal in BUILT_IN}
