"""The base of everything that users configure: what breaks a rule raises ConfigurationError with the way out."""

from __future__ import annotations

import ast
import difflib
import enum
import functools
import inspect
import numbers
import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
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
    unknown = (one for one in error.errors(include_url=False) if one["type"] == "extra_forbidden")
    if (first := next(unknown, None)) is None:
        return first_fault(error, owner.__name__, "parameters")
    field = ".".join(map(str, first["loc"]))
    way_out = nearest(field, owner.model_fields)
    return ConfigurationError.of(field, owner.__name__, "a parameter that exists", first["input"], way_out)


T = TypeVar("T")
_Kind = tuple[str, Callable[[Any], bool]]


def checked(cls: type[T]) -> type[T]:
    """A class whose constructor refuses an argument of another kind than its annotation names, before it runs.

    Checked are flags, numbers, texts, paths, mappings, collections and classes, and unions of these; text is no
    collection and "false" no flag. NaN, the members of an enumeration and protocols are left to the constructor.

    >>> from grampus_uq import Budget
    >>> Budget(max_calls="8")
    Traceback (most recent call last):
    grampus_uq.errors.ConfigurationError: The 'max_calls' parameter of `Budget` must be a whole number. Got '8'.
    """
    built = vars(cls)["__init__"]

    @functools.wraps(built)
    def checking(self: T, *args: Any, **given: Any) -> None:
        kinds = _kinds(built)
        for name, value in (*zip(kinds, args, strict=False), *given.items()):
            wanted = kinds.get(name)
            if wanted and not any(fits(value) for _, fits in wanted):
                rule = " or ".join(said for said, _ in wanted)
                secret = "key" in name or name in ("headers", "seal")
                shown = type(value) if secret else value  # a secret is in no message
                raise ConfigurationError.of(name, cls.__name__, rule, shown)
        built(self, *args, **given)

    cls.__init__ = checking  # type: ignore[assignment]
    return cls


@functools.cache
def _kinds(built: Any) -> dict[str, list[_Kind]]:
    """What fits each parameter of a constructor, in order; empty where anything may."""
    parameters = list(inspect.signature(built).parameters.values())[1:]
    return {one.name: _fitting(one.annotation, built.__globals__) for one in parameters}


def _fitting(annotation: str, known: Mapping[str, Any]) -> list[_Kind]:
    found: list[_Kind] = []
    left = [ast.parse(annotation, mode="eval").body]
    while left:
        node = left.pop()
        if isinstance(node, ast.BinOp):
            left += [node.right, node.left]
            continue
        of = ast.unparse(node.slice) if isinstance(node, ast.Subscript) else ""
        name = ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
        kind, cls = _PLAIN.get(name), known.get(name)
        if name in ("Collection", "Sequence", "tuple"):
            of = of.strip("()").removesuffix(", ...")
            kind = "a list of texts" if of == "str" else "a list", functools.partial(_lists, _fitting(of, known))
        elif name == "Literal":
            found_words = ast.literal_eval(of)
            words = found_words if isinstance(found_words, tuple) else (found_words,)
            kind = f"one of {', '.join(words)}", functools.partial(_among, words)
        elif kind is None and isinstance(cls, type) and not (cls is Any or _open(cls)):
            kind = f"{'an' if name[0] in 'AEIOU' else 'a'} {name}", functools.partial(_is, cls)
        if kind is None:
            return []
        found.append(kind)
    return found


def _open(cls: type) -> bool:
    return getattr(cls, "_is_protocol", False) or issubclass(cls, enum.Enum)


def _is(cls: Any, value: object) -> bool:
    return isinstance(value, cls)


def _among(words: tuple[str, ...], value: object) -> bool:
    return isinstance(value, str) and value in words


def _lists(inner: list[_Kind], value: object) -> bool:
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        return False
    return not inner or all(any(fits(one) for _, fits in inner) for one in value)


def _flag(value: object) -> bool:
    return type(value).__name__ in ("bool", "bool_")  # numpy's is not a subclass


def _number(value: Any) -> bool:
    if isinstance(value, numbers.Integral):
        return not _flag(value) and abs(int(value)) <= sys.float_info.max
    return isinstance(value, numbers.Real)


_PLAIN: Final[dict[str, _Kind]] = {
    "None": ("None", functools.partial(_is, type(None))),
    "bool": ("True or False", _flag),
    "int": ("a whole number", lambda value: isinstance(value, numbers.Integral) and not _flag(value)),
    "float": ("a number", _number),
    "str": ("text", functools.partial(_is, str)),
    "bytes": ("bytes", functools.partial(_is, bytes)),
    "Callable": ("a function", callable),
    "Mapping": ("a mapping", functools.partial(_is, Mapping)),
    "os.PathLike": ("a path", functools.partial(_is, os.PathLike)),
}


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
