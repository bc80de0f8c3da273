"""The charts of the evaluation: reliability, risk against coverage, and forecasts by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grampus_uq.learn.evaluate.transparency import ScoredStream
from grampus_uq.learn.pages.charts import Chart, Series
from grampus_uq.stats.ranking import risk_coverage
from grampus_uq.stats.reliability import reliability_bins
from grampus_uq.stats.trajectory_scores import ForecastTraces, min_forecast, weighted_forecast

_BLUE, _ORANGE, _GREY = 0, 1, 7
_CURVE_POINTS = 200  # more are not seen
_SHOWN_RUNS = 12
_LEAST_KEPT = 10  # a rate of fewer runs is noise


def holding_chart(streams: Sequence[ScoredStream]) -> Chart:
    """Success rate of the runs that are not held against the share held, by least forecast; a line a stream."""
    series = []
    for number, stream in enumerate(streams):
        if stream.complete.sum() >= _LEAST_KEPT:
            outcomes = stream.target[stream.complete]
            coverage, risk = risk_coverage(min_forecast(stream.raw)[stream.complete], outcomes)
            points = np.column_stack([1.0 - coverage, 1.0 - risk])[coverage * len(outcomes) >= _LEAST_KEPT]
            picked = np.unique(np.linspace(0, len(points) - 1, _CURVE_POINTS).astype(np.intp))
            series.append(Series(label=stream.name, colour=number, points=points[picked]))
    return Chart(
        caption="What holding buys: the runs of the least forecasts are held, and so many of the rest succeed.",
        x_label="share of runs held",
        y_label="success rate of the rest",
        series=series,
    )


def reliability_chart(stream: ScoredStream) -> Chart:
    """Success rate against the front-weighted forecast in tie-aware quantile bins, raw and recalibrated."""
    outcomes = stream.target[stream.complete]
    series = []
    for label, colour, traces in (("raw", _GREY, stream.raw), ("recalibrated", _BLUE, stream.platt)):
        if traces is not None and len(outcomes):
            bins = reliability_bins(weighted_forecast(traces)[stream.complete], outcomes)
            series.append(
                Series(
                    label=label,
                    colour=colour,
                    points=np.array([(found.mean_forecast, found.success_rate) for found in bins]),
                    radii=[2.0 + 6.0 * (found.count / len(outcomes)) ** 0.5 for found in bins],
                )
            )
    return Chart(
        caption="Reliability: points on the dotted line are right on average. Larger points hold more runs.",
        x_label="forecast (front-weighted mean)",
        y_label="success rate",
        series=series,
        diagonal=True,
    )


def risk_coverage_chart(streams: Sequence[ScoredStream]) -> Chart:
    """Failure rate among the runs that are kept, from the most confident on; one curve a recalibrated stream."""
    series = []
    for number, stream in enumerate(streams):
        traces = stream.platt if stream.platt is not None else stream.raw
        if stream.complete.any():
            scalar = weighted_forecast(traces)[stream.complete]
            curve = np.stack(risk_coverage(scalar, stream.target[stream.complete]), axis=1)
            picked = np.unique(np.linspace(0, len(curve) - 1, _CURVE_POINTS).astype(np.intp))
            series.append(Series(label=stream.name, colour=number, points=curve[picked]))
    return Chart(
        caption="Recalibrated streams; lower is better.",
        x_label="coverage: share of runs kept",
        y_label="failure rate among them",
        series=series,
    )


def forecasts_chart(stream: ScoredStream) -> Chart:
    """Forecasts by step: median and middle half of the successes and of the failures, and a few runs of each."""
    traces = stream.platt if stream.platt is not None else stream.raw
    longest = max(2, int(np.quantile(traces.lengths, 0.95))) if len(traces) else 2
    series = []
    for label, colour, wanted in (("succeeded", _BLUE, 1.0), ("failed", _ORANGE, 0.0)):
        chosen = stream.complete & (stream.target == wanted)
        if chosen.any():
            series.append(_outcome_series(traces.select(chosen), longest, label, colour))
    recalibrated = "" if stream.platt is None else " (recalibrated)"
    return Chart(
        caption=f"Forecasts{recalibrated}: median, middle half, and some runs of each outcome.",
        x_label="step of the model",
        y_label="forecast",
        series=series,
        x_from=1.0,
        x_to=float(longest),
        x_ticks=np.unique(np.linspace(1, longest, 6).round()).tolist(),
    )


def _outcome_series(traces: ForecastTraces, longest: int, label: str, colour: int) -> Series:
    thin = []
    for start, length in list(zip(traces.starts, traces.lengths, strict=True))[:_SHOWN_RUNS]:
        shown = traces.forecasts[start : start + min(length, longest)]
        thin.append(np.column_stack([np.arange(1, len(shown) + 1), shown]))
    by_step = [traces.forecasts[traces.steps == step] for step in range(1, longest + 1)]
    low, middle, high = np.array([np.quantile(found, [0.25, 0.5, 0.75]) for found in by_step if len(found)]).T
    steps = np.arange(1, len(middle) + 1)
    return Series(
        label=f"{label} ({len(traces)})",
        colour=colour,
        dashed=label == "failed",
        points=np.column_stack([steps, middle]),
        band=np.column_stack([np.r_[steps, steps[::-1]], np.r_[low, high[::-1]]]),
        thin=thin,
    )
