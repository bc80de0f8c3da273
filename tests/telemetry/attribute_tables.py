"""The tables of attributes as the pages have them: the only place where they stand."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from grampus_uq.telemetry.conventions import APPROVAL, ESCALATE, ESTIMATE, EVALUATION, SEMANTIC

PARENT = "parent"
TYPES = {"string": str, "double": float, "int": int, "boolean": bool}
_DOCS = Path(__file__).parents[2] / "docs"
_WHERE = {place.removeprefix("uncertainty."): place for place in (ESTIMATE, SEMANTIC, ESCALATE, APPROVAL)}


class Attribute(NamedTuple):
    """A row: the type, the spans and events that carry it, and what it tells."""

    type: type
    on: tuple[str, ...]
    tells: str


def table(page: str, heading: str) -> list[list[str]]:
    """The rows of the table under a heading of a page, cells without their code marks."""
    section = (_DOCS / page).read_text("utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.replace("`", "").strip() for cell in row] for row in rows]


def _attributes(page: str, heading: str) -> dict[str, Attribute]:
    places = {**_WHERE, "event": EVALUATION}
    found = {}
    for key, kind, on, _, tells in table(page, heading):
        found[key] = Attribute(TYPES[kind], tuple(places.get(place, place) for place in on.split(", ")), tells)
    return found


ATTRIBUTES = _attributes("telemetry.md", "Attributes")
"""Those of the monitor's own spans, and of what it sets on its parent."""
EXPORTED = _attributes("recordings.md", "As traces")
"""Those that only an exported recording carries."""
