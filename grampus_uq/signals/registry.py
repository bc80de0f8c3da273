"""The built-in signals, one line each: a new one is its own file and a line here."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from grampus_uq.records.protocols import InstantSignal, Signal
from grampus_uq.records.vocabulary import UncertaintySource as Source
from grampus_uq.signals.p_true import PTrue
from grampus_uq.signals.prefix_verifier import PrefixVerifier


class _Signal(NamedTuple):
    """A signal that a monitor may run.

    `label` is its name in reports, `lost_without` what a user gives up without it. `make` builds it; a signal without
    one is read by code of its own (a step's tokens in one pass, the slow path, the trajectory). `switch` is the field
    that has to be true in both the policy and the estimator, "" for a signal that always runs. A `replaceable` signal
    gives way to the caller's own of the same name, which may have another model.
    """

    source: str
    label: str
    lost_without: str = ""
    make: Callable[[], Signal | InstantSignal] | None = None
    switch: str = ""
    replaceable: bool = False


BUILT_IN: Final = (
    _Signal(Source.VERBALIZED, "stated confidence", "the confidence that the model states, for a few tokens a step"),
    _Signal(Source.TOKEN_PROBABILITY, "token probability", "the cheapest signal: no call, and often the best ranking"),
    _Signal(Source.TOKEN_ENTROPY, "token entropy", "how sharply the model chose its words; it costs no call"),
    _Signal(Source.SEQUENCE_PROBABILITY, "sequence probability"),
    _Signal(Source.ACTION_PROBABILITY, "action probability"),
    _Signal(Source.ACTION_ENTROPY, "action entropy"),
    _Signal(Source.CLAIM_PROBABILITY, "claim probability"),
    _Signal(
        Source.CALL_PROBABILITY,
        "call probability",
        "which argument of a call is doubtful, without a call; a reader reads it instead",
    ),
    _Signal(Source.P_TRUE, "P(True)", "the model's own check of its answer or proposed call", PTrue, "enable_p_true"),
    _Signal(Source.PREFIX_VERIFIER, "prefix verifier", "", PrefixVerifier, "enable_prefix_verifier", replaceable=True),
    _Signal(Source.READER_CALL_PROBABILITY, "reader's call probability"),
    _Signal(
        Source.SEMANTIC_ENTROPY,
        "semantic entropy",
        "whether the model says the same when asked again",
        switch="enable_semantic_sampling",
    ),
    _Signal(Source.CALL_AGREEMENT, "call agreement"),
    _Signal(Source.ORIGIN_PROBABILITY, "origin probability"),
    _Signal(Source.TRAJECTORY_RISK, "trajectory risk"),
)

BUILT_IN_NAMES: Final = frozenset(str(signal.source) for signal in BUILT_IN)
LABELS: Final[dict[str, str]] = {str(signal.source): signal.label for signal in BUILT_IN}


def switches_of(sources: Collection[str]) -> dict[str, bool]:
    """The policy's switches of the built-in signals among these, each True: what was fitted on them reads them."""
    return {signal.switch: True for signal in BUILT_IN if signal.switch and signal.source in sources}
