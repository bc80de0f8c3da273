"""The conformance sentences as test parameters: the hard ones always, the others with pytest -m slow."""

from __future__ import annotations

from typing import Any

import pytest

from grampus_uq.testing import SENTENCES

HARD = {"approved_elsewhere", "other_arguments_refused", "parallel_calls", "sub_agent"}

PARAMETERS: list[Any] = [
    pytest.param(sentence, id=sentence.name, marks=() if sentence.name in HARD else pytest.mark.slow)
    for sentence in SENTENCES
]
