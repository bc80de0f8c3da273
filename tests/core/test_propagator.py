"""How belief in a run moves: the guide's weights and its rule, SAUP's root mean square, the aggregates of AUQ."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grampus_uq import (
    AuqPropagator,
    Reading,
    SaupPropagator,
    Step,
    UncertaintyEstimator,
    UncertaintyLevel,
    UncertaintyMonitor,
    UncertaintyPropagator,
)
from grampus_uq.core.engine import advance
from grampus_uq.core.propagator import DEFAULT_WEIGHTS
from grampus_uq.core.state import Profile, SessionState, state_from_json, state_to_json
from grampus_uq.errors import ConfigurationError
from grampus_uq.recording import RecordingProcessor
from grampus_uq.recording.artifacts import ProfileArtifact, load, save
from grampus_uq.recording.replay import replay_file

unit = st.floats(0.0, 1.0)


@pytest.mark.parametrize(
    ("kind", "weight"),
    [("decision", 0.70), ("llm_call", 0.55), ("tool_call", 0.45), ("memory_read", 0.35), ("handoff", 0.50), ("", 0.50)],
)
def test_the_weights_are_the_guides_and_any_other_step_type_has_a_half(kind, weight):
    propagator = UncertaintyPropagator()
    assert propagator.weight(kind) == weight
    assert propagator.propagate(0.2, kind, 0.8) == pytest.approx(weight * 0.2 + (1 - weight) * 0.8, abs=1e-15)


@given(unit, unit, st.sampled_from([*DEFAULT_WEIGHTS, "other"]))
def test_the_cumulative_confidence_is_the_propagated_one_and_not_averaged_again(fused, cumulative, kind):
    propagator = UncertaintyPropagator()
    propagated = propagator.propagate(fused, kind, cumulative)
    assert propagator.update_cumulative(propagated, cumulative, kind) == propagated


def test_weights_of_ones_own_replace_the_guides():
    propagator = UncertaintyPropagator(weights={"plan": 1.0}, default_weight=0.0)
    assert propagator.propagate(0.3, "plan", 0.9) == 0.3
    assert propagator.propagate(0.3, "llm_call", 0.9) == 0.9
    assert UncertaintyPropagator(weights={"plan": 0.0}).propagate(0.3, "plan", 0.9) == 0.9


@pytest.mark.parametrize("given", [{"weights": {"plan": 1.1}}, {"weights": {"plan": -0.1}}, {"default_weight": 2.0}])
def test_a_weight_outside_the_unit_interval_is_refused(given):
    with pytest.raises(ConfigurationError):
        UncertaintyPropagator(**given)


def test_it_is_immutable():
    with pytest.raises(ValidationError, match="frozen"):
        UncertaintyPropagator().default_weight = 0.1


def test_the_defaults_are_shared_by_nobody():
    UncertaintyPropagator().weights["llm_call"] = 0.0
    assert UncertaintyPropagator().weight("llm_call") == 0.55
    with pytest.raises(TypeError):
        DEFAULT_WEIGHTS["llm_call"] = 0.0


# -- SAUP and AUQ: by configuration, in the live monitor --

RULES = {
    "guide": UncertaintyPropagator(),
    "saup": SaupPropagator(),
    "saup with the guide's weights": SaupPropagator(weights=dict(DEFAULT_WEIGHTS), default_weight=0.5),
    "last": AuqPropagator(aggregate="last"),
    "mean": AuqPropagator(aggregate="mean"),
    "min": AuqPropagator(aggregate="min"),
    "product": AuqPropagator(aggregate="product"),
}
KINDS = ["llm_call", "decision", "memory_read", "other"]
taken = st.lists(st.tuples(st.one_of(st.none(), unit), st.sampled_from(KINDS)), min_size=1, max_size=40)
rules = st.sampled_from(list(RULES))


def by_definition(name: str, seen: list[tuple[float, str]]) -> float:
    """The formulas of the guide and of the two papers, over the whole prefix at once."""
    values = [value for value, _ in seen]
    if name == "guide":  # the start at 1, and each reading by what later ones leave of it
        kept = [1.0 - DEFAULT_WEIGHTS.get(kind, 0.5) for _, kind in seen]
        return math.prod(kept) + math.fsum(
            (1 - k) * v * math.prod(kept[n:]) for n, (k, v) in enumerate(zip(kept, values, strict=True), 1)
        )
    if name == "saup":
        return 1 - math.sqrt(math.fsum((1 - value) ** 2 for value in values) / len(values))
    if name == "saup with the guide's weights":
        squares = [(DEFAULT_WEIGHTS.get(kind, 0.5) * (1 - value)) ** 2 for value, kind in seen]
        return 1 - math.sqrt(math.fsum(squares) / len(squares))
    if name == "last":
        return values[-1]
    if name == "mean":
        return math.fsum(values) / len(values)
    return min(values) if name == "min" else math.prod(values)


def plain(propagator: object) -> Profile:
    estimator = UncertaintyEstimator(verbalized_calibration_bias=0.0)
    return Profile(estimator=estimator, propagator=propagator)


def taken_step(number: int, value: float | None, kind: str) -> tuple[Step, list[Reading]]:
    readings = [] if value is None else [Reading(source="verbalized", value=value)]
    return Step(step_id=f"s{number}", kind=kind, time_s=float(number)), readings


@given(rules, taken)
def test_at_every_step_the_belief_is_what_the_papers_formula_gives_for_the_readings_so_far(name, run):
    profile, state, seen = plain(RULES[name]), SessionState(session_id="s"), []
    for number, (value, kind) in enumerate(run):
        state, assessment = advance(profile, state, *taken_step(number, value, kind))
        if value is not None:
            seen.append((value, kind))
        expected = by_definition(name, seen) if seen else 1.0
        assert assessment.propagated_confidence == pytest.approx(expected, abs=1e-8)
        assert state.cumulative == assessment.propagated_confidence
        assert (state.level is UncertaintyLevel.LOW) <= bool(seen)  # silence never reads as safe


@given(rules, taken, st.data())
def test_a_run_taken_up_again_from_json_at_any_step_goes_on_number_for_number(name, run, data):
    profile, cut = plain(RULES[name]), data.draw(st.integers(0, len(run)))
    whole = resumed = SessionState(session_id="s")
    for number, (value, kind) in enumerate(run):
        if number == cut:
            resumed = state_from_json(state_to_json(resumed))
        whole, one = advance(profile, whole, *taken_step(number, value, kind))
        resumed, other = advance(profile, resumed, *taken_step(number, value, kind))
        assert one == other
    assert whole == resumed


@given(st.sampled_from(["saup", "mean", "min", "last"]), unit, st.integers(1, 30))
def test_equal_readings_stay_exactly_on_their_side_of_a_tiers_threshold(name, value, n):
    profile, state = plain(RULES[name]), SessionState(session_id="s")
    for number in range(n):
        state, _ = advance(profile, state, *taken_step(number, value, "llm_call"))
    assert state.cumulative == value


@given(rules, st.lists(unit, min_size=1, max_size=20), unit, unit)
def test_a_more_confident_step_never_makes_for_a_lower_belief(name, before, first, second):
    profile, state = plain(RULES[name]), SessionState(session_id="s")
    for number, value in enumerate(before):
        state, _ = advance(profile, state, *taken_step(number, value, "llm_call"))
    low, high = (advance(profile, state, *taken_step(99, v, "llm_call"))[0] for v in sorted((first, second)))
    assert low.cumulative <= high.cumulative + 1e-15


def test_a_bad_step_fades_under_the_guides_rule_and_stays_under_the_others():
    """METHODS: three steps at .84 after one at .2 give .814 under the guide's rule, LOW; SAUP and min hold on."""
    run = [0.2, 0.84, 0.84, 0.84]
    ends = {}
    for name, rule in {"guide": UncertaintyPropagator(), **RULES}.items():
        state = SessionState(session_id="s")
        for number, value in enumerate(run):
            state, _ = advance(plain(rule), state, *taken_step(number, value, "llm_call"))
        ends[name] = (round(state.cumulative, 3), state.level.value)
    assert ends["guide"] == (0.814, "low")
    assert ends["saup"] == (0.577, "high")  # 1 - sqrt((.64 + 3 * .0256) / 4)
    assert ends["min"] == (0.2, "critical")
    assert ends["mean"] == (0.68, "medium")


def test_the_memory_of_a_run_stays_a_few_numbers_however_long_the_run_is():
    for rule in RULES.values():
        state, sizes = SessionState(session_id="s"), []
        for number in range(3000):
            state, _ = advance(plain(rule), state, *taken_step(number, 0.3 + number % 7 / 10, "llm_call"))
            sizes.append(len(state_to_json(state)) if number >= 1020 and number % 10 == 0 else 0)
        assert max(sizes[2000:]) <= max(sizes[1020:1100]) + 80  # more digits, and nothing else


def test_a_product_that_reached_zero_goes_through_json_and_stays_there():
    state, _ = advance(plain(RULES["product"]), SessionState(session_id="s"), *taken_step(0, 0.0, "llm_call"))
    state, _ = advance(plain(RULES["product"]), state_from_json(state_to_json(state)), *taken_step(1, 1.0, "llm_call"))
    assert state.cumulative == 0.0


def test_the_guides_rule_remembers_nothing_more_and_its_json_is_what_it_was():
    state, _ = advance(plain(UncertaintyPropagator()), SessionState(session_id="s"), *taken_step(0, 0.5, "llm_call"))
    assert state.memory is None
    assert Profile().model_dump(mode="json")["propagator"] == {"weights": dict(DEFAULT_WEIGHTS), "default_weight": 0.5}


def test_a_state_from_before_there_was_a_memory_is_read_and_its_belief_counts_as_one_step():
    stored = json.loads(state_to_json(SessionState(session_id="s", n_steps=4, cumulative=0.5, has_reading=True)))
    del stored["memory"]
    state = state_from_json(json.dumps(stored))
    for name, expected in [("saup", 1 - math.sqrt(0.25 / 2)), ("mean", 0.75), ("min", 0.5), ("product", 0.5)]:
        after, _ = advance(plain(RULES[name]), state, *taken_step(5, 1.0, "llm_call"))
        assert after.cumulative == pytest.approx(expected)


def test_a_run_that_changes_its_rule_takes_its_belief_along_and_no_foreign_memory():
    state, _ = advance(plain(RULES["min"]), SessionState(session_id="s"), *taken_step(0, 0.4, "llm_call"))
    other, _ = advance(plain(RULES["saup"]), state, *taken_step(1, 0.4, "llm_call"))
    assert other.cumulative == pytest.approx(0.4)
    assert other.memory.n == 2
    back, _ = advance(plain(UncertaintyPropagator()), other, *taken_step(2, 0.4, "llm_call"))
    assert back.memory is None


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_a_profile_with_any_rule_survives_its_json_and_the_artifact_of_it(rule, tmp_path):
    profile = plain(rule)
    assert Profile.model_validate_json(profile.model_dump_json()) == profile
    save(ProfileArtifact(profile=profile), tmp_path / "p.json")
    assert load(tmp_path / "p.json").profile == profile


def test_an_unknown_rule_or_aggregate_is_refused_by_name():
    with pytest.raises(ValidationError, match="propagator"):
        Profile.model_validate({"propagator": {"kind": "median"}})
    with pytest.raises(ValidationError, match="aggregate"):
        Profile.model_validate({"propagator": {"kind": "auq", "aggregate": "median"}})
    with pytest.raises(ConfigurationError, match="default_weight"):
        SaupPropagator(default_weight=1.5)


def test_a_rule_of_ones_own_made_from_the_guides_is_asked_for_both_numbers():
    class Slow(UncertaintyPropagator):
        def propagate(self, fused: float, step_type: str, cumulative: float) -> float:
            return fused if step_type == "llm_call" and cumulative == 1.0 else 0.0

        def update_cumulative(self, propagated: float, current: float, step_type: str) -> float:
            return (propagated + current) / 2 if step_type == "llm_call" else 0.0

    state, assessment = advance(plain(Slow()), SessionState(session_id="s"), *taken_step(0, 0.5, "llm_call"))
    assert (assessment.propagated_confidence, state.cumulative) == (0.5, 0.75)


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_a_replay_concludes_what_was_concluded_live(rule, tmp_path):
    with RecordingProcessor(tmp_path) as recorder:
        monitor = UncertaintyMonitor(propagator=rule, processors=[recorder])
        session = monitor.session("s1")
        for number, value in enumerate([0.9, None, 0.2, 0.7, 0.95]):
            session.commit(*taken_step(number, value, "llm_call"))
            if number == 2:
                session = UncertaintyMonitor(propagator=rule, processors=[recorder]).session(
                    "s1", snapshot=session.snapshot()
                )
    replayed = list(replay_file(recorder.path("s1"), monitor.profile))
    assert len(replayed) == 5
    assert all(step.same for step in replayed)
    other = list(replay_file(recorder.path("s1"), Profile(propagator=SaupPropagator(default_weight=0.3))))
    assert not all(step.same for step in other)
