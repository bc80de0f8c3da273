"""What must still hold when an approved call runs, asked of the user's own code."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from grampus_uq.records.values import ToolCall

__all__ = ["Precondition", "refusal_of"]

Precondition = Callable[[ToolCall], "str | Awaitable[str | None] | None"]
"""Why a call must not run now, or None where it may; may be awaited."""


async def refusal_of(precondition: Precondition | None, call: ToolCall) -> str | None:
    """Why the call must not run now; None where nothing speaks against it. What cannot be checked does not hold."""
    if precondition is None:
        return None
    try:
        said = precondition(call)
        return await said if inspect.isawaitable(said) else said
    except Exception as error:  # noqa: BLE001 (user code: what cannot be checked does not hold)
        return f"its precondition could not be checked ({type(error).__name__}: {error})"
