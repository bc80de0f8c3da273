"""How long 200 kB of hostile text keep each parser busy, and how that grows with the length.

A text that a model, a user or a tool writes may be made to stall whoever parses it. Each parser is given each of the
inputs below at several lengths; a row is a parser with the input that is worst for it: milliseconds (least of several
runs, processor time) at 200 kB, and the exponent of a power of the length that fits the times (1 is linear). To reach:
under 20 ms each, and no exponent above 1.2. The command ends with 1 when one of them is missed.

    python -m tests.benchmarks.hostile_text [--all] [--json]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

from rich.progress import track

from grampus_uq import Step, TokenLogprob, ToolCall
from grampus_uq.signals.admissions import hedged_confidence
from grampus_uq.signals.call_tokens import call_parts
from grampus_uq.signals.confidence_forms import parse_number
from grampus_uq.signals.equivalence import lexical_similarity, same_wording
from grampus_uq.signals.p_true import parse_p_true
from grampus_uq.signals.stated_confidence import parse_confidence
from grampus_uq.signals.verbalized import VerbalizedConfidence
from grampus_uq.wire.calls import read_call
from tests.benchmarks._report import emit

SIZES = (25_000, 50_000, 100_000, 200_000)
MAX_MS, MAX_EXPONENT = 20.0, 1.2

# Each piece is repeated to the length wanted.
PIECES = {
    "braces": "{",
    "brackets": "[",
    "closing": "]}",
    "code": "fn(){ x; ",
    "quotes": "\"'",
    "backslashes": '\\"',
    "blanks": " ",
    "newlines": "\n",
    "digits": "9",
    "points": "1.",
    "commas": "1,",
    "signs": "+-",
    "percents": "%",
    "words": "word ",
    "one word": "a",
    "apostrophes": "a'",
    "underscores": "_",
    "dotted capital i": "İ",
    "ligatures": "ﬁ",
    "combining marks": "e\u0301",
    "emoji": "🤷",
    "keys": '"confidence"',
    "keys and colons": '"confidence": ',
    "keys and blanks": '"confidence"' + " " * 60 + ":" + " " * 60,
    "open values": '"confidence": "' + "a" * 39,
    "long values": '"confidence": ' + "a" * 39,
    "bad values": '"confidence": NaN, ',
    "good values": '"confidence": 0.5, ',
    "nested": '{"confidence": ',
    "unquoted keys": 'confidence": 0.5, ',
    "names": "confidence",
    "levels": "confidence level ",
    "prose": "confidence: ",
    "prose and blanks": "confidence" + " " * 4 + ":" + " " * 4,
    "prose and numbers": "confidence is about 0." + "1" * 30,
    "prose and stars": "confidence***  : ***  ***",
    "statements": "I am 90% sure. ",
    "lines of statements": "I am 90% sure.\n",
    "claims": "the probability that this is right is 0.9. ",
    "other scales": "confidence: 1 out of 10, ",
    "fences": "```\nsure\n",
    "elements": "<a></a>",
    "own elements": "<answer>",
    "comments": "<!--",
    "curly marks": "“a” ",
    "single marks": " 'a' ",
    "opening marks": " 'a",
    "code marks": "`a",
    "block quotations": "> sure\n\n",
    "indented": "    sure\n",
    "dialogue": "user: sure\n",
    "almost dialogue": "the user \n",
    "announcements": "sure a:\n",
    "table": "a b: sure\n",
    "bullets": "- sure\n",
    "objects": '\n{"confidence": ',
    "abbreviations": "e.g. sure ",
    "open tags": "<confidence>",
    "half tags": "<confidence",
    "sure": "% sure ",
    "almost sure": "5%    sur ",
    "numbers that are sure": "1000% sure ",
    "hedges": "roughly maybe perhaps i think ",
    "almost hedges": "thoroughly_",
    "admissions": "not entirely sure ",
    "almost admissions": "don't really know_",
    "p_true": '"p_true": ',
    "negations": "not never no don't ",
    "numbers": "-1,234.5 ",
    "json object": '{"a": 1, "b": [true, null, "x"]}, ',
}


def repeated(piece: str, size: int) -> str:
    """The piece over and over, `size` characters long."""
    return (piece * (size // len(piece) + 1))[:size]


def noise(size: int) -> str:
    """Pieces of everything, in random order."""
    random, pieces = Random(0), list(PIECES.values())
    return "".join(random.choices(pieces, k=size))[:size]


def flat_object(size: int) -> str:
    """A JSON object with as many keys as fit."""
    return "{" + ", ".join(f'"k{n}": {n}' for n in range(size // 16)) + "}"


def nested_array(size: int) -> str:
    """Arrays in arrays, closed again."""
    return '{"a": ' + "[" * (size // 2) + "]" * (size // 2) + "}"


def judge(text: str) -> None:
    """What a turn without text costs: the proposed call written canonically and searched for a confidence."""
    step = Step(step_id="s", kind="llm_call", time_s=0.0, tool_calls=(ToolCall(name="f", arguments={"a": text}),))
    VerbalizedConfidence().read(step)


def arguments(text: str) -> None:
    """A call's arguments as a model wrote them, and their canonical form."""
    read_call({"name": "f", "arguments": text}).call.canonical()


def call_tokens(text: str) -> None:
    """A call with three arguments, sought in tokens that may write anything."""
    call = ToolCall(name="confidence", arguments={"a": 1, "confidence": "sure", "b": None})
    tokens = [TokenLogprob(token=text[at : at + 100], logprob=-0.1) for at in range(0, len(text), 100)]
    call_parts(tokens, [call, call])


PARSERS: dict[str, Callable[[str], object]] = {
    "parse_confidence": parse_confidence,
    "hedged_confidence": hedged_confidence,
    "parse_number": parse_number,
    "parse_p_true": parse_p_true,
    "lexical_similarity": lambda text: lexical_similarity(text[:19_000], text[1:19_000]),
    "same_wording": lambda text: same_wording(text[:19_000], text[1:19_000]),
    "tool_call_arguments": arguments,
    "judged_call": judge,
    "call_tokens": call_tokens,
}


def inputs(size: int) -> dict[str, str]:
    """Every input at one length."""
    made = {name: repeated(piece, size) for name, piece in PIECES.items()}
    made["quoted"] = '"' + repeated("a\\n", size) + '"'
    return made | {"noise": noise(size), "flat object": flat_object(size), "nested array": nested_array(size)}


def milliseconds(parser: Callable[[str], object], text: str, runs: int) -> float:
    """The least processor time of several runs."""
    least = math.inf
    for _ in range(runs):
        started = time.process_time_ns()
        parser(text)
        least = min(least, time.process_time_ns() - started)
    return least / 1e6


def exponent(times: list[float]) -> float:
    """Slope of log time over log length."""
    return statistics.linear_regression([math.log(n) for n in SIZES], [math.log(max(t, 1e-6)) for t in times]).slope


def measure(runs: int) -> list[dict[str, Any]]:
    """A row for every parser and input."""
    texts = {size: inputs(size) for size in SIZES}
    rows = []
    for parser, parse in track(PARSERS.items(), "parsers", disable=not sys.stderr.isatty()):
        for name in texts[SIZES[0]]:
            times = [milliseconds(parse, texts[size][name], runs) for size in SIZES]
            rows.append({"parser": parser, "input": name, "ms": times[-1], "exponent": exponent(times)})
    return rows


def main() -> None:
    """Measure, print, and fail when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--all", action="store_true", help="print a row for every parser and input, not the worst alone"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of which the least time counts")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    rows = measure(given.runs)
    worst = [max((row for row in rows if row["parser"] == name), key=lambda row: row["ms"]) for name in PARSERS]
    emit("hostile_text", rows if given.all else worst, given.json)
    if any(row["ms"] >= MAX_MS or row["exponent"] > MAX_EXPONENT for row in worst):
        sys.exit(1)


if __name__ == "__main__":
    main()
