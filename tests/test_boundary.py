"""Whatever is handed over at the boundary is read, or refused there with the way out; advisory mode never raises."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import math
import os
import re
from collections import UserDict
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from grampus_uq import (
    AgentDefinition,
    Budget,
    ConfigurationError,
    Delegation,
    Grant,
    MissingReason,
    Reading,
    Sensing,
    SessionConflictError,
    ToolCall,
    UncertaintyAction,
    UncertaintyEstimator,
    UncertaintyMonitor,
    UncertaintyPolicy,
    UncertaintyPropagator,
)
from grampus_uq.core.propagator import AuqPropagator, SaupPropagator
from grampus_uq.recording import RecordingProcessor
from grampus_uq.recording.artifacts import save
from grampus_uq.recording.replay import replay_all
from grampus_uq.recording.runs import runs
from grampus_uq.records.values import Outcome, Step
from grampus_uq.testing import ScriptedModel
from grampus_uq.wire import UNPARSED
from tests.sampling import examples
from tests.wire.test_calls import VALUES, Hostile
from tests.wire.test_responses import COMPLETION, LISTED

pytestmark = pytest.mark.anyio


class Kept:
    """A processor that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.events.append(event)


# -- what is refused at once, or, advisory, logged --------------------------------------------------------------------

WRONG: list[tuple[str, dict[str, Any]]] = [
    *(("response_text", {"response_text": value}) for value in (5, 2.5, True, b"x", [], [1], object(), Hostile(), {})),
    *(("response_text", {"response_text": value}) for value in ({"error": {"message": "overloaded"}}, {"a": 1})),
    *(("step_id", {"step_id": value}) for value in (5, None, b"x", object(), ["s"], Hostile(), 2.5)),
    *(("step_type", {"step_type": value}) for value in (5, None, object())),
    *(("tool_calls", {"tool_calls": value}) for value in (5, "pay", {"name": "pay"}, [5], [None])),
    *(("tool_calls", {"tool_calls": value}) for value in ([object()], [{}], [[]])),
    *(("tool_calls", {"tool_calls": value}) for value in ([{"name": ""}], [{"name": 5, "arguments": {}}], [Hostile()])),
    *(("logprobs", {"logprobs": value}) for value in (5, "yes", object(), {"a": 1}, True, b"x")),
    *(("usage", {"usage": value}) for value in (5, "many", object(), {"a": 1}, [1])),
    *(("prompt_messages", {"prompt_messages": value}) for value in (5, [5], [object()], [{}], [{"role": "critic"}])),
    *(("model_client", {"model_client": value}) for value in (object(), 5, "gpt", SimpleNamespace(complete=5))),
    *(("external", {"external": value}) for value in ({"a": 2.0}, {"a": None}, {"a": "x"}, {"a": math.nan})),
    *(("external", {"external": value}) for value in ({5: 0.5}, [1])),
    *(("external", {"external": {name: 1.0}}) for name in ("verbalized", "p_true", "token_probability")),
]  # fmt: skip


def test_the_table_has_at_least_sixty_malformed_inputs() -> None:
    assert len(WRONG) >= 60


def arguments(change: dict[str, Any]) -> dict[str, Any]:
    given = {"response_text": "I pay.", "step_id": "s1", **change}
    return {"model_client": ScriptedModel("0.9") if "prompt_messages" in change else None} | given


@pytest.mark.parametrize(("parameter", "change"), WRONG, ids=range(len(WRONG)))
async def test_a_wrong_argument_is_refused_where_it_is_given_and_commits_nothing(
    parameter: str, change: dict[str, Any]
) -> None:
    session = UncertaintyMonitor().session("s")
    with pytest.raises(
        ConfigurationError, match=rf"'{parameter}' parameter of `observe_llm_response` must be "
    ) as caught:
        await session.observe_llm_response(**arguments(change))
    assert "Got " in str(caught.value)
    assert len(str(caught.value)) < 600
    assert session.state.n_steps == 0


@pytest.mark.parametrize(("parameter", "change"), WRONG, ids=range(len(WRONG)))
async def test_advisory_a_wrong_argument_is_logged_and_the_step_goes_on(parameter: str, change: dict[str, Any]) -> None:
    kept = Kept()
    session = UncertaintyMonitor(advisory=True, processors=[kept]).session("s")
    _, action = await session.observe_llm_response(**arguments(change))
    assert not action.stops
    assert session.state.n_steps == 1
    json.dumps(session.snapshot()).encode()


class HostileMap(dict[str, Any]):
    """A mapping whose every reading fails."""

    def get(self, *_: Any) -> Any:
        raise RuntimeError

    def items(self) -> Any:
        raise RuntimeError


STRANGE: list[Any] = [
    None,
    5,
    2.5,
    b"x",
    object(),
    [],
    {},
    Hostile(),
    HostileMap(a=1),
    [HostileMap(a=1)],
    True,
    "\ud800",
]
GIVEN = [
    "response_text",
    "step_id",
    "prompt_messages",
    "model_client",
    "model_id",
    "step_type",
    "tool_calls",
    "logprobs",
]
GIVEN += ["usage", "tools", "external"]


@pytest.mark.parametrize("advisory", [True, False])
@pytest.mark.parametrize("value", STRANGE, ids=range(len(STRANGE)))
async def test_whatever_stands_in_any_place_of_any_method_is_read_or_refused_and_advisory_is_no_error(
    advisory: bool, value: Any
) -> None:
    session = UncertaintyMonitor(advisory=advisory).session("s")
    refusing = contextlib.nullcontext() if advisory else contextlib.suppress(ConfigurationError)
    for parameter in GIVEN:
        with refusing:
            await session.observe_llm_response(**({"response_text": "I pay.", "step_id": "s1"} | {parameter: value}))
    asked: list[Callable[[], Any]] = [
        lambda: session.would_allow(value),
        lambda: session.would_allow("pay", step_id=value),
        lambda: session.would_allow("pay", effect=value),
        lambda: session.declare_tools(value),
        lambda: session.record_decision(value, principal="ann"),
        lambda: session.finish(value),
        lambda: session.observe_tool_result(value, value),
        lambda: session.observe_user(value),
    ]
    for ask in asked:
        with refusing:
            ask()
    for call in ({"tool_name": value}, {"tool_name": "pay", "effect": value}):
        with refusing:
            await session.observe_tool_call(**{"step_id": "t", **call})


def test_an_answer_or_an_end_of_another_kind_is_refused_before_it_is_recorded() -> None:
    kept: list[Any] = []

    class Kept:
        def on_event(self, event: Any) -> None:
            kept.append(event)

    session = UncertaintyMonitor(processors=[Kept()]).session("s")
    began = len(kept)
    with pytest.raises(ConfigurationError, match="one of approve, edit, reject"):
        session.record_decision("approved", principal="ann")
    with pytest.raises(ConfigurationError, match=r"an Outcome. Got True. \(Pass Outcome\(success=True\)"):
        session.finish(True)  # type: ignore[arg-type]
    assert len(kept) == began
    advised = UncertaintyMonitor(processors=[Kept()], advisory=True).session("s")
    advised.finish(True)  # type: ignore[arg-type]
    assert kept[-1].outcome.success is None


WRONG_CALLS = [5, None, object(), {}, {"name": ""}, {"name": 5}, [], b"pay", Hostile(), {"arguments": {}}]


@pytest.mark.parametrize("value", WRONG_CALLS, ids=range(len(WRONG_CALLS)))
async def test_what_is_no_tool_call_is_refused_by_both_questions_and_advisory_neither_raises(value: Any) -> None:
    session = UncertaintyMonitor().session("s")
    with pytest.raises(ConfigurationError, match="'tool_name' parameter of `observe_tool_call`"):
        await session.observe_tool_call(value, "s1")
    with pytest.raises(ConfigurationError, match="'call' parameter of `would_allow`"):
        session.would_allow(value)
    advised = UncertaintyMonitor(advisory=True).session("s")
    assert not (await advised.observe_tool_call(value, "s1"))[1].stops
    assert advised.would_allow(value).allowed


@pytest.mark.parametrize("value", [5, None, 2.5, b"s", object()], ids=range(5))
def test_a_session_is_named_by_text(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'session_id' parameter of .* must be text"):
        UncertaintyMonitor().session(value)
    assert UncertaintyMonitor(advisory=True).session(value).session_id
    assert UncertaintyMonitor().session(value, advisory=True).session_id


@settings(max_examples=examples(150), deadline=None)
@given(values=st.lists(VALUES, min_size=8, max_size=8))
def test_advisory_nothing_that_is_handed_over_raises_or_stops(values: list[Any]) -> None:
    async def run() -> None:
        monitor = UncertaintyMonitor(advisory=True, processors=[Kept()])
        session = monitor.session(values[0])
        text, step_id, calls, logprobs, usage, prompt, told, external = values
        _, action = await session.observe_llm_response(
            text, step_id, tool_calls=calls, logprobs=logprobs, usage=usage, prompt_messages=prompt, external=external
        )
        assert not action.stops
        assert not (await session.observe_tool_call(calls, step_id))[1].stops
        assert session.would_allow(calls).allowed
        session.observe_tool_result(told, told)
        session.observe_user(told)
        again = json.loads(json.dumps(session.snapshot()))
        monitor.session(values[0], snapshot=again)

    anyio.run(run)


class Awkward:
    """Raises whenever it is compared, counted, iterated or asked for its truth."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError

    __eq__ = __bool__ = __len__ = __iter__ = __float__ = _raise
    __hash__ = None  # type: ignore[assignment]


class Endless(str):
    """Text whose methods raise."""

    def isascii(self) -> bool:
        raise RuntimeError

    encode = __str__ = isascii  # type: ignore[assignment]


def bottomless(kind: type) -> Any:
    inner: Any = kind()
    for _ in range(5_000):
        inner = {"a": inner} if kind is dict else [inner]
    return inner


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {"role": "user", "name": "pay"}
    value["arguments"] = value["content"] = value["logprobs"] = value["message"] = value
    return value


ODD: list[Any] = [
    Awkward(), Endless("\u00e9"), Endless("pay"), bottomless(dict), bottomless(list), cyclic(), [cyclic()], MagicMock(),
    {"choices": [cyclic()]}, {"choices": [None]}, {"output": [cyclic()]}, {"parts": [None, 5]}, UserDict(a=1),
    np.array([1.0, 2.0]), np.float64("nan"), Decimal(1), 10**5000, math.inf, "\x00", "\ud800" * 9, "x" * 10**6,
    {"name": "pay", "arguments": Awkward()}, {"name": Endless("pay")}, iter([1]), range(3), frozenset({1}), ..., type,
    memoryview(b"x"), datetime.now(UTC), {"content": [{"token": "a", "logprob": -1, "top_logprobs": [None]}]},
    {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [5]}, {"prompt_tokens": Awkward()}, Exception("x"),
]  # fmt: skip
PLACES = [
    *("response_text", "step_id", "step_type", "tool_calls", "logprobs", "usage"),
    *("prompt_messages", "external", "model_client", "tools"),
]


@pytest.mark.one_loop
@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("advisory", [True, False], ids=["advisory", "acting"])
async def test_shapes_that_nobody_thought_of_are_read_or_refused_in_every_place(advisory: bool, value: Any) -> None:
    monitor = UncertaintyMonitor(advisory=advisory, processors=[Kept()])
    with contextlib.nullcontext() if advisory else contextlib.suppress(ConfigurationError):
        monitor.session(value).observe_user("Hi.")
    session = monitor.session("s")

    async def tried(work: Any) -> None:
        with contextlib.nullcontext() if advisory else contextlib.suppress(ConfigurationError):
            found = work()
            if inspect.isawaitable(found):
                assert not (await found)[1].stops or not advisory

    for place in PLACES:
        given_here = {"response_text": "I pay.", "step_id": "s1", place: value}
        await tried(lambda given_here=given_here: session.observe_llm_response(**given_here))
    await tried(lambda: session.observe_tool_call(value, "s1"))
    await tried(lambda: session.observe_tool_call("look", value))
    await tried(lambda: session.observe_tool_call("look", "s1", effect=value))
    await tried(lambda: session.observe_tool_result(value, value, is_error=value))
    session.observe_user(value)
    session.would_allow("look")
    snapshot = json.loads(json.dumps(session.snapshot()).encode())
    assert monitor.session("s", snapshot=snapshot).state == session.state


# -- what a model wrote badly is no error of the caller ---------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 500, 999])
async def test_one_null_log_probability_makes_the_token_readings_missing_with_the_reason(place: int) -> None:
    tokens: list[dict[str, Any]] = [{"token": "a", "logprob": -0.1} for _ in range(1000)]
    tokens[place]["logprob"] = None
    kept = Kept()
    session = UncertaintyMonitor(processors=[kept]).session("s")
    await session.observe_llm_response("I pay.", "s1", logprobs={"content": tokens})
    readings = {reading.source: reading for reading in kept.events[-1].readings}
    for name in ("token_probability", "token_entropy"):
        assert readings[name].value is None
        assert readings[name].reason == MissingReason.BROKEN_LOGPROBS
        assert f"token {place}" in (readings[name].detail or "")


@pytest.mark.parametrize("broken", [math.nan, None, -math.inf, 5.0, "-1", True, [], {"token": 7}])
async def test_a_stream_with_one_broken_number_releases_nothing_that_the_whole_one_holds(broken: Any) -> None:
    policy = UncertaintyPolicy(irreversible_tool_names=["pay"])
    low = [{"token": "I", "logprob": -3.0}, {"token": " pay", "logprob": -3.0}]
    verdicts = []
    for tokens in (low, [*low, {"token": "x", "logprob": broken}]):
        session = UncertaintyMonitor(policy=policy).session("s")
        call = ToolCall(id="c1", name="pay")
        await session.observe_llm_response('I pay. {"confidence": 0.97}', "s1", tool_calls=[call], logprobs=tokens)
        verdicts.append(session.would_allow(call).action)
    assert verdicts == [UncertaintyAction.PAUSE_FOR_HUMAN] * 2


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": NaN}', '{"a":' * 500, "x" * 2_000_000])
async def test_arguments_that_are_no_json_are_observed_as_text_and_marked(text: str) -> None:
    kept = Kept()
    session = UncertaintyMonitor(processors=[kept]).session("s")
    call = {"id": "c", "function": {"name": "pay", "arguments": text}}
    await session.observe_llm_response("", "s1", tool_calls=[call])
    await session.observe_tool_call(call, "s1")
    for event in kept.events[1:]:
        assert [(c.name, list(c.arguments)) for c in event.step.tool_calls] == [("pay", [UNPARSED])]


async def test_a_chat_completion_passed_as_it_is_equals_its_parts_passed_one_by_one() -> None:
    kept = Kept()
    monitor = UncertaintyMonitor(processors=[kept])
    completion = ChatCompletion.model_validate(COMPLETION)
    message, choice = completion.choices[0].message, completion.choices[0]
    parts: dict[str, Any] = {"tool_calls": message.tool_calls, "logprobs": choice.logprobs, "usage": completion.usage}
    await monitor.session("a").observe_llm_response(completion, "s1")
    await monitor.session("b").observe_llm_response(completion.model_dump(), "s1")
    await monitor.session("c").observe_llm_response(message.content, "s1", **parts)
    await monitor.session("d").observe_llm_response(choice, "s1", usage=COMPLETION["usage"])
    steps = [event.step for event in kept.events if hasattr(event, "step")]
    for step in steps:
        assert (step.text, step.input_tokens, step.output_tokens) == ("Pay!", 3, 2)
        assert step.tool_calls == (ToolCall(id="c1", name="pay", arguments={"amount": 5}),)
        assert [token.logprob for token in step.logprobs or ()] == [token["logprob"] for token in LISTED]
    assert len(steps) == 4


async def test_what_is_given_beside_an_answer_replaces_its_part() -> None:
    kept = Kept()
    session = UncertaintyMonitor(processors=[kept]).session("s")
    await session.observe_llm_response(COMPLETION, "s1", tool_calls=["look"], usage={"input_tokens": 9})
    step = kept.events[-1].step
    assert ([call.name for call in step.tool_calls], step.input_tokens, len(step.logprobs)) == (["look"], 9, 2)


async def test_half_an_emoji_in_any_name_leaves_the_snapshot_readable() -> None:
    monitor = UncertaintyMonitor(processors=[Kept()])
    session = monitor.session("run\ud83d", "agent\ud83d")
    await session.observe_llm_response("ok \ud83d", "step\ud83d", tool_calls=[ToolCall(name="pay\ud83d", id="\ud83d")])
    await session.observe_tool_call("pay\ud83d", "step\ud83d", effect="read")
    await session.observe_tool_call(ToolCall(name="pay\ud83d"), "step\ud83d", effect="read")
    session.observe_tool_result("\ud83d", "\ud83d")
    snapshot = json.loads(json.dumps(session.snapshot()).encode())
    assert monitor.session("run\ud83d", snapshot=snapshot).state == session.state


# -- configuration ----------------------------------------------------------------------------------------------------

CONFIGURATIONS: list[tuple[str, Any]] = [
    ("low_threshold", lambda: UncertaintyPolicy(low_threshold="x")),  # type: ignore[arg-type]
    ("low_threshold", lambda: UncertaintyPolicy(low_threshold=2.0)),
    ("lo_threshold", lambda: UncertaintyPolicy(lo_threshold=0.5)),  # type: ignore[call-arg]
    ("irreversible_tool_names", lambda: UncertaintyPolicy(irreversible_tool_names="pay")),  # type: ignore[arg-type]
    ("on_alarm", lambda: UncertaintyPolicy(on_alarm="nonsense")),  # type: ignore[arg-type]
    ("max_samples", lambda: UncertaintyEstimator(max_samples=1)),
    ("max_samples", lambda: UncertaintyEstimator(min_samples=4, max_samples=3)),
    ("p_true_wait", lambda: UncertaintyEstimator(p_true_wait=1.0)),  # type: ignore[call-arg]
    ("extra_weights.a", lambda: UncertaintyEstimator(extra_weights={"a": -1.0})),
    ("default_weight", lambda: UncertaintyPropagator(default_weight=2.0)),
    ("weights.llm_call", lambda: UncertaintyPropagator(weights={"llm_call": math.nan})),
    ("weight", lambda: SaupPropagator(weight=1.0)),  # type: ignore[call-arg]
    ("aggregate", lambda: AuqPropagator(aggregate="best")),  # type: ignore[arg-type]
    ("policy", lambda: UncertaintyMonitor(policy=object())),  # type: ignore[arg-type]
    ("estimator", lambda: UncertaintyMonitor(estimator=object())),  # type: ignore[arg-type]
    ("profile", lambda: UncertaintyMonitor(profile=object())),  # type: ignore[arg-type]
    ("processors", lambda: UncertaintyMonitor(processors=[object()])),  # type: ignore[list-item]
    ("processors", lambda: UncertaintyMonitor(processors=[Kept])),  # type: ignore[list-item]
    ("signals", lambda: UncertaintyMonitor(sensing=Sensing(signals=[object()]))),  # type: ignore[list-item]
    ("budgets", lambda: UncertaintyMonitor(sensing=Sensing(budgets={"p_ture": Budget()}))),
    ("budget", lambda: UncertaintyMonitor(sensing=Sensing(budget=5))),  # type: ignore[arg-type]
    ("budgets['p_true']", lambda: Sensing(budgets={"p_true": 5})),  # type: ignore[dict-item]
    (
        "extra_weights",
        lambda: UncertaintyMonitor(estimator=UncertaintyEstimator(extra_weights={"prefix_verifer": 1.0})),
    ),
]


@pytest.mark.parametrize(("parameter", "build"), CONFIGURATIONS, ids=range(len(CONFIGURATIONS)))
def test_a_wrong_configuration_raises_when_it_is_built_and_names_the_parameter(parameter: str, build: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"The '{re.escape(parameter)}' parameter of `\w+` must be .* Got "):
        build()


def test_a_misspelt_name_is_told_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'p_true'"):
        UncertaintyMonitor(sensing=Sensing(budgets={"p_ture": Budget()}))
    with pytest.raises(ConfigurationError, match="Did you mean 'low_threshold'"):
        UncertaintyPolicy(lo_threshold=0.5)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"'prompt' .* `AgentDefinition` .*'system_prompt'"):
        AgentDefinition(name="clerk", prompt="You are a clerk.")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"'max_use' .* `Grant` .*'max_uses'"):
        Grant(tool="refund", principal="ann", expires_s=1e12, max_use=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"The 'principal' parameter of `Grant` must be given\."):
        Grant(tool="refund", expires_s=1e12)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"'tool' .* `Delegation` .*'tools'"):
        Delegation(principal="ann", deputy="bob", tool=("refund",), until_s=1e12)  # type: ignore[call-arg]


def test_a_profile_may_be_the_path_of_its_artifact(tmp_path: Path) -> None:
    from tests.recording.test_artifacts import artifact

    path = tmp_path / "profile.json"
    fingerprint = save(artifact(), path)
    for given_path in (path, str(path)):
        monitor = UncertaintyMonitor(profile=given_path)
        assert monitor.artifact is not None
        assert monitor.fingerprint == fingerprint
    assert monitor.reload(str(path)).fingerprint == fingerprint


@pytest.mark.parametrize("time_s", [1e20, -1e20, math.nan, math.inf, "now", None])
def test_a_time_that_no_calendar_has_is_refused_by_name(time_s: Any) -> None:
    session = UncertaintyMonitor().session("s")
    with pytest.raises(ConfigurationError, match="'time_s'"):
        session.commit(Step(step_id="s1", kind="llm_call", time_s=time_s), ())
    assert session.state.n_steps == 0


@pytest.mark.parametrize("count", [10**400, 2**53, -5, 2.5, "x", None, True])
def test_a_number_of_tokens_that_is_none_is_refused_by_name(count: Any) -> None:
    session = UncertaintyMonitor().session("s")
    with pytest.raises(ConfigurationError, match="numbers of tokens"):
        session.commit(Step(step_id="s1", kind="llm_call", time_s=1.0, output_tokens=count), ())
    assert session.state.n_steps == 0


# -- signals ----------------------------------------------------------------------------------------------------------


class Odd:
    """An instant signal that returns what it was given."""

    def __init__(self, returned: Any, source: str = "odd") -> None:
        self.source = source
        self._returned = returned

    def read(self, step: Step) -> Any:
        return self._returned


@pytest.mark.parametrize("returned", [None, 0.9, "0.9", object(), True], ids=range(5))
async def test_an_instant_signal_that_returns_no_reading_is_a_missing_reading(returned: Any) -> None:
    kept = Kept()
    session = UncertaintyMonitor(processors=[kept], sensing=Sensing(signals=[Odd(returned)])).session("s")
    await session.observe_llm_response("I pay.", "s1")
    (reading,) = [reading for reading in kept.events[-1].readings if reading.source == "odd"]
    assert (reading.value, reading.reason) == (None, MissingReason.SIGNAL_ERROR)


async def test_a_signal_that_signs_with_another_ones_name_keeps_its_own() -> None:
    kept = Kept()
    session = UncertaintyMonitor(
        processors=[kept], sensing=Sensing(signals=[Odd(Reading(source="verbalized", value=1.0))])
    ).session("s")
    await session.observe_llm_response("Confidence: 10%", "s1")
    readings = [(reading.source, reading.value) for reading in kept.events[-1].readings if reading.value is not None]
    assert readings == [("verbalized", 0.1), ("odd", 1.0)]


@pytest.mark.parametrize(
    "name", ["verbalized", "p_true", "token_probability", "claim_probability", "trajectory_risk", 5]
)
def test_a_signal_with_the_name_of_another_is_refused_when_the_monitor_is_built(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="signals"):
        UncertaintyMonitor(sensing=Sensing(signals=[Odd(None, name)]))


# -- cancellation -----------------------------------------------------------------------------------------------------


class Swallowing:
    """A client that makes an exception of its own of a cancellation."""

    def __init__(self) -> None:
        self.asked = anyio.Event()

    async def complete(self, *, messages: Any, model: str) -> Any:
        self.asked.set()
        try:
            await anyio.sleep_forever()
        except BaseException as error:
            raise ConnectionError("connection closed") from error


async def test_nothing_is_committed_for_a_caller_that_was_cancelled_whatever_the_client_made_of_it() -> None:
    kept = Kept()
    session = UncertaintyMonitor(processors=[kept]).session("s")
    client = Swallowing()
    went_on = False

    async def step() -> None:
        nonlocal went_on
        await session.observe_llm_response("I pay.", "s1", model_client=client)
        went_on = True

    async with anyio.create_task_group() as group:
        group.start_soon(step)
        await client.asked.wait()
        group.cancel_scope.cancel()
    assert (session.state.n_steps, len(kept.events), went_on) == (0, 1, False)


async def test_a_step_whose_signal_ran_into_its_deadline_is_committed_all_the_same() -> None:
    monitor = UncertaintyMonitor(sensing=Sensing(budget=Budget(timeout_s=0.01)))
    session = monitor.session("s")
    with anyio.fail_after(60):
        await session.observe_llm_response("I pay.", "s1", model_client=Swallowing())
        await session.observe_llm_response("I pay.", "s2", model_client=Swallowing())
    assert session.state.n_steps == 2


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncios_own_cancellation_commits_nothing_either(anyio_backend: str) -> None:
    import asyncio

    session = UncertaintyMonitor().session("s")
    client = Swallowing()
    task = asyncio.create_task(session.observe_llm_response("I pay.", "s1", model_client=client))
    await client.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert session.state.n_steps == 0


# -- two runs under one id --------------------------------------------------------------------------------------------


async def test_two_live_sessions_of_one_id_cannot_be_mixed_in_a_recording(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        monitor = UncertaintyMonitor(processors=[recorder])
        first = monitor.session("one")
        await first.observe_llm_response("a", "s1")
        second = monitor.session("one")
        await second.observe_llm_response("b", "s1")
        with pytest.raises(SessionConflictError, match="one' began anew"):
            await first.observe_llm_response("c", "s2")
        with pytest.raises(SessionConflictError):
            first.finish(Outcome(success=True))
        await second.observe_llm_response("d", "s2")
        second.finish(Outcome(success=True))
    counts = replay_all(tmp_path, first.profile)
    assert (counts.steps, counts.same, counts.skipped) == (3, 3, ())


async def test_advisory_the_earlier_of_two_sessions_goes_on_unrecorded(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        monitor = UncertaintyMonitor(processors=[recorder], advisory=True)
        first = monitor.session("one")
        second = monitor.session("one")
        for session in (first, second, first, second):
            await session.observe_llm_response("a", "s")
        first.finish(Outcome(success=False))
        second.finish(Outcome(success=True))
    assert first.state.n_steps == 2
    *_, run = runs(tmp_path)  # each of the two began
    assert (run.outcome is not None and run.outcome.success, replay_all(tmp_path, first.profile).steps) == (True, 2)


async def test_a_session_taken_up_by_its_snapshot_has_its_id_to_itself_with_nobody_refused() -> None:
    monitor = UncertaintyMonitor(processors=[Kept()])
    first = monitor.session("one")
    await first.observe_llm_response("a", "s1")
    second = monitor.session("one", snapshot=first.snapshot())
    await second.observe_llm_response("b", "s2")
    await first.observe_llm_response("b", "s2")
    monitor.initialize("one")
    monitor.reset()
    await monitor.observe_llm_response("x", "s1")


@pytest.mark.one_loop
async def test_a_run_that_was_mixed_is_skipped_by_name_and_the_folder_is_replayed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        monitors = [UncertaintyMonitor(processors=[recorder]) for _ in range(2)]
        mixed = [monitor.session("mixed") for monitor in monitors]
        for session in (mixed[0], mixed[1], mixed[0], mixed[1]):
            await session.observe_llm_response("a", "s")
        fine = monitors[0].session("fine")
        await fine.observe_llm_response("a", "s")
    with caplog.at_level(logging.WARNING, "grampus_uq.recording.replay"):
        counts = replay_all(tmp_path, fine.profile)
    assert (counts.runs, counts.steps, counts.same) == (2, 1, 1)  # of the mixed ones the first has no step of its own
    assert len(counts.skipped) == 1
    assert "mixed.jsonl" in counts.skipped[0]
    assert "mixed.jsonl" in caplog.text
    assert replay_all(tmp_path, fine.profile, workers=2).skipped == counts.skipped


# -- a recorder without handles ---------------------------------------------------------------------------------------


async def test_a_recorder_out_of_file_handles_closes_its_own_and_loses_nothing(tmp_path: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with RecordingProcessor(tmp_path, max_open=1000) as recorder:
        monitor = UncertaintyMonitor(processors=[recorder])
        sessions = [monitor.session(f"run-{index}") for index in range(4)]
        lowest = max(int(name) for name in os.listdir("/dev/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 3, hard))
        try:
            sessions += [monitor.session(f"run-{index}") for index in range(4, 40)]
            for session in sessions:
                await session.observe_llm_response("a", "s1")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert monitor.processor_failures == {}
    assert replay_all(tmp_path, sessions[0].profile).steps == 40
