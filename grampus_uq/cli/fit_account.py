"""The account of `grampus-uq fit`: what was fitted, on what, with which promise, and what to expect of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from grampus_uq.cli.printing import counts_line, naming_refused, paragraph, print_json, print_lines, progress
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.core.state import Profile
from grampus_uq.learn.fit.detector import DetectorFit
from grampus_uq.learn.profiles import Part, ProfileFit
from grampus_uq.recording.artifacts import FittedFor, ProfileArtifact, load, save
from grampus_uq.recording.runs import beginnings
from grampus_uq.records.visible_text import in_short

_INDENT = 11
_SHOWN = 10
_DIFFERENT = 2
_REPORT = (
    "What is fitted here knows nothing of these calls: report each in your loop, session.observe_tool_call(call, "
    "call.id), and record anew."
)
_CHOSEN = (
    "Labelling the runs with the best scores gives a release rule soonest; a run without a label then counts as wrong "
    "(--labels by-score), and the promise holds."
)


def fit_and_print(
    fitting: Callable[..., ProfileFit], paths: Sequence[str], output: str, *, force: bool, as_json: bool
) -> None:
    """Fit, save, print; where nothing could be fitted, save only by force, and exit with status 1."""
    with naming_refused() as refuse:
        with progress("Reading runs") as advance:
            fit = fitting(on_runs=advance, on_refused=refuse)
        written = output if force or not fit.empty else None
        if written is not None:
            save(fit.artifact, written)
        if as_json:
            print_json({"profile": written, **_detector_json(fit.detector), **fit.to_json()})
        else:
            rings = fit.detector is not None and not fit.detector.detector.threshold.shortage
            print_lines(_account(fit, paths))
            print_lines(_written_lines(written, fit.artifact.fingerprint, rings=rings))
        if fit.empty:
            raise SystemExit(1)


def _written_lines(output: str | None, fingerprint: str, *, rings: bool) -> Iterator[str]:
    """The file of the profile, and the next step: a backtest where there is a detector to test."""
    if output is None:
        yield "NOTHING could be fitted, so nothing was written; --force writes the profile anyway."
        return
    yield f"written    {output} ({fingerprint[:12]})"
    if rings:
        yield f"next       grampus-uq backtest {output} OTHER_RUNS"


def base_of(path: str | None, irreversible: Sequence[str]) -> ProfileArtifact:
    """The profile that a fit begins with, with further tools that it guards by name."""
    artifact = ProfileArtifact(profile=Profile()) if path is None else load(path)
    if not irreversible:
        return artifact
    old = artifact.profile.policy
    names = [*old.irreversible_tool_names, *irreversible]
    policy = UncertaintyPolicy.model_validate({**old.model_dump(), "irreversible_tool_names": names})
    return artifact.model_copy(update={"profile": artifact.profile.model_copy(update={"policy": policy})})


def _detector_json(fit: DetectorFit | None) -> dict[str, Any]:
    """A fitted detector's threshold and promise as JSON values."""
    if fit is None:
        return {"statistic": None, "shortage": "no detector was fitted"}
    threshold = fit.detector.threshold
    return {
        "statistic": fit.report.member,
        "alpha": threshold.alpha,
        "mode": threshold.mode.value,
        "log_threshold": None if math.isinf(threshold.log_value) else threshold.log_value,
        "guarantee": threshold.guarantee,
        "shortage": threshold.shortage,
    }


def _account(fit: ProfileFit, paths: Sequence[str]) -> Iterator[str]:
    yield counts_line(fit.counts)
    without_task = f"; {fit.without_task} runs name no task and count as one each" if fit.without_task else ""
    parts = f"{fit.splits['learn']} to learn on, {fit.splits['thresholds']} to set thresholds"
    yield from _wrapped("split", f"{parts} of {fit.tasks} independent tasks{without_task}")
    yield from _guarded_lines(fit.artifact.profile.policy)
    if fit.unreported:
        yield from _wrapped("CAUTION", f"{fit.unreported} runs propose such a call and report no call. {_REPORT}")
    yield from _fitted_for_lines(fit.artifact.fitted_for, paths)
    alike: dict[tuple[str, ...], list[Part]] = {}
    for part in fit.parts:
        alike.setdefault((_said(part), part.needs, part.promise), []).append(part)
    for part, *others in alike.values():
        names = (one.name.removeprefix("stream ") for one in others)
        yield from _part_lines(replace(part, name=", ".join((part.name, *names))))
    if not fit.empty:
        yield from _expected(fit)
    if fit.label_next:
        best = ", ".join(fit.label_next[:_SHOWN])
        yield from _wrapped("label next", f"{best}: the runs without a label that are most likely right. {_CHOSEN}")


def _guarded_lines(policy: UncertaintyPolicy) -> Iterator[str]:
    """The tools that the profile guards by name, whose calls would go out unasked if they were missing."""
    none = "no tool by name (--irreversible NAME), only those whose effect is declared as irreversible"
    yield from _wrapped("guarded", _listed(policy.irreversible_tool_names) or none)
    if policy.always_ask_tool_names:
        yield from _wrapped("always ask", _listed(policy.always_ask_tool_names))


def _fitted_for_lines(facts: FittedFor, paths: Sequence[str]) -> Iterator[str]:
    """A warning where the profile could act in no session, since the recordings do not say what they were made with.

    For each unknown fact it names a run that lacks it, or two that differ.
    """
    runs: dict[str, dict[str | None, str]] = {name: {} for name, value in facts.model_dump().items() if value is None}
    if not runs:
        return
    for start in beginnings(paths):
        for name, found in runs.items():
            value = getattr(start, name) or None
            if value is None or len(found) < _DIFFERENT:
                found.setdefault(value, start.session_id)
        if all(None in found for found in runs.values()):  # no later run says more
            break
    lacking = [f"run {found[None]!r:.80} has no {name}" for name, found in runs.items() if None in found]
    lacking += [
        " and ".join(f"run {run!r:.80} has {name} {in_short(value or '', 24)!r}" for value, run in found.items())
        for name, found in runs.items()
        if found and None not in found
    ]
    yield from _wrapped(
        "acts",
        f"NOWHERE as it is: the recordings share no known {', '.join(runs)} ({'; '.join(lacking)}). Where a profile "
        "does not fit, the default limits decide. Fit several agents one by one. What varies within one, record with a "
        f"name of your own: {', '.join(f'{name}=...' for name in runs)} of the adapter, or of monitor.session.",
    )


def _part_lines(part: Part) -> Iterator[str]:
    if part.name == "detector" and part.status == "fitted":
        read = f"{part.figures['statistic']} on {_listed(part.figures['streams'])}"
        yield from _wrapped("statistic", f"{read} ({part.why})")
    else:
        yield from _wrapped(part.name, _said(part))
    if part.promise:
        yield from _wrapped("promise", part.promise)
    if part.needs and part.status != "not asked for":
        yield from _wrapped("labels", part.needs)


def _said(part: Part) -> str:
    state = "" if part.status == "fitted" else f"{part.status.upper()}: "
    return f"{state}{part.why}{_worth(part)}"


def _worth(part: Part) -> str:
    figures = part.figures
    sentences = []
    if isinstance(figures.get("auroc"), float):
        sentences.append(f"AUROC {figures['auroc']:.2f} on {figures['held_out_runs']} held-out runs")
    score, base = figures.get("score"), figures.get("base_score")
    if isinstance(score, float) and isinstance(base, float):
        sentences.append(f"log score {score:.3f} (success rate alone {base:.3f})")
    if isinstance(figures.get("at_least"), float):
        sentences.append(f"releases from {figures['at_least']:.3f} on")
    right, share = figures.get("right_among_released"), figures.get("share_released")
    if isinstance(right, float) and isinstance(share, float):
        sentences.append(f"{100 * right:.0f} % right among the {100 * share:.0f} % released here")
    worth = "; ".join(sentences)
    return f" {worth[0].upper()}{worth[1:]}." if worth else ""


def _expected(fit: ProfileFit) -> Iterator[str]:
    found: Mapping[str, Any] = fit.expected
    if not found["runs"]:
        return
    per_day = found["pauses_per_day"]
    day = "" if per_day is None else f", {per_day:.1f} a day"
    text = f"pauses in {_interval(found['paused'])} of the {found['runs']} recorded runs{day}, as replay says."
    if found["with_outcome"]:
        text += (
            f" Of the {found['with_outcome']} with an outcome and not learned from, "
            f"{100 * found['failure_rate']:.0f} % are failures: {_interval(found['precision'])} of the paused fail; "
            f"paused are {_interval(found['false_alarms'])} of those that succeed and "
            f"{_interval(found['failures_caught'])} of those that fail; "
            f"{_interval(found['right_among_released'])} of the rest succeed "
            f"({_interval(found['right_before'])} without). "
            "These runs set the thresholds, so the figures are slightly optimistic."
        )
        if fit.detector is not None and fit.detector.report.fit_ids:
            text += " The detector has learned on these failures: of them it catches more than of others."
        if fit.tasks < fit.splits["thresholds"]:
            text += " Trials of a task count as independent runs here: the intervals are too short."
    yield from _wrapped("expect", text)


def _interval(share: Mapping[str, Any]) -> str:
    if share["estimate"] is None:
        return "(no runs)"
    return f"{100 * share['estimate']:.0f} % [{100 * share['low']:.0f}, {100 * share['high']:.0f}]"


def _listed(values: Any) -> str:
    return ", ".join(map(str, values))


def _wrapped(name: str, text: str) -> list[str]:
    label = f"{name:<10} " if len(name) <= 10 else f"{name}: "
    return paragraph(label, text, _INDENT)
