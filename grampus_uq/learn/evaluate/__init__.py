"""Judging confidence streams by the Trajectory Proper Score: from recordings or score tables to a report."""

from __future__ import annotations

from grampus_uq.learn.evaluate.censoring import Censoring
from grampus_uq.learn.evaluate.evaluation import Evaluation, evaluate
from grampus_uq.learn.evaluate.forecast_runs import ForecastRuns, StopRow
from grampus_uq.learn.evaluate.from_recordings import read_recordings
from grampus_uq.learn.evaluate.from_tables import read_table

__all__ = ["Censoring", "Evaluation", "ForecastRuns", "StopRow", "evaluate", "read_recordings", "read_table"]
