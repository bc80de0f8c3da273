"""What a command does with files that it cannot read: it names each, goes on, and exits with status 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from grampus_uq.errors import DataError

__all__ = ["naming_refused"]


@contextmanager
def naming_refused() -> Iterator[Callable[[DataError], None]]:
    """Give a function that names what is left out on standard error, each fault once; exit 1 at the end if any was."""
    named: set[str] = set()

    def name(error: DataError) -> None:
        text = "".join(char if char.isprintable() else " " for char in str(error))
        if text not in named:
            named.add(text)
            click.echo(f"left out: {text}", err=True)

    yield name
    if named:
        raise SystemExit(1)
