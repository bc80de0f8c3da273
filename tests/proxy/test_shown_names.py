"""Names of tools as a client sees them: shared ones are found however many there are, a prefix tells them apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import ToolEffects
from grampus_uq.integrations.mcp.json_rpc import UnclearError, read_message
from grampus_uq.integrations.mcp.listed_tools import ListedTools
from grampus_uq.integrations.mcp.shown_names import MAX_TOOLS, SharedNames, with_prefix, without_prefix
from grampus_uq.records import tool_names
from grampus_uq.records.tool_names import normal_form, whole_name_keys


def names(**listed: list[str]) -> SharedNames:
    shared = SharedNames()
    for server, those in listed.items():
        shared.add(server, those)
    return shared


def test_names_that_shadow_each_other_are_found_in_every_spelling() -> None:
    shared = names(mail=["send_mail", "list"], evil=["sendMail", "s\u0435nd_mail", "other"], third=["list_all"])
    for name in ("send_mail", "sendMail", "s\u0435nd_mail"):
        assert shared.servers(name) == ("evil", "mail")
    assert shared.servers("list") == ("mail",)
    assert shared.servers("list_all") == ("third",)
    assert shared.servers("nobody") == ()


_NAMES = st.sampled_from(["send", "Send", "s\u0435nd", "send_mail", "sendMail", "a_b", "a_B", "read", "re_ad"])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(_NAMES, max_size=3)), max_size=5), _NAMES)
def test_whoever_listed_a_name_that_reads_alike_is_found(lists: list[tuple[str, list[str]]], tool: str) -> None:
    shared = SharedNames()
    for server, those in lists:
        shared.add(server, those)
    keys = set(whole_name_keys(tool))
    alike = {server for server, those in lists for name in those if keys & set(whole_name_keys(name))}
    assert set(shared.servers(tool)) == alike


def test_what_a_list_of_long_names_costs_grows_with_its_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [f"{'a.' * 120}{number}" for number in range(300)]
    read = []
    monkeypatch.setattr(tool_names, "normal_form", lambda name: read.append(len(name)) or normal_form(name))
    shared = SharedNames()
    tools = ListedTools(ToolEffects(), told=lambda those: shared.add("many", those))
    tools.take({"tools": [{"name": name, "annotations": {"readOnlyHint": True}} for name in listed]})
    tools.effects()
    assert 0 < sum(read) <= 2 * sum(map(len, listed))  # once for its server, once for its annotations


def test_a_list_beyond_ten_thousand_names_is_refused_so_that_no_name_is_unfound() -> None:
    shared = names(other=["send"])

    def listed() -> ListedTools:  # a session of its own, as each client has one
        return ListedTools(ToolEffects(), told=lambda those: shared.add("many", those))

    for part in range(2):
        half = [{"name": f"tool{part}_{n}"} for n in range(MAX_TOOLS // 2)]
        listed().take({"tools": half})
        listed().take({"tools": half})  # the same names again are no more names
    one = listed()
    with pytest.raises(ValueError, match="more than 10000 names"):
        one.take({"tools": [{"name": "send"}]})
    assert one.pin("send") is None  # nothing of a list that is refused is taken
    assert shared.servers("send") == ("other",)
    assert shared.servers("tool1_4999") == ("many",)
    one.take({"tools": [{"name": "tool0_0"}]})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["tools", "name", "x"]), inner),
    max_leaves=12,
)


@given(st.sampled_from(["", "a_", "x."]), _JSON)
def test_a_prefix_changes_the_names_of_tools_and_nothing_else(prefix: str, result: Any) -> None:
    before = json.dumps(result)
    shown = with_prefix(prefix, result)
    assert json.dumps(result) == before
    if shown != result:
        for tool, other in zip(result["tools"], shown["tools"], strict=True):
            named = isinstance(tool, dict) and isinstance(tool.get("name"), str) and tool["name"]
            assert other == ({**tool, "name": prefix + tool["name"]} if named else tool)
        assert {**shown, "tools": None} == {**result, "tools": None}


@given(
    st.sampled_from(["", "a_", "x."]),
    st.text(min_size=1, max_size=9, alphabet="abcx_."),
    st.dictionaries(st.text(max_size=3), st.integers()),
)
def test_a_server_is_called_by_the_name_that_it_listed(prefix: str, name: str, arguments: dict[str, int]) -> None:
    params = {"arguments": arguments, "name": prefix + name}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    try:
        message = read_message(line)
    except UnclearError:  # arguments that no call may have
        return
    sent = without_prefix(prefix, message)
    assert json.loads(sent.line)["params"] == {"arguments": arguments, "name": name}
    assert prefix or sent.line == line


def test_lists_that_change_for_ever_are_told_apart_in_bounded_memory() -> None:
    tools = ListedTools(ToolEffects())
    for number in range(20):
        tools.take({"tools": [{"name": f"t{n}", "description": f"{number}" + "x" * 60_000} for n in range(30)]})
    shown = [tools.shown(f"t{n}") for n in range(30)]
    assert all(len({pin.digest for pin in pins}) == 4 for pins in shown)
    assert sum(len(pin.definition or "") for pins in shown for pin in pins[:-1]) <= 1_000_000
