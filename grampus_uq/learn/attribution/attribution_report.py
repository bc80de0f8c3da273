"""One HTML page that shows a failed run with its prediction set marked: what to read first, why, and its guarantee."""

from __future__ import annotations

from grampus_uq.learn.attribution.error_positions import ErrorPositions
from grampus_uq.learn.attribution.result import Attribution, spans
from grampus_uq.learn.pages import printable, render_page
from grampus_uq.learn.pages.charts import bars

_AXIS_NUMBERS = 30


def attribution_html(attribution: Attribution, *, positions: ErrorPositions | None = None) -> str:
    """Draw a result as a self-contained HTML page, which can be encoded as UTF-8, loads nothing and runs no script.

    `positions`: of the errors in the calibration failures; drawn below when given.
    """
    steps = attribution.steps
    return render_page(
        "attribution.html",
        found=attribution,
        headline=_headline(attribution),
        bars=bars([step.score for step in steps], width=900.0, top=16.0, floor=150.0),
        every=-(-len(steps) // _AXIS_NUMBERS),
        positions=positions,
        histogram=bars(positions.counts, width=300.0, top=5.0, floor=60.0) if positions else [],
    )


def _headline(attribution: Attribution) -> str:
    inside, length = attribution.set_steps, len(attribution.steps)
    if not inside:
        return "No step stands out"
    if attribution.threshold.rank is None:
        return f"Too few labelled failures to narrow down {length} steps"
    if len(inside) == length:
        return f"The error is somewhere in all {length} steps"
    amount = "one" if len(inside) == 1 else len(inside)
    return printable(f"Look at {amount} of {length} steps: {spans(inside)}", 200)
