"""Detectors, watches and a snapshot that an earlier version stored: read, and as much worth, today as they were then.

`golden_detectors.json` was written by the version before the package had eighteen doors: one detector a kind of
statistic with its numbers on six steps, its watch after eighty runs and what the next run did to it; and a session
under a detector, its snapshot after two of five steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grampus_uq import UncertaintyMonitor
from grampus_uq.core.state import Profile
from grampus_uq.stats.calibration_watch import (
    CalibrationWatchState,
    Variant,
    detector_id,
    take_run,
    watch_statuses,
)
from grampus_uq.stats.eprocess import detector_from_json, detector_to_json, start, update
from grampus_uq.stats.stored_values import from_json, to_json

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("golden_detectors.json").read_text())
SESSION = GOLDEN.pop("session")
STEPS = ((0.9, 0.8), (0.7, None), (None, None), (0.3, 0.2), (0.05, 0.9), (0.6, 0.1))
KINDS = pytest.mark.parametrize("kind", sorted(GOLDEN))


@KINDS
def test_a_stored_detector_is_read_and_written_again_as_it_was(kind: str) -> None:
    stored = GOLDEN[kind]["detector"]
    detector = detector_from_json(stored)
    assert detector_id(detector) == GOLDEN[kind]["id"]  # recordings and watches name it so
    ours, theirs = detector_to_json(detector), dict(stored)
    assert json.dumps(ours, sort_keys=True) == json.dumps(theirs, sort_keys=True)


@KINDS
def test_a_stored_detector_gives_every_step_the_evidence_that_it_gave(kind: str) -> None:
    detector = detector_from_json(GOLDEN[kind]["detector"])
    state, found = start(detector, "later"), []
    for step in STEPS:
        state, log_m = update(detector, state, step if len(detector.streams) == 2 else step[0])
        found.append((log_m, state.log_peak))
    for (log_m, peak), then, top in zip(found, GOLDEN[kind]["log_m"], GOLDEN[kind]["log_peak"], strict=True):
        assert (log_m, peak) == (pytest.approx(then, rel=1e-12), pytest.approx(top, rel=1e-12))
    stored = GOLDEN[kind]["state"]
    assert (state.step, state.tie) == (stored["step"], stored["tie"])
    assert [list(part) for part in state.memory] == [pytest.approx(part) for part in stored["memory"]]


@KINDS
def test_a_stored_watch_goes_on_from_where_it_was(kind: str) -> None:
    watch = from_json(CalibrationWatchState, GOLDEN[kind]["watch"], "watch")
    assert from_json(CalibrationWatchState, to_json(watch), "watch") == watch
    assert [[s.log_martingale, s.log_peak] for s in watch_statuses(watch)] == GOLDEN[kind]["watch_before"]
    after = watch_statuses(take_run(watch, Variant.ALL_RUNS, "next", 0.25))
    found = {status.variant.value: (status.n_runs, status.gathering) for status in after}
    assert found == {variant: (runs, left) for variant, _, runs, left in GOLDEN[kind]["watch_found"]}
    # Stakes were added since, so the next bet differs; it is made with the capital that there was.
    assert 0.0 < abs(after[1].log_martingale - GOLDEN[kind]["watch_before"][1][0]) < 0.7


@pytest.mark.anyio
async def test_a_stored_session_under_a_detector_goes_on_as_it_did() -> None:
    monitor = UncertaintyMonitor(profile=Profile.model_validate_json(json.dumps(SESSION["profile"])))
    session = monitor.session("later", snapshot=SESSION["snapshot"])
    for n, text in list(enumerate(SESSION["texts"]))[2:]:
        assessment, action = await session.observe_llm_response(text, f"s{n}")
        then = pytest.approx(SESSION["found"][n][:2], rel=1e-12)
        assert [assessment.log_e_value, assessment.fused_confidence] == then
        assert action.value == SESSION["found"][n][2]
