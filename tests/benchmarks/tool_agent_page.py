"""Writes the figures of recorded tool agents into the pages: scores at the call, and what the default tiers hold.

    python -m tests.benchmarks.tool_agent_page SET... [--questions FOLDER...] [--draws 2000] [--seed 0]

A SET is as in `tests.benchmarks.tool_agent`; a FOLDER has the recordings of one `grampus-uq demo --task questions`.
What is released and held is what the default does without any label, replayed on the recordings; its intervals are
exact (Clopper and Pearson), 95 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy

from grampus_uq.recording import runs
from tests.benchmarks._report import existing, usage_errors
from tests.benchmarks.first_run import rewrite
from tests.benchmarks.life import BEFORE, judged
from tests.benchmarks.tool_agent import Asked, read_set, rows_of

DOCS = Path(__file__).parents[2] / "docs"
SCORES = {
    "default": "default, no labels",
    "guide": "the guide's, propagated",
    "fused": "the guide's, of the turn",
    "call_probability": "call probability",
    "least_token": "least token of an argument",
    "claim_probability": "claim probability",
    "sequence_probability": "sequence probability",
    "token_probability": "token probability",
    "action_probability": "action probability",
    "p_true": "P(True), as the monitor asks",
    "asked_true": "P(True), conversation in view",
    "asked_sure": "stated, 0 to 100",
    "redraws": "agreement of four redraws",
    "redraws_by_part": "the same, least agreed part",
    "steps": "fewer steps",
    "length": "shorter call",
    "random": "at random",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the default did on one kind of work of one model: of right and of wrong calls, each held or not."""

    model: str
    work: str
    right: tuple[bool, ...]
    wrong: tuple[bool, ...]

    def row(self) -> str:
        """A line of the table."""
        released = [not one for one in self.right]
        return f"| {self.model} | {self.work} | {share(released)} | {share(self.wrong)} |"


def share(found: Sequence[bool]) -> str:
    """A share with its interval and its count."""
    if not found:
        return "-, none"
    known = scipy.stats.binomtest(sum(found), len(found)).proportion_ci()
    low, high = (f"{100 * end:.0f}" for end in (known.low, known.high))
    return f"{100 * sum(found) / len(found):.0f} % [{low}, {high}] of {len(found)}"


def of_set(name: str, asked: Sequence[Asked]) -> Held:
    """What the default did at the irreversible calls of a set."""
    held = {wrong: tuple(one.held["default"] for one in asked if one.wrong is wrong) for wrong in (False, True)}
    return Held(model=model_name(asked[0].model), work=name, right=held[False], wrong=held[True])


def of_questions(folder: Path) -> Held:
    """What the default did with the answers of the demo."""
    there = runs(next(folder.glob("**/*.jsonl")).parent)
    found = [(judged(run, BEFORE), run) for run in there if run.outcome and run.outcome.success is not None]
    held = {right: tuple(one.held for one, _ in found if one.right is right) for right in (True, False)}
    start = found[0][1].start
    return Held(
        model=model_name(start.model if start else ""), work="the demo's questions", right=held[True], wrong=held[False]
    )


def model_name(recorded: str) -> str:
    """The model as people call it.

    >>> model_name("local")
    'smollm2-135m'
    >>> model_name("local:qwen2.5-coder-0.5b.gguf@013351ab755d")
    'qwen2.5-coder-0.5b'
    """
    name = recorded.rsplit(":", 1)[-1].split("@")[0].removesuffix(".gguf")
    return {"qwen15": "qwen2.5-coder-1.5b", "local": "smollm2-135m"}.get(name, name)


def score_table(rows: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """A line a score, a column a set: AUROC with its interval, and what is stopped at 5, 10 and 20 % held."""
    found = {name: {row["score"]: row for row in of if row["set"] == name} for name, of in rows.items()}
    found = {name: of for name, of in found.items() if any("auroc" in row for row in of.values())}
    yield "| " + " | ".join(["score at the call", *found]) + " |"
    yield "|---" * (1 + len(found)) + "|"
    for score, label in SCORES.items():
        cells = [_cell(of.get(score, {})) for of in found.values()]
        if any(cell != "-" for cell in cells):
            yield "| " + " | ".join([label, *cells]) + " |"


def part_table(rows: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """A line a set: how well arguments' own probabilities tell which is wrong, and how often a wrong part is first."""
    yield "| set | arguments, by their own probability | by the call's | a wrong part is least probable | by a guess |"
    yield "|---|---|---|---|---|"
    for name, of in rows.items():
        cells = {row["score"]: _cell(row) for row in of if row["set"] == f"{name} by argument: all arguments"}
        own, whole = cells.get("argument", "-"), cells.get("call_probability", "-")
        first = next((row for row in of if "first" in row), None)
        told = "- | -" if first is None else f"{first['first']:.0%} of {first['n']} wrong calls | {first['chance']:.0%}"
        yield f"| {name} | {own} | {whole} | {told} |"


def _cell(row: dict[str, Any]) -> str:
    if "auroc" not in row:
        return "-"
    auroc, low, high = (f"{row[key]:.2f}".lstrip("0") for key in ("auroc", "low", "high"))
    stopped = "/".join(f"{100 * row[f'stopped_at_{at}']:.0f}" for at in (5, 10, 20))
    return f"{auroc} [{low}, {high}]; {stopped}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the sets, write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET", type=existing)
    parser.add_argument("--questions", nargs="*", default=[], metavar="FOLDER", type=existing)
    parser.add_argument("--draws", type=int, default=2000, help="bootstrap draws")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--docs", type=existing, default=DOCS, help="the folder of the pages")
    options = parser.parse_args(arguments)
    with usage_errors(parser):
        sets = {path.name.split(".tar")[0]: read_set(path)[0] for path in options.sets}
    rows = {name: list(rows_of(name, asked, options)) for name, asked in sets.items()}
    rewrite(options.docs / "results.md", "tool agents", "\n".join([*score_table(rows), "", *part_table(rows)]))
    held = [*(of_set(name, asked) for name, asked in sets.items()), *(of_questions(one) for one in options.questions)]
    header = ["| model | work | right ones released | wrong ones held |", "|---|---|---|---|"]
    lines = header + [one.row() for one in sorted(held, key=lambda one: one.model)]
    rewrite(options.docs / "policy.md", "tiers", "\n".join(lines))


if __name__ == "__main__":
    main()
