"""Finds the places where a text writes a proposed call: those whose decoded arguments equal the call's.

Read are a JSON object that holds the tool's name and the arguments (in itself, further inside, or in a text of their
own), a JSON object behind the name and marks (`pay[ARGS]{"amount": 5}`, `<function=pay>{"amount": 5}`), and
`pay(amount=5)`. A place reaches from the name to the end of the arguments. What a text mentions besides is not a place:
neither the name alone or inside a longer one, nor other arguments. A text that is the object of the arguments and no
more is one. Linear in the text for a bounded number of names.
"""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from grampus_uq.records.values import ToolCall
from grampus_uq.signals.atomic_patterns import atomic
from grampus_uq.signals.call_begun import covers
from grampus_uq.signals.prose import BLANKS, Span, is_prose, wording

_MOST_DEPTH: Final = 6
_ARGUMENTS: Final = frozenset(
    {"arguments", "args", "parameters", "params", "kwargs", "input", "inputs", "action_input", "tool_input"}
)
_NAMING: Final = frozenset(
    {"name", "_name", "tool", "tool_name", "function", "function_name", "action", "method", "recipient_name"}
)
_BESIDE: Final = frozenset({"id", "type", "index", "call_id", "tool_call_id"})  # beside the name, and no arguments
_EMPTY: Final[tuple[object, ...]] = (None, "", "{}", {}, [])
_LONG: Final = 16_384
_MOST_WORDS: Final = 8
_FAR: Final = 200  # characters between a name and the object of its arguments
_NEAR: Final = 100  # characters before a name
_NAMERS: Final = "action|tool|tool_name|name|function|call|invoke|print|await|return|recipient|to|tool_code|python"
_MOST_DIGITS: Final = 10**400
APPLICATION: Final = "application"
MENTION: Final = "mention"
"""The form of a place in a sentence: its doubt counts, and it stands for no call."""
_DECODER = json.JSONDecoder(strict=False)
_OBJECT = re.compile(r'\{\s*["}]')  # what no object begins with need not be decoded
_BETWEEN = re.compile(r"[\s,:]*")
_OPEN = re.compile(r"[\s\"'`]{0,16}\(\s*")
_KEYWORD = re.compile(r"([^\W\d]\w*)\s*[=:]\s*")
_QUOTED = re.compile(r"'[^'\\]*'|True\b|False\b|None\b")
_AFTER_VALUE = re.compile(r"\s*(?:,\s*)?")
_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?', re.DOTALL)  # a key has the second part
MARKS: Final = atomic(
    r"(?::\d{1,6}|[\s:>,`*\"'\\]|\[args\]|\[call_id\]\w{1,40}|json\b|<\|channel\|>(?:commentary|analysis)"
    r"|<[^<>\n]{0,30}(?:arg|param|sep|message|constrain|input)[^<>\n]{0,30}>"
    r"|(?:[a-z]{1,12}[ _])?(?:arguments|args|parameters|params|kwargs|inputs?)(?=[\"'\\]{0,4}\s{0,8}[:=]))*",
    "marks",
)
"""Text allowed between a tool's name and the object of its arguments: nothing that begins another call."""
_MARKS = re.compile(MARKS, re.IGNORECASE)
_BEFORE = re.compile(
    r"(?:(?:^|\n)[ \t]{0,40}(?:[-*][ \t]{1,4})?|[\"'`<=(>[{|,;\])}\\]\s{0,40})"
    rf"(?:(?:{_NAMERS})(?:\s{{0,4}}[:=]\s{{0,4}}[\"'`]?|[ \t]{{1,4}}))?(?:\w[\w-]{{0,63}}\.){{0,4}}$",
    re.IGNORECASE,
)
_ELEMENT: Final = r"<[^<>\n]{0,40}(?:param(?:eter)?|argument|arg_value)(?![s_\w])[^<>\n]{0,80}"
_IN_ELEMENT = re.compile(rf"{_ELEMENT}>\s*$", re.IGNORECASE)  # before the value of an argument
_VALUE = re.compile(  # before a text that is no call's name, as the key is no name's
    rf"(?:(?<![\w-])(?!(?:{'|'.join(_NAMING)}|recipient|to|call|invoke|tool_code)(?![\w-]))[\w-]{{1,64}}[\"'\\]{{0,4}}"
    rf"\s{{0,4}}[:=]\s{{0,4}}\\{{0,4}}[\"']|{_ELEMENT}(?:>\s{{0,40}})?)(?:\w[\w-]{{0,63}}\.){{0,4}}$",
    re.IGNORECASE,
)
_APPLIED = re.compile(rf"(?:^|[^\w<. ])[ ]?(?!json\b)[^\W\d][\w.-]{{0,63}}(?![,:]\s){MARKS}=?\s*$", re.IGNORECASE)
"""What leads to the object of a call's arguments."""
_CLEANED = str.maketrans(".-/: ", "_____")
_QUOTES = ('"', "'")
_JSON_BEGINS = frozenset('"{[-0123456789tfnNI')
_CHARACTER = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.|.", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place of a call: its span, where its name and each argument's value end, and which spans are prose.

    `values` are the spans of the name and of the values without prose. `form` is how it is written, `around` the object
    that holds the name.
    `ends` is None where other arguments are written than are listed: then the place is read as a whole.
    """

    span: Span
    name_end: int
    ends: Mapping[str, int] | None
    prose: tuple[Span, ...]
    values: tuple[Span, ...] = ()
    form: str = "object"
    around: Span = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A JSON value and where it is written; of an object its members, of a list those that hold objects."""

    value: Any
    begin: int
    end: int
    inside: tuple[tuple[str, _Node], ...] = ()
    prose: tuple[Span, ...] = ()

    def unwrapped(self) -> Iterator[_Node]:
        """This object, and one that is all that it holds."""
        node = self
        while isinstance(node.value, dict):
            yield node
            if len(node.inside) != 1:
                return
            ((_, node),) = node.inside

    def everything(self, within: bool = False) -> Iterator[_Node]:
        """All objects in this value; `within` an object that names a tool, only those that are calls themselves."""
        if isinstance(self.value, dict) and (not within or self._is_call()):
            yield self
        within = within or self._names_a_tool()
        for _, node in self.inside:
            yield from node.everything(within)

    def given(self, within: bool = False) -> Iterator[Span]:
        """The spans of what an object that names a tool holds beside the name and the calls in it."""
        if within and not any(True for _ in self.everything(within)):
            yield self.begin, self.end
            return
        named, within = self._names_a_tool(), within and not self._is_call()
        for key, node in self.inside:
            yield from node.given(within or (named and key.casefold() not in _NAMING))

    def holds_arguments(self) -> bool:
        known = self.value.items() if isinstance(self.value, dict) else ()
        return any(key.casefold() in _ARGUMENTS and (one in _EMPTY or _is_object(one)) for key, one in known)

    def _names_a_tool(self) -> bool:
        known = self.value.items() if isinstance(self.value, dict) else ()
        return any(key.casefold() in _NAMING and isinstance(one, str) for key, one in known)

    def _is_call(self) -> bool:
        return self._names_a_tool() and self.holds_arguments()

    def moved(self, offsets: Sequence[int]) -> _Node:
        """The same in a text in which it is written with escapes."""
        return _Node(
            value=self.value,
            begin=offsets[self.begin],
            end=offsets[self.end],
            inside=tuple([(key, node.moved(offsets)) for key, node in self.inside]),
            prose=tuple([(offsets[begin], offsets[end]) for begin, end in self.prose]),
        )


@dataclass(slots=True)
class Writing:
    """A text in which calls are sought: decoded once for all of them."""

    text: str
    roots: list[_Node] = field(init=False)
    given: list[Span] = field(init=False)
    """What objects that name a tool hold beside the name and the calls in them, in order."""
    _objects: list[_Node] = field(init=False)
    _patience: int = field(init=False)

    def __post_init__(self) -> None:
        self._patience = 8 * len(self.text) + 1000  # characters that may be read in vain
        self.roots, self.given, self._objects = [], [], []
        found = _OBJECT.search(self.text)
        while found is not None and self._patience > 0:
            node = self._object(found.start())
            if node is not None:
                self._add(node)
            found = _OBJECT.search(self.text, found.start() + 1 if node is None else node.end)

    def _add(self, root: _Node) -> None:
        near = max(root.begin - _NEAR, 0)
        if _IN_ELEMENT.search(self.text, near, root.begin):
            self.given.append((root.begin, root.end))
            return
        is_applied = _APPLIED.search(self.text, near, root.begin) is not None
        self.given += root.given(is_applied)
        self.roots.append(root)
        self._objects += root.everything(is_applied)

    def places(self, call: ToolCall) -> list[Place]:
        """All places of a call."""
        found = (*self._in_objects(call), *self._applications(call), *self._alone(call))
        return list({place.span: place for place in found}.values())

    def around(self, place: Place) -> Span:
        """A place with the outermost object that it stands in."""
        at = bisect_right(self.roots, place.span[0], key=lambda root: root.begin) - 1
        begin, end = (self.roots[at].begin, self.roots[at].end) if at >= 0 else place.span
        return (begin if place.span[0] < end else place.span[0]), max(place.span[1], end)

    def _alone(self, call: ToolCall) -> Iterator[Place]:
        """The whole text, where it is the object of the arguments: the client asked for one tool's."""
        for root in self.roots[:1] if call.arguments else ():
            whole = not self.text[: root.begin].strip() and not self.text[root.end :].strip()
            if whole and _writes(root.value, call):
                yield self._place((root.begin, root.begin), [root], call)

    def _object(self, at: int) -> _Node | None:
        if self.text[at : at + 1] not in _JSON_BEGINS:
            return None
        try:
            return _node(self.text, at, _MOST_DEPTH)
        except json.JSONDecodeError as error:  # which counts the lines up to there
            self._patience -= error.pos - at + error.pos // 256 + 1
        except (ValueError, RecursionError):  # a number of too many digits, or nested deeper than any call
            self._patience -= len(self.text)
        return None

    def _in_objects(self, call: ToolCall) -> Iterator[Place]:
        for node in self._objects:
            yield from self._holding(node, call)
        for root in self.roots:
            if _writes(root.value, call):
                at = self.text.rfind(call.name, max(root.begin - _FAR, 0), root.begin) if call.name else -1
                if at >= 0 and self._is_marked(at, at + len(call.name), root.begin):
                    yield self._place((at, at + len(call.name)), [root], call, "marks")

    def _is_word(self, begin: int, end: int) -> bool:
        """Return True if the name is not part of a longer one, except after a dot."""
        around = self.text[max(begin - 1, 0) : begin], self.text[end : end + 1]
        return not any(one.isalnum() or one in ("_", "-") for one in around if one and ord(one) not in BLANKS)

    def _is_marked(self, begin: int, end: int, behind: int) -> bool:
        """Return True for a whole name outside quotes, followed by marks only."""
        quoted = self.text[max(begin - 1, 0) : begin] in ('"', "'")
        between = _MARKS.fullmatch(self.text, end, behind)
        return not quoted and self._is_word(begin, end) and between is not None and is_begun(self.text, begin)

    def _holding(self, node: _Node, call: ToolCall) -> Iterator[Place]:
        """The place in an object that holds the name as a value, itself or one level down."""
        own: list[tuple[_Node | None, str, _Node]] = [(None, *one) for one in node.inside]
        inner = [(child, *one) for _, child in node.inside if isinstance(child.value, dict) for one in child.inside]
        texts = [[one for one in level if isinstance(one[2].value, str)] for level in (own, inner)]
        namers = [[one for one in level if one[1].casefold() in _NAMING] for level in texts]
        others = (
            [*texts[0], *texts[1]] if node.holds_arguments() else []
        )  # any, where no member is known to name a tool
        names = next(filter(None, namers), others)
        named = [one for one in names if _is_name(one[2].value, call.name)]
        if not named or any(one[1] == named[0][1] for one in names if one not in named):
            return
        holder, key, name = named[0]
        members = [(k, one) for k, one in node.inside if one is not holder and one is not name]
        known = [(k, one) for k, one in members if k.casefold() in _ARGUMENTS and one.value not in _EMPTY]
        objects = [self._as_object(one) for _, one in known or members]
        found = [next((one for one in o.unwrapped() if _writes(one.value, call)), None) for o in objects if o]
        whole = [one for one in found if one]
        if whole and not (known and len(whole) < len(known)):
            around = [node] if holder is None and not call.arguments else []  # without arguments the object is the call
            yield replace(self._place((name.begin, name.end), [*around, *whole], call), around=(node.begin, node.end))
        elif holder is None and not known and _writes(_beside(node.value, key, call), call):
            yield replace(self._place((name.begin, name.end), [node], call), around=(node.begin, node.end))

    def _as_object(self, node: _Node) -> _Node | None:
        """An object, or the one that a text holds."""
        return node if isinstance(node.value, dict) else self._in_text(node) if isinstance(node.value, str) else None

    def _in_text(self, node: _Node) -> _Node | None:
        """The object that a JSON text holds, where its characters are in the text around it."""
        if not node.value.lstrip().startswith("{"):
            return None
        found = list(_CHARACTER.finditer(self.text, node.begin + 1, node.end - 1))
        offsets = [one.start() for one in found] + [node.end - 1]
        if len(found) != len(node.value):
            return None
        try:
            inner = _node(node.value, node.value.index("{"), _MOST_DEPTH).moved(offsets)
        except (ValueError, RecursionError):
            return None
        return replace(inner, end=node.end)  # what ends the text ends the arguments

    def _applications(self, call: ToolCall) -> Iterator[Place]:
        """`name(key=value, ...)`."""
        at = self.text.find(call.name) if call.name else -1
        while at >= 0 and self._patience > 0:
            behind = at + len(call.name)
            opened = _OPEN.match(self.text, behind)
            node = self._keywords(opened.end()) if opened and self._is_word(at, behind) else None
            if node is not None and _writes(node.value, call):
                is_text = self.text.startswith(_QUOTES, at - 1) and not self.text.startswith(_QUOTES, behind)
                begun = is_begun(self.text, at) and not (is_text or covers(self.given, at))
                yield self._place((at, behind), [node], call, APPLICATION if begun else MENTION)
            at = self.text.find(call.name, behind)

    def _keywords(self, at: int) -> _Node | None:
        """The keyword arguments up to the bracket that closes them; None where they are written in another way."""
        text, begin = self.text, at
        found: list[tuple[str, _Node]] = []
        while not text.startswith(")", at):
            keyword = _KEYWORD.match(text, at)
            quoted = _QUOTED.match(text, keyword.end()) if keyword else None
            if keyword and quoted:
                words = quoted[0]
                value = words[1:-1] if words[0] == "'" else {"True": True, "False": False}.get(words)
                prose = tuple(wording(text, quoted.start() + 1, quoted.end() - 1)) if is_prose(value) else ()
                node: _Node | None = _Node(value=value, begin=quoted.start(), end=quoted.end(), prose=prose)
            else:
                node = self._object(keyword.end()) if keyword else None
            if keyword is None or node is None:
                self._patience -= at - begin
                return None
            found.append((keyword[1], node))
            behind = _AFTER_VALUE.match(text, node.end)
            at = behind.end() if behind else node.end
        values = {key: node.value for key, node in found}
        left_out = tuple([span for _, node in found for span in node.prose])
        return _Node(value=values, begin=begin, end=at + 1, inside=tuple(found), prose=left_out)

    def _place(self, name: Span, arguments: Sequence[_Node], call: ToolCall, form: str = "object") -> Place:
        begin = min(name[0], *(node.begin for node in arguments))
        end = max(name[1], *(node.end for node in arguments))
        last = max(arguments, key=lambda node: node.begin)
        ends = {key: node.end + (not isinstance(node.value, str)) for key, node in last.inside if key in call.arguments}
        beside = last.begin <= name[0] < last.end  # the arguments are members beside the name
        others = len(last.value) - len(call.arguments) - beside
        told_apart = len(ends) == len(call.arguments) and (not others or (beside and bool(call.arguments)))
        prose = sorted({span for node in arguments for span in node.prose})
        found = [
            name,
            *((node.begin, node.end) for key, node in last.inside if key in call.arguments and not node.prose),
        ]
        quotes = [end - begin > 2 and self.text[begin] in "\"'" for begin, end in found]
        values = sorted((begin + mark, end - mark) for (begin, end), mark in zip(found, quotes, strict=True))
        return Place(
            span=(begin, end),
            name_end=name[1] + 1,
            ends=ends if told_apart else None,
            prose=tuple(prose),
            values=tuple(values),
            form=form,
        )


def _node(text: str, at: int, depth: int) -> _Node:
    """The JSON value at a place. Raises ValueError and RecursionError."""
    value, end = _DECODER.raw_decode(text, at)
    inside: list[tuple[str, _Node]] = []
    holds = isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict | list) for one in value))
    place = _after_space(text, at + 1)
    while depth and holds and place < end - 1:
        key = ""
        if isinstance(value, dict):
            key, place = _DECODER.raw_decode(text, place)
        node = _node(text, _after_space(text, place), depth - 1)
        inside.append((key, node))
        place = _after_space(text, node.end)
    texts = [
        one.span() for one in _TEXT.finditer(text, at, end) if not one[1] and one.end() - one.start() > _MOST_WORDS
    ]
    prose = [(begin + one, begin + last) for begin, stop in texts for one, last in _wording(text[begin:stop])]
    return _Node(value=value, begin=at, end=end, inside=tuple(inside), prose=tuple(prose))


def _wording(literal: str) -> tuple[Span, ...]:
    """The wording of a text in quotes, from its first quote on; empty where it is not prose."""
    return (_wording_of_long if len(literal) > _LONG else _wording_of_short)(literal)


def _read_wording(literal: str) -> tuple[Span, ...]:
    return tuple(wording(literal, 1, len(literal) - 1)) if is_prose(_DECODER.decode(literal)) else ()


# An object is read again inside each one around it; few of the long texts are kept, so that memory is bounded.
_wording_of_short = functools.lru_cache(maxsize=64)(_read_wording)
_wording_of_long = functools.lru_cache(maxsize=4)(_read_wording)


def _after_space(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


def _writes(written: object, call: ToolCall) -> bool:
    """Return True if these are exactly the call's arguments; any arguments for a call listed without."""
    if not isinstance(written, dict) or "arguments" not in call.model_fields_set:
        return isinstance(written, dict)
    return written.keys() == call.arguments.keys() and all(
        _is_same(written[key], value) for key, value in call.arguments.items()
    )


def _is_object(value: object) -> bool:
    """Return True for an object, or a text that may hold one."""
    return isinstance(value, dict) or (isinstance(value, str) and value.lstrip().startswith("{"))


def _beside(written: Mapping[str, object], name: str, call: ToolCall) -> Mapping[str, object]:
    """The members of an object beside the name, where they are the arguments."""
    return {
        key: value
        for key, value in written.items()
        if key in call.arguments or not (key == name or key in _BESIDE or (key in _ARGUMENTS and value in _EMPTY))
    }


def is_begun(text: str, at: int) -> bool:
    """Return True if only a call's marks precede the name: "cancel/pay", "undo pay" and "!pay" are others."""
    before = text[max(at - _NEAR, 0) : at].translate(BLANKS)
    return _BEFORE.search(before) is not None and not _VALUE.search(before)


def _is_same(written: object, value: object) -> bool:
    if isinstance(written, str) != isinstance(value, str):
        text, number = (written, value) if isinstance(written, str) else (value, written)
        if isinstance(number, int) and abs(number) >= _MOST_DIGITS:
            return False
        return isinstance(number, int | float) and text == str(number)
    return written == value


def _is_name(written: str, name: str) -> bool:
    """Return True for a tool's name in any case, with or without a dotted prefix; clients replace marks by "_"."""
    shown, short = written.casefold().translate(_CLEANED), name.casefold().translate(_CLEANED)
    return shown == short or (bool(short) and written.casefold().endswith(f".{name.casefold()}"))
