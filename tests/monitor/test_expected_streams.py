"""A stream that a profile was fitted on and that never comes is said once."""

from __future__ import annotations

import logging

import pytest

from grampus_uq import Reading, Step, UncertaintyMonitor
from grampus_uq.core.state import Profile
from grampus_uq.stats.fusion import FusedReading, LogisticFusion

ONE = FusedReading(mean=0.0, sd=1.0, slope=1.0)
IDLE = FusedReading(mean=0.0, sd=1.0, slope=0.0)
FUSION = LogisticFusion(readings={"verbalized": ONE, "p_true": ONE, "verifier": IDLE}, intercept=0.0)


def said(monitor: UncertaintyMonitor, caplog: pytest.LogCaptureFixture, steps: int, *sources: str) -> list[str]:
    session = monitor.session(f"s{len(caplog.records)}-{steps}")
    with caplog.at_level(logging.WARNING, logger="grampus_uq.monitor.expected_streams"):
        for number in range(steps):
            readings = [Reading(source=source, value=0.9) for source in sources]
            session.commit(Step(step_id=f"{number}", kind="llm_call", time_s=0.0), readings)
            session.commit(Step(step_id=f"t{number}", kind="tool_call", time_s=0.0), ())
    return [record.getMessage() for record in caplog.records]


def test_a_stream_that_never_came_is_missed_once_and_by_name(caplog) -> None:
    monitor = UncertaintyMonitor(profile=Profile(calibration=FUSION))
    assert said(monitor, caplog, 30, "verbalized") == []
    (found,) = said(monitor, caplog, 300, "verbalized")
    assert "fitted on p_true, and none" in found  # not on the verifier, which moves nothing


def test_streams_that_come_now_and_then_are_not_missed(caplog) -> None:
    monitor = UncertaintyMonitor(profile=Profile(calibration=FUSION))
    said(monitor, caplog, 1, "p_true")
    assert said(monitor, caplog, 200, "verbalized") == []


def test_a_monitor_without_anything_fitted_expects_nothing(caplog) -> None:
    assert said(UncertaintyMonitor(), caplog, 100) == []
