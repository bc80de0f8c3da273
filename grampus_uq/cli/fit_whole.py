"""What `grampus-uq fit` does with recordings: everything that the labels allow, and an account of it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from grampus_uq.artifacts import load, save
from grampus_uq.cli.spreading import telling
from grampus_uq.policy import UncertaintyPolicy
from grampus_uq.profiles import FitOptions, Part, ProfileFit, fit_profile
from grampus_uq.state import Profile

__all__ = ["fit_whole"]

_WIDTH = 110
_INDENT = " " * 11


def fit_whole(
    paths: Sequence[str],
    output: str,
    options: FitOptions,
    *,
    base: str | None,
    irreversible: Sequence[str],
    spread: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Fit, save, print."""
    with telling("Reading runs") as advance:
        fit = fit_profile(list(paths), base=_base(base, irreversible), options=options, on_runs=advance, **spread)
    fingerprint = save(fit.artifact, output)
    if as_json:
        click.echo(json.dumps({"profile": output, **_detector_keys(fit), **fit.to_json()}, allow_nan=False))
        return
    for line in _account(fit):
        click.echo(line)
    click.echo(f"written    {output} ({fingerprint[:12]})")
    click.echo(f"next       grampus-uq backtest {output} OTHER_RUNS")


def _base(path: str | None, irreversible: Sequence[str]) -> Profile:
    profile = Profile() if path is None else load(path).profile
    if not irreversible:
        return profile
    names = [*profile.policy.irreversible_tool_names, *irreversible]
    policy = UncertaintyPolicy.model_validate({**profile.policy.model_dump(), "irreversible_tool_names": names})
    return profile.model_copy(update={"policy": policy})


def _detector_keys(fit: ProfileFit) -> dict[str, Any]:
    """The keys that a fit of a detector alone prints too."""
    if fit.detector is None:
        return {"statistic": None, "shortage": "no detector was fitted"}
    threshold, report = fit.detector.detector.threshold, fit.detector.report
    return {
        "statistic": report.member,
        "alpha": threshold.alpha,
        "mode": threshold.mode.value,
        "log_threshold": None if threshold.shortage else threshold.log_value,
        "guarantee": threshold.guarantee,
        "shortage": threshold.shortage,
    }


def _account(fit: ProfileFit) -> Iterator[str]:
    yield f"runs       {', '.join(f'{n} {what}' for what, n in fit.counts.items() if n) or 'none'}"
    yield f"parted     {fit.splits['learn']} to learn on, {fit.splits['thresholds']} to set thresholds"
    for part in fit.parts:
        yield from _told(part)
    yield from _expected(fit)


def _told(part: Part) -> Iterator[str]:
    if part.name == "detector" and part.status == "fitted":
        yield f"statistic  {part.figures['statistic']} on {_listed(part.figures['streams'])} ({part.why})"
    else:
        state = "" if part.status == "fitted" else f"{part.status.upper()}: "
        yield from _wrapped(part.name, f"{state}{part.why}{_worth(part)}")
    if part.promise:
        yield from _wrapped("promise", part.promise)
    if part.needs and part.status != "not asked for":
        yield from _wrapped("labels", part.needs)


def _worth(part: Part) -> str:
    figures = part.figures
    told = []
    if isinstance(figures.get("auroc"), float):
        told.append(f"AUROC {figures['auroc']:.2f} on {figures['held_out_runs']} held-out runs")
    score, base = figures.get("score"), figures.get("base_score")
    if isinstance(score, float) and isinstance(base, float):
        told.append(f"log score {score:.3f} (success rate alone {base:.3f})")
    if isinstance(figures.get("at_least"), float):
        told.append(f"releases from {figures['at_least']:.3f} on")
    right, share = figures.get("right_among_released"), figures.get("share_released")
    if isinstance(right, float) and isinstance(share, float):
        told.append(f"{100 * right:.0f} % right among the {100 * share:.0f} % released here")
    return f" {'; '.join(told)}." if told else ""


def _expected(fit: ProfileFit) -> Iterator[str]:
    found: Mapping[str, Any] = fit.expected
    if not found["runs"]:
        return
    per_day = found["pauses_per_day"]
    day = "" if per_day is None else f", {per_day:.1f} a day"
    yield from _wrapped(
        "expect",
        f"pauses in {_interval(found['paused'])} of runs{day}, at the {100 * found['failure_rate']:.0f} % failures "
        f"seen; {_interval(found['precision'])} of the paused fail; paused are {_interval(found['false_alarms'])} of "
        f"the runs that succeed and {_interval(found['failures_caught'])} of those that fail; "
        f"{_interval(found['right_among_released'])} of the rest succeed ({_interval(found['right_before'])} without). "
        f"On the {found['runs']} runs that set the thresholds: a little too good.",
    )


def _interval(share: Mapping[str, Any]) -> str:
    if share["estimate"] is None:
        return "(no run to say)"
    return f"{100 * share['estimate']:.0f} % [{100 * share['low']:.0f}, {100 * share['high']:.0f}]"


def _listed(values: Any) -> str:
    return ", ".join(map(str, values))


def _wrapped(name: str, text: str) -> list[str]:
    label = f"{name:<10} " if len(name) <= 10 else f"{name}: "
    return textwrap.wrap(f"{label}{text}", _WIDTH, subsequent_indent=_INDENT, break_long_words=False) or [label]
