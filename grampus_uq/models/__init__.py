"""Models behind one protocol: any OpenAI-compatible server, any model that litellm knows, and one that runs right here.

Each name is imported when it is first used, and each client loads its own library on its first call, so that
`import grampus_uq.models` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grampus_uq.models.doctor import Examination, examine
    from grampus_uq.models.litellm_model import LiteLLMModel
    from grampus_uq.models.local_model import LocalModel
    from grampus_uq.models.model_choice import open_model
    from grampus_uq.models.openai_compatible import OpenAICompatibleModel
    from grampus_uq.models.refusals import Capabilities

__all__ = [
    "Capabilities",
    "Examination",
    "LiteLLMModel",
    "LocalModel",
    "OpenAICompatibleModel",
    "examine",
    "open_model",
]

_PLACES = {
    "Capabilities": "refusals",
    "Examination": "doctor",
    "LiteLLMModel": "litellm_model",
    "LocalModel": "local_model",
    "OpenAICompatibleModel": "openai_compatible",
    "examine": "doctor",
    "open_model": "model_choice",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
