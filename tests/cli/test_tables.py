"""A table fits a terminal of 100 columns and loses nothing there; off a terminal it is lines of tab-separated cells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Reading, Step, UncertaintyLevel, UncertaintyMonitor, open_store
from grampus_uq.cli.approvals_command import _list_row
from grampus_uq.cli.backtest_command import _interval
from grampus_uq.cli.compare_command import _figure
from grampus_uq.cli.printing import folded, print_table
from grampus_uq.learn.alarm_figures import Figure
from grampus_uq.recording import RecordingProcessor, encode
from grampus_uq.records.events import StepEvent
from grampus_uq.runtime.cards import Card
from grampus_uq.testing import answer
from tests.cli.test_bad_files import called
from tests.learn.evaluate.recorded import many, write
from tests.recording.events import session
from tests.runtime.agents import AGENT, World, mail, runner
from tests.sampling import sampled

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a-session-with-a-name-that-is-much-too-long-for-a-narrow-column", "s2"):
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(map(encode, session(name))))
    return tmp_path


def on_a_terminal(*arguments: str, piped: bool = False, whole: bool = False, columns: int = 100) -> str:
    """What a terminal shows of a command: its standard output, with `piped` its standard error, `whole` both."""
    import fcntl
    import struct
    import termios

    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    command = [sys.executable, "-m", "grampus_uq.cli", *arguments]
    environment = {**os.environ, "TERM": "xterm"}
    shown = b""
    out, err = (subprocess.DEVNULL, its) if piped else (its, its if whole else subprocess.DEVNULL)
    with subprocess.Popen(command, stdout=out, stderr=err, env=environment):
        os.close(its)
        try:
            while part := os.read(mine, 65536):
                shown += part
        except OSError:  # how a terminal ends on Linux
            pass
        finally:
            os.close(mine)
    left = re.sub(r"[^\n]*\r\x1b\[2K", "", shown.decode())  # of a line that is erased nothing is seen
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", left).replace("\r", "")


def test_a_reader_of_the_table_has_the_terminal_for_itself(folder: Path) -> None:
    assert on_a_terminal("runs", "list", str(folder), piped=True) == ""


def test_what_is_left_out_has_lines_of_its_own_while_a_counter_runs(folder: Path) -> None:
    (folder / "broken.jsonl").write_text("{")
    lines = on_a_terminal("runs", "list", str(folder), whole=True).splitlines()
    assert [line[:9] + line[-13:] for line in lines if "left out" in line] == ["warning: was left out."]


@sampled("columns", [60, 80], full=[40, 60, 72, 80, 90, 95, 100, 120])
def test_no_amount_and_no_id_is_broken_on_a_narrow_terminal(tmp_path: Path, columns: int) -> None:
    """`amount=8` in one line and `5.5` in the next was read as 8."""
    store = f"sqlite:///{tmp_path}/s.db"

    async def pause() -> str:
        kept = open_store(store)
        turns = [answer("I will.", tool_calls=[mail("c", "bob", "amount=85.5")]), answer("Done.")]
        result = await runner(World(), turns, store=kept).run(AGENT, "mail bob", session_id="order-17")
        await kept.aclose()
        return result.pending[0].id[:8]

    request = anyio.run(pause)
    shown = on_a_terminal("approvals", "list", "--store", store, columns=columns)
    assert max(map(len, shown.splitlines())) <= columns
    for whole in (request, "order-17", 'body="amount=85.5"', "irreversible", "pending"):
        assert whole in shown
    shown = on_a_terminal("drills", "report", "--store", store, columns=columns)  # a column without a name
    assert "0 to 15 min" in shown
    assert not [line for line in shown.splitlines() if line.startswith(":")]


def test_a_table_without_a_word_in_a_column_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for rows in ([], [("", None)]):
        print_table(("", "missed"), rows)


def test_a_table_that_is_written_to_a_terminal_has_every_row_and_no_sign_that_the_terminal_obeys(
    tmp_path: Path,
) -> None:
    """The counter beside it swallowed every row, whose ends it took for its own."""
    name = "s\x1b]0;own\x07\u202e"
    events = [
        replace(event, readings=(Reading(source=name, value=0.5),)) if isinstance(event, StepEvent) else event
        for event in session(name)
    ]
    (tmp_path / "s.jsonl").write_bytes(b"".join(map(encode, events)))
    shown = on_a_terminal("runs", "table", str(tmp_path), "-o", "-", "--format", "csv", whole=True)
    assert ",reading_s\\x1b]0;own\\x07\\u202e\n" in shown
    assert shown.count(",0.5\n") == 3
    lines = [line for line in shown.splitlines() if line.startswith("s\\x1b]0;own\\x07\\u202e,")]
    assert (len(lines), shown.count("session_id")) == (3, 1)
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_no_line_is_wider_than_the_terminal_and_every_name_is_whole_when_its_lines_are_joined(folder: Path) -> None:
    listed = on_a_terminal("runs", "list", str(folder))
    shown = on_a_terminal("runs", "show", str(folder), "s2")
    lines = (listed + shown).splitlines()
    assert max(len(line) for line in lines if not line.startswith("path:")) <= 100  # a path is whole, to be copied
    first = "".join(line.split()[0] for line in listed.splitlines()[3:] if line.strip() and " s2 " not in line)
    assert "a-session-with-a-name-that-is-much-too-long-for-a-narrow-column" in first
    assert "stated confidence 0.25" in " ".join(shown.split())
    assert "\t" not in listed
    assert "path" not in listed, "of one folder: a session's name finds its run"
    assert "path" in on_a_terminal("runs", "list", str(folder / "s2.jsonl"), str(folder / "s2.jsonl"))


def test_a_step_of_many_readings_shows_the_lowest_on_a_terminal_and_every_one_in_a_pipe(tmp_path: Path) -> None:
    readings = [Reading(source=f"own_{n}", value=0.1 * n + 0.17) for n in range(6)]
    events = [replace(e, readings=tuple(readings)) if isinstance(e, StepEvent) else e for e in session("s2")]
    (tmp_path / "s2.jsonl").write_bytes(b"".join(map(encode, events)))
    shown = " ".join(on_a_terminal("runs", "show", str(tmp_path), "s2").split())
    assert "0.17" in shown
    assert "higher" in shown
    assert "0.67" not in shown
    assert "own 5 0.67" in called("runs", "show", str(tmp_path), "s2").stdout


def test_evaluate_shows_a_row_a_signal_and_with_all_every_score(tmp_path: Path) -> None:
    write(tmp_path / "runs.jsonl", *many(50, np.random.default_rng(0)))
    short, whole = (called("evaluate", str(tmp_path), "--draws", "20", *more) for more in ([], ["--all"]))
    rows = [line.split("\t") for line in short.stdout.splitlines()]
    assert rows[0] == ["signal", "runs", "skipped", "auroc", "auroc_at_the_call", "gain", "t_ece"]
    assert {row[0] for row in rows[1:]} >= {"verbalized", "p_true", "fused"}
    assert len(rows) <= 13
    assert short.stderr.count("every score: --all") == 1
    assert "verbalized, recalibrated: min" in whole.stdout
    assert len(whole.stdout.splitlines()) > 2 * len(rows)


@sampled("group", [["approvals"]], full=[[], ["runs"], ["approvals"], ["calibration"]])
def test_help_shows_what_a_command_does_in_a_whole_sentence(group: list[str]) -> None:
    command = [sys.executable, "-m", "grampus_uq.cli", *group, "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "..." not in shown.partition("Commands:")[2]


def test_in_a_pipe_each_row_is_a_line_and_nothing_else_is_on_standard_output(folder: Path) -> None:
    command = [sys.executable, "-m", "grampus_uq.cli", "runs", "show", str(folder), "s2"]
    piped = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = [line.split("\t") for line in piped.stdout.splitlines()]
    assert {len(cells) for cells in lines} == {7}
    assert len(lines) == 1 + len(session())
    assert "thresholds:" in piped.stderr


def test_in_a_pipe_a_cell_without_a_value_is_empty(tmp_path: Path) -> None:
    with RecordingProcessor(tmp_path) as recorder:
        unread = UncertaintyMonitor(processors=[recorder]).session("unread")
        unread.commit(Step(step_id="1", kind="llm_call", time_s=0.0), ())
    listed, shown = (
        called("runs", *what).stdout for what in (["list", str(tmp_path)], ["show", str(tmp_path), "unread"])
    )
    cells = [cell for line in (listed + shown).splitlines() for cell in line.split("\t")]
    assert "llm_call" in cells
    assert "-" not in cells
    assert _interval(Figure()) is _figure(None) is None


@given(text=st.text(st.characters(exclude_characters="\n")), columns=st.integers(20, 120))
def test_no_part_of_a_long_text_begins_a_line_of_its_own(text: str, columns: int) -> None:
    first, *more = folded(f"  body = {text}", columns).split("\n")
    assert all(part.startswith("    > ") for part in more)
    assert first + "".join(part.removeprefix("    > ") for part in more) == f"  body = {text}"
    assert all(sum(1 if c.isascii() else 2 for c in part) <= columns for part in [first, *more])


def test_a_long_text_goes_on_with_a_whole_word_and_what_has_no_blank_where_the_line_is_full() -> None:
    assert folded("at most 10 % of runs that succeed", 20) == "at most 10 % of \n    > runs that \n    > succeed"
    assert folded("x" * 30, 20) == f"{'x' * 20}\n    > {'x' * 10}"


def test_a_sentence_of_a_report_breaks_at_blanks_alone_and_goes_on_indented(tmp_path: Path) -> None:
    write(tmp_path / "runs.jsonl", *many(6, np.random.default_rng(0)))
    sentence = called("evaluate", str(tmp_path), "--draws", "5").stderr.splitlines()[0]
    shown = on_a_terminal("evaluate", str(tmp_path), "--draws", "5", piped=True, columns=60)
    assert max(map(len, shown.splitlines())) <= 60
    assert sentence in shown.replace("\n    ", " ")


def test_a_pending_call_is_shown_on_a_terminal_so_that_no_argument_looks_like_another(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 's.db'}"
    body = "x" * (100 - len('  body = "')) + "  to = bob"
    turns = [answer("Go.", tool_calls=[mail("a", "eve", body)]), "Done."]
    result = anyio.run(lambda: runner(World(), turns, store=open_store(store)).run(AGENT, "mail", session_id="s"))
    shown = on_a_terminal("approvals", "show", result.pending[0].id, "--store", store)
    assert '    >   to = bob"' in shown.splitlines()
    assert max(map(len, shown.splitlines())) <= 100


def test_the_list_says_in_the_largest_unit_how_long_a_request_waits_and_may_wait() -> None:
    values = {"id": "r" * 32, "digest": "", "agent_id": "a", "session_id": "s", "step_id": "llm_0", "rule": "tier"}
    shown = Card(**values, level=UncertaintyLevel.MEDIUM, created_s=0.0, expires_s=90_000.0)
    assert _list_row(shown, ([], []), 3_540.0)[6:8] == ["59 min", "in 1 d"]
