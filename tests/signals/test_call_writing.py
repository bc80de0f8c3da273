"""What stands for a call holds all of it; a text, a copy or a lost token never makes a doubtful call a sure one."""

from __future__ import annotations

import ast
import html
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Step, TokenLogprob, ToolCall
from grampus_uq.records.call_parts import WHOLE_CALL, call_probability, doubt_in_words, doubt_of
from grampus_uq.signals.call_tokens import call_parts, call_reading
from grampus_uq.signals.prose import is_prose
from tests.signals.test_call_places import DOUBT, FORMS, PAY, as_text, pay, written

DEEP = '{"a":' * 8
UNREAD: dict[str, tuple[str, ToolCall]] = {
    "a plain input": ("Thought: I must pay.\nAction: pay\nAction Input: §500§\n", PAY),
    "arguments by position": ("Thought: pay now.\n<code>\npay(§500§)\n</code>", PAY),
    "elements": ("<pay>\n<amount>§500§</amount>\n</pay>", PAY),
    "named elements": ('<invoke name="pay"><parameter name="amount">§500§</parameter></invoke>', PAY),
    "elements with an equals sign": ("<function=pay>\n<parameter=amount>\n§500§\n</parameter>\n</function>", PAY),
    "keys and values": ("<tool_call>pay\n<arg_key>amount</arg_key>\n<arg_value>§500§</arg_value></tool_call>", PAY),
    "YAML": ("tool: pay\nargs:\n  amount: §500§\n", PAY),
    "Python's dictionary": ("{'name': 'pay', 'arguments': {'amount': §500§}}", PAY),
    "a comma too many": ('{"name": "pay", "arguments": {"amount": §500§,}}', PAY),
    "an inner application": ("```tool_code\nprint(pay(§500§))\n```", PAY),
    "a number that the schema converts": ('{"name": "pay", "arguments": {"amount": "§500.00§"}}', PAY),
    "a sum with its sign": ('{"name": "pay", "arguments": {"amount": "§$500§"}}', PAY),
    "a variable": ("x = §500§\npay(amount=x)", PAY),
    "a list in Python's form": ("pay(amount=§500§, tags=['a', 'b'])", pay(amount=500, tags=["a", "b"])),
    "underscores": ("pay(amount=§5_00§)", PAY),
    "a comment": ("pay(amount=§500§  # as said\n)", PAY),
    "another case": ('{"name": "pay", "arguments": {"currency": "§usd§"}}', pay(currency="USD")),
    "eight levels": (DEEP + '{"name": "pay", "arguments": {"amount": §500§}}' + "}" * 8, PAY),
    "words of a letter that tokens write in bytes": ("pay('§\\xc3\\x89§mile')", pay(to="Émile")),
}
"""Calls in forms that are not read one by one; doubt stands between two `§`."""


def odds(text: str | Sequence[TokenLogprob], call: ToolCall, *others: ToolCall, shown: str = "") -> float | None:
    tokens = written(text) if isinstance(text, str) else text
    return call_probability(call_parts(tokens, [call, *others], text=shown), 0)


@pytest.mark.parametrize("form", UNREAD)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_call_in_a_form_that_is_not_read_is_doubtful_whatever_part_of_it_is_visible(form: str, share: float) -> None:
    text, call = UNREAD[form]
    plain = text.replace("§", "")
    shown = plain[: round(share * len(plain))]
    assert odds(text, call, shown=shown) == pytest.approx(DOUBT)
    assert odds(plain, call, shown=shown) == 1.0


@given(st.sampled_from(list(UNREAD)), st.data())
def test_moving_the_output_between_text_and_hidden_changes_nothing(form: str, data: st.DataObject) -> None:
    text, call = UNREAD[form]
    plain = text.replace("§", "")
    begin = data.draw(st.integers(0, len(plain)))
    end = data.draw(st.integers(begin, len(plain)))
    assert odds(text, call, shown=plain[begin:end]) == odds(text, call)


BESIDE = st.text(max_size=30) | st.sampled_from(
    ["I will do so now. ", 'pay "it"', "(500)", "<think>", '{"a": 1}', "```"]
)


@given(st.sampled_from(list(UNREAD)), FORMS, st.booleans(), BESIDE, BESIDE)
def test_a_sure_copy_of_a_call_in_a_form_that_is_not_read_makes_it_no_surer(
    form: str, copy: str, before: bool, first: str, second: str
) -> None:
    text, call = UNREAD[form]
    added = written(f"{first} {as_text(copy, call, plain=True)}\n{second}\n".replace("§", ""))
    own = written(text)
    after = odds([*added, *own] if before else [*own, *written("\n"), *added], call)
    assert after is not None
    assert after <= DOUBT + 1e-12


HALF = {
    "a default that the schema fills in": '{"name": "pay", "arguments": {"amount": §500§}}',
    "a list, with a default": '[{"name": "pay", "arguments": {"amount": §500§}}]',
    "another case": '{"name": "pay", "arguments": {"amount": 500, "currency": "§usd§"}}',
    "a sum with its sign": '{"name": "pay", "arguments": {"currency": "USD", "amount": "§$500§"}}',
    "eight levels": DEEP + '{"name": "pay", "arguments": {"currency": "USD", "amount": §500§}}' + "}" * 8,
    "a name with a prefix": '{"name": "functions.pay", "arguments": "{\\"currency\\":\\"USD\\",\\"amount\\":§500§}"}',
    "a value that was lost": '{"name": "pay", "arguments": {"currency": "USD", "amount": }}',
}


@pytest.mark.parametrize("form", HALF)
@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_copy_in_thoughts_does_not_stand_for_a_call_whose_values_are_written_otherwise(form: str, place: str) -> None:
    call = pay(amount=500, currency="USD")
    thought = '<think>I have to pay the invoice, so pay(amount=500, currency="USD") it is.</think>\n'
    text = thought + HALF[form] if place == "before" else f"{HALF[form]}\nSo: {thought}"
    assert (odds(text, call) or 0.0) <= DOUBT + 1e-12


LOG = ToolCall(name="log_payment", arguments=PAY.arguments)
REPAY = ToolCall(name="repay", arguments=PAY.arguments)


@pytest.mark.parametrize("form", ["elements", "a number that the schema converts"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("other", "calls"),
    [
        (
            '{"name": "log_payment", "arguments": {"amount": 500}}',
            [LOG],
        ),
        ("repay(amount=500)", [REPAY]),
        ('To pay is the invoice {"id": "A17", "amount": 500}.', []),
        ('The payload was {"amount": 500}.', []),
    ],
)
def test_neither_another_tool_nor_a_quoted_invoice_stands_for_a_call(
    form: str, before: bool, other: str, calls: Sequence[ToolCall]
) -> None:
    text, call = UNREAD[form]
    assert odds(f"{other}\n{text}" if before else f"{text}\n{other}", call, *calls) == pytest.approx(DOUBT)


@given(
    st.from_regex(r"[a-z_]{0,4}", fullmatch=True), st.from_regex(r"[a-z_]{0,4}", fullmatch=True), FORMS, st.booleans()
)
def test_a_tool_whose_name_contains_this_name_does_not_stand_for_its_call(
    prefix: str, suffix: str, form: str, listed: bool
) -> None:
    longer = ToolCall(name=f"{prefix}pay{suffix}", arguments=PAY.arguments)
    if longer.name != PAY.name:
        text = as_text(form, longer, plain=True)
        assert odds(text, PAY, *([longer] if listed else [])) == 0.0


@given(
    st.dictionaries(
        st.sampled_from(["to", "amount", "memo"]), st.sampled_from([500, 7.5, "A17", True, None]), min_size=1
    ),
    st.sampled_from(["object", "text", "application"]),
    st.integers(1, 5),
    st.sampled_from(["", "I will do it now.\n", "<think>The sum is 500.</think>"]),
    st.data(),
)
def test_a_lost_token_of_a_call_never_makes_it_surer(
    arguments: dict[str, object], form: str, size: int, thought: str, data: st.DataObject
) -> None:
    """A token of its name, a key or a value; unless what is left writes the very call."""
    call = ToolCall(name="pay", arguments=arguments)
    text = as_text(form, call, plain=True)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    tokens = [TokenLogprob(token=one, logprob=data.draw(st.sampled_from([0.0, -0.1, -1.0]))) for one in pieces]
    lost = data.draw(st.integers(0, len(tokens) - 1))
    left = [*written(thought), *tokens[:lost], *tokens[lost + 1 :]]
    whole = odds([*written(thought), *tokens], call)
    after = odds(left, call)
    assert whole is not None
    assert after is not None
    words = [text.find(word) for word in ('"name"', '"arguments"')]
    around = {place for at, size_ in zip(words, (6, 11), strict=True) for place in range(at, at + size_) if at >= 0}
    own = {at for at in range(lost * size, min(lost * size + size, len(text))) if text[at].isalnum()}
    remaining = "".join(pieces[:lost] + pieces[lost + 1 :])
    assert after <= whole + 1e-12 or own <= around or _is_written(remaining, call)


def _is_written(text: str, call: ToolCall) -> bool:
    """True where a strict parser finds the call: JSON's, or Python's."""
    try:
        if text.startswith("{"):
            found = json.loads(text)
            name, given = found["name"], found["arguments"]
            given = json.loads(given) if isinstance(given, str) else given
        else:
            tree = ast.parse(text.replace("true", "True").replace("null", "None"), mode="eval").body
            assert isinstance(tree, ast.Call)
            name, given = ast.unparse(tree.func), {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
    except (ValueError, SyntaxError, KeyError, AssertionError):
        return False
    return bool(name == call.name and given == call.arguments)


@pytest.mark.parametrize(
    "left",
    [
        '{"name": "pay", "arguments": {"to": "A17", "amount": }}',
        '{"name": "pay", "arguments": {"to": "A17", "amount": ',
        '{"name": "pay"',
        "<tool_call>\n",
        "<think>Pay now.</think>",
        "Paying.",
        "**Paying**",
        "<from>A17</from><pay><amount>5000</amount><to></to></pay>",
    ],
)
def test_tokens_that_write_half_of_a_call_do_not_stand_for_it(left: str) -> None:
    call = pay(to="A17", amount=5000, **({"from": "A17"} if "from" in left else {}))
    assert odds(left, call) == 0.0
    assert odds(left, call, shown="<b>Paying</b>") == 0.0


def test_a_call_whose_only_value_was_lost_is_not_vouched_for_by_a_thought_before_it() -> None:
    assert odds('I take pay(amount=500).\n{"name": "pay", "arguments": {"amount": }}', PAY) == 0.0


VALUES = st.sampled_from([500, 12.5, True, "Mallory", "Mallory Smith", "A-17", "ann@x.org", "/srv/prod", "x"])


def _losses(text: str, call: ToolCall) -> list[tuple[int, int]]:
    """Where a call's text writes its name and its values."""
    words = [call.name, *(one if isinstance(one, str) else json.dumps(one) for one in call.arguments.values())]
    return [(text.find(word), text.find(word) + len(word)) for word in words if word in text]


@given(
    st.sampled_from(["pay", "transfer_money", "delete.user"]),
    st.dictionaries(st.sampled_from(["to", "amount", "memo", "ref"]), VALUES, min_size=1),
    st.sampled_from(["", "İstanbul ofisi. ", "<think>I would do "]),
    FORMS,
    FORMS,
    st.data(),
)
def test_a_lost_name_or_value_is_not_vouched_for_by_a_copy_before_it(
    name: str, arguments: dict[str, object], first: str, copy: str, form: str, data: st.DataObject
) -> None:
    call = ToolCall(name=name, arguments=arguments)
    own = as_text(form, call, plain=True)
    begin, end = data.draw(st.sampled_from(_losses(own, call)))
    assert odds(f"{first}{as_text(copy, call, plain=True)}\n{own[:begin]}{own[end:]}", call) == 0.0


@given(
    st.dictionaries(st.sampled_from(["to", "amount", "memo", "ref"]), VALUES, min_size=1),
    st.sampled_from(["object", "text"]),
)
def test_a_call_that_lost_its_name_is_no_visible_text(arguments: dict[str, object], form: str) -> None:
    text = as_text(form, ToolCall(name="", arguments=arguments), plain=True)
    assert odds(text, ToolCall(name="transfer", arguments=arguments), shown=text) == 0.0


@pytest.mark.parametrize("listed", ["bank.send", "bank_send", "bank-send", "bank/send"])
@pytest.mark.parametrize("wrote", ["bank.send", "bank_send", "bank-send", "bank/send"])
def test_a_name_that_the_client_cleaned_is_read(listed: str, wrote: str) -> None:
    text = f'{{"name": "{wrote}", "arguments": {{"amount": §500§}}}}'
    call = ToolCall(name=listed, arguments={"amount": 500})
    assert odds(text, call) == pytest.approx(DOUBT)
    assert odds(text.replace("§", ""), call) == 1.0


@pytest.mark.parametrize("prefix", ["mcp__bank__", "bank_", "functions_", "default_api.", "bank/", "bank-"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_copy_does_not_stand_for_a_call_under_another_name(prefix: str, listed: bool) -> None:
    long = ToolCall(name=f"{prefix}pay", arguments=PAY.arguments)
    call, other = (long, PAY) if listed else (PAY, long)
    copy, own = (as_text("object", one, plain=True) for one in (call, other))
    assert (odds(f"Plan: {copy}\n{own.replace('500', '§500§')}", call) or 0.0) <= DOUBT + 1e-12


@pytest.mark.parametrize("mark", ["<launch>", "[LAUNCH]", "<|launch|>"])
def test_one_mark_that_names_a_tool_is_its_call(mark: str) -> None:
    launch = ToolCall(name="launch")
    assert odds([TokenLogprob(token=mark, logprob=math.log(DOUBT))], launch) == pytest.approx(DOUBT)
    assert odds([TokenLogprob(token="</s>", logprob=0.0)], launch) is None


@pytest.mark.parametrize("value", ["AT&T <x>", 'say "hi"', "it's", "Zoë & Co"])
def test_a_value_with_the_escapes_of_its_form_is_found(value: str) -> None:
    call = pay(to=value)
    for written_value in (html.escape(value), html.escape(value, quote=False)):
        assert odds(f'<invoke name="pay"><parameter name="to">{written_value}</parameter></invoke>', call) == 1.0
    assert odds(f"pay(to={value!r}, )", call) == 1.0


def test_the_reason_says_that_a_call_was_not_found() -> None:
    doubt = doubt_of(call_parts(written("Looking."), [PAY]), 0)
    assert doubt is not None
    assert doubt_in_words(doubt) == "some or all of its tokens are not in the model's output"
    assert doubt_in_words(replace(doubt, least=0.3)) == "least sure of the arguments (0.30)"


def test_a_call_that_is_all_of_the_visible_text_is_read() -> None:
    text = '{"name": "pay", "arguments": {"amount": §500§}}'
    assert odds(text, PAY, shown=text.replace("§", "")) == pytest.approx(DOUBT)


@pytest.mark.parametrize("said", ["I will now pay it.", "Done (refund A17).", "This is Emma Novak.\nOne moment: "])
def test_log_probabilities_of_a_text_in_words_alone_say_nothing_of_a_call(said: str) -> None:
    for text in (said, f"{said}</s>"):
        tokens = tuple(written(text))
        step = Step(step_id="s", kind="llm_call", time_s=0.0, text=said, tool_calls=(PAY,), logprobs=tokens)
        assert (call_reading(step).reason, call_reading(step).parts) == ("no_logprobs", ())


@pytest.mark.parametrize("form", ["a plain input", "arguments by position", "elements", "keys and values"])
def test_doubt_about_the_wording_of_thoughts_before_a_call_is_no_doubt_in_it(form: str) -> None:
    text, call = UNREAD[form]
    thought = "§The customer asked for that twice, and I should be quick about it.§\n§I can do that at once.§\n"
    assert odds(thought + text.replace("§", ""), call) == 1.0
    assert odds(thought + text, call) == pytest.approx(DOUBT)
    read = 'Action: pay\nAction Input: {"amount": 500}'
    mentioned = "§I should call `pay` with the amount of 500, since the customer asked for it.§\n"
    assert odds(mentioned + read, call) == 1.0


def test_blanks_between_the_texts_of_an_answer_are_no_words_beside_it() -> None:
    assert odds("Let me see.Sending it now.", PAY, shown="Let me see.\nSending it now.") is None
    assert odds("Let me see.Sending it now.", PAY, shown="Let me see.") == 0.0


def test_one_call_that_cannot_be_compared_does_not_lose_the_others() -> None:
    text = '{"name": "look", "arguments": {"q": 7}}\n{"name": "pay", "arguments": {"amount": §500§}}'
    look = ToolCall(name="look", arguments={"q": 10**5000})
    for calls, at in (([PAY, look], 0), ([look, PAY], 1)):
        parts = call_parts(written(text), calls)
        assert call_probability(parts, at) == pytest.approx(DOUBT)
        assert call_probability(parts, 1 - at) == 0.0


def test_log_probabilities_whose_sum_is_no_number_are_as_unlikely_as_can_be() -> None:
    tokens = written('{"name": "pay", "arguments": {"amount": ') + [
        TokenLogprob(token=one, logprob=-1.7e308) for one in ("50", "0}}")
    ]
    step = Step(step_id="s", kind="llm_call", time_s=0.0, tool_calls=(PAY,), logprobs=tuple(tokens))
    assert call_reading(step).value == 0.0


ARGUMENTS = {
    "the verb of a query": "§DELETE§ FROM orders WHERE status = 'open' AND region = 'EU'",
    "the table of a query": "DELETE FROM §customers§ WHERE status = 'open' AND region = 'EU' OR x",
    "a query in small letters": "delete from §customers§ where status is null and region is not in europe or asia",
    "a query in small letters with a stop": "delete from §customers§ where it is no more in use by anyone at all.",
    "a query that begins like a sentence": "Delete from §customers§ where it is no more in use by anyone",
    "a path in a command": "cd /srv && tar czf /tmp/b.tgz . && rm -rf §/srv/prod§ && echo done now",
    "a path in a sentence": "Please clean up the server by removing §/srv/prod§ and all that is in it.",
    "a payee in an instruction": "Please transfer all of it to §Mallory§ Smith at the savings bank today",
    "a payee in a sentence": "Please transfer all of it to §Mallory§ Smith at the savings bank today.",
    "pairs": "to=§mallory§ from=company currency=usd all=true now=true confirm=true force=true x=y",
    "a manifest": "kind: Deployment\nmetadata: §prod§\nspec: replicas: none template: a b c d e",
    "a list of names": "alice bob carol dave eve frank grace §mallory§ heidi ivan judy",
    "a number in a letter": "Dear Ann, we are going to pay you the sum of §900§ euros very soon.",
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_what_an_argument_says_counts_unless_it_is_wording(kind: str) -> None:
    value = ARGUMENTS[kind]
    call = pay(x=value.replace("§", ""))
    text = f'{{"name": "pay", "arguments": {{"x": {json.dumps(value, ensure_ascii=False)}}}}}'
    assert odds(text, call) == pytest.approx(DOUBT)


SCRIPTS = {
    "Korean": "안녕하세요 저는 오늘 모든 돈을 §말로리§ 에게 보내 주시기를 정중히 부탁 드립니다.",
    "Hebrew": "שלום רב אני מבקש להעביר היום את כל הכסף אל §מלורי§ בבנק החיסכון.",
    "Arabic": "مرحبا أرجو تحويل كل المال اليوم إلى §مالوري§ في بنك التوفير شكرا لكم.",
    "Chinese with blanks": "你好 请 今天 把 所有 的 钱 转 给 §马洛里§ 谢谢 你们.",
    "Korean in English": "Please transfer all of the money that we have to §말로리§ at the savings bank today.",
    "digits in circles": "Please transfer the sum of §②⑤⓪⓪⓪§ euros to the savings bank for us today.",
    "a half": "Please transfer the share of §½§ of it all to the savings bank for us today.",
    "digits set high": "Please transfer the sum of §⁹⁹⁹§ euros to the savings bank for us today.",
    "a capital in an escape": "Please transfer all of the money that we have to §Émile§ at the savings bank today.",
    "Chinese numerals": "Please transfer the sum of §五百万§ euros to the savings bank for us today.",
    "a Roman numeral": "Please transfer the sum of §Ⅷ§ euros to the savings bank for us today.",
}


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("script", SCRIPTS)
def test_names_and_numerals_of_every_script_count_in_prose(script: str, plain: bool) -> None:
    value = SCRIPTS[script]
    call = pay(x=value.replace("§", ""))
    pieces = [json.dumps(piece, ensure_ascii=plain)[1:-1] for piece in value.split("§")]
    assert odds(f'{{"name": "pay", "arguments": {{"x": "{"§".join(pieces)}"}}}}', call) == pytest.approx(DOUBT)
    letter = "Здравствуйте, сегодня мы §отправим§ вам посылку, и она будет у вас совсем скоро."
    call = pay(x=letter.replace("§", ""))
    assert odds(f'{{"name": "pay", "arguments": {{"x": "{letter}"}}}}', call) == 1.0


LETTER = "Dear Ann,\n\nyour parcel §will be§ with you soon. §We are sorry§ that it is late, I hope you like it.\n\nBob"


def test_the_wording_of_a_letter_does_not_count() -> None:
    assert is_prose(LETTER.replace("§", ""))
    text = f'{{"name": "pay", "arguments": {{"x": {json.dumps(LETTER, ensure_ascii=False)}}}}}'
    assert odds(text, pay(x=LETTER.replace("§", ""))) == 1.0


def test_a_whole_call_is_one_part() -> None:
    text, call = UNREAD["elements"]
    (part,) = call_parts(written(text), [call])
    assert (part.name, part.probability) == (WHOLE_CALL, pytest.approx(math.exp(math.log(DOUBT))))
