"""One split of the whole life on the embedded model: the figures are there, and the fitted profile is worth having.

The slow stage judges the answers that the tutorial records, so that the model answers once for both, and asks fewer
questions than the page: an answer takes two seconds of a processor.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import TUTORIAL

pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'demo'")
pytestmark = pytest.mark.timeout(3_600)


ROOT = Path(__file__).parents[2]


def one_split(recordings: Path, questions: int, page: Path) -> dict[str, Any]:
    """The figures of half of so many answers, judged under a profile fitted on the other half."""
    command = [sys.executable, "-m", "tests.benchmarks.life", "--recordings", str(recordings), "--splits", "1"]
    command += ["--questions", str(questions), "--page", str(page), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3_500, check=False)
    assert done.returncode == 0, done.stderr
    split: dict[str, Any]
    split, mean = json.loads(done.stdout)["rows"]
    print(split)  # CI shows what one split came to
    assert mean["split"] == "mean"
    assert (split["fitted_on"], split["held_out"]) == (questions // 2, questions // 2)
    assert split["tps_after"] > split["tps_before"]
    assert sum(line.startswith("| 0 |") for line in page.read_text(encoding="utf-8").splitlines()) == 3
    return split


@pytest.mark.slow
def test_the_tutorial_runs_and_a_profile_of_half_of_its_answers_tells_right_from_wrong_in_the_other(
    tmp_path: Path,
) -> None:
    text = (ROOT / "docs" / TUTORIAL).read_text(encoding="utf-8")
    for asked, fewer in (("--n 100 ", "--n 60 "), ("--n 40 ", "--n 20 "), ("--n 10 ", "--n 4 ")):
        assert asked in text
        text = text.replace(asked, fewer)
    page = tmp_path / TUTORIAL
    page.write_text(text, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(ROOT / "tests" / "test_docs.py"), str(page)]
    done = subprocess.run([*command, "--slow"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    recordings = tmp_path / "both"
    recordings.mkdir()
    for part in ("labelled", "later"):
        (tmp_path / part).rename(recordings / part)
    split = one_split(recordings, 80, tmp_path / "results.md")
    assert split["auroc_p_success"] > 0.6  # on 40 it scatters by .07 about .83
    assert split["false_alarms"] < 0.4  # of some fifteen right answers, a tenth is allowed


@pytest.mark.promises
def test_a_profile_fitted_on_half_of_the_answers_publishes_mostly_right_ones_of_the_other_half(
    tmp_path: Path,
) -> None:
    split = one_split(tmp_path / "runs", 400, tmp_path / "results.md")
    # Of one split of 200 the few wrong ones among the published scatter too much to be compared: they are on the page.
    assert split["auroc_p_success"] > 0.8
    assert split["false_alarms"] < 0.25
    assert split["right_of_published_after"] > 2 * split["right"]
