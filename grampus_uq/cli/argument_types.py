"""Types of arguments: outputs, of which it is found out before the work that they can be written; finite numbers."""

from __future__ import annotations

import difflib
import getpass
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar, Final

import click

from grampus_uq.errors import ConfigurationError, DataError


def options(*given: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The decorators of several commands as one, in their order."""
    return lambda function: reduce(lambda decorated, option: option(decorated), reversed(given), function)


def login_name() -> str:
    """The login name. Raises ConfigurationError where the system knows none, as for a user of a container only."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError) as error:
        rule = "set where the system knows no login name: or say who you are with --as, or --by for a label"
        raise ConfigurationError.of("LOGNAME", "the environment", rule, None) from error


class FiniteRange(click.FloatRange):
    """A finite number in a range; NaN is in no range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Raises click's BadParameter."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r:.40} is not a finite number.", param, ctx)
        return number


SHARE: Final = FiniteRange(0.0, 1.0, min_open=True, max_open=True)


class OutputFile(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """A file to write; an existing one is replaced, a device or a pipe is not. "-" is left to the command."""

    name = "file"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path as it was given. Raises DataError where no file can be written there."""
        if value == "-":
            return value
        try:
            path = Path(value)
            if "\0" in value:
                raise ValueError(value)
            if not value or path.is_dir() or (path.exists() and not path.is_file()):
                raise DataError("cannot be written: it is not a file.", path=value)
            _try(path.parent)
        except (OSError, ValueError) as error:
            raise _unwritable(value, error) from error
        return value


class OutputFolder(click.ParamType):  # type: ignore[type-arg]
    """A folder to write to; it, and the folders above it, may still have to be made."""

    name = "folder"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path as it was given. Raises DataError where no folder can be written there."""
        try:
            path = Path(value).absolute()
            while not path.exists() and path != path.parent:
                path = path.parent
            _try(path)
        except (OSError, ValueError) as error:
            raise _unwritable(value, error) from error
        return value


def _try(folder: Path) -> None:
    """Write a file that nobody sees: permissions alone do not tell, for root or on a read-only disk."""
    with tempfile.TemporaryFile(dir=folder):
        pass


def _unwritable(value: str, error: Exception) -> DataError:
    if isinstance(error, DataError):
        return error
    reason = error.strerror if isinstance(error, OSError) else "it is not a path"
    return DataError(f"cannot be written: {reason}.", path=os.fspath(value))


class SummarisedGroup(click.Group):
    """A group whose help shows the first sentence of each command whole; click cuts it after 45 characters.

    A misspelt command is answered with the one that was meant; to click `report` looks like `import`.
    """

    renamed: ClassVar[Mapping[str, str]] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is asked for. Raises click's UsageError."""
        name, known = args[0], self.list_commands(ctx)
        near = [self.renamed[name]] if name in self.renamed else difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        if name not in known and not name.startswith("-"):
            ctx.fail(f"No such command {name!r:.80}." + "".join(f" Did you mean {one!r}?" for one in near))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line or two for each command."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=400)) for name, command in found if command])
