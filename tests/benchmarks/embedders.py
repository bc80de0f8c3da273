"""How many texts a second each embedder takes on one core: the texts that TRACER embeds of tau-bench-format runs.

    python tests/benchmarks/embedders.py FILE [--model-dir DIR] [--sample N] [--json]

Rows: `embedder` (hash, minilm, and hash behind the cache with every text known), `texts`, `mean_characters`,
`load_s`, `texts_per_s` (the best of some repeats: on a busy machine the others measure its load) and
`texts_per_cpu_s`. MiniLM is timed on a random sample of the texts. Without its files its row is left out, which is
said.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

# One core is a setting of the linear algebra library, and it is read when NumPy is imported.
import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from grampus_uq.errors import DataError, MissingDependencyError
from grampus_uq.importers.tau_bench import read_tau_bench
from grampus_uq.records.protocols import Embedder
from grampus_uq.signals.embedding import CachedEmbedder, HashingEmbedder
from grampus_uq.signals.minilm import MiniLM
from tests.benchmarks._report import emit, existing, positive, usage_errors
from tests.benchmarks.tracer import turn_events
from tests.trajectory_runs import run_components


class Collector:
    """An embedder that notes the texts and gives vectors of nothing."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        self.texts.update(dict.fromkeys(texts))
        return np.zeros((len(texts), 1))


def embedded_texts(path: str | Path) -> list[str]:
    """Give the different texts that TRACER embeds of a file's runs."""
    collector = Collector()
    for run in read_tau_bench(path):
        run_components(turn_events(run), collector)
    return list(collector.texts)


def timed(name: str, texts: Sequence[str], make: Callable[[], Embedder], repeats: int) -> dict[str, Any]:
    """Load an embedder and time it over the texts, on the clock and in seconds of the processor."""
    start = time.perf_counter()
    embedder = make()
    load_s = time.perf_counter() - start
    embedder.embed(texts[:3])
    taken, worked = [], []
    for _ in range(repeats):
        start, before = time.perf_counter(), time.process_time()
        embedder.embed(texts)
        taken.append(time.perf_counter() - start)
        worked.append(time.process_time() - before)
    return {
        "embedder": name,
        "texts": len(texts),
        "mean_characters": float(np.mean([len(text) for text in texts])),
        "load_s": load_s,
        "texts_per_s": len(texts) / min(taken),
        "texts_per_cpu_s": len(texts) / float(np.median(worked)),
    }


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time every embedder."""
    texts = embedded_texts(options.file)
    if not texts:
        raise DataError("holds no text.", path=str(options.file))
    yield timed("hash", texts, HashingEmbedder, 5)
    known = CachedEmbedder(HashingEmbedder(), capacity=len(texts))
    known.embed(texts)
    yield timed("hash, cached", texts, lambda: known, 5)
    chosen = np.random.default_rng(options.seed).permutation(len(texts))[: options.sample]
    try:
        yield timed("minilm", [texts[i] for i in chosen], lambda: MiniLM(options.model_dir), 3)
    except MissingDependencyError as error:
        print(f"minilm is left out: {error}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = os.environ.get("GRAMPUS_UQ_DATA")
    default = None if folder is None else str(Path(folder) / "tau_bench" / "gpt-4o-airline.json.gz")
    parser.add_argument("file", nargs="?" if default else None, default=default, type=existing, metavar="FILE")
    parser.add_argument("--model-dir", help="model directory of MiniLM (default: the installed package's)")
    parser.add_argument("--sample", type=positive, default=300, help="texts that MiniLM is timed on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    with usage_errors(parser):
        emit("embedders", rows(options), options.json)


if __name__ == "__main__":
    main()
