"""Every exception that this package raises on purpose, drawn as a tree.

GrampusError
├── ConfigurationError        (also ValueError)   an argument, a profile or a policy breaks a rule
├── DataError                 (also ValueError)   a file or a row is not what it should be: path, line, field
├── MissingDependencyError    (also ImportError)  an optional package is needed; says which extra brings it
├── ModelError                                    a model call gave no usable answer
│   ├── ModelTimeoutError     (also TimeoutError) the deadline passed
│   ├── RateLimitedError                          HTTP 429 or its equivalent
│   └── UnsupportedByModelError                   the model refuses a parameter (logprobs, temperature, n)
├── SessionError                                  a session is unknown, finished, or held by another worker
│   ├── ChangedToolsError                         the tools of open calls changed, and the runner refuses to go on
│   └── SessionConflictError                      somebody else stored a newer version first
├── ApprovalError                                 a decision is stale, expired, replayed, unsigned or not permitted
├── StoreError                                    the session store cannot be reached or holds something unreadable
│   └── DamagedLogError                           a log of it cannot go on: its last entry is none
├── ExportError                                   a telemetry endpoint did not take what was sent to it
└── UncertaintyError                              the policy aborted the run; carries `code` and `details`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class GrampusError(Exception):
    """Base of every exception that this package raises on purpose."""


class ConfigurationError(GrampusError, ValueError):
    """An argument breaks a rule; the message names the argument, the rule, the value and the remedy."""

    @classmethod
    def of(cls, parameter: str, owner: str, rule: str, value: object, way_out: str = "") -> ConfigurationError:
        """Build the one form: "The 'alpha' parameter of `EProcess` must be in (0, 1). Got 5. (way out)"."""
        hint = f" ({way_out})" if way_out else ""
        try:
            got = f"{value!r:.200}"
        except Exception:  # noqa: BLE001 (bottomless, endless, or somebody else's `__repr__`)
            got = f"<{type(value).__name__}>"
        return cls(f"The '{parameter}' parameter of `{owner}` must be {rule}. Got {got}.{hint}")


class DataError(GrampusError, ValueError):
    """A file, a line or a field is not what it should be.

    `path`, `line` (from 1, None when the whole file is meant) and `field` say where.
    """

    def __init__(self, message: str, *, path: str = "", line: int | None = None, field: str = "") -> None:
        place = ":".join(part for part in (path, "" if line is None else str(line)) if part)
        where = ", ".join(part for part in (place, f"field '{field}'" if field else "") if part)
        super().__init__(f"{where}: {message}" if where else message)
        self.path = path
        self.line = line
        self.field = field
        self.reason = message


class MissingDependencyError(GrampusError, ImportError):
    """An optional package is needed; the message names the extra that installs it."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingDependencyError:
        """Say what is missing, what for, and the command that brings it."""
        return cls(f'{purpose} needs the package "{package}". Install it with: pip install "grampus-uq[{extra}]"')

    @classmethod
    @contextmanager
    def unless(cls, package: str, extra: str, purpose: str) -> Iterator[None]:
        """Raise it where what is imported within is missing."""
        try:
            yield
        except ImportError as error:
            raise cls.of(package, extra, purpose) from error


class ModelError(GrampusError):
    """A model call without a usable answer; `retryable` says whether asking again may help."""

    def __init__(self, message: str, *, retryable: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.status = status


class ModelTimeoutError(ModelError, TimeoutError):
    """The deadline of a model call passed."""


class RateLimitedError(ModelError):
    """The model's service asked us to slow down (HTTP 429 or its equivalent).

    `retry_after_s` is the wait that it asked for, None when it named none.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = True,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable, status=status)
        self.retry_after_s = retry_after_s


class UnsupportedByModelError(ModelError):
    """The model refuses a parameter; `parameter` names it (logprobs, temperature, n, response_format)."""

    def __init__(self, message: str, *, parameter: str, status: int | None = None) -> None:
        super().__init__(message, status=status)
        self.parameter = parameter


class SessionError(GrampusError):
    """A session is unknown, finished, or held by another worker."""


class ChangedToolsError(SessionError):
    """A session is left to workers whose tools are those of its open calls (`changed_tools="refuse"`)."""


class SessionConflictError(SessionError):
    """Another worker stored a newer version of the session first; nothing was overwritten."""


class ApprovalError(GrampusError):
    """A decision is stale, expired, replayed, tampered with, or its principal may not decide."""


class StoreError(GrampusError):
    """The session store cannot be reached, or holds something that this version cannot read."""


class DamagedLogError(StoreError):
    """A chained log cannot go on, because its last entry has no hash: no write that adds to it is taken."""


class ExportError(GrampusError):
    """A telemetry endpoint did not take what was sent to it; `sent` says how many spans it took before."""

    def __init__(self, message: str, *, sent: int = 0) -> None:
        super().__init__(message)
        self.sent = sent

    @classmethod
    def of(cls, reason: str, sent: int) -> ExportError:
        """Say why, what was taken before, and that sending again does no harm."""
        before = f"{sent} spans were taken before; " if sent else "Nothing was taken; "
        return cls(
            f"The endpoint refused spans: {reason.rstrip('. '):.1000}. {before}send again when it answers.", sent=sent
        )


class UncertaintyError(GrampusError):
    """The policy aborted the run.

    `code` is stable ("UNCERTAINTY_CRITICAL"); `details` is JSON-able and says at which step and on which numbers.
    """

    def __init__(
        self, message: str, *, code: str = "UNCERTAINTY_CRITICAL", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.details: dict[str, Any] = dict(details or {})
