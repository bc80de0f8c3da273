"""Token usage, as OpenAI, Anthropic, LangChain, pydantic-ai and litellm name it."""

from __future__ import annotations

from typing import Any, Final

from grampus_uq.records.values import TokenUsage
from grampus_uq.wire.fields import field

MOST_TOKENS: Final = 2**43
"""A larger count is stated only by mistake; counts must stay addable and storable."""

MOST_USD: Final = 1e9
"""As above, of a cost."""

_INPUT: Final = ("input_tokens", "prompt_tokens", "prompt_token_count")
_OUTPUT: Final = ("output_tokens", "completion_tokens", "candidates_token_count")
_TOTAL: Final = ("total_tokens", "total_token_count")


def read_counts(usage: Any) -> tuple[int | None, int | None, int | None]:
    """Input, output and total tokens; None for a count that is not there or is not a number of tokens. Never raises."""
    return _count(field(usage, *_INPUT)), _count(field(usage, *_OUTPUT)), _count(field(usage, *_TOTAL))


def states_usage(usage: Any) -> bool:
    """Return True for None or a value with at least one of the names of a usage."""
    return usage is None or (type(usage) is dict and not usage) or field(usage, *_INPUT, *_OUTPUT, *_TOTAL) is not None


def read_usage(usage: Any, *, model: str = "") -> TokenUsage:
    """Read a usage of any of these libraries; a count that is none is 0. Never raises.

    >>> read_usage({"prompt_tokens": 3, "completion_tokens": 4}).total_tokens
    7
    """
    if (
        isinstance(usage, TokenUsage)
        and max(usage.input_tokens, usage.output_tokens, usage.total_tokens) < MOST_TOKENS
        and 0.0 <= (usage.cost_usd or 0.0) < MOST_USD
    ):
        return usage
    spent_in, spent_out, total = read_counts(usage)
    cost, named = field(usage, "cost_usd"), field(usage, "model")
    known = isinstance(cost, int | float) and not isinstance(cost, bool) and 0.0 <= cost < MOST_USD
    return TokenUsage(
        input_tokens=spent_in or 0,
        output_tokens=spent_out or 0,
        total_tokens=total if total else (spent_in or 0) + (spent_out or 0),
        cost_usd=cost if known else None,
        model=named if isinstance(named, str) else model,
    )


def _count(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value < MOST_TOKENS else None
