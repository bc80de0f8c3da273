"""What MCP annotations say of a tool: they raise the danger, and lower it only for servers that are trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Effect, ToolCall, ToolEffects

DANGER = {Effect.READ: 0, Effect.UNKNOWN: 1, Effect.REVERSIBLE: 1, Effect.IRREVERSIBLE: 2}
_hint = st.sampled_from([None, True, False, "true", 0, 1, []])
_hints = st.fixed_dictionaries(
    {}, optional={f"{hint}Hint": _hint for hint in ("destructive", "readOnly", "idempotent", "openWorld")}
)
_effects = st.sampled_from([None, *Effect])


def effect_of(effects: ToolEffects, name: str = "tool", declared=None) -> Effect:
    return effects.resolve(ToolCall(name=name), declared)


def said(by_name=None, pattern=None, **more) -> ToolEffects:
    return ToolEffects({"tool": by_name} if by_name else None, patterns={"to*": pattern} if pattern else None, **more)


@given(_hints, _effects, _effects, _effects, st.booleans())
def test_no_hint_of_a_server_that_is_not_trusted_lowers_anything(hints, by_name, pattern, declared, unknown_asks):
    plain = said(by_name, pattern, unknown_is_irreversible=unknown_asks)
    before = effect_of(plain, declared=declared)
    after = effect_of(plain.annotated({"tool": hints}), declared=declared)
    assert after is before or (after is Effect.IRREVERSIBLE and DANGER[before] < 2)


@given(_hints, _effects, _effects, _effects, st.booleans())
def test_a_hint_of_a_trusted_server_lowers_only_what_nobody_else_spoke_of(hints, by_name, pattern, declared, asks):
    before = effect_of(said(by_name, pattern), declared=declared)
    annotated = said(by_name, pattern, unknown_is_irreversible=asks).annotated({"tool": hints}, trusted=["tool"])
    after = effect_of(annotated, declared=declared)
    if before is not Effect.UNKNOWN:
        assert DANGER[after] >= DANGER[before]
    if after in (Effect.READ, Effect.REVERSIBLE) and before is Effect.UNKNOWN:
        assert hints.get("destructiveHint") in (None, False)
        assert hints.get("readOnlyHint") is True or hints.get("openWorldHint") is False


@pytest.mark.parametrize(
    ("hints", "untrusted", "trusted"),
    [
        ({}, Effect.UNKNOWN, Effect.UNKNOWN),
        ({"readOnlyHint": True}, Effect.UNKNOWN, Effect.READ),
        ({"readOnlyHint": "yes"}, Effect.UNKNOWN, Effect.UNKNOWN),
        ({"readOnlyHint": 1}, Effect.UNKNOWN, Effect.UNKNOWN),
        ({"destructiveHint": True}, Effect.IRREVERSIBLE, Effect.IRREVERSIBLE),
        ({"destructiveHint": "no"}, Effect.IRREVERSIBLE, Effect.IRREVERSIBLE),
        ({"destructiveHint": 0}, Effect.IRREVERSIBLE, Effect.IRREVERSIBLE),
        ({"destructiveHint": True, "readOnlyHint": True}, Effect.IRREVERSIBLE, Effect.IRREVERSIBLE),
        ({"readOnlyHint": False}, Effect.IRREVERSIBLE, Effect.IRREVERSIBLE),  # the protocol's default of destructive
        ({"readOnlyHint": False, "destructiveHint": False}, Effect.UNKNOWN, Effect.UNKNOWN),
        ({"destructiveHint": False, "openWorldHint": False}, Effect.UNKNOWN, Effect.REVERSIBLE),
        ({"destructiveHint": False, "openWorldHint": True}, Effect.UNKNOWN, Effect.UNKNOWN),  # adds: it may send
        ({"idempotentHint": True}, Effect.UNKNOWN, Effect.UNKNOWN),
        ({"idempotentHint": True, "destructiveHint": True}, Effect.IRREVERSIBLE, Effect.IRREVERSIBLE),
    ],
)
def test_what_each_hint_says(hints, untrusted, trusted):
    assert effect_of(ToolEffects().annotated({"tool": hints})) is untrusted
    assert effect_of(ToolEffects().annotated({"tool": hints}, trusted=["tool"])) is trusted


def test_trust_is_of_the_exact_name_and_danger_of_every_spelling():
    read = ToolEffects().annotated({"getMail": {"readOnlyHint": True}}, trusted=["getMail", "absent"])
    assert effect_of(read, "getMail") is Effect.READ
    assert effect_of(read, "get_mail") is Effect.UNKNOWN
    grave = ToolEffects().annotated({"getMail": {"destructiveHint": True}})
    assert effect_of(grave, "get_mail") is Effect.IRREVERSIBLE


def test_a_trusted_hint_does_not_reach_past_a_pattern_that_means_another_spelling():
    effects = ToolEffects(patterns={"delete_*": "irreversible"})
    trusted = effects.annotated({"deleteAll": {"readOnlyHint": True}}, trusted=["deleteAll"])
    assert effect_of(trusted, "deleteAll") is Effect.IRREVERSIBLE


def test_a_new_list_of_tools_takes_the_place_of_the_old_one_and_leaves_the_first_alone():
    first = ToolEffects({"pay": "irreversible"})
    trusted = first.annotated({"tool": {"readOnlyHint": True}}, trusted=["tool"])
    assert effect_of(trusted) is Effect.READ
    assert effect_of(trusted.annotated({"tool": {"readOnlyHint": True}})) is Effect.UNKNOWN
    assert effect_of(first) is Effect.UNKNOWN
    assert effect_of(trusted, "pay") is Effect.IRREVERSIBLE


def test_what_an_annotated_copy_remembers_is_bounded():
    effects = ToolEffects().annotated({"tool": {"readOnlyHint": True}}, trusted=["tool"])
    for number in range(2_000):
        effect_of(effects, f"tool-{number}")
    assert effects._known.cache_info().currsize == 1_000
    assert effect_of(effects) is Effect.READ
