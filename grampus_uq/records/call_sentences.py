"""The effect of a call in one sentence: by a template of the tool's, or by its name and its first arguments."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grampus_uq.errors import DataError
from grampus_uq.records.visible_text import in_short

_PLACE = re.compile(r"\{([^{}]+)\}")
_WIDTH, _FEW = 60, 3


def sentence_of(tool: str, arguments: Mapping[str, Any], templates: Mapping[str, str] | None = None) -> str:
    """Say what a call will do. A template names arguments in braces; their values are quoted and cut.

    >>> sentence_of("pay", {"amount": 40, "to": "Bob"}, {"pay": "Pays {amount} EUR to {to}."})
    'Pays 40 EUR to "Bob".'
    >>> sentence_of("pay", {"amount": 40, "to": "Bob"})
    'pay: amount 40, to "Bob".'
    """
    template = (templates or {}).get(tool)
    if template is not None:
        return _PLACE.sub(lambda found: _value(arguments, found[1]), template)
    said = [f"{in_short(name, _WIDTH)} {_value(arguments, name)}" for name in list(arguments)[:_FEW]]
    more = len(arguments) - len(said)
    told = f": {', '.join(said)}" if said else " without arguments"
    return f"{in_short(tool, _WIDTH)}{told}{f' and {more} more' if more else ''}."


def read_sentences(path: str | Path) -> dict[str, str]:
    """The templates in a TOML file: `tool = "Pays {amount} EUR to {to}."`; raises DataError."""
    try:
        content = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"is not a readable TOML file: {why}.", path=str(path)) from error
    if not all(isinstance(template, str) for template in content.values()):
        raise DataError('needs one line `tool = "sentence"` for each tool.', path=str(path))
    return content


def _value(arguments: Mapping[str, Any], name: str) -> str:
    return in_short(json.dumps(arguments[name], ensure_ascii=False), _WIDTH) if name in arguments else "(nothing)"
