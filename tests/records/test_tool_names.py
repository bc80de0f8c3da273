"""One normal form for tool names: no spelling of a protected name gets past the policy, no pattern protects nothing."""

from __future__ import annotations

import logging
import re
import unicodedata
import warnings

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grampus_uq import ConfigurationError, Effect, Reading, Step, ToolCall, ToolEffects, UncertaintyMonitor
from grampus_uq import UncertaintyPolicy as Policy
from grampus_uq.records.building import builder
from grampus_uq.records.tool_names import _LOOK_ALIKES, _looks, normal_form, patterns_of
from grampus_uq.records.vocabulary import parse_effect
from grampus_uq.runtime.tools import Tool, tool

DECLARED = "send_email"
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u202e\u2066\u180e\u034f\u0301\u0336\ufe0f\U000e0041\u115f\u3164\uffa0"
# Chosen by eye, not taken from the table that is tested.
LOOK_ALIKES = {
    "s": "ѕＳｓ𝐬𝓼ꜱŝšᏚⓢ🅂🆂🇸",
    "e": "еＥｅ𝐞ｅéêëèēėęΕЕᎬⓔℯⅇɛ🅴℮⋿",
    "n": "ｎΝոñńňⓝ𝗇ɴ🅝",
    "d": "ԁｄⅾďđᎠⓓ𝖽ᴅ",
    "m": "ｍⅿΜМᎷⓜ𝗆ᴍм",
    "a": "аａαɑàáâãäåΑАⓐ𝖺ᴀ🄰⍺",
    "i": "іｉıìíîïⅰℹⓘ𝗂ɩӏІ1Il",
    "l": "ⅼｌӏ|1Iןⓛ𝗅ʟᏞ∣│⏽￨",
}
LOOK_ALIKES = {letter: like.replace("ן", "") for letter, like in LOOK_ALIKES.items()}


@st.composite
def spellings(draw: st.DrawFn, name: str = DECLARED) -> str:
    """Another way to write a name of words joined by underscores."""
    words = name.split("_")
    case = draw(st.sampled_from([str.lower, str.upper, str.title, str.swapcase]))
    words = [words[0], *map(str.title, words[1:])] if draw(st.booleans()) else [case(word) for word in words]
    joined = draw(st.sampled_from(["_", "-", "", ".", " ", "__", "/", ":", "\u2011", "＿", "\u00a0"])).join(words)
    written = []
    for letter in joined:
        like = LOOK_ALIKES.get(letter.lower(), "")
        written.append(draw(st.sampled_from(like)) if like and draw(st.booleans()) else letter)
        written.append(draw(st.text(INVISIBLE, max_size=1)))
    spelt = "".join(written)
    spelt = unicodedata.normalize(draw(st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"])), spelt)
    before = [
        "",
        "mcp__mail__",
        "functions.",
        "mail.",
        "tools/",
        "MCP::",
        "gmail_",
        "gmail-",
        "acme corp ",
        "ｇ＿",
        "a‐",
    ]
    return draw(st.sampled_from(before)) + spelt


@pytest.mark.parametrize(("like", "characters"), _LOOK_ALIKES.items())
def test_each_sign_of_the_table_is_read_as_the_table_says_wherever_it_stands(like, characters):
    for character in characters:
        assert _looks(f"a{character}a") == _looks(f"a{like}a"), f"U+{ord(character):X}"


@given(spellings())
def test_every_spelling_of_an_irreversible_name_is_decided_alike(spelt):
    policy = Policy(irreversible_tool_names=[DECLARED])
    session = UncertaintyMonitor(policy=policy).session("s")
    step = Step(step_id="m", kind="llm_call", time_s=0.0)
    session.commit(step, [Reading(source="verbalized", value=0.8)])
    verdict = session.would_allow(spelt)
    assert (verdict, verdict.rule) == (session.would_allow(DECLARED), "irreversible_override")
    assert ToolEffects({DECLARED: "irreversible"}).resolve(ToolCall(name=spelt)) is Effect.IRREVERSIBLE
    assert ToolEffects(patterns={"send_*": "irreversible"}).resolve(ToolCall(name=spelt)) is Effect.IRREVERSIBLE


@given(spellings(), st.sampled_from([DECLARED, "sendEmail", "SEND-EMAIL", "ｓｅｎｄ＿ｅｍａｉｌ", "ѕеnd_email"]))
def test_the_pattern_may_be_spelt_in_any_way_as_well(spelt, pattern):
    assert Policy(irreversible_tool_names=[pattern]).is_irreversible(spelt)


@given(st.text(), st.text(), st.text())
def test_a_part_of_a_name_is_a_part_of_its_normal_form(before, part, after):
    assert normal_form(part) in normal_form(before + part + after)


@given(st.text("abcxyzABC019_-. éаѕ\u200b", max_size=12), st.text("abcxyzABC019_-. éаѕ\u200b", min_size=1, max_size=4))
def test_the_normal_form_only_ever_raises_the_danger_above_the_guides_rule(name, pattern):
    if normal_form(pattern) and pattern.casefold() in name.casefold():
        assert patterns_of((pattern,)).match(name)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("delete", "undelete_x", True),
        (" delete", "delete_rows", True),
        ("mail", "small_talk", False),
        ("send_email", "read_email", False),
        ("pay", "рay", True),
        ("отправить", "ОТПРАВИТЬ_письмо", True),
        ("删除", "删除_文件", True),
        ("pay", "___", False),
    ],
)
def test_the_guides_substring_rule_holds_in_the_normal_form(pattern, name, matches):
    assert Policy(irreversible_tool_names=[pattern]).is_irreversible(name) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        " ",
        "_",
        "--",
        "\u200b",
        "delete_*",
        "^delete",
        "delete$",
        "a|b",
        "a,b",
        "a; b",
        "a\nb",
        "a｜b",
        "del[ae]te",
        "d.te?",
        r"\w+",
    ],
)
def test_a_pattern_that_protects_nothing_is_refused_with_a_way_out(pattern):
    with pytest.raises((ConfigurationError, ValidationError), match=r"must be .* Got .* \("):
        Policy(irreversible_tool_names=[pattern])


def test_a_pattern_of_an_older_profile_is_read_and_protects_what_its_letters_say():
    with pytest.warns(UserWarning, match="delete_"):
        policy = Policy.model_validate_json('{"irreversible_tool_names": ["delete_*"]}')
    assert policy.irreversible_tool_names == ["delete_*"]
    assert policy.is_irreversible("deleteRows")


def test_a_pattern_that_matches_none_of_the_declared_tools_is_logged_once(caplog):
    policy = Policy(irreversible_tool_names=["send_emial", "delete"])
    session = UncertaintyMonitor(policy=policy).session("s")
    tools = [{"type": "function", "function": {"name": "sendEmail"}}, {"name": "deleteRows"}]

    async def run() -> None:
        for number in range(3):
            await session.observe_llm_response("", str(number), tools=tools)

    with caplog.at_level(logging.WARNING, "grampus_uq.monitor.session"):
        anyio.run(run)
    assert [re.findall(r"'(\w+)'", record.getMessage())[0] for record in caplog.records] == ["send_emial"]


def test_very_long_names_are_read_and_not_kept():
    policy = Policy(irreversible_tool_names=["pay"])
    assert policy.is_irreversible("x" * 100_000 + "ｐａｙ")
    assert not policy.is_irreversible("x" * 100_000)


# -- effects --


@pytest.mark.parametrize("effect", ["irreversible", Effect.IRREVERSIBLE])
def test_an_effect_given_by_its_word_is_that_effect(effect):
    session = UncertaintyMonitor().session("s")
    assert session.would_allow("pay", effect=effect).rule == "missing_evidence"
    step, _ = anyio.run(lambda: session.observe_tool_call("pay", "t", effect=effect))
    assert step.effect is Effect.IRREVERSIBLE
    assert step.action.stops
    direct = Step(step_id="t", kind="tool_call", time_s=0.0, tool_calls=(ToolCall(name="pay"),), effect=effect)
    assert direct.effect is Effect.IRREVERSIBLE
    unchecked = builder(Step)(step_id="t", kind="tool_call", time_s=0.0, effect=effect)
    assert session.commit(unchecked, ()).action.stops
    assert ToolEffects().resolve(ToolCall(name="pay"), effect) is Effect.IRREVERSIBLE


@pytest.mark.parametrize("nonsense", ["nonsense", "Irreversible", "", 1, b"irreversible", ["irreversible"]])
def test_an_effect_that_is_none_is_refused_wherever_one_is_taken(nonsense):
    session = UncertaintyMonitor().session("s")

    def pay() -> None:
        """Pay."""

    takers = [
        lambda: session.would_allow("pay", effect=nonsense),
        lambda: anyio.run(lambda: session.observe_tool_call("pay", "t", effect=nonsense)),
        lambda: Step(step_id="t", kind="tool_call", time_s=0.0, effect=nonsense),
        lambda: ToolEffects({"pay": nonsense}),
        lambda: ToolEffects(patterns={"pay*": nonsense}),
        lambda: ToolEffects().resolve(ToolCall(name="pay"), nonsense),
        lambda: tool(effect=nonsense)(pay),
        lambda: Tool(pay, effect=nonsense),
        lambda: parse_effect(nonsense, "test"),
    ]
    for take in takers:
        with pytest.raises(ConfigurationError, match=r"'effect' parameter .*'irreversible'.*Give Effect.IRREVERSIBLE"):
            take()
    assert session.state.n_steps == 0


def test_a_session_that_only_advises_takes_an_effect_that_is_none_for_irreversible(caplog):
    session = UncertaintyMonitor(advisory=True).session("s")
    verdict = session.would_allow("pay", effect="nonsense")
    assert (verdict.allowed, verdict.rule) == (True, "missing_evidence")
    step, action = anyio.run(lambda: session.observe_tool_call("pay", "t", effect="nonsense"))
    assert (step.advisory_action.stops, action.stops) == (True, False)
    assert "'nonsense'" in caplog.text


def test_a_predicate_that_answers_nonsense_counts_as_irreversible():
    effects = ToolEffects({"pay": "read"}, predicates={"pay": lambda call: "whatever"})
    assert effects.resolve(ToolCall(name="Pay")) is Effect.IRREVERSIBLE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ToolEffects({"pay": "read"}).resolve(ToolCall(name="pay")) is Effect.READ


def test_a_name_that_reads_in_another_order_than_it_is_written_may_be_any_protected_one():
    policy, effects = Policy(irreversible_tool_names=["pay"]), ToolEffects({"pay": "irreversible"})
    for name in ("\u202eyap", "\u2067yap\u2069", "look\u200f", "p\u202eya"):
        assert policy.is_irreversible(name)
        assert effects.resolve(ToolCall(name=name)) is Effect.IRREVERSIBLE
    assert not Policy().is_irreversible("\u202eyap")


def test_a_prefix_in_front_of_an_irreversible_name_changes_nothing_unless_the_name_has_its_own_word():
    effects = ToolEffects({"pay": "irreversible", "check_pay": "read"})
    for name in ("bank_pay", "bankPay", "bank-pay", "bank pay", "eu_west_bank_pay", "bank‐pay", "bank->pay"):
        assert effects.resolve(ToolCall(name=name)) is Effect.IRREVERSIBLE, name
    for name in ("check_pay", "payee_list", "display", "pay_slips"):
        assert effects.resolve(ToolCall(name=name)) is not Effect.IRREVERSIBLE, name
