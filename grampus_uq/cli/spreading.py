"""The options of commands that read many runs: how many processes, on which backend, and how far it has got."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from grampus_uq.recording.parallel import BACKENDS, cores

__all__ = ["is_table", "spread_over", "spreading", "telling"]

Command = TypeVar("Command", bound=Callable[..., Any])
_TABLES: Final = (".csv", ".csv.gz", ".parquet", ".pq")
_WORTH_IT: Final = 32 * 2**20  # a process takes about a second to start, and reads this much in three


def is_table(path: str) -> bool:
    """Say whether a path names a table of scores (CSV, gzipped CSV or Parquet), and not recordings."""
    from grampus_uq.recording.packed import is_packed

    place = Path(path)
    return path.lower().endswith(_TABLES) and not place.is_dir() and not is_packed(place)


def spreading(command: Command) -> Command:
    """Add --workers and --backend to a command; `spread_over` turns what was given into arguments."""
    backend = click.option(
        "--backend", type=click.Choice(BACKENDS), default="local", show_default=True, help="Where the workers are."
    )
    workers = click.option(
        "--workers",
        type=click.IntRange(min=1),
        default=None,
        help="Processes that read.  [default: all cores; 1 for little data]",
    )
    return workers(backend(command))


def spread_over(paths: Sequence[str], workers: int | None, backend: str) -> dict[str, Any]:
    """Choose `workers` and `backend`: what was asked for, else as many as there are cores, and one for little data."""
    if workers is None and backend == "local":
        from grampus_uq.recording.parts import total_bytes

        workers = cores() if cores() > 1 and total_bytes(paths) > _WORTH_IT else 1
    return {"workers": workers or cores(), "backend": backend}


@contextmanager
def telling(what: str) -> Iterator[Callable[[int], None]]:
    """A counter on standard error, on a terminal only, that takes how many things more there are."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}: {task.completed:.0f}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda count: progress.advance(task, count)
