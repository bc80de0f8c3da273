"""A value on one line of a terminal."""

from __future__ import annotations

from grampus_uq.records.visible_text import without_controls


def one_line(value: object) -> str:
    """A value as a cell of a table: on one line, without control characters, which terminals obey; None is empty."""
    text = f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)
    return without_controls(text)
