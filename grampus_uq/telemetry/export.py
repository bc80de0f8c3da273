"""Sends stored recordings as spans, with the times at which things happened, to anything that takes such spans."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.recording.reader import PartialLine, scan
from grampus_uq.recording.runs import Paths, interleaved, recording_files
from grampus_uq.records.events import Event, SessionStarted, StepEvent
from grampus_uq.telemetry.export_run import RunAsSpans, time_ns_of, wrong_number
from grampus_uq.telemetry.export_sending import Batches, RecordedIds
from grampus_uq.telemetry.span_content import Redact

_MOST_LISTED: Final = 1000
_LONGEST_VALUE: Final = 8192  # of an attribute, in characters: ids and names may be as long as a line of a recording


@dataclass(slots=True, kw_only=True)
class ExportReport:
    """The counts of an export. `refused` names up to a thousand of the `n_refused` faults by path, line and field."""

    files: int = 0
    runs: int = 0
    steps: int = 0
    spans: int = 0
    torn_lines: int = 0
    n_refused: int = 0
    refused: list[DataError] = field(default_factory=list)

    def refuse(self, error: DataError) -> None:
        """Count what is left out, and list it while there is room."""
        self.n_refused += 1
        if len(self.refused) < _MOST_LISTED:
            self.refused.append(error)


def send_recordings(
    paths: Paths,
    exporter: SpanExporter,
    *,
    service_name: str | None = None,
    content: bool = False,
    redact: Redact | None = None,
    on_sent: Callable[[int], None] | None = None,
    on_refused: Callable[[DataError], None] | None = None,
) -> ExportReport:
    """Send every run under files and folders as one trace, and say what was sent.

    Ids are computed from the recording, so sending twice sends the same spans twice, and a run that was paused and
    taken up again, in whatever process, is one trace. A line at a time is held, and at most one batch of spans; each
    batch is waited for and none is dropped. A line that cannot be read, and a run without times, is left out, given to
    `on_refused` and listed in the report; everything else is sent. Texts, arguments, outputs and messages are not,
    unless `content` asks for what the model said and tools were called with, each text after `redact`, as in
    `SpanEmitter`, and as far as it was recorded.

    `service_name` is "grampus-uq" unless it, OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise. `on_sent` is
    given the number of spans of each batch. The exporter is not shut down. Raises ExportError when the exporter gives
    up on a batch, DataError for a path that does not exist. Blocks: call it off the event loop.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        raise ConfigurationError("OTEL_SDK_DISABLED is true, so no span can be made: unset it to send recordings.")
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    for one in given:
        if not Path(one).exists():  # before anything is sent
            raise DataError("does not exist.", path=os.fspath(one))
    ids, batches = RecordedIds(), Batches(exporter, on_sent=on_sent)
    provider = TracerProvider(
        id_generator=ids,
        sampler=ALWAYS_ON,
        resource=_resource(service_name),
        shutdown_on_exit=False,
        span_limits=SpanLimits(max_attribute_length=_LONGEST_VALUE),
    )
    provider.add_span_processor(batches)
    report = ExportReport()

    def refuse(error: DataError) -> None:
        report.refuse(error)
        if on_refused is not None:
            on_refused(error)

    def begin(first: Event, began_ns: int) -> RunAsSpans:
        return RunAsSpans(provider, ids, first, began_ns, content=content, redact=redact)

    for path in recording_files(given):
        report.files += 1
        _send_file(path, report, refuse, begin)
    batches.send()
    report.spans = batches.sent
    return report


def _resource(service_name: str | None) -> Resource:
    found = Resource.create({} if service_name is None else {"service.name": service_name})
    unnamed = str(found.attributes.get("service.name", "unknown_service")).startswith("unknown_service")
    return Resource.create({"service.name": "grampus-uq"}) if service_name is None and unnamed else found


def _send_file(
    path: Path, report: ExportReport, refuse: Callable[[DataError], None], begin: Callable[[Event, int], RunAsSpans]
) -> None:
    run: RunAsSpans | None = None
    current: str | None = None
    seen: set[str] = set()
    for line, event in _sound_events(path, report, refuse):
        if event.session_id != current or (isinstance(event, SessionStarted) and not event.resumed):
            if event.session_id != current and event.session_id in seen:
                refuse(interleaved(event.session_id, path, line))
                continue
            if run is not None:
                run.finish()
            seen.add(event.session_id)
            current = event.session_id
            began_ns = (event.started_ns if isinstance(event, StepEvent) else 0) or time_ns_of(event)
            run = begin(event, began_ns) if began_ns > 0 else None
            report.runs += run is not None
            if run is None:
                way_out = "In Python, `importers.events(run, start_s=…)` gives it one."
                reason = f"the run {current!r:.100} has no time, as imported from a format without times. {way_out}"
                refuse(DataError(reason, path=str(path), line=line))
        if run is not None:
            report.steps += isinstance(event, StepEvent)
            run.take(_timed(event, run.latest_ns))
    if run is not None:
        run.finish()


def _timed(event: Event, latest_ns: int) -> Event:
    """A step of an imported run has no times of its own: shown when it was given, or at the latest."""
    if isinstance(event, StepEvent) and not (event.started_ns and event.ended_ns):
        at_ns = time_ns_of(event) or latest_ns
        return dataclasses.replace(event, started_ns=event.started_ns or at_ns, ended_ns=event.ended_ns or at_ns)
    return event


def _sound_events(path: Path, report: ExportReport, refuse: Callable[[DataError], None]) -> Iterator[tuple[int, Event]]:
    try:
        for line, found, _ in scan(path):
            if isinstance(found, DataError):
                refuse(found)
            elif isinstance(found, PartialLine):
                report.torn_lines += 1
            elif (wrong := wrong_number(found, str(path), line)) is not None:
                refuse(wrong)
            else:
                yield line, found
    except DataError as error:  # the file cannot be opened; the others may be
        refuse(error)
