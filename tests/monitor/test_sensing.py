"""The sensing plan: which signals run, in which order, with how many calls, and what is left when none may be asked."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import anyio
import anyio.to_thread
import pytest

from grampus_uq import (
    Budget,
    Message,
    MissingReason,
    Profile,
    Reading,
    Role,
    Sensing,
    Step,
    StepEvent,
    TokenLogprob,
    ToolCall,
    TrajectoryRiskSettings,
    UncertaintyEstimator,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.core.release import ReleaseRule
from grampus_uq.errors import ConfigurationError, RateLimitedError
from grampus_uq.models import OpenAICompatibleModel
from grampus_uq.monitor import sensing
from grampus_uq.monitor.sensing import LONG_COMPLETION, SensingPlan, StepInput
from grampus_uq.signals import registry
from grampus_uq.signals.claim_probability import MAX_TOKENS
from grampus_uq.signals.equivalence import EntailmentEquivalence
from grampus_uq.stats.eprocess import Detector
from grampus_uq.stats.eprocess_scorers import running_minimum
from grampus_uq.stats.eprocess_thresholds import ville_threshold
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from grampus_uq.testing import HANG, ScriptedModel, answer

PROMPT = (Message(role=Role.USER, content="What is the capital of France?"),)
SAMPLING = UncertaintyPolicy(enable_semantic_sampling=True)


def step(text="Confidence: 70%"):
    return Step(step_id="s", kind="llm_call", time_s=0.0, text=text)


def names(plan):
    return plan.names


async def sense(model, *, text="Confidence: 70%", over_cap=False, policy=SAMPLING, estimator=None, parts=(), **given):
    profile = Profile(policy=policy, estimator=estimator or UncertaintyEstimator(), **dict(parts))
    plan = SensingPlan.of(profile, Sensing(**given))
    seen = plan.read(step(text))
    found = StepInput(messages=PROMPT, client=model, model="m", over_cap=over_cap)
    return {reading.source: reading for reading in [*seen, *await plan.ask(profile, step(text), seen, found)]}


def talking(judgement, samples=("Paris",) * 5, delay_s=0.0):
    """A model that judges at temperature 0 and draws the samples at .8."""
    drawn = iter(samples)

    def reply(_, options):
        return next(drawn) if options["temperature"] == 0.8 else judgement

    return ScriptedModel(reply, delay_s=delay_s)


# -- which signals run --


@pytest.mark.parametrize("policy_allows", [True, False])
@pytest.mark.parametrize("estimator_allows", [True, False])
def test_a_signal_runs_only_if_policy_and_estimator_both_allow_it(policy_allows, estimator_allows):
    policy = UncertaintyPolicy(enable_p_true=policy_allows, enable_semantic_sampling=policy_allows)
    estimator = UncertaintyEstimator(enable_p_true=estimator_allows, enable_semantic_sampling=estimator_allows)
    found = names(SensingPlan.of(Profile(policy=policy, estimator=estimator)))
    assert ("p_true" in found) is (policy_allows and estimator_allows)
    assert ("semantic_entropy" in found) is (policy_allows and estimator_allows)
    assert found >= {"verbalized", "token_probability", "token_entropy"}


CALL = ToolCall(name="pay", arguments={"amount": 5})
WRITTEN = (TokenLogprob(token='{"name": "pay", "arguments": {"amount": 5}}', logprob=-0.1),)


LOOK = ToolCall(name="look", arguments={"at": 5})
LETTER = ToolCall(name="pay", arguments={"amount": 7, "note": "A note of so many words that it counts as prose."})
PAYS = UncertaintyPolicy(irreversible_tool_names=["pay"])
SPARED = {"ask_of_calls": False}


def written(*calls):
    text = "".join(json.dumps({"name": call.name, "arguments": call.arguments}) for call in calls)
    return tuple(TokenLogprob(token=text[at : at + 4], logprob=-0.1) for at in range(0, len(text), 4))


BOTH_WRITTEN, LETTER_WRITTEN = written(CALL, LOOK), written(CALL, LETTER)


def fitted_on(source):
    return LogisticFusion(readings={source: FusedReading(mean=0.0, sd=1.0, slope=1.0)}, intercept=0.0)


def detector_of(source):
    scorer = running_minimum(bounded=(True,), neutral=(0.5,), stream=0)
    return Detector(streams=(source,), scorer=scorer, thresholds=(ville_threshold(0.5),), deployed=0, salt="s")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("asked", "calls", "tokens", "given", "profile"),
    [
        (True, (CALL,), WRITTEN, {}, Profile(policy=PAYS)),
        (False, (CALL,), WRITTEN, SPARED, Profile(policy=PAYS)),
        (False, (CALL,), WRITTEN, {**SPARED, "max_overhead": 0.0}, Profile(policy=PAYS)),
        (False, (CALL,), WRITTEN, SPARED, Profile(policy=PAYS, calibration=fitted_on("call_probability"))),
        (True, (CALL,), WRITTEN, SPARED, Profile(policy=PAYS.model_copy(update={"call_floor": None}))),
        (True, (CALL,), WRITTEN, SPARED, Profile(policy=PAYS, calibration=fitted_on("p_true"))),
        (True, (CALL,), WRITTEN, SPARED, Profile(policy=PAYS, calibration=fitted_on("semantic_entropy"))),
        (True, (CALL,), WRITTEN, SPARED, Profile(policy=PAYS, detector=detector_of("fused"))),
        (True, (CALL,), WRITTEN, SPARED, Profile(policy=PAYS, detector=detector_of("propagated"))),
        (True, (CALL,), WRITTEN, SPARED, Profile(policy=PAYS, detector=detector_of("p_success"))),
        (True, (CALL,), WRITTEN, SPARED, Profile()),
        (True, (CALL, LOOK), BOTH_WRITTEN, SPARED, Profile(policy=PAYS)),
        (True, (CALL, LETTER), LETTER_WRITTEN, SPARED, Profile(policy=PAYS)),
        (True, (ToolCall(name="pay"),), WRITTEN, SPARED, Profile(policy=PAYS)),
        (True, (CALL,), None, SPARED, Profile(policy=PAYS)),
        (True, (CALL,), (TokenLogprob(token="Done.", logprob=-0.1),), SPARED, Profile(policy=PAYS)),
        (True, (), WRITTEN, SPARED, Profile(policy=PAYS)),
        (True, (ToolCall(name="pay", arguments={"amount": 500}),), WRITTEN, SPARED, Profile(policy=PAYS)),
        (True, (ToolCall(name="pay", arguments={"sum": 5}),), WRITTEN, SPARED, Profile(policy=PAYS)),
    ],
)
async def test_p_true_is_left_out_only_where_asked_for_and_each_part_of_irreversible_calls_was_read(
    asked, calls, tokens, given, profile
):
    model = ScriptedModel("0.9")
    monitor = UncertaintyMonitor(profile=profile, sensing=Sensing(**given))
    shown, _ = await monitor.session("s").observe_llm_response(
        "Paid.", "1", prompt_messages=PROMPT, model_client=model, tool_calls=calls, logprobs=tokens
    )
    assert bool(model.calls) is asked
    assert (shown.p_true_confidence != -1.0) is asked
    assert ("p_true: not_needed" in (shown.missing_reason or "")) is not asked


SAID = (TokenLogprob(token="Paris.", logprob=-0.1),)
TOLD = {"tools": []}
ASKS = {"ask_of_answers": True}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("asked", "tokens", "given", "told", "profile"),
    [
        (False, SAID, {}, TOLD, Profile()),
        (False, SAID, {}, {"tools": [{"name": "look"}]}, Profile(policy=PAYS)),
        (False, SAID, {}, TOLD, Profile(calibration=fitted_on("claim_probability"))),
        (True, SAID, ASKS, TOLD, Profile()),
        (True, SAID, {}, {}, Profile()),
        (True, None, {}, TOLD, Profile()),
        (True, (TokenLogprob(token="?!", logprob=-0.1),), {}, TOLD, Profile()),
        (True, (TokenLogprob(token="Paris", logprob=0.5),), {}, TOLD, Profile()),
        (True, SAID * (MAX_TOKENS + 1), {}, TOLD, Profile()),
        (True, SAID, {}, {**TOLD, "step_type": "decision"}, Profile()),
        (True, SAID, {}, {**TOLD, "tool_calls": [LOOK]}, Profile()),
        (True, SAID, {}, TOLD, Profile(policy=UncertaintyPolicy(call_floor=None))),
        (True, SAID, {}, TOLD, Profile(policy=SAMPLING)),
        (True, SAID, {}, TOLD, Profile(calibration=fitted_on("p_true"))),
        (True, SAID, {}, TOLD, Profile(detector=detector_of("fused"))),
    ],
)
async def test_p_true_is_not_asked_of_an_answer_that_was_read_from_its_tokens_in_a_session_that_knows_its_tools(
    asked, tokens, given, told, profile
):
    model = ScriptedModel("0.9")
    session = UncertaintyMonitor(profile=profile, sensing=Sensing(**given)).session("s")
    shown, _ = await session.observe_llm_response(
        "Paris.", "1", prompt_messages=PROMPT, model_client=model, logprobs=tokens, **told
    )
    assert bool(model.calls) is asked
    assert (shown.p_true_confidence != -1.0) is asked
    assert ("p_true: not_needed" in (shown.missing_reason or "")) is not asked


@pytest.mark.anyio
async def test_tools_that_were_declared_to_a_session_are_known_to_its_later_turns():
    model = ScriptedModel("0.9")
    session = UncertaintyMonitor().session("s")
    session.declare_tools(["look"])
    await session.observe_llm_response("Paris.", "1", prompt_messages=PROMPT, model_client=model, logprobs=SAID)
    assert not model.calls


def test_a_line_in_the_registry_is_all_that_a_new_signal_needs(monkeypatch):
    class Length:
        source = "length"

        def read(self, given):
            return Reading(source=self.source, value=1.0 / (1.0 + len(given.text)))

    line = registry.BUILT_IN[0]._replace(source="length", make=Length)
    monkeypatch.setattr(sensing, "BUILT_IN", (*registry.BUILT_IN, line))
    plan = SensingPlan.of(Profile())
    assert "length" in plan.names
    assert any(reading.source == "length" for reading in plan.read(step("abc")))


def test_without_a_word_about_it_p_true_runs_and_sampling_does_not():
    found = names(SensingPlan.of(Profile()))
    assert found >= {"verbalized", "token_probability", "token_entropy", "p_true"}
    assert "semantic_entropy" not in found


def test_a_plan_that_asks_nobody_says_so():
    assert SensingPlan.of(Profile()).asks
    assert not SensingPlan.of(Profile(policy=UncertaintyPolicy(enable_p_true=False))).asks


SWITCHED = {str(signal.source): signal.switch for signal in registry.BUILT_IN if signal.switch}


@pytest.mark.parametrize("source", SWITCHED)
def test_what_was_fitted_on_a_signal_switches_it_on_and_no_other(source):
    off = UncertaintyPolicy.model_validate(dict.fromkeys(SWITCHED.values(), False))
    on = off.model_copy(update=registry.switches_of({source, "verbalized", "of_ones_own"}))
    assert names(SensingPlan.of(Profile(policy=off))).isdisjoint(SWITCHED)
    assert names(SensingPlan.of(Profile(policy=on))) & SWITCHED.keys() == {source}


class Instant:
    source = "length"

    def read(self, step):
        return Reading(source=self.source, value=min(1.0, len(step.text) / 100))


class Asking:
    source = "asking"

    async def sense(self, step, context):
        return Reading(source=self.source, value=float((await context.ask(PROMPT, temperature=0.0)).content))


@pytest.mark.anyio
async def test_signals_of_ones_own_are_read_beside_the_others():
    found = await sense(talking("0.25"), signals=[Instant(), Asking()])
    assert found["length"].value == 0.15
    assert found["asking"].value == 0.25
    assert found["p_true"].value == 0.25


class Repeating:
    """Reads the prompt alone: it asks no model."""

    source = "repeating"

    async def sense(self, step, context):
        return Reading(source=self.source, value=float(all(step.text != said.content for said in context.messages)))


class Keeping:
    """Keeps the readings of the latest step."""

    def on_event(self, event):
        if isinstance(event, StepEvent):
            self.readings = {reading.source: reading for reading in event.readings}


@pytest.mark.anyio
@pytest.mark.parametrize("logprobs", [None, (TokenLogprob(token="Paris.", logprob=-0.1),)])
async def test_a_signal_of_ones_own_is_awaited_on_a_step_without_a_model_too(logprobs):
    keeping = Keeping()
    weighed = UncertaintyEstimator(extra_weights={"asking": 2.0})
    sensing = Sensing(signals=[Asking(), Repeating()])
    with_it = UncertaintyMonitor(estimator=weighed, sensing=sensing, processors=[keeping]).session("a")
    without = UncertaintyMonitor(estimator=weighed).session("a")
    prompt = [*PROMPT, Message(role=Role.ASSISTANT, content="Paris.")]
    for text, new in (("Paris.", 0.0), ("Rome.", 1.0)):
        alone, _ = await without.observe_llm_response(text, text, prompt_messages=prompt, logprobs=logprobs)
        found, _ = await with_it.observe_llm_response(text, text, prompt_messages=prompt, logprobs=logprobs)
        asking, repeating = keeping.readings["asking"], keeping.readings["repeating"]
        assert (repeating.value, asking.value, asking.reason) == (new, None, MissingReason.NO_MODEL)
        assert "asking: no_model" in found.missing_reason
        assert (found.action, found.fused_confidence) == (alone.action, alone.fused_confidence)


@pytest.mark.parametrize("extra", [[Instant(), Instant()], [type("V", (Instant,), {"source": "p_true"})()]])
def test_two_signals_of_one_name_are_refused(extra):
    with pytest.raises(ConfigurationError, match="distinct names"):
        SensingPlan.of(Profile(), Sensing(signals=extra))


def test_what_is_no_signal_is_refused():
    with pytest.raises(ConfigurationError, match="read"):
        UncertaintyMonitor(sensing=Sensing(signals=[object()]))


# -- the slow path --


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("judgement", "samples"),
    [("0.70", 2), ("0.95", 0), ("0.0", 2), ("perhaps", 2)],
)
async def test_the_slow_path_runs_up_to_the_end_of_the_trigger_zone(judgement, samples):
    """Fusions of .7 * .75 with P(True) times .9: .588, .723, .21; and at least .21 when P(True) is missing."""
    model = talking(judgement)
    found = await sense(model)
    assert sum(call.options["temperature"] == 0.8 for call in model.calls) == samples
    assert ("semantic_entropy" in found) is (samples > 0)


@pytest.mark.anyio
@pytest.mark.parametrize("stored", [False, True])
async def test_whoever_sets_a_lower_end_of_the_zone_has_the_guides(stored):
    set_by_hand, left = UncertaintyEstimator(semantic_trigger_low=0.5), UncertaintyEstimator()
    if stored:
        set_by_hand, left = (UncertaintyEstimator(**one.model_dump()) for one in (set_by_hand, left))
    assert "semantic_entropy" not in await sense(talking("0.0"), estimator=set_by_hand)
    assert "semantic_entropy" in await sense(talking("0.0"), estimator=left)


@pytest.mark.anyio
@pytest.mark.parametrize(("judgement", "samples"), [("0.95", 0), ("perhaps", 2), (RateLimitedError("slow down"), 2)])
async def test_a_judgement_that_fails_skips_no_sampling_that_a_low_one_has_to_pass(judgement, samples):
    model = talking(judgement)
    await sense(model, text="Confidence: 100%")
    assert sum(call.options["temperature"] == 0.8 for call in model.calls) == samples


@pytest.mark.anyio
@pytest.mark.parametrize(("without_evidence", "samples"), [("pause_for_human", 2), ("proceed", 0)])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"trajectory_risk": TrajectoryRiskSettings()},
        {"calibration": fitted_on("verbalized")},
        {"calibration": fitted_on("p_true"), "release": ReleaseRule(at_least=0.5)},
    ],
)
async def test_what_the_model_states_skips_no_sampling_unless_it_may_release_a_call(without_evidence, samples, parts):
    policy = UncertaintyPolicy(enable_semantic_sampling=True, on_missing_evidence=without_evidence)
    model = talking("0.79")
    await sense(model, text="Confidence: 100%", policy=policy, parts=parts)
    assert sum(call.options["temperature"] == 0.8 for call in model.calls) == samples


@pytest.mark.anyio
async def test_a_calibration_that_was_fitted_on_every_sample_gets_every_sample():
    readings = {name: FusedReading(mean=0.0, sd=1.0, slope=1.0) for name in ("p_true", "semantic_entropy")}
    profile = Profile(policy=SAMPLING, calibration=LogisticFusion(readings=readings, intercept=0.0))
    model, plan = talking("0.99"), SensingPlan.of(profile)
    seen = plan.read(step("Confidence: 99%"))
    found = await plan.ask(profile, step(), seen, StepInput(messages=PROMPT, client=model, model="m"))
    assert {reading.source for reading in found} == {"p_true", "semantic_entropy"}


@pytest.mark.anyio
async def test_the_slow_path_runs_when_nothing_else_could_be_read():
    found = await sense(talking("perhaps"), text="Paris.")
    assert found["semantic_entropy"].value == 1.0
    assert found["verbalized"].value is None
    assert found["p_true"].reason == MissingReason.PARSE_ERROR


@pytest.mark.jumping_clocks
@pytest.mark.anyio
async def test_in_speculative_mode_the_first_pair_is_drawn_beside_p_true():
    model = talking("0.70", delay_s=0.3)
    found = await sense(model, text="Paris. Confidence: 70%", speculative=True)
    assert model.most_in_flight == 3
    assert found["semantic_entropy"].value == 1.0
    assert found["semantic_entropy"].calls == 2
    plain = talking("0.70", delay_s=0.3)
    await sense(plain)
    assert plain.most_in_flight == 2


@pytest.mark.anyio
async def test_a_speculative_pair_that_was_not_needed_is_paid_for_and_not_read():
    found = await sense(talking("0.95"), speculative=True)
    unused = found["semantic_entropy"]
    assert (unused.value, unused.reason, unused.calls) == (None, MissingReason.NOT_NEEDED, 2)
    assert unused.input_tokens == 20


@pytest.mark.anyio
async def test_a_speculative_pair_that_disagrees_is_extended():
    found = await sense(talking("0.70", ["Paris", "Rome", "Paris", "Paris", "Rome"]), speculative=True)
    assert (found["semantic_entropy"].samples, found["semantic_entropy"].calls) == (5, 5)


@pytest.mark.anyio
@pytest.mark.parametrize("failure", [RateLimitedError("slow down"), ValueError("x"), None, HANG])
async def test_a_speculative_pair_that_fails_takes_nothing_else_along(failure):
    model = talking("0.70", [failure] * 5)
    budget = Budget(timeout_s=0.05 if failure is HANG else 30.0)
    found = await sense(model, speculative=True, budgets={"semantic_entropy": budget})
    assert found["p_true"].value == 0.7
    assert found["semantic_entropy"].reason == MissingReason.TOO_FEW_SAMPLES
    assert model.in_flight == 0


@pytest.mark.jumping_clocks
@pytest.mark.anyio
async def test_the_slow_path_has_its_own_clock_after_a_slow_fast_path():
    model = talking("0.70", delay_s=1.2)
    found = await sense(model, text="Paris. Confidence: 70%", budget=Budget(timeout_s=2.0))
    assert found["p_true"].value == 0.7
    assert found["semantic_entropy"].value == 1.0


# -- budgets --


@pytest.mark.anyio
async def test_one_budget_bounds_every_signal_and_a_budget_by_name_one_of_them():
    model = talking("0.70", ["Paris", "Rome", "Paris", "Paris", "Paris"])
    found = await sense(model, budget=Budget(max_calls=1), budgets={"semantic_entropy": Budget(max_calls=3)})
    assert found["p_true"].calls == 1
    assert found["semantic_entropy"].samples == 3


@pytest.mark.anyio
async def test_without_a_budget_all_samples_and_all_judgements_fit():
    estimator = UncertaintyEstimator(max_samples=12)
    cities = [f"city {letter}" for letter in "abcdefghijkl"]
    found = await sense(talking("0.70", cities), estimator=estimator)
    assert found["semantic_entropy"].samples == 12
    judged = talking("No", cities)
    found = await sense(judged, text="Paris.", estimator=estimator, equivalence=EntailmentEquivalence())
    assert found["semantic_entropy"].value == pytest.approx(0.0, abs=1e-12)
    assert found["semantic_entropy"].calls == 12 + 13 * 12 // 2


# -- when none may be asked --


@pytest.mark.anyio
async def test_over_its_cap_the_monitor_asks_nobody_and_says_why():
    model = ScriptedModel([])
    found = await sense(model, over_cap=True)
    assert model.calls == []
    assert found["verbalized"].value == 0.7
    assert [found[name].reason for name in ("p_true", "semantic_entropy")] == [MissingReason.OVERHEAD_CAP] * 2


@pytest.mark.anyio
@pytest.mark.parametrize(("text", "value"), [("Confidence: 70%", 0.7), ("Paris.", None)])
async def test_a_confidence_that_is_stated_is_read_also_where_repairs_may_not_be_asked_for(text, value):
    capped = (await sense(ScriptedModel([]), over_cap=True, repairs=2, text=text))["verbalized"]
    assert capped.value == value
    assert capped.reason == (None if value else MissingReason.OVERHEAD_CAP)
    session = UncertaintyMonitor(sensing=Sensing(repairs=2)).session("s")
    assessment, _ = await session.observe_llm_response(text, "a")
    assert assessment.verbalized_confidence == (value or 0.5)
    assert session.state.has_reading is (value is not None)


@pytest.mark.anyio
async def test_repairs_and_p_true_are_asked_side_by_side():
    def reply(messages, _):
        return "0.8" if "True or False" in messages[-1].content else "0.9"

    model = ScriptedModel(reply, delay_s=0.01)
    found = await sense(model, text="Paris.", repairs=1)
    assert (found["verbalized"].value, found["verbalized"].calls) == (0.9, 1)
    assert found["p_true"].value == 0.8
    assert model.most_in_flight == 2


@pytest.mark.anyio
async def test_a_model_that_refuses_logprobs_and_temperature_serves_every_signal():
    def reply(messages, _):
        asked = messages[-1].content
        return answer("0.7" if "True or False" in asked else "Paris" if len(messages) == 1 else "0.6")

    model = ScriptedModel(reply, refuse=["logprobs", "temperature"])
    found = await sense(model, text="Paris.", repairs=1)
    assert (found["verbalized"].value, found["p_true"].value) == (0.6, 0.7)
    assert found["semantic_entropy"].value == 1.0


@pytest.mark.one_loop
@pytest.mark.anyio
@pytest.mark.parametrize(("tokens", "characters", "calls"), [(500, 16, 32), (500, 16, 3), (20, 900, 1), (1, 20_000, 1)])
async def test_a_turn_of_many_calls_or_long_tokens_is_read_off_the_event_loop(
    tokens: int, characters: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, real = [], sensing.read_tokens

    def read(step, messages, tools):
        where.append(threading.get_ident())
        return real(step, messages, tools)

    monkeypatch.setattr(sensing, "read_tokens", read)
    listed = tuple(ToolCall(id=f"c{number}", name="pay", arguments={"to": "ann"}) for number in range(calls))
    text = ("to: " * characters)[:characters]
    step = Step(
        step_id="s",
        kind="llm_call",
        time_s=0.0,
        tool_calls=listed,
        logprobs=(TokenLogprob(token=text, logprob=0.0),) * tokens,
    )
    plan = SensingPlan.of(Profile(), Sensing())
    await plan.sense(Profile(), step, StepInput(messages=PROMPT), None)
    short = replace(step, logprobs=step.logprobs[:1], tool_calls=listed[:1])
    if characters < 900:
        await plan.sense(Profile(), short, StepInput(messages=PROMPT), None)
        assert where.pop() == threading.get_ident()
    assert where
    assert threading.get_ident() not in where


@pytest.mark.anyio
async def test_a_long_completion_is_read_off_the_event_loop_and_as_a_short_one_is():
    where = []

    class Where:
        source = "where"

        def read(self, step):
            where.append(threading.get_ident())
            return Reading(source=self.source, value=1.0)

    plan = SensingPlan.of(Profile(), Sensing(signals=[Where()]))
    word = TokenLogprob(token="word ", logprob=-0.1, top=(("word ", -0.1), ("other", -3.0)))
    long = Step(step_id="s", kind="llm_call", time_s=0.0, text="x", logprobs=(word,) * (LONG_COMPLETION + 1))
    found = await plan.sense(Profile(), long, StepInput(messages=PROMPT), None)
    assert found == plan.read(long, PROMPT)
    assert where == [threading.get_ident()] * 2
    session = UncertaintyMonitor().session("s")
    await session.observe_llm_response("x", "a", logprobs=long.logprobs)
    assert session.state.has_reading


@pytest.mark.anyio
async def test_an_agent_is_read_although_the_application_holds_every_thread_of_the_event_loop():
    """Forty plain endpoints of a web server, each in a thread, waited for forty agents, which waited for a thread."""
    word = TokenLogprob(token="word ", logprob=-0.1)
    session = UncertaintyMonitor().session("s")
    model = OpenAICompatibleModel("http://127.0.0.1:1/v1")
    threads = anyio.to_thread.current_default_thread_limiter()
    owners = [object() for _ in range(int(threads.available_tokens))]
    for owner in owners:
        threads.acquire_on_behalf_of_nowait(owner)
    try:
        with anyio.fail_after(20):
            await session.observe_llm_response("word " * 501, "a", logprobs=(word,) * (LONG_COMPLETION + 1))
            await model.warmup()
    finally:
        for owner in owners:
            threads.release_on_behalf_of(owner)
