"""How stopped runs would have ended: measured by resuming them, predicted by a model, and one against the other."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from grampus_uq.errors import ConfigurationError, DataError, ModelTimeoutError
from grampus_uq.learn.evaluate import ForecastRuns
from grampus_uq.learn.evaluate.continuation import ContinuationEstimate, RolloutFile, measure_continuations
from grampus_uq.learn.evaluate.continuation_model import hybrid_audit, plug_in
from grampus_uq.stats.trajectory_scores import ForecastTraces


async def even(run_id: str, rollout: int) -> bool | None:
    return rollout % 2 == 0


def measured(*arguments, **given):
    async def main():
        return await measure_continuations(*arguments, **given)

    return anyio.run(main)


def test_q_is_the_share_of_successes_and_the_bounds_take_the_unresolved_either_way():
    answers = [True, True, False, None, True, None, False, None, True, True]

    async def resume(run_id, rollout):
        return answers[rollout]

    found = measured(["a", "a"], resume)["a"]
    assert (found.succeeded, found.failed, found.unresolved) == (5, 2, 3)
    assert found.q == pytest.approx(5 / 7)
    assert (found.low, found.high) == (0.5, 0.8)


def test_fewer_than_five_resolved_give_no_q_but_bounds():
    async def resume(run_id, rollout):
        return True if rollout < 4 else None

    found = measured(["a"], resume)["a"]
    assert found.q is None
    assert (found.low, found.high) == (0.4, 1.0)


def test_rollouts_run_side_by_side_up_to_the_limit():
    running, most = 0, 0

    async def resume(run_id, rollout):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.001)
        running -= 1
        return True

    measured(["a", "b"], resume, concurrency=3)
    assert most == 3


def test_a_failing_model_and_a_slow_rollout_leave_rollouts_unresolved():
    async def resume(run_id, rollout):
        if rollout == 0:
            raise ModelTimeoutError("no")
        if rollout == 1:
            await anyio.sleep_forever()
        return True

    found = measured(["a"], resume, timeout_s=0.02)["a"]
    assert (found.succeeded, found.unresolved) == (8, 2)


def test_a_bug_in_the_callback_ends_the_measurement_as_itself():
    async def resume(run_id, rollout):
        if rollout == 3:
            raise KeyError("bug")
        await anyio.lowlevel.checkpoint()
        return True

    with pytest.raises(KeyError, match="bug"):
        measured(["a"], resume)


def test_an_answer_that_is_no_truth_value_is_refused():
    async def resume(run_id, rollout):
        return 0.7

    with pytest.raises(ConfigurationError, match="'resume'"):
        measured(["a"], resume)


def test_cancellation_passes_through_and_what_was_answered_stays_kept(tmp_path: Path):
    calls: list[tuple[str, int]] = []

    async def resume(run_id, rollout):
        calls.append((run_id, rollout))
        if rollout >= 3 and len(calls) <= 4:
            await anyio.sleep_forever()
        return True

    async def main():
        with anyio.move_on_after(0.05) as scope:
            await measure_continuations(["a"], resume, concurrency=1, kept=RolloutFile(tmp_path / "k.jsonl"))
        return scope.cancelled_caught

    assert anyio.run(main)
    found = measured(["a"], resume, concurrency=1, kept=RolloutFile(tmp_path / "k.jsonl"))["a"]
    assert found.succeeded == 10
    assert [call for call in calls if call[1] < 3] == [("a", 0), ("a", 1), ("a", 2)]  # paid for once


def test_an_unresolved_answer_is_kept_and_a_failed_call_is_tried_again(tmp_path: Path):
    calls: list[int] = []

    async def resume(run_id, rollout):
        calls.append(rollout)
        if rollout == 0:
            raise OSError("line is down")
        return None if rollout == 1 else True

    for _ in range(2):
        measured(["a"], resume, kept=RolloutFile(tmp_path / "k.jsonl"))
    assert calls.count(0) == 2
    assert calls.count(1) == 1


def test_kept_rollouts_of_another_setting_are_not_used_and_a_torn_last_line_is_cut(tmp_path: Path):
    path = tmp_path / "k.jsonl"
    RolloutFile(path, setting="m1").put("a", 0, True)
    with path.open("a") as stream:
        stream.write('{"run_id": "a", "rol')
    assert RolloutFile(path, setting="m2").get("a", 0) is None
    assert RolloutFile(path, setting="m1").get("a", 0) == (True,)
    path.write_text('{"setting": "", "run_id": "a", "rollout": "0", "success": true}\n')
    with pytest.raises(DataError, match=r"k\.jsonl:1"):
        RolloutFile(path)
    path.write_text('{"setting": "", "run_id": "a", "rollout": 0, "success": 1.0}\n')
    with pytest.raises(DataError, match=r"k\.jsonl:1"):
        RolloutFile(path)


@pytest.mark.parametrize(
    "given", [{"rollouts": 11}, {"rollouts": 0}, {"rollouts": 4}, {"least_resolved": 0}, {"concurrency": 0}]
)
def test_arguments_outside_their_domain_are_refused(given):
    with pytest.raises(ConfigurationError):
        measured(["a"], even, **given)


def prefixes(n: int, rng: np.random.Generator, *, open_runs: int) -> tuple[ForecastRuns, np.ndarray]:
    """Runs of three steps whose one fact decides the chance; the first `open_runs` are censored."""
    fact = rng.normal(size=n)
    chance = 1.0 / (1.0 + np.exp(-2.0 * fact))
    outcomes = (rng.random(n) < chance).astype(np.float64)
    outcomes[:open_runs] = np.nan
    lengths = np.full(n, 3)
    runs = ForecastRuns(
        ids=tuple(f"r{i:05}" for i in range(n)),
        outcomes=outcomes,
        streams={"s": ForecastTraces(forecasts=rng.random(3 * n), lengths=lengths)},
        features=np.repeat(fact, 3)[:, None],
        audit=(),
    )
    return runs, chance


def test_the_plug_in_finds_the_chance_that_the_facts_hold_and_reads_no_forecast():
    runs, chance = prefixes(3000, np.random.default_rng(0), open_runs=500)
    found = plug_in(runs)
    said = np.array([found.q[name] for name in runs.ids[:500]])
    assert np.abs(said - chance[:500]).mean() < 0.03
    assert found.brier is not None
    assert found.brier < 0.8 * found.brier_of_base
    other = ForecastRuns(
        ids=runs.ids,
        outcomes=runs.outcomes,
        features=runs.features,
        audit=(),
        streams={"s": runs.streams["s"].with_forecasts(np.ones(9000))},
    )
    assert plug_in(other).q == found.q


def test_facts_without_meaning_give_a_loss_no_better_than_the_base_rate():
    rng = np.random.default_rng(1)
    runs, _ = prefixes(2000, rng, open_runs=100)
    noise = ForecastRuns(
        ids=runs.ids, outcomes=runs.outcomes, streams=runs.streams, audit=(), features=rng.normal(size=(6000, 1))
    )
    found = plug_in(noise)
    assert found.brier == pytest.approx(found.brier_of_base, abs=0.003)


def test_the_loss_of_a_model_that_learned_noise_by_heart_is_not_flattered():
    """Sixty facts without meaning fit forty runs of a half perfectly; judged by the other half they are worthless."""
    rng = np.random.default_rng(2)
    runs, _ = prefixes(90, rng, open_runs=10)
    noise = ForecastRuns(
        ids=runs.ids,
        outcomes=runs.outcomes,
        streams=runs.streams,
        audit=(),
        features=np.repeat(rng.normal(size=(90, 60)), 3, axis=0),
    )
    found = plug_in(noise, l2=0.01)
    assert found.brier > found.brier_of_base


def test_without_facts_q_is_the_success_rate_and_without_an_outcome_there_is_none():
    runs, _ = prefixes(200, np.random.default_rng(2), open_runs=50)
    bare = ForecastRuns(ids=runs.ids, outcomes=runs.outcomes, streams=runs.streams, audit=())
    found = plug_in(bare)
    assert set(found.q.values()) == {float(np.nanmean(runs.outcomes))}
    assert found.brier is None
    nobody = ForecastRuns(ids=runs.ids, outcomes=np.full(200, np.nan), streams=runs.streams, audit=())
    with pytest.raises(DataError, match="no run has a known outcome"):
        plug_in(nobody)


def estimates(chance: np.ndarray, rng: np.random.Generator) -> dict[str, ContinuationEstimate]:
    wins = rng.binomial(10, chance)
    return {
        f"r{i}": ContinuationEstimate(succeeded=w, failed=10 - w, unresolved=0) for i, w in enumerate(wins.tolist())
    }


def test_the_audit_clears_a_true_model_as_often_as_it_promises():
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(60):
        chance = rng.random(200) * 0.6
        found = hybrid_audit(estimates(chance, rng), {f"r{i}": p for i, p in enumerate(chance.tolist())}, rng=rng)
        wrong += not found.gap.low <= 0.0 <= found.gap.high
    assert wrong <= 10  # P(Binomial(60, .06) > 10) < .001: a percentile interval is a little too short


def test_the_audit_finds_a_biased_model_and_corrects_its_mean():
    rng = np.random.default_rng(5)
    chance = rng.random(400) * 0.6
    seen = estimates(chance, rng)
    true = hybrid_audit(seen, {f"r{i}": p for i, p in enumerate(chance.tolist())}, rng=rng)
    assert true.loss == pytest.approx(true.noise, rel=0.15)
    biased = hybrid_audit(seen, {f"r{i}": p + 0.3 for i, p in enumerate(chance.tolist())}, rng=rng)
    assert biased.gap.high < -0.25
    assert biased.corrected == pytest.approx(chance.mean(), abs=0.02)
    assert biased.loss > 2.0 * biased.noise


def test_an_audit_needs_a_run_that_has_both():
    unresolved = {"a": ContinuationEstimate(succeeded=1, failed=0, unresolved=9)}
    with pytest.raises(DataError, match="no run has both"):
        hybrid_audit(unresolved, {"a": 0.5}, rng=np.random.default_rng(0))
