"""Tables of step-wise verifier scores as one forecast stream: every run has a known outcome there."""

from __future__ import annotations

import os

import numpy as np

from grampus_uq.importers.verifier_scores import ScoreColumns, read_scores
from grampus_uq.learn.evaluate.forecast_runs import ForecastRuns, stop_rows
from grampus_uq.stats.trajectory_scores import ForecastTraces


def read_table(path: str | os.PathLike[str], *, columns: ScoreColumns | None = None) -> ForecastRuns:
    """Read a table (CSV, gzipped CSV or Parquet); an empty score is a missing forecast.

    Args:
        path: the table.
        columns: names of its columns; None: those of the published verifier scores.

    Raises:
        DataError: as `read_scores`.
    """
    columns = columns if columns is not None else ScoreColumns()
    table = read_scores(path, columns=columns, allow_missing=True)
    found = [("complete", "scored", "outcome observed", bool(solved)) for solved in table.solved]
    return ForecastRuns(
        ids=table.ids,
        outcomes=table.solved.astype(np.float64),
        streams={columns.score: ForecastTraces(forecasts=table.scores, lengths=table.lengths)},
        audit=stop_rows(found),  # type: ignore[arg-type]  # the literal "scored" widens to str in the list
    )
