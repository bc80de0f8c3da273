"""How well each score tells a tool agent's wrong irreversible calls from its right ones, on recorded runs.

    python -m tests.benchmarks.tool_agent SET... [--draws 2000] [--seed 0] [--json]
    python -m tests.benchmarks.tool_agent --model FILE.gguf --tasks N --out SET [--family desk|bfcl] [--seed 0]
        [--look BIG.gguf]

The second form runs an agent and writes a SET, with a model that the embedded runner can load: `tool_agent_desk` and
`tool_agent_bfcl` say what its tasks are, `tool_agent_run` what is recorded. The first reads such sets.

A SET is a folder or a .tar.gz with `recordings/*.jsonl` (this project's recordings, content full), `outcomes.jsonl` (a
line a run: `id`, `kind` of task, `truth`: the one right irreversible call, as name and arguments, and the schemas of
the agent's `tools`, where they were kept) and, where the agent was asked again, `probes.jsonl` (`session`, `draws`:
calls proposed when asked again, `ctx_true`: the alternatives after "is this call right?", `sure`: "how sure, 0-100").
No model is needed, and `truth` is only what scores are held against.

Every score is looked at when the run proposes its first irreversible call, which is wrong unless it equals the truth.
`auroc` and its 95 % interval `low` to `high` (bootstrap over tasks), `stopped_at_5`, `_10`, `_20`: the share of wrong
calls held while 5, 10, 20 % of the right ones are, ties broken at random; `extra_tokens` and `extra_s`: what the score
cost a call beyond the agent's own work; `times_agent`: the agent's tokens up to there and the monitor's over the
agent's, each prompt counted whole although a server's prefix cache may have most of it. Sets "within kinds" compare
calls of one kind of task only. "By argument" the cases are arguments of calls to the right tool, wrong where their
value is, each scored by its own value's probability and by the call's; `first` is the share of wrong calls whose least
probable part (`weakest_part`) is a wrong one, `chance` that of a guess. Where another model looked at the calls, the
score `argument, look` ranks the parts that it would have written otherwise before the others. `held_wrong` and
`held_right` are what is really held by the default, the guide's policy (`call_floor=None`), and the default without
P(True) at calls (`unasked`: `Sensing(ask_of_calls=False)`). Nothing here is fitted.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import numpy.typing as npt

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.recording.kept_content import HASHED_ARGUMENTS
from grampus_uq.recording.replay import ReplayedStep, replay
from grampus_uq.recording.runs import Run, runs
from grampus_uq.records.call_parts import TOOL_NAME, WHOLE_CALL, CallPart, sureness, weakest_part
from grampus_uq.records.events import Event, LookEvent, ObservationEvent, StepEvent
from grampus_uq.records.values import Reading, ToolCall
from grampus_uq.records.vocabulary import Effect, MissingReason, UncertaintySource
from grampus_uq.signals.call_tokens import call_reading
from grampus_uq.signals.claim_probability import claim_reading
from grampus_uq.signals.origins import OriginState, origins_of_observation, with_origins
from grampus_uq.signals.registry import BUILT_IN_NAMES
from grampus_uq.stats.bootstrap import bootstrap
from grampus_uq.stats.ranking import auroc_rows
from tests.benchmarks._report import emit, existing, positive, usage_errors
from tests.benchmarks.recorded_sets import lines, opened_set
from tests.benchmarks.tool_agent_probes import Score, drawn_calls, probe_scores
from tests.benchmarks.tool_agent_run import FAMILIES, run_file

FloatArray = npt.NDArray[np.float64]
_FEWEST = 10  # cases of one argument that have a row of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The first irreversible call of a run, and all that was known when it was proposed."""

    task: str
    kind: str
    model: str
    call: ToolCall
    truth: ToolCall
    parts: tuple[CallPart, ...]
    held: dict[str, bool]
    own_tokens: int = 0
    scores: dict[str, Score] = field(default_factory=dict)
    redraw: ToolCall | None = None
    looked: LookEvent | None = None

    @property
    def disputed(self) -> frozenset[str]:
        """The parts that the model that looked at the call would have written otherwise."""
        other = None if self.looked is None else self.looked.call
        if other is None or other.name != self.call.name:
            return frozenset(set() if other is None else {TOOL_NAME})
        theirs = other.arguments
        return frozenset(k for k, v in self.call.arguments.items() if k not in theirs or theirs[k] != v)

    @property
    def first(self) -> dict[str, str]:
        """The name of the part to look at first, by each score that ranks parts."""
        weakest = weakest_part(self.parts, self.parts[0].call)
        first = {"argument": "no part" if weakest is None else weakest.name}
        if self.looked is not None:
            rest = [part for part in self.parts if part.name in self.disputed]
            first["argument, look"] = min(rest, key=sureness).name if rest else first["argument"]
        return first

    @property
    def wrong_parts(self) -> frozenset[str]:
        """The parts that differ from the truth; of a wrong tool's arguments only those that the right one has too."""
        tool = self.call.name != self.truth.name
        theirs = self.truth.arguments
        wrong = {k for k, v in self.call.arguments.items() if (k in theirs or not tool) and theirs.get(k) != v}
        return frozenset(wrong | ({""} if tool else set()))

    @property
    def wrong(self) -> bool:
        """True unless tool and arguments are the right ones."""
        return self.call.name != self.truth.name or self.call.arguments != self.truth.arguments


def read_set(path: Path) -> tuple[list[Asked], int]:
    """The irreversible calls of a set, and how many of its runs proposed none. Raises DataError for what is no set."""
    with opened_set(path) as folder:
        outcomes = {line["id"]: line for line in lines(folder / "outcomes.jsonl", ("id", "kind", "truth"))}
        probes = {line["session"]: line for line in lines(folder / "probes.jsonl", ("session",))}
        asked = [
            _asked(run, outcomes[run.session_id], probes.get(run.session_id))
            for run in runs(folder / "recordings")
            if run.session_id in outcomes
        ]
    found = [one for one in asked if one is not None]
    if not found:
        raise DataError("no run of this set proposes an irreversible call.", path=str(path))
    return found, len(asked) - len(found)


def _traced(events: Iterable[Event]) -> Iterator[Event]:
    """Yield recorded events with the origins that a live session would have put among their readings."""
    states: dict[str, OriginState] = {}
    for event in events:
        state = states.setdefault(event.session_id, OriginState())
        if isinstance(event, ObservationEvent):
            origins_of_observation(state, event)
        elif isinstance(event, StepEvent):
            yield replace(event, readings=tuple(with_origins(event.readings, state, event.step)))
            continue
        yield event


def _asked(run: Run, outcome: dict[str, Any], probe: dict[str, Any] | None) -> Asked | None:
    tools = outcome.get("tools", ())
    now = (
        replace(one, readings=as_sensed_now(one, tools)) if isinstance(one, StepEvent) else one for one in run.events
    )
    sensed = [event for event in _traced(now) if isinstance(event, StepEvent)]
    irreversible = frozenset(event.step.tool_calls[0].name for event in sensed if _is_irreversible(event))
    unasked = [replace(event, readings=without_p_true(event, irreversible)) for event in sensed]
    at = next((i for i, event in enumerate(sensed) if _is_irreversible(event)), None)
    if at is None:
        return None
    call = sensed[at].step.tool_calls[0]
    if HASHED_ARGUMENTS in call.arguments:
        raise DataError("is recorded without its content.", path=run.path, field="tool_calls")
    turn = next((i for i in range(at - 1, -1, -1) if call in sensed[i].step.tool_calls), None)
    if turn is None:
        raise DataError(f"no turn proposes the call of step {at}.", path=run.path, field="tool_calls")
    default = UncertaintyPolicy()
    sides = {
        "default": (sensed, default),
        "unasked": (unasked, default),
        "guide": (list(run.steps), default.model_copy(update={"call_floor": None})),
    }
    judged = {side: list(replay(steps[: at + 1], Profile(policy=policy))) for side, (steps, policy) in sides.items()}
    own = next((one.parts for one in sensed[turn].readings if one.source == "call_probability"), ())
    name, arguments = outcome["truth"]
    return Asked(
        task=run.session_id,
        kind=outcome["kind"],
        model=run.start.model if run.start else "",
        call=call,
        truth=ToolCall(name=name, arguments=arguments),
        parts=tuple(part for part in own if part.call == sensed[turn].step.tool_calls.index(call)),
        own_tokens=sum(event.step.input_tokens + event.step.output_tokens for event in run.steps[: turn + 1]),
        held={side: steps[-1].assessment.action.stops for side, steps in judged.items()},
        scores=_scores(turn, judged) | ({} if probe is None else probe_scores(call, probe)),
        redraw=None if probe is None else next(drawn_calls(probe), None),
        looked=next((event for event in run.events if isinstance(event, LookEvent)), None),
    )


def as_sensed_now(event: StepEvent, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[Reading, ...]:
    """The readings as a monitor of this version takes them: the probability of a turn's calls is among them.

    `tools` are the schemas of those that the agent was offered, where the set holds them.

    An answer in words whose tokens were read is not asked about, since an agent's tools are known.
    """
    if event.step.logprobs is None:
        return event.readings
    if not event.step.tool_calls:
        unasked = Reading(source="p_true", value=None, reason=MissingReason.NOT_NEEDED)
        spared = event.step.kind == "llm_call"
        return tuple([unasked if spared and one.source == "p_true" else one for one in with_claim(event)])
    own = call_reading(event.step, (), tools)
    return (*(reading for reading in event.readings if reading.source != own.source), own)


def with_claim(event: StepEvent) -> tuple[Reading, ...]:
    """The readings, with the claim of an answer that says nothing but words of its request."""
    claim = next((one for one in event.readings if one.source == "claim_probability"), None)
    if claim is None or claim.value is not None:
        return event.readings
    return tuple([claim_reading(event.step, ()) if one is claim else one for one in event.readings])


def without_p_true(event: StepEvent, irreversible: frozenset[str]) -> tuple[Reading, ...]:
    """The readings as `Sensing(ask_of_calls=False)` takes them, these tools' names being the irreversible ones."""
    calls = event.step.tool_calls
    own = next((one for one in event.readings if one.source == "call_probability" and one.value is not None), None)
    told = own is not None and all(part.probability is not None and part.name != WHOLE_CALL for part in own.parts)
    if not (told and calls and all(call.name in irreversible for call in calls)):
        return event.readings
    return tuple([reading for reading in event.readings if reading.source != "p_true"])


def _is_irreversible(event: StepEvent) -> bool:
    return event.step.kind == "tool_call" and event.step.effect is Effect.IRREVERSIBLE


def _scores(turn: int, judged: dict[str, list[ReplayedStep]]) -> dict[str, Score]:
    """What the recording holds: the default, the guide's confidences, each reading of the turn, and plain counts."""
    guide = judged["guide"]
    recorded, sensed = guide[turn].event, judged["default"][turn].event
    readings = {str(reading.source): reading for reading in (*recorded.readings, *sensed.readings)}
    own = readings["call_probability"].value if "call_probability" in readings else None
    shown = guide[turn].assessment
    return {
        **{side: _doubted(judged[side], own, turn) for side in ("default", "unasked")},
        "guide": _paid(guide[-1].assessment.propagated_confidence, _monitors(guide[: turn + 1])),
        "fused": _paid(shown.fused_confidence, _monitors(guide[turn : turn + 1])),
        **{source: _paid(reading.value, [reading]) for source, reading in readings.items()},
        "least_token": Score(value=_least(sensed.readings)),
        "steps": Score(value=-float(turn)),
        "length": Score(value=-float(len(recorded.step.logprobs or ()))),
    }


def _doubted(steps: Sequence[ReplayedStep], own: float | None, turn: int) -> Score:
    """The lesser of the belief and the call's own probability, by which the default holds."""
    believed = steps[-1].assessment.propagated_confidence
    return _paid(believed if own is None else min(believed, own), _monitors(steps[: turn + 1]))


def _monitors(steps: Sequence[ReplayedStep]) -> list[Reading]:
    """The readings that a monitor pays for by itself; whoever recorded the set may have added others.

    A monitor's own agreement on a call costs nothing beside the samples, which are a reading of their own: one with a
    cost was asked for by whoever recorded the set.
    """
    paid = BUILT_IN_NAMES - {UncertaintySource.CALL_AGREEMENT}
    return [reading for step in steps for reading in step.event.readings if reading.source in paid]


def _least(readings: Sequence[Reading]) -> float | None:
    """The least token probability of the arguments."""
    parts = [part for reading in readings for part in reading.parts]
    return min((part.least for part in parts if part.name and part.least is not None), default=None)


def _paid(value: float | None, readings: Sequence[Reading]) -> Score:
    tokens = sum(reading.input_tokens + reading.output_tokens for reading in readings)
    return Score(value=value, tokens=tokens, seconds=sum(reading.duration_s for reading in readings))


# -- figures ------------------------------------------------------------------------------------------------------


def stopped_at(confidence: FloatArray, wrong: npt.NDArray[np.bool_], held: float) -> float:
    """The share of wrong cases held while `held` of the right ones are, the least sure first, ties at random."""
    x, y = [0.0], [0.0]
    for value in np.unique(confidence):
        x.append(float(np.mean(confidence[~wrong] <= value)))
        y.append(float(np.mean(confidence[wrong] <= value)))
    right = max(i for i, share in enumerate(x) if share <= held)
    if right + 1 == len(x):
        return y[right]
    return y[right] + (y[right + 1] - y[right]) * (held - x[right]) / (x[right + 1] - x[right])


def figures(
    confidence: Sequence[float], wrong: Sequence[bool], tasks: Sequence[str], groups: Sequence[str], options: Any
) -> dict[str, Any]:
    """AUROC with its interval, compared within groups only, and what is stopped; empty without both classes."""
    scores, bad = np.array(confidence, dtype=np.float64), np.array(wrong, dtype=bool)
    names, of_case = sorted(set(groups)), np.array(groups)
    inside = [np.flatnonzero(of_case == name) for name in names]

    def within(counts: FloatArray) -> FloatArray:
        total, pairs = np.zeros(len(counts)), np.zeros(len(counts))
        for cases in inside:
            weights, label = counts[:, cases], bad[cases].astype(np.float64)
            both = (weights @ label) * (weights @ (1.0 - label))
            total += np.where(both > 0, np.nan_to_num(auroc_rows(-scores[cases], label, weights)) * both, 0.0)
            pairs += both
        return np.divide(total, pairs, out=np.full(len(counts), np.nan), where=pairs > 0)

    if math.isnan(within(np.ones((1, len(scores))))[0]):
        return {"n": len(scores)}
    rng = np.random.default_rng(options.seed)
    drawn, member = np.unique(tasks, return_inverse=True)
    interval = bootstrap(lambda counts: within(counts[:, member]), len(drawn), rng=rng, draws=options.draws)
    found = {"n": len(scores), "auroc": interval.estimate, "low": interval.low, "high": interval.high}
    if len(names) > 1:
        return found
    return found | {f"stopped_at_{at}": stopped_at(scores, bad, at / 100) for at in (5, 10, 20)}


def rows_of(name: str, asked: Sequence[Asked], options: Any) -> Iterator[dict[str, Any]]:
    """All rows of one set, model by model."""
    for model in sorted({one.model for one in asked}):
        yield from _rows_of_model(name, model, [one for one in asked if one.model == model], options)


def _rows_of_model(name: str, model: str, asked: Sequence[Asked], options: Any) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(options.seed)
    baselines = {"pause_always": np.zeros(len(asked)), "random": rng.random(len(asked))}
    scores = {score: [one.scores.get(score, Score(value=None)) for one in asked] for score in _names(asked)}
    scores |= {score: [Score(value=float(value)) for value in values] for score, values in baselines.items()}
    for kinds in (False, True):
        for score, found in scores.items():
            there = [(one, got) for one, got in zip(asked, found, strict=True) if got.value is not None]
            if not there:
                continue
            row = {"set": f"{name} within kinds" if kinds else name, "model": model, "score": score}
            row |= figures(
                [got.value or 0.0 for _, got in there],
                [one.wrong for one, _ in there],
                [one.task for one, _ in there],
                [one.kind if kinds else "" for one, _ in there],
                options,
            )
            tokens = [got.tokens for _, got in there if got.tokens is not None]
            row["extra_tokens"] = float(np.mean(tokens)) if tokens else None
            row["extra_s"] = float(np.mean([got.seconds for _, got in there]))
            own = sum(one.own_tokens for one, got in there if got.tokens is not None)
            row["times_agent"] = 1.0 + sum(tokens) / own if tokens and own else None
            yield row | (_held(asked, score) if score in asked[0].held and not kinds else {})
    yield from _argument_rows(name, model, asked, options)


def _names(asked: Sequence[Asked]) -> list[str]:
    return list(dict.fromkeys(name for one in asked for name in one.scores))


def _held(asked: Sequence[Asked], side: str) -> dict[str, Any]:
    """What the policy, with no label seen, really holds."""
    held = {wrong: [one.held[side] for one in asked if one.wrong is wrong] for wrong in (True, False)}
    shares = {wrong: float(np.mean(found)) if found else None for wrong, found in held.items()}
    return {"held_wrong": shares[True], "held_right": shares[False]}


def _argument_rows(name: str, model: str, asked: Sequence[Asked], options: Any) -> Iterator[dict[str, Any]]:
    """How well a part's own probability, and the whole call's, tell which argument is wrong."""
    cases = [
        (one, part)
        for one in asked
        if one.call.name == one.truth.name
        for part in one.parts
        if part.name and part.probability is not None
    ]
    fields = sorted({part.name for _, part in cases})
    for label, wanted in [("all arguments", fields), *((one, [one]) for one in fields)]:
        chosen = [(one, part) for one, part in cases if part.name in wanted]
        if len(wanted) == 1 and len(chosen) < _FEWEST:
            continue
        own = [sureness(part) for _, part in chosen]
        scores = {
            "argument": own,
            "call_probability": [one.scores["call_probability"].value or 0.0 for one, _ in chosen],
        }
        if any(one.looked for one in asked):
            undisputed = [part.name not in one.disputed for one, part in chosen]
            scores["argument, look"] = [value + 1.0 * agreed for value, agreed in zip(own, undisputed, strict=True)]
        for score, values in scores.items():
            wrong = [part.name in one.wrong_parts for one, part in chosen]
            found = figures(values, wrong, [one.task for one, _ in chosen], [""] * len(chosen), options)
            yield {"set": f"{name} by argument: {label}", "model": model, "score": score} | found
    bad = [one for one in asked if one.wrong and one.wrong_parts and one.parts]
    for score in ("argument", "argument, look"):
        ranked = [one for one in bad if score in one.first]
        if ranked:
            firsts = [one.first[score] in one.wrong_parts for one in ranked]
            chances = [len(one.wrong_parts) / len(one.parts) for one in ranked]
            share = {"n": len(ranked), "first": float(np.mean(firsts)), "chance": float(np.mean(chances))}
            yield {"set": f"{name} by argument: wrong calls", "model": model, "score": score} | share


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", type=existing, help="a folder or a .tar.gz of recorded runs")
    parser.add_argument("--model", type=existing, metavar="FILE.gguf", help="run an agent with this model instead")
    parser.add_argument("--family", choices=FAMILIES, default=FAMILIES[0], help="which tasks it is given")
    parser.add_argument("--tasks", type=positive, default=40, help="how many")
    parser.add_argument("--out", type=Path, help="the set that is written; a second start goes on with it")
    parser.add_argument("--p-true", action="store_true", help="ask P(True) of irreversible calls as the guide does")
    parser.add_argument(
        "--look", type=existing, metavar="BIG.gguf", help="ask this model about irreversible calls, too"
    )
    parser.add_argument("--draws", type=positive, default=2000, help="bootstrap draws")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if bool(options.sets) == bool(options.model) or bool(options.model) != bool(options.out):
        parser.error("name either sets to read, or --model and --out to write one")
    if options.model:
        run = partial(run_file, options.model, options.family, options.tasks, options.seed, options.out)
        anyio.run(partial(run, p_true=options.p_true, look_file=options.look))
        return
    rows: list[dict[str, Any]] = []
    with usage_errors(parser):
        for path in options.sets:
            asked, without = read_set(path)
            found = rows_of(path.name.split(".tar")[0], asked, options)
            rows += [row | {"runs_without_call": without} for row in found]
    emit("tool_agent", rows, options.json)


if __name__ == "__main__":
    main()
