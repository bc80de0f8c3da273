"""Whatever a model proposes or a tool returns, the session can be read again; what no store holds never runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import AgentRunner, AgentStatus, ApprovalError, ConfigurationError, FunctionTools, ToolCall, tool
from grampus_uq.records.values import Message, ToolResult
from grampus_uq.records.vocabulary import Effect, Role
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.stores.memory import MemoryStore
from grampus_uq.runtime.stores.sqlite import SQLiteStore
from grampus_uq.testing import answer
from grampus_uq.wire.lone_surrogates import MAX_TEXT_CHARACTERS
from tests.runtime.agents import AGENT, World, mail, results_by_call, runner, scripted
from tests.sampling import examples

pytestmark = pytest.mark.anyio


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class Pays:
    """An executor that counts what it ran, and returns what it was told to."""

    def __init__(self, output: Any = "paid") -> None:
        self.ran: list[ToolCall] = []
        self._output = output

    def effect_of(self, name: str) -> Effect:
        return Effect.REVERSIBLE

    async def execute(self, call: ToolCall) -> Any:
        self.ran.append(call)
        return self._output


async def lives(arguments: dict[str, Any], *, name: str = "pay", call_id: str = "a") -> tuple[Pays, list[Message]]:
    """One call in a run without a monitor; the session is read back from the store, as another process would."""
    store, pays = MemoryStore(), Pays()
    proposed = ToolCall.model_construct(id=call_id, name=name, arguments=arguments)
    turn = answer("Pay.").model_copy(update={"tool_calls": (proposed,)})
    result = await AgentRunner(scripted([turn, "Done."]), pays, store=store).run(AGENT, "x", session_id="s")
    assert result.status is AgentStatus.COMPLETED
    loaded = await Ledger(store).load("mailer", "s")
    assert loaded is not None
    assert loaded[0].messages == result.messages
    assert set(results_by_call(result.messages).values()) == {1}
    return pays, result.messages


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"note": nested(101)}, "too deeply"),
        ({"note": nested(192)}, "too deeply"),
        ({"note": nested(900)}, "too deeply"),
        ({"amount": 10**5_000}, "too many digits"),
        ({"note": "x" * 1_000_001}, "exceed 1000000 characters"),
        ({f"key {n}": "x" * 100 for n in range(10_000)}, "exceed 1000000 characters"),
        ({"amount": float("nan")}, "not a JSON number"),
        ({"amount": object()}, "JSON does not have"),
        ({1: "a", "1": "b"}, "distinct"),
        ({"unparsed_arguments": '{"amount":'}, "are not JSON"),
    ],
    ids=["101 deep", "192 deep", "900 deep", "5000 digits", "long", "wide", "NaN", "object", "keys", "unparsed"],
)
async def test_arguments_that_no_store_holds_run_nothing_and_the_model_is_told_why(
    arguments: dict[str, Any], why: str
) -> None:
    pays, messages = await lives(arguments)
    assert pays.ran == []
    (result,) = [message for message in messages if message.role is Role.TOOL]
    assert why in (result.content or "")
    assert result.metadata == {"is_error": True}


async def test_arguments_at_the_limits_run_and_can_be_read_again() -> None:
    deep = {"note": nested(99), "amount": 10**3_900, "text": "x" * 900_000}
    pays, _ = await lives(deep)
    assert [call.arguments for call in pays.ran] == [deep]


async def test_half_a_character_is_mended_before_anything_is_judged_or_runs() -> None:
    pays, _ = await lives({"to": "bob \ud83d", "\ud83d": 1}, name="pay\udc00", call_id="a\ud800")
    (ran,) = pays.ran
    assert (ran.id, ran.name, ran.arguments) == ("a\ufffd", "pay\ufffd", {"to": "bob \ufffd", "\ufffd": 1})


@pytest.mark.one_loop
async def test_of_very_many_calls_in_one_answer_the_first_run_and_each_has_its_result() -> None:
    store, pays = MemoryStore(), Pays()
    many = [ToolCall(id=f"c{n}", name="pay", arguments={"n": n}) for n in range(400)]
    one = AgentRunner(scripted([answer("Pay.", tool_calls=many), "Done."]), pays, store=store)
    result = await one.run(AGENT, "x", session_id="s")
    assert len(pays.ran) == 256
    assert set(results_by_call(result.messages).values()) == {1}
    assert sum("256 calls at most" in (message.content or "") for message in result.messages) == 144


texts = st.text(st.characters(), max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(10**4_500), 10**4_500) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
wraps = st.integers(0, 250)


@given(arguments=st.dictionaries(texts, values, max_size=3), depth=wraps, name=texts, call_id=texts)
@settings(max_examples=examples(80), deadline=None)
def test_whatever_is_proposed_the_session_can_be_read_again_and_runs_as_it_was_stored(
    arguments: dict[str, Any], depth: int, name: str, call_id: str
) -> None:
    for _ in range(depth):
        arguments = {"in": arguments}
    pays, messages = anyio.run(lambda: lives(arguments, name=name, call_id=call_id))
    proposed = [call for message in messages for call in message.tool_calls]
    assert [call for call in pays.ran if call not in proposed] == []


ids = st.lists(
    st.lists(st.sampled_from(["", "a", "llm_0_call_0", "llm_0_call_1", "llm_1_call_0", "llm_1_call_1", "x" * 1_001])),
    min_size=1,
    max_size=3,
)


@given(turns=ids)
@settings(max_examples=examples(80), deadline=None)
def test_whatever_ids_a_model_writes_each_call_runs_once_and_has_an_id_of_its_own(turns: list[list[str]]) -> None:
    async def run() -> None:
        pays, numbers = Pays(), iter(range(1_000))
        said = [
            answer("Pay.", tool_calls=[ToolCall(id=one, name="pay", arguments={"n": next(numbers)}) for one in turn])
            for turn in turns
            if turn
        ]
        result = await AgentRunner(scripted([*said, "Done."]), pays).run(AGENT, "x", session_id="s")
        proposed = [call for message in result.messages for call in message.tool_calls]
        assert len({call.id for call in proposed}) == len(proposed) == sum(map(len, turns))
        assert sorted(str(call.arguments) for call in pays.ran) == sorted(str({"n": n}) for n in range(len(proposed)))

    anyio.run(run)


# -- results ----------------------------------------------------------------------------------------------------------


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("never")


@pytest.mark.parametrize(
    "output",
    [
        "x" * (MAX_TEXT_CHARACTERS + 5),
        nested(150),
        nested(5_000),
        10**5_000,
        b"\xff" * 10,
        b"x" * 5_000_000,
        "half \ud83d",
        {"k": float("nan")},
        {"a": object()},
        ToolResult(tool_call_id="other", output={"deep": nested(3_000)}),
    ],
    ids=["long", "150", "5000", "digits", "bytes", "many bytes", "half", "nan", "object", "result"],
)
async def test_whatever_a_tool_returns_the_session_can_be_read_again(output: Any) -> None:
    store, pays = MemoryStore(), Pays(output)
    one = AgentRunner(scripted([answer("Pay.", tool_calls=[mail("a", "bob")]), "Done."]), pays, store=store)
    result = await one.run(AGENT, "x", session_id="s")
    assert result.status is AgentStatus.COMPLETED
    loaded = await Ledger(store).load("mailer", "s")
    assert loaded is not None
    assert loaded[0].messages == result.messages
    (told,) = [message.content or "" for message in result.messages if message.role is Role.TOOL]
    assert 0 < len(told) <= MAX_TEXT_CHARACTERS + 100
    assert "Not executed" not in told


@pytest.mark.parametrize("more", [5, 4 * MAX_TEXT_CHARACTERS])
@pytest.mark.parametrize("unit", ["x", b"x", "ü".encode()], ids=["text", "bytes", "two bytes each"])
async def test_of_a_result_that_is_too_long_the_beginning_is_kept_and_it_says_how_much_is_not(
    unit: str | bytes, more: int
) -> None:
    store, pays = MemoryStore(), Pays(unit * (MAX_TEXT_CHARACTERS + more))
    one = AgentRunner(scripted([answer("Pay.", tool_calls=[mail("a", "bob")]), "Done."]), pays, store=store)
    result = await one.run(AGENT, "x", session_id="s")
    (told,) = [message.content or "" for message in result.messages if message.role is Role.TOOL]
    assert told[MAX_TEXT_CHARACTERS:] == f"… ({more} more characters are not kept)"


async def test_an_error_that_cannot_even_be_printed_is_a_result() -> None:
    @tool(effect=Effect.REVERSIBLE)
    def send_email(to: str, body: str) -> str:
        raise _UnprintableError

    one = AgentRunner(scripted([answer("Go.", tool_calls=[mail("a", "bob")]), "Done."]), FunctionTools(send_email))
    result = await one.run(AGENT, "x", session_id="s")
    assert result.status is AgentStatus.COMPLETED
    assert "The tool failed: _UnprintableError" in next(m.content or "" for m in result.messages if m.role is Role.TOOL)


# -- what the caller gives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"session_id": "s\ud83d"},
        {"session_id": 17},
        {"session_id": "s", "metadata": {"deep": nested(250)}},
        {"session_id": "s", "metadata": {"x": object()}},
        {"session_id": "s", "messages": [Message(role=Role.USER, content="half \ud83d")]},
    ],
    ids=["id", "number", "deep metadata", "object", "half a character"],
)
async def test_what_a_caller_gives_that_no_store_holds_is_refused_before_anything_runs(given: dict[str, Any]) -> None:
    store = MemoryStore()
    with pytest.raises(ConfigurationError, match="lone surrogates"):
        await AgentRunner(scripted(["Done."]), Pays(), store=store).run(AGENT, "x", **given)
    assert await store.scan("session") == []


def test_a_url_in_place_of_a_store_and_functions_in_place_of_an_executor_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigurationError, match=r"open_store\(URL\) opens one"):
        AgentRunner(scripted([]), Pays(), store="sqlite:///s.db")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"FunctionTools\(\*functions\) is one"):
        AgentRunner(scripted([]), [print])


async def test_a_human_cannot_edit_arguments_into_what_no_store_holds(tmp_path: Path) -> None:
    world, store = World(), SQLiteStore(tmp_path / "s.db")
    one = runner(world, store=store)
    (request,) = (await one.run(AGENT, "mail bob", session_id="s")).pending
    large = {"to": "bob", "body": "x" * 1_000_001}
    with pytest.raises(ApprovalError, match="exceed"):
        request.decide("edit", principal="ann", arguments=large)
    edit = request.decide("edit", principal="ann", arguments={"to": "eve"})
    with pytest.raises(Exception, match="exceed"):
        await one.resume("mailer", "s", edit.model_copy(update={"arguments": large}))
    result = await one.resume("mailer", "s", request.decide("approve", principal="ann"))
    assert (result.status, world.sent) == (AgentStatus.COMPLETED, [("bob", "hi")])
    await store.aclose()
