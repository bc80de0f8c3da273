"""What watching costs: a step with and without spans beside a bare span, the slow path, the state, many sessions.

A bare span is what an application would write itself: `with tracer.start_as_current_span(name, attributes={...})` with
the attributes and the evaluation event of our estimate span, on the same in-memory exporter. The kinds of step take
turns one by one in random order: an agent's steps are seconds apart, so none of them finds its code in the processor's
cache as it would in a loop of its own, and whatever disturbs the machine disturbs all of them alike. Printed are the
medians over the rounds of the median turn, and of the ratio within each round. Spans are cleared between rounds.

`--blocks` lets each kind take its turns of a round in a row instead. All are quicker then, the bare span the most: its
little code stays in the processor's nearest cache, which a step together with its span does not fit into.

    python -m tests.benchmarks.step_overhead [--rounds 60] [--blocks] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rich.progress import track

from grampus_uq import (
    GrampusTracer,
    Message,
    Reading,
    Role,
    Sensing,
    Step,
    TokenLogprob,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.core.state import state_to_json
from grampus_uq.testing import ScriptedModel
from tests.benchmarks._report import emit

TURNS_A_ROUND = 100
TEXT = 'The capital of France is Paris. {"answer": "Paris", "confidence": 0.97}'
PROMPT = (Message(role=Role.USER, content="What is the capital of France?"),)
Case = Callable[[], Awaitable[None]]


class Cases:
    """The five kinds of step that take turns, each on a session of its own; all spans go to one exporter."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = GrampusTracer(service_name="bench", span_processor=SimpleSpanProcessor(self.exporter))
        self.plain = UncertaintyMonitor().session("session-1", "agent-1")
        self.traced = UncertaintyMonitor(tracer=self.tracer).session("session-1", "agent-1")
        self.all: dict[str, Case] = {
            "llm_step": self.llm_step,
            "llm_step_traced": self.llm_step_traced,
            "tool_step": self.tool_step,
            "tool_step_traced": self.tool_step_traced,
            "bare_span": self.bare_span,
        }

    async def llm_step(self) -> None:
        """A model's step that states a confidence; no model is asked."""
        await self.plain.observe_llm_response(TEXT, "llm_1")

    async def llm_step_traced(self) -> None:
        """The same step with its estimate span."""
        await self.traced.observe_llm_response(TEXT, "llm_1")

    async def tool_step(self) -> None:
        """A tool that is about to be called."""
        await self.plain.observe_tool_call("search", "tool_1")

    async def tool_step_traced(self) -> None:
        """The same step with its estimate span."""
        await self.traced.observe_tool_call("search", "tool_1")

    async def bare_span(self) -> None:
        """A span of an application's own, with what the estimate span of a model's step carries."""
        with self.tracer._tracer.start_as_current_span(
            "uncertainty.estimate",
            attributes={
                "session_id": "session-1",
                "agent_id": "agent-1",
                "step_id": "llm_1",
                "step_type": "llm_call",
                "verbalized_confidence": 0.97,
                "p_true_confidence": -1.0,
                "fused_confidence": 0.7275,
                "propagated_confidence": 0.7275,
                "level": "medium",
                "action": "proceed_with_log",
                "p_true_ran": False,
                "samples_used": 0,
                "rule": "tier",
                "missing_reason": "token_probability: no_logprobs; token_entropy: no_logprobs",
                "gen_ai.conversation.id": "session-1",
                "gen_ai.operation.name": "evaluate",
                "openinference.span.kind": "EVALUATOR",
                "gen_ai.agent.name": "agent-1",
                "uncertainty.level": "medium",
                "uncertainty.action": "proceed_with_log",
                "uncertainty.confidence.fused": 0.7275,
                "uncertainty.confidence.propagated": 0.7275,
            },
        ) as span:
            span.add_event(
                "gen_ai.evaluation.result",
                {
                    "gen_ai.evaluation.name": "uncertainty.confidence.fused",
                    "gen_ai.evaluation.score.value": 0.7275,
                    "gen_ai.evaluation.score.label": "medium",
                },
            )

    async def emitted(self, name: str) -> int:
        """How many spans one turn of a case emits; for a model's step their attributes must be the bare span's."""
        self.exporter.clear()
        await self.all[name]()
        spans = self.exporter.get_finished_spans()
        if name == "llm_step_traced":
            self.exporter.clear()
            await self.bare_span()
            (bare,) = self.exporter.get_finished_spans()
            if _keys(spans[0]) != _keys(bare):
                raise RuntimeError("The bare span no longer has what the estimate span has: bring it up to date.")
        return len(spans)


def _keys(span: ReadableSpan) -> list[set[str]]:
    """The keys of a span's attributes, and of each of its events'."""
    return [set(span.attributes or ()), *(set(event.attributes or ()) for event in span.events)]


async def step_costs(rounds: int, *, blocks: bool) -> list[dict[str, Any]]:
    """Microseconds a step, and its ratio to the bare cost of the spans that the step emits (to one, when none)."""
    cases, random = Cases(), Random(0)
    turns = [*cases.all.items()]
    spans = {name: await cases.emitted(name) for name in cases.all}
    costs: dict[str, list[float]] = {name: [] for name in cases.all}
    for warm in track([False, *[True] * rounds], "steps", disable=not sys.stderr.isatty()):
        cases.exporter.clear()
        gc.collect()
        taken: dict[str, list[int]] = {name: [] for name in cases.all}
        random.shuffle(turns)
        schedule = turns * TURNS_A_ROUND
        if blocks:
            schedule = [turn for turn in turns for _ in range(TURNS_A_ROUND)]
        else:
            random.shuffle(schedule)
        for name, case in schedule:
            started = time.perf_counter_ns()
            await case()
            taken[name].append(time.perf_counter_ns() - started)
        if warm:
            for name, values in taken.items():
                costs[name].append(statistics.median(values) / 1e3)
    return [
        {
            "case": name,
            "us": statistics.median(values),
            "ratio_to_bare_span": statistics.median(
                value / (bare * max(1, spans[name])) for value, bare in zip(values, costs["bare_span"], strict=True)
            ),
        }
        for name, values in costs.items()
    ]


async def long_completion(name: str, calls: tuple[ToolCall, ...], n: int = 1000) -> dict[str, Any]:
    """Milliseconds on the event loop for a step of n tokens with five alternatives each."""
    random, words = (
        Random(0),
        [
            "",
            "The",
            "refund",
            "of",
            "order",
            "4711",
            "is",
            "due",
            ";",
            "pay",
            "(",
            ")",
            "{",
            "}",
            "amount",
            ":",
            "12",
            ".",
        ],
    )
    tokens = []
    for _ in range(n):
        word, p = " " + random.choice(words), random.uniform(0.3, 1.0)
        others = tuple((f"other{k}", math.log((1.0 - p) / 5.0)) for k in range(4))
        tokens.append(TokenLogprob(token=word, logprob=math.log(p), top=((word, math.log(p)), *others)))
    text, session, took = "".join(token.token for token in tokens), UncertaintyMonitor().session("s"), []
    for turn in range(41):
        started = time.perf_counter()
        await session.observe_llm_response(
            text, f"llm_{turn}", prompt_messages=PROMPT, tool_calls=calls, logprobs=tuple(tokens)
        )
        took.append((time.perf_counter() - started) * 1e3)
    return {"case": name, "ms": statistics.median(took[1:])}


async def slow_path(name: str, samples: tuple[str, ...], *, speculative: bool) -> dict[str, Any]:
    """Milliseconds from P(True) to the assessment with a model that takes 50 ms a call."""
    policy = UncertaintyPolicy(enable_semantic_sampling=True)
    session = UncertaintyMonitor(policy=policy, sensing=Sensing(speculative=speculative)).session("s")
    took = []
    for n in range(9):
        drawn = iter(samples)
        model = ScriptedModel(
            lambda _, options, drawn=drawn: next(drawn) if options["temperature"] else '{"p_true": 0.7}', delay_s=0.05
        )
        started = time.perf_counter()
        assessment, _ = await session.observe_llm_response(
            '{"confidence": 0.7}', f"llm_{n}", prompt_messages=PROMPT, model_client=model, model_id="m"
        )
        took.append((time.perf_counter() - started) * 1e3)
        if assessment.samples_used != len(samples):
            raise RuntimeError(f"{name}: {assessment.samples_used} samples were drawn instead of {len(samples)}.")
    return {"case": name, "ms": statistics.median(took[1:])}


async def many_sessions(n: int = 1000, steps: int = 20) -> dict[str, Any]:
    """Steps a second over n concurrent sessions of one monitor, each a task that lets the others run after a step."""
    monitor = UncertaintyMonitor()

    async def run(name: str) -> None:
        session = monitor.session(name)
        for k in range(steps // 2):
            await session.observe_llm_response(TEXT, f"llm_{k}")
            await asyncio.sleep(0)
            await session.observe_tool_call("search", f"tool_{k}")
            await asyncio.sleep(0)

    rates = []
    for _ in range(5):
        gc.collect()
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(n):
                group.create_task(run(f"s{number}"))
        rates.append(n * steps / (time.perf_counter() - started))
    return {"case": f"sessions_{n}", "per_s": statistics.median(rates)}


def state_sizes() -> list[dict[str, Any]]:
    """Bytes of the state as it is stored, after runs of two lengths."""
    session, rows = UncertaintyMonitor().session("session-1", "agent-1"), []
    for n in range(1, 10_001):
        readings = [Reading(source="verbalized", value=(n * 7919 % 1000) / 1000)] if n % 2 else []
        kind = "llm_call" if n % 2 else "tool_call"
        session.commit(Step(step_id=f"step_{n}", kind=kind, time_s=float(n)), readings)
        if n in (1000, 10_000):
            rows.append({"case": f"state_{n}", "bytes": len(state_to_json(session.state))})
    return rows


async def measure(rounds: int, *, blocks: bool) -> list[dict[str, Any]]:
    """All rows."""
    rows = await step_costs(rounds, blocks=blocks)
    agree, five = ("Paris", "Paris"), ("Paris", "Rome", "Paris", "Paris", "Rome")
    for name, samples, speculative in (
        ("slow_agree", agree, False),
        ("slow_five", five, False),
        ("speculative_agree", agree, True),
        ("speculative_five", five, True),
    ):
        rows.append(await slow_path(name, samples, speculative=speculative))
    rows.append(await long_completion("logprobs_1000", ()))
    rows.append(await long_completion("logprobs_1000_call", (ToolCall(name="pay", arguments={"amount": 12}),)))
    rows.append(await many_sessions())
    return rows + state_sizes()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="rounds in which the kinds of step take turns")
    parser.add_argument("--blocks", action="store_true", help="let each kind of step take its turns in a row")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    emit("step_overhead", asyncio.run(measure(given.rounds, blocks=given.blocks)), given.json)


if __name__ == "__main__":
    main()
