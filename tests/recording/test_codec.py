"""The line format: exact both ways, strict when read, and of version 1 for ever."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.errors import DataError
from grampus_uq.recording import decode, encode
from grampus_uq.recording.codec import MAX_DEPTH
from grampus_uq.records.building import builder
from grampus_uq.records.events import Event, LookEvent, OutcomeEvent, StepEvent
from grampus_uq.records.values import Outcome, StepUncertainty, TokenLogprob, ToolCall
from tests.recording.events import events, session, started, step_event
from tests.sampling import examples

GOLDEN = Path(__file__).with_name("golden_v1.jsonl")


@given(events)
@settings(max_examples=examples(150), deadline=None)
def test_every_event_comes_back_exactly(event: Event) -> None:
    line = encode(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    back = decode(line)
    assert back == event
    assert repr(back).replace("TzInfo(0)", "datetime.timezone.utc") == repr(event).replace(
        "TzInfo(0)", "datetime.timezone.utc"
    )  # -0.0 equals 0.0, its repr does not


@given(events, st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None)
def test_the_order_of_keys_and_spaces_do_not_matter(event: Event, random: Any) -> None:
    fields = list(json.loads(encode(event)).items())
    random.shuffle(fields)
    assert decode(json.dumps(dict(fields), indent=1).encode()) == event


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8")))
@settings(max_examples=examples(150), deadline=None)
def test_whatever_the_bytes_a_line_is_an_event_or_a_data_error_with_its_place(line: bytes) -> None:
    with pytest.raises(DataError) as caught:
        decode(line, path="x.jsonl", number=7)
    assert str(caught.value).startswith("x.jsonl:7")


@given(events, st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_line_with_one_byte_changed_is_read_or_refused_but_never_crashes(event: Event, data: st.DataObject) -> None:
    line = bytearray(encode(event))
    place = data.draw(st.integers(0, len(line) - 1))
    line[place] = data.draw(st.integers(0, 255))
    places = []
    try:
        decode(bytes(line), path="x", number=1)
    except DataError as error:
        places.append((error.path, error.line))
    assert places in ([], [("x", 1)])


def changed(event: Event, **changes: Any) -> bytes:
    """The line of an event with fields replaced; a name with dots goes inside; `...` removes."""
    document = json.loads(encode(event))
    for name, value in changes.items():
        *parents, last = name.split("__")
        inner = document
        for parent in parents:
            inner = inner[int(parent) if parent.isdigit() else parent]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("line", "field", "says"),
    [
        (b"{", "", "not JSON"),
        (b"[1]", "", "must be a JSON object"),
        (b"\xff\xfe", "", "not UTF-8"),
        (b'{"v":1}', "type", "must be a string"),
        (changed(started(), v=2), "v", "newer version"),
        (changed(started(), v=...), "v", "must be a version"),
        (changed(started(), v=True), "v", "must be a version"),
        (changed(started(), v=0), "v", "must be a version"),
        (changed(started(), type="stepp"), "type", "unknown type 'stepp'"),
        (changed(started(), content="some"), "content", "must be full"),
        (changed(started(), session_id=...), "session_id", "required"),
        (changed(started(), session_id=5), "session_id", "valid string"),
        (changed(started(), time_s="5"), "time_s", "valid number"),
        (changed(started(), resumed=1), "resumed", "valid boolean"),
        (changed(step_event(0), readings=None), "readings", "valid array"),
        (changed(step_event(0), readings__0__value=1.5), "readings.0", "must be in [0, 1]"),
        (changed(step_event(0), readings__1__reason=None), "readings.1", "needs a reason"),
        (changed(step_event(0), readings__0__calls=1.5), "readings.0.calls", "valid integer"),
        (changed(step_event(0), step__effect="explode"), "step.effect", "'read'"),
        (changed(step_event(0), assessment__level="lowest"), "assessment.level", "'low'"),
        (changed(step_event(0), assessment__timestamp="noon"), "assessment.timestamp", "valid datetime"),
        (changed(step_event(0), assessment__extra=1), "assessment.extra", "not permitted"),
        (changed(step_event(0), step__tool_calls__0__name=None), "step.tool_calls.0.name", "valid string"),
        (changed(step_event(0), step__time_s=float("nan")), "", "NaN is not a JSON number"),
        (encode(step_event(0)).replace(b"-0.1,", b"-Infinity,"), "", "-Infinity is not a JSON number"),
        (encode(step_event(0)).replace(b"-0.1,", b"-1e999,"), "step.logprobs.0.logprob", "finite"),
        (b"[" * 100_000, "", "nested too deeply"),
        (encode(started()).replace(b'"agent"', b'"\xff"'), "", "Invalid JSON"),
        (b"\x00" * 50, "", "not JSON"),
    ],
)
def test_a_wrong_line_names_its_place_its_field_and_what_is_wrong(line: bytes, field: str, says: str) -> None:
    with pytest.raises(DataError) as caught:
        decode(line, path="a.jsonl", number=3)
    assert (caught.value.path, caught.value.line, caught.value.field) == ("a.jsonl", 3, field)
    assert says in str(caught.value)


CONFIDENCES = [
    name for name in StepUncertainty.model_fields if re.search(r"_(confidence|probability|entropy)$|p_success", name)
]
COUNTS = ["started_ns", "step__input_tokens", "readings__0__calls", "readings__0__samples", "assessment__index"]


@given(
    st.tuples(
        st.sampled_from([f"assessment__{name}" for name in CONFIDENCES]), st.sampled_from([-2, 1.5, 10**20, 1e308])
    )
    | st.tuples(st.sampled_from(COUNTS), st.sampled_from([-1, 2**63, 10**400]))
    | st.tuples(st.just("assessment__trajectory_risk"), st.floats(-1e308, -1e-308))
)
def test_a_number_out_of_its_range_is_refused_by_its_name(given: tuple[str, float]) -> None:
    name, value = given
    with pytest.raises(DataError) as caught:
        decode(changed(step_event(0), **{name: value}), path="a.jsonl", number=3)
    place = (caught.value.path, caught.value.line, caught.value.field)
    assert place == ("a.jsonl", 3, name.replace("__", "."))


def test_an_error_shows_little_of_a_huge_value() -> None:
    with pytest.raises(DataError) as caught:
        decode(changed(started(), time_s="9" * 10**6))
    assert len(str(caught.value)) < 500


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def look(**fields: Any) -> LookEvent:
    return LookEvent(session_id="s", agent_id="a", tier="big", **fields)


@pytest.mark.parametrize("number", [-1, 10**400], ids=["negative", "huge"])
def test_tokens_of_a_look_that_are_no_count_are_refused(number: int) -> None:
    with pytest.raises(DataError) as caught:
        decode(changed(look(), tokens=number))
    assert caught.value.field == "tokens"


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (
            OutcomeEvent(session_id="s", agent_id="a", outcome=builder(Outcome)(success=True, time_s=float("inf"))),
            "outcome.time_s",
        ),
        (dataclasses.replace(started(), release_probability=float("nan")), "release_probability"),
        (step_event(0, arguments=deep(MAX_DEPTH)), "step.tool_calls.0.arguments"),
        (look(call=ToolCall(name="book", arguments=deep(MAX_DEPTH))), "call.arguments"),
        *((look(**{name: float("nan")}), name) for name in ("time_s", "seconds", "own", "probability")),
        (step_event(0, text="half an emoji: \ud83d"), "step"),
    ],
)
def test_what_could_not_come_back_is_refused_when_written(event: Event, field: str) -> None:
    with pytest.raises(DataError) as caught:
        encode(event)
    assert caught.value.field == field


def test_a_log_probability_of_minus_infinity_is_refused_rather_than_made_null() -> None:
    event = step_event(0)
    step = dataclasses.replace(event.step, logprobs=(TokenLogprob(token="x", logprob=float("-inf")),))
    with pytest.raises(DataError) as caught:
        encode(dataclasses.replace(event, step=step))
    assert caught.value.field == "step.logprobs.0.logprob"


def test_the_deepest_arguments_that_are_written_are_read() -> None:
    event = step_event(0, arguments=deep(MAX_DEPTH - 1))
    assert decode(encode(event)) == event


@given(st.integers(0, 2 * MAX_DEPTH), st.sampled_from(["1", "1e999", "-1e999", '"x"', "9" * 300, "1e308"]))
def test_a_line_is_read_only_where_it_could_be_written(levels: int, value: str) -> None:
    """Deeper or infinite arguments were read, and `runs validate` then left the rest of the file unread."""
    text = '{"a":' * levels + value + "}" * levels
    line = encode(step_event(0, arguments={"q": "here"})).replace(b'"here"', text.encode())
    if levels < MAX_DEPTH and "e999" not in value:
        assert decode(encode(decode(line))) == decode(line)
        return
    with pytest.raises(DataError) as caught:
        decode(line, path="a.jsonl", number=3)
    assert (caught.value.line, caught.value.field) == (3, "step.tool_calls.0.arguments")


def test_text_that_mentions_nan_is_text() -> None:
    event = step_event(0, text="The mean is NaN, not Infinity.")
    assert decode(encode(event)) == event


def holds(now: Any, golden: Any) -> bool:
    """True when every value of the golden document is still there, to the last digit; new fields may have come."""
    if isinstance(golden, dict):
        return isinstance(now, dict) and all(name in now and holds(now[name], golden[name]) for name in golden)
    if isinstance(golden, list):
        return isinstance(now, list) and len(now) == len(golden) and all(map(holds, now, golden))
    return repr(now) == repr(golden)


def test_a_recording_of_version_1_is_read_for_ever() -> None:
    """The file was written once and is never regenerated: a change of the records must keep reading it as it says."""
    found = [
        decode(line, path=str(GOLDEN), number=number) for number, line in enumerate(GOLDEN.read_bytes().splitlines(), 1)
    ]
    for line, event in zip(GOLDEN.read_bytes().splitlines(), found, strict=True):
        assert holds(json.loads(encode(event)) | {"content": ""}, json.loads(line) | {"content": ""})
    assert [type(event).__name__ for event in found] == [
        "SessionStarted",
        "StepEvent",
        "ObservationEvent",
        "StepEvent",
        "DecisionEvent",
        "ObservationEvent",
        "OutcomeEvent",
        "OutcomeEvent",
    ]
    step = found[1]
    assert isinstance(step, StepEvent)
    assert step.step.tool_calls == (
        ToolCall(id="call_1", name="get_user", arguments={"id": "mia", "deep": [1, 2.5, None]}),
    )
    assert step.step.logprobs is not None
    assert step.step.logprobs[1].top == (("am", -0.25), ("was", -1.75))
    assert step.readings[0].value == 0.1
    assert step.readings[1].reason == "no_logprobs"
    assert step.assessment.propagated_confidence == 0.30000000000000004
    assert step.assessment.timestamp.isoformat() == "2026-01-02T03:04:05.678901+00:00"
    label = found[-1]
    assert isinstance(label, OutcomeEvent)
    assert (label.outcome.success, label.outcome.labelled_by, label.outcome.time_s) == (False, "ana", 1767400000.0)


def test_a_whole_session_comes_back() -> None:
    assert [decode(encode(event)) for event in session(steps=20)] == session(steps=20)
