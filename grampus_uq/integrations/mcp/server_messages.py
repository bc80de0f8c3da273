"""A server's message, read so that no client can read another one in the bytes that it is sent.

Clients differ as servers do: some replace what is not UTF-8, of a name that comes twice some take the first value and
some the last, some compare names without regard to case, some end a line at a carriage return. What could be read in
two ways is passed on as it was read here; what cannot be read is not passed on.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import Any

from grampus_uq.integrations.mcp.json_rpc import ENVELOPE, Message
from grampus_uq.records.strict_json import parse_json


def read_server_message(line: bytes) -> Message | None:
    """A server's line or body as it was read, with the line that reads so in every client; None for no JSON object."""
    try:
        try:
            values = parse_json(line, unique_names=True)
            as_it_came = b"\r" not in line and not line.startswith(codecs.BOM_UTF8)
        except ValueError:
            values, as_it_came = json.loads(line.decode("utf-8-sig", "replace")), False
        if not isinstance(values, dict):
            return None
        kept = _in_one_reading(values)
        if not as_it_came or kept != values:
            line = json.dumps(kept, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return None
    return Message(line=line, values=kept)


def _in_one_reading(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without names that some clients take for another one, an answer in a request, and a result beside an error."""
    kept = _without_lookalikes(values, ENVELOPE)
    if not isinstance(kept.get("method"), str):
        kept.pop("method", None)
    else:
        kept = {name: value for name, value in kept.items() if name not in ("result", "error")}
    if "result" in kept and "error" in kept:
        del kept["error" if kept["error"] is None else "result"]
    if isinstance(kept.get("result"), dict):
        kept["result"] = result = _without_lookalikes(kept["result"], ("tools",))
        if isinstance(result.get("tools"), list):  # all else of a definition is in its digest
            result["tools"] = [_without_lookalikes(x, ("name",)) if isinstance(x, dict) else x for x in result["tools"]]
    return kept


def _without_lookalikes(values: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in known or name.casefold() not in known}
