"""One split of the whole life on the embedded model: the figures are there, and the fitted profile is worth having."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'demo'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]


def test_a_profile_fitted_on_half_of_the_answers_publishes_mostly_right_ones_of_the_other_half(
    tmp_path: Path,
) -> None:
    page = tmp_path / "results.md"
    command = [sys.executable, "-m", "tests.benchmarks.life", "--recordings", str(tmp_path / "runs"), "--splits", "1"]
    done = subprocess.run(
        [*command, "--page", str(page), "--json"], capture_output=True, text=True, timeout=3_500, check=False
    )
    assert done.returncode == 0, done.stderr
    split, mean = json.loads(done.stdout)["rows"]
    print(split)  # CI shows what one split came to
    assert mean["split"] == "mean"
    assert (split["fitted_on"], split["held_out"]) == (200, 200)
    # Of one split of 200 the few wrong ones among the published scatter too much to be compared: they are on the page.
    assert split["auroc_p_success"] > 0.8

    assert split["right_of_published_after"] > 2 * split["right"]
    assert split["tps_after"] > split["tps_before"]
    assert split["false_alarms"] < 0.25
    assert page.read_text(encoding="utf-8").count("| 0 |") == 3
