"""The demo's agent: what is held is never published, what happened is recorded, and failures end as they should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from grampus_uq import ModelError, RateLimitedError, UncertaintyAction, UncertaintyPolicy, UncertaintyPropagator
from grampus_uq.cli.demo.demo_run import TOOL, Answered, answer_questions, demo_policy
from grampus_uq.cli.demo.questions import Question, all_questions, draw
from grampus_uq.core.state import Profile
from grampus_uq.recording import runs
from grampus_uq.recording.runs import Run
from grampus_uq.records.vocabulary import MissingReason, StopReason
from grampus_uq.testing import HANG, ScriptedModel, answer
from tests.demo.examinees import SURE, UNSURE, Watched, examinee, plan_for

pytestmark = pytest.mark.anyio

QUESTIONS = draw(all_questions(0), 20, 0)
SURENESS = {question.id: SURE if index % 2 else UNSURE for index, question in enumerate(QUESTIONS)}
WRONG = [question.id for index, question in enumerate(QUESTIONS) if index % 5 == 0]


def recorded(folder: Path) -> dict[str, Run]:
    """The recordings by question id."""
    return {run.session_id.removeprefix("demo-1-"): run for run in runs(folder)}


async def attended(
    script: object,
    folder: Path,
    questions: Sequence[Question] = QUESTIONS,
    *,
    profile: Profile | None = None,
    parallel: int = 4,
) -> tuple[dict[str, Answered], dict[str, str], ScriptedModel]:
    client = ScriptedModel(script)
    plan = plan_for(questions, folder, profile=profile, parallel=parallel)
    answers: list[Answered] = []
    with plan.recording:
        await answer_questions(plan, client, answers.append)
    assert len(answers) == len({one.question.id for one in answers})
    return {one.question.id: one for one in answers}, plan.published, client


async def test_the_sure_answers_are_published_and_the_unsure_ones_are_held(tmp_path: Path) -> None:
    answers, published, _ = await attended(examinee(QUESTIONS, SURENESS, wrong=WRONG), tmp_path)
    found = recorded(tmp_path)
    for question in QUESTIONS:
        one = answers[question.id]
        assert one.fate == ("published" if SURENESS[question.id] == SURE else "paused")
        assert one.right is (question.id not in WRONG)
        assert found[question.id].steps[1].assessment.guarantee is None
    assert published == {key: one.answer for key, one in answers.items() if one.fate == "published"}
    assert len(published) == 10


async def test_the_recording_holds_the_readings_the_decision_and_the_label_of_every_run(tmp_path: Path) -> None:
    answers, published, _ = await attended(examinee(QUESTIONS, SURENESS, wrong=WRONG), tmp_path)
    found = recorded(tmp_path)
    assert found.keys() == answers.keys()
    for key, one in answers.items():
        run = found[key]
        spoken, proposed = run.steps
        assert {reading.source for reading in spoken.readings} >= {"token_probability", "p_true"}
        assert spoken.step.text == one.answer
        assert proposed.step.tool_name == TOOL
        assert proposed.assessment.action is one.wanted
        assert [event.kind for event in run.observations] == ["user", *(["tool_result"] if key in published else [])]
        assert run.outcome is not None
        assert run.outcome.success is one.right
        assert run.outcome.stop_reason is (StopReason.CLEAN if key in published else StopReason.MONITOR_STOP)
        assert run.outcome.labelled_by == "answer key"
        assert run.start is not None
        assert run.start.prompt_hash is not None  # without both a profile fitted on these runs could only advise
        assert run.start.tools_hash is not None
        assert run.start.metadata == {"question": key, "topic": one.question.topic}


async def test_one_at_a_time_and_many_at_a_time_give_the_same_numbers(tmp_path: Path) -> None:
    script = examinee(QUESTIONS, SURENESS, wrong=WRONG)
    numbers = []
    for parallel in (1, 7):
        client = ScriptedModel(script, delay_s=0.001)
        plan = plan_for(QUESTIONS, tmp_path / str(parallel), parallel=parallel)
        with plan.recording:
            await answer_questions(plan, client, lambda one: None)
        found = recorded(tmp_path / str(parallel))
        numbers.append({key: run.steps[0].assessment.fused_confidence for key, run in found.items()})
        assert client.most_in_flight <= 3 * parallel  # a question asks for its own, then at most three samples at once
    assert numbers[0] == numbers[1]


async def test_a_grave_answer_aborts_and_is_not_published(tmp_path: Path) -> None:
    profile = Profile(policy=demo_policy(), propagator=UncertaintyPropagator(weights={"llm_call": 1.0}))
    questions = QUESTIONS[:3]
    answers, published, _ = await attended(
        examinee(questions, dict.fromkeys(SURENESS, 0.1)), tmp_path, questions, profile=profile
    )
    assert {one.fate for one in answers.values()} == {"aborted"}
    assert not published


async def test_an_advisory_monitor_holds_nothing_and_says_what_it_wanted(tmp_path: Path) -> None:
    profile = Profile(policy=demo_policy(), advisory=True)
    answers, published, _ = await attended(examinee(QUESTIONS, SURENESS), tmp_path, profile=profile)
    assert published.keys() == answers.keys()
    assert Counter(one.wanted for one in answers.values()) == {
        UncertaintyAction.PROCEED: 10,
        UncertaintyAction.PAUSE_FOR_HUMAN: 10,
    }
    for run in recorded(tmp_path).values():
        assert not run.touched
        assert run.outcome is not None
        assert run.outcome.stop_reason is StopReason.CLEAN


async def test_an_answer_that_nothing_can_be_read_from_is_held(tmp_path: Path) -> None:
    texts = {question.text for question in QUESTIONS}

    def script(messages: object, options: object) -> object:
        # The agent's own call asks for the alternatives of a short answer; every further call is the monitor's.
        own = messages[-1].content in texts and "top_logprobs" in options  # type: ignore[index, operator]
        return answer("Paris") if own else ModelError("busy")

    answers, published, _ = await attended(script, tmp_path, QUESTIONS[:2])
    assert not published
    for key, run in recorded(tmp_path).items():
        assert answers[key].fate == "paused"
        readings = run.steps[0].readings
        assert {reading.value for reading in readings} == {None}
        assert {reading.reason for reading in readings} == {
            MissingReason.NOT_STATED,
            MissingReason.NO_LOGPROBS,
            MissingReason.MODEL_ERROR,
            MissingReason.TOO_FEW_SAMPLES,
        }


async def test_an_empty_answer_is_no_answer_and_is_not_published(tmp_path: Path) -> None:
    good = examinee(QUESTIONS, SURENESS)
    empty = {question.text for question in QUESTIONS[1:4]}

    def script(messages: object, options: object) -> object:
        return answer(" \n") if messages[-1].content in empty else good(messages, options)  # type: ignore[index, arg-type]

    answers, published, _ = await attended(script, tmp_path)
    silent = [one for one in answers.values() if one.fate == "unanswered"]
    assert {one.question.text for one in silent} == empty
    assert all("was empty" in str(one.error) for one in silent)
    assert not published.keys() & {one.question.id for one in silent}


async def test_every_call_is_bounded_in_tokens_the_sampled_ones_too(tmp_path: Path) -> None:
    middling = dict.fromkeys(SURENESS, 0.65)  # fused 0.585: in the trigger zone of the slow path
    answers, _, client = await attended(examinee(QUESTIONS[:4], middling), tmp_path, QUESTIONS[:4])
    readings = [reading for run in recorded(tmp_path).values() for reading in run.steps[0].readings]
    sampled = [reading for reading in readings if reading.source == "semantic_entropy"]
    assert [reading.calls for reading in sampled] == [2, 2, 2, 2]
    assert {call.options["max_tokens"] for call in client.calls} == {8, 24}
    monitor_calls = sum(reading.calls for reading in readings)
    assert len(client.calls) == len(answers) + monitor_calls


async def test_a_model_that_cannot_be_had_is_asked_once_and_its_error_is_raised(tmp_path: Path) -> None:
    client = ScriptedModel(ModelError("no such key", status=401))
    plan = plan_for(QUESTIONS, tmp_path)
    answers: list[Answered] = []
    with plan.recording, pytest.raises(ModelError, match="no such key"):
        await answer_questions(plan, client, answers.append)
    assert len(client.calls) == 1
    assert [one.fate for one in answers] == ["unanswered"]
    assert not plan.published
    (run,) = recorded(tmp_path).values()
    assert run.outcome is not None
    assert run.outcome.success is None
    assert run.outcome.stop_reason is StopReason.ENV_TERMINATED


async def test_a_model_that_fails_now_and_then_costs_only_those_answers(tmp_path: Path) -> None:
    good = examinee(QUESTIONS, SURENESS)
    broken = {question.text for question in QUESTIONS[1::2]}  # ten in all, but never two in a row

    def script(messages: object, options: object) -> object:
        asked = messages[-1].content  # type: ignore[index]
        return ModelError("busy") if asked in broken else good(messages, options)  # type: ignore[arg-type]

    answers, _, _ = await attended(script, tmp_path, parallel=1)
    assert sum(one.fate == "unanswered" for one in answers.values()) == 10
    assert all(str(one.error) == "busy" and one.right is None for one in answers.values() if one.fate == "unanswered")
    assert len(answers) == 20


async def test_a_model_that_breaks_for_good_ends_the_run_with_its_error(tmp_path: Path) -> None:
    good = examinee(QUESTIONS, SURENESS)
    fine = {question.text for question in QUESTIONS[:4]}

    def script(messages: object, options: object) -> object:
        known = any(text in str(messages) for text in fine)
        return good(messages, options) if known else ModelError("gone")  # type: ignore[arg-type]

    client = ScriptedModel(script)
    plan = plan_for(QUESTIONS, tmp_path, parallel=2)
    answers: list[Answered] = []
    with plan.recording, pytest.raises(ModelError, match="gone"):
        await answer_questions(plan, client, answers.append)
    assert len([one for one in answers if one.fate != "unanswered"]) == 4
    assert 8 <= len([one for one in answers if one.fate == "unanswered"]) < 16


async def test_a_rate_limit_is_waited_for_and_not_counted_as_a_failure(tmp_path: Path) -> None:
    script = iter([RateLimitedError("slow down", retry_after_s=0.001)] * 2 + [examinee(QUESTIONS[:1], SURENESS)] * 9)
    answers, _, client = await attended(script, tmp_path, QUESTIONS[:1])
    (one,) = answers.values()
    assert one.right is True
    assert len(client.calls) == 6  # two refusals, the answer, P(True), and two samples


async def test_whatever_the_tool_raises_ends_the_run_as_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ScriptedModel(examinee(QUESTIONS, dict.fromkeys(SURENESS, SURE)))
    plan = plan_for(QUESTIONS, tmp_path)

    def broken(plan: Watched, question: Question, text: str) -> str:
        if question is QUESTIONS[0]:
            return "published"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Watched, "publish", broken)
    with plan.recording, pytest.raises(OSError, match="No space left"):
        await answer_questions(plan, client, lambda one: None)


async def test_a_cancelled_run_leaves_a_readable_recording_of_every_session_that_began(tmp_path: Path) -> None:
    good = examinee(QUESTIONS, SURENESS)
    slow = {question.text for question in QUESTIONS[2:]}
    hanging: list[object] = []
    all_hang = anyio.Event()

    def script(messages: object, options: object) -> object:
        if messages[-1].content not in slow:  # type: ignore[index]
            return good(messages, options)  # type: ignore[arg-type]
        hanging.append(messages)
        if len(hanging) == 3:
            all_hang.set()
        return HANG

    client = ScriptedModel(script)
    plan = plan_for(QUESTIONS, tmp_path, parallel=3)
    answers: list[Answered] = []
    with plan.recording:
        async with anyio.create_task_group() as group:
            group.start_soon(answer_questions, plan, client, answers.append)
            with anyio.fail_after(60):
                await all_hang.wait()
            group.cancel_scope.cancel()
    assert client.cancelled == 3
    found = recorded(tmp_path)
    assert len(found) == 5
    assert len(answers) == 2
    for key, run in found.items():
        assert run.outcome is not None
        known = key in {one.question.id for one in answers}
        assert (run.outcome.success is None) is not known
        assert (run.outcome.stop_reason is StopReason.CANCELLED) is not known
    assert plan.published.keys() <= {one.question.id for one in answers}


def test_the_policy_is_the_default_one() -> None:
    changed = demo_policy().model_dump(exclude_defaults=True)
    assert changed == {"enable_semantic_sampling": True, "irreversible_tool_names": [TOOL]}
    assert UncertaintyPolicy().low_threshold == 0.80
