"""Every example runs as its first lines say, with a scripted model."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.loopback import Loopback, Reply, Request, as_json, chat, serving

ROOT = Path(__file__).parents[1]


def example(name: str, *arguments: str) -> str:
    finished = subprocess.run(
        [sys.executable, f"examples/{name}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_refund_agent_pauses_before_money_moves_and_pays_once_when_approved() -> None:
    shown = example("refund_agent.py")
    assert shown.splitlines()[0].startswith("waiting_for_human")
    assert 'refund({"amount_eur":40.0,"order_id":"A-17"})' in shown
    assert "completed: Your 40 EUR are on their way." in shown
    assert "refunds made: [40.0]" in shown


def test_the_refund_agent_pays_nothing_when_rejected() -> None:
    assert "refunds made: []" in example("refund_agent.py", "--decision", "reject")


def test_with_a_store_the_refund_agent_stops_at_the_pause(tmp_path: Path) -> None:
    shown = example("refund_agent.py", "--store", f"sqlite:///{tmp_path / 'refunds.db'}")
    assert shown.startswith("waiting_for_human")
    assert "completed" not in shown


@pytest.mark.slow  # each process imports a whole framework; the quick stage runs the pages of the frameworks
@pytest.mark.parametrize("name", ["openai_agents_agent.py", "pydantic_ai_agent.py"])
def test_a_frameworks_agent_is_paused_in_one_process_and_decided_on_in_another(name: str, tmp_path: Path) -> None:
    paused = tmp_path / "paused.json"
    shown = example(name, "--state", str(paused))
    assert shown.startswith('waits: refund({"amount_eur":40.0,"order_id":"A-17"})')
    assert "lowest: stated confidence 0.70" in shown  # what the model said of it was read
    for decision, refunds in (("edit", "[20.0]"), ("approve", "[40.0]"), ("reject", "[]")):
        state = str(shutil.copy(paused, tmp_path / f"{decision}.json"))
        assert f"refunds made: {refunds}" in example(name, "--state", state, "--decision", decision)


@pytest.mark.slow
def test_plain_calls_are_watched_and_asked_before_money_moves() -> None:
    assert "no refund without a human" in example("litellm_calls.py")


@pytest.mark.slow
def test_the_langgraph_agent_stops_at_the_pause_and_another_process_pays_once(tmp_path: Path) -> None:
    database = str(tmp_path / "threads.db")
    shown = example("langgraph_agent.py", "--database", database)
    assert shown.startswith("waits: pay(")
    assert "paying" not in shown
    shown = example("langgraph_agent.py", "--database", database, "--resume", "approve")
    assert shown.count("* paying 120 EUR to Bob's Bikes") == 1
    assert "answer: Invoice 2041 is paid." in shown


@pytest.mark.slow
def test_the_langchain_agent_deletes_nothing_when_rejected() -> None:
    shown = example("langchain_agent.py", "--decision", "reject")
    assert 'waits: delete_file({"name":"report-2024.pdf"})' in shown
    assert "deleting" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", ["langgraph_agent.py", "langchain_agent.py"])
def test_an_example_runs_with_any_openai_compatible_server(name: str) -> None:
    def behave(request: Request, _: Loopback) -> Reply:
        if "Reply with" in request.body["messages"][-1]["content"]:
            return as_json(chat('{"p_true": 0.7}'))
        tool = {"langgraph_agent.py": "pay", "langchain_agent.py": "delete_file"}[name]
        assert tool in [one["function"]["name"] for one in request.body["tools"]]
        if request.body["messages"][-1]["role"] == "tool":
            return as_json(chat("Done it."))
        arguments = {"pay": '{"to": "Bob", "amount_eur": 5}', "delete_file": '{"name": "old.txt"}'}[tool]
        call = {"id": "c1", "type": "function", "function": {"name": tool, "arguments": arguments}}
        return as_json(chat(None, tool_calls=[call]))

    with serving(behave) as server:
        shown = example(name, "--model", "any", "--api-base", server.api_base)
    assert "waits: " in shown
    assert shown.count("  * ") == 1
    assert "answer: Done it." in shown


@pytest.mark.slow
@pytest.mark.parametrize(("decision", "refunds"), [("approve", 1), ("reject", 0)])
def test_a_run_that_waits_is_no_workflow_of_dbos_and_the_next_part_refunds_once(
    decision: str, refunds: int, tmp_path: Path
) -> None:
    pytest.importorskip("dbos", reason="the package dbos is not installed (extra 'test' brings it)")
    paused = example("dbos_agent.py", "--folder", str(tmp_path))
    assert paused.splitlines()[0] == "the run: waiting_for_human"
    db = sqlite3.connect(tmp_path / "dbos.db")
    assert {status for (status,) in db.execute("SELECT status FROM workflow_status")} == {"SUCCESS"}  # nothing waits
    db.close()
    decided = example("dbos_agent.py", "--folder", str(tmp_path), "--decision", decision)
    assert decided.count("refunding") == refunds
    assert decided.splitlines()[-1] == "the run: completed"
    assert example("dbos_agent.py", "--folder", str(tmp_path), "--decision", decision) == ""
