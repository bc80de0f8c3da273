"""A part of a regular expression that gives nothing back, on every Python that this package runs on."""

from __future__ import annotations


def atomic(pattern: str, name: str) -> str:
    r"""The pattern, matched once and never tried another way; `name` is that of its group.

    Python's own possessive quantifiers and atomic groups fail before 3.11.5 where a part inside has to be tried twice
    (gh-106052); a lookahead does not.

    >>> import re
    >>> re.fullmatch(atomic("(?:ab?c)*", "part"), "acabc")[0]
    'acabc'
    """
    return f"(?=(?P<{name}>{pattern}))(?P={name})"
