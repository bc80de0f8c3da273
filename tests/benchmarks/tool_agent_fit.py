"""What a profile learns from a few recorded runs of a tool agent, judged at the irreversible calls of the other runs.

    python -m tests.benchmarks.tool_agent_fit SET... [--splits 20] [--learn 0.5] [--draws 2000] [--seed 0] [--json]

A SET is as in `tests.benchmarks.tool_agent`. In each split a random `--learn` share of the runs is labelled and fitted
as anybody would (`fit_profile`; the detector at alpha .1 on average, the label-free budget at .3), and the profile acts
on the rest, replayed. Figures are means over splits, 95 % intervals by bootstrap over tasks (the splits share runs).

Ranks: `auroc` at the call; `stopped_at_30`: the share of wrong calls among the 30 % of all that are held, the least
sure ones. Rules: `wrong_held`, `right_held`: what is paused of either, `better` their difference (0: chance). `fused`,
`propagated` and `least` (the least fused confidence of the run so far) are not fitted and stand beside it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.core.state import Profile
from grampus_uq.learn.fit.detector import fit_budget
from grampus_uq.learn.fit.fit_calibration import apply_exactly
from grampus_uq.learn.fit.streams import read_detector_runs
from grampus_uq.learn.profiles import FitOptions, fit_profile
from grampus_uq.learn.profiles.expected import counterfactual
from grampus_uq.learn.profiles.labelled import LabelledRuns, labelled_runs
from grampus_uq.recording.codec import encode
from grampus_uq.recording.runs import Run, runs
from grampus_uq.records.events import OutcomeEvent, StepEvent
from grampus_uq.records.values import Outcome
from grampus_uq.stats.bootstrap import RowStatistic, bootstrap
from grampus_uq.stats.ranking import auroc_rows
from tests.benchmarks._report import emit, existing, positive, share, usage_errors
from tests.benchmarks.recorded_sets import opened_set
from tests.benchmarks.tool_agent import as_sensed_now, read_set

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
ALPHA, BUDGET, HELD = 0.1, 0.3, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A set as labelled recordings, a file a run: those with an irreversible call, sensed as this version does."""

    paths: tuple[Path, ...]
    runs: tuple[Run, ...]
    wrong: BoolArray
    data: LabelledRuns


def labelled(path: Path, folder: Path) -> Labelled:
    """Write the set's runs anew, each with its truth as label."""
    wrong = {one.task: one.wrong for one in read_set(path)[0]}
    (folder / "labelled").mkdir()
    with opened_set(path) as source:
        for run in runs(source / "recordings"):
            if run.session_id in wrong:
                lines = [encode(_event(event, not wrong[run.session_id]), content="full") for event in run.events]
                target = folder / "labelled" / f"{run.session_id}.jsonl"
                target.write_bytes(b"".join((x.encode() if isinstance(x, str) else x) + b"\n" for x in lines))
    data = labelled_runs(folder / "labelled", Profile())
    by_id = {run.session_id: run for run in runs(folder / "labelled")}
    return Labelled(
        paths=tuple(Path(name) for name in data.paths),
        runs=tuple(by_id[name] for name in data.ids),
        wrong=~data.success,
        data=data,
    )


def _event(event: Any, success: bool) -> Any:
    if isinstance(event, StepEvent):
        return replace(event, readings=as_sensed_now(event))
    return replace(event, outcome=Outcome(success=success)) if isinstance(event, OutcomeEvent) else event


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What was made of the runs that were not learned from: by name, a confidence, or whether the call was held."""

    rest: npt.NDArray[np.intp]
    ranks: dict[str, FloatArray]
    rules: dict[str, BoolArray]


def split_once(known: Labelled, share: float, seed: int) -> Split:
    """Fit on a random share of the runs; act on the rest."""
    n = len(known.runs)
    order = np.random.default_rng([seed, 24]).permutation(n)
    taught = [known.paths[i] for i in order[: round(share * n)]]
    rest = np.sort(order[round(share * n) :])
    options = FitOptions(false_alarms=ALPHA, assurance=0.0, seed=seed)
    profile = fit_profile(taught, options=options).artifact.profile
    unseen = read_detector_runs([str(path) for path in taught], ["fused"], labelled=False, profile=Profile())
    budget = Profile(detector=fit_budget(unseen, rng=np.random.default_rng(seed), share=BUDGET).detector)
    detector = profile.model_copy(update={"release": None})
    data = known.data
    ranks = {name: data.at_ask(data.streams[name])[rest] for name in ("fused", "propagated")}
    ranks["least"] = _least_so_far(data)[rest]
    if profile.calibration is not None:
        ranks = {"p_success": data.at_ask(apply_exactly(profile.calibration, data.streams))[rest], **ranks}
    rules = {f"detector at {ALPHA:g}": detector, f"budget of {BUDGET:g}": budget}
    acted = {name: np.array([counterfactual(known.runs[i], one).paused for i in rest]) for name, one in rules.items()}
    if profile.detector is None:
        del acted[f"detector at {ALPHA:g}"]
    return Split(rest=rest, ranks=ranks, rules=acted)


def _least_so_far(data: LabelledRuns) -> FloatArray:
    ends = np.cumsum(data.lengths)
    starts = ends - data.lengths
    fused = data.streams["fused"]
    return np.array([np.nanmin(fused[s : s + k + 1]) for s, k in zip(starts, data.asks, strict=True)])


def rows_of(name: str, known: Labelled, splits: Sequence[Split], options: Any) -> Iterator[dict[str, Any]]:
    """A row for each way to rank calls and for each rule that holds some."""
    model = known.runs[0].start.model if known.runs[0].start else ""
    about = {"set": name, "model": model, "n": len(known.runs), "learned_from": round(options.learn * len(known.runs))}
    interval = partial(bootstrap, n=len(known.runs), draws=options.draws)
    for score in dict.fromkeys(score for split in splits for score in split.ranks):
        there = [split for split in splits if score in split.ranks]
        of = _mean([_auroc(split.ranks[score], known.wrong[split.rest], split.rest) for split in there])
        found = interval(of, rng=np.random.default_rng(options.seed))
        held = [_stopped(split.ranks[score], bad) for split in there if (bad := known.wrong[split.rest]).any()]
        row = about | {"what": score, "splits": len(there), "auroc": found.estimate}
        yield row | {"low": found.low, "high": found.high, "stopped_at_30": float(np.mean(held)) if held else None}
    for rule in dict.fromkeys(rule for split in splits for rule in split.rules):
        there = [split for split in splits if rule in split.rules]
        wrong, right = (
            _mean([_share(split.rules[rule], known.wrong[split.rest] == bad, split.rest) for split in there])
            for bad in (True, False)
        )
        found = interval(partial(_difference, wrong, right), rng=np.random.default_rng(options.seed))
        one = np.ones((1, len(known.runs)))
        row = about | {"what": rule, "splits": len(there)}
        row |= {"wrong_held": float(wrong(one)[0]), "right_held": float(right(one)[0])}
        yield row | {"better": found.estimate, "low": found.low, "high": found.high}


def _difference(first: RowStatistic, second: RowStatistic, counts: FloatArray) -> FloatArray:
    return first(counts) - second(counts)


def _mean(parts: Sequence[RowStatistic]) -> RowStatistic:
    """The mean over splits, of those where it is defined."""

    def mean(counts: FloatArray) -> FloatArray:
        found = np.array([part(counts) for part in parts])
        there = ~np.isnan(found)
        total, n = np.where(there, found, 0.0).sum(axis=0), there.sum(axis=0)
        return np.asarray(np.divide(total, n, out=np.full(len(total), np.nan), where=n > 0), dtype=np.float64)

    return mean


def _auroc(confidence: FloatArray, wrong: BoolArray, rest: npt.NDArray[np.intp]) -> RowStatistic:
    return lambda counts: auroc_rows(-confidence, wrong.astype(np.float64), counts[:, rest])


def _share(held: BoolArray, among: BoolArray, rest: npt.NDArray[np.intp]) -> RowStatistic:
    def share(counts: FloatArray) -> FloatArray:
        weight = counts[:, rest] @ among
        found: FloatArray = counts[:, rest] @ (held & among)
        return np.asarray(np.divide(found, weight, out=np.full(len(counts), np.nan), where=weight > 0))

    return share


def _stopped(confidence: FloatArray, wrong: BoolArray) -> float:
    """The share of wrong calls among the least sure `HELD` of all; ties and what is left of a case count in part."""
    hold, stopped = HELD * len(wrong), 0.0
    for value in np.unique(confidence):
        here = confidence == value
        stopped += min(1.0, hold / here.sum()) * float(wrong[here].sum())
        hold -= float(here.sum())
        if hold <= 0.0:
            break
    return stopped / float(wrong.sum())


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, fit, act, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET", type=existing, help="a folder or a .tar.gz of recorded runs")
    parser.add_argument("--splits", type=positive, default=20)
    parser.add_argument("--learn", type=share, default=0.5, help="share of the runs that is learned from")
    parser.add_argument("--draws", type=positive, default=2000, help="bootstrap draws")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for path in options.sets:
        with usage_errors(parser), tempfile.TemporaryDirectory() as folder:
            known = labelled(path, Path(folder))
            splits = [split_once(known, options.learn, options.seed + number) for number in range(options.splits)]
            rows += rows_of(path.name.split(".tar")[0], known, splits, options)
    emit("tool_agent_fit", rows, options.json)


if __name__ == "__main__":
    main()
