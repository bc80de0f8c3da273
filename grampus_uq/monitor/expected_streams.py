"""Streams that a profile was fitted on and that never come: logged once.

A missing reading is not evidence, so nothing stops, and nothing looks wrong; but what p_success says without a stream
was learned from the few steps that lacked it, and the alarm hears less.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from grampus_uq.core.state import Profile
from grampus_uq.core.worst_case import UNAIDED
from grampus_uq.records.values import Reading, StepUncertainty

log = logging.getLogger(__name__)

_ENOUGH = 50
"""Steps of the model, of all sessions together, after which a stream that never came is missed."""


class ExpectedStreams:
    """The streams that a profile reads; any number of sessions and threads tell it what came."""

    def __init__(self, profile: Profile) -> None:
        names = set() if profile.detector is None else set(profile.detector.streams)
        if profile.calibration is not None:
            names |= {name for name, one in profile.calibration.readings.items() if one.slope > 0.0}
        self._missing = names - {"p_success", "propagated"}  # the engine makes them of the others
        self._steps = 0
        self._lock = threading.Lock()

    def saw(self, readings: Sequence[Reading], assessment: StepUncertainty) -> None:
        """Take a step of the model."""
        if not self._missing:
            return
        with self._lock:
            self._missing -= {one.source for one in readings if one.value is not None}
            if assessment.trajectory_risk is not None:
                self._missing.discard("trajectory_risk")
            if assessment.was_read:
                self._missing -= {"fused", UNAIDED}
            self._steps += 1
            if self._steps < _ENOUGH or not self._missing:
                return
            lacking, self._missing = ", ".join(sorted(self._missing)), set()
        log.warning(
            "the profile was fitted on %s, and none of the first %d steps has it: p_success and the alarm are not what "
            "was calibrated. Switch the signal on, or fit again without it.",
            lacking,
            _ENOUGH,
        )
