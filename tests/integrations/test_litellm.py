"""The litellm callback against a real server on loopback: every kind of call, one step each, and no call harmed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grampus_uq.recording import prompt_hash, tools_hash

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.conformance, pytest.mark.slow]  # its process; by default docs/litellm.md runs


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the scene printed; its process ends, since the callback's thread is a daemon."""
    pytest.importorskip("openai", reason="litellm is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.integrations.litellm_scene"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout[done.stdout.index('{"every_kind"') :])
    return result


def test_every_kind_of_call_is_one_step_of_the_session_that_it_names(found: dict[str, Any]) -> None:
    """Synchronous, streamed, asynchronous, streamed; neither the call without a session nor the refused one."""
    seen = found["every_kind"]
    assert (seen["texts"], seen["sessions"], seen["believed"]) == (["Paris"] * 4, ["order-7"], 4)
    assert (seen["lost"], seen["refused"]) == ([0, 0], True)


def test_calls_tokens_and_probabilities_are_read(found: dict[str, Any]) -> None:
    seen = found["every_kind"]
    assert (seen["calls"], seen["tokens"]) == ([["c1", "pay", {"to": "bob"}]], [3, 1])
    assert seen["logprobs"] == [[-0.6, [["Rome", -2.0]]]]
    assert seen["streamed_logprobs"] is None  # litellm keeps none of a streamed answer


def test_a_judge_that_hangs_does_not_reach_the_call(found: dict[str, Any]) -> None:
    assert found["a_judge_that_hangs"] == {"answers": ["Paris"] * 6, "judged": 0, "closed": False}


def test_a_monitor_that_fails_does_not_reach_the_call(found: dict[str, Any]) -> None:
    assert found["a_monitor_that_fails"]["answers"] == ["Paris", "Paris"]


def test_a_failure_is_logged_once_by_its_type_and_never_quoted(found: dict[str, Any]) -> None:
    logged = found["a_monitor_that_fails"]["logged"]
    assert logged == "an answer could not be judged (LookupError); further failures are only counted\n"


def test_sessions_are_bounded_and_expire(found: dict[str, Any]) -> None:
    assert found["bounds"] == {"kept": ["s1", "s2"], "expired": [True, True]}


def test_the_verdict_only_advises_unless_told_otherwise(found: dict[str, Any]) -> None:
    assert found["verdicts"] == {"allowed": [True, False]}


def test_sessions_that_run_at_once_do_not_mix(found: dict[str, Any]) -> None:
    assert found["ten_at_once"] == {"steps": [3] * 10, "closed": True}


def test_waiting_for_an_answer_returns_once_its_step_is_committed(found: dict[str, Any]) -> None:
    """Twenty answers, a stream and five asynchronous ones: each is the latest step when its wait is over."""
    seen = found["waiting_for_an_answer"]
    assert seen["known"] == [[True, number] for number in range(1, 27)]


def test_waiting_for_what_was_not_judged_says_no(found: dict[str, Any]) -> None:
    seen = found["waiting_for_an_answer"]
    assert (seen["unjudged"], seen["refused"]) == (False, True)


def test_an_answer_of_the_responses_interface_is_a_step_and_other_kinds_are_named_once(found: dict[str, Any]) -> None:
    """Asked directly, and by a router: synchronously, streamed and asynchronously."""
    seen = found["other_kinds"]
    assert (seen["judged"], seen["texts"]) == ([True] * 4, ["Paris"] * 4)
    assert seen["logged"] == "answers of the kind object are not watched, although they name a session\n"


def test_an_answer_of_an_event_loop_that_has_ended_is_judged_once(found: dict[str, Any]) -> None:
    """Of `completion(fallbacks=...)`, which starts such a loop, and of `asyncio.run`."""
    assert found["loops_that_end"] == {"judged": [True] * 9, "steps": 9, "lost": [0, 0]}


def test_calls_that_are_given_one_id_are_judged_and_waited_for_one_by_one(found: dict[str, Any]) -> None:
    assert found["one_id_for_all"] == {"judged": [[True, n] for n in range(1, 5)], "lost": [0, 0]}


def test_each_of_several_choices_is_a_step_because_the_caller_may_take_any(found: dict[str, Any]) -> None:
    seen = found["several_choices"]
    assert seen["steps"] == [["call-1.2", "Paris", 1], ["call-1", "Rome", 0]]
    assert (seen["judged"], seen["allowed"]) == (True, False)


def test_each_of_two_callbacks_made_alike_judges_every_answer(found: dict[str, Any]) -> None:
    assert found["a_second_callback"] == {"judged": [[True, True], [True, True]]}


def test_each_session_says_which_model_prompt_and_tools_made_its_answers(found: dict[str, Any]) -> None:
    seen = found["made_with"]
    model, prompt, tools = seen["one"]
    assert seen["another"] == [model, prompt, tools]
    assert None not in (prompt, tools)
    assert model
    assert seen["prompt"] == [model, prompt_hash(""), tools]
    assert seen["tools"] == [model, prompt, tools_hash([])]
    assert seen["changing"] == [model, None, tools]
    assert seen["hosted"] == [f"hosted_vllm/{model}", prompt, tools], "another provider's model may have the same name"
    others = [seen[name][2] for name in ("functions", "form")]  # the form that an answer must have is one of its facts
    assert len({tools, tools_hash([]), *others}) == 4
