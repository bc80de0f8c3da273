"""The table of docs/integrations.md: every conformance sentence, asked of each adapter and of each stock approval.

    python -m tests.integrations.matrix            # print it
    python -m tests.integrations.matrix --write    # put it into the page, between its marks

"yes" and "no" are what the check found; where the framework cannot be asked the cell says why, and "-" stands where its
harness here does not offer the question.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from grampus_uq.testing import SENTENCES, AgentLaboratory, CheckResult, check_agent
from grampus_uq.testing.agent_under_test import NOT_OFFERED

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
BEGIN, END = "<!-- matrix: python -m tests.integrations.matrix --write -->", "<!-- end of matrix -->"
HERE = "tests.integrations."

ADAPTERS = {
    "LangGraph": HERE + "langgraph_agent:build",
    "LangChain": HERE + "langchain_agent:build",
    "OpenAI Agents SDK": HERE + "agents_sdk:build",
    "pydantic-ai": HERE + "pydantic_ai_agent:build",
    "AgentRunner": HERE + "runner_agent:build",
    "MCP proxy": HERE + "mcp_proxy_agent:build",
}
STOCK = {
    "LangGraph: interrupt() in the tool": HERE + "langgraph_stock:build",
    "LangGraph: monitor and interrupt() in one node": HERE + "langgraph_stock:build_naive",
    "LangChain: HumanInTheLoopMiddleware": HERE + "langchain_agent:build_stock",
    "OpenAI Agents SDK: needs_approval": HERE + "agents_sdk:build_stock",
    "pydantic-ai: requires_approval": HERE + "pydantic_ai_agent:build_stock",
}
Findings = Mapping[str, Sequence[CheckResult]]


def findings(factories: Mapping[str, str], folder: Path) -> dict[str, list[CheckResult]]:
    """Every sentence, of every factory, in the order of the sentences."""
    found = {}
    for number, (name, factory) in enumerate(factories.items()):
        with AgentLaboratory(factory, folder / str(number)) as laboratory:
            found[name] = [check_agent(laboratory, sentence) for sentence in SENTENCES]
    return found


def table(found: Findings) -> str:
    """One row a sentence that anybody is asked, one column a way to run an agent; what is not asked below."""
    lines = ["| | " + " | ".join(found) + " |", "|---|" + "---|" * len(found)]
    for number, sentence in enumerate(SENTENCES):
        cells = [_cell(column[number]) for column in found.values()]
        if {*cells} != {"-"}:
            lines.append(f"| {sentence.text} | " + " | ".join(cells) + " |")
    notes = []
    for name, column in found.items():
        unasked = sorted({need for finding in column for need, why in _lacking(finding) if why == NOT_OFFERED})
        notes += [f"- {name}: not tested for {', '.join(unasked)}."] if unasked else []
    return "\n".join(lines + (["", *notes] if notes else []))


def _lacking(finding: CheckResult) -> list[tuple[str, str]]:
    """What stands in the way of the question: what is needed, and why it is not there."""
    parts = [part.partition(": ") for part in finding.detail.split("; ")] if finding.holds is None else []
    return [(need, why) for need, _, why in parts]


def _cell(finding: CheckResult) -> str:
    if finding.holds is not None:
        return "yes" if finding.holds else "**no**"
    return "; ".join(why for _, why in _lacking(finding) if why and why != NOT_OFFERED) or "-"


def section(adapters: Findings, stock: Findings) -> str:
    """What stands between the marks."""
    return f"With the adapter:\n\n{table(adapters)}\n\nWith the framework's own approval:\n\n{table(stock)}"


def on_page() -> str:
    """What the page holds now."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        adapters = findings(ADAPTERS, Path(folder, "adapters"))
        stock = findings(STOCK, Path(folder, "stock"))
    made = section(adapters, stock)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
        PAGE.write_text(f"{head}\n{made}\n{tail}", encoding="utf-8")
    else:
        print(made)
    for name, column in {**adapters, **stock}.items():
        for finding in column:
            if finding.holds is False:
                print(f"{name}: {finding.sentence.name}: {finding.detail[:300]}")


if __name__ == "__main__":
    main()
