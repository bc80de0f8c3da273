"""Every format: what a small file of it, written after its documentation, becomes; and which format a file has."""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.importers import (
    FORMATS,
    ImportedRun,
    detect_format,
    events,
    read_chat_logs,
    read_langsmith,
    read_otlp,
    read_runs,
    read_tau2,
)
from grampus_uq.records.events import ObservationEvent, StepEvent
from grampus_uq.records.vocabulary import Role, StopReason
from tests.importers import samples


def written(folder: Path, content: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(content)
    return path


def transcript(run: ImportedRun) -> list[tuple[str, str | None]]:
    return [
        (message.role.value, message.content or ", ".join(call.canonical() for call in message.tool_calls) or None)
        for message in run.messages
    ]


WEATHER = [
    ("system", "Be brief."),
    ("user", "Weather in Paris?"),
    ("assistant", 'weather({"city":"Paris"})'),
    ("tool", "57 F, rain"),
    ("assistant", "Rain."),
]


@pytest.mark.parametrize("form", sorted(samples.FILES))
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_each_format_is_told_from_the_others_and_gives_runs(tmp_path: Path, form: str, pack: Any) -> None:
    path = written(tmp_path, pack(samples.FILES[form]))
    assert detect_format(path) == form
    found = list(read_runs(path))
    assert found
    for run in found:
        assert run.n_steps == sum(isinstance(event, StepEvent) for event in events(run)) > 0


def test_each_format_has_a_sample_to_attack_and_a_row_in_the_docs() -> None:
    assert set(samples.FILES) == set(samples.RECORDS) == set(FORMATS)
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    assert [f"{form}: no row in docs/scale.md" for form in FORMATS if f"\n| `{form}` |" not in page] == []


@pytest.mark.parametrize("form", FORMATS)
def test_records_of_a_long_file_are_runs_of_their_own(tmp_path: Path, form: str) -> None:
    head, tail = samples.AROUND.get(form, (b"", b""))
    names = [b"00000000", b"00000001", b"00000002"]
    path = written(tmp_path, head + (b"," if head else b"").join(map(samples.RECORDS[form], names)) + tail)
    found = [run.run_id for run in read_runs(path, form)]
    assert len(set(found)) == len(found) == 3


def test_a_file_of_no_known_format_is_refused_with_its_fields(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"known formats \(.*tau-bench.*\): .*fields a, b"):
        detect_format(written(tmp_path, b'{"a": {"messages": []}, "b": 1}'))
    with pytest.raises(DataError, match="begins with no JSON object"):
        detect_format(written(tmp_path, b""))
    with pytest.raises(ConfigurationError):
        list(read_runs(written(tmp_path, b"{}"), "csv"))


def test_tau2_gives_outcomes_times_tokens_and_failed_calls_and_never_the_reference(tmp_path: Path) -> None:
    one, other = read_tau2(written(tmp_path, samples.FILES["tau2"]))
    assert (one.run_id, one.task_id, one.trial, one.reward) == ("7-0", "7", 0, 1.0)
    assert (one.outcome.success, one.outcome.stop_reason) == (True, StopReason.CLEAN)
    assert (other.outcome.success, other.outcome.stop_reason) == (None, StopReason.MAX_STEPS)
    assert transcript(one)[2:4] == [("assistant", 'get_reservation({"id":"EHGLP3"})'), ("tool", "not found")]
    told = list(events(one))
    step = [event for event in told if isinstance(event, StepEvent)][1].step
    assert (step.input_tokens, step.output_tokens, step.time_s) == (900, 20, 1772359204.5)
    assert [event.is_error for event in told if isinstance(event, ObservationEvent)] == [False, True, False]
    assert "REFERENCE" not in repr(one)
    assert other.reward == 0.0


def test_langsmith_gives_a_trace_its_steps_in_time_order_and_nothing_twice(tmp_path: Path) -> None:
    path = written(tmp_path, samples.FILES["langsmith"])
    (run,) = read_langsmith(path)
    assert transcript(run) == WEATHER
    assert (run.run_id, run.model, run.agent_id) == (samples._T, "gpt-x", "weather agent")
    assert run.outcome.success is None
    assert [(facts.input_tokens, facts.output_tokens) for facts in run.facts.values() if facts.output_tokens] == [
        (31, 9),
        (60, 2),
    ]
    (labelled,) = read_langsmith(path, outcome="correctness")
    assert labelled.outcome.success is True


LISTED = {"content": "I pay.", "tool_calls": [{"id": "t", "function": {"name": "pay", "arguments": '{"x":1}'}}]}
OLDER = {"content": "I pay.", "function_call": {"name": "pay", "arguments": '{"x": 1}'}}
BLOCKS = {
    "content": [{"type": "text", "text": "I pay."}, {"type": "tool_use", "id": "t", "name": "pay", "input": {"x": 1}}]
}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "paid"}]}


@pytest.mark.parametrize(
    ("proposed", "answered"),
    [
        (LISTED, {"role": "tool", "tool_call_id": "t", "content": "paid"}),
        (OLDER, {"role": "function", "name": "pay", "content": "paid"}),
        (BLOCKS, {"role": "user", "content": [RESULT]}),
        (BLOCKS, {"role": "user", "content": [RESULT, {"type": "text", "text": "Thanks."}]}),
    ],
    ids=["listed", "older", "blocks", "blocks with a text"],
)
def test_no_call_and_no_answer_of_a_tool_is_lost_in_any_form_of_a_chat(
    tmp_path: Path, proposed: dict[str, Any], answered: dict[str, Any]
) -> None:
    asked = [{"role": "user", "content": "Pay."}]
    later = [*asked, {"role": "assistant", **proposed}, answered]
    chat = {"messages": [*later, {"role": "assistant", "content": "Done."}]}
    traced = [
        {"id": str(i), "trace_id": "t", "run_type": "llm", "start_time": f"2026-03-01T10:00:0{i}Z"}
        | {"inputs": {"messages": given}, "outputs": {"role": "assistant", **said}}
        for i, (given, said) in enumerate([(asked, proposed), (later, {"content": "Done."})])
    ]
    thanks = ["Thanks."] if answered["role"] == "user" and len(answered["content"]) > 1 else []
    unnamed = [one | {"outputs": {k: v for k, v in one["outputs"].items() if k != "role"}} for one in traced[:1]]
    for read, records in (
        (read_chat_logs, [chat]),
        (read_langsmith, traced),
        (read_langsmith, [*unnamed, traced[1]]),
    ):
        (run,) = read(written(tmp_path, samples.json_lines(records)))
        assert [message.content for message in run.messages] == ["Pay.", "I pay.", "paid", *thanks, "Done."]
        assert [call.canonical() for message in run.messages for call in message.tool_calls] == ['pay({"x":1})']
        assert [message.content for message in run.messages if message.role is Role.TOOL] == ["paid"]


AVERAGES = st.sampled_from([None, 0.0, 0.5, 1.0])


@given(root=AVERAGES, others=st.lists(AVERAGES, min_size=1, max_size=4))
@example(root=None, others=[1.0, 0.0])
def test_a_langsmith_trace_has_the_outcome_of_its_root_or_one_that_no_other_contradicts(
    root: float | None, others: list[float | None]
) -> None:
    averages = [root, *others]
    lines = [
        {"id": str(i), "trace_id": "t", "run_type": "llm", "outputs": {"output": "4"}, "dotted_order": f"{9 - i}"}
        | ({"parent_run_id": "0"} if i else {})
        | ({} if average is None else {"feedback_stats": {"right": {"n": 1, "avg": average}}})
        for i, average in enumerate(averages)
    ]
    said = {average for average in ([root] if root is not None else others) if average is not None}
    with tempfile.TemporaryDirectory() as folder:
        (run,) = read_langsmith(written(Path(folder), samples.json_lines(lines)), outcome="right")
    assert run.outcome.success is ({1.0: True, 0.0: False}.get(said.pop()) if len(said) == 1 else None)


EVALUATIONS: dict[str | float, bool | None] = {
    "pass": True,
    "Failed": False,
    "no": False,
    "partial": None,
    1.0: True,
    0.0: False,
}


@given(said=st.lists(st.sampled_from([*EVALUATIONS, 0.5]), min_size=1, max_size=4))
def test_the_last_evaluation_of_a_trace_counts_also_where_it_says_neither(said: list[str | float]) -> None:
    span = samples.span(1, "chat", None, 0.0, gen_ai__operation__name="chat")
    span["events"] = [
        {
            "name": "gen_ai.evaluation.result",
            "attributes": samples._attributes(
                {
                    "gen_ai.evaluation.name": "right",
                    f"gen_ai.evaluation.score.{'label' if isinstance(one, str) else 'value'}": one,
                }
            ),
        }
        for one in said
    ]
    with tempfile.TemporaryDirectory() as folder:
        (run,) = read_otlp(written(Path(folder), json.dumps(samples.request([span])).encode()), outcome="right")
    assert run.outcome.success is EVALUATIONS.get(said[-1])


@pytest.mark.parametrize("score", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("label", ["toxic", "1 of 5", "Passed "])
def test_a_label_that_says_neither_is_not_overruled_by_the_score_beside_it(
    tmp_path: Path, label: str, score: float
) -> None:
    """A score of 1 is the worst on a scale from 1 to 5, and of what measures harm."""
    said = {"name": "q", "score.label": label, "score.value": score}
    named = {f"gen_ai__evaluation__{name.replace('.', '__')}": value for name, value in said.items()}
    span = samples.span(1, "chat", None, 0.0, gen_ai__operation__name="chat", **named)
    (run,) = read_otlp(written(tmp_path, json.dumps(samples.request([span])).encode()), outcome="q")
    assert run.outcome.success is (True if label == "Passed " else None)


def test_feedback_that_nobody_gave_is_no_failure(tmp_path: Path) -> None:
    said = {"feedback_stats": {"right": {"n": 0, "avg": 0.0}}}
    lines = samples.json_lines([*samples.LANGSMITH[:3], samples.LANGSMITH[3] | said])
    (run,) = read_langsmith(written(tmp_path, lines), outcome="right")
    assert run.outcome.success is None


@pytest.mark.parametrize("form", ["otlp", "otlp, indented", "langsmith"])
@given(places=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=4))
def test_a_span_that_was_delivered_twice_counts_once(form: str, places: list[tuple[int, int]]) -> None:
    """An exporter that got no answer sends again: a step twice would be a call that no tool answered."""
    form, _, indented = form.partition(", ")
    spans = samples.OTLP_SPANS if form == "otlp" else samples.LANGSMITH
    sent = list(spans)
    for which, place in places:
        sent.insert(place, spans[which])
    lines = samples.json_lines([samples.request([span]) for span in sent] if form == "otlp" else sent)
    if indented:
        lines = b"".join(json.dumps(json.loads(line), indent=n).encode() for n, line in enumerate(lines.splitlines()))
    with tempfile.TemporaryDirectory() as folder:
        (run,) = read_runs(written(Path(folder), lines), form)
    assert transcript(run) == WEATHER


def test_equal_spans_without_an_id_are_two(tmp_path: Path) -> None:
    *before, asked, last = [{**span, "id": None} for span in samples.LANGSMITH]
    (run,) = read_langsmith(written(tmp_path, samples.json_lines([*before, asked, asked, last])))
    assert len(run.messages) == len(WEATHER) + 1


def test_an_error_that_a_tools_message_states_is_an_error_of_the_tool(tmp_path: Path) -> None:
    lines = samples.FILES["langsmith"].replace(b'"57 F, rain"', b'"no such city", "status": "error"', 1)
    (run,) = read_langsmith(written(tmp_path, lines))
    assert [event.is_error for event in events(run) if isinstance(event, ObservationEvent) and event.text[:2] == "no"]
    assert {number: facts.is_error for number, facts in run.facts.items() if facts.is_error} == {3: True}


def test_langsmith_takes_the_forms_of_a_wrapped_client_and_of_a_traced_function(tmp_path: Path) -> None:
    asked = {"messages": [{"role": "user", "content": "2+2?"}]}
    base = {"run_type": "llm", "start_time": "2026-03-01T10:00:00Z", "dotted_order": ""}
    outputs: list[Any] = [
        {"choices": [{"message": {"role": "assistant", "content": "4"}}]},
        {"role": "assistant", "content": "4"},
        {"messages": [{"type": "human", "data": {"content": "2+2?"}}, {"type": "ai", "data": {"content": "4"}}]},
        {"output": "4"},
        {"generations": [{"text": "4"}]},
    ]
    lines = [{**base, "id": f"t{i}", "inputs": asked, "outputs": output} for i, output in enumerate(outputs)]
    found = list(read_langsmith(written(tmp_path, samples.json_lines(lines))))
    assert [transcript(run) for run in found] == [[("user", "2+2?"), ("assistant", "4")]] * len(outputs)


@pytest.mark.parametrize("response", [None, {"error": {"message": "rate limit"}}, {"status_code": 500, "body": {}}])
def test_a_request_whose_response_failed_is_left_out_and_named(tmp_path: Path, response: Any) -> None:
    """What it was asked with holds earlier answers: they are not the answer to it."""
    asked = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "?"},
    ]
    refused: list[DataError] = []
    lines = samples.json_lines([{"request": {"messages": asked}, "response": response}])
    assert list(read_chat_logs(written(tmp_path, lines), on_refused=refused.append)) == []
    assert [("no answer" in error.reason, error.line) for error in refused] == [(True, 1)]


@pytest.mark.parametrize(
    "said", [{"content": None, "refusal": "No."}, {"content": [{"type": "refusal", "refusal": "No."}]}]
)
def test_what_a_model_refuses_with_is_its_text(tmp_path: Path, said: dict[str, Any]) -> None:
    (run,) = read_chat_logs(written(tmp_path, samples.json_lines([{"messages": [{"role": "assistant", **said}]}])))
    assert transcript(run) == [("assistant", "No.")]


@pytest.mark.parametrize("form", sorted(samples.FILES))
def test_a_name_that_comes_twice_in_an_object_is_refused_whichever_was_meant(tmp_path: Path, form: str) -> None:
    """The last one won: `"reward": 0, "reward": 1` was a success."""
    names = {"tau2": "reward", "tau-bench": "reward", "failure-log": "mistake_step", "langsmith": "run_type"}
    name = names.get(form, "messages" if form == "chat-log" else "traceId")
    whole = samples.FILES[form]
    at = whole.index(f'"{name}"'.encode())
    path = written(tmp_path, whole[:at] + f'"{name}": 0, '.encode() + whole[at:])
    refused: list[DataError] = []
    with contextlib.suppress(DataError):
        for _ in read_runs(path, form, on_refused=refused.append):
            pass
        raise refused[0]
    with pytest.raises(DataError, match=f"the name '{name}' appears twice"):
        list(read_runs(path, form))


@pytest.mark.parametrize("form", ["tau2", "tau-bench", "failure-log"])
def test_of_an_array_only_the_run_with_a_name_twice_is_left_out(tmp_path: Path, form: str) -> None:
    document = json.loads(samples.FILES[form])
    one = {"tau2": lambda: document["simulations"][0], "tau-bench": lambda: document[0]}.get(form, lambda: document)()
    key = "question_ID" if form == "failure-log" else "trial"
    three: Any = [one | {key: number} for number in (97, 98, 99)]
    whole = json.dumps(document | {"simulations": three} if form == "tau2" else three).encode()
    if form == "tau2":  # what is never read may have any names
        whole = whole.replace(b'"info": {', b'"info": {"zz": 0, "zz": 1, ', 1)
    path = written(tmp_path, whole.replace(b": 98", b': 98, "zz": 0, "zz": 1'))
    refused: list[DataError] = []
    assert len(list(read_runs(path, form, on_refused=refused.append))) == 2
    assert [str(error).partition("the name")[2] for error in refused] == [" 'zz' appears twice in one object."]


def test_a_chat_log_gives_log_probabilities_and_tokens_in_each_of_its_forms(tmp_path: Path) -> None:
    found = list(read_chat_logs(written(tmp_path, samples.FILES["chat-log"])))
    assert [run.run_id for run in found] == ["chatcmpl-1", "request-2", "2"]
    step = next(event for event in events(found[0]) if isinstance(event, StepEvent)).step
    assert step.logprobs is not None
    assert (step.logprobs[0].logprob, step.logprobs[0].top[1]) == (-0.01, ("Lyon", -5.5))
    assert (step.input_tokens, step.output_tokens, step.time_s, found[0].model) == (12, 1, 1772359200.0, "gpt-x-2026")


@pytest.mark.parametrize("form", ["lines", "one", "pretty"])
def test_otlp_gives_a_trace_its_conversation_however_the_requests_are_written(tmp_path: Path, form: str) -> None:
    whole = samples.request(samples.OTLP_SPANS)
    content = {
        "lines": samples.FILES["otlp"],
        "one": json.dumps(whole).encode(),
        "pretty": json.dumps(whole, indent=1).encode(),
    }[form]
    (run,) = read_otlp(written(tmp_path, content))
    assert transcript(run) == WEATHER
    assert (run.run_id, run.model) == ("conv-9", "gpt-x")
    assert (run.facts[2].input_tokens, run.facts[2].output_tokens) == (31, 9)
    assert run.facts[3].time_s == 1772359202.5  # when the tool ran, not when the model was told


def test_the_events_of_older_conventions_and_numbered_attributes_are_read_too(tmp_path: Path) -> None:
    old = samples.span(1, "chat", None, 0.0, gen_ai__operation__name="chat")
    message = {"key": "message", "value": {"kvlistValue": {"values": samples._attributes({"content": "4"})}}}
    old["events"] = [
        {"name": "gen_ai.user.message", "attributes": samples._attributes({"content": "2+2?"})},
        {"name": "gen_ai.choice", "attributes": [message]},
    ]
    numbered = samples.span(2, "chat", None, 0.0, gen_ai__operation__name="chat") | {"traceId": "ff" * 16}
    pairs = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "2+2?", "gen_ai.completion.0.content": "4"}
    numbered["attributes"] += samples._attributes(pairs)
    found = list(read_otlp(written(tmp_path, json.dumps(samples.request([old, numbered])).encode())))
    assert [transcript(run) for run in found] == [[("user", "2+2?"), ("assistant", "4")]] * 2


def test_a_bad_record_costs_itself_only_and_is_named(tmp_path: Path) -> None:
    good = samples.FILES["chat-log"].splitlines(keepends=True)
    bad = [b'{"messages": [{"role": "pope"}]}\n', b"{broken\n", b'{"messages": "\xff"}\n', b"[1]\n", good[0]]
    content = b"".join([good[0], *bad, good[1]])
    refused: list[DataError] = []
    found = list(read_chat_logs(written(tmp_path, content), on_refused=refused.append))
    assert [run.run_id for run in found] == ["chatcmpl-1", "request-2"]
    assert [(error.line, error.field) for error in refused] == [
        (2, "messages[0].role"),
        (3, ""),
        (4, ""),
        (5, ""),
        (6, "id"),
    ]
    spans = [samples.OTLP_SPANS[0] | {"startTimeUnixNano": "soon"}, *samples.OTLP_SPANS[1:]]
    refused.clear()
    content = (
        samples.json_lines([samples.request(spans[:2])])
        + b"{broken\n"
        + samples.json_lines([samples.request(spans[2:])])
    )
    (run,) = read_otlp(written(tmp_path, content), on_refused=refused.append)
    assert [message.role for message in run.messages][-1] is Role.ASSISTANT
    assert [(error.line, error.field) for error in refused] == [
        (1, "resourceSpans[0].scopeSpans[0].spans[0].startTimeUnixNano"),
        (2, ""),
    ]


def test_a_broken_first_line_of_a_rotated_log_costs_itself_only(tmp_path: Path) -> None:
    refused: list[DataError] = []
    content = b'Value": "cut"}]}\n' + samples.FILES["otlp"]
    assert list(read_otlp(written(tmp_path, content), on_refused=refused.append))
    assert [error.line for error in refused] == [1]
    broken = [samples.OTLP_SPANS[0], 5, *samples.OTLP_SPANS[1:]]
    refused.clear()
    (run,) = read_otlp(written(tmp_path, samples.json_lines([samples.request(broken)] * 2)), on_refused=refused.append)
    assert transcript(run)[-1] == WEATHER[-1]
    assert refused[0].field == "resourceSpans[0].scopeSpans[0].spans[1]"
