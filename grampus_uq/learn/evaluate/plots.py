"""The report's plots as SVG text: reliability, risk against coverage, forecast traces. No pixels, no scripts, no fonts.

Each plot is narrow enough to be read on a phone; the page scales it. Names come from recordings, so nothing in them
is taken for markup or for a formula.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import MissingDependencyError
from grampus_uq.learn.evaluate.transparency import ScoredStream
from grampus_uq.stats.ranking import risk_coverage
from grampus_uq.stats.reliability import reliability_bins
from grampus_uq.stats.trajectory_scores import ForecastTraces, weighted_forecast
from grampus_uq.stats.weight_schedules import WeightSchedule

__all__ = ["printable", "reliability_plot", "risk_coverage_plot", "traces_plot"]

FloatArray = npt.NDArray[np.float64]

RAW, PLATT, SUCCESS, FAILURE, GREY = "#7a7a7a", "#0b5cad", "#0b5cad", "#b3410e", "#9a9a9a"
_LINES = ("#0b5cad", "#b3410e", "#2e7d32", "#6a3d9a", "#8d6e00", "#00838f", "#ad1457", "#455a64")
_DASHES = ("-", "--", "-.", ":")
_POINTS = 200  # of a curve: more are not seen
_SHOWN_RUNS = 12
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "grampus-uq",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def reliability_plot(stream: ScoredStream, schedule: WeightSchedule, prefix: str) -> str:
    """Success rate against the front-weighted forecast in tie-aware quantile bins, raw and recalibrated."""
    with _figure(prefix) as (axes, svg):
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
        outcomes = stream.chance[stream.complete]
        for label, colour, marker, traces in (
            ("raw", RAW, "o", stream.raw),
            ("recalibrated", PLATT, "s", stream.platt),
        ):
            if traces is not None and len(outcomes):
                bins = reliability_bins(weighted_forecast(traces, schedule)[stream.complete], outcomes)
                sizes = [8.0 + 60.0 * b.count / len(outcomes) for b in bins]
                x, y = [b.mean_forecast for b in bins], [b.success_rate for b in bins]
                axes.plot(x, y, color=colour, linewidth=1.0)
                axes.scatter(x, y, s=sizes, color=colour, marker=marker, label=label, zorder=3)
        _unit(axes, "forecast (front-weighted mean)", "success rate")
        axes.legend(loc="upper left", frameon=False)
    return svg[0]


def risk_coverage_plot(streams: Sequence[ScoredStream], schedule: WeightSchedule, prefix: str) -> str:
    """Failure rate among the runs that are kept, from the most confident on; one curve a recalibrated stream."""
    with _figure(prefix, legend_lines=len(streams)) as (axes, svg):
        for index, stream in enumerate(streams):
            traces = stream.platt if stream.platt is not None else stream.raw
            if stream.complete.any():
                scalar = weighted_forecast(traces, schedule)[stream.complete]
                coverage, risk = risk_coverage(scalar, stream.chance[stream.complete])
                picked = np.unique(np.linspace(0, len(coverage) - 1, _POINTS).astype(np.intp))
                axes.plot(
                    coverage[picked],
                    risk[picked],
                    color=_LINES[index % len(_LINES)],
                    linestyle=_DASHES[index // len(_LINES) % len(_DASHES)],
                    linewidth=1.3,
                    label=printable(stream.name),
                )
        _unit(axes, "coverage: share of runs kept", "failure rate among them")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False, fontsize=8)
    return svg[0]


def traces_plot(stream: ScoredStream, prefix: str) -> str:
    """Forecasts by step: median and middle half of the successes and of the failures, and a few runs of each."""
    traces = stream.platt if stream.platt is not None else stream.raw
    with _figure(prefix) as (axes, svg):
        longest = max(2, int(np.quantile(traces.lengths, 0.95))) if len(traces) else 2
        for label, colour, line, wanted in (("succeeded", SUCCESS, "-", 1.0), ("failed", FAILURE, "--", 0.0)):
            chosen = stream.complete & (stream.chance == wanted)
            if chosen.any():
                _draw_group(axes, traces.select(chosen), longest, label, colour, line)
        _unit(axes, "step of the model", "forecast")
        axes.set_xlim(0.8, longest + 0.2)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="lower left", frameon=False)
    return svg[0]


def _draw_group(axes: Any, traces: ForecastTraces, longest: int, label: str, colour: str, line: str) -> None:
    for start, length in list(zip(traces.starts, traces.lengths, strict=True))[:_SHOWN_RUNS]:
        shown = traces.forecasts[start : start + min(length, longest)]
        axes.plot(np.arange(1, len(shown) + 1), shown, color=colour, linewidth=0.4, alpha=0.35)
    steps = np.arange(1, longest + 1)
    bands = np.array([np.quantile(traces.forecasts[traces.steps == step], [0.25, 0.5, 0.75]) for step in steps
                      if (traces.steps == step).any()])  # fmt: skip
    steps = steps[: len(bands)]
    axes.fill_between(steps, bands[:, 0], bands[:, 2], color=colour, alpha=0.15, linewidth=0)
    axes.plot(steps, bands[:, 1], color=colour, linestyle=line, linewidth=1.8, label=f"{label} ({len(traces)})")


def _unit(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(-0.02, 1.02)
    if x != "step of the model":
        axes.set_xlim(-0.02, 1.02)


@contextmanager
def _figure(prefix: str, legend_lines: int = 0) -> Iterator[tuple[Any, list[str]]]:
    """Axes to draw on, and a list that holds the SVG afterwards; `prefix` keeps the ids of several plots apart."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError.of("matplotlib", "report", "The HTML report") from error
    svg: list[str] = []
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.2, 3.2 + 0.18 * legend_lines), layout="constrained")
        yield figure.subplots(), svg
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None}, transparent=True)
    svg.append(_inline(stream.getvalue(), prefix))


def _inline(document: str, prefix: str) -> str:
    """Strip what belongs to a file (prologue, metadata, fixed size) and make its ids its own."""
    text = document[document.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    return text.replace("url(#", f"url(#{prefix}").replace('xlink:href="#', f'xlink:href="#{prefix}')


def printable(name: str, most: int = 40) -> str:
    """A name on one line, without control characters and not longer than a plot is wide."""
    text = "".join(char if char.isprintable() else " " for char in name)
    return text if len(text) <= most else text[: most - 1] + "…"
