"""Output that commands share: `--json`, tables, progress, and naming the files left out."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from textwrap import wrap
from typing import Any

import click

from grampus_uq.errors import DataError
from grampus_uq.records.visible_text import visible

_GOES_ON = "    > "
_INDENT = "    "  # of what goes on in a sentence of a report; no line of one begins like that
_READABLE = 100  # columns
_WORD = 18  # columns; a longer word may be broken


def one_line(value: object) -> str:
    """A value as a cell of a table: on one line, with escapes for all that hides or imitates; None is empty."""
    return visible(f"{value:z.3f}" if isinstance(value, float) else "" if value is None else str(value))


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_whole(*lines: str) -> None:
    """Print lines with a stranger's text; on a terminal what does not fit goes on behind a mark, in `folded` lines."""
    for line in lines:
        click.echo(folded(line, os.get_terminal_size(sys.stdout.fileno()).columns) if sys.stdout.isatty() else line)


def folded(line: str, columns: int) -> str:
    """The line in lines that fit, so that no part of a text looks like a line of its own: each but the first is marked.

    A line ends behind a blank where its last word is no long one. A character that is not ASCII may take two columns.
    """
    parts, left = [""], columns
    for character in line:
        width = 1 if character.isascii() else 2
        if width > left and columns > 2 * len(_GOES_ON):
            _, blank, word = parts[-1].rpartition(" ")
            word = word if blank and len(word) <= columns // 4 else ""
            parts[-1:] = [parts[-1][: len(parts[-1]) - len(word)], word]
            left = columns - len(_GOES_ON) - sum(1 if one.isascii() else 2 for one in word)
        parts[-1] += character
        left -= width
    return f"\n{_GOES_ON}".join(parts)


def counts_line(counts: Mapping[str, int]) -> str:
    """The number of runs of each kind, as the first line of a report."""
    return f"runs       {', '.join(f'{n} {what}' for what, n in counts.items() if n) or 'none'}"


def print_json(value: Any) -> None:
    """One JSON value on one line, in ASCII, which no terminal obeys; NaN and infinities raise ValueError."""
    click.echo(json.dumps(value, allow_nan=False))


def print_result(as_json: bool, value: Any, lines: Iterable[str]) -> None:
    """The result of a command as JSON, or the same in lines of words."""
    if as_json:
        print_json(value)
    else:
        print_lines(lines)


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Lines with names and texts from files among them: escapes stand for all that hides or imitates.

    On a terminal what does not fit goes on indented; a word is left whole, as an address is there to be copied.
    """
    stream = sys.stderr if err else sys.stdout
    columns = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    for line in map(visible, lines):
        click.echo("\n".join(_wrapped(line, columns, _INDENT)) if columns > 2 * len(_INDENT) else line, err=err)


def _wrapped(line: str, columns: int, indent: str) -> list[str]:
    return wrap(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def paragraph(label: str, text: str, indent: int) -> list[str]:
    """Lines of a report, at most 100 columns wide and no wider than the terminal: a label, and its text beside it."""
    width = min(_READABLE, shutil.get_terminal_size((_READABLE, 0)).columns)
    return _wrapped(label + text, width, " " * indent) or [label]


def print_json_array(items: Iterable[Any]) -> None:
    """One JSON array, an item a line, written as the items come."""
    separator = "[\n"
    for item in items:
        click.echo(separator + json.dumps(item), nl=False)
        separator = ",\n"
    click.echo("[]" if separator == "[\n" else "\n]")


def say_beside(text: str) -> None:
    """Print text that belongs to a table: above or below it on a terminal, else on standard error."""
    print_lines([text], err=not sys.stdout.isatty())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on a terminal, lines of names and cells on a narrow one; elsewhere names and cells separated by tabs."""
    if not sys.stdout.isatty():
        click.echo("\t".join(columns))
        for row in rows:
            click.echo("\t".join(map(one_line, row)))
        return
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = [name.replace("_", " ") for name in columns]
    cells = [[one_line(cell)[:500] for cell in row] for row in rows]
    console, texts = Console(), [*zip(names, *cells, strict=True)]
    least = [min(_WORD, max(map(cell_len, " ".join(text).split()), default=1)) for text in texts]
    widths = [max(words, *map(cell_len, text)) for words, text in zip(least, texts, strict=True)]
    room = console.width - 2 * len(texts)
    if sum(least) > room:  # a part of an amount or an id would be read as another one
        for row in cells:
            print_whole("", *(": ".join(filter(None, pair)) for pair in zip(names, row, strict=True) if pair[1]))
        return
    while sum(widths) > room:
        widths[max(range(len(widths)), key=lambda at: widths[at] - least[at])] -= 1
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name, width in zip(names, widths, strict=True):
        table.add_column(name, width=width, overflow="fold")  # an id is there to be copied
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def print_list(
    as_json: bool, values: Iterable[Any], columns: Sequence[str], rows: Iterable[Sequence[Any]], none: str
) -> None:
    """The values that a command found, as a JSON array or a table; `none` says in words that there are none."""
    shown = [*values]
    if as_json:
        print_json(shown)
    elif not shown:
        say_beside(none)
    else:
        print_table(columns, rows)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int], None]]:
    """A counter on standard error, where both outputs are a terminal; the callback takes how many more there are.

    What a pipe's reader prints on the same terminal meanwhile would stand in the counter's line, and go with it.
    """
    if not (sys.stderr.isatty() and sys.stdout.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.file_proxy import FileProxy
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class AboveTheCounter(FileProxy):
        encoding, errors = "utf-8", "replace"  # past a stream that names none click writes to the terminal itself

        def write(self, text: str) -> int:
            shown.console.print(Text(text), end="", soft_wrap=True)  # a path is there to be copied
            return len(text)

    columns = (SpinnerColumn(), TextColumn("{task.description}: {task.completed:.0f}"), TimeElapsedColumn())
    shown = Progress(*columns, console=Console(stderr=True), transient=True)
    with redirect_stderr(AboveTheCounter(shown.console, sys.stderr)), shown:
        task = shown.add_task(what, total=None)
        yield lambda count: shown.advance(task, count)


def say_stage(stage: str) -> None:
    """Name a stage of fetching and starting the model, on standard error."""
    words = {"download": "Downloading the model (98 MB, once) ...", "start": "Starting the model ..."}
    click.echo(words[stage], err=True)


def refuse_none(found: object, paths: Iterable[str], what: str = "run") -> None:
    """Raise DataError where nothing was found to work on: an answer about nothing would read as a good one."""
    if not found:
        raise DataError(f"holds no {what}.", path=", ".join(paths))


@contextmanager
def naming_refused() -> Iterator[Callable[[DataError], None]]:
    """Give a function that names what is left out on standard error, each fault once; exit 1 at the end if any was."""
    named: set[str] = set()

    def name(error: DataError) -> None:
        text = one_line(error)
        if text not in named:
            named.add(text)
            print_lines([f"left out: {text}"], err=True)

    yield name
    if named:
        raise SystemExit(1)
