"""The OpenAI-compatible client against real servers on loopback, good and bad, on asyncio and on trio."""

from __future__ import annotations

import gc
import gzip
import json
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import anyio
import pytest

from grampus_uq.errors import (
    ConfigurationError,
    ModelError,
    ModelTimeoutError,
    RateLimitedError,
    UnsupportedByModelError,
)
from grampus_uq.models.model_choice import open_model
from grampus_uq.models.openai_compatible import OpenAICompatibleModel
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ModelResponse, Role, ToolCall
from tests.models.conftest import Runner
from tests.models.loopback import (
    DEADLINES_S,
    Behaviour,
    Loopback,
    Reply,
    Request,
    as_json,
    chat,
    dripping,
    failing,
    good,
    hanging,
    refusing,
    serving,
    without_logprobs,
)

ASK: Sequence[Message] = (Message(role=Role.USER, content="Capital of France?"),)
KEY = "sk-very-secret-0123456789"


def ask(run: Runner, behaviour: Behaviour, *, times: int = 1, client: Any = None, **options: Any) -> Any:
    """Ask a server of this behaviour; returns the last answer, the server and the client."""
    with serving(behaviour) as server:
        model = OpenAICompatibleModel(server.api_base, **({"model": "tiny"} | (client or {})))

        async def main() -> ModelResponse:
            async with model:
                for _ in range(times - 1):
                    await model.complete(messages=ASK, **options)
                return await model.complete(messages=ASK, **options)

        return run(main), server, model


def failure(run: Runner, behaviour: Behaviour, **options: Any) -> tuple[ModelError, Loopback]:
    """What asking a server of this behaviour raises, and the server."""
    with serving(behaviour) as server:
        model = OpenAICompatibleModel(server.api_base, api_key=KEY, **options.pop("client", {}))

        async def main() -> None:
            async with model:
                await model.complete(messages=ASK, **options)

        with pytest.raises(ModelError) as caught:
            run(main)
        return caught.value, server


def test_an_answer_comes_with_text_usage_cost_and_log_probabilities(run: Runner) -> None:
    response, server, _ = ask(
        run, good, client={"prices": (1e-6, 2e-6), "api_key": KEY}, temperature=0.0, max_tokens=5, top_logprobs=2
    )
    assert response.content == "Paris"
    assert response.token_usage.total_tokens == 15
    assert response.token_usage.cost_usd == pytest.approx(12e-6 + 6e-6)
    assert response.logprobs[0].top == (("Paris", -0.1), ("Lyon", -2.5))
    request = server.requests[0]
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Capital of France?"}],
        "temperature": 0.0,
        "max_tokens": 5,
        "logprobs": True,
        "top_logprobs": 2,
    }


def test_it_is_a_model_client_and_a_call_may_name_another_model(run: Runner) -> None:
    _, server, client = ask(run, good, model="other")
    assert isinstance(client, ModelClient)
    assert server.requests[0].body["model"] == "other"
    assert "authorization" not in server.requests[0].headers


def test_further_parameters_are_sent_as_they_are_but_none_that_changes_the_form(run: Runner) -> None:
    _, server, _ = ask(run, good, seed=7, stop=["x"], top_p=None)
    assert server.requests[0].body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Capital of France?"}],
        "seed": 7,
        "stop": ["x"],
    }
    with pytest.raises(ConfigurationError, match="'stream'"):
        ask(run, good, stream=True)
    error, _ = failure(run, refusing("seed"), seed=7)
    assert isinstance(error, UnsupportedByModelError)
    assert error.parameter == "seed"


def test_a_tool_call_comes_back_as_a_value(run: Runner) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": '{"amount": 5}'}}
    tool = {"name": "pay", "description": "Pays.", "parameters": {"type": "object"}}
    response, server, _ = ask(run, lambda r, s: as_json(chat(None, tool_calls=[call])), tools=[tool])
    assert response.tool_calls == (ToolCall(id="c1", name="pay", arguments={"amount": 5}),)
    assert response.stop_reason == "tool_calls"
    assert server.requests[0].body["tools"] == [{"type": "function", "function": tool}]


def test_a_server_that_ignores_logprobs_leaves_them_missing(run: Runner) -> None:
    response, _, client = ask(run, without_logprobs, top_logprobs=5)
    assert response.logprobs is None
    assert client.capabilities().refused == {}


@pytest.mark.parametrize(
    ("behaviour", "options", "parameter", "absent"),
    [
        (refusing("temperature"), {"temperature": 0.7}, "temperature", ["temperature"]),
        (refusing("logprobs", status=403), {"top_logprobs": 5}, "logprobs", ["logprobs", "top_logprobs"]),
        (refusing("max_tokens"), {"max_tokens": 9}, "max_tokens", ["max_tokens"]),
    ],
)
def test_a_refused_parameter_is_left_out_and_learnt_once(
    run: Runner, behaviour: Behaviour, options: dict[str, Any], parameter: str, absent: list[str]
) -> None:
    response, server, client = ask(run, behaviour, times=3, **options)
    assert response.content == "Paris"
    assert server.hits == 4, "one refused call, then each of the three calls once"
    assert all(name not in request.body for request in server.requests[1:] for name in absent)
    assert "not supported with this model" in client.capabilities("tiny").refused[parameter]
    assert client.capabilities("another").refused == {}


def test_the_models_that_take_only_max_completion_tokens_get_that(run: Runner) -> None:
    _, server, _ = ask(run, refusing("max_tokens"), max_tokens=9)
    assert server.requests[1].body["max_completion_tokens"] == 9


def test_a_refusal_that_repeats_a_long_prompt_is_read_as_far_as_it_explains_itself(run: Runner) -> None:
    def refuse(request: Request, server: Loopback) -> Reply:
        words = {"message": "Unsupported: 'temperature'.", "input": "x" * 200_000}
        return as_json({"error": words}, 400) if "temperature" in request.body else good(request, server)

    _, server, client = ask(run, refuse, temperature=0.5)
    assert server.hits == 2
    assert list(client.capabilities().refused) == ["temperature"]


def test_everything_that_can_be_refused_at_once_is_left_out_in_one_call(run: Runner) -> None:
    response, server, client = ask(
        run, refusing("temperature", "logprobs", "max_tokens"), temperature=1.0, top_logprobs=20, max_tokens=3
    )
    assert response.content == "Paris"
    assert server.hits == 5
    assert set(client.capabilities().refused) == {"temperature", "logprobs", "max_tokens"}


def test_fewer_alternatives_are_asked_for_before_log_probabilities_are_given_up(run: Runner) -> None:
    def at_most_five(request: Request, server: Loopback) -> Reply:
        if request.body.get("top_logprobs", 0) > 5:
            return as_json({"error": "Requested sample logprobs of 20, which is greater than max allowed: 5"}, 400)
        return good(request, server)

    response, server, client = ask(run, at_most_five, times=2, top_logprobs=20)
    assert len(response.logprobs[0].top) == 5
    assert [request.body["top_logprobs"] for request in server.requests] == [20, 5, 5]
    assert (client.capabilities().most_logprobs, dict(client.capabilities().refused)) == (5, {})


def test_an_error_that_only_mentions_a_parameter_teaches_nothing(run: Runner) -> None:
    def policy(request: Request, server: Loopback) -> Reply:
        return as_json({"error": {"message": "Blocked prompt: 'what is the temperature in Paris'"}}, 400)

    with serving(policy) as server:
        client = OpenAICompatibleModel(server.api_base)

        async def main() -> None:
            for _ in range(2):
                with pytest.raises(ModelError, match="Blocked prompt"):
                    await client.complete(messages=ASK, temperature=0.5)
            server.behaviour = good
            await client.complete(messages=ASK, temperature=0.5)
            await client.aclose()

        run(main)
        assert client.capabilities().refused == {}
        assert server.requests[-1].body["temperature"] == 0.5


@pytest.mark.parametrize(
    ("parameter", "options"),
    [("tools", {"tools": [{"name": "f"}]}), ("response_format", {"response_format": {"type": "json_object"}})],
)
def test_what_cannot_be_left_out_is_refused_by_name(run: Runner, parameter: str, options: dict[str, Any]) -> None:
    error, server = failure(run, refusing(parameter), **options)
    assert isinstance(error, UnsupportedByModelError)
    assert (error.parameter, error.status, server.hits) == (parameter, 400, 1)


def test_a_validation_error_by_place_names_the_parameter(run: Runner) -> None:
    detail = {"detail": [{"loc": ["body", "response_format"], "msg": "extra fields not permitted"}]}
    error, _ = failure(run, lambda r, s: as_json(detail, 422), response_format={"type": "json_object"}, temperature=0.1)
    assert isinstance(error, UnsupportedByModelError)
    assert error.parameter == "response_format"


def test_a_rate_limit_says_how_long_to_wait_and_is_not_retried(run: Runner) -> None:
    error, server = failure(run, failing(429, headers={"retry-after": "7"}))
    assert isinstance(error, RateLimitedError)
    assert (error.retry_after_s, error.retryable, error.status, server.hits) == (7.0, True, 429, 1)
    assert "wait 7 s" in str(error)


@pytest.mark.parametrize(("status", "retryable"), [(500, True), (502, True), (503, True), (401, False), (404, False)])
def test_an_error_status_is_raised_once_with_the_servers_words(run: Runner, status: int, retryable: bool) -> None:
    error, server = failure(run, failing(status, b'{"error": {"message": "the words"}}'))
    assert (type(error), error.status, error.retryable, server.hits) == (ModelError, status, retryable, 1)
    assert "the words" in str(error)


def test_a_gateway_that_gave_up_waiting_is_a_timeout(run: Runner) -> None:
    error, _ = failure(run, failing(504, b"<html>Gateway Time-out</html>"))
    assert isinstance(error, ModelTimeoutError)


@pytest.mark.parametrize("behaviour", [hanging, dripping])
def test_a_server_that_never_finishes_meets_the_deadline(run: Runner, behaviour: Behaviour) -> None:
    for timeout_s in DEADLINES_S:
        error, server = failure(run, behaviour, timeout_s=timeout_s)
        assert isinstance(error, ModelTimeoutError)
        assert isinstance(error, TimeoutError)
        assert f"within {timeout_s:g} s" in str(error)
        if server.hits:
            break
    assert server.hits == 1


def test_the_deadline_counts_refused_attempts_too(run: Runner) -> None:
    def refuse_then_hang(request: Request, server: Loopback) -> Reply:
        return refusing("temperature")(request, server) if "temperature" in request.body else hanging(request, server)

    for timeout_s in DEADLINES_S:
        error, server = failure(run, refuse_then_hang, timeout_s=timeout_s, temperature=0.5)
        assert isinstance(error, ModelTimeoutError)
        if server.hits > 1:
            break
    assert server.hits == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>hi</html>", b'{"choices": [', b"[]", b"\xff\xfe", b'{"choices": []}', b"[" * 100_000],
    ids=["empty", "html", "cut", "array", "bytes", "no choices", "deep"],
)
def test_garbage_is_a_model_error(run: Runner, body: bytes) -> None:
    error, server = failure(run, failing(200, body))
    assert type(error) is ModelError
    assert error.retryable
    assert server.hits == 1


def test_an_answer_that_ends_before_its_stated_length_is_a_model_error(run: Runner) -> None:
    error, _ = failure(run, lambda r, s: Reply(200, iter([b'{"choices"']), {"content-length": "500"}))
    assert type(error) is ModelError
    assert "closed the connection" in str(error)


def endless() -> Iterator[bytes]:
    return repeat(b" " * 1_000_000)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, b"", {"content-length": "50000000"}),
        Reply(200, b"", {"content-length": "9" * 18}),
        Reply(200, gzip.compress(b" " * 50_000_000, compresslevel=1), {"content-encoding": "gzip"}),
        None,
    ],
    ids=["announced", "absurd", "compressed", "endless"],
)
def test_an_oversized_answer_is_refused_while_it_is_read(run: Runner, reply: Reply | None) -> None:
    error, _ = failure(run, lambda r, s: reply or Reply(200, endless()))
    assert type(error) is ModelError
    assert "more than the 8,000,000 bytes" in str(error)


def test_an_oversized_error_page_is_cut(run: Runner) -> None:
    error, _ = failure(run, lambda r, s: Reply(500, endless()))
    assert error.status == 500
    assert len(str(error)) < 500


def test_a_compressed_answer_is_read(run: Runner) -> None:
    body = gzip.compress(json.dumps(chat()).encode())
    response, _, _ = ask(run, lambda r, s: Reply(200, body, {"content-encoding": "gzip"}))
    assert response.content == "Paris"


def test_no_server_at_all_is_a_retryable_error_that_asks_whether_it_runs(run: Runner) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def main() -> None:
        await OpenAICompatibleModel(f"http://127.0.0.1:{port}/v1").complete(messages=ASK)

    with pytest.raises(ModelError, match=rf"127\.0\.0\.1:{port} cannot be reached.*Is it running") as caught:
        run(main)
    assert caught.value.retryable


def test_a_redirect_is_not_followed_so_the_key_stays_here(run: Runner) -> None:
    with serving(good) as other:
        error, _ = failure(run, failing(307, b"", {"location": f"{other.api_base}/chat/completions"}))
        assert "Correct api_base" in str(error)
        assert other.hits == 0


def test_secrets_are_in_no_message_and_no_repr(run: Runner) -> None:
    def echo(request: Request, server: Loopback) -> Reply:
        return as_json(
            {"error": {"message": f"bad key {request.headers['authorization']} {request.headers['x-org']}"}}, 401
        )

    error, server = failure(run, echo, client={"headers": {"x-org": "org-secret"}})
    assert server.requests[0].headers["x-org"] == "org-secret"
    assert "bad key" in str(error)
    client = OpenAICompatibleModel("http://127.0.0.1:1/v1?key=query-secret", api_key=KEY, headers={"x": "org-secret"})
    for text in (str(error), repr(error), repr(client), str(client)):
        assert not any(secret in text for secret in (KEY, "org-secret", "query-secret"))


@pytest.mark.parametrize("key", ["sk-a\nb", "sk-\x00", "sk-é"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        OpenAICompatibleModel("http://h/v1", api_key=key)
    assert "sk-" not in str(caught.value)


def test_a_key_read_from_a_file_with_its_newline_works(run: Runner) -> None:
    _, server, _ = ask(run, good, client={"api_key": f"{KEY}\n"})
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "api_base", ["", "localhost:8000", "ftp://h/v1", "http://", "http://h:99999/v1", "http://[::1/v1"]
)
def test_an_address_that_cannot_be_right_is_named(api_base: str) -> None:
    for build in (OpenAICompatibleModel, lambda address: open_model("m", api_base=address)):
        with pytest.raises(ConfigurationError, match="api_base"):
            build(api_base)


@pytest.mark.parametrize("rest", ["h/v1", "h:99999/v1", "/v1", "h:0?api-key=hunter2"])
def test_a_password_in_the_address_is_refused_without_being_shown(rest: str) -> None:
    with pytest.raises(ConfigurationError, match="api_") as caught:
        OpenAICompatibleModel(f"https://me:hunter2@{rest}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [("timeout_s", {"timeout_s": 0}), ("timeout_s", {"timeout_s": float("nan")}), ("prices", {"prices": (2.5, 10.0)})],
)
def test_settings_that_cannot_be_right_are_named(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}'"):
        OpenAICompatibleModel("http://h/v1", **options)


def test_the_query_of_the_address_is_kept(run: Runner) -> None:
    with serving(good) as server:

        async def main() -> None:
            async with OpenAICompatibleModel(f"{server.api_base}/?api-version=2") as model:
                await model.complete(messages=ASK)

        run(main)
        assert server.requests[0].path == "/v1/chat/completions?api-version=2"


def test_a_cancelled_call_leaves_the_client_usable_and_no_connection_open(run: Runner) -> None:
    def first_hangs(request: Request, server: Loopback) -> Reply:
        return hanging(request, server) if server.hits == 1 else good(request, server)

    with serving(first_hangs) as server:
        model = OpenAICompatibleModel(server.api_base)

        async def main() -> str:
            async with model:
                async with anyio.create_task_group() as group:
                    group.start_soon(lambda: model.complete(messages=ASK))
                    await anyio.to_thread.run_sync(server.wait_for, lambda: server.hits == 1)
                    group.cancel_scope.cancel()
                return (await model.complete(messages=ASK)).content

        assert run(main) == "Paris"
        server.stop.set()
        assert server.wait_for(lambda: server.open_connections == 0)


def test_many_calls_at_once_each_get_their_own_answer(run: Runner) -> None:
    def echo(request: Request, server: Loopback) -> Reply:
        return as_json(chat(request.body["messages"][0]["content"]))

    with serving(echo) as server:
        seen: dict[str, str] = {}

        async def main() -> None:
            async with OpenAICompatibleModel(server.api_base) as model:

                async def one(text: str) -> None:
                    seen[text] = (await model.complete(messages=[Message(role=Role.USER, content=text)])).content

                async with anyio.create_task_group() as group:
                    for i in range(40):
                        group.start_soon(one, f"question {i}")

        run(main)
        assert seen == {f"question {i}": f"question {i}" for i in range(40)}


def test_connections_are_reused_and_closed_when_the_loop_ends_without_aclose(run: Runner) -> None:
    with serving(good) as server:
        model = OpenAICompatibleModel(server.api_base)

        async def main() -> None:
            for _ in range(3):
                await model.complete(messages=ASK)
            assert server.open_connections == 1

        run(main)
        assert server.wait_for(lambda: server.open_connections == 0)
        run(main)  # the same client on a new loop
        assert server.wait_for(lambda: server.open_connections == 0)
        assert server.hits == 6
    gc.collect()  # an unclosed socket would warn here, and warnings are errors


def test_threads_with_their_own_loops_may_share_one_client(run: Runner) -> None:
    with serving(good) as server:
        model = OpenAICompatibleModel(server.api_base)

        def worker(_: int) -> str:
            async def main() -> str:
                await model.complete(messages=ASK)
                return (await model.complete(messages=ASK)).content

            return str(run(main))

        with ThreadPoolExecutor(6) as pool:
            assert set(pool.map(worker, range(12))) == {"Paris"}
        assert server.wait_for(lambda: server.open_connections == 0)
