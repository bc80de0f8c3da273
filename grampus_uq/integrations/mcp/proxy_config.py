"""The settings of the proxy (docs/mcp.md): a TOML file, read strictly; each error names file, line and field."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat, ValidationError

from grampus_uq.core.estimator import UncertaintyEstimator
from grampus_uq.core.policy import UncertaintyPolicy
from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.gate.effects import ToolEffects
from grampus_uq.gate.requests import ApprovalPolicy
from grampus_uq.gate.seal import Seal
from grampus_uq.gate.signatures import HmacSigner, PublicKeys
from grampus_uq.integrations.mcp.message_lines import MAX_MESSAGE_BYTES
from grampus_uq.monitor.monitor import UncertaintyMonitor
from grampus_uq.monitor.sensing_settings import Sensing
from grampus_uq.records.configuration import nearest, web_address
from grampus_uq.records.protocols import Processor
from grampus_uq.records.vocabulary import Effect
from grampus_uq.signals.call_reader import Reader

_MAX_BYTES: Final = 1_000_000
_MOST_HOLD_S: Final = 3_600.0


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ApprovalSettings(_Table):
    """Approvers: holders of these public keys, or of the shared key in GRAMPUS_UQ_APPROVAL_KEY, or anybody.

    `elicitation`: the client shows its user what waits ("ask"), and what it answers is a decision ("decide").
    `started_by`: whose client it is; that person does not decide.
    """

    public_keys: dict[str, str | list[str]] = Field(default_factory=dict)
    approvers: list[str] | None = None
    required: int = Field(default=1, ge=1)
    started_by: str | None = Field(default=None, min_length=1, max_length=200)
    expires_s: PositiveFloat | None = None
    elicitation: Literal["ask", "decide"] | None = None

    def policy(self) -> ApprovalPolicy:
        """The policy of these settings and of the environment. Raises ConfigurationError."""
        keys = {name: [key] if isinstance(key, str) else list(key) for name, key in self.public_keys.items()}
        signer = PublicKeys(keys) if keys else HmacSigner.from_environment()
        if signer is not None and self.elicitation == "decide":
            rule = "'ask' where decisions are signed: what a client answers is not"
            raise ConfigurationError.of("approvals.elicitation", "mcp", rule, self.elicitation)
        if self.started_by is not None and self.elicitation == "decide":
            rule = "'ask' where `started_by` is set: the client's user may not decide"
            raise ConfigurationError.of("approvals.elicitation", "mcp", rule, self.elicitation)
        return ApprovalPolicy(
            signer=signer,
            approvers=self.approvers,
            expires_s=self.expires_s,
            required=self.required,
            others_decide=self.started_by is not None,
            seal=Seal.from_environment(),
        )


class ReaderSettings(_Table):
    """A small model that reads the calls of tools which the policy names: a GGUF file, or an OpenAI-compatible server.

    `weight`: what its reading counts where no fitted profile says so; 0 records it only.
    """

    model_file: str | None = None
    url: str | None = None
    model: str = ""
    timeout_s: PositiveFloat = 5.0
    weight: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)

    def reader(self) -> Reader:
        """The reader. Raises ConfigurationError unless it has a file or a server, and not both."""
        if (self.model_file is None) == (self.url is None):
            rule = "given as one of model_file and url"
            raise ConfigurationError.of("reader", "mcp", rule, (self.model_file, self.url))
        from grampus_uq.models import LocalModel, OpenAICompatibleModel

        client = LocalModel(model_file=self.model_file) if self.url is None else OpenAICompatibleModel(self.url)
        return Reader(client=client, model=self.model, timeout_s=self.timeout_s)


def _reached(url: str) -> str:
    import httpx  # a proxy of a command needs none

    def taken(url: str) -> None:
        try:
            httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(str(error)) from error

    web_address(url, "url", "[servers.NAME]", "https://notes.example/mcp", taken)
    return url


class ServerSettings(_Table):
    """A server that is reached over HTTP. `prefix` stands before the names of its tools, for the client and here."""

    url: Annotated[str, AfterValidator(_reached)]
    trusted: bool = False
    prefix: str = Field(default="", pattern="^[A-Za-z0-9_.-]{0,64}$")


class ProxySettings(_Table):
    """All settings of a guarded proxy.

    `servers`, `hosts` (values of `Host` that are served beside the address) and `shadowing` (two servers list one tool
    name) belong to `--http`. `unclassified`: calls of tools that nobody classified are asked about as if they could not
    be undone ("ask"), or pass. `agent`: by default named after the server's command, so that each has pins of its own.
    """

    agent: str | None = Field(default=None, min_length=1, max_length=200)
    store: str | None = None
    session: str | None = Field(default=None, min_length=1, max_length=200)
    starts: str | None = None
    recordings: str | None = None
    otlp_endpoint: str | None = Field(default=None, pattern="^https?://[^/]")
    profile: str | None = None
    advisory: bool = False
    trusted: bool = False
    unclassified: Literal["ask", "pass"] = "ask"
    hold_s: float = Field(default=55.0, ge=0.0, le=_MOST_HOLD_S, allow_inf_nan=False)
    max_message_bytes: int = Field(default=MAX_MESSAGE_BYTES, ge=1_024)
    effects: dict[str, Annotated[Effect, Field(strict=False)]] = Field(default_factory=dict)
    policy: dict[str, Any] = Field(default_factory=dict)
    approvals: ApprovalSettings = ApprovalSettings()
    reader: ReaderSettings | None = None
    hosts: list[str] = Field(default_factory=list)
    shadowing: Literal["refuse", "allow"] = "refuse"
    servers: dict[Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")], ServerSettings] = Field(default_factory=dict)

    def tool_effects(self) -> ToolEffects:
        """The effects of the tools by these settings: exact names, and patterns with a star."""
        exact = {name: effect for name, effect in self.effects.items() if not set(name) & set("*?[")}
        patterns = {name: effect for name, effect in self.effects.items() if name not in exact}
        return ToolEffects(exact, patterns=patterns, unknown_is_irreversible=self.unclassified == "ask")

    def monitor(self, processors: Sequence[Processor] = (), tracer: Any = None) -> UncertaintyMonitor:
        """The monitor of these settings. Raises ConfigurationError."""
        given: dict[str, Any] = {"processors": processors, "tracer": tracer, "advisory": self.advisory}
        if self.reader is not None:
            given["sensing"] = Sensing(reader=self.reader.reader())
        if self.profile is not None:
            return UncertaintyMonitor(profile=self.profile, **given)
        policy = UncertaintyPolicy.model_validate({"enable_p_true": False, **self.policy})
        weighs = {} if self.reader is None or not self.reader.weight else {Reader.source: self.reader.weight}
        return UncertaintyMonitor(policy=policy, estimator=UncertaintyEstimator(extra_weights=weighs), **given)


_TABLES: Final = dict[str, type[_Table]](approvals=ApprovalSettings, reader=ReaderSettings, servers=ServerSettings)


def read_settings(path: str | None, **given: Any) -> ProxySettings:
    """The settings of a file, with those of the command line in their place. Raises DataError, ConfigurationError."""
    text = "" if path is None else _text(path)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        raise DataError(f"is not TOML: {error}", path=path or "", line=int(found[1]) if found else None) from error
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        settings = ProxySettings.model_validate(values)
        UncertaintyPolicy.model_validate(settings.policy)
        settings.tool_effects()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, own = [str(part) for part in first["loc"]], first.get("ctx", {}).get("error")
        table = _TABLES.get(place[0], ProxySettings) if error.title == ProxySettings.__name__ else UncertaintyPolicy
        misspelt = first["type"] == "extra_forbidden"
        rule = f"there is no such field. {nearest(place[-1], table.model_fields)}" if misspelt else f"{first['msg']}."
        raise DataError(
            str(own) if isinstance(own, ConfigurationError) else f"{rule} Got {first['input']!r:.80}.",
            path=path or "the command line",
            line=_line_of(text, place),
            field=".".join(place),
        ) from error
    return settings


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # the latter: a NUL in the name
        raise DataError(f"cannot be read: {getattr(error, 'strerror', error)}", path=path) from error
    if len(data) > _MAX_BYTES:
        raise DataError(f"is longer than {_MAX_BYTES} bytes", path=path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"is not UTF-8: {error.reason}", path=path) from error


def _line_of(text: str, place: list[str]) -> int | None:
    """The line of a field in its table, or of the last of its tables that is named."""
    at = -1
    for name in place:
        names = re.compile(rf"[^=#]*(?<![\w-]){re.escape(name)}[\"']?\s*[=.\]]")
        at = next((n for n, line in enumerate(text.splitlines()) if n >= at and names.match(line)), at)
    return at + 1 or None
