"""The default estimator: its fields, the fusion of readings into one confidence, the trigger of the slow path."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from grampus_uq.core.propagator import Propagator, UncertaintyPropagator
from grampus_uq.errors import ConfigurationError
from grampus_uq.records.call_parts import Unit
from grampus_uq.records.configuration import Configuration
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, Reading, Step
from grampus_uq.records.vocabulary import NOT_DUE, Role
from grampus_uq.signals.admissions import hedged_confidence
from grampus_uq.signals.driver import Budget, MeteredContext, sense_one
from grampus_uq.signals.equivalence import Equivalence, LexicalEquivalence
from grampus_uq.signals.p_true import PTrue
from grampus_uq.signals.semantic_entropy import SemanticEntropy
from grampus_uq.signals.stated_confidence import parse_confidence
from grampus_uq.stats.stored_values import FROZEN

Weight = Annotated[float, Field(ge=0.0, le=1e6)]  # relative: the bound only keeps their sums finite

Fusion = tuple[float | None, float | None]
"""What the readings of a step are fused to, and the same without the confidence that the model states."""


class UncertaintyEstimator(Configuration):
    """Senses a step's confidence and fuses the readings; immutable, so that one instance serves every session.

    fused = sum_i w_i (1 - b_i) v_i / sum_i w_i over the readings v_i that are there, then the smaller of that and the
    semantic-entropy confidence when the slow path ran. Weights w and biases b are the fields below; those of the token
    streams count whenever the model reports log-probabilities. These are priors: a fitted profile replaces them.
    """

    model_config = FROZEN

    enable_p_true: bool = True
    enable_semantic_sampling: bool = False
    enable_prefix_verifier: bool = True
    """If False, overrides the policy's switch of the same name (off by default)."""
    verbalized_weight: Weight = 0.4
    p_true_weight: Weight = 0.6
    verbalized_calibration_bias: Unit = 0.25
    p_true_calibration_bias: Unit = 0.10
    min_samples: int = Field(default=2, ge=2)
    max_samples: int = Field(default=5, ge=2)
    semantic_trigger_low: Unit = 0.50
    """When set, nothing is sampled below it. Left unset, the monitor samples there too: else a lower
    reading would skip the samples that a higher one has to pass."""
    semantic_trigger_high: Unit = 0.72
    early_stop_jaccard: float = Field(default=0.60, gt=0.0, le=1.0)
    token_probability_weight: Weight = 0.3
    token_entropy_weight: Weight = 0.3
    token_calibration_bias: Unit = 0.10
    extra_weights: dict[str, Weight] = Field(default_factory=lambda: {"sub_agent": 1.0})
    """Weights of further readings, by name; a reading without a weight is only recorded."""
    p_true_spared: tuple[Literal["answers", "calls"], ...] | None = None
    """Set by a fit: the turns of its recordings whose own tokens spared P(True), and spare it live: answers in words,
    irreversible calls. None: as `Sensing` says."""

    @model_validator(mode="after")
    def _ordered(self) -> UncertaintyEstimator:
        if self.max_samples < self.min_samples:
            raise ConfigurationError.of(
                "max_samples", "UncertaintyEstimator", f"at least min_samples ({self.min_samples})", self.max_samples
            )
        if self.semantic_trigger_low > self.semantic_trigger_high:
            raise ConfigurationError.of(
                "semantic_trigger_low",
                "UncertaintyEstimator",
                f"at most semantic_trigger_high ({self.semantic_trigger_high})",
                self.semantic_trigger_low,
            )
        if self.verbalized_weight + self.p_true_weight <= 0.0:
            raise ConfigurationError.of(
                "verbalized_weight", "UncertaintyEstimator", "above 0 when p_true_weight is 0", self.verbalized_weight
            )
        return self

    @model_serializer(mode="wrap")
    def _keep_unset_unset(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave an unset switch out of what is stored: read back, it would count as set."""
        fields: dict[str, Any] = dump(self)
        for name in ("enable_semantic_sampling", "semantic_trigger_low", "p_true_spared"):
            if name not in self.model_fields_set:
                fields.pop(name, None)
        return fields

    # -- pure arithmetic ------------------------------------------------------------------------------------------

    @staticmethod
    def _calibrate(raw: float, bias: float) -> float:
        """raw times (1 - bias), clipped to [0, 1]: the correction until a profile is fitted."""
        return min(1.0, max(0.0, raw * (1.0 - bias)))

    def fuse(self, verbalized_raw: float, p_true_raw: float, *, p_true_ran: bool) -> float:
        """Fuse the two: the weighted mean of the corrected values; verbalised alone if P(True) did not run."""
        verbalized = self._calibrate(verbalized_raw, self.verbalized_calibration_bias)
        if not p_true_ran or self.p_true_weight == 0.0:
            return verbalized
        p_true = self._calibrate(p_true_raw, self.p_true_calibration_bias)
        total = self.verbalized_weight + self.p_true_weight
        mean = (self.verbalized_weight * verbalized + self.p_true_weight * p_true) / total
        if self.verbalized_weight == 0.0:
            return p_true
        return min(max(mean, min(verbalized, p_true)), max(verbalized, p_true))

    def fuse_readings(self, values: Mapping[str, float]) -> float | None:
        """Weighted mean of the available readings, by source; None if none of them has a weight.

        With verbalised confidence and P(True) alone it equals `fuse`. Semantic entropy takes part by `pessimistic`.
        Rounding never carries the mean past the least or the greatest corrected reading, so that one reading alone, or
        several equal ones, stay exactly where they are: on a tier's threshold, for a model that says a round number.
        """
        weighted = total = 0.0
        low, high = 1.0, 0.0
        for source, value in values.items():
            if source == "verbalized":
                weight, bias = self.verbalized_weight, self.verbalized_calibration_bias
            elif source == "p_true":
                weight, bias = self.p_true_weight, self.p_true_calibration_bias
            elif source == "token_probability":
                weight, bias = self.token_probability_weight, self.token_calibration_bias
            elif source == "token_entropy":
                weight, bias = self.token_entropy_weight, self.token_calibration_bias
            else:
                weight, bias = self.extra_weights.get(source, 0.0), 0.0
            if weight > 0.0:
                corrected = value * (1.0 - bias)
                weighted += weight * corrected
                total += weight
                if corrected < low:
                    low = corrected
                if corrected > high:
                    high = corrected
        if total == 0.0:
            return None
        mean = weighted / total
        return low if mean < low else high if mean > high else mean

    @staticmethod
    def pessimistic(fast: float | None, semantic: float | None) -> float | None:
        """The smaller of the fast fusion and the semantic-entropy confidence; the only available one; or None."""
        if fast is None or semantic is None:
            return semantic if fast is None else fast
        return min(fast, semantic)

    def allows_semantic_sampling(self) -> bool:
        """False only when `enable_semantic_sampling` was set to False; left unset, the policy's switch decides."""
        return self.enable_semantic_sampling or "enable_semantic_sampling" not in self.model_fields_set

    def should_sample(self, fused: float) -> bool:
        """True when the fast fusion lies in the trigger zone of the slow path, both ends included."""
        return self.semantic_trigger_low <= fused <= self.semantic_trigger_high

    def needs_sampling(self, readings: Sequence[Reading]) -> bool:
        """True when the slow path is due after these fast readings.

        So it is without any weighted reading, and where their fusion is at most `semantic_trigger_high`, with 0 in the
        place of each reading that was due and did not come; where `semantic_trigger_low` was set, between the two.
        """
        fused = self.fuse_readings({r.source: r.value for r in readings if r.value is not None})
        if fused is None:
            return True
        if "semantic_trigger_low" in self.model_fields_set:
            return self.should_sample(fused)
        values, _ = worst_values(readings)
        least = self.fuse_readings(values)
        return least is not None and least <= self.semantic_trigger_high

    # -- convenience methods with float contracts -----------------------------------------------------------------

    def extract_verbalized(self, text: str) -> float:
        """The stated confidence in [0, 1]; 0.5 when the text states none (or an invalid one), lower when it hedges."""
        value, _ = parse_confidence(text)
        return hedged_confidence(text)[0] if value is None else value

    async def p_true(
        self, original_messages: Sequence[Message], response_text: str, model_client: ModelClient, model_id: str
    ) -> float:
        """P(True) of a response in [0, 1]; 0.5 on any failure (the monitor itself treats failure as missing)."""
        step = Step(step_id="p_true", kind="llm_call", time_s=0.0, text=response_text)
        context = self._context(original_messages, model_client, model_id)
        signal = PTrue()
        reading = await sense_one(signal.source, lambda metered: signal.sense(step, metered), context)
        return 0.5 if reading.value is None else reading.value

    async def semantic_entropy(
        self, messages: Sequence[Message], model_client: ModelClient, model_id: str
    ) -> tuple[float, int]:
        """Sampled agreement in [0, 1] and the number of samples; (0.5, samples) on any failure.

        By word overlap: first pair at `early_stop_jaccard`, clusters at .40. No step is compared with it.
        """
        signal = self.semantic_signal()
        context = self._context(messages, model_client, model_id)
        reading = await sense_one(signal.source, signal.agreement, context)
        return (0.5 if reading.value is None else reading.value), reading.samples

    def semantic_signal(self, equivalence: Equivalence | None = None) -> SemanticEntropy:
        """The slow path's signal with this estimator's numbers, and word overlap unless another equivalence is given.

        A monitor gives it `SameWording`: word overlap forgives a differing name or verb.
        """
        return SemanticEntropy(
            min_samples=self.min_samples,
            max_samples=self.max_samples,
            equivalence=equivalence or LexicalEquivalence(strict_threshold=self.early_stop_jaccard),
        )

    def _context(self, messages: Sequence[Message], client: ModelClient, model: str) -> MeteredContext:
        given = [m if isinstance(m, Message) else Message(role=Role.USER, content=str(m)) for m in messages]
        return MeteredContext(messages=given, client=client, model=model, budget=Budget(max_calls=self.max_samples))


def fuse_step(
    estimator: UncertaintyEstimator, propagator: Propagator, values: Mapping[str, float], semantic: float | None
) -> Fusion:
    """Fuse a step's readings, with and without what the model states; None where nothing has a weight.

    Where a statement lowers the fusion the two are equal under the default propagator and estimator: the belief is then
    no more than that without the statement would be, at this step and at all that follow.
    """
    fused = unaided = estimator.fuse_readings(values) if values else None
    stated = values.get("verbalized")
    if stated is None or fused is None:
        pass
    elif len(values) == 1:
        unaided = None
    elif (
        fused <= stated * (1 - estimator.verbalized_calibration_bias)
        or type(propagator) is not UncertaintyPropagator
        or type(estimator) is not UncertaintyEstimator
    ):
        unaided = estimator.fuse_readings({source: value for source, value in values.items() if source != "verbalized"})
    if semantic is None:
        return fused, unaided
    return estimator.pessimistic(fused, semantic), estimator.pessimistic(unaided, semantic)


def worst_values(readings: Sequence[Reading], always: Collection[str] = ()) -> tuple[dict[str, float], list[str]]:
    """The values by source, with 0 for each reading that was due and did not come; and which those are, with reasons.

    Of the sources `always` a reading is due whatever the reason. Values keep the order of the readings, so that sums
    over them are rounded as those over the readings that came.
    """
    values: dict[str, float] = {}
    unread: list[str] = []
    for reading in readings:
        value = reading.value
        if value is None:
            if reading.reason in NOT_DUE and reading.source not in always:
                continue
            unread.append(f"{reading.source}: {reading.reason}")
            value = 0.0
        values[reading.source] = min(value, values.get(reading.source, 1.0))
    return values, unread
