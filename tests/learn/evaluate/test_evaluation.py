"""What the evaluation says of runs whose truth is known."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.learn.evaluate import Censoring, Evaluation, ForecastRuns, StopRow, evaluate, read_recordings
from grampus_uq.stats.trajectory_scores import ForecastTraces, tps, weighted_forecast
from tests.learn.evaluate.recorded import events, write

AUDIT = (StopRow(stop_reason="clean", use="scored", why="", runs=1, successes=1, failures=0),)


def simulated(n: int, rng: np.random.Generator, *, censored: int = 0) -> tuple[ForecastRuns, np.ndarray]:
    """Truthful forecasts, the same squared, and noise; the last `censored` runs are open. Returns also the truth."""
    lengths = rng.integers(1, 6, n)
    chance = np.clip(rng.random(n), 0.02, 0.98)
    outcomes = (rng.random(n) < chance).astype(np.float64)
    truthful = np.repeat(chance, lengths)
    streams = {
        "truthful": truthful,
        "squared": truthful**2,
        "noise": rng.random(len(truthful)),
    }
    if censored:
        outcomes[-censored:] = np.nan
    runs = ForecastRuns(
        ids=tuple(f"r{i:05}" for i in range(n)),
        outcomes=outcomes,
        streams={name: ForecastTraces(forecasts=values, lengths=lengths) for name, values in streams.items()},
        audit=AUDIT,
    )
    return runs, chance


def judged(runs: ForecastRuns, **given: object) -> Evaluation:
    return evaluate(runs, rng=np.random.default_rng(0), draws=100, **given)  # type: ignore[arg-type]


def row(found: Evaluation, stream: str, *, calibrated: bool = False, scalar: str = "front-weighted mean"):
    rows = [r for r in found.table if (r.stream, r.calibrated, r.scalar) == (stream, calibrated, scalar)]
    assert len(rows) == 1
    return rows[0]


def test_the_truthful_stream_scores_best_and_recalibration_restores_the_distorted_one():
    found = judged(simulated(2000, np.random.default_rng(1))[0])
    truth, squared = row(found, "truthful").tps_log, row(found, "squared").tps_log
    assert truth > squared + 0.05
    assert row(found, "squared", calibrated=True).tps_log > squared + 0.04
    assert row(found, "squared").auroc == row(found, "truthful").auroc  # ranks see nothing of it
    assert abs(row(found, "noise", calibrated=True).tps_log - row(found, "truthful", scalar="base rate").tps_log) < 0.01


def test_rows_equal_scikit_learn_and_the_library_on_the_same_scalar():
    runs, _ = simulated(300, np.random.default_rng(2))
    found = row(judged(runs), "squared")
    traces = runs.streams["squared"]
    risk, failed = 1.0 - weighted_forecast(traces), 1.0 - runs.outcomes
    assert found.auroc == pytest.approx(roc_auc_score(failed, risk), abs=1e-12)
    assert found.auprc == pytest.approx(average_precision_score(failed, risk), abs=1e-12)
    assert found.tps_log == pytest.approx(tps(traces, runs.outcomes).mean(), abs=1e-12)


def test_the_difference_to_noise_excludes_zero_and_that_of_a_copy_of_itself_is_zero():
    runs, _ = simulated(800, np.random.default_rng(4))
    twice = ForecastRuns(
        ids=runs.ids,
        outcomes=runs.outcomes,
        streams={**runs.streams, "copy": runs.streams["truthful"]},
        audit=AUDIT,
    )
    rows = {(r.first, r.second, r.metric): r for r in judged(twice).differences}
    copied = rows["copy, recalibrated", "truthful, recalibrated", "tps_log"]
    assert (copied.delta, copied.z) == (0.0, None)
    assert rows["noise, recalibrated", "truthful, recalibrated", "tps_log"].low > 0.0


def test_a_stream_is_scored_on_its_own_runs_and_the_skipped_are_counted():
    runs, _ = simulated(200, np.random.default_rng(5))
    holes = runs.streams["truthful"].forecasts.copy()
    holes[runs.streams["truthful"].starts[:50]] = np.nan
    holed = ForecastRuns(
        ids=runs.ids,
        outcomes=runs.outcomes,
        streams={"holed": runs.streams["truthful"].with_forecasts(holes), "whole": runs.streams["truthful"]},
        audit=AUDIT,
    )
    found = judged(holed)
    assert (row(found, "holed").runs, row(found, "holed").missing) == (150, 50)
    assert (row(found, "whole").runs, row(found, "whole").missing) == (200, 0)
    assert any("holed: 50 runs skipped" in warning for warning in found.warnings)
    shared = next(r for r in found.differences if {r.first, r.second} == {"holed, recalibrated", "whole, recalibrated"})
    assert shared.runs == 150


def test_exact_censoring_with_the_true_q_keeps_the_truth_best_and_simple_censoring_does_not():
    """Theorem 4.3 and proposition C.3: with q = 0 a stream that lowers its forecasts is paid for it."""
    runs, chance = simulated(4000, np.random.default_rng(6), censored=3000)
    q = {name: float(p) for name, p in zip(runs.ids, chance, strict=True)}
    exact, simple = (
        judged(runs, censoring=Censoring(mode="exact", q=q)),
        judged(runs, censoring=Censoring(mode="simple")),
    )
    assert row(exact, "truthful").tps_log > row(exact, "squared").tps_log
    assert row(simple, "truthful").tps_log < row(simple, "squared").tps_log
    assert row(exact, "truthful").runs == 4000
    assert row(exact, "truthful").known == 1000


@pytest.mark.parametrize("mode", ["none", "simple", "exact"])
def test_nothing_is_said_of_censored_runs_where_there_are_none_nor_of_a_constant_reading(mode: str) -> None:
    runs, _ = simulated(200, np.random.default_rng(6))
    constant = runs.streams["truthful"].with_forecasts(np.full_like(runs.streams["truthful"].forecasts, 0.5))
    found = judged(
        dataclasses.replace(runs, streams={**runs.streams, "constant": constant}), censoring=Censoring(mode=mode)
    )
    assert (found.censored_runs, found.assumptions, found.warnings) == (0, (), ())
    assert row(found, "constant").auroc == 0.5


def test_without_censoring_open_runs_are_left_out_and_under_exact_those_without_q_are_counted():
    runs, _ = simulated(120, np.random.default_rng(7), censored=20)
    assert row(judged(runs), "truthful").runs == 100
    found = judged(runs, censoring=Censoring(mode="exact", q={runs.ids[-1]: 0.5}))
    assert row(found, "truthful").runs == 101
    assert any("19 censored runs have no q" in warning for warning in found.warnings)


def test_one_run_is_scored_without_recalibration_and_says_so(tmp_path: Path):
    write(tmp_path / "a.jsonl", events("a", [{"verbalized": 0.8}], True))
    found = judged(read_recordings(tmp_path))
    assert row(found, "verbalized").tps_log == pytest.approx(np.log(0.8))
    assert not any(r.calibrated for r in found.table)
    assert any("too few runs" in warning for warning in found.warnings)
    assert any("Every run with a known outcome succeeded" in warning for warning in found.warnings)
    json.dumps(found.to_json(), allow_nan=False)


def test_nothing_to_score_is_said_with_what_was_found(tmp_path: Path):
    write(tmp_path / "a.jsonl", events("a", [{"verbalized": 0.8}], None))
    with pytest.raises(DataError, match="1 clean: not labelled"):
        judged(read_recordings(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no run was found"):
        judged(read_recordings(tmp_path / "empty"))


def test_a_q_outside_its_domain_and_an_unknown_mode_are_refused():
    with pytest.raises(ConfigurationError, match="'q'"):
        Censoring(mode="exact", q={"a": 1.5})
    with pytest.raises(ConfigurationError, match="'mode'"):
        Censoring(mode="both")  # type: ignore[arg-type]


def test_at_the_call_a_stream_is_ranked_by_the_turn_that_proposes_it_whatever_it_says_or_lacks_elsewhere():
    """Two steps a run: the stream that knows at the asking one and is missing at the other is best there."""
    rng = np.random.default_rng(3)
    n = 200
    success, asks = rng.random(n) < 0.5, rng.integers(0, 2, n)
    asks[:20] = -1  # no irreversible call
    outcomes = success.astype(np.float64)
    outcomes[-5:] = np.nan  # censored
    noise, knows = rng.random((n, 2)), np.where(success[:, None], 0.8, 0.3) + 0.1 * rng.random((n, 2))
    asking = np.arange(2) == asks[:, None]
    streams = {"elsewhere": np.where(asking, noise, knows), "there": np.where(asking, knows, np.nan), "noise": noise}
    lengths = np.full(n, 2)
    runs = ForecastRuns(
        ids=tuple(f"r{i:03}" for i in range(n)),
        outcomes=outcomes,
        streams={name: ForecastTraces(forecasts=v.ravel(), lengths=lengths) for name, v in streams.items()},
        audit=AUDIT,
        asks=asks,
    )
    found = judged(runs)
    ranked = [r for r in found.table if r.scalar == "at the call"]
    assert ranked[0].stream == "there"
    assert (ranked[0].auroc, ranked[0].runs) == (1.0, 175)
    assert all(0.4 < r.auroc < 0.65 for r in ranked[1:])
    assert row(found, "elsewhere").auroc > 0.7
    assert not [r for r in judged(dataclasses.replace(runs, asks=None)).table if r.scalar == "at the call"]
