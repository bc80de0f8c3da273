"""What an adapter costs: a framework's own step with the monitor, against hooks that do nothing, and against no hook.

A run is an agent's turns with one tool call each, and an answer; no model is called and the tool does nothing, so the
framework's own work is all that the adapter's is compared with: a real run spends seconds in models beside it. The
kinds of run take turns in random order; printed are the medians over the rounds of the processor's time (all threads),
per turn of the model, and of the ratios within each round; beside them the ratios of the quickest run of a kind to the
quickest without any hook, since what else works on a machine only adds. Each framework has a module of its own beside
this one, `integrations_NAME`, with a function `pair`.

    python -m tests.benchmarks.integrations [--rounds 200] [--turns 6] [--only NAME] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from rich.progress import track

from tests.benchmarks._report import emit

FRAMEWORKS = ("langgraph", "langchain", "openai_agents", "pydantic_ai")
LIMIT = 1.25
Run = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A framework's run with the monitor, and the same run with hooks that do nothing in the adapter's places.

    All take a number that no other run has, and `forget` drops what was kept of it, outside the measured time. `hooks`
    says what stands in the adapter's places; `plain` is the run of the agent as it is without any: the limit is on
    the ratio to it.
    """

    watched: Run
    bare: Run
    hooks: str
    plain: Run
    forget: Callable[[int], None] = lambda _: None


async def measure(name: str, pair: Pair, rounds: int, turns: int, rng: Random) -> dict[str, Any]:
    """Interleave the kinds of run, and compare them within each round."""
    kinds = {"watched": pair.watched, "bare": pair.bare, "plain": pair.plain}
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    gc.collect()
    for number in track(range(-5, rounds), description=name, disable=not sys.stderr.isatty()):
        order = list(kinds)
        rng.shuffle(order)
        for kind in order:
            run = 3 * (number + 5) + list(kinds).index(kind)
            started = time.process_time()
            await kinds[kind](run)
            if number >= 0:  # the first rounds warm up
                took[kind].append(time.process_time() - started)
            pair.forget(run)
    ratios = [watched / bare for watched, bare in zip(took["watched"], took["bare"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    to_plain = [watched / plain for watched, plain in zip(took["watched"], took["plain"], strict=True)]
    return {
        "framework": name,
        "hooks": pair.hooks,
        "rounds": rounds,
        "watched_cpu_ms_a_turn": 1e3 * statistics.median(took["watched"]) / turns,
        "bare_cpu_ms_a_turn": 1e3 * statistics.median(took["bare"]) / turns,
        "ratio": statistics.median(ratios),
        "ratio_lower_quartile": low,
        "ratio_upper_quartile": high,
        "ratio_to_plain": statistics.median(to_plain),
        "quickest_to_plain": min(took["watched"]) / min(took["plain"]),
        "quickest_bare_to_plain": min(took["bare"]) / min(took["plain"]),
        "limit": LIMIT,
        "holds": statistics.median(to_plain) <= LIMIT,
    }


async def main(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for name in options.only or FRAMEWORKS:
        module = importlib.import_module(f"tests.benchmarks.integrations_{name}")
        rows.append(
            await measure(name, module.pair(options.turns), options.rounds, options.turns, Random(options.seed))
        )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=FRAMEWORKS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    emit("integrations", asyncio.run(main(given)), given.json)
