"""The three pages in a real browser: axe finds nothing serious, nothing is fetched, nothing is said on the console.

Needs Chromium (`apt-get install chromium`) and npm, which fetches axe-core; without them the tests are skipped.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from grampus_uq.learn.attribution import attribution_html, fit_and_calibrate, locate
from grampus_uq.learn.evaluate import evaluate, read_recordings
from grampus_uq.learn.evaluate.evaluation_report import evaluation_html
from grampus_uq.learn.pages.run_page import run_html
from grampus_uq.recording.runs import Run
from grampus_uq.records.vocabulary import UncertaintyAction
from tests.learn.attribution.runs import failures
from tests.learn.evaluate.recorded import many, write
from tests.recording.events import session, step_event

pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-logging=stderr"]
EXAMINE = """
for (const folded of document.querySelectorAll("details")) folded.open = true;
axe.run({resultTypes: ["violations"]}).then(found => {
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const told = {fetched: performance.getEntriesByType("resource").map(one => one.name), wide: wide,
    violations: found.violations.map(one => [one.impact, one.id, one.nodes.map(node => node.html).slice(0, 3)])};
  const place = document.createElement("pre");
  place.id = "told";
  place.textContent = JSON.stringify(told);
  document.body.append(place);
});
"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    if CHROMIUM is None or shutil.which("npm") is None:
        pytest.skip("needs Chromium and npm")
    folder = tmp_path_factory.mktemp("axe")
    install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), "axe-core@4"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=240)
    if done.returncode:
        pytest.skip("npm has no axe-core here")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "a.jsonl", *many(60, np.random.default_rng(0), ("verbalized", "p_true")))
    found = evaluate(read_recordings(folder), rng=np.random.default_rng(0), draws=20)
    held = session(steps=6)
    held[5] = step_event(2, action=UncertaintyAction.PAUSE_FOR_HUMAN, value=0.1)
    calibrated = fit_and_calibrate(failures(60, 50))
    return {
        "run": run_html(Run(path="s1.jsonl", line=1, session_id="s1", events=tuple(held))),
        "evaluation": evaluation_html(found, title="runs"),
        "attribution": attribution_html(locate(failures(1, 51)[0].trajectory, calibrated)),
    }


def opened(page: Path, width: int, dark: bool) -> subprocess.CompletedProcess[str]:
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    budget = ["--virtual-time-budget=60000", f"--window-size={width},1000", scheme, "--dump-dom", page.as_uri()]
    return subprocess.run([str(CHROMIUM), *FLAGS, *budget], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["run", "evaluation", "attribution"])
def test_a_page_can_be_read_by_everybody_and_asks_nobody(
    name: str, width: int, dark: bool, axe: str, pages: dict[str, str], tmp_path: Path
) -> None:
    page, examined = tmp_path / "page.html", tmp_path / "examined.html"
    page.write_text(pages[name], encoding="utf-8")
    assert "CONSOLE" not in opened(page, width, dark).stderr
    open_to_axe = re.sub(r"<meta http-equiv[^>]*>", "", pages[name])  # the page allows no script
    script = f"<script>{axe}</script><script>{EXAMINE}</script></body>"
    examined.write_text(open_to_axe.replace("</body>", script), encoding="utf-8")
    shown = opened(examined, width, dark).stdout
    told = json.loads(unescape(shown.rpartition('<pre id="told">')[2].partition("</pre>")[0]))
    assert told["fetched"] == []
    assert told["wide"] <= 0, "nothing is wider than the window"
    assert [one for one in told["violations"] if one[0] in ("serious", "critical")] == []
