"""Runs from elsewhere: what others recorded, as the values of this package. One file a format, one run at a time.

Every importer names what it refuses by path, line and field, reads plain or gzipped files in bounded memory, and keeps
what only an evaluator knows (outcomes, labels) apart from what a monitor could have seen.
"""

from __future__ import annotations

from grampus_uq.importers.chat_exports import read_chat_logs, read_chatgpt
from grampus_uq.importers.failure_logs import FailureLabel, FailureLog, read_failure_logs
from grampus_uq.importers.formats import FORMATS, RunFormat, detect_format, read_runs
from grampus_uq.importers.imported_run import ImportedRun, MessageFacts, events, turns
from grampus_uq.importers.langsmith import read_langsmith
from grampus_uq.importers.otlp_runs import read_otlp
from grampus_uq.importers.tau2 import read_tau2
from grampus_uq.importers.tau_bench import read_tau_bench
from grampus_uq.importers.verifier_scores import ScoreColumns, ScoreTable, read_scores

__all__ = [
    "FORMATS",
    "FailureLabel",
    "FailureLog",
    "ImportedRun",
    "MessageFacts",
    "RunFormat",
    "ScoreColumns",
    "ScoreTable",
    "detect_format",
    "events",
    "read_chat_logs",
    "read_chatgpt",
    "read_failure_logs",
    "read_langsmith",
    "read_otlp",
    "read_runs",
    "read_scores",
    "read_tau2",
    "read_tau_bench",
    "turns",
]
