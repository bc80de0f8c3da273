"""The form of an edit: what is not touched stays what it was, to the byte, and what is typed becomes what it says."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grampus_uq.errors import ApprovalError
from grampus_uq.gate.schema import problem_of
from grampus_uq.inbox.edit_form import EditField, EditForm, as_json_text, edit_form, edited
from grampus_uq.records.values import canonical_json
from grampus_uq.records.visible_text import visible
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.store import SessionStore
from tests.inbox.browser import someone
from tests.inbox.test_decisions import Desk, prepared, shown, signed

TEXTS = st.text(max_size=12) | st.sampled_from(
    ["", "\n", "\n\na", "a\r\nb", "a\tb", "p\u0430y", "\u200b", "\ud800", " ", "a" + 3 * "\U0001e8d0", "\u05d0 1 -> 2"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2))
NAMES = st.sampled_from(["a", "b", "c", "\u200bd", "", "e/f"])
SIMPLE = st.sampled_from(["string", "number", "integer", "boolean", "null", "object", "array", "odd", 7])
RULES: st.SearchStrategy[Any] = st.recursive(
    st.fixed_dictionaries({"type": SIMPLE | st.lists(SIMPLE, max_size=2)})
    | st.fixed_dictionaries({"enum": st.lists(SCALARS | st.lists(SCALARS, max_size=1), max_size=4)})
    | st.fixed_dictionaries({"$ref": st.sampled_from(["#/$defs/a", "#/$defs/b", "#", ""])})
    | st.sampled_from([{}, None, True, "x", {"type": "string", "description": "Who."}, {"description": 7}])
    | st.fixed_dictionaries(
        {"$ref": st.sampled_from(["#/properties/a", "#/$defs/a"])},  # of itself, without end
        optional={"type": SIMPLE, "enum": st.lists(SCALARS, max_size=2)},
    )
    | st.fixed_dictionaries(
        {"type": st.lists(SIMPLE | st.lists(SIMPLE)), "required": st.lists(NAMES | st.lists(NAMES))}
    ),
    lambda inner: st.builds(
        lambda word, some: {word: some},
        st.sampled_from(["anyOf", "oneOf", "allOf"]),
        st.lists(inner, max_size=3) | inner,
    ),
    max_leaves=4,
)
SCHEMAS = st.fixed_dictionaries(
    {"properties": st.dictionaries(NAMES, RULES, max_size=4), "$defs": st.dictionaries(st.sampled_from("ab"), RULES)},
    optional={"required": st.lists(NAMES | st.lists(NAMES)) | NAMES, "additionalProperties": st.just(False)},
)


def begun(form: EditForm) -> list[str | None]:
    """What the fields hold before anybody touches them, as a browser hands it back."""
    return [field.text if field.given else None for field in form.fields]


def outcome(form: EditForm, arguments: dict[str, Any], texts: list[str | None]) -> tuple[str | None, dict[str, Any]]:
    """Why these texts are refused, and what they say."""
    try:
        return None, edited(form, arguments, texts)
    except ApprovalError as error:
        return str(error), {}


@given(st.dictionaries(NAMES, VALUES, max_size=4), SCHEMAS)
@example({"a": {}}, {"properties": {"a": {"$ref": "#/properties/a", "type": "string"}}})
@example({"a": True}, {"properties": {"a": {"$ref": "#/properties/a", "enum": ["x"]}}})
@example({"a": 1}, {"properties": {"a": {"type": [[]]}}})
@example({"a": {}}, {"properties": {"a": {"required": [[]]}}, "required": [[]]})
def test_a_form_that_nobody_touched_says_the_very_same_arguments(arguments: dict[str, Any], schema: Any) -> None:
    """Whatever schema a server lists: what cannot be read in it neither hides a request nor refuses an edit."""
    problem_of(arguments, schema)
    form = edit_form(arguments, schema)
    if form is None:
        return
    assert {field.name for field in form.fields} == {*schema["properties"], *arguments}
    assert all(field.given or field.without for field in form.fields if field.name in arguments)
    texts = [None if field.without and not field.given else field.text for field in form.fields]
    missing = [field.name for field in form.fields if not field.given and not field.without]
    if missing:
        assert not set(missing) & set(arguments)
        return
    said = edited(form, arguments, texts)
    assert canonical_json(said) == canonical_json(arguments)
    for field in form.fields:
        assert field.kind == "text" or visible(field.text, keep="\n") == field.text, (
            "a page shows it as it is sent back"
        )
        if field.kind == "text" and field.given:
            assert visible(field.text, keep="\n\t") == field.text, "what hides is edited as JSON, with escapes"
            assert "\r" not in field.text, "a browser would change it"


@given(st.dictionaries(NAMES, VALUES, max_size=3), SCHEMAS, st.data())
def test_whatever_is_typed_it_is_a_value_or_refused_by_name(arguments: Any, schema: Any, data: Any) -> None:
    form = edit_form(arguments, schema)
    if form is None:
        return
    typed = st.none() | TEXTS | st.sampled_from(["1", "-7.5", "1e400", "NaN", "true", "null", "[", "1" * 5_000])
    texts = [data.draw(typed) for _ in form.fields]
    refused, said = outcome(form, arguments, texts)
    if refused is not None:
        assert any(f"'{visible(field.name)}'" in refused for field in form.fields)
        return
    for field, text in zip(form.fields, texts, strict=True):
        if text is None:
            assert field.name not in said or (field.without == "null" and said[field.name] is None)
        elif field.kind == "text":
            assert said[field.name] == text
        elif field.choices:
            assert said[field.name] is field.choices[int(text)] or said[field.name] == arguments[field.name]


PAY: dict[str, Any] = {
    "$defs": {"Currency": {"enum": ["EUR", "USD"], "type": "string"}},
    "properties": {
        "to": {"type": "string", "description": "Who is paid."},
        "amount": {"type": "number"},
        "parts": {"type": "integer"},
        "now": {"type": "boolean"},
        "currency": {"$ref": "#/$defs/Currency", "default": "EUR"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "lines": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["to", "amount", "parts", "now"],
}
CALL = {"to": "ann", "amount": 85.0, "parts": 2, "now": True, "lines": ["a"], "note": None}


def form_of(arguments: Any = CALL, schema: Any = PAY) -> EditForm:
    form = edit_form(arguments, schema)
    assert form is not None
    return form


def test_each_type_has_a_field_of_its_own() -> None:
    assert [(one.name, one.kind, one.text, one.without, one.given) for one in form_of().fields] == [
        ("amount", "number", "85.0", None, True),
        ("currency", "one of 2", "", "left out", False),
        ("lines", "JSON", '[\n  "a"\n]', "left out", True),
        ("note", "text", "", "null", False),
        ("now", "yes or no", "0", None, True),
        ("parts", "whole number", "2", None, True),
        ("to", "text", "ann", None, True),
    ]
    assert [one.labels for one in form_of().fields if one.choices] == [["EUR", "USD"], ["yes", "no"]]
    assert form_of().fields[-1].about == "Who is paid."


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("to", "", ""),
        ("to", "null", "null"),
        ("amount", "7", 7),
        ("amount", "-.5", "'amount' is not a valid number: write it like 12 or 7.5"),
        ("amount", "7,5", "'amount' is not a valid number: write it like 12 or 7.5"),
        ("amount", "true", "'amount' is not a valid number: write it like 12 or 7.5"),
        ("amount", '"7"', "'amount' is not a valid number: write it like 12 or 7.5"),
        ("amount", None, "'amount' needs a value."),
        ("parts", "2.5", "'parts' must be integer, not float"),
        ("now", "1", False),
        ("now", "2", "'now' is not one of its choices."),
        ("currency", "1", "USD"),
        ("currency", "-1", "'currency' is not one of its choices."),
        ("currency", "\u0661", "'currency' is not one of its choices."),
        ("currency", "1" * 5_000, "'currency' is not one of its choices."),
        ("parts", "", "'parts' is not a valid whole number: write it like 12."),
        ("note", "x", "x"),
        ("lines", '["b", 7]', "'lines[1]' must be string, not int"),
        ("lines", '{"a": 1, "a": 2}', "'lines' is not JSON: the name 'a' appears twice in one object"),
        ("lines", "[", "'lines' is not JSON"),
    ],
)
def test_what_is_typed_is_a_value_of_the_type_or_said_to_be_none(name: str, text: str | None, value: Any) -> None:
    form = form_of()
    texts = [text if field.name == name else old for field, old in zip(form.fields, begun(form), strict=True)]
    refused, said = outcome(form, CALL, texts)
    problem = refused or problem_of(said, PAY)
    if isinstance(value, str) and value.startswith(f"'{name}"):
        assert problem is not None
        assert problem.startswith(value)
    else:
        assert problem is None
        assert said == CALL | {name: value}
        assert type(said[name]) is type(value)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        {"properties": {}},
        {"properties": ["a"]},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"properties": {f"a{n}": {} for n in range(101)}},
    ],
)
def test_what_names_no_fields_is_edited_as_json(schema: Any) -> None:
    assert edit_form({}, schema) is None


def test_whole_numbers_that_look_like_yes_and_no_stay_numbers() -> None:
    (field,) = form_of({}, {"properties": {"a": {"enum": [1, 0]}}}).fields
    assert field.labels == ["1", "0"]


async def sent(desk: Desk, form: EditForm, request: Any, texts: list[str | None], mark: str = "") -> Any:
    ann = await someone(desk.app, desk.store)
    fields = {"mark": mark or form.mark, "texts": texts}
    card = await shown(ann, request.id)
    said = await prepared(ann, request.id, "edit", card=card, fields=fields)
    return said if said.status_code != 200 else await signed(ann, request.id, said.json(), card["seen"])


@pytest.mark.anyio
async def test_the_fields_of_a_page_run_as_they_were_typed(store: SessionStore) -> None:
    desk = Desk(store)
    ann = await someone(desk.app, store, "bob")
    request = await desk.pause()
    page = html.unescape((await ann.get(f"/requests/{request.id}")).text)
    assert re.findall(r'<label for="field-\d+">(\w+) <span class="dim">([\w ]+)', page) == [
        ("body", "text"),
        ("to", "text"),
    ]
    state, _ = await Ledger(store).find_request(request.id)
    schema = state.metadata["begun_with"]["parameters"]["send_email"]  # type: ignore[index, call-overload]
    form = form_of({"to": "bob", "body": "hi"}, schema)
    for texts, mark, why in (
        (["hi", "bob"], "", "Nothing was changed"),
        ([None, "bob"], "", "'body' needs a value."),
        (["bob"], "", "fields differ"),
        (["hi", "eve"], "0" * 16, "arguments changed since"),
    ):
        refused = await sent(desk, form, request, texts, mark)  # type: ignore[arg-type]
        assert refused.status_code == 409
        assert why in refused.json()["error"]
    both = {"mark": form.mark, "texts": ["a", "b"]}
    assert (await prepared(ann, request.id, "edit", fields=both, arguments="{}")).status_code == 400
    assert (await prepared(ann, request.id, "approve", fields=both)).status_code == 400


@given(VALUES | st.text(st.characters(categories=["Mn", "Me", "Lo"]), max_size=9))
def test_json_to_edit_is_shown_as_it_is_and_says_the_very_value(value: Any) -> None:
    text = as_json_text(value)
    assert visible(text, keep="\n") == text
    assert canonical_json(json.loads(text)) == canonical_json(value)


@given(
    st.lists(st.one_of(st.none(), st.booleans(), st.integers(0, 2), st.sampled_from(["1", "0", "true", "null", '"1"'])))
)
def test_no_two_choices_of_a_list_read_alike(choices: list[Any]) -> None:
    several = list({json.dumps(one): one for one in choices}.values())
    field = EditField(name="a", kind="one of", text="", about="", choices=tuple(several), without=None, given=False)
    assert len({*field.labels}) == len(several)


@pytest.mark.anyio
async def test_an_edit_that_is_nested_too_deeply_is_refused_with_the_reason_before_it_is_signed(
    store: SessionStore,
) -> None:
    desk = Desk(store)
    ann = await someone(desk.app, store)
    request = await desk.pause()
    card = await shown(ann, request.id)
    for depth in (100, 101, 150, 230, 254, 300, 900, 990, 2_000):
        for before, after in ("[]", ('{"a":', "}")):
            text = f'{{"to":"x","body":{before * depth}1{after * depth}}}'
            refused = await prepared(ann, request.id, "edit", card=card, arguments=text)
            assert refused.status_code == 409, (depth, refused.text)
            assert ("nested too deeply" if depth > 100 else "must be string") in refused.json()["error"]
