"""What tools do to the world, and typed tools from plain functions."""

from __future__ import annotations

import math
import sys
from typing import Annotated

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from grampus_uq import ConfigurationError, FunctionTools, Tool, ToolCall, ToolEffects, tool
from grampus_uq.records.vocabulary import Effect
from grampus_uq.runtime.tools import call_executor

EFFECTS = st.sampled_from(list(Effect))
DANGER = {Effect.READ: 0, Effect.REVERSIBLE: 1, Effect.UNKNOWN: 1, Effect.IRREVERSIBLE: 2}


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(id="c", name=name, arguments=dict(arguments))


def test_a_name_beats_a_pattern_and_a_pattern_beats_silence() -> None:
    effects = ToolEffects({"delete_draft": "reversible"}, patterns={"delete_*": "irreversible", "get_*": "read"})
    assert effects.resolve(call("delete_draft")) is Effect.REVERSIBLE
    assert effects.resolve(call("delete_account")) is Effect.IRREVERSIBLE
    assert effects.resolve(call("get_user")) is Effect.READ
    assert effects.resolve(call("frobnicate")) is Effect.UNKNOWN
    assert effects.unclassified() == ["frobnicate"]


def test_a_word_that_says_nothing_is_no_word() -> None:
    effects = ToolEffects({"look": None}, patterns={"get_*": None})  # type: ignore[dict-item]  # what a file may hold
    assert effects.resolve(call("get_user"), Effect.READ) is Effect.READ
    assert effects.resolve(call("get_user")) is Effect.UNKNOWN
    assert effects.resolve(call("look")) is Effect.UNKNOWN


def test_what_is_said_of_a_name_in_a_namespace_is_not_said_of_the_same_name_in_another() -> None:
    effects = ToolEffects({"mail.send": "irreversible"}, predicates={"bank.send": lambda _: Effect.IRREVERSIBLE})
    for name, effect in (("mail.send", Effect.IRREVERSIBLE), ("x.bank.Send", Effect.IRREVERSIBLE)):
        assert effects.resolve(call(name)) is effect
    assert effects.resolve(call("crm.send")) is Effect.UNKNOWN
    assert effects.resolve(call("send")) is Effect.UNKNOWN


def test_of_several_patterns_the_gravest_counts_also_of_one_that_has_no_other_spelling() -> None:
    for patterns in (
        {"[d]elete_*": "irreversible", "delete_*": "read"},
        {"delete_*": "read", "[d]elete_*": "irreversible"},
        {"*_file": "reversible", "[d]elete_*": "irreversible"},
    ):
        assert ToolEffects(patterns=patterns).resolve(call("delete_file")) is Effect.IRREVERSIBLE


def test_an_opinion_that_a_tool_can_be_undone_classifies_nothing() -> None:
    effects = ToolEffects(predicates={"pay": lambda _: Effect.REVERSIBLE})
    assert effects.resolve(call("pay")) is Effect.UNKNOWN
    assert effects.resolve(call("pay"), Effect.READ) is Effect.REVERSIBLE
    unsure = ToolEffects({"pay": "reversible"}, predicates={"pay": lambda _: Effect.UNKNOWN})
    assert unsure.resolve(call("pay")) is Effect.REVERSIBLE


def test_a_users_word_on_one_spelling_raises_every_other_that_has_no_word_of_its_own() -> None:
    effects = ToolEffects({"delete_file": "irreversible", "deleteFile": "reversible"})
    assert effects.resolve(call("delete_file")) is Effect.IRREVERSIBLE
    assert effects.resolve(call("DELETE-FILE"), Effect.READ) is Effect.IRREVERSIBLE
    assert effects.resolve(call("deleteFile")) is Effect.REVERSIBLE
    both = ToolEffects(predicates={"pay": lambda _: Effect.IRREVERSIBLE, "Pay": lambda _: None})
    assert both.resolve(call("pay")) is both.resolve(call("PAY")) is Effect.IRREVERSIBLE
    assert both.resolve(call("look"), Effect.READ) is Effect.READ


def test_a_misspelt_effect_is_refused_where_it_was_said() -> None:
    with pytest.raises(ConfigurationError, match="`ToolEffects`"):
        ToolEffects({"pay": "irreversibel"})
    with pytest.raises(ConfigurationError, match=r"`ToolEffects\.resolve`"):
        ToolEffects().resolve(call("pay"), "irreversibel")


def test_of_names_that_nobody_classified_a_thousand_are_remembered() -> None:
    effects = ToolEffects()
    for number in range(1_001):
        effects.resolve(call(f"tool{number}"))
    assert len(effects.unclassified()) == 1_000
    assert effects._known.cache_info().currsize == 1_000


def test_what_a_name_says_is_remembered_unless_the_name_is_longer_than_any_tools() -> None:
    effects = ToolEffects({"x" * 257: "read"})
    for length, remembered in ((257, 0), (256, 1), (256, 1), (257, 1)):
        assert effects.resolve(call("x" * length)) is (Effect.READ if length == 257 else Effect.UNKNOWN)
        assert effects._known.cache_info().currsize == remembered


@given(declared=EFFECTS, opinion=EFFECTS, destructive=st.booleans(), read_only=st.booleans())
def test_predicates_and_mcp_annotations_raise_danger_and_never_lower_it(
    declared: Effect, opinion: Effect, destructive: bool, read_only: bool
) -> None:
    plain = ToolEffects().resolve(call("t"), declared)
    effects = ToolEffects(
        predicates={"t": lambda _: opinion},
        mcp={"t": {"destructiveHint": destructive, "readOnlyHint": read_only}},
    )
    resolved = effects.resolve(call("t"), declared)
    assert DANGER[resolved] >= DANGER[plain]
    if destructive:
        assert resolved is Effect.IRREVERSIBLE


def test_a_predicate_sees_the_arguments_and_one_that_fails_counts_as_irreversible() -> None:
    def large(proposed: ToolCall) -> Effect | None:
        amount = proposed.arguments["amount"]
        if amount == "exit":
            sys.exit("not an amount")
        assert isinstance(amount, int)
        return Effect.IRREVERSIBLE if amount > 50 else None

    effects = ToolEffects({"pay": Effect.REVERSIBLE}, predicates={"pay": large})
    assert effects.resolve(call("pay", amount=10)) is Effect.REVERSIBLE
    assert effects.resolve(call("pay", amount=100)) is Effect.IRREVERSIBLE
    assert effects.resolve(call("pay", amount="a lot")) is Effect.IRREVERSIBLE
    assert effects.resolve(call("pay", amount="exit")) is Effect.IRREVERSIBLE
    assert effects.resolve(call("pay")) is Effect.IRREVERSIBLE


def test_empty_names_and_patterns_are_refused_and_unknown_tools_can_be_treated_as_irreversible() -> None:
    for wrong in ({"": "read"}, {"  ": "read"}):
        with pytest.raises(ConfigurationError, match="empty"):
            ToolEffects(wrong)
        with pytest.raises(ConfigurationError, match="empty"):
            ToolEffects(patterns=wrong)
    assert ToolEffects(unknown_is_irreversible=True).resolve(call("new")) is Effect.IRREVERSIBLE


@tool(effect="irreversible", name="pay")
def pay_someone(to: str, amount: Annotated[float, Field(gt=0)], note: str = "", idempotency_key: str = "") -> str:
    """Pay somebody."""
    return f"{to} {amount} {note} {idempotency_key}"


def test_the_schema_comes_from_the_type_hints_and_hides_the_idempotency_key() -> None:
    schema = Tool(pay_someone).schema()["function"]
    assert schema["name"] == "pay"
    assert schema["description"] == "Pay somebody."
    assert set(schema["parameters"]["properties"]) == {"to", "amount", "note"}
    assert schema["parameters"]["required"] == ["to", "amount"]
    assert schema["parameters"]["properties"]["amount"]["exclusiveMinimum"] == 0
    assert Tool(pay_someone).effect is Effect.IRREVERSIBLE


@pytest.mark.anyio
async def test_hostile_arguments_become_an_error_result_and_the_function_does_not_run() -> None:
    tools = FunctionTools(pay_someone)
    for arguments in ({}, {"to": "x", "amount": -1}, {"to": "x", "amount": 1, "extra": 1}, {"to": ["x"], "amount": 1}):
        result = await call_executor(tools, ToolCall(id="c", name="pay", arguments=arguments), "k")
        assert result.is_error
        assert "Invalid arguments" in result.text()
    missing = await call_executor(tools, call("nothing"), "k")
    assert "There is no tool" in missing.text()
    paid = await call_executor(tools, call("pay", to="ann", amount=2), "the-key")
    assert paid.output == "ann 2.0  the-key"


@pytest.mark.anyio
async def test_what_a_tool_raises_or_returns_becomes_a_result_with_the_calls_id() -> None:
    class Odd:
        async def execute(self, proposed: ToolCall) -> object:
            if proposed.name == "nan":
                return math.nan
            if proposed.name == "list":
                return [1, {"b": 2, "a": 1}]
            raise KeyError("secret")

    assert (await call_executor(Odd(), call("nan"), "")).text() == "nan"
    assert (await call_executor(Odd(), call("list"), "")).text() == '[1,{"a":1,"b":2}]'
    failed = await call_executor(Odd(), call("x"), "")
    assert (failed.is_error, failed.tool_call_id) == (True, "c")


def test_functions_that_cannot_be_tools_are_refused_at_construction() -> None:
    def variadic(*things: str) -> None: ...

    with pytest.raises(ConfigurationError, match="named parameters"):
        Tool(variadic)
    with pytest.raises(ConfigurationError, match="named function"):
        Tool(lambda: None)
    with pytest.raises(ConfigurationError, match=r"FunctionTools\(\*functions\)"):
        FunctionTools([pay_someone])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="distinct"):
        FunctionTools(pay_someone, pay_someone)


@pytest.mark.anyio
async def test_plain_tools_inside_plain_tools_find_threads() -> None:
    """Each keeps its thread while it waits for the next, and whatever else needs a thread finds one."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = 2

    async def more(depth: int) -> None:
        with anyio.fail_after(5):
            await anyio.to_thread.run_sync(str)
            async with anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(tools.execute, call("down", depth=depth if number == 0 else 0))

    def down(depth: int) -> None:
        if depth:
            anyio.from_thread.run(more, depth - 1)
        reached.append(depth)

    tools, reached = FunctionTools(down), list[int]()
    await more(3)
    assert sorted(reached) == [0] * 9 + [1, 2, 3]
