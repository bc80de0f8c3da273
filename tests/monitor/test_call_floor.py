"""The floor of a call's own probability through whole sessions: it holds more than the guide's rule, never less."""

from __future__ import annotations

import json
import math
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grampus_uq import Effect, ToolCall, UncertaintyLevel, UncertaintyMonitor, UncertaintyPolicy, Verdict
from grampus_uq.core.decision import GRANTABLE
from grampus_uq.records.vocabulary import UncertaintyAction
from grampus_uq.testing import ScriptedModel
from tests.sampling import examples

GRAVITY = list(UncertaintyAction)
ODDS = st.sampled_from([0.02, 0.3, 0.7, 0.9, 0.99, 1.0])
ARGUMENTS = st.sampled_from([{}, {"amount": 5}, {"to": "A17", "amount": 900}, {"body": "a letter " * 6}])
JUDGES = st.sampled_from([None, "0.05", "0.6", "0.9", "0.99", RuntimeError("down")])
CALLS = st.lists(st.tuples(st.sampled_from(["pay", "look"]), ARGUMENTS), max_size=2)
TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.sampled_from(["", "Looking.", "Confidence: 95%", "Confidence: 20%"]),
            "calls": CALLS,
            "odds": st.none() | st.lists(ODDS, min_size=4, max_size=4),
            "judge": JUDGES,
            "effect": st.sampled_from(list(Effect)),
            "by_name": st.booleans(),
        }
    ),
    max_size=5,
)
RULES = st.fixed_dictionaries(
    {
        "on_missing_evidence": st.sampled_from(list(UncertaintyAction)),
        "worst_so_far_floor": st.sampled_from([None, 0.7]),
        "irreversible_tool_names": st.sampled_from([[], ["pay"]]),
    }
)


def tokens(text: str, odds: list[float]) -> list[dict[str, Any]]:
    """The text in quarters, each of its own probability."""
    size = max(1, math.ceil(len(text) / 4))
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [{"token": piece, "logprob": math.log(chance)} for piece, chance in zip(pieces, odds, strict=False)]


async def run(policy: UncertaintyPolicy, turns: list[dict[str, Any]]) -> tuple[list[UncertaintyAction], list[float]]:
    """What is done about each step of a session, and what is believed after it."""
    session = UncertaintyMonitor(policy=policy).session("s")
    actions, believed = [], []
    for number, turn in enumerate(turns):
        named = enumerate(turn["calls"])
        calls = [ToolCall(id=f"{number}-{i}", name=name, arguments=given) for i, (name, given) in named]
        written = turn["text"] + "\n".join(json.dumps({"name": c.name, "arguments": c.arguments}) for c in calls)
        judge = None if turn["judge"] is None else ScriptedModel(turn["judge"])
        _, action = await session.observe_llm_response(
            turn["text"],
            f"t{number}",
            prompt_messages=[{"role": "user", "content": "Do it."}],
            model_client=judge,
            tool_calls=calls,
            logprobs=tokens(written, turn["odds"]) if turn["odds"] else None,
        )
        actions.append(action)
        for call in calls:
            asked = call.name if turn["by_name"] else call
            actions.append(session.would_allow(asked, effect=turn["effect"]).action)
            actions.append((await session.observe_tool_call(asked, f"x{number}", effect=turn["effect"]))[1])
        believed.append(session.state.cumulative)
    return actions, believed


@given(TURNS, RULES)
def test_nothing_that_the_guides_rule_holds_is_released_and_what_is_believed_is_the_same(
    turns: list[dict[str, Any]], rules: dict[str, Any]
) -> None:
    """The floor asks no less of the model, and what missing evidence does it never makes milder."""
    default, believed = anyio.run(run, UncertaintyPolicy(**rules), turns)
    guide, before = anyio.run(run, UncertaintyPolicy(**rules, call_floor=None), turns)
    assert believed == before
    assert all(GRAVITY.index(now) >= GRAVITY.index(then) for now, then in zip(default, guide, strict=True))


@settings(max_examples=examples(60), deadline=None)
@given(
    odds=st.sampled_from([0.01, 0.3, 0.79, 0.85, 0.99, None]),
    belief=st.floats(0.45, 0.99),
    verifier=st.sampled_from([None, 0.7, 0.95]),
    floor=st.sampled_from([None, 0.5, 0.97]),
    names=st.booleans(),
)
def test_a_pause_that_a_grant_may_lift_has_no_other_ground(
    odds: float | None, belief: float, verifier: float | None, floor: float | None, names: bool
) -> None:
    """Where the tier would let the call go ahead, nothing else holds it: more doubt never makes a call grantable."""

    def verdict(low: float) -> Verdict:
        policy = UncertaintyPolicy(low_threshold=low, worst_so_far_floor=floor)
        return anyio.run(_judged, policy, odds, belief, verifier, names)

    asked = verdict(0.8)
    if not asked.allowed and asked.rule in GRANTABLE and asked.level is UncertaintyLevel.MEDIUM:
        assert verdict(0.6).allowed, asked.reason


async def _judged(
    policy: UncertaintyPolicy, odds: float | None, belief: float, verifier: float | None, names: bool
) -> Verdict:
    session = UncertaintyMonitor(policy=policy).session("s")
    for number in range(3):
        await session.observe_llm_response("Looking.", f"l{number}", external={"verifier": belief})
    logprobs = [
        {"token": text, "logprob": -0.01} for text in ('{"name": ', '"pay", ', '"arguments"', ': {"amount": ')
    ] + [{"token": "500", "logprob": None if odds is None else math.log(odds)}, {"token": "}}", "logprob": -0.01}]
    call = {"id": "c1", "name": "pay", "arguments": {"amount": 500}}
    own = {} if verifier is None else {"verifier": verifier}
    await session.observe_llm_response("", "turn", tool_calls=[call], logprobs=logprobs, external=own)
    return session.would_allow("pay" if names else call, effect="irreversible")


def test_what_a_call_probability_of_another_rule_earned_is_no_evidence_and_other_scores_are_judged_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A permit is bound to its judge: where the score is computed otherwise, it covers nothing."""
    session = UncertaintyMonitor().session("run")
    judges = {stream: session.judge("v1", stream) for stream in ("", "confidence", "p_success", "call_probability")}
    assert len({judges[stream] for stream in ("", "confidence", "p_success")}) == 1
    assert judges["call_probability"] != judges[""]
    monkeypatch.setattr("grampus_uq.monitor.permit_basis.CALL_RULE", (1.0,))
    assert session.judge("v1", "call_probability") != judges["call_probability"]
    assert session.judge("v1", "p_success") == judges["p_success"]
