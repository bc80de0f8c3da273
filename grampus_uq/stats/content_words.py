"""Content words and content tokens: the filter of TRACER's surprisal and lexical overlap (eq. 5, 9).

The filter reads whole words. A language model emits pieces (" don", "'t", "Ġthe", "▁the"), most of which are in no list
of stop words. So the pieces are joined, words are found in the joined text, and a piece is content when it overlaps a
content word.

A word is content when it has at least one letter and is not a stop word. Numbers with their punctuation ("1,000", "$5",
"12:30") have no letter, markdown marks ("**", "##", "- ") are not words, and neither are a model's control tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

_FUNCTION_WORDS: Final = (
    "a about above after again against all also am an and any are as at be because been before being below "
    "between both but by can cannot could did do does doing done down during each either else few for from "
    "further had has have having he her here hers herself him himself his how i if in into is it its itself just "
    "let like may me might more most must my myself neither no nor not now of off on once one only onto or other "
    "ought our ours ourselves out over own per please quite rather same shall she should since so some such than "
    "that the their theirs them themselves then there these they this those though through thus to too under "
    "until unless up upon us very via was we well were what whatever when where whether which while who whoever "
    "whom whose why will with within without would yet you your yours yourself yourselves ain't aren't can't "
    "couldn't didn't doesn't don't hadn't hasn't haven't he'd he'll he's here's how's i'd i'll i'm i've isn't "
    "it'd it'll it's let's mightn't mustn't needn't shan't she'd she'll she's shouldn't that'd that'll that's "
    "there's they'd they'll they're they've wasn't we'd we'll we're we've weren't what's when's where's who'd "
    "who'll who's why's won't wouldn't y'all you'd you'll you're you've "
)

STOP_WORDS: Final[frozenset[str]] = frozenset(_FUNCTION_WORDS.split())
"""English function words. The paper names a stop-word set and prints none; this one is ours."""

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_CONTROL_TOKEN = re.compile(r"<\|.*\|>|</?[A-Za-z_]+>|\[/?[A-Z]{2,}\]", re.DOTALL)
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ESCAPED_BYTES = re.compile(r"bytes:((?:\\x[0-9A-Fa-f]{2})+)")
# Byte-level BPE writes space, newline, tab and return as letters; SentencePiece writes a space as a low block.
_PIECE_MARKS = str.maketrans({"Ġ": " ", "Ċ": "\n", "ĉ": "\t", "č": "\r", "▁": " "})


def content_words(text: str) -> frozenset[str]:
    """Return ContTok(u), the content words of a text in lower case (eq. 9; the filters of eq. 5 without probability).

    >>> sorted(content_words("I don't see the $5 fee of 1,000 flights at 12:30"))
    ['fee', 'flights', 'see']
    """
    return frozenset(word for _, _, word in _content_spans(text))


def content_tokens(tokens: Sequence[str]) -> list[bool]:
    """Return for each token of one generated text whether it belongs to a content word.

    `tokens` are the pieces in the order in which they were generated, as an interface reports them: decoded (" don",
    "'t"), byte-level ("Ġthe"), SentencePiece ("▁the"), raw bytes ("<0xE2>" or "bytes:\\\\xe2\\\\x80"). The byte-level
    marks are read as white space wherever they stand, so a real Maltese "Ġ" splits its word.

    Returns one bool per token. A piece that touches two words is content when either is.

    >>> content_tokens([" don", "'t", " refund", " $", "5", " **", "now", "**", " un", "believ", "able"])
    [False, False, True, False, False, False, False, False, True, True, True]
    """
    text, spans = _joined(tokens)
    content = [(start, end) for start, end, _ in _content_spans(text)]
    flags = [False] * len(tokens)
    first = 0
    for index, (start, end) in enumerate(spans):
        while first < len(content) and content[first][1] <= start:
            first += 1
        flags[index] = first < len(content) and start < content[first][1] and content[first][0] < end
    return flags


def _content_spans(text: str) -> Iterator[tuple[int, int, str]]:
    for match in _WORD.finditer(text):
        word = match.group().replace("’", "'").casefold()
        if word not in STOP_WORDS and any(character.isalpha() for character in word):
            yield match.start(), match.end(), word


def _joined(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Join the pieces to one text, with the span of characters of each piece; a run of byte pieces shares its span."""
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    length = 0
    pending = bytearray()
    pending_tokens = 0

    def put(part: str, times: int) -> None:
        nonlocal length
        parts.append(part)
        spans.extend([(length, length + len(part))] * times)
        length += len(part)

    for token in tokens:
        raw = _bytes_of(token)
        if raw is not None:
            pending += raw
            pending_tokens += 1
            continue
        if pending_tokens:
            put(pending.decode("utf-8", "replace"), pending_tokens)
            pending, pending_tokens = bytearray(), 0
        put(" " if _CONTROL_TOKEN.fullmatch(token) else token.translate(_PIECE_MARKS), 1)
    if pending_tokens:
        put(pending.decode("utf-8", "replace"), pending_tokens)
    return "".join(parts), spans


def _bytes_of(token: str) -> bytes | None:
    match = _BYTE_TOKEN.fullmatch(token)
    if match is not None:
        return bytes.fromhex(match.group(1))
    match = _ESCAPED_BYTES.fullmatch(token)
    return None if match is None else bytes.fromhex(match.group(1).replace("\\x", ""))
