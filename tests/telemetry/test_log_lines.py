"""One line a step in the application's own log, and the flush when the process is told to end."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import textwrap

import anyio
import pytest

from grampus_uq import Effect, Outcome, ToolCall, UncertaintyMonitor
from grampus_uq.errors import ConfigurationError
from grampus_uq.telemetry.flushing import flush_on_sigterm
from grampus_uq.telemetry.log_lines import LogProcessor


def run(processor, session_id="s1", **given):
    session = UncertaintyMonitor(processors=[processor], **given).session(session_id, "desk")

    async def steps():
        await session.observe_llm_response("Confidence: 80%", "l1")
        session.observe_tool_result("c", "hunter2")
        await session.observe_tool_call(ToolCall(name="pay"), "t1", effect=Effect.IRREVERSIBLE)
        session.record_decision("approve", principal="ann", step_id="t1", message="hunter2")
        session.finish(Outcome(success=True, note="hunter2"))

    anyio.run(steps)


@pytest.mark.parametrize("advisory", [False, True])
def test_calm_steps_are_debug_and_what_stops_or_would_is_a_warning(caplog, advisory):
    caplog.set_level(logging.DEBUG, "grampus_uq.events")
    run(LogProcessor(), advisory=advisory)
    lines = [(record.levelname, record.getMessage().split()[0]) for record in caplog.records]
    assert lines == [
        ("INFO", "uncertainty.session"),
        ("DEBUG", "uncertainty.step"),
        ("WARNING", "uncertainty.step"),
        ("INFO", "uncertainty.decision"),
        ("INFO", "uncertainty.outcome"),
    ]
    pause = caplog.records[2]
    assert pause.uncertainty["rule"] == "irreversible_override"
    assert pause.uncertainty["tool_name"] == "pay"
    assert "fused_confidence" not in pause.uncertainty  # nothing was read on this step
    assert "hunter2" not in caplog.text
    json.dumps(pause.uncertainty)


def test_an_id_with_line_breaks_stays_on_one_line(caplog):
    caplog.set_level(logging.DEBUG, "grampus_uq.events")
    run(LogProcessor(), session_id="s1\nERROR root forged\x1b[31m")
    for record in caplog.records:
        assert record.getMessage().isprintable()


def test_a_logger_of_ones_own_decides_what_is_written(caplog):
    own = logging.getLogger("my.agent")
    own.setLevel(logging.WARNING)
    run(LogProcessor(own))
    assert [(record.name, record.levelname) for record in caplog.records] == [("my.agent", "WARNING")]


PROGRAM = """
    import os, signal, sys, time
    from grampus_uq.telemetry.outbox import Outbox
    from grampus_uq.telemetry.flushing import flush_on_sigterm

    before = sys.argv[1]
    if before == "handler":
        signal.signal(signal.SIGTERM, lambda number, frame: (print("theirs", number, flush=True), os._exit(7)))
    elif before == "ignored":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    outbox = Outbox(lambda batch: print("sent", list(batch), flush=True), name="x", delay_s=1000.0)
    hangs = lambda: time.sleep(1000)
    with flush_on_sigterm(lambda: outbox.flush(3), hangs, lambda: 1 // 0, timeout_s=3.0):
        outbox.put(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        print("still here", flush=True)
    os._exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "status", "shown"),
    [
        ("default", -signal.SIGTERM, "sent [1]\n"),
        ("handler", 7, f"sent [1]\ntheirs {int(signal.SIGTERM)}\n"),
        ("ignored", 3, "sent [1]\nstill here\n"),
    ],
)
def test_sigterm_flushes_and_then_does_what_it_did_before(before, status, shown):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), before], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (status, shown), done.stderr


def test_the_handler_before_is_put_back_unless_somebody_else_set_one():
    mine = signal.getsignal(signal.SIGTERM)
    try:
        with flush_on_sigterm():
            assert signal.getsignal(signal.SIGTERM) is not mine
        assert signal.getsignal(signal.SIGTERM) is mine

        def theirs(number, frame):
            return None

        with flush_on_sigterm():
            signal.signal(signal.SIGTERM, theirs)
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, mine)


def test_outside_the_main_thread_it_says_so():
    def elsewhere():
        with flush_on_sigterm():
            return

    async def main():
        await anyio.to_thread.run_sync(elsewhere)

    with pytest.raises(ConfigurationError, match="main thread"):
        anyio.run(main)
