"""A model client from a name: "local", a server's address, or litellm's name of a model."""

from __future__ import annotations

import os

from grampus_uq.models.litellm_model import LiteLLMModel
from grampus_uq.models.local_model import LocalModel
from grampus_uq.models.model_file import Progress
from grampus_uq.models.openai_compatible import OpenAICompatibleModel
from grampus_uq.records.configuration import web_address


def open_model(
    name: str, *, api_base: str | None = None, timeout_s: float = 60.0, progress: Progress | None = None
) -> LocalModel | OpenAICompatibleModel | LiteLLMModel:
    """Make the client for a model as a command line names it; nothing is loaded or started yet.

    With `api_base` it is the OpenAI-compatible server there, asked for the model `name`. Without, "local" is the
    embedded model and any other name is litellm's. For a server the key is taken from `GRAMPUS_UQ_API_KEY`;
    `OPENAI_API_KEY` is used for OpenAI's own address only, so that no other server ever sees it. litellm reads its
    providers' own variables.

    >>> open_model("local")
    LocalModel('smollm2-135m-instruct')
    >>> open_model("openai/gpt-4o-mini")
    LiteLLMModel('openai/gpt-4o-mini')
    >>> open_model("qwen", api_base="http://127.0.0.1:8000/v1")
    OpenAICompatibleModel('http://127.0.0.1:8000/v1/chat/completions', model='qwen')
    """
    if api_base is not None:
        key = _key_for(api_base)
        return OpenAICompatibleModel(api_base, api_key=key, model=name, timeout_s=timeout_s)
    if name == "local":
        return LocalModel(timeout_s=timeout_s, progress=progress)
    return LiteLLMModel(name, timeout_s=timeout_s)


def _key_for(api_base: str) -> str | None:
    own = os.environ.get("GRAMPUS_UQ_API_KEY")
    if own:
        return own
    parts = web_address(api_base.strip(), "api_base", "open_model", "http://127.0.0.1:8000/v1")
    is_openai = parts.scheme == "https" and (parts.hostname or "").lower() == "api.openai.com"
    return os.environ.get("OPENAI_API_KEY") if is_openai else None
