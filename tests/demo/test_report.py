"""The figures of a run: counted from what happened, None where they are undefined, the same from the recording."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from grampus_uq import Profile, Reading, StepUncertainty, TokenUsage, UncertaintyAction
from grampus_uq.demo.demo_report import FUSED, DemoReport, SignalWorth, summarise
from grampus_uq.demo.demo_run import Answered, Fate, answer_questions, demo_policy
from grampus_uq.demo.demo_wiring import DemoPlan, plan_demo
from grampus_uq.demo.questions import all_questions, draw
from grampus_uq.demo.report_json import report_json
from grampus_uq.demo.view import Screen, closing_lines, printable, report_view
from grampus_uq.recording import runs
from grampus_uq.records.values import utc
from grampus_uq.records.vocabulary import MissingReason, UncertaintyLevel
from grampus_uq.testing import ScriptedModel
from tests.demo.examinees import SURE, UNSURE, examinee, work_for

QUESTIONS = draw(all_questions(0), 60, 0)
PROFILE = Profile(policy=demo_policy())


def answered(
    index: int,
    *,
    right: bool,
    fused: float | None,
    p_true: float | None = None,
    fate: Fate = "paused",
    answer: str = "Paris",
    wanted: UncertaintyAction | None = None,
) -> Answered:
    """One answer with the readings that a test needs."""
    reason = None if p_true is not None else MissingReason.TIMEOUT
    readings = [Reading(source="p_true", value=p_true, reason=reason, calls=1, input_tokens=50, output_tokens=2)]
    if fused is not None:
        readings.append(Reading(source="token_probability", value=fused))
    assessment = StepUncertainty(
        step_id="answer",
        step_type="llm_call",
        index=0,
        fused_confidence=0.5 if fused is None else fused,
        propagated_confidence=1.0 if fused is None else 0.45 + 0.55 * fused,
        level=UncertaintyLevel.MEDIUM,
        action=UncertaintyAction.PROCEED_WITH_LOG,
        timestamp=utc(0.0),
    )
    return Answered(
        question=QUESTIONS[index],
        session_id=f"demo-{index}",
        fate=fate,
        answer=answer,
        right=right,
        wanted=wanted,
        assessment=assessment,
        readings=tuple(readings),
        usage=TokenUsage(input_tokens=30, output_tokens=10, total_tokens=40),
        started_s=100.0 + index,
        duration_s=2.0,
    )


def unanswered(index: int) -> Answered:
    return Answered(
        question=QUESTIONS[index], session_id=f"demo-{index}", fate="unanswered", error="busy", started_s=110.0
    )


@pytest.fixture
def plan(tmp_path: Path) -> DemoPlan:
    return plan_demo(model="tiny", n=60, runs_folder=str(tmp_path / "runs"))


@given(
    st.lists(
        st.tuples(
            st.booleans(), st.none() | st.sampled_from([0.2, 0.5, 0.8]), st.sampled_from(["published", "paused"])
        ),
        max_size=12,
    )
)
def test_groups_signals_and_costs_add_up(cases: list[tuple[bool, float | None, Fate]]) -> None:
    answers = [answered(i, right=r, fused=0.5, p_true=p, fate=f) for i, (r, p, f) in enumerate(cases)]
    answers.append(unanswered(20))
    report = summarise(answers, PROFILE)
    assert sum(group.n for group in report.groups) == report.asked == len(cases) + 1
    assert sum(group.right for group in report.groups) == report.right == sum(right for right, _, _ in cases)
    assert report.agent.calls == report.answered == len(cases)
    assert report.monitor.calls == len(cases)
    assert report.monitor.tokens == 52 * len(cases)
    assert [group.fate for group in report.groups] == ["published", "paused", "aborted", "unanswered"]
    for worth in report.signals:
        assert worth.n + sum(worth.missing.values()) == len(cases)
        pairs = [(p, right) for right, p, _ in cases if p is not None]
        if worth.source == "p_true":
            wins = [(a > b) + 0.5 * (a == b) for a, yes in pairs if yes for b, no in pairs if not no]
            assert worth.auroc == (pytest.approx(np.mean(wins)) if wins else None)
        assert worth.low is None or worth.auroc is not None


def test_a_figure_that_is_not_defined_is_none() -> None:
    for right in (True, False):
        report = summarise([answered(i, right=right, fused=i / 10, p_true=0.5) for i in range(5)], PROFILE)
        assert {worth.auroc for worth in report.signals} == {None}
    empty = summarise([], PROFILE)
    assert empty.answered == empty.right == empty.asked == 0
    assert [worth.auroc for worth in empty.signals] == [None]


def test_an_interval_needs_five_answers_of_each_kind_and_holds_the_figure() -> None:
    def worth(right: int) -> SignalWorth:
        answers = [answered(i, right=i < right, fused=((i * 7) % 10) / 10) for i in range(20)]
        return summarise(answers, PROFILE).signals[-1]

    assert worth(4).auroc is not None
    assert (worth(4).low, worth(4).high, worth(16).low) == (None, None, None)
    for n in (5, 10, 15):
        low, area, high = worth(n).low, worth(n).auroc, worth(n).high
        assert low is not None
        assert high is not None
        assert area is not None
        assert 0.0 <= low < area < high <= 1.0


def test_an_answer_without_any_reading_has_no_fused_confidence() -> None:
    answers = [
        answered(0, right=True, fused=None),
        answered(1, right=False, fused=0.1),
        answered(2, right=True, fused=0.9),
    ]
    fused = summarise(answers, PROFILE).signals[-1]
    assert fused.source == FUSED
    assert (fused.n, fused.missing, fused.auroc) == (2, {"no_reading": 1}, 1.0)


def remarks(answers: Sequence[Answered], profile: Profile = PROFILE) -> str:
    return "\n".join(summarise(answers, profile).remarks)


def test_it_says_so_when_everything_is_held_and_why() -> None:
    held = [answered(i, right=i % 2 == 0, fused=0.4) for i in range(4)]
    words = remarks(held)
    assert "Everything was paused" in words
    assert "0.80 or more; the highest was 0.67" in words
    assert "fused confidence of 0.64 or more; the highest was 0.40" in words  # (0.80 - 0.45) / 0.55
    assert "Everything was paused" not in remarks([*held, answered(5, right=True, fused=0.9, fate="published")])


def test_it_says_so_when_nothing_is_held_when_a_signal_misleads_and_always_that_nothing_is_promised() -> None:
    answers = [answered(i, right=i < 10, fused=0.7, p_true=0.1 + 0.04 * i, fate="published") for i in range(20)]
    words = remarks(answers)
    assert "Nothing was paused: the lowest confidence was 0.83" in words
    assert "P(True) misleads here" in words
    assert "carry no guarantee" in words
    assert "carry no guarantee" in remarks([])


def test_with_an_advisory_monitor_the_groups_are_what_the_policy_wanted() -> None:
    profile = PROFILE.model_copy(update={"advisory": True})
    answers = [
        answered(0, right=True, fused=0.9, fate="published", wanted=UncertaintyAction.PROCEED),
        answered(1, right=False, fused=0.2, fate="published", wanted=UncertaintyAction.PAUSE_FOR_HUMAN),
        answered(2, right=False, fused=0.1, fate="published", wanted=UncertaintyAction.ABORT),
    ]
    report = summarise(answers, profile)
    assert "Everything would have been paused" in remarks(answers[1:], profile)
    assert [(group.fate, group.n, group.right) for group in report.groups] == [
        ("published", 1, 1),
        ("paused", 1, 0),
        ("aborted", 1, 0),
    ]
    assert report.wrong_published == ()


def test_the_figures_follow_from_the_recording_alone(tmp_path: Path) -> None:
    sureness = {question.id: SURE if index % 3 else UNSURE for index, question in enumerate(QUESTIONS)}
    work, _, recording = work_for(
        ScriptedModel(examinee(QUESTIONS, sureness, wrong=[q.id for q in QUESTIONS[::4]])), tmp_path
    )
    answers: list[Answered] = []
    with recording:
        anyio.run(answer_questions, work, QUESTIONS, answers.append)
    by_session = {one.session_id: one for one in answers}
    read_back = []
    for run in runs(tmp_path):
        assert run.outcome is not None
        live = by_session[run.session_id]
        read_back.append(
            Answered(
                question=live.question,
                session_id=run.session_id,
                fate="published" if run.observations else "paused",
                answer=run.steps[0].step.text,
                right=run.outcome.success,
                wanted=run.steps[1].assessment.action,
                assessment=run.steps[0].assessment,
                readings=run.steps[0].readings,
                usage=live.usage,
            )
        )
    in_order = sorted(answers, key=lambda one: one.session_id)
    from_live, from_recording = (
        summarise(some, PROFILE) for some in (in_order, sorted(read_back, key=lambda one: one.session_id))
    )
    assert (from_live.groups, from_live.signals, from_live.remarks) == (
        from_recording.groups,
        from_recording.signals,
        from_recording.remarks,
    )
    assert from_live.signals[-1].auroc is not None


def shown(report: DemoReport, plan: DemoPlan, *, interrupted: bool = False) -> str:
    console = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 (closed below)
    with console.file:
        console.print(report_view(report, plan, interrupted=interrupted))
        return console.export_text()


def test_the_report_shows_every_figure_and_the_next_command(plan: DemoPlan) -> None:
    answers = [answered(i, right=i % 2 == 0, fused=0.4 + i / 100, p_true=0.5) for i in range(9)]
    answers.append(answered(9, right=False, fused=0.95, fate="published", answer="[red]Lyon\x1b[2J"))
    answers.append(unanswered(10))
    text = shown(summarise(answers, PROFILE), plan, interrupted=True)
    for part in (
        "tiny: 10 of 60 questions answered in 11 s, 5 (50 %) right",
        "interrupted",
        "published                 1   0 (0 %)",
        "paused for a human        9  5 (56 %)",
        "no answer                 1",
        "Wrong, and published: '[red]Lyon [2J'",
        "token probability  10",
        "monitor 10 calls, 520 tokens",
    ):
        assert " ".join(part.split()) in " ".join(text.split()), part
    recording, following = closing_lines(summarise(answers, PROFILE), plan)
    assert str(plan.folder) in recording
    assert following.endswith(f"grampus-uq runs list {plan.folder}")


def test_the_json_form_has_the_same_figures_and_is_plain_json(plan: DemoPlan) -> None:
    answers = [answered(i, right=i % 2 == 0, fused=i / 10, p_true=None) for i in range(4)]
    report = summarise(answers, PROFILE)
    value = json.loads(json.dumps(report_json(report, answers, plan, interrupted=False), allow_nan=False))
    assert value["groups"][1] == {"decision": "paused", "n": 4, "right": 2}
    assert value["signals"][-1]["auroc"] == report.signals[-1].auroc
    assert value["answers"][0]["readings"]["p_true"] == {"missing": "timeout"}
    assert value["recording"] == str(plan.folder)
    assert len(value["answers"]) == 4


@given(st.text(max_size=80))
def test_no_text_of_a_model_can_move_the_cursor_or_turn_the_line(text: str) -> None:
    assert printable(text).isprintable()


def test_the_screen_takes_hostile_text_and_tells_lines_where_nothing_can_be_drawn() -> None:
    screen = Screen(total=20)
    lines: list[str] = []
    screen.print_lines(lines.append)
    screen.on_progress("download", 0, None)
    screen.on_progress("download", 5_000_000, 98_000_000)
    screen.on_progress("start", 3, None)
    assert screen.line == "Starting the embedded model: 3 s"
    for index in range(10):
        screen.on_answered(answered(index, right=True, fused=0.5, answer="[link=file:///etc/passwd]\x1b]0;x\x07 [/]"))
    assert lines == [
        "Fetching the embedded model (once) ...",
        "Starting the embedded model ...",
        screen.line,
    ]
    console = Console(width=140, force_terminal=True, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 (closed below)
    with console.file:
        console.print(screen)
        drawn = console.export_text(styles=True)
    assert "\x1b]0;" not in drawn
    assert "[link=file:///etc/passwd]" in drawn
