"""What the public calls return, as a type checker sees it; mypy and pyright, both strict, must accept each."""
# pyright: strict

from __future__ import annotations

from typing import assert_type

from grampus_uq import (
    AgentBeliefState,
    AgentRunner,
    ExecutionResult,
    Exploration,
    Message,
    Profile,
    Sensing,
    Session,
    StepUncertainty,
    UncertaintyAction,
    UncertaintyEstimator,
    UncertaintyLevel,
    UncertaintyMonitor,
    UncertaintyPolicy,
    Verdict,
)


async def watch(runner: AgentRunner) -> None:
    policy = UncertaintyPolicy(irreversible_tool_names=["pay"])
    assert_type(policy.classify(0.5), UncertaintyLevel)
    assert_type(policy.decide(UncertaintyLevel.LOW, "llm_call"), UncertaintyAction)
    assert_type(UncertaintyEstimator().extract_verbalized("Confidence: 90%"), float)
    monitor = UncertaintyMonitor(
        policy=policy, sensing=Sensing(repairs=2, max_overhead=0.5), exploration=Exploration(0.1, seed=7), advisory=True
    )
    assert_type(monitor.profile, Profile)
    session = monitor.session("run", "desk")
    assert_type(session, Session)
    seen = await session.observe_llm_response("I pay.", "llm_1", prompt_messages=[], tool_calls=[{"name": "pay"}])
    assert_type(seen, tuple[StepUncertainty, UncertaintyAction])
    assert_type(await monitor.observe_tool_call("pay", "tool_1"), tuple[StepUncertainty, UncertaintyAction])
    assert_type(session.would_allow("pay", effect="irreversible"), Verdict)
    assert_type(seen[0].verdict.allowed, bool)
    assert_type(session.belief(), AgentBeliefState)
    assert_type(monitor.get_reflection_message(), Message)
    assert_type(runner, AgentRunner)


def status(result: ExecutionResult) -> str:
    return result.status
