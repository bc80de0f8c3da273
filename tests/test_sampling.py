"""How much a run tries follows from what was asked for."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import sampling

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("selection", "asked"),
    [
        ("slow", True),
        ("slow and hypothesis", True),
        ("not kills and (slow)", True),
        ("not slow", False),
        ("not slow and not kills", False),
        ("not kills and not suites", False),
        ("", False),
    ],
)
def test_all_of_it_is_tried_where_the_slow_tests_are_named(selection: str, asked: bool) -> None:
    assert sampling.asks_for_slow(selection) is asked


def test_plain_pytest_does_not_ask_for_it_and_the_continuous_integration_does() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    assert not sampling.asks_for_slow(settings["addopts"][-1])
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    given = [shlex.split(line) for line in lines if line.startswith("tests python ")]
    assert any(sampling.asks_for_slow(words[words.index("-m") + 1]) for words in given)


@pytest.mark.parametrize(("full", "sample"), [(8, 8), (10, 10), (40, 10), (100, 10), (400, 40)])
def test_a_sample_is_a_tenth_and_no_fewer_than_ten(full: int, sample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for everything, expected in ((False, sample), (True, full)):
        monkeypatch.setattr(sampling, "FULL", everything)
        assert sampling.examples(full) == expected


@pytest.mark.parametrize(
    ("room", "marks", "loop", "slow"),
    [
        ("runtime", (), "trio", True),
        ("runtime", (), "asyncio", False),
        ("runtime", ("jumping_clocks",), "trio", False),
        ("runtime", ("jumping_clocks", "one_loop"), "trio", True),
        ("core", (), "trio", False),
        ("core", ("one_loop",), "trio", True),
    ],
)
def test_trio_is_tried_by_default_in_the_rooms_below_and_wherever_tasks_wait(
    room: str, marks: tuple[str, ...], loop: str, slow: bool
) -> None:
    item: Any = SimpleNamespace(
        callspec=SimpleNamespace(params={"anyio_backend": loop}),
        path=sampling.TESTS / room / "test_x.py",
        get_closest_marker=lambda name: name if name in marks else None,
    )
    assert sampling.in_slow_stage(item, asked=False) is slow


def test_every_room_that_leaves_trio_to_the_slow_stage_is_there() -> None:
    assert {room for room in sampling.ONE_LOOP if not (sampling.TESTS / room).is_dir()} == set()
