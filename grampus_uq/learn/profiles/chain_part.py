"""The chain of a profile, from recorded looks: what each tier would have called, and what became of the run.

The agent's call is right as the human says who decided about it, else as the run ended. A look is right where it is
that very call, or where the label names it (`right_looks`). Any other call counts as wrong, also of a run that
succeeded otherwise: the promise then holds, and the chain looks worse than it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import JsonValue

from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.chain import Chain, TierCases, fit_chain
from grampus_uq.learn.columns import Columns, RunRows, other_trials, read_columns
from grampus_uq.learn.eligibility import Eligibility, about_the_others
from grampus_uq.learn.fit.task_draws import one_a_task
from grampus_uq.learn.profiles.options import FitOptions
from grampus_uq.learn.profiles.profile_parts import Part
from grampus_uq.learn.profiles.releasing import BUDGET
from grampus_uq.recording.runs import Paths, Refused, Run
from grampus_uq.records.events import LookEvent
from grampus_uq.records.vocabulary import TASK
from grampus_uq.stats.arrays import IntArray, known_mean
from grampus_uq.stats.selective import budget_needed

NAME = "chain"
AGENT = "agent"
"""Name of the first tier: the agent's own call."""
_APPROVED = "approve"
_ANSWERS = (_APPROVED, "edit", "reject")
_FIRST_CALLS = "Its cases are first irreversible calls of runs: later ones are not covered."
_FIGURES = ("score", "agrees", "right", "tokens", "seconds", "place")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedLooks:
    """The agent and the tiers that were asked about its calls, in that order, on one run a task; empty without looks.

    `share`: of all runs, those in which somebody looked, with a label or without. `about_the_others`: the sentence on
    those of them that are left out.
    """

    tiers: tuple[TierCases, ...]
    share: float
    about_the_others: str


def recorded_looks(
    paths: Paths,
    rng: np.random.Generator,
    *,
    costs: Mapping[str, float] | None = None,
    task_key: str = TASK,
    workers: int = 1,
    on_refused: Refused | None = None,
) -> RecordedLooks:
    """Read the looks of recordings.

    `costs`: of a look, by tier; None: its mean seconds. `rng` draws the run of a task. Raises ConfigurationError for
    costs that name other tiers than were recorded, DataError as `read_columns`.
    """
    columns = read_columns(paths, _looks_of, task_key=task_key, workers=workers, on_refused=on_refused)
    names = [name.removesuffix(" place") for name in columns.streams if name.endswith(" place")]
    names.sort(key=lambda name: (known_mean(columns.stream(f"{name} place")), name))
    if costs is not None and names and set(costs) != set(names):
        raise ConfigurationError.of("look_costs", "fit_profile", f"the cost of each of {names}", dict(costs))
    chosen = _one_a_task(columns, rng)
    tiers = []
    if len(chosen):
        own, right = (columns.stream(name)[chosen] for name in ("own", "right"))
        tiers.append(TierCases(name=AGENT, score=own, right=right == 1.0))
    for name in names if tiers else ():
        score, agrees, right, tokens, seconds, _ = (columns.stream(f"{name} {what}")[chosen] for what in _FIGURES)
        spent = known_mean(seconds)
        tier = TierCases(
            name=name,
            score=score,
            right=right == 1.0,
            agrees=agrees == 1.0,
            cost=spent if costs is None else costs[name],
            tokens=known_mean(tokens),
            seconds=spent,
        )
        tiers.append(tier)
    unknown = np.isnan(columns.stream("right")) if columns.rows else ()
    looked = (run for run in columns.runs if run.length)  # one row each
    out = Counter(run.eligibility.reason for run, lacks in zip(looked, unknown, strict=True) if lacks)
    return RecordedLooks(
        tiers=tuple(tiers), share=columns.rows / max(1, len(columns.runs)), about_the_others=about_the_others(out)
    )


def fit_chain_part(looks: RecordedLooks, options: FitOptions, calls_per_day: float | None) -> tuple[Chain | None, Part]:
    """Fit the chain within `options.wrong_releases`, and say what it costs beside a human alone.

    `calls_per_day`: first irreversible calls, for the forecast; None: not known.
    """
    tiers = looks.tiers
    if options.question is None or not tiers:
        return _not_fitted("No labelled run has a look.")
    if np.isnan(tiers[0].score).all():
        return _not_fitted("No call of the agent has a call probability: its model returns no log-probabilities.")
    budget, cases = options.wrong_releases or BUDGET, len(tiers[0].right)

    def fitted(some: Sequence[TierCases]) -> Chain:
        rng = np.random.default_rng(options.seed)
        return fit_chain(some, budget=budget, delta=options.delta, cost_of_question=options.question or 1.0, rng=rng)

    try:
        chain, alone = fitted(tiers), fitted(tiers[:1])
    except ConfigurationError as error:
        return _not_fitted(str(error))
    if chain.release.at_least is None:
        more = math.ceil(1.5 * budget_needed(budget, options.delta))
        return _not_fitted(chain.release.shortage, f"at least {more} runs of a task each, where {cases} are now: ")
    figures = _figures(chain, alone, calls_per_day)
    why, promise = _in_words(figures), f"{chain.release.guarantee} {_FIRST_CALLS}{looks.about_the_others}"
    chain = chain.model_copy(update={"release": chain.release.model_copy(update={"guarantee": promise})})
    return chain, Part(name=NAME, status="fitted", why=why, promise=promise, figures=figures)


def _not_fitted(why: str, needs: str = "") -> tuple[None, Part]:
    needs += "labelled runs of AgentRunner(looks=...) without a chain"
    return None, Part(name=NAME, status="not fitted", why=why, needs=needs)


def _figures(chain: Chain, alone: Chain, per_day: float | None) -> dict[str, JsonValue]:
    """The expected course of a call, and of a day; `alone`: the same promise with a human after the agent."""
    found = chain.expected.model_dump()
    figures: dict[str, JsonValue] = {
        "tiers": [
            {"name": t.name, "looks": found["looks"][t.name], "cost": t.cost, "tokens": t.tokens, "seconds": t.seconds}
            for t in chain.tiers
        ],
        "at_least": chain.release.at_least,
        "runs": chain.release.runs,
        "calls_per_day": per_day,
    }
    for name in ("questions", "wrong", "cost", "tokens", "seconds"):
        figures[name] = found[name]
        figures[f"{name}_per_day"] = None if per_day is None else per_day * found[name]
    return figures | {"questions_alone": alone.expected.questions, "cost_alone": alone.expected.cost}


def _in_words(figures: Mapping[str, Any]) -> str:
    looks = ", ".join(
        f"{tier['name']} looks at {100.0 * tier['looks']:.0f} (cost {tier['cost']:.3g}, {tier['seconds']:.1f} s a look)"
        for tier in figures["tiers"][1:]
    )
    text = (
        f"Of 100 calls {looks or 'no tier looks at any, since none pays'}; a human is asked about "
        f"{100.0 * figures['questions']:.0f}, without looks about {100.0 * figures['questions_alone']:.0f}; "
        f"{100.0 * figures['wrong']:.1f} go out wrong. Cost {figures['cost']:.3g} a call, without looks "
        f"{figures['cost_alone']:.3g}."
    )
    if figures["calls_per_day"] is None:
        return text
    calls = sum(tier["looks"] for tier in figures["tiers"][1:]) * figures["calls_per_day"]
    return (
        f"{text} A day, of {figures['calls_per_day']:.1f} calls: {calls:.1f} looks, {figures['seconds_per_day']:.0f} "
        f"s, {figures['questions_per_day']:.1f} questions."
    )


def _looks_of(run: Run, decided: Eligibility) -> RunRows | None:
    """One row: the agent's call, and each tier's look at it; none for a run that nobody looked at."""
    looks = [event for event in run.events if isinstance(event, LookEvent)]
    if not looks or run.superseded:
        return None
    own = _own_call_right(run, decided, looks[0])
    named = () if run.outcome is None else run.outcome.right_looks
    row = {} if own is None else {"right": float(own)}
    row |= {} if looks[0].own is None else {"own": looks[0].own}
    for place, look in enumerate(looks):
        right = (own is True and look.agrees) or look.tier in named
        values = (look.probability, look.agrees, right, look.tokens, look.seconds, place)
        row |= {f"{look.tier} {name}": float(v) for name, v in zip(_FIGURES, values, strict=True) if v is not None}
    return RunRows(rows=(row,))


def _own_call_right(run: Run, decided: Eligibility, look: LookEvent) -> bool | None:
    """Whether the agent's call was right; None where nobody knows. A label "failure" stands against an approval."""
    answers = [e.decision for e in run.decisions if e.step_id == look.step_id and e.decision in _ANSWERS]
    outcome = run.outcome
    if answers:
        failed = outcome is not None and outcome.labelled_by is not None and outcome.success is False
        return answers[-1] == _APPROVED and not failed
    return outcome.success if decided.usable and outcome is not None else None


def _one_a_task(columns: Columns, rng: np.random.Generator) -> IntArray:
    """The rows of the runs that are drawn, one a task, before it is asked whether anybody looked."""
    known = ~np.isnan(columns.stream("right"))
    tasks, rows, others, row = [], [], [], 0
    for run in columns.runs:
        case = bool(run.length) and bool(known[row])
        if case or run.eligibility.usable:
            tasks.append(run.trial_of)
            rows.append(row if case else -1)
        else:
            others.append(run)
        row += run.length
    drawn = one_a_task(tasks, rng, other_trials(others))
    return np.array([row for row, out in zip(rows, drawn, strict=True) if out and row >= 0], dtype=np.intp)
