"""Proxy, server and client are killed at random moments: nothing runs unapproved, and nothing twice."""

import random

import anyio
import pytest

from tests.proxy.http_kills import HttpLife
from tests.proxy.proxy_kills import Life, campaign


def _holds(seen: dict[str, object], kills: int) -> None:
    assert seen["killed"] == kills
    assert seen["unapproved"] == seen["twice"] == seen["lost"] == 0
    assert seen["answered"] == seen["lives"]
    assert seen["ran"]


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_dozen_kills_run_nothing_unapproved_and_nothing_twice() -> None:
    _holds(campaign(12, seed=3), 12)


@pytest.mark.kills
@pytest.mark.timeout(7_200)
def test_two_hundred_kills_run_nothing_unapproved_and_nothing_twice() -> None:
    _holds(campaign(200, seed=4), 200)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_five_kills_over_http_run_nothing_unapproved_and_nothing_twice() -> None:
    _holds(campaign(5, seed=3, kind=HttpLife), 5)


@pytest.mark.kills
@pytest.mark.timeout(7_200)
def test_a_hundred_kills_over_http_run_nothing_unapproved_and_nothing_twice() -> None:
    _holds(campaign(100, seed=4, kind=HttpLife), 100)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_count_sees_calls_that_ran_without_approval(tmp_path) -> None:
    life = Life(tmp_path, random.Random(1))
    with (tmp_path / "proxy.toml").open("a") as file:
        file.write("advisory = true\n")
    life.when = "never"
    seen = anyio.run(life.live)
    assert seen["unapproved"] >= 4
