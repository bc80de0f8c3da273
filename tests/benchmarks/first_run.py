"""`grampus-uq demo` as a newcomer runs it, with ten seeds: what goes out, how much of it is right, and the money lost.

    python -m tests.benchmarks.first_run [--seeds 10] [--rows FILE] [--json]

Each seed is a process of its own, model start included; `first_sight_s` is the time until the first mail is handled.
`--rows` keeps the rows, one JSON object a line, and reads those that are there in place of running again. With `--page`
the table between the marks in docs/results.md, and the figure in README.md, are written anew.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks._report import emit

ROOT = Path(__file__).parents[2]
VARIANTS = {"unguarded": "no monitor", "default tiers": "default limits", "shipped profile": "fitted profile"}


def rows_of(seed: int) -> Iterator[dict[str, Any]]:
    """Run the demo once; a row for each variant."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grampus_uq.cli", "demo", "--seed", str(seed), "--json"]
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, "--runs-folder", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stderr is not None
        first_sight = next((time.monotonic() - started for line in process.stderr if " of " in line), None)
        process.stderr.read()
        report = json.loads(process.stdout.read())
        seconds = time.monotonic() - started
    for variant in report["variants"]:
        yield {
            "seed": seed,
            "variant": variant["variant"],
            "seconds": round(seconds, 1),
            "first_sight_s": None if first_sight is None else round(first_sight, 1),
            "mails": report["handled"],
            "went_out": variant["went_out"],
            "right": variant["right"],
            "money_lost": variant["money_lost"],
        }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page's table: medians over seeds, with the range."""
    lines = ["| | went out | right of these | money lost (EUR) | of the unguarded loss |", "|---|---|---|---|---|"]
    whole = {row["seed"]: row["money_lost"] for row in rows if row["variant"] == "unguarded"}
    for variant, words in VARIANTS.items():
        own = [row for row in rows if row["variant"] == variant]
        figures = (
            [100 * row["went_out"] / row["mails"] for row in own],
            [100 * row["right"] / row["went_out"] for row in own if row["went_out"]],
            [row["money_lost"] for row in own],
            [100 * row["money_lost"] / whole[row["seed"]] for row in own],
        )
        silent = sum(not row["went_out"] for row in own)
        cells = [spread(values, unit) for values, unit in zip(figures, (" %", " %", "", " %"), strict=True)]
        cells[1] += f", none in {silent} of {len(own)} seeds" if silent else ""
        lines.append(f"| {words} | {' | '.join(cells)} |")
    runs = [row for row in rows if row["variant"] == "unguarded"]
    whole_s, first_s = (spread([row[name] or 0.0 for row in runs], " s") for name in ("seconds", "first_sight_s"))
    return "\n".join([*lines, "", f"A run took {whole_s}, and the first mail was handled after {first_s}."])


def spread(values: Sequence[float], unit: str) -> str:
    """Median, and the least and greatest."""
    if not values:
        return "-"
    return f"{statistics.median(values):,.0f}{unit} ({min(values):,.0f} to {max(values):,.0f})"


def figure(rows: Sequence[Mapping[str, Any]]) -> str:
    """The README's table: the page's, without its last column."""
    cells = [line.strip("|").split("|")[:-1] for line in table(rows).splitlines()[2:5]]
    lines = ["| | calls executed | of these, correct | money lost (EUR) |", "|---|---|---|---|"]
    lines += [f"|{'|'.join(row)}|" for row in cells]
    seeds = len({row["seed"] for row in rows})
    return "\n".join([*lines, "", f"Median (range) over {seeds} runs of {rows[0]['mails']} emails each."])


def rewrite(path: Path, name: str, text: str) -> None:
    """Replace what stands between the marks `<!-- name -->` and `<!-- end name -->`."""
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    old = path.read_text(encoding="utf-8")
    if not marked.search(old):
        raise SystemExit(f"{path.name} has no marks for {name!r}.")
    path.write_text(marked.sub(lambda found: f"{found[1]}{text}\n{found[2]}", old), encoding="utf-8")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", help="file that keeps the rows")
    parser.add_argument("--page", action="store_true", help="write the table and the figure into the pages")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    kept = Path(arguments.rows) if arguments.rows else None
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept and kept.exists() else []
    for seed in range(arguments.seeds):
        if all(row["seed"] != seed for row in rows):
            rows += (found := list(rows_of(seed)))
            if kept:
                with kept.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in found)
    if arguments.page:
        rewrite(ROOT / "docs" / "results.md", "first run", table(rows))
        rewrite(ROOT / "README.md", "first run", figure(rows))
    emit("first_run", rows, arguments.json)


if __name__ == "__main__":
    main()
