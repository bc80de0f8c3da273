"""How much a run tries: by default a sample of what is heavy, in the slow stage and for mutants all of it.

`examples` is for the laws of Hypothesis, `sampled` for everything that has a size, a seed or a list of cases. Whoever
takes a smaller sample breaks the code and sees the sample fail: what is found only in full stays in the default run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import pytest
from hypothesis import is_hypothesis_test

Test = TypeVar("Test", bound=Callable[..., object])

#: Set by `tests/conftest.py` before any test is imported.
FULL = False


def asks_for_slow(selection: str) -> bool:
    """Return True if a `-m` expression names the slow tests, other than to leave them out."""
    return re.search(r"(?<!not )\bslow\b", selection) is not None


def examples(full: int) -> int:
    """How many examples a law is tried with: `full`, or by default a quarter, but no fewer than 25."""
    return full if FULL else min(full, max(25, full // 4))


def sampled(names: str, few: Sequence[Any], *, full: Sequence[Any], **given: Any) -> Callable[[Test], Test]:
    """`pytest.mark.parametrize` with `few` in the default run and with `full` in the slow stage."""

    def marked(test: Test) -> Test:
        tried: Test = pytest.mark.parametrize(names, full if FULL else few, **given)(test)
        return cast(Test, pytest.mark.sampled(tried))

    return marked


def is_sampled(item: pytest.Item) -> bool:
    """Return True for a test that tries less by default than in the slow stage, which takes it up for that reason."""
    return item.get_closest_marker("sampled") is not None or is_hypothesis_test(getattr(item, "obj", None))
