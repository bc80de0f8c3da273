"""Admissions in words: that the model does not know, that it is wrong, "confidence: low"; and hedges without a number.

Words only ever lower a reading, so they are sought more widely than statements are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from grampus_uq.signals.confidence_forms import MAY_STATE
from grampus_uq.signals.own_words import own_words
from grampus_uq.signals.word_search import WordSearch

UNDECIDED: Final = 0.5
"""Up to here a statement that may be somebody else's counts: it can only make the reading more careful."""

_CERTAIN = 0.99  # from here on a number contradicts that full certainty was denied
_ADMITTED = 0.3  # what an outright admission reads, with or without a number beside it
ADMITTING: Final = frozenset((
    "idea", "clue", "idk", "dunno", "beats", "speculation", "toss", "shot", "making", "know", "sure", "certain",
    "confident", "unsure", "uncertain", "guess", "guessing", "guesswork", "guessed", "coin", "doubt", "doubts", "give",
    "failed", "could", "trust", "ignore", "disregard", "made", "invented", "fabricated", "hallucinated",
    "hallucinating", "wrong", "mistaken", "mistake", "lying", "incorrect", "false", "invalid", "nonsense",
    "unreliable", "meaningless", "correct", "right", "true", "reliable", "accurate", "convinced", "doubtful",
    "believe", "rely", "stand", "error",
))  # fmt: skip
"""One of these words is in every admission."""
_ALONE = r"(?<![^\W_])(?:{})(?![^\W_])"  # as a word, which may stand in _emphasis_
_MAY_ADMIT = WordSearch(_ALONE.format("|".join(sorted(ADMITTING))))
_LOW = (
    r"not (?:very |too |that |so )?(?:high|great|strong)|low|poor|weak|none|nil|no|zero|minimal|limited|little|shaky"
    r"|tiny|negligible|lacking|(?:one|two|three|four|five|six|seven|eight|nine|ten|fifteen|twenty|thirty|forty)"
    r" (?:percent|per cent)"
)
_MIDDLING = r"medium|moderate|mixed"
_MAY_BE_LOW = WordSearch(_ALONE.format(f"{_LOW}|{_MIDDLING}"))
_BEGINS = r"(?:^|[^\w\s,'’]\s|[(\[–—]|(?<!\w)[*_])[\W_]{0,12}(?=[^\W_])"  # a clause, behind any marks
_ENDS = r"(?=[*_\s]{0,8}(?:$|[^\w\s?,'’\"“”–—-]|[–—-]{1,3}(?!\w)))"  # of a clause, but for commas and questions
_LEAD = (
    rf"{_BEGINS}(?:(?:but|and|so|well|hmm?|oh|sorry|maybe|perhaps|in truth|to be (?:honest|frank)|on reflection"
    r"|[a-z]{2,12}ly|i (?:think|believe|fear|suspect)(?: that)?)[,:]? ){0,3}"
)
_SOFTLY = r"(?:(?!hardly|unlikely)(?:[a-z]{2,12}ly|most likely|just|still|very|quite|almost|now) ){0,2}"
_WORTHLESS = (
    r"(?:not (?:right|correct|true|reliable|certain)|wrong|incorrect|false|mistaken|invalid|made up|fabricated|invented"
    r"|nonsense|unreliable|meaningless|a (?:wild )?guess)"
)
_THING = (
    r"(?:answer|response|reply|result|solution|conclusion|choice|decision|assessment|calculation|plan|estimate"
    r"|statement|confidence)"
)
_OWN = rf"(?:my|this|the above) (?:final |own |last )?{_THING}"
_IT = rf"(?:this|that|it|{_OWN})"
_RIGHT = r"(?:right|correct|true|accurate|reliable)"
_IM = r"i(?:['’]?m| am| feel| remain)"
_KNOW = rf"(?:do not|don['’]?t) {_SOFTLY}know"
_VERY = r"(?:(?:fairly|pretty|quite|very|almost|rather|absolutely|completely|totally|now) )?"
_DOUBTS = (
    rf"(?:i (?:really |honestly )?(?:think|believe|fear|suspect|guess|expect)|{_IM} (?:afraid|worried)"
    r"|in my (?:opinion|view),?|chances are|there(?:['’]s| is) a (?:good|real|high|fair|strong|big) (?:chance|risk)"
    r"|it(?:['’]s| is) (?:very |quite |most )?likely)(?: that)?"
)
_KNOWS = rf"(?:i know|(?:{_IM} )?{_VERY}(?:sure|certain|confident|convinced))(?: that)?"
_IS = r"(?: is|['’]s| was| looks| seems| feels|(?: may| might| could| might well| to| will| must) be)"
_OF_IT = (
    rf"(?: (?:about|of|in|if|whether|that|how|why))?(?: (?:any of )?(?:{_IT}|the answer))?(?: (?:is|was) {_RIGHT})?"
    r"(?: (?:at all|for sure|myself|here|on my part))?(?:,? (?:sorry|though|really|honestly|i['’]m afraid))?"
)
_OUTRIGHT = re.compile(
    _LEAD
    + "(?:"
    + "|".join((
        rf"i {_SOFTLY}(?:(?:have no|haven['’]?t (?:the|any|an?)) (?:\w{{1,12}}est )?(?:idea|clue)|{_KNOW})",
        rf"(?:{_IM} )?{_SOFTLY}(?:not (?:(?:at all|so|all that|that|too|very|really) )?(?:sure|certain|confident)"
        r"|unsure|uncertain|guessing|doubtful)|i was guessing",
        r"no (?:idea|clue)|idk|dunno|beats me|(?:a )?(?:coin (?:flip|toss)|toss-up|shot in the dark)",
        r"(?:(?:just |only )?a )?(?:(?:wild|pure|complete|total|mere) )?(?:guess(?:work)?(?![*_ ]{0,4}:)|speculation)",
        rf"i (?:(?:highly|strongly|really|seriously) )?doubt"
        rf" (?:{_IT}|my \w{{1,20}}|the {_THING}|whether this is right)",
        r"i have (?:(?:serious|grave|strong|many|my) )?doubts|i give up|i (?:have )?failed",
        r"i could not (?:solve|do|answer) (?:it|this)|(?:ignore|disregard) (?:my|this) answer",
        r"(?:i )?(?:do not|don['’]t|would not|wouldn['’]t) (?:really )?(?:trust|rely on|stand by|believe)"
        rf" (?:me|my \w{{1,20}}|{_IT})(?: myself)?",
        rf"(?:this|that|it)(?:['’]s| is| was) {_SOFTLY}(?:a (?:wild |pure )?guess|(?:pure )?(?:guesswork|speculation)"
        r"|my guess|a toss-up|a shot in the dark|made up|fabricated|invented)",
        rf"{_IM} {_SOFTLY}making (?:this|it|that) (?:all )?up(?: as i go)?|i made (?:(?:this|it|that) up|a mistake)",
        r"i (?:invented|fabricated|hallucinated|guessed)(?: (?:this|it|that|(?:the|my|this) \w{1,20}))?",
        r"i suspect (?:an error|a mistake)|(?:something|there) is (?:something )?wrong with my \w{1,20}",
        rf"{_DOUBTS} {_IT}{_IS} {_SOFTLY}{_WORTHLESS}",
        rf"(?:{_KNOWS} )?{_OWN}(?:{_IS}|:) {_SOFTLY}{_WORTHLESS}",
        rf"i (?:(?:do not|don['’]t) (?:think|believe)|doubt)(?: that)? {_IT} (?:is|was) {_RIGHT}",
        rf"{_IM} not (?:really |fully |entirely )?convinced",
        rf"(?:{_IT}(?: is|['’]s) )?(?:probably|most likely|very likely|likely|almost certainly) {_WORTHLESS}",
        rf"(?:(?:{_DOUBTS}|{_KNOWS}),? )?i(?:['’]m| am| was) {_SOFTLY}(?:wrong|mistaken|lying|hallucinating)(?: here)?",
    ))
    + rf"){_OF_IT}{_ENDS}",
    re.IGNORECASE | re.MULTILINE,
)  # fmt: skip
_DENIED = re.compile(
    rf"{_LEAD}i(?:['’]m| am|['’]d be| would be| can(?:no|['’])t be| can not be) "
    r"(?:(?P<far>(?:very |quite )?far from)|not|never)? ?"
    r"(?:100 ?%|(?:one|a) hundred percent|fully|entirely|completely|absolutely|totally|perfectly)? ?"
    rf"(?P<word>sure|certain|confident)(?: (?:about|of|in) (?:this|it|that|(?:my|this) answer))?(?:,|{_ENDS})",
    re.IGNORECASE | re.MULTILINE,
)
_IN_WORDS = re.compile(
    rf"{_BEGINS}(?:"
    r"(?:(?:my|overall|final|current|own) ){0,2}(?:confidence|certainty)(?: (?:in|of|about) (?:this|it|my answer))?"
    r"(?: (?:score|level|rating))?[*_ ]{0,3}(?: is\b| was\b| remains\b|[:=|–-])?\s{0,3}[*_ ]{0,3}"
    r"(?:[0-9.]{1,6} ?%? ?\(|[0-9.]{1,6} ?%?, )?(?:(?:very|quite|rather|extremely|fairly|still|only) ){0,2}"
    r"|i (?:have|say this with|answer with|feel) (?:very )?|with (?:very )?"
    r"|(?:very )?(?=(?:low|no|zero|little|minimal) (?:confidence|certainty)))"
    rf"(?:(?P<low>{_LOW})|{_MIDDLING})"
    r"(?![^\W_])(?! (?:risk|price|cost|doubt|reason))",
    re.IGNORECASE | re.MULTILINE,
)

_PHRASES = (
    "not sure", "not entirely sure", "not completely sure", "not really sure", "not certain", "not confident", "unsure",
    "uncertain", "no idea", "do not know", "don't know", "don’t know", "do not really know", "don't really know",
    "i am guessing", "i'm guessing", "i’m guessing", "just guessing", "only guessing", "wild guess",
)  # fmt: skip
_STEMS = ("sure", "certain", "confident", "idea", "know", "guess")  # one of them is in every phrase
_HEDGES = (
    "roughly", "approximately", "maybe", "perhaps", "possibly", "probably", "presumably", "might be", "could be",
    "i think", "i guess", "i believe", "seems", "unclear",
)  # fmt: skip


def admissions(text: str, highest: float) -> Iterator[float]:
    """Upper bounds on a stated number from admissions in the text: 0.3 or 0.5, one for each.

    >>> list(admissions("My answer is wrong.", 1.0)), list(admissions("Confidence: low", 1.0))
    ([0.3], [0.3])
    """
    if _MAY_ADMIT(text):
        if _OUTRIGHT.search(text):
            yield _ADMITTED
        if any(_denies(found, highest) for found in _DENIED.finditer(text)):
            yield UNDECIDED
    if _MAY_BE_LOW(text) and MAY_STATE(text):
        yield from (_ADMITTED if found["low"] else UNDECIDED for found in _IN_WORDS.finditer(text))


def _denies(found: re.Match[str], highest: float) -> bool:
    """Return True for a denial of certainty that the highest number contradicts."""
    words = found[0].lower()
    return found["far"] is not None or (
        highest >= _CERTAIN and re.search(r"\bnot\b|never|can(?:no|['’])t", words) is not None
    )


def admitted_confidence(text: str) -> float | None:
    """The low confidence of an outright admission without a number, such as "I don't know"; None without one."""
    lowered = text.lower()
    for stem in _STEMS:
        if stem in lowered:
            value, admitted = hedged_confidence(text)
            return value if admitted else None
    return None


def hedged_confidence(text: str) -> tuple[float, bool]:
    """A confidence from hedging words alone, at most 0.5, and whether one of them is an outright admission.

    Each distinct weak hedge ("roughly", "maybe") takes a tenth, each distinct admission ("not sure") two fifths.
    Words only ever lower the value, and only whole words count ("thoroughly" is not "roughly").

    >>> hedged_confidence("We checked thoroughly.")
    (0.5, False)
    """
    lowered = own_words(text).text.lower()
    admitted = sum(_has_words(lowered, phrase) for phrase in _PHRASES)
    hedges = sum(_has_words(lowered, phrase) for phrase in _HEDGES)
    return 0.5 * 0.9 ** min(hedges, 4) * 0.6 ** min(admitted, 2), admitted > 0


def _has_words(lowered: str, phrase: str) -> bool:
    """True when the phrase is in the text as whole words; a plain substring search first, it is far quicker."""
    return phrase in lowered and re.search(rf"\b{phrase}\b", lowered) is not None
