"""A step's readings in one pass: values by source, reasons of what is missing, costs, and what follows on the way."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from grampus_uq.records.values import Reading
from grampus_uq.records.vocabulary import NOT_DUE, MissingReason, UncertaintySource

_NOT_PROPOSED, _NOT_NEEDED = MissingReason.NOT_PROPOSED, MissingReason.NOT_NEEDED
_SAYS_NOTHING = NOT_DUE - {_NOT_PROPOSED, _NOT_NEEDED}
_SOURCES = {source.value: source for source in UncertaintySource}
_value = operator.itemgetter(1)


class Tally:
    """A step's readings: values, reasons of missing ones, costs; and what follows from them on the way."""

    __slots__ = (
        *("calls", "cost_usd", "due", "fused", "log_m", "missing", "no_risk", "p_success", "p_true_failed"),
        *("propagated", "proposed", "risk", "samples", "scores", "semantic", "sources", "tokens"),
        *("unaided", "unasked", "values"),
    )
    semantic: float | None
    fused: float | None  # set by `advance`, like `propagated` and `unaided`
    unaided: float | None  # fused without what the model states
    propagated: float
    p_success: float | None
    risk: float | None
    no_risk: str | None
    log_m: float | None
    scores: tuple[float | None, ...]

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.sources: list[UncertaintySource] = []
        self.missing: list[str] = []
        self.semantic = self.p_success = self.risk = self.no_risk = self.log_m = None
        self.p_true_failed = self.due = self.unasked = False
        self.proposed = True
        self.calls = self.tokens = self.samples = 0
        self.cost_usd = 0.0
        self.scores = ()

    def lowest(self) -> tuple[str, float]:
        """The lowest reading, as source and value; there is one."""
        if len(self.values) == 1 and self.semantic is None:
            return next(iter(self.values.items()))
        values = self.values if self.semantic is None else {**self.values, "semantic_entropy": self.semantic}
        return min(values.items(), key=_value)


def tally_of(readings: Sequence[Reading]) -> Tally:
    """The tally of a step's readings; what is fused and propagated is not in it yet."""
    tally = Tally()
    missing = tally.missing
    for reading in readings:
        source, value = reading.source, reading.value
        if value is None:
            reason = reading.reason
            missing.append(missing_text(source, reason))
            if reason not in _SAYS_NOTHING:
                if reason == _NOT_PROPOSED:
                    tally.proposed = False
                elif reason != _NOT_NEEDED:
                    tally.due = True
                elif source == "p_true":
                    tally.unasked = True
        else:
            if source == "semantic_entropy":
                tally.semantic = value
            else:
                tally.values[source] = value
            known = _SOURCES.get(source)
            if known is not None:
                tally.sources.append(known)
        if reading.calls:
            if value is None and source == "p_true":
                tally.p_true_failed = True
            tally.calls += reading.calls
            tally.tokens += reading.input_tokens + reading.output_tokens
            tally.cost_usd += reading.cost_usd or 0.0
            tally.samples += reading.samples
    return tally


@functools.lru_cache(maxsize=256)
def missing_text(source: str, reason: str | None) -> str:
    """The words of a record on a missing reading."""
    return f"{source}: {reason}"
