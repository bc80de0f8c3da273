"""Address of the inbox, and the settings derived from it: accepted hosts, cookies, passkeys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from grampus_uq.errors import ConfigurationError

_ORIGIN = re.compile(r"(https://(?![\d.]+(:|$))[a-z0-9][a-z0-9.-]{0,251}|http://localhost)(:\d{1,5})?")
_NEEDLESS = re.compile(r"https.*:443|http:.*:80")  # a browser leaves these out


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxSettings:
    """The public address, "https://inbox.example.org", which passkeys are bound to. Raises ConfigurationError.

    Plain http is for "http://localhost:PORT" only: browsers offer passkeys nowhere else without https.
    """

    origin: str

    def __post_init__(self) -> None:
        if not _ORIGIN.fullmatch(self.origin) or _NEEDLESS.fullmatch(self.origin):
            rule = 'an origin in lower case, "https://NAME" or "http://localhost:PORT", without a path'
            raise ConfigurationError.of("--origin", "inbox", rule, self.origin)

    @property
    def secure(self) -> bool:
        """True behind https."""
        return self.origin.startswith("https:")

    @property
    def host(self) -> str:
        """The one value of `Host` that is served."""
        return urlsplit(self.origin).netloc

    @property
    def rp_id(self) -> str:
        """The relying party's id that passkeys are made for."""
        return urlsplit(self.origin).hostname or ""

    @property
    def cookie(self) -> str:
        """The name of the session's cookie."""
        return "__Host-inbox" if self.secure else "inbox"
