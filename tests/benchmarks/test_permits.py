"""The permits' benchmark: recorded calls give what was put in, bounds bound, and an adversary is what it is called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import permits
from tests.benchmarks.test_tool_agent import record
from tests.sampling import sampled


@pytest.mark.slow
@pytest.mark.one_loop
@pytest.mark.anyio
@sampled("splits", [5], full=[20])
async def test_recorded_calls_go_out_by_a_score_that_tells_and_by_none_that_does_not(
    tmp_path: Path, splits: int
) -> None:
    """Forty right amounts at .9, ten wrong ones at .3: all have the same belief, which therefore tells nothing."""
    await record(tmp_path / "set", [(False, 0.9)] * 40 + [(True, 0.3)] * 10)
    rows = {(row["epsilon"], row["rule"]): row for row in permits.recorded_rows([tmp_path / "set"], splits)}
    always, earned = rows[0.2, "ask always"], rows[0.2, "earned by least token of the arguments"]
    assert (always["asked"], always["out"], earned["calls"]) == (50.0, 0.0, 50)
    assert earned["asked"] + earned["out"] == pytest.approx(50.0)
    assert earned["out"] > 5.0
    assert earned["wrong_out"] == 0.0
    assert rows[0.05, "earned by least token of the arguments"]["out"] == 0.0, "58 answers are too few for .05"
    at_random = [row for row in rows.values() if row["rule"] == "as many at random"]
    assert all(row["wrong_out"] == pytest.approx(0.2 * row["out"]) for row in at_random)


@pytest.mark.slow
def test_free_labels_ask_no_more_than_the_rule_that_must_pay_for_them() -> None:
    free, earned = (permits.row(permits.WORLDS[1], rule, 50) for rule in ("labels are free", "earned"))
    assert free["asked_1000"] < earned["asked_1000"]
    assert free["asked_last_200"] < earned["asked_last_200"]


@pytest.mark.slow
def test_an_adversary_waits_for_a_permission_and_is_asked_about_again() -> None:
    """Before anything may go out a call in thirty is wrong, then one in three."""
    world = next(world for world in permits.WORLDS if world.waits)
    rule = permits.Earned(world, 2)
    rule.out = np.array([[False, False], [True, False]])
    assert permits.share_of_wrong(world, 0, rule).tolist() == [0.03, 0.3]
    patient = permits.row(world, "earned", 30)
    trusted = permits.row(replace(world, waits=None), "earned", 30)
    assert patient["asked_last_200"] > 2.0 * trusted["asked_last_200"]
