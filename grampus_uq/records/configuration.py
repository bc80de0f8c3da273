"""The base of everything that users configure: what breaks a rule raises ConfigurationError with the way out."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ValidationError

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.stored_values import first_fault

if TYPE_CHECKING:

    class Configuration(BaseModel):
        """A pydantic model that raises ConfigurationError where it is built by hand."""

else:

    class _Raising(type(BaseModel)):
        def __call__(cls, *args, **given):
            try:
                return super().__call__(*args, **given)
            except ValidationError as error:
                raise _as_configuration_error(error, cls) from None

    class Configuration(BaseModel, metaclass=_Raising):
        """A pydantic model that raises ConfigurationError where it is built by hand.

        Read from a file (`model_validate`) it raises pydantic's error, for the reader to name the file and the field.
        """


def _as_configuration_error(error: ValidationError, owner: type[BaseModel]) -> ConfigurationError:
    first = error.errors(include_url=False)[0]
    if first["type"] != "extra_forbidden":
        return first_fault(error, owner.__name__, "parameters")
    field = ".".join(map(str, first["loc"]))
    way_out = nearest(field, owner.model_fields)
    return ConfigurationError.of(field, owner.__name__, "a parameter that exists", first["input"], way_out)


def web_address(
    url: str, parameter: str, owner: str, example: str, taken: Callable[[str], object] = urlsplit
) -> SplitResult:
    """The parts of an http or https address. Raises ConfigurationError for another, and shows no password or query.

    `taken` raises ValueError for what the library that connects does not take.

    >>> web_address("http://h:8000/v1?key=x", "api_base", "OpenAICompatibleModel", "http://127.0.0.1:8000/v1").hostname
    'h'
    """
    try:
        parts, _ = urlsplit(url), taken(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and " " not in url.strip():
            return parts
    except ValueError:  # a port that is no number, half an IPv6 address
        pass
    rule, shown = f"an http or https address such as {example}", url.rpartition("@")[2].partition("?")[0]
    raise ConfigurationError.of(parameter, owner, rule, shown)


def nearest(name: str, known: Any) -> str:
    """The known name that was probably meant.

    >>> nearest("p_ture", ["p_true", "verbalized"])
    "Did you mean 'p_true'?"
    """
    names = sorted(str(one) for one in known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names)}."
