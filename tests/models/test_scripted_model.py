"""The scripted model does what its script says, on both event loops, shared by many tasks and threads."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from grampus_uq.errors import ConfigurationError, ModelError, UnsupportedByModelError
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ModelResponse, Role, TokenUsage, ToolCall
from grampus_uq.testing import HANG, ScriptedModel, ScriptExhaustedError, answer, top_logprobs

ASK = (Message(role=Role.USER, content="Capital of France?"),)


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_is_a_model_client() -> None:
    assert isinstance(ScriptedModel("yes"), ModelClient)


def test_replies_are_given_in_order_and_every_call_is_recorded(backend: str) -> None:
    model = ScriptedModel(["one", answer("two", usage=(3, 4))])

    async def main() -> list[str]:
        first = await model.complete(messages=ASK, model="m", temperature=0.0, top_logprobs=None)
        second = await model.complete(messages=ASK)
        assert second.token_usage == TokenUsage(input_tokens=3, output_tokens=4, total_tokens=7, model="scripted")
        return [first.content, second.content]

    assert anyio.run(main, backend=backend) == ["one", "two"]
    assert [tuple(call) for call in model.calls] == [(ASK, "m", {"temperature": 0.0}), (ASK, "", {})]


def test_a_script_that_runs_out_says_so_instead_of_repeating_itself() -> None:
    model = ScriptedModel(["one"])

    async def main() -> None:
        await model.complete(messages=ASK)
        with pytest.raises(ScriptExhaustedError, match="call number 2"):
            await model.complete(messages=ASK)

    anyio.run(main)
    assert model.in_flight == 0


@pytest.mark.parametrize("replies", ["same", answer("same"), lambda m, o: "same", itertools.repeat("same")])
def test_one_reply_answers_every_call(replies: object) -> None:
    async def main() -> set[str]:
        model = ScriptedModel(replies)
        return {(await model.complete(messages=ASK)).content for _ in range(5)}

    assert anyio.run(main) == {"same"}


def test_a_callable_sees_messages_and_options_and_may_be_async_or_return_any_reply(backend: str) -> None:
    async def slow(messages: Sequence[Message], options: dict[str, Any]) -> object:
        await anyio.lowlevel.checkpoint()
        return ModelError("refused") if options.get("temperature") == 1.0 else f"{messages[-1].content} Paris"

    model = ScriptedModel(slow)

    async def main() -> str:
        with pytest.raises(ModelError, match="refused"):
            await model.complete(messages=ASK, temperature=1.0)
        return (await model.complete(messages=ASK)).content

    assert anyio.run(main, backend=backend) == "Capital of France? Paris"


def test_exceptions_and_their_classes_are_raised() -> None:
    async def main() -> None:
        model = ScriptedModel([ModelError("broken", status=500), OSError])
        with pytest.raises(ModelError, match="broken"):
            await model.complete(messages=ASK)
        with pytest.raises(OSError):  # noqa: PT011 (the class alone was scripted: it has no message)
            await model.complete(messages=ASK)

    anyio.run(main)


@pytest.mark.parametrize("nonsense", [None, 42, {"content": "x"}, [], object(), ModelResponse])
def test_nonsense_is_returned_as_it_is(nonsense: object) -> None:
    async def main() -> object:
        return await ScriptedModel([nonsense]).complete(messages=ASK)

    assert anyio.run(main) is nonsense


def test_a_hanging_call_ends_when_it_is_cancelled_and_the_model_noticed(backend: str) -> None:
    model = ScriptedModel([HANG, "late"])

    async def main() -> str:
        with anyio.move_on_after(0.01) as scope:
            await model.complete(messages=ASK)
        assert scope.cancelled_caught
        return (await model.complete(messages=ASK)).content

    assert anyio.run(main, backend=backend) == "late"
    assert (model.cancelled, model.in_flight) == (1, 0)


@pytest.mark.parametrize(
    ("refused", "options"),
    [
        ("logprobs", {"top_logprobs": 5}),
        ("temperature", {"temperature": 0.0}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("tools", {"tools": []}),
    ],
)
def test_a_refused_parameter_is_named_and_costs_no_reply(refused: str, options: dict[str, Any]) -> None:
    model = ScriptedModel(["only"], refuse=[refused])

    async def main() -> str:
        with pytest.raises(UnsupportedByModelError) as caught:
            await model.complete(messages=ASK, **options)
        assert caught.value.parameter == refused
        unset: dict[str, Any] = dict.fromkeys(options)
        return (await model.complete(messages=ASK, **unset)).content

    assert anyio.run(main) == "only"
    assert len(model.calls) == 2


def test_concurrent_calls_each_get_their_own_reply(backend: str) -> None:
    model = ScriptedModel([str(i) for i in range(50)], delay_s=0.001)
    seen: list[str] = []

    async def one() -> None:
        seen.append((await model.complete(messages=ASK)).content)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(one)

    anyio.run(main, backend=backend)
    assert sorted(seen, key=int) == [str(i) for i in range(50)]
    assert model.most_in_flight == 50
    assert model.in_flight == 0


def test_threads_may_share_one_generator_of_replies() -> None:
    model = ScriptedModel(str(i) for i in range(400))

    def worker(_: int) -> list[str]:
        async def main() -> list[str]:
            return [(await model.complete(messages=ASK)).content for _ in range(50)]

        return asyncio.run(main())

    with ThreadPoolExecutor(8) as pool:
        seen = [text for part in pool.map(worker, range(8)) for text in part]
    assert sorted(seen, key=int) == [str(i) for i in range(400)]


def test_top_logprobs_are_natural_logs_in_the_order_of_servers() -> None:
    token = top_logprobs({" False": 0.2, "True": 0.7, "Yes": 0.1}, chosen=" False")
    assert token.token == " False"
    assert math.exp(token.logprob) == pytest.approx(0.2)
    assert [name for name, _ in token.top] == ["True", " False", "Yes"]
    assert sum(math.exp(value) for _, value in token.top) == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [{}, {"a": 0.0}, {"a": 1.5}, {"a": math.nan}, {"a": 0.7, "b": 0.7}])
def test_impossible_probabilities_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="probabilities"):
        top_logprobs(bad)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ConfigurationError, match="delay_s"):
        ScriptedModel("x", delay_s=-1)
    with pytest.raises(ConfigurationError, match="refuse"):
        ScriptedModel("x", refuse=["seed"])
    with pytest.raises(ConfigurationError, match="chosen"):
        top_logprobs({"a": 1.0}, chosen="b")


def test_tool_calls_set_the_stop_reason() -> None:
    call = ToolCall(id="c1", name="publish", arguments={"text": "x"})
    assert answer(tool_calls=[call]).stop_reason == "tool_calls"
    assert answer("x").stop_reason == "stop"
