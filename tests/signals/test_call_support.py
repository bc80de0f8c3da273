"""Where a value of a call comes from, as far as the messages before it show."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Message, Role
from grampus_uq.records.call_parts import CallDoubt, Support, doubt_in_words
from grampus_uq.signals.call_support import MAX_CHARACTERS, MAX_MESSAGES, MAX_NUMBERS, support_of

ASKED = Message(role=Role.USER, content="Refund half of order A17-2 to Ann Novak, please. Nothing else.")
FOUND = Message(
    role=Role.TOOL, content='{"order":"A17-2","quantity":3,"unit_price":42.50,"shipping":5,"customer":"C90992"}'
)
CASE = (Message(role=Role.SYSTEM, content="Never more than 500."), ASKED, FOUND)


@pytest.mark.parametrize(
    ("value", "support"),
    [
        ("A17-2", Support.RETURNED),
        ("a17-2", Support.RETURNED),
        ("Ann Novak", Support.SAID),
        ("ann", Support.SAID),
        ("A17", Support.RETURNED),
        ("A1", Support.NOWHERE),
        ("90992", Support.NOWHERE),
        (42.5, Support.RETURNED),
        ("42.5", Support.RETURNED),
        (500, Support.SAID),
        (127.5, Support.COMPUTED),
        (132.5, Support.COMPUTED),
        (122.5, Support.COMPUTED),
        (37.5, Support.COMPUTED),
        (90992, Support.NOWHERE),
        (10**400, None),
        (float("nan"), None),
        ("127.5", Support.NOWHERE),
        ("", None),
        (True, None),
        (None, None),
        ({"order": "A17-2"}, None),
    ],
)
def test_a_value_is_returned_said_computed_or_found_nowhere(value: Any, support: Support | None) -> None:
    assert support_of(value, CASE) == support


def test_what_the_model_itself_wrote_supports_nothing_and_without_messages_nothing_is_known() -> None:
    own = Message(role=Role.ASSISTANT, content="I will refund 77.")
    assert support_of(77, (*CASE, own)) is Support.NOWHERE
    assert support_of(77, (own,)) is None
    assert support_of(77, ()) is None


def test_only_the_latest_text_is_read_and_many_numbers_compute_nothing() -> None:
    old = Message(role=Role.TOOL, content="77")
    assert support_of(77, (old, *CASE)) is Support.RETURNED
    assert support_of(77, (old, *(CASE[:1] * MAX_MESSAGES))) is Support.NOWHERE
    long = Message(role=Role.TOOL, content="77 " + " " * MAX_CHARACTERS)
    assert support_of("77", (long, *CASE)) is Support.NOWHERE
    table = Message(role=Role.TOOL, content=" ".join(str(7 * n) for n in range(1, MAX_NUMBERS + 2)))
    assert support_of(7 * 500, (table,)) is Support.NOWHERE


@given(
    st.text(max_size=20) | st.integers() | st.floats() | st.booleans() | st.none(),
    st.lists(st.builds(Message, role=st.sampled_from(Role), content=st.none() | st.text(max_size=60)), max_size=4),
)
def test_a_value_that_stands_in_a_tools_result_is_returned_and_no_text_raises(
    value: Any, messages: list[Message]
) -> None:
    found = support_of(value, messages)
    assert found is None or isinstance(found, Support)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**15:
        given = (*messages, Message(role=Role.TOOL, content=f"It is {value}."))
        assert support_of(value, given) is Support.RETURNED


def test_the_words_say_where_the_doubtful_value_comes_from() -> None:
    doubt = CallDoubt(call="1 refund", probability=0.2, part="amount", least=0.31, support=Support.NOWHERE)
    assert doubt_in_words(doubt) == "least sure of `amount` (0.31; in no message or tool result)"


LISTED = Message(
    role=Role.TOOL, content='[{"order_id":"9117","price":12.5},{"order_id":"8364","price":7.09,"by":"C220"}]'
)
NAMED = Message(role=Role.USER, content="Please cancel order 8364, C118 knows.")


@pytest.mark.parametrize(
    ("value", "messages", "support"),
    [
        ("8364", (LISTED,), Support.RETURNED_AMONG_OTHERS),
        (8364, (LISTED,), Support.RETURNED_AMONG_OTHERS),
        ("8364", (NAMED, LISTED), Support.SAID),  # the request names one, and no other like it
        ("9117", (NAMED, LISTED), Support.RETURNED_AMONG_OTHERS),
        ("C220", (LISTED,), Support.RETURNED),
        ("c220", (LISTED,), Support.RETURNED),
        (7.09, (LISTED,), Support.RETURNED_AMONG_OTHERS),
        (12.5, (LISTED,), Support.RETURNED_AMONG_OTHERS),
        ("order", (NAMED,), Support.SAID),
    ],
)
def test_a_value_with_others_of_its_form_beside_it_was_chosen(value: Any, messages: Any, support: Support) -> None:
    assert support_of(value, messages) is support


_AMONG = {Support.RETURNED_AMONG_OTHERS, Support.SAID_AMONG_OTHERS}


@given(st.text("0123456789AB.-_ ", max_size=80), st.text("0123456789AB.-_ ", max_size=80))
def test_more_text_never_makes_a_chosen_value_the_only_one_of_its_form(text: str, more: str) -> None:
    before, after = (
        support_of("8364", (Message(role=Role.TOOL, content=f"8364 {shown}"),)) for shown in (text, f"{text} {more}")
    )
    assert not (before in _AMONG and after not in _AMONG)


def test_two_kinds_of_origin_are_told_in_words() -> None:
    doubt = CallDoubt(call="c", probability=0.3, part="order", least=0.3, support=Support.RETURNED_AMONG_OTHERS)
    assert doubt_in_words(doubt) == "least sure of `order` (0.30; returned by a tool, among similar values)"
