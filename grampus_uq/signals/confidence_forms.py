"""Forms of a stated confidence: a sentence, a `<confidence>` tag, or a JSON object that closes the text.

A sentence counts when it is such a statement from its first word to its last. A denial, a condition, a question, a
number of something else or somebody else's certainty is no such sentence, whatever words it uses. Of a JSON object only
its own field counts; it is the model's answer when it has no other fields than an answer has.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from grampus_uq.signals.word_search import WordSearch

INVALID: Final = -1.0
"""Stands for a statement whose number is not a probability."""

STATING_WORDS: Final = ("confiden", "certain", "sure", "probability", "chance", "likelihood")
MAY_STATE: Final = WordSearch("|".join(STATING_WORDS))
"""A sentence without one of these words states nothing."""

OTHER_SCALE: Final = WordSearch(
    r"\bscale(?: is|:)? ?(?:of |from )?[0-9.]+ ?(?:-|–|to|and|through) ?(?!1(?:\.0)?\b)[0-9]|\bout of (?:5|7|10|100)\b"
    r"|\b[01] ?(?:-|–|to) ?(?:5|7|10|20|100)\b|\b(?:5|7|10|five|seven|ten)[- ]point\b|\bin percent\b|\bpercentages?\b"
    r"|\b(?:one|zero) to (?:five|seven|ten|a hundred|one hundred)\b",
)
"""Words that give a bare number another meaning than a probability."""

_NUMBER = re.compile(r"([+-]?(?:[0-9]{1,15}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?)\s?(%?)\Z")


def parse_number(text: str) -> float | None:
    """A probability stated as "0.85", ".85", "1" or "85%"; None when it is anything else (85, -0.2, NaN, true, "high").

    >>> parse_number("85%"), parse_number("0"), parse_number("85"), parse_number("-0.2"), parse_number("NaN")
    (0.85, 0.0, None, None, None)
    """
    match = _NUMBER.match(text.strip())
    if match is None:
        return None
    value = float(match[1]) / (100.0 if match[2] else 1.0)
    return value if 0.0 <= value <= 1.0 else None


_THING = (
    r"(?:final |above )?(?:answer|response|reply|result|solution|conclusion|choice|decision|assessment|analysis"
    r"|calculation|estimate|recommendation|prediction|judge?ment|classification|diagnosis|translation|plan|step|action|call)"
    r"(?: above)?"
)
_IT = rf"(?:this|that|it|(?:this|that|my|the) {_THING})"
_RIGHT = r"(?:right|correct|accurate|true)"
_ABOUT_IT = rf" (?:in|of|about|on|with) {_IT}(?: being {_RIGHT})?"
_NAME = (  # an answer, not a sentence
    r"(?!(?:[\w'-]{1,20} ){0,3}(?:no|not|none|nothing|nobody|never"
    r"|un(?:true|safe|known|clear|certain|likely|reliable|finished|solved|verified|tested|done)"
    r"|in(?:correct|accurate|valid|complete)|wrong|false|mistaken|erroneous|fraud\w*|fakes?|forged|bogus|nonsense|rubbish"
    r"|guess\w*|lies?|scam|spam|phishing|dangerous|risky|harmful|malicious|illegal|unauthori[sz]ed|impossible|broken|bad"
    r"|invented|fabricated|hallucinat\w*|doubtful|dubious|doomed|hopeless)\b)"
    r"(?-i:[0-9](?:[0-9.,:]{0,15}[0-9])?|[A-Z][\w'-]{0,20}(?: [A-Z][\w'-]{0,20}){0,3})"
)
_CLAIM = (
    rf" (?:that )?(?:{_IT}(?: is|'s| was)(?: indeed)? {_RIGHT}|(?:i am|i'm) (?:right|correct)"
    rf"|i (?:have |got |have got )(?:this|it|that) {_RIGHT}|this is the {_RIGHT} {_THING}"
    rf"|{_IT} will work|the task will (?:eventually )?be solved(?: correctly)?"
    rf"|(?:it is|it's|this is|that is|the (?:{_RIGHT} )?answer is) {_NAME})"
)
_LEAD = (
    r"(?:(?:so|and|overall|in short|in summary|to sum up|all in all|all told|therefore|thus|hence|yes|ok|okay"
    r"|currently|right now|now|at this point|personally|in conclusion"
    r"|(?:based on|given) (?:this|that|the (?:above|records?|order|data|evidence|results?|tool results?)))[,:]? "
    rf"|(?:(?:the|my) )?(?:final )?answer(?: is|:) {_NAME}(?:,| [-–—|])? (?:with )?\(?)?"
)
_SURE = r"(?:sure|confident|certain)"
_CONFIDENCE = r"(?:confidence|certainty)"
_AMOUNT = (
    r"(?:about |around |roughly |approximately |approx\. |≈ ?|at least |over |more than |~ ?)?"
    r"(?P<number>[+-]?[0-9.][0-9a-z.,+\-–]{0,60}|[+-]?(?:nan|inf(?:inity)?)\b)(?P<percent> ?%| percent\b| per cent\b)?"
)
_I_AM = r"(?:(?:i would|i'd) say (?:that )?)?(?:i am|i'm|i feel)(?: now| currently| still| quite)?(?: only| just)?"
_ZERO_TO_ONE = r" ?[(\[]?(?:on )?(?:a scale (?:of|from) )?0(?:\.0)? ?(?:-|–|to) ?1(?:\.0)?[)\]]?"

_FORMS: Final = tuple(
    re.compile(_LEAD + form, re.IGNORECASE)
    for form in (
        rf"(?:(?:my|overall|final|current|own|estimated|self-assessed|level of) ){{0,3}}{_CONFIDENCE}"
        rf"(?: (?:score|level|rating|estimate))?(?:{_ABOUT_IT}|{_CLAIM})?(?:{_ZERO_TO_ONE})?"
        rf"(?: ?[:=≈→] ?| [–—-] | |(?: is |: ?)(?:very |quite )?high \("
        rf"| is | is at | stands at | (?:has )?(?:dropped|fallen|sunk|risen) to ){_AMOUNT}(?P<tail>.*)",
        rf"(?:with |i have )?(?:a )?{_CONFIDENCE} of {_AMOUNT}(?P<tail>.*)",
        rf"{_I_AM} (?:a |an )?{_AMOUNT} {_SURE}\b(?P<tail>.*)",
        r"(?:i (?:have|say this with|answer(?: this)? with|give this answer with|would estimate)|i'd estimate)"
        rf" (?:a |an )?{_AMOUNT} {_CONFIDENCE}\b(?P<tail>.*)",
        rf"(?:i|i would|i'd) (?:rate|estimate|put|set) my {_CONFIDENCE}(?: level)?(?:{_ABOUT_IT})?"
        rf" (?:at|as|to be) {_AMOUNT}(?P<tail>.*)",
        rf"(?:there is|there's|i see|i estimate) (?:a |an )?{_AMOUNT}"
        rf" (?:probability|chance|likelihood){_CLAIM}(?P<tail>.*)",
        rf"the (?:probability|chance|likelihood){_CLAIM} is {_AMOUNT}(?P<tail>.*)",
    )
)
_TAG: Final = re.compile(r"<confidence(?:_score)?>([^<]{0,60})(?:</confidence(?:_score)?>|$)[.!]?", re.IGNORECASE)
_TAIL = re.compile(
    rf"(?:{_ABOUT_IT}|{_CLAIM})?(?:{_ZERO_TO_ONE})?(?: \((?:very |quite )?(?:high|medium|moderate|low)\))?"
    r"(?:(?:,|;| -| –| —)? (?:because|since|based on|due to)\b(?P<reason>.{0,200}?))?[.!]?",
    re.IGNORECASE,
)
_OTHER_UNIT = re.compile(r" ?(?:/|(?:out )?of [0-9]|-|–|to [0-9]|or [0-9]|\(|\+|±|x\b)", re.IGNORECASE)
_TAKEN_BACK = re.compile(
    r"\b(?:not|no|never|none|nobody|nothing|neither|nor|hardly|without|cannot|\w{1,12}n't|if|unless|until|assuming"
    r"|provided|but|however|although|though|except|wrong|fail\w{0,5}|false|incorrect|mistaken|would|could|might|may"
    r"|said|says|told|claim\w{0,3})\b|[?]|\.\.",
    re.IGNORECASE,
)
_OVER = re.compile(r"[^\w{]*(?:\Z|[A-Z{])")
_BULLET = re.compile(r"^\s*(?:[-*+•✅🎯📊]|#{1,6}|[0-9]{1,3}[.)])\s+")
_EMPHASIS = re.compile(r"\*+|(?<!\w)_+|_+(?!\w)")
_LABEL_WORDS = re.compile(r"(?<=confidence)_(?=score|level)(?![^<]{0,8}>)", re.IGNORECASE)


def sentence_confidence(sentence: str, *, other_scale: bool = False) -> float | None:
    """The probability that a sentence states, `INVALID` when its number is none, None when it states nothing.

    With `other_scale` a number without a percent sign is not a probability.
    """
    tag = _TAG.fullmatch(sentence.strip())
    if tag is not None:
        return _probability(tag[1].strip(), other_scale=other_scale)
    sentence = _plain(sentence)
    for form in _FORMS:
        match = form.match(sentence)
        if match is not None:
            number, percent, tail = match["number"], match["percent"] or "", match["tail"]
            before = sentence[: match.start("number")]
            if before.count("(") > before.count(")"):
                tail = tail.replace(")", "", 1) if ")" in tail else f"?{tail}"
            bare = number if percent else number.rstrip(".,")
            return _form_value(f"{bare}{'%' if percent else ''}", number[len(bare) :] + tail, other_scale)
    return None


def _form_value(number: str, tail: str, other_scale: bool) -> float | None:
    """The value of a form from its number and the rest of the sentence; a lone 1 may be one percent or one of ten."""
    whole = _TAIL.fullmatch(tail)
    value = INVALID if number in {"1", "+1"} else _probability(number, other_scale=other_scale)
    if value == INVALID or (whole is None and _OTHER_UNIT.match(tail)):
        return INVALID
    if whole is None:
        return value if value <= 0.5 and _OVER.match(tail) else None  # a low one, whatever ends its sentence
    return None if whole["reason"] and _TAKEN_BACK.search(whole["reason"]) else value


def _probability(number: str, *, other_scale: bool) -> float:
    value = parse_number(number)
    return INVALID if value is None or (other_scale and value > 0.0 and "%" not in number) else value


def _plain(sentence: str) -> str:
    """The sentence without bullet, emphasis and enclosing brackets, its blanks made one."""
    sentence = _LABEL_WORDS.sub(" ", _BULLET.sub("", sentence).replace("’", "'"))
    sentence = " ".join(_EMPHASIS.sub("", sentence).split())
    return sentence[1:-1].strip() if sentence[:1] + sentence[-1:] in {"()", "[]"} else sentence


# The closing JSON object.

FIELDS = frozenset({"confidence", "confidence_score"})
ANSWER_FIELDS = FIELDS.union(
    ("answer", "final_answer", "final", "response", "reply", "solution", "conclusion", "summary", "decision", "choice"),
    ("reason", "reasoning", "explanation", "rationale", "justification", "thought", "thoughts", "chain_of_thought"),
    ("action", "plan", "steps", "next_step", "next_steps", "next_action", "recommendation", "assumptions"),
)
"""Fields of an answer besides its confidence; an object with any other may be a tool's result or page data."""
_OTHERS_FIELDS = frozenset(
    {"role", "tool", "tool_name", "tool_call_id", "tool_result", "tool_output", "observation"}
    | {"type", "arguments", "args", "parameters"}
)
_FIELD = re.compile(r"""["']confidence(?:_score)?["']\s{0,64}:""", re.IGNORECASE)
_FLAT = re.compile(
    r"""\{\s{0,64}(["'])confidence(?:_score)?\1\s{0,64}:\s{0,64}(["']?)([^\s"'{}\[\],]{1,60}(?:\s?%)?)\2\s{0,64},?\s{0,64}\}""",
    re.IGNORECASE,
)
_INFO = re.compile(r"[a-z0-9]{0,10}[ \t]{0,8}\n?", re.IGNORECASE)
_AFTER_SENTENCE = re.compile(r"[.!?:][*_)]{0,3}[ \t]{1,8}(?=\{)")
_CLOSING_WORDS = re.compile(
    r"\s{1,8}(?:done|finished|that is all|that's all|i hope this helps|let me know[^.\n]{0,60}"
    r"|is there anything else (?:i can|you (?:need|want|would like))\b[^.?\n]{0,60}(?=\?))[.!?]?\Z",
    re.IGNORECASE,
)
_DECODER = json.JSONDecoder(object_pairs_hook=tuple)
_LONGEST = 20_000
_MOST_STARTS = 8
_MOST_TEXTS = 100


class ClosingObject(NamedTuple):
    """Text before the object, its stated values (`INVALID` for no probability), and its other fields.

    It is the model's answer when it has no other fields than an answer has: any other may be a tool's result.
    """

    before: str
    values: tuple[float, ...] = ()
    is_answer: bool = True
    others: tuple[tuple[str, Any], ...] = ()

    @property
    def texts(self) -> list[str]:
        """The texts of its other fields, at any depth: the first hundred."""
        found: list[str] = []
        waiting: list[Any] = list(self.others)[::-1]
        while waiting and len(found) < _MOST_TEXTS:
            value = waiting.pop()
            if isinstance(value, str):
                found.append(value)
            elif isinstance(value, list | tuple):
                waiting += value[::-1]
        return found


def closing_object(text: str, *, other_scale: bool = False) -> ClosingObject:
    """Split a text into its closing JSON object, fenced or not, and the text before it.

    Only the object's own field counts: one further down belongs to what it describes. A text that does not close with
    an object is given back whole. Linear in the length of the text.

    >>> closing_object('It is Paris. {"confidence": 0.9}')
    ClosingObject(before='It is Paris. ', values=(0.9,), is_answer=True, others=())
    """
    stripped = text.rstrip()  # the blanks before it tell whether its first line is code
    closing = _CLOSING_WORDS.search(stripped, max(0, len(stripped) - 100))
    stripped = stripped if closing is None else stripped[: closing.start()]
    before, inner = _fenced(stripped)
    if inner is not None:
        found = _read_object(inner, before, other_scale)
        return ClosingObject(text) if found is None else found
    if stripped.lstrip().startswith("{"):
        found = _read_object(stripped.lstrip(), "", other_scale)
        if found is not None:
            return found
    if stripped.endswith("}"):
        for start in _starts(stripped):
            found = _read_object(stripped[start:], stripped[:start], other_scale)
            if found is not None:
                return found
    return ClosingObject(text)


def _fenced(text: str) -> tuple[str, str | None]:
    """The text before a closing block of code that begins on a line of its own, and its content."""
    if not text.endswith("```"):
        return text, None
    start = text.rfind("```", 0, len(text) - 3)
    if start < 0 or text[text.rfind("\n", 0, start) + 1 : start].strip(" "):
        return text, None
    info = _INFO.match(text, start + 3)
    inner = text[info.end() if info else start + 3 : -3].strip()
    return (text[:start], inner) if inner.startswith("{") else (text, None)


def _starts(text: str) -> list[int]:
    """Return possible starts of a closing object, latest first: on its own line, or after a sentence on the last.

    A line that is indented as code holds none.
    """
    last_line = text.rfind("\n") + 1
    is_code = text.startswith(("    ", "\t"), last_line)
    after = None if is_code else _AFTER_SENTENCE.search(text, max(last_line, len(text) - _LONGEST))
    starts = [] if after is None else [after.end()]
    end = len(text)
    while len(starts) < _MOST_STARTS:
        end = text.rfind("\n{", max(0, len(text) - _LONGEST), end)
        if end < 0:
            break
        starts.append(end + 1)
    return starts


def _read_object(text: str, before: str, other_scale: bool) -> ClosingObject | None:
    """Read a text that is one JSON object; None if it is not."""
    try:
        fields = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return _malformed(text, before)
    if not isinstance(fields, tuple):
        return None
    names = {name.lower().replace(" ", "_") for name, _ in fields}
    if names & _OTHERS_FIELDS:
        return ClosingObject(before)
    values, others = [], []
    for name, value in fields:
        if name.lower() in FIELDS:
            values.append(_field_value(value, other_scale))
        else:
            others.append((name, value))
    return ClosingObject(before, tuple(values), names <= ANSWER_FIELDS, tuple(others))


def _field_value(value: Any, other_scale: bool) -> float:
    if isinstance(value, str):
        number = parse_number(value)
        other_scale = other_scale and "%" not in value
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        number = float(value) if is_number and 0 <= value <= 1 else None
    return INVALID if number is None or (other_scale and number > 0.0) else number


def _malformed(text: str, before: str) -> ClosingObject | None:
    """Read an object that is almost JSON: `.5`, `85 %`, single quotation marks."""
    flat = _FLAT.fullmatch(text)
    if flat is not None:
        value = parse_number(flat[3])
        return ClosingObject(before, (INVALID if value is None else value,))
    closed = text.endswith("}") or "}" not in text
    return ClosingObject(before, (INVALID,)) if closed and _FIELD.search(text) else None
