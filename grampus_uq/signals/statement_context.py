"""Attributes a sentence to the model or to somebody else, by its surroundings.

A statement that follows somebody's report, an announcement ("The page reads:") or a table of values, or that the next
sentence takes back, is doubtful. What is doubtful may lower a reading and never raise one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from grampus_uq.signals.own_words import BLOCK_GAP, GAP
from grampus_uq.signals.word_search import WordSearch

_LINES_ABOVE = 40
_FARTHEST = 400
_SENTENCE_END = re.compile(r"(?<=[.!?])([*_)\]]{0,3})\s+")
_ABBREVIATION = re.compile(
    r"(?:(?:\b[a-z]\.[a-z]?|\b(?:cf|vs|mr|mrs|ms|dr|st|nr|eg|ie|resp|approx|al|pp|fig|eq))\. .|\bno\. [0-9])$",
    re.IGNORECASE,
)
FRAME = WordSearch(
    r"\b(?:below|follow(?:s|ing)|verbatim|quot\w{1,7}|word for word|own words|these words|this (?:text|line)|pasted?"
    r"|copied|suppose|imagine|pretend\w{0,3}|hypothetical\w{0,2}|role-?play\w{0,3}|example|template|fiction\w{0,2}|draft|joking"
    r"|told to|repeat\w{0,3}|asked me to|placeholder|dummy)\b|\b(?:this|these|with|then|not|never)[.,]?$",
)
_SAYS = (
    r"(?:says?|said|wrote|writes?|reads|report(?:s|ed)|return(?:s|ed)|repl(?:y|ies|ied)|answer(?:s|ed)|respond(?:s|ed)"
    r"|stat(?:es|ed)|claim(?:s|ed)|predict(?:s|ed)|classif(?:ies|ied)|labell?ed|labels|detect(?:s|ed)|scor(?:es|ed)"
    r"|told|tells|according|outputs?|insist(?:s|ed)|assur(?:es|ed)|shows|showed|gave|gives)"
)
_GOES_ON = WordSearch(rf"\b{_SAYS}(?:\W++\w++){{0,3}}+\W*+$")
"""A report in so few words, as in "The tool replied", may go on in what follows."""
_SPEAKS = WordSearch(
    r"\b(?:says?|said|wrote|writes?|reads|stat(?:es|ed)|repl(?:y|ies|ied)|claim(?:s|ed)|told|tells"
    r"|(?<!for the )(?<!to the )(?:customer|user|client)|sender|e-?mails?|mails?|letter|messages?|ticket|page|website"
    r"|article|comment|review|post|transcript|quote|tool (?:output|response|results?))\b",
)
"""In a line that announces what somebody said or wrote, of whatever length; a list ends with its paragraph."""
REPORT = WordSearch(rf"\b(?:{_SAYS}|sent|sends|thinks|believes|model|classifier|detector)\b")
SOURCE = WordSearch(
    r"\b(?:api|server|tool|response|results?|report|output|check|log|record|note|e-?mail|mail|page|document|file|database"
    r"|customer|user|client|website|article|message|text|letter|search|query|function|attacker"
    r"|engine|service|vendor|payload|body|lookup|https?|web\w{0,8}|content|extract\w{0,4}|fields?|ocr|invoice|scan\w{0,3}|ignore|metadata|data)\b|\w\(|(?:=|[=-]>)$",
)
_SIGNED = re.compile(r"[—–~/] ?\w|--? ?(?:[A-Z]|(?:the|a|your|our) )\w+\s*$")
_FEW_WORDS = r"[^\W\d_][\w'’-]{0,20}(?:[.,]? [\w'’-]{1,20}){0,3}"
_REACHED_AT = r"\+?[0-9][0-9 ()/-]{5,20}|[^\s@]{1,40}@[^\s@]{1,40}"
_SIGNATURE = re.compile(
    rf"^(?:{_FEW_WORDS}(?:[,!]\n{_FEW_WORDS}$|(?:\n{_FEW_WORDS})?\n(?:(?:{_REACHED_AT})$|{_FEW_WORDS}(?:\n[ \t]*$|\Z)))"
    r"|-- ?\n|sent from my )",
    re.IGNORECASE | re.MULTILINE,
)
"""A short line with a comma above another; a paragraph of two or three, or with an address; two dashes above a name."""
_RULE = re.compile(r"(?:[^\w\ufffc\ufffb]|_){2,99}")
_ENDED = re.compile(r"[.!?\ufffc][*_)\]]{0,3}$|[:=] ")
_SHORT = 6  # words of a line that is rather a heading than a sentence
_FIRST_PERSON = re.compile(r"[\W_]*(?:i|we|i'm|i've|i'll)\b", re.IGNORECASE)
_TAKES_BACK = re.compile(
    r"[\W_]*(?:no|not|nope|never|hardly|just kidding|kidding|joking|or (?:not|rather)|wait|scratch that|correction"
    r"|if(?! you (?:have|need|want|would|prefer)\b)|unless|provided|assuming|only if"
    r"|but (?:only|not|if)|except|end(?: of)?|according|of (?:failure|error)"
    r"|source ?: (?:the |an? )?(?:ocr|tool|classifier|scan\w{0,3}|model|customer|user|page|e-?mail|api)"
    r"|on second thoughts?|then again|strike that|maybe not|probably not|false\b|/s\b|hmm|let me (?:reconsider|correct)"
    r"|i (?:take|took) (?:that|this|it) back|(?:but )?i (?:retract|withdraw|doubt)|but i (?:am|'m) (?:not|un)"
    r"|(?:that|this|it|those|these)(?: (?:is|was|are|were|would be)|'s)"
    r" (?:what|how|not|wrong|false|a lie|a quote|a joke|the |his|her|their|its|from|copied|an? (?:example|quot))"
    r"|\(?as (?:reported|stated|said|given|quoted)|sorry|best(?: regards)?,|regards|cheers|sincerely|yours|thanks,"
    r"|actually,? (?:no|[0-9]{1,9})|disregard|ignore (?:this|that|it|the)|oops|on reflection|edit(?=:)"
    r"|well, [0-9]{1,9}|i do not agree"
    r"|quoted|(?:the )?(?:line |text )?above (?:is|was|were|comes?|came)|psych|but (?:that|this|it) is a joke"
    r"|so (?:said|says|he|she|it|they)\b|(?:the )?(?:he|she|they|customer|user|tool|email|page|model) "
    r"(?:said|says?|wrote|writes?|claim\w{0,3}|think\w?|believe\w?)(?![^.!?\n]*[:\ufffc\ufffb]))\b",
    re.IGNORECASE,
)
_INTRODUCTION = re.compile(
    r"[\W_]*(?:(?:so|ok|okay|sure|as requested)[,!.]? )?(?:as requested|here it is|(?:here(?:'s| is) |this is |and )?"
    r"(?:(?:my|the|your|final|requested) ){0,3}"
    r"(?:answer|solution|conclusion|decision|assessment|json|json object|confidence|certainty"
    r"|(?<=my )(?:response|reply|result)|(?<=final )(?:response|reply|result))"
    r"(?: (?:is|in json|as json|as requested|with confidence|with my confidence))?)[\W_]*",
    re.IGNORECASE,
)
_PRESENTS = re.compile(
    r"[\W_]*(?:(?:so|ok|okay|sure)[,!.]? )?(?:here(?:'s| is| are)|this is|these are|below|the following)\b",
    re.IGNORECASE,
)
_OWN_KEYS = (
    r"(?:(?:final|my|short) )?answer|confidence|certainty|confidence[ _](?:score|level)|reason(?:ing)?|explanation"
    r"|rationale|conclusion|decision|summary|action|thought|recommendation|next steps?|justification|solution"
    r"|note|assumptions?|question|guess|evidence|step [0-9]{1,2}"
)
_KEYED = re.compile(
    rf"[\W_]*+(?!(?:{_OWN_KEYS})[*_'\" ]{{0,4}}[:=])[\w'-]{{1,24}}(?: [\w'-]{{1,24}})?[*_'\" ]{{0,4}}[:=]\s*\S",
    re.IGNORECASE,
)
_OWN_KEY = re.compile(rf"[\W_]*+(?:{_OWN_KEYS})[*_'\" ]{{0,4}}[:=]", re.IGNORECASE)
_TABLE_ROW = re.compile(rf"(?![|\W_]*(?:{_OWN_KEYS})[*_ ]*\|)(?:\s*\||.*(?:\S +\| +\S|\|\s*$))", re.IGNORECASE)


def sentences_of(line: str) -> list[str]:
    """The sentences of a line; a full stop after an abbreviation ends none."""
    line = line.strip()
    if _SENTENCE_END.search(line) is None:
        return [line]
    sentences: list[str] = []
    for part in _SENTENCE_END.sub(r"\1\n", line).split("\n"):
        if sentences and _ABBREVIATION.search(f"{sentences[-1][-12:]} {part[:1]}"):
            sentences[-1] = f"{sentences[-1]} {part}"
        else:
            sentences.append(part)
    return sentences


def letter_end(lines: Sequence[str]) -> int:
    """The number of the line on which the last signature of a letter begins, or 0: what is above may be the letter."""
    text = "\n".join(lines)
    last = max((found.start() for found in _SIGNATURE.finditer(text)), default=0)
    return text.count("\n", 0, last)


def is_doubtful(lines: Sequence[str], number: int, sentences: Sequence[str], index: int) -> bool:
    """True when sentence `index` of line `number` may be somebody else's, hypothetical or taken back.

    `number` may be one past the last line, with no sentences: what is judged then stands after the text.
    """
    following = sentences[index + 1] if index + 1 < len(sentences) else _below(lines, number)
    if _TAKES_BACK.match(following) or _SIGNED.match(following):
        return True
    if index > 0 and _frames(sentences[index - 1]):
        return True
    if index == 0 and sentences and _continues(lines, number, sentences[0]):
        return True
    return _announced(lines, number, starts_line=index == 0) or _in_keyed_lines(lines, number)


def _below(lines: Sequence[str], number: int) -> str:
    return next((line for line in lines[number + 1 : number + 4] if line.strip()), "")


def _frames(sentence: str) -> bool:
    if FRAME(sentence) or (_PRESENTS.match(sentence) and SOURCE(sentence) and not _INTRODUCTION.fullmatch(sentence)):
        return True
    if _FIRST_PERSON.match(sentence) or sentence.rstrip(".,!?;)]} ").endswith(GAP):  # what was reported stands there
        return False
    return REPORT(sentence)


def _continues(lines: Sequence[str], number: int, sentence: str) -> bool:
    """Return True for a line between two rules, or in first person under a name or the beginning of a sentence."""
    above = lines[number - 1].strip() if number > 0 else ""
    below = lines[number + 1].strip() if number + 1 < len(lines) else ""
    if _RULE.fullmatch(above):
        return _RULE.fullmatch(below) is not None
    return bool(_FIRST_PERSON.match(sentence) and _is_short(above) and not _ENDED.search(above))


def _is_short(line: str) -> bool:
    return 0 < len(line.split(maxsplit=_SHORT)) <= _SHORT


def _heads(line: str) -> bool:
    """Return True for a short line that names a source; a sentence with a full stop does where it ends with one."""
    if not _is_short(line) or _FIRST_PERSON.match(line) or _OWN_KEY.match(line):
        return False
    return SOURCE(line.split()[-1] if line.rstrip("*_)] ").endswith(".") else line)


def names_a_source(line: str) -> bool:
    """Return True for a line that reports somebody's words, or is a heading over them."""
    return _frames(line) or _heads(line)


def _announced(lines: Sequence[str], number: int, *, starts_line: bool) -> bool:
    """True when a line above announces somebody else's words, or is a block quotation that may go on here.

    Words that somebody says, and nothing marks, may go on over any number of paragraphs.
    """
    nearest, paragraph, far = starts_line, True, False
    for above in range(number - 1, max(-1, number - _FARTHEST), -1):
        line = lines[above].strip()
        if not far and number - above >= _LINES_ABOVE:
            return paragraph
        if not line:
            paragraph = False
            continue
        if line == GAP or line[-1] in "}]":  # what was announced stands here, and the sentence comes after it
            return False
        if BLOCK_GAP in line:
            return paragraph
        announces = line.rstrip("*_ ").endswith((":", "："))
        if far:
            if announces and _SPEAKS(line) and not _FIRST_PERSON.match(line):
                return True
            continue
        if announces:
            return not _INTRODUCTION.fullmatch(line)
        last = sentences_of(line)[-1] if nearest else ""
        if nearest and (_heads(last) or FRAME(line if number < len(lines) else last)):
            return True
        over = not paragraph or (number == len(lines) and not _GOES_ON(last))
        if nearest and not (over and _ENDED.search(line)) and _frames(last):
            return True
        far, nearest = not paragraph, False
    return False


def _in_keyed_lines(lines: Sequence[str], number: int) -> bool:
    """True when the paragraph has lines "key: value" that are not the model's own."""
    return any(_KEYED.match(line) for line in _paragraph_around(lines, number))


def beside_table_row(lines: Sequence[str], number: int) -> bool:
    """True when the paragraph has table rows whose first cell is none of an answer's own keys."""
    return any("|" in line and _TABLE_ROW.match(line) for line in _paragraph_around(lines, number))


def _paragraph_around(lines: Sequence[str], number: int) -> Iterator[str]:
    """The nearest lines of the paragraph, upwards and downwards, without the line itself."""
    for step in (-1, 1):
        for beside in range(number + step, number + step * _LINES_ABOVE, step):
            if not 0 <= beside < len(lines) or not lines[beside].strip():
                break
            yield lines[beside]
