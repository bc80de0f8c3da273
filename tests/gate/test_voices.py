"""Of several approvals as many count together as are of distinct people, in whichever order they came."""

from __future__ import annotations

from itertools import combinations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from grampus_uq import Delegation
from grampus_uq.gate.requests import ApprovalDecision
from grampus_uq.gate.voices import Voices
from grampus_uq.records.visible_text import name_form
from tests.gate.test_requests import ASKED
from tests.sampling import examples

APPROVERS, DEPUTIES = ("ann", "bob", "cleo", "Ann", "B\u200bob"), ("dan", "eve", "DAN", "fay")


def voice(of: str, by: str | None) -> ApprovalDecision:
    """An approval of an approver, or of a deputy in their place."""
    if by is None:
        return ASKED.decide("approve", principal=of)
    delegation = Delegation(principal=of, deputy=by, from_s=0.0, until_s=60.0)
    return ASKED.decide("approve", principal=by, delegation=delegation)


def forms(decision: ApprovalDecision) -> set[str]:
    return {name_form(one) for one in decision.voices}


def apart(decisions: list[ApprovalDecision]) -> bool:
    return all(forms(a).isdisjoint(forms(b)) for a, b in combinations(decisions, 2))


def most(decisions: list[ApprovalDecision]) -> int:
    """By trying every subset."""
    sizes = range(len(decisions), -1, -1)
    return next(n for n in sizes if any(apart(list(some)) for some in combinations(decisions, n)))


voices = st.builds(voice, st.sampled_from(APPROVERS), st.none() | st.sampled_from(DEPUTIES))


@settings(max_examples=examples(500))
@given(st.lists(voices, max_size=8))
def test_as_many_count_as_share_no_voice_and_one_more_changes_the_count_by_one_at_the_most(
    decisions: list[ApprovalDecision],
) -> None:
    found = Voices(decisions).distinct()
    assert apart(found)
    assert len(found) == most(decisions)
    assert found == [one for one in decisions if any(one is other for other in found)], "in the order of arrival"
    assert len(found) - len(Voices(decisions[:-1]).distinct()) in (0, 1)
    assert Voices(found).distinct() == found


everybody = st.sampled_from(["ann", "bob", "dan", "eve", "ANN"])


@given(st.lists(st.tuples(everybody, st.none() | everybody), max_size=8))
@example([("ann", None), ("bob", None), ("eve", "ann")])
def test_no_two_that_count_share_a_voice_where_a_deputy_is_an_approver_too(
    spoken: list[tuple[str, str | None]],
) -> None:
    """No policy allows it; pages count what whoever writes the store left there."""
    decisions = [voice(of, by) for of, by in spoken if by is None or name_form(of) != name_form(by)]
    assert apart(Voices(decisions).distinct())


def test_many_in_a_long_chain_are_counted() -> None:
    names = [f"p{n}" for n in range(1_500)]
    chain = [voice(of, f"d{n}") for n, of in enumerate(names)] + [voice(of, f"d{n + 1}") for n, of in enumerate(names)]
    assert len(Voices(chain[::-1]).distinct()) == len(names)
