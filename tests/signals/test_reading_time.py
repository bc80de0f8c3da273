"""No text makes the reading of a call slow: no pattern is ambiguous, and twice the text takes about twice the work."""

from __future__ import annotations

import importlib
import itertools
import json
import pkgutil
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grampus_uq import TokenLogprob, ToolCall, signals, stats, wire
from grampus_uq.signals.call_tokens import call_parts
from tests.sampling import examples, sampled

LETTERS = list("aAI1éı\ufffd🎉\\\"'“’ \n\t-_.,:;!<>([{|#*`=%?")
UNITS = [
    *LETTERS,
    "\\u0041",
    "\\xe9",
    "\\n",
    "a ",
    "a, ",
    "1,",
    "1_",
    "1.",
    "-a",
    "a'",
    "<a ",
    "<a>",
    "a=",
    "* ",
    " \n",
]
MANY = 60  # repetitions: an ambiguous pattern needs 2**60 steps
SIZE = 40_000  # characters of a call: a quadratic reader needs ten seconds and more


def patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Every text pattern that a module keeps."""
    seen: set[re.Pattern[str]] = set()
    for room in (signals, wire, stats):
        for found in pkgutil.iter_modules(room.__path__):
            module: ModuleType = importlib.import_module(f"{room.__name__}.{found.name}")
            for name, value in vars(module).items():
                for one in (
                    value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
                ):
                    if isinstance(one, re.Pattern) and isinstance(one.pattern, str) and one not in seen:
                        seen.add(one)
                        yield f"{found.name}.{name}", one


@contextmanager
def processor_seconds(limit: float) -> Iterator[None]:
    """Ends what takes longer, also inside a pattern; the process's own seconds, so a busy machine changes nothing."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def hangs(pattern: re.Pattern[str], text: str, limit: float = 2.0) -> bool:
    try:
        with processor_seconds(limit):
            pattern.fullmatch(text)
            pattern.sub("", text)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize(("name", "pattern"), [pytest.param(name, one, id=name) for name, one in patterns()])
def test_no_pattern_is_ambiguous(name: str, pattern: re.Pattern[str]) -> None:
    texts = (begin + unit * MANY + end for unit in UNITS for begin in ("", '"', "x1") for end in ("\0", "1", "a"))
    assert not [text[:20] for text in texts if hangs(pattern, text)], name


def test_an_ambiguous_pattern_is_found() -> None:
    assert hangs(re.compile(r"(?:\ufffd|[^\x00-\x7f])+!"), "\ufffd" * MANY, limit=0.5)


def _elements(call: ToolCall) -> str:
    inner = "".join(f"<p n='{key}'>{value}</p>" for key, value in call.arguments.items())
    return f'<invoke name="{call.name}">{inner}</invoke>\n'


FORMS: dict[str, Callable[[ToolCall], str]] = {
    "elements": _elements,
    "an object": lambda call: json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False),
    "by position": lambda call: f"{call.name}({', '.join(map(repr, call.arguments.values()))})",
}


def read(text: str, calls: list[ToolCall]) -> None:
    tokens = [TokenLogprob(token=text[at : at + 4], logprob=-0.001) for at in range(0, len(text), 4)]
    with processor_seconds(7.0 * max(1.0, len(text) / SIZE)):  # quadratic: ten and more
        call_parts(tokens, calls)


@settings(max_examples=examples(25, few=5))
@given(
    st.text(st.sampled_from(LETTERS), min_size=1, max_size=4),
    st.text(st.sampled_from([*LETTERS, "b"]), max_size=6),
    st.sampled_from(list(FORMS)),
    st.sampled_from(["", "some letters", "all letters"]),
)
@example(unit="é", other="", form="elements", broken="some letters")
@example(unit="éb", other="éb", form="elements", broken="some letters")
def test_reading_stays_linear_for_every_alphabet_and_for_letters_that_tokens_break(
    unit: str, other: str, form: str, broken: str
) -> None:
    """Some servers write each byte of a letter that tokens share as U+FFFD."""
    call = ToolCall(name="send", arguments={"to": f"Özil {other}", "text": unit * (SIZE // len(unit)), "n": 5})
    text = FORMS[form](call)
    if broken:
        text = re.sub(r"[^\x00-\x7f]" if broken == "some letters" else r"[^\W\d_]", "\ufffd\ufffd", text)
    read(text, [call, ToolCall(name="look", arguments={"q": f"é{other}x"})])


@sampled("form,kind", [("by position", int)], full=list(itertools.product(FORMS, [int, "v{}".format])))
def test_many_calls_with_many_values_are_read_in_linear_time(form: str, kind: Callable[[int], object]) -> None:
    arguments = [{f"k{i}": kind(i + 1000 * j) for i in range(250)} for j in range(32)]
    calls = [ToolCall(name="write", arguments=one) for one in arguments]
    read("\n".join(FORMS[form](call) for call in calls), calls)


RUNS = ["'", "pay {", "\\xe9", '"', "pay ", "a ", "-", "1,", "("]


@sampled("run", RUNS[:1], full=RUNS)
def test_a_run_beside_a_call_is_read_in_linear_time(run: str) -> None:
    calls = [ToolCall(name="pay", arguments={"m": "é, x", "k": k}) for k in range(8)]
    read(f"pay {run * (SIZE // len(run))}1 b \\xe9", calls)
