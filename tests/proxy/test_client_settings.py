"""The settings for clients on the page are well formed, and the command in them is one that the proxy takes."""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grampus_uq.cli.mcp_command import command
from grampus_uq.errors import DataError
from grampus_uq.integrations.mcp.proxy_config import ProxySettings, ServerSettings, read_settings

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


def test_an_option_that_is_left_out_leaves_the_settings_of_the_file_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAMPUS_UQ_STORE", "sqlite:///of-something-else.db")
    path = tmp_path / "proxy.toml"
    path.write_text(
        'store = "memory:"\nagent = "a"\nsession = "s"\nrecordings = "r"\ntrusted = true\nadvisory = true\n'
    )
    params = command.make_context("mcp", ["--config", str(path), "--", *SERVER]).params
    given = {name: value for name, value in params.items() if name in ProxySettings.model_fields and name != "servers"}
    assert set(given) == {"store", "agent", "session", "recordings", "trusted", "advisory"}
    assert read_settings(str(path), **given) == read_settings(str(path))


@pytest.mark.parametrize("given", [["--store", "sqlite:///guard.db"], ["--advisory"], ["--config", "proxy.toml"]])
def test_an_option_that_unguarded_would_ignore_is_refused(given: list[str]) -> None:
    told = CliRunner().invoke(command, ["--unguarded", *given, "--", *SERVER])
    assert (told.exit_code, "give no other option with it" in told.output) == (2, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("holds_s = 3", "field 'holds_s': there is no such field. Did you mean 'hold_s'? Got 3."),
        ("[approvals]\nrequred = 2", "3, field 'approvals.requred': there is no such field. Did you mean 'required'?"),
        (
            "[policy]\nalways_ask = []",
            "3, field 'always_ask': there is no such field. Did you mean 'always_ask_tool_na",
        ),
        (
            "[effects]\nsend = 'readonly'",
            "3, field 'effects.send': Input should be 'read', 'reversible', 'irreversible",
        ),
    ],
)
def test_a_misspelt_setting_is_named_by_its_line_with_what_was_meant(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "guard.toml"
    path.write_text(f'store = "memory:"\n{line}\n')
    with pytest.raises(DataError, match=re.escape(said)):
        read_settings(str(path))


_URLS = [
    "https://n o/mcp",
    "http://h:99999",
    "http://h:0/",
    "http://[::1",
    "http://1.2.3.999/",
    "https://",
    "notes.example",
]


@pytest.mark.parametrize("url", [*_URLS, "ftp://h/", "http://h/\\u0000", "http://h\\u200b/"])
def test_an_address_that_cannot_be_reached_is_refused_at_the_start_with_its_line(tmp_path: Path, url: str) -> None:
    path = tmp_path / "guard.toml"
    path.write_text(f'[servers.a]\nurl = "http://a/"\n\n[servers.b]\ntrusted = true\nurl = "{url}"\n')
    shown = f"{tomllib.loads(path.read_text())['servers']['b']['url']!r:.200}"
    said = f"{path}:6, field 'servers.b.url': The 'url' parameter of `[servers.NAME]` must be an http or https address "
    with pytest.raises(DataError, match=re.escape(f"{said}such as https://notes.example/mcp. Got {shown}.")):
        read_settings(str(path))


@given(st.text(st.sampled_from("h0.:/[]@%-é \n?#\x7f"), max_size=12) | st.text(max_size=8))
def test_what_settings_take_as_an_address_a_request_can_be_made_for(rest: str) -> None:
    with contextlib.suppress(ValidationError):
        httpx.Request("POST", ServerSettings(url=f"http://{rest}").url)


def test_an_address_that_is_refused_shows_no_password(tmp_path: Path) -> None:
    path = tmp_path / "guard.toml"
    path.write_text('[servers.a]\nurl = "http://ann:geheim@h h/?key=geheim"\n')
    with pytest.raises(DataError) as refused:
        read_settings(str(path))
    assert "geheim" not in str(refused.value)
