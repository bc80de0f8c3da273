"""Signals: each file is one way to sense how likely a step is right. The names here are imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grampus_uq.signals.embedding import HashingEmbedder
    from grampus_uq.signals.equivalence import EntailmentEquivalence, LexicalEquivalence, SameWording
    from grampus_uq.signals.minilm import MiniLM
    from grampus_uq.signals.prefix_verifier import PrefixVerifier
    from grampus_uq.signals.stated_confidence import parse_confidence
    from grampus_uq.signals.structure import counted

__all__ = [
    "EntailmentEquivalence",
    "HashingEmbedder",
    "LexicalEquivalence",
    "MiniLM",
    "PrefixVerifier",
    "SameWording",
    "counted",
    "parse_confidence",
]

_PLACES = {
    "EntailmentEquivalence": "equivalence",
    "HashingEmbedder": "embedding",
    "LexicalEquivalence": "equivalence",
    "MiniLM": "minilm",
    "PrefixVerifier": "prefix_verifier",
    "SameWording": "equivalence",
    "counted": "structure",
    "parse_confidence": "stated_confidence",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
