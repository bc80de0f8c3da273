"""The demo's live table and its report. Text of a model is never markup here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from grampus_uq.demo.demo_report import FUSED, NAMES, DemoReport, SignalWorth, Spent
from grampus_uq.demo.demo_run import Answered
from grampus_uq.demo.demo_wiring import PUBLISHED, DemoPlan
from grampus_uq.records.visible_text import without_controls

_ROWS: Final = 12
_STAGES: Final = {
    "download": "Fetching the embedded model (once)",
    "start": "Starting the embedded model",
}
_FATES: Final = {
    "published": ("published", "green"),
    "paused": ("paused for a human", "yellow"),
    "aborted": ("aborted", "red"),
    "unanswered": ("no answer", "dim"),
}
_ADVISED: Final = {"published": "let pass", "paused": "would pause", "aborted": "would abort"}


def printable(text: str) -> str:
    """The text on one line without control, escape and direction characters: it may come from anywhere.

    >>> printable("a\\x1b[2Jb\\n\\u202ec")
    'a [2Jb c'
    """
    return " ".join(without_controls(text).split())


class Screen:
    """The display while the demo runs. Progress may come from any thread; the display renders on its own."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._stage = "Starting"
        self._answers: list[Answered] = []
        self._started = time.monotonic()
        self._print_line: Callable[[str], None] | None = None

    def print_lines(self, print_line: Callable[[str], None]) -> None:
        """Print a line for every new stage and every tenth answer, where no live display is possible."""
        self._print_line = print_line

    def on_progress(self, stage: str, done: int, total: int | None) -> None:
        """Take progress of the embedded model: bytes while fetching and checking, seconds while starting."""
        words = _STAGES.get(stage, stage)
        if self._print_line is not None and not self._stage.startswith(words):
            self._print_line(f"{words} ...")
        if stage == "start":
            self._stage = f"{words}: {done} s"
        elif total:
            self._stage = f"{words}: {done // 10**6} of {total // 10**6} MB"
        else:
            self._stage = words

    def on_answered(self, answered: Answered) -> None:
        """Take one question's end."""
        self._answers.append(answered)
        if self._print_line is not None and len(self._answers) % 10 == 0:
            self._print_line(self.line)

    @property
    def line(self) -> str:
        """The state in one line."""
        if not self._answers:
            return self._stage
        paused = sum(one.fate in ("paused", "aborted") for one in self._answers)
        published = sum(one.fate == "published" for one in self._answers)
        seconds = time.monotonic() - self._started
        return (
            f"{len(self._answers)} of {self._total} answered, {published} published, {paused} paused, {seconds:.0f} s"
        )

    def __rich__(self) -> RenderableType:
        if not self._answers:
            return Text(self.line)
        return Stack(_answers_view(self._answers[-_ROWS:]), Text(self.line))


def _answers_view(answers: Sequence[Answered]) -> Table:
    """One row an answer: question, answer, readings, decision."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("question", max_width=44, no_wrap=True, overflow="ellipsis")
    table.add_column("answer", max_width=30, no_wrap=True, overflow="ellipsis")
    table.add_column("key")
    for name in ("U_t", "token p", "P(True)", "samples", "confidence"):
        table.add_column(name, justify="right")
    table.add_column("decision", no_wrap=True)
    for one in answers:
        style = _FATES[one.fate][1]
        confidence = None if one.assessment is None else one.assessment.propagated_confidence
        table.add_row(
            Text(printable(one.question.text.partition("?")[0]) + "?"),
            Text(printable(one.answer or one.error)),
            {True: Text("right", "green"), False: Text("wrong", "red"), None: Text("-")}[one.right],
            _number(one.surprisal),
            *(_number(_value(one, source)) for source in ("token_probability", "p_true", "semantic_entropy")),
            _number(confidence),
            Text(one.fate, style),
        )
    return table


def report_view(report: DemoReport, plan: DemoPlan, *, interrupted: bool) -> Stack:
    """The figures and their remarks."""
    return Stack(*_report_parts(report, plan, interrupted))


def closing_lines(report: DemoReport, plan: DemoPlan) -> list[str]:
    """Place of the recording and the next command, as plain lines to copy."""
    published = any(group.n for group in report.groups if group.fate == "published")
    where = f"Recording: {plan.folder}" + (f" (published answers in {PUBLISHED})" if published else "")
    return [where, f"Next:      {plan.next_command}"]


def _report_parts(report: DemoReport, plan: DemoPlan, interrupted: bool) -> Iterator[RenderableType]:
    done = f"{report.answered} of {len(plan.questions)}" if report.answered < len(plan.questions) else report.answered
    right = _share(report.right, report.answered)
    yield Text(
        f"{printable(plan.model) or 'The server'}: {done} questions answered in {report.seconds:.0f} s, {right} right "
        f"(drawn from {plan.out_of}, seed {plan.seed})" + (" - interrupted" if interrupted else ""),
        style="bold",
    )
    yield Text()
    yield _groups_view(report)
    if report.wrong_published:
        shown = [f"{printable(one.answer)[:60]!r}" for one in report.wrong_published[:3]]
        more = len(report.wrong_published) - len(shown)
        yield Text(f"Wrong, and published: {', '.join(shown)}" + (f", and {more} more" if more else ""))
    yield Text()
    yield _signals_view(report.signals)
    yield Text()
    yield Text(f"The agent itself spent {_spent(report.agent)}; the monitor {_spent(report.monitor)}.")
    for remark in report.remarks:
        yield Text(remark)
    for name, failures in plan.monitor.processor_failures.items():
        yield Text(f"{name} failed {failures} times: what it keeps is not complete.", style="red")
    yield Text()


def _groups_view(report: DemoReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what the policy would do" if report.advisory else "what happened")
    table.add_column("answers", justify="right")
    table.add_column("right", justify="right")
    for group in report.groups:
        words, style = _FATES[group.fate]
        words = _ADVISED.get(group.fate, words) if report.advisory else words
        right = "-" if group.fate == "unanswered" else _share(group.right, group.n)
        table.add_row(Text(words, style), str(group.n), right)
    return table


def _signals_view(signals: Sequence[SignalWorth]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("signal")
    for name in ("n", "AUROC", "95 % interval", "calls", "tokens"):
        table.add_column(name, justify="right")
    table.add_column("without a reading")
    for worth in signals:
        interval = "-" if worth.low is None or worth.high is None else f"{worth.low:.2f} to {worth.high:.2f}"
        table.add_row(
            Text(NAMES.get(worth.source, worth.source), "bold" if worth.source == FUSED else ""),
            str(worth.n),
            _number(worth.auroc),
            interval,
            f"{worth.calls:,}" if worth.calls else "-",
            f"{worth.tokens:,}" if worth.tokens else "-",
            Text(", ".join(f"{reason.replace('_', ' ')} {n}" for reason, n in worth.missing.items()) or "-"),
        )
    return table


def _value(one: Answered, source: str) -> float | None:
    return next((reading.value for reading in one.readings if reading.source == source), None)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)" if whole else "-"


def _spent(spent: Spent) -> str:
    cost = "" if not spent.cost_usd else f" (${spent.cost_usd:.4f})"
    return f"{spent.calls:,} calls, {spent.tokens:,} tokens{cost}"
