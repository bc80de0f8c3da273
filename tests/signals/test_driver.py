"""The driver: whatever a client or a signal does the step goes on with a reason; cancellation stays cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import anyio
import pytest

from grampus_uq import Budget, MissingReason, Reading, TokenUsage
from grampus_uq.errors import (
    ConfigurationError,
    ModelError,
    ModelTimeoutError,
    RateLimitedError,
    UnsupportedByModelError,
)
from grampus_uq.runtime.concurrent_tasks import outcome_of
from grampus_uq.signals.driver import BudgetExceededError, read_instant, sense_all, sense_one
from grampus_uq.testing import HANG, ScriptedModel, answer
from tests.signals.contexts import QUESTION, context, said

pytestmark = pytest.mark.anyio


class Asks:
    """A signal that asks once and reads 0.5."""

    def __init__(self, source="asks", **options):
        self.source = source
        self.options = options

    async def sense(self, step, context):
        await context.ask(context.messages, **self.options)
        return Reading(source=self.source, value=0.5)


async def sense(client, signal=None, **budget):
    signal = signal or Asks()
    given = context(client, **budget)
    return await sense_one(signal.source, lambda metered: signal.sense(said("x"), metered), given)


class Raising:
    """Not a model at all: what it does is not awaited, or has no content."""

    def __init__(self, reply):
        self.reply = reply

    def complete(self, **_):
        return self.reply


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        (None, MissingReason.NO_MODEL),
        (ScriptedModel(ModelError("no")), MissingReason.MODEL_ERROR),
        (ScriptedModel(RateLimitedError("slow down", status=429)), MissingReason.RATE_LIMITED),
        (ScriptedModel(ModelTimeoutError("late")), MissingReason.TIMEOUT),
        (ScriptedModel(TimeoutError("late")), MissingReason.TIMEOUT),
        (ScriptedModel(UnsupportedByModelError("no", parameter="messages")), MissingReason.UNSUPPORTED_BY_MODEL),
        (ScriptedModel(ConnectionResetError("gone")), MissingReason.MODEL_ERROR),
        (ScriptedModel(RecursionError("deep")), MissingReason.MODEL_ERROR),
        (ScriptedModel(ExceptionGroup("several", [ValueError("one")])), MissingReason.MODEL_ERROR),
        (ScriptedModel(StopAsyncIteration()), MissingReason.MODEL_ERROR),
        (ScriptedModel(None), MissingReason.MODEL_ERROR),
        (ScriptedModel(42), MissingReason.MODEL_ERROR),
        (ScriptedModel([]), MissingReason.MODEL_ERROR),
        (Raising(answer("not awaitable")), MissingReason.MODEL_ERROR),
        (object(), MissingReason.MODEL_ERROR),
    ],
)
async def test_whatever_a_client_does_the_reading_is_missing_and_says_why(client, reason):
    reading = await sense(client)
    assert (reading.source, reading.value, reading.reason) == ("asks", None, reason)


async def test_a_client_that_hangs_is_left_at_the_deadline_and_cancelled():
    model = ScriptedModel(HANG)
    reading = await sense(model, timeout_s=0.05)
    assert (reading.value, reading.reason, reading.calls) == (None, MissingReason.TIMEOUT, 1)
    assert (model.in_flight, model.cancelled) == (0, 1)
    assert 0.05 <= reading.duration_s < 5.0


async def test_a_signal_that_hangs_without_asking_is_left_too():
    class Sleeps:
        source = "sleeps"

        async def sense(self, step, context):
            await anyio.sleep_forever()

    reading = await sense(None, Sleeps(), timeout_s=0.01)
    assert (reading.source, reading.reason) == ("sleeps", MissingReason.TIMEOUT)


@pytest.mark.parametrize("nonsense", [None, 0.5, "high", object()])
async def test_a_signal_that_returns_nonsense_is_missing(nonsense):
    class Odd:
        source = "odd"

        async def sense(self, step, context):
            return nonsense

    reading = await sense(None, Odd())
    assert (reading.source, reading.value, reading.reason) == ("odd", None, MissingReason.SIGNAL_ERROR)


async def test_a_signal_that_answers_under_another_name_keeps_its_own():
    class Alias:
        source = "mine"

        async def sense(self, step, context):
            return Reading(source="verbalized", value=1.0)

    assert (await sense(None, Alias())).source == "mine"


async def test_a_failing_signal_is_logged_with_its_place_and_without_what_it_said(caplog):
    class Broken:
        source = "broken"

        async def sense(self, step, context):
            raise ValueError("the key is sk-secret")

        def read(self, step):
            raise ValueError("the key is sk-secret")

    with caplog.at_level(logging.DEBUG):
        reading = await sense(None, Broken())
        instant = read_instant(Broken(), said("x"))
    assert reading.reason == instant.reason == MissingReason.SIGNAL_ERROR
    assert reading.detail == instant.detail == "ValueError"
    logged = [record.getMessage() for record in caplog.records]
    lines = [method.__code__.co_firstlineno + 1 for method in (Broken.sense, Broken.read)]
    for line, said_of_it in zip(lines, logged, strict=True):
        assert said_of_it.startswith("signal broken failed: ValueError (")
        assert said_of_it.endswith(f"test_driver.py:{line})")
    assert "sk-secret" not in caplog.text


# -- cancellation --


@pytest.mark.parametrize("alone", [True, False])
async def test_cancelling_the_caller_cancels_the_calls_and_is_never_swallowed(alone):
    model = ScriptedModel(HANG)
    signals = [Asks("first")] if alone else [Asks("first"), Asks("second")]
    with anyio.move_on_after(0.05) as scope:
        await sense_all(signals, said("x"), lambda _: context(model))
        pytest.fail("the caller was cancelled, so nothing comes back")
    assert scope.cancelled_caught
    assert (model.in_flight, model.cancelled) == (0, len(signals))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_cancelling_the_task_of_asyncio_itself_is_never_swallowed_either(anyio_backend):
    model = ScriptedModel(HANG)
    task = asyncio.ensure_future(sense_all([Asks("first"), Asks("second")], said("x"), lambda _: context(model)))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (model.in_flight, model.cancelled) == (0, 2)


@pytest.mark.parametrize("among", [1, 3])
async def test_a_client_that_cancels_its_own_call_does_not_end_the_run(anyio_backend, among):
    """A connection pool that is closed, or a shared request whose leader was cancelled, raises CancelledError."""

    async def awaits_a_cancelled_future(_messages, _options):
        if anyio_backend == "trio":
            raise asyncio.CancelledError
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    signals = [Asks(f"s{n}") for n in range(among)]
    model = ScriptedModel(lambda messages, options: awaits_a_cancelled_future if options.get("top_p") else "ok")
    signals[0].options["top_p"] = 1.0
    readings = await sense_all(signals, said("x"), lambda _: context(model))
    assert [reading.source for reading in readings] == [signal.source for signal in signals]
    assert (readings[0].value, readings[0].reason) == (None, MissingReason.MODEL_ERROR)
    assert [reading.value for reading in readings[1:]] == [0.5] * (among - 1)


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit], ids=["cancels", "exits"])
@pytest.mark.parametrize("cancelled_before", [False, True])
async def test_a_signal_that_cancels_itself_or_exits_does_not_end_the_run(anyio_backend, cancelled_before, error):
    class CancelsItself:
        source = "odd"

        async def sense(self, step, context):
            raise error

        def read(self, step):
            raise error

    if cancelled_before and anyio_backend == "asyncio":  # what a task swallowed before is over
        asyncio.current_task().cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
    assert read_instant(CancelsItself(), said("x")).reason == MissingReason.SIGNAL_ERROR
    assert (await sense(None, CancelsItself())).reason == MissingReason.SIGNAL_ERROR
    assert (await sense(ScriptedModel([error()]))).reason == MissingReason.MODEL_ERROR
    readings = await sense_all([CancelsItself(), Asks()], said("x"), lambda _: context(ScriptedModel(["ok"])))
    assert [reading.reason for reading in readings] == [MissingReason.SIGNAL_ERROR, None]


@pytest.mark.parametrize("swallowed_before", [0, 1])
@pytest.mark.parametrize("part", ["signal", "model", "work"])
def test_who_cancels_a_run_from_within_its_task_ends_it_where_it_awaits_next(part, swallowed_before):
    """A stop button in a processor, or in a tool: it asks before whatever is awaited next began."""
    awaited = {
        "signal": lambda: sense(None, Slow()),
        "model": lambda: sense(ScriptedModel(["ok"], delay_s=0.01)),
        "work": lambda: outcome_of(lambda: anyio.sleep(0.01)),
    }

    class Slow:
        source = "slow"

        async def sense(self, step, context):
            await anyio.sleep(0.01)

    async def run():
        for _ in range(swallowed_before):
            asyncio.current_task().cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        asyncio.current_task().cancel()
        await awaited[part]()
        return "went on"

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


async def test_what_is_no_exception_passes_through():
    class Interrupted:
        source = "interrupted"

        async def sense(self, step, context):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await sense(None, Interrupted())


# -- side by side --


async def test_signals_run_side_by_side_and_come_back_in_their_own_order():
    model = ScriptedModel("ok", delay_s=0.02)
    readings = await sense_all([Asks(f"s{n}") for n in range(5)], said("x"), lambda _: context(model))
    assert [reading.source for reading in readings] == ["s0", "s1", "s2", "s3", "s4"]
    assert model.most_in_flight == 5


async def test_one_failing_signal_takes_no_other_along():
    model = ScriptedModel(lambda _, options: (options.get("temperature") and ValueError("x")) or "ok")
    signals = [Asks("fine"), Asks("broken", temperature=1.0), Asks("fine_too")]
    readings = await sense_all(signals, said("x"), lambda _: context(model))
    assert [reading.value for reading in readings] == [0.5, None, 0.5]


async def test_no_signals_give_no_readings():
    assert await sense_all([], said("x"), lambda _: context(None)) == []


# -- what is counted --


async def test_calls_tokens_and_cost_are_counted_also_when_the_reading_is_missing():
    class AsksTwice:
        source = "twice"

        async def sense(self, step, context):
            await context.ask(QUESTION)
            await context.ask(QUESTION)
            raise ValueError

    priced = TokenUsage(input_tokens=7, output_tokens=2, total_tokens=9, cost_usd=0.25)
    reading = await sense(ScriptedModel([answer("a", usage=(10, 5)), answer("b", usage=priced)]), AsksTwice())
    assert (reading.calls, reading.input_tokens, reading.output_tokens, reading.cost_usd) == (2, 17, 7, 0.25)
    assert reading.value is None


async def test_an_unknown_price_is_none_and_not_free():
    assert (await sense(ScriptedModel(["a"]))).cost_usd is None


class AsksFive:
    source = "five"

    async def sense(self, step, context):
        for _ in range(5):
            await context.ask(QUESTION)
        return Reading(source=self.source, value=1.0)


@pytest.mark.parametrize(
    ("budget", "calls"),
    [({"max_calls": 3}, 3), ({"max_tokens": 25}, 2), ({"max_tokens": 30}, 2), ({"max_calls": 0}, 0)],
)
async def test_a_spent_budget_is_a_missing_reading_and_the_model_is_asked_no_more(budget, calls):
    model = ScriptedModel("ok")  # 15 tokens a call
    reading = await sense(model, AsksFive(), **budget)
    assert (reading.value, reading.reason, reading.calls) == (None, MissingReason.BUDGET_EXCEEDED, calls)
    assert len(model.calls) == calls


async def test_a_signal_may_use_what_is_left_when_its_budget_is_spent():
    given = context(ScriptedModel("ok"), max_calls=1)
    await given.ask(QUESTION)
    with pytest.raises(BudgetExceededError, match="1 calls, 15 tokens"):
        await given.ask(QUESTION)


@pytest.mark.parametrize("given", [{"timeout_s": 0.0}, {"timeout_s": -1.0}, {"max_calls": -1}, {"max_tokens": -1}])
async def test_a_budget_that_is_no_budget_is_refused(given):
    with pytest.raises(ConfigurationError, match=next(iter(given))):
        Budget(**given)


# -- refused options --


@pytest.mark.parametrize("refuse", [["logprobs"], ["temperature"], ["logprobs", "temperature", "max_tokens"]])
async def test_what_a_model_refuses_is_left_out_and_each_refusal_is_counted(refuse):
    model = ScriptedModel("ok", refuse=refuse)
    signal = Asks(temperature=0.0, top_logprobs=5, max_tokens=3)
    reading = await sense(model, signal)
    assert reading.value == 0.5
    assert reading.calls == len(refuse) + 1 == len(model.calls)


async def test_a_refusal_is_remembered_for_the_signals_next_call_and_not_charged_to_its_budget():
    model = ScriptedModel("ok", refuse=["temperature"])
    given = context(model, max_calls=3)
    for _ in range(3):
        await given.ask(QUESTION, temperature=0.5)
    assert [sorted(call.options) for call in model.calls] == [["temperature"], [], [], []]
    with pytest.raises(BudgetExceededError):
        await given.ask(QUESTION, temperature=0.5)


async def test_a_model_that_refuses_what_it_was_not_given_is_asked_once():
    model = ScriptedModel([UnsupportedByModelError("no", parameter="seed")] * 9)
    reading = await sense(model)
    assert (reading.reason, len(model.calls)) == (MissingReason.UNSUPPORTED_BY_MODEL, 1)


async def test_a_client_is_given_only_the_options_that_it_takes():
    seen = []

    class Plain:
        async def complete(self, *, messages, model):
            seen.append((len(messages), model))
            return answer("ok")

    reading = await sense(Plain(), Asks(temperature=0.0, top_logprobs=5))
    assert reading.value == 0.5
    assert seen == [(1, "m")]
