"""A folder of recordings takes each run once and whole, however many write it at the same moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grampus_uq.importers.imported_run import ImportedRun
from grampus_uq.importers.run_folder import write_run
from grampus_uq.recording import runs
from grampus_uq.records.values import Message, Outcome
from grampus_uq.records.vocabulary import Role


def test_many_that_write_the_same_runs_at_once_end_without_an_error_and_leave_each_run_once(tmp_path: Path) -> None:
    said = Message(role=Role.ASSISTANT, content="x" * 100_000)
    several = [
        ImportedRun(run_id=f"r{n}", path="", line=0, messages=(said,), outcome=Outcome(success=True)) for n in range(20)
    ]

    def write_all(_: int) -> None:
        for run in several:
            write_run(tmp_path / "moved", run, start_s=0.0)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_all, range(4)))
    assert sorted(run.session_id for run in runs(tmp_path / "moved")) == sorted(run.run_id for run in several)
    assert len(list((tmp_path / "moved").iterdir())) == len(several)  # no drafts
