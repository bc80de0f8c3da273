"""The numbers that pages state are those of the code: each sentence is written from the constant, and looked up."""

from __future__ import annotations

import inspect
import math
import time
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from grampus_uq import Permit, UncertaintyEstimator, UncertaintyPolicy, UncertaintyPropagator
from grampus_uq.cli import drills_command, many_runs, stop_command, worker_command
from grampus_uq.core import turn_evidence
from grampus_uq.gate import delegations, permits, webauthn
from grampus_uq.gate.call import MAX_REJECTED
from grampus_uq.importers import formats, grouped, otlp_wire
from grampus_uq.inbox import front_door, inbox_app, notices, people, permit_pages
from grampus_uq.integrations.mcp import (
    call_exchange,
    call_notes,
    guard,
    guarded_calls,
    hand_overs,
    http_sessions,
    http_traffic,
    message_lines,
    shown_names,
    upstream_answer,
)
from grampus_uq.learn.evaluate import verdict
from grampus_uq.learn.fit import detector_split
from grampus_uq.learn.profiles import fitting, p_success, releasing
from grampus_uq.models import openai_compatible, refusals
from grampus_uq.recording import codec, packing
from grampus_uq.records.call_parts import FORM_WEIGHT
from grampus_uq.runtime import (
    drills,
    evidence_proofs,
    graph,
    http_server,
    lent_values,
    loop,
    permit_words,
    reviewers,
    runner,
    stored_drills,
    worker,
)
from grampus_uq.runtime.stored_permits import _TELLING_S
from grampus_uq.runtime.stores import postgres, redis, sqlite
from grampus_uq.signals import call_candidates, call_reader, judged_view, origins, prefix_verifier
from grampus_uq.signals.driver import Budget
from grampus_uq.stats import calibration_watch, eprocess_thresholds, selective
from grampus_uq.telemetry import metrics, outbox, scores, span_content
from grampus_uq.wire import calls
from grampus_uq.wire.lone_surrogates import MAX_TEXT_CHARACTERS

DOCS = Path(__file__).parents[1] / "docs"


def default(function: Any, parameter: str) -> Any:
    return inspect.signature(function).parameters[parameter].default


def decimal(value: float) -> str:
    return f"{value:g}".removeprefix("0")


def hundredths(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def option(command: click.Command, name: str) -> Any:
    """The default of an option of a command."""
    return next(one.default for one in command.params if one.name == name)


POLICY, ESTIMATOR, BUDGET, WATCH = UncertaintyPolicy(), UncertaintyEstimator(), Budget(), calibration_watch
LIMIT = round(len(WATCH.Variant) / default(WATCH.start_watching, "level"))
NUMBERS = {60: "an hour", 15: "a quarter of an hour", 10: "ten", 7: "seven", 6: "six", 5: "five", 3: "three", 2: "two"}
WEIGHTS = UncertaintyPropagator().weights
PERMIT = Permit(tool="pay", principal="ann", expires_s=time.time())
LEAST = {
    at_most: permit_words.least_missing(permit.target, permits.PermitState.fresh(permit).earned)
    for at_most in (0.02, 0.05)
    for permit in [PERMIT.model_copy(update={"epsilon": at_most})]
}
DECIDES, WORKS = drills_command.on, worker_command.command
AUDITED, TRIES = PERMIT.audit_rate, inbox_app._TRIES_A_MINUTE
REQUIRED = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
LITELLM = next(one for one in REQUIRED if one.startswith("litellm")).removeprefix("litellm")
STATED = {
    "../README.md": [f"`grampus-uq runs import` reads [{NUMBERS[len(formats.FORMATS)]} formats]"],
    "quickstart.md": [
        f"low from a confidence of {POLICY.low_threshold:.2f}, medium from {POLICY.medium_threshold:.2f}, "
        f"high from {POLICY.high_threshold:.2f} and critical below",
        f"call needs {POLICY.call_floor:.2f} twice",
    ],
    "runtime.md": [
        f"nested more than {calls._MAX_DEPTH} levels deep, longer than {calls.MAX_ARGUMENT_CHARACTERS:,} characters, a "
        f"number of more than about {int(calls._MAX_BITS * math.log10(2.0)) // 100 * 100:,} digits",
        f"calls beyond the {loop._MAX_CALLS}th of one answer",
        f"Its first {MAX_TEXT_CHARACTERS:,} characters are kept",
        f"(`parent_session`, `attended`, `started_by` and {NUMBERS[len(runner._RESERVED) - 3]} others)",
        f"have stopped after `--wait` seconds ({option(stop_command.command, 'wait_s'):g})",
        f"PostgreSQL has sent nothing for {default(postgres.PostgresStore, 'timeout_s'):g} s, or Redis for "
        f"{default(redis.RedisStore, 'timeout_s'):g} s",
        f"`max_visits` nodes ({graph._MAX_VISITS:,})",
    ],
    "policy.md": [
        f"| stated confidence | {decimal(ESTIMATOR.verbalized_weight)} | "
        f"{hundredths(ESTIMATOR.verbalized_calibration_bias)} |",
        f"| P(True) | {decimal(ESTIMATOR.p_true_weight)} | {hundredths(ESTIMATOR.p_true_calibration_bias)} |",
        f"| token probability | {decimal(ESTIMATOR.token_probability_weight)} | "
        f"{hundredths(ESTIMATOR.token_calibration_bias)} |",
        f"| token entropy | {decimal(ESTIMATOR.token_entropy_weight)} | "
        f"{hundredths(ESTIMATOR.token_calibration_bias)} |",
        f"(`sub_agent`) | {ESTIMATOR.extra_weights['sub_agent']:g} | 0 |",
        ", ".join(f"`{kind}` {hundredths(weight)}" for kind, weight in WEIGHTS.items())
        + f", any other {hundredths(UncertaintyPropagator().default_weight)}",
        f"| LOW | {hundredths(POLICY.low_threshold)} or more |",
        f"| MEDIUM | {hundredths(POLICY.medium_threshold)} or more |",
        f"| HIGH | {hundredths(POLICY.high_threshold)} or more |",
        f"Below `call_floor` ({hundredths(POLICY.call_floor or 0.0)}) an irreversible call",
        f"less likely than {hundredths((POLICY.call_floor or 0.0) ** (1.0 / FORM_WEIGHT))}.",
        "a fused confidence of at least "
        + hundredths(math.ceil(100.0 * (1.0 - (1.0 - POLICY.low_threshold) / WEIGHTS["llm_call"])) / 100.0),
        f"unless `step_id=` names one of the last {turn_evidence.MAX_TURNS}",
        f"any of the session's latest {turn_evidence.MAX_TURNS} answers",
        f"Calls beyond the {turn_evidence.MAX_CALLS}nd of one turn",
    ],
    "permits.md": [
        f"{100.0 * PERMIT.epsilon / (1.0 - AUDITED):.1f} % at a target of {100.0 * PERMIT.epsilon:g} %",
        f"{100.0 * PERMIT.epsilon:g} % takes {LEAST[PERMIT.epsilon]} right answers at the least",
        f"(at most {permits.MOST_OPEN} open tickets)",
        f"At most {permits.MOST_OPEN - 1} calls wait to be counted behind one",
        f"gives up after {NUMBERS[round(_TELLING_S)]}, for all rejections",
        f"{round((1.0 - AUDITED) / AUDITED)} and {int(math.log(0.05) / math.log1p(-AUDITED))} at the default of "
        f"{100.0 * AUDITED:g} %",
    ],
    "inbox.md": [
        f"can be decided together, at most {webauthn.MOST_IN_BATCH}.",
        f"{permit_pages._PAGE} per page, open ones first",
        f"A log of more than {permit_pages._MOST_ENTRIES:,} entries is not plotted",
        f"is stored, once, within {NUMBERS[round(people.CHALLENGE_S / 60.0)]} minutes",
        f"given in steps of {permits.MOST_OPEN // 4}, because",
        f"for up to {delegations.LONGEST_S / 86_400.0:g} days",
        f"within {inbox_app._ALIVE_S:g} seconds, and revokes",
        f"| sessions | {people.SESSION_S / 3_600.0:g} hours;",
        f"bodies up to {front_door.MAX_BODY // 1_024} KiB of stated length within {front_door._BODY_S:g} seconds, "
        f"headers within {http_server._HEADERS_S:g} seconds",
        f"reads nothing of an answer for {http_server._UNREAD_S / 60.0:g} minutes",
        f"| sign-in | {TRIES} requests per minute and address, {10 * TRIES} in all",
        f"| live pages | {inbox_app._MOST}, {inbox_app._MOST_OF_ONE} per person",
        f"each page's session every {inbox_app._ALIVE_S:g} seconds",
        f"A notice is tried {NUMBERS[notices._TRIES]} times",
    ],
    "reviewers.md": [
        f"the larger of the two is at least {lent_values._LEAST_RATIO:g} times the other",
        f"as if asked {NUMBERS[round(drills._MEAN_DELAY_S / 60.0)]} minutes later on average",
        f"(up to {NUMBERS[round(stored_drills._LATEST_S / 60.0)]} minutes)",
        f"**Individual figures** from {reviewers.LEAST_FOR_A_PERSON} drills on",
        f"with its exact {100.0 * reviewers._LEVEL:g} % interval",
        f"({NUMBERS[round(reviewers._SITTING_S / 60.0)]} without a decision ends one)",
        f"(`--tolerated`, {100.0 * option(DECIDES, 'tolerated'):g} %)",
        f"{stored_drills._SOURCES} decisions are drawn for each drill",
        f"compared with {evidence_proofs.GRACE_S:g} s of grace",
    ],
    "scale.md": [
        f"[--at-once {option(WORKS, 'at_once')}] [--tries {option(WORKS, 'tries')}] "
        f"[--drain {option(WORKS, 'drain_s'):g}]",
        f"its change counter, read {1.0 / sqlite._ASK_S:g} times a second",
        f"left to workers of the old release for {NUMBERS[round(worker._REFUSED_S * worker._REFUSALS / 60.0)]}, then",
        f"{NUMBERS[worker._DEATHS_PER_TRY].capitalize()} times as many deaths of its workers in a row",
        f"held, up to {grouped._MAX_OPEN_CHARS // 2**20} million characters",
        f"refused beyond {otlp_wire._MAX_REQUEST_BYTES // 2**20} MiB",
        f"one process for less than {many_runs._WORTH_IT // 2**20} MB",
        f"each of about {packing._FILE_BYTES // 2**20} MB of lines",
    ],
    "security.md": [f"litellm is required as `{LITELLM}`"],
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
        f"a fused confidence of at most {decimal(ESTIMATOR.semantic_trigger_high)},",
        f"| 1, at most {1 + prefix_verifier.MAX_REPAIRS} |",
    ],
    "mcp.md": [
        f"hold_s = {call_exchange.HOLD_S:g} ",
        f"message | {message_lines.MAX_MESSAGE_BYTES // 2**20} MiB",
        f"open requests, sessions | {http_traffic._MAX_OPEN}, {http_sessions._MAX_SESSIONS} |",
        f"with pending calls | about {guarded_calls._MAX_ASKING:,};",
        f"connections | {http_server._MAX_CONNECTIONS:,}; one that has not sent the headers of a request within "
        f"{http_server._HEADERS_S:g} seconds",
        f"| {http_traffic._MAX_BYTES // 2**20} MiB each |",
        f"while the proxy runs | {shown_names.MAX_TOOLS:,};",
        f"waits {NUMBERS[round(upstream_answer.LATE_S / 60.0)]} minutes for the result",
        f"of the last {hand_overs._MOST:,} calls, {hand_overs._MOST_CHARACTERS // 10**6} million characters (a result "
        f"of more than {hand_overs._LONGEST_RESULT:,} is then cut)",
        f"continue in another one for {NUMBERS[round(upstream_answer._RESUME_S / 60.0)]} minutes",
        f"after each of the last {call_notes._MOST_SENT:,} that went there",
        f"refused (of the last {MAX_REJECTED})",
        f"no answer comes for {default(guard.Guard, 'late_s'):g} s",
        f"`timeout_s` ({default(call_reader.Reader, 'timeout_s'):g})",
    ],
    "models.md": [
        f"more than {NUMBERS[refusals._MODEST_LOGPROBS]} alternatives first as {NUMBERS[refusals._MODEST_LOGPROBS]}",
        f"more than {openai_compatible.MAX_RESPONSE_BYTES // 10**6} MB (decompressed)",
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
