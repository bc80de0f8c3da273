"""Frozen values, built and revised quickly: a step builds few of them, and their constructors would be most of it.

The constructor of a frozen dataclass stores each field through `object.__setattr__`. Here they are stored plainly, in
an instance of a subclass that has the same layout and is not frozen, which is then made an instance of the class
itself: a tenth of the time. Like `StepUncertainty.trusted` this checks nothing: the caller knows the values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def builder(cls: Callable[P, T]) -> Callable[P, T]:
    """Return a function that builds a frozen, slotted, keyword-only dataclass as its constructor does, only quicker.

    >>> from grampus_uq.records.values import Outcome
    >>> builder(Outcome)(success=True) == Outcome(success=True)
    True
    """
    defaults = _defaults(cls)
    scope: dict[str, Any] = {f"_{name}": default for name, default in defaults.items()}
    required = dataclasses.MISSING
    parameters = (name if default is required else f"{name}=_{name}" for name, default in defaults.items())
    stores = [f"built.{name} = {name}" for name in defaults]
    build: Callable[P, T] = _compiled(cls, f"*, {', '.join(parameters)}", [*stores, "built.__class__ = cls"], scope)
    return build


def drafter(cls: type[T], *, but: Collection[str] = ()) -> Callable[[T], Any]:
    """Return a function that copies such a value into a draft whose fields may be set; setting `__class__` ends that.

    Quicker than to give each field of many: Python compares a keyword of a call with every parameter before its own.
    The fields `but` are not copied: the caller sets all of them.

    >>> from grampus_uq.records.values import Outcome
    >>> draft = drafter(Outcome, but=["success"])(Outcome(success=True))
    >>> draft.success, draft.__class__ = False, Outcome
    >>> draft == Outcome(success=False)
    True
    """
    names = [name for name in _defaults(cls) if name not in but]
    copy: Callable[[T], Any] = _compiled(cls, "value", [f"built.{name} = value.{name}" for name in names], {})
    return copy


def built_model(cls: type[T], values: dict[str, Any], given: set[str], private: dict[str, Any] | None = None) -> T:
    """A pydantic model, unchecked, in a tenth of `model_construct`'s time; `given`: the fields that somebody set."""
    built = object.__new__(cls)
    store = object.__setattr__
    store(built, "__dict__", values)
    store(built, "__pydantic_fields_set__", given)
    store(built, "__pydantic_extra__", None)
    store(built, "__pydantic_private__", private)
    return built


def _defaults(cls: Any) -> dict[str, Any]:
    """The fields and their defaults; raises TypeError for a class that has no plain fields."""
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls!r} is not a dataclass.")
    fields = dataclasses.fields(cls)
    if any(field.default_factory is not dataclasses.MISSING for field in fields):
        raise TypeError(f"{cls!r} has a default that is made anew for each instance.")
    return {field.name: field.default for field in fields}


def _compiled(cls: Any, parameters: str, lines: list[str], scope: dict[str, Any]) -> Any:
    thawed = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    scope |= {"cls": cls, "new": object.__new__, "draft": type(cls.__name__, (cls,), thawed)}
    source = "\n    ".join([f"def build({parameters}):", "built = new(draft)", *lines, "return built"])
    exec(source, scope)  # noqa: S102 (our own field names)
    return scope["build"]
