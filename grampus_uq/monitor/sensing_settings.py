"""Settings of sensing: the signals, their budgets, and the combinations that are refused."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grampus_uq.errors import ConfigurationError
from grampus_uq.records.configuration import checked, nearest
from grampus_uq.records.protocols import Embedder, InstantSignal, Signal
from grampus_uq.signals.call_reader import Reader
from grampus_uq.signals.driver import Budget
from grampus_uq.signals.equivalence import Equivalence
from grampus_uq.signals.registry import BUILT_IN_NAMES
from grampus_uq.signals.semantic_entropy import SemanticEntropy

if TYPE_CHECKING:
    import numpy.typing as npt


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Sensing:
    """Settings for reading steps, and the cost allowed for it. Frozen; one serves any number of monitors.

    Args:
        signals: signals of your own, beside the built-in ones that policy and estimator enable.
        equivalence: decides whether two sampled answers agree; equal wording unless given.
        repairs: ask again, so many times at most, for a stated confidence that is absent or unusable; None never asks.
        ask_of_calls: False asks no P(True) of a step whose calls are all irreversible by the policy's names, where the
            tokens give the probability of each of their parts. It saves a model call and **may release what a low
            P(True) held**. No effect where `call_floor` is None, or under a fitted profile (`p_true_spared`).
        ask_of_answers: True asks P(True) of every answer in words. Otherwise it is not asked of one (kind `llm_call`,
            no calls, in a session that was told of its tools) whose log-probabilities tell how likely its least likely
            new word was. An irreversible call that no turn listed and that follows such answers is held where one of
            these words is below `call_floor`. Without effect where `call_floor` is None, samples are drawn, or under a
            fitted profile.
        reader: a small model of yours that reads the transcript and says how likely it finds each part of an
            irreversible call (`signals.Reader`): for agents whose provider reports no log-probabilities.
        counts: count what the agent does (`signals.structure`). A profile fitted on counts enables it by itself.
        origins: read of each call what doubt its values bring along from earlier calls (`signals.origins`). A profile
            fitted on it enables it by itself.
        speculative: draw the first samples of the slow path beside P(True): one round trip less where they are needed,
            two calls more where they are not.
        budget: bounds each signal at each step.
        budgets: budgets of single signals, by name.
        max_overhead: the monitor's tokens as a share of the agent's, >= 0. Beyond it, signals that ask a model are
            skipped with the reason `overhead_cap`. None: no cap.
        embedder: compares texts for the trajectory risk, in a worker thread: an `Embedder` or any function from texts
            to a matrix; hashing unless given.

    Raises ConfigurationError for a value outside its domain.
    """

    signals: Sequence[Signal | InstantSignal] = ()
    equivalence: Equivalence | None = None
    repairs: int | None = None
    ask_of_calls: bool = True
    ask_of_answers: bool = False
    reader: Reader | None = None
    counts: bool = False
    origins: bool = False
    speculative: bool = False
    budget: Budget | None = None
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    max_overhead: float | None = None
    embedder: Embedder | Callable[[list[str]], npt.ArrayLike] | None = None

    def __post_init__(self) -> None:
        if self.max_overhead is not None and not self.max_overhead >= 0.0:
            raise ConfigurationError.of("max_overhead", "Sensing", "at least 0 or None", self.max_overhead)
        budgets = {f"budgets[{name!r:.80}]": budget for name, budget in self.budgets.items()}
        for parameter, budget in (budgets if self.budget is None else {"budget": self.budget, **budgets}).items():
            if not isinstance(budget, Budget):
                raise ConfigurationError.of(parameter, "Sensing", "a Budget", budget, "Budget(timeout_s=5.0)")
        if self.reader is not None and not isinstance(self.reader, Reader):
            raise ConfigurationError.of("reader", "Sensing", "a Reader or None", self.reader, "Reader(client=...)")
        for signal in self.signals:
            if not isinstance(getattr(signal, "source", ""), str):
                raise ConfigurationError.of("signals", "Sensing", "of names that are text", signal.source)
            checked: Any = signal
            if not isinstance(checked, Signal | InstantSignal):
                rule = "objects with `source` and `read` or `sense`"
                raise ConfigurationError.of("signals", "Sensing", rule, signal)


def check_budgets(budgets: Mapping[str, Budget], names: Sequence[str]) -> None:
    known = {*names, *BUILT_IN_NAMES}
    for name in budgets:
        if name not in known:
            raise ConfigurationError.of(
                "budgets", "Sensing", "budgets by the names of signals", name, nearest(str(name), known)
            )


def check_weights(weights: Mapping[str, float], names: Sequence[str]) -> None:
    """An unknown name may be a reading of the caller's own; one close to a signal's name is misspelt."""
    known = {*names, *BUILT_IN_NAMES}
    for name in weights:
        if name in known or name == "sub_agent":
            continue
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if close and not name.startswith(close[0]) and not close[0].startswith(name):
            rule = "weights by the names of readings"
            raise ConfigurationError.of("extra_weights", "UncertaintyEstimator", rule, name, nearest(name, known))


def own_budgets(slow: SemanticEntropy | None, sensing: Sensing) -> dict[str, Budget]:
    """The reader's time; and, without a budget, the slow path's calls: n samples, both ways of n + 1 turns."""
    found = {} if sensing.reader is None else {sensing.reader.source: Budget(timeout_s=sensing.reader.timeout_s)}
    if slow is not None and sensing.budget is None:
        n = slow.max_samples
        calls = n if sensing.equivalence is None else (n + 1) ** 2
        found[slow.source] = Budget(max_calls=max(Budget().max_calls, calls))
    return found
