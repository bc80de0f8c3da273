"""Faults put into runs that went well make labelled failures, at the step where the fault was, and in no transcript."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from grampus_uq import AgentDefinition, AgentRunner, ConfigurationError, SessionError, UncertaintyMonitor
from grampus_uq.learn.attribution import LabelledTrajectory
from grampus_uq.learn.attribution.failed_trajectory import Trajectory
from grampus_uq.records.values import Message, ModelResponse, ToolCall
from grampus_uq.records.vocabulary import AgentStatus, Role
from grampus_uq.runtime.rollback import rollback
from grampus_uq.runtime.run_state import ExecutionResult
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.tools import FunctionTools, tool
from grampus_uq.testing import ScriptedModel, answer
from tests.benchmarks.injected_failures import FAULTS, InjectedFailure, Injection, inject, label_run

pytestmark = pytest.mark.anyio

AGENT = AgentDefinition(name="clerk", system_prompt="You add up prices.")
STEPS = 4


def obedient() -> ScriptedModel:
    """Adds a price a step; errs when it is told to, and fails when it ever erred."""

    def reply(messages: list[Message], options: dict[str, object]) -> ModelResponse | str:
        if messages[0].content != AGENT.system_prompt:
            return '{"p_true": 0.97}'
        step = sum(m.role is Role.ASSISTANT for m in messages)
        err = "make one mistake" in (messages[-1].content or "") and "disobey_role" not in (messages[-1].content or "")
        wrong = err or any("wrong" in (m.content or "") for m in messages if m.role is Role.ASSISTANT)
        if step == STEPS:
            return "total wrong" if wrong else "total 24"
        call = ToolCall(id=f"c{step}", name="price", arguments={"item": step})
        return answer(f"price {step} {'wrong' if err else 'right'}", tool_calls=[call])

    return ScriptedModel(reply)


def tools(called: list[int]) -> FunctionTools:
    @tool(effect="read")
    def price(item: int) -> str:
        called.append(item)
        return f"{item}"

    return FunctionTools(price)


def failed(result: ExecutionResult) -> bool:
    return "wrong" in result.output


async def stored(called: list[int]) -> AgentRunner:
    one = AgentRunner(obedient(), tools(called), store=MemoryStore(), checkpoints=True)
    assert (await one.run(AGENT, "add up", session_id="s")).output == "total 24"
    return one


@pytest.mark.one_loop
async def test_failures_are_labelled_at_the_step_that_was_told_to_err_and_the_world_of_the_run_is_left_alone() -> None:
    called: list[int] = []
    source = await stored(called)
    before, found, seen = list(called), list[InjectedFailure](), list[Injection]()

    def sandbox(injection: Injection) -> AgentRunner:
        seen.append(injection)
        return AgentRunner(obedient(), tools([]), store=MemoryStore())

    rng = np.random.default_rng(1)
    async for failure in inject(source, "clerk", "s", sandbox=sandbox, failed=failed, rng=rng, trials=60):
        found.append(failure)
    labelled = [label_run(failure.run, failure.error_message) for failure in found]
    for failure, item in zip(found, labelled, strict=True):
        (error,) = item.error_steps
        wrong = [i for i, step in enumerate(item.trajectory.steps) if "wrong" in step.text]
        assert wrong[0] == error
        assert "mistake" not in repr(item.trajectory)  # the instruction is in no transcript
        assert failure.injection.messages == failure.run.messages[: failure.error_message]
    assert called == before
    assert len({item.trajectory.trajectory_id for item in labelled}) == len(labelled) == 60
    assert set(Counter(injection.step for injection in seen)) == set(range(STEPS + 1))
    assert len({injection.fault.name for injection in seen}) == len(FAULTS) >= 6


async def test_the_same_seed_draws_the_same_and_runs_that_do_not_fail_are_dropped_with_the_reason() -> None:
    source, dropped = await stored([]), list[str]()
    model = ScriptedModel(lambda messages, options: "total 24")

    async def drawn(seed: int) -> list[tuple[int, str]]:
        seen: list[tuple[int, str]] = []

        async def sandbox(injection: Injection) -> AgentRunner:
            seen.append((injection.step, injection.fault.name))
            return AgentRunner(model, tools([]))

        async for _ in inject(
            source,
            "clerk",
            "s",
            sandbox=sandbox,
            failed=failed,
            rng=np.random.default_rng(seed),
            trials=8,
            on_dropped=lambda injection, why: dropped.append(why),
        ):
            raise AssertionError("a run that did not fail was kept")
        return seen

    assert await drawn(3) == await drawn(3) != await drawn(4)
    assert set(dropped) == {"did not fail"}


async def test_reruns_that_a_monitor_pauses_are_no_failures() -> None:
    source, dropped = await stored([]), list[str]()
    doubtful = ScriptedModel(
        lambda messages, options: "wrong" if messages[0].content == AGENT.system_prompt else '{"p_true": 0.02}'
    )
    kept = [
        failure
        async for failure in inject(
            source,
            "clerk",
            "s",
            sandbox=lambda _: AgentRunner(doubtful, tools([]), uncertainty_monitor=UncertaintyMonitor()),
            failed=failed,
            rng=np.random.default_rng(0),
            trials=3,
            on_dropped=lambda injection, why: dropped.append(why),
        )
    ]
    assert kept == []
    assert set(dropped) <= {"paused", "aborted"}
    assert len(dropped) == 3


@pytest.mark.one_loop
async def test_an_injected_failure_can_be_rolled_back_to_before_the_step_it_was_rerun_from() -> None:
    source, runners = await stored([]), list[AgentRunner]()

    def sandbox(injection: Injection) -> AgentRunner:
        runners.append(AgentRunner(obedient(), tools([]), store=MemoryStore(), checkpoints=True))
        return runners[-1]

    rng = np.random.default_rng(2)
    async for failure in inject(source, "clerk", "s", sandbox=sandbox, failed=failed, rng=rng, trials=10):
        for step in {0, failure.injection.step}:
            result = await rollback(runners[-1], "clerk", failure.injection.session_id, step)
            assert (result.status, result.output) == (AgentStatus.COMPLETED, "total 24")


async def test_runs_that_cannot_serve_are_refused() -> None:
    source = await stored([])
    rng = np.random.default_rng(0)

    async def first(session: str, trials: int = 1, wrong: bool = False) -> None:
        async for _ in inject(
            source,
            "clerk",
            session,
            sandbox=lambda _: source,
            failed=lambda _: wrong,
            rng=rng,
            trials=trials,
        ):
            return

    with pytest.raises(SessionError, match="no session"):
        await first("other")
    with pytest.raises(ConfigurationError, match="did not fail"):
        await first("s", wrong=True)
    with pytest.raises(ConfigurationError, match="trials"):
        await first("s", trials=0)
    source.checkpoints = False
    await source.run(AGENT, "add up", session_id="bare")
    with pytest.raises(SessionError, match="checkpoints=True"):
        await first("bare")


async def test_a_label_that_is_no_step_is_refused() -> None:
    source = await stored([])
    kept: list[LabelledTrajectory] = []
    async for failure in inject(
        source,
        "clerk",
        "s",
        sandbox=lambda _: AgentRunner(obedient(), tools([])),
        failed=failed,
        rng=np.random.default_rng(0),
        trials=1,
    ):
        kept.append(label_run(failure.run, failure.error_message))
        for number in (0, 99):  # the system prompt, and nothing
            with pytest.raises(ConfigurationError, match="is a step"):
                label_run(failure.run, number)
    assert isinstance(kept[0].trajectory, Trajectory)
