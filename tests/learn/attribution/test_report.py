"""The page shows the set, escapes whatever the run says, and asks nothing of the network."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.learn.attribution import Plan, attribute, attribution_html, calibrate, fit_and_calibrate, locate
from grampus_uq.learn.attribution.error_positions import error_positions
from tests.learn.attribution.runs import CONSTANT, failures, trajectory
from tests.learn.html_page import Page
from tests.sampling import examples

CALIBRATED = fit_and_calibrate(failures(60, 50))


def test_every_step_is_drawn_and_those_of_the_set_are_marked() -> None:
    found = locate(failures(1, 51)[0].trajectory, CALIBRATED)
    page = Page(attribution_html(found, positions=CALIBRATED.positions))
    marked = [attrs for tag, attrs in page.tags if tag == "li" and attrs.get("class") == "in"]
    assert len(marked) == len(found.set_steps) > 0
    assert sum(tag == "li" for tag, _ in page.tags) == len(found.steps)
    bars = [attrs["class"] for tag, attrs in page.tags if tag == "rect" and str(attrs.get("class")).startswith("bar")]
    run, histogram = bars[: len(found.steps)], bars[len(found.steps) :]
    assert run == ["bar in" if i in found.set_steps else "bar" for i in range(len(found.steps))]
    assert len(histogram) == 10
    for text in (found.coverage, found.steps[found.set_steps[0]].text, *found.why):
        assert text in page.text


def test_nothing_that_a_run_says_becomes_markup() -> None:
    hostile = '</pre><script>alert(1)</script><img src=x onerror="alert(1)">\' " & \x00\x1b[31m \ud83d'
    run = trajectory("</title><script>1</script>", [hostile, hostile], task=hostile)
    run = replace(run, steps=tuple(replace(step, speaker=hostile) for step in run.steps))
    page = attribution_html(locate(run, CALIBRATED))
    parsed = Page(page)
    assert "<script" not in page
    assert not {tag for tag, _ in parsed.tags} & {"script", "img", "iframe", "object", "a"}
    assert not [name for _, attrs in parsed.tags for name in attrs if name.startswith("on")]
    assert "alert(1)" in parsed.text, "it is still there to be read"
    assert "\x00" not in page
    page.encode("utf-8")


PIECES = [
    "<b>",
    "</pre>",
    "</title>",
    "<script>",
    '"',
    "'",
    "&",
    "&lt;",
    "\x00",
    "\x1b[31m",
    "\ud83d",
    "{{ x }}",
    "]]>",
]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(st.characters(exclude_categories=())), max_size=6).map("".join))
def test_any_text_of_a_run_is_text_of_the_page(text: str) -> None:
    run = trajectory("x", [text, "b"], task=text)
    run = replace(run, steps=tuple(replace(step, speaker=text) for step in run.steps))
    page = attribution_html(locate(run, CALIBRATED))
    page.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f]", page)
    plain = attribution_html(locate(trajectory("x", ["a", "b"]), CALIBRATED))
    assert {tag for tag, _ in Page(page).tags} <= {tag for tag, _ in Page(plain).tags} | {"p"}


def test_the_page_fetches_nothing() -> None:
    page = attribution_html(locate(failures(1, 52)[0].trajectory, CALIBRATED))
    assert re.search(r"(?:https?:)?//|@import|url\(|src=|href=", page.replace('href="data:,"', "")) is None


@pytest.mark.parametrize("steps", [1, 2, 500])
def test_runs_of_any_length_are_drawn(steps: int) -> None:
    run = trajectory("x", [f"step {i} assume" for i in range(steps)])
    page = Page(attribution_html(locate(run, CALIBRATED)))
    labels = [attrs for tag, attrs in page.tags if tag == "text"]
    assert 1 <= len(labels) <= 31, "numbers on the axis do not pile up"


def test_special_results_are_told_in_the_headline() -> None:
    few = attribute(failures(1, 53)[0].trajectory, failures(2, 54), scorer=CONSTANT)
    assert "Too few labelled failures" in attribution_html(few)
    calibrated = calibrate(failures(19, 55), CONSTANT, Plan(seed=3))
    sets = [locate(r.trajectory, calibrated) for r in failures(40, 56)]
    empty = next(found for found in sets if not found.set_steps)
    assert "No step stands out" in attribution_html(empty)
    whole = next(found for found in sets if len(found.set_steps) == len(found.steps))
    assert f"somewhere in all {len(whole.steps)} steps" in attribution_html(whole)


def test_a_very_long_text_is_cut_and_its_length_told() -> None:
    found = locate(trajectory("x", ["z" * 100_000, "b"]), CALIBRATED)
    page = attribution_html(found)
    assert len(page) < 60_000
    assert "80000 more characters" in page


def test_negative_scores_are_drawn_upward_from_the_lowest() -> None:
    found = locate(failures(1, 59)[0].trajectory, CALIBRATED)
    steps = tuple(replace(step, score=-2.0 + step.index) for step in found.steps)
    page = Page(attribution_html(replace(found, steps=steps)))
    heights = [float(str(a["height"])) for t, a in page.tags if t == "rect" and str(a.get("class")).startswith("bar")]
    assert heights == sorted(heights)
    assert min(heights) > 0.0


def test_positions_without_a_histogram_are_left_out() -> None:
    found = locate(failures(1, 60)[0].trajectory, CALIBRATED)
    assert "Errors of the labelled failures" not in attribution_html(found)
    assert "Errors of the labelled failures" in attribution_html(found, positions=error_positions(failures(3, 61)))
