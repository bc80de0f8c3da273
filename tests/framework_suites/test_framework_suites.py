"""What passes in a framework's own tests passes with an advisory guard in every run, or is listed with its reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.framework_suites.suites import SUITES, differing, environment, listed, run_suite

HOUR = 3600


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("environment"))


@pytest.mark.slow
@pytest.mark.timeout(HOUR)
@pytest.mark.parametrize("framework", sorted(SUITES))
def test_a_sample_of_the_frameworks_own_tests_passes_with_a_guard_in_every_run(
    framework: str, python: Path, tmp_path: Path
) -> None:
    _holds(framework, python, tmp_path, sampled=True)


@pytest.mark.suites
@pytest.mark.timeout(HOUR)
@pytest.mark.parametrize("framework", sorted(SUITES))
def test_the_frameworks_own_tests_pass_with_a_guard_in_every_run(framework: str, python: Path, tmp_path: Path) -> None:
    _holds(framework, python, tmp_path, sampled=False)


def _holds(framework: str, python: Path, folder: Path, *, sampled: bool) -> None:
    found, known = run_suite(framework, python, folder, sampled=sampled), set(listed(framework))
    assert Counter(found["empty"].of.values())["passed"] > 100, "the framework's tests themselves run here"
    assert found["guard"].runs > 0.9 * found["empty"].runs > 20, "listed ones are left out"
    assert found["guard"].events > found["guard"].runs / 2, "the guard watched them"
    differ = differing(found)
    assert differ <= known, sorted(differ - known)
