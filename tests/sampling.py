"""How much a run tries: by default a sample of what is heavy, in the slow stage and for mutants all of it.

`examples` is for the laws of Hypothesis, `sampled` for everything that has a size, a seed or a list of cases. Whoever
takes a smaller sample breaks the code and sees the sample fail: what is found only in full stays in the default run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from hypothesis import is_hypothesis_test

TESTS = Path(__file__).parent
Test = TypeVar("Test", bound=Callable[..., object])

#: Set by `tests/conftest.py` before any test is imported.
FULL = False

#: Rooms whose tests the default run tries on asyncio, but for those in which tasks wait (`jumping_clocks`).
ONE_LOOP = frozenset(
    ("benchmarks", "demo", "integrations", "learn", "models", "proxy", "recording", "runtime", "telemetry")
)


def asks_for_slow(selection: str) -> bool:
    """Return True if a `-m` expression names the slow tests, other than to leave them out."""
    return re.search(r"(?<!not )\bslow\b", selection) is not None


class Grown(int):
    """A number of examples that is larger than in the default run."""


def examples(full: int, few: int | None = None) -> int:
    """How many examples a law is tried with: `full`; by default `few`, or a tenth but no fewer than 10."""
    if few is None:
        few = min(full, max(10, full // 10))
    if not FULL:
        return few
    return Grown(full) if few < full else full


def sampled(names: str, few: Sequence[Any], *, full: Sequence[Any], **given: Any) -> Callable[[Test], Test]:
    """`pytest.mark.parametrize` with `few` in the default run and with `full` in the slow stage."""

    def marked(test: Test) -> Test:
        tried: Test = pytest.mark.parametrize(names, full if FULL else few, **given)(test)
        return cast(Test, pytest.mark.sampled(tried))

    return marked


def crossed(names: str, *lists: Sequence[Any], **given: Any) -> Callable[[Test], Test]:
    """`sampled` with every combination of these lists in the slow stage, and with each of their values by default."""
    few = [tuple(values[place % len(values)] for values in lists) for place in range(max(map(len, lists)))]
    return sampled(names, few, full=list(itertools.product(*lists)), **given)


def in_slow_stage(item: pytest.Item, asked: bool) -> bool:
    """Return True for a test that belongs to the slow stage for what it tries.

    Where that stage is asked for, these are all tests that try less by default (a law with the same number of examples
    would try the same ones again); at any time, on its second event loop, a test marked `one_loop` and, unless tasks
    wait in it, one of the rooms `ONE_LOOP`.
    """
    loop = item.callspec.params.get("anyio_backend") if hasattr(item, "callspec") else None
    if loop == "trio":
        waits = item.get_closest_marker("jumping_clocks") is not None
        if item.get_closest_marker("one_loop") or (item.path.relative_to(TESTS).parts[0] in ONE_LOOP and not waits):
            return True
    return asked and (item.get_closest_marker("sampled") is not None or _grows(getattr(item, "obj", None)))


def _grows(test: object) -> bool:
    """Return True for a law that is tried with more examples than by default, and for one that does not say."""
    given = getattr(test, "_hypothesis_internal_use_settings", None)
    return is_hypothesis_test(test) and isinstance(getattr(given, "max_examples", Grown()), Grown)
