"""What one step costs in a TRACER stream that already holds N steps.

    python tests/benchmarks/tracer_stream.py [--json]

Rows: `stream` (tail mean; the whole stream with its step risk; both bounded in memory), `steps`, and the median
microseconds of an update over blocks of 500 calls, from N = 100 to a million steps.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.stats.tail_sketch import TailSketch, tail_update
from grampus_uq.stats.trajectory_risk import StepComponents, TracerParameters, tracer_start, tracer_update
from tests.benchmarks._report import emit

BLOCK, BLOCKS = 500, 11


def microseconds(call: Callable[[Any], object], values: Sequence[Any]) -> float:
    """Median over blocks of the mean time of one call."""
    times = []
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        begun = time.perf_counter()
        for value in block:
            call(value)
        times.append((time.perf_counter() - begun) / len(block) * 1e6)
    return median(times)


def rows(largest: int) -> Iterator[dict[str, Any]]:
    """Time each stream at each length."""
    rng = random.Random(0)
    risks = [rng.random() for _ in range(BLOCK * BLOCKS)]
    steps = [StepComponents(is_agent=True, repetition=risk, agent_gap=rng.random()) for risk in risks]
    for size in (size for size in (100, 10_000, 100_000, 1_000_000) if size <= largest):
        before = [rng.random() for _ in range(size)]
        earlier = (StepComponents(is_agent=True, repetition=risk) for risk in before)
        tracer = partial(tracer_update, TracerParameters())
        streams: list[tuple[str, Callable[[Any], object], Sequence[Any]]] = [
            ("tail mean", partial(tail_update, TailSketch.of(0.1, before)), risks),
            ("tracer", partial(tracer, reduce(tracer, earlier, tracer_start(TracerParameters()))), steps),
        ]
        for name, update, values in streams:
            yield {"stream": name, "steps": size, "update_us": microseconds(update, values)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=100_000, help="longest run that is timed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    emit("tracer_stream", rows(options.largest), options.json)


if __name__ == "__main__":
    main()
