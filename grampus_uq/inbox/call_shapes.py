"""Groups calls of one shape, so that one batch may decide them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import anyio.to_thread

from grampus_uq.gate.requests import decided_alone
from grampus_uq.gate.webauthn import MOST_IN_BATCH
from grampus_uq.records.values import canonical_json, sha256_of
from grampus_uq.runtime.cards import Card


def shape_of(card: Card) -> str | None:
    """The common shape of calls of one batch: agent, tool, names and types. None for one that is decided alone."""
    if decided_alone(card.rule, card.tool, card.arguments, unknown_outcome=card.unknown_outcome):
        return None
    return canonical_json([card.agent_id, card.tool, _types(card.arguments)])


async def shapes_of(cards: Sequence[Card]) -> list[str | None]:
    """The shape of each, found beside the event loop: every character of every text is looked at."""
    return await anyio.to_thread.run_sync(lambda: [shape_of(card) for card in cards])


async def alike_among(cards: Sequence[Card]) -> dict[str, int]:
    """For the first of each group of several alike, by its id, how many of them a batch takes."""
    shapes = [(card.id, shape) for card, shape in zip(cards, await shapes_of(cards), strict=True)]
    counts = Counter(shape for _, shape in shapes if shape is not None)
    first = {shape: card_id for card_id, shape in reversed(shapes) if shape is not None}
    return {first[shape]: min(count, MOST_IN_BATCH) for shape, count in counts.items() if count > 1}


def _types(value: Any) -> str:
    """A digest of names and types, where a list is the set of what is in it.

    Each level holds digests of the next, so that time and memory are linear in the call, however deep it is.
    """
    if not isinstance(value, Mapping | list):
        return type(value).__name__
    if isinstance(value, Mapping):
        inner: Any = {name: _types(one) for name, one in value.items()}
    else:
        inner = sorted(set(map(_types, value)))
    return sha256_of(canonical_json(inner))
