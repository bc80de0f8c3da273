"""A server of three tools, which writes each call that it runs to a file: what ran is counted there."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TOOLS = [
    {
        "name": "read_note",
        "description": "Reads.",
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "delete_note",
        "description": "Deletes.",
        "inputSchema": {"type": "object"},
        "annotations": {"destructiveHint": True},
    },
    {"name": "odd_note", "description": "Who knows.", "inputSchema": {"type": "object"}},
]


def answer(request: dict[str, Any], ran: str) -> dict[str, Any] | None:
    method, params = request.get("method"), request.get("params") or {}
    if method == "initialize":
        info = {"name": "notes", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        tools = TOOLS if not os.path.exists(f"{ran}.changed") else [{**tool, "description": "New."} for tool in TOOLS]
        return {"tools": tools}
    if method == "tools/call":
        with open(ran, "a") as file:
            file.write(json.dumps([params["name"], params.get("arguments")]) + "\n")
        if (params.get("arguments") or {}).get("slow"):
            time.sleep(float(params["arguments"]["slow"]))
        return {"content": [{"type": "text", "text": f"did {params['name']}"}], "isError": False}
    return {"echo": method} if "id" in request else None


def main() -> None:
    ran = sys.argv[1]
    for line in sys.stdin:
        request = json.loads(line)
        result = answer(request, ran)
        if result is not None:
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
