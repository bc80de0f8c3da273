"""Turns as models write them: a line that holds words of a call, then the call in one of the known forms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from grampus_uq import TokenLogprob

Arguments = Mapping[str, Any]
Form = Callable[[str, Arguments], str]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else _json(value)


def _object(name: str, arguments: Arguments) -> str:
    return _json({"name": name, "arguments": arguments})


def _each(arguments: Arguments, form: str, *, plain: bool = True) -> str:
    return "".join(form.format(k=k, v=(_plain if plain else _json)(v)) for k, v in arguments.items())


def _application(name: str, arguments: Arguments) -> str:
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"


def _typed(arguments: Arguments) -> str:
    kinds = {k: str(isinstance(v, str)).lower() for k, v in arguments.items()}
    return "".join(
        f'<｜DSML｜parameter name="{k}" string="{kinds[k]}">{_plain(v)}</｜DSML｜parameter>\n'
        for k, v in arguments.items()
    )


def _marked(value: object) -> str:
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else _json(value)


FORMS: dict[str, Form] = {
    "object": _object,
    "parameters": lambda n, a: _json({"type": "function", "name": n, "parameters": a}),
    "arguments in a text": lambda n, a: _json({"name": n, "arguments": _json(a)}),
    "arguments first": lambda n, a: _json({"arguments": a, "name": n}),
    "function in a list": lambda n, a: _json([{"type": "function", "function": {"name": n, "arguments": a}}]),
    "tags": lambda n, a: f"<tool_call>\n{_object(n, a)}\n</tool_call>",
    "fence": lambda n, a: f"```json\n{_object(n, a)}\n```",
    "marks": lambda n, a: f"[TOOL_CALLS]{n}[ARGS]{_json(a)}",
    "function tag": lambda n, a: f"<function={n}>{_json(a)}</function>",
    "gpt-oss": lambda n, a: f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{_json(a)}<|call|>",
    "gpt-oss, told in the role": lambda n, a: (
        f"<|start|>assistant to=functions.{n}<|channel|>commentary json<|message|>{_json(a)}<|call|>"
    ),
    "DeepSeek V3": lambda n, a: (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
        f"{n}\n```json\n{_json(a)}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "DeepSeek V3.1": lambda n, a: (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{_json(a)}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "DeepSeek V3.2": lambda n, a: (
        f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="{n}">\n'
        f"{_typed(a)}</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    "MiniMax M2": lambda n, a: (
        f'<minimax:tool_call>\n<invoke name="{n}">\n'
        + _each(a, f'<parameter name="{{k}}">{{v}}</parameter>{chr(10)}')
        + "</invoke>\n</minimax:tool_call>"
    ),
    "Seed-OSS": lambda n, a: (
        f"<seed:tool_call>\n<function={n}>\n{_each(a, f'<parameter={{k}}>{{v}}</parameter>{chr(10)}')}</function>\n"
        "</seed:tool_call>"
    ),
    "Step-3": lambda n, a: (
        f'<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{n}">\n'
        + _each(a, f'<steptml:parameter name="{{k}}">{{v}}</steptml:parameter>{chr(10)}')
        + "</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>"
    ),
    "FunctionGemma": lambda n, a: (
        f"<start_function_call>call:{n}{{{','.join(f'{k}:<escape>{_plain(v)}<escape>' for k, v in a.items())}}}"
        "<end_function_call>"
    ),
    "Gemma 4": lambda n, a: (
        f"<|tool_call>call:{n}{{{','.join(f'{k}:{_marked(v)}' for k, v in a.items())}}}<tool_call|>"
    ),
    "kimi": lambda n, a: f"<|tool_call_begin|>functions.{n}:0<|tool_call_argument_begin|>{_json(a)}<|tool_call_end|>",
    "react": lambda n, a: f"Action: {n}\nAction Input: {_json(a)}",
    "pythonic": lambda n, a: f"[{_application(n, a)}]",
    "by position": lambda n, a: f"{n}({', '.join(map(_json, a.values()))})",
    "lisp": lambda n, a: f"({n}{_each(a, ' :{k} {v}', plain=False)})",
    "elements": lambda n, a: f"<{n}>\n{_each(a, f'<{{k}}>{{v}}</{{k}}>{chr(10)}')}</{n}>",
    "named elements": lambda n, a: (
        f'<invoke name="{n}">{_each(a, """<parameter name="{k}">{v}</parameter>""")}</invoke>'
    ),
    "equals signs": lambda n, a: (
        f"<function={n}>\n{_each(a, f'<parameter={{k}}>{chr(10)}{{v}}{chr(10)}</parameter>')}</function>"
    ),
    "keys and values": lambda n, a: (
        f"<tool_call>{n}\n{_each(a, '<arg_key>{k}</arg_key> <arg_value>{v}</arg_value>')}</tool_call>"
    ),
    "YAML": lambda n, a: f"tool: {n}\nargs:\n{_each(a, f'  {{k}}: {{v}}{chr(10)}')}",
    "Python's dictionary": lambda n, a: repr({"name": n, "arguments": dict(a)}),
    "a comma too many": lambda n, a: f"{_object(n, a)[:-2]}{',' if a else ''}}}}}",
}
"""The known forms of a call."""

LINES: dict[str, Form] = {
    "nothing": lambda _, __: "",
    "a plan": lambda _, __: "I will do that now.\n",
    "a sentence": lambda n, a: f"I am going to use {n} with {_each(a, '{k} {v} and ')}that now.\n",
    "a list": lambda _, a: f"{', '.join(f'{k}: {_plain(v)}' for k, v in a.items())}\n",
    "bullets": lambda _, a: _each(a, f"- {{k}}: {{v}}{chr(10)}"),
    "assigned": lambda _, a: f"{_each(a, '{k}={v} ')}\n",
    "name and values": lambda n, a: f"{n}{_each(a, ' {k}={v}')}\n",
    "a name and a list": lambda n, a: f"{n}: {', '.join(f'{k}: {_plain(v)}' for k, v in a.items())}\n",
    "a name": lambda n, _: f"{n}\n",
    "a name and a colon": lambda n, _: f"{n}:\n",
    "a tool": lambda n, _: f"Tool: {n}\n",
    "a name in code": lambda n, _: f"Calling `{n}`:\n",
    "a heading": lambda n, _: f"**{n}**\n\n",
    "values in brackets": lambda n, a: f"{n}({', '.join(map(_plain, a.values()))})\n",
    "arguments": lambda _, a: f"{_json(a)}\n",
    "a table": lambda n, a: f"| {n} | {' | '.join(map(_plain, a.values()))} |\n",
    "values": lambda _, a: f"{' '.join(map(_plain, a.values()))}\n",
    "a value": lambda _, a: f"{_plain(next(iter(a.values()), ''))}\n",
    "a copy": lambda n, a: f"{_object(n, a)}\n",
    "a copy in code": lambda n, a: f"{_application(n, a)}\n",
    "a copy in thoughts": lambda n, a: f"<think>So {_application(n, a)} it is.</think>\n",
    "an arrow": lambda n, a: f"-> {n}: {' '.join(map(_plain, a.values()))}\n",
}
"""Lines before a call, which hold its name, its keys or its values."""

NAMES = st.sampled_from(["pay", "transfer_money", "delete.user", "send_email", "refund"])
ARGUMENTS = st.dictionaries(
    st.sampled_from(["to", "amount", "memo", "ref", "order_id", "currency"]),
    st.sampled_from([500, 12.5, True, 7, "Mallory", "Mallory Smith", "A-17", "ann@x.org", "/srv/prod", "x", None]),
    max_size=3,
)
_TOKEN = re.compile(r"\s?[A-Za-z]{1,5}|\d{1,3}|\s+|[^\w\s]{1,3}|_|.", re.DOTALL)


def tokens(text: str) -> list[TokenLogprob]:
    """A text in tokens, as tokenisers cut it, all certain."""
    return [TokenLogprob(token=one[0], logprob=0.0) for one in _TOKEN.finditer(text)]


def own_words(text: str, name: str, arguments: Arguments) -> list[int]:
    """Which tokens of a call's text write letters or digits of its name, its keys or its values."""
    words = [name, *arguments, *map(_plain, arguments.values())]
    places = {
        at
        for word in words
        for found in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text)
        for at in range(*found.span())
        if text[at].isalnum()
    }
    for kind in re.finditer(r'string="\w+"', text):  # which is no value
        places -= set(range(*kind.span()))
    if "to=functions" in text:  # which is no key
        places -= set(range(text.find("to="), text.find("to=") + 2))
    return [number for number, one in enumerate(_TOKEN.finditer(text)) if places & set(range(*one.span()))]


def other(token: str) -> str:
    """Another token of the same kind."""
    return "".join("q" if c.isalpha() and c != "q" else str((int(c) + 4) % 10) if c.isdecimal() else c for c in token)
