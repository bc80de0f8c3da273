"""TRACER's step risk, trajectory score, stream and theorems, against definitions written down a second time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.tail_sketch import TailSketch, tail_update
from grampus_uq.stats.trajectory_risk import (
    Composite,
    StepComponents,
    TracerParameters,
    TracerState,
    check_tracer,
    tracer_score,
    tracer_start,
    tracer_update,
    weighted_components,
)
from tests.trajectory_runs import tracer_scores


def tracer_error(parameters: TracerParameters, state: TracerState) -> float:
    """Bound on |score - exact score| beyond rounding."""
    return (1.0 - parameters.w) * math.fsum(tail.error for tail in state.tails)


risk_lists = st.lists(st.floats(0.0, 1e3), min_size=1, max_size=40)
tails = st.sampled_from((0.05, 0.1, 0.29, 0.5, 1.0))
shares = st.sampled_from((0.0, 0.1, 0.5, 1.0))


@st.composite
def risk_pairs(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    n = draw(st.integers(1, 30))
    vectors = st.lists(st.floats(0.0, 1e3), min_size=n, max_size=n)
    return draw(vectors), draw(vectors)


@st.composite
def step_components(draw: st.DrawFn) -> StepComponents:
    def maybe(highest: float) -> float | None:
        return draw(st.none() | st.floats(0.0, highest))

    if draw(st.booleans()):
        return StepComponents(
            is_agent=True,
            surprisal=maybe(20.0),
            repetition=maybe(1.0),
            agent_gap=maybe(2.0),
            wording_repetition=maybe(1.0),
            tool_error=draw(st.none() | st.booleans()),
            duplicate_call=draw(st.none() | st.booleans()),
            duplicate_observation=draw(st.none() | st.booleans()),
        )
    return StepComponents(is_agent=False, surprisal=maybe(20.0), user_gap=maybe(2.0))


@st.composite
def tracer_parameters(draw: st.DrawFn) -> TracerParameters:
    weight = st.floats(0.0, 3.0)
    return TracerParameters(
        alpha=draw(weight),
        beta=draw(weight),
        gamma=draw(weight),
        event=draw(weight),
        k=draw(tails),
        w=draw(shares),
        composite=draw(st.sampled_from(Composite)),
    )


def rho(risks: Sequence[float], k: float, w: float) -> float:
    sketch = TailSketch.of(k, risks, accuracy=1e-6)
    assert sketch.mean is not None
    return (1.0 - w) * sketch.mean + w * sketch.worst


def states(
    steps: Sequence[StepComponents], parameters: TracerParameters, accuracy: float = 1e-6
) -> Iterator[TracerState]:
    """The state after each step."""
    state = tracer_start(parameters, accuracy=accuracy)
    for step in steps:
        yield (state := tracer_update(parameters, state, step))


def scores_of(steps: Sequence[StepComponents], parameters: TracerParameters) -> list[float | None]:
    return [tracer_score(parameters, state) for state in states(steps, parameters)]


def close(value: float) -> object:
    """Equal to within the error that the sketches of two scores may have."""
    return pytest.approx(value, rel=5e-6, abs=5e-9)


# The laws of a coherent risk (Theorems A.2 and A.4), on r >= 0.


@given(risk_pairs(), tails, shares)
def test_a_run_that_is_riskier_at_every_step_never_scores_lower(
    pair: tuple[list[float], list[float]], k: float, w: float
) -> None:
    low, high = np.minimum(*pair).tolist(), np.maximum(*pair).tolist()
    assert rho(low, k, w) <= rho(high, k, w) * (1 + 5e-6) + 5e-9


@given(risk_lists, st.floats(0.0, 1e3), tails, shares)
def test_adding_the_same_risk_to_every_step_adds_it_to_the_score(
    risks: list[float], shift: float, k: float, w: float
) -> None:
    assert rho([risk + shift for risk in risks], k, w) == close(rho(risks, k, w) + shift)


@given(risk_lists, st.floats(0.0, 1e3), tails, shares)
def test_scaling_every_risk_scales_the_score(risks: list[float], scale: float, k: float, w: float) -> None:
    assert rho([risk * scale for risk in risks], k, w) == close(rho(risks, k, w) * scale)


@given(risk_pairs(), tails, shares)
def test_the_score_of_a_sum_is_at_most_the_sum_of_the_scores(
    pair: tuple[list[float], list[float]], k: float, w: float
) -> None:
    first, second = pair
    together = [a + b for a, b in zip(first, second, strict=True)]
    assert rho(together, k, w) <= (rho(first, k, w) + rho(second, k, w)) * (1 + 5e-6) + 5e-9


@given(risk_pairs(), tails, shares)
def test_the_score_moves_at_most_as_far_as_the_step_that_moves_most(
    pair: tuple[list[float], list[float]], k: float, w: float
) -> None:
    first, second = pair
    furthest = max(abs(a - b) for a, b in zip(first, second, strict=True))
    slack = 2e-6 * (max(first) + max(second)) + 5e-9
    assert abs(rho(first, k, w) - rho(second, k, w)) <= furthest + slack


@given(risk_lists, tails, shares)
def test_the_score_lies_between_mean_and_maximum_and_ignores_order(risks: list[float], k: float, w: float) -> None:
    score = rho(risks, k, w)
    assert math.fsum(risks) / len(risks) * (1 - 5e-6) - 5e-9 <= score <= max(risks) * (1 + 5e-6) + 5e-9
    assert rho(risks[::-1], k, w) == pytest.approx(score, rel=1e-12)


def test_a_harmless_step_can_lower_the_score_so_the_running_maximum_is_kept() -> None:
    steps = [StepComponents(is_agent=True, agent_gap=gap) for gap in (0.9, 0.1)]
    mean = TracerParameters(k=1.0, w=0.0)
    scores = scores_of(steps, mean)
    assert scores == pytest.approx([0.9, 0.5], rel=1e-6)
    assert [state.running_max for state in states(steps, mean)] == [scores[0], scores[0]]


# The composites of a step.


def only_step(step: StepComponents, parameters: TracerParameters) -> float | None:
    """The risk of a step is the score of a run that is this step alone."""
    return scores_of([step], parameters)[0]


@given(step_components(), tracer_parameters())
def test_the_composites_are_maximum_sum_and_product_of_the_weighted_components(
    step: StepComponents, parameters: TracerParameters
) -> None:
    event = step.tool_error or step.duplicate_call or step.duplicate_observation
    expected = [
        step.surprisal or 0.0,
        parameters.alpha * (step.repetition or 0.0),
        parameters.beta * (step.agent_gap or 0.0),
        parameters.gamma * (step.user_gap or 0.0),
        parameters.event if event else 0.0,
    ]
    assert list(weighted_components(step, parameters)) == expected
    whole = {
        Composite.MAX: max(expected),
        Composite.SEPARATE: sum(expected),
        Composite.ADDITIVE: sum(expected),
        Composite.MULTIPLICATIVE: math.prod(1.0 + part for part in expected) - 1.0,
    }[parameters.composite]
    assert only_step(step, parameters) == close(whole)


@pytest.mark.parametrize("event", ["tool_error", "duplicate_call", "duplicate_observation"])
def test_each_event_by_itself_makes_a_step_risky(event: str) -> None:
    parameters = TracerParameters(event=0.7)
    assert only_step(StepComponents(is_agent=True, **{event: True}), parameters) == close(0.7)
    assert only_step(StepComponents(is_agent=True, **{event: False}), parameters) == close(0.0)


def test_with_default_parameters_events_are_no_part_of_the_papers_risk() -> None:
    step = StepComponents(
        is_agent=True, repetition=0.2, tool_error=True, duplicate_call=True, duplicate_observation=True
    )
    assert only_step(step, TracerParameters()) == close(0.2)
    assert only_step(step, TracerParameters(event=0.7)) == close(0.7)


@given(st.lists(step_components(), min_size=1, max_size=25), tracer_parameters())
def test_the_separate_variant_sums_the_tails_of_the_components(
    steps: list[StepComponents], parameters: TracerParameters
) -> None:
    parameters = replace(parameters, composite=Composite.SEPARATE)
    channels = zip(*(weighted_components(step, parameters) for step in steps), strict=True)
    expected = sum(rho(channel, parameters.k, parameters.w) for channel in channels)
    assert scores_of(steps, parameters)[-1] == close(expected)


def test_a_step_without_any_component_counts_as_a_step_with_risk_zero() -> None:
    first = StepComponents(is_agent=False)
    second = StepComponents(is_agent=True, agent_gap=0.8)
    assert scores_of([first, second], TracerParameters(k=1.0, w=0.0)) == [close(0.0), close(0.4)]


# The stream.


@given(st.lists(step_components(), min_size=1, max_size=30), tracer_parameters())
def test_the_stream_is_within_its_error_of_the_exact_score_on_every_prefix(
    steps: list[StepComponents], parameters: TracerParameters
) -> None:
    assert tracer_score(parameters, tracer_start(parameters)) is None
    highest = 0.0
    for state, expected in zip(states(steps, parameters), tracer_scores(steps, parameters), strict=True):
        score = tracer_score(parameters, state)
        assert score is not None
        highest = max(highest, score)
        assert state.running_max == highest
        assert abs(score - expected) <= tracer_error(parameters, state) + 1e-12 * (1.0 + expected)
    assert {tail.count for tail in state.tails} == {len(steps)}


@given(
    st.lists(step_components(), max_size=20),
    st.lists(step_components(), min_size=1, max_size=20),
    tracer_parameters(),
    st.sampled_from((0.001, 0.05)),
)
def test_a_bounded_stream_keeps_its_error_and_survives_being_stored(
    before: list[StepComponents], after: list[StepComponents], parameters: TracerParameters, accuracy: float
) -> None:
    adapter = TypeAdapter(TracerState)
    whole = tracer_start(parameters, accuracy=accuracy)
    for step in before:
        whole = tracer_update(parameters, whole, step)
    restored = adapter.validate_json(adapter.dump_json(whole))
    check_tracer(parameters, restored)
    for number, step in enumerate(after, 1):
        whole, restored = (tracer_update(parameters, state, step) for state in (whole, restored))
        assert restored == whole
        score, error = tracer_score(parameters, whole), tracer_error(parameters, whole)
        assert score is not None
        exact = tracer_scores([*before, *after[:number]], parameters)[-1]
        assert abs(score - exact) <= error + 1e-9 * (1.0 + exact)
        assert error <= accuracy * exact + 5 * 5e-10 + 1e-9


def test_a_state_of_other_parameters_is_refused() -> None:
    state = tracer_start(TracerParameters(), accuracy=0.01)
    with pytest.raises(ConfigurationError, match="tails with k"):
        check_tracer(TracerParameters(k=0.5), state)
    with pytest.raises(ConfigurationError, match="tails with k"):
        check_tracer(TracerParameters(composite=Composite.SEPARATE), state)
    with pytest.raises(ConfigurationError, match="running maximum"):
        check_tracer(TracerParameters(), TracerState(running_max=math.nan, tails=state.tails))


def test_a_state_that_no_run_can_reach_is_refused() -> None:
    parameters = TracerParameters(composite=Composite.SEPARATE)
    state = tracer_update(parameters, tracer_start(parameters), StepComponents(is_agent=True, surprisal=0.5))
    first, *others = state.tails
    with pytest.raises(ConfigurationError, match="over the same steps"):
        check_tracer(parameters, replace(state, tails=(tail_update(first, 0.1), *others)))
    with pytest.raises(ConfigurationError, match="'worst' parameter"):
        check_tracer(parameters, replace(state, tails=(replace(first, worst=9.0), *others)))


@pytest.mark.parametrize("w", [0.0, 0.5, 1.0])
def test_the_worst_step_is_exact_so_that_only_the_rest_of_a_score_has_an_error(w: float) -> None:
    state = tracer_start(TracerParameters(k=0.5), accuracy=0.5)
    for gap in (0.4, 0.41):
        state = tracer_update(TracerParameters(k=0.5), state, StepComponents(is_agent=True, agent_gap=gap))
    assert tracer_error(TracerParameters(k=0.5, w=w), state) == (1.0 - w) * state.tails[0].error
    assert state.tails[0].error > 0.0


# What is refused.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alpha", -0.1),
        ("beta", math.nan),
        ("gamma", math.inf),
        ("event", -1.0),
        ("k", 0.0),
        ("k", 1.5),
        ("w", -0.1),
        ("w", 1.1),
        ("composite", "max"),
    ],
)
def test_parameters_outside_of_their_domain_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"'{field}' parameter of `TracerParameters`"):
        TracerParameters(**{field: value})  # type: ignore[arg-type]  # the wrong value is what is tested


@pytest.mark.parametrize(
    ("field", "value"),
    [("surprisal", -0.1), ("surprisal", math.nan), ("repetition", 1.01), ("agent_gap", 2.01), ("agent_gap", math.inf)],
)
def test_components_outside_of_their_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"'{field}' parameter of `StepComponents`"):
        StepComponents(is_agent=True, **{field: value})  # type: ignore[arg-type]  # a dict has one value type


def test_components_that_rounding_pushed_over_the_edge_are_brought_back() -> None:
    step = StepComponents(is_agent=True, repetition=1.0 + 1e-7, agent_gap=-1e-9)
    assert (step.repetition, step.agent_gap) == (1.0, 0.0)


def test_a_component_of_the_other_actor_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'user_gap'.*None on an agent step"):
        StepComponents(is_agent=True, user_gap=0.1)
    for field in ("repetition", "agent_gap", "wording_repetition", "tool_error"):
        with pytest.raises(ConfigurationError, match=rf"'{field}'.*None on a user step"):
            StepComponents(is_agent=False, **{field: 0.0})  # type: ignore[arg-type]  # a dict has one value type
