"""Runs a real tool agent on tasks and writes what `tests.benchmarks.tool_agent` reads: recordings, outcomes, probes.

Calls that cannot be undone go out (`advisory`), and everything is recorded: all token log-probabilities with five
alternatives, content full. P(True) as the guide asks it, of the turns that propose such calls, is added with `p_true`:
without a shared prefix it takes longer than the agent itself; a probe asks the same with the conversation in view. A
line a run is written when the run has ended, so a set that was cut short is a smaller one, and a second start of the
same command goes on where the first stopped.

With `look` another model is asked about the first irreversible call of each run, as the tier "big" of a chain, instead
of the probes, and the recordings are labelled.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.errors import GrampusError, ModelError
from grampus_uq.models.local_model import LocalModel
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.monitor.sensing_settings import Sensing
from grampus_uq.recording import Label, RecordingProcessor, find_run, label
from grampus_uq.records.events import LookEvent
from grampus_uq.records.protocols import ModelClient, SenseContext
from grampus_uq.records.values import AgentDefinition, Reading, Step
from grampus_uq.records.vocabulary import Effect, MissingReason, UncertaintySource
from grampus_uq.runtime.looks import Look, Looks
from grampus_uq.runtime.runner import AgentRunner
from grampus_uq.signals.driver import Budget
from grampus_uq.signals.p_true import PTrue
from tests.benchmarks import tool_agent_bfcl, tool_agent_desk
from tests.benchmarks._report import progress
from tests.benchmarks.tool_agent_model import JsonCalls
from tests.benchmarks.tool_agent_probes import ask_again

FAMILIES: Final = ("desk", "bfcl")
_CONTEXT_TOKENS: Final = 4_096
_TIMEOUT_S: Final = 600.0
_MOST_TURNS: Final = 8
_ONE_CALL: Final = "Answer the request with one call. Leave out what the request does not say unless it is required."


def tasks_of(family: str, n: int, seed: int) -> Iterator[Any]:
    """The first `n` tasks of a family and a seed."""
    if family == "desk":
        return tool_agent_desk.tasks(n, seed)
    cache = os.environ.get("GRAMPUS_UQ_CACHE") or tempfile.gettempdir()
    return tool_agent_bfcl.tasks(n, seed, Path(cache) / "bfcl-eval")


class PTrueOfChanges:
    """P(True) as the guide asks it, of turns that propose what cannot be undone only."""

    source = UncertaintySource.P_TRUE

    def __init__(self, effect_of: Callable[[str], Effect | None]) -> None:
        self._effect_of = effect_of
        self._signal = PTrue()

    async def sense(self, step: Step, context: SenseContext) -> Reading:
        """Ask about the step, if it proposes a change."""
        if any(self._effect_of(call.name) is Effect.IRREVERSIBLE for call in step.tool_calls):
            return await self._signal.sense(step, context)
        return Reading(source=self.source, value=None, reason=MissingReason.NOT_NEEDED)


async def run_file(
    model_file: Path,
    family: str,
    n: int,
    seed: int,
    folder: Path,
    *,
    p_true: bool = False,
    look_file: Path | None = None,
) -> None:
    """Run the agent with the model of a GGUF file; that of `look_file` looks at its irreversible calls."""
    async with AsyncExitStack() as stack:
        model, look = [
            file
            and await stack.enter_async_context(
                LocalModel(model_file=file, context_tokens=_CONTEXT_TOKENS, timeout_s=_TIMEOUT_S)
            )
            for file in (model_file, look_file)
        ]
        await run_tasks(model, family, tasks_of(family, n, seed), folder, p_true=p_true, look=look)


async def run_tasks(
    model: ModelClient,
    family: str,
    tasks: Iterator[Any],
    folder: Path,
    *,
    p_true: bool = False,
    look: ModelClient | None = None,
) -> None:
    """Run each task that has no outcome yet."""
    outcomes = folder / "outcomes.jsonl"
    known = _known(outcomes)
    for task in tasks:
        if task.id not in known:
            _forget(folder / "recordings", task.id)
            line, probe = await _run(model, family, task, folder / "recordings", p_true, look)
            if probe is not None:
                _append(folder / "probes.jsonl", probe)
            _append(outcomes, line)
            progress(f"{task.id} {line['ok']} {line['s']:.0f} s")


def _known(outcomes: Path) -> set[str]:
    outcomes.parent.mkdir(parents=True, exist_ok=True)
    return {json.loads(line)["id"] for line in outcomes.read_text().splitlines()} if outcomes.exists() else set()


def _forget(recordings: Path, session: str) -> None:
    """Delete what a run left that was cut short."""
    for part in (recordings / f"{session}.jsonl", *recordings.glob(f"{session}+*.jsonl")):
        part.unlink(missing_ok=True)


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


async def _run(
    model: ModelClient, family: str, task: Any, recordings: Path, p_true: bool, look: ModelClient | None
) -> tuple[dict[str, Any], Any]:
    desk = family == "desk"
    form: dict[str, Any] = {"one_call": True}
    if desk:
        form = {"open_tools": task.shop.open_tools, "examples": tool_agent_desk.EXAMPLES}
    client = JsonCalls(model, **form)
    tiers = [] if look is None else [Look(name="big", client=JsonCalls(look, **form), timeout_s=_TIMEOUT_S)]
    executor = task.shop.tools() if desk else task
    begun = time.perf_counter()
    failed = None
    with RecordingProcessor(recordings, content="full") as recorder:
        monitor = UncertaintyMonitor(
            policy=UncertaintyPolicy(enable_p_true=False),
            processors=[recorder],
            sensing=Sensing(
                signals=[PTrueOfChanges(executor.effect_of)] if p_true else [], budget=Budget(timeout_s=_TIMEOUT_S)
            ),
            advisory=True,
        )
        runner = AgentRunner(client, executor, uncertainty_monitor=monitor, looks=Looks(tiers=tiers))
        prompt = tool_agent_desk.RULES if desk else _ONE_CALL
        agent = AgentDefinition(name=family, model="local", system_prompt=prompt, max_iterations=_MOST_TURNS)
        try:
            await runner.run(agent, task.mail, session_id=task.id)
        except GrampusError as error:
            failed = str(error)
    took = time.perf_counter() - begun
    if tiers:
        _label(recordings, task)
    called = task.shop.changes if desk else [(call.name, call.arguments) for call in task.called]
    truth = task.truth
    line = {
        "id": task.id,
        "kind": task.kind,
        "truth": [truth.name, truth.arguments],
        "done": called,
        "ok": task.succeeded,
    }
    line |= {"failed": failed, "turns": len(client.turns), "s": took, "tools": executor.schemas()}
    return line, None if tiers else await _probe(client, executor, task.id)


def _label(recordings: Path, task: Any) -> None:
    """Say how the run ended, and which tiers' other calls were the right one."""
    looks = [event for event in find_run(recordings, task.id).events if isinstance(event, LookEvent)]
    right = tuple(look.tier for look in looks if look.call is not None and task.right(look.call))
    label(recordings, Label(session_id=task.id, success=task.succeeded, right_looks=right), by="the task")


async def _probe(client: JsonCalls, executor: Any, session: str) -> dict[str, Any] | None:
    """Ask again about the first irreversible call of the run."""
    for number, (messages, reply) in enumerate(list(client.turns)):
        for call in reply.tool_calls:
            if executor.effect_of(call.name) is Effect.IRREVERSIBLE:
                try:
                    asked = await ask_again(client, messages, call, executor.schemas())
                except ModelError as error:
                    print(session, "was not asked again:", error, file=sys.stderr)
                    return None
                return {"session": session, "step": f"llm_{number}"} | asked
    return None
