"""The health numbers are those of what happened, and say nothing where nothing did."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import open_store
from grampus_uq.cli.health_command import command
from grampus_uq.runtime.health import Health, health, health_in_words, store_health
from tests.runtime.test_approvals_cli import Desk

DAY = 86_400.0
NOW = 100 * DAY
NOTHING: dict[str, object] = {
    "asked_s": [],
    "decided": [],
    "waiting_since_s": [],
    "costs": [],
    "holders": {},
    "stops": 0,
}


def of(**given: object) -> Health:
    return health(now_s=NOW, days=10.0, **{**NOTHING, "stops": 0, **given})  # type: ignore[arg-type]


def test_each_number_is_that_of_its_definition() -> None:
    found = of(
        asked_s=[NOW, NOW - 9 * DAY, NOW - 10 * DAY, NOW + 1.0],
        decided=[["approve"], ["approve", "reject"], ["edit"], ["reject"], []],
        waiting_since_s=[NOW - 60.0, NOW - 600.0],
        costs=[0.25, None, 0.5],
        holders={"a/1": "w", "a/2": "w", "a/3": "v"},
        stops=2,
        budget_a_day=0.1,
    )
    assert (found.pauses, found.pauses_a_day, found.over_budget) == (2, 0.2, True)
    assert (found.decided, found.right) == (4, 2)
    assert (found.right_low, found.right_high) == (pytest.approx(0.0976, abs=1e-3), pytest.approx(0.9024, abs=1e-3))
    assert (found.waiting, found.oldest_s) == (2, 600.0)
    assert (found.ended, found.cost_usd) == (3, 0.75)
    assert (found.running, found.workers, found.stops) == (3, 2, 2)
    assert of(asked_s=[NOW - 10 * DAY, NOW], budget_a_day=0.1).over_budget is False


def test_a_store_younger_than_the_window_has_the_pace_of_the_days_that_it_has_seen() -> None:
    found = of(asked_s=[NOW - 60.0] * 98, budget_a_day=20.0)
    assert (found.pauses_a_day, found.over_budget) == (98.0, True)
    assert health_in_words(found)["pauses"].startswith("98 in 10 days: 98.0 a day since the first;")
    assert of(asked_s=[NOW - 2 * DAY] * 98).pauses_a_day == 49.0


def test_nothing_is_said_of_nothing() -> None:
    found = of()
    assert (found.right_low, found.oldest_s, found.cost_usd, found.over_budget) == (None, None, None, None)
    assert "no decision yet" in health_in_words(found)["approved"]
    said = [health_in_words(of(costs=costs))["cost"] for costs in ([], [None], [None, 0.25])]
    assert said == [
        "no run ended in 10 days",
        "no price is known for 1 run that ended in 10 days",
        "0.25 USD for 2 runs that ended in 10 days",
    ]


@given(
    st.lists(st.floats(NOW - 20 * DAY, NOW + DAY)), st.lists(st.lists(st.sampled_from(["approve", "reject", "edit"])))
)
def test_shares_are_shares(asked_s: list[float], decided: list[list[str]]) -> None:
    found = of(asked_s=asked_s, decided=decided)
    assert 0 <= found.pauses <= len(asked_s)
    assert 0 <= found.right <= found.decided <= len(decided)
    if found.right_low is not None and found.right_high is not None:
        assert 0.0 <= found.right_low <= found.right / found.decided <= found.right_high <= 1.0


def test_of_a_store_and_in_the_terminal(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    async def now() -> Health:
        store = open_store(desk.url)
        found = await store_health(store, budget_a_day=0.1)
        await store.aclose()
        return found

    before = anyio.run(now)
    assert (before.pauses, before.decided, before.waiting, before.ended) == (1, 0, 1, 0)
    desk.cli("approve", desk.request.id, "--as", "ann")
    desk.resume()
    after = anyio.run(now)
    assert (after.pauses, after.decided, after.right, after.waiting, after.ended) == (1, 1, 1, 0, 1)
    shown = CliRunner().invoke(command, ["--store", desk.url, "--budget", "0.1", "--check"])
    assert shown.exit_code == 1
    assert "EXCEEDED" in shown.output
    assert CliRunner().invoke(command, ["--store", desk.url, "--budget", "9", "--check", "--json"]).exit_code == 0
