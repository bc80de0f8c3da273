"""The transcript as a log of changes: whatever happens to a transcript, the log gives it back, and only its own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq.errors import StoreError
from grampus_uq.records.values import Message, ToolCall
from grampus_uq.records.vocabulary import Role
from grampus_uq.runtime.transcript import Transcript, changes, extended, replayed
from tests.sampling import examples

messages = st.builds(
    Message,
    role=st.sampled_from(Role),
    content=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    name=st.none() | st.just("tool"),
    tool_calls=st.lists(st.builds(ToolCall, id=st.just("a"), name=st.just("t")), max_size=1).map(tuple),
    metadata=st.dictionaries(st.sampled_from("ab"), st.booleans() | st.integers() | st.text("xyz"), max_size=1),
)
edits = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(messages, max_size=3)),
        st.tuples(st.just("replace"), st.tuples(st.integers(0, 12), messages)),
        st.tuples(st.just("cut"), st.integers(0, 12)),
        st.tuples(st.just("save"), st.none()),
    ),
    max_size=20,
)


@given(edits=edits)
@settings(max_examples=examples(200), deadline=None)
def test_whatever_is_done_to_a_transcript_between_saves_the_log_gives_it_back(edits: list[tuple[str, object]]) -> None:
    now: list[Message] = []
    kept: list[Message] = []
    log: list[str] = []
    transcript = Transcript(log="log")
    for what, value in [*edits, ("save", None)]:
        if what == "add":
            now = [*now, *value]  # type: ignore[misc]  # as drawn
        elif what == "cut":
            now = now[:value]  # type: ignore[misc]
        elif what == "replace" and now:
            index, message = value  # type: ignore[misc]
            now = [message if place == index % len(now) else old for place, old in enumerate(now)]
        elif what == "save":
            entries = changes(kept, now)
            transcript, kept, log = extended(transcript, entries), list(now), [*log, *entries]
            assert replayed(transcript, [*log, "what a writer to come appended"]) == now


@given(edits=edits, place=st.integers(0, 50))
@settings(max_examples=examples(100), deadline=None)
def test_a_log_with_an_entry_changed_left_out_or_moved_is_refused(edits: list[tuple[str, object]], place: int) -> None:
    added = [message for what, value in edits if what == "add" for message in value]  # type: ignore[attr-defined]
    log: list[str] = []
    for length in range(1, len(added) + 1):
        log += changes(added[: length - 1], added[:length])
    transcript = extended(Transcript(log="log"), log)
    if len(log) < 2:
        return
    index = place % len(log)
    other = (index + 1) % len(log)
    forged = [
        [*log[:index], *log[index + 1 :]],
        [entry.replace('"length"', '"length" ') if n == index else entry for n, entry in enumerate(log)],
    ]
    if log[index] != log[other]:
        swapped = list(log)
        swapped[index], swapped[other] = log[other], log[index]
        forged.append(swapped)
    for entries in forged:
        with pytest.raises(StoreError, match="does not fit"):
            replayed(transcript, entries)


def test_a_save_writes_only_what_is_new() -> None:
    old = [Message(role=Role.USER, content=f"{n}" * 1_000) for n in range(100)]
    new = [*old, Message(role=Role.USER, content="new")]
    (entry,) = changes(old, new)
    assert entry == '{"start":100,"length":101,"messages":[{"role":"user","content":"new"}]}'
    assert changes(new, list(new)) == []
