"""litellm against real servers on loopback, on asyncio and on trio: one request a call, our errors, no secrets."""

from __future__ import annotations

import contextvars
import gc
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from grampus_uq.errors import (
    ConfigurationError,
    ModelError,
    ModelTimeoutError,
    RateLimitedError,
)
from grampus_uq.models.litellm_model import LiteLLMModel
from grampus_uq.models.loop_thread import run_on_loop_thread
from grampus_uq.records.values import Message, ModelResponse, Role, ToolCall
from tests.models.conftest import Runner
from tests.models.loopback import (
    Behaviour,
    Loopback,
    Reply,
    Request,
    as_json,
    chat,
    failing,
    good,
    hanging,
    refusing,
    serving,
    without_logprobs,
)
from tests.wire.test_responses import COMPLETION, check_answer

pytest.importorskip("openai", reason="litellm is not installed")

ASK: Sequence[Message] = (Message(role=Role.USER, content="Capital of France?"),)
KEY = "sk-very-secret-0123456789"


def on(server: Loopback, **options: Any) -> LiteLLMModel:
    return LiteLLMModel("openai/tiny", api_base=server.api_base, api_key=KEY, **options)


def failure(run: Runner, behaviour: Behaviour, **options: Any) -> tuple[ModelError, Loopback]:
    with serving(behaviour) as server:

        async def main() -> None:
            await on(server).complete(messages=ASK, **options)

        with pytest.raises(ModelError) as caught:
            run(main)
        return caught.value, server


def test_an_answer_comes_with_text_usage_cost_and_log_probabilities(run: Runner) -> None:
    with serving(good) as server:

        async def main() -> ModelResponse:
            async with on(server, prices=(1e-6, 2e-6)) as model:
                return await model.complete(messages=ASK, temperature=0.0, max_tokens=5, top_logprobs=2, seed=7)

        response = run(main)
        assert response.content == "Paris"
        assert response.token_usage.total_tokens == 15
        assert response.token_usage.cost_usd == pytest.approx(12e-6 + 6e-6)
        assert response.logprobs is not None
        assert response.logprobs[0].top == (("Paris", -0.1), ("Lyon", -2.5))
        body = server.requests[0].body
        assert {name: body[name] for name in ("temperature", "max_tokens", "logprobs", "top_logprobs", "seed")} == {
            "temperature": 0.0,
            "max_tokens": 5,
            "logprobs": True,
            "top_logprobs": 2,
            "seed": 7,
        }


def test_litellms_own_answer_reads_as_that_of_any_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no look-up of prices on the network
    import litellm

    check_answer(litellm.ModelResponse(**COMPLETION))


def test_without_prices_a_server_of_ones_own_has_no_cost(run: Runner) -> None:
    with serving(good) as server:

        async def main() -> ModelResponse:
            return await LiteLLMModel("openai/gpt-4o-mini", api_base=server.api_base, api_key=KEY).complete(
                messages=ASK
            )

        assert run(main).token_usage.cost_usd is None


def test_litellms_price_is_taken_for_a_model_that_it_knows(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(good) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.api_base)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)

        async def main() -> tuple[ModelResponse, ModelResponse]:
            model = LiteLLMModel()
            known = await model.complete(messages=ASK, model="openai/gpt-4o-mini")
            return known, await model.complete(messages=ASK, model="openai/nobody-knows-this")

        known, unknown = run(main)
        # OpenAI's list price of gpt-4o-mini: 0.15 and 0.60 dollars for a million tokens.
        assert known.token_usage.cost_usd == pytest.approx(12 * 0.15e-6 + 3 * 0.60e-6)
        assert unknown.token_usage.cost_usd is None


def test_a_tool_call_comes_back_as_a_value(run: Runner) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": '{"amount": 5}'}}
    with serving(lambda r, s: as_json(chat(None, tool_calls=[call]))) as server:

        async def main() -> ModelResponse:
            return await on(server).complete(messages=ASK, tools=[{"name": "pay", "parameters": {"type": "object"}}])

        assert run(main).tool_calls == (ToolCall(id="c1", name="pay", arguments={"amount": 5}),)


def test_tool_arguments_that_are_no_object_are_refused(run: Runner) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "[1"}}
    error, _ = failure(run, lambda r, s: as_json(chat(None, tool_calls=[call])))
    assert "arguments" in str(error)


def test_missing_log_probabilities_are_missing(run: Runner) -> None:
    with serving(without_logprobs) as server:

        async def main() -> ModelResponse:
            return await on(server).complete(messages=ASK, top_logprobs=3)

        assert run(main).logprobs is None


@pytest.mark.parametrize(
    ("parameter", "options"), [("temperature", {"temperature": 0.7}), ("logprobs", {"top_logprobs": 5})]
)
def test_a_refused_parameter_is_left_out_and_learnt_once(run: Runner, parameter: str, options: dict[str, Any]) -> None:
    with serving(refusing(parameter)) as server:
        model = on(server)

        async def main() -> list[str]:
            return [(await model.complete(messages=ASK, **options)).content for _ in range(2)]

        assert run(main) == ["Paris", "Paris"]
        assert server.hits == 3
        assert set(model.capabilities().refused) == {parameter}


def test_what_litellm_knows_to_be_missing_is_not_even_sent(run: Runner) -> None:
    reply = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "claude-3-haiku-20240307",
        "content": [{"type": "text", "text": "Paris"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 12, "output_tokens": 3},
    }
    with serving(lambda r, s: as_json(reply)) as server:
        model = LiteLLMModel("anthropic/claude-3-haiku-20240307", api_key=KEY, api_base=server.api_base)

        async def main() -> ModelResponse:
            return await model.complete(messages=ASK, top_logprobs=5, temperature=0.5)

        response = run(main)
        assert (response.content, response.logprobs) == ("Paris", None)
        assert response.token_usage.total_tokens == 15
        assert server.hits == 1
        assert "logprobs" not in server.requests[0].body
        assert server.requests[0].body["temperature"] == 0.5
        assert set(model.capabilities().refused) == {"logprobs"}


def test_a_rate_limit_is_ours_and_is_not_retried(run: Runner) -> None:
    error, server = failure(run, failing(429, headers={"retry-after": "7"}))
    assert isinstance(error, RateLimitedError)
    assert (error.retryable, error.status, server.hits) == (True, 429, 1)
    assert error.retry_after_s == 7.0


@pytest.mark.parametrize(("status", "retryable"), [(500, True), (503, True), (401, False), (404, False)])
def test_an_error_status_is_raised_once(run: Runner, status: int, retryable: bool) -> None:
    error, server = failure(run, failing(status, b'{"error": {"message": "the words"}}'))
    assert (type(error), error.status, error.retryable, server.hits) == (ModelError, status, retryable, 1)
    assert "the words" in str(error)


def test_a_hanging_server_meets_the_deadline_with_one_request(run: Runner) -> None:
    for timeout_s in (2.0, 30.0):  # the first may be over before a busy machine has sent the request
        error, server = failure(run, hanging, timeout_s=timeout_s)
        assert isinstance(error, ModelTimeoutError)
        if server.hits:
            break
    assert server.hits == 1


@pytest.mark.parametrize(
    "body", [b"<html>hi</html>", b'{"choices": []}', b"[1]", b""], ids=["html", "none", "list", "empty"]
)
def test_garbage_is_a_model_error(run: Runner, body: bytes) -> None:
    error, server = failure(run, failing(200, body, {"content-type": "application/json"}))
    assert not isinstance(error, ModelTimeoutError)
    assert server.hits == 1


def test_secrets_are_in_no_message_no_cause_and_no_repr(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_API_KEY", "env-secret-12345")

    def echo(request: Request, server: Loopback) -> Reply:
        return as_json({"error": {"message": f"bad {request.headers['authorization']} env-secret-12345"}}, 401)

    error, server = failure(run, echo)
    shown = "".join((str(error), repr(error), repr(error.__cause__), repr(on(server))))
    assert "bad Bearer ***" in shown
    assert KEY not in shown
    assert "env-secret" not in shown


def test_a_model_must_be_named(run: Runner) -> None:
    with pytest.raises(ConfigurationError, match="'model'"):
        run(lambda: LiteLLMModel().complete(messages=ASK))


def test_a_cancelled_call_cancels_the_request(run: Runner) -> None:
    with serving(hanging) as server:
        model = on(server)

        async def main() -> str:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: model.complete(messages=ASK))
                await anyio.to_thread.run_sync(server.wait_for, lambda: server.hits == 1)
                group.cancel_scope.cancel()
            server.behaviour = good
            return (await model.complete(messages=ASK)).content

        assert run(main) == "Paris"


def test_many_loops_and_threads_may_share_one_model_without_leaking_connections(run: Runner) -> None:
    with serving(good) as server:
        model = on(server)

        def worker(_: int) -> str:
            async def main() -> str:
                return (await model.complete(messages=ASK)).content

            return str(run(main))

        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(worker, range(8))) == {"Paris"}
        assert server.open_connections <= 8
    gc.collect()  # a connection that was left on a closed loop would warn here, and warnings are errors


def test_the_loop_thread_sees_the_callers_context_and_raises_what_the_work_raises(run: Runner) -> None:
    place: contextvars.ContextVar[str] = contextvars.ContextVar("place")

    async def work() -> str:
        return place.get()

    async def broken() -> None:
        raise LookupError("from there")

    async def main() -> str:
        place.set("here")
        with pytest.raises(LookupError, match="from there"):
            await run_on_loop_thread(broken)
        return await run_on_loop_thread(work)

    assert run(main) == "here"


def test_cancelling_the_caller_cancels_the_work_on_the_loop_thread(run: Runner) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")

    async def main() -> None:
        with anyio.move_on_after(0.05):
            await run_on_loop_thread(work)
        with anyio.fail_after(60):
            while not ended:  # noqa: ASYNC110 (it happens on another loop)
                await anyio.sleep(0.01)

    run(main)
    assert ended == ["cancelled"]


def test_importing_the_models_loads_no_client_library() -> None:
    program = (
        "import sys, json, grampus_uq.models as m\n"
        "from grampus_uq.models import LiteLLMModel, LocalModel, OpenAICompatibleModel, open_model, examine\n"
        "LiteLLMModel('x'); LocalModel(); OpenAICompatibleModel('http://h/v1')\n"
        "names = ('litellm', 'httpx', 'openai', 'xllamacpp', 'grpc', 'rich')\n"
        "print(json.dumps([name for name in names if name in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


@pytest.mark.slow
def test_the_import_of_litellm_asks_no_network_for_prices_unless_the_user_wants_that(tmp_path: Path) -> None:
    program = (
        "import anyio, os, sys\n"
        "from grampus_uq.models import LiteLLMModel\n"
        "anyio.run(LiteLLMModel('x').warmup)\n"
        "print(os.environ['LITELLM_LOCAL_MODEL_COST_MAP'], sys.modules['litellm'].suppress_debug_info)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "LITELLM_LOCAL_MODEL_COST_MAP"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True"]
    assert "price" not in done.stderr.lower()
