"""The pages' tables of tool agents: the figures of the sets, put between the marks and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import tool_agent_page
from tests.benchmarks.test_tool_agent import record


@pytest.mark.anyio
async def test_the_tables_stand_between_the_marks_however_often_they_are_written(tmp_path: Path) -> None:
    """Wrong amounts at .3, right ones at .9: the default, which holds below .8, holds just the wrong ones."""
    await record(tmp_path / "set", [(True, 0.3)] * 5 + [(False, 0.9)] * 20)
    docs = tmp_path / "docs"
    docs.mkdir()
    for page, mark in (("results.md", "tool agents"), ("policy.md", "tiers")):
        (docs / page).write_text(f"before\n<!-- {mark} -->\nold\n<!-- end {mark} -->\nafter\n")
    pages = []
    for _ in range(2):
        tool_agent_page.main([str(tmp_path / "set"), f"--docs={docs}", "--draws=50"])
        pages.append([(docs / page).read_text() for page in ("results.md", "policy.md")])
    assert pages[0] == pages[1]
    results, policy = pages[0]
    assert "| call probability | 1.00 [1.00, 1.00]; 100/100/100 |" in results
    assert "| set | 1.00 [1.00, 1.00]; 100/100/100 | .94 [" in results, "orders of wrong calls share the call's figure"
    assert "100% of 5 wrong calls | 33% |" in results
    assert "P(True)" not in results, "a score that no set has is no row"
    assert "| 100 % [83, 100] of 20 | 100 % [48, 100] of 5 |" in policy
    for text in (results, policy):
        assert text.startswith("before\n")
        assert text.endswith("after\n")
        assert "old" not in text


@pytest.mark.anyio
async def test_a_page_without_its_marks_is_left_alone(tmp_path: Path) -> None:
    await record(tmp_path / "set", [(True, 0.3), (False, 0.9)])
    (tmp_path / "results.md").write_text("no marks here")
    with pytest.raises(SystemExit, match="no marks for 'tool agents'"):
        tool_agent_page.main([str(tmp_path / "set"), f"--docs={tmp_path}", "--draws=10"])
    assert (tmp_path / "results.md").read_text() == "no marks here"
