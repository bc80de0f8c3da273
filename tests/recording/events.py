"""Any event that a monitor can emit, for Hypothesis; and a plain session of a few events."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

from grampus_uq.records.events import (
    CallAsked,
    DecisionEvent,
    Event,
    InForce,
    LookEvent,
    ObservationEvent,
    OutcomeEvent,
    ProfileChanged,
    SessionStarted,
    StepEvent,
)
from grampus_uq.records.values import Outcome, Reading, Step, StepUncertainty, TokenLogprob, ToolCall
from grampus_uq.records.vocabulary import Effect, MissingReason, StopReason, UncertaintyAction, UncertaintyLevel
from grampus_uq.records.vocabulary import UncertaintySource as Source

texts = st.text(max_size=40)
names = st.none() | texts
finite = st.floats(allow_nan=False, allow_infinity=False)
money = st.none() | finite
unit = st.floats(0.0, 1.0)
maybe_unit = st.none() | unit
counts = st.integers(0, 2**53)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
tool_calls = st.builds(ToolCall, id=texts, name=texts, arguments=st.dictionaries(texts, json_values, max_size=3))
logprobs = st.lists(
    st.builds(
        TokenLogprob,
        token=texts,
        logprob=finite,
        top=st.lists(st.tuples(texts, finite), max_size=3).map(tuple),
    ),
    max_size=4,
).map(tuple)
steps = st.builds(
    Step,
    step_id=texts,
    kind=st.sampled_from(["llm_call", "tool_call", "decision"]) | texts,
    time_s=finite,
    text=texts,
    tool_calls=st.lists(tool_calls, max_size=2).map(tuple),
    logprobs=st.none() | logprobs,
    effect=st.none() | st.sampled_from(Effect),
)
costs = {
    "detail": names,
    "calls": counts,
    "input_tokens": counts,
    "output_tokens": counts,
    "cost_usd": st.none() | st.floats(0.0, 1e12),
    "samples": counts,
    "early_stopped": st.none() | st.booleans(),
    "started_ns": counts,
    "duration_s": finite,
}
readings = st.builds(Reading, source=texts, value=unit, reason=st.none(), **costs) | st.builds(
    Reading, source=texts, value=st.none(), reason=st.sampled_from(MissingReason).map(str) | texts, **costs
)
assessments = st.builds(
    StepUncertainty,
    step_id=texts,
    step_type=texts,
    index=counts,
    verbalized_confidence=unit,
    p_true_confidence=st.just(-1.0) | unit,
    token_probability=maybe_unit,
    token_entropy=maybe_unit,
    semantic_confidence=maybe_unit,
    fused_confidence=unit,
    propagated_confidence=unit,
    p_success=maybe_unit,
    trajectory_risk=st.none() | st.floats(0.0, 1e300),
    level=st.sampled_from(UncertaintyLevel),
    sources=st.lists(st.sampled_from(Source), max_size=3).map(tuple),
    action=st.sampled_from(UncertaintyAction),
    rule=texts,
    guarantee=names,
    reflection_injected=st.booleans(),
    reasoning=texts,
    samples_used=counts,
    missing_reason=names,
    tool_name=names,
    effect=st.none() | st.sampled_from(Effect),
    log_e_value=money,
    advisory_action=st.none() | st.sampled_from(UncertaintyAction),
    timestamp=st.datetimes(timezones=st.just(UTC)).map(lambda time: time.replace(fold=0)),
)
step_events = st.builds(
    StepEvent,
    session_id=texts,
    agent_id=texts,
    step=steps,
    readings=st.lists(readings, max_size=3).map(tuple),
    assessment=assessments,
    started_ns=counts,
    ended_ns=counts,
)
in_force = st.builds(InForce, rule=st.sampled_from(["grant", "permit"]), id=texts, audit=maybe_unit)
events: st.SearchStrategy[Event] = st.one_of(
    step_events,
    st.builds(
        SessionStarted,
        session_id=texts,
        agent_id=texts,
        time_s=finite,
        resumed=st.booleans(),
        model=texts,
        prompt_hash=names,
        tools_hash=names,
        profile_fingerprint=names,
        advisory=st.booleans(),
        release_probability=maybe_unit,
        let_through=st.booleans(),
        metadata=st.dictionaries(texts, texts, max_size=3),
        thresholds=st.none() | st.tuples(unit, unit, unit),
    ),
    st.builds(
        ProfileChanged,
        session_id=texts,
        agent_id=texts,
        time_s=finite,
        profile_fingerprint=texts,
        advisory=st.booleans(),
        thresholds=st.none() | st.tuples(unit, unit, unit),
    ),
    st.builds(
        CallAsked,
        session_id=texts,
        agent_id=texts,
        step_id=names,
        call_id=names,
        call_digest=names,
        tool_alone=st.booleans(),
        in_force=st.none() | st.lists(in_force, max_size=2).map(tuple),
        time_s=finite,
    ),
    st.builds(
        LookEvent,
        session_id=texts,
        agent_id=texts,
        tier=texts,
        step_id=names,
        call=st.none() | tool_calls,
        agrees=st.booleans(),
        own=maybe_unit,
        probability=maybe_unit,
        missing=texts,
        tokens=st.integers(0, 2**54),
        seconds=finite,
        time_s=finite,
    ),
    st.builds(
        ObservationEvent,
        session_id=texts,
        agent_id=texts,
        kind=st.sampled_from(["tool_result", "user"]),
        text=texts,
        call_id=names,
        is_error=st.booleans(),
        time_s=finite,
    ),
    st.builds(
        DecisionEvent,
        session_id=texts,
        agent_id=texts,
        decision=texts,
        principal=texts,
        step_id=names,
        call_id=names,
        call_digest=names,
        message=names,
        acknowledged=st.none() | st.sampled_from(UncertaintyLevel),
        time_s=finite,
    ),
    st.builds(
        OutcomeEvent,
        session_id=texts,
        agent_id=texts,
        outcome=st.builds(
            Outcome,
            success=st.none() | st.booleans(),
            stop_reason=st.sampled_from(StopReason),
            labelled_by=names,
            time_s=finite,
            note=names,
            right_looks=st.lists(texts, max_size=2).map(tuple),
        ),
    ),
)

START_S = 1_760_000_000.5


def started(session_id: str = "s1", *, agent_id: str = "agent") -> SessionStarted:
    """A session of the model "m"."""
    return SessionStarted(
        session_id=session_id,
        agent_id=agent_id,
        time_s=START_S,
        model="m",
        prompt_hash="ab" * 32,
        thresholds=(0.8, 0.6, 0.4),
    )


def step_event(
    index: int,
    session_id: str = "s1",
    *,
    text: str = "I book the flight.",
    arguments: dict[str, object] | None = None,
    value: float = 0.25,
    action: UncertaintyAction = UncertaintyAction.PROCEED,
    effect: Effect | None = None,
) -> StepEvent:
    """The `index`-th step: a model's turn that proposes one call, with two readings, one of them missing."""
    step = Step(
        step_id=f"step-{index}",
        kind="llm_call",
        time_s=START_S + index,
        text=text,
        tool_calls=(ToolCall(id=f"c{index}", name="book", arguments=arguments or {"seat": "12A"}),),
        logprobs=(TokenLogprob(token="I", logprob=-0.1, top=(("I", -0.1), ("We", -2.5))),),
        effect=effect,
    )
    return StepEvent(
        session_id=session_id,
        agent_id="agent",
        step=step,
        readings=(
            Reading(source="verbalized", value=value, calls=1, input_tokens=10, output_tokens=3, cost_usd=0.0001),
            Reading(source="p_true", value=None, reason="timeout", detail="no answer from sk-secret in 5 s"),
        ),
        assessment=StepUncertainty(
            step_id=f"step-{index}",
            step_type="llm_call",
            index=index,
            verbalized_confidence=value,
            fused_confidence=value,
            propagated_confidence=value,
            level=UncertaintyLevel.MEDIUM,
            sources=(Source.VERBALIZED,),
            action=action,
            reasoning="fused .25",
            timestamp=datetime.fromtimestamp(START_S + index, UTC),
        ),
        started_ns=1000 * index,
        ended_ns=1000 * index + 500,
    )


def session(session_id: str = "s1", steps: int = 3, *, success: bool | None = True) -> list[Event]:
    """A whole session: begin, steps each with an observation, outcome."""
    found: list[Event] = [started(session_id)]
    for index in range(steps):
        found.append(step_event(index, session_id))
        found.append(
            ObservationEvent(
                session_id=session_id,
                agent_id="agent",
                kind="tool_result",
                text="booked",
                call_id=f"c{index}",
                time_s=START_S + index + 0.5,
            )
        )
    outcome = Outcome(success=success, time_s=START_S + steps)
    found.append(OutcomeEvent(session_id=session_id, agent_id="agent", outcome=outcome))
    return found
