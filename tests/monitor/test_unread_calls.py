"""A call whose own tokens were due and not read is held as the least sure one, whatever else is believed."""

from __future__ import annotations

import json
import math
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import (
    AgentDefinition,
    AgentRunner,
    Effect,
    FunctionTools,
    ModelResponse,
    Tool,
    UncertaintyEstimator,
    UncertaintyMonitor,
    UncertaintyPolicy,
    Verdict,
)
from grampus_uq.core.propagator import AuqPropagator, SaupPropagator, UncertaintyPropagator
from grampus_uq.integrations.langchain_messages import as_ai_message
from grampus_uq.wire import read_response
from grampus_uq.wire.model_call import parse_response

PAY = {"id": "c1", "name": "pay", "arguments": {"amount": 500}}
LOOK = {"id": "l1", "name": "look", "arguments": {}}
LOST = [None, math.nan, -math.inf, 5.0, "x"]
"""What stands in the place of a log-probability and is none."""


def piece(text: str, odds: float) -> dict[str, Any]:
    return {"token": text, "logprob": math.log(odds)}


def written(amount: Any) -> list[dict[str, Any]]:
    """The tokens of the call, its amount with this log-probability."""
    begin = [piece(part, 0.999) for part in ('{"name": ', '"pay", ', '"arguments"', ': {"amount": ')]
    return [*begin, {"token": "500", "logprob": amount}, piece("}}", 0.999)]


class Judge:
    """A model that finds everything right."""

    async def complete(self, **_: Any) -> ModelResponse:
        return ModelResponse(content="0.99")


async def asked(
    monitor: UncertaintyMonitor, logprobs: Any, *, looks: int = 6, before: Any = None, call: Any = PAY
) -> Verdict:
    session = monitor.session("s")
    for number in range(looks):
        sure = [piece("Looking", 0.99), piece(".", 0.99)]
        await session.observe_llm_response("Looking.", f"l{number}", logprobs=sure, external={"verifier": 0.98})
    if before is not None:
        await session.observe_llm_response("", "before", tool_calls=[LOOK], logprobs=before)
    await session.observe_llm_response(
        "",
        "turn",
        tool_calls=[PAY],
        logprobs=logprobs,
        external={"verifier": 0.98},
        prompt_messages=[{"role": "user", "content": "pay it"}],
        model_client=Judge(),
    )
    return session.would_allow(call, effect="irreversible")


PROPAGATORS = [
    UncertaintyPropagator(),
    SaupPropagator(),
    AuqPropagator(aggregate="mean"),
    AuqPropagator(aggregate="last"),
]


@given(
    st.sampled_from(LOST),
    st.sampled_from(PROPAGATORS),
    st.floats(0.2, 0.9),
    st.sampled_from([0.1, 1.0, 3.0, 10.0]),
    st.integers(0, 8),
)
def test_a_doubtful_token_that_is_lost_holds_the_call_as_a_doubtful_one_does(
    lost: Any, propagator: Any, low: float, weight: float, looks: int
) -> None:
    policy = UncertaintyPolicy(low_threshold=low, medium_threshold=low / 2, high_threshold=low / 4)
    estimator = UncertaintyEstimator(extra_weights={"verifier": weight})
    for amount in (math.log(0.3), lost):
        monitor = UncertaintyMonitor(policy=policy, propagator=propagator, estimator=estimator)
        assert not anyio.run(lambda m=monitor, a=amount: asked(m, written(a), looks=looks)).allowed


def test_a_run_that_lost_the_tokens_of_one_call_of_several_misses_them() -> None:
    def verdict(before: Any, **given: Any) -> Verdict:
        return anyio.run(lambda: asked(UncertaintyMonitor(), None, before=before, **given))

    look = [piece('{"name": "look", "arguments": {}}', 0.99)]
    lost = verdict(look)
    assert (lost.allowed, lost.rule) == (False, "call_evidence")
    assert "the log-probabilities of its own tokens are missing" in lost.reason
    assert verdict(None).allowed, "a provider that reports none of calls is no failure"


@pytest.mark.parametrize("amount", [math.log(0.999), math.log(0.3), *LOST])
def test_the_runner_and_a_loop_of_ones_own_decide_alike_on_the_same_raw_answer(amount: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": json.dumps(PAY["arguments"])}}
    answer = {
        "choices": [{"message": {"content": "", "tool_calls": [call]}, "logprobs": {"content": written(amount)}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }
    done = {"choices": [{"message": {"content": "Done."}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    paid: list[float] = []

    async def pay(amount: float) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    class Client(Judge):
        async def complete(self, *, messages: Any, **given: Any) -> Any:  # type: ignore[override]
            if messages[0].role.value != "system":
                return await super().complete(**given)
            return done if any(m.role.value == "tool" for m in messages) else answer

    async def run() -> None:
        tools = FunctionTools(Tool(pay, effect="irreversible"))
        runner = AgentRunner(Client(), tools, uncertainty_monitor=UncertaintyMonitor())
        await runner.run(AgentDefinition(name="clerk", model="m", system_prompt="s"), "pay it", session_id="s")

    async def own() -> Verdict:
        session = UncertaintyMonitor().session("s")
        prompt = [{"role": "user", "content": "pay it"}]
        await session.observe_llm_response(answer, "t", prompt_messages=prompt, model_client=Judge())
        return session.would_allow(PAY, effect="irreversible")

    anyio.run(run)
    assert bool(paid) is anyio.run(own).allowed is (amount == math.log(0.999))


@pytest.mark.parametrize("lost", LOST)
def test_an_answer_that_is_handed_on_says_that_its_log_probabilities_are_broken(lost: Any) -> None:
    answer = {"choices": [{"message": {"content": "Hi"}, "logprobs": {"content": [{"token": "Hi", "logprob": lost}]}}]}
    response = parse_response(answer)
    assert response.logprobs is None
    assert response.logprobs_problem
    assert ModelResponse.model_validate_json(response.model_dump_json()) == response
    assert read_response(response).logprobs.problem == response.logprobs_problem
    assert read_response(as_ai_message(response)).logprobs.problem is not None


def test_a_call_asked_for_while_its_turn_is_read_or_after_that_was_given_up_is_held() -> None:
    class Slow(Judge):
        async def complete(self, **given: Any) -> ModelResponse:
            await anyio.sleep(30)
            return await super().complete(**given)

    async def main() -> None:
        session = UncertaintyMonitor().session("s")
        sure = {"logprobs": [piece("Sure.", 0.99)], "tool_calls": [LOOK]}
        await session.observe_llm_response("Sure.", "a", **sure)

        def allows(call: Any) -> bool:
            return session.would_allow(call, effect="irreversible").allowed

        async def read() -> None:
            prompt, odds = [{"role": "user", "content": "pay it"}], written(math.log(0.3))
            given = {"prompt_messages": prompt, "model_client": Slow(), "logprobs": odds}
            await session.observe_llm_response("", "b", tool_calls=[PAY], **given)

        def only_what_was_listed_goes() -> None:
            assert allows(LOOK)
            assert not any(allows(call) for call in ("look", "pay", PAY, {"id": "c1", "name": "pay"}))

        assert allows("look")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.sleep(0.05)
            only_what_was_listed_goes()
            tasks.cancel_scope.cancel()
        only_what_was_listed_goes()
        assert (await session.observe_tool_call({"id": "c1", "name": "pay"}, "x", effect="irreversible"))[1].stops
        await session.observe_llm_response("Sure.", "c", **sure)
        only_what_was_listed_goes()
        await session.observe_llm_response("Sure.", "b", **sure)
        assert allows("look")

    anyio.run(main)


@given(st.permutations([LOOK, PAY]), st.sampled_from([math.log(0.3), math.log(0.999)]))
def test_a_step_of_several_calls_is_judged_on_all_of_them_in_any_order(calls: list[Any], amount: float) -> None:
    async def main() -> None:
        session = UncertaintyMonitor(policy=UncertaintyPolicy(irreversible_tool_names=("pay",))).session("s")
        look = [piece('{"name": "look", "arguments": {}}', 0.999)]
        await session.observe_llm_response("Looking.", "a", logprobs=[piece("Looking.", 0.99)])
        tokens = [token for call in calls for token in (look if call is LOOK else written(amount))]
        _, action = await session.observe_llm_response(
            "", "t", step_type="tool_call", tool_calls=calls, logprobs=tokens, external={"verifier": 0.99}
        )
        doubtful = amount == math.log(0.3)
        assert action.stops is doubtful
        assert session.would_allow(PAY).allowed is not doubtful
        assert session.would_allow("pay").allowed is not doubtful

    anyio.run(main)


def test_an_id_that_no_turn_listed_is_no_turns_call() -> None:
    async def main() -> None:
        session = UncertaintyMonitor().session("s")
        await session.observe_llm_response("Sure.", "a", logprobs=[piece("Sure.", 0.99)], tool_calls=[LOOK, PAY])
        for call, known in ((PAY, True), ({"id": "c1", "name": "pay"}, True), ({"id": "c9", "name": "pay"}, False)):
            assert session.would_allow(call, effect=Effect.IRREVERSIBLE).allowed is known

    anyio.run(main)
