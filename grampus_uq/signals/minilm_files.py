"""The files of a MiniLM model directory, checked before anything is sized by them: settings, vocabulary, weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grampus_uq.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


Tensor = npt.NDArray[np.float32]
T = TypeVar("T", bound=BaseModel)

MAX_VOCABULARY_BYTES: Final = 16 << 20
MAX_WEIGHTS_BYTES: Final = 1 << 30
_MAX_CONFIG_BYTES: Final = 1 << 16
_MAX_TOKENS: Final = 256
_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_STRICT: Final = ConfigDict(strict=True, frozen=True)


class EncoderConfig(BaseModel):
    """The sizes of a BERT encoder, from its config.json."""

    model_config = _STRICT

    model_type: Literal["bert"] = "bert"
    hidden_act: Literal["gelu"] = "gelu"
    position_embedding_type: Literal["absolute"] = "absolute"
    vocab_size: Annotated[int, Field(ge=1, le=1 << 18)]
    hidden_size: Annotated[int, Field(ge=1, le=4096)]
    intermediate_size: Annotated[int, Field(ge=1, le=1 << 14)]
    num_hidden_layers: Annotated[int, Field(ge=1, le=48)]
    num_attention_heads: Annotated[int, Field(ge=1, le=64)]
    max_position_embeddings: Annotated[int, Field(ge=1, le=8192)]
    type_vocab_size: Annotated[int, Field(ge=1, le=16)]
    layer_norm_eps: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-12


class _TokenizerConfig(BaseModel):
    model_config = _STRICT
    do_lower_case: Literal[True] = True


class _PoolingConfig(BaseModel):
    model_config = _STRICT
    pooling_mode_mean_tokens: Literal[True] = True


class _SentenceConfig(BaseModel):
    model_config = _STRICT
    max_seq_length: Annotated[int, Field(ge=3)] = _MAX_TOKENS


def read_config(path: Path) -> EncoderConfig:
    """Read config.json; raises DataError with path and field for a size that is wrong or absurd."""
    config = _read_json(path, EncoderConfig)
    if config.hidden_size % config.num_attention_heads:
        rule = f"must divide hidden_size {config.hidden_size}"
        raise DataError(rule, path=str(path), field="num_attention_heads")
    return config


def read_max_tokens(directory: Path, positions: int) -> int:
    """Read how many tokens of a text count; raises DataError for a model that splits or pools in another way."""
    for file, model in (("tokenizer_config.json", _TokenizerConfig), ("1_Pooling/config.json", _PoolingConfig)):
        if (directory / file).exists():
            _read_json(directory / file, model)
    path = directory / "sentence_bert_config.json"
    if not path.exists():
        return min(_MAX_TOKENS, positions)
    tokens = _read_json(path, _SentenceConfig).max_seq_length
    if tokens > positions:
        raise DataError(f"must be at most {positions}, got {tokens}", path=str(path), field="max_seq_length")
    return tokens


def load_tokenizer(path: Path, size: int, max_tokens: int) -> Tokenizer:
    """Build the uncased WordPiece tokenizer of BERT from a vocabulary of `size` pieces, one a line.

    It puts [CLS] first and [SEP] last and cuts to `max_tokens` with both kept. Raises DataError with path and line: not
    readable, not UTF-8, more than 16 MiB, another number of lines, an empty or repeated piece, a missing special token.
    """
    with MissingDependencyError.unless("tokenizers", "minilm", "MiniLM embeddings"):
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    ids = _read_vocabulary(path, size)
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106 (no password)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def _read_vocabulary(path: Path, size: int) -> dict[str, int]:
    name, data = str(path), _read_at_most(path, MAX_VOCABULARY_BYTES)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("is not UTF-8", path=name, line=data.count(b"\n", 0, error.start) + 1) from error
    pieces = text.removesuffix("\n").split("\n")  # not splitlines: a piece may be a Unicode line break
    if len(pieces) != size:
        raise DataError(f"must have {size} lines, one a piece, got {len(pieces)}", path=name)
    ids: dict[str, int] = {}
    for number, line in enumerate(pieces):
        piece = line.removesuffix("\r")
        if not piece or piece in ids:
            raise DataError(f"has an empty or repeated piece {piece!r:.40}", path=name, line=number + 1)
        ids[piece] = number
    for token in _SPECIAL:
        if token not in ids:
            raise DataError(f"lacks the special token {token}", path=name)
    return ids


def read_weights(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read the named tensors of a safetensors file, each of exactly the shape asked for, as float32.

    Other tensors are ignored. Raises DataError with path and field: no such file, larger than a gigabyte, damaged, a
    tensor that is missing, has another shape or a type other than F32 and F16, or holds a number that is not finite.
    """
    with MissingDependencyError.unless("safetensors", "minilm", "MiniLM embeddings"):
        from safetensors import SafetensorError, safe_open
    name = str(path)
    try:
        if path.stat().st_size > MAX_WEIGHTS_BYTES:
            raise DataError(f"must be at most {MAX_WEIGHTS_BYTES} bytes", path=name)
        weights: dict[str, Tensor] = {}
        with safe_open(name, framework="numpy") as file:
            missing = shapes.keys() - set(file.keys())
            if missing:
                raise DataError("is missing", path=name, field=min(missing))
            for tensor, shape in shapes.items():
                stored = file.get_slice(tensor)
                if stored.get_dtype() not in ("F32", "F16"):
                    raise DataError(f"must have type F32 or F16, got {stored.get_dtype()}", path=name, field=tensor)
                if tuple(stored.get_shape()) != shape:
                    rule = f"must have shape {list(shape)}, got {stored.get_shape()}"
                    raise DataError(rule, path=name, field=tensor)
                weights[tensor] = file.get_tensor(tensor).astype(np.float32, copy=False)
                if not np.isfinite(weights[tensor]).all():
                    raise DataError("holds a number that is not finite", path=name, field=tensor)
        return weights
    except (OSError, SafetensorError) as error:
        raise DataError(f"cannot be read: {error!s:.200}", path=name) from error


def _read_json(path: Path, model: type[T]) -> T:
    try:
        return model.model_validate_json(_read_at_most(path, _MAX_CONFIG_BYTES))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise DataError(f"{first['msg']:.200}", path=str(path), field=".".join(map(str, first["loc"]))) from error


def _read_at_most(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path=str(path)) from error
    if len(data) > limit:
        raise DataError(f"must be at most {limit} bytes", path=str(path))
    return data
