"""Agreement by argument: of the turns that were drawn again, how many propose the same value there.

Calls are compared by their place in the turn, and their arguments only under the same tool. Texts of more than eight
words are left out: a letter can be worded in many ways. Linear in the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from grampus_uq.records.call_parts import CallPart
from grampus_uq.records.values import ToolCall, canonical_json
from grampus_uq.signals.call_tokens import MAX_CALLS, MAX_PARTS, part_name
from grampus_uq.signals.prose import is_prose


def agreement_parts(calls: Sequence[ToolCall], samples: Sequence[Sequence[ToolCall]]) -> tuple[CallPart, ...]:
    """The share of samples that agree on each call's tool and on each of its arguments; empty without samples."""
    found: list[CallPart] = []
    for place, call in enumerate(calls[:MAX_CALLS] if samples else ()):
        drawn = [sample[place] for sample in samples if place < len(sample) and sample[place].name == call.name]
        found.append(CallPart(call=place, agreement=len(drawn) / len(samples)))
        for number, (name, value) in enumerate(call.arguments.items(), start=1):
            if number > MAX_PARTS or is_prose(value):
                continue
            written = canonical_json(value)
            same = sum(name in one.arguments and canonical_json(one.arguments[name]) == written for one in drawn)
            found.append(CallPart(call=place, name=part_name(name, number), agreement=same / len(samples)))
    return tuple(found)
