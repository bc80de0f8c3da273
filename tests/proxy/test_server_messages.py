"""No client is shown a definition of a tool that the proxy did not read, however the server spells its messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.integrations.mcp.json_rpc import id_in
from grampus_uq.integrations.mcp.message_lines import TooLong
from grampus_uq.integrations.mcp.server_messages import read_server_message
from tests.proxy.guarded import Bench, bench
from tests.sampling import examples

pytestmark = [pytest.mark.anyio, pytest.mark.jumping_clocks]


def tool(description: str, name: str = "read_note") -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}}


def first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


def by_folded_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name.casefold(): value for name, value in pairs}


_DECODERS: list[Callable[[bytes], str]] = [
    lambda line: line.decode("utf-8", "ignore"),
    lambda line: line.decode("utf-8-sig", "replace"),
    lambda line: line.decode("latin-1"),
]
_HOOKS = [dict, first_wins, by_folded_names]
_LINES = re.compile("[\n\r\u0085\u2028\u2029\v\f\x1c\x1d\x1e]")


def messages(lines: list[bytes]) -> Iterator[Any]:
    """Every message that some client could read in what it was sent."""
    for decode in _DECODERS:
        whole = "\n".join(decode(line) for line in lines)
        for hook in _HOOKS:
            decoder = json.JSONDecoder(object_pairs_hook=hook)
            for text in (*whole.split("\n"), *_LINES.split(whole)):
                yield from documents(decoder, text)
            yield from documents(decoder, whole)  # a reader of a stream, to which a line's end is a blank


def documents(decoder: json.JSONDecoder, text: str) -> Iterator[Any]:
    at = 0
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            at = next((i for i in range(at, len(text)) if text[i] in "{["), len(text))
            continue
        yield from value if isinstance(value, list) else [value]
        at = end


def answers_one(identity: Any) -> bool:
    """Would some client take this for the id 1?"""
    try:
        return identity is not None and float(identity) == 1
    except (TypeError, ValueError):
        return False


def definitions(lines: list[bytes]) -> set[tuple[str, str]]:
    """The names and descriptions of tools that some client could have read in the answer to its request 1."""
    found = set()
    for message in messages(lines):
        result = message.get("result") if isinstance(message, dict) and answers_one(message.get("id")) else None
        tools = result.get("tools") if isinstance(result, dict) else None
        for one in tools if isinstance(tools, list) else ():
            if isinstance(one, dict):
                found.add((str(one.get("name")), str(one.get("description"))))
    return found


_EVIL = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": [tool("EVIL")]}}).encode()
_GOOD = _EVIL.replace(b"EVIL", b"good")
_DEEP = b'{"id":1,"result":{"tools":[' + json.dumps(tool("EVIL")).encode() + b'],"_meta":' + b"[" * 3_000 + b"]" * 3_000
SPELLINGS = {
    "as it is": _EVIL,
    "id as text": _EVIL.replace(b": 1,", b': "1",'),
    "id as a fraction": _EVIL.replace(b": 1,", b": 1.0,"),
    "id as true": _EVIL.replace(b": 1,", b": true,"),
    "id twice": _EVIL.replace(b'"id": 1,', b'"id": 2, "id": 1,'),
    "id twice, the other way": _EVIL.replace(b'"id": 1,', b'"id": 1, "id": 2,'),
    "id in capitals": _EVIL.replace(b'"id"', b'"ID"'),
    "no UTF-8": _EVIL.replace(b"EVIL", b"EVIL\xff"),
    "no UTF-8 in a name": _EVIL.replace(b'"id": 1', b'"id": 2, "id\xff": 1'),
    "NaN": _EVIL.replace(b'"result": {', b'"result": {"_meta": NaN, '),
    "a number of 5,000 digits": _EVIL.replace(b'"result": {', b'"result": {"_meta": ' + b"9" * 5_000 + b", "),
    "deep": _DEEP + b"}}",
    "a method of null": _EVIL.replace(b'"id"', b'"method": null, "id"'),
    "a method as well": _EVIL.replace(b'"id"', b'"method": "ping", "id"'),
    "a batch": b"[" + _EVIL + b"]",
    "two on a line": _GOOD + b" " + _EVIL,
    "after something": b"log: " + _EVIL,
    "a byte order mark": b"\xef\xbb\xbf" + _EVIL,
    "a carriage return": _GOOD + b"\r" + _EVIL,
    "a carriage return before": b"\r" + _EVIL,
    "tools twice": _GOOD[:-2] + b', "tools": ' + json.dumps([tool("EVIL")]).encode() + b"}}",
    "tools in capitals": _GOOD[:-2] + b', "Tools": ' + json.dumps([tool("EVIL")]).encode() + b"}}",
    "result in capitals": _GOOD[:-1] + b', "Result": {"tools": ' + json.dumps([tool("EVIL")]).encode() + b"}}",
    "a name in capitals": _EVIL.replace(b'"name": "read_note"', b'"name": "zzz", "Name": "read_note"'),
    "an escaped name": _EVIL.replace(b"tools", b"\\u0074ools"),
    "two of a name": _GOOD[:-3] + b", " + json.dumps(tool("EVIL")).encode() + b"]}}",
    "two of a name, the other way": _EVIL[:-3] + b", " + json.dumps(tool("good")).encode() + b"]}}",
    "a message between carriage returns": b'{"id":1,"result":{},"x":[\r' + _EVIL + b"\r]}",
    "over two lines": _EVIL.replace(b'"result"', b'\n"result"'),
}


async def shown(lines: list[bytes]) -> tuple[Bench, set[tuple[str, str]]]:
    """What a client could read that asked twice for the tools, and was answered so the second time."""
    async with bench() as one:
        await one.say(id=0, method="tools/list")
        await one.guard.from_server(_GOOD.replace(b'"id": 1', b'"id": 0'))
        await one.say(id=1, method="tools/list")
        for line in lines:
            await one.guard.from_server(line)
        return one, definitions(one.to_client)


def test_a_byte_order_mark_which_some_clients_do_not_read_is_not_passed_on() -> None:
    message = read_server_message(SPELLINGS["a byte order mark"])
    assert message is not None
    assert json.loads(message.line.decode()) == json.loads(_EVIL)


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_definition_that_a_client_could_read_was_read_here(spelling: str) -> None:
    one, could_read = await shown(SPELLINGS[spelling].split(b"\n"))
    pin = one.tools.pin("read_note")
    assert pin is not None
    if ("read_note", "EVIL") in could_read:
        first = await bench_pin("good")
        assert pin.digest != first


async def bench_pin(description: str) -> str:
    async with bench() as one:
        await one.lists(read_note={"description": description})
        pin = one.tools.pin("read_note")
        assert pin is not None
        return pin.digest


@settings(max_examples=examples(150), deadline=None)
@given(
    spelling=st.sampled_from(sorted(SPELLINGS)),
    cuts=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 6), st.binary(max_size=3)), max_size=3),
)
def test_nor_is_one_shown_unread_in_what_a_hostile_server_makes_of_these(
    spelling: str, cuts: list[tuple[int, int, bytes]]
) -> None:
    line = SPELLINGS[spelling]
    for at, length, put in cuts:
        line = line[:at] + put + line[at + length :]
    one, could_read = anyio.run(shown, line.split(b"\n"))
    pin = one.tools.pin("read_note")
    assert pin is not None
    if any(name == "read_note" and description != "good" for name, description in could_read):
        assert pin.digest != anyio.run(bench_pin, "good")


@pytest.mark.parametrize("spelling", ["as it is", "no UTF-8", "two of a name", "NaN"])
async def test_a_list_in_an_odd_spelling_is_shown_as_it_was_read_and_its_tool_asked_about(spelling: str) -> None:
    async with bench(hold_s=0.05) as one:
        await one.lists(read_note={"annotations": {"readOnlyHint": True}, "description": "good"})
        await one.call(5, "read_note")
        await one.asked()
        await one.returns(5)
        await one.say(id=1, method="tools/list")
        await one.guard.from_server(SPELLINGS[spelling])
        assert "tools" in json.loads(one.to_client[-1])["result"]
        await one.call(6, "read_note", n=1)
        assert "waits for a human" in (await one.answered(6))["result"]["content"][0]["text"]


@pytest.mark.parametrize(
    "tools",
    [
        [{"description": "no name"}],
        [tool("x", name="y" * 257)],
        ["read_note"],
        {"0": tool("EVIL")},
        [tool("x", name=str(number)) for number in range(10_001)],
    ],
    ids=["no name", "a long name", "no object", "no list", "too many"],
)
async def test_a_list_that_cannot_be_compared_is_answered_with_an_error(tools: Any) -> None:
    async with bench() as one:
        await one.say(id=1, method="tools/list")
        await one.guard.from_server(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}}).encode())
        assert "list of tools is refused" in json.loads(one.to_client[-1])["error"]["message"]


async def test_a_tool_that_two_pages_of_one_list_define_is_another_one_and_two_lists_replace_each_other() -> None:
    async with bench() as one:
        digests = []
        for pages in (["good"], ["good", "EVIL"], ["EVIL", "good"], ["good", "good"], ["EVIL"]):
            for number, description in enumerate(pages):
                await one.say(id=1, method="tools/list", params={"cursor": "x"} if number else {})
                line = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": [tool(description)]}}).encode()
                await one.guard.from_server(line)
            pin = one.tools.pin("read_note")
            assert pin is not None
            digests.append(pin.digest)
    good, both, same_both, again, evil = digests
    assert good == again
    assert both == same_both
    assert len({good, both, evil}) == 3


async def test_a_list_under_the_id_of_an_open_call_is_refused_and_changes_nothing() -> None:
    async with bench() as one:
        await one.call(1, path="a")
        await one.decide()
        await one.asked()
        await one.say(id=1, method="tools/list")
        assert "not answered yet" in json.loads(one.to_client[-1])["error"]["message"]
        await one.returns(1, "gone", tools=[tool("EVIL")])
        while len(one.to_client) < 2:  # noqa: ASYNC110 (a list of the test's)
            await anyio.sleep(0.01)
        await anyio.sleep(0.1)
        await one.call(2, path="a")  # a new call: the first was answered
        await one.waiting()
        assert len(one.ran()) == 1
        assert one.tools.pin("read_note") is None


async def test_an_answer_passes_once_and_to_the_very_id_that_was_asked() -> None:
    async with bench() as one:
        await one.say(id=1, method="resources/read")
        for identity in ("1", 1.0, True, None, 2, [1]):
            await one.guard.from_server(json.dumps({"jsonrpc": "2.0", "id": identity, "result": {}}).encode())
        assert one.to_client == []
        for _ in range(2):
            await one.guard.from_server(b'{"jsonrpc":"2.0","id":1,"result":{}}')
        assert one.to_client == [b'{"jsonrpc":"2.0","id":1,"result":{}}']
        await one.guard.from_server(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}')
        assert len(one.to_client) == 2


_json_values = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(max_size=3) | st.just("id"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("id") | st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=3, max_size=4), _json_values, max_size=3), st.integers() | st.text(), st.data())
def test_the_id_of_a_message_is_not_one_that_is_nested_in_it(more: Any, identity: Any, data: st.DataObject) -> None:
    items = data.draw(st.permutations([*more.items(), ("id", identity), ("result", {"rows": [{"id": 1}, '"id":1,']})]))
    line = json.dumps({"jsonrpc": "2.0", **dict(items)}).encode()
    expected = identity if isinstance(identity, str) or abs(identity) < 10**18 else None
    assert id_in(line) in (expected, None)  # 256 characters of a text
    assert id_in(b"", json.dumps({**dict(items), "id": 5, "jsonrpc": "2.0"}).encode()) in (5, None)


async def test_what_became_of_a_call_is_asked_where_half_an_answer_came() -> None:
    async with bench() as one:
        await one.call(1, path="a")
        await one.decide()
        await one.asked()
        await one.guard.from_server(b'{"jsonrpc":"2.0","id":1,"resu')
        assert "whether the call took effect is not known" in (await one.answered(1))["error"]["message"]
        assert (await one.waiting()).unknown_outcome


@pytest.mark.parametrize("id_first", [True, False])
async def test_a_result_that_is_too_long_is_the_answer_to_its_own_call(id_first: bool) -> None:
    """And not to the call whose id is in a row of it."""
    own, rows = b'"id": 2, ', b'"result": {"structuredContent": {"rows": [{"id": 1, "x": "' + b"y" * 5_000
    async with bench() as one:
        await one.lists(read_note={"annotations": {"readOnlyHint": True}})
        await one.call(1, "read_note", n=1)
        await one.call(2, "read_note", n=2)
        await one.asked(2)
        head = b'{"jsonrpc": "2.0", ' + (own if id_first else b"") + rows
        tail = b'"}]}}}' if id_first else b'"}]}}, "id": 2, "jsonrpc": "2.0"}'
        await one.guard.from_server(TooLong(head=head[:1_024], tail=tail))
        assert "longer than a message may be" in (await one.answered(2))["error"]["message"]
        await one.returns(1, "still mine")
        assert (await one.answered(1))["result"]["content"][0]["text"] == "still mine"
