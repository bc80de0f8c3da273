"""How well each score tells wrong answers from right ones, on recorded questions, without labels and after asking.

    python -m tests.benchmarks.answers FOLDER... [--draws 2000] [--seed 0] [--json]

A FOLDER holds runs of `grampus-uq demo --task questions --advisory`: an answer in words, then the irreversible call
that publishes it. Each run is replayed as three monitors would have sensed it: `default` (the agent has no tools of
its own, so its answers are not asked about), `asked` (`Sensing(ask_of_answers=True)`) and `guide` (`call_floor=None`,
P(True) and samples). Their score is what they hold by: the belief, and for the default the lesser of that and the
probability of the least likely new word. `times_agent` is the agent's own tokens and the monitor's over the agent's
own. Sets "within topics" compare answers of one topic only; `default_minus` is the default's AUROC minus that of a
free signal, paired, with its interval. Other columns are those of `tool_agent`. Nothing here is fitted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.state import Profile
from grampus_uq.errors import DataError
from grampus_uq.recording.replay import replay
from grampus_uq.recording.runs import Run, runs
from grampus_uq.records.events import StepEvent
from grampus_uq.signals.token_signals import TOKEN_SOURCES
from grampus_uq.stats.bootstrap import bootstrap
from grampus_uq.stats.ranking import auroc_rows
from tests.benchmarks._report import emit, existing, positive, usage_errors
from tests.benchmarks.tool_agent import as_sensed_now, figures, with_claim

FREE = (*TOKEN_SOURCES, "claim_probability")
ASKED = ("p_true", "semantic_entropy")
DEFAULT = UncertaintyPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answered question: scores by name (None where missing), tokens and what each side holds."""

    id: str
    topic: str
    wrong: bool
    scores: dict[str, float | None]
    held: dict[str, bool]
    own_tokens: int
    extra: dict[str, int]


def without_samples(event: StepEvent) -> StepEvent:
    """A step as it is sensed where samples are not drawn."""
    return replace(event, readings=tuple([one for one in event.readings if one.source != "semantic_entropy"]))


def answer_of(run: Run) -> Answer | None:
    """What is known of one run; None where it has no label."""
    if run.outcome is None or run.outcome.success is None or run.start is None:
        return None
    asked = [without_samples(event) for event in run.steps]
    sides = {
        "default": ([replace(event, readings=as_sensed_now(event)) for event in asked], DEFAULT),
        "asked": (asked, DEFAULT),
        "guide": (list(run.steps), DEFAULT.model_copy(update={"call_floor": None})),
    }
    readings = {str(one.source): one.value for one in with_claim(run.steps[0])}
    scores: dict[str, float | None] = {name: readings.get(name) for name in (*FREE, *ASKED)}
    scores["length"] = -float(len(run.steps[0].step.logprobs or ()))
    held, extra = {}, {}
    for name, (steps, policy) in sides.items():
        seen = list(replay(steps, Profile(policy=policy)))
        belief, word = seen[-1].assessment.propagated_confidence, readings.get("claim_probability")
        scores[name] = belief if word is None or name != "default" else min(belief, word)
        held[name] = seen[-1].assessment.action.stops
        extra[name] = sum(one.input_tokens + one.output_tokens for one in steps[0].readings)
    return Answer(
        id=run.session_id,
        topic=str(run.start.metadata.get("topic", "")),
        wrong=not run.outcome.success,
        scores=scores,
        held=held,
        own_tokens=run.steps[0].step.input_tokens + run.steps[0].step.output_tokens,
        extra=extra,
    )


def rows_of(name: str, answers: Sequence[Answer], options: Any) -> Iterator[dict[str, Any]]:
    """A row a score, over all answers and within topics."""
    for inside in (False, True):
        for score in answers[0].scores:
            there = [one for one in answers if one.scores[score] is not None]
            if not there:
                continue
            row: dict[str, Any] = {"set": f"{name} within topics" if inside else name, "score": score}
            values = [one.scores[score] or 0.0 for one in there]
            topics = [one.topic if inside else "" for one in there]
            row |= figures(values, [one.wrong for one in there], [one.id for one in there], topics, options)
            if score in there[0].held and not inside:
                row |= _spent_and_held(answers, score)
            if score in FREE and not inside:
                row |= _minus(answers, score, options)
            yield row


def _spent_and_held(answers: Sequence[Answer], side: str) -> dict[str, Any]:
    own = sum(one.own_tokens for one in answers)
    return {
        "times_agent": 1.0 + sum(one.extra[side] for one in answers) / own,
        "held_wrong": float(np.mean([one.held[side] for one in answers if one.wrong])),
        "held_right": float(np.mean([one.held[side] for one in answers if not one.wrong])),
    }


def _minus(answers: Sequence[Answer], signal: str, options: Any) -> dict[str, Any]:
    """The AUROC of the default minus a signal's over the answers that have both, with its paired interval."""
    both = [one for one in answers if one.scores[signal] is not None]
    right = np.array([not one.wrong for one in both], dtype=np.float64)
    mine, theirs = (np.array([one.scores[name] for one in both], dtype=np.float64) for name in ("default", signal))

    def difference(counts: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return auroc_rows(mine, right, counts) - auroc_rows(theirs, right, counts)

    found = bootstrap(difference, len(both), rng=np.random.default_rng(options.seed), draws=options.draws)
    return {"default_minus": found.estimate, "minus_low": found.low, "minus_high": found.high}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", type=existing, help="recorded runs of the questions")
    parser.add_argument("--draws", type=positive, default=2000, help="bootstrap draws")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    with usage_errors(parser):
        for folder in options.folders:
            answers = [one for one in map(answer_of, runs(Path(folder))) if one is not None]
            if not answers:
                raise DataError("no run of the questions has a label.", path=str(folder))
            rows += rows_of(Path(folder).name, answers, options)
    emit("answers", rows, options.json)


if __name__ == "__main__":
    main()
