"""A run as a page: every number that held it is there, nothing in it is markup, and it loads nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.cli import main
from grampus_uq.learn.pages.run_page import run_html
from grampus_uq.recording import encode
from grampus_uq.recording.runs import Run
from grampus_uq.records.call_parts import CallPart, Candidate, Support
from grampus_uq.records.events import DecisionEvent, Event, ProfileChanged, StepEvent
from grampus_uq.records.values import Reading, ToolCall
from grampus_uq.records.vocabulary import UncertaintyAction
from tests.learn.html_page import Page
from tests.recording.events import START_S, events, session, started, step_event
from tests.sampling import examples

PAUSE = UncertaintyAction.PAUSE_FOR_HUMAN


def a_run(found: list[Event]) -> Run:
    return Run(path="runs/s1.jsonl", line=1, session_id="s1", events=tuple(found))


def test_a_held_call_says_which_part_its_writer_was_least_sure_of_and_who_held_it() -> None:
    found = session(steps=4)
    second, third = [place for place, event in enumerate(found) if isinstance(event, StepEvent)][1:3]
    parts = (CallPart(probability=0.9), CallPart(name="seat", probability=0.2, support=Support.SAID))
    turn = step_event(1)
    found[second] = replace(turn, readings=(Reading(source="call_probability", value=0.18, parts=parts),))
    held = step_event(2, action=PAUSE)
    made = replace(held.step, kind="tool_call", tool_calls=turn.step.tool_calls, text="", logprobs=None)
    by_profile = held.assessment.model_copy(update={"rule": "release"})
    found[third] = replace(held, step=made, assessment=by_profile, readings=())
    page = Page(run_html(a_run(found)))
    assert "Model: least sure of `seat` (0.20; stated in a message)." in page.text
    assert "What was held was held by the fitted profile, not by this confidence." in page.text
    other = Candidate(text="<b>7A", whole=True, probability=0.4, occurs_as=("row",))
    told = (parts[0], replace(parts[1], occurs_as=("price",), candidates=(other,)))
    found[second] = replace(turn, readings=(Reading(source="call_probability", value=0.18, parts=told),))
    assert 'found in `price`; also likely: "<b>7A" (0.40) in `row`.' in Page(run_html(a_run(found))).text
    found[third] = replace(held, step=replace(made, tool_calls=(ToolCall(id="x", name="book"),)), readings=())
    other = Page(run_html(a_run(found))).text
    assert "least sure" not in other, "of another call nothing is known"
    assert "fitted profile" not in other


def test_it_draws_every_step_marks_what_was_held_and_says_why_and_under_which_thresholds() -> None:
    found = session(steps=4)
    found[3] = step_event(1, action=PAUSE, value=0.1)
    decision = DecisionEvent(session_id="s1", agent_id="agent", decision="approve", principal="ana", message="fine")
    page = Page(run_html(a_run([*found[:4], decision, *found[4:]])))
    assert "Held 1 of 4 steps" in page.text
    assert (page.count("circle", "turn"), page.count("path", "stop"), page.count("polyline", "limit")) == (3, 1, 3)
    assert page.count("li", "in") == 2, "once among what was held, once among everything"
    for said in (
        "uncertainty is low from 0.80, medium from 0.60, high from 0.40, critical below",
        "stated confidence 0.10 at step 1",
        "stated confidence 0.10, no P(True): timeout",
        "I book the flight.",
        'book({"seat":"12A"})',
        "approve",
        "by ana",
        "fused .25",
        "no guarantee",
    ):
        assert said in page.text


def test_the_alarm_has_its_evidence_drawn_against_its_limit() -> None:
    found = session(steps=3)
    for place in (1, 3, 5):
        event = found[place]
        values = {"log_e_value": float(place), "log_threshold": 4.6, "alpha": 0.01}
        found[place] = replace(event, assessment=event.assessment.model_copy(update=values))  # type: ignore[union-attr, type-var]
    page = Page(run_html(a_run(found)))
    assert "alarm above 4.60" in page.text
    assert "log evidence 5.00" in page.text
    assert "Evidence of failure" not in Page(run_html(a_run(session()))).text


def test_a_chance_of_success_stands_above_the_confidence_that_it_may_contradict() -> None:
    found = session(steps=3)
    for place, chance in ((1, 0.9), (3, 0.09)):
        event = found[place]
        found[place] = replace(event, assessment=event.assessment.model_copy(update={"p_success": chance}))  # type: ignore[union-attr, type-var]
    page = Page(run_html(a_run(found)))
    assert "0.09 at its lowest, by the fitted profile" in page.text
    assert page.text.index("Chance of success") < page.text.index("Confidence")
    assert "chance of success 0.09" in page.text
    assert "Chance of success" not in Page(run_html(a_run(session()))).text


def test_a_run_of_which_nothing_is_known_does_not_read_like_a_good_one() -> None:
    assert "No step was recorded" in Page(run_html(a_run([started()]))).text
    step = replace(step_event(0), readings=())
    assert "Nothing was read in 1 step, and nothing held" in Page(run_html(a_run([started(), step]))).text
    assert "nothing was read, so nothing is known of this run" in Page(run_html(a_run([started(), step]))).text
    assert "nothing was read" not in Page(run_html(a_run(session()))).text


def test_thresholds_change_where_the_profile_did_and_missing_ones_are_called_missing() -> None:
    found = session(steps=4)
    change = ProfileChanged(
        session_id="s1", agent_id="agent", time_s=START_S, profile_fingerprint="ab" * 32, thresholds=(0.9, 0.5, 0.1)
    )
    page = run_html(a_run([*found[:5], change, *found[5:]]))
    low = re.search(r'class="limit" points="([^"]*)"', page)
    assert low is not None
    assert len({point.split(",")[1] for point in low[1].split()}) == 2
    old = Page(run_html(a_run([replace(started(), thresholds=None), *found[1:]])))
    assert "not recorded" in old.text
    assert old.count("polyline", "limit") == 0


def test_an_advisory_run_is_not_told_as_stopped_and_hashed_text_is_not_shown_as_said() -> None:
    event = step_event(0, text="hmac:abcdef")
    values = {"advisory_action": PAUSE, "action": UncertaintyAction.PROCEED_WITH_LOG}
    event = replace(event, assessment=event.assessment.model_copy(update=values))
    page = Page(run_html(a_run([replace(started(), advisory=True), event])))
    assert "Would have held 1 of 1 step" in page.text
    assert "hmac:" not in page.text


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(events, min_size=1, max_size=8))
def test_any_events_give_a_page_without_markup_of_theirs_scripts_or_addresses(found: list[Event]) -> None:
    page = run_html(a_run(found))
    page.encode("utf-8")
    parsed = Page(page)
    assert not {tag for tag, _ in parsed.tags} & {"script", "img", "iframe", "object", "a", "form", "base"}
    assert not [name for _, attrs in parsed.tags for name in attrs if name.startswith("on") or name == "style"]
    assert [attrs["href"] for _, attrs in parsed.tags if "href" in attrs] == ["data:,"]
    places = [float(attrs[name] or "") for _, attrs in parsed.tags for name in ("cx", "cy", "x", "y") if name in attrs]
    assert all(-10.0 <= place <= 900.0 for place in places), "also of numbers that nobody checked"


def test_hostile_texts_stay_texts() -> None:
    hostile = "</pre><script>alert(1)</script>' \" & \x00\x1b[31m \ud83d"
    page = run_html(a_run([started(hostile), step_event(0, hostile, text=hostile, action=PAUSE)]))
    assert "<script" not in page
    assert "alert(1)" in Page(page).text
    assert not {"\x00", "\x1b"} & set(page)


def test_an_argument_reads_as_it_is_whatever_turns_or_hides_characters_in_it() -> None:
    hidden = "".join(map(chr, [0xAD, 0x61C, 0x200B, 0x200E, 0x202A, 0x202E, 0x2060, 0x2066, 0x2069, 0xFEFF, 0xE0041]))
    event = step_event(0, action=PAUSE, arguments={"order": f"1{hidden}2"}, text=f"a{hidden}b")
    decision = DecisionEvent(session_id="s1", agent_id="a", decision="approve", principal=f"ann{hidden}", time_s=1.0)
    page = run_html(a_run([started(), event, decision]))
    assert not set(hidden) & set(page)
    assert "\\u202e" in page


def test_a_very_long_run_is_cut_and_says_so() -> None:
    page = run_html(a_run(session(steps=2600)))
    assert "202 later events are not shown" in page
    assert page.count('text-anchor="middle"') <= 16


def test_the_command_writes_it_and_refuses_half_of_what_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s1.jsonl").write_bytes(b"".join(map(encode, session())))
    target = tmp_path / "run.html"
    for extra, status in (([], 0), (["--json"], 2), (["--text"], 2)):
        with pytest.raises(SystemExit) as ended:
            main(["runs", "show", str(tmp_path), "s1", "-o", str(target), *extra])
        assert ended.value.code == status
    assert "Nothing was held in 3 steps" in target.read_text(encoding="utf-8")
    assert str(target) in capsys.readouterr().out
