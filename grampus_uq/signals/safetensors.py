"""Reads the numbers of a safetensors file with nothing but NumPy, and believes nothing that the file says of itself."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grampus_uq.errors import DataError

__all__ = ["read_tensors"]

MAX_FILE_BYTES: Final = 1 << 30
MAX_HEADER_BYTES: Final = 1 << 20
_ITEM_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}

Tensor = npt.NDArray[np.float32]


def read_tensors(path: str | os.PathLike[str], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read the named tensors, each of exactly the shape that is asked for, as float32; others are left alone.

    Format: eight bytes with the length of a JSON header (little-endian), the header {name: {dtype, shape,
    data_offsets}}, the bytes. Read are the types F32, F16 and BF16. Nothing is executed, and memory is taken for the
    tensors asked for, after their sizes were checked.

    Raises DataError with path and field: no such file, shorter or longer than a gigabyte allows, a header that is cut
    off, too long or no JSON, a tensor that is missing, has another type or shape, lies outside of the file or over
    its own size, or holds a number that is not finite.
    """
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_FILE_BYTES:
                raise DataError(f"must be at most {MAX_FILE_BYTES} bytes, got {size}", path=name)
            header, start = _header(file.read(8), file, size, name)
            tensors = {}
            for tensor, shape in shapes.items():
                begin, dtype = _place(header, tensor, shape, size - start, name)
                file.seek(start + begin)
                data = file.read(math.prod(shape) * _ITEM_BYTES[dtype])
                tensors[tensor] = _numbers(data, dtype, shape, tensor, name)
            return tensors
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path=name) from error


def _header(prefix: bytes, file: Any, size: int, name: str) -> tuple[dict[str, Any], int]:
    if len(prefix) < 8:
        raise DataError("is no safetensors file: shorter than 8 bytes", path=name)
    length = int.from_bytes(prefix, "little")
    if length > min(MAX_HEADER_BYTES, size - 8):
        raise DataError(f"has a header of {length} bytes, more than the file or {MAX_HEADER_BYTES}", path=name)
    try:
        header = json.loads(file.read(length).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError("has a header that is not JSON", path=name) from error
    if not isinstance(header, dict):
        raise DataError("has a header that is no JSON object", path=name)
    return header, 8 + length


def _place(header: Mapping[str, Any], tensor: str, shape: tuple[int, ...], room: int, name: str) -> tuple[int, str]:
    """Give offset and type of a tensor, once its description agrees with what is asked for and with the file."""
    entry = header.get(tensor)
    if not isinstance(entry, dict):
        raise DataError("is missing", path=name, field=tensor)
    dtype, offsets = entry.get("dtype"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        rule = f"must have one of the types {', '.join(_ITEM_BYTES)}, got {dtype!r:.40}"
        raise DataError(rule, path=name, field=tensor)
    if entry.get("shape") != list(shape):
        raise DataError(f"must have shape {list(shape)}, got {entry.get('shape')!r:.80}", path=name, field=tensor)
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(offset) is int for offset in offsets)):
        raise DataError(f"must have two whole numbers as data_offsets, got {offsets!r:.80}", path=name, field=tensor)
    begin, end = offsets
    if not 0 <= begin <= end <= room:
        raise DataError(f"lies at {begin} to {end}, outside of the {room} bytes of data", path=name, field=tensor)
    if end - begin != math.prod(shape) * _ITEM_BYTES[dtype]:
        rule = f"takes {end - begin} bytes, its shape {list(shape)} as {dtype} does not"
        raise DataError(rule, path=name, field=tensor)
    return begin, dtype


def _numbers(data: bytes, dtype: str, shape: tuple[int, ...], tensor: str, name: str) -> Tensor:
    if dtype == "F32":
        values = np.frombuffer(data, "<f4").astype(np.float32)
    elif dtype == "F16":
        values = np.frombuffer(data, "<f2").astype(np.float32)
    else:  # a bfloat16 is the upper half of a float32
        values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if not np.isfinite(values).all():
        raise DataError("holds a number that is not finite", path=name, field=tensor)
    return values.reshape(shape)
