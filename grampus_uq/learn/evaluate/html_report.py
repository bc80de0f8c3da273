"""The report as one HTML file: no script, no font, no picture from elsewhere, and no word of what a model said.

Tables turn into cards on a narrow screen, so that nothing has to be scrolled sideways; printed, they are tables again.
"""

from __future__ import annotations

import html
import os
import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from grampus_uq.learn.evaluate.evaluation import Evaluation
from grampus_uq.learn.evaluate.plots import printable, reliability_plot, risk_coverage_plot, traces_plot
from grampus_uq.learn.evaluate.transparency import TableRow
from grampus_uq.stats.weight_schedules import SCHEDULES

__all__ = ["report_html", "write_report"]

_CSS = """
:root{color-scheme:light}*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;color:#1b1b1b;background:#fff;margin:0 auto;max-width:68rem;padding:1rem}
h1{font-size:1.5rem;line-height:1.25;margin:.2rem 0 .6rem}h2{font-size:1.2rem;margin:2rem 0 .4rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}p,li{max-width:44rem}
h1,h3,p,li,td:first-child,figcaption{overflow-wrap:anywhere}td.t:not(:first-child){overflow-wrap:break-word}
td:not(.t):not(:first-child){white-space:nowrap}
.lead{color:#444}.warn{border-left:4px solid #b3410e;padding:.1rem .8rem;background:#fdf3ee;margin:.8rem 0}
table{border-collapse:collapse;width:100%;font-size:.86rem;font-variant-numeric:tabular-nums;margin:.5rem 0 1rem}
th,td{text-align:right;padding:.28rem .45rem;border-bottom:1px solid #ddd;vertical-align:top}
th:first-child,td:first-child,th.t,td.t{text-align:left}thead th{border-bottom:2px solid #888;font-weight:600}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));gap:1rem}
figure{margin:0;max-width:34rem;break-inside:avoid}figure svg{width:100%;height:auto;display:block}
figcaption{font-size:.85rem;color:#444}
@media screen and (max-width:46rem){
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
table,tbody,tr,td{display:block;width:100%}tr{border:1px solid #ccc;border-radius:6px}
tr{padding:.3rem .6rem;margin:.5rem 0}tbody tr{display:grid;grid-template-columns:1fr 1fr;column-gap:1.2rem}
td,td.t{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.12rem 0;text-align:right}
td::before{content:attr(data-label);color:#555;text-align:left;flex:none}
td:first-child,td.t{grid-column:1/-1}td:first-child{font-weight:600;text-align:left;justify-content:flex-start}td:first-child::before{content:none}
td.none{display:none}}
@media print{body{max-width:none;padding:0;font-size:10pt}table{font-size:7.5pt}tr,figure{break-inside:avoid}
h2,h3{break-after:avoid}thead{display:table-header-group}}
"""

_CSP = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_T, _N = ' class="t"', ""
Cell = str | int | float | bool | None


def write_report(
    evaluation: Evaluation, path: str | os.PathLike[str], *, title: str, made: datetime | None = None
) -> None:
    """Write the report; the file appears when it is complete.

    Args:
        evaluation: what is reported.
        path: where to; an existing file is replaced.
        title: heading, for example the name of the folder.
        made: time in the footer; None: now.

    Raises:
        MissingDependencyError: matplotlib is not installed (extra `report`).
        OSError: the file cannot be written.
    """
    text = report_html(evaluation, title=title, made=made)
    target = Path(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def report_html(evaluation: Evaluation, *, title: str, made: datetime | None = None) -> str:
    """Return the whole page; arguments as `write_report`."""
    time = (made or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M %Z").strip()
    body = "".join(
        [
            f"<h1>Confidence streams of {_text(title)}</h1>",
            _lead(evaluation),
            *(f'<div class="warn"><p>{_text(warning)}</p></div>' for warning in evaluation.warnings),
            _watch(evaluation),
            _stops(evaluation),
            _assumptions(evaluation),
            _transparency(evaluation),
            _differences(evaluation),
            _plots(evaluation),
            _invariance(evaluation),
            f'<p class="lead">Made {_text(time)} by grampus-uq evaluate.</p>',
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_CSP}">'
        f'<link rel="icon" href="data:,"><title>Confidence streams of {_text(title)}</title><style>{_CSS}</style>'
        f"</head><body><main>{body}</main></body></html>\n"
    )


def _lead(evaluation: Evaluation) -> str:
    scored = sum(row.runs for row in evaluation.audit if row.use == "scored")
    return (
        f'<p class="lead">{scored} runs with a known outcome, {evaluation.censored_runs} censored at their step '
        f"budget. Scores are rewards: at most 0, higher is better. Steps weigh {_text(evaluation.schedule)}. "
        "A forecast is the stated probability that the run will succeed in the end.</p>"
    )


def _watch(evaluation: Evaluation) -> str:
    """How the deployed calibration stands; nothing where none is watched."""
    if not evaluation.watch:
        return ""
    rows: list[list[Cell]] = [
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
    columns = ["detector", "runs bet on", "calibration", "n", "log martingale", "peak", "limit", "false alarms"]
    return (
        "<h2>Does the calibration still hold?</h2><p>Every finished run is ranked against the calibration runs and all "
        "runs before it, and a gambler bets that the ranks are not uniform. The last column bounds the probability "
        "that the peak ever reaches the limit although nothing has changed.</p>" + _table(columns, rows, texts=3)
    )


def _stops(evaluation: Evaluation) -> str:
    rows: list[list[Cell]] = [
        [row.stop_reason, row.use, row.why, row.runs, row.successes, row.failures, row.unknown]
        for row in evaluation.audit
    ]
    return (
        "<h2>How runs ended</h2><p>Stops that depend on how the run went are left out of every number below: scored as "
        "ordinary ends they would favour the streams that caused them.</p>"
        + _table(["stop", "use", "why", "runs", "succeeded", "failed", "unknown"], rows, texts=3)
    )


def _assumptions(evaluation: Evaluation) -> str:
    points = "".join(f"<li>{_text(line)}</li>" for line in evaluation.assumptions)
    return f"<h2>What is assumed of censored runs ({_text(evaluation.censoring)})</h2><ul>{points}</ul>"


def _transparency(evaluation: Evaluation) -> str:
    names = ["runs", "skipped", "TPS log", "TPS Brier", "TPS Beta(2,4)", "reliability", "resolution"]
    proper = [
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
    ranks = [
        [_stream(row), row.known, row.auroc, row.auprc, row.aurc, row.t_ece, row.t_brier] for row in evaluation.table
    ]
    return (
        "<h2>Transparency table</h2>"
        "<p>Proper scores of the whole process. A stream is scored on the runs that have its forecast at every step; "
        "the others are counted as skipped. Recalibrated: cross-fitted Platt maps, so that no run is judged by a map "
        "that saw it. Reliability (lower is better) and resolution (higher) are parts of the log score.</p>"
        + _table(["stream", *names], proper)
        + "<p>One number a run, on runs with a known outcome. AUROC and AUPRC find failures (higher is better); AURC, "
        "T-ECE and T-Brier are losses. None of them judges the process: T-ECE is 0 for a base rate that tells no run "
        "from another, and the AUQ scalars (last, mean, min) have no proper score of it.</p>"
        + _table(["stream", "runs", "AUROC", "AUPRC", "AURC", "T-ECE", "T-Brier"], ranks)
    )


def _stream(row: TableRow) -> str:
    if row.scalar == "base rate":
        return f"base rate of the runs of {printable(row.stream, 60)}"
    name = printable(row.stream, 60) + (", recalibrated" if row.calibrated else "")
    return name if row.scalar == "front-weighted mean" else f"{name}: {row.scalar}"


def _differences(evaluation: Evaluation) -> str:
    rows: list[list[Cell]] = [
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
    return (
        "<h2>Paired differences</h2>"
        f"<p>Both sides on the same {evaluation.draws} resamples of runs; 95% percentile intervals, z in bootstrap "
        "standard errors. Runs are taken to be independent: repeated attempts at one task are not, and the intervals "
        "are then too short. Each interval stands alone.</p>"
        + _table(["difference", "metric", "runs", "delta", "low", "high", "z"], rows, texts=2)
    )


def _plots(evaluation: Evaluation) -> str:
    schedule = SCHEDULES[evaluation.schedule]
    streams = [stream for stream in evaluation.streams if len(stream.raw)]
    parts = [
        "<h2>Risk against coverage</h2><p>Keep the most confident runs and hand the others over: how often do those "
        'kept fail?</p><div class="plots">',
        _figure(risk_coverage_plot(streams, schedule, "r"), "Recalibrated streams; lower is better."),
        "</div><h2>Reliability and forecasts</h2>",
    ]
    for index, stream in enumerate(streams):
        parts += [
            f'<h3>{_text(stream.name)}</h3><div class="plots">',
            _figure(
                reliability_plot(stream, schedule, f"a{index}"),
                "Reliability: points on the dotted line are right on average. Larger points hold more runs.",
            ),
            _figure(
                traces_plot(stream, f"t{index}"),
                "Forecasts"
                + (" (recalibrated)" if stream.platt is not None else "")
                + ": median, middle half, and some runs of each outcome.",
            ),
            "</div>",
        ]
    return "".join(parts)


def _invariance(evaluation: Evaluation) -> str:
    rows: list[list[Cell]] = [
        [printable(row.stream, 60), row.transform, row.tps_log, row.auroc, row.auprc, row.aurc]
        for row in evaluation.invariance
    ]
    spans: dict[str, list[float]] = {}
    for row in evaluation.invariance:
        spans.setdefault(row.stream, []).append(row.tps_log)
    said = "; ".join(f"{_text(printable(name, 60))}: {max(found) - min(found):.3f}" for name, found in spans.items())
    return (
        "<h2>What ranks cannot see</h2><p>The ranking is held fixed while the stream is transformed. Every rank metric "
        f"stays the same; the log score moves by ({said}) nats. A stream with a good AUROC may still state useless "
        "probabilities.</p>" + _table(["stream", "transform", "TPS log", "AUROC", "AUPRC", "AURC"], rows, texts=2)
    )


def _figure(svg: str, caption: str) -> str:
    named = svg.replace("<svg", f'<svg role="img" aria-label="{_text(caption)}"', 1)
    return f"<figure>{named}<figcaption>{_text(caption)}</figcaption></figure>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], texts: int = 1) -> str:
    """A table whose cells know the name of their column, for narrow screens; the first `texts` columns are text."""
    head = "".join(f"<th{_T if i < texts else _N}>{_text(name)}</th>" for i, name in enumerate(columns))
    body = "".join(f"<tr>{_cells(columns, row, texts)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(columns: Sequence[str], row: Sequence[Cell], texts: int) -> str:
    return "".join(_cell(name, value, i < texts) for i, (name, value) in enumerate(zip(columns, row, strict=True)))


def _cell(column: str, value: Cell, is_text: bool) -> str:
    shown = "–" if value is None else f"{value:.4f}" if isinstance(value, float) else _text(str(value))
    if isinstance(value, float) and 1e-9 < abs(value) < 0.001:  # below, it is rounding
        shown = f"{value:.2e}"
    classes = " ".join(name for name, wanted in (("t", is_text), ("none", value is None)) if wanted)
    marked = f' class="{classes}"' if classes else ""
    return f'<td data-label="{_text(column)}"{marked}>{shown}</td>'


def _text(value: str) -> str:
    return html.escape(printable(value, 300))
