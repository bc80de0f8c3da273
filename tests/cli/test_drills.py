"""`grampus-uq drills`: on, off, and a report that says no more than the drills do."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from grampus_uq import open_store
from grampus_uq.cli.drills_command import command
from grampus_uq.runtime.drills import Drill
from grampus_uq.runtime.reviewers import Missed, reviewed
from grampus_uq.runtime.store import Put
from grampus_uq.runtime.stored_drills import DRILL, StoredDrills
from tests.runtime.drill_worlds import plan
from tests.runtime.test_drills import drills

CHANGES = ("--change", "refund:amount:amount", "--change", "refund:duplicate")


def cli(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--store", url], env={"COLUMNS": "200"})


def store_with(tmp_path: Path, found: list[Drill], unmade: str = "none") -> str:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"

    async def work() -> None:
        store = open_store(url)
        await store.write(Put(kind=DRILL, key="0", body="{}", expected=0, label=unmade))
        for drill in found:
            body = drill.model_dump_json()
            await store.write(Put(kind=DRILL, key=drill.card.id, body=body, expected=0, label="answered"))
        await store.aclose()

    anyio.run(work)
    return url


forty = functools.cache(drills)


def answers(missing: float, count: int, *, seed: int = 1, who: str = "ann", every_s: float = 60.0) -> list[Drill]:
    rng, found = random.Random(seed), []
    for number, (drill, _, _) in enumerate(forty(seed)[:count]):
        kind = "approve" if rng.random() < missing else "reject"
        answer = drill.answered(kind, principal=who)
        at_s = 1_000.0 + number * every_s
        found.append(drill.model_copy(update={"answer": answer, "answered_s": at_s, "waiting": number % 30}))
    return found


def test_on_and_off_say_so_and_the_secret_is_not_printed(tmp_path: Path) -> None:
    url = store_with(tmp_path, [])
    on = cli(url, "on", *CHANGES, "--share", "0.1", "--json")
    said = json.loads(on.output)
    assert (said["share"], len(said["rules"]), "secret" in said) == (0.1, 2, False)

    async def kept() -> float | None:
        store = open_store(url)
        found = await StoredDrills(store).plan()
        await store.aclose()
        assert found is not None
        assert len(found.secret) == 64
        return found.share

    assert anyio.run(kept) == 0.1
    assert "Drills are off." in cli(url, "off").output
    assert "Drills were off." in cli(url, "off").output


@pytest.mark.slow
def test_a_report_names_a_person_only_with_enough_drills(tmp_path: Path) -> None:
    found = [*answers(0.1, 40), *answers(0.9, 10, seed=2, who="bob\x1b[2J")]
    url = store_with(tmp_path, found)
    text = cli(url, "report").output
    assert "fewer than 30 drills: no estimate" in text
    assert "\x1b" not in text
    said = json.loads(cli(url, "report", "--json").output)
    assert said["people"]["bob\x1b[2J"] is None
    assert said["people"]["ann"]["drills"] == 40
    assert said["team"]["drills"] == 50
    assert f"--miss-rate {said['team']['high']:.3f}" in text


def test_check_ends_with_1_once_more_than_tolerated_is_missed(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    good, bad = store_with(tmp_path, answers(0.05, 40)), store_with(tmp_path / "bad", answers(0.7, 40))
    assert cli(good, "report", "--check").exit_code == 0
    alarmed = cli(bad, "report", "--check")
    assert alarmed.exit_code == 1
    assert "More than 15 % are missed: shown at drill" in alarmed.output


def test_the_curve_is_by_the_time_since_a_sitting_began_and_a_pause_is_suggested_where_more_is_missed_late() -> None:
    fresh = answers(0.0, 30, every_s=20.0)
    late = [
        drill.model_copy(update={"answered_s": 1_000.0 + 3_700.0 + number})
        for number, drill in enumerate(answers(1.0, 30, seed=2))
    ]
    drilled = [*fresh, *late]
    times = {"ann": [1_000.0 + 10.0 * n for n in range(600)]}
    found = reviewed(drilled, times, 6_990.0, plan())
    assert (found.by_minutes["0 to 15 min"].missed, found.by_minutes["from 60 min"].missed) == (0, 30)
    assert [pause.split(";")[0].split(":")[0] for pause in found.pauses.values()] == [
        "ann decided 360 times within the last hour",
        "More is missed later",
    ]
    rested = {"ann": [*times["ann"][:61], 1_000.0 + 3_700.0]}
    again = reviewed(drilled, rested, 50_000.0, plan())
    assert again.by_minutes["from 60 min"].drills == 0
    assert again.pauses == {}


def test_nothing_is_said_of_no_drills(tmp_path: Path) -> None:
    found = reviewed([], {}, 0.0)
    assert found.team == Missed(missed=0, drills=0)
    assert (found.people, found.alarm_at, found.pauses) == ({}, None, {})
    assert "no drill" in cli(store_with(tmp_path, []), "report").output


def test_a_report_says_how_many_drills_no_past_call_served_for(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert "could not be made" not in cli(store_with(tmp_path / "other", [], "expired"), "report").output
    url = store_with(tmp_path, [])
    assert "could not be made: 1. None of the approved calls" in cli(url, "report").output
    assert json.loads(cli(url, "report", "--json").output)["unmade"] == 1
