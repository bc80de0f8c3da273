"""The table of docs/integrations.md is what the checks find, and the checks can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from grampus_uq.testing import SENTENCES, CheckResult
from tests.integrations.matrix import ADAPTERS, STOCK, findings, on_page, section, table
from tests.integrations.sentences import KNOWN_FALSE

NAIVE = "LangGraph: monitor and interrupt() in one node"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_shows_what_the_checks_find(tmp_path: Path) -> None:
    adapters, stock = findings(ADAPTERS, tmp_path / "adapters"), findings(STOCK, tmp_path / "stock")
    false = {(name, f.sentence.name) for name, column in adapters.items() for f in column if f.holds is False}
    assert false == {(name, sentence) for name, known in KNOWN_FALSE.items() for sentence in known}
    assert section(adapters, stock) == on_page(), "python -m tests.integrations.matrix --write"


@pytest.mark.slow
def test_the_checks_notice_a_guard_that_pays_twice_and_takes_any_approval(tmp_path: Path) -> None:
    (column,) = findings({NAIVE: STOCK[NAIVE]}, tmp_path).values()
    found = {finding.sentence.name: finding for finding in column}
    assert found["approved_elsewhere"].holds is False
    assert "paid more than once" in found["approved_elsewhere"].detail
    assert "counted twice" in found["belief_continues"].detail
    assert '"mallory"' in found["other_arguments_refused"].detail


def test_the_page_has_a_row_for_every_sentence_and_a_column_for_every_way() -> None:
    shown = on_page()
    assert all(shown.count(f"| {sentence.text} |") == 2 for sentence in SENTENCES)
    for columns in (ADAPTERS, STOCK):
        nothing = {name: [CheckResult(sentence=sentence, holds=None) for sentence in SENTENCES] for name in columns}
        assert table(nothing).splitlines()[0] in shown
