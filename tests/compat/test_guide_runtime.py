"""The guide's runner, graph and resume snippets, re-indented and wrapped, against a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    AgentState,
    AgentStatus,
    FunctionTools,
    Graph,
    Message,
    Role,
    StepUncertainty,
    ToolCall,
    ToolResult,
    UncertaintyAction,
    UncertaintyError,
    UncertaintyMonitor,
    UncertaintyPolicy,
    human_node,
    uncertainty_guard_node,
)
from grampus_uq.testing import ScriptedModel, answer

pytestmark = pytest.mark.anyio


class OneToolExecutor:
    """An executor as users of the guide wrote it: one positional ToolCall, a ToolResult back."""

    def __init__(self) -> None:
        self.executed: list[ToolCall] = []

    async def execute(self, call: ToolCall) -> ToolResult:
        self.executed.append(call)
        return ToolResult(tool_call_id=call.id, output="ok", duration_ms=1)


def unsure(*texts: str) -> ScriptedModel:
    """A model that answers the texts in turn and gives credit only to its later answers."""
    answers, credit = iter(texts), iter([0.2, 0.95])

    def reply(messages: Any, options: Any) -> str:
        return f'{{"p_true": {next(credit)}}}' if "Reply with" in messages[-1].content else next(answers)

    return ScriptedModel(reply)


async def test_quick_start() -> None:
    client, executor = unsure("It may be clause 4."), FunctionTools()
    agent_def = AgentDefinition(name="my-agent", model="m")
    printed: list[str] = []
    policy = UncertaintyPolicy(
        low_threshold=0.80,  # PROCEED below this
        medium_threshold=0.60,  # warn below this
        high_threshold=0.40,  # pause for human below this
        enable_p_true=True,  # run P(True) follow-up call
        irreversible_tool_names=["send_email", "delete_records", "deploy"],
    )
    monitor = UncertaintyMonitor(policy=policy)
    runner = AgentRunner(
        model_client=client,
        tool_executor=executor,
        uncertainty_monitor=monitor,
    )
    result = await runner.run(agent_def, "Summarise this legal brief.", session_id="s1")
    if result.status == AgentStatus.WAITING_FOR_HUMAN:
        meta = result.metadata.get("uncertainty", {})
        printed.append(f"Paused — level: {meta['overall_level']}, confidence: {meta['cumulative_confidence']:.2f}")
    assert printed == ["Paused — level: high, confidence: 0.55"]


async def test_handling_a_paused_run() -> None:
    agent_def, task = AgentDefinition(name="my-agent", model="m"), "Summarise section 3."
    runner = AgentRunner(
        unsure("Perhaps.", "Section 3.2 says no."), OneToolExecutor(), uncertainty_monitor=UncertaintyMonitor()
    )
    printed: list[str] = []
    result = await runner.run(agent_def, task, session_id="s1")
    if result.status == AgentStatus.WAITING_FOR_HUMAN:
        # Inspect what caused the pause
        meta = result.metadata.get("uncertainty", {})
        printed.append(f"Paused: {meta['overall_level']} confidence ({meta['cumulative_confidence']:.2f})")
        # Optionally read the reflection message
        for msg in result.messages:
            if msg.role == Role.SYSTEM and "NOT confident" in (msg.content or ""):
                printed.append(f"Reflection: {msg.content}")  # noqa: PERF401 (the guide's own lines)
        # Resume after human provides guidance
        human_guidance = "Focus on section 3.2 of the document."
        resumed = await runner.resume("my-agent", "s1", human_guidance)
        assert any(m.content == human_guidance for m in resumed.messages)
    assert printed[0] == "Paused: high confidence (0.55)"
    assert printed[1].startswith("Reflection: Before you continue, assess your own uncertainty explicitly.")


async def test_the_belief_state_after_a_run() -> None:
    monitor = UncertaintyMonitor()
    runner = AgentRunner(unsure("Perhaps."), OneToolExecutor(), uncertainty_monitor=monitor)
    result = await runner.run(AgentDefinition(name="a", model="m"), "x", session_id="s1")
    belief = monitor.get_belief_state()
    lines = [
        f"{step.step_id}: level={step.level} propagated={step.propagated_confidence:.3f}"
        for step in belief.step_uncertainties
    ]
    assert lines == ["llm_0: level=high propagated=0.549"]
    summary = belief.to_summary()
    assert set(summary) == {
        "overall_level",
        "cumulative_confidence",
        "total_steps",
        "high_uncertainty_steps",
        "last_step_id",
    }
    assert summary.items() <= result.metadata["uncertainty"].items()


async def test_a_critical_step_raises_uncertainty_error() -> None:
    policy = UncertaintyPolicy(low_threshold=0.99, medium_threshold=0.80, high_threshold=0.60)
    executor = OneToolExecutor()
    runner = AgentRunner(unsure("idk"), executor, uncertainty_monitor=UncertaintyMonitor(policy=policy))
    with pytest.raises(UncertaintyError) as caught:
        await runner.run(AgentDefinition(name="a", model="m"), "question", session_id="s1")
    assert caught.value.code == "UNCERTAINTY_CRITICAL"


async def test_an_executor_of_two_arguments_and_one_that_raises_are_served_too() -> None:
    class Named:
        async def execute(self, name: str, arguments: dict[str, Any]) -> str:
            if name == "bad":
                raise RuntimeError("boom")
            return f"{name} {arguments['x']}"

    replies = iter(
        [
            answer("Go", tool_calls=[ToolCall(id="1", name="good", arguments={"x": 1}), ToolCall(id="2", name="bad")]),
            answer("Done"),
        ]
    )
    model = ScriptedModel(
        lambda messages, options: '{"p_true": 0.99}' if "Reply with" in messages[-1].content else next(replies)
    )
    runner = AgentRunner(model, Named(), uncertainty_monitor=UncertaintyMonitor())
    result = await runner.run(AgentDefinition(name="a", model="m"), "x")
    outputs = {m.tool_call_id: m.content for m in result.messages if m.role == Role.TOOL}
    assert outputs["1"] == "good 1"
    assert outputs["2"] == "The tool failed: RuntimeError: boom"
    assert result.status is AgentStatus.COMPLETED


# -- the graph ----------------------------------------------------------------------------------------------------


class FixedMonitor:
    """Any object with these two methods serves as the guard's monitor."""

    def __init__(self, action: UncertaintyAction) -> None:
        self.action = action
        self.seen: list[tuple[str, str]] = []

    async def observe_llm_response(
        self, response_text: str, step_id: str, *, step_type: str
    ) -> tuple[StepUncertainty | None, UncertaintyAction]:
        self.seen.append((response_text, step_type))
        return None, self.action

    def summary_metadata(self) -> dict[str, Any]:
        return {"overall_level": "high"}


async def test_the_guides_graph_pauses_at_the_human_and_goes_on_behind_it() -> None:
    visited: list[str] = []

    async def llm_handler(state: AgentState) -> AgentState:
        visited.append("llm_step")
        state.messages.append(Message(role=Role.ASSISTANT, content="unsure answer"))
        return state

    async def final_handler(state: AgentState) -> AgentState:
        visited.append("final")
        return state

    for action, waits in ((UncertaintyAction.PAUSE_FOR_HUMAN, True), (UncertaintyAction.PROCEED, False)):
        visited.clear()
        monitor = FixedMonitor(action)
        guard = uncertainty_guard_node(
            monitor,
            step_type="decision",  # used for SAUP weight lookup
            escalate_node="human_review",  # sets metadata["uncertainty_escalate"] = True
        )

        async def route(state: AgentState) -> str:
            if state.metadata.get("uncertainty_escalate"):
                return "human_review"
            return "next_step"

        graph = (
            Graph(graph_id="qa")
            .add_node("llm_step", llm_handler, entry=True)
            .add_node("guard", guard)
            .add_conditional_edge("guard", route, {"human_review": "human_review", "next_step": "final"})
            .add_node("human_review", human_node("Uncertain answer — please review."))
            .add_node("final", final_handler)
        )
        graph.add_edge("llm_step", "guard").add_edge("human_review", "final")
        state = await graph.execute(AgentState(agent_id="a", session_id="s"))
        assert monitor.seen == [("unsure answer", "decision")]
        assert state.metadata["uncertainty"] == {"overall_level": "high"}
        if waits:
            assert state.status is AgentStatus.WAITING_FOR_HUMAN
            assert visited == ["llm_step"]
            assert state.messages[-1].content == "Uncertain answer — please review."
            state = await graph.restore_and_execute("qa")
            assert state.status is AgentStatus.WAITING_FOR_HUMAN  # nobody has answered
            state = await graph.restore_and_execute("qa", "fine")
        assert state.status is AgentStatus.COMPLETED
        assert visited == ["llm_step", "final"]


async def test_the_guard_alone_waits_and_says_so_in_the_state() -> None:
    state = AgentState(agent_id="a", session_id="s")
    state.messages.append(Message(role=Role.ASSISTANT, content="unsure answer"))
    state.status = AgentStatus.RUNNING
    judged = await uncertainty_guard_node(FixedMonitor(UncertaintyAction.PAUSE_FOR_HUMAN), escalate_node="r")(state)
    assert judged.status == AgentStatus.WAITING_FOR_HUMAN
    assert judged.metadata.get("uncertainty_escalate") is True
    calm = await uncertainty_guard_node(FixedMonitor(UncertaintyAction.PROCEED))(state)
    assert calm.status == AgentStatus.RUNNING
    assert "uncertainty_escalate" not in calm.metadata


async def test_the_guard_works_with_the_real_monitor() -> None:
    monitor = UncertaintyMonitor()
    state = AgentState(agent_id="a", session_id="s")
    state.messages.append(Message(role=Role.ASSISTANT, content='{"confidence": 0.1}'))
    judged = await uncertainty_guard_node(monitor)(state)
    assert (
        judged.status == AgentStatus.WAITING_FOR_HUMAN or judged.metadata["uncertainty"]["overall_level"] == "critical"
    )
