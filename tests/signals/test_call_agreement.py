"""Agreement by argument: which part of a call the samples do not repeat."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Message, Profile, Role, Sensing, ToolCall, UncertaintyPolicy
from grampus_uq.monitor.sensing import SensingPlan, StepInput
from grampus_uq.signals.semantic_entropy import agreement_parts
from grampus_uq.testing import ScriptedModel, answer
from tests.signals.contexts import said


def pay(order: str, amount: object, **more: object) -> ToolCall:
    return ToolCall(id="c", name="pay", arguments={"order": order, "amount": amount, **more})


def test_each_part_has_the_share_of_samples_that_repeat_it() -> None:
    look = ToolCall(id="c", name="look", arguments={"order": "A17"})
    samples = [(pay("A17", 85),), (pay("A17", 7),), (look,), ()]
    parts = agreement_parts([pay("A17", 85, note="We are sorry that it took us so very long.")], samples)
    assert [(part.name, part.agreement) for part in parts] == [("", 0.5), ("order", 0.5), ("amount", 0.25)]
    assert agreement_parts([look], []) == ()


CALLS = st.builds(pay, st.sampled_from(["A17", "B4"]), st.sampled_from([85, 7, "85", True, 1, {"a": [1]}]))


@given(CALLS, st.lists(st.lists(CALLS, max_size=2), min_size=1, max_size=6))
def test_another_sample_that_disagrees_never_raises_a_part_and_none_is_above_its_tool(
    call: ToolCall, samples: list[list[ToolCall]]
) -> None:
    other = [ToolCall(id="d", name="look", arguments={})]
    before, after = agreement_parts([call], samples), agreement_parts([call], [*samples, other])
    assert all(new.agreement <= old.agreement for old, new in zip(before, after, strict=True))
    assert all(part.agreement <= before[0].agreement for part in before)


@pytest.mark.parametrize("amounts", [(85, 85), (85, 7, 85, 85, 85)])
def test_a_monitor_that_samples_reads_the_least_agreed_argument_beside_the_samples(amounts: tuple[int, ...]) -> None:
    model = ScriptedModel([answer(tool_calls=[pay("A17", amount)]) for amount in amounts])
    policy = UncertaintyPolicy(enable_semantic_sampling=True, enable_p_true=False)
    profile = Profile(policy=policy)
    plan = SensingPlan.of(profile, Sensing())
    step = said("", pay("A17", 85))
    given_ = StepInput(messages=[Message(role=Role.USER, content="Pay.")], client=model)
    readings = {one.source: one for one in anyio.run(plan.ask, profile, step, plan.read(step), given_)}
    assert readings["semantic_entropy"].parts == ()
    assert readings["call_agreement"].value == sum(amount == 85 for amount in amounts) / len(amounts)
    assert readings["call_agreement"].calls == 0, "what the samples cost is told once"
    assert readings["call_agreement"].source in plan.names
