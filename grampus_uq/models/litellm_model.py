"""Any model that litellm knows, by litellm's name for it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from grampus_uq.errors import ConfigurationError, MissingDependencyError, ModelError
from grampus_uq.models.chat_client import ChatClient
from grampus_uq.models.chat_format import CallOptions, Prices, read_completion, wire_messages
from grampus_uq.models.loop_thread import run_on_loop_thread
from grampus_uq.models.refusals import error_from, retry_after
from grampus_uq.records.configuration import checked
from grampus_uq.records.values import Message, ModelResponse, TokenUsage
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates

_SECRET_ENDINGS = ("_API_KEY", "_TOKEN", "_SECRET", "_ACCESS_KEY", "_PASSWORD")


@checked
class LiteLLMModel(ChatClient):
    """A `ModelClient` for every provider that litellm knows, on asyncio and on trio.

    litellm takes seconds to import and binds its connections to the first event loop it sees. So it is imported on the
    first call (or in `warmup`) by a thread with an event loop of its own, which all these models share, and it runs
    there. Its hidden retries are switched off; a call has one deadline. What a model refuses is left out and learnt as
    in `OpenAICompatibleModel`; what litellm's own list says that a model does not take is not even sent.

    Two settings are made when this is what imports litellm: it does not fetch its price list from the network
    (`LITELLM_LOCAL_MODEL_COST_MAP`, unless the user set it), and it does not print help texts.

    `model`, in litellm's spelling, such as "anthropic/claude-sonnet-4-5", and `timeout_s` hold for a call that names
    none; `api_base` is a server other than the provider's own. Without `api_key` litellm takes the provider's own
    environment variable; the key appears in no message and no `repr`. `prices` are US dollars for one input and for one
    output token; without them the cost is litellm's for a model whose price it knows (and no `api_base`), else None.
    Raises `ConfigurationError` when `timeout_s` or `prices` cannot be right.
    """

    def __init__(
        self,
        model: str = "",
        *,
        api_base: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        prices: Prices | None = None,
    ) -> None:
        super().__init__(model, timeout_s, prices)
        self._api_base = api_base
        self._api_key = api_key

    def __repr__(self) -> str:
        return f"LiteLLMModel({self._model!r})"

    async def warmup(self) -> None:
        """Import litellm (5 to 10 s); the event loop goes on meanwhile, with pauses of up to a second."""

        async def load() -> None:
            _litellm()

        await run_on_loop_thread(load)

    async def aclose(self) -> None:
        """Nothing to close: litellm shares its connections among all models of the process."""

    async def _send(
        self, model: str, messages: Sequence[Message], options: CallOptions, limit_s: float
    ) -> ModelResponse:
        if not model:
            raise ConfigurationError.of("model", "complete", "litellm's name of a model", model)
        written = wire_messages(messages)
        return await run_on_loop_thread(lambda: self._ask(model, written, options, limit_s))

    def _where(self, model: str) -> str:
        return f"The model {model!r}"

    async def _ask(
        self, name: str, messages: list[dict[str, Any]], options: CallOptions, limit_s: float
    ) -> ModelResponse:
        """One request; runs on the loop thread."""
        litellm = _litellm()
        import openai  # litellm brings it, and all that litellm raises on purpose derives from its base

        try:
            reply = await litellm.acompletion(
                model=name,
                messages=messages,
                api_base=self._api_base,
                api_key=self._api_key,
                timeout=limit_s,
                num_retries=0,
                max_retries=0,
                # With tools litellm would import a package that it does not require, and could run MCP tools by itself.
                _skip_mcp_handler=True,
                **options.keywords(),
            )
        except openai.OpenAIError as error:
            # The cause is cut off: its text may hold a key that was cut out of ours.
            raise self._error(error, name, options) from None
        response = read_completion(
            replace_lone_surrogates(reply.model_dump(warnings=False)), model=name, prices=self._prices
        )
        if self._prices is None and self._api_base is None:
            return _priced(litellm, name, response)
        return response

    def _error(self, error: Exception, name: str, options: CallOptions) -> ModelError:
        status = getattr(error, "status_code", None)
        parameter = getattr(error, "param", None)
        headers = getattr(error, "litellm_response_headers", None) or {}
        environment = (value for key, value in os.environ.items() if key.endswith(_SECRET_ENDINGS) and len(value) >= 8)
        return error_from(
            status if isinstance(status, int) else None,
            str(error),
            parameter if isinstance(parameter, str) else "",
            who=f"litellm could not ask {name!r}" + (f" (status {status})" if isinstance(status, int) else ""),
            sent=options.sent(),
            secrets=(self._api_key or "", *environment),
            retry_after_s=retry_after(headers.get("retry-after")),
        )


def _litellm() -> Any:
    """The module; takes seconds the first time."""
    first = "litellm" not in sys.modules
    # litellm would fetch its price list from the network while it is imported, and retry when it cannot.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        litellm: Any = importlib.import_module("litellm")
    except ModuleNotFoundError as error:
        if error.name != "litellm":
            raise
        raise MissingDependencyError(
            'LiteLLMModel needs the package "litellm". Install it with: pip install litellm'
        ) from error
    if first:
        litellm.suppress_debug_info = True  # otherwise errors print links to standard output
    return litellm


def _priced(litellm: Any, name: str, response: ModelResponse) -> ModelResponse:
    """The response with litellm's price for a model that it knows, unchanged for another."""
    usage = response.token_usage
    if not usage.total_tokens:
        return response
    try:
        spent = litellm.cost_per_token(
            model=name, prompt_tokens=usage.input_tokens, completion_tokens=usage.output_tokens
        )
    except Exception:  # noqa: BLE001 (a bare one up to 1.83 for a model without a price, which is worth no failed call)
        return response
    priced = TokenUsage(**{**usage.model_dump(), "cost_usd": float(sum(spent))})
    return response.model_copy(update={"token_usage": priced})
