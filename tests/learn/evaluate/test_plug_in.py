"""The chance of success of a censored run is estimated from facts that no forecast enters."""

from __future__ import annotations

import numpy as np
import pytest

from grampus_uq.errors import DataError
from grampus_uq.learn.evaluate import ForecastRuns
from grampus_uq.learn.evaluate.plug_in import plug_in
from grampus_uq.stats.trajectory_scores import ForecastTraces


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
    found = plug_in(noise)
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
