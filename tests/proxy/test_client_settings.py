"""The settings for clients on the page are well formed, and the command in them is one that the proxy takes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from grampus_uq.cli.mcp_command import command

PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"
SERVER = ("npx", "-y", "@modelcontextprotocol/server-filesystem", "/home/ann/work")


def test_every_settings_file_on_the_page_starts_the_proxy_before_the_server() -> None:
    found: dict[str, list[str]] = {}
    for language, text in re.findall(r"```(json|toml)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        values: dict[str, Any] = json.loads(text) if language == "json" else tomllib.loads(text)
        for key, servers in values.items():
            if isinstance(servers, dict) and "files" in servers:
                one = servers["files"]
                given = one["command"]
                found[key] = given if isinstance(given, list) else [given, *one["args"]]
    assert set(found) == {"mcpServers", "mcp", "mcp_servers"}
    for program, name, *options in found.values():
        assert (program, name) == ("grampus-uq", "mcp")
        params = command.make_context("mcp", options).params
        assert params["server"] == SERVER
        assert params["path"] == "/home/ann/guard.toml"
