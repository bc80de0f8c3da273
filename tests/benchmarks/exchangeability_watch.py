"""The watch on the guarantee: false alarms over many histories without change, and how late a change is seen.

    python tests/benchmarks/exchangeability_watch.py [--histories 2000] [--runs 5000] [--json]

The statistic of a finished run is one normal number; a change of size s adds s to it (in standard deviations). Also
shown: the false alarms of the tempting wrong way, ranking against the fixed calibration set only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.stats.conformal_martingale import bet, martingale_start
from tests.benchmarks._report import emit

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]


def first_alarms(
    rng: np.random.Generator,
    *,
    histories: int,
    runs: int,
    calibration: int,
    level: float,
    change_at: int | None = None,
    size: float = 0.0,
    over: int = 1,
    growing: bool = True,
) -> IntArray:
    """Run at which each history first alarms, 0 where it never does: `martingale_update`, many histories at once."""
    starts = [martingale_start(peaks, rng) for peaks in rng.normal(size=(histories, calibration))]
    edges = np.array([start.edges for start in starts])
    counts = np.array([start.counts for start in starts])
    shares = np.array([start.shares for start in starts])
    everyone = np.arange(histories)
    log_capital = np.zeros(histories)
    first = np.zeros(histories, dtype=np.intp)
    for run in range(1, runs + 1):
        moved = 0.0 if change_at is None else size * min(1.0, max(0, run - change_at) / over)
        place = (rng.normal(moved, 1.0, histories)[:, None] > edges).sum(axis=1)
        at_least = counts[:, ::-1].cumsum(axis=1)[:, ::-1]
        same = counts[everyone, place]
        above = at_least[everyone, place] - same
        p = (above + rng.random(histories) * (same + 1)) / (at_least[:, 0] + 1)
        shares, growth = bet(shares, p)
        log_capital += np.log(growth)
        first[(first == 0) & (log_capital >= -np.log(level))] = run
        if growing:
            counts[everyone, place] += 1
    return first


def rows(histories: int, runs: int, calibration: int, level: float) -> Iterator[dict[str, Any]]:
    """Without change first, then changes of three sizes, at once or over so many runs, up to 1,000 runs after them."""
    for growing in (True, False):
        begin = time.perf_counter()
        first = first_alarms(
            np.random.default_rng(0),
            histories=histories,
            runs=runs,
            calibration=calibration,
            level=level,
            growing=growing,
        )
        yield {
            "case": "no change" if growing else "no change, fixed bag (wrong)",
            "level": level,
            "histories": histories,
            "runs": runs,
            "calibration": calibration,
            "alarmed": float((first > 0).mean()),
            "us_a_run": (time.perf_counter() - begin) * 1e6 / (histories * runs),
        }
    few = max(1, histories // 5)
    for change_at, over in ((0, 1), (500, 1), (0, 300), (0, 1000), (0, 3000)):
        for size in (0.3, 0.6, 1.2):
            first = first_alarms(
                np.random.default_rng(1),
                histories=few,
                runs=change_at + over + 999,
                calibration=calibration,
                level=level,
                change_at=change_at,
                size=size,
                over=over,
            )
            seen = first[first > change_at] - change_at
            yield {
                "case": f"change of {size} sd after run {change_at}" + (f", over {over} runs" if over > 1 else ""),
                "level": level,
                "histories": few,
                "runs": change_at + over + 999,
                "calibration": calibration,
                "alarmed": float((first > change_at).mean()),
                "median_delay": float(np.median(seen)) if len(seen) else None,
            }


def main() -> None:
    """Read the arguments, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--calibration", type=int, default=200)
    parser.add_argument("--level", type=float, default=0.01)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = rows(options.histories, options.runs, options.calibration, options.level)
    emit("exchangeability_watch", found, options.json)


if __name__ == "__main__":
    main()
