"""The unimodal envelope of step scores, and its suffix form: intervals that grow from the most suspect step.

Step scores that jump give sets with holes. The envelope is the closest curve that rises to the mode and falls behind
it: the set above any level is an interval around the mode, and nested. It is a fixed function of the scores and leaves
the conformal guarantee untouched.

Not in the source paper (Feng et al. 2026); the pool-adjacent-violators fit is Ayer et al. (1955). Why it pays: among
the intervals that contain the mode, the next block of the fit is the extension with the greatest mean score, which for
scores `L p_j` is the best trade of probability against share of the trajectory.
"""

from __future__ import annotations

import numpy as np

from grampus_uq.stats.arrays import FloatArray, RaggedBatch
from grampus_uq.stats.entry_thresholds import EntryThresholds


def isotonic_rows(batch: RaggedBatch) -> FloatArray:
    """Fit each row by the closest non-decreasing sequence in least squares (pool adjacent violators).

    Returns shape (n, longest), the fits; the padding is +inf.

    >>> from grampus_uq.stats.arrays import ragged
    >>> isotonic_rows(ragged([[1.0, 3.0, 2.0, 4.0]])).tolist()
    [[1.0, 2.5, 2.5, 4.0]]
    """
    fits = np.full(batch.values.shape, np.inf)
    for i, length in enumerate(batch.lengths.tolist()):
        blocks: list[tuple[float, int]] = []  # sum and size; the mean is their quotient
        for total in batch.row(i).tolist():
            size = 1
            while blocks and total / size < blocks[-1][0] / blocks[-1][1]:
                below, more = blocks.pop()
                total, size = below + total, more + size
            blocks.append((total, size))
        fits[i, :length] = np.repeat([total / size for total, size in blocks], [size for _, size in blocks])
    return fits


def unimodal_envelope(batch: RaggedBatch) -> FloatArray:
    """Fit each row by an isotonic sequence up to its mode and an antitonic one behind it.

    The mode is the greatest score, the first of equals; it keeps its value. Returns shape (n, longest); not decreasing
    up to the mode, not increasing behind it; the padding is -inf.

    >>> from grampus_uq.stats.arrays import ragged
    >>> unimodal_envelope(ragged([[2.0, 1.0, 5.0, 0.0, 2.0]])).tolist()
    [[1.5, 1.5, 5.0, 1.0, 1.0]]
    """
    mode = np.argmax(np.where(batch.valid, batch.values, -np.inf), axis=1)
    column = np.arange(batch.values.shape[1])
    rising = isotonic_rows(RaggedBatch(values=batch.values, lengths=mode + 1))
    mirrored = RaggedBatch(values=batch.reversed().values, lengths=batch.lengths - mode)
    falling = RaggedBatch(values=isotonic_rows(mirrored), lengths=batch.lengths).reversed().values
    fits = np.where(column <= mode[:, None], rising, falling)
    return np.where(batch.valid, fits, -np.inf)


def envelope_entry(batch: RaggedBatch) -> EntryThresholds:
    """Envelope: `E_j = -unimodal_envelope_j`. Sets are intervals around the most suspect step.

    For a step scorer with probabilities p_j pass `L p_j`, so that "twice the average" means the same in a short and in
    a long trajectory. Every step needs its score: L evaluations.
    """
    return EntryThresholds(values=-unimodal_envelope(batch), lengths=batch.lengths)


def suffix_envelope_entry(batch: RaggedBatch) -> EntryThresholds:
    """LF envelope: `E_j = max_{i >= j} (antitonic fit of -s)_i`, not increasing along a trajectory: sets are suffixes.

    Scores (`L p_j`) that fall throughout give one block: such a trajectory enters at once or not at all.
    """
    fits = np.where(batch.valid, -isotonic_rows(batch), -np.inf)
    running = np.maximum.accumulate(fits[:, ::-1], axis=1)[:, ::-1]
    return EntryThresholds(values=np.where(batch.valid, running, np.inf), lengths=batch.lengths)
