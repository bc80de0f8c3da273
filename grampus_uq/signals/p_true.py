"""P(True): the model judges its own answer or proposed call, and the mass it puts on True against False is the reading.

Source: Kadavath et al. 2022 (arXiv 2207.05221), section 3. First choice is the probability mass of True against False
among the first token's alternatives; second choice a number in a JSON reply. A reply that is neither is a missing
reading, not 0.5.
"""

from __future__ import annotations

import math
import re

from grampus_uq.protocols import SenseContext
from grampus_uq.records import Message, ModelResponse, Reading, Step
from grampus_uq.signals.verbalized import parse_number
from grampus_uq.vocabulary import MissingReason, Role, UncertaintySource

__all__ = ["PTrue", "parse_p_true", "true_false_mass"]

# The model sees its own turn again and is asked about it. On the embedded model this ranks answers far better than a
# judge's report of question and answer does: AUROC .68 against .27 on 48 questions of the demo's lists.
_QUESTION = "Is the {what} above right? Reply with one word, True or False."
_JSON_QUESTION = (
    "How likely is it that the {what} above is right? "
    'Reply with nothing but JSON: {{"p_true": p}}, where p is a number between 0 and 1.'
)
_NO_REQUEST = "(The request is not shown.)"
_TRUE_WORDS = frozenset({"true", "yes"})
_FALSE_WORDS = frozenset({"false", "no"})
_FIELD = re.compile(
    r"""(?<=["'])(?:p_true|probability|confidence|confidence_score)["']\s{0,64}:\s{0,64}"""
    r"""("[^"\n]{0,40}"|[^\s,}\]"']{1,40}+(?![^\s,}\]"'])(?:\s?%)?|(?=\S))"""  # whole or not at all
)
MIN_TRUE_FALSE_MASS = 0.05
MAX_JUDGED_CHARACTERS = 20_000


def true_false_mass(response: ModelResponse) -> float | None:
    """P(True) / (P(True) + P(False)) over the first token that is not blank.

    None when the two hold less than 5 % of the mass. Words count in any case, with leading blanks or the tokeniser's
    word marks; Yes and No count as True and False.
    """
    for token in response.logprobs or ():
        if not token.token.strip(" \t\n▁Ġ*\"'`"):
            continue
        true = false = 0.0
        top = token.top
        if token.token not in [text for text, _ in top]:  # some servers leave the chosen token out of its alternatives
            top = (*top, (token.token, token.logprob))
        for text, logprob in top:
            word = text.strip(" \t\n▁Ġ*\"'`.:").lower()
            if not logprob <= 1e-3:
                return None
            if word in _TRUE_WORDS:
                true += math.exp(logprob)
            elif word in _FALSE_WORDS:
                false += math.exp(logprob)
        return true / (true + false) if true + false >= MIN_TRUE_FALSE_MASS else None
    return None


def parse_p_true(text: str) -> float | None:
    """The probability in a reply such as '{"p_true": 0.8}', "0.8" or "80%"; None when there is none. Linear time."""
    last = None
    for match in _FIELD.finditer(text.lower()):
        last = match
    if last is not None:
        return parse_number(last[1].strip("\"'").rstrip(".,;"))
    return parse_number(text) if len(text) <= 40 else None


class PTrue:
    """Asks the model whether its own text (or, without text, its proposed calls) is right.

    One call where the model reports log-probabilities or answers with a number, two where it does neither.
    """

    __slots__ = ("top_logprobs",)
    source: str = UncertaintySource.P_TRUE

    def __init__(self, *, top_logprobs: int = 10) -> None:
        self.top_logprobs = top_logprobs

    async def sense(self, step: Step, context: SenseContext) -> Reading:
        """Ask; read the mass, else the number, else ask once more for a number."""
        judged = step.judged_text().strip()
        if not judged:
            return Reading(source=self.source, value=None, reason=MissingReason.NOTHING_TO_JUDGE)
        what = "action" if step.tool_calls and not step.text.strip() else "answer"
        reply = await context.ask(
            _conversation(context, judged, what, _QUESTION),
            temperature=0.0,
            max_tokens=8,
            top_logprobs=self.top_logprobs,
        )
        value = true_false_mass(reply)
        if value is None:
            value = parse_p_true(reply.content)
        if value is None:
            reply = await context.ask(
                _conversation(context, judged, what, _JSON_QUESTION),
                temperature=0.0,
                max_tokens=40,
            )
            value = parse_p_true(reply.content)
        if value is None:
            return Reading(source=self.source, value=None, reason=MissingReason.PARSE_ERROR)
        return Reading(source=self.source, value=value)


def _conversation(context: SenseContext, judged: str, what: str, question: str) -> list[Message]:
    """The request, what the agent proposes as its own turn, and the question: plain text, and no tool's message."""
    request = next((m.content for m in reversed(context.messages) if m.role is Role.USER and m.content), _NO_REQUEST)
    proposed = judged[:MAX_JUDGED_CHARACTERS]
    return [
        Message(role=Role.USER, content=request[-MAX_JUDGED_CHARACTERS:]),
        Message(role=Role.ASSISTANT, content=f"Proposed action:\n{proposed}" if what == "action" else proposed),
        Message(role=Role.USER, content=question.format(what=what)),
    ]
