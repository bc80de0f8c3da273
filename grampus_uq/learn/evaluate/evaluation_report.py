"""The evaluation as one HTML page; it quotes no text of a model or a user."""

from __future__ import annotations

from datetime import UTC, datetime

from grampus_uq.learn.evaluate.evaluation import Evaluation
from grampus_uq.learn.evaluate.evaluation_charts import (
    forecasts_chart,
    holding_chart,
    reliability_chart,
    risk_coverage_chart,
)
from grampus_uq.learn.evaluate.transparency import TableRow
from grampus_uq.learn.pages import printable, render_page
from grampus_uq.stats.weight_schedules import LINEAR_FRONT

_Row = list[str | int | float | None]
SHOWN_SIGNALS, _SHOWN_LINES = 12, 3
SIGNAL_COLUMNS = ("signal", "runs", "skipped", "auroc", "auroc_at_the_call", "gain", "t_ece")


def evaluation_html(evaluation: Evaluation, *, title: str) -> str:
    """Return the page.

    Args:
        evaluation: the results.
        title: heading, for example the name of the folder.
    """
    streams = [stream for stream in evaluation.streams if len(stream.raw)]
    by_name = {stream.name: stream for stream in streams}
    best = [by_name[row.name] for row in evaluation.verdict.rows if row.name in by_name][:_SHOWN_LINES]
    columns, signals = _as_shown(signal_rows(evaluation))
    return render_page(
        "evaluation.html",
        found=evaluation,
        schedule=LINEAR_FRONT.name,
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
        scores=_score_rows(evaluation),
        ranks=[
            [_stream(row), row.known, row.auroc, row.auprc, row.aurc, row.t_ece, row.t_brier]
            for row in evaluation.table
        ],
        differences=_difference_rows(evaluation),
        risk_coverage=risk_coverage_chart(streams),
        streams=[(s.name, reliability_chart(s), forecasts_chart(s)) for s in streams],
    )


def _as_shown(rows: list[_Row]) -> tuple[list[str], list[_Row]]:
    """The columns and rows of the first table: two digits, and no column without a figure."""
    titles = ["signal", "runs", "skipped", "AUROC", "AUROC at the call", "gain over base rate", "off by"]
    kept = [place for place in range(len(titles)) if any(row[place] is not None for row in rows)]
    shown: list[_Row] = [
        [f"{value:.2f}" if isinstance(value := row[place], float) else value for place in kept] for row in rows
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
        rows.append(
            [
                printable(signal.name, 60),
                signal.runs,
                raw.missing,
                signal.auroc,
                signal.at_the_call,
                gain,
                raw.t_ece,
            ]
        )
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


def _score_rows(evaluation: Evaluation) -> list[_Row]:
    return [
        [
            _stream(row),
            row.runs,
            row.missing,
            row.tps_log,
            row.tps_brier,
            row.tps_beta24,
            row.reliability,
            row.resolution,
        ]
        for row in evaluation.table
        if row.tps_log is not None
    ]


def _difference_rows(evaluation: Evaluation) -> list[_Row]:
    return [
        [
            f"{printable(row.second, 80)} − {printable(row.first, 80)}",
            row.metric,
            row.runs,
            row.delta,
            row.low,
            row.high,
            row.z,
        ]
        for row in evaluation.differences
    ]


def _stream(row: TableRow) -> str:
    if row.scalar == "base rate":
        return f"base rate of the runs of {printable(row.stream, 60)}"
    name = printable(row.stream, 60) + (", recalibrated" if row.calibrated else "")
    return name if row.scalar == "front-weighted mean" else f"{name}: {row.scalar}"
