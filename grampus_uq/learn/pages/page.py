"""Render a template to one self-contained page, and write it.

Everything that reaches a template is hostile: it is escaped, and made visible by the rule of `records.visible_text`: an
argument reads as it is.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from jinja2 import BaseLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from grampus_uq.errors import DataError
from grampus_uq.recording.whole_file import whole_file
from grampus_uq.records.visible_text import visible, without_controls


def render_page(template: str, **values: Any) -> str:
    """Fill a template of this package, with autoescaping and strict undefined names.

    The page can be encoded as UTF-8, loads nothing and runs no script.
    """
    return _environment().get_template(template).render(**values)


def write_page(path: str | os.PathLike[str], page: str) -> None:
    """Write a page; the file appears when it is complete. An existing one is replaced. Raises DataError."""
    try:
        with whole_file(path) as draft:
            draft.write_text(page, encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror}.", path=os.fspath(path)) from error


def printable(name: str, most: int = 40) -> str:
    """Return a name on one line, without control characters and cut to `most` characters."""
    text = without_controls(name)
    return text if len(text) <= most else text[: most - 1] + "…"


@functools.cache
def _environment() -> Environment:
    return page_environment(PackageLoader("grampus_uq.learn.pages"))


def page_environment(loader: BaseLoader) -> Environment:
    """Templates of this loader, with autoescaping and strict undefined names; every text is made visible."""
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_clean, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(printable=printable, clipped=_clipped, figure=_figure)
    return environment


def _clean(value: Any) -> Any:
    """Escape what hides, moves or imitates: all that HTML and UTF-8 forbid is among it."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(value.replace("\r\n", "\n"), keep="\n\t")


def _clipped(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text) - limit} more characters)"


def _figure(value: str | float | None) -> str:
    """A value of a table cell: four decimals for a float, a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.2e}" if 1e-9 < abs(value) < 0.001 else f"{value:.4f}"  # below, it is rounding
    return printable(str(value), 300)
