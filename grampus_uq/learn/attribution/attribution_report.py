"""One HTML page that shows a failed run with its prediction set marked: what to read first, why, and what it is worth.

Self-contained (no script, no font, no request), and everything that came from the run is escaped: an agent's text is
hostile input to whoever opens the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from grampus_uq.learn.attribution.method_choice import ErrorPositions
from grampus_uq.learn.attribution.result import AttributedStep, Attribution, spans

__all__ = ["attribution_html"]

SHOWN_CHARACTERS = 20_000
"""Of a step's text; the rest is counted."""

_STYLE = """
:root{--ink:#1b1f24;--dim:#5b6570;--line:#d5dae0;--paper:#fff;--wash:#f5f7f9;--mark:#b4460f;--soft:#fdebdf;--bar:#8796a5;
--fail:#a3123a}
@media (prefers-color-scheme:dark){:root{--ink:#e7eaee;--dim:#a0abb6;--line:#39424c;--paper:#14181d;--wash:#1c2229;
--mark:#f08a4b;--soft:#3a2416;--bar:#71808f;--fail:#ff7c9c}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .25rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p{margin:.4rem 0;max-width:46rem}.dim{color:var(--dim)}
.note{border-left:4px solid var(--fail);padding:.1rem .8rem;background:var(--wash)}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--dim);font:11px system-ui,sans-serif}
.window{fill:var(--soft)}.bar{fill:var(--bar)}.bar.in{fill:var(--mark)}.unscored{fill:none;stroke:var(--line)}
.axis{stroke:var(--line)}.cross{stroke:var(--fail);stroke-width:2}
ol{list-style:none;margin:0;padding:0}
li{border-left:4px solid var(--line);margin:.35rem 0;padding:.15rem 0 .15rem .8rem}
li.in{border-color:var(--mark);background:var(--soft)}
summary{cursor:pointer}
summary b{font-variant-numeric:tabular-nums}.fail{color:var(--fail)}.tag{color:var(--mark);font-weight:600}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--wash);border:1px solid var(--line);padding:.6rem;
max-height:30rem;overflow:auto;font:13px/1.45 ui-monospace,monospace}
table{border-collapse:collapse}td,th{padding:.15rem .9rem .15rem 0;text-align:left;vertical-align:top;font-weight:400}
th{color:var(--dim)}
"""


def attribution_html(attribution: Attribution, *, positions: ErrorPositions | None = None) -> str:
    """Draw a result as a self-contained HTML page.

    Args:
        attribution: from `locate` or `attribute`.
        positions: where the calibration failures had their errors; drawn below when given.

    Returns:
        The page as text without lone surrogates, so that it can be written as UTF-8.
    """
    title = f"Run {attribution.trajectory_id}: {_headline(attribution)}"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>{_text(_headline(attribution))}</h1>",
        f'<p class="dim">Run {_text(attribution.trajectory_id)}</p>',
        f"<p>{_text(_clipped(attribution.task, 2000))}</p>" if attribution.task else "",
        *(f'<p class="note">{_text(note)}</p>' for note in attribution.notes),
        *(f"<p>{_text(line)}</p>" for line in attribution.why),
        _drawing(attribution),
        "<h2>What this is worth</h2>",
        f"<p>{_text(attribution.coverage)}</p>",
        "<h2>The run</h2>",
        "<ol>",
        *(_step(step, most_suspect=step.index == attribution.most_suspect) for step in attribution.steps),
        "</ol>",
        "<h2>How it was found</h2>",
        _facts(attribution),
        "" if positions is None else _histogram(positions),
        "</main></body></html>",
    ]
    page = "\n".join(part for part in parts if part)
    return page.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _headline(attribution: Attribution) -> str:
    inside, length = attribution.set_steps, len(attribution.steps)
    if not inside:
        return "No step stands out"
    if attribution.threshold.rank is None:
        return f"Too few labelled failures to narrow down {length} steps"
    if len(inside) == length:
        return f"The error is somewhere in all {length} steps"
    amount = "one" if len(inside) == 1 else len(inside)
    return _clipped(f"Look at {amount} of {length} steps: {spans(inside)}", 200)


def _drawing(attribution: Attribution) -> str:
    """Bars for the scores, a window behind the set, crosses at failed tools; never-scored steps are empty frames."""
    steps = attribution.steps
    width, top, floor = 900.0, 16.0, 150.0
    cell = width / len(steps)
    scores = [step.score for step in steps if step.score is not None]
    low, high = min([*scores, 0.0]), max([*scores, 0.0])
    scale = (floor - top) / (high - low) if high > low else 0.0
    every = max(1, -(-len(steps) // 30))
    shapes = []
    for step in steps:
        x, name = step.index * cell, f"Step {step.index}, {step.speaker}"
        shown = "not scored" if step.score is None else f"score {step.score:.3g}"
        label = f"<title>{_text(_clipped(name, 120))}: {shown}{', in the set' if step.inside else ''}</title>"
        if step.inside:
            shapes.append(f'<rect class="window" x="{x:.2f}" y="0" width="{cell:.2f}" height="{floor:.0f}"/>')
        inner = max(1.0, cell - min(3.0, cell * 0.3))
        if step.score is None:
            box = f'x="{x:.2f}" y="{floor - 20:.0f}" width="{inner:.2f}" height="20"'
            shapes.append(f'<rect class="unscored" {box}>{label}</rect>')
        else:
            height = max(1.5, (step.score - low) * scale)
            box = f'x="{x:.2f}" y="{floor - height:.2f}" width="{inner:.2f}" height="{height:.2f}"'
            shapes.append(f'<rect class="bar{" in" if step.inside else ""}" {box}>{label}</rect>')
        if step.tool_failed:
            middle = x + inner / 2
            path = f"M{middle - 4:.1f} {floor + 5:.0f}l8 8m0 -8l-8 8"
            shapes.append(f'<path class="cross" d="{path}" fill="none"><title>failed tool</title></path>')
        if step.index % every == 0:
            place = f'x="{x + inner / 2:.1f}" y="{floor + 28:.0f}"'
            shapes.append(f'<text {place} text-anchor="middle">{step.index}</text>')
    alternative = f"Scores of {len(steps)} steps; {len(attribution.set_steps)} are in the set."
    return (
        f'<svg viewBox="-8 -4 916 190" role="img" aria-label="{_text(alternative)}">{"".join(shapes)}'
        f'<line class="axis" x1="0" x2="{width:.0f}" y1="{floor:.0f}" y2="{floor:.0f}"/></svg>'
        '<p class="dim">Height: how suspect the step is. Shaded: the set. Cross: a tool failed. '
        "Open frame: not scored.</p>"
    )


def _step(step: AttributedStep, *, most_suspect: bool) -> str:
    tags = [
        '<span class="tag">most suspect</span>' if most_suspect else "",
        '<span class="fail">tool failed</span>' if step.tool_failed else "",
        '<span class="dim">observation</span>' if step.observation else "",
        "" if step.score is None else f'<span class="dim">score {step.score:.3g}</span>',
    ]
    head = f"<b>{step.index}</b> {_text(_clipped(step.speaker, 120))} {' '.join(tag for tag in tags if tag)}"
    why = f'<p class="dim">Against it: {_text(_clipped(step.why, 1000))}</p>' if step.why else ""
    missing = f'<p class="fail">No judgement: {_text(step.missing)}</p>' if step.missing else ""
    opening = '<li class="in"><details open>' if step.inside else "<li><details>"
    text = _text(_clipped(step.text, SHOWN_CHARACTERS))
    return f"{opening}<summary>{head}</summary>{why}{missing}<pre>{text}</pre></details></li>"


def _facts(attribution: Attribution) -> str:
    usage = attribution.usage
    spent = f"{attribution.calls} calls, {usage.input_tokens + usage.output_tokens} tokens"
    cost = "" if usage.cost_usd is None else f", {usage.cost_usd:.4f} USD"
    rows = [
        ("Method", f"{attribution.method} at {attribution.level:.0%}"),
        ("Scorer", attribution.scorer),
        ("Calibration", f"{attribution.threshold.n} labelled failures"),
        ("Steps scored", f"{attribution.evaluations} of {len(attribution.steps)}"),
        ("Model calls", f"{spent}{cost}" if attribution.calls else "none"),
        ("Left out", f"{attribution.removal_rate:.0%} of the steps"),
    ]
    cells = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"


def _histogram(positions: ErrorPositions) -> str:
    """Where the labelled failures had their errors, from the start of the run to its end."""
    counts: Sequence[int] = positions.counts
    cell, highest = 300.0 / len(counts), max(counts)
    bars = "".join(
        f'<rect class="bar" x="{i * cell:.1f}" y="{60 - 55 * count / highest:.1f}" width="{cell - 2:.1f}" '
        f'height="{55 * count / highest:.1f}"><title>{count}</title></rect>'
        for i, count in enumerate(counts)
    )
    return (
        "<h2>Where the labelled failures had their errors</h2>"
        f'<svg viewBox="0 0 900 80" role="img" aria-label="Histogram of error positions">{bars}'
        '<text x="0" y="75">start of the run</text><text x="300" y="75" text-anchor="end">end</text></svg>'
        f'<p class="dim">{positions.trajectories} failures; mean relative position {positions.mean:.2f}.</p>'
    )


def _clipped(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text) - limit} more characters)"


def _text(value: str) -> str:
    """Escape for element text and quoted attributes; control characters that HTML forbids become U+FFFD."""
    return escape("".join(c if c in "\n\t" or ord(c) >= 32 else "\ufffd" for c in value.replace("\r", "")))
