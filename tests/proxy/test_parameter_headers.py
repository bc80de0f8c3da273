"""The headers of a call's parameters, held to the official package's reading of them on both sides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from mcp.shared.inbound import (
    decode_header_value,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    validate_mcp_param_headers,
    x_mcp_header_map,
)

from grampus_uq.integrations.mcp.http_headers import reading_problem
from grampus_uq.integrations.mcp.json_rpc import Message, UnclearError
from grampus_uq.integrations.mcp.parameter_headers import check_parameters, parameter_headers
from tests.sampling import examples

_KEYS = ["region", "Region", "at", "inner"]
_MARKS = ["Region", "region", "Zone", "x-mcp"]
_VALUES = st.one_of(
    st.sampled_from(["eu", "us", " eu", "", "é", "=?base64?ZXU=?=", "=?base64?", "=?BASE64?ZXU=?=", "true", "1"]),
    st.text(max_size=5).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.booleans(),
    st.floats(-1e15, 1e15, allow_nan=False).filter(lambda x: x == x and str(x) != "-0.0"),
    st.none(),
    st.lists(st.integers(), max_size=1),
)


@st.composite
def _schemas(draw: st.DrawFn, depth: int = 2) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for key in draw(st.lists(st.sampled_from(_KEYS), unique=True, max_size=3)):
        if depth and draw(st.booleans()):
            properties[key] = draw(_schemas(depth=depth - 1))
        else:
            properties[key] = {"type": draw(st.sampled_from(["string", "integer", "boolean"]))}
            if draw(st.booleans()):
                properties[key]["x-mcp-header"] = draw(st.sampled_from(_MARKS))
    return {"type": "object", "properties": properties}


@st.composite
def _calls(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema, and arguments most of which it names."""
    schema = draw(_schemas())

    def fill(one: dict[str, Any]) -> dict[str, Any]:
        given = {key: fill(sub) if "properties" in sub else draw(_VALUES) for key, sub in one["properties"].items()}
        return {**given, **draw(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=1))}

    return schema, fill(schema)


_HEADERS = st.lists(
    st.tuples(
        st.sampled_from([f"Mcp-Param-{mark}" for mark in _MARKS] + ["mcp-param-zone", "Mcp-Param-Other"]),
        st.sampled_from(["eu", "us", "true", "1", "=?base64?ZXU=?=", "=?base64?ZXV=?=", "=?base64?&?="])
        | _VALUES.filter(lambda value: isinstance(value, str)).map(lambda text: encode_header_value(str(text))),
    ),
    max_size=3,
)


def passes(headers: list[tuple[str, str]], schema: Mapping[str, Any] | None, arguments: Mapping[str, Any]) -> bool:
    message = Message(line=b"", values={}, id=1, method="tools/call", params={"name": "t", "arguments": arguments})
    try:
        check_parameters(headers, message, schema)
    except UnclearError:
        return False
    return True


@given(_calls())
@settings(max_examples=examples(200))
def test_what_an_official_client_sends_passes_and_is_what_an_edit_is_sent_with(
    call: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    schema, arguments = call
    if find_invalid_x_mcp_header(schema) is not None:
        return  # a client drops such a tool
    headers = mcp_param_headers(x_mcp_header_map(schema), arguments)
    event(f"{len(headers)} headers")
    assert passes(list(headers.items()), schema, arguments)
    own = {name.decode(): value.decode() for name, value in parameter_headers(schema, arguments)}
    assert own == {name.lower(): value for name, value in headers.items()}


@given(_calls(), _HEADERS, st.booleans())
@settings(max_examples=examples(300))
def test_no_header_passes_that_an_official_server_reads_as_something_else(
    call: tuple[dict[str, Any], dict[str, Any]], headers: list[tuple[str, str]], own: bool
) -> None:
    """Whatever passes here is what the server compares it with; of headers that are missing a server says so itself."""
    schema, arguments = call
    if own and find_invalid_x_mcp_header(schema) is None:
        headers = [*mcp_param_headers(x_mcp_header_map(schema), arguments).items(), *headers[:1]]
    if not headers or not passes(headers, schema, arguments):
        return
    event("passes")
    marked = x_mcp_header_map(schema)
    for name, value in headers:  # also where the marks are such that no official server compares
        places = [place for place, mark in marked.items() if mark.lower() == name.lower()[len("mcp-param-") :]]
        said = [text for place in places for text in mcp_param_headers({place: "x"}, arguments).values()]
        assert [decode_header_value(one) for one in said] == [decode_header_value(value)]
    problem = validate_mcp_param_headers(schema, arguments, httpx.Headers(headers))
    assert problem is None or "header is missing" in problem.message


@pytest.mark.parametrize(
    "name",
    [
        *("Mcp_Name", "mcp_param_region", "Mcp-Param_Region", "content_type", "CONTENT_LENGTH", "Transfer_Encoding"),
        *("mcp.method", "Mcp_Session-Id", "host_", "Content-Type"),
    ],
)
def test_a_header_that_some_servers_read_as_another_one_is_refused(name: str) -> None:
    """Where an underscore is read as a hyphen, the server would read another tool than the one that was judged."""
    headers = {"content-type": "application/json"}
    problem = reading_problem(headers, ["content-type", name.lower()], has_body=True)
    assert (problem is None) == (name == "host_")


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).map("x-".__add__))
def test_other_headers_pass(name: str) -> None:
    headers = {"content-type": "application/json", name: "1"}
    assert reading_problem(headers, list(headers), has_body=True) is None


def test_what_json_gives_for_a_number_is_what_its_header_says() -> None:
    schema = {"properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}
    for text, header in [("42", "42"), ("42.0", "42.0"), ("-7", "-7"), ("true", "true")]:
        assert passes([("Mcp-Param-N", header)], schema, json.loads(f'{{"n": {text}}}'))
    assert not passes([("Mcp-Param-N", "43")], schema, {"n": 42})


@pytest.mark.parametrize("value", ["tools/call", " Tools/Call", "tools/call, ping"])
def test_a_call_that_only_a_header_names_is_no_request_that_could_be_judged(value: str) -> None:
    headers = {"mcp-method": value, "mcp-name": "pay"}
    assert reading_problem(headers, list(headers), has_body=False) == (
        400,
        "its header Mcp-Method names a call, and it has no body",
    )
    assert reading_problem({"mcp-method": "ping"}, ["mcp-method"], has_body=False) is None
