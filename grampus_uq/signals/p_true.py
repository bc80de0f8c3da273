"""P(True): the model judges its own answer or proposed call; the reading is its probability of True against False.

Source: Kadavath et al. 2022 (arXiv 2207.05221), section 3. First choice is the probability mass of True against False
among the first token's alternatives; second choice a number in a JSON reply. A reply that is neither is a missing
reading, not 0.5. What the judge is shown is in `judged_view`.
"""

from __future__ import annotations

import random
import re

from grampus_uq.records.protocols import SenseContext
from grampus_uq.records.values import Message, ModelResponse, Reading, Step
from grampus_uq.records.vocabulary import MissingReason, Role, UncertaintySource
from grampus_uq.signals.confidence_forms import parse_number
from grampus_uq.signals.judged_view import judged_view
from grampus_uq.signals.statement_context import names_a_source
from grampus_uq.signals.token_signals import alternatives

# The model sees its own turn again and is asked about it. On the embedded model this ranks answers far better than a
# judge's report of question and answer does: AUROC .68 against .27 on 48 questions of the demo's lists.
_QUESTION = "Is the {what} above right? Reply with one word, True or False."
_JSON_QUESTION = (
    "How likely is it that the {what} above is right? "
    'Reply with nothing but JSON: {{"p_true": p}}, where p is a number between 0 and 1.'
)
_TRUE_WORDS = frozenset({"true", "yes"})
_FALSE_WORDS = frozenset({"false", "no"})
_FIELD = re.compile(
    r"""(?<=["'])(?:p_true|probability|confidence|confidence_score)["']\s{0,64}:\s{0,64}"""
    r"""("[^"\n]{0,40}"|[^\s,}\]"']{1,40}+(?![^\s,}\]"']|,[0-9])(?:\s?%)?|(?=\S))"""  # whole or not at all
)
_FENCE = r"\s{0,64}(?:```[a-z]{0,10}\s{0,64})?"
_OPENS = re.compile(_FENCE + r"\{")
_CLOSES = re.compile(r"[.!?:\n]" + _FENCE + r"\{[^{}]{0,160}\}\s{0,16}(?:```)?\s{0,16}\Z")
_AGAINST = re.compile(r"\b(?:false|wrong|incorrect|opposite|not (?:right|correct|true))\b")
_LONGEST_OBJECT = 400
_TOP_LOGPROBS = 10
MIN_TRUE_FALSE_MASS = 0.25
"""Below this share of the first token's probability on the two words the model was answering something else."""


def true_false_mass(response: ModelResponse) -> float | None:
    """P(True) / (P(True) + P(False)) over the first token that is not blank, in [0, 1], higher is better.

    Where False is not among the alternatives that were reported, all of the mass that was not counts as False. None
    when True and False together hold less than `MIN_TRUE_FALSE_MASS`, or a log-probability is malformed. Words count in
    any case, with leading blanks or the tokeniser's word marks; Yes and No count as True and False.
    """
    for token in response.logprobs or ():
        if not token.token.strip(" \t\n▁Ġ*\"'`"):
            continue
        masses = alternatives(token)
        if masses is None:
            return None
        words = [(text.strip(" \t\n▁Ġ*\"'`.:").lower(), mass) for text, mass in masses.items()]
        true = sum(mass for word, mass in words if word in _TRUE_WORDS)
        false = sum(mass for word, mass in words if word in _FALSE_WORDS)
        if true + false < MIN_TRUE_FALSE_MASS:
            return None
        return true / (true + (false or max(0.0, 1.0 - sum(masses.values()))))
    return None


def parse_p_true(text: str) -> float | None:
    """The probability in a reply such as '{"p_true": 0.8}', "0.8" or "80%"; None when there is none. Linear time.

    The object counts where it opens the reply or closes it after a whole sentence: in mid-sentence it is somebody's
    words, and so it is below a line that names another source. Of several values the least counts; one that is not a
    probability makes the reply none, and so does the word "false" or "wrong" beside a value above one half.
    """
    lower = text.lower()
    found = [parse_number(match[1].strip("\"'").rstrip(".,;")) for match in _FIELD.finditer(lower)]
    if not found:
        return parse_number(text) if len(text) <= 40 else None
    values = [value for value in found if value is not None]
    if len(values) < len(found) or (min(values) > 0.5 and _AGAINST.search(lower)):
        return None
    if _OPENS.match(lower):
        return min(values)
    closing = _CLOSES.search(lower, max(0, len(lower) - _LONGEST_OBJECT))
    if closing is None:
        return None
    announcing = lower[max(0, closing.start() - _LONGEST_OBJECT) : closing.start() + 1].strip().rsplit("\n", 1)[-1]
    return None if announcing.endswith(":") and names_a_source(announcing) else min(values)


class PTrue:
    """Asks the model whether its proposed calls (or, without calls, its text) are right, in view of the case.

    One call where the model reports log-probabilities or answers with a number, two where it does neither: a model that
    put its mass on neither word was not answering, and the number that it then says is worth no more. `rng` draws the
    marks around what is quoted: the system's own randomness unless a test gives one.
    """

    __slots__ = ("_rng",)
    source: str = UncertaintySource.P_TRUE

    def __init__(self, *, rng: random.Random | None = None) -> None:
        self._rng = rng or random.SystemRandom()  # what is judged must not guess the marks that enclose it

    async def sense(self, step: Step, context: SenseContext) -> Reading:
        """Ask; read the mass, else the number; without log-probabilities ask once more for a number."""
        if not step.judged_text().strip():
            return Reading(source=self.source, value=None, reason=MissingReason.NOTHING_TO_JUDGE)
        view = judged_view(step, context.messages, self._rng)
        if view is None:
            return Reading(source=self.source, value=None, reason=MissingReason.TOO_LONG)
        reply = await context.ask(
            [*view.messages, _asking(_QUESTION, view.what)], temperature=0.0, max_tokens=8, top_logprobs=_TOP_LOGPROBS
        )
        value = true_false_mass(reply)
        if value is None and not reply.logprobs:
            value = parse_p_true(reply.content)
        if value is None and not reply.logprobs:
            reply = await context.ask(
                [*view.messages, _asking(_JSON_QUESTION, view.what)], temperature=0.0, max_tokens=40
            )
            value = parse_p_true(reply.content)
        if value is None:
            return Reading(source=self.source, value=None, reason=MissingReason.PARSE_ERROR, detail=view.cut)
        return Reading(source=self.source, value=value, detail=view.cut)


def _asking(question: str, what: str) -> Message:
    return Message(role=Role.USER, content=question.format(what=what))
