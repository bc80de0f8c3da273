"""The embedded model: what is refused before anything starts, and (slow) the real thing from start to killed server."""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from grampus_uq.errors import ConfigurationError, ModelError, ModelTimeoutError
from grampus_uq.models.local_model import LocalModel
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ModelResponse, Reading, Role, Step, ToolCall
from grampus_uq.signals.call_reader import Reader
from grampus_uq.signals.driver import Budget, MeteredContext
from tests.models.conftest import Runner

pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'demo'")

CAPITAL: Sequence[Message] = (Message(role=Role.USER, content="What is the capital of France? Answer with one word."),)


def alive(pid: int) -> bool:
    """True while the process runs; one that has ended but was not waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def used_s(pid: int) -> float:
    """The seconds of a processor that a process has used: on a busy machine they are no more."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until_gone(pid: int, timeout_s: float = 120.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_a_context_that_cannot_be_right_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'context_tokens'"):
        LocalModel(context_tokens=0)


def test_a_file_named_by_hand_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAMPUS_UQ_MODEL_FILE", raising=False)
    assert repr(LocalModel()) == "LocalModel('smollm2-135m-instruct')"
    monkeypatch.setenv("GRAMPUS_UQ_MODEL_FILE", "/models/other.gguf")
    assert repr(LocalModel()) == "LocalModel('/models/other.gguf')"


def test_nothing_starts_before_it_is_needed() -> None:
    model = LocalModel()
    assert isinstance(model, ModelClient)
    assert model.pid is None
    assert model.capabilities().refused == {}
    model.close()


def test_a_file_that_is_no_model_is_refused_at_the_first_call_and_again(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"hello")
    model = LocalModel(model_file=tmp_path / "no.gguf")

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="a GGUF file"):
                await model.complete(messages=CAPITAL)

    run(main)


def test_a_broken_model_file_gives_the_servers_last_output_and_leaves_no_process(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(500))
    model = LocalModel(model_file=tmp_path / "broken.gguf")

    async def main() -> None:
        with pytest.raises(ModelError, match=r"could not be loaded\. Its last output: .*load"):
            await model.complete(messages=CAPITAL)

    run(main)
    assert model.pid is None


def test_a_deadline_holds_while_the_model_is_still_starting(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(500))
    model = LocalModel(model_file=tmp_path / "broken.gguf")

    async def main() -> None:
        with pytest.raises(ModelTimeoutError, match="not ready within"):
            await model.complete(messages=CAPITAL, timeout_s=0.01)

    run(main)
    model.close()


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    """One server for the module; `close` at the end is part of what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GRAMPUS_UQ_MODEL_FILE", raising=False)
        one = LocalModel(timeout_s=280)
        yield one
        pid = one.pid
        one.close()
        assert pid is None or wait_until_gone(pid)


@pytest.mark.slow
def test_it_answers_with_log_probabilities_and_usage(run: Runner, model: LocalModel) -> None:
    async def main() -> ModelResponse:
        return await model.complete(messages=CAPITAL, temperature=0.0, max_tokens=8, top_logprobs=5)

    response = run(main)
    assert "Paris" in response.content
    assert response.token_usage.input_tokens > 10
    assert response.token_usage.cost_usd == 0.0
    assert response.logprobs is not None
    assert len(response.logprobs) == response.token_usage.output_tokens or response.stop_reason == "stop"
    for token in response.logprobs:
        assert len(token.top) == 5
        assert token.logprob <= 0.0
        assert math.fsum(math.exp(value) for _, value in token.top) <= 1.0 + 1e-6


@pytest.mark.slow
def test_four_calls_at_once_are_all_answered(run: Runner, model: LocalModel) -> None:
    answers: dict[str, str] = {}

    async def ask(country: str) -> None:
        question = f"What is the capital of {country}? Answer with one word."
        answers[country] = (
            await model.complete(messages=[Message(role=Role.USER, content=question)], temperature=0.0, max_tokens=8)
        ).content

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for country in ("France", "Italy", "Germany", "Spain"):
                group.start_soon(ask, country)

    run(main)
    hits = [("France", "Paris"), ("Italy", "Rome"), ("Germany", "Berlin"), ("Spain", "Madrid")]
    assert sum(capital in answers[country] for country, capital in hits) >= 3


@pytest.mark.slow
def test_a_response_format_is_kept(run: Runner, model: LocalModel) -> None:
    schema = {"type": "object", "properties": {"p": {"type": "number"}}, "required": ["p"]}
    asked = {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}

    async def main() -> str:
        shaped = await model.complete(messages=CAPITAL, response_format=asked, max_tokens=40, temperature=0.0)
        return shaped.content

    assert set(json.loads(run(main))) == {"p"}


@pytest.mark.slow
def test_a_prompt_beyond_the_context_is_an_error_and_not_a_hang(run: Runner, model: LocalModel) -> None:
    async def main() -> None:
        with pytest.raises(ModelError, match="context"):
            await model.complete(messages=[Message(role=Role.USER, content="word " * 6_000)])

    run(main)


@pytest.mark.slow
def test_a_cancelled_call_frees_the_server(run: Runner, model: LocalModel) -> None:
    story = [Message(role=Role.USER, content="Write a very long story about the sea.")]

    async def main() -> float:
        await model.warmup()
        for _ in range(4):
            with anyio.move_on_after(0.5):
                await model.complete(messages=story, max_tokens=1_500)
        assert model.pid is not None
        before = used_s(model.pid)
        await model.complete(messages=CAPITAL, max_tokens=2, timeout_s=800)
        return used_s(model.pid) - before

    assert run(main) < 10.0  # a quarter of a second; behind four stories that go on it is a minute


@pytest.mark.slow
def test_a_killed_server_is_named_and_a_closed_model_starts_again(run: Runner) -> None:
    model = LocalModel()

    async def main() -> None:
        await model.warmup()
        first = model.pid
        assert first is not None
        async with anyio.create_task_group() as group:

            async def interrupted() -> None:
                with pytest.raises(ModelError, match="was killed by signal 9"):
                    await model.complete(
                        messages=[Message(role=Role.USER, content="Tell a long story.")], max_tokens=500
                    )

            os.kill(first, signal.SIGSTOP)  # however quick it is, it answers nothing before it is killed
            group.start_soon(interrupted)
            await anyio.sleep(1.0)
            os.kill(first, signal.SIGKILL)
        with pytest.raises(ModelError, match=r"was killed by signal 9\. Close the model"):
            await model.complete(messages=CAPITAL)
        assert await anyio.to_thread.run_sync(wait_until_gone, first)
        await model.aclose()
        assert (await model.complete(messages=CAPITAL, max_tokens=4)).content
        assert model.pid not in (None, first)
        await model.aclose()

    run(main)


@pytest.mark.slow
def test_a_cancelled_start_goes_on_for_the_next_caller(run: Runner) -> None:
    model = LocalModel()

    async def main() -> str:
        with anyio.move_on_after(0.02) as scope:
            await model.warmup()
        assert scope.cancelled_caught
        return (await model.complete(messages=CAPITAL, max_tokens=4)).content

    assert run(main)
    model.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exit", "kill", "exception"])
def test_the_server_ends_with_its_parent_however_that_ends(how: str) -> None:
    ending = {"exit": "", "kill": "os.kill(os.getpid(), 9)", "exception": "raise SystemError('end')"}[how]
    program = f"""
import anyio, os
from grampus_uq.models import LocalModel
model = LocalModel()
anyio.run(model.warmup)
print(model.pid, flush=True)
{ending}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert wait_until_gone(int(done.stdout)), done.stderr


@pytest.mark.slow
def test_a_model_that_nobody_holds_any_longer_ends_its_server() -> None:
    model = LocalModel()
    anyio.run(model.warmup)
    pid = model.pid
    assert pid is not None
    assert alive(pid)
    del model
    gc.collect()
    assert wait_until_gone(pid)


@pytest.mark.slow
def test_the_key_of_the_server_is_not_on_its_command_line(model: LocalModel) -> None:
    anyio.run(model.warmup)
    command = Path(f"/proc/{model.pid}/cmdline").read_bytes().split(b"\0")
    assert len([part for part in command if part]) == 3, "python, -P, the program: nothing else"


@pytest.mark.slow
def test_the_embedded_model_writes_a_given_call_and_says_which_value_surprises_it() -> None:
    """By a grammar of one sentence; probabilities are those before the grammar, so a wrong value is unlikely."""
    prompt = [
        Message(role=Role.SYSTEM, content="Cancel what the customer asks for."),
        Message(role=Role.USER, content="Please cancel order 7731. Order 4402 was fine."),
    ]

    async def read(order: str) -> Reading:
        call = ToolCall(id="c", name="cancel_order", arguments={"order": order})
        step = Step(step_id="s", kind="llm_call", time_s=0.0, tool_calls=(call,))
        context = MeteredContext(messages=prompt, client=model, model="", budget=Budget(timeout_s=280.0))
        return await Reader(client=model).sense(step, context)

    async def main() -> None:
        right, wrong = await read("7731"), await read("9158")
        assert [part.name for part in right.parts] == [part.name for part in wrong.parts] == ["", "order"]
        assert right.parts[1].probability > 10 * wrong.parts[1].probability

    model = LocalModel()
    try:
        anyio.run(main)
    finally:
        model.close()
