"""A small model reads a recorded tool agent whose log-probabilities are hidden: what it says of each irreversible call.

    python -m tests.benchmarks.tool_agent_reader SET --reader FILE.gguf --out LINES.jsonl [--family desk] [--seed 0]

SET is what `tool_agent --model` wrote for this family and seed: the mails are drawn again from them, the rest is read
from the recordings. The reader is shown what a monitor would be shown at the turn that proposes the first irreversible
call: rules, tools, request, calls and results before it; never log-probabilities, nor the truth. As in a session, it
has read ahead up to the turn before (`ahead_s`; nothing where that turn is the first); `extra_s` is what the call then
waited for. LINES keeps what was read: a second start goes on with it, and figures need no model.

Rows as in `tool_agent`, of `reader_call_probability`, its least part, and P(True) asked of the reader (`reader_p_true`,
not built in); and `better`, the paired difference of AUROCs, with its interval (bootstrap over tasks). Nothing is
fitted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from grampus_uq.models.local_model import LocalModel
from grampus_uq.recording.runs import Run, runs
from grampus_uq.records.events import ObservationEvent, StepEvent
from grampus_uq.records.values import Message, Step
from grampus_uq.records.vocabulary import Role
from grampus_uq.signals.call_reader import Reader, transcript, written_call
from grampus_uq.signals.driver import Budget, MeteredContext, sense_one
from grampus_uq.signals.p_true import true_false_mass
from grampus_uq.stats.bootstrap import bootstrap
from grampus_uq.stats.ranking import auroc_rows
from tests.benchmarks._report import emit, existing, progress, usage_errors
from tests.benchmarks.recorded_sets import opened_set
from tests.benchmarks.tool_agent import Asked, Score, figures, read_set
from tests.benchmarks.tool_agent_desk import RULES
from tests.benchmarks.tool_agent_run import FAMILIES, tasks_of

_RIGHT = "Is the call above right by the rules and the request? Answer with one word, True or False."
_AGAINST = ("asked_sure", "length", "steps", "p_true")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call as the reader meets it: the step that proposes it, what came before, and what came before that turn."""

    asked: Asked
    step: Step
    before: tuple[Message, ...]
    earlier: tuple[Message, ...]
    tools: Sequence[dict[str, Any]]


def case_of(run: Run, asked: Asked, task: Any) -> Case | None:
    """The transcript up to the turn that proposes the call, from the recording and the task's own texts."""
    desk = hasattr(task, "shop")
    said = [Message(role=Role.SYSTEM, content=RULES)] if desk else []
    said.append(Message(role=Role.USER, content=task.mail))
    earlier: tuple[Message, ...] = ()
    for event in run.events:
        if isinstance(event, StepEvent) and event.step.kind != "tool_call":
            if asked.call in event.step.tool_calls:
                step = replace(event.step, logprobs=None, tool_calls=(asked.call,))
                tools = task.shop.tools().schemas() if desk else task.schemas()
                return Case(asked=asked, step=step, before=tuple(said), earlier=earlier, tools=tools)
            said.append(Message(role=Role.ASSISTANT, content=event.step.text, tool_calls=event.step.tool_calls))
            earlier = tuple(said)
        elif isinstance(event, ObservationEvent) and event.kind == "tool_result":
            said.append(Message(role=Role.TOOL, content=event.text, tool_call_id=event.call_id))
    return None


def cases_of(folder: Path, asked: Mapping[str, Asked], tasks: Iterable[Any]) -> list[Case]:
    """The runs of a set whose task is among these and proposes an irreversible call."""
    known = {task.id: task for task in tasks if task.id in asked}
    with opened_set(folder) as place:
        found = [
            case_of(run, asked[run.session_id], known[run.session_id])
            for run in runs(place / "recordings")
            if run.session_id in known
        ]
    return [case for case in found if case is not None]


async def read(reader: Reader, case: Case) -> dict[str, Any]:
    """What the reader says of one call, and what that took."""
    budget = Budget(timeout_s=600.0, max_calls=20)
    context = MeteredContext(
        messages=case.before, client=reader.client, model="", budget=budget, tools=list(case.tools)
    )
    begun = time.perf_counter()
    if case.earlier:
        await reader.read_ahead(replace(context, messages=case.earlier))
    ahead_s = time.perf_counter() - begun
    asking = replace(context, input_tokens=0, output_tokens=0)
    got = await sense_one(reader.source, lambda metered: reader.sense(case.step, metered), asking)
    begun = time.perf_counter()
    shown = transcript(case.before, case.tools, reader.max_characters)
    talk = [
        *shown,
        Message(role=Role.ASSISTANT, content=written_call(case.asked.call)),
        Message(role=Role.USER, content=_RIGHT),
    ]
    reply = await asking.ask(talk, temperature=0.0, max_tokens=2, top_logprobs=10)
    usage = reply.token_usage
    return {
        "id": case.asked.task,
        "value": got.value,
        "reason": got.reason,
        "parts": [[part.name, part.probability] for part in got.parts],
        "tokens": got.input_tokens + got.output_tokens,
        "ahead_s": ahead_s,
        "s": got.duration_s,
        "p_true": true_false_mass(reply),
        "p_true_tokens": usage.input_tokens + usage.output_tokens,
        "p_true_s": time.perf_counter() - begun,
    }


async def read_all(cases: Sequence[Case], known: set[str], options: Any) -> None:
    """Read what was not read yet."""
    async with LocalModel(model_file=options.reader, context_tokens=4_096, timeout_s=600.0) as model:
        for case in cases:
            if case.asked.task not in known:
                line = json.dumps(await read(Reader(client=model), case))
                progress(line)
                with options.out.open("a") as file:
                    file.write(line + "\n")


def with_scores(asked: Asked, line: dict[str, Any]) -> Asked:
    """A call with the reader's scores beside those of the recording."""
    least = min((p for _, p in line["parts"] if p is not None), default=None)
    own = {Reader.source: line["value"], "reader_least_part": least}
    scores = {name: Score(value=value, tokens=line["tokens"], seconds=line["s"]) for name, value in own.items()}
    scores["reader_p_true"] = Score(value=line["p_true"], tokens=line["p_true_tokens"], seconds=line["p_true_s"])
    return replace(asked, scores={**asked.scores, **scores})


def rows_of(name: str, asked: Sequence[Asked], lines: Sequence[Any], options: Any) -> Iterator[dict[str, Any]]:
    """A row for each score, and one for each paired difference."""
    own = (Reader.source, "reader_least_part", "reader_p_true")
    about = {"model": asked[0].model, "ahead_s": float(np.median([line["ahead_s"] for line in lines]))}
    for kinds in (False, True):
        for score in (*own, "call_probability", *_AGAINST):
            there = [one for one in asked if one.scores.get(score, Score(value=None)).value is not None]
            if there:
                values = [one.scores[score].value or 0.0 for one in there]
                groups = [one.kind if kinds else "" for one in there]
                row = about | {"set": f"{name} within kinds" if kinds else name, "score": score}
                row |= figures(values, [one.wrong for one in there], [one.task for one in there], groups, options)
                seconds = [one.scores[score].seconds for one in there]
                yield row | {"extra_s": float(np.median(seconds)), "slowest_s": max(seconds)}
    for score in own:
        yield from (about | {"set": name, "score": score} | one for one in _better(asked, score, options))


def _better(asked: Sequence[Asked], score: str, options: Any) -> Iterator[dict[str, Any]]:
    for other in _AGAINST:
        both = [
            one for one in asked if all(one.scores.get(s, Score(value=None)).value is not None for s in (score, other))
        ]
        wrong = np.array([float(one.wrong) for one in both])
        if not both or wrong.all() or not wrong.any():
            continue
        first, second = (np.array([-(one.scores[s].value or 0.0) for one in both]) for s in (score, other))

        def difference(counts: Any, a: Any = first, b: Any = second, bad: Any = wrong) -> Any:
            return auroc_rows(a, bad, counts) - auroc_rows(b, bad, counts)

        rng = np.random.default_rng(options.seed)
        got = bootstrap(difference, len(both), rng=rng, draws=options.draws)
        yield {"n": len(both), "than": other, "better": got.estimate, "low": got.low, "high": got.high}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, read, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", metavar="SET", type=existing, help="a folder of recorded runs")
    parser.add_argument("--reader", type=Path, required=True, metavar="FILE.gguf", help="the model that reads")
    parser.add_argument("--out", type=Path, required=True, metavar="LINES.jsonl", help="what was read, a line a call")
    parser.add_argument("--family", choices=FAMILIES, default="desk")
    parser.add_argument("--seed", type=int, default=0, help="of the tasks, and of the bootstrap")
    parser.add_argument("--draws", type=int, default=2000, help="bootstrap draws")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    with usage_errors(parser):
        asked = {one.task: one for one in read_set(options.set)[0]}
    cases = cases_of(options.set, asked, tasks_of(options.family, 1_000, options.seed))
    if not cases:
        parser.error(f"{options.set}: no run of a task of this family and seed proposes an irreversible call")
    known = {json.loads(line)["id"] for line in options.out.read_text().splitlines()} if options.out.exists() else set()
    if any(case.asked.task not in known for case in cases):
        anyio.run(read_all, cases, known, options)
    lines = [json.loads(line) for line in options.out.read_text().splitlines()]
    lines = [line for line in lines if line["id"] in asked]
    scored = [with_scores(asked[line["id"]], line) for line in lines]
    emit("tool_agent_reader", list(rows_of(options.set.name, scored, lines, options)), options.json)


if __name__ == "__main__":
    main()
