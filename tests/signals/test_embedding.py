"""Embedders give unit vectors that depend on the text alone; a cache changes how often they are asked, no more."""

from __future__ import annotations

import subprocess
import sys
import threading
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.records.protocols import Embedder
from grampus_uq.signals.embedding import (
    CachedEmbedder,
    CallableEmbedder,
    HashingEmbedder,
    cosine_similarity,
    semantic_distance,
)

Vectors = npt.NDArray[np.float64]


class Counting:
    """An embedder that notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.asked.append(list(texts))
        return HashingEmbedder(64).embed(texts)


def naive_hashing(text: str, dimension: int) -> Vectors:
    """The documented features counted one by one with Python's own integers."""
    base, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    lowered = text.lower()
    plain = "".join(c if ord(c) > 0xFFFF or unicodedata.category(c)[0] in "LNM" else " " for c in lowered)
    padded = f" {plain} "
    words = [sum(ord(c) * base**i for i, c in enumerate(word)) & mask for word in plain.split(" ") if word]
    features = [(word, 2.0) for word in words]
    features += [((a * 31 + b * 17) & mask, 2.0) for a, b in pairwise(words)]
    for i in range(1, len(padded) - 1):
        if padded[i] != " ":
            left, middle, right = (ord(c) for c in padded[i - 1 : i + 2])
            features.append(((left << 42) | (middle << 21) | right, 1.0))
    row = np.zeros(dimension)
    for feature, weight in features:
        mixed = feature ^ (feature >> 30)
        mixed = (mixed * 0xBF58476D1CE4E5B9) & mask
        mixed ^= mixed >> 27
        mixed = (mixed * 0x94D049BB133111EB) & mask
        mixed ^= mixed >> 31
        row[mixed & (dimension - 1)] += -weight if mixed >> 63 else weight
    row = np.sign(row) * np.sqrt(np.abs(row))
    length = np.linalg.norm(row)
    return row / length if length else row


@given(st.text(max_size=80))
def test_hashing_is_its_documented_feature_count_for_any_text(text: str) -> None:
    assert HashingEmbedder(256).embed([text])[0] == pytest.approx(naive_hashing(text, 256), abs=1e-12)


@given(st.lists(st.text(max_size=40), max_size=6))
def test_every_vector_has_unit_length_or_is_zero_and_does_not_depend_on_its_company(texts: list[str]) -> None:
    embedder = HashingEmbedder()
    rows = embedder.embed(texts)
    assert rows.shape == (len(texts), 1024)
    for text, row in zip(texts, rows, strict=True):
        assert (row == embedder.embed([text])[0]).all()
        length = float(np.linalg.norm(row))
        assert length == pytest.approx(1.0) or length == 0.0
    assert not embedder.embed(["", " \n", "!?;,", "—"]).any()


def test_hashing_is_the_same_in_another_process() -> None:
    program = (
        "from grampus_uq.signals.embedding import HashingEmbedder as H; print(H(64).embed(['a Flight'])[0].tolist())"
    )
    printed = subprocess.run(  # another hash seed than this process has
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    ).stdout
    assert printed.strip() == str(HashingEmbedder(64).embed(["a Flight"])[0].tolist())


def test_shared_wording_is_near_and_case_and_punctuation_do_not_count() -> None:
    rows = HashingEmbedder().embed(["Cancel my flight", "cancel, my FLIGHT!", "cancel my flights", "rebook that hotel"])
    assert cosine_similarity(rows[0], rows[1]) == pytest.approx(1.0)
    assert 0.5 < cosine_similarity(rows[0], rows[2]) < 0.95
    assert cosine_similarity(rows[0], rows[3]) < 0.2


def test_what_lies_beyond_the_characters_read_does_not_count() -> None:
    embedder, long = HashingEmbedder(64), "abcde " * 1_700
    assert (embedder.embed([f"{long} xyz"]) == embedder.embed([f"{long} uvw"])).all()
    assert embedder.embed(["x" * 300_000]).any()


@pytest.mark.parametrize("dimension", [0, 32, 100, 1 << 17])
def test_a_dimension_that_is_no_power_of_two_in_range_is_refused(dimension: int) -> None:
    with pytest.raises(ConfigurationError, match="'dimension' parameter"):
        HashingEmbedder(dimension)


# Any callable.


def test_a_functions_rows_are_scaled_to_unit_length_and_zeros_stay() -> None:
    rows = CallableEmbedder(lambda texts: [[3.0, 4.0], [0.0, 0.0], [1e-200, 0.0], [1e200, 1e200]]).embed(list("abcd"))
    assert rows == pytest.approx(np.array([[0.6, 0.8], [0, 0], [1, 0], [0.5**0.5, 0.5**0.5]]))
    assert CallableEmbedder(lambda texts: [[1]]).embed([]).shape == (0, 0)


def test_a_function_that_returns_its_own_array_keeps_it() -> None:
    own = np.array([[3.0, 4.0]])
    CallableEmbedder(lambda texts: own).embed(["a"])
    assert own.tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize(
    "answer", [None, 3.0, [1.0], [[1.0]], [[1.0], [2.0], [3.0]], [[], []], [[1], [1, 2]], "ab", [[1j], [2]]]
)
def test_a_function_that_returns_no_matrix_is_refused(answer: Any) -> None:
    with pytest.raises(ConfigurationError, match="'function' parameter"):
        CallableEmbedder(lambda texts: answer).embed(["a", "b"])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_a_failure_of_the_model(value: float) -> None:
    with pytest.raises(ModelError, match="not finite"):
        CallableEmbedder(lambda texts: [[1.0, value]]).embed(["a"])


def test_what_is_not_callable_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="callable"):
        CallableEmbedder("model")  # type: ignore[arg-type]  # the wrong value is what is tested


# The cache.


def test_each_text_is_asked_for_once_in_batches_and_order_is_kept() -> None:
    inner = Counting()
    cached = CachedEmbedder(inner, batch=2)
    texts = ["a", "b", "a", "c", "d", "e"]
    assert (cached.embed(texts) == HashingEmbedder(64).embed(texts)).all()
    assert inner.asked == [["a", "b"], ["c", "d"], ["e"]]
    assert (cached.embed(["e", "f", "a"]) == HashingEmbedder(64).embed(["e", "f", "a"])).all()
    assert inner.asked[3:] == [["f"]]
    assert len(cached) == 6
    assert cached.embed([]).shape == (0, 0)


def test_the_least_recently_used_text_leaves_first_and_the_cache_stays_bounded() -> None:
    inner = Counting()
    cached = CachedEmbedder(inner, capacity=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        cached.embed([text])
    assert [asked[0] for asked in inner.asked] == ["a", "b", "c", "b"]
    many = [str(number) for number in range(500)]
    assert (cached.embed(many) == HashingEmbedder(64).embed(many)).all()
    assert len(cached) == 2


def test_changing_what_came_back_does_not_change_what_is_remembered() -> None:
    cached = CachedEmbedder(HashingEmbedder(64))
    cached.embed(["a"])[:] = 7.0
    assert (cached.embed(["a"]) == HashingEmbedder(64).embed(["a"])).all()


def test_a_failure_is_not_remembered() -> None:
    class FailsOnce:
        failures = 1

        def embed(self, texts: Sequence[str]) -> Vectors:
            if self.failures:
                self.failures -= 1
                raise RuntimeError("out of memory")
            return HashingEmbedder(64).embed(texts)

    cached = CachedEmbedder(FailsOnce())
    with pytest.raises(RuntimeError, match="out of memory"):
        cached.embed(["a"])
    assert cached.embed(["a"]).shape == (1, 64)
    assert len(cached) == 1


def test_an_embedder_of_the_wrong_shape_is_refused() -> None:
    class Wrong:
        def embed(self, texts: Sequence[str]) -> Vectors:
            return np.ones((1, len(texts[0])))

    with pytest.raises(ValueError, match="shorter"):
        CachedEmbedder(Wrong()).embed(["a", "b"])
    with pytest.raises(ConfigurationError, match="one length"):
        CachedEmbedder(Wrong(), batch=1).embed(["a", "bb"])


def test_many_threads_share_one_cache_and_get_the_same_vectors() -> None:
    cached = CachedEmbedder(HashingEmbedder(64), capacity=8)
    expected = HashingEmbedder(64).embed([str(number) for number in range(30)])
    wrong: list[int] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait(10.0)
        for _ in range(60):
            chosen = rng.integers(0, 30, 5)
            if not (cached.embed([str(number) for number in chosen]) == expected[chosen]).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert wrong == []
    assert len(cached) <= 8


@pytest.mark.parametrize(("name", "value"), [("capacity", 0), ("batch", 0)])
def test_an_empty_cache_or_batch_is_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' parameter"):
        CachedEmbedder(HashingEmbedder(64), **{name: value})


def test_all_of_them_are_embedders() -> None:
    for embedder in (HashingEmbedder(), CallableEmbedder(lambda texts: [[1.0]]), CachedEmbedder(HashingEmbedder())):
        assert isinstance(embedder, Embedder)


# Similarity.


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3))
def test_distance_is_symmetric_in_range_and_one_from_a_zero_vector(first: list[float], second: list[float]) -> None:
    u, v = np.array(first), np.array(second)
    distance = semantic_distance(u, v)
    assert 0.0 <= distance <= 2.0
    assert distance == pytest.approx(semantic_distance(v, u), abs=1e-12)
    assert semantic_distance(u, np.zeros(3)) == 1.0
    if float(u @ u) > 1e-6:
        assert semantic_distance(u, 3.0 * u) == pytest.approx(0.0, abs=1e-9)
        assert semantic_distance(u, -u) == pytest.approx(2.0, abs=1e-9)
