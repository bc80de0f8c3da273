"""The evaluation as one HTML page; it quotes no text of a model or a user."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from operator import attrgetter

import numpy as np

from grampus_uq.learn.evaluate.evaluation import Evaluation
from grampus_uq.learn.evaluate.transparency import SCHEDULE, ScoredStream, TableRow
from grampus_uq.learn.pages import printable, render_page
from grampus_uq.learn.pages.charts import Chart, Series
from grampus_uq.stats.arrays import FloatArray
from grampus_uq.stats.ranking import risk_coverage
from grampus_uq.stats.reliability import reliability_bins
from grampus_uq.stats.trajectory_scores import ForecastTraces, min_forecast, weighted_forecast

_Row = list[str | int | float | None]
SHOWN_SIGNALS, _SHOWN_LINES = 12, 3
SIGNAL_COLUMNS = ("signal", "runs", "skipped", "auroc", "auroc_at_the_call", "gain", "t_ece")


def evaluation_html(evaluation: Evaluation, *, title: str) -> str:
    """Return the page; `title` is its heading, for example the name of the folder."""
    streams = [stream for stream in evaluation.streams if len(stream.raw)]
    by_name = {stream.name: stream for stream in streams}
    best = [by_name[row.name] for row in evaluation.verdict.rows if row.name in by_name][:_SHOWN_LINES]
    columns, signals = _as_shown(signal_rows(evaluation))
    return render_page(
        "evaluation.html",
        found=evaluation,
        schedule=SCHEDULE,
        title=printable(title, 300),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M %Z").strip(),
        scored=sum(row.runs for row in evaluation.audit if row.use == "scored"),
        watch=_watch_rows(evaluation),
        columns=columns,
        signals=signals[:SHOWN_SIGNALS],
        other_signals=signals[SHOWN_SIGNALS:],
        holding=holding_chart(best),
        best=reliability_chart(best[0]),
        best_name=best[0].name,
        stops=[
            [row.stop_reason, row.use, row.why, row.runs, row.successes, row.failures, row.unknown]
            for row in evaluation.audit
        ],
        scores=[[_stream(row), *_SCORES(row)] for row in evaluation.table if row.tps_log is not None],
        ranks=[[_stream(row), *_RANKS(row)] for row in evaluation.table],
        differences=[
            [f"{printable(row.second, 80)} − {printable(row.first, 80)}", *_DIFFERENCE(row)]
            for row in evaluation.differences
        ],
        risk_coverage=risk_coverage_chart(streams),
        streams=[(s.name, reliability_chart(s), forecasts_chart(s)) for s in streams],
    )


def _as_shown(rows: list[_Row]) -> tuple[list[str], list[_Row]]:
    """The columns and rows of the first table: two digits, and no column without a figure."""
    titles = ["signal", "runs", "skipped", "AUROC", "AUROC at the call", "gain over base rate", "off by"]
    kept = [place for place in range(len(titles)) if any(row[place] is not None for row in rows)]
    shown: list[_Row] = [
        [f"{value:z.2f}" if isinstance(value := row[place], float) else value for place in kept] for row in rows
    ]
    return [titles[place] for place in kept], shown


def signal_rows(evaluation: Evaluation) -> list[_Row]:
    """A row of `SIGNAL_COLUMNS` a signal, the best first.

    How it ranks, what it is worth recalibrated beside its base rate (`gain`, in log score), how far off it is raw.
    """
    found: dict[tuple[str, bool], TableRow] = {}
    base: dict[int, float | None] = {}
    for row in evaluation.table:
        if row.scalar == "base rate":
            base[row.runs] = row.tps_log
        elif row.scalar == "front-weighted mean":
            found[row.stream, row.calibrated] = row
    rows: list[_Row] = []
    for signal in evaluation.verdict.rows:
        raw, mapped = found[signal.name, False], found.get((signal.name, True))
        score = None if mapped is None else mapped.tps_log
        rate = base.get(raw.runs)
        gain = None if score is None or rate is None else round(score - rate, 3) + 0.0
        name = printable(signal.name, 60)
        rows.append([name, signal.runs, raw.missing, signal.auroc, signal.at_the_call, gain, raw.t_ece])
    return rows


def _watch_rows(evaluation: Evaluation) -> list[_Row]:
    """The state of the deployed calibration; nothing where none is watched."""
    return [
        [
            status.detector[:12],
            status.variant.value.replace("_", " "),
            "no longer holds" if status.alarmed else "gathering" if status.gathering else "no evidence of a change",
            status.n_runs,
            status.log_martingale,
            status.log_peak,
            status.log_threshold,
            f"{status.level:g}",
        ]
        for status in evaluation.watch
    ]


_SCORES = attrgetter("runs", "missing", "tps_log", "tps_brier", "tps_beta24", "reliability", "resolution")
_RANKS = attrgetter("known", "auroc", "auprc", "aurc", "t_ece", "t_brier")
_DIFFERENCE = attrgetter("metric", "runs", "delta", "low", "high", "z")


def _stream(row: TableRow) -> str:
    if row.scalar == "base rate":
        return f"base rate of the runs of {printable(row.stream, 60)}"
    name = printable(row.stream, 60) + (", recalibrated" if row.calibrated else "")
    return name if row.scalar == "front-weighted mean" else f"{name}: {row.scalar}"


_BLUE, _ORANGE, _GREY = 0, 1, 7
_CURVE_POINTS = 200  # more are not seen
_SHOWN_RUNS = 12
_LEAST_KEPT = 10  # a rate of fewer runs is noise


def holding_chart(streams: Sequence[ScoredStream]) -> Chart:
    """Success rate of the runs that are not held against the share held, by least forecast; a line a stream."""
    series = []
    for number, stream in enumerate(streams):
        if stream.complete.sum() > _LEAST_KEPT:  # with as many there is one point, and no line
            outcomes = stream.target[stream.complete]
            coverage, risk = risk_coverage(min_forecast(stream.raw)[stream.complete], outcomes)
            points = np.column_stack([1.0 - coverage, 1.0 - risk])[coverage * len(outcomes) >= _LEAST_KEPT]
            series.append(Series(label=stream.name, colour=number, points=_thinned(points)))
    return Chart(
        caption="Effect of holding the runs with the lowest forecasts: the success rate of the rest.",
        x_label="share of runs held",
        y_label="success rate of the rest",
        series=series,
    )


def _thinned(points: FloatArray) -> FloatArray:
    """At most `_CURVE_POINTS` of a curve's points, evenly spread, its ends among them."""
    return points[np.unique(np.linspace(0, len(points) - 1, _CURVE_POINTS).astype(np.intp))]


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
        x_label="mean forecast, early steps weighing most",
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
            series.append(Series(label=stream.name, colour=number, points=_thinned(curve)))
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
