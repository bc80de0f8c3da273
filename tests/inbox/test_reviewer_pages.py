"""The sections on reviewers and health: for whoever may look, and of persons only one's own."""

from __future__ import annotations

import pytest

from grampus_uq.inbox.people import Role
from grampus_uq.inbox.reviewer_pages import SECTIONS
from grampus_uq.runtime.ledger import session_key
from grampus_uq.runtime.store import Put, SessionStore
from grampus_uq.runtime.stored_drills import DRILL, StoredDrills
from grampus_uq.runtime.worker_jobs import Job, set_aside, take
from tests.cli.test_drills import answers
from tests.inbox.browser import Browser, made, someone
from tests.runtime.drill_worlds import plan

pytestmark = pytest.mark.anyio


async def drilled(store: SessionStore, missing: float, who: str, count: int = 40, seed: int = 1) -> None:
    for drill in answers(missing, count, who=who, seed=seed):
        body = drill.model_dump_json()
        await store.write(Put(kind=DRILL, key=drill.card.id, body=body, expected=0, label="answered"))


async def test_the_team_is_shown_and_of_persons_only_oneself(store: SessionStore) -> None:
    app = made(store, *SECTIONS)
    ann = await someone(app, store, "ann", Role.LOOK)
    empty = (await ann.get("/reviewers")).text
    assert "Drills are off." in empty
    assert "You answered 0 drills." in empty
    await StoredDrills(store).switch_on(plan(0.05))
    await drilled(store, 0.1, "ann")
    await drilled(store, 0.9, "bob<script>", seed=2)
    page = (await ann.get("/reviewers")).text
    assert "5 % of the displayed calls are drills" in page
    assert "80 drills" in page
    assert "your drills" in page
    assert "bob" not in page
    assert "More than 15 % are missed" in page
    bob = await someone(app, store, "bobby", Role.LOOK)
    assert "Individual figures start at 30" in (await bob.get("/reviewers")).text


async def test_health_is_shown_in_words(store: SessionStore) -> None:
    app = made(store, *SECTIONS)
    ann = await someone(app, store, "ann", Role.LOOK)
    page = (await ann.get("/health")).text
    assert "0 in 7 days: 0.0 a day" in page
    assert "no decision yet" in page
    assert "No session was set aside." in page


async def test_sessions_that_workers_set_aside_are_listed(store: SessionStore) -> None:
    app = made(store, *SECTIONS)
    ann = await someone(app, store, "ann", Role.LOOK)
    await store.write(Job(agent_id="mailer", session_id="s<1>\u202e").now(0.0))
    (taken,) = await take(store, ["mailer"], 1, 30.0)
    job = taken.job.model_copy(update={"failed": 5, "why": "RuntimeError: <b>boom</b>"})
    await set_aside(store, taken, session_key("mailer", "s<1>\u202e"), job)
    page = (await ann.get("/health")).text
    assert "s&lt;1&gt;\\u202e" in page
    assert "RuntimeError: &lt;b&gt;boom&lt;/b&gt;" in page
    assert "failed 5 times" in page


async def test_nobody_looks_without_a_passkey(store: SessionStore) -> None:
    stranger = Browser(made(store, *SECTIONS))
    for path in ("/reviewers", "/health"):
        answer = await stranger.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
