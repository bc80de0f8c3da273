"""The reader in a session: asked before an irreversible call, reading ahead otherwise, and never a reason to go."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Budget, Message, Profile, Role, Sensing, ToolCall, UncertaintyEstimator, UncertaintyMonitor
from grampus_uq import UncertaintyPolicy as Policy
from grampus_uq.errors import ConfigurationError
from grampus_uq.monitor.sensing import SensingPlan
from grampus_uq.records.events import StepEvent
from grampus_uq.records.vocabulary import Effect, MissingReason
from grampus_uq.signals.call_reader import Reader
from grampus_uq.testing import HANG, ScriptedModel, answer
from tests.signals.test_reader import PAY, writes

LOOK = ToolCall(id="l", name="look", arguments={"order": "A17"})
PROMPT = [Message(role=Role.USER, content="Pay A17.")]
POLICY = Policy(irreversible_tool_names=["pay"])
SOURCE = Reader.source


def replying(model: Any) -> Any:
    """The script's reply to what has to be written; a transcript that is only read is answered by nothing."""

    def reply(messages: Any, options: Any) -> Any:
        return model(messages, options) if "grammar" in options else answer("", usage=(70, 1))

    return reply


class Readings:
    """The reader's readings, step by step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def on_event(self, event: Any) -> None:
        if isinstance(event, StepEvent) and event.step.kind != "tool_call":
            self.steps.append({one.source: one for one in event.readings})


def session(model: Any, *, weight: float | None = None, **given: Any) -> tuple[Any, Readings]:
    seen = Readings()
    estimator = UncertaintyEstimator(extra_weights={} if weight is None else {SOURCE: weight})
    options = {"client": model, "timeout_s": given.pop("timeout_s", 5.0)}
    monitor = UncertaintyMonitor(
        policy=POLICY, estimator=estimator, processors=[seen], sensing=Sensing(reader=Reader(**options), **given)
    )
    return monitor.session("s"), seen


USAGE = {"input_tokens": 100, "output_tokens": 10}


async def turn(run: Any, step_id: str, call: ToolCall, text: str = "Confidence: 100%") -> None:
    await run.observe_llm_response(text, step_id, prompt_messages=PROMPT, tool_calls=[call], usage=USAGE)


async def until(model: Any, calls: int) -> None:
    with anyio.fail_after(60):
        while len(model.calls) < calls or model.in_flight:  # noqa: ASYNC110 (the model sets no event)
            await anyio.sleep(0.005)
        await anyio.sleep(0.05)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_it_is_asked_of_irreversible_calls_alone_and_reads_ahead_beside_the_other_steps(backend: str) -> None:
    model = ScriptedModel(replying(writes({"pay": 0.5, "A17": 0.5, "85": 0.5})))
    run, seen = session(model)

    async def main() -> None:
        await turn(run, "1", LOOK)
        await until(model, 1)
        await turn(run, "2", PAY)

    anyio.run(main, backend=backend)
    ahead, asked = model.calls
    assert SOURCE not in seen.steps[0]
    assert ahead.options["max_tokens"] == 1
    assert "[agent's call]" in ahead.messages[-1].content, "the step's own call is read ahead, too"
    assert asked.messages[0] == ahead.messages[0]
    reading = seen.steps[1][SOURCE]
    assert reading.value == pytest.approx(0.125)
    assert (reading.calls, reading.input_tokens) == (2, 170), "what was read ahead is part of what it cost"
    assert run.state.monitor_calls == 2


@pytest.mark.parametrize("budget", [Budget(max_calls=0), Budget(max_tokens=0)])
def test_a_budget_of_nothing_reads_nothing_ahead_either(budget: Budget) -> None:
    model = ScriptedModel(replying(writes({})))
    run, seen = session(model, budgets={SOURCE: budget})

    async def main() -> None:
        await turn(run, "1", LOOK)
        run.observe_tool_result("l", "Order A17 cost 85 EUR.")
        await turn(run, "2", PAY)

    anyio.run(main)
    assert seen.steps[1][SOURCE].reason == MissingReason.BUDGET_EXCEEDED
    assert model.calls == []


def until_told(model: Any, told: threading.Event) -> Any:
    """The same reply, once it is told to."""

    async def reply(_: Any, __: Any) -> Any:
        while not told.is_set():  # noqa: ASYNC110 (it is set on another loop)
            await anyio.sleep(0.005)
        return model

    return reply


def test_nobody_waits_for_what_is_read_ahead_and_its_cost_is_told_as_soon_as_it_is_known() -> None:
    told = threading.Event()
    model = ScriptedModel(until_told(replying(writes({})), told))
    run, seen = session(model)

    async def main() -> None:
        await turn(run, "1", LOOK)
        await turn(run, "2", LOOK)
        told.set()
        await until(model, 2)
        await turn(run, "3", LOOK)
        await until(model, 3)

    anyio.run(main)
    assert len(model.calls) == 3
    assert model.most_in_flight == 1, "one at a time: the second step found the first one's reading under way"
    assert SOURCE not in seen.steps[1]
    reading = seen.steps[2][SOURCE]
    assert (reading.value, reading.reason, reading.input_tokens) == (None, MissingReason.NOT_NEEDED, 140)


def test_what_a_tool_answered_is_read_ahead_too_and_of_several_answers_the_latest_transcript() -> None:
    told = threading.Event()
    model = ScriptedModel(until_told(replying(writes({})), told))
    run, _ = session(model)

    async def main() -> None:
        run.observe_tool_result("early", "nothing was proposed yet")
        await turn(run, "1", LOOK)
        for number in range(3):
            run.observe_tool_result("l", f"row {number}")
        told.set()
        await until(model, 2)

    anyio.run(main)
    first, last = (call.messages[-1].content for call in model.calls)
    assert "row" not in first
    assert all(f"| row {number}" in last for number in range(3))
    assert last.startswith(first.rpartition("\n")[0]), "the server reads each token once"


def test_what_waits_to_be_read_ahead_is_dropped_when_the_reader_is_asked() -> None:
    """The question itself holds the transcript; nothing else stands between it and the reader."""
    told = threading.Event()
    model = ScriptedModel(until_told(replying(writes({"pay": 0.5, "A17": 0.5, "85": 0.5})), told))
    run, seen = session(model)

    async def main() -> None:
        await turn(run, "1", LOOK)
        run.observe_tool_result("l", "row")
        async with anyio.create_task_group() as group:
            group.start_soon(turn, run, "2", PAY)
            await anyio.sleep(0.05)
            told.set()

    anyio.run(main)
    assert ["grammar" in call.options for call in model.calls] == [False, True]
    assert seen.steps[1][SOURCE].value == pytest.approx(0.125)


@pytest.mark.parametrize("ahead", [True, False])
def test_an_irreversible_step_waits_for_the_reader_no_longer_than_its_time(ahead: bool) -> None:
    told = threading.Event()
    run, seen = session(ScriptedModel(until_told(replying(writes({})), told)), timeout_s=0.2)

    async def main() -> None:
        if ahead:
            await turn(run, "1", LOOK)
        with anyio.fail_after(60):
            await turn(run, "2", PAY)

    anyio.run(main)
    told.set()
    assert (seen.steps[-1][SOURCE].value, seen.steps[-1][SOURCE].reason) == (None, MissingReason.TIMEOUT)


@pytest.mark.parametrize("model", [HANG, RuntimeError("down"), "nonsense"])
def test_where_it_has_a_weight_a_reader_that_fails_holds_the_call(model: Any) -> None:
    verdicts = []
    for reply in (replying(writes({"pay": 0.99, "A17": 0.99, "85": 0.99})), model):
        run, _ = session(ScriptedModel(reply), weight=1.0, timeout_s=0.2)
        anyio.run(turn, run, "1", PAY)
        verdicts.append(run.would_allow(PAY, effect=Effect.IRREVERSIBLE))
    assert verdicts[0].allowed
    assert verdicts[1].rule == "missing_evidence"


@given(st.floats(0.0, 1.0), st.sampled_from(["Confidence: 100%", "Confidence: 80%", ""]), st.booleans())
def test_without_a_weight_it_decides_nothing(odds: float, text: str, fails: bool) -> None:
    odds = max(odds, 1e-9)
    reply = RuntimeError("down") if fails else replying(writes({"pay": odds, "A17": odds, "85": odds}))
    run, _ = session(ScriptedModel(reply))
    anyio.run(turn, run, "1", PAY, text)
    alone = UncertaintyMonitor(policy=POLICY).session("s")
    anyio.run(turn, alone, "1", PAY, text)
    one, other = (each.would_allow(PAY, effect=Effect.IRREVERSIBLE) for each in (run, alone))
    assert (one.action, one.rule) == (other.action, other.rule)


def test_beyond_the_share_of_tokens_it_neither_reads_nor_reads_ahead() -> None:
    model = ScriptedModel(replying(writes({})))
    run, seen = session(model, max_overhead=0.0)

    async def main() -> None:
        await turn(run, "1", LOOK)
        await turn(run, "2", PAY)
        await anyio.sleep(0.05)

    anyio.run(main)
    assert model.calls == []
    assert seen.steps[1][SOURCE].reason == MissingReason.OVERHEAD_CAP


def test_its_time_is_its_own_unless_a_budget_of_its_name_is_given() -> None:
    reader = Reader(client=ScriptedModel(), timeout_s=2.5)
    for given_, seconds in (({}, 2.5), ({"budgets": {SOURCE: Budget(timeout_s=1.0)}}, 1.0)):
        plan = SensingPlan.of(Profile(), Sensing(reader=reader, **given_))
        assert plan.budgets[SOURCE].timeout_s == seconds
    with pytest.raises(ConfigurationError, match="reader"):
        Sensing(reader="qwen")  # type: ignore[arg-type]
