"""Runs from elsewhere: what others recorded, as the values of this package. One file a format, one run at a time.

Every importer names what it refuses by path, line and field, reads plain or gzipped files in bounded memory, and keeps
what only an evaluator knows (outcomes, labels) apart from what a monitor could have seen.
"""

from __future__ import annotations

from grampus_uq.importers.failure_logs import FailureLabel, FailureLog, read_failure_logs
from grampus_uq.importers.run import ImportedRun, events, turns
from grampus_uq.importers.tau_bench import read_tau_bench
from grampus_uq.importers.verifier_scores import ScoreColumns, ScoreTable, read_scores, stream_scores

__all__ = [
    "FailureLabel",
    "FailureLog",
    "ImportedRun",
    "ScoreColumns",
    "ScoreTable",
    "events",
    "read_failure_logs",
    "read_scores",
    "read_tau_bench",
    "stream_scores",
    "turns",
]
