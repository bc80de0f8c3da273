"""What rolling back is worth: success, coverage and cost over injected failures, against Top-1 and starting again.

    python -m tests.benchmarks.rollback [--failures 200] [--calibration 59] [--steps 8] [--slip 0.02] [--json]

A scripted agent adds prices, one a step, on an AgentRunner. Faults are put into runs that went well
(`injected_failures`, beside this file); the failures are parted at random into calibration (part of it fits the step
scorer) and test, and every test failure is run on from the same stored state in each way. The step that errs assumes
something in so many words with probability .7, any other step with .15. In a new branch every step errs anew with
probability `--slip`, so that running more again costs more than steps; an error that stays before the restart stays
for good.
Rows: `method`, `level`, `success`, `set_coverage` (the set holds the error), `coverage` (the restart is not behind it:
at least as often, because a set that begins with an observation restarts at the step whose observation it is),
`steps_again`, `cost` (steps run again, as a share of starting again), `empty_share`. An empty set restarts at the most
suspect step.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio
import numpy as np

from grampus_uq.learn.attribution import (
    METHODS,
    Attribution,
    LabelledTrajectory,
    Plan,
    fit_and_calibrate,
    locate,
)
from grampus_uq.records.values import AgentDefinition, Message, ModelResponse, ToolCall
from grampus_uq.records.vocabulary import Role
from grampus_uq.runtime.rollback import recover, rollback
from grampus_uq.runtime.run_state import ExecutionResult
from grampus_uq.runtime.runner import UNWATCHED, AgentRunner
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.tools import FunctionTools, tool
from grampus_uq.testing import ScriptedModel, answer
from tests.benchmarks._report import emit
from tests.benchmarks.injected_failures import InjectedFailure, Injection, inject, label_run

AGENT = AgentDefinition(name="clerk", system_prompt="You add up prices.", max_iterations=200)
OBEYS, HEDGES_WRONG, HEDGES_RIGHT = 0.85, 0.7, 0.15
TRIED = (METHODS["lf_envelope"], METHODS["lf"])
LEVELS = (0.8, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An injected failure, its label, and the store that holds it."""

    found: InjectedFailure
    labelled: LabelledTrajectory
    store: SessionStore


def chance(*key: object) -> float:
    """A uniform number in [0, 1) that depends on the key alone, so that every way back meets the same luck."""
    head = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return (int.from_bytes(head) >> 11) / 2.0**53


def clerk(name: str, steps: int, slip: float) -> ScriptedModel:
    """The agent of one session; it errs when it obeys a fault, and by itself only in a branch after the first."""

    def reply(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        said = [message for message in messages if message.role is Role.ASSISTANT]
        branch = max((int(str(m.metadata.get("rollback", 0))) for m in messages), default=0)
        step = len(said)
        told = "make one mistake" in (messages[-1].content or "")
        errs = (told and chance(name, step, "obeys") < OBEYS) or (branch > 0 and chance(name, step, "slip") < slip)
        if step == steps:
            wrong = errs or any((message.content or "").endswith(",") for message in said)
            return answer("total: wrong" if wrong else "total: right")
        hedges = chance(name, step, branch, "hedges") < (HEDGES_WRONG if errs else HEDGES_RIGHT)
        text = f"{'I assume' if hedges else 'I looked up'} that item {step} costs {int(90 * chance(name, step)) + 10}"
        call = ToolCall(id=f"c{step}", name="price", arguments={"item": step})
        return answer(f"{text}{',' if errs else '.'}", tool_calls=[call])  # a mark that no feature of a step reads

    return ScriptedModel(reply)


def tools() -> FunctionTools:
    @tool(effect="read")
    async def price(item: int) -> str:
        return f"noted {item}"

    return FunctionTools(price)


def failed(result: ExecutionResult) -> bool:
    return result.output != "total: right"


def runner(name: str, store: SessionStore, options: argparse.Namespace) -> AgentRunner:
    return AgentRunner(
        clerk(name, options.steps, options.slip), tools(), uncertainty_monitor=UNWATCHED, store=store, checkpoints=True
    )


async def failures(options: argparse.Namespace, rng: np.random.Generator) -> list[Failure]:
    """As many failures as wanted, each from a run of its own."""
    found: list[Failure] = []
    number = 0
    while len(found) < options.failures + options.calibration:
        source, name = MemoryStore(), f"task-{number}"
        number += 1
        one = runner(name, source, options)
        await one.run(AGENT, "add up", session_id=name)
        store = MemoryStore()

        def sandbox(injection: Injection, store: SessionStore = store) -> AgentRunner:
            return runner(injection.session_id, store, options)

        async for failure in inject(one, "clerk", name, sandbox=sandbox, failed=failed, rng=rng, trials=1):
            labelled = label_run(failure.run, failure.error_message)
            found.append(Failure(found=failure, labelled=labelled, store=store))
    return [found[i] for i in rng.permutation(len(found))]


async def copied(store: SessionStore) -> SessionStore:
    """A store with the same sessions and checkpoints, so that each way back starts from the same failure."""
    copy = MemoryStore()
    for kind in ("session", "checkpoint"):
        for document in await store.scan(kind):
            await copy.put(kind, document.key, document.body, expected=0, label=document.label)
            transcript = json.loads(document.body).get("transcript")
            for number, entry in enumerate([] if transcript is None else await store.read(transcript["log"])):
                await copy.append(transcript["log"], entry, expected=number)
    return copy


Way = Callable[[AgentRunner, Failure], Awaitable[ExecutionResult]]


def by_set(found: Mapping[str, Attribution]) -> Way:
    async def way(one: AgentRunner, failure: Failure) -> ExecutionResult:
        session, suspects = failure.found.injection.session_id, found[failure.found.injection.session_id]
        if suspects.set_steps:
            return await recover(one, "clerk", session, suspects)
        return await _top_1(one, session, suspects)

    return way


def by_top_1(found: Mapping[str, Attribution]) -> Way:
    async def way(one: AgentRunner, failure: Failure) -> ExecutionResult:
        session = failure.found.injection.session_id
        return await _top_1(one, session, found[session])

    return way


async def _top_1(one: AgentRunner, session: str, suspects: Attribution) -> ExecutionResult:
    single = replace(suspects, set_steps=(suspects.most_suspect or 0,))
    return await recover(one, "clerk", session, single, from_start=True)


async def from_scratch(one: AgentRunner, failure: Failure) -> ExecutionResult:
    return await rollback(one, "clerk", failure.found.injection.session_id, 0)


async def measured(way: Way, test: Sequence[Failure], options: argparse.Namespace) -> dict[str, float]:
    succeeded, covered, again = 0, 0, 0
    for failure in test:
        one = runner(failure.found.injection.session_id, await copied(failure.store), options)
        result = await way(one, failure)
        to_step = int(result.metadata["rollback"]["to_step"])
        succeeded += not failed(result)
        covered += to_step <= failure.found.injection.step
        again += result.steps_taken - to_step
    n = len(test)
    return {
        "success": succeeded / n,
        "coverage": covered / n,
        "steps_again": again / n,
        "cost": again / n / (options.steps + 1),
    }


def held(test: Sequence[Failure], located: Mapping[str, Attribution]) -> dict[str, float | None]:
    """How often the sets themselves hold the error, and how often they are empty."""
    sets = [located[failure.found.injection.session_id].set_steps for failure in test]
    inside = [f.labelled.error_steps[0] in found for f, found in zip(test, sets, strict=True)]
    return {"set_coverage": sum(inside) / len(test), "empty_share": sum(not found for found in sets) / len(test)}


async def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    started = time.perf_counter()
    pool = await failures(options, np.random.default_rng(options.seed))
    labelled = [failure.labelled for failure in pool[: options.calibration]]
    test = pool[options.calibration :]
    found: list[dict[str, Any]] = []
    located: dict[str, Attribution] = {}
    for method in TRIED:
        for level in LEVELS:
            calibrated = fit_and_calibrate(labelled, Plan(method=method, level=level, seed=options.seed))
            located = {
                failure.found.injection.session_id: locate(failure.labelled.trajectory, calibrated) for failure in test
            }
            figures = await measured(by_set(located), test, options)
            found.append({"method": method.name, "level": level, **figures, **held(test, located)})
    for name, way in (("top_1", by_top_1(located)), ("scratch", from_scratch)):
        found.append({"method": name, "level": None, **await measured(way, test, options)})
    taken_s = time.perf_counter() - started
    return [{**row, "failures": len(test), "calibration": len(labelled), "all_s": taken_s} for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failures", type=int, default=200)
    parser.add_argument("--calibration", type=int, default=59)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--slip", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    emit("rollback", anyio.run(rows, options), options.json)


if __name__ == "__main__":
    main()
