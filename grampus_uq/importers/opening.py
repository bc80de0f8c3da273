"""Opens a file, plain or gzip; every fault becomes an error that names the place."""

from __future__ import annotations

import codecs
import gzip
import os
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from grampus_uq.errors import DataError

BLOCK_BYTES: Final = 2**20
_GZIP: Final = b"\x1f\x8b"


def blocks(path: str | os.PathLike[str], *, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the content of a file in blocks of at most `size` bytes, unpacked when it is gzip, under any name.

    Raises DataError when the file cannot be read, or when its compressed stream is truncated or damaged.
    """
    name = os.fspath(path)
    line = 1
    try:
        with Path(path).open("rb") as plain:
            packed = plain.read(2) == _GZIP
            plain.seek(0)
            with gzip.GzipFile(fileobj=plain) if packed else plain as stream:
                while block := stream.read(size):
                    yield block
                    line += block.count(b"\n")
    except EOFError as error:
        raise DataError("the compressed file is truncated.", path=name, line=line) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"the compressed file is damaged: {error}.", path=name, line=line) from error
    except OSError as error:
        raise DataError(f"cannot be read: {str(error.strerror or error).rstrip('.')}.", path=name) from error


def text_blocks(path: str | os.PathLike[str], *, size: int = BLOCK_BYTES) -> Iterator[str]:
    """Yield the text of a file in UTF-8 (a byte order mark is skipped), in blocks.

    Raises DataError with the line of the first byte that is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="strict")
    lines = 1
    cut = b""  # the bytes of a character that a block cut in two
    for block in chain(blocks(path, size=size), (b"",)):
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            line = lines + (cut + block)[: error.start].count(b"\n")
            raise DataError(f"is not UTF-8: {error.reason}.", path=os.fspath(path), line=line) from error
        cut = decoder.getstate()[0]
        lines += block.count(b"\n")
