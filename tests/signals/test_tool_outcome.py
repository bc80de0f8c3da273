"""A tool's answer is read as a failure when it says so, and not because a word occurs in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.signals.tool_outcome import REMEMBERED, digest_of, failed, remembered
from grampus_uq.signals.turn_events import Observation

FAILURES = [
    "Error: payment method not found",
    "ERROR - timeout",
    "Error 404",
    "Error in tool find_flight",
    "error executing search",
    "ToolError: bad argument",
    "requests.exceptions.ConnectionError: refused",
    "ValueError: invalid literal",
    "Exception: boom",
    "Failed to open file",
    "failed: exit 1",
    "HTTP 503 Service Unavailable",
    "HTTP/1.1 404 Not Found",
    "status code: 500",
    "Traceback (most recent call last):\n  File",
    "some output\nTraceback (most recent call last):\n  File",
    "[ERROR] no such table",
    "**Error:** not found",
    "Fatal: not a repository",
    "Error",
    '{"error": "not found"}',
    '{"errors": ["a"]}',
    '{"success": false}',
    '{"ok": false, "data": 1}',
    '{"status": "error"}',
    '{"status": 404}',
    '{"status_code": 500}',
    '{"exit_code": 1}',
    '{"returncode": -9}',
    '{"isError": true}',
    '{"exception": {"type": "KeyError"}}',
]
SUCCESSES = [
    "",
    "No errors found",
    "Error handling guide: read this first",
    "errors: 0",
    "The flight failed inspection in 2020",
    "Failed flights are listed below",
    "Transfer successful",
    "HTTP 200 OK",
    "status: 204",
    "Errorless run",
    "[]",
    "299.0",
    '{"error": null, "data": 1}',
    '{"errors": [], "data": 1}',
    '{"success": true}',
    '{"status": "available"}',
    '{"status": 200}',
    '{"exit_code": 0}',
    '{"returncode": false}',
    '{"name": "Error: a song"}',
    '{"text": "Traceback (most recent call last):"}',
]


@pytest.mark.parametrize("text", FAILURES)
def test_an_answer_that_says_that_it_failed_did(text: str) -> None:
    assert failed(Observation(text=text))


@pytest.mark.parametrize("text", SUCCESSES)
def test_an_answer_that_merely_speaks_of_errors_did_not_fail(text: str) -> None:
    assert not failed(Observation(text=text))


@pytest.mark.parametrize("text", [*FAILURES, *SUCCESSES])
def test_the_executors_own_word_decides(text: str) -> None:
    assert failed(Observation(text=text, is_error=True))
    assert not failed(Observation(text=text, is_error=False))


@given(st.text(max_size=300))
def test_any_text_gets_a_verdict(text: str) -> None:
    assert failed(Observation(text=text)) in (True, False)


@pytest.mark.parametrize(
    "text",
    ["{" * 200_000, "[" * 200_000, '{"a":' * 3000, '{"n": ' + "9" * 9000 + "}", "e" * 200_000, "Error" * 50_000],
)
def test_hostile_answers_are_read_without_stumbling(text: str) -> None:
    assert failed(Observation(text=text)) in (True, False)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_json_value_in_any_field_gets_a_verdict(value: object) -> None:
    for name in ("error", "success", "status", "exit_code", "is_error"):
        assert failed(Observation(text=json.dumps({name: value}))) in (True, False)


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    memory: tuple[str, ...] = ()
    for number in range(REMEMBERED + 10):
        memory = remembered(memory, str(number))
        memory = remembered(memory, str(number))
    assert len(memory) == REMEMBERED
    assert memory[0] == "10"


def test_digests_ignore_blanks_at_the_ends_and_nothing_else() -> None:
    assert digest_of(" a b\n") == digest_of("a b")
    assert len({digest_of(text) for text in ("a b", "ab", "A b", "", "\ud800")}) == 5
