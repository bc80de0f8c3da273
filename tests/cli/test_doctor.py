"""The doctor names what works on a model and what does not, on real servers on loopback, and never waits for ever."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from grampus_uq.cli import main
from grampus_uq.errors import ConfigurationError, ModelError
from grampus_uq.models.doctor import Examination, examine
from grampus_uq.models.local_model import LocalModel
from grampus_uq.models.model_choice import open_model
from grampus_uq.models.openai_compatible import OpenAICompatibleModel
from grampus_uq.records.protocols import ModelClient
from grampus_uq.records.values import Message, ModelResponse
from grampus_uq.testing import HANG, ScriptedModel, answer
from tests.models.loopback import (
    DEADLINES_S,
    Behaviour,
    Loopback,
    Reply,
    Request,
    as_json,
    chat,
    dripping,
    failing,
    hanging,
    refusing,
    serving,
    tokens,
)

_numbers = count(1000)


def capable(request: Request, server: Loopback) -> Reply:
    """A model that can do everything, and knows Paris from Lyon."""
    body = request.body
    prompt = "\n".join(message["content"] or "" for message in body["messages"])
    asked = body["messages"][-1]["content"]
    if "tools" in body:
        refund = body["tools"][0]["function"]["name"] == "refund"
        name, arguments = (
            ("refund", '{"order": "A17", "amount": 42.5}') if refund else ("get_weather", '{"city": "Paris"}')
        )
        call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
        odds = tokens(*[(piece, -0.1) for piece in (name, arguments)]) if "logprobs" in body else None
        return as_json(chat(None, tool_calls=[call], logprobs=odds))
    if "response_format" in body:
        return as_json(chat('{"capital": "Paris"}'))
    if "random number" in asked:
        return as_json(chat(str(next(_numbers))))
    if "True or False" in prompt:
        text, other, logprob = (
            ("False", "True", -0.2) if "Lyon" in prompt or "4250" in prompt else ("True", "False", -0.1)
        )
    else:
        unknowable = "shuffled deck" in prompt
        text, other, logprob = "Paris", "Lyon", -0.1
        if "onfidence" in prompt:
            text = 'The ace. {"confidence": 0.02}' if unknowable else 'Paris. {"confidence": 0.97}'
    logprobs = tokens((text, logprob), top=[(text, logprob), (other, -3.0)]) if "logprobs" in body else None
    return as_json(chat(text, logprobs=logprobs))


def refusing_but_capable(*parameters: str) -> Behaviour:
    refuse = refusing(*parameters)

    def behave(request: Request, server: Loopback) -> Reply:
        refused = any(parameter in request.body for parameter in parameters)
        return (refuse if refused else capable)(request, server)

    return behave


def without_logprobs(request: Request, server: Loopback) -> Reply:
    request.body.pop("logprobs", None)
    return capable(request, server)


def examined(behaviour: Behaviour, backend: str = "asyncio", timeout_s: float = 60.0) -> tuple[Examination, Loopback]:
    with serving(behaviour) as server:

        async def run() -> Examination:
            async with OpenAICompatibleModel(server.api_base, model="tiny", timeout_s=60) as client:
                return await examine(client, timeout_s=timeout_s)

        return anyio.run(run, backend=backend), server


def verdicts(found: Examination) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in found.abilities}


def signals(found: Examination) -> dict[str, str]:
    return {
        check.source: "weak" if check.weak else "works" if check.works else str(check.reason) for check in found.signals
    }


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_on_a_capable_model_everything_works_and_is_counted(backend: str) -> None:
    found, server = examined(capable, backend)
    assert set(verdicts(found).values()) == {"works"}, found.abilities
    assert set(signals(found).values()) == {"works"}, found.signals
    assert found.answers
    assert found.calls == server.hits
    costs = {check.source: check.calls for check in found.signals}
    assert costs == {
        "token_probability": 0,
        "token_entropy": 0,
        "call_probability": 0,
        "p_true": 1,
        "semantic_entropy": 2,
        "verbalized": 0,
    }
    assert next(check for check in found.signals if check.source == "p_true").values["right"] > 0.9
    assert json.loads(json.dumps(found.to_json()))["abilities"][0]["verdict"] == "works"


def changed(change: Callable[[list[dict[str, Any]], float], list[dict[str, Any]]]) -> Behaviour:
    """A capable server whose tokens are changed before they are sent; `change` is given the temperature too."""

    def behave(request: Request, server: Loopback) -> Reply:
        body = json.loads(bytes(capable(request, server).body))  # type: ignore[arg-type]  # `as_json` makes bytes
        if odds := body["choices"][0].get("logprobs"):
            odds["content"] = change(odds["content"], request.body.get("temperature", 1.0))
        return as_json(body)

    return behave


def drafted(found: list[dict[str, Any]], _: float) -> list[dict[str, Any]]:
    """As llama.cpp with a draft model: it computes the probability of an answer's first token alone."""
    bare = {"logprob": 0.0, "top_logprobs": []}
    own = [{"token": found[0]["token"], "logprob": -0.4}, {"token": "~", "logprob": -1.2}]
    return [{**found[0], "top_logprobs": own}, *({**one, **bare} for one in found[1:]), {"token": "", **bare}]


def test_a_server_that_computes_no_probability_of_drafted_tokens_has_no_token_signals() -> None:
    found, _ = examined(changed(drafted))
    (ability,) = [one for one in found.abilities if one.name == "logprobs"]
    assert (ability.verdict, "not computed" in ability.detail) == ("unusable", True)
    seen = signals(found)
    assert {seen[one] for one in ("token_probability", "token_entropy", "call_probability")} == {"broken_logprobs"}


def test_a_server_that_reports_after_the_temperature_is_named() -> None:
    def scaled(found: list[dict[str, Any]], temperature: float) -> list[dict[str, Any]]:
        tops = [[{**one, "logprob": one["logprob"] / (temperature or 1)} for one in x["top_logprobs"]] for x in found]
        return [{**one, "top_logprobs": top} for one, top in zip(found, tops, strict=True)]

    for change, named in ((scaled, True), (lambda found, _: found, False)):
        found, _ = examined(changed(change))
        (ability,) = [one for one in found.abilities if one.name == "logprobs"]
        assert (ability.verdict, "scaled by the temperature" in ability.detail) == ("works", named)


def test_a_server_without_logprobs_loses_the_token_signals_and_keeps_the_rest() -> None:
    found, _ = examined(without_logprobs)
    assert verdicts(found) == {
        "answer": "works",
        "logprobs": "ignored",
        "temperature": "works",
        "response_format": "works",
        "tools": "works",
    }
    seen = signals(found)
    assert (seen["token_probability"], seen["token_entropy"]) == ("no_logprobs", "no_logprobs")
    call = next(check for check in found.signals if check.source == "call_probability")
    assert (call.works, call.reason, call.values) == (False, "no_logprobs", {})
    assert "a reader" in call.lost_without
    assert (seen["semantic_entropy"], seen["verbalized"]) == ("works", "works")
    assert all(check.lost_without for check in found.signals)


def test_a_judge_that_takes_any_call_is_called_weak() -> None:
    def credulous(request: Request, server: Loopback) -> Reply:
        for message in request.body["messages"]:
            message["content"] = (message["content"] or "").replace("4250", "42.5")
        return capable(request, server)

    p_true = next(check for check in examined(credulous)[0].signals if check.source == "p_true")
    assert p_true.weak == "hardly tells a right call from a wrong one"
    assert p_true.values["right call"] == p_true.values["wrong call"]


def test_a_model_that_calls_no_tools_is_read_where_it_writes_the_call_as_json() -> None:
    def writes(request: Request, server: Loopback) -> Reply:
        schema = request.body.pop("response_format", {}).get("json_schema", {}).get("schema", {})
        if "arguments" in schema.get("properties", {}):
            head, amount, end = '{"name": "refund", "arguments": {"order": "A17", "amount": ', "42.5", "}}"
            written = [("```json\n", -0.8), (head, 0.0), (amount, -0.5), (f"{end}\n```", 0.0)]
            return as_json(chat(head + amount + end, logprobs=tokens(*written)))
        if "tools" in request.body:
            return as_json(chat("I would call a tool."))
        return capable(request, server)

    call = next(check for check in examined(writes)[0].signals if check.source == "call_probability")
    assert call.values == {"call": pytest.approx(0.6065, abs=1e-3)}
    assert "JSON text" in call.weak


@pytest.mark.parametrize("parameter", ["temperature", "logprobs", "tools"])
def test_a_refused_parameter_is_named_with_the_servers_words_and_the_rest_works(parameter: str) -> None:
    found, _ = examined(refusing_but_capable(parameter))
    refused = {name for name, verdict in verdicts(found).items() if verdict != "works"}
    assert refused == {parameter}
    finding = next(finding for finding in found.abilities if finding.name == parameter)
    assert finding.verdict == "refused"
    assert "not supported with this model" in finding.detail


def test_a_model_that_takes_only_json_object_is_given_that() -> None:
    def old_json(request: Request, server: Loopback) -> Reply:
        asked = request.body.get("response_format", {}).get("type")
        return (refusing("response_format") if asked == "json_schema" else capable)(request, server)

    found, _ = examined(old_json)
    finding = next(finding for finding in found.abilities if finding.name == "response_format")
    assert (finding.verdict, finding.detail) == ("works", "json_object is obeyed")


def test_a_model_that_always_says_the_same_is_told_so() -> None:
    def parrot(request: Request, server: Loopback) -> Reply:
        return as_json(chat('{"confidence": 0.7}'))

    found, _ = examined(parrot)
    assert verdicts(found) == {
        "answer": "works",
        "logprobs": "ignored",
        "temperature": "ignored",
        "response_format": "unusable",
        "tools": "unusable",
    }
    checks = {check.source: check.weak for check in found.signals}
    assert "nobody can answer" in checks["verbalized"]
    assert "always agree" in checks["semantic_entropy"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("behaviour", [hanging, dripping])
def test_a_hanging_server_is_reported_after_one_probe(behaviour: Behaviour, backend: str) -> None:
    for timeout_s in DEADLINES_S:
        found, server = examined(behaviour, backend, timeout_s=timeout_s)
        assert verdicts(found) == {"answer": "timeout"}
        assert f"{timeout_s:g} s" in found.abilities[0].detail
        if server.hits:
            break
    assert (found.answers, found.signals, server.hits) == (False, (), 1)


def test_a_server_that_hangs_only_on_some_requests_costs_one_deadline_each() -> None:
    def moody(request: Request, server: Loopback) -> Reply:
        slow = any(name in request.body for name in ("logprobs", "tools"))
        return (hanging if slow else capable)(request, server)

    for timeout_s in DEADLINES_S:
        found, _ = examined(moody, timeout_s=timeout_s)
        seen = verdicts(found)
        if [*seen.values()].count("timeout") == 2 and signals(found)["verbalized"] == "works":
            break
    assert {name for name, verdict in seen.items() if verdict == "timeout"} == {"logprobs", "tools"}
    assert seen["response_format"] == "works"
    # Token signals read what the agent's own call brings, and that call hung.
    assert signals(found)["p_true"] == "timeout"
    assert signals(found)["verbalized"] == "works"


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (failing(500), "500"),
        (failing(429), "429"),
        (failing(401, b'{"error": {"message": "no key"}}'), "no key"),
        (failing(200, b"<html>welcome</html>"), "not JSON"),
        (lambda r, s: as_json(chat("")), "no text"),
    ],
)
def test_a_model_that_gives_no_usable_answer_is_a_result_and_nothing_else_is_tried(
    behaviour: Behaviour, words: str
) -> None:
    found, server = examined(behaviour)
    assert not found.answers
    assert len(found.abilities) == 1
    assert words in found.abilities[0].detail
    assert server.hits == 1


class Plain:
    """A client of somebody else's: it takes messages and a model, nothing more, and returns what it likes."""

    async def complete(self, *, messages: Sequence[Message], model: str) -> ModelResponse:
        return answer("Paris")


def test_a_client_without_options_is_examined_too() -> None:
    client: Any = Plain()
    found = anyio.run(lambda: examine(client))
    assert verdicts(found) == {
        "answer": "works",
        "logprobs": "refused",
        "temperature": "refused",
        "response_format": "refused",
        "tools": "refused",
    }
    assert "Plain.complete takes no temperature" in found.abilities[2].detail
    assert signals(found)["semantic_entropy"] == "works"


@pytest.mark.parametrize(
    ("client", "verdict"),
    [
        (ScriptedModel(HANG), "timeout"),
        (ScriptedModel(ModelError("down")), "failed"),
        (ScriptedModel(lambda m, o: 42), "failed"),
        (ScriptedModel("x", refuse=["max_tokens"]), "works"),
    ],
)
def test_whatever_a_client_does_becomes_a_verdict(client: ModelClient, verdict: str) -> None:
    found = anyio.run(lambda: examine(client, timeout_s=0.2))
    assert verdicts(found)["answer"] == verdict


def test_an_impossible_deadline_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'timeout_s'"):
        anyio.run(lambda: examine(ScriptedModel("x"), timeout_s=0))


def invoked(*arguments: str) -> Result:
    """The command line as a user calls it, through its entry point."""

    import click

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def entry(rest: tuple[str, ...]) -> None:
        main(rest)

    return CliRunner().invoke(entry, arguments)


def test_the_command_prints_tables_and_ends_well() -> None:
    with serving(capable) as server:
        result = invoked("doctor", "tiny", "--api-base", server.api_base)
    assert result.exit_code == 0, result.output
    for words in ("Capabilities", "log-probabilities", "stated confidence", "right 0.95", "Lost without it"):
        assert words in result.output, words
    assert all(request.body["model"] == "tiny" for request in server.requests)


def test_the_command_prints_one_json_object() -> None:
    with serving(capable) as server:
        result = invoked("doctor", "tiny", "--api-base", server.api_base, "--json")
    found = json.loads(result.stdout)
    assert found["answers"] is True
    assert {finding["name"] for finding in found["abilities"]} >= {"logprobs", "temperature"}


def test_the_command_reports_a_hanging_server_with_status_one() -> None:
    with serving(hanging) as server:
        result = invoked("doctor", "tiny", "--api-base", server.api_base, "--timeout", "0.3")
    assert result.exit_code == 1
    assert "timeout" in result.output
    assert "nothing else was tested" in result.output


def test_the_command_reports_a_server_that_is_not_there() -> None:
    with serving(capable) as server:
        gone = server.api_base
    result = invoked("doctor", "tiny", "--api-base", gone)
    assert result.exit_code == 1
    assert "cannot be reached" in result.output


@pytest.mark.parametrize("place", ["text", "tool", "error"])
def test_a_models_words_cannot_drive_the_terminal(place: str) -> None:
    evil = "\x1b[2J\x07\r\u202eParis"

    def behave(request: Request, server: Loopback) -> Reply:
        if place == "error":
            return as_json({"error": {"message": evil}}, 400)
        if place == "tool" and "tools" in request.body:
            return as_json(chat(None, tool_calls=[{"function": {"name": evil, "arguments": "{}"}}]))
        return as_json(chat(evil if place == "text" else "Paris"))

    with serving(behave) as server:
        result = invoked("doctor", "tiny", "--api-base", server.api_base)
    assert "Paris" in result.output
    assert not set("\x1b\x07\r\u202e") & set(result.output)


def test_a_server_sees_its_own_key_and_never_openais(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.delenv("GRAMPUS_UQ_API_KEY", raising=False)
    with serving(capable) as server:
        invoked("doctor", "tiny", "--api-base", server.api_base)
        assert all("authorization" not in request.headers for request in server.requests)
        monkeypatch.setenv("GRAMPUS_UQ_API_KEY", "own-key-1")
        result = invoked("doctor", "tiny", "--api-base", server.api_base, "--json")
        assert server.requests[-1].headers["authorization"] == "Bearer own-key-1"
    assert "own-key-1" not in result.output


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_embedded_model_has_token_signals_and_no_tool_calls(backend: str) -> None:
    pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'demo'")
    told: list[str] = []

    async def run() -> Examination:
        async with open_model("local", timeout_s=280) as client:
            assert isinstance(client, LocalModel)
            return await examine(client, timeout_s=280, tell=told.append)

    found = anyio.run(run, backend=backend)
    seen = verdicts(found)
    assert {name for name in ("answer", "logprobs", "temperature", "response_format") if seen[name] != "works"} == set()
    assert seen["tools"] == "unusable"
    working = signals(found)
    assert (working["token_probability"], working["token_entropy"]) == ("works", "works")
    assert {"answer", "tools"} <= set(told)
