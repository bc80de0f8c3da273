"""p_success of a profile: which streams are worth something, and their fusion, fitted on the runs to learn on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from pydantic import JsonValue

from grampus_uq.core.state import WITH_THE_WORD
from grampus_uq.core.worst_case import UNAIDED
from grampus_uq.errors import ConfigurationError
from grampus_uq.learn.fit.fit_calibration import FittedSuccess, apply_exactly, apply_fusion, fit_fusion, fit_success
from grampus_uq.learn.profiles.labelled import LabelledRuns
from grampus_uq.learn.profiles.profile_parts import Part
from grampus_uq.learn.sensed import DERIVED
from grampus_uq.records.vocabulary import UncertaintySource, quantity
from grampus_uq.stats.arrays import BoolArray, FloatArray, finite
from grampus_uq.stats.fusion import LogisticFusion, is_count
from grampus_uq.stats.ranking import auroc
from grampus_uq.stats.reliability import trajectory_ece

LEAST_OF_EACH = 10
"""Successes, and failures, to learn on, below which a calibration would be noise."""

STATED: Final = UncertaintySource.VERBALIZED
NONE_TAUGHT: Final = "none of these runs taught the p_success that was kept"
MOST_STEPS = 50_000
_LEAST_SLOPE = 1e-3  # enough to rank by, and next to nothing of a probability


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedPSuccess:
    """The fusion, and p_success at every step of every run: nobody's own outcome taught what is said of it.

    taught: shape (n,), the runs whose outcomes taught which step is better than which, and that may set no threshold.
    kept: True when it comes from another profile, of which nobody but its author knows what taught it.
    """

    fusion: LogisticFusion
    values: FloatArray
    taught: BoolArray
    kept: bool = False


def can_learn(runs: LabelledRuns, held_out: BoolArray) -> bool:
    """True if the runs that are not held out are enough to learn p_success on."""
    return min(_of_each(runs, ~held_out)) >= LEAST_OF_EACH


def keep_p_success(runs: LabelledRuns, fusion: LogisticFusion, taught: BoolArray) -> tuple[FittedPSuccess, list[Part]]:
    """Take p_success as it is: every run may then set a threshold but those that taught it (`taught`)."""
    values = apply_exactly(fusion, runs.streams) if len(runs) else np.empty(0)
    why = "Kept as it was in the profile given: it learned nothing here, so every label may set thresholds."
    if taught.any():
        why += f" {int(taught.sum())} runs that served its fit may not."
    figures = _figures(runs, ~taught, values) if len(runs) else {}
    part = Part(name="p_success", status="fitted", why=why + word_in(fusion.readings), figures=figures)
    return FittedPSuccess(fusion=fusion, values=values, taught=taught, kept=True), [part]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankedByOne:
    """A p_success that ranks runs by one stream; `solid` is it again where the labels also say how sure it is."""

    fitted: FittedPSuccess
    solid: FittedPSuccess | None
    part: Part


def rank_by_one(runs: LabelledRuns) -> RankedByOne | None:
    """Fit p_success on one stream, chosen without outcomes, and on all runs: for labels that are too few to part.

    Its map is increasing, so that the outcomes teach how sure to be and never which step is better than which: every
    run may still set a threshold. The stream is the call's own probability where every call has it, else `fused`, else
    the reading that is there most often. None where there is no reading, or no outcome.
    """
    name = most_read(runs, runs.streams)
    if name is None or not len(runs):
        return None
    judged = runs.taught_by(np.ones(len(runs), dtype=np.bool_))
    traces = {name: runs.at_moments(name, judged)}
    fusion = _rising(fit_fusion(traces, runs.success[judged], run_weights=runs.weights[judged]), name)
    values = apply_exactly(fusion, runs.streams)
    good, bad = _of_each(runs, np.ones(len(runs), dtype=np.bool_))
    why = f"On one stream, {name}, and all {len(runs)} runs: too few to part. Every label may still set thresholds."
    solid = min(good, bad) >= LEAST_OF_EACH
    why += "" if solid else " It ranks; how sure it is, so few cannot say."
    fitted = FittedPSuccess(fusion=fusion, values=values, taught=np.zeros(len(runs), dtype=np.bool_))
    part = Part(name="p_success", status="fitted", why=why + word_in([name]), figures={"streams": [name]})
    return RankedByOne(fitted=fitted, solid=fitted if solid else None, part=part)


def most_read(runs: LabelledRuns, names: Iterable[str]) -> str | None:
    """The call's own probability where no moment lacks it, else `fused` or `unaided`, else the reading that is there
    most often; no count, whose direction the outcomes teach, and no trajectory risk, whose parameters may have been
    fitted on these runs."""
    may = sorted(
        n for n in names if n in runs.streams and n not in ("propagated", "trajectory_risk") and not is_count(n)
    )
    moments = runs.moments
    read = {name: int((~np.isnan(runs.streams[name][moments])).sum()) for name in may}
    first = UncertaintySource.CALL_PROBABILITY
    if 0 < read.get(first, 0) == int(moments.sum()):
        return first
    main = next((name for name in ("fused", UNAIDED) if read.get(name)), None)
    name = main or max(may, key=lambda one: read[one], default="")
    return name if read.get(name) else None


def without_the_word(runs: LabelledRuns, *, trusted: bool = False) -> LabelledRuns:
    """The runs without what the model states of itself, but where it is trusted, or there is little else to read.

    Counts and the trajectory's risk are no readings of a moment. Without the word `unaided` takes the place of `fused`,
    also where none was recorded: one that is stated later would lift it. `trusted`: all streams but that one.
    """
    no_others = (*DERIVED, "trajectory_risk")
    at = runs.moments
    read = {n: ~np.isnan(s[at]) for n, s in runs.streams.items() if n not in no_others and not is_count(n)}
    found = np.sum(read.pop(STATED, False)), np.sum(np.any([*read.values()], axis=0))
    stated, others = (float(number) / max(1, int(at.sum())) for number in found)
    left_out = {UNAIDED} if trusted or must_take_the_word(stated, others) else {STATED, "fused"}
    return replace(runs, streams={name: s for name, s in runs.streams.items() if name not in left_out})


def must_take_the_word(stated: float, others: float) -> bool:
    """True where a fit can go by little else than what the model states: whoever can make it state more then has calls
    released. Given the shares of moments with a stated confidence, and with another reading."""
    return others < min(stated, 0.5)


def word_in(streams: Iterable[str]) -> str:
    """A sentence of a report on what was fitted on these streams: nothing where no word of the model is in them."""
    told = " It takes the model's word: whoever can make the model state more has calls released."
    return "" if WITH_THE_WORD.isdisjoint(streams) else told


def _rising(fusion: LogisticFusion, name: str) -> LogisticFusion:
    """A fusion that ranks by this stream even where outcomes show no worth of it: few of them often do not."""
    one = fusion.readings[name]
    steeper = one.model_copy(update={"slope": max(one.slope, _LEAST_SLOPE)})
    return fusion.model_copy(update={"readings": {**fusion.readings, name: steeper}})


def fit_p_success(
    runs: LabelledRuns, held_out: BoolArray, rng: np.random.Generator
) -> tuple[FittedPSuccess | None, list[Part]]:
    """Fit p_success on the runs that are not held out; report each stream's worth alone, and that of the fusion.

    A run with an irreversible call teaches by the turn that proposed its first one, which is what a release is decided
    on; any other run by all its steps, the first ones weighted most.
    The runs to learn on are judged by cross-fitting, all others by the fusion itself. Of very many runs a random part
    of about `MOST_STEPS` steps teaches it: a dozen numbers are not known better from more.
    """
    learn = _enough(runs, runs.taught_by(~held_out), rng)
    good, bad = _of_each(runs, learn)
    if min(good, bad) < LEAST_OF_EACH:
        lacking = _lacking(held_out, good, bad)
        why = f"It would learn on {good} successes and {bad} failures; {LEAST_OF_EACH} of each are needed."
        return None, [Part(name="p_success", status="not fitted", why=why, needs=lacking)]
    names = [name for name in runs.streams if name not in DERIVED] or [n for n in DERIVED if n in runs.streams]
    moments = runs.moments & _rows(runs, learn)
    names = [name for name in names if not np.isnan(runs.streams[name][moments]).all()]
    twins = _twins(runs, names)
    names = [name for name in names if name not in twins]
    parts = [_stream_part(runs, held_out, learn, name) for name in names]
    for name, twin in twins.items():
        why = f"Here it is the same as {twin} at every step."
        parts.append(Part(name=f"stream {name}", status="not fitted", why=why))
    try:
        found = _fit(runs, learn, names)
    except ConfigurationError as error:
        return None, [*parts, Part(name="p_success", status="not fitted", why=str(error))]
    main = most_read(runs, names)
    fusion = _rising(found.fusion, main) if found.fusion.flat and main in found.fusion.readings else found.fusion
    values = np.full(len(next(iter(runs.streams.values()))), np.nan)
    for half, other in enumerate(reversed(found.cross.fusions)):
        mine = learn.copy()
        mine[learn] = found.cross.second_half == bool(half)
        inside = _rows(runs, mine)
        values[inside] = apply_fusion(other, {name: runs.streams[name][inside] for name in names})
    outside = _rows(runs, ~learn)
    if outside.any():
        values[outside] = apply_exactly(fusion, {name: runs.streams[name][outside] for name in names})
    figures = _figures(runs, held_out, values) | {
        "score": finite(found.score),
        "base_score": finite(found.base_score),
        "streams": [name for name, one in found.fusion.readings.items() if one.slope != 0.0],
    }
    useless = found.fusion.flat or (
        found.score is not None and found.base_score is not None and found.score <= found.base_score
    )
    asked = int((learn & runs.has_call).sum())
    why = f"On {quantity(len(names), 'stream')} of {int(learn.sum())} runs"
    why += f", {asked} of them at the turn that proposes an irreversible call" if asked else ""
    why += ", and it says no more than the success rate does." if useless else "."
    parts.append(Part(name="p_success", status="fitted", why=why + word_in(names), figures=figures))
    return FittedPSuccess(fusion=fusion, values=values, taught=~held_out), parts


def _of_each(runs: LabelledRuns, chosen: BoolArray) -> tuple[int, int]:
    """Successes and failures among these runs."""
    good = int(runs.success[chosen].sum())
    return good, int(chosen.sum()) - good


def _twins(runs: LabelledRuns, names: list[str]) -> dict[str, str]:
    """Streams that say just what an earlier one says: without a call the action is the whole completion, for one."""
    twins: dict[str, str] = {}
    for i, name in enumerate(names):
        own = runs.streams[name]
        same = (n for n in names[:i] if n not in twins and np.array_equal(runs.streams[n], own, equal_nan=True))
        if (twin := next(same, None)) is not None:
            twins[name] = twin
    return twins


def _enough(runs: LabelledRuns, learn: BoolArray, rng: np.random.Generator) -> BoolArray:
    """All runs to learn on, or a random part of them with about `MOST_STEPS` steps."""
    if int(runs.lengths[learn].sum()) <= MOST_STEPS:
        return learn
    order = rng.permutation(np.flatnonzero(learn))
    chosen = np.zeros_like(learn)
    chosen[order[np.cumsum(runs.lengths[order]) <= MOST_STEPS]] = True
    return chosen


def _stream_part(runs: LabelledRuns, held_out: BoolArray, learn: BoolArray, name: str) -> Part:
    """A stream alone, calibrated: log score out of sample beside that of the success rate."""
    try:
        found = _fit(runs, learn, [name])
    except ConfigurationError as error:
        return Part(name=f"stream {name}", status="not fitted", why=str(error))
    one = found.fusion.readings[name]
    values = np.full(len(runs.streams[name]), np.nan)
    if held_out.any():
        values[_rows(runs, held_out)] = apply_fusion(found.fusion, {name: runs.streams[name][_rows(runs, held_out)]})
    calibration: dict[str, JsonValue] = {"mean": one.mean, "sd": one.sd, "slope": one.slope}
    calibration["intercept"] = found.fusion.intercept
    figures: dict[str, JsonValue] = {
        "calibration": calibration,
        "score": finite(found.score),
        "base_score": finite(found.base_score),
        "runs_scored": found.scored,
        "share_of_steps_read": float((~np.isnan(runs.streams[name])).mean()),
        **_figures(runs, held_out, values),
    }
    worth = found.score is not None and found.base_score is not None and found.score > found.base_score
    why = "It says more than the success rate does." if worth else "Alone it says no more than the success rate does."
    return Part(name=f"stream {name}", status="fitted", why=why, figures=figures)


def _fit(runs: LabelledRuns, learn: BoolArray, names: list[str]) -> FittedSuccess:
    streams = {name: runs.at_moments(name, learn) for name in names}
    ids = [name for name, chosen in zip(runs.ids, learn, strict=True) if chosen]
    return fit_success(streams, runs.success[learn], ids, run_weights=runs.weights[learn])


def _figures(runs: LabelledRuns, held_out: BoolArray, values: FloatArray) -> dict[str, JsonValue]:
    """Rank and calibration on the runs held out, at the step where an irreversible call is asked for."""
    p_success, good = runs.at_ask(values)[held_out], runs.success[held_out]
    there = ~np.isnan(p_success)
    if not there.any():
        return {"held_out_runs": 0}
    p_success, good = p_success[there], good[there]
    return {
        "held_out_runs": int(there.sum()),
        "auroc": finite(auroc(p_success, good)),
        "t_ece": finite(trajectory_ece(p_success, good)),
    }


def _lacking(held_out: BoolArray, good: int, bad: int) -> str:
    share = float((~held_out).mean()) if len(held_out) else 0.5
    more = {"successes": LEAST_OF_EACH - good, "failures": LEAST_OF_EACH - bad}
    wanted = [f"{math.ceil(n / max(share, 0.01))} more labelled {what}" for what, n in more.items() if n > 0]
    return " and ".join(wanted)


def _rows(runs: LabelledRuns, chosen: BoolArray) -> BoolArray:
    return np.repeat(chosen, runs.lengths)
