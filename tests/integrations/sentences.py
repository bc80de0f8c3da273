"""The conformance sentences as test parameters: the hard ones of some adapters always, the others with pytest -m slow.

`pytest -m conformance` asks every adapter the hard ones; each set of the frameworks' versions asks those of frameworks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from grampus_uq.testing import SENTENCES

HARD = {"approved_elsewhere", "other_arguments_refused", "parallel_calls", "sub_agent", "wrong_key", "forged_phase"}
HARD |= {"permit_closed", "old_state"}
BY_DEFAULT = {"AgentRunner", "LangGraph", "MCP proxy"}
"""One for each way in which a call is held: by the agent's own loop, by the stored state of a framework, on the wire.

A process that imports its framework costs as much as ten sentences, and `pytest -m slow` has one for each adapter.
"""
OFFERED = {"signing", "forge", "schema", "odd_calls", "mcp", "output_tool", "permits", "starts"}
"""What a harness is asked for only when it offers it."""
KNOWN_FALSE: dict[str, dict[str, str]] = {}
"""What the page says "no" to: adapter, sentence, and why."""
ASKED: dict[str, list[str]] = {}
"""The sentences that each adapter's own test asks it, of the tests that were imported."""


def parameters(adapter: str, offers: Collection[str] = (), lacks: Collection[str] = ()) -> list[Any]:
    """The sentences that an adapter can be asked, each as a test."""
    found: list[Any] = []
    for sentence in SENTENCES:
        if set(sentence.needs) & ((OFFERED - set(offers)) | set(lacks)):
            continue
        marks = [pytest.mark.conformance] if sentence.name in HARD else []
        if adapter not in BY_DEFAULT or sentence.name not in HARD:
            marks.append(pytest.mark.slow)
        why = KNOWN_FALSE.get(adapter, {}).get(sentence.name)
        if why is not None:
            marks.append(pytest.mark.xfail(reason=why, strict=True))
        found.append(pytest.param(sentence, id=sentence.name, marks=marks))
    ASKED[adapter] = [one.id for one in found]
    return found
