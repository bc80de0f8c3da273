"""Calls are of one shape where names and types are alike; to find it costs no more than to read the call."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.inbox.call_shapes import alike_among, shape_of
from grampus_uq.runtime.cards import Card
from tests.runtime.drill_worlds import request

_SCALARS = st.none() | st.booleans() | st.integers(0, 1) | st.just(0.5) | st.sampled_from(["", "int", '["int"]'])
_NAMES = st.sampled_from(["a", "b", '"', "[]", "int"])
_VALUES: Any = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3), max_leaves=8
)
_ARGUMENTS = st.dictionaries(_NAMES, _VALUES, max_size=3)


def waiting(arguments: dict[str, Any]) -> Card:
    """A request that a batch may decide."""
    asked = request(random.Random(1), 1.0)[1]
    return asked.model_copy(update={"rule": "irreversible_override", "arguments": arguments})


def types(value: Any) -> Any:
    """Names and types, as values that compare: a list is the set of what is in it."""
    if isinstance(value, dict):
        return frozenset((name, types(one)) for name, one in value.items()), "object"
    if isinstance(value, list):
        return frozenset(map(types, value)), "list"
    return type(value)


@given(_ARGUMENTS, _ARGUMENTS)
def test_calls_are_of_one_shape_exactly_where_names_and_types_are_alike(one: Any, other: Any) -> None:
    assert (shape_of(waiting(one)) == shape_of(waiting(other))) is (types(one) == types(other))


@given(_ARGUMENTS, st.integers(1, 12), st.booleans())
def test_a_shape_is_of_one_length_whatever_the_call_holds(arguments: Any, depth: int, as_list: bool) -> None:
    nested: Any = arguments
    for _ in range(depth):
        nested = [nested] if as_list else {"a": [nested, {}]}
    shape, plain = shape_of(waiting({"a": nested})), shape_of(waiting({}))
    assert shape is not None
    assert plain is not None
    assert len(shape) == len(plain)


@pytest.mark.anyio
@pytest.mark.parametrize("depth", [20, 100, 190])
async def test_a_call_nested_as_deep_as_a_tool_takes_has_a_shape(depth: int) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = [deep]
    cards = [waiting({"data": deep}), waiting({"data": [deep]}), waiting({"data": deep}).model_copy(update={"id": "x"})]
    assert len(shape_of(cards[0]) or "") < 100, "grows with the depth"
    assert await alike_among(cards) == {cards[0].id: 2}
