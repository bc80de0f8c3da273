"""Runs as values: what an agent, its model, its tools and its humans do, for Hypothesis, and how a session takes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from hypothesis import strategies as st

from grampus_uq import (
    Effect,
    Message,
    Role,
    Sensing,
    Session,
    StepUncertainty,
    TokenLogprob,
    TokenUsage,
    ToolCall,
    UncertaintyAction,
    UncertaintyEstimator,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.errors import ModelError, RateLimitedError
from grampus_uq.records.events import Event
from grampus_uq.stats.trajectory_risk import Composite, TracerParameters
from grampus_uq.testing import ScriptedModel, answer, top_logprobs

PROMPT = (Message(role=Role.USER, content="Book the flight and tell Alice."),)


@dataclass(frozen=True)
class Turn:
    """The model speaks; then what it answers to the monitor's questions, after a number of loop passes."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    kind: str = "llm_call"
    judgement: Any = "True"
    samples: tuple[Any, ...] = ("Paris",) * 5
    external: tuple[tuple[str, float], ...] = ()
    tokens: int = 0
    passes: int = 0


@dataclass(frozen=True)
class Use:
    """The agent is about to use a tool."""

    name: str
    effect: Effect | None = None


@dataclass(frozen=True)
class Hear:
    """A tool answered, or the user spoke."""

    text: str
    user: bool = False


@dataclass(frozen=True)
class Answer:
    """A human answered a pause."""

    acknowledges: bool


Act = Turn | Use | Hear | Answer

_unit = st.floats(0.0, 1.0)
_stated = _unit.map(lambda p: f"I did it. {json.dumps({'confidence': p})}")
_texts = _stated | st.sampled_from(
    [
        "",
        "Done.",
        "I'm not sure.",
        "Confidence: 85%",
        '{"confidence": 95}',
        '{"confidence": NaN}',
        "\ud83d half an emoji",
    ]
)
_tokens = st.lists(
    st.sampled_from(
        [
            top_logprobs({"a": 0.9, "b": 0.05}),
            top_logprobs({"a": 0.4, "b": 0.4}),
            TokenLogprob(token="x", logprob=float("nan")),
        ]
    ),
    max_size=3,
).map(tuple)
_failures = st.sampled_from([RateLimitedError("slow down"), ModelError("no"), ValueError("x"), None, 3])
_judgements = _unit.map(lambda p: json.dumps({"p_true": p})) | _failures | st.just("hard to say")
_names = st.sampled_from(["search", "send_email", "Delete_Records"])
_turns = st.builds(
    Turn,
    text=_texts,
    calls=st.lists(st.builds(ToolCall, name=_names, arguments=st.just({"to": "Alice"})), max_size=1).map(tuple),
    logprobs=st.none() | _tokens,
    kind=st.sampled_from(["llm_call", "decision", "memory_read", "plan"]),
    judgement=_judgements,
    samples=st.lists(st.sampled_from(["Paris", "Rome", "Oslo"]) | _failures, min_size=5, max_size=5).map(tuple),
    external=st.lists(st.tuples(st.just("verifier"), _unit), max_size=1).map(tuple),
    tokens=st.integers(0, 50),
    passes=st.integers(0, 3),
)
_uses = st.builds(Use, name=_names, effect=st.none() | st.sampled_from(Effect))
acts = st.lists(
    st.one_of(
        _turns, _turns, _uses, st.builds(Hear, text=_texts, user=st.booleans()), st.builds(Answer, st.booleans())
    ),
    max_size=12,
)

POLICY = UncertaintyPolicy(
    enable_semantic_sampling=True, irreversible_tool_names=["send", "delete"], worst_so_far_floor=0.2
)
ESTIMATOR = UncertaintyEstimator(extra_weights={"verifier": 0.5})
switches = st.fixed_dictionaries(
    {
        "sensing": st.builds(
            Sensing,
            speculative=st.booleans(),
            repairs=st.none() | st.integers(0, 1),
            max_overhead=st.none() | st.sampled_from([0.0, 2.0]),
        ),
        "advisory": st.booleans(),
        "trajectory_risk": st.sampled_from(
            [
                None,
                TrajectoryRiskSettings(),
                TrajectoryRiskSettings(
                    parameters=TracerParameters(k=0.5, w=0.0, composite=Composite.SEPARATE), window=1
                ),
            ]
        ),
    }
)


@dataclass
class Captured:
    """A processor that keeps every event."""

    events: list[Event] = field(default_factory=list)

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def watch(**given: Any) -> UncertaintyMonitor:
    """A monitor with every signal that the package has, and tools that are irreversible."""
    return UncertaintyMonitor(policy=POLICY, estimator=ESTIMATOR, **given)


async def play(session: Session, script: Sequence[Act], first: int = 0) -> list[StepUncertainty]:
    """Let a session see the acts from number `first` on, one after the other; returns its assessments."""
    seen = []
    for number, act in list(enumerate(script))[first:]:
        if isinstance(act, Turn):
            seen.append((await _speak(session, act, f"llm_{number}"))[0])
        elif isinstance(act, Use):
            seen.append((await session.observe_tool_call(act.name, f"tool_{number}", effect=act.effect))[0])
        elif isinstance(act, Hear):
            session.observe_user(act.text) if act.user else session.observe_tool_result("c", act.text)
        else:
            session.record_decision("approve", principal="ann", acknowledges=act.acknowledges)
    return seen


async def _speak(session: Session, turn: Turn, step_id: str) -> tuple[StepUncertainty, UncertaintyAction]:
    samples = iter(turn.samples)

    async def reply(_messages: Any, options: dict[str, Any]) -> Any:
        for _ in range(turn.passes):
            await anyio.lowlevel.checkpoint()
        found = next(samples) if options.get("temperature") == 0.8 else turn.judgement
        return answer(found, usage=(7, 3)) if isinstance(found, str) else found

    return await session.observe_llm_response(
        turn.text,
        step_id,
        prompt_messages=PROMPT,
        model_client=ScriptedModel(reply),
        step_type=turn.kind,
        tool_calls=turn.calls,
        logprobs=turn.logprobs,
        external=dict(turn.external),
        usage=TokenUsage(input_tokens=turn.tokens, output_tokens=1),
    )


def timeless(assessments: Sequence[StepUncertainty]) -> list[dict[str, Any]]:
    """The assessments without the one thing that differs between two runs of one script: when they were made."""
    return [assessment.model_dump(exclude={"timestamp"}) for assessment in assessments]
