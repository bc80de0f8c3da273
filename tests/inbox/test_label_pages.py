"""Labels on a page: the same queue and the same rule as in the terminal, for whoever may label."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from grampus_uq.inbox.label_pages import labels_section
from grampus_uq.inbox.people import Role
from grampus_uq.recording import RecordingProcessor, find_run
from grampus_uq.recording.label_queue import given_labels, label_by_key
from grampus_uq.records.events import OutcomeEvent
from grampus_uq.records.values import Outcome
from grampus_uq.runtime.store import SessionStore
from tests.inbox.browser import Browser, made, someone
from tests.recording.events import started, step_event
from tests.recording.test_runs import record

pytestmark = pytest.mark.anyio


async def label(browser: Browser, session: str, key: str, **said: str) -> httpx.Response:
    data = {"csrf": browser.csrf, "session": session, "key": key, **said}
    return await browser.client.post("/labels", data=data)


def kept(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in ("r1", "r2", "r3"):
        record(folder, name, success=None)
    return folder


async def test_one_press_is_a_label_with_who_and_when(store: SessionStore, folder: Path) -> None:
    ann = await someone(made(store, labels_section(folder)), store, "ann", Role.LABEL)
    page = (await ann.get("/labels")).text
    assert "3 finished runs without a label" in page
    assert "I book the flight" in page
    assert "<code>step-0</code>" in page  # what "error at this step" asks for
    assert (await label(ann, "r1", "s")).status_code == 303
    assert (await label(ann, "r2", "e", step="step-4")).status_code == 400  # a misspelt step
    assert (await label(ann, "r2", "e", step="step-0")).status_code == 303
    assert (await label(ann, "r3", "n")).status_code == 303
    found = [find_run(folder, name).outcome for name in ("r1", "r2", "r3")]
    assert [(one.success, one.labelled_by, one.note) for one in found if one] == [
        (True, "ann", None),
        (False, "ann", "error at step-0"),
        (None, None, None),
    ]
    assert "1 finished run without" in (await ann.get("/labels")).text
    assert (await label(ann, "r3", "u")).status_code == 303
    assert "No runs left to label" in (await ann.get("/labels")).text


async def test_a_second_person_does_not_see_the_first_label(store: SessionStore, folder: Path) -> None:
    label_by_key(folder, "r1", "f", by="zoe")
    ann = await someone(made(store, labels_section(folder)), store, "ann", Role.LABEL)
    page = (await ann.get("/labels?second=yes")).text
    assert "r1" in page
    assert "zoe" not in page
    assert (await label(ann, "r1", "u", second="yes")).status_code == 303
    assert given_labels(find_run(folder, "r1")) == {"zoe": False}
    assert (await label(ann, "r1", "s", second="yes")).status_code == 303
    assert given_labels(find_run(folder, "r1")) == {"zoe": False, "ann": True}


async def test_unsure_takes_back_nobody_elses_label_though_it_came_after_the_queue_was_read(
    store: SessionStore, folder: Path
) -> None:
    ann = await someone(made(store, labels_section(folder)), store, "ann", Role.LABEL)
    assert "r1" in (await ann.get("/labels")).text
    label_by_key(folder, "r1", "f", by="zoe")
    refused = await label(ann, "r1", "u")
    assert (refused.status_code, "label by now, which stays" in refused.text) == (400, True)
    outcome = find_run(folder, "r1").outcome
    assert outcome is not None
    assert (outcome.success, outcome.labelled_by) == (False, "zoe")
    label_by_key(folder, "r2", "s", by="ann")
    label_by_key(folder, "r2", "u", by="ann")  # one's own
    assert given_labels(find_run(folder, "r2")) == {"ann": None}


async def test_a_folder_that_cannot_be_read_is_not_named_to_visitors(store: SessionStore, folder: Path) -> None:
    ann = await someone(made(store, labels_section(folder)), store, "ann", Role.LABEL)
    assert (await ann.get("/labels")).status_code == 200
    shutil.rmtree(folder)
    bea = await someone(made(store, labels_section(folder)), store, "bea", Role.LABEL)
    for answer in (await ann.get("/labels"), await label(ann, "r1", "s"), await bea.get("/labels")):
        assert answer.status_code >= 400
        assert str(folder) not in answer.text


@pytest.mark.parametrize(
    ("session", "key"), [("r1", "x"), ("r1", ""), ("r1", "e"), ("r9", "s"), ("../r1", "s"), ("", "s"), ("r1\x00", "s")]
)
async def test_what_is_no_label_of_a_shown_run_writes_nothing(
    store: SessionStore, folder: Path, session: str, key: str
) -> None:
    ann = await someone(made(store, labels_section(folder)), store, "ann", Role.LABEL)
    before = kept(folder)
    assert (await label(ann, session, key)).status_code == 400
    assert kept(folder) == before


async def test_who_may_only_look_and_who_comes_without_the_token_label_nothing(
    store: SessionStore, folder: Path
) -> None:
    app = made(store, labels_section(folder))
    looker = await someone(app, store, "lea", Role.LOOK)
    assert (await looker.get("/labels")).status_code == 403
    assert (await label(looker, "r1", "s")).status_code == 403
    ann = await someone(app, store, "ann", Role.LABEL)
    ann.csrf = "x"
    assert (await label(ann, "r1", "s")).status_code == 403
    assert given_labels(find_run(folder, "r1")) == {}


async def test_what_a_run_says_is_text(store: SessionStore, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\u202e"
    with RecordingProcessor(tmp_path / "h", content="full") as recorder:
        recorder.on_event(started(hostile))
        recorder.on_event(step_event(0, hostile, text=hostile))
        recorder.on_event(OutcomeEvent(session_id=hostile, agent_id=hostile, outcome=Outcome(success=None)))
    ann = await someone(made(store, labels_section(tmp_path / "h")), store, "ann", Role.LABEL)
    page = (await ann.get("/labels")).text
    assert "<script>alert" not in page
    assert "alert(1)" in page
