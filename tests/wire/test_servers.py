"""A call in the shapes of real servers: read as sure as the model was, or held, and never surer."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from grampus_uq import StepEvent, UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.records.vocabulary import UncertaintySource
from grampus_uq.wire import read_logprobs, read_response
from grampus_uq.wire.logprobs import joined_logprobs
from tests.signals.turns_of_calls import tokens as cut

ARGUMENTS = {"order": "A-17", "amount": 850}
WRITTEN = json.dumps({"name": "pay", "arguments": ARGUMENTS})
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("pay", "look_up")
]
HERMES = ("<tool_call>", "\n", *(one.token for one in cut(WRITTEN)), "\n", "</tool_call>", "<|im_end|>")
Entries = list[dict[str, Any]]
Server = Callable[[Entries], dict[str, Any]]


def entries(odds: float, pieces: Sequence[str] = HERMES, **more: Any) -> Entries:
    """The tokens of an answer; `odds`: of the amount."""
    found = []
    for piece in pieces:
        p = odds if piece == "850" else 0.9995
        own = {"token": piece, "bytes": [*piece.encode()], "logprob": math.log(p)}
        other = {"token": "85" if piece == "850" else "~", "bytes": [56], "logprob": math.log(1 - p)}
        found.append({**own, "top_logprobs": [own, other], **more})
    return found


def chat(logprobs: Any, text: str | None = None, **more: Any) -> dict[str, Any]:
    function = {"name": "pay", "arguments": json.dumps(ARGUMENTS)}
    call = {"id": "call-1", "type": "function", "function": function}
    message = {"role": "assistant", "content": text, "tool_calls": [call], **more}
    return {"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message, "logprobs": logprobs}]}


def legacy(found: Entries) -> dict[str, Any]:
    tops = [{one["token"]: one["logprob"] for one in entry["top_logprobs"]} for entry in found]
    listed = [[entry[key] for entry in found] for key in ("token", "logprob")]
    return chat({"tokens": listed[0], "token_logprobs": listed[1], "top_logprobs": tops})


def gemini(found: Entries) -> dict[str, Any]:
    chosen = [{"token": entry["token"], "logProbability": entry["logprob"]} for entry in found]
    parts = [{"functionCall": {"name": "pay", "args": ARGUMENTS}}]
    return {"parts": parts, "candidates": [{"logprobs_result": {"chosenCandidates": chosen, "topCandidates": []}}]}


def harmony(found: Entries) -> dict[str, Any]:
    odds = next(math.exp(entry["logprob"]) for entry in found if entry["token"] == "850")
    begin = ["<|channel|>", "analysis", "<|message|>", "Order", " A", "-17", ",", " so", " 850", ".", "<|end|>"]
    role = ["<|start|>", "assistant", "<|channel|>", "commentary", " to", "=functions", ".", "pay", " "]
    call = ["<|constrain|>", "json", "<|message|>", *(one.token for one in cut(json.dumps(ARGUMENTS))), "<|call|>"]
    return chat({"content": entries(odds, [*begin, *role, *call])}, reasoning_content="Order A-17, so 850.")


def nameless(found: Entries, *names: str) -> Entries:
    """The tokens as a server shows them that writes no text for its marks."""
    return [{**one, "token": "", "bytes": []} if one["token"] in names else one for one in found]


MARKS = ("<tool_call>", "</tool_call>", "<|im_end|>")


FORM = tuple(one for one in HERMES if one.strip() not in ("pay", "A", "-17", "850"))


def raw(token: str) -> str:
    return token.replace(" ", "\u0120").replace("\n", "\u010a")


def sure_of(found: Entries, *names: str) -> Entries:
    """The tokens where some are certain, as a single float has it."""
    own = [{**one, "logprob": 0.0} for one in found]
    return [
        {**one, "top_logprobs": [one, *entry["top_logprobs"][1:]]} if one["token"] in names else entry
        for one, entry in zip(own, found, strict=True)
    ]


def respelled(found: Entries, spelled: Callable[[str], str], places: int = 9) -> Entries:
    """The tokens with what is listed spelled in another way, and rounded."""

    def listed(one: dict[str, Any]) -> dict[str, Any]:
        return {**one, "token": spelled(one["token"]), "logprob": round(one["logprob"], places)}

    return [{**one, "top_logprobs": [*map(listed, one["top_logprobs"])]} for one in found]


def forced(found: Entries) -> Entries:
    """As a server answers that masks what a grammar forbids: only in values is there anything to choose."""
    values = ("A", "-17", "850")
    return [one if one["token"] in values else {**_certain(one), "top_logprobs": [_certain(one)]} for one in found]


READ: dict[str, Server] = {
    "vLLM": lambda found: chat({"content": found}),
    "vLLM, gpt-oss": harmony,
    "vLLM, the lists of old": legacy,
    "llama.cpp": lambda found: chat({"content": nameless(found, *MARKS)}),
    "llama.cpp, sure of its marks": lambda found: chat({"content": nameless(sure_of(found, *MARKS), *MARKS)}),
    "raw tokens listed": lambda found: chat({"content": [{**one, "token": one["token"].strip()} for one in found]}),
    "blanks cut off in what is listed, and rounded": lambda found: chat({"content": respelled(found, str.strip, 2)}),
    "blanks listed as tokenizers have them, rounded": lambda found: chat({"content": respelled(found, raw, 3)}),
    "blanks cut off in what is listed, sure of the form": lambda found: chat(
        {"content": respelled(sure_of(found, *FORM), str.strip)}
    ),
    "SGLang": lambda found: chat({"content": found, "refusal": None}),
    "Fireworks": lambda found: chat({"content": [{**one, "sampling_logprob": 0.0, "token_id": 7} for one in found]}),
    "Together": legacy,
    "DeepSeek": lambda found: chat({"content": found, "reasoning_content": entries(1e-9, ["So", " it", " is"])}),
    "Ollama, its own": lambda found: {**chat(None)["choices"][0], "logprobs": found, "done": True},
    "Gemini": gemini,
    "without alternatives": lambda found: chat({"content": [{**one, "top_logprobs": []} for one in found]}),
    "alternatives of null": lambda found: chat({"content": [{**one, "top_logprobs": None} for one in found]}),
    "several choices": lambda found: {"choices": [*chat({"content": found})["choices"], *chat(None)["choices"]]},
    "SGLang, a grammar": lambda found: chat({"content": forced(found)}),
    "vLLM, a grammar, what it forbids at -9999": lambda found: chat(
        {
            "content": [
                {**one, "top_logprobs": [*one["top_logprobs"], {"token": "~", "logprob": -9999.0}]}
                for one in forced(found)
            ]
        }
    ),
    "a grammar, without alternatives": lambda found: chat(
        {"content": [{**one, "top_logprobs": []} for one in forced(found)]}
    ),
    "its last chunk again": lambda found: chat({"content": [*found, found[-1]]}),
}
"""Shapes in which the call is read."""


def zeros(found: Entries, first: int = 1) -> Entries:
    """As llama.cpp's server answers with a draft model: of the first token alone it computes the probability."""
    return [*found[:first], *({**one, "logprob": 0.0, "top_logprobs": []} for one in found[first:])]


def flat(found: Entries, other: float) -> Entries:
    return [
        {**one, "logprob": 0.0, "top_logprobs": [{**top, "logprob": other} for top in one["top_logprobs"][1:]]}
        for one in found
    ]


def _certain(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "logprob": 0.0, "top_logprobs": []}


def pieces(found: Entries, count: int) -> Entries:
    """The text in a few pieces, as a proxy passes on what it gets in chunks."""
    tokens = [one["token"] for one in found]
    ends = [len(tokens) * number // count for number in range(count + 1)]
    return [{**found[a], "token": "".join(tokens[a:b])} for a, b in itertools.pairwise(ends)]


def with_logprob(found: Entries, value: Any) -> Entries:
    return [{**one, "logprob": value} if one["token"] == "850" else one for one in found]


def ids(found: Entries) -> Entries:
    return [{**one, "token": f"token_id:{number}"} for number, one in enumerate(found)]


def probs(found: Entries) -> Entries:
    return [{"id": 1, "token": one["token"], "prob": math.exp(one["logprob"]), "top_probs": []} for one in found]


def _named(found: Entries) -> int:
    return [one["token"] for one in found].index("pay") + 1


THOUGHT = ["The", " order", " is", " A", "-17", ",", " the", " amount", " 850", "."]
HELD: dict[str, Server] = {
    "OpenAI, Azure": lambda found: chat(None),
    "OpenRouter": lambda found: chat({"content": [], "refusal": []}),
    "vLLM, tokens as ids": lambda found: chat({"content": ids(found)}),
    "vLLM, a draft without probabilities": lambda found: chat({"content": flat(found, 0.0)}),
    "vLLM, after top_k of 1": lambda found: chat({"content": flat(found, -9999.0)}),
    "vLLM, a stream without the chunks of the name": lambda found: chat({"content": found[_named(found) :]}),
    "vLLM, a draft without probabilities, in part": lambda found: chat(
        {"content": [*found[: _named(found)], *flat(found, 0.0)[_named(found) :]]}
    ),
    "llama.cpp, a draft model": lambda found: chat({"content": zeros(found)}),
    "llama.cpp, a draft model, asked for one alternative": lambda found: chat(
        {"content": zeros([{**one, "top_logprobs": one["top_logprobs"][:1]} for one in found])}
    ),
    "a draft model, asked for no alternatives": lambda found: chat(
        {"content": zeros([{**one, "top_logprobs": []} for one in found])}
    ),
    "a draft model, only what is sampled listed": lambda found: chat(
        {"content": [*found[:1], *({**one, "logprob": 0.0, "top_logprobs": [_certain(one)]} for one in found[1:])]}
    ),
    "a proxy, the text in one piece": lambda found: chat({"content": zeros(pieces(found, 1), 0)}),
    "a proxy, the text in three pieces": lambda found: chat({"content": zeros(pieces(found, 3), 0)}),
    "a proxy, a role and the text": lambda found: chat({"content": zeros(pieces(found, 2))}),
    "llama.cpp, a draft model, the first token lost": lambda found: chat({"content": zeros(found, 0)}),
    "llama.cpp, a draft model, later": lambda found: chat({"content": zeros(found, 9)}),
    "llama.cpp, probabilities after sampling": lambda found: chat({"content": probs(found)}),
    "TensorRT-LLM, all 0": lambda found: legacy(zeros(found, 0)),
    "all nearer to 0 than a server's numbers are": lambda found: chat(
        {"content": [{**one, "logprob": -1e-9} for one in zeros(found, 0)]}
    ),
    "Ollama, thoughts and text": lambda found: chat({"content": entries(0.999, THOUGHT)}, thinking="".join(THOUGHT)),
    "Bedrock": lambda found: chat([{"1": -0.1}, {"2": -0.2}]),
    "-9999": lambda found: chat({"content": with_logprob(found, -9999.0)}),
    "null": lambda found: chat({"content": with_logprob(found, None)}),
    "'-inf'": lambda found: chat({"content": with_logprob(found, "-inf")}),
    "-Infinity": lambda found: json.loads(json.dumps(chat({"content": with_logprob(found, -math.inf)}))),
    "only some chunks": lambda found: chat({"content": found[::2]}),
    "the amount's chunk twice": lambda found: chat({"content": [x for one in found for x in _twice(one)]}),
    "the last chunk alone": lambda found: chat({"content": found[-3:]}),
    "another's tokens": lambda found: chat({"content": entries(0.999, ["Hello", "!"])}),
    "a call without its name": lambda found: chat({"content": [one for one in found if one["token"] != "pay"]}),
}
"""Shapes that tell nothing of the call, or not enough: it is held however sure it looks."""


def _twice(entry: dict[str, Any]) -> Entries:
    return [entry, entry] if entry["token"] == "850" else [entry]


def judged(reply: dict[str, Any]) -> tuple[bool, float | None]:
    """Whether the call goes out unasked, and its probability as read."""
    events: list[StepEvent] = []

    class Kept:
        def on_event(self, event: Any) -> None:
            events.extend([event] if isinstance(event, StepEvent) else [])

    policy = UncertaintyPolicy(irreversible_tool_names=["pay"])

    async def turn() -> bool:
        session = UncertaintyMonitor(policy=policy, processors=[Kept()]).session("run")
        await session.observe_llm_response(reply, "turn-1", tools=TOOLS)
        (call,) = read_response(reply).calls
        return session.would_allow(call.call).allowed

    allowed = anyio.run(turn)
    readings = {one.source: one.value for one in events[-1].readings}
    return allowed, readings.get(UncertaintySource.CALL_PROBABILITY)


@pytest.mark.parametrize("server", READ)
def test_a_call_is_as_sure_as_its_tokens_in_every_shape_in_which_servers_report_them(server: str) -> None:
    allowed, odds = judged(READ[server](entries(0.9995)))
    assert allowed
    assert odds is not None
    assert odds > 0.95
    for doubt in (0.02, 0.3, 0.7):
        allowed, odds = judged(READ[server](entries(doubt)))
        assert not allowed
        assert odds is not None
        assert odds <= doubt + 1e-9


@pytest.mark.parametrize("server", HELD)
def test_a_call_of_which_a_server_tells_nothing_is_held_however_sure_the_rest_looks(server: str) -> None:
    for odds in (0.3, 0.9995):
        allowed, value = judged(HELD[server](entries(odds)))
        assert not allowed
        assert not value


@given(
    st.lists(st.booleans(), min_size=1, max_size=12),
    st.lists(st.sampled_from([-0.5, 0.0]), min_size=12, max_size=12),
    st.integers(0, 2),
)
def test_a_zero_that_lists_no_alternative_is_none_where_others_list_some_and_not_where_all_may_be_asked_for_none(
    listed: list[bool], logprobs: list[float], width: int
) -> None:
    tops = [{"token": "t", "logprob": -0.1}, {"token": "b", "logprob": -6.0}][:width]
    content = [
        {"token": "t", "logprob": logprob, "top_logprobs": tops if one else []}
        for one, logprob in zip(listed, logprobs, strict=False)
    ]
    lone = [one["logprob"] == 0.0 and not one["top_logprobs"] for one in content]
    told = [one["logprob"] != 0.0 or len(one["top_logprobs"]) > 1 for one in content]
    refused = (any(lone) and any(one["top_logprobs"] for one in content)) or (not any(told[1:]) and len(content) > 3)
    read = read_logprobs({"content": content})
    assert (read.tokens is None) is refused
    assert not refused or "was not computed" in str(read.problem)


def test_what_nobody_computed_is_told_by_all_parts_of_an_answer_together() -> None:
    certain = [{"token": one, "logprob": 0.0, "top_logprobs": []} for one in ("Par", "is", ".")]
    sampled = {"token": "So", "logprob": -0.2, "top_logprobs": [{"token": "So", "logprob": -0.2}]}
    assert joined_logprobs([certain]).tokens is not None
    for parts in ([certain, certain], [[sampled], certain], [certain, None, {"content": [sampled]}]):
        assert joined_logprobs(parts).tokens is None


@given(
    st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.sampled_from(["850", " 85", "\u012085", "\u258185\n"]), st.booleans()
)
@example(1.0, 0.1, "850", True)
@example(0.9, 0.2, " 85", False)
@example(0.52, 0.5, "850", True)
@example(1.0, 0.995, " 85", True)
@example(1.0, 0.98, " 85", True)
def test_of_two_tokens_of_one_place_that_are_too_likely_together_one_was_not_computed(
    own: float, other: float, name: str, own_first: bool
) -> None:
    """More than rounding may make of them, whether the server lists the token itself, and in whatever order."""
    assume(own > 0.0 and other > 0.0 and own != other and abs(own - 0.5) > 1e-9 and abs(own + other - 1.05) > 1e-9)
    apart = abs(math.log(own) - math.log(other))
    assume(abs(apart - 0.01) > 1e-9)
    top = [{"token": "85", "logprob": math.log(own)}, {"token": name, "logprob": math.log(other)}]
    entry = {"token": "85", "logprob": math.log(own), "top_logprobs": top if own_first else top[1:]}
    computed = {"token": "pay", "logprob": -0.1, "top_logprobs": [{"token": "get", "logprob": -6.0}]}
    read = read_logprobs({"content": [computed, entry, computed]})
    itself = name != "850" and apart < 0.01  # rounded, with blanks of the server's own
    assert (read.tokens is None) is (own > 0.5 and own + other > 1.05 and not itself), read.problem


@pytest.mark.parametrize("listed", ["", "\ufffd", "e"])
def test_a_certain_letter_that_is_listed_without_its_text_or_by_half_is_no_other_one(listed: str) -> None:
    """As SGLang lists tokens behind Dynamo without a tokenizer, and servers that decode what is listed one by one."""
    top = [{"token": listed, "logprob": 0.0}, {"token": "~", "logprob": -18.6}]
    read = read_logprobs({"content": [{"token": "\u00eb", "logprob": 0.0, "top_logprobs": top}] * 4})
    assert (read.tokens is None) is (listed == "e"), read.problem
