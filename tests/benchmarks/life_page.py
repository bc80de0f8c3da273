"""The page of the documentation that `life` writes: its rows as tables, and what to make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from string import Template
from typing import Any

Row = Mapping[str, Any]

_PAGE = Template(
    """# Results on the embedded model

One command asks a real model the questions, judges the answers and writes the tables:

```console title="not run: asks the model $questions questions; CI runs one split of it"
$$ python -m tests.benchmarks.life --recordings life --page docs/results.md
```

SmolLM2-135M-Instruct answered $questions of the [demo](demo.md)'s 431 questions. Every signal read every
answer, and nothing was held; $right of the answers are right. Then, $splits times over, half of the runs, drawn by
a seed, were used for fitting (`grampus-uq fit --accuracy $target --false-alarms $alpha`), and the others were
replayed under the default tiers (*before*) and under the fitted profile (*after*). The profile only advised, so
nothing was held; *after* counts its advice.

## Published and held

$published

The profile was fitted for at least $wanted right among the published. Where $fitted runs are too few to certify
that, the threshold is an estimate, the profile says so, and a single split may be well below.

## Quality of the numbers

On the $held_out held-out answers of each split. The best single signal is picked on these very answers, which
flatters it. TPS is the mean log score (higher is better); T-ECE has five bins (lower is better). *Before* is the
default fused confidence read as a probability, which it is not.

$scores

## False alarms of the detector

The promise, at alpha = $alpha and an assurance of .9: in nine of ten calibrations, the alarm ever holds at most
$allowed of the right answers. A split above that is one of the other tenth, or the scatter of some seventy right
answers.

$alarms

The signals `claim_probability` and `sequence_probability` were added after an earlier pass over these
very questions; they helped on each of the three topics, but that is no independent evidence.
"""
)


def page(rows: Sequence[Row], questions: int, target: float) -> str:
    """Make the page from the rows of the splits and, last, of their mean."""
    mean = rows[-1]
    return _PAGE.substitute(
        questions=questions,
        right=share(mean["right"]),
        splits=len(rows) - 1,
        target=f"{target:g}",
        wanted=share(target),
        alpha=f"{mean['alpha']:g}",
        allowed=share(mean["alpha"]),
        fitted=number(mean["fitted_on"]),
        held_out=number(mean["held_out"]),
        published=table(rows, _PUBLISHED),
        scores=table(rows, _SCORES),
        alarms=table(rows, _ALARMS),
    )


def share(value: float | None) -> str:
    """A share as a percentage."""
    return "-" if value is None else f"{100 * value:.0f} %"


def number(value: float) -> str:
    """A count, or a mean of counts."""
    return f"{value:.1f}".removesuffix(".0")


def score(value: float) -> str:
    """A score with three digits."""
    return f"{value:.3f}"


def table(rows: Sequence[Row], columns: Mapping[str, Callable[[Row], str]]) -> str:
    """Rows as a table; a column is its title and what it shows of a row."""
    lines = [list(columns), ["---"] * len(columns), *([show(row) for show in columns.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _best(row: Row) -> str:
    name = row.get("best_single")
    return score(row["auroc_best_single"]) + (f" ({name.replace('_', ' ')})" if name else "")


_PUBLISHED: Mapping[str, Callable[[Row], str]] = {
    "split": lambda row: str(row["split"]),
    "right": lambda row: share(row["right"]),
    "published before": lambda row: share(row["published_before"]),
    "right of these": lambda row: share(row.get("right_of_published_before")),
    "wrong, and out": lambda row: number(row["wrong_published_before"]),
    "published after": lambda row: f"{share(row['published_after'])} (n = {number(row['n_published_after'])})",
    "right of them": lambda row: share(row.get("right_of_published_after")),
    "wrong and out": lambda row: number(row["wrong_published_after"]),
}
_SCORES: Mapping[str, Callable[[Row], str]] = {
    "split": lambda row: str(row["split"]),
    "AUROC of p_success": lambda row: score(row["auroc_p_success"]),
    "of the best single signal": _best,
    "TPS before": lambda row: score(row["tps_before"]),
    "TPS after": lambda row: score(row["tps_after"]),
    "T-ECE before": lambda row: score(row["t_ece_before"]),
    "T-ECE after": lambda row: score(row["t_ece_after"]),
}
_ALARMS: Mapping[str, Callable[[Row], str]] = {
    "split": lambda row: str(row["split"]),
    "right answers held by the alarm": lambda row: share(row["false_alarms"]),
    "wrong answers held by the alarm": lambda row: share(row["alarms_on_wrong"]),
}
