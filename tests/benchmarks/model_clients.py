"""What the model clients cost: the overhead of a call, and the embedded model's fetch, start and speed.

python -m tests.benchmarks.model_clients [--json] [--calls 200] [--skip-local] [--skip-litellm] [--fetch]

The overhead is measured against a server on loopback that answers at once, beside bare httpx on the same server. With
`--fetch` the embedded model's file is fetched into an empty folder, as on a first run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx

from grampus_uq.models import LiteLLMModel, LocalModel, OpenAICompatibleModel
from grampus_uq.models.model_file import SMOLLM2, find_model_file
from grampus_uq.records.values import Message, Role
from tests.benchmarks._report import emit
from tests.models.loopback import good, serving

Row = dict[str, Any]
ASK = (Message(role=Role.USER, content="What is the capital of France? Answer with one word."),)
STORY = (Message(role=Role.USER, content="Write a long story about a ship and its crew."),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--skip-local", action="store_true")
    parser.add_argument("--skip-litellm", action="store_true")
    parser.add_argument("--fetch", action="store_true")
    options = parser.parse_args()
    rows: list[Row] = anyio.run(overhead, options.calls, not options.skip_litellm)
    if options.fetch:
        rows.append(fetch())
    if not options.skip_local:
        rows += anyio.run(local)
    emit("model_clients", rows, options.json)


async def overhead(calls: int, with_litellm: bool) -> list[Row]:
    rows = []
    with serving(good) as server:
        url = f"{server.api_base}/chat/completions"
        body = {"model": "tiny", "messages": [{"role": "user", "content": ASK[0].content}], "logprobs": True}
        async with httpx.AsyncClient(trust_env=False) as bare:
            rows.append(await timed("bare httpx", calls, lambda: bare.post(url, json=body)))
        async with OpenAICompatibleModel(server.api_base, model="tiny") as model:
            rows.append(
                await timed("OpenAICompatibleModel", calls, lambda: model.complete(messages=ASK, top_logprobs=5))
            )
        if with_litellm:
            lite = LiteLLMModel("openai/tiny", api_base=server.api_base, api_key="x")
            begun = time.perf_counter()
            await lite.warmup()
            rows.append({"case": "litellm warmup", "s": time.perf_counter() - begun})
            rows.append(await timed("LiteLLMModel", calls, lambda: lite.complete(messages=ASK, top_logprobs=5)))
    return rows


async def timed(case: str, calls: int, ask: Callable[[], Awaitable[object]]) -> Row:
    for _ in range(5):
        await ask()
    spent = []
    for _ in range(calls):
        begun = time.perf_counter()
        await ask()
        spent.append(1e3 * (time.perf_counter() - begun))
    return {"case": case, "ms_median": statistics.median(spent), "ms_best": min(spent), "n": calls}


def fetch() -> Row:
    with tempfile.TemporaryDirectory() as empty:
        os.environ["GRAMPUS_UQ_CACHE"] = empty
        begun = time.perf_counter()
        path = find_model_file(lambda stage, done, total: None)
        taken = time.perf_counter() - begun
        del os.environ["GRAMPUS_UQ_CACHE"]
        here = Path(empty) in path.parents
        return {
            "case": "fetch" if here else "found installed",
            "s": taken,
            "bytes": path.stat().st_size,
            "sha256": SMOLLM2.sha256,
        }


async def local() -> list[Row]:
    starts = []
    for _ in range(3):
        model = LocalModel(timeout_s=300)
        begun = time.perf_counter()
        await model.warmup()
        starts.append(time.perf_counter() - begun)
        await model.aclose()
    rows: list[Row] = [{"case": "local start", "s": min(starts), "n": 3}]
    async with LocalModel(timeout_s=300) as model:
        rows.append({"case": "local memory", "bytes": resident_bytes(model.pid)})
        rows.append(await timed("local answer, prompt cached", 10, lambda: model.complete(messages=ASK, max_tokens=4)))
        speeds = [await generate(model, 1) for _ in range(3)]
        rows.append({"case": "local generation", "tokens_per_s": max(speeds), "n": 3})
        rows.append({"case": "local generation, 4 at once", "tokens_per_s": await generate(model, 4)})
        rows.append({"case": "local prompt", "tokens_per_s": await read_prompt(model)})
    return rows


async def generate(model: LocalModel, parallel: int) -> float:
    tokens = 0

    async def one() -> None:
        nonlocal tokens
        reply = await model.complete(messages=STORY, max_tokens=64, temperature=0.0)
        tokens += reply.token_usage.output_tokens

    begun = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(parallel):
            group.start_soon(one)
    return tokens / (time.perf_counter() - begun)


async def read_prompt(model: LocalModel) -> float:
    text = " ".join(f"{i} ships sail to port {i * 7 % 13}." for i in range(100))
    begun = time.perf_counter()
    reply = await model.complete(messages=[Message(role=Role.USER, content=text)], max_tokens=1)
    return reply.token_usage.input_tokens / (time.perf_counter() - begun)


def resident_bytes(pid: int | None) -> int | None:
    """Memory of a process, None where the system does not say it in a file."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return None
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
