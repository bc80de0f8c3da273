"""Shows on a terminal how far fetching and starting the embedded model are; elsewhere it shows nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from grampus_uq.models.model_file import Progress

__all__ = ["model_progress"]

_STAGES = {
    "download": "Fetching the embedded model (once, 98 MB)",
    "start": "Starting the embedded model",
}


@contextmanager
def model_progress() -> Iterator[Progress]:
    """Give a callback for `LocalModel(progress=...)`; what it shows is on standard error and vanishes at the end."""
    if not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    lock = threading.Lock()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def show(stage: str, done: int, total: int | None) -> None:
            with lock:
                if stage not in tasks:
                    for earlier in tasks.values():
                        bars.update(earlier, visible=False)
                    tasks[stage] = bars.add_task(_STAGES.get(stage, stage), total=total)
                bars.update(tasks[stage], completed=done if total else 0, total=total)

        yield show
