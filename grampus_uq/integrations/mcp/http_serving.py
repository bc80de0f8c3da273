"""The HTTP proxy as a running server: bound to one address, each configured server under its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import anyio

from grampus_uq.errors import ConfigurationError, MissingDependencyError
from grampus_uq.integrations.mcp.http_proxy import Upstream, http_app
from grampus_uq.integrations.mcp.http_traffic import Bounds
from grampus_uq.integrations.mcp.proxy_config import ProxySettings
from grampus_uq.integrations.mcp.proxy_parts import ProxyParts

with MissingDependencyError.unless("mcp", "mcp", "serving MCP over HTTP"):
    from grampus_uq.runtime.http_server import HttpServer, listening

_LOCAL = ("127.0.0.1", "localhost", "[::1]")


async def serve_http(settings: ProxySettings, parts: ProxyParts, address: str, say: Callable[[str], None]) -> None:
    """Serve until a signal ends it. Raises ConfigurationError for an address or settings that cannot be served."""
    found = re.fullmatch(r"(?:(.+):)?(\d{1,5})", address)
    if found is None or not 0 < int(found[2]) < 65_536:
        raise ConfigurationError.of("--http", "mcp", "an address as 127.0.0.1:8765", address)
    if not settings.servers:
        rule = "a config with at least one [servers.NAME]"
        raise ConfigurationError.of("--config", "mcp", rule, None)
    if settings.advisory and any(server.prefix for server in settings.servers.values()):
        rule = "unset with advisory = true, where every byte passes as it came"
        raise ConfigurationError.of("servers.prefix", "mcp", rule, "a prefix")
    host, port = found[1] or _LOCAL[0], int(found[2])
    names = {host, *_LOCAL} if host in _LOCAL else {host}
    hosts = frozenset([*settings.hosts, *(f"{name}:{port}" for name in names)])
    upstreams = {
        name: Upstream(
            url=server.url,
            exchange=partial(parts.exchange, resumes=True, server=name, trusted=server.trusted, prefix=server.prefix),
            refusal=parts.shadow,
            advisory=settings.advisory,
        )
        for name, server in settings.servers.items()
    }
    with listening(host.strip("[]"), port) as at:
        async with anyio.create_task_group() as group:
            bounds = Bounds(hosts=hosts, limit=settings.max_message_bytes)
            app, release = http_app(upstreams, group, bounds=bounds, say=say)
            say(f"serving {', '.join(f'http://{host}:{port}/{name}' for name in upstreams)}")
            try:
                await HttpServer(app, app.state.end).serve(sockets=[at])
            finally:
                with anyio.CancelScope(shield=True):
                    await release()
                    await parts.aclose()
                group.cancel_scope.cancel()
