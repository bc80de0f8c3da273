"""The uncased WordPiece tokeniser of BERT: text to token ids, as the model's own tokeniser gives them."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from grampus_uq.errors import DataError

__all__ = ["WordPiece"]

MAX_VOCABULARY_BYTES: Final = 16 << 20
MAX_WORD_CHARACTERS: Final = 100
_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_REMEMBERED_WORDS: Final = 50_000
_SPECIAL_TOKEN = re.compile("(" + "|".join(re.escape(token) for token in _SPECIAL) + ")")
_ASCII_WORD = re.compile(r"[a-z0-9]+|[!-/:-@\[-`{-~]")
_IDEOGRAPHS: Final = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPiece:
    """Splits text into the pieces of a vocabulary, longest match first.

    Control characters go, white space separates, ideographs stand alone, accents and case go, punctuation stands alone;
    a word of more than 100 characters or without a matching piece is [UNK]. A special token written out in the text
    ("[SEP]") is that token, as in the model's own tokeniser. Safe for threads.

    Character classes are this Python's: some 500 characters that are younger than the tables of the model's own
    tokeniser (Unicode 12) are split by what they are, where that one takes them for letters.
    """

    __slots__ = ("_ids", "_words", "cls", "sep", "unknown")

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids
        self._words: dict[str, tuple[int, ...]] = {}
        self.cls, self.sep, self.unknown = ids["[CLS]"], ids["[SEP]"], ids["[UNK]"]

    @classmethod
    def load(cls, path: str | os.PathLike[str], size: int) -> WordPiece:
        """Read a vocabulary of `size` pieces, one a line, the id being the line's place.

        Raises DataError with path and line: not readable, not UTF-8, more than 16 MiB, another number of lines, an
        empty or repeated piece, a special token that is missing.
        """
        name = os.fspath(path)
        try:
            with Path(path).open("rb") as file:
                data = file.read(MAX_VOCABULARY_BYTES + 1)
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror or error}", path=name) from error
        if len(data) > MAX_VOCABULARY_BYTES:
            raise DataError(f"must be at most {MAX_VOCABULARY_BYTES} bytes", path=name)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise DataError("is not UTF-8", path=name, line=line) from error
        pieces = text.removesuffix("\n").split("\n")  # not splitlines: a piece may be a Unicode line break
        if len(pieces) != size:
            raise DataError(f"must have {size} lines, one a piece, got {len(pieces)}", path=name)
        ids: dict[str, int] = {}
        for number, piece in enumerate(pieces):
            piece = piece.removesuffix("\r")
            if not piece or piece in ids:
                raise DataError(f"has an empty or repeated piece {piece!r:.40}", path=name, line=number + 1)
            ids[piece] = number
        for token in _SPECIAL:
            if token not in ids:
                raise DataError(f"lacks the special token {token}", path=name)
        return cls(ids)

    def encode(self, text: str, max_tokens: int) -> list[int]:
        """Give the ids of a text, [CLS] first and [SEP] last, cut to `max_tokens` with both kept."""
        ids = [self.cls]
        for word in self._split(text):
            ids.extend(self._pieces(word))
            if len(ids) >= max_tokens:
                break
        return [*ids[: max_tokens - 1], self.sep]

    def _split(self, text: str) -> Iterator[str]:
        """Yield the words one after the other, so that a long text is read only as far as it is used."""
        for part in _SPECIAL_TOKEN.split(text):
            if part in _SPECIAL:
                yield part
                continue
            for chunk in part.split(" "):
                plain = chunk.isascii() and chunk.isprintable()
                yield from _ASCII_WORD.findall(chunk.lower()) if plain else _words(chunk)

    def _pieces(self, word: str) -> tuple[int, ...]:
        known = self._words.get(word)
        if known is None:
            known = self._matched(word)
            if len(self._words) >= _REMEMBERED_WORDS:
                self._words.clear()
            self._words[word] = known
        return known

    def _matched(self, word: str) -> tuple[int, ...]:
        if word in _SPECIAL:
            return (self._ids[word],)
        if len(word) > MAX_WORD_CHARACTERS:
            return (self.unknown,)
        pieces: list[int] = []
        start = 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = self._ids.get(word[start:end] if start == 0 else "##" + word[start:end])
                if piece is not None:
                    break
            else:
                return (self.unknown,)
            pieces.append(piece)
            start = end
        return tuple(pieces)


def _words(text: str) -> list[str]:
    """Normalise a piece of text and split it at white space and around punctuation."""
    spaced = "".join(_spaced(character) for character in text)
    plain = "".join(c for c in unicodedata.normalize("NFD", spaced) if unicodedata.category(c) != "Mn")
    # One by one: lowering a whole word would make the final sigma that the model's tokeniser does not make.
    lowered = "".join(character.lower() for character in plain)
    separated = "".join(f" {character} " if _is_punctuation(character) else character for character in lowered)
    return separated.split()


def _spaced(character: str) -> str:
    if character in "\t\n\r":
        return " "
    point = ord(character)
    if point in (0, 0xFFFD) or unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs"):
        return ""
    if character.isspace():
        return " "
    return f" {character} " if any(low <= point <= high for low, high in _IDEOGRAPHS) else character


def _is_punctuation(character: str) -> bool:
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")
