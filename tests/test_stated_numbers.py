"""The numbers that pages state are those of the code: each sentence is written from the constant, and looked up."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest

from grampus_uq import UncertaintyEstimator, UncertaintyPolicy
from grampus_uq.learn.evaluate import verdict
from grampus_uq.learn.fit import detector_split
from grampus_uq.learn.profiles import fitting, p_success, releasing
from grampus_uq.models import OpenAICompatibleModel, refusals
from grampus_uq.recording import codec
from grampus_uq.signals import call_candidates, call_reader, judged_view, origins, prefix_verifier
from grampus_uq.signals.driver import Budget
from grampus_uq.stats import calibration_watch, eprocess_thresholds, selective
from grampus_uq.telemetry import metrics, outbox, scores, span_content

DOCS = Path(__file__).parents[1] / "docs"


def default(function: Any, parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].default


def decimal(value: float) -> str:
    return f"{value:g}".removeprefix("0")


POLICY, BUDGET, WATCH = UncertaintyPolicy(), Budget(), calibration_watch
LIMIT = round(len(WATCH.Variant) / default(WATCH.start_watching, "level"))
NUMBERS = {10: "ten", 5: "five", 3: "three"}
STATED = {
    "quickstart.md": [
        f"low from a confidence of {POLICY.low_threshold:.2f}, medium from {POLICY.medium_threshold:.2f}, "
        f"high from {POLICY.high_threshold:.2f} and critical below",
        f"call needs {POLICY.call_floor:.2f} twice",
    ],
    "recordings.md": [
        f"a line of more than {codec.MAX_LINE_BYTES // 2**20} MiB",
        f"arguments nested deeper than {codec.MAX_DEPTH}",
    ],
    "signals.md": [
        f"more than {judged_view.MAX_CALL_CHARACTERS:,} characters of them are not judged",
        f"({judged_view.MAX_TEXT_CHARACTERS:,} characters each, {judged_view.MAX_TOOL_CHARACTERS:,} for tools)",
        f"longer than {call_reader.MAX_CALL_CHARACTERS:,} characters without its prose, or one of more than "
        f"{call_reader.MAX_CALLS};",
        f"{default(call_reader.Reader, 'max_characters'):,} characters in all (`max_characters`)",
        f"digests of {origins.MAX_VALUES} values and {origins.MAX_CALLS} calls",
        f"budget=Budget(timeout_s={BUDGET.timeout_s:g}, max_calls={BUDGET.max_calls}, max_tokens={BUDGET.max_tokens})",
        f"Up to {NUMBERS[call_candidates.MOST]} are shown, each of a probability of "
        f"{decimal(call_candidates.LEAST)} or more",
        f"values of more than {call_candidates._LONGEST} characters",
        f"a fused confidence of at most {decimal(UncertaintyEstimator().semantic_trigger_high)},",
        f"| 1, at most {1 + prefix_verifier.MAX_REPAIRS} |",
    ],
    "models.md": [
        f"more than {NUMBERS[refusals._MODEST_LOGPROBS]} alternatives first as {NUMBERS[refusals._MODEST_LOGPROBS]}",
        f"more than {default(OpenAICompatibleModel, 'max_response_bytes') // 10**6} MB (decompressed)",
    ],
    "telemetry.md": [
        f"each text cut at {span_content._MOST_CHARACTERS:,} characters",
        f"bounded queues ({default(outbox.Outbox, 'capacity'):,} by default)",
        f"room for {metrics._ROOM} more values",
        f"up to {NUMBERS[default(scores.Poster, 'attempts') - 1]} retries",
        f"{', '.join(map(str, sorted(scores._AGAIN)[:4]))}, 502 to {max(scores._AGAIN)})",
    ],
    "evaluation.md": [f"Where {verdict._FEW_OF_A_KIND} successes and {verdict._FEW_OF_A_KIND} failures propose"],
    "fitting.md": [
        f"fewer than {NUMBERS[p_success.LEAST_OF_EACH]} successes and {NUMBERS[p_success.LEAST_OF_EACH]} failures",
        f"budget of calls that are executed wrongly ({decimal(releasing.BUDGET)})",
        f"{selective.budget_needed(0.05)} for the bound on average over calibrations, "
        f"{selective.budget_needed(0.05, 0.1)} for a bound with probability 90 %",
        f"{selective.released_needed(1.0, 0.9, 0.1)} of them at 90 %; with 95 % right, about "
        f"{selective.released_needed(0.95, 0.9, 0.1)}.",
        f"at least {math.ceil(eprocess_thresholds.successes_needed(0.1) / 0.05)} successes",
    ],
    "detector.md": [
        f"fewer than {detector_split._LEAST_TO_LEARN} of each class",
        f"Each compares with {WATCH.REFERENCE_RUNS} runs at least",
        f"(limit {LIMIT})",
    ],
    "dashboards.md": [f"({LIMIT} to 1)"],
    "guarantees.md": [
        f"lists up to {fitting._MOST_TEACHERS:,} runs and {fitting._MOST_INPUTS:,} files",
        f"| {selective.budget_needed(0.05)} at 5 %, {selective.budget_needed(0.1)} at 10 % |",
        f"| {selective.budget_needed(0.05, 0.1)} with `--assurance .9` |",
        f"| {eprocess_thresholds.successes_needed(0.1, 0.1)} successes at .1/.1 |",
    ],
}
"""By page: sentences, or pieces of them, with the numbers that the code has."""


@pytest.mark.parametrize("page", STATED)
def test_the_numbers_of_a_page_are_those_of_the_code(page: str) -> None:
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    assert [sentence for sentence in STATED[page] if sentence not in text] == []
