"""Texts as vectors: hashed words and characters (the default), any callable, a bounded cache, cosine similarity."""

from __future__ import annotations

import hashlib
import inspect
import math
import threading
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.records.configuration import checked
from grampus_uq.records.latest import Latest
from grampus_uq.records.protocols import Embedder
from grampus_uq.signals.turn_events import READ_CHARACTERS

Vectors = npt.NDArray[np.float64]
_Hashes = npt.NDArray[np.uint64]

_BASE: Final = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_BLANK: Final = 32
_WORD_WEIGHT: Final = 2.0
_GRAM_WEIGHT: Final = 1.0


@checked
class HashingEmbedder:
    """Embeds by signed feature hashing of words, word pairs and character trigrams; no model, no download.

    The text is lowered; every run of letters, digits and marks is a word, all else is a blank. Words and pairs of
    neighbours count 2, trigrams within a word and over its edges count 1, each with the sign that its hash gives; sums
    are damped by a signed square root and the vector is scaled to unit length. Hashes are arithmetic modulo 2^64 on
    code points: equal on every machine and in every process.

    It measures shared wording. Two sentences that say the same in other words are far apart, and so are a tool call and
    an observation that answers it well but repeats none of its words.

    `dimension`: a power of two from 64 to 65536. Of a text the first 10,000 characters are read.

    >>> vectors = HashingEmbedder().embed(["cancel my flight", "Cancel my flights, please", "", "rebook the hotel"])
    >>> near, far = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[3])
    >>> near > 0.5 > 0.2 > far, bool(vectors[2].any())
    (True, False)
    """

    __slots__ = ("_dimension",)

    def __init__(self, dimension: int = 1024) -> None:
        if dimension not in {2**power for power in range(6, 17)}:
            raise ConfigurationError.of("dimension", "HashingEmbedder", "a power of two from 64 to 65536", dimension)
        self._dimension = dimension

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self._dimension

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row a text, of unit length, or zeros for a text without letters and digits."""
        rows = np.zeros((len(texts), self._dimension))
        for row, text in zip(rows, texts, strict=True):
            self._embed_into(row, text[:READ_CHARACTERS])
        return rows

    def _embed_into(self, row: Vectors, text: str) -> None:
        # Two blanks at the ends, so that the first and last word have edges like any other.
        points = np.frombuffer(f" {text.lower()} ".encode("utf-32-le", "surrogatepass"), np.uint32)
        in_word = _word_characters(points)
        letters = np.where(in_word, points, _BLANK).astype(np.uint64)
        words = _word_hashes(letters, in_word)
        if not len(words):
            return
        pairs = words[:-1] * np.uint64(31) + words[1:] * np.uint64(17)
        grams = (letters[:-2] << np.uint64(42)) | (letters[1:-1] << np.uint64(21)) | letters[2:]
        # A trigram with its middle outside of a word joins two words or none; pairs say that better.
        self._count(row, np.concatenate([words, pairs]), _WORD_WEIGHT)
        self._count(row, grams[in_word[1:-1]], _GRAM_WEIGHT)
        np.copyto(row, np.sign(row) * np.sqrt(np.abs(row)))
        length = math.sqrt(float(row @ row))
        if length:
            row /= length

    def _count(self, row: Vectors, features: _Hashes, weight: float) -> None:
        mixed = _mixed(features)
        buckets = (mixed & np.uint64(self._dimension - 1)).astype(np.intp)
        signs = np.where(mixed >> np.uint64(63), -weight, weight)
        row += np.bincount(buckets, weights=signs, minlength=self._dimension)


class CallableEmbedder:
    """Makes an embedder of any function from a list of texts to one row of numbers a text.

    Rows are scaled to unit length; a row of zeros stays. The function is called in a worker thread and must be safe for
    that. What it raises goes through. Raises ConfigurationError when it returns something else than a matrix with one
    row a text, and ModelError when a number is not finite.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[list[str]], npt.ArrayLike]) -> None:
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise ConfigurationError.of("function", "CallableEmbedder", "callable, and not async", function)
        self._function = function

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row a text, of unit length or all zeros."""
        if not texts:
            return np.zeros((0, 0))
        answer = self._function(list(texts))
        try:
            rows = np.asarray(answer).astype(np.float64, casting="same_kind")
        except (TypeError, ValueError) as error:
            raise ConfigurationError.of("function", "CallableEmbedder", _MATRIX, type(answer).__name__) from error
        if rows.ndim != 2 or rows.shape[0] != len(texts) or rows.shape[1] == 0:
            raise ConfigurationError.of("function", "CallableEmbedder", f"{_MATRIX}, {len(texts)} rows", rows.shape)
        if not np.isfinite(rows).all():
            raise ModelError("The embedding function returned a number that is not finite.")
        scale = np.abs(rows).max(axis=1, keepdims=True)  # first: squares of very large or small numbers would be lost
        np.divide(rows, scale, out=rows, where=scale > 0)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        np.divide(rows, lengths, out=rows, where=lengths > 0)
        return rows


_MATRIX: Final = "a function that returns a matrix with one row a text"


class CachedEmbedder:
    """Remembers the vectors of the latest texts and asks its embedder for the others, in batches and each text once.

    `capacity`: number of texts kept, the least recently used leaves first. `batch`: texts handed over at once. Texts
    are remembered by a 128-bit digest, so a long text takes no more room than its vector. Safe for threads: two that
    miss the same text at once both compute it. A failure is not remembered.
    """

    __slots__ = ("_batch", "_embedder", "_lock", "_vectors")

    def __init__(self, embedder: Embedder, *, capacity: int = 1024, batch: int = 64) -> None:
        if capacity < 1:
            raise ConfigurationError.of("capacity", "CachedEmbedder", "at least 1", capacity)
        if batch < 1:
            raise ConfigurationError.of("batch", "CachedEmbedder", "at least 1", batch)
        self._embedder = embedder
        self._batch = batch
        self._vectors: Latest[bytes, Vectors] = Latest(capacity)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._vectors)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row a text, as the wrapped embedder gives it."""
        keys = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        found: dict[bytes, Vectors] = {}
        with self._lock:
            for key in dict.fromkeys(keys):
                if key in self._vectors:
                    self._vectors.move_to_end(key)
                    found[key] = self._vectors[key]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        waiting = list(missing)
        for start in range(0, len(waiting), self._batch):
            batch = waiting[start : start + self._batch]
            found.update(zip(batch, self._computed([missing[key] for key in batch]), strict=True))
        with self._lock:
            self._vectors.update((key, found[key]) for key in waiting)
        if len({vector.shape for vector in found.values()}) > 1:
            rule = "an embedder whose vectors all have one length"
            raise ConfigurationError.of("embedder", "CachedEmbedder", rule, {len(vector) for vector in found.values()})
        return np.stack([found[key] for key in keys]) if keys else np.zeros((0, 0))

    def _computed(self, texts: list[str]) -> list[Vectors]:
        return [row.copy() for row in self._embedder.embed(texts)]  # a view would keep the whole batch alive


def cosine_similarity(u: Vectors, v: Vectors) -> float:
    """Give sim_sem = <u, v> / (|u| |v|), in [-1, 1]; 0 when either vector is zero (TRACER, eq. 8)."""
    lengths = math.sqrt(float(u @ u)) * math.sqrt(float(v @ v))
    return min(1.0, max(-1.0, float(u @ v) / lengths)) if lengths > 0.0 else 0.0


def semantic_distance(u: Vectors, v: Vectors) -> float:
    """Give delta = 1 - sim_sem(u, v), in [0, 2], higher is worse; 1 when either vector is zero (TRACER, eq. 13)."""
    return 1.0 - cosine_similarity(u, v)


def _word_hashes(letters: _Hashes, in_word: npt.NDArray[np.bool_]) -> _Hashes:
    """Hash every word by one running sum: sum_i c_i B^i over the word, brought back to exponent 0."""
    size = len(letters)
    powers, inverse_powers = _powers(1 << size.bit_length())
    sums = np.zeros(size + 1, np.uint64)
    np.cumsum(letters * powers[:size], out=sums[1:])
    edges = np.diff(in_word.astype(np.int8))
    starts = np.flatnonzero(edges == 1) + 1
    ends = np.flatnonzero(edges == -1) + 1
    return np.asarray((sums[ends] - sums[starts]) * inverse_powers[starts])


@cache  # one entry a power of two, up to the longest text read
def _powers(count: int) -> tuple[_Hashes, _Hashes]:
    """Give B^0 .. B^(count - 1) and their inverses, modulo 2^64."""
    tables = []
    for base in (_BASE, pow(_BASE, -1, 2**64)):
        factors = np.full(count, base, np.uint64)
        factors[0] = 1
        tables.append(np.cumprod(factors, dtype=np.uint64))
    return tables[0], tables[1]


def _mixed(features: _Hashes) -> _Hashes:
    """Spread the bits of each hash over the whole word (the finaliser of SplitMix64)."""
    mixed = features ^ (features >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _word_characters(points: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Say which code points are letters, digits or marks; beyond the basic plane all are."""
    if int(points.max()) < 128:
        return _ASCII_WORD[points]
    return _basic_plane()[np.minimum(points, 0x10000)]


_ASCII_WORD: Final = np.array([chr(point).isalnum() for point in range(128)])


@cache
def _basic_plane() -> npt.NDArray[np.bool_]:
    table = [unicodedata.category(chr(point))[0] in "LNM" for point in range(0x10000)]
    return np.array([*table, True])
