"""A guarded proxy put together from its settings: one store, one monitor, and an exchange for each session."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread

from grampus_uq.gate.gate import Gate
from grampus_uq.gate.seal import Seal
from grampus_uq.integrations.mcp.call_exchange import CallExchange
from grampus_uq.integrations.mcp.connection_session import ConnectionSession, SessionNames
from grampus_uq.integrations.mcp.elicitation import Elicitation
from grampus_uq.integrations.mcp.guarded_calls import GuardedCalls
from grampus_uq.integrations.mcp.listed_tools import ListedTools
from grampus_uq.integrations.mcp.proxy_config import ProxySettings
from grampus_uq.integrations.mcp.request_state import RequestStates
from grampus_uq.integrations.mcp.shown_names import SharedNames
from grampus_uq.recording.writer import RecordingProcessor
from grampus_uq.runtime.guarantee_watch import CalibrationWatch
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.runtime.stored_permits import StoredPermits
from grampus_uq.runtime.stored_starts import StoredStarts
from grampus_uq.runtime.stores import open_store

if TYPE_CHECKING:
    from grampus_uq.telemetry.tracer import GrampusTracer


class ProxyParts:
    """Shared parts of one proxy's sessions. `say` writes to the proxy's log."""

    def __init__(self, settings: ProxySettings, url: str, say: Callable[[str], None]) -> None:
        self._settings, self._say = settings, say
        self._recorder = None if settings.recordings is None else RecordingProcessor(settings.recordings)
        self._tracer = _tracer(settings.otlp_endpoint)
        self._monitor = settings.monitor([] if self._recorder is None else [self._recorder], self._tracer)
        self._approvals = settings.approvals.policy()
        self._store = open_store(url, create=True)
        self._starts = None if settings.starts is None else open_store(settings.starts, create=True)
        detector = self._monitor.profile.detector
        self._watch = None if detector is None else CalibrationWatch(self._store, detector)
        self._states = RequestStates(self._approvals.seal or Seal.of_this_process())
        self._names = SharedNames()

    def exchange(
        self, session_id: str, *, resumes: bool, server: str = "", trusted: bool = False, prefix: str = ""
    ) -> CallExchange:
        """A session's exchange, with gate and tools of its own; of several servers, each has its own session."""
        settings = self._settings
        session_id = f"{server}-{session_id}" if server else session_id
        agent_id = f"{settings.agent or 'mcp'}/{server}" if server else settings.agent or "mcp"
        tools = ListedTools(settings.tool_effects(), trusted=trusted, told=partial(self._names.add, server))
        ledger = Ledger(self._store, seal=self._approvals.seal)
        gate = Gate(
            approvals=self._approvals,
            effects=tools.effects(),
            schema_of=tools.schema,
            clock=ledger.now_s,
            permits=StoredPermits(  # answers on one server's calls say nothing of another's, however it defines a tool
                self._store, self._approvals, agent_version=lambda tool: f"{agent_id} {tools.version(tool)}"
            ),
            started_by=lambda session_id: settings.approvals.started_by,
            starts=None if self._starts is None else StoredStarts(self._starts),
        )
        session = ConnectionSession(
            SessionNames(agent_id=agent_id, session_id=session_id, resumes=resumes),
            monitor=self._monitor,
            ledger=ledger,
            gate=gate,
            say=self._say,
            watch=self._watch,
        )
        calls = GuardedCalls(session, tools, only_listed=bool(server))  # HTTP: it outlives what is remembered of it
        mode = settings.approvals.elicitation
        elicitation = None if mode is None else Elicitation(ledger, mode)
        spans = None
        if self._tracer is not None:
            from grampus_uq.integrations.mcp.call_spans import CallSpans

            spans = CallSpans(self._tracer, session_id, "tcp" if server else "pipe")
        hold_s = 0.0 if settings.advisory else settings.hold_s
        return CallExchange(
            calls, self._states, self._say, hold_s=hold_s, elicitation=elicitation, spans=spans, prefix=prefix
        )

    def shadow(self, tool: str) -> str | None:
        """The reason not to call a tool: servers of this proxy share its name, and a model cannot tell them apart."""
        servers = self._names.servers(tool)
        if self._settings.shadowing == "allow" or len(servers) < 2:
            return None
        return (
            f"refused: {' and '.join(servers)} list the tool {tool!r:.80} "
            "(give one of them a prefix, or allow it with shadowing = 'allow')"
        )

    async def aclose(self) -> None:
        """Close the stores and the recording, and send the last spans."""
        await self._store.aclose()
        if self._starts is not None:
            await self._starts.aclose()
        if self._tracer is not None:
            await anyio.to_thread.run_sync(self._tracer.shutdown)
        if self._recorder is not None:
            self._recorder.close()


def _tracer(endpoint: str | None) -> GrampusTracer | None:
    if endpoint is None:
        return None
    from grampus_uq.telemetry.tracer import GrampusTracer  # loads the exporter

    return GrampusTracer(service_name="grampus-uq-mcp", otlp_endpoint=endpoint)
